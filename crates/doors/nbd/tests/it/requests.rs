//! Requests and their replies.

use crate::common::{Client, DISK_BYTES, Server, config};
use std::sync::atomic::Ordering;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZERO: u16 = 6;
const STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const REQ_ONE: u16 = 8;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

const MIB: u64 = 1 << 20;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn any_range_is_written_and_read_back() {
    let server = Server::start(config());
    for is_structured in [true, false] {
        let mut client = server.connect();
        client.negotiate("disk", is_structured);
        for (offset, length) in [
            (511, 513),
            (0, 1),
            (DISK_BYTES - 1, 1),
            (4095, 4098),
            (MIB - 1, 2),
            (5, 1 << 20),
            (MIB, 1 << 20),
            (3, 5 << 20),
            (MIB + 1, 32 << 20),
        ] {
            let mut data = pattern(length);
            data.rotate_left(usize::from(is_structured));
            assert_eq!(client.write(0, offset, &data), 0);
            let read = client.read(offset, u32::try_from(length).unwrap());
            assert!(read == data, "{length} bytes at {offset}");
        }
    }
    let counts = server.door.stats().counts(0);
    assert_eq!((counts.writes, counts.reads, counts.failed_requests), (18, 18, 0));
    assert_eq!(counts.written_bytes, counts.read_bytes);
}

#[test]
fn what_another_connection_wrote_is_read() {
    let server = Server::start(config());
    let (mut one, mut other) = (server.open(), server.open());
    assert_eq!(one.write(0, 100, b"from the one"), 0);
    assert_eq!(other.read(100, 12), b"from the one");
    assert_eq!(one.answer(FLUSH, 0, 0, 0).error, 0);
    assert_eq!(server.seen.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_range_is_zeroed_trimmed_described_and_prefetched() {
    let server = Server::start(config());
    let mut client = server.open();
    assert_eq!(client.write(0, 0, &[1; 32 << 10]), 0);
    assert_eq!(client.answer(TRIM, 0, 4096, 4096).error, 0);
    assert_eq!(client.answer(ZERO, 0, 12 << 10, 4096).error, 0);
    assert_eq!(client.answer(ZERO, NO_HOLE, 20 << 10, 4096).error, 0);
    assert_eq!(client.answer(CACHE, 0, 0, 1 << 20).error, 0);
    let status = |client: &mut Client, flags, offset, length| {
        let got = client.answer(STATUS, flags, offset, length);
        assert_eq!((got.error, got.chunks), (0, 1));
        got.extents
    };
    let whole = [
        (4096, 0),
        (4096, 3),
        (4096, 0),
        (4096, 3),
        (16 << 10, 0),
        (32 << 10, 3),
    ];
    assert_eq!(status(&mut client, 0, 0, 64 << 10), whole);
    assert_eq!(status(&mut client, 0, 5000, 3193), [(3192, 3), (1, 0)]);
    assert_eq!(status(&mut client, REQ_ONE, 1, 64 << 10), [(4095, 0)]);
    let counts = server.door.stats().counts(0);
    let (zeroes, trims, statuses) = (counts.zeroes, counts.trims, counts.statuses);
    assert_eq!((zeroes, trims, statuses, counts.prefetches), (2, 1, 3, 1));
    let mut zeros = vec![1; 32 << 10];
    for at in [4096, 12 << 10, 20 << 10] {
        zeros[at..at + 4096].fill(0);
    }
    assert_eq!(client.read(0, 32 << 10), zeros);
}

#[test]
fn durable_writes_say_so_and_a_large_one_is_flushed_once() {
    let server = Server::start(config());
    let mut client = server.open();
    let count = |what: &std::sync::atomic::AtomicUsize| what.load(Ordering::SeqCst);
    assert_eq!(client.write(FUA, 0, b"durable"), 0);
    assert_eq!(
        (count(&server.seen.durable_writes), count(&server.seen.flushes)),
        (1, 0)
    );
    assert_eq!(client.write(0, 0, &pattern(3 << 20)), 0);
    assert_eq!(count(&server.seen.flushes), 0);
    assert_eq!(client.write(FUA, 5, &pattern(3 << 20)), 0);
    assert_eq!(
        (count(&server.seen.durable_writes), count(&server.seen.flushes)),
        (1, 1)
    );
    // It may stand in any command.
    assert_eq!(client.answer(READ, FUA, 0, 512).error, 0);
    assert_eq!(client.answer(FLUSH, FUA, 0, 0).error, 0);
    assert_eq!(client.answer(ZERO, FUA | NO_HOLE, 0, 512).error, 0);
    assert_eq!(count(&server.seen.flushes), 3);
}

#[test]
fn a_refused_request_is_followed_by_others() {
    let server = Server::start(config());
    for is_structured in [true, false] {
        let mut client = server.connect();
        client.negotiate("disk", is_structured);
        let end = DISK_BYTES;
        for (kind, flags, offset, length, error) in [
            (READ, 0, end, 1, EINVAL),
            (READ, 0, end - 1, 2, EINVAL),
            (READ, 0, u64::MAX, u32::MAX, EINVAL),
            (READ, 0, 0, 0, EINVAL),
            (READ, 0, 0, (32 << 20) + 1, EINVAL),
            (READ, 4, 0, 512, EINVAL),
            (TRIM, 0, end - 1, 2, EINVAL),
            (TRIM, NO_HOLE, 0, 2, EINVAL),
            (ZERO, 0, end - 1, 2, ENOSPC),
            (ZERO, 16, 0, 2, EINVAL),
            (CACHE, 0, end, 2, EINVAL),
            (STATUS, 0, end, 2, EINVAL),
            (FLUSH, 0, 1, 0, EINVAL),
            (8, 0, 0, 1, EINVAL),
            (0xffff, 0xffff, u64::MAX, u32::MAX, EINVAL),
        ] {
            let got = client.answer(kind, flags, offset, length);
            assert_eq!(
                (got.error, got.data.len()),
                (error, 0),
                "{kind} {flags} {offset} {length}"
            );
            // READ and BLOCK_STATUS have structured replies, and so have their errors.
            let has_chunk = is_structured && matches!(kind, READ | STATUS);
            assert_eq!(got.chunks, usize::from(has_chunk));
        }
        if !is_structured {
            assert_eq!(client.answer(STATUS, 0, 0, 512).error, EINVAL);
        }
        assert_eq!(client.write(0, end - 3, b"1234"), ENOSPC);
        assert_eq!(client.write(0, 0, b""), EINVAL);
        assert_eq!(client.write(2, 0, b"1234"), EINVAL);
        assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 1]), EINVAL);
        assert_eq!(client.read(0, 4), [0; 4]);
    }
    assert!(server.door.stats().counts(0).refused_requests >= 38);
}

