//! The store before a volume, against the volume's own bytes: what is cached equals it at any time, after evictions, reclaims and crashes.

use crate::store::{CHUNK_BYTES, Rig, content, options};
use bytes::Bytes;
use pumice_blocks::{BudgetLevel, Durability};
use pumice_chunk::store::{BudgetOwner, ChunkCounts, Filled, Found, Options};
use pumice_device::Device;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_testkit::{Store, calm, crash_at};
use pumice_world::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNKS: u64 = 300;
/// Contents that many chunks share.
const CLASSES: u64 = 25;

/// One bucket of mappings, so that most writes evict.
fn small(durability: Durability) -> Options {
    Options {
        chunks: CHUNKS,
        mappings: 128,
        durability,
        // Process: the machine runs on.
        boot: u64::from(durability == Durability::Process),
        ..options()
    }
}

struct Run {
    rig: Rig,
    medium: Arc<FaultyMedium>,
    volume: Vec<Vec<u8>>,
    /// What a power cut leaves of it, at least.
    flushed: Vec<Vec<u8>>,
    random: Random,
    options: Options,
    /// Reads that the cache answered.
    hits: u64,
    counts: ChunkCounts,
}

impl Run {
    fn new(seed: u64, durability: Durability) -> Self {
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, calm()));
        let options = small(durability);
        let mut rig = Rig::try_open(FaultyDevice::new(Arc::clone(&medium)), &options).unwrap();
        if seed % 2 == 1 {
            rig.compute_later();
        }
        Self {
            rig,
            medium,
            volume: vec![vec![0; CHUNK_BYTES as usize]; CHUNKS as usize],
            flushed: vec![vec![0; CHUNK_BYTES as usize]; CHUNKS as usize],
            random: Random(seed),
            options,
            hits: 0,
            counts: ChunkCounts::default(),
        }
    }

    fn address(&mut self) -> u64 {
        match self.random.below(3) {
            0 => self.random.below(CHUNKS),
            _ => self.random.below(CHUNKS / 6),
        }
    }

    /// A write of some bytes; where the cache has crashed before the volume was written, the volume has the old ones.
    fn write(&mut self, address: u64, start: u32, bytes: &[u8], is_cached: bool) {
        let (store, device) = (Arc::clone(&self.rig.store), self.rig.device.clone());
        let mut guard = store.begin_write(&device, address..address + 1).unwrap();
        // A device that has failed is fenced by background work.
        self.rig.kick();
        let committed = self.rig.run(guard.commit(&device));
        if committed.is_err() || self.medium.is_crashed() {
            return;
        }
        self.volume[address as usize][start as usize..][..bytes.len()].copy_from_slice(bytes);
        if is_cached {
            self.rig
                .run(guard.fill(&device, address, start, Bytes::copy_from_slice(bytes)));
        }
    }

    /// A read, and a fill where the cache had not all.
    fn read(&mut self, address: u64) {
        let (store, device) = (Arc::clone(&self.rig.store), self.rig.device.clone());
        if self.check(address) {
            return;
        }
        let ticket = store.begin_fill(address);
        let bytes = self.volume[address as usize].clone();
        self.rig.run(store.fill(&device, ticket, 0, bytes.into()));
    }

    /// Whether the whole chunk is cached; what is cached is right.
    fn check(&mut self, address: u64) -> bool {
        let chunk = self
            .rig
            .run(self.rig.store.read(&self.rig.device, address))
            .unwrap();
        let Some(chunk) = chunk else { return false };
        let range = chunk.range();
        let wanted = &self.volume[address as usize][range.start as usize..range.end as usize];
        assert!(chunk.bytes == wanted, "chunk {address}, bytes {range:?}");
        self.hits += 1;
        range == (0..CHUNK_BYTES)
    }

    fn step(&mut self) {
        let address = self.address();
        match self.random.below(12) {
            0..4 => {
                let value = match self.random.below(3) {
                    0 => self.random.next_u64(),
                    _ => self.random.below(CLASSES),
                };
                self.write(address, 0, &content(value), true);
            }
            4..6 => {
                let start = self.random.below(u64::from(CHUNK_BYTES)) as u32;
                let len = 1 + self.random.below(u64::from(CHUNK_BYTES - start)) as usize;
                let bytes = content(self.random.next_u64());
                self.write(address, start, &bytes[..len], true);
            }
            6 => self.write(address, 0, &[0; CHUNK_BYTES as usize], false),
            7 => {
                // A fill that a write overtakes, and one that began before a write ended.
                let (store, device) = (Arc::clone(&self.rig.store), self.rig.device.clone());
                let early = store.begin_fill(address);
                let old = Bytes::copy_from_slice(&self.volume[address as usize]);
                self.write(address, 0, &content(self.random.0), true);
                let filled = self.rig.run(store.fill(&device, early, 0, old.clone()));
                assert_eq!(filled, Filled::Late);
                let guard = store.begin_write(&device, address..address + 1).unwrap();
                let during = store.begin_fill(address);
                let filled = self.rig.run(store.fill(&device, during, 0, old.clone()));
                assert_eq!(filled, Filled::Late);
                drop(guard);
                let filled = self.rig.run(store.fill(&device, during, 0, old.clone()));
                assert_eq!(filled, Filled::Late);
            }
            _ => self.read(address),
        }
        self.rig.kick();
        if self.random.below(20) == 0 {
            let all = self.random.below(2) == 0;
            self.flush(all);
        }
        match self.random.below(6) {
            0 => self.rig.settle(),
            1..4 => self.rig.turn(),
            _ => {}
        }
    }

    /// A flush of the volume, and what follows from it.
    fn flush(&mut self, all: bool) {
        let (store, device) = (Arc::clone(&self.rig.store), self.rig.device.clone());
        let quiet = store.addresses().quiet_regions(all);
        self.flushed.clone_from(&self.volume);
        let _ = self.rig.run(store.clear(&device, &quiet));
    }

    /// The volume loses some of what was not flushed.
    fn cut_power(&mut self) {
        self.medium.cut_power();
        for (now, flushed) in self.volume.iter_mut().zip(&mut self.flushed) {
            match self.random.below(2) {
                0 => now.clone_from(flushed),
                _ => flushed.clone_from(now),
            }
        }
    }

    fn live(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.medium.is_crashed() {
                break;
            }
            self.step();
        }
        self.counts += self.rig.store.counts();
    }

    /// The next life; whether anything is left.
    fn restart(mut self) -> (Self, bool) {
        drop(self.rig);
        self.medium.restart();
        self.medium.set_plan(calm());
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        self.rig = Rig::try_open(device, &self.options).unwrap();
        self.rig.check();
        for address in 0..CHUNKS {
            self.check(address);
        }
        let is_left = self.rig.found == Found::Cache;
        (self, is_left)
    }
}

