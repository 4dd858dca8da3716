//! What connections do besides talking sense: pipelining, large and slow input, limits, shutdown.

mod common;

use common::{Client, Server, config, script};
use pumice::CacheOptions;
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{BudgetSizes, DoorConfig, Listen, Operation};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One largest value fits into each all the same.
const SMALLEST: BudgetSizes = BudgetSizes {
    receive: 1,
    reads: 1,
    large: 1,
    unsent: 1,
};

fn value(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from((at * 31 + seed) % 251).unwrap())
        .collect()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut command = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
    command.extend_from_slice(value);
    command.extend_from_slice(b"\r\n");
    command
}

fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    let mut reply = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\nEND\r\n");
    reply
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    let server = Server::start(config());
    let mut client = server.client();
    let (mut send, mut expected) = (Vec::new(), Vec::new());
    for number in 0..2000 {
        let key = format!("key{number}");
        let value = value(number % 300, number);
        send.extend(set(&key, &value));
        send.extend(format!("get {key}\r\nmg {key} s\r\n").bytes());
        expected.extend(b"STORED\r\n");
        expected.extend(hit(&key, &value));
        expected.extend(format!("HD s{}\r\n", value.len()).bytes());
    }
    client.send(&send);
    client.expect_bytes(&expected);
    let stats = server.stats();
    assert_eq!(stats.latency(Operation::Set).count(), 2000);
    assert_eq!(stats.latency(Operation::GetDram).count(), 4000);
    server.stop();
}

#[test]
fn commands_may_arrive_byte_by_byte() {
    let server = Server::start(config());
    let mut client = server.client();
    for byte in b"set a 0 0 5\r\na\r\nbc\r\nget a\r\nms b 2 k\r\nhi\r\nbogus\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\nVALUE a 0 5\r\na\r\nbc\r\nEND\r\nHD kb\r\nERROR\r\n");
}

#[test]
fn flash_reads_of_a_run_are_made_together_and_answered_in_order() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    let cold: Vec<(String, Vec<u8>)> = (0..100)
        .map(|number| (format!("cold{number}"), value(3000 + number * 17, number)))
        .collect();
    for (key, value) in &cold {
        client.send(set(key, value));
        client.expect("STORED\r\n");
    }
    // Enough to push them out of DRAM and out of the block buffers.
    for number in 0..1200 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    let (mut keys, mut expected) = (String::new(), Vec::new());
    for (number, (key, value)) in cold.iter().enumerate() {
        let warm = format!("warm{number}");
        client.send(set(&warm, warm.as_bytes()));
        client.expect("STORED\r\n");
        keys.push_str(&format!(" {key} {warm} none{number}"));
        for (key, value) in [(key, value), (&warm, &warm.clone().into_bytes())] {
            let mut reply = hit(key, value);
            reply.truncate(reply.len() - b"END\r\n".len());
            expected.extend(reply);
        }
    }
    client.send(format!("get{keys}\r\n"));
    client.expect_bytes(&expected);
    client.expect("END\r\n");
    let counts = server.stats().counts();
    assert_eq!((counts.get_hits, counts.get_misses), (200, 100));
    assert!(counts.get_hits_flash >= 90, "{counts:?}");
    assert_eq!(
        server.stats().latency(Operation::GetFlash).count(),
        counts.get_hits_flash
    );
    let most = server.reads.most();
    assert!(most > 8 && most <= 64, "{most} reads at once");
    server.stop();
}

#[test]
fn a_write_behind_reads_of_flash_is_seen_by_what_follows_only() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    client.ask(
        "set a 0 0 3\r\nold\r\nset b 7 0 1\r\n5\r\n",
        "STORED\r\nSTORED\r\n",
    );
    for number in 0..1200 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    client.send("get a b\r\nmg a v\r\nmg none v q\r\nset a 0 0 3\r\nnew\r\nget a\r\nincr b 1\r\nappend b 0 0 1\r\n0\r\nmg b v f\r\nmn\r\n");
    client.expect(
        "VALUE a 0 3\r\nold\r\nVALUE b 7 1\r\n5\r\nEND\r\nVA 3\r\nold\r\nSTORED\r\nVALUE a 0 3\r\nnew\r\nEND\r\n6\r\nSTORED\r\nVA 2 f7\r\n60\r\nMN\r\n",
    );
    assert!(server.stats().counts().get_hits_flash >= 2);
    server.stop();
}

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
    // One byte short of the bound it is still waited for; the bound itself is not.
    client.send("get ");
    client.send(vec![b'k'; (1 << 20) - 5]);
    client.send("k");
    client.expect("CLIENT_ERROR line too long\r\n");
    client.expect_end();
    other.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    server.stop();
}

