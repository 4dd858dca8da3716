//! Background work that is given up, blocks that cannot be written, early reclaims, logs longer than fits DRAM.

use crate::common;

use crate::common::{Random, Rig, options};
use pumice_blocks::Geometry;
use pumice_blocks::{Durability, IN_A_ROW_MAX};
use pumice_device::AlignedBuf;
use pumice_flash::log::LogRecord;
use pumice_flash::{LayoutName, LayoutOptions, LogKind, OpenOptions, Work};
use pumice_testkit::calm;
use pumice_testkit::{FaultPlan, FaultyMedium};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

const KEYS: u64 = 400;

fn medium(bytes: u64, delay: bool) -> Arc<FaultyMedium> {
    let plan = FaultPlan {
        delay,
        ..FaultPlan::default()
    };
    Arc::new(FaultyMedium::new(bytes, 1, plan))
}

/// Random changes without background work; the versions that must be there if anything is.
fn change(rig: &Rig, random: &mut Random, live: &mut HashMap<u64, u64>, steps: u64) {
    for _ in 0..steps {
        let n = random.below(KEYS);
        live.remove(&n);
        let name_len = 100 + random.below(3_000) as usize;
        if let Some(version) = rig.set(n, name_len) {
            live.insert(n, version);
        }
    }
}

fn compare(rig: &Rig, live: &HashMap<u64, u64>) -> usize {
    let mut hits = 0;
    for n in 0..KEYS {
        let got = rig.get(n);
        assert!(got.is_none() || got.as_ref() == live.get(&n), "key {n}: {got:?}");
        hits += usize::from(got.is_some());
    }
    hits
}

/// Polls a piece of work `polls` times, with a turn of the device between, and drops it.
fn give_up(rig: &Rig, work: Work<AlignedBuf>, polls: u64) {
    let future = rig.store().perform(&rig.device, &*rig.index, 1_000, work);
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        let done = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if done.is_ready() {
            return;
        }
        pumice_device::Device::turn(&rig.device, true).unwrap();
    }
}

#[test]
fn work_that_is_dropped_is_done_by_the_next_and_no_stop_waits_for_ever() {
    let medium = medium(2 << 20, true);
    let mut rig = Rig::open(&medium, KEYS, &options(Durability::Power));
    rig.auto_kick = false;
    let (mut random, mut live) = (Random(3), HashMap::new());
    let mut dropped = 0;
    for round in 0..400 {
        change(&rig, &mut random, &mut live, 20);
        // Not at all, a little, nearly to the end.
        if let Some(work) = rig.store().take_work() {
            give_up(&rig, work, round % 7);
            dropped += 1;
        }
        assert!(
            rig.store().is_idle(),
            "round {round}: what was dropped is still claimed"
        );
        if round % 2 == 0 {
            rig.settle();
            compare(&rig, &live);
        }
    }
    assert!(dropped > 100, "{dropped} dropped");
    // What a clean stop waits for.
    rig.store().retire_active();
    rig.settle();
    rig.run(rig.store().quiesce());
    let (counts, reclaimed) = (
        rig.store().totals.snapshot(),
        rig.store().counts().reclaimed_blocks,
    );
    assert!(
        counts.sealed_blocks > 50 && reclaimed > 20 && counts.checkpoints > 1,
        "{counts:?}"
    );
    let hits = compare(&rig, &live);
    assert!(hits > 100, "{hits} hits");
    rig.check_blocks();
    rig.run(rig.store().checkpoint(&rig.device, &*rig.index, 1_000, true))
        .unwrap();
    drop(rig);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Power));
    assert!(rig.recovered.clean);
    assert_eq!(compare(&rig, &live), hits, "blocks that were sealed are there");
}

