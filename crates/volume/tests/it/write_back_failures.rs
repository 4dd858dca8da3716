//! Rules of write-back on devices that fail.

use crate::backing::{Faults, SECTOR};
use crate::case::{Case, bytes_of, content, narrow, wide};
use crate::rig::{CHUNK, SIZE, volatile};
use pumice_chunk::store::Found;
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_testkit::{CrashPoint, FaultPlan};
use pumice_volume::{Mode, VolumeError};
use pumice_world::Random;

#[test]
fn a_damaged_dirty_chunk_fails_reads_until_it_is_overwritten_and_all_else_goes_on() {
    let mut case = Case::new(1, wide());
    case.settings.write_back.age_secs = 3;
    case.put([5], 1);
    case.drain().unwrap();
    case.put(0..40, 2);
    case.flush().unwrap();
    case.rig().settle();
    case.rot(5, 2);
    // The backing device has older bytes of it.
    let fails = |case: &Case| {
        for range in [
            bytes_of(5..6),
            bytes_of(4..7),
            bytes_of(5..6).start + 9..bytes_of(5..6).end - 9,
        ] {
            let found = case.read(range);
            assert!(matches!(found, Err(VolumeError::Unreadable(_))), "{found:?}");
        }
        case.check(0..5 * CHUNK);
        case.check(6 * CHUNK..SIZE);
    };
    fails(&case);
    for end in 0..3 {
        // The first start finds the block in its footer alone.
        match end {
            0 => case.crash(false),
            1 => case.crash(true),
            _ => case.close(),
        }
        case.start(Mode::WriteBack).unwrap();
        fails(&case);
        let part = case.write(5 * CHUNK + SECTOR, &[1; SECTOR]);
        assert!(matches!(part, Err(VolumeError::Unreadable(_))));
        case.flush().unwrap();
    }
    assert!(case.drain().is_err());
    assert_eq!(case.dirty(), 1);
    case.put(20..30, 3);
    (0..10).for_each(|_| case.second(false));
    assert_eq!(case.dirty(), 1);
    assert!(case.rig().volume.shared().counts().clean_failures > 0);
    assert!(case.backing.bytes()[bytes_of(5..6)] == content(5, 1));
    fails(&case);
    case.put([5], 4);
    case.check_all();
    case.drain().unwrap();
    case.check_backing();
}

#[test]
fn a_cache_device_that_dies_takes_dirty_chunks_and_changes_with_it() {
    let mut case = Case::new(1, wide());
    case.put(0..30, 1);
    case.drain().unwrap();
    // Two more blocks, of which one is sealed.
    case.put(40..70, 1);
    case.flush().unwrap();
    case.rig().settle();
    case.medium.set_plan(FaultPlan {
        dies_at: Some(1),
        ..volatile()
    });
    let array = case.array.clone();
    case.write(100 * CHUNK, &content(100, 1)).unwrap();
    assert!(matches!(case.flush(), Err(VolumeError::Cache(_))));
    for chunk in [0, 45, 100, 200] {
        let changes = [
            case.write(chunk * CHUNK, &[1; CHUNK]),
            case.zero(bytes_of(chunk..chunk + 1), false),
            case.flush(),
        ];
        for change in changes {
            assert!(matches!(change, Err(VolumeError::Cache(_))), "{change:?}");
        }
    }
    case.array = array;
    let mut failed = 0;
    for chunk in (0..90).filter(|chunk| *chunk != 100) {
        let found = case.read(bytes_of(chunk..chunk + 1));
        match found {
            Ok(found) => assert!(found == case.array[bytes_of(chunk..chunk + 1)], "{chunk}"),
            Err(VolumeError::Unreadable(_)) if (40..70).contains(&chunk) => failed += 1,
            Err(error) => panic!("{chunk}: {error}"),
        }
    }
    assert!(failed > 10, "{failed}");
    assert!(case.rig().run(case.rig().volume.close()).is_err());
    case.crash(false);
    case.start(Mode::WriteBack).unwrap();
    let has_last = case.read(bytes_of(100..101)).unwrap() == content(100, 1);
    assert!(!has_last, "nothing had flushed it");
    case.check_all();
    case.drain().unwrap();
    case.check_backing();
}

