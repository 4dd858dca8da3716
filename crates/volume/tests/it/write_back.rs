//! Rules of write-back.

use crate::backing::{Faults, FaultyBacking, SECTOR};
use crate::case::{Case, bytes_of, content, narrow, wide};
use crate::rig::{CHUNK, SIZE, volatile};
use bytes::Bytes;
use futures_util::future::{join, join_all, join3};
use pumice_chunk::store::{Filled, Found};
use pumice_device::{Device, Overdue};
use pumice_testkit::FaultyMedium;
use pumice_volume::{Extent, Mode, VolumeError};
use pumice_world::Random;
use std::sync::Arc;

#[test]
fn a_write_changes_the_cache_alone_and_a_flush_makes_it_survive_a_power_cut() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..40 {
        let mut case = Case::new(seed, wide());
        case.put(0..12, 1);
        case.check(bytes_of(0..12));
        case.flush().unwrap();
        // They fill the block of the flushed ones, and begin another.
        let second: Vec<u8> = (0..12).flat_map(|chunk| content(chunk, 2)).collect();
        case.write(0, &second).unwrap();
        case.check(bytes_of(0..12));
        if seed % 2 == 0 {
            case.rig().settle();
        }
        assert_eq!((case.backing.changes(), case.dirty()), (0, 12));
        case.crash(true);
        case.start(Mode::WriteBack).unwrap();
        assert_eq!((case.rig().found, case.dirty()), (Some(Found::Cache), 12));
        for chunk in 0..12 {
            let found = case.read(bytes_of(chunk..chunk + 1)).unwrap();
            match found == content(chunk, 1) {
                true => old += 1,
                false => new += 1,
            }
            assert!(
                found == content(chunk, 1) || found == content(chunk, 2),
                "seed {seed}: {chunk}"
            );
        }
    }
    assert!(old > 100 && new > 20, "{old} are old, {new} new");
}

/// A content of which so many bytes do not compress.
fn noisy(chunk: usize, version: u64, noise: usize) -> Vec<u8> {
    let mut content = content(chunk, version);
    content[noise..].fill(0);
    content
}

#[test]
fn rewrites_of_a_chunk_in_a_buffer_go_to_flash_once() {
    let mut case = Case::new(1, wide());
    let absorbed = |case: &Case| case.store().counts().absorbed_contents;
    let sent = |case: &Case| case.store().block_counts().written_bytes;
    case.put([0], 1);
    case.flush().unwrap();
    let before = sent(&case);
    case.put([7, 8, 7, 8, 7], 2);
    for version in 3..=20 {
        case.put([7], version);
    }
    case.check(bytes_of(7..9));
    assert_eq!(absorbed(&case), 18, "the same content again is no rewrite");
    case.flush().unwrap();
    let written = sent(&case) - before;
    assert!(written < 4 * CHUNK as u64, "{written} bytes of two chunks");
    // Flash has it now.
    case.put([7], 21);
    assert_eq!(absorbed(&case), 18);
    // A shorter one leaves a rest, and the next may take that again. A longer one is appended.
    for (noise, count) in [(CHUNK, 19), (CHUNK / 2, 20), (CHUNK / 4, 21), (CHUNK / 2, 22)] {
        case.write(7 * CHUNK, &noisy(7, 22 + count, noise)).unwrap();
        assert_eq!(absorbed(&case), count);
    }
    case.write(9 * CHUNK, &noisy(9, 1, CHUNK / 4)).unwrap();
    case.write(9 * CHUNK, &noisy(9, 2, CHUNK / 2)).unwrap();
    assert_eq!(absorbed(&case), 22);
    case.put([10, 11], 1);
    case.check_all();
    // A start follows the pieces of a block that is not full.
    case.flush().unwrap();
    case.crash(true);
    case.start(Mode::WriteBack).unwrap();
    assert_eq!(case.dirty(), 6);
    case.check_all();
    case.drain().unwrap();
    case.check_backing();
}

