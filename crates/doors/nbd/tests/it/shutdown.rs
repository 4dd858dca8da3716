//! The end of clients, and of the server.

use crate::common::{Server, config, wait_until};
use pumice_door_nbd::DoorConfig;
use std::sync::atomic::Ordering;
use std::time::Duration;

const CACHE: u16 = 5;

#[test]
fn a_write_goes_on_when_its_client_is_lost() {
    let server = Server::start(config());
    server.control.gate.send_replace(0);
    let mut client = server.open();
    client.ask(1, 0, 1, 0, 4);
    client.send(b"data");
    // A large one, of which not all comes.
    client.ask(1, 0, 2, 1 << 20, 5 << 20);
    client.send(&[1; 2 << 20]);
    let begun = &server.seen.writes_begun;
    wait_until("they have begun", || begun.load(Ordering::SeqCst) == 2);
    drop(client);
    server.control.gate.send_replace(u64::MAX);
    let connections = server.door.stats();
    wait_until("the connection ends", || connections.connections().current() == 0);
    let (ended, dropped) = (&server.seen.writes_ended, &server.seen.writes_dropped);
    assert_eq!(ended.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    assert_eq!(server.open().read(0, 4), b"data");
}

#[test]
fn a_long_request_ends_with_its_connection() {
    let server = Server::start(DoorConfig {
        max_connections: 4,
        ..config()
    });
    server.control.gate.send_replace(2 << 20);
    let mut client = server.open();
    client.ask(CACHE, 0, 1, 0, 64 << 20);
    let pieces = || server.seen.cached_pieces.load(Ordering::SeqCst);
    wait_until("the third piece waits", || pieces() == 3);
    // No request: the connection is lost.
    client.send(&[1; 28]);
    let stats = server.door.stats();
    wait_until("the loss is seen", || stats.counts(0).lost_connections == 1);
    server.control.gate.send_replace(u64::MAX);
    wait_until("the connection ends", || stats.connections().current() == 0);
    assert_eq!(pieces(), 3);
}

#[test]
fn requests_under_way_are_answered_at_the_end() {
    let server = Server::start(config());
    server.control.gate.send_replace(0);
    let (mut client, mut idle) = (server.open(), server.open());
    let mut shaking = server.connect();
    shaking.greet();
    client.ask(1, 0, 1, 0, 4);
    client.send(b"data");
    let begun = &server.seen.writes_begun;
    wait_until("it has begun", || begun.load(Ordering::SeqCst) == 1);
    server.stop();
    assert_eq!(idle.rest(), b"");
    assert_eq!(shaking.rest(), b"");
    server.control.gate.send_replace(u64::MAX);
    let got = client.reply(0);
    assert_eq!((got.cookie, got.error), (1, 0));
    assert_eq!(client.rest(), b"");
    server.join();
}

#[test]
fn a_worker_does_not_end_before_its_writes() {
    let server = Server::start(DoorConfig {
        drain_timeout: Duration::from_millis(20),
        ..config()
    });
    server.control.gate.send_replace(0);
    let mut client = server.open();
    client.ask(1, 0, 1, 0, 4);
    client.send(b"data");
    let seen = std::sync::Arc::clone(&server.seen);
    wait_until("it has begun", || seen.writes_begun.load(Ordering::SeqCst) == 1);
    server.stop();
    // The time for answers is over.
    assert_eq!(client.rest(), b"");
    assert_eq!(seen.writes_dropped.load(Ordering::SeqCst), 0);
    server.control.gate.send_replace(u64::MAX);
    server.join();
    assert_eq!(seen.writes_dropped.load(Ordering::SeqCst), 0);
    assert_eq!(seen.writes_ended.load(Ordering::SeqCst), 1);
}
