//! Each requirement of RFC 9111, and of those that add to it, on one exchange or two.

use crate::life::{Stored, at, store, target};
use crate::table::{date, fields, request, rows};
use http::{HeaderMap, StatusCode};
use pumice_door_http::conditional::{ask_validation, ask_whole, is_in_304, is_still};
use pumice_door_http::decide::{Decision, Failure, Found, decide};
use pumice_door_http::freshness::Times;
use pumice_door_http::key::{Query, Scheme, Target};
use pumice_door_http::range::{Part, part};
use pumice_door_http::rules::{Override, Rule};
use pumice_door_http::store::NotStored;

/// A row: section and what it says, the request, its response, a second request, how many seconds later, what becomes of this.
fn check(table: &str, rule: &Rule) {
    for [says, asked, answer, again, secs, expected] in rows(table) {
        let seen = match store(asked, answer, rule, at(0)) {
            Err(reason) => reason.name().to_owned(),
            Ok(stored) => stored.ask(again, secs.parse().unwrap()),
        };
        assert_eq!(seen, expected, "{says}: {asked} | {answer} | {again} | {secs}");
    }
}

#[test]
fn storing() {
    let table = r#"
        3 a method that is cacheable       | POST | cache-control: max-age=60 | | 0 | method
        3 HEAD has no body to store        | HEAD | cache-control: max-age=60 | | 0 | method
        3 a status that is final           | | 103 cache-control: max-age=60 | | 0 | status
        3 206 is a part                    | | 206 cache-control: max-age=60 | | 0 | status
        3 304 is a part                    | | 304 cache-control: max-age=60 | | 0 | status
        3 an unknown status, but fresh     | | 299 cache-control: max-age=60 | | 1 | fresh 1
        3 nothing makes it cacheable       | | 302 last-modified: date(-9999) | | 0 | status
        3 nothing makes it cacheable       | | 500 etag: "a" | | 0 | status
        3 public does                      | | 500 cache-control: public & etag: "a" | | 0 | validate stale
        3 Expires does                     | | 302 expires: date(60) | | 59 | fresh 59
        3 of no use                        | | content-length: 5 | | 0 | no-freshness
        3 of no use                        | | cache-control: max-age=0 | | 0 | no-freshness
        3 of no use, as it is never stale  | | cache-control: max-age=0, must-revalidate, stale-while-revalidate=9 | | 0 | no-freshness
        3 of use, as it may be             | | cache-control: max-age=0, stale-if-error=9 | | 0 | fetch stale
        3 a validator that is left out     | | cache-control: private=etag & etag: "a" | | 0 | no-freshness
        3 a validator is of use            | | etag: "a" | | 0 | validate stale
        3 too large                        | | cache-control: max-age=60 & content-length: 1001 | | 0 | too-large
        3.5 Authorization                  | authorization: x | cache-control: max-age=60 | | 0 | authorization
        3.5 Authorization, targeted        | authorization: x | cdn-cache-control: max-age=60 | | 0 | authorization
        3.5 no-cache does not allow it     | authorization: x | cache-control: no-cache & etag: "a" | | 0 | authorization
        3.5 public does                    | authorization: x | cache-control: public, max-age=60 | | 0 | fresh 0
        3.5 must-revalidate does           | authorization: x | cache-control: must-revalidate, max-age=60 | | 0 | fresh 0
        3.5 s-maxage does                  | authorization: x | cache-control: s-maxage=60 | | 0 | fresh 0
        4.1 Vary: *                        | | cache-control: max-age=60 & vary: accept, * | | 0 | vary
        5.2.1.5 no-store of the request    | cache-control: no-store | cache-control: max-age=60 | | 0 | no-store
        5.2.2.5 no-store                   | | cache-control: no-store, max-age=60 | | 0 | no-store
        5.2.2.3 must-understand lifts it   | | cache-control: no-store, must-understand, max-age=60 | | 0 | fresh 0
        5.2.2.3 for what is understood     | | 299 cache-control: must-understand, max-age=60 | | 0 | must-understand
        5.2.2.7 private                    | | cache-control: private, max-age=60 | | 0 | private
        5.2.2.7 in any case                | | cache-control: PRIVATE, max-age=60 | | 0 | private
        5.2.2.7 private of one field       | | cache-control: private="x-a", max-age=60 & x-a: 1 | | 0 | fresh 0
        7.3 Set-Cookie                     | | cache-control: max-age=60 & set-cookie: a | | 0 | set-cookie
        7.3 but public                     | | cache-control: public, max-age=60 & set-cookie: a | | 0 | fresh 0
        7.3 but s-maxage                   | | cache-control: s-maxage=60 & set-cookie: a | | 0 | fresh 0
        7.3 but targeted                   | | cdn-cache-control: max-age=60 & set-cookie: a | | 0 | fresh 0
        7.3 but left out                   | | cache-control: max-age=60, no-cache=set-cookie & set-cookie: a | | 0 | fresh 0
    "#;
    check(table, &Rule::default());
}

