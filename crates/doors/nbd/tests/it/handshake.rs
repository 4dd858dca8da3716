//! From the greeting to the export.

use crate::common::{Client, DISK_BYTES, NEGOTIATE_ALL, Server, config};
use pumice_door_nbd::{DoorConfig, Listen};
use std::time::Duration;

const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const UNSUPPORTED: u32 = (1 << 31) + 1;
const TOO_BIG: u32 = (1 << 31) + 9;

#[test]
fn exports_are_listed_and_found_by_name() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.greet();
    let list = client.option(3, b"");
    let names: Vec<_> = list
        .iter()
        .map(|(_, data)| data.escape_ascii().to_string())
        .collect();
    assert_eq!(
        names,
        [r"\x00\x00\x00\x04diska disk", r"\x00\x00\x00\x05imagea image", ""]
    );
    let all = 0b101_0000_0000;
    assert_eq!(
        server.connect().negotiate("disk", true),
        (DISK_BYTES, all | 0b0110_1101)
    );
    assert_eq!(
        server.connect().negotiate("", true),
        (DISK_BYTES, all | 0b0110_1101)
    );
    assert_eq!(
        server.connect().negotiate("image", false),
        (513, all | 0b0000_1111)
    );
    assert_eq!(server.door.stats().counts(0).sessions, 2);
}

#[test]
fn a_refused_option_is_followed_by_others() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.greet();
    let kind = |replies: Vec<(u32, Vec<u8>)>| replies[0].0;
    assert_eq!(kind(client.option(5, b"")), UNSUPPORTED);
    assert_eq!(kind(client.option(1234, b"something")), UNSUPPORTED);
    assert_eq!(kind(client.option(3, b"something")), INVALID);
    assert_eq!(kind(client.option(7, b"\0\0\0\x04none\0\0")), UNKNOWN);
    assert_eq!(kind(client.option(10, b"\0\0\0\x04disk\0\0\0\0")), INVALID);
    assert_eq!(kind(client.option(6, &vec![0; 1 << 20])), TOO_BIG);
    assert_eq!(kind(client.option(6, b"\0\0\0\x04disk\0\0")), 3);
    assert_eq!(client.option(2, b""), [(1, vec![])]);
    assert_eq!(client.rest(), b"");
}

#[test]
fn a_handshake_in_single_bytes_is_the_same() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.receive(18);
    let go = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0";
    let flush = Client::request(3, 0, 9, 0, 0);
    for byte in go.iter().chain(&flush) {
        client.send(&[*byte]);
    }
    assert_eq!(client.option_replies(7).len(), 2);
    assert_eq!(client.reply(0).cookie, 9);
}

#[test]
fn what_is_no_handshake_costs_that_connection_alone() {
    let server = Server::start(config());
    let mut good = server.open();
    for bad in [
        &b"\0\0\0\x07"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04none",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\xff\xff\xff\xff",
    ] {
        let mut client = server.connect();
        client.receive(18);
        client.send(bad);
        assert_eq!(client.rest(), b"", "{}", bad.escape_ascii());
    }
    assert_eq!(good.write(0, 0, b"still here"), 0);
}

#[test]
fn whoever_does_not_shake_hands_is_not_waited_for() {
    let server = Server::start(DoorConfig {
        handshake_timeout: Duration::from_millis(50),
        ..config()
    });
    let mut client = server.connect();
    client.receive(18);
    client.send(b"\0\0\0\x03IHAVEOPT");
    assert_eq!(client.rest(), b"");
}

#[test]
fn the_oldest_way_to_choose_an_export_is_served() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.receive(18);
    client.send(b"\0\0\0\x01IHAVEOPT\0\0\0\x01\0\0\0\x05image");
    assert_eq!(client.receive(134)[..9], [0, 0, 0, 0, 0, 0, 2, 1, 5]);
    assert_eq!(client.read(0, 513), [0; 513]);
}

#[test]
fn more_connections_than_allowed_are_turned_away() {
    let server = Server::start(DoorConfig {
        max_connections: 2,
        ..config()
    });
    let (mut first, _second) = (server.open(), server.open());
    assert_eq!(server.connect().rest(), b"");
    assert_eq!(first.write(0, 0, b"still here"), 0);
    assert_eq!(server.door.stats().connections().rejected(), 1);
}

#[test]
fn a_unix_socket_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = Server::start(DoorConfig {
        listen: vec![Listen::Unix {
            path: path.clone(),
            mode: Some(0o600),
        }],
        ..config()
    });
    let mut client = Client::unix(&path);
    client.negotiate("disk", NEGOTIATE_ALL);
    assert_eq!(client.write(0, 511, &[7; 513]), 0);
    assert_eq!(client.read(511, 513), [7; 513]);
    server.join();
    assert!(!path.exists());
}
