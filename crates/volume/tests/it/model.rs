//! The volume against an array of sectors: each has the contents that it may have now, and those that a power cut may leave.

use crate::backing::{Faults, FaultyBacking, SECTOR};
use crate::rig::{CHUNK, Rig, SIZE, medium, settings, volatile};
use bytes::Bytes;
use pumice_admit::{Rule, WriteBudget};
use pumice_chunk::store::Found;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyMedium};
use pumice_volume::{Mode, Settings, VolumeCounts, VolumeError};
use pumice_world::{Random, mix64};
use std::ops::Range;
use std::sync::Arc;

type Content = Arc<[u8]>;

#[derive(Clone)]
struct Sector {
    /// One of these is what a read finds.
    now: Vec<Content>,
    /// One of these is what a read finds after a power cut.
    durable: Vec<Content>,
    /// No change since the last start: what a read finds, a power cut leaves.
    is_settled: bool,
}

struct Array(Vec<Sector>);

fn add(contents: &mut Vec<Content>, more: &[Content]) {
    for content in more {
        if !contents.contains(content) {
            contents.push(Arc::clone(content));
        }
    }
}

impl Array {
    fn new() -> Self {
        let zeros: Content = vec![0; SECTOR].into();
        let sector = Sector {
            now: vec![Arc::clone(&zeros)],
            durable: vec![zeros],
            is_settled: true,
        };
        Self(vec![sector; SIZE / SECTOR])
    }

    /// A change that was answered, or one of which any sector may be old or new.
    fn change(&mut self, offset: usize, bytes: &[u8], is_done: bool) {
        let end = offset + bytes.len();
        for number in offset / SECTOR..=(end - 1) / SECTOR {
            let first = number * SECTOR;
            let range = first.max(offset)..(first + SECTOR).min(end);
            let sector = &mut self.0[number];
            let changed: Vec<Content> = (sector.now.iter())
                .map(|old| {
                    let mut new = old.to_vec();
                    new[range.start - first..range.end - first]
                        .copy_from_slice(&bytes[range.start - offset..range.end - offset]);
                    new.into()
                })
                .collect();
            match is_done {
                true => sector.now = changed.clone(),
                false => add(&mut sector.now, &changed),
            }
            add(&mut sector.durable, &changed);
            sector.is_settled = false;
        }
    }

    fn flushed(&mut self) {
        self.0
            .iter_mut()
            .for_each(|sector| sector.durable = sector.now.clone());
    }

    fn power_was_cut(&mut self) {
        self.0
            .iter_mut()
            .for_each(|sector| sector.now = sector.durable.clone());
    }

    /// A start has flushed the backing device.
    fn started(&mut self) {
        self.flushed();
        self.0.iter_mut().for_each(|sector| sector.is_settled = true);
    }

    /// What a read found is there to stay.
    fn found(&mut self, offset: usize, bytes: &[u8], what: &str) {
        for number in offset.div_ceil(SECTOR)..(offset + bytes.len()) / SECTOR {
            let content = &bytes[number * SECTOR - offset..][..SECTOR];
            let sector = &mut self.0[number];
            let Some(known) = sector.now.iter().find(|known| ***known == *content) else {
                let known: Vec<&[u8]> = sector.now.iter().map(|known| &known[..4]).collect();
                panic!(
                    "{what}: sector {number} of chunk {} has {:?}, may have {known:?}",
                    number * SECTOR / CHUNK,
                    &content[..4]
                );
            };
            sector.now = vec![Arc::clone(known)];
            if sector.is_settled {
                sector.durable = sector.now.clone();
            }
        }
    }
}