#[test]
fn what_an_odd_request_provokes_is_stored_where_the_origin_says_so() {
    let rule = Rule {
        fresh_secs: Some(60),
        ..Rule::default()
    };
    for status in [400, 405, 413, 414, 431, 501] {
        let table = format!(
            r#"
            no guess, no rule  | | {status} last-modified: date(-9999) & etag: "a" | | 0 | status
            public is not it   | | {status} cache-control: public & last-modified: date(-9999) | | 0 | status
            its own freshness  | | {status} cache-control: max-age=60 | | 59 | fresh 59
            "#
        );
        check(&table, &rule);
    }
}

#[test]
fn freshness_and_reuse() {
    let table = r#"
        4 fresh while its age is less      | | cache-control: max-age=60 | | 59 | fresh 59
        4 HEAD from GET                    | | cache-control: max-age=60 | HEAD | 1 | fresh 1
        4 other methods go on              | | cache-control: max-age=60 | POST | 1 | pass method
        4.2 stale when it is not           | | cache-control: max-age=60 & etag: "a" | | 60 | validate stale
        4.2 without validator              | | cache-control: max-age=60 | | 60 | fetch stale
        4.2 without validator, HEAD        | | cache-control: max-age=60 | HEAD | 60 | pass stale
        4.2.1 s-maxage before max-age      | | cache-control: max-age=1, s-maxage=60 | | 59 | fresh 59
        4.2.1 max-age before Expires       | | cache-control: max-age=60 & expires: date(1) | | 59 | fresh 59
        4.2.1 Expires less Date            | | expires: date(60) & date: date(10) | | 49 | fresh 49
        4.2.1 Expires less Date            | | expires: date(60) & date: date(10) | | 50 | fetch stale
        4.2.1 twice: what allows less      | | cache-control: max-age=60 & cache-control: max-age=9 | | 9 | fetch stale
        4.2.1 twice: what allows less      | | expires: date(60) & expires: date(50) & etag: "a" | | 50 | validate stale
        4.2.1 not readable is stale        | | cache-control: max-age=x & etag: "a" | | 0 | validate stale
        4.2.2 a tenth of its life          | | last-modified: date(-1000) | | 99 | fresh 99
        4.2.2 no longer                    | | last-modified: date(-1000) | | 100 | validate stale
        4.2.2 at most a day                | | last-modified: date(-99999999) | | 86399 | fresh 86399
        4.2.2 at most a day                | | last-modified: date(-99999999) | | 86400 | validate stale
        4.2.2 modified in the future       | | last-modified: date(1000) | | 0 | validate stale
        4.2.2 not beside what is told      | | last-modified: date(-1000) & cache-control: max-age=1 | | 1 | validate stale
        4.2.2 public may be guessed        | | 302 last-modified: date(-1000) & cache-control: public | | 99 | fresh 99
        4.2.3 Age that was received        | | cache-control: max-age=60 & age: 50 | | 9 | fresh 59
        4.2.3 Age that was received        | | cache-control: max-age=60 & age: 50 & etag: "a" | | 10 | validate stale
        4.2.3 an old Date                  | | cache-control: max-age=60 & date: date(-50) | | 9 | fresh 59
        4.2.3 the older of both            | | cache-control: max-age=60 & date: date(-50) & age: 5 | | 9 | fresh 59
        4.2.3 a clock that is ahead        | | cache-control: max-age=60 & date: date(999) | | 59 | fresh 59
        5.1 a list of ages is stale         | | cache-control: max-age=60 & age: 50, 0 | | 5 | fetch stale
        5.1 two lines of ages are stale     | | cache-control: max-age=60 & age: 0 & age: 50 | | 5 | fetch stale
        5.1 an age that is none is stale    | | cache-control: max-age=60 & age: -50 | | 0 | fetch stale
        5.1 an age that is none is stale    | | cache-control: max-age=60 & age: 5.5 | | 0 | fetch stale
        1.2.2 an age that is too large     | | cache-control: max-age=60 & age: 99999999999 & etag: "a" | | 0 | validate stale
        1.2.2 a lifetime that is too large | | cache-control: max-age=99999999999 | | 1073741824 | fresh 1073741824
        5.2.2.10 s-maxage over Expires     | | cache-control: s-maxage=60 & expires: 0 | | 1 | fresh 1
        5.2.3 unknown directives say nothing | | cache-control: x, max-age=60, y="a, no-store", z=1 | | 59 | fresh 59
        5.3 a bad Expires is in the past   | | expires: 0 & last-modified: date(-9999) | | 0 | validate stale
        4.2.4 never stale: must-revalidate | | cache-control: max-age=9, must-revalidate, stale-while-revalidate=60 & etag: "a" | cache-control: max-stale | 9 | validate stale
        4.2.4 never stale: proxy-revalidate | | cache-control: max-age=9, proxy-revalidate, stale-while-revalidate=60 & etag: "a" | cache-control: max-stale | 9 | validate stale
        4.2.4 never stale: s-maxage        | | cache-control: s-maxage=9, stale-while-revalidate=60 & etag: "a" | cache-control: max-stale | 9 | validate stale
        5.2.2.4 no-cache                   | | cache-control: no-cache, max-age=60 & etag: "a" | cache-control: max-stale | 1 | validate stale
        5.2.2.4 nothing to validate by     | | cache-control: no-cache, max-age=60 | | 1 | no-freshness
        5.2.1.1 max-age of the request     | | cache-control: max-age=60 | cache-control: max-age=10 | 10 | fetch request
        5.2.1.1 max-age of the request     | | cache-control: max-age=60 | cache-control: max-age=10 | 9 | fresh 9
        5.2.1.2 max-stale                  | | cache-control: max-age=60 | cache-control: max-stale=10 | 69 | stale 69
        5.2.1.2 max-stale                  | | cache-control: max-age=60 | cache-control: max-stale=10 | 70 | fetch stale
        5.2.1.2 of any age                 | | cache-control: max-age=60 | cache-control: max-stale | 99999 | stale 99999
        5.2.1.3 min-fresh                  | | cache-control: max-age=60 | cache-control: min-fresh=10 | 50 | fresh 50
        5.2.1.3 min-fresh                  | | cache-control: max-age=60 | cache-control: min-fresh=10 | 51 | fetch request
        5.2.1.3 twice: what allows less    | | cache-control: max-age=60 | cache-control: min-fresh=30, min-fresh=1 | 50 | fetch request
        5.2.1.4 no-cache of the request    | | cache-control: max-age=60 & etag: "a" | cache-control: no-cache | 1 | validate request
        5.2.1.7 only-if-cached             | | cache-control: max-age=60 | cache-control: only-if-cached | 1 | fresh 1
        5.2.1.7 it is stale                | | cache-control: max-age=60 & etag: "a" | cache-control: only-if-cached | 60 | 504
        5.2.1.7 it is not wanted           | | cache-control: max-age=60 | cache-control: only-if-cached, no-cache | 1 | 504
        9110 13.1.1 the origin knows       | | cache-control: max-age=60 & etag: "a" | if-match: "a" | 60 | pass stale
        5.4 Pragma                         | | cache-control: max-age=60 | pragma: no-cache | 1 | fetch request
        5.4 not beside Cache-Control       | | cache-control: max-age=60 | pragma: no-cache & cache-control: max-stale | 1 | fresh 1
        5861 3 stale-while-revalidate      | | cache-control: max-age=60, stale-while-revalidate=10 | | 69 | stale and validated 69
        5861 3 its end                     | | cache-control: max-age=60, stale-while-revalidate=10 | | 70 | fetch stale
        5861 3 without a lifetime          | | cache-control: max-age=0, stale-while-revalidate=10 | | 9 | stale and validated 9
        8246 2 immutable is not reloaded   | | cache-control: max-age=60, immutable | cache-control: max-age=0 | 1 | fresh 1
        8246 2 but when it is stale        | | cache-control: max-age=60, immutable & etag: "a" | cache-control: max-age=0 | 60 | validate request
        8246 2 or the client insists       | | cache-control: max-age=60, immutable | cache-control: no-cache | 1 | fetch request
        9213 2.2 the targeted field alone  | | cdn-cache-control: max-age=60 & cache-control: no-store & expires: 0 | | 59 | fresh 59
        9213 2.2 also where it says no     | | cdn-cache-control: no-store & cache-control: max-age=60 | | 0 | no-store
        9213 2.2 Expires says nothing      | | cdn-cache-control: public & expires: date(60) & etag: "a" | | 1 | validate stale
        9213 2.1 but not one with faults   | | cdn-cache-control: max-age=60,, & cache-control: max-age=9 | | 9 | fetch stale
    "#;
    check(table, &Rule::default());
}

