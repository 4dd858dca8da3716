//! Values and lines of every length, and beyond the limits.

use crate::common::{Client, Server, config, hit, set, value};

#[test]
fn values_of_every_size_come_back_whole() {
    let server = Server::start(config());
    let mut client = server.client();
    let sizes = [
        1,
        16_383,
        16_384,
        65_535,
        65_536,
        65_537,
        70_000,
        300_000,
        1 << 20,
    ];
    for (seed, size) in sizes.into_iter().enumerate() {
        let value = value(size, seed);
        client.send(set("large", &value));
        client.expect("STORED\r\n");
        client.send(format!("get large\r\nget flash{size}\r\nmn\r\n"));
        client.expect_bytes(&hit("large", &value));
        client.expect("END\r\nMN\r\n");
    }
    // Many large values in one reply, more than fits the socket.
    let value = value(400_000, 7);
    client.send(set("a", &value));
    client.expect("STORED\r\n");
    client.send(format!("get{}\r\n", " a".repeat(40)));
    let mut one = hit("a", &value);
    one.truncate(one.len() - b"END\r\n".len());
    for _ in 0..40 {
        client.expect_bytes(&one);
    }
    client.expect("END\r\n");
}

#[test]
fn a_value_above_the_limit_is_refused_and_passed_over() {
    let server = Server::start(config());
    let mut client = server.client();
    let large = value((1 << 20) + 1, 0);
    client.send("set a 0 0 1\r\n1\r\n");
    client.send(set("a", &large));
    client.send("get a\r\n");
    // A set that is refused takes the stale value with it; an add does not.
    client.expect("STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n");
    client.send("set a 0 0 1\r\n1\r\n");
    client.send([b"add", &set("a", &large)[3..]].concat());
    client.send("get a\r\n");
    client.expect("STORED\r\nSERVER_ERROR object too large for cache\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    client.send([&b"ms a 1048577 q O4\r\n"[..], &large, b"\r\nmn\r\n"].concat());
    client.expect("SERVER_ERROR object too large for cache\r\nMN\r\n");
    assert_eq!(server.stats().counts().store_too_large, 3);
}

#[test]
fn a_large_value_with_a_bad_end_is_refused() {
    let server = Server::start(config());
    let mut client = server.client();
    let mut command = set("a", &value(100_000, 0));
    let end = command.len();
    command[end - 2..].copy_from_slice(b"xx");
    client.send(&command);
    client.send("get a\r\n");
    client.expect("CLIENT_ERROR bad data chunk\r\nEND\r\n");
}

#[test]
fn appending_beyond_the_limit_stores_nothing() {
    let server = Server::start(config());
    let mut client = server.client();
    let value = value(1 << 20, 0);
    client.send(set("a", &value));
    client.send("append a 0 0 1\r\nx\r\nmg a s\r\n");
    client.expect("STORED\r\nNOT_STORED\r\nHD s1048576\r\n");
}

#[test]
fn a_line_without_end_is_cut_off_and_hurts_nobody_else() {
    let server = Server::start(config());
    let mut other = server.client();
    let mut client = server.client();
    client.send(vec![b'x'; 5000]);
    client.expect("CLIENT_ERROR line too long\r\n");
    client.expect_end();
    let mut client = server.client();
    // A line of keys goes on from window to window of 16 KiB; a key that fills one is too long.
    client.send("get ");
    client.send(vec![b'k'; (16 << 10) - 4]);
    client.expect("CLIENT_ERROR line too long\r\n");
    client.expect_end();
    other.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    server.stop();
}

#[test]
fn a_large_value_that_is_refused_is_not_written_first() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let before = server.offered();
    let value = value(900_000, 0);
    let refused = [
        ("add a 0 0 900000", "NOT_STORED"),
        ("replace b 0 0 900000", "NOT_STORED"),
        ("append b 0 0 900000", "NOT_STORED"),
        ("cas a 0 0 900000 1000000", "EXISTS"),
        ("cas b 0 0 900000 1", "NOT_FOUND"),
        ("ms a 900000 C1000000", "EX"),
        ("ms a 900000 ME", "NS"),
    ];
    let ask = |client: &mut Client<_>, (line, reply): (&str, &str)| {
        client.send([line.as_bytes(), b"\r\n", &value, b"\r\n"].concat());
        client.expect(format!("{reply}\r\n"));
    };
    for asked in refused {
        ask(&mut client, asked);
    }
    assert_eq!(server.offered(), before);
    for asked in [("add b 0 0 900000", "STORED"), ("replace b 0 0 900000", "STORED")] {
        ask(&mut client, asked);
    }
    client.send("get b\r\n");
    client.expect_bytes(&hit("b", &value));
    server.stop();
}