#[test]
fn each_chunk_of_a_rewrite_is_absorbed() {
    let mut case = Case::new(1, wide());
    for (version, absorbed) in [(1, 0), (2, 8), (3, 16)] {
        let bytes: Vec<u8> = (20..28).flat_map(|chunk| content(chunk, version)).collect();
        case.write(20 * CHUNK, &bytes).unwrap();
        assert_eq!(case.store().counts().absorbed_contents, absorbed);
    }
    // In part, too. The five in the middle become alike: the first is absorbed, the others refer to it.
    case.write(20 * CHUNK + SECTOR, &[7; 6 * CHUNK]).unwrap();
    assert_eq!(case.store().counts().absorbed_contents, 16 + 3);
    case.check(bytes_of(20..28));
    // It is a duplicate to others.
    let known = case.store().counts().duplicates;
    case.write(40 * CHUNK, &content(27, 3)).unwrap();
    assert_eq!(case.store().counts().duplicates, known + 1);
    case.flush().unwrap();
    case.crash(true);
    case.start(Mode::WriteBack).unwrap();
    case.check_all();
}

/// Between the copy and the record that the chunk is clean, it was rewritten at the same place.
#[test]
fn a_content_that_was_absorbed_after_the_older_was_copied_stays_dirty() {
    let mut case = Case::new(1, wide());
    case.put([3], 1);
    let store = case.store();
    let mut guard = store.begin_write_back(3..4);
    let rig = case.rig();
    let (_, copied) = rig.run(store.read_dirty(&rig.device, 3)).unwrap().unwrap();
    let filled = rig.run(guard.fill(&rig.device, 3, 0, Bytes::from(content(3, 2))));
    assert_eq!((filled, store.counts().absorbed_contents), (Filled::Stored, 1));
    assert_eq!(
        rig.run(store.made_clean(&rig.device, &[copied], true)).unwrap(),
        0
    );
    assert_eq!(case.dirty(), 1);
}

/// Nothing is dirty when the device dies, so that all goes on without it. What was cached is no place for a write.
#[test]
fn nothing_is_absorbed_on_a_device_that_is_taken_out() {
    let case = Case::new(1, wide());
    case.check(bytes_of(3..4));
    let (rig, store) = (case.rig(), case.store());
    let mut guard = store.begin_write_back(3..4);
    store.saw_overdue(Overdue {
        name: "write",
        offset: 0,
        len: CHUNK,
        secs: 60,
    });
    assert!(store.failure().is_some());
    let filled = rig.run(guard.fill(&rig.device, 3, 0, Bytes::from(content(3, 2))));
    assert_eq!((filled, case.dirty()), (Filled::NoRoom, 0));
}

/// A content was read, then rewritten and flushed. Its block is sealed when a newer one is in the next block, which a crash loses.
#[test]
fn a_footer_lists_what_was_absorbed_until_the_newer_is_durable() {
    let mut old = 0;
    for others in 0..32 {
        let mut case = Case::new(1, wide());
        case.backing.write_elsewhere(50 * CHUNK, &content(50, 1));
        case.array[bytes_of(50..51)].copy_from_slice(&content(50, 1));
        case.check(bytes_of(50..51));
        case.put([50], 2);
        assert_eq!(case.store().counts().absorbed_contents, 1);
        case.flush().unwrap();
        case.put(60..60 + others, 1);
        case.put([50], 3);
        case.rig().settle();
        case.crash(others % 2 == 0);
        case.start(Mode::WriteBack).unwrap();
        let found = case.read(bytes_of(50..51)).unwrap();
        old += u32::from(found == content(50, 2));
        assert!(found == content(50, 2) || found == content(50, 3), "{others}");
    }
    assert!(old > 0);
}

