//! The queue of layout `ripq` through restarts.

use crate::common::{Random, Rig, hash, options, ripq};
use pumice_blocks::{Durability, SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_flash::{LayoutName, LayoutOptions, LogKind, OpenOptions};
use pumice_record::SliceId;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use std::collections::HashMap;
use std::sync::Arc;

const KEYS: u64 = 3_000;
const NOW: u32 = 1_000;

fn open(medium: &Arc<FaultyMedium>, layout: LayoutOptions) -> Rig {
    open_with(medium, layout, 12)
}

fn open_with(medium: &Arc<FaultyMedium>, layout: LayoutOptions, buffers_max: usize) -> Rig {
    let options = OpenOptions {
        layout,
        buffers_max,
        ..options(Durability::Process)
    };
    Rig::open(medium, KEYS, &options)
}

/// Sets and gets, some keys more often than others, until every block has been reclaimed several times.
fn fill(rig: &Rig, random: &mut Random) {
    for _ in 0..9_000 {
        let n = random.below(KEYS).min(random.below(KEYS));
        if rig.get(n).is_none() {
            rig.set(n, 200 + random.below(4_000) as usize);
        }
        rig.settle();
    }
}

/// Where each key stands.
fn positions(rig: &Rig) -> HashMap<u64, f64> {
    let position = |n| {
        let mapping = pumice_flash::Mappings::with(&*rig.index, hash(n), |shard| shard.find(hash(n)).live())?;
        Some((n, rig.store().order.position(mapping).expect("ripq has a queue")))
    };
    (0..KEYS).filter_map(position).collect()
}

fn medium() -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(4 << 20, 3, FaultPlan::default()))
}

fn stop(rig: Rig) {
    rig.store().retire_active();
    rig.settle();
    let checkpoint = rig.store().checkpoint(&rig.device, &*rig.index, NOW, true);
    rig.run(checkpoint).unwrap();
}

/// Sets keys that are not there, and checks where each stands right after: at the top, or at the insertion point of slru-3.
fn set_new(rig: &Rig, keys: std::ops::Range<u64>, is_filling: bool) {
    for n in keys {
        rig.set(n, 200 + (n * 7919 % 4_000) as usize).unwrap();
        rig.settle();
        let position = positions(rig)[&n];
        let is_right = if is_filling {
            position > 0.9
        } else {
            position < 0.5
        };
        assert!(is_right, "key {n} stands at {position}, filling {is_filling}");
    }
}

#[test]
fn while_a_cache_fills_new_objects_go_to_the_top() {
    let layout = LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), Some(0.15), None).unwrap();
    let medium = medium();
    let rig = open(&medium, layout);
    // The first blocks are most of the queue.
    (0..400).for_each(|n| {
        assert!(rig.set(n, 2_000).is_some());
        rig.settle();
    });
    set_new(&rig, 400..900, true);
    // Whatever their sizes, those that came first are the next to go.
    let filled = positions(&rig);
    for n in 0..800 {
        assert!(filled[&n] < filled[&(n + 100)], "key {n}");
    }
    // A hit of what stands above its new place, be it a write, leaves it there.
    rig.hit(890);
    assert!(rig.set_again(891, 2_000).is_some());
    assert!(positions(&rig)[&890] > 0.9 && positions(&rig)[&891] > 0.9);
    stop(rig);
    let rig = open(&medium, layout);
    set_new(&rig, 900..1_000, true);
    assert_eq!(rig.store().counts().reclaimed_blocks, 0);
    (1_000..2_000).for_each(|n| {
        assert!(rig.set(n, 2_000).is_some());
        rig.settle();
    });
    assert!(rig.store().counts().reclaimed_blocks > 0);
    set_new(&rig, 2_000..2_100, false);
    stop(rig);
    let rig = open(&medium, layout);
    set_new(&rig, 2_100..2_200, false);
    // After a flush it fills again.
    (0..2_200).for_each(|n| rig.delete(n));
    rig.store().flush_done();
    (0..400).for_each(|n| {
        assert!(rig.set(n, 2_000).is_some());
        rig.settle();
    });
    set_new(&rig, 400..600, true);
    rig.check_blocks();
    stop(rig);
    // What is left of the objects from before the flush does not make it full.
    set_new(&open(&medium, layout), 600..700, true);
}

