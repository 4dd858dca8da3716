//! What all connections may hold together, and peers that are slow while others wait for it.

use crate::common::{SMALLEST, Server, config, hit, set, value};
use pumice::CacheOptions;
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{DoorConfig, Listen};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
    // Four connections take the whole budget, 80 KiB each whatever the length of their values, and stall half-way; another must wait for them.
    let mut first: Vec<_> = (0..4).map(|_| server.client()).collect();
    for first in &mut first {
        first.send(&command[..150_000]);
    }
    server.wait_until("all values arrive", |stats| stats.counts().bytes_read >= 600_000);
    let mut second = server.client();
    second.send(&set("b", &value)[..]);
    let mut third = server.client();
    third.ask("set small 0 0 1\r\n1\r\n", "STORED\r\n");
    third.ask("get b\r\n", "END\r\n");
    for first in &mut first {
        first.send(&command[150_000..]);
        first.expect("STORED\r\n");
    }
    second.expect("STORED\r\n");
    second.send("get b\r\n");
    second.expect_bytes(&hit("b", &value));
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
fn gats_of_large_objects_read_no_more_at_once_than_their_budget() {
    let server = Server::start_with(
        DoorConfig {
            budgets: SMALLEST,
            ..config()
        },
        CacheOptions {
            dram_bytes: 4 << 20,
            block_bytes: Some(2 << 20),
            ..CacheOptions::default()
        },
    );
    let value = value(900_000, 0);
    let mut clients: Vec<_> = (0..24).map(|_| server.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask(set(&format!("large{number}"), &value), "STORED\r\n");
    }
    for number in 0..500 {
        let filler = set(&format!("filler{number}"), &value[..20_000]);
        clients[0].ask(filler, "STORED\r\n");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("gat 0 large{number}\r\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.expect_bytes(&hit(&format!("large{number}"), &value));
    }
    // Memory is there for two of seven slices, and for eight heads beside them.
    assert!(server.reads.most() <= 22, "{} at once", server.reads.most());
    server.stop();
}

#[test]
fn a_peer_that_does_not_take_what_was_read_for_it_keeps_nobody_from_reading() {
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
fn values_that_stall_or_drip_in_are_cut_off_when_others_wait() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        limits: Limits {
            max_value_bytes: 100_000,
            ..Limits::default()
        },
        ..config()
    });
    // The two take all there is.
    let (mut silent, mut drips) = (server.client(), server.client());
    for client in [&mut silent, &mut drips] {
        client.send(announce("a", 100_000, 3_000));
    }
    server.wait_until("both begin", |stats| stats.counts().bytes_read >= 6_000);
    let mut others = [server.client(), server.client()];
    for other in &mut others {
        other.send(announce("b", 100_000, 3_000));
    }
    while server.stats().counts().slow_peers_closed < 2 {
        // Never silent for long, and never done.
        let _ = std::io::Write::write_all(&mut drips.stream, b"x");
        for other in &mut others {
            // These come at a good pace.
            other.send([b'x'; 300]);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    silent.expect_end();
    drips.expect_end();
    server.stop();
}

/// A command that announces a value, and as much of it as stands there.
fn announce(key: &str, len: usize, sent: usize) -> Vec<u8> {
    let mut command = set(key, &value(len, 1));
    command.truncate(command.len() - len - 2 + sent);
    command
}

#[test]
fn values_that_are_announced_and_do_not_come_keep_no_other_out() {
    // However patient the server is.
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        ..config()
    });
    // Of these nothing comes, or little, or so much that the server has memory for few: large ones and small ones.
    let lengths = [
        (1_000_000, 0),
        (1_000_000, 3_000),
        (60_000, 40_000),
        (30_000, 20_000),
        (1_000_000, 90_000),
    ];
    let droppers: Vec<_> = (0..30)
        .map(|number| {
            let (len, sent) = lengths[number % lengths.len()];
            let mut dropper = server.client();
            dropper.send(announce(
                &format!("dropper{number}"),
                len,
                if number < 20 { sent } else { sent.min(3_000) },
            ));
            dropper
        })
        .collect();
    let mut client = server.client();
    for len in [40_000, 3_000, 20_000, 40_000, 700_000] {
        let value = value(len, len);
        client.send(set("a", &value));
        client.expect("STORED\r\n");
        client.send("get a\r\n");
        client.expect_bytes(&hit("a", &value));
    }
    drop(droppers);
    server.wait_until("they are gone", |stats| stats.curr_connections() == 1);
    server.stop();
}