struct Run {
    rig: Option<Rig>,
    medium: Arc<FaultyMedium>,
    backing: FaultyBacking,
    array: Array,
    random: Random,
    mode: Mode,
    boot: u64,
    dram: usize,
    cutoff: u64,
    /// End of the range last taken.
    last: usize,
    /// How reads are split.
    split: Option<(f64, bool)>,
    /// What enters the cache.
    admission: (Rule, Option<WriteBudget>),
    what: String,
    counts: VolumeCounts,
    cache_errors: u64,
    /// A flush has failed, maybe, since the start.
    has_failed_flush: bool,
    /// Starts that found dirty chunks.
    dirty_starts: u32,
    /// Requests may fail.
    has_faults: bool,
}

/// A rule, and for one seed of six a budget, which is enough for some of what comes in a second. No more have one: a start has nothing saved, and the
/// clock stands still while all is read, so there nothing is evicted.
fn admission(seed: u64) -> (Rule, Option<WriteBudget>) {
    // Of points that are three apart, too, each rule has a third.
    let mixed = mix64(seed ^ 22 << 32);
    let rule = [Rule::All, Rule::Random(0.5), Rule::SecondHit][(mixed % 3) as usize];
    let budget = WriteBudget {
        bytes: 4 << 20,
        period_secs: 60,
    };
    (rule, (mixed >> 32).is_multiple_of(6).then_some(budget))
}

impl Run {
    fn new(seed: u64, mode: Mode) -> Self {
        let (medium, backing) = (medium(seed), FaultyBacking::new(SIZE, seed));
        let mut run = Self {
            rig: None,
            medium,
            backing,
            array: Array::new(),
            random: Random(seed),
            mode,
            boot: 1,
            // Every second seed: some 48 chunks.
            dram: (seed as usize % 2) * 48 * CHUNK,
            // Two of three seeds: one request may be a scan.
            cutoff: seed % 3 * 2 * CHUNK as u64,
            last: 0,
            split: [None, Some((0.5, true))][seed as usize / 2 % 2],
            admission: admission(seed),
            what: format!("seed {seed}"),
            counts: VolumeCounts::default(),
            cache_errors: 0,
            has_failed_flush: false,
            dirty_starts: 0,
            has_faults: false,
        };
        run.start();
        run
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("it runs")
    }

    fn is_crashed(&self) -> bool {
        self.medium.is_crashed() || self.backing.is_crashed()
    }

    fn range(&mut self) -> Range<usize> {
        let chunk = match self.random.below(3) {
            0 => self.random.below(301),
            _ => self.random.below(50),
        } as usize;
        let (start, len) = match self.random.below(6) {
            0 => (chunk * CHUNK, CHUNK),
            1 => (chunk * CHUNK, CHUNK * (1 + self.random.below(4) as usize)),
            2 => (
                chunk * CHUNK + SECTOR * self.random.below(8) as usize,
                SECTOR * (1 + self.random.below(12) as usize),
            ),
            3 => (
                chunk * CHUNK + self.random.below(CHUNK as u64) as usize,
                1 + self.random.below(2 * CHUNK as u64) as usize,
            ),
            _ => (
                self.last % SIZE,
                SECTOR + self.random.below(2 * CHUNK as u64) as usize,
            ),
        };
        let start = start.min(SIZE - 1);
        self.last = (start + len).min(SIZE);
        start..self.last
    }

    fn content(&mut self, len: usize) -> Vec<u8> {
        // Few contents for whole chunks, so that there are duplicates.
        let mut random = match self.random.below(2) {
            0 => Random(self.random.below(12)),
            _ => Random(self.random.next_u64()),
        };
        let mut bytes: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        bytes.truncate(len);
        bytes
    }

    /// The result of a change to bytes that are known.
    fn changed(&mut self, result: Result<(), VolumeError>, offset: usize, bytes: &[u8], is_durable: bool) {
        match result {
            Ok(()) => {
                self.array.change(offset, bytes, true);
                if is_durable {
                    self.array.flushed();
                }
            }
            Err(VolumeError::Cache(_)) => {
                self.cache_errors += 1;
                // Otherwise nothing has changed.
                if self.mode == Mode::WriteBack {
                    self.array.change(offset, bytes, false);
                }
            }
            Err(error) => {
                self.has_failed_flush |= is_durable || matches!(error, VolumeError::Unflushed);
                self.array.change(offset, bytes, false);
                self.flush_failed();
            }
        }
    }