#[test]
fn a_dropped_early_reclaim_is_due_again() {
    let medium = medium(2 << 20, true);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(4), HashMap::new());
    change(&rig, &mut random, &mut live, 300);
    rig.settle();
    let before = rig.store().counts().reclaimed_blocks;
    let work = rig.store().take_early_reclaim().unwrap();
    // As far as the read of the footer.
    give_up(&rig, work, 1);
    assert!(rig.store().is_idle());
    rig.settle();
    assert_eq!(
        rig.store().counts().reclaimed_blocks,
        before + 1,
        "the victim is swept"
    );
    compare(&rig, &live);
    rig.check_blocks();
}

#[test]
fn who_waits_for_progress_goes_on_when_a_piece_of_work_has_ended_though_another_has_begun() {
    let mut rig = Rig::open(&medium(2 << 20, true), KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(9), HashMap::new());
    change(&rig, &mut random, &mut live, 300);
    rig.settle();
    rig.auto_kick = false;
    let work = rig.store().take_early_reclaim().expect("blocks are sealed");
    let mut waiting = std::pin::pin!(rig.store().wait_for_progress());
    let mut is_over = || {
        let mut context = Context::from_waker(Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    };
    let sealed = rig.store().totals.snapshot().sealed_blocks;
    assert!(!is_over());
    rig.run(rig.store().perform(&rig.device, &*rig.index, 1_000, work));
    change(&rig, &mut random, &mut live, 4);
    rig.store().retire_active();
    let _other = rig.store().take_work().expect("a block is to be written");
    assert!(!rig.store().is_idle() && rig.store().totals.snapshot().sealed_blocks == sealed);
    assert!(is_over());
}

#[test]
fn early_reclaims_keep_to_the_pace_of_sealing() {
    let medium = medium(2 << 20, false);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(5), HashMap::new());
    change(&rig, &mut random, &mut live, 300);
    rig.settle();
    for _ in 0..10 {
        let sealed = rig.store().totals.snapshot().sealed_blocks;
        rig.spawn(
            rig.store()
                .take_early_reclaim()
                .expect("a block was sealed since the last one"),
        );
        rig.settle();
        assert!(
            rig.store().take_early_reclaim().is_none(),
            "nothing was sealed since the last one"
        );
        while rig.store().totals.snapshot().sealed_blocks == sealed {
            change(&rig, &mut random, &mut live, 1);
            rig.settle();
        }
    }
}

#[test]
fn a_block_that_cannot_be_written_is_given_up_until_the_next_start() {
    let medium = medium(2 << 20, false);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(6), HashMap::new());
    let geometry = rig.store().geometry;
    medium.set_plan(FaultPlan {
        bad_writes: [3, 7, 8, 20]
            .map(|block| geometry.block_offset(block)..geometry.block_offset(block) + 1)
            .into(),
        ..FaultPlan::default()
    });
    for _ in 0..200 {
        change(&rig, &mut random, &mut live, 30);
        rig.settle();
        rig.check_blocks();
    }
    let counts = rig.store().totals.snapshot();
    assert_eq!(counts.bad_blocks, 4, "{counts:?} of {}", geometry.blocks);
    assert!(counts.write_errors <= 8, "{counts:?}: tried again and again");
    assert!(compare(&rig, &live) > 200, "the others are used");
    drop(rig);
    medium.set_plan(FaultPlan::default());
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    for _ in 0..60 {
        change(&rig, &mut random, &mut live, 50);
        rig.settle();
    }
    assert_eq!(rig.store().totals.snapshot().bad_blocks, 0);
    assert!(compare(&rig, &live) > 200);
    rig.check_blocks();
}

