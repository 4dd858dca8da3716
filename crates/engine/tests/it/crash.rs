//! A crash at every write and every log append of some workloads, and at every third or fifth of others. The last value comes back, or
//! nothing. An object that stood on flash comes back, unless its block was chosen to be given up.

use crate::common::dying::{Run, calm, crash_at};
use crate::common::{
    Entry, Model, Rig, Weights, cascade, check_get, clock, drops_all, gdsf, key, ripq, sipq, sipq_gdsf,
};
use pumice::{AdmissionOptions, CacheOptions, FlashWrite, HashLimit, LayoutOptions, Rule, Tier};
use pumice_testkit::FaultyDevice;
use std::collections::HashMap;

const KEYS: u64 = 80;

fn options(dram_bytes: usize) -> CacheOptions {
    CacheOptions {
        dram_bytes,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        flush_interval_secs: 3,
        ..CacheOptions::default()
    }
}

/// What the last life of a workload did on flash.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reclaimed: u64,
    moved: u64,
}

/// How to run a workload.
#[derive(Clone, Copy)]
struct Load {
    weights: Weights,
    steps: u64,
    /// Look every so many steps at what stands on flash; 0 = never. For caches without a DRAM tier.
    look_every: u64,
    /// Every how many points.
    stride: usize,
}

fn load(steps: u64) -> Load {
    Load {
        weights: weights(),
        steps,
        look_every: 0,
        stride: 1,
    }
}

/// Objects that were read from flash, and not from a buffer, when it was last looked.
#[derive(Default)]
struct OnFlash {
    objects: HashMap<u64, Entry>,
    /// Entries that were given up until then.
    given_up: u64,
}

impl OnFlash {
    fn look(&mut self, rig: &Rig<FaultyDevice>, model: &Model) {
        // Before: reads let background work go on.
        self.given_up = given_up(rig);
        for n in 0..KEYS {
            // Large objects are evicted piece by piece, and reading an expired one changes something.
            let entry = model
                .live
                .get(&n)
                .filter(|entry| entry.meta.expiry == 0 && entry.value.len() < 16_000);
            let Some(entry) = entry else {
                self.objects.remove(&n);
                continue;
            };
            match rig.run(rig.cache.get(&rig.cx, &key(n))) {
                Some(object) if object.tier() == Tier::Flash => {
                    self.objects.insert(n, entry.clone());
                }
                _ => {
                    self.objects.remove(&n);
                }
            }
            self.changed(model, n);
        }
    }

    /// Forgets a key that is no more what it was.
    fn changed(&mut self, model: &Model, n: u64) {
        if self.objects.get(&n) != model.live.get(&n) {
            self.objects.remove(&n);
        }
    }
}

/// Entries whose blocks were chosen to be given up, and those that could not be read.
fn given_up(rig: &Rig<FaultyDevice>) -> u64 {
    let books = rig.cache.books();
    // A crash may lose what was moved to a buffer.
    let moved = rig.cache.stats().flash.survivors;
    books.evicted.0 + books.refused.0 + books.corrupt.0 + moved
}

fn weights() -> Weights {
    Weights {
        get: 10,
        set: 40,
        large: 4,
        delete: 8,
        append: 6,
        touch: 4,
        flush: 1,
        tick: 1,
    }
}

/// Steps until the medium has crashed or those of the load are done.
fn run_until_crash(run: &mut Run, rig: &Rig<FaultyDevice>, load: &Load) -> OnFlash {
    let mut on_flash = OnFlash::default();
    for n in 0..load.steps {
        run.live(rig, n..n + 1, KEYS);
        // Before the crash too: what the last step replaced need not be there.
        for n in 0..KEYS {
            on_flash.changed(&run.model, n);
        }
        if run.medium.is_crashed() {
            break;
        }
        if load.look_every > 0 && n % load.look_every == 0 {
            on_flash.look(rig, &run.model);
        }
    }
    on_flash
}

fn crash_everywhere(seed: u64, dram_bytes: usize, flash_write: FlashWrite, flash_bytes: u64, steps: u64) {
    let options = CacheOptions {
        flash_write,
        ..options(dram_bytes)
    };
    crash_everywhere_with(seed, options, flash_bytes, &load(steps));
}