    /// After a failed flush the backing device has any of what was written since the last.
    fn flush_failed(&mut self) {
        self.array.power_was_cut();
    }

    fn step(&mut self) {
        let failed_flushes = self.backing.failed_flushes();
        let range = self.range();
        match self.random.below(20) {
            0..7 => {
                let bytes = self.content(range.len());
                let is_durable = self.random.below(15) == 0;
                let write =
                    self.rig()
                        .volume
                        .write(range.start as u64, Bytes::copy_from_slice(&bytes), is_durable);
                let result = self.rig().run(write);
                if self.mode == Mode::ReadOnly {
                    assert!(matches!(result, Err(VolumeError::ReadOnly)));
                } else {
                    self.changed(result, range.start, &bytes, is_durable);
                }
            }
            7..9 if self.mode != Mode::ReadOnly => {
                let may_punch = self.random.below(2) == 0;
                let volume = &self.rig().volume;
                let zero = volume.zero(range.start as u64, range.len() as u64, may_punch);
                let result = self.rig().run(zero);
                if matches!(result, Err(VolumeError::Cache(_))) {
                    // It goes in pieces, beside holes: the first may be done.
                    self.array.change(range.start, &vec![0; range.len()], false);
                }
                self.changed(result, range.start, &vec![0; range.len()], false);
            }
            9 => {
                let result = self.rig().run(self.rig().volume.flush());
                match result {
                    Ok(()) => self.array.flushed(),
                    Err(_) => {
                        self.has_failed_flush = true;
                        self.flush_failed();
                    }
                }
            }
            10..12 => {
                let flushes = self.backing.flushes();
                self.rig().tick();
                // What it flushed is durable, or was lost; it does not say which.
                if self.backing.flushes() > flushes && !self.is_crashed() {
                    let is_failed = self.rig().run(self.rig().volume.flush()).is_err();
                    self.has_failed_flush |= is_failed;
                    match is_failed {
                        true => self.flush_failed(),
                        false => self.array.flushed(),
                    }
                }
            }
            _ => self.read(range),
        }
        match self.random.below(6) {
            0 => self.rig().settle(),
            1..3 => self.rig().run(pumice_blocks::give_turn()),
            _ => {}
        }
        // The cleaner flushes the backing device, too.
        if self.backing.failed_flushes() > failed_flushes {
            self.has_failed_flush = true;
            self.flush_failed();
        }
    }

    fn read(&mut self, range: Range<usize>) {
        let read = self.rig().volume.read(range.start as u64, range.len());
        match self.rig().run(read) {
            Ok(bytes) => {
                let what = self.what.clone();
                self.array.found(range.start, &bytes, &what);
            }
            Err(error) => assert!(self.has_faults || self.is_crashed(), "{}: {error}", self.what),
        }
    }

    /// Cleans all dirty chunks: the backing device alone has everything.
    fn drain(&mut self) {
        let rig = self.rig();
        rig.settle();
        rig.run(rig.volume.drain()).unwrap();
        assert_eq!(rig.volume.dirty().0, 0, "{}", self.what);
        let what = format!("{}, drained", self.what);
        let bytes = self.backing.bytes();
        self.array.found(0, &bytes, &what);
    }

    /// All of it, in an order that evicts.
    fn read_all(&mut self) {
        for at in (0..SIZE).step_by(3 * CHUNK) {
            self.read(at..(at + 3 * CHUNK).min(SIZE));
        }
    }