#[test]
fn a_content_that_others_have_or_read_is_not_rewritten() {
    let mut case = Case::new(1, wide());
    let absorbed = |case: &Case| case.store().counts().absorbed_contents;
    case.backing.write_elsewhere(50 * CHUNK, &content(50, 1));
    case.array[bytes_of(50..51)].copy_from_slice(&content(50, 1));
    // Two chunks have it.
    let shared = content(3, 1);
    case.write(3 * CHUNK, &shared).unwrap();
    case.write(4 * CHUNK, &shared).unwrap();
    case.put([3], 2);
    case.check(bytes_of(3..5));
    assert_eq!(absorbed(&case), 0);
    // The second is not where it was appended for.
    case.put([4], 2);
    case.check(bytes_of(3..5));
    assert_eq!(absorbed(&case), 0);
    case.put([4], 3);
    assert_eq!(absorbed(&case), 1);
    // What was read is a content like any other.
    case.check(bytes_of(50..51));
    case.put([50], 2);
    assert_eq!(absorbed(&case), 2);
    // Somebody has found a content of the block, and is about to read it.
    {
        case.check(bytes_of(51..52));
        let guard = case.store().begin_write(&case.rig().device, 51..52).unwrap();
        let data = Bytes::from(content(3, 3));
        let written = case.rig().volume.write(3 * CHUNK as u64, data, false);
        case.rig().run(written).unwrap();
        drop(guard);
    }
    case.array[bytes_of(3..4)].copy_from_slice(&content(3, 3));
    assert_eq!(absorbed(&case), 2);
    case.put([3], 4);
    assert_eq!(absorbed(&case), 3);
    case.check_all();
    case.drain().unwrap();
    case.check_backing();
}

#[test]
fn overwrites_within_an_age_cost_one_write_of_the_backing_device() {
    let mut settings = wide();
    settings.write_back.age_secs = 30;
    let mut case = Case::new(1, settings);
    for version in 1..=20 {
        case.put([7], version);
        case.second(false);
    }
    // It is second 21 now; the volume was opened in second 1.
    for _ in 22..31 {
        case.second(false);
    }
    assert_eq!((case.backing.changes(), case.dirty()), (0, 1));
    case.second(false);
    assert_eq!((case.backing.changes(), case.dirty(), case.cleaned()), (1, 0, 1));
    case.check_backing();
    // The next pass begins an age later.
    case.put([7], 21);
    for _ in 32..61 {
        case.second(false);
    }
    assert_eq!((case.backing.changes(), case.dirty()), (1, 1));
    case.second(false);
    assert_eq!((case.backing.changes(), case.dirty()), (2, 0));
}

#[test]
fn a_pass_writes_neighbours_together_and_in_order_of_address() {
    let mut settings = wide();
    settings.write_back.age_secs = 1;
    let mut case = Case::new(1, settings);
    case.put([102, 44, 300 - 1, 41, 7, 100, 43, 101, 42], 1);
    case.write(45 * CHUNK, &[1; SECTOR]).unwrap();
    case.write(300 * CHUNK, &[2; 1024]).unwrap();
    case.second(false);
    let runs = [
        7 * CHUNK..8 * CHUNK,
        41 * CHUNK..45 * CHUNK + SECTOR,
        100 * CHUNK..103 * CHUNK,
        299 * CHUNK..SIZE,
    ];
    let runs = runs.map(|run| run.start as u64..run.end as u64);
    assert_eq!(case.backing.ranges_since(0), runs);
    case.check_backing();
}

#[test]
fn a_pass_begins_at_once_when_idle_and_at_half_the_limit() {
    let mut case = Case::new(1, wide());
    case.put(0..10, 1);
    (0..20).for_each(|_| case.second(false));
    assert_eq!(case.dirty(), 10);
    (0..4).for_each(|_| case.second(true));
    assert_eq!(case.dirty(), 10);
    case.second(true);
    assert_eq!((case.dirty(), case.rig().volume.dirty().1), (0, 0));
    case.check_backing();
    let mut case = Case::new(1, narrow(20));
    case.put(0..10, 1);
    case.second(false);
    assert_eq!(case.dirty(), 10);
    case.put([10], 1);
    case.second(false);
    assert_eq!(case.dirty(), 0);
    case.check_backing();
}