/// Returns what the life did on flash that no crash ended.
fn crash_everywhere_with(seed: u64, options: CacheOptions, flash_bytes: u64, load: &Load) -> Counts {
    let (mut crashes, mut served, mut stood, mut missing) = (0u64, 0u64, 0, 0);
    let mut counts = Counts::default();
    for point in (1 + seed % load.stride as u64..).step_by(load.stride) {
        let mut run = Run::on(flash_bytes, seed, options);
        run.weights = load.weights;
        let rig = run.open();
        run.medium.set_plan(crash_at(point));
        let on_flash = run_until_crash(&mut run, &rig, load);
        let crashed = run.medium.is_crashed();
        if !crashed {
            run.medium.crash();
        }
        // A reclaim that was under way ends, so that what it gave up is counted.
        rig.settle();
        let flash = rig.cache.stats().flash;
        counts = Counts {
            reclaimed: flash.reclaimed_blocks,
            moved: flash.survivors,
        };
        let may_miss = given_up(&rig) - on_flash.given_up;
        drop(rig);
        run.medium.restart();
        crashes += 1;

        // Now and then recovery itself crashes, and starts over.
        if crashes % 3 == 0 {
            run.medium.set_plan(crash_at(1 + crashes % 5));
            drop(run.try_open());
            if !run.medium.is_crashed() {
                run.medium.crash();
            }
            run.medium.restart();
        }
        run.medium.set_plan(calm());
        let rig = run.open();
        assert!(!rig.recovered.discarded, "point {point}: {:?}", rig.recovered);
        served += run.reconcile(&rig, KEYS, &format!("seed {seed}, crash at {point}"));
        // A device that is nearly full is reclaimed as soon as it is open.
        let may_miss = may_miss + given_up(&rig);
        let lost: Vec<_> = on_flash
            .objects
            .iter()
            .filter(|(n, entry)| run.model.live.get(n) != Some(entry))
            .map(|(n, _)| *n)
            .collect();
        assert!(
            lost.len() as u64 <= may_miss,
            "seed {seed}, crash at {point}: keys {lost:?} of {} stood on flash and are gone; {may_miss} entries were given up",
            on_flash.objects.len()
        );
        // What stands on a device without damage is found: no partition of a cascade index is given up.
        assert_eq!(
            rig.cache.stats().cascade.forgotten,
            0,
            "seed {seed}, crash at {point}"
        );
        stood += on_flash.objects.len();
        missing += lost.len();
        rig.check();
        // Life goes on, and a second kill must not bring back what the first start left out.
        run.live(&rig, 10_000..10_030, KEYS);
        rig.check();
        drop(rig);
        run.medium.crash();
        run.medium.restart();
        let rig = run.open();
        run.model.before.clear();
        let what = format!("seed {seed}, second start after a crash at {point}");
        run.reconcile(&rig, KEYS, &what);
        // What was there a moment ago is there, unless a block was given up: a device that is nearly full is reclaimed while it is read.
        let misses = run.model.misses;
        (0..KEYS).for_each(|n| check_get(&rig, &mut run.model, n, false));
        let misses = run.model.misses - misses;
        // Whose mapping is on flash is dropped with its block without a look at whether it was live.
        let unseen = rig.cache.books().overwritten.0;
        let given_up = given_up(&rig)
            + if options.index.kind().is_authoritative() {
                0
            } else {
                unseen
            };
        assert!(
            misses <= given_up || options.hash_limit != HashLimit::default(),
            "seed {seed}, crash at {point}: {misses} keys were there and are not, and {given_up} were given up"
        );
        if !crashed {
            break;
        }
    }
    println!(
        "seed {seed}: {crashes} crash points, {served} objects served after them; \
         {stood} stood on flash, {missing} of them were in blocks being given up; \
         {counts:?}"
    );
    let missing_share = if drops_all(&options.layout) { 12 } else { 20 };
    assert!(
        load.look_every == 0 || (stood > 500 && missing * missing_share < stood),
        "{missing} of {stood}"
    );
    assert!(
        crashes > 20 && served > crashes,
        "{crashes} crashes, {served} served: the test proves nothing"
    );
    counts
}

/// A crash at every third write of a workload that fills 2 MiB of flash more than once, and in which objects are moved.
fn crash_at_every_third_write(seed: u64, options: CacheOptions) {
    let is_looked_at = options.dram_bytes == 0 && options.index.kind().is_authoritative();
    let churn = Load {
        look_every: if is_looked_at { 10 } else { 0 },
        // A flush once or not at all: nothing is moved that was flushed.
        weights: Weights {
            get: 100,
            set: 300,
            large: 140,
            delete: 80,
            append: 40,
            touch: 20,
            flush: 1,
            tick: 10,
        },
        stride: 3,
        ..load(500)
    };
    let gives_all_up = drops_all(&options.layout) || options.flash_write == FlashWrite::Eviction;
    let Counts { reclaimed, moved } = crash_everywhere_with(seed, options, 2 << 20, &churn);
    assert!(
        reclaimed > 40 && (moved > 10 || gives_all_up),
        "{reclaimed} blocks reclaimed, {moved} objects moved: the test proves nothing"
    );
}