/// Eight in a row, whichever blocks they are for, and the device is out: its superblocks say so, and it is asked no more.
#[test]
fn a_device_on_which_nothing_can_be_written_is_taken_out() {
    let medium = medium(2 << 20, false);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(6), HashMap::new());
    let before = medium.counts().writes;
    let geometry = Geometry::plan(2 << 20, options(Durability::Process).block_bytes).unwrap();
    let blocks = geometry.data_offset..2 << 20;
    medium.set_plan(FaultPlan {
        bad_writes: [blocks].into(),
        ..FaultPlan::default()
    });
    for _ in 0..50 {
        change(&rig, &mut random, &mut live, 30);
        rig.settle();
        rig.check_blocks();
    }
    let failure = rig.store().shared.failure().expect("it is out");
    assert!(
        failure.remembered && failure.reason.contains("writes of 8 blocks in a row"),
        "{failure:?}"
    );
    // And both superblocks.
    assert_eq!(medium.counts().writes - before, u64::from(IN_A_ROW_MAX) + 2);
    assert_eq!(compare(&rig, &HashMap::new()), 0);
    assert_eq!(rig.store().unsealed_backlog(), 0);
    drop(rig);
    medium.set_plan(FaultPlan::default());
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    assert!(rig.recovered.discarded);
    assert_eq!(compare(&rig, &HashMap::new()), 0);
}

#[test]
fn a_block_that_fails_now_and_then_stays() {
    let medium = medium(2 << 20, false);
    let rig = Rig::open(&medium, KEYS, &options(Durability::Process));
    let (mut random, mut live) = (Random(7), HashMap::new());
    for round in 0..100 {
        // Each block fails once in its turn, never twice in a row.
        let write_error = if round % 25 < 10 { 0.0 } else { 0.05 };
        medium.set_plan(FaultPlan {
            write_error,
            ..FaultPlan::default()
        });
        change(&rig, &mut random, &mut live, 60);
        rig.settle();
        compare(&rig, &live);
        rig.check_blocks();
    }
    let counts = rig.store().totals.snapshot();
    assert!(
        counts.write_errors > 3 && counts.bad_blocks * 2 < counts.write_errors,
        "{counts:?}"
    );
}

#[test]
fn a_log_longer_than_the_table_of_void_versions_is_read_in_rounds() {
    // 64 MiB of log: more records than fit the table at once.
    let bytes = 8 << 30;
    let geometry = Geometry::plan(bytes, 64 << 10).unwrap();
    assert_eq!(geometry.log_slots, 2 << 20);
    let medium = medium(bytes, false);
    let wide = options(Durability::Process);
    let rig = Rig::open(&medium, KEYS, &wide);
    let (mut random, mut live) = (Random(8), HashMap::new());
    for _ in 0..10 {
        change(&rig, &mut random, &mut live, 50);
        rig.settle();
    }
    rig.store().retire_active();
    rig.settle();
    // Records of keys that nobody has, and among them deletes of some that are there.
    for n in 0..400_000u64 {
        let version = rig.store().next_version();
        rig.store()
            .append_log(&rig.device, LogKind::Invalidate, common::hash(KEYS + n), version);
        if n % 4_000 == 0 {
            rig.delete(n / 4_000 * 3);
            live.remove(&(n / 4_000 * 3));
        }
    }
    let wanted = live.len();
    let (log_used, _) = rig.store().journal.log.usage();
    drop(rig);
    medium.crash();
    medium.restart();
    let rig = Rig::open(&medium, KEYS, &wide);
    assert_eq!(rig.recovered.log_records, log_used);
    assert_eq!(compare(&rig, &live), wanted, "all that is live, and nothing else");
    assert!(wanted < 300 && wanted > 100, "{wanted} live");
    assert_eq!(
        pumice_flash::recovery_bytes(&geometry),
        (4 << 20) + (256 << 10) + (1 << 20) + 192 * u64::from(geometry.blocks)
    );
    assert!(size_of::<LogRecord>() == 32);
}

