//! Many clients, one request to the origin.

use crate::common::{Answer, Client, Origin, Server, config, head, say, value};
use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

const WAIT: Duration = Duration::from_millis(300);

/// Asks with so many clients at once.
fn ask_all(server: &Server, count: usize, path: &str, fields: impl Fn(usize) -> String) -> Vec<Answer> {
    let mut clients: Vec<_> = (0..count).map(|_| server.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send_request(path, &fields(number));
    }
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut client| std::thread::spawn(move || client.answer(false)))
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn one_request_serves_all_who_wait() {
    let origin = Origin::start(|_, to| {
        sleep(WAIT);
        say(to, "cache-control: max-age=60", &value(300_000, 1));
    });
    let server = Server::of(&origin);
    let answers = ask_all(&server, 30, "/x", |_| String::new());
    assert!(
        answers
            .iter()
            .all(|answer| answer.is_whole && answer.body == value(300_000, 1))
    );
    assert_eq!(origin.count(), 1);
    let collapsed = answers
        .iter()
        .filter(|answer| answer.cache().ends_with("collapsed"))
        .count();
    assert_eq!((collapsed, server.counts().collapsed), (29, 29));
    server.stop();
}

#[test]
fn a_chunked_body_comes_while_it_arrives_and_a_slow_client_delays_nobody() {
    let origin = Origin::start(|_, to| {
        to.write_all(&head(
            "cache-control: max-age=60 & transfer-encoding: chunked",
            None,
        ))
        .unwrap();
        for number in 0..8 {
            let _ = write!(to, "{:x}\r\n", 1 << 20);
            let _ = to.write_all(&value(1 << 20, number));
            let _ = to.write_all(b"\r\n");
        }
        sleep(WAIT);
        let _ = to.write_all(b"0\r\n\r\n");
    });
    let server = Server::of(&origin);
    let mut slow = server.client();
    slow.send_request("/x", "");
    // A first byte comes before the last chunk does.
    let first = slow.head().unwrap();
    assert_eq!(first.field("transfer-encoding"), Some("chunked"));
    let expected: Vec<u8> = (0..8).flat_map(|number| value(1 << 20, number)).collect();
    let fast = server.ask("/x", "");
    assert!(fast.is_whole && fast.body == expected);
    // What has left the window is read back.
    let mut chunked = Vec::new();
    while !chunked.ends_with(b"\r\n0\r\n\r\n") {
        let mut bytes = vec![0; 100_000];
        let count = slow.stream.read(&mut bytes).unwrap();
        assert!(count > 0);
        chunked.extend(&bytes[..count]);
    }
    assert!(chunked.len() > expected.len());
    server.wait_until("it is stored", |counts| counts.stored == 1);
    let hit = server.ask("/x", "");
    assert_eq!(
        (hit.field("content-length"), hit.body == expected),
        (Some("8388608"), true)
    );
    assert_eq!(origin.count(), 1);
    server.stop();
}

#[test]
fn whom_the_answer_does_not_fit_goes_to_the_origin_at_once() {
    for (fields, all_alone) in [
        ("cache-control: private", true),
        ("cache-control: no-store", true),
        ("cache-control: max-age=60 & set-cookie: a=b", true),
        ("cache-control: no-cache & etag: \"a\"", true),
        ("cache-control: max-age=60 & vary: x-name", false),
    ] {
        let origin = Origin::start(move |seen, to| {
            sleep(WAIT);
            say(to, fields, seen.field("x-name").unwrap().as_bytes());
        });
        let server = Server::of(&origin);
        let began = std::time::Instant::now();
        let answers = ask_all(&server, 10, "/x", |number| format!("x-name: {number}"));
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(answer.text(), number.to_string(), "{fields}");
        }
        assert_eq!(origin.count(), 10, "{fields}");
        assert!(began.elapsed() < WAIT * 5, "{fields}: one after the other");
        // For a while nobody waits for another.
        if all_alone {
            let began = std::time::Instant::now();
            ask_all(&server, 3, "/x", |number| format!("x-name: {number}"));
            assert!(began.elapsed() < WAIT * 2, "{fields}");
        }
        server.stop();
    }
}