#[test]
fn a_limit_holds_what_a_second_cleans_unless_half_of_the_chunks_are_dirty() {
    let mut settings = narrow(100);
    (settings.write_back.age_secs, settings.write_back.bytes_per_sec) = (1, 4 * CHUNK as u64);
    let mut case = Case::new(1, settings);
    case.put((0..20).map(|chunk| chunk * 3), 1);
    let left: Vec<u64> = (0..6)
        .map(|_| {
            case.second(false);
            case.dirty()
        })
        .collect();
    assert_eq!(left, [16, 12, 8, 4, 0, 0]);
    case.put(0..51, 2);
    case.second(false);
    assert_eq!(case.dirty(), 0);
    case.check_backing();
}

#[test]
fn at_the_limit_writes_go_through_after_what_was_dirty() {
    let mut case = Case::new(1, narrow(10));
    case.put(0..10, 1);
    assert_eq!((case.backing.changes(), case.dirty()), (0, 10));
    let chunk = |chunk: u64| chunk * CHUNK as u64..(chunk + 1) * CHUNK as u64;
    case.put([50], 1);
    assert_eq!(case.backing.ranges_since(0), [chunk(50)]);
    // A dirty one is cleaned before.
    case.put([3], 2);
    assert_eq!(case.backing.ranges_since(1), [chunk(3), chunk(3)]);
    assert!(case.backing.bytes()[bytes_of(3..4)] == content(3, 2));
    assert_eq!(case.dirty(), 9);
    case.put([60], 1);
    assert_eq!((case.backing.changes(), case.dirty()), (3, 10));
    // And in part.
    case.write(4 * CHUNK + 700, &[9; 900]).unwrap();
    assert!(case.backing.bytes()[bytes_of(4..5)] == case.array[bytes_of(4..5)]);
    assert_eq!(case.dirty(), 9);
    assert_eq!(case.rig().volume.shared().counts().writes_at_limit, 3);
    case.put([61], 1);
    case.check_all();
    case.flush().unwrap();
    case.put(50..60, 3);
    for cuts_power in [false, true] {
        case.flush().unwrap();
        case.crash(cuts_power);
        case.start(Mode::WriteBack).unwrap();
        assert_eq!(case.dirty(), 10);
        case.check_all();
    }
    case.drain().unwrap();
    case.check_backing();
}

#[test]
fn a_bucket_full_of_dirty_chunks_lets_writes_through_and_nothing_in() {
    // The limit is never reached.
    let mut case = Case::new(1, narrow(500));
    case.put(0..128, 1);
    assert_eq!((case.backing.changes(), case.dirty()), (0, 128));
    case.put(200..210, 1);
    assert_eq!((case.backing.changes(), case.dirty()), (10, 128));
    assert!(case.backing.bytes()[bytes_of(200..210)] == case.array[bytes_of(200..210)]);
    case.check(bytes_of(195..215));
    let counts = case.rig().volume.shared().counts();
    assert_eq!((counts.writes_no_room, counts.fills_stored), (10, 0));
    assert!(counts.fills_no_room > 0);
    // One that is dirty already is written back.
    case.put(0..5, 2);
    assert_eq!((case.backing.changes(), case.dirty()), (10, 128));
    case.check_all();
    case.flush().unwrap();
    case.crash(true);
    case.start(Mode::WriteBack).unwrap();
    assert_eq!(case.dirty(), 128);
    case.check_all();
}

