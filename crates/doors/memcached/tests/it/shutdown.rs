//! The end of a server: what was sent before it is answered, within a bound.

use crate::common::{Server, config, connect, hit, set, value};
use pumice_door_memcached::{DoorConfig, DoorStats};
use std::time::{Duration, Instant};

#[test]
fn shutdown_answers_what_arrived_and_closes() {
    let server = Server::start(config());
    let mut idle = server.client();
    idle.ask("mn\r\n", "MN\r\n");
    let mut half = server.client();
    half.ask("mn\r\nset a 0 0 10\r\nabc", "MN\r\n");
    let mut busy = server.client();
    busy.send("set b 0 0 1\r\n1\r\nget b\r\n");
    busy.expect("STORED\r\nVALUE b 0 1\r\n1\r\nEND\r\n");
    let address = server.door.local_addrs()[0];
    let stats = server.stats();
    server.stop();
    idle.expect_end();
    half.expect_end();
    busy.expect_end();
    assert_eq!(stats.curr_connections(), 0);
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_pipeline_that_was_sent_before_the_stop_is_answered_to_its_end() {
    let server = Server::start(config());
    let large = value(100_000, 1);
    let mut client = server.client();
    client.ask(set("large", &large), "STORED\r\n");
    // More than is read at once; the replies are more than sockets buffer.
    let (mut send, mut expected) = (Vec::new(), Vec::new());
    for number in 0..400 {
        let value = value(300, number);
        send.extend(set(&format!("key{number}"), &value));
        send.extend(format!("get key{number} large\r\n").bytes());
        expected.extend(b"STORED\r\n");
        let small = hit(&format!("key{number}"), &value);
        expected.extend(&small[..small.len() - b"END\r\n".len()]);
        expected.extend(hit("large", &large));
    }
    client.send(&send);
    server.begin_stop();
    client.expect_bytes(&expected);
    client.expect_end();
    server.stop();
}

#[test]
fn who_waits_to_be_accepted_is_served_before_the_end() {
    let mut waiting = Vec::new();
    let server = Server::start_stopped(config(), |door| {
        for _ in 0..10 {
            let mut client = connect(door.local_addrs()[0]);
            client.send("set a 0 0 1\r\n1\r\nget a\r\n");
            waiting.push(client);
        }
    });
    for mut client in waiting {
        client.expect("STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
        client.expect_end();
    }
    server.stop();
}

#[test]
fn a_value_that_was_sent_whole_before_the_stop_is_stored() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("mn\r\n", "MN\r\n");
    // It is received apart from the buffer.
    client.send(set("a", &value(1 << 20, 3)));
    server.begin_stop();
    client.expect("STORED\r\n");
    client.expect_end();
    server.stop();
}

#[test]
fn who_does_not_take_replies_delays_the_end_by_the_drain_timeout_at_most() {
    let drain_timeout = Duration::from_millis(500);
    let server = Server::start(DoorConfig {
        drain_timeout,
        ..config()
    });
    let mut client = server.client();
    client.ask(set("a", &value(1 << 20, 0)), "STORED\r\n");
    client.send(b"get a\r\n".repeat(100));
    let taken = |stats: &DoorStats| stats.counts().get_hits > 0;
    server.wait_until("replies are under way", taken);
    let stop = Instant::now();
    server.stop();
    let took = stop.elapsed();
    assert!(
        took >= drain_timeout && took < Duration::from_secs(10),
        "{took:?}"
    );
}
