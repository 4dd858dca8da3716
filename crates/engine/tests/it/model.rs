//! The whole engine against a plain map: a hit is exactly the last live value, and what must hit does hit.

use crate::common;

use crate::common::{
    Model, Random, Rig, Weights, cascade, cascade_layouts, check_get, ripq, sipq, sipq_gdsf, step,
};
use pumice::{AdmissionOptions, CacheOptions, FlashWrite, HashLimit, IndexOptions, Rule, Stats};
use pumice_device::{MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
struct Run {
    flash_bytes: u64,
    options: CacheOptions,
    keys: u64,
    steps: u64,
    must_hit: bool,
}

/// The same operations under every layout.
fn run(seed: u64, run: Run) -> Model {
    let options = CacheOptions {
        layout: ripq(),
        buffers_max: 12,
        ..run.options
    };
    run_one(seed, Run { options, ..run });
    let is_absolute = seed % 2 == 1;
    let options = CacheOptions {
        layout: if is_absolute { sipq_gdsf() } else { sipq() },
        ..run.options
    };
    run_one(seed, Run { options, ..run });
    run_cascade(seed, run);
    run_one(seed, run)
}

fn run_one(seed: u64, run: Run) -> Model {
    run_with_stats(seed, run).0
}

/// Random operations with clean restarts and kills between them. The figures are those of all lives together.
fn run_with_stats(seed: u64, run: Run) -> (Model, Stats) {
    let mut total = Stats::default();
    println!("seed {seed}: {run:?}");
    let mut random = Random(seed);
    let weights = Weights::random(&mut random);
    // Checks wait for what is under way, so that runs with many have little of it.
    let check_every = 1 << random.below(9);
    let medium = Arc::new(MemMedium::new(run.flash_bytes));
    let clock = Arc::new(ManualClock::new(1_000));
    let mut model = Model::default();
    let mut rig = Rig::open(
        MemDevice::new(Arc::clone(&medium)),
        Arc::clone(&clock),
        run.options,
    );
    for n in 0..run.steps {
        step(&rig, &mut model, &mut random, &weights, n, run.keys, run.must_hit);
        // With work under way too: blocks that are being reclaimed, objects on their way.
        rig.cache.check_order();
        if (n + 1) % check_every == 0 {
            rig.check();
        }
        if n % 1_000 == 999 {
            let clean = random.below(2) == 0;
            if clean {
                rig.run(rig.cache.close(&rig.cx)).unwrap();
            }
            let stats = rig.cache.stats();
            total.flash.mapping_bytes += stats.flash.mapping_bytes;
            total.flash.mapping_reads += stats.flash.mapping_reads;
            total.flash.reclaimed_blocks += stats.flash.reclaimed_blocks;
            total.cascade += stats.cascade;
            drop(rig);
            rig = Rig::open(
                MemDevice::new(Arc::clone(&medium)),
                Arc::clone(&clock),
                run.options,
            );
            assert!(
                !rig.recovered.discarded && !rig.recovered.formatted,
                "{:?}",
                rig.recovered
            );
            assert_eq!(rig.recovered.clean, clean);
            if !clean {
                // What was only in buffers is gone; the model forgets what the cache does not have.
                for key in 0..run.keys {
                    if rig.get(&common::key(key)).is_none() {
                        let index = if run.must_hit {
                            IndexOptions::Full
                        } else {
                            run.options.index
                        };
                        model.lost(key, index);
                    }
                }
            }
            for key in 0..run.keys {
                check_get(&rig, &mut model, key, run.must_hit);
            }
            rig.check();
        }
    }
    (model, total)
}

/// Under a cascade index, whose pages are so small that most mappings are on flash.
fn run_cascade(seed: u64, run: Run) -> (Model, Stats) {
    let options = CacheOptions {
        index: cascade(),
        ..run.options
    };
    run_with_stats(seed, Run { options, ..run })
}

#[test]
fn under_a_cascade_index_every_hit_is_the_last_value_and_with_room_nothing_is_missing() {
    let mut reclaimed = 0;
    let layouts = cascade_layouts();
    for seed in 0..15 {
        for dram_bytes in [0, 2 << 20] {
            let roomy = Run {
                flash_bytes: 64 << 20,
                options: CacheOptions {
                    layout: layouts[seed as usize % layouts.len()],
                    buffers_max: 10,
                    ..options(dram_bytes)
                },
                keys: 400,
                steps: 4_000,
                must_hit: true,
            };
            let (model, stats) = run_cascade(seed, roomy);
            assert!(model.hits > 100, "{} hits", model.hits);
            assert!(
                stats.flash.mapping_bytes > 0 && stats.cascade.flash_mappings() > 0,
                "{stats:?}"
            );
            let small = Run {
                flash_bytes: 2 << 20,
                must_hit: false,
                ..roomy
            };
            let (model, stats) = run_cascade(seed + 100, small);
            assert!(model.hits > 50 && stats.flash.mapping_reads > 0, "{stats:?}");
            reclaimed += stats.flash.reclaimed_blocks;
        }
    }
    assert!(reclaimed > 500, "{reclaimed} blocks were reclaimed");
}

#[test]
fn keys_that_hide_each_other_under_a_cascade_index_come_back_as_they_were_last_or_not_at_all() {
    let layouts = cascade_layouts();
    for seed in 0..60 {
        let run = Run {
            flash_bytes: 2 << 20,
            options: CacheOptions {
                layout: layouts[seed as usize % layouts.len()],
                buffers_max: 10,
                flash_write: FlashWrite::Eviction,
                hash_limit: HashLimit(8),
                ..options(2 << 20)
            },
            keys: 400,
            steps: 4_000,
            must_hit: false,
        };
        run_cascade(seed + 200, run);
    }
}

fn options(dram_bytes: usize) -> CacheOptions {
    CacheOptions {
        dram_bytes,
        block_bytes: Some(64 << 10),
        item_bytes_max: 200 << 10,
        ..CacheOptions::default()
    }
}

#[test]
fn with_room_for_everything_nothing_is_missing() {
    for seed in 0..6 {
        let all = Run {
            flash_bytes: 64 << 20,
            options: options(4 << 20),
            keys: 60,
            steps: 3_000,
            must_hit: true,
        };
        let model = run(seed, all);
        assert!(
            model.hits > 100,
            "a cache that always misses must fail: {} hits",
            model.hits
        );
        // Without a DRAM tier flash alone must give the same.
        run(
            seed + 100,
            Run {
                options: options(0),
                ..all
            },
        );
        let eviction = CacheOptions {
            flash_write: FlashWrite::Eviction,
            ..options(4 << 20)
        };
        run(
            seed + 200,
            Run {
                options: eviction,
                ..all
            },
        );
    }
}

#[test]
fn on_a_small_device_every_hit_is_the_last_value() {
    for seed in 0..8 {
        let small = Run {
            flash_bytes: 2 << 20,
            options: options(2 << 20),
            keys: 600,
            steps: 3_000,
            must_hit: false,
        };
        let model = run(seed, small);
        assert!(model.hits > 50, "{} hits", model.hits);
        run(
            seed + 100,
            Run {
                options: options(0),
                ..small
            },
        );
        let eviction = CacheOptions {
            flash_write: FlashWrite::Eviction,
            ..options(2 << 20)
        };
        run(
            seed + 200,
            Run {
                options: eviction,
                ..small
            },
        );
    }
}

#[test]
fn where_half_is_refused_every_hit_is_the_last_value() {
    let mut hits = 0;
    for seed in 0..6 {
        let half = Run {
            flash_bytes: 2 << 20,
            options: CacheOptions {
                flash_write: [FlashWrite::Insertion, FlashWrite::Eviction][seed as usize % 2],
                admission: AdmissionOptions {
                    rule: Rule::Random(0.5),
                    // While flash fills chance lets everything in.
                    object_bytes_max: 10 << 10,
                    ..AdmissionOptions::default()
                },
                ..options([0, 640 << 10, 2 << 20][seed as usize % 3])
            },
            keys: 400,
            steps: 3_000,
            must_hit: false,
        };
        hits += run(seed + 300, half).hits;
        hits += run_cascade(seed + 310, half).0.hits;
    }
    assert!(hits > 2_000, "{hits} hits");
}

#[test]
fn colliding_hashes_cost_misses_never_wrong_values() {
    for seed in 0..6 {
        for bits in [0, 4, 8] {
            let options = CacheOptions {
                hash_limit: HashLimit(bits),
                ..options(2 << 20)
            };
            let collide = Run {
                flash_bytes: 4 << 20,
                options,
                keys: 100,
                steps: 2_000,
                must_hit: false,
            };
            let model = run(seed, collide);
            assert!(model.hits > 10, "{} hits", model.hits);
        }
    }
}

#[test]
fn a_restart_has_room_for_every_mapping_that_was_there() {
    // 40,000 mappings are some 400 KiB: far more pages than the index has to begin with.
    let medium = Arc::new(MemMedium::new(64 << 20));
    let clock = Arc::new(ManualClock::new(1_000));
    let options = CacheOptions {
        dram_bytes: 4 << 20,
        buffers_max: 16,
        ..CacheOptions::default()
    };
    let mut rig = Rig::open(MemDevice::new(Arc::clone(&medium)), Arc::clone(&clock), options);
    for n in 0..40_000u64 {
        assert!(rig.set(&common::key(n), b"some value or other"));
        if n % 64 == 0 {
            rig.settle();
        }
    }
    for clean in [true, false] {
        if clean {
            rig.run(rig.cache.close(&rig.cx)).unwrap();
        } else {
            rig.check();
        }
        drop(rig);
        rig = Rig::open(MemDevice::new(Arc::clone(&medium)), Arc::clone(&clock), options);
        assert_eq!(rig.recovered.no_memory, 0);
        assert!(rig.recovered.objects >= 39_900, "{:?}", rig.recovered);
        rig.check();
    }
}