#[test]
fn the_first_client_leaves_and_the_fetch_goes_on_for_those_who_wait() {
    let origin = Origin::start(|_, to| {
        sleep(WAIT);
        say(to, "cache-control: max-age=60", &value(500_000, 2));
    });
    let server = Server::of(&origin);
    let mut first = server.client();
    first.send_request("/x", "");
    sleep(WAIT / 3);
    let mut second = server.client();
    second.send_request("/x", "");
    sleep(WAIT / 3);
    drop(first);
    let answer = second.answer(false);
    assert!(answer.is_whole && answer.body == value(500_000, 2));
    assert_eq!(origin.count(), 1);
    server.stop();
}

#[test]
fn a_fetch_that_nobody_waits_for_ends_and_stores_nothing() {
    // As cache-handler #73: a client that leaves must not leave a fragment behind.
    let origin = Origin::start(|_, to| {
        let _ = to.write_all(&head("cache-control: max-age=60", Some(1_000_000)));
        let _ = to.write_all(&value(1_000_000, 3)[..100_000]);
        sleep(WAIT);
        let _ = to.write_all(&value(1_000_000, 3)[100_000..]);
    });
    let server = Server::of(&origin);
    let mut client = server.client();
    client.send_request("/x", "");
    assert!(client.head().is_some());
    drop(client);
    sleep(WAIT * 2);
    assert_eq!(server.counts().stored, 0);
    let answer = server.ask("/x", "");
    assert!(answer.is_whole && answer.body == value(1_000_000, 3));
    assert_eq!(origin.count(), 2);
    server.stop();
}

