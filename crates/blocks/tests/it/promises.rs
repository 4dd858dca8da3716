//! What checkpoints, marks and a fence promise, a step each: the runs over random changes see only what many of them come to.

use crate::opening::{crash, device, filled, newest, open, superblocks, write};
use crate::toy::piece::Place;
use crate::{Copies, Durable, OnlyCopy};
use pumice_blocks::{Logged, State};
use pumice_device::{Overdue, SECTOR_BYTES};
use pumice_testkit::conformance::block_on;
use pumice_testkit::{FaultPlan, FaultyMedium};
use pumice_testkit::{Store, calm};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

const KEYS: u64 = 60;

/// Polls a future once, with nobody to be woken.
macro_rules! poll {
    ($future:expr) => {
        $future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
}

#[test]
fn a_checkpoint_covers_a_lost_record_unless_a_block_of_before_it_is_still_open() {
    for (records_between, is_covered) in [(0, false), (1, true)] {
        let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
        assert!(store.set(KEYS, 1));
        store.base().journal.lose_record(&device(&medium));
        assert!(superblocks(&medium).iter().all(|superblock| superblock.discard));
        assert_eq!(store.log_nothing(records_between), records_between);
        store.close_active();
        store.checkpoint().unwrap();
        assert_eq!(newest(&medium).discard, !is_covered, "{records_between}");
        store.settle();
        store.checkpoint().unwrap();
        assert!(!newest(&medium).discard);
    }
}

#[test]
fn a_mark_is_in_both_superblocks_and_what_is_none_in_one() {
    let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
    let other = |medium: &_| {
        superblocks(medium)
            .map(|superblock| superblock.generation)
            .into_iter()
            .min()
    };
    let before = newest(&medium).generation;
    store.checkpoint().unwrap();
    assert_eq!(
        (newest(&medium).generation, other(&medium)),
        (before + 1, Some(before))
    );
    store.toy.distrusts.store(true, Ordering::Relaxed);
    store.checkpoint().unwrap();
    assert!(superblocks(&medium).iter().all(|superblock| superblock.discard));
    assert_eq!(other(&medium), Some(before + 2));
    // It is there: neither another such checkpoint nor a lost record writes it twice.
    store.checkpoint().unwrap();
    assert_eq!(newest(&medium).generation, before + 4);
    store.base().journal.lose_record(&device(&medium));
    assert_eq!(newest(&medium).generation, before + 4);
}

#[test]
fn the_checkpoint_before_keeps_its_log_and_blocks_where_a_start_could_go_back_to_it() {
    let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
    for round in 0..6 {
        store.log_nothing(5);
        store.toy.distrusts.store(round == 3, Ordering::Relaxed);
        let is_alone = store.checkpoint().unwrap();
        let [newest, before] = newest(&medium).checkpoints;
        let has_before = [false, true, true, false, false, true][round];
        assert_eq!((before.id != 0, is_alone), (has_before, !has_before), "{round}");
        let needed = if has_before {
            before.log_start
        } else {
            newest.log_start
        };
        let log = &store.base().journal.log;
        assert_eq!(log.usage().0, log.position() - needed, "{round}");
        let blocks = store.base().blocks.iter();
        let held = blocks.filter(|block| block.state() == State::Checkpoint).count();
        assert_eq!(held, 1 + usize::from(has_before), "{round}: each has one block");
    }
}

#[test]
fn with_power_a_checkpoint_is_flushed_before_its_superblock_and_after_it() {
    let syncs = |medium: &FaultyMedium| medium.counts().syncs;
    let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
    let before = syncs(&medium);
    store.checkpoint().unwrap();
    assert_eq!(
        syncs(&medium),
        before,
        "a crash of the process loses nothing that was written"
    );
    let (medium, mut store) = filled::<Durable>(1 << 20, KEYS);
    let before = syncs(&medium);
    store.checkpoint().unwrap();
    assert_eq!(syncs(&medium), before + 2);
    // Where its superblock fails, before its blocks are others': a power cut may leave the superblock, which names them.
    let mut failed = 0;
    for _ in 0..40 {
        medium.set_plan(FaultPlan {
            append_error: 0.5,
            ..FaultPlan::default()
        });
        let before = syncs(&medium);
        let result = store.checkpoint();
        medium.set_plan(FaultPlan::default());
        if store.base().is_out() {
            break;
        }
        assert_eq!(syncs(&medium), before + 2, "{result:?}");
        failed += u64::from(result.is_err());
    }
    assert!(failed > 2, "{failed}");
}

#[test]
fn what_was_logged_counts_as_written_and_what_found_no_room_does_not() {
    let (_medium, store) = filled::<Copies>(1 << 20, KEYS);
    let written = || store.base().totals.written_bytes.load(Ordering::Relaxed);
    let before = written();
    let records = store.log_nothing(u64::MAX);
    assert_eq!(
        written() - before,
        records * pumice_blocks::geometry::LOG_RECORD_BYTES
    );
}

#[test]
fn some_errors_fence_the_device_at_once() {
    let hung = Overdue {
        name: "read",
        offset: 0,
        len: 4096,
        secs: 30,
    };
    let errors = [
        (io::ErrorKind::Other.into(), None),
        (io::ErrorKind::StorageFull.into(), None),
        (io::ErrorKind::UnexpectedEof.into(), Some("shorter")),
        (io::ErrorKind::ReadOnlyFilesystem.into(), Some("read-only")),
        (hung.into(), Some("does not answer")),
    ];
    for (error, reason) in errors {
        let (_medium, store) = filled::<Copies>(1 << 20, 1);
        store.base().shared.saw_error(&error);
        let failure = store.base().shared.failure().map(|failure| failure.reason);
        assert_eq!(failure.is_some(), reason.is_some(), "{error}: {failure:?}");
        assert!(
            reason.is_none_or(|reason| failure.unwrap().contains(reason)),
            "{error}"
        );
    }
}

#[test]
fn a_fence_is_settled_when_both_superblocks_say_so_or_cannot() {
    for is_dead in [false, true] {
        let (medium, store) = filled::<Copies>(1 << 20, KEYS);
        let (base, device) = (store.base(), device(&medium));
        let before = superblocks(&medium).map(|superblock| superblock.generation);
        base.shared.take_out("a test".to_owned());
        let mut settled = Box::pin(base.shared.wait_until_settled());
        assert!(poll!(settled).is_pending(), "nothing was written yet");
        let work = base.take_failure_work().expect("a fence has work");
        medium.set_plan(FaultPlan {
            delay: true,
            dies_at: is_dead.then_some(1),
            ..FaultPlan::default()
        });
        let mut remembers = Box::pin(base.journal.remember_failure(&device));
        assert!(poll!(remembers).is_pending() && poll!(settled).is_pending());
        let mut turns = 0;
        while poll!(remembers).is_pending() {
            pumice_device::Device::turn(&device, true).unwrap();
            turns += 1;
            assert!(turns < 1_000);
        }
        assert_eq!(poll!(settled), Poll::Ready(!is_dead));
        assert_eq!(base.shared.is_remembered(), !is_dead);
        drop((work, settled, remembers));
        medium.set_plan(FaultPlan::default());
        let after = superblocks(&medium);
        assert!(after.iter().all(|superblock| superblock.discard != is_dead));
        let generations = after.map(|superblock| superblock.generation);
        assert!(
            is_dead || generations.iter().min() > before.iter().max(),
            "{generations:?}"
        );
        crash(&medium, store);
        assert_eq!(open::<Copies>(&medium).has_forgotten(), !is_dead);
    }
}

#[test]
fn the_log_of_a_fenced_device_takes_nothing() {
    let (medium, store) = filled::<Copies>(1 << 20, KEYS);
    let generation = newest(&medium).generation;
    store.base().shared.take_out("a test".to_owned());
    store.base().journal.lose_record(&device(&medium));
    assert_eq!(store.log_nothing(1), 0);
    assert_eq!(newest(&medium).generation, generation);
    let logged = store
        .base()
        .journal
        .append(&device(&medium), crate::toy::Died, 1, 1);
    assert_eq!(logged, Logged::Failed);
}

#[test]
fn a_prefix_leaves_room_for_the_footer_and_fills_its_last_sector_up() {
    // A block of 16 sectors, and pieces that fill twelve but for a few bytes: the footer of 816 entries is four sectors long, of one
    // more it is longer.
    for (pieces, padding) in [(816, Some(192)), (817, None)] {
        let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
        let store: Copies = open(&medium);
        let mut pool = store.base().shared.pool.lock();
        let block = store.base().open_block(&mut pool, (), |_| {}).unwrap();
        for key in 0..pieces {
            let place = |offset, _| Place {
                key,
                version: 1,
                offset,
            };
            assert!(block.reserve(60, place).is_some(), "{key}");
        }
        let prefix = block.begin_prefix();
        assert_eq!(prefix.as_ref().map(|prefix| prefix.padding), padding);
        let end = prefix.map_or(12 * SECTOR_BYTES, |prefix| prefix.range.end);
        assert_eq!(end, 12 * SECTOR_BYTES);
    }
}

#[test]
fn a_prefix_that_no_start_would_find_is_not_written() {
    let (medium, store) = filled::<OnlyCopy>(1 << 20, 1);
    let mut pool = store.base().shared.pool.lock();
    let block = store.base().open_block(&mut pool, (), |_| {}).unwrap();
    drop(pool);
    let write = |own| {
        let place = |offset, _| Place {
            key: 1,
            version: 1,
            offset,
        };
        assert!(block.reserve(60, place).is_some());
        let prefix = block.begin_prefix().unwrap();
        store.base().begin_prefix(&block, &prefix);
        let device = device(&medium);
        let written = store.base().write_prefix(&device, &block, &prefix, own, 0);
        (block_on(&device, written).unwrap(), block.written())
    };
    assert_eq!(write(Some(0)), (Logged::Stored, SECTOR_BYTES));
    assert_eq!(write(None), (Logged::Stored, 2 * SECTOR_BYTES));
    store.log_nothing(u64::MAX);
    assert_eq!(write(Some(0)), (Logged::NoRoom, 2 * SECTOR_BYTES));
    assert_eq!(write(None), (Logged::Stored, 4 * SECTOR_BYTES));
}

#[test]
fn the_hole_of_prefixes_is_filled_once() {
    let (medium, store) = filled::<Durable>(1 << 20, 1);
    let device = device(&medium);
    let prefixes = || {
        let mut pool = store.base().shared.pool.lock();
        let block = store.base().open_block(&mut pool, (), |_| {}).unwrap();
        drop(pool);
        let writes = [0; 3].map(|_| {
            let place = |offset, _| Place {
                key: 1,
                version: 1,
                offset,
            };
            assert!(block.reserve(60, place).is_some());
            let prefix = block.begin_prefix().unwrap();
            let before = medium.counts().writes;
            block_on(&device, store.base().fill_hole(&device, &block, &prefix));
            medium.counts().writes - before
        });
        (block.device_offset, writes)
    };
    let (offset, writes) = prefixes();
    assert_eq!(writes, [1, 0, 0]);
    // The next block was written before.
    let next = offset + store.base().geometry.block_bytes;
    let old = vec![1; 4 * SECTOR_BYTES];
    write(&medium, next, &old);
    assert_eq!(prefixes(), (next, [0; 3]));
}

#[test]
fn a_device_where_zeros_may_still_come_is_fenced() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, calm()));
    let store: Durable = open(&medium);
    let mut pool = store.base().shared.pool.lock();
    let block = store.base().open_block(&mut pool, (), |_| {}).unwrap();
    drop(pool);
    let place = |offset, _| Place {
        key: 1,
        version: 1,
        offset,
    };
    assert!(block.reserve(60, place).is_some());
    let prefix = block.begin_prefix().unwrap();
    let device = device(&medium);
    let mut filling = Box::pin(store.base().fill_hole(&device, &block, &prefix));
    assert!(poll!(filling).is_pending());
    assert!(!store.base().is_out());
    drop(filling);
    assert!(store.base().is_out());
}