#[test]
fn with_nothing_dirty_all_goes_on_without_the_cache() {
    let mut case = Case::new(1, wide());
    case.put(0..30, 1);
    case.drain().unwrap();
    let others: Vec<u8> = (30..100).flat_map(|chunk| content(chunk, 1)).collect();
    case.backing.write_elsewhere(30 * CHUNK, &others);
    case.array[bytes_of(30..100)].copy_from_slice(&others);
    // Its superblocks can be written.
    let blocks = case.geometry().block_offset(0)..case.medium.capacity();
    case.medium.set_plan(FaultPlan {
        bad_writes: Vec::from([blocks]),
        ..volatile()
    });
    case.check(0..SIZE);
    case.rig().settle();
    assert!(case.store().failure().is_some());
    case.put(20..60, 2);
    case.zero(bytes_of(10..12), true).unwrap();
    case.flush().unwrap();
    case.check_all();
    case.check_backing();
    case.close();
    case.medium.set_plan(volatile());
    case.start(Mode::WriteBack).unwrap();
    assert_eq!(case.rig().found, Some(Found::Forgotten));
    case.check_all();
}

#[test]
fn chunks_stay_dirty_while_the_backing_device_fails_writes() {
    let mut case = Case::new(1, wide());
    case.settings.write_back.age_secs = 3;
    case.close();
    case.start(Mode::WriteBack).unwrap();
    case.put(0..30, 1);
    case.backing.set(Faults {
        write_errors: 1_000,
        ..Faults::default()
    });
    for version in 2..8 {
        case.second(false);
        case.put(20..40, version);
        case.check_all();
        case.flush().unwrap();
    }
    let failures = case.rig().volume.shared().counts().clean_failures;
    assert!(failures >= 2, "{failures}");
    assert_eq!((case.dirty(), case.cleaned()), (40, 0));
    assert!(case.drain().is_err());
    case.backing.set(Faults::default());
    (0..4).for_each(|_| case.second(false));
    assert_eq!((case.dirty(), case.cleaned()), (0, 40));
    case.check_backing();
}

/// Such a write may happen after any later one of the chunk.
#[test]
fn a_chunk_whose_clean_may_still_happen_is_not_cleaned_before_the_next_start() {
    let mut case = Case::new(1, wide());
    case.put(0..10, 1);
    case.backing.set(Faults {
        write_errors: 1_000,
        changes_later: true,
        ..Faults::default()
    });
    assert!(case.drain().is_err());
    case.backing.set(Faults::default());
    case.put([3, 20], 2);
    assert!(case.drain().is_err());
    assert_eq!(case.dirty(), 10);
    // Nor does a change go through over it.
    assert!(case.zero(bytes_of(3..4), false).is_err());
    case.check_all();
    case.flush().unwrap();
    case.crash(false);
    case.start(Mode::WriteBack).unwrap();
    case.drain().unwrap();
    case.check_all();
    case.check_backing();
}

#[test]
fn a_failed_flush_ends_the_cache_until_a_start_which_finds_what_is_dirty() {
    for seed in 0..20 {
        let is_at_start = seed % 2 == 0;
        let mut case = Case::new(seed, narrow(60));
        case.settings.write_back.age_secs = 3;
        case.put(0..60, 1);
        case.flush().unwrap();
        // At the limit: these go through. Their blocks are sealed.
        case.put(100..140, 1);
        case.rig().settle();
        let fails = Faults {
            fails_flush: true,
            ..Faults::default()
        };
        if is_at_start {
            case.crash(false);
            case.backing.set(fails);
            assert!(case.start(Mode::WriteBack).is_err());
        } else {
            case.backing.set(fails);
            assert!(case.flush().is_err());
            assert!(case.flush().is_err());
            assert!(case.write(0, &[1; CHUNK]).is_err());
            case.crash(false);
        }
        case.start(Mode::WriteBack).unwrap();
        assert_eq!(case.dirty(), 60);
        // Some of these were lost.
        let bytes = case.backing.bytes();
        case.array[60 * CHUNK..].copy_from_slice(&bytes[60 * CHUNK..]);
        assert!(
            bytes[bytes_of(100..140)]
                .chunks(SECTOR)
                .any(|sector| sector == [0; SECTOR])
        );
        // First what went through: reads evict it.
        case.check(bytes_of(100..140));
        case.check_all();
        case.drain().unwrap();
        case.check_backing();
    }
}

#[test]
fn a_close_that_failed_may_be_tried_again() {
    let mut case = Case::new(1, wide());
    case.put(0..30, 1);
    case.zero(bytes_of(3..4), false).unwrap();
    case.backing.set(Faults {
        is_away: true,
        ..Faults::default()
    });
    assert!(case.rig().run(case.rig().volume.close()).is_err());
    case.backing.set(Faults::default());
    case.close();
    case.start(Mode::WriteBack).unwrap();
    assert_eq!((case.rig().found, case.dirty()), (Some(Found::Cache), 29));
    case.check_all();
}

