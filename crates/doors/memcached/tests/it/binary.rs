//! The binary protocol: frames instead of lines, the same commands.

use crate::common::{Client, SMALLEST, Server, config, hit, set, value};
use pumice::CacheOptions;
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{AuthFile, DoorConfig, Operation};
use std::net::TcpStream;
use std::sync::Arc;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const QUIT: u8 = 0x07;
const GETQ: u8 = 0x09;
const NOOP: u8 = 0x0a;
const VERSION: u8 = 0x0b;
const GETK: u8 = 0x0c;
const GETKQ: u8 = 0x0d;
const GAT: u8 = 0x1d;
const MECHANISMS: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;

/// Flags 7, no expiry.
const STORES: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 0];
const FLAGS: &[u8] = &[0, 0, 0, 7];

/// The bytes of a frame. `word` is what stands in bytes 6 and 7: of a reply its status.
fn bytes(magic: u8, (opcode, word): (u8, u16), [extras, key, value]: [&[u8]; 3], cas: u64) -> Vec<u8> {
    let len = u32::try_from(extras.len() + key.len() + value.len()).unwrap();
    let mut frame = vec![magic, opcode];
    frame.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
    frame.extend([u8::try_from(extras.len()).unwrap(), 0]);
    frame.extend(word.to_be_bytes());
    frame.extend(len.to_be_bytes());
    frame.extend(*b"opaq");
    frame.extend(cas.to_be_bytes());
    [&frame, extras, key, value].concat()
}

fn ask(opcode: u8, parts: [&[u8]; 3]) -> Vec<u8> {
    bytes(0x80, (opcode, 0), parts, 0)
}

fn noop() -> Vec<u8> {
    ask(NOOP, [b""; 3])
}

/// Expects a reply and returns its CAS unique.
#[track_caller]
fn expect(client: &mut Client<TcpStream>, opcode: u8, status: u16, parts: [&[u8]; 3]) -> u64 {
    let expected = bytes(0x81, (opcode, status), parts, 0);
    let mut got = client.receive(expected.len());
    let cas = u64::from_be_bytes(got[16..24].try_into().unwrap());
    got[16..24].fill(0);
    let differs = got
        .iter()
        .zip(&expected)
        .position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "{}", got[..got.len().min(100)].escape_ascii());
    cas
}

/// Expects a reply that only says why not.
#[track_caller]
fn refused(client: &mut Client<TcpStream>, opcode: u8, status: u16, message: &str) {
    let cas = expect(client, opcode, status, [b"", b"", message.as_bytes()]);
    assert_eq!(cas, 0);
}

#[test]
fn both_protocols_see_the_same_objects() {
    let server = Server::start(config());
    let (mut frames, mut words) = (server.client(), server.client());
    // A frame that comes byte by byte.
    for byte in ask(SET, [STORES, b"a", b"abc"]) {
        frames.send([byte]);
    }
    let cas = expect(&mut frames, SET, 0, [b"", b"", b""]);
    let numbers = words.ask("gets a\r\n", "VALUE a 7 3 #\r\nabc\r\nEND\r\n");
    assert_eq!(numbers, [cas]);
    words.ask("append a 0 0 1\r\nd\r\n", "STORED\r\n");
    frames.send(ask(GETK, [b"", b"a", b""]));
    assert!(expect(&mut frames, GETK, 0, [FLAGS, b"a", b"abcd"]) > cas);
    // Any bytes are a key.
    frames.send(ask(SET, [STORES, b"a b\r\n\0", b"odd"]));
    expect(&mut frames, SET, 0, [b"", b"", b""]);
    words.ask("mg YSBiDQoA b v\r\n", "VA 3\r\nodd\r\n");
    // What md has marked as stale is an object like others, and stays for a client of mg to win.
    words.ask("md a I\r\n", "HD\r\n");
    frames.send(ask(GET, [b"", b"a", b""]));
    expect(&mut frames, GET, 0, [FLAGS, b"", b"abcd"]);
    words.ask("mg a v\r\n", "VA 4 X W\r\nabcd\r\n");
    let counts = server.stats().counts();
    assert_eq!((counts.cmd_meta, counts.foreign_protocols), (3, 0));
    server.stop();
}