#[test]
fn a_clean_stop_keeps_the_order_exactly() {
    for policy in ["slru-3", "gdsf-2"] {
        let layout = LayoutOptions::new(LayoutName::Ripq, Some(policy), Some(0.15), None).unwrap();
        let medium = medium();
        let rig = open(&medium, layout);
        fill(&rig, &mut Random(1));
        rig.store().retire_active();
        rig.settle();
        rig.run(rig.store().checkpoint(&rig.device, &*rig.index, NOW, true))
            .unwrap();
        let before = positions(&rig);
        assert!(rig.store().counts().survivors > 100 && before.len() > 500);
        let priorities = rig.store().order.priorities();
        assert_eq!(
            priorities.len() > 10_000,
            policy == "gdsf-2",
            "a histogram and a sample"
        );
        drop(rig);
        let rig = open(&medium, layout);
        assert!(rig.recovered.clean);
        assert!(
            rig.store().order.priorities() == priorities,
            "{policy}: other priorities"
        );
        let after = positions(&rig);
        assert_eq!(before.len(), after.len());
        for (n, position) in &before {
            assert!(
                (position - after[n]).abs() < 1e-9,
                "{policy}: {n} was at {position}, is at {}",
                after[n]
            );
        }
        rig.check_blocks();
    }
}

#[test]
fn a_clean_stop_keeps_the_keys_of_sipq() {
    for policy in ["slru-3", "gdsf-2"] {
        let layout = LayoutOptions::new(LayoutName::Sipq, Some(policy), None, Some(0.5)).unwrap();
        let medium = medium();
        let rig = open(&medium, layout);
        let mut random = Random(1);
        fill(&rig, &mut random);
        assert!(rig.store().counts().survivors > 100);
        rig.store().retire_active();
        rig.settle();
        rig.run(rig.store().checkpoint(&rig.device, &*rig.index, NOW, true))
            .unwrap();
        let (before, priorities) = (rig.store().order.virtual_keys(), rig.store().order.priorities());
        assert!(before.len() > 200);
        drop(rig);
        let rig = open(&medium, layout);
        assert!(rig.recovered.clean);
        assert_eq!(rig.store().order.virtual_keys(), before, "{policy}");
        assert!(
            rig.store().order.priorities() == priorities,
            "{policy}: other priorities"
        );
        // And they still decide what stays.
        let survivors = rig.store().counts().survivors;
        fill(&rig, &mut random);
        assert!(rig.store().counts().survivors > survivors + 100);
        rig.check_blocks();
    }
}

/// Sets a key that is new, and tells at which share of the virtual cache's keys it stands.
fn share_of_new_key(rig: &Rig, n: u64) -> f64 {
    let before = rig.store().order.virtual_keys();
    assert!(rig.set(n, 200).is_some());
    rig.settle();
    let after = rig.store().order.virtual_keys();
    let known: std::collections::HashSet<_> = before.iter().collect();
    let at = after.iter().position(|hash| !known.contains(hash));
    at.expect("the new key") as f64 / (after.len() - 1) as f64
}

/// Stops where nothing of a block has to be closed, and starts again.
fn stop_and_open(rig: Rig, medium: &Arc<FaultyMedium>, layout: LayoutOptions) -> Rig {
    rig.store().retire_active();
    rig.settle();
    rig.run(rig.store().checkpoint(&rig.device, &*rig.index, NOW, true))
        .unwrap();
    drop(rig);
    let rig = open(medium, layout);
    assert!(rig.recovered.clean);
    rig
}