#[test]
fn the_way_from_the_origin_counts_as_age() {
    let times = Times {
        requested_secs: at(-20).requested_secs,
        received_secs: at(0).received_secs,
    };
    for (answer, age) in [
        ("cache-control: max-age=60", 20),
        ("cache-control: max-age=60 & age: 5", 25),
        ("cache-control: max-age=60 & age: 5 & date: date(-30)", 30),
    ] {
        let stored = store("", answer, &Rule::default(), times).unwrap();
        assert_eq!(stored.ask("", 1), format!("fresh {}", age + 1), "4.2.3: {answer}");
        // A clock that was set back, or is at its end.
        let fresh = stored.head().freshness;
        assert_eq!([fresh.age_secs(i64::MIN), fresh.age_secs(i64::MAX)], [0, 1 << 31]);
    }
}

#[test]
fn variants_and_conditions() {
    let table = r#"
        4.1 the same fields                | accept: a | vary: Accept | accept: a | fresh 1
        4.1 another value                  | accept: a | vary: accept | accept: b | fetch vary-miss
        4.1 absent is another              | accept: a | vary: accept | | fetch vary-miss
        4.1 both absent                    | | vary: accept | | fresh 1
        4.1 all of several                 | accept: a & origin: b | vary: accept & vary: origin | accept: a & origin: c | fetch vary-miss
        4.1 lines are combined             | x-a: 1 & x-a: 2 | vary: x-a | x-a: 1, 2 | fresh 1
        4.1 what it accepts                | accept-encoding: gzip, br | vary: accept-encoding | accept-encoding: br;q=0.1,gzip | fresh 1
        4.1 what it accepts                | accept-encoding: gzip, br | vary: accept-encoding | accept-encoding: br;q=0,gzip | fetch vary-miss
        4.3.2 If-None-Match                | | etag: "a" | if-none-match: "b", W/"a" | 304
        4.3.2 If-None-Match of another     | | etag: "a" | if-none-match: "b" | fresh 1
        4.3.2 If-None-Match: *             | | etag: "a" | if-none-match: * | 304
        4.3.2 before If-Modified-Since     | | etag: "a" & last-modified: date(-9) | if-none-match: "b" & if-modified-since: date(0) | fresh 1
        4.3.2 If-Modified-Since            | | last-modified: date(-9) | if-modified-since: date(-9) | 304
        4.3.2 If-Modified-Since, modified  | | last-modified: date(-9) | if-modified-since: date(-10) | fresh 1
        4.3.2 without Last-Modified: Date  | | date: date(-9) | if-modified-since: date(-9) | 304
        4.3.2 without both: when it came   | | x: y | if-modified-since: date(0) | 304
        4.3.2 without both: when it came   | | x: y | if-modified-since: date(-1) | fresh 1
        4.3.2 a date that is none          | | last-modified: date(-9) | if-modified-since: x | fresh 1
        9110 13.2.1 only of success        | | 404 etag: "a" | if-none-match: "a" | fresh 1
        9110 13.1.1 If-Match holds         | | etag: "a" | if-match: "b", "a" | fresh 1
        9110 13.1.1 if not, the origin knows | | etag: "a" | if-match: "b" | pass request
        9110 13.1.1 weak tags never do     | | etag: W/"a" | if-match: W/"a" | pass request
        9110 13.1.4 If-Unmodified-Since    | | last-modified: date(-9) | if-unmodified-since: date(-9) | fresh 1
        9110 13.1.4 if not, the origin knows | | last-modified: date(-9) | if-unmodified-since: date(-10) | pass request
    "#;
    for [says, asked, answer, again, expected] in rows(table) {
        let answer = format!("{answer} & cache-control: max-age=60");
        let stored = store(asked, &answer, &Rule::default(), at(0)).unwrap();
        assert_eq!(stored.ask(again, 1), expected, "{says}");
    }
}

