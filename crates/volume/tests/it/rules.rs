//! Rules that a model of one request after the other does not see.

use crate::backing::{Faults, FaultyBacking};
use crate::rig::{CHUNK, Rig, SIZE, medium, settings, volatile};
use bytes::Bytes;
use pumice_chunk::store::Found;
use pumice_device::Device;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyMedium};
use pumice_volume::{Backing, Mode, Settings, VolumeError};
use pumice_world::Random;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Many requests at once: cache and backing device have the same bytes afterwards, and no two overlapping changes were at the backing
/// device at a time, which it checks.
#[test]
fn overlapping_requests_leave_cache_and_backing_device_alike() {
    let (mut hits, mut dram_hits) = (0, 0);
    for seed in 0..40 {
        let (medium, backing) = (medium(seed), FaultyBacking::new(SIZE, seed));
        let dram = (seed as usize % 2) * 48 * CHUNK;
        let settings = Settings {
            dram_bytes: dram,
            ..settings(Mode::WriteThrough, 1)
        };
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        let mut random = Random(seed);
        let ended = Rc::new(Cell::new(0));
        for round in 0..40u64 {
            let requests: Vec<_> = (0..12)
                .map(|n| {
                    let start = random.below(6 * CHUNK as u64);
                    let len = 1 + random.below(3 * CHUNK as u64);
                    let (volume, ended, kind) = (rig.volume.clone(), Rc::clone(&ended), random.below(8));
                    async move {
                        match kind {
                            0..4 => {
                                let bytes = vec![(round * 12 + n) as u8; len as usize];
                                volume.write(start, Bytes::from(bytes), kind == 0).await.unwrap();
                            }
                            4 => volume.zero(start, len, true).await.unwrap(),
                            5 => volume.tick().await,
                            _ => drop(volume.read(start, len as usize).await.unwrap()),
                        }
                        ended.set(ended.get() + 1);
                    }
                })
                .collect();
            rig.run(futures_util::future::join_all(requests));
            let bytes = backing.bytes();
            for chunk in 0..10 {
                let found = rig.run(rig.volume.read((chunk * CHUNK) as u64, CHUNK)).unwrap();
                assert!(
                    found == bytes[chunk * CHUNK..][..CHUNK],
                    "seed {seed}, round {round}, chunk {chunk}"
                );
            }
            if round % 5 == 0 {
                rig.settle();
            }
        }
        assert_eq!(ended.get(), 40 * 12);
        rig.check_books();
        hits += rig.volume.shared().counts().read_hits;
        dram_hits += rig.volume.shared().counts().read_dram_hits;
    }
    println!("{hits} hits, {dram_hits} in DRAM");
    assert!(hits > 7_000 && dram_hits > 1_000);
}