    fn live(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.is_crashed() {
                return;
            }
            self.step();
        }
        // Read-aheads may be under way.
        self.rig().settle();
        self.rig().check_books();
    }

    fn crash(&mut self) {
        self.medium.crash();
        self.backing.crash();
        if self.mode == Mode::WriteBack {
            // What no flush covered may be lost.
            self.array.power_was_cut();
        }
        self.end();
    }

    fn cut_power(&mut self) {
        self.medium.cut_power();
        self.backing.cut_power();
        self.array.power_was_cut();
        self.boot += 1;
        self.end();
    }

    fn end(&mut self) {
        if let Some(rig) = self.rig.take() {
            self.counts += rig.volume.shared().counts();
        }
    }

    fn revive(&mut self) {
        self.medium.restart();
        self.medium.set_plan(volatile());
        self.backing.restart();
        self.has_faults = false;
    }

    /// Both devices have failed: what the backing device has lost is cached, and the log says that nothing could note it.
    fn must_discard(&mut self) -> bool {
        let has_failed_flush = std::mem::take(&mut self.has_failed_flush);
        let rig = self.rig();
        rig.settle();
        let store = rig
            .volume
            .shared()
            .store()
            .filter(|store| has_failed_flush && store.failure().is_some());
        // A cache with dirty chunks is not discarded: the next start finds these.
        let store = store.filter(|store| store.dirty() == 0);
        store.is_some_and(|store| rig.run(store.give_up(&rig.device, "a flush failed")).is_err())
    }

    /// The next life; what it found.
    fn start(&mut self) -> Option<Found> {
        self.try_start()
            .unwrap_or_else(|error| panic!("{}: {error}", self.what))
    }

    fn try_start(&mut self) -> Result<Option<Found>, String> {
        self.revive();
        let settings = Settings {
            dram_bytes: self.dram,
            read_ahead_bytes: 16 * CHUNK as u64,
            scan_cutoff_bytes: self.cutoff,
            rule: self.admission.0,
            write_budget: self.admission.1,
            ..settings(self.mode, self.boot)
        };
        let rig = Rig::open_with(&settings, &self.medium, &self.backing, self.split)?;
        self.array.started();
        let found = rig.found;
        self.dirty_starts += u32::from(rig.volume.dirty().0 > 0);
        self.rig = Some(rig);
        Ok(found)
    }

    /// Starts, and finds what must be there, twice: evictions reveal nothing else.
    fn restart(&mut self) -> Option<Found> {
        let found = self.start();
        if let Some(store) = self.rig().volume.shared().store() {
            store.check_invariants();
        }
        self.read_all();
        self.read_all();
        found
    }
}

#[test]
fn reads_find_what_was_written_in_every_mode() {
    let mut totals = VolumeCounts::default();
    for mode in Mode::ALL {
        for seed in 0..6 {
            let mut run = Run::new(seed, Mode::WriteThrough);
            run.live(300);
            let rig = run.rig.take().unwrap();
            rig.settle();
            rig.run(rig.volume.close()).unwrap();
            run.array.flushed();
            drop(rig);
            run.mode = mode;
            let found = run.restart();
            assert_eq!(found, (mode != Mode::PassThrough).then_some(Found::Cache));
            run.live(400);
            run.read_all();
            let rig = run.rig();
            rig.run(rig.volume.flush()).unwrap();
            run.end();
            if mode == Mode::ReadOnly {
                assert_eq!(run.counts.writes_failed, 0);
            }
            // And back: what pass-through has written the cache does not have.
            run.mode = Mode::WriteThrough;
            run.restart();
            run.live(100);
            run.drain();
            run.end();
            totals += run.counts;
        }
    }
    println!("{totals:?}");
    assert!(totals.fills_rule > 100 && totals.writes_rule > 100, "{totals:?}");
    assert!(
        totals.fills_budget > 100 && totals.writes_budget > 30,
        "{totals:?}"
    );
    assert!(
        totals.read_hits > 3_000 && totals.read_part_hits > 200,
        "{totals:?}"
    );
    assert!(
        totals.writes_duplicate > 300 && totals.writes_around > 1_000,
        "{totals:?}"
    );
    assert!(totals.fills_scan > 500 && totals.writes_scan > 200, "{totals:?}");
    assert!(
        totals.trimmed_hole_bytes > 0 && totals.zeroed_chunks > 500 && totals.read_ahead_bytes > 1 << 20,
        "{totals:?}"
    );
}