#[test]
fn after_a_drain_the_backing_device_has_all_and_the_next_start_may_be_any() {
    for after in 0..3 {
        let mut case = Case::new(after, wide());
        case.put(0..60, 1);
        case.drain().unwrap();
        case.check_backing();
        assert_eq!(case.dirty(), 0);
        case.close();
        let found = match after {
            0 => {
                case.start(Mode::PassThrough).unwrap();
                None
            }
            1 => {
                case.settings.cache.volume += 1;
                case.start(Mode::WriteBack).unwrap();
                Some(Found::Forgotten)
            }
            _ => {
                case.backing.write_elsewhere(0, &[1]);
                case.array[0] = 1;
                case.start(Mode::WriteBack).unwrap();
                Some(Found::Forgotten)
            }
        };
        assert_eq!((case.rig().found, case.dirty()), (found, 0));
        case.check_all();
    }
}

#[test]
fn a_change_beside_the_bytes_costs_copies_and_no_dirty_chunk() {
    for is_dirty in [false, true] {
        let mut case = Case::new(1, wide());
        case.put(0..60, 1);
        if !is_dirty {
            case.drain().unwrap();
        }
        case.close();
        case.backing.touch();
        case.start(Mode::WriteBack).unwrap();
        let (found, dirty) = match is_dirty {
            true => (Found::Cache, 60),
            false => (Found::Forgotten, 0),
        };
        assert_eq!((case.rig().found, case.dirty()), (Some(found), dirty));
        case.check_all();
    }
}

#[test]
fn what_is_dirty_at_a_close_every_later_start_serves() {
    for mode in [
        Mode::WriteBack,
        Mode::WriteThrough,
        Mode::WriteAround,
        Mode::ReadOnly,
    ] {
        let mut case = Case::new(1, wide());
        case.settings.write_back.age_secs = 3;
        case.put(0..60, 1);
        case.write(70 * CHUNK + 100, &[1; 3000]).unwrap();
        case.close();
        assert_eq!(case.backing.changes(), 0);
        case.start(mode).unwrap();
        assert_eq!((case.rig().found, case.dirty()), (Some(Found::Cache), 61));
        case.check_all();
        (0..10).for_each(|_| case.second(true));
        if mode == Mode::ReadOnly {
            case.drain().unwrap();
            assert_eq!((case.backing.changes(), case.dirty()), (0, 61));
            assert!(matches!(case.write(0, &[1]), Err(VolumeError::ReadOnly)));
            case.crash(true);
            case.start(mode).unwrap();
            case.check_all();
            case.close();
            assert_eq!(case.backing.changes(), 0);
            case.start(Mode::WriteBack).unwrap();
            assert_eq!(case.dirty(), 61);
        } else {
            assert_eq!(case.dirty(), 0);
            case.check_backing();
        }
        case.check_all();
        case.put(0..4, 2);
        case.check_all();
    }
}

#[test]
fn a_start_that_would_lose_dirty_chunks_is_refused_and_changes_nothing() {
    for is_crash in [false, true] {
        let mut case = Case::new(1, wide());
        case.put(0..60, 1);
        case.flush().unwrap();
        match is_crash {
            false => case.close(),
            true => case.crash(true),
        }
        let state = |case: &Case| {
            let counts = case.medium.counts();
            (counts.writes, counts.appends, case.backing.changes())
        };
        let before = state(&case);
        let own = case.settings.clone();
        let refused = |case: &mut Case, mode| {
            let error = case.start(mode).unwrap_err();
            assert!(error.contains("writes that its volume lacks"), "{error}");
            case.settings = own.clone();
        };
        refused(&mut case, Mode::PassThrough);
        case.settings.cache.volume += 1;
        refused(&mut case, Mode::WriteBack);
        if !is_crash {
            let changed = FaultyBacking::new(SIZE, 2);
            changed.write_elsewhere(0, &[1]);
            let changed = std::mem::replace(&mut case.backing, changed);
            refused(&mut case, Mode::ReadOnly);
            refused(&mut case, Mode::WriteBack);
            case.backing = changed;
        }
        assert_eq!(state(&case), before);
        case.start(Mode::WriteBack).unwrap();
        assert_eq!((case.rig().found, case.dirty()), (Some(Found::Cache), 60));
        case.check_all();
        case.drain().unwrap();
        case.check_backing();
    }
}