#[test]
fn frames_that_are_none_are_answered_as_memcached_does() {
    let server = Server::start(config());
    let (invalid, unknown) = ((4, "Invalid arguments"), (0x81, "Unknown command"));
    let header = |opcode: u8, key_len: u16, extras_len: u8, len: u32| {
        let mut frame = ask(opcode, [b""; 3]);
        frame[2..4].copy_from_slice(&key_len.to_be_bytes());
        frame[4] = extras_len;
        frame[8..12].copy_from_slice(&len.to_be_bytes());
        frame
    };
    // What a head says is judged before the rest comes.
    for (frame, (status, message)) in [
        (header(GET, 3, 0, 2), unknown),
        (header(SET, 3, 8, 10), unknown),
        (header(0x50, u16::MAX, u8::MAX, 0), unknown),
        (header(GET, 251, 0, 251), invalid),
        (header(GET, u16::MAX, 0, u32::MAX), invalid),
        (header(SET, 1, 0, u32::MAX), invalid),
        (header(GET, 1, 4, 5), invalid),
        (header(GET, 1, 0, 2), invalid),
        (header(GET, 0, 0, 0), invalid),
        (header(SET, 0, 8, 9), invalid),
        (header(0x05, 1, 8, 9), invalid),
        (header(0x0e, 1, 8, 9), invalid),
        (header(0x08, 0, 8, 8), invalid),
        (header(0x1c, 1, 4, 6), invalid),
        (header(QUIT, 1, 0, 1), invalid),
        (header(NOOP, 0, 0, 1), invalid),
        (header(VERSION, 0, 4, 4), invalid),
    ] {
        let mut client = server.client();
        client.send([noop(), frame.clone()].concat());
        expect(&mut client, NOOP, 0, [b""; 3]);
        refused(&mut client, frame[1], status, message);
        client.expect_end();
    }
    // What does not begin as a frame: no answer.
    let mut client = server.client();
    client.send([noop(), b"version\r\n".to_vec()].concat());
    expect(&mut client, NOOP, 0, [b""; 3]);
    client.expect_end();
    // Commands that there are not are passed over, however long they are; there is no verbosity, as in memcached.
    let mut client = server.client();
    let long = vec![b'x'; 300_000];
    for opcode in [0x1b, 0x50, MECHANISMS] {
        let parts: [&[u8]; 3] = match opcode {
            MECHANISMS => [b""; 3],
            _ => [b"1234", b"key", &long],
        };
        client.send([ask(opcode, parts), noop()].concat());
        refused(&mut client, opcode, 0x81, "Unknown command");
        expect(&mut client, NOOP, 0, [b""; 3]);
    }
    client.send(ask(QUIT, [b""; 3]));
    expect(&mut client, QUIT, 0, [b""; 3]);
    client.expect_end();
    let mut client = server.client();
    client.send(ask(0x17, [b""; 3]));
    client.expect_end();
    server.stop();
}

#[test]
fn lengths_that_lie_cost_no_memory() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        ..config()
    });
    let mut announced = ask(SET, [STORES, b"a", b""]);
    announced[8..12].copy_from_slice(&(9 + (1u32 << 20)).to_be_bytes());
    let liars: Vec<_> = (0..50)
        .map(|_| {
            let mut client = server.client();
            client.send(&announced);
            client
        })
        .collect();
    let sent = (50 * announced.len()) as u64;
    server.wait_until("all have arrived", |stats| stats.counts().bytes_read >= sent);
    // Two values of that size fit into the budget, and neither is taken: nothing has come of them.
    let mut client = server.client();
    let large = value(1 << 20, 5);
    client.send(ask(SET, [STORES, b"b", &large]));
    expect(&mut client, SET, 0, [b""; 3]);
    // More than any value may have is passed over: 4 GiB here.
    announced[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    client.send(&announced);
    refused(&mut client, SET, 3, "Too large.");
    client.send(vec![0; 1 << 20]);
    drop(liars);
    server.stop();
}