/// Contents that are on flash already: the fingerprint of each is read there.
#[test]
fn the_duplicates_of_a_request_are_checked_together() {
    const COUNT: usize = 8;
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    let mut random = Random(1);
    let bytes: Vec<u8> = (0..40 * CHUNK / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    let write = |chunk: usize, bytes: &[u8]| {
        rig.volume
            .write((chunk * CHUNK) as u64, Bytes::copy_from_slice(bytes), false)
    };
    rig.run(write(0, &bytes)).unwrap();
    rig.settle();
    let part = &bytes[..COUNT * CHUNK];
    let (written, most) = rig.reads_at_once(write(100, part));
    written.unwrap();
    assert!(most >= COUNT * CHUNK, "{most} bytes of reads for a write");
    drop(
        rig.volume
            .shared()
            .store()
            .unwrap()
            .begin_write(&rig.device, 100..100 + COUNT as u64)
            .unwrap(),
    );
    let (read, most) = rig.reads_at_once(rig.volume.read(100 * CHUNK as u64, part.len()));
    assert!(read.unwrap() == part);
    assert!(most >= COUNT * CHUNK, "{most} bytes of reads for a read");
    let counts = rig.volume.shared().counts();
    assert_eq!(
        (counts.writes_duplicate, counts.fills_duplicate),
        (COUNT as u64, COUNT as u64)
    );
}

/// A read of the cache device, or of the backing device, that a write overtakes is not kept in DRAM.
#[test]
fn what_a_write_overtakes_is_not_kept_in_dram() {
    for is_cached in [true, false] {
        let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
        let settings = Settings {
            dram_bytes: SIZE,
            ..settings(Mode::WriteThrough, 1)
        };
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        // Enough for its block to be written.
        for chunk in 0..if is_cached { 60 } else { 0 } {
            let mut random = Random(chunk);
            let bytes: Vec<u8> = (0..CHUNK / 8)
                .flat_map(|_| random.next_u64().to_le_bytes())
                .collect();
            rig.run(rig.volume.write(chunk * CHUNK as u64, Bytes::from(bytes), false))
                .unwrap();
            rig.settle();
        }
        let write = |byte| rig.volume.write(0, Bytes::from(vec![byte; CHUNK]), false);
        let read = || rig.volume.read(0, CHUNK);
        let mut early = Box::pin(read());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while backing.reads() == 0 {
            assert!(
                early.as_mut().poll(&mut context).is_pending(),
                "it reads a device"
            );
            if is_cached {
                break;
            }
        }
        rig.run(write(1)).unwrap();
        rig.run(early).unwrap();
        assert_eq!(
            rig.run(read()).unwrap(),
            [1; CHUNK],
            "the cache has it: {is_cached}"
        );
        assert_eq!(rig.run(read()).unwrap(), [1; CHUNK]);
        assert_eq!(rig.volume.shared().counts().read_dram_hits, 1);
    }
}

/// The same with a crash or a power cut among them, at each write of either device.
#[test]
fn crashes_among_many_requests_leave_cache_and_backing_device_alike() {
    let (mut crashes, mut hits) = (0, 0);
    for seed in 0..150u64 {
        let (medium, backing) = (medium(seed), FaultyBacking::new(SIZE, seed));
        let mut boot = 1;
        for life in 0..3u64 {
            let rig = Rig::open(&settings(Mode::WriteThrough, boot), &medium, &backing).unwrap();
            // First what was written: a scan of all evicts it.
            for len in [43 * CHUNK, SIZE, SIZE] {
                let found = rig.run(rig.volume.read(0, len)).unwrap();
                assert!(found == backing.bytes()[..len], "seed {seed}, life {life}");
            }
            hits += rig.volume.shared().counts().read_hits;
            let mut random = Random(seed * 3 + life);
            let point = 1 + random.below(60);
            match random.below(2) {
                0 => backing.set(Faults {
                    crash_at: Some(point),
                    ..Faults::default()
                }),
                _ => medium.set_plan(FaultPlan {
                    crash: Some(CrashPoint::WriteOrAppend(point * 3)),
                    ..volatile()
                }),
            }
            for round in 0..12u64 {
                let requests: Vec<_> = (0..10)
                    .map(|_| {
                        let start = random.below(40 * CHUNK as u64);
                        let len = 1 + random.below(3 * CHUNK as u64);
                        let (volume, kind) = (rig.volume.clone(), random.below(8));
                        async move {
                            // Until the crash all is well; then it does not matter.
                            match kind {
                                0..4 => {
                                    let bytes = vec![(life * 16 + round) as u8; len as usize];
                                    let _ = volume.write(start, Bytes::from(bytes), kind == 0).await;
                                }
                                4 => drop(volume.zero(start, len, true).await),
                                5 => volume.tick().await,
                                _ => drop(volume.read(start, len as usize).await),
                            }
                        }
                    })
                    .collect();
                rig.run(futures_util::future::join_all(requests));
                if medium.is_crashed() || backing.is_crashed() {
                    crashes += 1;
                    break;
                }
            }
            if random.below(2) == 0 {
                medium.crash();
                backing.crash();
            } else {
                medium.cut_power();
                backing.cut_power();
                boot += 1;
            }
            drop(rig);
            medium.restart();
            medium.set_plan(volatile());
            backing.restart();
        }
    }
    println!("{crashes} crashes among requests, {hits} hits");
    assert!(crashes > 200 && hits > 1_000, "{crashes} {hits}");
}

#[test]
fn what_is_cached_needs_no_backing_device_and_a_part_is_not_completed() {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    let write = rig.volume.write(511, Bytes::from(vec![9; 513]), false);
    rig.run(write).unwrap();
    assert_eq!(backing.reads(), 0, "the rest of the chunk is not read");
    assert_eq!(rig.run(rig.volume.read(511, 513)).unwrap(), [9; 513]);
    assert_eq!(backing.reads(), 0, "a part of a chunk is a hit");
    assert_eq!(rig.run(rig.volume.read(510, 3)).unwrap(), [0, 9, 9]);
    assert_eq!(backing.reads(), 1);
    assert_eq!(rig.run(rig.volume.read(0, CHUNK)).unwrap()[511..1024], [9; 513]);
    assert_eq!(backing.reads(), 1, "the chunk is whole now");
    let counts = rig.volume.shared().counts();
    assert_eq!((counts.read_hits, counts.read_part_hits), (2, 1));
    assert!(rig.run(rig.volume.read(SIZE as u64 - 1, 2)).is_err());
    assert!(
        rig.run(rig.volume.write(u64::MAX, Bytes::from_static(b"a"), false))
            .is_err()
    );
}

#[test]
fn trims_of_holes_cost_nothing_and_what_was_trimmed_is_zero() {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    let logged = || rig.volume.shared().store().unwrap().block_counts().log_records;
    let before = logged();
    rig.run(rig.volume.zero(0, SIZE as u64, true)).unwrap();
    assert_eq!((backing.changes(), logged()), (0, before));
    let write = rig.volume.write(8192, Bytes::from(vec![1; 8192]), false);
    rig.run(write).unwrap();
    rig.run(rig.volume.zero(100, 200_000, true)).unwrap();
    assert_eq!(
        backing.changes(),
        2,
        "a write, and the one extent that was no hole"
    );
    assert_eq!(rig.run(rig.volume.read(8192, 8192)).unwrap(), [0; 8192]);
    assert!(rig.volume.shared().counts().trimmed_hole_bytes > SIZE as u64);
}

/// A file system may list extents of any length: of one byte, where a hole is made meanwhile.
#[test]
fn trims_change_whole_sectors_whatever_the_extents_are() {
    for extent_bytes in [1, 511, 700, 5000] {
        let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
        let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
        let write = rig.volume.write(8192, Bytes::from(vec![1; 8192]), false);
        rig.run(write).unwrap();
        backing.set(Faults {
            extent_bytes,
            ..Faults::default()
        });
        rig.run(rig.volume.zero(512, 32_768, true)).unwrap();
        assert!(backing.bytes().iter().all(|byte| *byte == 0));
        for range in backing.ranges_since(1) {
            let is_whole = range.start % 512 == 0 && range.end % 512 == 0;
            assert!(is_whole, "{range:?}, extents of {extent_bytes} bytes");
        }
    }
}

/// Blocks are written at the pace of the cache device: whoever is faster waits for it, and all is cached.
#[test]
fn nothing_bypasses_a_cache_that_has_room_but_is_slow() {
    let medium = Arc::new(FaultyMedium::new(8 << 20, 1, volatile()));
    let backing = FaultyBacking::new(SIZE, 1);
    let mut random = Random(1);
    let bytes: Vec<u8> = (0..SIZE / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    backing.write_elsewhere(0, &bytes);
    let mut settings = settings(Mode::WriteThrough, 1);
    (settings.cache.mappings, settings.cache.contents) = (1_000, 2_000);
    let rig = Rig::open(&settings, &medium, &backing).unwrap();
    assert!(rig.run(rig.volume.read(0, SIZE)).unwrap() == bytes);
    let bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    rig.run(rig.volume.write(0, Bytes::from(bytes.clone()), false))
        .unwrap();
    let counts = rig.volume.shared().counts();
    let stored = (counts.fills_stored, counts.writes_stored);
    assert_eq!(stored, (301, 301), "{counts:?}");
    let reads = backing.reads();
    assert!(rig.run(rig.volume.read(0, SIZE)).unwrap() == bytes);
    assert_eq!(backing.reads(), reads);
}

/// Rule: a cache knows its backing device.
#[test]
fn what_is_cached_of_another_or_a_changed_backing_device_is_forgotten() {
    for case in 0..4 {
        let (medium, mut backing) = (medium(1), FaultyBacking::new(SIZE, 1));
        let mut settings = settings(Mode::WriteThrough, 1);
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        rig.run(rig.volume.write(0, Bytes::from(vec![5; CHUNK]), false))
            .unwrap();
        rig.settle();
        rig.run(rig.volume.close()).unwrap();
        drop(rig);
        let modified = backing.modified().unwrap();
        match case {
            0 => {}
            1 => backing.write_elsewhere(0, &[6; CHUNK]),
            2 => {
                settings.cache.volume += 1;
                backing = FaultyBacking::new(SIZE, 2);
            }
            _ => backing = FaultyBacking::new(SIZE + 4 * CHUNK, 2),
        }
        while case > 1 && backing.modified().unwrap() < modified {
            // Its time tells nothing.
            backing.write_elsewhere(0, &[0]);
        }
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        let wanted = [Found::Cache, Found::Forgotten, Found::Forgotten, Found::Forgotten][case];
        assert_eq!(rig.found, Some(wanted), "case {case}");
        let bytes = rig.run(rig.volume.read(0, CHUNK)).unwrap();
        assert_eq!(bytes, backing.bytes()[..CHUNK], "case {case}");
    }
}

/// Rule: where a void can be neither made durable nor the cache be fenced, writes fail, and reads go on.
#[test]
fn a_dead_cache_device_fails_writes_until_pass_through() {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    for chunk in 0..40 {
        let bytes = Bytes::from(vec![chunk as u8; CHUNK]);
        rig.run(rig.volume.write(chunk * CHUNK as u64, bytes, false))
            .unwrap();
    }
    rig.settle();
    medium.set_plan(FaultPlan {
        dies_at: Some(1),
        ..volatile()
    });
    let mut failed = 0;
    for chunk in 0..40 {
        let offset = chunk * CHUNK as u64;
        match rig.run(rig.volume.write(offset, Bytes::from(vec![0xEE; CHUNK]), false)) {
            Ok(()) => {}
            Err(VolumeError::Cache(_)) => failed += 1,
            Err(error) => panic!("{error}"),
        }
        let found = rig.run(rig.volume.read(offset, CHUNK)).unwrap();
        assert_eq!(found, backing.bytes()[offset as usize..][..CHUNK]);
    }
    assert!(failed > 30, "{failed}");
    assert!(rig.run(rig.volume.close()).is_err());
    drop(rig);
    // Dead still: it cannot be discarded, and the start says so.
    let pass = settings(Mode::PassThrough, 1);
    assert!(Rig::open(&pass, &medium, &backing).is_err());
    medium.set_plan(volatile());
    let rig = Rig::open(&pass, &medium, &backing).unwrap();
    rig.run(rig.volume.write(0, Bytes::from(vec![0xDD; SIZE]), true))
        .unwrap();
    drop(rig);
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    assert_eq!(rig.found, Some(Found::Forgotten));
    assert!(rig.run(rig.volume.read(0, SIZE)).unwrap() == vec![0xDD; SIZE]);
}

#[test]
fn after_a_failed_flush_no_flush_says_that_all_is_durable() {
    let (medium, backing) = (medium(3), FaultyBacking::new(SIZE, 3));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    rig.run(rig.volume.write(0, Bytes::from(vec![1; 40 * CHUNK]), false))
        .unwrap();
    backing.set(Faults {
        fails_flush: true,
        ..Faults::default()
    });
    let (first, second) = rig.run(futures_util::future::join(rig.volume.flush(), rig.volume.flush()));
    assert!(first.is_err() && second.is_err());
    assert!(matches!(rig.run(rig.volume.flush()), Err(VolumeError::Unflushed)));
    // What was lost, the cache does not have either.
    let found = rig.run(rig.volume.read(0, 40 * CHUNK)).unwrap();
    assert!(found == backing.bytes()[..40 * CHUNK]);
    assert!(found.contains(&0), "the test loses something");
    assert!(rig.run(rig.volume.close()).is_err());
    // Nor does a later start, though the system tells of a failed flush once.
    drop(rig);
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    assert_eq!(rig.found, Some(Found::Forgotten));
}

/// A flush without a connection has lost nothing: the cache stays, and the next flush succeeds.
#[test]
fn a_flush_that_does_not_reach_the_backing_device_may_be_tried_again() {
    let (medium, backing) = (medium(6), FaultyBacking::new(SIZE, 6));
    let set = |is_away| {
        backing.set(Faults {
            is_away,
            ..Faults::default()
        });
    };
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    rig.run(rig.volume.write(0, Bytes::from(vec![1; 40 * CHUNK]), true))
        .unwrap();
    set(true);
    let failed = rig.run(rig.volume.flush());
    assert!(matches!(failed, Err(VolumeError::Backing(_))), "{failed:?}");
    set(false);
    rig.run(rig.volume.flush()).unwrap();
    rig.run(rig.volume.close()).unwrap();
    drop(rig);
    // Nor is the cache lost by a start that cannot flush.
    set(true);
    assert!(Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).is_err());
    set(false);
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    assert_eq!(rig.found, Some(Found::Cache));
}

/// A change that failed on another machine may still happen: its chunks are not cached again.
#[test]
fn what_may_change_later_is_not_cached() {
    for changes_later in [false, true] {
        let (medium, backing) = (medium(7), FaultyBacking::new(SIZE, 7));
        let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
        backing.set(Faults {
            is_away: true,
            changes_later,
            ..Faults::default()
        });
        assert!(
            rig.run(rig.volume.write(0, Bytes::from(vec![1; CHUNK]), false))
                .is_err()
        );
        backing.set(Faults {
            changes_later,
            ..Faults::default()
        });
        rig.run(rig.volume.read(0, CHUNK)).unwrap();
        if changes_later {
            backing.write_elsewhere(0, &[1; CHUNK]);
        }
        let found = rig.run(rig.volume.read(0, CHUNK)).unwrap();
        assert!(found == vec![u8::from(changes_later); CHUNK], "{changes_later}");
        assert_eq!(rig.volume.shared().counts().read_hits > 0, !changes_later);
        assert_eq!(rig.run(rig.volume.close()).is_err(), changes_later);
    }
}

#[test]
fn a_bad_sector_fails_reads_of_itself_alone() {
    let (medium, backing) = (medium(5), FaultyBacking::new(SIZE, 5));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    backing.set(Faults {
        bad_byte: Some(3000),
        ..Faults::default()
    });
    assert!(rig.run(rig.volume.read(0, 2048)).is_ok());
    assert!(rig.run(rig.volume.read(3500, 2 * CHUNK)).is_ok());
    assert!(rig.run(rig.volume.read(0, 3001)).is_err());
    rig.check_books();
}

#[test]
fn a_start_that_cannot_flush_forgets_the_cache() {
    let (medium, backing) = (medium(4), FaultyBacking::new(SIZE, 4));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    rig.run(rig.volume.write(0, Bytes::from(vec![1; 40 * CHUNK]), false))
        .unwrap();
    rig.settle();
    drop(rig);
    backing.set(Faults {
        fails_flush: true,
        ..Faults::default()
    });
    assert!(Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).is_err());
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    let found = rig.run(rig.volume.read(0, 40 * CHUNK)).unwrap();
    assert!(found == backing.bytes()[..40 * CHUNK]);
    assert!(found.contains(&0), "the test loses something");
}