#[test]
fn a_fetch_that_fails_midway_is_cut_for_all_and_the_next_request_starts_anew() {
    // As pingora #932: readers of a broken fetch must not see a clean end.
    for is_chunked in [false, true] {
        let times = crate::common::Times::default();
        let origin = Origin::start(move |_, to| {
            let body = value(600_000, 4);
            if times.next() > 0 {
                return say(to, "cache-control: max-age=60", &body);
            }
            sleep(WAIT);
            if is_chunked {
                let fields = "cache-control: max-age=60 & transfer-encoding: chunked";
                let _ = to.write_all(&head(fields, None));
                let _ = write!(to, "{:x}\r\n", 600_000);
            } else {
                let _ = to.write_all(&head("cache-control: max-age=60", Some(600_000)));
            }
            let _ = to.write_all(&body[..400_000]);
            sleep(WAIT);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let server = Server::of(&origin);
        let answers = ask_all(&server, 5, "/x", |_| String::new());
        assert!(
            answers
                .iter()
                .all(|answer| answer.status == 200 && !answer.is_whole)
        );
        assert_eq!((origin.count(), server.counts().stored), (1, 0));
        let answer = server.ask("/x", "");
        assert!(answer.is_whole && answer.body == value(600_000, 4));
        server.stop();
    }
}

#[test]
fn a_body_that_grows_too_long_comes_all_the_same() {
    let origin = Origin::start(|_, to| {
        let _ = to.write_all(&head(
            "cache-control: max-age=60 & transfer-encoding: chunked",
            None,
        ));
        for number in 0..5 {
            let _ = write!(to, "{:x}\r\n", 300_000);
            let _ = to.write_all(&value(300_000, number));
            let _ = to.write_all(b"\r\n");
        }
        let _ = to.write_all(b"0\r\n\r\n");
    });
    let server = Server::start(pumice_door_http::DoorConfig {
        object_bytes_max: 700_000,
        ..config(origin.address)
    });
    let expected: Vec<u8> = (0..5).flat_map(|number| value(300_000, number)).collect();
    for count in 1..3 {
        let answer = server.ask("/x", "");
        assert!(answer.is_whole && answer.body == expected);
        assert_eq!((origin.count(), server.counts().stored), (count, 0));
    }
    server.stop();
}

#[test]
fn clients_that_stop_reading_cost_bounded_memory_and_do_not_delay_others() {
    let origin = Origin::start(|seen, to| match seen.path() {
        "/small" => say(to, "cache-control: max-age=60", b"small"),
        _ => say(to, "cache-control: max-age=60", &value(24 << 20, 5)),
    });
    let server = Arc::new(Server::start(pumice_door_http::DoorConfig {
        memory_bytes: 8 << 20,
        ..config(origin.address)
    }));
    server.ask("/small", "");
    let stuck: Vec<_> = (0..40)
        .map(|_| {
            let mut client: Client = server.client();
            client.send_request("/large", "");
            client
        })
        .collect();
    sleep(WAIT);
    for _ in 0..20 {
        let began = std::time::Instant::now();
        assert_eq!(server.ask("/small", "").text(), "small");
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    let answer = server.ask("/large", "");
    assert!(answer.is_whole && answer.body == value(24 << 20, 5));
    drop(stuck);
}

#[test]
fn slow_readers_of_a_long_body_get_all_of_it() {
    const MIB: usize = 1 << 20;
    let origin = Origin::start(|_, to| {
        let fields = "cache-control: max-age=60 & transfer-encoding: chunked";
        let _ = to.write_all(&head(fields, None));
        let body = value(MIB, 6);
        for _ in 0..64 {
            let _ = write!(to, "{MIB:x}\r\n");
            let _ = to.write_all(&body);
            let _ = to.write_all(b"\r\n");
        }
        let _ = to.write_all(b"0\r\n\r\n");
    });
    let server = Server::of(&origin);
    let threads: Vec<_> = (0..12)
        .map(|number| {
            let mut client = server.client();
            std::thread::spawn(move || {
                client.send_request("/x", "");
                client.head().unwrap();
                let (mut bytes, mut count) = (vec![0; 256 << 10], 0);
                let mut end: Vec<u8> = Vec::new();
                while !end.ends_with(b"\r\n0\r\n\r\n") {
                    let read = client.stream.read(&mut bytes).unwrap_or(0);
                    if read == 0 {
                        return (number, count, false);
                    }
                    count += read;
                    end.extend(&bytes[..read]);
                    end.drain(..end.len().saturating_sub(7));
                    if number % 3 == 0 {
                        sleep(Duration::from_millis(20));
                    }
                }
                (number, count, true)
            })
        })
        .collect();
    for thread in threads {
        let (number, count, is_whole) = thread.join().unwrap();
        assert!(
            is_whole && count > 64 * MIB,
            "{number}: {count}, {:?}",
            server.counts()
        );
    }
    assert_eq!(origin.count(), 1);
    server.stop();
}

#[test]
fn many_chunked_answers_are_under_way_within_little_memory() {
    let origin = Origin::start(|seen, to| {
        let fields = "cache-control: max-age=60 & transfer-encoding: chunked";
        let _ = to.write_all(&head(fields, None));
        let _ = to.write_all(b"5\r\nhello\r\n");
        if seen.path() != "/fast" {
            sleep(WAIT * 2);
        }
        let _ = to.write_all(b"0\r\n\r\n");
    });
    let server = Server::start(pumice_door_http::DoorConfig {
        memory_bytes: 1 << 20,
        ..config(origin.address)
    });
    let mut slow: Vec<_> = (0..60).map(|_| server.client()).collect();
    for (number, client) in slow.iter_mut().enumerate() {
        client.send_request(&format!("/{}", number % 10), "");
    }
    for client in &mut slow {
        assert!(client.head().is_some());
    }
    assert_eq!(origin.count(), 10);
    // None of them has room for a whole slice, and none waits for one; nor for what is sent while nothing is.
    let began = std::time::Instant::now();
    assert_eq!(server.ask("/fast", "").text(), "hello");
    assert!(began.elapsed() < WAIT);
    server.stop();
}

#[test]
fn a_refresh_that_an_invalidation_overtakes_gives_its_memory_back() {
    let origin = Origin::start(|seen, to| {
        if seen.field("if-none-match").is_some() {
            sleep(WAIT / 6);
        }
        let fields = "cache-control: max-age=1, stale-while-revalidate=1000 & etag: \"a\"";
        say(to, fields, &value(300_000, 7));
    });
    let server = Server::start(pumice_door_http::DoorConfig {
        memory_bytes: 1 << 20,
        ..config(origin.address)
    });
    for number in 0..20 {
        let path = format!("/{number}");
        server.ask(&path, "");
        server.wait_until("it is stored", |counts| counts.stored == number + 1);
        server.clock.advance_secs(10);
        let asked = origin.count();
        assert!(server.ask(&path, "").cache().starts_with("hit"));
        while origin.count() == asked {
            sleep(Duration::from_millis(1));
        }
        server.ask(&format!("POST {path}"), "content-length: 0");
        sleep(WAIT / 3);
    }
    let began = std::time::Instant::now();
    assert!(server.ask("/last", "").cache().contains("stored"));
    assert!(began.elapsed() < WAIT * 3);
    server.stop();
}

#[test]
fn a_fetch_goes_on_where_the_client_has_the_body_already() {
    let origin = Origin::start(|_, to| {
        let _ = to.write_all(&head("cache-control: max-age=60 & etag: \"a\"", Some(1_000_000)));
        let _ = to.write_all(&value(1_000_000, 3)[..100_000]);
        sleep(WAIT);
        let _ = to.write_all(&value(1_000_000, 3)[100_000..]);
    });
    let server = Server::of(&origin);
    assert_eq!(server.ask("/x", "if-none-match: \"a\"").status, 304);
    server.wait_until("it is stored", |counts| counts.stored == 1);
    let answer = server.ask("/x", "");
    assert!(answer.is_whole && answer.body == value(1_000_000, 3));
    assert_eq!(origin.count(), 1);
    server.stop();
}

#[test]
fn what_waits_for_memory_in_vain_is_passed_on() {
    let origin = Origin::start(|seen, to| {
        let _ = to.write_all(&head("cache-control: max-age=60", Some(4 << 20)));
        if seen.path() != "/fast" {
            sleep(Duration::from_secs(8));
        }
        let _ = to.write_all(&value(4 << 20, 1));
    });
    let server = Server::start(pumice_door_http::DoorConfig {
        memory_bytes: 1 << 20,
        ..config(origin.address)
    });
    let mut stuck: Vec<_> = (0..40).map(|_| server.client()).collect();
    for (number, client) in stuck.iter_mut().enumerate() {
        client.send_request(&format!("/{number}"), "");
    }
    sleep(WAIT);
    let answer = server.ask("/fast", "");
    assert!(answer.is_whole && answer.body == value(4 << 20, 1));
    assert!(answer.cache().ends_with("detail=memory"), "{}", answer.cache());
    drop(stuck);
    server.stop();
}

#[test]
fn of_two_answers_under_way_the_newer_stays() {
    let times = crate::common::Times::default();
    let origin = Origin::start(move |_, to| {
        let date = |secs| format!("cache-control: max-age=60 & date: Tue, 14 Nov 2023 22:13:{secs} GMT");
        match times.next() {
            // Those that follow do not wait for each other.
            0 => say(to, "cache-control: private", b""),
            1 => {
                sleep(WAIT);
                say(to, &date(10), b"old");
            }
            _ => say(to, &date(15), b"new"),
        }
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    let mut slow = server.client();
    slow.send_request("/x", "");
    sleep(WAIT / 3);
    assert_eq!(server.ask("/x", "").text(), "new");
    assert_eq!(slow.answer(false).text(), "old");
    sleep(WAIT / 3);
    assert_eq!(server.ask("/x", "").text(), "new");
    assert_eq!(origin.count(), 3);
    server.stop();
}
