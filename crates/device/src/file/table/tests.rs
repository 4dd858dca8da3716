//! The table against an engine that answers as a test wants: short, interrupted, failing.

use super::*;
use crate::Buffer;

const SECTOR: usize = SECTOR_BYTES;

fn path() -> &'static Path {
    Path::new("flash")
}

fn read(table: &mut Table, offset: u64, len: usize) -> usize {
    table.add(Work::Read(AlignedBuf::with_len(len)), offset, len).0
}

fn outcome(table: &mut Table, key: usize) -> Option<io::Result<Work>> {
    table.poll(key, Waker::noop()).ok()
}

/// What a finished operation failed with.
fn failure(table: &mut Table, key: usize) -> io::Error {
    match outcome(table, key) {
        Some(Err(error)) => error,
        _ => panic!("it did not fail"),
    }
}

/// Starts the next piece, which must be a read, and says where it reads to, how much and from where.
fn started(table: &mut Table) -> (usize, *mut u8, usize, u64) {
    match table.start_next() {
        Some((key, Request::Read { to, len, offset })) => (key, to, len, offset),
        _ => panic!("no read starts"),
    }
}

#[test]
fn a_short_read_goes_on_where_it_stopped() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 8192, 4 * SECTOR);
    let (key, first, len, offset) = started(&mut table);
    assert_eq!((len, offset), (4 * SECTOR, 8192));
    table.report(key, SECTOR as i32, path());
    assert!(outcome(&mut table, operation).is_none());
    let (key, next, len, offset) = started(&mut table);
    assert_eq!((len, offset), (3 * SECTOR, 8192 + SECTOR as u64));
    assert_eq!(next, first.wrapping_add(SECTOR));
    table.report(key, 3 * SECTOR as i32, path());
    assert!(matches!(outcome(&mut table, operation), Some(Ok(Work::Read(_)))));
    assert_eq!(table.under_way(), 0);
}

#[test]
fn a_short_write_goes_on_where_it_stopped_in_its_part_of_the_buffer() {
    let mut table = Table::new(8);
    let data = Arc::new(AlignedBuf::with_len(8 * SECTOR));
    let base = data.as_mut_ptr().cast_const();
    let (operation, _) = table.add(Work::Write(data, 2 * SECTOR), 0, 4 * SECTOR);
    let (key, _) = table.start_next().unwrap();
    table.report(key, 3 * SECTOR as i32, path());
    match table.start_next() {
        Some((key, Request::Write { from, len, offset })) => {
            assert_eq!(from, base.wrapping_add(5 * SECTOR));
            assert_eq!((len, offset), (SECTOR, 3 * SECTOR as u64));
            table.report(key, SECTOR as i32, path());
        }
        _ => panic!("no write starts"),
    }
    assert!(matches!(
        outcome(&mut table, operation),
        Some(Ok(Work::Write(..)))
    ));
}

#[test]
fn a_read_that_stops_inside_a_sector_reads_that_sector_again() {
    let mut table = Table::new(8);
    read(&mut table, 0, 4 * SECTOR);
    let (key, ..) = started(&mut table);
    table.report(key, SECTOR as i32 + 512, path());
    let (_, _, len, offset) = started(&mut table);
    assert_eq!((len, offset), (3 * SECTOR, SECTOR as u64));
}

#[test]
fn a_read_that_never_gets_on_ends_with_an_error() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 0, 4 * SECTOR);
    for _ in 0..=MAX_STALLS {
        let (key, ..) = started(&mut table);
        table.report(key, 512, path());
    }
    let error = failure(&mut table, operation);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn an_interrupted_operation_starts_again() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 0, SECTOR);
    for errno in [libc::EINTR, libc::EAGAIN] {
        let (key, ..) = started(&mut table);
        table.report(key, -errno, path());
    }
    let (key, ..) = started(&mut table);
    table.report(key, SECTOR as i32, path());
    assert!(matches!(outcome(&mut table, operation), Some(Ok(_))));
    let (operation, _) = table.add(Work::Sync, 0, 0);
    let (key, _) = table.start_next().unwrap();
    table.report(key, -libc::EINTR, path());
    assert!(outcome(&mut table, operation).is_none());
    let (key, _) = table.start_next().unwrap();
    table.report(key, 0, path());
    assert!(matches!(outcome(&mut table, operation), Some(Ok(Work::Sync))));
}