#[test]
fn a_crash_at_any_write_of_either_device_loses_no_answered_write() {
    let (mut crashes, mut dirty_starts, mut last_points) = (0, 0, Vec::new());
    for (is_backing, mode) in [
        (true, Mode::WriteThrough),
        (false, Mode::WriteThrough),
        (true, Mode::WriteBack),
        (false, Mode::WriteBack),
    ] {
        for point in (1..).step_by(if is_backing { 1 } else { 3 }) {
            let mut run = Run::new(point, mode);
            run.what = format!(
                "{}, crash at {point}, of the backing device: {is_backing}",
                mode.name()
            );
            if is_backing {
                let crash_at = Some(point);
                run.backing.set(Faults {
                    crash_at,
                    ..Faults::default()
                });
            } else {
                run.medium.set_plan(FaultPlan {
                    crash: Some(CrashPoint::WriteOrAppend(point)),
                    ..volatile()
                });
            }
            run.live(200);
            let is_through = !run.is_crashed();
            match point % 4 {
                1 => run.cut_power(),
                _ => run.crash(),
            }
            assert_ne!(run.restart(), Some(Found::Nothing), "{}", run.what);
            run.live(40);
            run.crash();
            run.restart();
            crashes += 2;
            dirty_starts += run.dirty_starts;
            if is_through {
                last_points.push(point);
                break;
            }
        }
    }
    println!(
        "{crashes} crashes, {dirty_starts} starts with dirty chunks, the last points are {last_points:?}"
    );
    assert!(crashes > 400 && dirty_starts > 100);
}

#[test]
fn crashes_within_starts_lose_no_answered_write() {
    let mut crashes = 0;
    for seed in 0..24 {
        let mode = [Mode::WriteThrough, Mode::WriteBack][seed as usize % 2];
        let mut run = Run::new(seed, mode);
        run.live(200);
        run.cut_power();
        for point in 1.. {
            run.revive();
            run.medium.set_plan(FaultPlan {
                crash: Some(CrashPoint::WriteOrAppend(point)),
                ..volatile()
            });
            let settings = settings(run.mode, run.boot);
            let opened = Rig::open(&settings, &run.medium, &run.backing);
            let is_through = !run.medium.is_crashed();
            drop(opened);
            if point % 3 == 0 {
                run.cut_power();
            } else {
                run.crash();
            }
            if is_through {
                break;
            }
            crashes += 1;
        }
        assert_eq!(run.restart(), Some(Found::Cache), "seed {seed}");
    }
    println!("{crashes} crashes within starts");
    assert!(crashes > 60);
}

#[test]
fn a_power_cut_loses_nothing_that_was_flushed() {
    let (mut left, mut hits) = (0, 0);
    for seed in 0..60 {
        let modes = [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack];
        let mut run = Run::new(seed, modes[seed as usize % 3]);
        for life in 0..4 {
            run.live(60 + 10 * life);
            run.cut_power();
            left += u32::from(run.restart() == Some(Found::Cache));
        }
        run.end();
        hits += run.counts.read_hits + run.counts.read_dram_hits;
    }
    println!("{left} of 240 starts found a cache, {hits} hits");
    assert!(left > 200 && hits > 4_000);
}