#[test]
fn a_clean_stop_keeps_what_the_queue_of_sipq_has_learned() {
    let layout = LayoutOptions::new(LayoutName::Sipq, Some("slru-3"), None, Some(0.5)).unwrap();
    let medium = medium();
    let mut rig = open(&medium, layout);
    (0..1_000).for_each(|n| {
        assert!(rig.set(n, 200).is_some());
        rig.settle();
    });
    // Policies with absolute priorities do not look at it, but pass it on.
    let gdsf = LayoutOptions::new(LayoutName::Sipq, Some("gdsf-2"), None, Some(0.5)).unwrap();
    rig = stop_and_open(rig, &medium, gdsf);
    rig = stop_and_open(rig, &medium, layout);
    let share = share_of_new_key(&rig, 1_001);
    assert!(share > 0.9, "at {share} of a queue that fills");
    // Of objects so small, footers are a tenth of each block.
    for n in 10_000..60_000 {
        assert!(rig.set(n, 200).is_some());
        if n % 100 == 0 {
            rig.settle();
        }
    }
    rig.settle();
    let before = rig.store().order.virtual_keys().len();
    // What was deleted leaves room; it is no queue that fills for that.
    (59_900..60_000).for_each(|n| rig.delete(n));
    assert!(rig.store().order.virtual_keys().len() + 50 < before);
    rig = stop_and_open(rig, &medium, layout);
    let share = share_of_new_key(&rig, 1_002);
    assert!((0.25..0.4).contains(&share), "at {share} of a full queue");
    for n in 60_000..63_000 {
        assert!(rig.set(n, 200).is_some());
        if n % 100 == 0 {
            rig.settle();
        }
    }
    let after = rig.store().order.virtual_keys().len();
    assert!(
        after.abs_diff(before) * 100 < before,
        "{after} keys fit, and {before} did"
    );
    // After a flush it fills again, be it that a crash comes after the log record.
    rig = stop_and_open(rig, &medium, layout);
    let version = rig.store().next_version();
    rig.store().append_log(&rig.device, LogKind::FlushAll, 0, version);
    drop(rig);
    rig = open(&medium, layout);
    assert!(rig.store().order.virtual_keys().is_empty());
    (70_000..70_100).for_each(|n| assert!(rig.set(n, 200).is_some()));
    rig.settle();
    let share = share_of_new_key(&rig, 80_000);
    assert!(share > 0.9, "at {share} of a queue that was flushed");
}

/// Crashes, and compares the keys of `sipq` before and after; at least `share` of them are back.
fn crash_under_sipq(rig: Rig, medium: &Arc<FaultyMedium>, layout: LayoutOptions, share: f64) {
    let before = rig.store().order.virtual_keys();
    drop(rig);
    let rig = open(medium, layout);
    assert!(!rig.recovered.clean);
    let after = rig.store().order.virtual_keys();
    let known: std::collections::HashSet<_> = after.iter().collect();
    assert_eq!(known.len(), after.len(), "each once");
    let kept = before.iter().filter(|hash| known.contains(hash)).count();
    println!("{kept} of {} keys", before.len());
    assert!(before.len() > 200 && kept as f64 > before.len() as f64 * share);
    for hash in after {
        let mapping = pumice_flash::Mappings::with(&*rig.index, hash, |shard| shard.find(hash).live());
        assert!(mapping.is_some(), "a key without an object");
    }
    rig.check_blocks();
}

#[test]
fn a_crash_keeps_most_keys_of_sipq_and_none_of_what_is_gone() {
    for policy in ["slru-3", "gdsf-2"] {
        let layout = LayoutOptions::new(LayoutName::Sipq, Some(policy), None, Some(0.5)).unwrap();
        let medium = medium();
        let rig = open(&medium, layout);
        fill(&rig, &mut Random(1));
        assert!(rig.store().totals.snapshot().checkpoints > 0, "from time to time");
        crash_under_sipq(rig, &medium, layout, 0.6);
    }
}

#[test]
fn a_crash_before_the_first_checkpoint_keeps_the_keys_of_sipq() {
    let layout = LayoutOptions::new(LayoutName::Sipq, Some("slru-3"), None, Some(0.9)).unwrap();
    let medium = medium();
    let rig = open(&medium, layout);
    for n in 0..900 {
        rig.set(n, 2_000);
        rig.settle();
    }
    let counts = rig.store().totals.snapshot();
    assert!(counts.checkpoints == 0 && counts.sealed_blocks > 20, "{counts:?}");
    crash_under_sipq(rig, &medium, layout, 0.95);
}

/// Crashes some time after a checkpoint, and returns how far off objects are on average, as a share of the queue.
fn off_after_a_crash(explicit_checkpoint: bool) -> f64 {
    let medium = medium();
    let rig = open(&medium, ripq());
    let mut random = Random(2);
    fill(&rig, &mut random);
    if explicit_checkpoint {
        rig.run(rig.store().checkpoint(&rig.device, &*rig.index, NOW, false))
            .unwrap();
    }
    assert!(
        rig.store().totals.snapshot().checkpoints > 0,
        "the order is kept from time to time"
    );
    // Some blocks are reclaimed and written again after the checkpoint.
    for _ in 0..120 {
        let n = random.below(KEYS);
        if rig.get(n).is_none() {
            rig.set(n, 3_000);
        }
        rig.settle();
    }
    let before = positions(&rig);
    drop(rig);
    let rig = open(&medium, ripq());
    assert!(!rig.recovered.clean);
    let after = positions(&rig);
    let differences: Vec<f64> = (after.iter())
        .filter_map(|(n, position)| Some((before.get(n)? - position).abs()))
        .collect();
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    println!(
        "{} of {} objects, {mean:.3} off on average",
        differences.len(),
        before.len()
    );
    assert!(differences.len() * 10 > before.len() * 8);
    rig.check_blocks();
    mean
}