/// A byte of a superblock, the log, a checkpoint, a footer or a content.
#[test]
fn a_byte_that_rots_anywhere_after_a_clean_stop_brings_no_older_content() {
    let (mut refused, mut unreadable, mut whole) = (0, 0, 0);
    for seed in 0..300 {
        let mut case = Case::new(seed, wide());
        case.put(0..60, 1);
        case.drain().unwrap();
        case.put(0..60, 2);
        let geometry = case.geometry();
        case.close();
        let mut random = Random(seed);
        let end = match random.below(2) {
            0 => geometry.block_offset(0),
            _ => geometry.block_offset(24),
        };
        case.medium.rot_at(random.below(end));
        if let Err(error) = case.start(Mode::WriteBack) {
            assert!(
                error.contains("writes that its volume lacks"),
                "seed {seed}: {error}"
            );
            refused += 1;
            continue;
        }
        for chunk in 0..60 {
            match case.read(bytes_of(chunk..chunk + 1)) {
                Ok(found) => assert!(found == content(chunk, 2), "seed {seed}: chunk {chunk} is older"),
                Err(error) => {
                    assert!(
                        matches!(error, VolumeError::Unreadable(_)),
                        "seed {seed}: {error}"
                    );
                    unreadable += 1;
                }
            }
        }
        whole += 1;
    }
    println!("{refused} starts were refused, {unreadable} chunks could not be read, {whole} starts");
    assert!(unreadable > 10 && whole > 200, "{unreadable} {whole}");
}

/// A start after a crash finds the blocks that no checkpoint covers by their footers, and the others by their trailers.
#[test]
fn a_footer_that_is_damaged_or_cannot_be_read_brings_no_older_content() {
    let (mut refused, mut whole) = (0, 0);
    for from_end in [1, 30, 60, 100, 200, 300] {
        for (is_covered, is_bad) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{from_end} bytes from the end, covered {is_covered}, bad {is_bad}");
            let mut case = Case::new(1, wide());
            case.put(0..30, 1);
            case.drain().unwrap();
            case.put(0..30, 2);
            case.flush().unwrap();
            case.rig().settle();
            if is_covered {
                case.close();
                case.start(Mode::WriteBack).unwrap();
            }
            assert!(case.store().is_on_device(5), "its block is sealed");
            let block = case.store().place(5).unwrap().block;
            let end = case.geometry().block_offset(block) + case.settings.cache.block_bytes;
            let byte = end - from_end;
            case.crash(false);
            match is_bad {
                true => {
                    let bad = byte..byte + 1;
                    case.medium.set_plan(FaultPlan {
                        bad_ranges: Vec::from([bad]),
                        ..volatile()
                    });
                }
                false => case.medium.rot_at(byte),
            }
            match case.start(Mode::WriteBack) {
                Ok(()) => whole += 1,
                Err(error) => {
                    assert!(error.contains("writes that its volume lacks"), "{what}: {error}");
                    refused += 1;
                    if !is_bad {
                        continue;
                    }
                    case.medium.set_plan(volatile());
                    case.start(Mode::WriteBack).unwrap();
                }
            }
            for chunk in 0..30 {
                let found = case.read(bytes_of(chunk..chunk + 1)).unwrap();
                assert!(found == content(chunk, 2), "{what}: chunk {chunk}");
            }
        }
    }
    println!("{refused} starts were refused, {whole} were not");
    assert!(refused > 12 && whole > 0, "{refused} {whole}");
}

/// The start is in a mode without dirty chunks, after a power cut that took a record from the middle of the log.
#[test]
fn a_start_that_crashes_leaves_what_is_dirty_to_the_next() {
    let mut crashes = 0;
    for point in 1..40 {
        let mut case = Case::new(point, wide());
        case.put(0..12, 1);
        case.flush().unwrap();
        case.backing.write_elsewhere(200 * CHUNK, &[1; 10 * CHUNK]);
        (200..210).for_each(|chunk| case.zero(bytes_of(chunk..chunk + 1), false).unwrap());
        let log_offset = case.geometry().log_offset;
        let read = case.rig().device.read(log_offset, 4096);
        let log = case.rig().run(read).unwrap();
        let records = log.bytes(0, 4096).unwrap().chunks(32);
        let count = records.take_while(|record| **record != [0; 32]).count() as u64;
        case.crash(false);
        // As if the machine had been off.
        case.settings.cache.boot += 1;
        case.medium.rot_at(log_offset + 32 * (count - 3));
        case.medium.set_plan(FaultPlan {
            crash: Some(CrashPoint::WriteOrAppend(point)),
            ..volatile()
        });
        let _ = case.start(Mode::WriteThrough);
        crashes += u32::from(case.medium.is_crashed());
        case.crash(true);
        case.start(Mode::WriteThrough).unwrap();
        case.check(bytes_of(0..12));
    }
    println!("{crashes} starts have crashed");
    assert!(crashes > 3, "{crashes}");
}