/// A store with a block that is closed and has a key, on a medium where each turn ends what is under way.
fn closed(seed: u64) -> (Arc<FaultyMedium>, Copies) {
    let medium = Arc::new(FaultyMedium::new(1 << 20, seed, calm()));
    let mut store: Copies = open(&medium);
    assert!(store.set(1, 7));
    store.close_active();
    (medium, store)
}

/// Steps of a block of the small store.
const STEPS: u64 = 4;

#[test]
fn a_block_is_written_step_by_step_and_counts_from_the_last_on() {
    for seed in 0..40 {
        let steps = seed % (STEPS + 1);
        let (medium, mut store) = closed(seed);
        let before = medium.counts().writes;
        store.turn();
        for done in 1..=steps {
            store.turn();
            assert_eq!(medium.counts().writes, before + done, "one at a time");
        }
        crash(&medium, store);
        let mut store: Copies = open(&medium);
        let found = store.get(1);
        match steps {
            STEPS => assert_eq!(found, Some(7)),
            // The crash tears the last one, into nothing or all.
            3 => assert!(found.is_none_or(|value| value == 7)),
            _ => assert_eq!(found, None),
        }
    }
}

#[test]
fn what_is_left_of_a_block_that_somebody_waits_for_is_one_write() {
    let (medium, mut store) = closed(1);
    let before = medium.counts().writes;
    // Two turns, and the first step is done.
    (0..2).for_each(|_| store.turn());
    let toy = Arc::clone(&store.toy);
    let mut waits = Box::pin(toy.base.write_out());
    assert!(poll!(waits).is_pending());
    // What is being written counts as sent, and once.
    let written = toy.base.totals.written_bytes.load(Ordering::Relaxed);
    assert_eq!(toy.base.sent_bytes(), written);
    store.settle();
    assert_eq!(poll!(waits), Poll::Ready(()));
    // The second step was under way.
    assert_eq!(medium.counts().writes - before, 3);
}