#[test]
fn what_is_cached_is_what_the_volume_has() {
    let mut totals = ChunkCounts::default();
    let mut hits = 0;
    for seed in 0..12 {
        let mut run = Run::new(seed, Durability::Process);
        run.live(3_000);
        run.rig.settle();
        run.rig.check();
        for address in 0..CHUNKS {
            run.check(address);
        }
        totals += run.counts;
        hits += run.hits;
    }
    println!("{hits} hits, {totals:?}");
    assert!(
        hits > 8_000 && totals.duplicates > 2_000 && totals.moved_contents > 200,
        "{totals:?}"
    );
    assert!(
        totals.evicted_mappings > 1_000 && totals.reclaimed_blocks > 200,
        "{totals:?}"
    );
    assert!(totals.refused_no_room < totals.stored_contents / 20, "{totals:?}");
}

#[test]
fn a_crash_at_any_write_brings_nothing_void_back() {
    let (mut crashes, mut hits) = (0, 0);
    for point in (1..).step_by(3) {
        let mut run = Run::new(point, Durability::Process);
        run.medium.set_plan(crash_at(point));
        run.live(500);
        let is_reached = run.medium.is_crashed();
        if !is_reached {
            run.medium.crash();
        }
        run.hits = 0;
        let (mut run, is_left) = run.restart();
        assert!(is_left, "crash at {point}: it starts empty");
        run.live(60);
        run.medium.crash();
        let (run, is_left) = run.restart();
        assert!(is_left, "crash at {point}, and once more: it starts empty");
        crashes += 2;
        hits += run.hits;
        if !is_reached {
            break;
        }
    }
    println!("{crashes} crashes, {hits} hits");
    assert!(crashes > 200 && hits > 20 * crashes);
}

