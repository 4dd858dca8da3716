//! Lines that list many keys: they are answered in parts.

use crate::common::{Client, Server, config, set};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{BudgetSizes, DoorConfig};
use std::io::Write;
use std::net::TcpStream;

/// A server whose connections may together wait with this many bytes of commands.
fn with_receive_budget(bytes: usize) -> DoorConfig {
    DoorConfig {
        budgets: BudgetSizes {
            input: bytes,
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
fn a_line_of_any_number_of_keys_is_answered_in_bounded_memory() {
    let server = Server::start(with_receive_budget(1));
    server.client().ask(set("a", b"1"), "STORED\r\n");
    // 25 MB, far more than all connections may hold.
    let keys = 125_000;
    for (command, hit) in [
        ("get", "VALUE a 0 1\r\n1\r\n"),
        ("gats  0 ", "VALUE a 0 1 #\r\n1\r\n"),
    ] {
        let mut client = server.client();
        let mut writer = client.stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            writer.write_all(format!("{command} a").as_bytes()).unwrap();
            for number in 0..keys {
                writer.write_all(format!(" {}", key(number)).as_bytes()).unwrap();
            }
            writer.write_all(b" a  \r\nmn\r\n").unwrap();
        });
        client.expect(format!("{hit}{hit}END\r\nMN\r\n"));
        writer.join().unwrap();
    }
    let counts = server.stats().counts();
    assert_eq!((counts.get_hits, counts.get_misses), (4, 2 * keys as u64));
    server.stop();
}

#[test]
fn a_line_of_keys_beyond_a_window_has_only_keys_however_it_arrives() {
    let server = Server::start(config());
    let long = Limits::default().keys_window_bytes;
    let no_key = [b"get ".as_slice(), &vec![b'k'; long]].concat();
    let spaces = [b"gat 0".as_slice(), &vec![b' '; long]].concat();
    let bad = [b"get a ".as_slice(), &vec![b'k'; 251], &b" a".repeat(long / 2)].concat();
    for (line, piece) in [
        (&no_key, 1499),
        (&no_key, long),
        (&spaces, 1499),
        (&bad, 20_000),
        (&bad, 999),
    ] {
        let mut client = server.client();
        send_in_pieces(&server, &mut client, &line[..long], piece);
        client.expect("CLIENT_ERROR line too long\r\n");
        client.expect_end();
    }
    server.stop();
}