#[test]
fn the_more_blocks_are_written_the_longer_are_their_steps() {
    let (medium, mut store) = closed(1);
    // Until all three buffers are full: a step is four times as long.
    while store.set(store.version % 50, 1) {}
    let before = medium.counts().writes;
    store.settle();
    let blocks = store.base().totals.sealed_blocks.load(Ordering::Relaxed);
    assert_eq!((blocks, medium.counts().writes - before), (3, 3));
}

#[test]
fn the_room_of_a_piece_is_taken_again_only_before_its_write_and_without_readers() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
    let store: Copies = open(&medium);
    let mut pool = store.base().shared.pool.lock();
    let block = store.base().open_block(&mut pool, (), |_| {}).unwrap();
    for key in 0..3 {
        let place = |offset, _| Place {
            key,
            version: 1,
            offset,
        };
        assert!(block.reserve(60, place).is_some());
    }
    let rewrite = |at, version| {
        let reserved = block.rewrite(at, |place| (version < 9).then(|| place.version = version));
        reserved.map(|reserved| reserved.at)
    };
    assert_eq!(rewrite(60, 2), Some(60));
    assert_eq!(rewrite(60, 9), None, "declined");
    assert_eq!(rewrite(180, 2), None, "there is none");
    let reader = Arc::clone(&block);
    assert_eq!(rewrite(60, 3), None);
    drop(reader);
    assert_eq!(rewrite(120, 3), Some(120));
    let prefix = block.begin_prefix().unwrap();
    let versions: Vec<_> = prefix.entries.iter().map(|place| place.version).collect();
    assert_eq!(versions, [1, 2, 3]);
    // It is not written yet, and may be at any time.
    assert_eq!(rewrite(60, 4), None);
    let place = |offset, _| Place {
        key: 3,
        version: 1,
        offset,
    };
    assert!(block.reserve(60, place).is_some());
    assert_eq!(rewrite(SECTOR_BYTES, 4), Some(SECTOR_BYTES));
}
