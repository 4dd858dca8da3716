//! Reclaims that go on at the same time, and what changes while an object is moved.

use crate::common;

use crate::common::{Random, Rig, options, ripq, sipq};
use pumice_blocks::Durability;
use pumice_device::Device;
use pumice_flash::{LayoutOptions, OpenOptions, RECLAIM_READ_BYTES};
use pumice_record::HEADER_BYTES;
use pumice_testkit::FaultyMedium;
use pumice_testkit::calm;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Waker};

const NOW: u32 = 1_000;

/// A medium whose reads and writes are done when the device turns.
fn slow_medium(bytes: u64) -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(bytes, 4, calm()))
}

fn open(bytes: u64, keys: u64, layout: LayoutOptions, buffers_max: usize) -> Rig {
    let medium = slow_medium(bytes);
    let options = OpenOptions {
        layout,
        buffers_max,
        // No checkpoints: a block that is in no use is being reclaimed.
        ..options(Durability::Off)
    };
    Rig::open(&medium, keys, &options)
}

fn layouts() -> [LayoutOptions; 2] {
    [ripq(), sipq()]
}

/// More sets than the device can take, so that blocks are short and several victims move objects at once.
#[test]
fn several_reclaims_at_once_lose_nothing_that_stays_and_count_each_object_once() {
    for layout in layouts() {
        let keys = 28_000;
        let mut rig = open(28 << 20, keys, layout, 24);
        rig.auto_kick = false;
        let mut random = Random(1);
        let mut live: HashMap<u64, u64> = HashMap::new();
        // Copies that were stored, those of them that a set or a delete removed, and sets that found no room.
        let (mut stored, mut removed, mut refused) = (0, 0, 0);
        let mut turns = [0u32; 9];
        for step in 0..keys * 3 {
            let n = random.below(keys).min(random.below(keys));
            let is_there = rig.index.location(n).is_some();
            match random.below(40) {
                0 => {
                    removed += u64::from(is_there);
                    live.remove(&n);
                    rig.delete(n);
                }
                1..38 if is_there => rig.hit(n),
                _ => {
                    removed += u64::from(is_there);
                    live.remove(&n);
                    if let Some(version) = rig.set(n, 200 + random.below(4_000) as usize) {
                        live.insert(n, version);
                        stored += 1;
                    } else {
                        refused += 1;
                    }
                }
            }
            if step % 60 == 0 {
                rig.kick();
                rig.turn();
                turns[rig.victims()] += 1;
                rig.store().check_order();
                rig.check_seats();
            }
        }
        let at_once: u32 = turns[4..].iter().sum();
        rig.settle();
        let counts = rig.store().counts();
        println!("{}: turns by victims {turns:?}, {counts:?}", layout.layout);
        assert!(at_once > 400 && turns[8] > 0, "{turns:?}: this shows nothing");
        assert!(
            counts.dropped_no_block > 1_000 && counts.survivors > 5_000,
            "{counts:?}"
        );
        assert_eq!(
            counts.dropped_no_block, refused,
            "objects that wait are not counted"
        );
        // While others move objects out, whoever finds no block waits for one of theirs; without that it is one in 30 to 80.
        assert!(counts.survivors_dropped * 400 < counts.survivors, "{counts:?}");
        rig.check_blocks();
        let mut present = 0;
        for n in 0..keys {
            let got = rig.get(n);
            assert!(got.is_none() || got.as_ref() == live.get(&n), "key {n}: {got:?}");
            present += u64::from(got.is_some());
        }
        let gone = rig.index.gone.lock();
        let evicted = gone["evicted"];
        assert_eq!(gone.len(), 1, "{gone:?}");
        assert_eq!(stored, counts.appended_objects);
        assert_eq!(stored, present + removed + evicted, "each copy ends once");
        assert!(present > 5_000, "{present} present");
        drop(gone);
        for n in 0..keys {
            rig.delete(n);
        }
        assert_eq!(rig.store().check_order(), 0, "counters return to zero");
        rig.check_seats();
        assert!(rig.store().order.virtual_keys().is_empty());
    }
}

