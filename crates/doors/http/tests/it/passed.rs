//! What is passed on, refused, and how connections end.

use crate::common::{Origin, Server, config, head, say, value};
use pumice_door_http::access_log::AccessLogConfig;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn bodies_stream_both_ways() {
    let origin = Origin::start(|seen, to| {
        let body = seen.body.clone();
        say(to, "201 & x-hop: gone & connection: x-hop", &body);
    });
    let server = Server::of(&origin);
    let body = value(3 << 20, 1);
    let mut client = server.client();
    for _ in 0..2 {
        client.send_request("PUT /x", &format!("content-length: {}", body.len()));
        client.send(&body);
        let answer = client.answer(false);
        assert_eq!(
            (answer.status, answer.field("x-hop"), answer.cache()),
            (201, None, "fwd=method")
        );
        assert!(answer.body == body);
    }
    client.send_request("POST /x", "transfer-encoding: chunked");
    client.send(b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
    assert_eq!(client.answer(false).text(), "hello world");
    server.stop();
}

#[test]
fn the_body_of_a_get_is_neither_forwarded_nor_the_next_request() {
    // As CVE-2025-4366.
    let origin = Origin::always("cache-control: max-age=60", b"hello");
    let server = Server::of(&origin);
    for is_hit in [false, true] {
        let mut client = server.client();
        let smuggled = "GET /evil HTTP/1.1\r\nhost: a\r\n\r\n";
        client.send_request("/x", &format!("content-length: {}", smuggled.len()));
        let answer = client.answer(false);
        assert_eq!(
            (answer.text(), answer.cache().starts_with("hit")),
            ("hello", is_hit)
        );
        // The body comes late; the connection may be closed already.
        let _ = client.stream.get_mut().write_all(smuggled.as_bytes());
        client.expect_end();
        server.wait_until("it is stored", |counts| counts.stored == 1);
        // At once with the head: read and left aside.
        let mut client = server.client();
        client.send(format!(
            "GET /x HTTP/1.1\r\nhost: example.org\r\ncontent-length: {}\r\n\r\n{smuggled}",
            smuggled.len()
        ));
        assert_eq!(client.answer(false).text(), "hello");
        client.send_request("/x", "connection: close");
        assert_eq!(client.answer(false).text(), "hello");
        client.expect_end();
    }
    let seen = origin.seen();
    assert!(
        seen.iter()
            .all(|seen| seen.path() == "/x" && seen.field("content-length").is_none())
    );
    server.stop();
}

#[test]
fn what_two_servers_could_read_differently_is_refused_and_goes_nowhere() {
    let origin = Origin::always("cache-control: max-age=60", b"hello");
    let server = Server::of(&origin);
    let long = "y".repeat(33 << 10);
    let many = "a: b\r\n".repeat(129);
    let path = "x".repeat(17 << 10);
    for (request, statuses) in [
        ("GET / HTTP/1.1\r\n\r\n", &[400][..]),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", &[400]),
        ("GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n", &[400]),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            &[400],
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 1\r\n\r\na",
            &[400],
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na",
            &[400],
        ),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", &[400]),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            &[400, 501],
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            &[400],
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            &[400],
        ),
        (
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            &[400],
        ),
        ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\nhost: a\r\na: b\r\n c\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\nhost: a\r\na: b\0c\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\nhost: a\r\na: b\rc\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", &[400]),
        ("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", &[400, 501]),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", &[501]),
        (
            &*format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"),
            &[431],
        ),
        (&*format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), &[431]),
        (&*format!("GET /{path} HTTP/1.1\r\nhost: a\r\n\r\n"), &[414]),
        ("GET / HTTP/3.0\r\nhost: a\r\n\r\n", &[400]),
        ("\x16\x03\x01", &[400]),
    ] {
        let shown = &request[..request.len().min(100)];
        let mut client = server.client();
        client.send(request);
        let answer = client.head().unwrap_or_else(|| panic!("no answer to {shown:?}"));
        assert!(statuses.contains(&answer.status), "{shown:?}: {}", answer.status);
        let mut client = server.client();
        client.send(request);
        client.answer(false);
        client.expect_end();
    }
    // A chunk that is none ends the connection, and the origin sees no whole request.
    let mut client = server.client();
    client.send("POST /bad HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nx");
    while client.head().is_some() {}
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
    server.stop();
}

