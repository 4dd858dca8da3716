//! What is stale: validated, used all the same, or made anew; and what requests may demand.

use crate::common::{Origin, Seen, Server, Times, say};
use std::time::{Duration, Instant};

/// An origin whose answers carry a tag, and which confirms it.
fn confirming(fields: &'static str) -> Origin {
    Origin::start(move |seen, to| match seen.field("if-none-match") {
        Some("\"a\"") => say(to, &format!("304 & etag: \"a\" & x-new: yes & {fields}"), b""),
        _ => say(to, &format!("etag: \"a\" & {fields}"), b"hello"),
    })
}

fn stored(server: &Server, count: u64) {
    server.wait_until("it is stored", |counts| counts.stored == count);
}

#[test]
fn a_304_renews_the_fields_and_keeps_the_body() {
    let origin = confirming("cache-control: max-age=10");
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(11);
    let answer = server.ask("/x", "");
    assert_eq!((answer.status, answer.text()), (200, "hello"));
    assert_eq!(answer.cache(), "fwd=stale; fwd-status=304; ttl=10");
    assert_eq!(
        (answer.field("x-new"), answer.field("age")),
        (Some("yes"), Some("0"))
    );
    let answer = server.ask("/x", "");
    assert_eq!(answer.cache(), "hit; ttl=10; detail=dram");
    assert_eq!((answer.text(), answer.field("x-new")), ("hello", Some("yes")));
    assert_eq!(origin.count(), 2);
    assert_eq!((server.counts().validated, server.counts().freshened), (1, 1));
    server.stop();
}