#[test]
fn a_survivor_that_dies_between_its_read_and_its_copy_stays_dead() {
    const LEN: usize = 2_000;
    const KEYS: u64 = 1_600;
    for layout in layouts() {
        let mut rig = open(4 << 20, KEYS, layout, 12);
        let mut versions = HashMap::new();
        for n in 0..KEYS {
            versions.insert(n, rig.set(n, LEN).unwrap());
            rig.settle();
        }
        rig.auto_kick = false;
        let geometry = rig.store().geometry;
        let block_of = |n| geometry.block_of(rig.index.location(n)?.offset);
        // Some of each block are raised.
        // The oldest last: what `sipq` has in its queue of keys is what came, or came back, last.
        for n in (0..KEYS).rev().filter(|n| n % 3 == 0) {
            rig.hit(n);
        }
        let before: HashMap<u64, u32> = (0..KEYS).filter_map(|n| Some((n, block_of(n)?))).collect();
        let evicted = || rig.index.gone.lock().get("evicted").copied().unwrap_or(0);
        let counts = || rig.store().counts();
        let (evicted_before, counts_before) = (evicted(), counts());
        let work = rig.store().take_early_reclaim().expect("blocks are sealed");
        let future = rig.store().perform(&rig.device, &*rig.index, 1_000, work);
        let mut future = std::pin::pin!(future);
        let mut poll = || {
            let mut context = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut context).is_pending()
        };
        // What does not stay goes first; then what stays is read.
        while evicted() == evicted_before {
            assert!(poll(), "it had objects to move");
            while rig.device.turn(true).unwrap() > 0 {}
        }
        assert_eq!(counts(), counts_before, "read, and the copy not begun");
        let is_gone = |n: &&u64| block_of(**n).is_none();
        let victim = before[before.keys().find(is_gone).expect("some went")];
        let mut staying: Vec<u64> = (0..KEYS).filter(|n| block_of(*n) == Some(victim)).collect();
        assert!(staying.len() > 5, "{}", staying.len());
        // Who reads an object of the victim does not wait for its reclaim, which goes on only where it is polled.
        for n in &staying {
            assert_eq!(rig.get(*n), Some(versions[n]), "key {n} is being moved");
        }
        assert_eq!(counts().record_reads, staying.len() as u64, "from flash");
        assert_eq!(
            (counts().survivors, counts().reclaimed_blocks),
            (0, 0),
            "the copy not begun"
        );
        let (deleted, overwritten) = (staying.remove(3), staying.remove(0));
        rig.delete(deleted);
        let newer = rig.set(overwritten, LEN).unwrap();
        let evicted_between = evicted();
        while poll() {
            rig.device.turn(true).unwrap();
        }
        assert_eq!(rig.index.location(deleted), None, "it stays a miss");
        assert_eq!(rig.get(overwritten), Some(newer), "the newer value stands");
        for n in &staying {
            assert_ne!(block_of(*n), Some(victim), "key {n} is still there");
            assert_eq!(rig.get(*n), Some(versions[n]), "key {n} was to stay");
        }
        assert_eq!(evicted(), evicted_between, "who died is not evicted too");
        let counts = counts();
        let encoded = |n: &u64| (HEADER_BYTES + format!("key-{n}").len() + LEN) as u64;
        let moved: u64 = staying.iter().map(encoded).sum();
        assert_eq!(counts.survivors - counts_before.survivors, staying.len() as u64);
        assert_eq!(counts.survivor_bytes - counts_before.survivor_bytes, moved);
        assert_eq!(counts.survivors_dropped, 0);
        assert_eq!(counts.reclaimed_blocks - counts_before.reclaimed_blocks, 1);
        assert_eq!(counts.appended_objects - counts_before.appended_objects, 1);
        let appended = counts.appended_bytes - counts_before.appended_bytes;
        assert_eq!(appended, encoded(&overwritten));
        assert!(!rig.store().order.virtual_keys().contains(&common::hash(deleted)));
        rig.check_blocks();
        rig.settle();
        rig.check_blocks();
        assert_eq!(rig.index.location(deleted), None);
        assert_eq!(rig.get(overwritten), Some(newer));
    }
}