#[test]
fn what_is_not_stored_is_asked_for() {
    let table = "
             | Fetch(UriMiss)
        HEAD | Pass(UriMiss)
        PUT  | Pass(Method)
        range: bytes=0-1   | Pass(UriMiss)
        if-match: a        | Pass(UriMiss)
        if-none-match: a   | Fetch(UriMiss)
        cache-control: only-if-cached | GatewayTimeout
    ";
    for [asked, expected] in rows(table) {
        let (method, fields) = request(asked);
        let seen: Decision = decide(&method, &fields, Found::Nothing, 0);
        assert_eq!(format!("{seen:?}"), expected, "{asked}");
    }
}

#[test]
fn failures_of_the_origin() {
    let table = "
        5861 4  | stale-if-error=10 | | 503 | 69 | true
        5861 4  | stale-if-error=10 | | 503 | 70 | false
        5861 4  | stale-if-error=10 | | unreachable | 70 | false
        5861 4  | stale-if-error=10 | | 404 | 61 | false
        5861 4  | x | cache-control: stale-if-error=10 | 500 | 69 | true
        4.3.3   | x | | 500 | 60 | false
        4.2.4   | x | | unreachable | 86459 | true
        4.2.4   | x | | unreachable | 86460 | false
        4.2.4   | must-revalidate, stale-if-error=10 | | unreachable | 61 | false
        4.2.4   | s-maxage=60, stale-if-error=10 | | 500 | 61 | false
        4.2.4   | proxy-revalidate | | unreachable | 61 | false
        5.2.2.4 | no-cache, stale-if-error=10 | | unreachable | 1 | false
        5.2.1.4 | stale-if-error=10 | cache-control: no-cache | unreachable | 61 | false
        5.2.1.1 | x | cache-control: max-age=0 | 502 | 1 | true
    ";
    for [section, cc, asked, failure, secs, expected] in rows(table) {
        let failure = match failure.parse::<StatusCode>() {
            Ok(status) => Failure::Answered(status),
            Err(_) => Failure::Unreachable,
        };
        let stored = stored(&format!("cache-control: max-age=60, {cc} & etag: \"a\""));
        let seen = stored.serves_after(failure, asked, secs.parse().unwrap());
        assert_eq!(
            seen.to_string(),
            expected,
            "{section}: {cc} | {asked} | {failure:?} | {secs}"
        );
    }
}

