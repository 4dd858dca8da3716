//! Connections as such: their number, their places, their end.

use crate::common::{Client, Server, config, hit, script, set, value};
use pumice_door_memcached::{DoorConfig, DoorStats, Listen};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
fn connections_above_the_limit_are_told_so() {
    let server = Server::start(DoorConfig {
        max_connections: 2,
        ..config()
    });
    let mut first = server.client();
    first.ask("mn\r\n", "MN\r\n");
    let mut second = server.client();
    second.ask("mn\r\n", "MN\r\n");
    let mut third = server.client();
    third.expect("ERROR Too many open connections\r\n");
    third.expect_end();
    drop(second);
    server.wait_until("a place is free", |stats| stats.curr_connections() == 1);
    server.client().ask("mn\r\n", "MN\r\n");
    first.ask("mn\r\n", "MN\r\n");
    assert_eq!(server.stats().rejected_connections(), 1);
    assert_eq!(server.stats().total_connections(), 3);
}

#[test]
fn quit_ends_the_connection_after_the_replies() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("set a 0 0 1\r\n1\r\nquit\r\nget a\r\n", "STORED\r\n");
    client.expect_end();
}

#[test]
fn a_unix_socket_serves_too_and_its_stale_file_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for _ in 0..2 {
        // A file that nobody listens on, as a killed server leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let server = Server::start(DoorConfig {
            listen: vec![Listen::Unix {
                path: path.clone(),
                mode: Some(0o700),
            }],
            ..config()
        });
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream };
        let value = value(300_000, 5);
        client.send(set("a", &value));
        client.expect("STORED\r\n");
        client.send("get a\r\n");
        client.expect_bytes(&hit("a", &value));
        let taken = pumice_door_memcached::Door::bind(DoorConfig {
            listen: vec![Listen::Unix {
                path: path.clone(),
                mode: None,
            }],
            ..config()
        });
        let error = taken.err().expect("the socket is in use").to_string();
        assert!(error.contains("another process answers there"), "{error}");
        server.stop();
        assert!(!path.exists());
    }
}

#[test]
fn nobody_can_connect_before_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let place = |directory: &std::path::Path| Listen::Unix {
        path: directory.join("socket"),
        mode: None,
    };
    let missing = directory.path().join("missing");
    for (wrong, words) in [(missing.as_path(), "No such file"), (directory.path(), "")] {
        let listen = vec![place(wrong)];
        let bound = pumice_door_memcached::Door::bind(DoorConfig { listen, ..config() });
        match bound {
            Ok(_) => assert!(words.is_empty() && !path.exists()),
            Err(error) => assert!(!words.is_empty() && error.to_string().contains(words), "{error}"),
        }
    }
    let mut listen = config().listen;
    listen.push(place(directory.path()));
    let door = pumice_door_memcached::Door::bind(DoorConfig { listen, ..config() }).unwrap();
    let address = door.local_addrs()[0];
    let kinds = || {
        let tcp = TcpStream::connect(address).err().map(|error| error.kind());
        let unix = UnixStream::connect(&path).err().map(|error| error.kind());
        (tcp, unix)
    };
    assert_eq!(
        kinds(),
        (Some(ErrorKind::ConnectionRefused), Some(ErrorKind::NotFound))
    );
    // Another server has come first: its socket is not taken from it.
    let other = UnixListener::bind(&path).unwrap();
    let error = door.listen().unwrap_err().to_string();
    assert!(error.contains("another process answers there"), "{error}");
    drop(other);
    door.listen().unwrap();
    assert_eq!(kinds(), (None, None));
    door.listen().unwrap();
    assert_eq!(kinds(), (None, None));
    drop(door);
    assert!(!path.exists());
}

#[test]
fn an_address_in_use_is_named() {
    let server = Server::start(config());
    let address = server.door.local_addrs()[0];
    let error = pumice_door_memcached::Door::bind(DoorConfig {
        listen: vec![Listen::Tcp(address)],
        ..config()
    })
    .err()
    .expect("in use")
    .to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {address}: ")),
        "{error}"
    );
}

#[test]
fn a_client_that_vanishes_mid_command_takes_nobody_with_it() {
    let server = Server::start(config());
    for cut in ["set a 0 0 10\r\nab", "get a", "set a 0 0 100000\r\nabc", "mg"] {
        let mut client = server.client();
        client.send(cut);
    }
    server.wait_until("all are gone", |stats| {
        stats.total_connections() == 4 && stats.curr_connections() == 0
    });
    script(&server, &[("get a\r\n", "END\r\n")]);
    server.stop();
}

#[test]
fn who_sends_no_command_for_the_idle_timeout_is_closed() {
    let server = Server::start(DoorConfig {
        idle_timeout: Some(Duration::from_millis(500)),
        ..config()
    });
    let kicks = |count| move |stats: &DoorStats| stats.counts().idle_kicks == count;
    let mut silent = server.client();
    silent.expect_end();
    let mut idle = server.client();
    idle.ask("mn\r\n", "MN\r\n");
    let mut half = server.client();
    half.send("ge");
    server.wait_until("silent, idle and half a line are closed", kicks(3));
    idle.expect_end();
    half.expect_end();
    // A line that never ends is no command, however fast it comes; a value that arrives is not idleness.
    let (mut drips, mut busy, mut stores) = (server.client(), server.client(), server.client());
    stores.send("set a 0 0 100\r\n");
    for _ in 0..20 {
        let _ = std::io::Write::write_all(&mut drips.stream, b"x");
        busy.ask("mn\r\n", "MN\r\n");
        stores.send("12345");
        std::thread::sleep(Duration::from_millis(100));
    }
    stores.ask("\r\n", "STORED\r\n");
    assert_eq!(server.stats().counts().idle_kicks, 4);
    server.stop();
}

#[test]
fn whoever_takes_long_to_read_is_not_idle() {
    let server = Server::start(DoorConfig {
        idle_timeout: Some(Duration::from_millis(300)),
        ..config()
    });
    let mut client = server.client();
    let value = value(1 << 20, 0);
    client.ask(set("a", &value), "STORED\r\n");
    client.send(b"get a\r\n".repeat(20));
    std::thread::sleep(Duration::from_millis(900));
    for _ in 0..20 {
        client.expect_bytes(&hit("a", &value));
    }
    client.ask("mn\r\n", "MN\r\n");
    server.stop();
}

#[test]
fn clients_of_other_protocols_are_closed() {
    let server = Server::start(config());
    let mut count = 0;
    let mut closed = |first: &[u8]| {
        let mut client = server.client();
        client.send(first);
        client.expect_end();
        count += 1;
        server.wait_until("it is counted", |stats| stats.counts().foreign_protocols == count);
    };
    closed(&[0x16, 3, 1, 2, 0, 1]);
    for line in [
        "POST / HTTP/1.1\r\n",
        "POST / HTTP/1.1\n",
        "post /index http/1.1\r\n",
        "POST / HTTP/1.1\rHost: x\n",
        "get /index HTTP/1.0\r\n",
        "delete /index HTTP/1.1\r\n",
        "get http://x/ HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
    ] {
        closed(format!("{line}set smuggled 0 0 3\r\nabc\r\n").as_bytes());
    }
    // These are keys, and no path.
    script(
        &server,
        &[
            ("get smuggled HTTP/1.1\r\n", "END\r\n"),
            ("touch HTTP/ 1\r\n", "NOT_FOUND\r\n"),
        ],
    );
    server.stop();
}