#[test]
fn a_block_that_was_mostly_dead_when_it_was_written_is_found() {
    let mut rig = open(4 << 20, 4_000, ripq(), 12);
    // Nothing dies early, and whoever looks for such a block finds none.
    for n in 0..3_000 {
        rig.set(n, 2_000);
        rig.settle();
    }
    assert_eq!(rig.store().counts().survivors, 0);
    rig.auto_kick = false;
    for n in 3_000..3_040 {
        rig.set(n, 2_000);
        if n % 5 > 0 {
            rig.delete(n);
        }
    }
    rig.settle();
    rig.check_blocks();
    for n in 3_040..3_340 {
        rig.set(n, 2_000);
        rig.settle();
    }
    assert!(rig.store().counts().survivors > 3, "it was not the next to go");
    rig.check_blocks();
}

/// Several victims of which all is to be moved: what is read of them at a time stays within the budget, which DRAM has room for.
#[test]
fn reclaims_read_no_more_at_a_time_than_their_budget() {
    const KEYS: u64 = 4_000;
    let medium = slow_medium(64 << 20);
    let options = OpenOptions {
        layout: ripq(),
        block_bytes: 1 << 20,
        buffers_max: 24,
        ..options(Durability::Off)
    };
    let mut rig = Rig::open(&medium, KEYS, &options);
    rig.auto_kick = false;
    let (mut most, mut victims_most) = (0, 0);
    for n in 0..KEYS {
        rig.set(n, 40_000);
        // Most of what is there is raised, so that it is to be moved.
        (0..n).rev().step_by(7).take(200).for_each(|n| rig.hit(n));
        if n % 8 == 0 {
            rig.kick();
            for _ in 0..8 {
                rig.run(std::future::ready(()));
                most = most.max(medium.reads_pending());
                victims_most = victims_most.max(rig.victims());
                rig.turn();
            }
        }
    }
    rig.settle();
    let counts = rig.store().counts();
    println!("{most} bytes, {victims_most} victims, {counts:?}");
    assert!(counts.survivors > 1_000 && victims_most > 1, "this shows nothing");
    // Eight blocks may be reclaimed at once.
    let share = usize::try_from(RECLAIM_READ_BYTES).unwrap() / 8;
    assert!(
        most > share && most <= victims_most * share,
        "{most} bytes at a time"
    );
}

/// Between a move that finds no room and the look at why, another thread may have made some.
#[test]
fn a_survivor_finds_the_room_that_another_thread_made_after_there_was_none() {
    const LEN: usize = 2_000;
    const KEYS: u64 = 1_600;
    const BUFFERS: usize = 3;
    for is_written in [false, true] {
        let mut rig = open(4 << 20, KEYS * 2, sipq(), BUFFERS);
        let mut next = 0;
        let mut set_new = |rig: &Rig| {
            assert!(rig.set(next, LEN).is_some());
            next += 1;
        };
        for _ in 0..KEYS {
            set_new(&rig);
            rig.settle();
        }
        rig.auto_kick = false;
        let reclaim = rig.store().take_early_reclaim().expect("blocks are sealed");
        // All buffers are full.
        while rig.store().has_room(LEN as u64 + 100) {
            set_new(&rig);
        }
        let (free, _, open, _) = rig.store().block_usage();
        assert!(free > 1 && open == BUFFERS, "{free} free, {open} open");
        // Of each block some stay.
        (0..KEYS).rev().step_by(3).for_each(|n| rig.hit(n));
        if is_written {
            let index = Arc::clone(&rig.index);
            *rig.index.after_no_room.lock() = Some(Box::new(move || {
                while let Some(seal) = index.store().take_work() {
                    let open = || index.store().block_usage().2;
                    let before = open();
                    common::perform_elsewhere(&index, seal);
                    assert!(open() < before, "it was written");
                }
            }));
        }
        let sealed = rig.store().totals.snapshot().sealed_blocks;
        rig.run(rig.store().perform(&rig.device, &*rig.index, NOW, reclaim));
        let counts = rig.store().counts();
        assert!(
            rig.index.after_no_room.lock().is_none() && rig.store().totals.snapshot().sealed_blocks > sealed
        );
        assert!(counts.survivors > 5, "{counts:?}");
        assert_eq!(counts.survivors_dropped, 0, "{is_written}");
        rig.settle();
        rig.check_blocks();
    }
}
