//! What clients can make the door hold.

use crate::common::{Client, Server, config, wait_until};
use pumice_door_nbd::DoorConfig;
use std::sync::atomic::Ordering;

/// What each connection may hold.
const CONNECTION_BYTES: usize = 3 << 20;

fn server() -> Server {
    Server::start(DoorConfig {
        workers: 1,
        max_connections: 4,
        memory_bytes: 4 * CONNECTION_BYTES,
        ..config()
    })
}

#[test]
fn replies_that_nobody_takes_are_bounded() {
    let server = server();
    for is_structured in [true, false] {
        let mut client = server.connect();
        client.negotiate("disk", is_structured);
        server.seen.most_held_bytes.store(0, Ordering::SeqCst);
        for cookie in 0..64 {
            client.ask(0, 0, cookie, 0, if cookie == 20 { 32 << 20 } else { 1 << 20 });
        }
        // So much that the rest has to wait for the peer.
        let held = &server.seen.held_bytes;
        wait_until("replies wait", || held.load(Ordering::SeqCst) >= 1 << 20);
        let another = server.open().read(0, 2 << 20);
        assert_eq!(another.len(), 2 << 20);
        for _ in 0..64 {
            match is_structured {
                true => assert_eq!(client.reply(0).error, 0),
                false => {
                    let head = client.receive(16);
                    client.receive(if head[15] == 20 { 32 << 20 } else { 1 << 20 });
                }
            }
        }
        let most = server.seen.most_held_bytes.load(Ordering::SeqCst);
        assert!(
            (1 << 20..=2 * CONNECTION_BYTES).contains(&most),
            "{most} bytes were held"
        );
        wait_until("all is given back", || held.load(Ordering::SeqCst) == 0);
    }
}

#[test]
fn writes_that_wait_are_bounded() {
    let server = server();
    server.control.gate.send_replace(0);
    let mut client = server.open();
    let mut writer = Vec::new();
    for cookie in 0..200 {
        let length = if cookie == 7 { 5 << 20 } else { 128 << 10 };
        writer.extend(Client::request(1, 0, cookie, 0, length));
        writer.resize(writer.len() + length as usize, 1);
    }
    let held = &server.seen.held_bytes;
    std::thread::scope(|scope| {
        let (sent, is_sent) = std::sync::mpsc::channel();
        scope.spawn(move || {
            client.send(&writer);
            // Fails where the test is over.
            let _ = sent.send(());
            for _ in 0..200 {
                assert_eq!(client.reply(0).error, 0);
            }
        });
        // Those before the large one, whose first piece has no room beside them.
        wait_until("writes wait", || held.load(Ordering::SeqCst) == 7 * (128 << 10));
        assert!(is_sent.try_recv().is_err());
        server.control.gate.send_replace(u64::MAX);
    });
    let most = server.seen.most_held_bytes.load(Ordering::SeqCst);
    assert!(most <= CONNECTION_BYTES, "{most} bytes were held");
    assert_eq!(server.seen.writes_dropped.load(Ordering::SeqCst), 0);
}

#[test]
fn many_small_requests_wait_for_each_other() {
    let server = server();
    server.control.gate.send_replace(0);
    let mut client = server.open();
    let requests: Vec<u8> = (0..20_000)
        .flat_map(|cookie| [Client::request(1, 0, cookie, 0, 1), vec![1]].concat())
        .collect();
    let begun = &server.seen.writes_begun;
    let window = CONNECTION_BYTES - (32 << 10);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            client.send(&requests);
            for _ in 0..20_000 {
                assert_eq!(client.reply(0).error, 0);
            }
        });
        // One byte, twice the 4 KiB in which it stands, and 4 KiB for the rest of a request.
        wait_until("the window is used up", || {
            begun.load(Ordering::SeqCst) == window / (3 * 4096 + 1)
        });
        server.control.gate.send_replace(u64::MAX);
    });
    assert_eq!(begun.load(Ordering::SeqCst), 20_000);
}