#[test]
fn a_get_may_list_very_many_keys() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("set key7 0 0 1\r\n7\r\n", "STORED\r\n");
    let keys: String = (0..60_000).map(|number| format!(" key{number}")).collect();
    client.ask(format!("get{keys}\r\n"), "VALUE key7 0 1\r\n7\r\nEND\r\n");
    client.ask("get key7\r\n", "VALUE key7 0 1\r\n7\r\nEND\r\n");
}

#[test]
fn values_wait_for_the_receive_budget_and_all_arrive() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        limits: Limits {
            max_value_bytes: 200_000,
            ..Limits::default()
        },
        ..config()
    });
    let value = value(200_000, 3);
    let command = set("a", &value);
    // The first connection takes the whole budget and stalls half-way; the second must wait for it.
    let mut first = server.client();
    first.send(&command[..150_000]);
    server.wait_until("the first value arrives", |stats| {
        stats.counts().bytes_read >= 150_000
    });
    let mut second = server.client();
    second.send(&set("b", &value)[..]);
    let mut third = server.client();
    third.ask("set small 0 0 1\r\n1\r\n", "STORED\r\n");
    third.ask("get b\r\n", "END\r\n");
    first.send(&command[150_000..]);
    first.expect("STORED\r\n");
    second.expect("STORED\r\n");
    second.send("get b\r\n");
    second.expect_bytes(&hit("b", &value));
}