#[test]
fn a_power_cut_brings_nothing_void_back() {
    let (mut hits, mut left) = (0, 0);
    for seed in 0..60 {
        let mut run = Run::new(seed, Durability::Power);
        for _ in 0..3 {
            run.live(150 + seed as u32 * 3);
            run.cut_power();
            run.hits = 0;
            let (again, is_left) = run.restart();
            left += u64::from(is_left);
            hits += again.hits;
            run = again;
        }
    }
    println!("{left} of 180 starts found a cache, {hits} hits");
    assert!(left > 150 && hits > 3_000);
}

/// The machine is up again and the start is killed: the next start, in the same run of the machine, knows of the power cut still.
#[test]
fn a_start_that_is_killed_after_a_power_cut_brings_nothing_lost_back() {
    let (mut killed, mut hits) = (0, 0);
    for seed in 0..4 {
        for point in 1.. {
            let mut run = Run::new(seed, Durability::Power);
            run.options.boot = 1;
            run.live(400);
            run.cut_power();
            run.options.boot = 2;
            let medium = &run.medium;
            medium.restart();
            medium.set_plan(crash_at(point));
            drop(Rig::try_open(FaultyDevice::new(Arc::clone(medium)), &run.options));
            let is_through = !medium.is_crashed();
            medium.crash();
            run.hits = 0;
            let (run, is_left) = run.restart();
            assert!(is_left, "seed {seed}, killed at {point}: it starts empty");
            hits += run.hits;
            if is_through {
                break;
            }
            killed += 1;
        }
    }
    println!("{killed} starts were killed, {hits} hits");
    assert!(killed > 20 && hits > killed, "{killed} {hits}");
}

/// A record that is lost is replaced by a flag in the superblock, which need not be durable where a region's mark is.
#[test]
fn writes_after_a_lost_record_wait_for_no_flush_and_stay_void() {
    for seed in 0..20 {
        let plan = FaultPlan {
            volatile: true,
            ..FaultPlan::default()
        };
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, plan));
        let device = FaultyDevice::new(Arc::clone(&medium));
        let options = small(Durability::Power);
        let mut rig = Rig::try_open(device.clone(), &options).unwrap();
        for address in 0..40 {
            rig.write(address, 0, &content(address));
        }
        rig.settle();
        let store = Arc::clone(&rig.store);
        rig.run(store.clear(&device, &store.addresses().quiet_regions(true)))
            .unwrap();
        let void = |address: u64| {
            let guard = store.begin_write(&device, address..address + 1).unwrap();
            rig.run(guard.commit(&device)).unwrap();
        };
        assert!(store.is_on_device(0));
        void(0);
        let syncs = medium.counts().syncs;
        // The log fills: no background work makes a checkpoint.
        (0..1_000).for_each(|turn| void(turn % 40));
        assert!(store.block_counts().log_failures > 0);
        assert_eq!(medium.counts().syncs, syncs);
        medium.cut_power();
        medium.restart();
        let again = Rig::try_open(FaultyDevice::new(Arc::clone(&medium)), &options).unwrap();
        assert!(
            (0..40).all(|address| again.store.place(address).is_none()),
            "seed {seed}"
        );
    }
}