#[test]
fn after_a_long_absence_clean_chunks_are_forgotten_and_dirty_ones_refuse_the_start() {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    for (is_dirty, is_crash) in kinds {
        for (idle, absent, is_kept) in [(0, 50, true), (0, 60, false), (100, 50, true), (100, 60, false)] {
            let what =
                format!("dirty {is_dirty}, crash {is_crash}, idle for {idle} s, absent for {absent} s");
            let mut settings = wide();
            settings.cache.absence_secs_max = Some(60);
            let mut case = Case::new(1, settings);
            case.put(0..60, 1);
            case.flush().unwrap();
            if !is_dirty {
                case.drain().unwrap();
            }
            // Nothing is written, and it runs.
            (0..idle).for_each(|_| case.second(false));
            match is_crash {
                false => case.close(),
                true => case.crash(false),
            }
            case.settings.cache.now += idle + absent;
            let started = case.start(Mode::WriteBack);
            match (is_kept, is_dirty) {
                (true, _) => assert_eq!(case.rig().found, Some(Found::Cache), "{what}"),
                (false, false) => assert_eq!(case.rig().found, Some(Found::Forgotten), "{what}"),
                (false, true) => {
                    let error = started.unwrap_err();
                    assert!(error.contains("--max-absence"), "{what}: {error}");
                    case.settings.cache.absence_secs_max = None;
                    case.start(Mode::WriteBack).unwrap();
                }
            }
            assert_eq!(case.dirty(), if is_dirty { 60 } else { 0 }, "{what}");
            case.check_all();
        }
    }
}

#[test]
fn trims_over_dirty_chunks_in_holes_zero_them_and_dirty_chunks_are_data() {
    for may_punch in [false, true] {
        let mut case = Case::new(1, wide());
        let extents = |case: &Case| {
            let volume = &case.rig().volume;
            let extents = case.rig().run(volume.extents(0, bytes_of(0..40).end as u64, 100));
            extents.unwrap()
        };
        let list = |list: &[(usize, bool)]| {
            let extent = |(chunks, is_hole): &(usize, bool)| Extent {
                length: (chunks * CHUNK) as u64,
                is_hole: *is_hole,
            };
            list.iter().map(extent).collect::<Vec<_>>()
        };
        case.put(10..20, 1);
        case.put([25], 1);
        let dirty = list(&[(10, true), (10, false), (5, true), (1, false), (14, true)]);
        assert_eq!(extents(&case), dirty);
        case.flush().unwrap();
        case.zero(12 * CHUNK + 100..14 * CHUNK - 100, may_punch).unwrap();
        case.zero(bytes_of(17..30), may_punch).unwrap();
        case.check_all();
        if may_punch {
            // Of the sectors at the ends of a trim a part is left.
            let holes = extents(&case).into_iter().filter(|extent| extent.is_hole);
            let holes: Vec<u64> = holes.map(|hole| hole.length).collect();
            assert_eq!(
                holes,
                [10 * CHUNK, 2 * CHUNK - 2 * SECTOR, 23 * CHUNK].map(|len| len as u64)
            );
        }
        case.flush().unwrap();
        case.crash(true);
        case.start(Mode::WriteBack).unwrap();
        case.check_all();
        case.drain().unwrap();
        case.check_backing();
    }
}