#[test]
fn the_end_of_the_file_is_an_error_that_names_the_operation() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 12288, 2 * SECTOR);
    let (key, ..) = started(&mut table);
    table.report(key, SECTOR as i32, path());
    let (key, ..) = started(&mut table);
    table.report(key, 0, path());
    let error = failure(&mut table, operation);
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let text = error.to_string();
    assert!(text.contains("read of 8192 bytes at 12288 of flash"), "{text}");
}

#[test]
fn a_failed_piece_fails_its_operation_when_the_others_are_over_and_keeps_the_kind() {
    let mut table = Table::new(64);
    let operation = read(&mut table, 0, 3 * PIECE_BYTES);
    let (first, ..) = started(&mut table);
    let (second, ..) = started(&mut table);
    table.report(first, -libc::ENOSPC, path());
    assert!(outcome(&mut table, operation).is_none(), "a piece is under way");
    // The third never starts.
    assert!(table.start_next().is_none());
    table.report(second, PIECE_BYTES as i32, path());
    let error = failure(&mut table, operation);
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_dropped_operation_keeps_its_buffer_until_its_last_piece_is_over() {
    let mut table = Table::new(8);
    let data = Arc::new(AlignedBuf::with_len(SECTOR));
    let (operation, _) = table.add(Work::Write(Arc::clone(&data), 0), 0, SECTOR);
    let (key, _) = table.start_next().unwrap();
    assert!(table.abandon(operation).is_none());
    assert_eq!(Arc::strong_count(&data), 2);
    table.report(key, SECTOR as i32, path());
    assert_eq!(Arc::strong_count(&data), 1);
    assert_eq!(table.take_finished().0, 1);
    assert!(table.operations.is_empty() && table.pieces.is_empty());
}

#[test]
fn a_read_that_is_dropped_before_it_starts_never_starts() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 0, SECTOR);
    table.abandon(operation);
    assert!(table.start_next().is_none());
    assert_eq!(table.take_finished().0, 1);
    assert!(table.operations.is_empty() && table.pieces.is_empty());
}

#[test]
fn writes_leave_room_for_reads_and_reads_for_writes() {
    let mut table = Table::new(16);
    let data = Arc::new(AlignedBuf::with_len(SECTOR));
    for _ in 0..100 {
        table.add(Work::Write(Arc::clone(&data), 0), 0, SECTOR);
        read(&mut table, 0, SECTOR);
    }
    let mut reads = 0;
    let mut writes = 0;
    while let Some((_, request)) = table.start_next() {
        match request {
            Request::Read { .. } => reads += 1,
            _ => writes += 1,
        }
    }
    assert_eq!((reads, writes), (8, 8));
    assert_eq!(table.under_way(), 16);
    assert!(!table.can_start());
}

fn is_overdue(outcome: Option<io::Result<Work>>) -> bool {
    matches!(outcome, Some(Err(error)) if Overdue::is(&error))
}

#[test]
fn what_is_not_answered_in_time_ends_and_its_buffer_stays_until_it_is() {
    let mut table = Table::new(8);
    let data = Arc::new(AlignedBuf::with_len(2 * SECTOR));
    let buffer = Arc::downgrade(&data);
    let (operation, _) = table.add(Work::Write(data, 0), 0, 2 * SECTOR);
    let (key, _) = table.start_next().unwrap();
    for _ in 0..3 {
        assert!(table.tick(3, 0).is_empty());
        assert!(outcome(&mut table, operation).is_none());
    }
    assert_eq!(table.tick(3, 0).len(), 1);
    let error = failure(&mut table, operation);
    assert_eq!(error.to_string(), "write of 8192 bytes at 0: no answer for 3 s");
    assert!(Overdue::is(&error) && table.has_given_up());
    assert_eq!(
        (table.tick(3, 0).len(), table.under_way()),
        (0, 1),
        "it ends once"
    );
    assert!(buffer.upgrade().is_some(), "the medium may still read it");
    table.report(key, 2 * SECTOR as i32, path());
    assert!(buffer.upgrade().is_none() && table.operations.is_empty());
}