#[test]
fn a_crash_keeps_the_order_roughly() {
    let mean = off_after_a_crash(false);
    // An order that is lost altogether is more than a third off.
    assert!(mean < 0.25, "{mean}");
}

#[test]
fn a_crash_soon_after_a_checkpoint_keeps_the_order() {
    let mean = off_after_a_crash(true);
    assert!(mean < 0.12, "{mean}");
}

/// How far apart the slices of one object stand that are written while others come and are hit, as a share of the queue.
fn spread_of_slices(seed: u64) -> f64 {
    const SLICES: u64 = 30;
    let medium = medium();
    // Many sections, so that which one is nearest to the priority changes often, and a buffer for each: where none is free, what room
    // there is counts, wherever that is.
    let layout = LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), Some(0.05), None).unwrap();
    let rig = open_with(&medium, layout, 32);
    let mut random = Random(seed);
    fill(&rig, &mut random);
    let first = KEYS - SLICES;
    // What these keys had before is of no interest.
    (first..KEYS).for_each(|n| rig.delete(n));
    let set = rig.store().next_version();
    for at in 0..SLICES {
        let stored = rig.append(first + at, 1_000, set, SliceId::Part(u32::try_from(at).unwrap()));
        assert!(stored.is_some(), "slice {at}");
        rig.settle();
        // Others move the borders of sections.
        rig.set(random.below(first), 5_000);
        rig.settle();
    }
    let positions = positions(&rig);
    let slices = (first..KEYS).map(|n| positions[&n]);
    let (low, high) = slices.fold((1.0f64, 0.0f64), |(low, high), position| {
        (low.min(position), high.max(position))
    });
    rig.check_blocks();
    high - low
}

#[test]
fn slices_of_an_object_stand_beside_each_other() {
    let spreads: Vec<f64> = (0..40).map(spread_of_slices).collect();
    println!("{spreads:?}");
    assert!(spreads.iter().all(|spread| *spread < 0.09), "{spreads:?}");
}

#[test]
fn another_layout_is_refused() {
    let medium = medium();
    drop(open(&medium, ripq()));
    let executor = pumice_world::Executor::new();
    let device = pumice_testkit::FaultyDevice::new(Arc::clone(&medium));
    let fifo = options(Durability::Process);
    let opened: Result<_, std::convert::Infallible> =
        executor.block_on(pumice_flash::recovery::open_superblock(&device, &fifo), || Ok(()));
    let message = opened.unwrap().unwrap_err().to_string();
    assert!(
        message.contains("layout is fifo") && message.contains("ripq"),
        "{message}"
    );
}

#[test]
fn settings_that_mean_nothing_are_told_from_damage() {
    let medium = medium();
    drop(open(&medium, ripq()));
    let device = FaultyDevice::new(Arc::clone(&medium));
    for slot in [0, SECTOR_BYTES as u64] {
        let mut sector = vec![0; SECTOR_BYTES];
        device.read_log(slot, &mut sector).unwrap();
        let SlotContent::Valid(mut superblock) = Superblock::decode(&sector) else {
            panic!("the superblock at byte {slot} is not whole");
        };
        // A layout that there is not.
        superblock.own[8] = 99;
        device.append_log(slot, &superblock.encode()).unwrap();
    }
    let executor = pumice_world::Executor::new();
    let options = OpenOptions {
        layout: ripq(),
        ..options(Durability::Process)
    };
    let opened: Result<_, std::convert::Infallible> = executor
        .block_on(pumice_flash::recovery::open_superblock(&device, &options), || {
            Ok(())
        });
    let message = opened.unwrap().unwrap_err().to_string();
    assert!(
        message.contains("superblocks of the device are whole") && message.contains("--reformat"),
        "{message}"
    );
}