#[test]
fn more_large_values_at_once_than_there_is_memory_for_all_arrive() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        ..config()
    });
    let addr = server.door.local_addrs()[0];
    let clients: Vec<_> = (0..16)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut client = crate::common::connect(addr);
                for round in 0..10 {
                    let value = value(1_048_000 - seed * 60_000, seed + round);
                    // In pieces, so that none is whole before the others begin.
                    for piece in set(&format!("key{seed}"), &value).chunks(100_000) {
                        client.send(piece);
                        std::thread::yield_now();
                    }
                    client.expect("STORED\r\n");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("every value is stored");
    }
    assert_eq!(server.stats().counts().slow_peers_closed, 0);
    server.stop();
}

#[test]
fn nobody_is_cut_off_for_what_arrived_while_the_server_stood_still() {
    let server = Server::start_with(
        DoorConfig {
            budgets: SMALLEST,
            workers: 1,
            limits: Limits {
                max_value_bytes: 400_000,
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
    for number in 0..500 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    // Of each kind of value some have all the memory, and another waits for what they keep: bytes in all, bytes sent, bytes that are
    // read.
    let mut parts = vec![(12_000, 10_000, 10_000); 16];
    parts.extend([
        (12_000, 10_000, 5_000),
        (300_000, 120_000, 120_000),
        (300_000, 150_000, 150_000),
        (300_000, 150_000, 10_000),
    ]);
    let mut writers = Vec::new();
    for (number, (len, sent, read)) in parts.into_iter().enumerate() {
        let before = server.stats().counts().bytes_read;
        let mut writer = server.client();
        writer.send(announce(&format!("key{number}"), len, sent));
        server.wait_until("its part is read", |stats| {
            stats.counts().bytes_read >= before + read
        });
        let mut rest = set(&format!("key{number}"), &value(len, 1));
        rest.drain(..rest.len() - len - 2 + sent);
        writers.push((writer, rest));
    }
    // They go on.
    let before = server.stats().counts().bytes_read;
    for (writer, rest) in &mut writers {
        writer.send(rest.drain(..100).as_slice());
    }
    server.wait_until("they are read from", |stats| {
        stats.counts().bytes_read >= before + 1_000
    });
    let gate = server.reads.block_threads();
    client.send("get filler0\r\n");
    server.wait_until("the server stands still", |_| server.reads.now() > 0);
    for (writer, rest) in &mut writers {
        writer.send(rest);
    }
    // Longer than whoever sends nothing is given.
    std::thread::sleep(Duration::from_millis(1_200));
    drop(gate);
    for (writer, _) in &mut writers {
        writer.expect("STORED\r\n");
    }
    assert_eq!(server.stats().counts().slow_peers_closed, 0);
    drop((client, writers));
    server.stop();
}

#[test]
fn peers_that_do_not_read_take_no_memory_that_others_need() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
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
    // All ask for more than sockets buffer, and none reads: nothing is looked up for them that does not fit.
    let deaf: Vec<_> = (0..6)
        .map(|_| {
            let mut client = server.client();
            client.send(b"get a\r\n".repeat(400));
            client
        })
        .collect();
    server.wait_until("sockets are full", |stats| stats.counts().get_hits >= 6);
    for _ in 0..100 {
        setter.send("get a\r\n");
        setter.expect_bytes(&hit("a", &value));
    }
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
fn peers_that_do_not_read_from_flash_do_not_keep_others_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // However patient the server is: those for whom it has no more memory are not among those it waits for.
    let mut config = DoorConfig {
        budgets: SMALLEST,
        limits: Limits {
            max_value_bytes: 251_000,
            ..Limits::default()
        },
        ..config()
    };
    config.listen.push(Listen::Unix {
        path: path.clone(),
        mode: None,
    });
    let options = CacheOptions {
        dram_bytes: 4 << 20,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config, options);
    let mut client = server.client();
    let cold: Vec<_> = (0..10).map(|number| value(250_000 + number, number)).collect();
    for (number, value) in cold.iter().enumerate() {
        client.send(set(&format!("cold{number}"), value));
        client.expect("STORED\r\n");
    }
    for number in 0..500 {
        client.send(set(&format!("filler{number}"), &value(60_000, number)));
        client.expect("STORED\r\n");
    }
    // Sockets of this kind buffer the most part of one such value: the rests of some are as much as may be unsent.
    let deaf: Vec<_> = (0..16)
        .map(|_| {
            let stream = UnixStream::connect(&path).unwrap();
            let gets: String = (0..10).map(|number| format!("get cold{number}\r\n")).collect();
            (&stream).write_all(gets.as_bytes()).unwrap();
            stream
        })
        .collect();
    server.wait_until("no memory is left for replies", |stats| {
        stats.counts().slow_peers_closed >= 1
    });
    for (number, value) in cold.iter().enumerate() {
        client.send(format!("get cold{number}\r\n"));
        client.expect_bytes(&hit(&format!("cold{number}"), value));
    }
    drop(deaf);
    server.wait_until("they are gone", |stats| stats.curr_connections() == 1);
    server.stop();
}

#[test]
fn a_small_hit_does_not_wait_for_large_transfers_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut config = DoorConfig {
        budgets: SMALLEST,
        ..config()
    };
    config.listen.push(Listen::Unix {
        path: path.clone(),
        mode: None,
    });
    let options = CacheOptions {
        dram_bytes: 4 << 20,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config, options);
    let mut client = server.client();
    let mut store = |key: String, len: usize| {
        client.send(set(&key, &value(len, len)));
        client.expect("STORED\r\n");
    };
    (0..50).for_each(|number| store(format!("small{number}"), 100));
    (0..10).for_each(|number| store(format!("large{number}"), 900_000));
    (0..500).for_each(|number| store(format!("filler{number}"), 20_000));
    let deaf: Vec<_> = (0..300)
        .map(|number| {
            let stream = UnixStream::connect(&path).unwrap();
            let gets: String = (0..10)
                .map(|at| format!("get large{}\r\n", (number + at) % 10))
                .collect();
            (&stream).write_all(gets.as_bytes()).unwrap();
            stream
        })
        .collect();
    server.wait_until("their gets wait for memory", |stats| {
        stats.counts().slow_peers_closed > 0
    });
    let before = server.stats().counts().get_hits_flash;
    for number in 0..50 {
        let asked = std::time::Instant::now();
        client.send(format!("get small{number}\r\n"));
        client.expect_bytes(&hit(&format!("small{number}"), &value(100, 100)));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    }
    assert!(server.stats().counts().get_hits_flash >= before + 50);
    assert!(server.stats().curr_connections() > 100, "the others still wait");
    drop(deaf);
    server.stop();
}

/// A client that comes last has its turn within seconds, and is none of those that are cut off for it.
#[test]
fn a_large_value_waits_for_seconds_behind_any_number_of_stalled_peers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut config = DoorConfig {
        budgets: SMALLEST,
        ..config()
    };
    config.listen.push(Listen::Unix {
        path: path.clone(),
        mode: None,
    });
    let server = Server::start(config);
    let stalled = |sends: &[u8]| -> Vec<UnixStream> {
        let streams = (0..200).map(|_| UnixStream::connect(&path).unwrap());
        let sent = streams.inspect(|mut stream| stream.write_all(sends).unwrap());
        sent.collect()
    };
    let mut client = server.client();
    let timely = |what: &str, since: std::time::Instant| {
        assert!(
            since.elapsed() < Duration::from_secs(5),
            "{what}: {:?}",
            since.elapsed()
        );
    };
    // Memory is there for two.
    let half_sent = announce("half", 900_000, 90_000);
    let writers = stalled(&half_sent);
    server.wait_until("they wait for memory", |stats| {
        stats.counts().slow_peers_closed > 0
    });
    let since = std::time::Instant::now();
    client.send(set("large", &value(900_000, 1)));
    client.expect("STORED\r\n");
    timely("set", since);
    drop(writers);
    server.wait_until("they are gone", |stats| stats.curr_connections() == 1);
    let before = server.stats().counts().slow_peers_closed;
    let readers = stalled(&b"gat 0 large large large\r\n".repeat(20));
    server.wait_until("they wait for memory", |stats| {
        stats.counts().slow_peers_closed > before
    });
    let since = std::time::Instant::now();
    client.send("gat 0 large\r\n");
    client.expect_bytes(&hit("large", &value(900_000, 1)));
    timely("gat", since);
    drop(readers);
    server.stop();
}

/// The memory is for two, and 300 want it and stall: they are cut off, but not for that a client that is merely slow.
#[test]
fn a_slow_client_among_stalled_peers_is_not_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut config = DoorConfig {
        budgets: SMALLEST,
        ..config()
    };
    config.listen.push(Listen::Unix {
        path: path.clone(),
        mode: None,
    });
    let server = Server::start(config);
    let half_sent = announce("half", 900_000, 90_000);
    let stalled: Vec<_> = (0..400)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(&half_sent).unwrap();
            stream
        })
        .collect();
    server.wait_until("they wait for memory", |stats| {
        stats.counts().slow_peers_closed > 0
    });
    let mut slow = server.client();
    let value = value(300_000, 2);
    for piece in set("slow", &value).chunks(16 << 10) {
        slow.send(piece);
        std::thread::sleep(Duration::from_millis(50));
    }
    slow.expect("STORED\r\n");
    assert!(server.stats().curr_connections() > 10, "the others still wait");
    drop(stalled);
    slow.send("get slow\r\n");
    slow.expect_bytes(&hit("slow", &value));
    server.stop();
}