fn stored(answer: &str) -> Stored {
    store("", answer, &Rule::default(), at(0)).unwrap()
}

#[test]
fn a_304_changes_fields_and_never_the_body() {
    let old = stored(
        "cache-control: max-age=60 & etag: \"a\" & last-modified: date(-99) & age: 30 & date: date(-30) & content-length: 10 & \
         content-encoding: gzip & content-type: a/b & x-a: 1 & x-a: 2 & x-b: 3",
    );
    let answer = "etag: W/\"a\" & cache-control: max-age=9 & content-length: 0 & content-encoding: br & content-range: bytes 0-1/2 & \
                  transfer-encoding: chunked & connection: x-c & x-c: 4 & x-a: 5 & content-type: c/d";
    let new = old.freshen(answer, 100).unwrap().unwrap();
    // Its date is when the 304 came, since that has none.
    let expected = "cache-control: max-age=9 & etag: \"a\" & last-modified: date(-99) & date: date(100) & content-encoding: gzip & \
                    content-type: c/d & x-a: 5 & x-b: 3";
    assert_eq!(new.head().to_map(), fields(expected), "3.2");
    assert_eq!(new.head().body_bytes, 10);
    assert_eq!(
        [new.ask("", 108), new.ask("", 109)],
        ["fresh 8", "validate stale"]
    );
    // It may forbid what the old response allowed.
    let refused = old.freshen("cache-control: no-store", 100).unwrap().err();
    assert_eq!(refused, Some(NotStored::NoStore));
    for [answer, is_ours] in rows(
        r#"
        etag: "a"                              | true
        etag: "a" & last-modified: date(-98)   | true
        etag: "b"                              | false
                                               | true
        last-modified: date(-99)               | true
        last-modified: date(-98)               | false
        "#,
    ) {
        assert_eq!(
            old.freshen(answer, 100).is_some().to_string(),
            is_ours,
            "4.3.4: {answer}"
        );
    }
    assert!(
        stored("last-modified: date(-99)")
            .freshen("etag: \"a\"", 100)
            .is_none()
    );
}