#[test]
fn chunks_count_before_a_length() {
    // RFC 9112, 6.3: never two requests; the connection is closed.
    let origin = Origin::always("cache-control: max-age=60", b"hello");
    let server = Server::of(&origin);
    for fields in [
        "content-length: 5\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 50",
    ] {
        let mut client = server.client();
        client.send(format!(
            "POST /x HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ));
        assert_eq!(client.answer(false).text(), "hello");
        client.expect_end();
    }
    for seen in origin.seen().iter().filter(|seen| seen.line.starts_with("POST")) {
        assert_eq!((&*seen.body, seen.field("content-length")), (&b"abc"[..], None));
    }
    server.stop();
}

#[test]
fn a_circle_ends() {
    let times = crate::common::Times::default();
    let via = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let noted = via.clone();
    let origin = Origin::start(move |seen, to| {
        times.next();
        *noted.lock().unwrap() = seen.field("via").unwrap().to_owned();
        say(to, "cache-control: no-store", b"hello");
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    let via = via.lock().unwrap().clone();
    assert!(via.starts_with("1.1 pumice-"), "{via}");
    assert_eq!(server.ask("/x", &format!("via: {via}")).status, 508);
    server.stop();
}

#[test]
fn options_of_the_server_are_answered_here() {
    let origin = Origin::always("204", b"");
    let server = Server::of(&origin);
    assert!(server.ask("OPTIONS *", "").field("allow").is_some());
    assert!(
        server
            .ask("OPTIONS /x", "max-forwards: 0")
            .field("allow")
            .is_some()
    );
    assert_eq!(origin.count(), 0);
    server.ask("OPTIONS /*", "");
    assert_eq!(origin.seen()[0].line, "OPTIONS /* HTTP/1.1");
    server.ask(
        "OPTIONS /x",
        "max-forwards: 3 & upgrade: h2c & connection: upgrade",
    );
    let seen = &origin.seen()[1];
    assert_eq!(
        (seen.field("max-forwards"), seen.field("upgrade")),
        (Some("2"), None)
    );
    server.stop();
}

#[test]
fn what_is_not_stored_says_why() {
    for (asked, fields, detail) in [
        ("", "cache-control: no-store", "no-store"),
        ("", "cache-control: private", "private"),
        ("", "cache-control: max-age=9 & set-cookie: a=b", "set-cookie"),
        ("authorization: x", "cache-control: max-age=9", "authorization"),
        ("", "cache-control: max-age=9 & vary: *", "vary"),
        ("", "", "no-freshness"),
        ("", "400", "status"),
    ] {
        let origin = Origin::always(fields, b"hello");
        let server = Server::of(&origin);
        for _ in 0..2 {
            let answer = server.ask("/x", asked);
            assert_eq!(answer.text(), "hello");
            assert_eq!(
                answer.cache(),
                format!("fwd=uri-miss; detail={detail}"),
                "{fields}"
            );
        }
        assert_eq!((origin.count(), server.counts().stored), (2, 0));
        server.stop();
    }
    // A head that the engine does not take, and a body above the limit.
    let origin = Origin::start(|_, to| {
        say(
            to,
            &format!("cache-control: max-age=9 & x-a: {}", "y".repeat(9000)),
            b"hello",
        );
    });
    let server = Server::of(&origin);
    assert_eq!(server.ask("/x", "").cache(), "fwd=uri-miss; detail=too-large");
    server.stop();
}

#[test]
fn a_stop_lets_answers_end_and_closes_idle_connections() {
    let origin = Origin::start(|_, to| {
        let _ = to.write_all(&head("cache-control: no-store", Some(10)));
        let _ = to.write_all(b"01234");
        std::thread::sleep(Duration::from_millis(300));
        let _ = to.write_all(b"56789");
    });
    let server = Server::of(&origin);
    let mut idle = server.client();
    assert_eq!(idle.ask("/x", "").text(), "0123456789");
    let mut busy = server.client();
    busy.send_request("/x", "");
    assert_eq!(busy.head().unwrap().status, 200);
    server.begin_stop();
    idle.expect_end();
    let mut rest = [0; 10];
    std::io::Read::read_exact(&mut busy.stream, &mut rest).unwrap();
    assert_eq!(&rest, b"0123456789");
    busy.expect_end();
    server.stop();
}

#[test]
fn idle_connections_and_slow_heads_end() {
    let origin = Origin::always("cache-control: max-age=9", b"hello");
    let server = Server::start(pumice_door_http::DoorConfig {
        idle_timeout: Duration::from_millis(200),
        ..config(origin.address)
    });
    let (mut idle, mut slow) = (server.client(), server.client());
    assert_eq!(idle.ask("/x", "").text(), "hello");
    slow.send("GET / HTTP/1.1\r\nhost:");
    let began = Instant::now();
    idle.expect_end();
    slow.expect_end();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(server.counts().idle_closed, 2);
    server.stop();
}

#[test]
fn http_1_0_is_spoken() {
    let origin = Origin::always("cache-control: max-age=60", b"hello");
    let server = Server::of(&origin);
    for _ in 0..2 {
        let mut client = server.client();
        client.send("GET /x HTTP/1.0\r\nhost: example.org\r\n\r\n");
        assert_eq!(client.answer(false).text(), "hello");
        client.expect_end();
        server.wait_until("it is stored", |counts| counts.stored == 1);
    }
    server.stop();
}

#[test]
fn a_body_that_breaks_off_ends_in_a_reset() {
    let origin = Origin::start(|_, to| {
        let mut bytes = head("transfer-encoding: chunked & cache-control: no-store", None);
        bytes.extend(b"5\r\nhello\r\n");
        let _ = to.write_all(&bytes);
        std::thread::sleep(Duration::from_millis(50));
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let server = Server::of(&origin);
    for version in ["1.0", "1.1"] {
        let mut client = server.client();
        client.send(format!("GET /x HTTP/{version}\r\nhost: example.org\r\n\r\n"));
        client.head().expect("a head");
        let mut body = Vec::new();
        let end = client.stream.read_to_end(&mut body);
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        assert!(String::from_utf8(body).unwrap().contains("hello"));
    }
    server.stop();
}

#[test]
fn a_small_body_that_is_not_as_long_as_told_is_a_502() {
    for body in [&b"hell"[..], b"hello!"] {
        let origin = Origin::start(move |_, to| {
            let _ = to.write_all(&head("cache-control: max-age=60", Some(5)));
            let _ = to.write_all(body);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let server = Server::of(&origin);
        assert_eq!(server.ask("/x", "").status, 502, "{body:?}");
        assert_eq!(server.counts().stored, 0);
        server.stop();
    }
}

#[test]
fn an_upload_that_stalls_ends() {
    let origin = Origin::always("", b"hello");
    let server = Server::start(pumice_door_http::DoorConfig {
        stall_timeout: Duration::from_millis(200),
        ..config(origin.address)
    });
    let mut client = server.client();
    client.send_request("POST /x", "content-length: 10");
    client.send("01234");
    let answer = client.answer(false);
    assert_eq!(answer.status, 502);
    client.expect_end();
    assert_eq!(origin.count(), 0);
    server.stop();
}

#[test]
fn requests_are_noted_in_the_access_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let origin = Origin::always("cache-control: max-age=60", b"hello");
    let server = Server::start(pumice_door_http::DoorConfig {
        access_log: Some(AccessLogConfig {
            path: path.clone(),
            format: "combined".parse().unwrap(),
        }),
        ..config(origin.address)
    });
    server.ask("/x?a=b", "user-agent: me & cookie: secret");
    server.wait_until("it is stored", |counts| counts.stored == 1);
    server.ask("/x?a=b", "");
    server.client().send("GET / HTTP/1.1\r\n\r\n");
    server.wait_until("it is refused", |counts| counts.refused == 1);
    server.stop();
    let log = std::fs::read_to_string(path).unwrap();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 3, "{log}");
    assert!(
        lines[0].contains("\"GET /x?a=b HTTP/1.1\" 200 5") && lines[0].contains("me"),
        "{log}"
    );
    assert!(
        lines[0].contains("fwd=uri-miss") && lines[1].contains("Pumice; hit"),
        "{log}"
    );
    assert!(lines[2].contains(" 400 ") && !log.contains("secret"), "{log}");
}

#[test]
fn an_unsafe_method_counts_though_its_client_leave() {
    let (go, gone) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::start(move |seen, to| {
        if seen.line.starts_with("POST") {
            gone.lock().unwrap().recv().unwrap();
        }
        say(to, "cache-control: max-age=100", b"hello");
    });
    let server = Server::of(&origin);
    server.ask("/x", "");
    server.wait_until("it is stored", |counts| counts.stored == 1);
    let mut client = server.client();
    client.send_request("POST /x", "content-length: 0");
    while origin.count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(client);
    // The server sees the end.
    while server.door.stats().curr_connections() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    go.send(()).unwrap();
    server.wait_until("it is void", |counts| counts.invalidated == 1);
    assert_eq!(server.ask("/x", "").cache(), "fwd=uri-miss; ttl=100; stored");
    server.stop();
}

#[test]
fn the_parts_of_a_cookie_are_one_line_for_the_origin() {
    let origin = Origin::always("", b"");
    let server = Server::of(&origin);
    server.ask("/x", "cookie: a=1 & cookie: b=2; c=3");
    let fields = &origin.seen()[0].fields;
    let cookies: Vec<_> = fields.iter().filter(|(name, _)| name == "cookie").collect();
    assert_eq!(cookies, [&("cookie".to_owned(), "a=1; b=2; c=3".to_owned())]);
    server.stop();
}

#[test]
fn lines_that_the_access_log_loses_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin::always("", b"hello");
    let server = Server::start(pumice_door_http::DoorConfig {
        access_log: Some(AccessLogConfig {
            path: directory.path().join("log"),
            format: "json".parse().unwrap(),
        }),
        ..config(origin.address)
    });
    assert_eq!(server.counts().log_lines_dropped, 0);
    directory.close().unwrap();
    server.ask("/x", "");
    server.wait_until("it is lost", |counts| counts.log_lines_dropped == 1);
    server.stop();
}