#[test]
fn a_move_that_is_broken_off_goes_on_with_the_rest() {
    let medium = Arc::new(FaultyMedium::new(4 << 20, 9, calm()));
    let mut options = options(Durability::Process);
    options.layout = common::ripq();
    options.buffers_max = 12;
    let rig = Rig::open(&medium, KEYS * 4, &options);
    for n in 0..KEYS * 4 {
        rig.set(n, 2_000);
        rig.settle();
    }
    // What stands at the two ends of a block is raised: more than one read brings it.
    let geometry = rig.store().geometry;
    let at = |n| {
        let location = rig.index.location(n)?;
        let block = geometry.block_of(location.offset)?;
        Some((block, location.offset - geometry.block_offset(block)))
    };
    let is_at_an_end = |offset| !(8 << 10..40 << 10).contains(&offset);
    let raised: Vec<(u64, u32)> = (0..KEYS * 4)
        .filter_map(|n| Some((n, at(n)?)))
        .filter(|(_, (_, offset))| is_at_an_end(*offset))
        .map(|(n, (block, _))| (n, block))
        .collect();
    for (n, _) in &raised {
        assert!(rig.get(*n).is_some());
    }
    rig.settle();
    let work = rig.store().take_early_reclaim().expect("blocks are sealed");
    let survivors = || rig.store().counts().survivors;
    let before = survivors();
    {
        let future = rig.store().perform(&rig.device, &*rig.index, 1_000, work);
        let mut future = std::pin::pin!(future);
        while survivors() == before {
            let done = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(done.is_pending(), "it had objects to move");
            pumice_device::Device::turn(&rig.device, true).unwrap();
        }
    }
    let is_moved = |(n, block): &&(u64, u32)| at(*n).is_some_and(|(now, _)| now != *block);
    let (_, victim) = raised.iter().find(is_moved).expect("some were moved");
    let of_victim: Vec<u64> = raised
        .iter()
        .filter(|(_, block)| block == victim)
        .map(|(n, _)| *n)
        .collect();
    let moved = (survivors() - before) as usize;
    assert!(
        moved < of_victim.len(),
        "{moved} of {}: it was dropped too late",
        of_victim.len()
    );
    rig.settle();
    for n in &of_victim {
        assert!(rig.get(*n).is_some(), "key {n} was raised, and went");
    }
    rig.check_blocks();
}

#[test]
fn a_checkpoint_gives_others_their_turn_while_it_looks_keys_up() {
    let mut options = options(Durability::Process);
    options.layout = LayoutOptions::new(LayoutName::Ripq, Some("gdsf-2"), None, None).unwrap();
    let keys = 6_000;
    let rig = Rig::open(&medium(8 << 20, true), keys, &options);
    for n in 0..keys {
        rig.set(n, 200);
        rig.settle();
    }
    let future = rig.store().checkpoint(&rig.device, &*rig.index, 1_000, false);
    let mut future = std::pin::pin!(future);
    let locks = || rig.index.locks.load(Ordering::Relaxed);
    let (start, mut most) = (locks(), 0);
    loop {
        let before = locks();
        let done = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        most = most.max(locks() - before);
        if done.is_ready() {
            break;
        }
        pumice_device::Device::turn(&rig.device, true).unwrap();
    }
    let total = locks() - start;
    println!("{total} locks, {most} in a turn");
    assert!(total > 1_100 && most < 1_100);
}

#[test]
fn a_block_that_died_before_its_beginning_was_written_leaves_that_of_its_next_life_alone() {
    let options = OpenOptions {
        flush_interval_secs: 5,
        ..options(Durability::Process)
    };
    let mut rig = Rig::open(&medium(1 << 20, false), KEYS, &options);
    rig.auto_kick = false;
    let home = |n| rig.index.location(n).unwrap().offset / common::BLOCK_BYTES;
    rig.set(0, 2_000).unwrap();
    let first = home(0);
    rig.store().flush_aged(1_000);
    rig.store().flush_aged(1_005);
    // The write is due, and all that it was to write dies: blocks die empty until that one is filled again.
    loop {
        rig.remove(0);
        rig.store().retire_active();
        let seal = rig.store().take_work().unwrap();
        rig.run(rig.store().perform(&rig.device, &*rig.index, 1_000, seal));
        rig.set(0, 1_000).unwrap();
        if home(0) == first {
            break;
        }
    }
    let flush = rig.store().take_work().unwrap();
    rig.run(rig.store().perform(&rig.device, &*rig.index, 1_000, flush));
    assert_eq!(rig.store().totals.snapshot().prefix_writes, 0);
    rig.check_blocks();
}
