//! The flush interval: after a crash everything is there that had been there for longer, and nothing that was deleted or
//! overwritten.

use crate::common::{KINDS, Random, Rig, key, of_kind};
use pumice::{CacheOptions, Durability};
use pumice_device::{MemDevice, MemMedium, SECTOR_BYTES};
use pumice_world::ManualClock;
use std::collections::HashMap;
use std::sync::Arc;

const INTERVAL_SECS: u32 = 4;
const KEYS: u64 = 400;

/// What a key held last, and since when.
type Model = HashMap<u64, (u32, Option<Vec<u8>>)>;

struct Lives {
    medium: Arc<MemMedium>,
    clock: Arc<ManualClock>,
    options: CacheOptions,
}

impl Lives {
    fn new(kind: u64, durability: Durability) -> Self {
        Self {
            medium: Arc::new(MemMedium::new(16 << 20)),
            clock: Arc::new(ManualClock::new(1_000)),
            options: CacheOptions {
                flush_interval_secs: INTERVAL_SECS,
                durability,
                ..of_kind(kind)
            },
        }
    }

    fn open(&self) -> Rig<MemDevice> {
        Rig::open(
            MemDevice::new(Arc::clone(&self.medium)),
            self.clock.clone(),
            self.options,
        )
    }
}

/// A second of sets and deletes of random keys, and the look at its end.
fn second(rig: &Rig<MemDevice>, model: &mut Model, random: &mut Random, operations: u64) {
    let now = rig.clock_secs();
    for _ in 0..operations {
        let n = random.below(KEYS);
        let value = crate::common::value(n, random.next_u64(), random.below(300) as usize);
        let value = if random.below(8) == 0 {
            rig.run(rig.cache.delete(&rig.cx, &key(n)));
            None
        } else {
            assert!(rig.set(&key(n), &value));
            Some(value)
        };
        model.insert(n, (now, value));
    }
    rig.clock.advance_secs(1);
    rig.cache.tick(&rig.cx);
    rig.settle();
}

/// After a crash: what was older than the interval is there, and nothing is older than what was last done.
fn compare(rig: &Rig<MemDevice>, model: &mut Model, what: &str) {
    let now = rig.clock_secs();
    let (mut wanted, mut missing) = (0, 0);
    for n in 0..KEYS {
        let got = rig.get(&key(n));
        let (since, value) = model.get(&n).cloned().unwrap_or((0, None));
        assert!(
            got.is_none() || got == value,
            "{what}: key {n} came back as it was before"
        );
        if value.is_some() && since + INTERVAL_SECS <= now {
            wanted += 1;
            missing += u64::from(got.is_none());
        }
        if got.is_none() {
            model.remove(&n);
        }
    }
    assert!(
        missing == 0,
        "{what}: {missing} of {wanted} were older than the interval, and are lost"
    );
}

#[test]
fn a_crash_loses_nothing_older_than_the_interval() {
    for kind in 0..KINDS {
        for durability in [Durability::Process, Durability::Power] {
            let lives = Lives::new(kind, durability);
            let mut random = Random(kind + 1);
            let mut model = Model::new();
            let (mut prefixes, mut padding, mut writes) = (0, 0, 0);
            for life in 0..8 {
                let rig = lives.open();
                let index = lives.options.index.kind();
                let what = format!("kind {kind}, {index}, {durability:?}, life {life}");
                assert!(!rig.recovered.discarded, "{what}");
                prefixes += rig.recovered.prefixes;
                compare(&rig, &mut model, &what);
                rig.check();
                for _ in 0..3 + random.below(20) {
                    let operations = [0, 3, 40][random.below(3) as usize];
                    second(&rig, &mut model, &mut random, operations);
                    let age = rig.cache.stats().unwritten_secs;
                    assert!(age < INTERVAL_SECS, "{what}: {age} s");
                }
                let blocks = rig.cache.stats().blocks;
                writes += blocks.prefix_writes;
                padding += blocks.prefix_padding_bytes;
                // A crash: what is in buffers is gone.
            }
            println!("kind {kind}: {prefixes} prefixes found of {writes} written");
            assert!(
                prefixes > 4 && writes > 8,
                "kind {kind}: {prefixes} found, {writes} written"
            );
            assert!(
                padding < writes * SECTOR_BYTES as u64,
                "kind {kind}: {padding} bytes"
            );
        }
    }
}

#[test]
fn an_idle_cache_writes_nothing_and_seals_no_block_for_it() {
    for kind in 0..KINDS {
        let lives = Lives::new(kind, Durability::Process);
        let rig = lives.open();
        second(&rig, &mut Model::new(), &mut Random(kind), 20);
        let written = || {
            let blocks = rig.cache.stats().blocks;
            (blocks.written_bytes, blocks.prefix_writes, blocks.sealed_blocks)
        };
        let before = written();
        for _ in 0..INTERVAL_SECS {
            second(&rig, &mut Model::new(), &mut Random(kind), 0);
        }
        let (bytes, writes, sealed) = written();
        assert!(
            writes > 0 && sealed == before.2,
            "kind {kind}: {writes} writes, {sealed} blocks"
        );
        // The records, a sector for each block, and log records.
        let most = 20 * 400 + writes * (SECTOR_BYTES as u64 + 32) + 20 * 32;
        assert!(
            bytes - before.0 <= most,
            "kind {kind}: {} bytes",
            bytes - before.0
        );
        for _ in 0..100 {
            second(&rig, &mut Model::new(), &mut Random(kind), 0);
        }
        assert_eq!(written(), (bytes, writes, sealed), "kind {kind}");
        assert_eq!(rig.cache.stats().unwritten_secs, 0);
    }
}

#[test]
fn without_an_interval_nothing_is_written_before_its_block_is_full() {
    let mut lives = Lives::new(0, Durability::Process);
    lives.options.flush_interval_secs = 0;
    let rig = lives.open();
    second(&rig, &mut Model::new(), &mut Random(1), 20);
    for _ in 0..100 {
        second(&rig, &mut Model::new(), &mut Random(1), 0);
    }
    assert_eq!(rig.cache.stats().blocks.prefix_writes, 0);
    assert!(rig.cache.stats().unwritten_secs >= 100);
}