#[test]
fn a_read_only_export_is_only_read() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.negotiate("image", true);
    assert_eq!(client.write(0, 0, b"something"), EPERM);
    assert_eq!(client.answer(TRIM, 0, 0, 4).error, EPERM);
    assert_eq!(client.answer(ZERO, 0, 0, 4).error, EPERM);
    assert_eq!(client.answer(FLUSH, 0, 0, 0).error, 0);
    assert_eq!(client.read(0, 513), [0; 513]);
}

#[test]
fn what_is_no_request_costs_that_connection_alone() {
    let server = Server::start(config());
    let (mut good, mut bad) = (server.open(), server.open());
    bad.send(&[0x25; 28]);
    assert_eq!(bad.rest(), b"");
    assert_eq!(good.write(0, 0, b"still here"), 0);
    assert_eq!(server.door.stats().counts(0).lost_connections, 1);
}

#[test]
fn requests_are_answered_as_they_end() {
    let server = Server::start(config());
    let mut client = server.open();
    server.control.gate.send_replace(MIB);
    client.ask(READ, 0, 1, MIB, 512);
    client.ask(WRITE, 0, 2, 2 * MIB, 4);
    client.send(b"data");
    client.ask(READ, 0, 3, 0, 512);
    assert_eq!(client.reply(0).cookie, 3);
    server.control.gate.send_replace(MIB + 1);
    assert_eq!(client.reply(0).cookie, 1);
    server.control.gate.send_replace(u64::MAX);
    assert_eq!(client.reply(0).cookie, 2);
}

#[test]
fn a_failure_behind_the_door_is_an_error_of_that_request() {
    let server = Server::start(config());
    server.control.broken_at.store(3 * MIB, Ordering::SeqCst);
    let mut client = server.open();
    assert_eq!(client.write(0, 3 * MIB - 1, b"1234"), EIO);
    assert_eq!(client.write(0, 0, &pattern(8 << 20)), EIO);
    assert_eq!(client.answer(ZERO, 0, 0, 4 << 20).error, EIO);
    let got = client.answer(READ, 0, 0, 8 << 20);
    // What could be read before.
    assert_eq!((got.error, got.data.len(), got.chunks), (EIO, 3 << 20, 4));
    assert_eq!(client.read(0, 4), pattern(4));
    assert_eq!(server.door.stats().counts(0).failed_requests, 4);
}

#[test]
fn a_simple_reply_that_fails_midway_costs_its_connection() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.negotiate("disk", false);
    server.control.broken_at.store(3 * MIB, Ordering::SeqCst);
    assert_eq!(client.answer(READ, 0, 3 * MIB, 8 << 20).error, EIO);
    assert_eq!(client.answer(READ, 0, 2 * MIB + 5, 1 << 20).error, EIO);
    client.ask(READ, 0, 5, 0, 8 << 20);
    assert!(client.rest().len() < 16 + (8 << 20));
    assert_eq!(server.open().read(0, 4), [0; 4]);
}

#[test]
fn simple_replies_are_never_interleaved() {
    let server = Server::start(config());
    let mut client = server.connect();
    client.negotiate("disk", false);
    assert_eq!(client.write(0, 0, &pattern(8 << 20)), 0);
    let lengths = [512, 8 << 20, 512, 3 << 20, 7, 8 << 20];
    for (cookie, length) in (0..).zip(lengths) {
        client.ask(READ, 0, cookie, 0, length);
        client.ask(FLUSH, 0, 100 + cookie, 0, 0);
    }
    let mut left: Vec<u64> = (0..6).flat_map(|cookie| [cookie, 100 + cookie]).collect();
    while !left.is_empty() {
        // The cookie says how long the reply is.
        let head = client.receive(16);
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let length = lengths
            .get(usize::try_from(cookie).unwrap())
            .copied()
            .unwrap_or(0);
        assert!(client.receive(length as usize) == pattern(length as usize));
        let at = left
            .iter()
            .position(|left| *left == cookie)
            .expect("asked and not answered");
        left.remove(at);
    }
}

#[test]
fn the_end_of_a_connection_waits_for_its_requests() {
    let server = Server::start(config());
    let mut client = server.open();
    server.control.gate.send_replace(0);
    client.ask(WRITE, 0, 1, 0, 4);
    client.send(b"data");
    client.ask(2, 0, 2, 0, 0);
    // Nothing after it is a request.
    client.send(b"nonsense nonsense nonsense nonsense");
    server.control.gate.send_replace(u64::MAX);
    assert_eq!(client.reply(0).cookie, 1);
    assert_eq!(client.rest(), b"");
}