/// A chunk that is cleaned while extents are listed is dirty, or data of the backing device: never a hole.
#[test]
fn a_chunk_that_is_cleaned_meanwhile_is_no_hole() {
    let mut case = Case::new(1, wide());
    case.put(0..10, 1);
    case.backing.set(Faults {
        extents_turns: 2_000,
        ..Faults::default()
    });
    let (volume, device) = (&case.rig().volume, &case.rig().device);
    let turns = async {
        for _ in 0..1_000 {
            pumice_blocks::give_turn().await;
            device.turn(false).unwrap();
        }
        assert_eq!(volume.dirty().0, 0, "it ends before the extents are given");
    };
    let all = join3(volume.extents(0, SIZE as u64, 100), volume.drain(), turns);
    let (extents, drained, ()) = case.rig().run(all);
    drained.unwrap();
    let first = extents.unwrap()[0];
    assert_eq!((first.length, first.is_hole), (bytes_of(0..10).end as u64, false));
}

#[test]
fn parts_of_dirty_chunks_are_joined_and_keep_whole_sectors() {
    let mut case = Case::new(1, wide());
    let old: Vec<u8> = (0..8).flat_map(|chunk| content(chunk, 1)).collect();
    case.backing.write_elsewhere(0, &old);
    case.array[..old.len()].copy_from_slice(&old);
    // Parts that touch need no read.
    case.write(SECTOR, &[1; SECTOR]).unwrap();
    case.write(2 * SECTOR, &[2; 2 * SECTOR]).unwrap();
    assert_eq!(case.backing.reads(), 0);
    // Of a gap the backing device has the bytes.
    case.write(6 * SECTOR, &[3; SECTOR]).unwrap();
    assert_eq!(case.backing.reads(), 1);
    case.write(0, &[4; SECTOR]).unwrap();
    case.check(bytes_of(0..1));
    assert_eq!(case.backing.reads(), 1, "it is whole");
    // A part lies over what the backing device has, each time.
    case.write(CHUNK + SECTOR, &[5; SECTOR]).unwrap();
    for reads in [2, 3] {
        case.check(bytes_of(1..2));
        assert_eq!(case.backing.reads(), reads);
    }
    case.check(CHUNK + SECTOR..CHUNK + 2 * SECTOR);
    assert_eq!((case.backing.reads(), case.dirty()), (3, 2));
    // Any bytes: the sectors at their ends are completed.
    case.write(4 * CHUNK + 700, &[6; 2000]).unwrap();
    case.write(300 * CHUNK + 600, &[7; 424]).unwrap();
    case.check_all();
    case.drain().unwrap();
    // What was completed was read as a whole chunk.
    let runs = [
        0..CHUNK,
        CHUNK + SECTOR..CHUNK + 2 * SECTOR,
        bytes_of(4..5),
        300 * CHUNK..SIZE,
    ];
    let mut ranges = case.backing.ranges_since(0);
    ranges.sort_by_key(|range| range.start);
    assert_eq!(ranges, runs.map(|run| run.start as u64..run.end as u64));
    case.check_backing();
}

#[test]
fn a_cache_smaller_than_what_is_written_goes_on() {
    let (mut stored, mut through) = (0, 0);
    for seed in 0..30 {
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, volatile()));
        let mut case = Case::with(medium, seed, narrow(500));
        let mut random = Random(seed);
        for round in 0..30 {
            let writes: Vec<(usize, Vec<u8>)> = (0..12)
                .map(|n| {
                    let start = (n * 25 * CHUNK) + random.below(20 * CHUNK as u64) as usize;
                    let len = 1 + random.below(4 * CHUNK as u64) as usize;
                    (start, content(n, round)[..].repeat(4)[..len].to_vec())
                })
                .collect();
            let rig = case.rig.as_ref().unwrap();
            let writes_at_once = writes.iter().map(|(offset, bytes)| {
                let data = Bytes::copy_from_slice(bytes);
                rig.volume.write(*offset as u64, data, random.below(20) == 0)
            });
            let ended = rig.run(join_all(writes_at_once.collect::<Vec<_>>()));
            ended.into_iter().for_each(|written| written.unwrap());
            for (offset, bytes) in writes {
                case.array[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            if round % 10 == 9 {
                case.second(false);
            }
        }
        case.check_all();
        let counts = case.rig().volume.shared().counts();
        (stored, through) = (stored + counts.writes_stored, through + counts.writes_no_room);
        case.flush().unwrap();
        case.crash(seed % 2 == 0);
        case.start(Mode::WriteBack).unwrap();
        case.check_all();
        case.drain().unwrap();
        case.check_backing();
    }
    println!("{stored} stored, {through} through");
    assert!(stored > 10_000 && through > 100, "{stored} {through}");
}