#[test]
fn a_crash_at_every_write_brings_back_only_last_values() {
    crash_everywhere(1, 2 << 20, FlashWrite::Insertion, 2 << 20, 300);
}

#[test]
fn a_crash_at_every_write_without_a_dram_tier() {
    crash_everywhere(2, 0, FlashWrite::Insertion, 2 << 20, 300);
}

#[test]
fn a_crash_at_every_write_when_flash_is_written_on_eviction() {
    crash_everywhere(3, 640 << 10, FlashWrite::Eviction, 2 << 20, 800);
}

#[test]
fn a_crash_at_every_write_where_half_is_refused() {
    for (seed, dram_bytes, flash_write) in [
        (40, 2 << 20, FlashWrite::Insertion),
        (41, 0, FlashWrite::Insertion),
        (42, 640 << 10, FlashWrite::Eviction),
    ] {
        let options = CacheOptions {
            flash_write,
            admission: AdmissionOptions {
                rule: Rule::Random(0.5),
                // While flash fills chance lets everything in.
                object_bytes_max: 10 << 10,
                ..AdmissionOptions::default()
            },
            ..options(dram_bytes)
        };
        crash_everywhere_with(seed, options, 2 << 20, &load(1_000));
    }
}

#[test]
fn a_small_log_makes_checkpoints_and_they_survive_crashes_too() {
    // 1 MiB of flash has a log of 512 records, so that checkpoints happen every 128.
    crash_everywhere(4, 1 << 20, FlashWrite::Insertion, 1 << 20, 500);
}

#[test]
fn keys_that_share_a_mapping_bring_back_no_older_value_of_each_other() {
    for seed in 5..9 {
        let options = CacheOptions {
            hash_limit: HashLimit(5),
            ..options(640 << 10)
        };
        crash_everywhere_with(seed, options, 2 << 20, &load(300));
    }
}

#[test]
fn blocks_that_are_reclaimed_again_and_again_bring_nothing_back_and_lose_nothing_that_stood_on_flash() {
    let churn = Load {
        weights: Weights::churn(),
        steps: 400,
        look_every: 4,
        stride: 5,
    };
    for seed in 10..14 {
        crash_everywhere_with(seed, options(0), 1 << 20, &churn);
        let options = CacheOptions {
            layout: ripq(),
            ..options(0)
        };
        let longer = Load { steps: 900, ..churn };
        crash_everywhere_with(seed, options, 2 << 20, &longer);
    }
    for (seed, layout) in [(14, sipq()), (15, gdsf()), (16, ripq())] {
        let options = CacheOptions { layout, ..options(0) };
        let longer = Load { steps: 900, ..churn };
        crash_everywhere_with(seed, options, 2 << 20, &longer);
    }
}

#[test]
fn a_crash_at_every_third_write_under_a_cascade_index() {
    for (seed, dram_bytes, flash_write, layout) in [
        (30, 2 << 20, FlashWrite::Insertion, clock()),
        (31, 0, FlashWrite::Insertion, clock()),
        (32, 640 << 10, FlashWrite::Eviction, LayoutOptions::default()),
        (33, 2 << 20, FlashWrite::Insertion, ripq()),
        (34, 0, FlashWrite::Insertion, ripq()),
        (35, 0, FlashWrite::Insertion, gdsf()),
        (36, 640 << 10, FlashWrite::Eviction, sipq()),
        (37, 0, FlashWrite::Insertion, sipq()),
    ] {
        let options = CacheOptions {
            index: cascade(),
            layout,
            flash_write,
            ..options(dram_bytes)
        };
        crash_at_every_third_write(seed, options);
    }
}

#[test]
fn a_crash_at_every_third_write_under_ripq_and_sipq() {
    for (seed, dram_bytes, flash_write, layout) in [
        (20, 2 << 20, FlashWrite::Insertion, ripq()),
        (21, 0, FlashWrite::Insertion, ripq()),
        (22, 640 << 10, FlashWrite::Eviction, ripq()),
        (23, 2 << 20, FlashWrite::Insertion, sipq()),
        (24, 0, FlashWrite::Insertion, sipq()),
        (25, 0, FlashWrite::Insertion, ripq()),
        (26, 2 << 20, FlashWrite::Insertion, gdsf()),
        (27, 0, FlashWrite::Insertion, sipq_gdsf()),
    ] {
        let options = CacheOptions {
            layout,
            flash_write,
            ..options(dram_bytes)
        };
        crash_at_every_third_write(seed, options);
    }
}
