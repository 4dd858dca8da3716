//! Variants, ranges, and what unsafe methods make void.

use crate::common::{Origin, Server, Times, say, value};

#[test]
fn variants_are_chosen_by_the_request() {
    let origin = Origin::start(|seen, to| {
        let coding = seen.field("accept-encoding").unwrap_or("none");
        say(
            to,
            "cache-control: max-age=60 & vary: accept-encoding",
            coding.as_bytes(),
        );
    });
    let server = Server::of(&origin);
    let codings = ["gzip", "br", "gzip, br"];
    for (number, coding) in codings.into_iter().enumerate() {
        let fields = format!("accept-encoding: {coding}");
        let first = server.ask("/x", &fields);
        assert_eq!(first.text(), coding);
        let why = if number == 0 {
            "fwd=uri-miss"
        } else {
            "fwd=vary-miss"
        };
        assert!(first.cache().starts_with(why), "{}", first.cache());
        server.wait_until("it is stored", |counts| counts.stored == number as u64 + 1);
    }
    for coding in codings {
        let hit = server.ask("/x", &format!("accept-encoding: {coding}"));
        assert_eq!((hit.text(), hit.cache()), (coding, "hit; ttl=60; detail=dram"));
    }
    assert_eq!(server.ask("/x", "accept-encoding: br, gzip").text(), "gzip, br");
    assert_eq!(origin.count(), 3);
    // All of them are void at once.
    server.ask("POST /x", "content-length: 0");
    for (number, coding) in codings.into_iter().enumerate() {
        let answer = server.ask("/x", &format!("accept-encoding: {coding}"));
        assert!(answer.cache().starts_with("fwd="), "{}", answer.cache());
        server.wait_until("it is stored", |counts| counts.stored == number as u64 + 4);
    }
    server.stop();
}

#[test]
fn an_unsafe_method_that_succeeds_makes_void() {
    let times = Times::default();
    let origin = Origin::start(move |seen, to| match &*seen.line {
        "DELETE /x HTTP/1.1" => say(to, "404", b""),
        "POST /form HTTP/1.1" => say(to, "303 & location: /x", b""),
        _ => say(
            to,
            "cache-control: max-age=60",
            times.next().to_string().as_bytes(),
        ),
    });
    let server = Server::of(&origin);
    let stored = |count| server.wait_until("it is stored", |counts| counts.stored == count);
    assert_eq!(server.ask("/x", "").text(), "0");
    stored(1);
    assert_eq!(server.ask("DELETE /x", "").status, 404);
    assert_eq!(server.ask("/x", "").text(), "0");
    assert_eq!(server.ask("POST /form", "content-length: 0").status, 303);
    assert_eq!(server.ask("/x", "").text(), "1");
    stored(2);
    assert_eq!(server.ask("PUT /x", "content-length: 0").text(), "2");
    assert_eq!(server.ask("/x", "").text(), "3");
    server.stop();
}

#[test]
fn what_was_asked_for_before_an_invalidation_is_not_stored_after_it() {
    let times = Times::default();
    let origin = Origin::start(move |seen, to| {
        if seen.line.starts_with("POST") {
            return say(to, "", b"");
        }
        let number = times.next();
        if number == 0 {
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        say(to, "cache-control: max-age=60", number.to_string().as_bytes());
    });
    let server = Server::of(&origin);
    let mut early = server.client();
    early.send_request("/x", "");
    while origin.count() == 0 {
        std::thread::yield_now();
    }
    server.ask("POST /x", "content-length: 0");
    // Who asks from here on does not get what is under way.
    assert_eq!(server.ask("/x", "").text(), "1");
    assert_eq!(early.answer(false).text(), "0");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(server.ask("/x", "").text(), "1");
    server.stop();
}

#[test]
fn ranges_are_cut_from_what_is_stored() {
    let length = (2 << 20) + 100;
    let origin = Origin::start(move |seen, to| match seen.path() {
        "/small" => say(to, "cache-control: max-age=60 & etag: \"a\"", b"0123456789"),
        _ => say(to, "cache-control: max-age=60 & etag: \"a\"", &value(length, 7)),
    });
    let server = Server::of(&origin);
    // What is not stored is not cut here.
    let passed = server.ask("/small", "range: bytes=1-2");
    assert_eq!((passed.status, passed.cache()), (200, "fwd=uri-miss"));
    assert_eq!(origin.seen()[0].field("range"), Some("bytes=1-2"));
    server.ask("/small", "");
    server.ask("/large", "");
    server.wait_until("they are stored", |counts| counts.stored == 2);
    for (range, content, body) in [
        ("bytes=0-0", "bytes 0-0/10", "0"),
        ("bytes=7-", "bytes 7-9/10", "789"),
        ("bytes=-3", "bytes 7-9/10", "789"),
        ("bytes=0-99", "bytes 0-9/10", "0123456789"),
    ] {
        let answer = server.ask("/small", &format!("range: {range}"));
        assert_eq!((answer.status, answer.text()), (206, body), "{range}");
        assert_eq!(answer.field("content-range"), Some(content));
    }
    let none = server.ask("/small", "range: bytes=10-");
    assert_eq!(
        (none.status, none.field("content-range"), none.body.len()),
        (416, Some("bytes */10"), 0)
    );
    assert_eq!(server.ask("/small", "range: bytes=0-1,3-4").status, 200);
    assert_eq!(
        server.ask("/small", "range: bytes=0-1 & if-range: \"a\"").status,
        206
    );
    assert_eq!(
        server.ask("/small", "range: bytes=0-1 & if-range: \"b\"").status,
        200
    );
    let whole = value(length, 7);
    // As trafficserver #6674: at and around the last slices, too.
    for (first, last) in [
        (0, 0),
        (65_535, 65_536),
        (length - 1, length - 1),
        (length - 200, length - 1),
        (1, length - 2),
        ((1 << 20) - 1, 1 << 20),
    ] {
        let answer = server.ask("/large", &format!("range: bytes={first}-{last}"));
        assert!(answer.is_whole && answer.status == 206);
        assert!(answer.body == whole[first..=last], "{first}-{last}");
    }
    assert_eq!(origin.count(), 3);
    server.stop();
}