#[test]
fn validation_names_the_stored_response_alone() {
    let client = r#"if-none-match: "x" & if-range: "x" & if-match: * & range: bytes=0-1 & content-length: 3 & accept: a"#;
    for [answer, expected] in rows(
        r#"
        etag: W/"a"                            | accept: a & if-none-match: W/"a"
        etag: "a" & last-modified: date(-9)    | accept: a & if-none-match: "a" & if-modified-since: date(-9)
        last-modified: date(-9)                | accept: a & if-modified-since: date(-9)
        "#,
    ) {
        let mut asked = fields(client);
        ask_validation(&mut asked, &stored(answer).head());
        assert_eq!(asked, fields(expected), "4.3.1: {answer}");
    }
    let mut asked = fields(client);
    ask_whole(&mut asked);
    assert_eq!(asked, fields("accept: a"));
}

#[test]
fn fields_of_a_304_and_of_head() {
    let tagged = stored("etag: \"a\" & last-modified: date(-9)");
    let dated = stored("last-modified: date(-9)");
    for [name, with_tag, without] in rows(
        "
        etag             | true  | true
        cache-control    | true  | true
        content-location | true  | true
        content-security-policy | true | true
        content-type     | false | false
        last-modified    | false | true
        ",
    ) {
        let seen = [&tagged, &dated].map(|stored| is_in_304(name.as_bytes(), &stored.head()).to_string());
        assert_eq!(seen, [with_tag, without], "9110 15.4.5: {name}");
    }
    for [answer, expected] in rows(
        r#"
                                                                       | true
        content-length: 10 & etag: "a" & last-modified: date(-9)       | true
        content-length: 11                                             | false
        etag: "b"                                                      | false
        last-modified: date(-8)                                        | false
        "#,
    ) {
        assert_eq!(
            is_still(&tagged.head(), &fields(answer)).to_string(),
            expected,
            "4.3.5: {answer}"
        );
    }
}