#[test]
fn modes_change_after_crashes() {
    let (mut left, mut passed, mut dirty, mut refused) = (0, 0, 0, 0);
    for seed in 0..40 {
        let mut run = Run::new(seed, Mode::WriteThrough);
        for _ in 0..6 {
            run.live(80);
            match run.random.below(3) {
                0 => run.crash(),
                1 => run.cut_power(),
                _ => {
                    let rig = run.rig.take().expect("it runs");
                    rig.run(rig.volume.close()).unwrap();
                    run.array.flushed();
                }
            }
            run.mode = [
                Mode::WriteThrough,
                Mode::WriteBack,
                Mode::WriteBack,
                Mode::WriteAround,
                Mode::ReadOnly,
                Mode::PassThrough,
            ][run.random.below(6) as usize];
            if run.mode == Mode::PassThrough
                && let Err(error) = run.try_start()
            {
                assert!(error.contains("writes that its volume lacks"), "{error}");
                refused += 1;
                run.mode = Mode::WriteThrough;
            }
            match run.restart() {
                None => passed += 1,
                Some(found) => left += u32::from(found == Found::Cache),
            }
        }
        dirty += run.dirty_starts;
    }
    println!(
        "{left} of 240 starts found a cache, {dirty} a dirty one, {passed} had none, {refused} were refused"
    );
    assert!(
        left > 120 && passed > 10 && dirty > 40 && refused > 5,
        "{left} {passed} {dirty} {refused}"
    );
}

fn chance(random: &mut Random, most: f64) -> f64 {
    [most, most / 10.0, 0.0, 0.0][random.below(4) as usize]
}

#[test]
fn faults_of_either_device_bring_no_wrong_byte() {
    let mut totals = VolumeCounts::default();
    let (mut cache_errors, mut forgotten, mut discarded, mut refused) = (0, 0, 0, 0);
    for seed in 0..120 {
        let mode = [Mode::WriteThrough, Mode::WriteBack][seed as usize % 2];
        let mut run = Run::new(seed, mode);
        run.what = format!("{}, {}", run.what, mode.name());
        for _ in 0..3 {
            let mut random = Random(run.random.next_u64());
            run.medium.set_plan(FaultPlan {
                write_error: chance(&mut random, 0.2),
                append_error: chance(&mut random, 0.02),
                read_error: chance(&mut random, 0.2),
                // Of a block that was being filled at a crash a start cannot tell rot from what was not written.
                bit_rot: chance(&mut random, 0.2) * f64::from(mode != Mode::WriteBack),
                no_space: chance(&mut random, 0.1),
                dies_at: (random.below(4) == 0).then(|| 1 + random.below(400)),
                ..volatile()
            });
            run.backing.set(Faults {
                read_errors: random.below(2) * 30,
                write_errors: random.below(2) * 50,
                fails_flush: random.below(3) == 0,
                ..Faults::default()
            });
            run.has_faults = true;
            run.live(150);
            let must_discard = run.must_discard();
            match random.below(2) {
                0 => run.crash(),
                _ => run.cut_power(),
            }
            if must_discard {
                discarded += 1;
                run.mode = Mode::PassThrough;
                // With dirty chunks it is refused.
                let started = run.try_start();
                assert!(started.is_ok() || mode == Mode::WriteBack, "{}", run.what);
                run.end();
                run.mode = mode;
            }
            match run.try_start() {
                Ok(found) => forgotten += u32::from(found == Some(Found::Forgotten)),
                Err(error) => {
                    assert!(
                        error.contains("writes that its volume lacks"),
                        "{}: {error}",
                        run.what
                    );
                    assert_eq!(mode, Mode::WriteBack);
                    refused += 1;
                    break;
                }
            }
            run.end();
            run.restart();
        }
        run.end();
        totals += run.counts;
        cache_errors += run.cache_errors;
    }
    println!(
        "{forgotten} of 360 starts forgot all, {discarded} after a discard, {refused} failed, {cache_errors} writes failed, {totals:?}"
    );
    assert!(forgotten > 20 && cache_errors > 50, "{forgotten} {cache_errors}");
    assert!(discarded < 30, "{discarded}");
    assert!(
        totals.writes_failed > 500 && totals.read_hits > 5_000,
        "{totals:?}"
    );
}