#[test]
fn large_values_come_and_go_in_both_ways() {
    let server = Server::start(config());
    let mut client = server.client();
    for (seed, size) in [0, 1, 12 << 10, (12 << 10) + 1, 16_384, 70_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let value = value(size, seed);
        client.send(
            [
                ask(SET, [STORES, b"large", &value]),
                ask(GETQ, [b"", b"large", b""]),
                noop(),
            ]
            .concat(),
        );
        expect(&mut client, SET, 0, [b""; 3]);
        expect(&mut client, GETQ, 0, [FLAGS, b"", &value]);
        expect(&mut client, NOOP, 0, [b""; 3]);
        // gat.
        client.send(ask(GAT, [&[0; 4], b"large", b""]));
        expect(&mut client, 0x1d, 0, [FLAGS, b"", &value]);
    }
    // Far more than a socket takes.
    let value = value(1 << 20, 6);
    client.send(ask(GETKQ, [b"", b"large", b""]).repeat(40));
    client.send(noop());
    for _ in 0..40 {
        expect(&mut client, GETKQ, 0, [FLAGS, b"large", &value]);
    }
    expect(&mut client, NOOP, 0, [b""; 3]);
    // A set that is too large takes the stale value with it; add and append do not.
    for (opcode, extras, is_there) in [(0x02, STORES, true), (0x0e, b"", true), (0x11, STORES, false)] {
        let over = [&value[..], b"x"].concat();
        client.send(
            [
                ask(opcode, [extras, b"large", &over]),
                ask(GET, [b"", b"large", b""]),
            ]
            .concat(),
        );
        refused(&mut client, opcode, 3, "Too large.");
        match is_there {
            true => {
                expect(&mut client, GET, 0, [FLAGS, b"", &value]);
            }
            false => refused(&mut client, GET, 1, "Not found"),
        }
    }
    server.stop();
}

#[test]
fn quiet_gets_read_flash_together_and_are_answered_in_order() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut words = server.client();
    let cold: Vec<(String, Vec<u8>)> = (0..100)
        .map(|number| (format!("cold{number}"), value(3000 + number * 17, number)))
        .collect();
    let fillers = (0..1200).map(|number| (format!("filler{number}"), value(20_000, number)));
    for (key, value) in cold.iter().cloned().chain(fillers) {
        words.send(set(&key, &value));
        words.expect("STORED\r\n");
    }
    let mut client = server.client();
    let mut batch = Vec::new();
    for (number, (key, _)) in cold.iter().enumerate() {
        batch.extend(ask(GETKQ, [b"", key.as_bytes(), b""]));
        batch.extend(ask(GETQ, [b"", format!("none{number}").as_bytes(), b""]));
    }
    client.send([batch, noop()].concat());
    for (key, value) in &cold {
        expect(&mut client, GETKQ, 0, [&[0; 4], key.as_bytes(), value]);
    }
    expect(&mut client, NOOP, 0, [b""; 3]);
    let counts = server.stats().counts();
    assert_eq!((counts.get_hits, counts.get_misses), (100, 100));
    assert!(counts.get_hits_flash >= 90, "{counts:?}");
    let most = server.reads.most();
    assert!(most > 8 && most <= 64, "{most} reads at once");
    words.send("get cold7\r\n");
    words.expect_bytes(&hit("cold7", &cold[7].1));
    server.stop();
}

fn guarded() -> (Server, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "foo:bar\n").unwrap();
    let auth = Arc::new(AuthFile::load(file.path()).unwrap());
    let server = Server::start(DoorConfig {
        auth: Some(auth),
        limits: Limits::default(),
        ..config()
    });
    (server, file)
}

