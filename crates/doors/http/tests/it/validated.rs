//! What is stale: validated, used all the same, or made anew; and what requests may demand.

use crate::common::{Origin, Server, Times, say};
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