#[test]
fn an_operation_that_gets_on_is_never_late_and_what_waits_ends_only_with_everything() {
    let mut table = Table::new(2);
    let long = read(&mut table, 0, 8 * PIECE_BYTES);
    let waits = read(&mut table, 0, SECTOR);
    for _ in 0..8 {
        let (key, ..) = started(&mut table);
        assert!(table.start_next().is_none(), "one at a time");
        assert!(table.tick(1, 0).is_empty());
        table.report(key, PIECE_BYTES as i32, path());
    }
    assert!(matches!(outcome(&mut table, long), Some(Ok(Work::Read(_)))));
    let stuck = read(&mut table, 0, SECTOR);
    let (key, ..) = started(&mut table);
    (0..5).for_each(|_| assert!(table.tick(9, 0).is_empty()));
    assert_eq!(table.tick(5, 0).len(), 1, "what was started");
    assert_eq!(table.tick(0, 0).len(), 1, "the other");
    assert_eq!(table.pieces.len(), 1, "what was not started holds nothing");
    assert!(is_overdue(outcome(&mut table, waits)) && is_overdue(outcome(&mut table, stuck)));
    table.report(key, SECTOR as i32, path());
    assert!(table.start_next().is_none(), "nobody wants it any more");
    assert!(table.operations.is_empty() && table.pieces.is_empty());
}

/// The answer may come between the end of the patience and the poll that would see it.
#[test]
fn an_answer_that_comes_too_late_is_not_an_answer() {
    let mut table = Table::new(2);
    let operation = read(&mut table, 0, SECTOR);
    let (key, ..) = started(&mut table);
    assert_eq!(table.tick(0, 0).len(), 1);
    table.report(key, SECTOR as i32, path());
    assert!(is_overdue(outcome(&mut table, operation)));
    let dropped = read(&mut table, 0, SECTOR);
    let (key, ..) = started(&mut table);
    assert_eq!(table.tick(0, 0).len(), 1);
    assert!(table.abandon(dropped).is_none());
    table.report(key, SECTOR as i32, path());
    assert!(table.operations.is_empty() && table.pieces.is_empty());
}

/// A queue that is longer than the patience, on a device that answers one a second.
#[test]
fn a_device_that_answers_slowly_ends_nothing() {
    let mut table = Table::new(64);
    let operations: Vec<usize> = (0..20).map(|_| read(&mut table, 0, SECTOR)).collect();
    let mut keys = Vec::new();
    while let Some((key, _)) = table.start_next() {
        table.begin(key);
        keys.push(key);
    }
    assert_eq!(keys.len(), 20);
    for (answers, key) in (1..).zip(keys) {
        assert!(table.tick(3, answers).is_empty(), "{answers}");
        table.report(key, SECTOR as i32, path());
        assert!(table.take_answered() && !table.take_answered());
    }
    for operation in operations {
        assert!(matches!(outcome(&mut table, operation), Some(Ok(_))));
    }
}

#[test]
fn silence_counts_from_the_last_answer() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 0, SECTOR);
    let (key, ..) = started(&mut table);
    table.begin(key);
    (1..6).for_each(|answers| assert!(table.tick(3, answers).is_empty()));
    // The last answer came in the fifth second.
    (0..2).for_each(|_| assert!(table.tick(3, 5).is_empty()));
    let ended = table.tick(3, 5);
    assert_eq!((ended.len(), ended[0].secs), (1, 3));
    assert!(is_overdue(outcome(&mut table, operation)));
}

#[test]
fn an_operation_that_is_lost_among_others_ends_after_longer() {
    let mut table = Table::new(8);
    let lost = read(&mut table, 4096, SECTOR);
    let queued = read(&mut table, 0, SECTOR);
    let (key, ..) = started(&mut table);
    table.begin(key);
    // The engine has not come to this one.
    started(&mut table);
    (1..17).for_each(|answers| assert!(table.tick(2, answers).is_empty()));
    let ended = table.tick(2, 17);
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(
        ended[0].to_string(),
        "read of 4096 bytes at 4096: no answer for 16 s"
    );
    assert!(is_overdue(outcome(&mut table, lost)));
    (18..40).for_each(|answers| assert!(table.tick(2, answers).is_empty()));
    assert!(outcome(&mut table, queued).is_none());
}

/// Nobody waits for it: the caller of `tick` is the only one who can learn that the device owes an answer.
#[test]
fn what_nobody_waits_for_is_overdue_too() {
    let mut table = Table::new(8);
    let operation = read(&mut table, 8192, SECTOR);
    let (key, ..) = started(&mut table);
    assert!(table.abandon(operation).is_none());
    (0..3).for_each(|_| assert!(table.tick(3, 0).is_empty()));
    assert_eq!(table.tick(3, 0).len(), 1);
    assert!(table.tick(3, 0).is_empty(), "once");
    assert!(table.has_given_up());
    table.report(key, SECTOR as i32, path());
    assert!(!table.has_given_up(), "it was answered after all");
    assert!(table.operations.is_empty() && table.pieces.is_empty());
}