/// Two images have the same contents at other addresses: the cache stores references for the second, not contents.
#[test]
fn what_is_there_already_is_not_stored_again() {
    let medium = Arc::new(FaultyMedium::new(8 << 20, 1, FaultPlan::default()));
    let options = Options {
        chunks: 2_000,
        mappings: 4_000,
        contents: 4_000,
        ..options()
    };
    let mut rig = Rig::try_open(FaultyDevice::new(medium), &options).unwrap();
    for n in 0..500 {
        assert_eq!(rig.write(n, 0, &content(n)), Filled::Stored);
        rig.settle();
    }
    let first = rig.store.block_counts().written_bytes;
    for n in 0..500 {
        assert_eq!(rig.write(500 + n, 0, &content(499 - n)), Filled::Duplicate);
        rig.settle();
    }
    let second = rig.store.block_counts().written_bytes - first;
    assert!(second * 100 < first * 15, "{first} and then {second} bytes");
    for n in 0..500 {
        assert_eq!(rig.get(500 + n), Some(499 - n));
        assert_eq!(rig.store.place(500 + n), rig.store.place(499 - n));
    }
    let counts = rig.store.counts();
    assert_eq!(
        (counts.stored_contents, counts.duplicates, counts.misses),
        (500, 500, 0)
    );
    assert!(
        counts.stored_flash_bytes < counts.stored_bytes * 3 / 4,
        "{counts:?}"
    );
}

/// Nobody reads the rest of a chunk from the volume: a chunk may be valid in part.
#[test]
fn a_write_of_a_part_makes_a_chunk_valid_in_part() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
    let mut rig = Rig::try_open(FaultyDevice::new(medium), &options()).unwrap();
    let read = |rig: &Rig| rig.run(rig.store.read(&rig.device, 3)).unwrap();
    assert_eq!(rig.write(3, 511, &[1; 513]), Filled::Stored);
    let chunk = read(&rig).unwrap();
    assert_eq!(
        (chunk.range(), chunk.part(600..700)),
        (511..1024, Some(&[1; 100][..]))
    );
    assert_eq!(chunk.part(500..600), None);
    assert_eq!(chunk.part(1000..1025), None);
    // Beside it: both are valid. Over it: the newer bytes.
    rig.write(3, 1024, &[2; 100]);
    rig.write(3, 1000, &[3; 10]);
    let chunk = read(&rig).unwrap();
    assert_eq!(chunk.range(), 511..1124);
    assert_eq!(
        chunk.bytes,
        [vec![1; 489], vec![3; 10], vec![1; 14], vec![2; 100]].concat()
    );
    // Elsewhere: the newer part alone.
    rig.write(3, 2000, &[4; 5]);
    assert_eq!(read(&rig).unwrap().range(), 2000..2005);
    // A part is never taken for another one with the same bytes.
    rig.write(4, 2001, &[4; 5]);
    assert_eq!(rig.store.counts().duplicates, 0);
    rig.write(5, 2000, &[4; 5]);
    assert_eq!(rig.store.counts().duplicates, 1);
}