#[test]
fn ranges_of_a_stored_response() {
    let table = r#"
        etag: "a"                | range: bytes=2-                           | part
        etag: "a"                |                                           | whole
        etag: "a"                | range: bytes=2- & range: bytes=3-         | whole
        etag: "a"                | range: bytes=2-3, 5-6                     | whole
        etag: "a"                | range: bytes=10-                          | none
        404 etag: "a"            | range: bytes=2-                           | whole
        etag: "a"                | range: bytes=2- & if-range: "a"           | part
        etag: "a"                | range: bytes=2- & if-range: "b"           | whole
        etag: W/"a"              | range: bytes=2- & if-range: W/"a"         | whole
        last-modified: date(-9)  | range: bytes=2- & if-range: date(-9)      | part
        last-modified: date(-9)  | range: bytes=2- & if-range: date(-8)      | whole
        last-modified: date(0)   | range: bytes=2- & if-range: date(0)       | whole
    "#;
    for [answer, asked, expected] in rows(table) {
        let seen = match part(&fields(asked), &stored(answer).head()) {
            Part::Whole => "whole",
            Part::Range { first: 2, last: 9 } => "part",
            Part::Range { .. } => "another part",
            Part::None => "none",
        };
        assert_eq!(seen, expected, "9110 14: {answer} | {asked}");
    }
}

#[test]
fn rules_add_freshness_and_override_by_name() {
    let adds = Rule {
        fresh_secs: Some(60),
        stale_while_revalidate_secs: Some(10),
        ..Rule::default()
    };
    let table = r#"
        where the origin says nothing      | | x: y | | 59 | fresh 59
        where the origin says nothing      | | x: y | | 69 | stale and validated 69
        not against it                     | | cache-control: max-age=1 | | 11 | fetch stale
        nor Expires                        | | expires: 0 & etag: "a" | | 11 | validate stale
        nor no-store                       | | cache-control: no-store | | 0 | no-store
        nor a cookie                       | | set-cookie: a | | 0 | set-cookie
        nor for an error                   | | 500 etag: "a" | | 0 | status
        nor for a redirection              | | 302 etag: "a" | | 0 | status
        nor for one that is public         | | 302 etag: "a" & cache-control: public, must-revalidate | | 0 | validate stale
    "#;
    check(table, &adds);
    let words = "no-store private no-cache max-age expires set-cookie";
    let overrides = Rule {
        overrides: words
            .split(' ')
            .map(|name| Override::named(name).unwrap())
            .collect(),
        key_fields: vec![http::header::ORIGIN],
        ..adds
    };
    let table = "
        by name                            | | cache-control: no-store, private, no-cache, max-age=1 & expires: 0 & set-cookie: a | | 59 | fresh 59
        what it does not name counts       | | cache-control: s-maxage=1 & etag: a | | 1 | validate stale
        Authorization has no name          | authorization: a | x: y | | 1 | authorization
        fields in the key                  | origin: a | x: y | origin: b | 1 | fetch vary-miss
    ";
    check(table, &overrides);
    let kept = store("", "set-cookie: a", &overrides, at(0)).unwrap();
    assert_eq!(kept.field("set-cookie"), None);
    let lenient = Rule {
        overrides: vec![Override::ProxyRevalidate],
        ..Rule::default()
    };
    let table = "stale after s-maxage | | cache-control: s-maxage=9, stale-while-revalidate=60 | | 9 | stale and validated 9";
    check(table, &lenient);
}

#[test]
fn fields_that_are_not_stored() {
    let kept = stored(
        "cache-control: max-age=60, private=\"x-a\", no-cache=\"x-b\" & connection: x-c & x-a: 1 & x-b: 2 & x-c: 3 & x-d: 4 & \
         proxy-authenticate: 5 & proxy-authentication-info: 6 & proxy-authorization: 7 & keep-alive: 8 & transfer-encoding: chunked & \
         age: 9 & content-length: 10 & upgrade: 11",
    );
    let map: HeaderMap = kept.head().to_map();
    let mut names: Vec<_> = map.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["cache-control", "date", "x-d"], "3.1");
    // 9110 6.6.1.
    assert_eq!(kept.field("date"), Some(date(0)));
    // What is found under a digest may be of another URL, or another variant.
    let other = Target::new(Scheme::Http, "example.org", "/y", &Query::default()).unwrap();
    let head = kept.head();
    assert!(
        head.is_for(&target(), None) && !head.is_for(&other, None) && !head.is_for(&target(), Some([0; 32]))
    );
}