#[test]
fn another_response_takes_the_place_of_a_stale_one() {
    let times = Times::default();
    let origin = Origin::start(move |_, to| {
        let number = times.next();
        say(
            to,
            &format!("cache-control: max-age=10 & etag: \"{number}\""),
            format!("page {number}").as_bytes(),
        );
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(11);
    assert_eq!(server.ask("/x", "").text(), "page 1");
    stored(&server, 2);
    assert_eq!(server.ask("/x", "").text(), "page 1");
    assert_eq!(origin.seen()[1].field("if-none-match"), Some("\"0\""));
    server.stop();
}

#[test]
fn no_cache_is_validated_each_time() {
    let origin = confirming("cache-control: no-cache");
    let server = Server::of(&origin);
    for count in 1..4 {
        assert_eq!(server.ask("/x", "").text(), "hello");
        stored(&server, 1);
        assert_eq!(origin.count(), count);
    }
    server.stop();
}

#[test]
fn clients_conditions_are_answered_here() {
    let origin = confirming("cache-control: max-age=10 & content-type: text/plain");
    let server = Server::of(&origin);
    // Before anything is stored, too: the origin is asked for all of it.
    let answer = server.ask("/x", "if-none-match: \"a\"");
    assert_eq!((answer.status, answer.field("content-type")), (304, None));
    stored(&server, 1);
    assert_eq!(origin.seen()[0].field("if-none-match"), None);
    assert_eq!(server.ask("/x", "if-none-match: \"b\", W/\"a\"").status, 304);
    assert_eq!(server.ask("/x", "if-none-match: \"b\"").status, 200);
    assert_eq!(server.ask("/x", "if-match: \"a\"").status, 200);
    assert_eq!(origin.count(), 1);
    server.ask("/x", "if-match: \"b\"");
    assert_eq!(origin.seen()[1].field("if-match"), Some("\"b\""));
    server.stop();
}

#[test]
fn only_if_cached_asks_nobody() {
    let origin = confirming("cache-control: max-age=10");
    let server = Server::of(&origin);
    assert_eq!(server.ask("/x", "cache-control: only-if-cached").status, 504);
    assert_eq!(origin.count(), 0);
    server.ask("/x", "");
    stored(&server, 1);
    assert_eq!(server.ask("/x", "cache-control: only-if-cached").text(), "hello");
    server.stop();
}

#[test]
fn a_head_is_answered_from_a_get() {
    let origin = confirming("cache-control: max-age=10");
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    let mut client = server.client();
    for _ in 0..2 {
        let answer = client.ask("HEAD /x", "");
        assert_eq!(
            (answer.status, answer.field("content-length"), answer.body.len()),
            (200, Some("5"), 0)
        );
    }
    assert_eq!(origin.count(), 1);
    server.stop();
}

#[test]
fn stale_while_revalidate_makes_nobody_wait() {
    let times = Times::default();
    let origin = Origin::start(move |_, to| {
        let number = times.next();
        if number > 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let fields = "cache-control: max-age=10, stale-while-revalidate=100";
        say(to, fields, format!("page {number}").as_bytes());
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(15);
    let began = Instant::now();
    for _ in 0..5 {
        let answer = server.ask("/x", "");
        assert_eq!(
            (answer.text(), answer.cache()),
            ("page 0", "hit; ttl=-5; detail=dram")
        );
    }
    assert!(began.elapsed() < Duration::from_millis(250));
    stored(&server, 2);
    assert_eq!(server.ask("/x", "").text(), "page 1");
    assert_eq!(origin.count(), 2);
    server.stop();
}

#[test]
fn after_a_failure_what_is_stale_serves_and_the_origin_is_left_alone() {
    let times = Times::default();
    let origin = Origin::start(move |_, to| match times.next() {
        0 => say(
            to,
            "cache-control: max-age=10, stale-if-error=100 & etag: \"a\"",
            b"hello",
        ),
        _ => say(to, "503", b"down"),
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(15);
    let answer = server.ask("/x", "");
    assert_eq!(
        (answer.text(), answer.cache()),
        ("hello", "fwd=stale; fwd-status=503; ttl=-5")
    );
    for _ in 0..3 {
        assert_eq!(server.ask("/x", "").cache(), "hit; ttl=-5; detail=dram");
    }
    assert_eq!(origin.count(), 2);
    server.clock.advance_secs(6);
    server.ask("/x", "");
    assert_eq!(origin.count(), 3);
    server.clock.advance_secs(100);
    assert_eq!(server.ask("/x", "").status, 503);
    server.stop();
}

#[test]
fn an_origin_that_cannot_be_reached_is_a_502() {
    let origin = Origin::start(|_, to| drop(to.shutdown(std::net::Shutdown::Both)));
    let server = Server::of(&origin);
    assert_eq!(server.ask("/x", "").status, 502);
    assert_eq!(server.ask("POST /x", "content-length: 0").status, 502);
    server.stop();
}

#[test]
fn a_304_that_names_another_vary_is_no_answer_for_all() {
    let origin = Origin::start(|seen, to| {
        let language = seen.field("accept-language").unwrap_or_default().to_owned();
        let fields = "etag: \"a\" & cache-control: max-age=10";
        let status = seen.field("if-none-match").map_or("200", |_| "304");
        let body = match status {
            "200" => language.as_bytes(),
            _ => b"",
        };
        match (seen.field("first"), seen.path()) {
            (Some(_), "/plain") => say(to, fields, body),
            (Some(_), _) => say(to, &format!("vary: accept & {fields}"), body),
            (None, _) => say(to, &format!("{status} & vary: accept-language & {fields}"), body),
        }
    });
    let server = Server::of(&origin);
    for path in ["/plain", "/varied"] {
        let count = server.counts().stored;
        let first = "accept-language: en & first: yes";
        assert_eq!(server.ask(path, first).text(), "en");
        stored(&server, count + 1);
        server.clock.advance_secs(11);
        assert_eq!(server.ask(path, "accept-language: en").text(), "en");
        assert_eq!(server.ask(path, "accept-language: de").text(), "de");
    }
    server.stop();
}

#[test]
fn one_client_takes_nothing_from_the_others() {
    let origin = Origin::start(|seen, to| {
        let cookie = seen.field("x").map_or("", |_| "set-cookie: a=b");
        match seen.field("if-none-match") {
            Some(_) => say(
                to,
                &format!("304 & etag: \"a\" & cache-control: max-age=10 & {cookie}"),
                b"",
            ),
            None => say(to, "etag: \"a\" & cache-control: max-age=10", b"hello"),
        }
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    for fields in ["authorization: a", "cache-control: no-store", "x: cookie", ""] {
        server.clock.advance_secs(11);
        assert_eq!(server.ask("/x", fields).text(), "hello", "{fields}");
    }
    let seen = origin.seen();
    assert_eq!(seen.len(), 5);
    let asks_again = |seen: &Seen| seen.field("if-none-match").is_some();
    assert!(seen[1..].iter().all(asks_again));
    assert_eq!(server.counts().freshened, 1);
    server.stop();
}

#[test]
fn a_304_that_forbids_storing_removes_what_is_stored() {
    let origin = Origin::start(|seen, to| match seen.field("if-none-match") {
        Some(_) => say(to, "304 & etag: \"a\" & cache-control: private", b""),
        None => say(to, "etag: \"a\" & cache-control: max-age=10", b"hello"),
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(11);
    assert_eq!(server.ask("/x", "").text(), "hello");
    let conditional = origin
        .seen()
        .iter()
        .map(|seen| seen.field("if-none-match").is_some())
        .collect::<Vec<_>>();
    assert_eq!(conditional, [false, true, false]);
    server.stop();
}

#[test]
fn after_a_failure_each_request_gets_what_it_allows() {
    let times = Times::default();
    let origin = Origin::start(move |_, to| match times.next() {
        0 => say(to, "etag: \"a\" & cache-control: max-age=10", b"hello"),
        _ => say(to, "503", b""),
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    stored(&server, 1);
    server.clock.advance_secs(11);
    let lenient = "cache-control: stale-if-error=100";
    assert_eq!(server.ask("/x", lenient).text(), "hello");
    assert_eq!(server.ask("/x", lenient).text(), "hello");
    assert_eq!(origin.count(), 2);
    assert_eq!(server.ask("/x", "").status, 503);
    server.stop();
}