#[test]
fn a_stalled_value_gives_its_share_of_the_budget_back() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        peer_timeout: Duration::from_millis(500),
        ..config()
    });
    let mut stalled = server.client();
    stalled.send("set a 0 0 100000\r\nabc");
    server.wait_until("the value begins", |stats| stats.counts().bytes_read >= 21);
    let mut client = server.client();
    let value = value(66_000, 1);
    client.send(set("b", &value));
    client.expect("STORED\r\n");
    stalled.expect_end();
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let server = Server::start(config());
    let mut client = server.client();
    let value = value(1 << 20, 0);
    client.send(set("a", &value));
    client.expect("STORED\r\n");
    // Far more replies than sockets buffer. The writer stops when the server does.
    let mut writer = client.stream.try_clone().unwrap();
    writer.set_nonblocking(true).unwrap();
    let requests = b"get a\r\n".repeat(1000);
    let (mut sent, mut stalls) = (0, 0);
    while stalls < 200 && sent < 64 << 20 {
        match std::io::Write::write(&mut writer, &requests[sent % 7..]) {
            Ok(count) => {
                sent += count;
                stalls = 0;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                stalls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent < 64 << 20, "the server reads on without end");
    let mut other = server.client();
    other.ask("mg a s\r\n", "HD s1048576\r\n");
    drop((client, writer));
    server.wait_until("the connection ends", |stats| stats.curr_connections() == 1);
}

#[test]
fn a_get_of_much_that_is_on_flash_reads_no_more_at_once_than_its_budget() {
    let server = Server::start_with(
        DoorConfig {
            budgets: SMALLEST,
            limits: Limits {
                max_value_bytes: 100_000,
                ..Limits::default()
            },
            ..config()
        },
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    let values: Vec<_> = (0..20).map(|number| value(60_000 + number, number)).collect();
    for (number, value) in values.iter().enumerate() {
        client.send(set(&format!("cold{number}"), value));
        client.expect("STORED\r\n");
    }
    for number in 0..500 {
        client.send(set(&format!("filler{number}"), &value(60_000, number)));
        client.expect("STORED\r\n");
    }
    let most_before = server.reads.most();
    let gets: String = (0..20).map(|number| format!(" cold{number}")).collect();
    client.send(format!("get{gets}\r\n"));
    for (number, value) in values.iter().enumerate() {
        let reply = hit(&format!("cold{number}"), value);
        client.expect_bytes(&reply[..reply.len() - b"END\r\n".len()]);
    }
    client.expect("END\r\n");
    assert!(server.stats().counts().get_hits_flash >= 15);
    // The budget holds one such value at a time.
    assert!(
        server.reads.most() <= most_before.max(1),
        "{} at once",
        server.reads.most()
    );
    // Changes of what is on flash need memory too, also while they read.
    for (number, value) in values.iter().enumerate() {
        client.send(format!(
            "append cold{number} 0 0 1\r\n!\r\ngat 0 cold{number}\r\n"
        ));
        client.expect("STORED\r\n");
        client.expect_bytes(&hit(&format!("cold{number}"), &[&value[..], b"!"].concat()));
    }
    server.stop();
}

#[test]
fn large_objects_of_one_get_wait_for_their_memory_in_their_order() {
    let server = Server::start_with(
        DoorConfig {
            budgets: SMALLEST,
            ..config()
        },
        CacheOptions {
            dram_bytes: 4 << 20,
            block_bytes: Some(256 << 10),
            ..CacheOptions::default()
        },
    );
    // In slices, and too many to be in memory at once.
    let values: Vec<_> = (0..40)
        .map(|number| value(300_000 + 50_000 * (number % 5), number))
        .collect();
    let mut client = server.client();
    for (number, value) in values.iter().enumerate() {
        client.send(set(&format!("large{number}"), value));
        client.expect("STORED\r\n");
    }
    for number in 0..500 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    let gets: String = (0..40).map(|number| format!(" large{number}")).collect();
    for _ in 0..3 {
        client.send(format!("get{gets}\r\n"));
        for (number, value) in values.iter().enumerate() {
            let reply = hit(&format!("large{number}"), value);
            client.expect_bytes(&reply[..reply.len() - b"END\r\n".len()]);
        }
        client.expect("END\r\n");
    }
    server.stop();
}

#[test]
fn a_peer_that_does_not_take_what_was_read_for_it_keeps_nobody_from_reading() {
    let server = Server::start_with(
        DoorConfig {
            budgets: SMALLEST,
            peer_timeout: Duration::from_millis(500),
            limits: Limits {
                max_value_bytes: 100_000,
                ..Limits::default()
            },
            ..config()
        },
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    let values: Vec<_> = (0..300).map(|number| value(30_000, number)).collect();
    for (number, value) in values.iter().enumerate() {
        client.send(set(&format!("cold{number}"), value));
        client.expect("STORED\r\n");
    }
    for number in 0..500 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    // Each asks for more than sockets buffer, of what is on flash, and takes nothing.
    let gets: String = (0..300).map(|number| format!(" cold{number}")).collect();
    let deaf: Vec<_> = (0..12)
        .map(|_| {
            let mut client = server.client();
            client.send(format!("get{gets}\r\nget{gets}\r\n"));
            client
        })
        .collect();
    for number in (0..300).step_by(10) {
        client.send(format!("get cold{number}\r\n"));
        client.expect_bytes(&hit(&format!("cold{number}"), &values[number]));
    }
    drop(deaf);
    server.stop();
}

#[test]
fn a_value_that_drips_in_is_cut_off() {
    let server = Server::start(DoorConfig {
        peer_timeout: Duration::from_millis(500),
        ..config()
    });
    let mut client = server.client();
    client.send("set a 0 0 1000000\r\n");
    // Never silent for long, and never done.
    while server.stats().counts().slow_peers_closed == 0 {
        if std::io::Write::write_all(&mut client.stream, b"x").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    server.wait_until("it is cut off", |stats| stats.counts().slow_peers_closed == 1);
    client.expect_end();
}

#[test]
fn a_peer_that_does_not_read_is_cut_off_when_others_need_the_memory() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        peer_timeout: Duration::from_millis(500),
        limits: Limits {
            max_value_bytes: 100_000,
            ..Limits::default()
        },
        ..config()
    });
    let mut setter = server.client();
    let value = value(60_000, 7);
    setter.send(set("a", &value));
    setter.expect("STORED\r\n");
    // All ask for more than sockets buffer, so all need the memory of unsent replies, and none reads.
    let deaf: Vec<_> = (0..6)
        .map(|_| {
            let mut client = server.client();
            client.send(b"get a\r\n".repeat(400));
            client
        })
        .collect();
    server.wait_until("somebody is cut off", |stats| {
        stats.counts().slow_peers_closed > 0
    });
    setter.send("get a\r\n");
    setter.expect_bytes(&hit("a", &value));
    drop(deaf);
    server.wait_until("they are gone", |stats| stats.curr_connections() == 1);
    // Everything was given back: a reply that does not fit sockets is sent whole again.
    setter.send(b"get a\r\n".repeat(400));
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..400 {
        setter.expect_bytes(&hit("a", &value));
    }
    server.stop();
}

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
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
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

impl Client<std::net::TcpStream> {
    fn expect_bytes(&mut self, expected: &[u8]) {
        expect_bytes(self, expected);
    }
}

impl Client<UnixStream> {
    fn expect_bytes(&mut self, expected: &[u8]) {
        expect_bytes(self, expected);
    }
}

/// Like `expect`, without a meaning for `#`.
fn expect_bytes<S: Read + std::io::Write>(client: &mut Client<S>, expected: &[u8]) {
    let got = client.receive(expected.len());
    let differs = got
        .iter()
        .zip(expected)
        .position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "first difference");
}
