//! What is stored, and answered from there.

use crate::common::{Origin, Server, say, value};

#[test]
fn a_page_comes_from_the_origin_once() {
    let origin = Origin::always("cache-control: max-age=60 & etag: \"a\" & x-a: b", b"hello");
    let server = Server::of(&origin);
    let first = server.ask("/x", "");
    assert_eq!((first.status, first.text(), first.is_whole), (200, "hello", true));
    assert_eq!(first.cache(), "fwd=uri-miss; ttl=60; stored");
    assert_eq!(
        (first.field("content-length"), first.field("x-a")),
        (Some("5"), Some("b"))
    );
    server.wait_until("the response is stored", |counts| counts.stored == 1);
    server.clock.advance_secs(7);
    // On one connection, twice.
    let mut client = server.client();
    for _ in 0..2 {
        let second = client.ask("/x", "");
        assert_eq!((second.status, second.text()), (200, "hello"));
        assert_eq!(second.cache(), "hit; ttl=53; detail=dram");
        assert_eq!(
            (second.field("age"), second.field("content-length")),
            (Some("7"), Some("5"))
        );
        assert_eq!(
            (second.field("x-a"), second.field("etag")),
            (Some("b"), Some("\"a\""))
        );
    }
    assert_eq!(origin.count(), 1);
    let seen = &origin.seen()[0];
    assert_eq!(seen.line, "GET /x HTTP/1.1");
    assert_eq!(seen.field("x-forwarded-host"), Some("example.org"));
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"));
    let counts = server.counts();
    assert_eq!(
        (
            counts.hits_dram,
            counts.misses,
            counts.origin_answers,
            counts.status_2xx
        ),
        (2, 1, 1, 3)
    );
    server.stop();
}

#[test]
fn bodies_of_every_length_come_back() {
    let lengths = [0, 1, 4096, 15 << 10, 16 << 10, 100_000, 1 << 20, (5 << 20) + 7];
    let origin = Origin::start(|seen, to| {
        let length: usize = seen.path()[1..].parse().unwrap();
        say(to, "cache-control: max-age=60", &value(length, length));
    });
    let server = Server::of(&origin);
    for (number, length) in lengths.into_iter().enumerate() {
        for is_hit in [false, true] {
            let answer = server.ask(&format!("/{length}"), "");
            assert!(
                answer.is_whole && answer.body == value(length, length),
                "{length}"
            );
            assert_eq!(
                answer.cache().starts_with("hit"),
                is_hit,
                "{length}: {}",
                answer.cache()
            );
            server.wait_until("it is stored", |counts| counts.stored > number as u64);
        }
    }
    assert_eq!(origin.count(), lengths.len());
    server.stop();
}