#[test]
fn sasl_lets_in_who_has_the_right_password() {
    let (server, _file) = guarded();
    let auth_failed = |client: &mut Client<TcpStream>, opcode| refused(client, opcode, 0x20, "Auth failure.");
    // Nothing but this is answered before, and nothing of a value is waited for.
    let mut stored = ask(SET, [STORES, b"a", &[0; 5000]]);
    stored.truncate(24);
    for frame in [ask(GET, [b"", b"a", b""]), noop(), ask(0x50, [b""; 3]), stored] {
        let mut client = server.client();
        client.send(&frame);
        auth_failed(&mut client, frame[1]);
        client.expect_end();
    }
    let mut client = server.client();
    client.send([ask(MECHANISMS, [b""; 3]), ask(VERSION, [b""; 3])].concat());
    expect(&mut client, MECHANISMS, 0, [b"", b"", b"PLAIN"]);
    expect(&mut client, VERSION, 0, [b"", b"", b"1.6.18"]);
    for (mechanism, answer) in [
        ("PLAIN", "\0foo\0baz"),
        ("PLAIN", "other\0foo\0bar"),
        ("PLAIN", "foo bar"),
        ("CRAM-MD5", "\0foo\0bar"),
        ("CRAM-MD5", ""),
    ] {
        client.send(ask(AUTH, [b"", mechanism.as_bytes(), answer.as_bytes()]));
        auth_failed(&mut client, AUTH);
    }
    // What no user and password are as long as is passed over, and not kept.
    client.send(ask(AUTH, [b"", b"PLAIN", &[0; 3_000_000]]));
    auth_failed(&mut client, AUTH);
    client.send(ask(AUTH, [b"", &[b'P'; 33], b"\0foo\0bar"]));
    refused(&mut client, AUTH, 4, "Invalid arguments");
    // In one step, with what follows, and in two.
    let right = ask(AUTH, [b"", b"PLAIN", b"\0foo\0bar"]);
    client.send(
        [
            right.clone(),
            ask(SET, [STORES, b"a", b"1"]),
            ask(GET, [b"", b"a", b""]),
        ]
        .concat(),
    );
    expect(&mut client, AUTH, 0, [b"", b"", b"Authenticated"]);
    expect(&mut client, SET, 0, [b""; 3]);
    expect(&mut client, GET, 0, [FLAGS, b"", b"1"]);
    let mut client = server.client();
    client.send(ask(AUTH, [b"", b"plain", b""]));
    expect(&mut client, AUTH, 0x21, [b""; 3]);
    client.send([ask(STEP, [b"", b"plain", b"foo\0foo\0bar"]), noop()].concat());
    expect(&mut client, STEP, 0, [b"", b"", b"Authenticated"]);
    expect(&mut client, NOOP, 0, [b""; 3]);
    // Who fails afterwards is out.
    client.send([ask(AUTH, [b"", b"PLAIN", b"\0foo\0x"]), noop()].concat());
    auth_failed(&mut client, AUTH);
    auth_failed(&mut client, NOOP);
    client.expect_end();
    // Words have their own way in.
    let mut words = server.client();
    words.ask("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    words.ask(
        "set k 0 0 7\r\nfoo bar\r\nget a\r\n",
        "STORED\r\nVALUE a 7 1\r\n1\r\nEND\r\n",
    );
    let counts = server.stats().counts();
    assert_eq!((counts.auth_cmds, counts.auth_errors), (9, 6));
    server.stop();
}

#[test]
fn a_pipeline_is_counted_as_one_of_words_is() {
    let server = Server::start(config());
    let mut client = server.client();
    let mut batch = Vec::new();
    for number in 0..500 {
        let key = format!("key{number}");
        batch.extend(ask(0x11, [STORES, key.as_bytes(), key.as_bytes()]));
        batch.extend(ask(GETQ, [b"", key.as_bytes(), b""]));
        batch.extend(ask(GETQ, [b"", b"none", b""]));
    }
    client.send([batch, noop()].concat());
    for number in 0..500 {
        expect(
            &mut client,
            GETQ,
            0,
            [FLAGS, b"", format!("key{number}").as_bytes()],
        );
    }
    expect(&mut client, NOOP, 0, [b""; 3]);
    let stats = server.stats();
    assert_eq!(stats.latency(Operation::Set).count(), 500);
    assert_eq!(stats.latency(Operation::GetDram).count(), 500);
    assert_eq!(stats.latency(Operation::GetMiss).count(), 500);
    server.stop();
}

/// What is announced has to follow, and nobody keeps alive what is not whole any more.
#[test]
fn a_large_object_that_has_lost_a_slice_is_a_miss_to_who_changes_it_too() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            block_bytes: Some(256 << 10),
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    let asks = [
        ("gat 600 large0\r\n", "END\r\n"),
        ("gats 600 large1\r\n", "END\r\n"),
        ("mg large2 s v T600\r\n", "EN\r\n"),
        ("mg large3 s v N600 T600\r\n", "EN\r\n"),
        ("mg large4 s v R600\r\n", "EN\r\n"),
    ];
    let value = value(300_000, 0);
    for number in 0..=asks.len() {
        let set = format!("set large{number} 0 100 300000\r\n");
        client.ask([set.as_bytes(), &value, b"\r\n"].concat(), "STORED\r\n");
    }
    for number in 0..500 {
        client.ask(set(&format!("filler{number}"), &value[..20_000]), "STORED\r\n");
    }
    server.reads.fail_long();
    for (number, (ask, expected)) in asks.into_iter().enumerate() {
        client.ask(ask, expected);
        client.ask(format!("mg large{number} s\r\n"), "EN\r\n");
    }
    let mut frames = server.client();
    for _ in 0..2 {
        frames.send(ask(GAT, [&600u32.to_be_bytes(), b"large5", b""]));
        refused(&mut frames, GAT, 1, "Not found");
    }
    server.stop();
}
