//! The same exchanges judged by the crate http-cache-semantics. Where the two differ, the difference has a name here.

use crate::life::{at, store};
use crate::table::{THEN, request, response};
use http::{Request, Response};
use http_cache_semantics::{BeforeRequest, CachePolicy};
use pumice_door_http::rules::Rule;
use pumice_world::Random;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What an exchange may have that the two judge differently, at most one of them: where it stands, what it is, and what they make of it.
const DIFFERENCES: &str = r#"
    answer     | cdn-cache-control: max-age=60        | a targeted field: they do not know it
    directives | private="x-a"                        | a private field: they do not store the response
    directives | no-cache="x-a"                       | a field to be validated: they validate the response
    directives | must-understand, no-store            | must-understand: they do not know it
    answer     | set-cookie: a                        | a cookie: they store it, and use it by public or immutable
    directives | proxy-revalidate                     | proxy-revalidate: they take it for a lifetime of 0, and use it by max-stale
    answer     | vary: *                              | Vary: *: they store it, and never use it
    status     | 299                                  | a status that is not known: they do not store it
    status     | 500                                  | a status that is not known: they do not store it
    status     | 405                                  | what an odd request provokes: they guess a lifetime
    status     | 501                                  | what an odd request provokes: they guess a lifetime
    directives | max-age=100, max-age=40              | a number twice: they take the first, and add must-revalidate, which allows Authorization
    answer     | age: x                               | an Age that cannot be read: they pass over it
    answer     | date: date(-20)                      | Date: they do not count it as age
    directives | immutable                            | immutable: they take it for a lifetime of a day, and reload it
    answer     | last-modified: date(-99999999)       | modified long ago: their guess has no bound
    answer     | pragma: no-cache                     | Pragma of a response: they obey it
    again      | cache-control: x & pragma: no-cache  | Pragma beside Cache-Control: they obey it
    directives | stale-while-revalidate=50            | stale-while-revalidate: they do not know it
    asked      | HEAD                                 | HEAD: they store its response
    asked      | POST                                 | POST: they store its response
"#;

/// An exchange, and what is asked later.
#[derive(Debug)]
struct Case {
    asked: String,
    answer: String,
    again: String,
    secs: i64,
    difference: Option<&'static str>,
}

impl Case {
    fn draw(random: &mut Random) -> Self {
        let mut draw = |choices: &'static str| -> &'static str {
            let choices: Vec<_> = choices.trim().split('|').collect();
            choices[random.below(choices.len() as u64) as usize].trim()
        };
        let mut directives = vec![
            draw("|||max-age=0|max-age=60|max-age=60|max-age=x"),
            draw("|||||s-maxage=30|s-maxage=90"),
            draw("|||||public|no-cache|no-store|private"),
            draw("||||must-revalidate"),
        ];
        let mut answer = vec![
            draw("||expires: date(60)|expires: date(-60)|expires: 0"),
            draw("||last-modified: date(-600)|etag: \"a\""),
            draw("||||age: 20"),
            draw("|||date: date(0)|vary: accept"),
        ];
        let mut asked = draw("||||authorization: x|accept: a|cache-control: no-store");
        let mut again = draw(
            "||||cache-control: no-cache|cache-control: max-age=30|cache-control: min-fresh=20|cache-control: max-stale|\
             cache-control: max-stale=20|pragma: no-cache|accept: a",
        );
        let mut status = draw("200|200|200|200|203|302|404|410");
        let secs = draw("0|5|29|31|59|60|61|89|90|130|99999|99999");
        let lines: Vec<_> = DIFFERENCES.trim().lines().collect();
        let at = random.below(2 * lines.len() as u64) as usize;
        let difference = lines.get(at).map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            match cells[0] {
                "directives" => directives.insert(0, cells[1]),
                "answer" => answer.push(cells[1]),
                "status" => status = cells[1],
                "asked" => asked = cells[1],
                _ => again = cells[1],
            }
            cells[2]
        });
        directives.retain(|text| !text.is_empty());
        let directives = match directives.is_empty() {
            true => String::new(),
            false => format!("cache-control: {}", directives.join(", ")),
        };
        answer.push(&directives);
        Self {
            asked: asked.to_owned(),
            answer: format!("{status} {}", answer.join(" & ")),
            again: again.to_owned(),
            secs: secs.parse().unwrap(),
            difference,
        }
    }

    /// Whether the response is stored, and whether it is used for the later request; and why not.
    fn ours(&self) -> (bool, bool, String) {
        match store(&self.asked, &self.answer, &Rule::default(), at(0)) {
            Err(reason) => (false, false, reason.name().to_owned()),
            Ok(stored) => {
                let seen = stored.ask(&self.again, self.secs);
                let is_used = seen.starts_with("fresh") || seen.starts_with("stale");
                (true, is_used, seen)
            }
        }
    }

    fn theirs(&self) -> (bool, bool) {
        let time =
            |secs: i64| -> SystemTime { UNIX_EPOCH + Duration::from_secs((THEN + secs).unsigned_abs()) };
        let request = |cell: &str| {
            let (method, fields) = request(cell);
            let mut request = Request::builder()
                .method(method)
                .uri("http://example.org/x")
                .body(())
                .unwrap();
            *request.headers_mut() = fields;
            request
        };
        let (status, fields) = response(&self.answer);
        let mut response = Response::builder().status(status).body(()).unwrap();
        *response.headers_mut() = fields;
        let policy = CachePolicy::new_options(&request(&self.asked), &response, time(0), Default::default());
        let later = policy.before_request(&request(&self.again), time(self.secs));
        let is_used = matches!(later, BeforeRequest::Fresh(_));
        (policy.is_storable(), policy.is_storable() && is_used)
    }

    /// The name of a difference.
    fn named(&self, why: &str) -> Option<&'static str> {
        let has = |text: &str| self.answer.contains(text);
        let takes_stale = self.again.contains("max-stale");
        match why {
            "no-freshness" => Some("what is of no use: they store it, and use it by max-stale"),
            _ if takes_stale && has("no-cache") => Some("no-cache: they use it by max-stale"),
            _ if takes_stale && has("s-maxage") => Some("stale after s-maxage: they use it by max-stale"),
            _ => self.difference,
        }
    }
}

#[test]
fn every_difference_has_a_name() {
    let mut random = Random(56);
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..52_000 {
        let case = Case::draw(&mut random);
        let (we_store, we_use, why) = case.ours();
        let theirs = case.theirs();
        let name = match (we_store, we_use) == theirs {
            true if we_use => "both use it",
            true if we_store => "both store it",
            true => "none stores it",
            false => case
                .named(&why)
                .unwrap_or_else(|| panic!("{case:?} {why} {theirs:?}")),
        };
        *seen.entry(name).or_default() += 1;
    }
    let agreed: u32 = ["both use it", "both store it", "none stores it"]
        .iter()
        .map(|name| seen[name])
        .sum();
    assert!(agreed > 35_000 && seen["both use it"] > 4000, "{seen:#?}");
    for line in DIFFERENCES.trim().lines() {
        let name = line.rsplit('|').next().unwrap().trim();
        assert!(seen.contains_key(name), "no longer different: {name}");
    }
}