/// A change whose future is dropped may still reach the backing device: nothing is cached there any more.
#[test]
fn a_write_that_is_abandoned_leaves_nothing_to_be_cached() {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
    let begun = backing.changes();
    {
        let mut write = Box::pin(rig.volume.write(0, Bytes::from(vec![1; CHUNK]), false));
        rig.run(std::future::poll_fn(|context| {
            let polled = write.as_mut().poll(context);
            assert!(polled.is_pending());
            match backing.changes() > begun {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        }));
    }
    for _ in 0..3 {
        rig.run(rig.volume.read(0, CHUNK)).unwrap();
    }
    assert_eq!(rig.volume.shared().counts().read_hits, 0);
    assert!(rig.run(rig.volume.close()).is_err());
    assert_eq!(rig.run(rig.volume.backing().read_at(0, 1)).unwrap(), [0]);
}

/// A cache device that answers nothing any more is taken out; who waits for it goes on.
#[test]
fn a_cache_device_that_hangs_is_taken_out() {
    for seed in 0..30 {
        let (medium, backing) = (medium(seed), FaultyBacking::new(SIZE, seed));
        let rig = Rig::open(&settings(Mode::WriteThrough, 1), &medium, &backing).unwrap();
        for chunk in 0..60 {
            let bytes = Bytes::from(vec![chunk as u8; CHUNK]);
            rig.run(rig.volume.write(chunk * CHUNK as u64, bytes, false))
                .unwrap();
        }
        // Marks are cleared, so that a write waits for the device.
        for _ in 0..4 {
            rig.run(rig.volume.tick());
        }
        medium.set_plan(FaultPlan {
            hangs_at: Some(1 + seed % 4),
            ..volatile()
        });
        let requests = async {
            let mut failed = 0;
            for chunk in 0..60 {
                // Five regions, each with a mark of its own.
                let offset = chunk * 5 * CHUNK as u64;
                let bytes = Bytes::from(vec![0xEE; CHUNK]);
                failed += u32::from(rig.volume.write(offset, bytes, false).await.is_err());
                let found = rig.volume.read(offset, CHUNK).await.unwrap();
                assert_eq!(found, backing.bytes()[offset as usize..][..CHUNK]);
            }
            failed
        };
        let seconds = async {
            loop {
                for _ in 0..20 {
                    pumice_blocks::give_turn().await;
                    rig.device.turn(false).unwrap();
                }
                rig.volume.tick_device(3);
            }
        };
        let (requests, seconds) = (std::pin::pin!(requests), std::pin::pin!(seconds));
        let futures_util::future::Either::Left((failed, _)) =
            rig.run(futures_util::future::select(requests, seconds));
        // Superblocks hang too: no start would know.
        assert!(failed > 0, "seed {seed}");
        assert!(rig.volume.shared().store().unwrap().failure().is_some());
        rig.check_books();
    }
}