/// Clean chunks that the backing device may have lost do not count any more.
/// It found nothing cached, then a write came, then it asks the backing device.
#[test]
fn a_read_that_a_write_overtakes_does_not_replace_what_is_dirty() {
    let mut case = Case::new(1, wide());
    case.put(1..40, 1);
    case.drain().unwrap();
    case.rig().settle();
    assert!(case.store().is_on_device(1));
    let volume = &case.rig().volume;
    let read = volume.read(0, 2 * CHUNK);
    let write = volume.write(0, Bytes::from(content(0, 2)), false);
    let (read, written) = case.rig().run(join(read, write));
    assert!(read.is_ok() && written.is_ok());
    case.array[..CHUNK].copy_from_slice(&content(0, 2));
    assert_eq!(case.dirty(), 1);
    case.check_all();
}

/// Between the copy and the record that the chunk is clean, another content was copied.
#[test]
fn a_content_that_came_back_after_it_was_copied_stays_dirty() {
    let mut case = Case::new(1, wide());
    case.put([3], 1);
    let rig = case.rig.take().unwrap();
    let store = rig.volume.shared().store().unwrap();
    let (_, copied) = rig.run(store.read_dirty(&rig.device, 3)).unwrap().unwrap();
    for version in [2, 1] {
        let data = Bytes::from(content(3, version));
        rig.run(rig.volume.write(3 * CHUNK as u64, data, false)).unwrap();
    }
    assert_eq!(
        rig.run(store.made_clean(&rig.device, &[copied], true)).unwrap(),
        0
    );
    assert_eq!(rig.volume.dirty().0, 1);
}

/// Once a chunk counts as clean, its record is durable.
#[test]
fn what_was_cleaned_is_clean_after_a_crash_and_after_a_power_cut() {
    for cuts_power in [false, true] {
        let mut case = Case::new(1, wide());
        case.put(0..60, 1);
        case.flush().unwrap();
        case.put((20..30).chain([59]), 2);
        case.drain().unwrap();
        case.crash(cuts_power);
        case.start(Mode::WriteBack).unwrap();
        assert_eq!(case.dirty(), 0);
        case.check_all();
        case.check_backing();
    }
}

/// Otherwise the next start takes what it writes for a change from elsewhere.
#[test]
fn a_close_waits_for_the_round_under_way() {
    for seed in 0..60 {
        let mut settings = wide();
        settings.write_back.age_secs = 1;
        let mut case = Case::new(seed, settings);
        case.put((0..60).map(|chunk| chunk * 3), 1);
        case.flush().unwrap();
        case.rig().tick();
        for _ in 0..seed % 20 {
            case.rig().run(pumice_blocks::give_turn());
        }
        case.close();
        case.start(Mode::WriteBack).unwrap();
        assert_eq!(case.rig().found, Some(Found::Cache));
        case.check_all();
    }
}

/// A flush waits longer for a write into a hole of the cache's file than for one over bytes: see `blocks::seal`.
#[test]
fn a_flush_fills_the_hole_that_it_writes_to_and_the_next_one_finds_none() {
    let mut case = Case::new(1, wide());
    let mut sent = |chunk| {
        let before = case.store().block_counts().written_bytes;
        case.put([chunk], 1);
        case.flush().unwrap();
        case.store().block_counts().written_bytes - before
    };
    let (first, second) = (sent(0), sent(1));
    let block_bytes = 64 << 10;
    assert!(
        first > block_bytes && second < block_bytes / 4,
        "{first} {second}"
    );
}