/// The header of a duplicate is being read while its block is reclaimed and filled anew: nothing may lead there afterwards.
#[test]
fn a_duplicate_whose_block_goes_while_it_is_checked_is_not_mapped() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 4, calm()));
    let mut rig = Rig::try_open(FaultyDevice::new(medium), &options()).unwrap();
    rig.write(1, 0, &content(1));
    for n in 2..200 {
        rig.write(n, 0, &content(n));
        rig.settle();
    }
    let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
    let first = store.place(1).expect("it was not reclaimed yet");
    let ticket = store.begin_fill(900);
    let bytes = content(1);
    let mut fill = std::pin::pin!(store.fill(&device, ticket, 0, bytes.into()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(fill.as_mut().poll(&mut context).is_pending(), "it reads a header");
    // Nothing leads to the content any more, and its block comes round.
    drop(store.begin_write(&device, 1..2).unwrap());
    let mut n = 200;
    while store.place(n - 1).is_none_or(|place| place.block != first.block) {
        assert!(n < 800, "the block does not come round");
        rig.write(n, 0, &content(n));
        rig.settle();
        n += 1;
    }
    let filled = rig.run(fill);
    assert_eq!(filled, Filled::Stored);
    assert_ne!(store.place(900), Some(first));
    assert_eq!(rig.get(900), Some(1));
    rig.check();
}

/// Lets reclaims keep so many contents.
#[derive(Default)]
struct Keeps {
    most: u64,
    asked: AtomicU64,
    seen: AtomicU64,
}

impl BudgetOwner for Keeps {
    fn resume(&self, _: BudgetLevel, _: Option<u64>) {}

    fn left(&self, _: u64) -> BudgetLevel {
        BudgetLevel::default()
    }

    fn may_keep(&self, sent: u64) -> bool {
        self.seen.fetch_max(sent, Ordering::Relaxed);
        self.asked.fetch_add(1, Ordering::Relaxed) < self.most
    }
}

#[test]
fn a_reclaim_keeps_contents_only_while_it_may() {
    let kept = [0, 10, u64::MAX].map(|most| {
        let medium = Arc::new(FaultyMedium::new(1 << 20, 6, FaultPlan::default()));
        let keeps = Arc::new(Keeps {
            most,
            ..Keeps::default()
        });
        let device = FaultyDevice::new(medium);
        let opened = Rig::try_open_with(device, &options(), Some(Arc::clone(&keeps) as _));
        let mut rig = opened.unwrap();
        assert!(rig.store.mean_entry_bytes() > CHUNK_BYTES.into());
        for n in 0..600 {
            rig.write(n, 0, &content(n));
            rig.settle();
        }
        rig.check();
        let counts = rig.store.counts();
        // Contents are compressible to a half on average.
        let mean = rig.store.mean_entry_bytes();
        assert!((1_500..3_000).contains(&mean), "{mean}");
        assert!(counts.reclaimed_blocks > 10, "{counts:?}");
        assert!(keeps.asked.load(Ordering::Relaxed) > 10);
        let (seen, sent) = (keeps.seen.load(Ordering::Relaxed), rig.store.sent_bytes());
        assert!(seen > sent / 2 && seen <= sent, "{seen} of {sent}");
        counts.moved_contents
    });
    assert!(kept[0] == 0 && kept[1] == 10 && kept[2] > 30, "{kept:?}");
}

/// A reclaim lets other tasks run between its steps: none of them may map a chunk to a content of its victims.
#[test]
fn a_reclaim_under_way_gets_no_new_mappings() {
    let medium = Arc::new(FaultyMedium::new(2 << 20, 5, FaultPlan::default()));
    let options = Options {
        // Three batches of buckets.
        chunks: 20_000,
        mappings: 20_000,
        contents: 20_000,
        ..options()
    };
    let mut rig = Rig::try_open(FaultyDevice::new(medium), &options).unwrap();
    let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let (mut written, mut tried, mut dropped) = (0, 0, 0);
    while store.counts().reclaimed_blocks < 20 {
        assert!(written < 9_000, "{:?}", store.counts());
        rig.run(store.fill(&device, store.begin_fill(written), 0, content(written).into()));
        written += 1;
        let mapped: Vec<u64> = (0..written).filter(|n| store.place(*n).is_some()).collect();
        while let Some(work) = store.take_work() {
            let mut work = std::pin::pin!(store.perform(&device, 1, work));
            let mut polls = 0;
            while work.as_mut().poll(&mut context).is_pending() {
                device.turn(false).unwrap();
                polls += 1;
                // Another time the work is dropped, and due again.
                if dropped < 50 && polls == dropped % 12 + 1 {
                    dropped += 1;
                    break;
                }
                // Contents of victims: their mappings are gone, their fingerprints may be there.
                let gone = mapped.iter().filter(|n| store.place(**n).is_none());
                for n in gone.take(if tried < 1_000 { 50 } else { 0 }) {
                    tried += 1;
                    rig.run(store.fill(&device, store.begin_fill(10_000 + n), 0, content(*n).into()));
                }
            }
        }
        rig.check();
    }
    assert!(tried > 100, "{tried} fills while a reclaim was under way");
}
