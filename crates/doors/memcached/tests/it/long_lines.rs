//! Lines that list many keys: the buffer of their connection grows, and its share of the receive budget with it.

use crate::common::{Client, Server, config};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{BudgetSizes, DoorConfig};
use std::net::TcpStream;
use std::time::Duration;

/// A server whose connections may together wait with this many bytes of commands.
fn with_receive_budget(bytes: usize) -> DoorConfig {
    DoorConfig {
        budgets: BudgetSizes {
            receive: bytes,
            ..BudgetSizes::default()
        },
        limits: Limits {
            max_value_bytes: 1 << 10,
            ..Limits::default()
        },
        ..config()
    }
}

/// A key of 200 bytes.
fn key(number: usize) -> String {
    format!("{number:0>200}")
}

fn get_line(keys: impl Iterator<Item = usize>) -> Vec<u8> {
    let keys: String = keys.map(|number| format!(" {}", key(number))).collect();
    format!("get{keys}\r\n").into_bytes()
}

/// Sends bytes in pieces, each only when the server has read the one before. Others must be silent meanwhile.
fn send_in_pieces(server: &Server, client: &mut Client<TcpStream>, bytes: &[u8], piece: usize) {
    let stats = server.stats();
    let mut read = stats.counts().bytes_read;
    for piece in bytes.chunks(piece) {
        client.send(piece);
        read += piece.len() as u64;
        server.wait_until("the piece is read", |stats| stats.counts().bytes_read >= read);
    }
}

#[test]
fn a_long_line_that_arrives_in_pieces_is_answered_whole() {
    let server = Server::start(config());
    let mut client = server.client();
    let mut expected = String::new();
    for number in (0..2000).filter(|number| number % 3 != 0) {
        client.send(format!(
            "set {} {number} 0 4 noreply\r\n{number:04}\r\n",
            key(number)
        ));
        expected.push_str(&format!("VALUE {} {number} 4\r\n{number:04}\r\n", key(number)));
    }
    client.ask("mn\r\n", "MN\r\n");
    let line = get_line(0..2000);
    assert!(line.len() > 400_000);
    send_in_pieces(&server, &mut client, &line, 1999);
    client.expect(expected + "END\r\n");
    // The connection is as good as before.
    client.ask("mn\r\n", "MN\r\n");
    let counts = server.stats().counts();
    assert_eq!((counts.get_hits, counts.get_misses), (1333, 667));
    server.stop();
}

#[test]
fn the_longest_line_is_answered_and_a_longer_one_refused_however_it_arrives() {
    let limits = Limits {
        max_keys_line_bytes: 100_000,
        ..Limits::default()
    };
    let server = Server::start(DoorConfig { limits, ..config() });
    let line = |len: usize| {
        let mut line = b"get".to_vec();
        while line.len() < len - 2 {
            let token = (len - 2 - line.len()).min(201);
            line.push(b' ');
            line.resize(line.len() + token - 1, b'k');
        }
        line.extend(b"\r\n");
        line
    };
    for piece in [1499, 20_000, 100_000] {
        let mut client = server.client();
        send_in_pieces(&server, &mut client, &line(99_999), piece);
        client.ask("mn\r\n", "END\r\nMN\r\n");
        let mut too_long = line(100_001);
        too_long.truncate(100_000);
        send_in_pieces(&server, &mut client, &too_long, piece);
        client.expect("CLIENT_ERROR line too long\r\n");
        client.expect_end();
    }
    server.stop();
}

#[test]
fn lines_that_outgrow_the_budget_together_are_answered_one_after_the_other() {
    let server = Server::start(with_receive_budget(64 << 10));
    let mut clients = [server.client(), server.client()];
    let line = get_line(0..400);
    // Each has half of the budget when it comes to need more.
    for client in &mut clients {
        send_in_pieces(&server, client, &line[..30_000], 15_000);
    }
    for client in &mut clients {
        client.send(&line[30_000..]);
    }
    for client in &mut clients {
        client.expect("END\r\n");
        client.ask("mn\r\n", "MN\r\n");
    }
    server.stop();
}

#[test]
fn a_long_line_holds_a_share_as_large_as_its_buffer() {
    // The first buffer of a connection is 16 KiB; five such and little more fit beside a largest value.
    let server = Server::start(DoorConfig {
        peer_timeout: Duration::from_millis(200),
        ..with_receive_budget(70_000)
    });
    let line = get_line(0..400);
    let mut stalled = server.client();
    send_in_pieces(&server, &mut stalled, &line[..60_000], 10_000);
    // This one would fit if the first had kept to what it took when it began. It has to wait, so whoever stalls is cut off.
    let mut other = server.client();
    other.send(&line[..40_000]);
    server.wait_until("the stalled line is cut off", |stats| {
        stats.counts().slow_peers_closed == 1
    });
    stalled.expect_end();
    other.send(&line[40_000..]);
    other.expect("END\r\n");
    server.stop();
}
