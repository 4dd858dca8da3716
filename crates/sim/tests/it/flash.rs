//! Replays under flash layouts: repeatable, the same on a simulated and a real device, and clear about what cannot be.

use pumice::{AdmissionOptions, FlashWrite};
use pumice_blocks::superblock::{Maker, SlotContent, Superblock};
use pumice_device::Profile;
use pumice_flash::{LayoutName, LayoutOptions};
use pumice_sim::{
    ExactOptions, FlashOptions, MissingSizes, OpsMode, ReplayDevice, ReplayRules, Report, Settings, SimError,
    Timed, Warmup, replay_exact, replay_flash,
};
use pumice_trace::{Trace, TraceOptions};

fn options(size: &str, device: ReplayDevice) -> FlashOptions {
    FlashOptions {
        layout: LayoutOptions::default(),
        superblock_blocks: 0,
        trim: false,
        throttle: None,
        timed: None,
        size: size.parse().unwrap(),
        dram_bytes: 0,
        flash_write: FlashWrite::default(),
        admission: AdmissionOptions::default(),
        served: None,
        index: pumice::IndexOptions::Full,
        block_bytes: None,
        device,
        reformat: false,
        rules: ReplayRules {
            missing_sizes: MissingSizes::Fixed(3000),
            ..ReplayRules::default()
        },
    }
}

fn trace(name: &str) -> Trace {
    Trace::new(name, TraceOptions::default()).unwrap()
}

fn replay(name: &str, options: &FlashOptions) -> Report {
    let report = replay_flash(&trace(name), options, &mut |_| ()).unwrap();
    // Times are not counts, and devices have names.
    Report {
        elapsed_seconds: 0.0,
        requests_per_second: 0.0,
        settings: Settings::default(),
        ..report
    }
}

const ZIPF: &str = "zipf:keys=4000,theta=0.9,requests=30000,seed=7";

#[test]
fn the_same_counts_twice_and_on_a_real_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("device");
    for dram_bytes in [0, 2 << 20] {
        let with = |device| FlashOptions {
            dram_bytes,
            ..options("30%", device)
        };
        let simulated = replay(ZIPF, &with(ReplayDevice::Sim));
        assert_eq!(simulated, replay(ZIPF, &with(ReplayDevice::Sim)));
        // Twice on one file: the cache that the first run left is erased.
        assert_eq!(simulated, replay(ZIPF, &with(ReplayDevice::Path(path.clone()))));
        assert_eq!(simulated, replay(ZIPF, &with(ReplayDevice::Path(path.clone()))));
        let hits = simulated.object_hit_ratio.unwrap();
        assert!((0.4..0.95).contains(&hits), "{hits}");
        let amplification = simulated.app_write_amplification.unwrap();
        assert!((1.0..1.2).contains(&amplification), "{amplification}");
    }
}

/// The same replay, and what it would have taken on devices of other kinds.
#[test]
fn a_throttled_device_changes_nothing_but_time() {
    let plain = replay(ZIPF, &options("30%", ReplayDevice::Sim));
    assert_eq!(plain.device_seconds, None);
    let mut slower = 0.0;
    for profile in Profile::ALL {
        let with = FlashOptions {
            throttle: Some(profile),
            ..options("30%", ReplayDevice::Sim)
        };
        let report = replay(ZIPF, &with);
        let seconds = report.device_seconds.expect("it is modelled");
        assert_eq!(
            plain,
            Report {
                device_seconds: None,
                ..report
            }
        );
        // A hit is a read that is waited for; what is written in the background may be waited for, too.
        let hits = plain.object_hit_ratio.unwrap() * plain.requests as f64;
        let reads = hits * plain.flash_reads_per_hit.unwrap() * profile.read.latency_ns as f64 / 1e9;
        assert!(
            seconds >= reads,
            "{profile}: {seconds} s, and {reads} s for reads alone"
        );
        assert!(
            seconds > slower,
            "{profile}: {seconds} s, the kind before {slower} s"
        );
        slower = seconds;
    }
}

#[test]
fn a_get_takes_what_it_waits_for_on_the_device_and_a_miss_what_was_said() {
    let with = |kind: &str| FlashOptions {
        dram_bytes: 1 << 20,
        throttle: Some(kind.parse().unwrap()),
        timed: Some(Timed {
            dram_ns: 2_000,
            miss_ns: 1_000_000,
        }),
        ..options("30%", ReplayDevice::Sim)
    };
    let plain = replay(
        ZIPF,
        &FlashOptions {
            timed: None,
            ..with("nvme")
        },
    );
    assert_eq!(plain.response_ns, None);
    // Writes that take no time: a read alone is waited for, of one sector or two.
    let idle = replay(ZIPF, &with("nvme:write=0us/1000GB/33"));
    assert_eq!(idle, replay(ZIPF, &with("nvme:write=0us/1000GB/33")));
    let (hits, dram) = (idle.object_hit_ratio.unwrap(), idle.dram_hit_ratio.unwrap());
    assert!((hits - plain.object_hit_ratio.unwrap()).abs() < 0.01, "{hits}");
    assert!(dram > 0.1 && hits - dram > 0.1 && hits < 0.9, "{dram} of {hits}");
    let of_sectors = |sectors: f64| {
        let read = 65_500.0 + sectors * 4096.0 / 3.5;
        dram * 2_000.0 + (hits - dram) * read + (1.0 - hits) * 1e6
    };
    let mean = idle.response_ns.unwrap();
    assert!(
        (of_sectors(1.0)..of_sectors(2.0)).contains(&mean),
        "{mean}, not {} to {}",
        of_sectors(1.0),
        of_sectors(2.0)
    );
    // Reads stand behind writes, which are under way while gets are.
    let busy = replay(ZIPF, &with("nvme:write=0us/10MB/33"));
    let longer = busy.response_ns.unwrap() - mean;
    assert!(longer > 0.1 * (hits - dram) * 65_500.0, "{longer}");
}

/// Small pages and a small tier 1: what a reclaim moves at once is soon more than tier 1 takes without a page.
#[test]
fn no_partition_is_forgotten_in_a_replay_without_faults() {
    let index = pumice::IndexOptions::Cascade(pumice::CascadeOptions {
        tier1_min: 3,
        tier1_share: 0.05,
        page_entries: 24,
    });
    for (layout, size, trace) in [
        (
            LayoutName::Ripq,
            "40%",
            "zipf:keys=20000,theta=0.8,requests=200000,seed=7",
        ),
        (
            LayoutName::Ripq,
            "40%",
            "uniform:keys=20000,requests=200000,seed=7",
        ),
        (
            LayoutName::Ripq,
            "60%",
            "hotspot:keys=20000,requests=200000,seed=7",
        ),
        (
            LayoutName::Sipq,
            "40%",
            "zipf:keys=20000,theta=0.8,requests=200000,seed=7",
        ),
        (
            LayoutName::Fifo,
            "40%",
            "zipf:keys=20000,theta=0.8,requests=200000,seed=7",
        ),
    ] {
        let options = FlashOptions {
            index,
            layout: LayoutOptions::new(layout, None, None, None).unwrap(),
            rules: ReplayRules {
                missing_sizes: MissingSizes::Fixed(300),
                ..ReplayRules::default()
            },
            ..options(size, ReplayDevice::Sim)
        };
        let report = replay(trace, &options);
        let cascade = report.cascade.unwrap();
        println!("{layout} {trace}: {:?} {cascade:?}", report.object_hit_ratio);
        assert_eq!(cascade.forgotten, 0, "{layout}, {trace}");
        assert!(cascade.reorganisations > 0, "{layout}, {trace}");
    }
}

#[test]
fn ripq_hits_as_often_with_a_cascade_index() {
    let lookups = "zipf:keys=200000,theta=0.8,requests=800000,seed=7";
    let sets = "zipf:keys=300000,theta=0.9,requests=1200000,sets=0.2,seed=7";
    // Hits move most of what counts from section to section while new objects come: sections split and merge all the time.
    let raised = "hotspot:keys=60000,requests=600000,seed=7";
    for (trace, ops, size, most) in [
        (lookups, OpsMode::Lookup, "40%", 0.01),
        (sets, OpsMode::AsRecorded, "40%", 0.02),
        (raised, OpsMode::Lookup, "60%", 0.01),
    ] {
        let hits = |index| {
            let options = FlashOptions {
                index,
                layout: LayoutOptions::new(LayoutName::Ripq, None, None, None).unwrap(),
                rules: ReplayRules {
                    missing_sizes: MissingSizes::Fixed(300),
                    ops,
                    ..ReplayRules::default()
                },
                ..options(size, ReplayDevice::Sim)
            };
            let report = replay(trace, &options);
            println!("{trace}: {:?}", report.cascade);
            assert!(report.cascade.is_none_or(|cascade| cascade.forgotten == 0));
            report.object_hit_ratio.unwrap()
        };
        let (full, cascade) = (
            hits(pumice::IndexOptions::Full),
            hits(pumice::IndexOptions::cascade(0.03)),
        );
        println!("{trace}: full {full:.4}, cascade {cascade:.4}");
        assert!(full - cascade < most, "{trace}: {full}, {cascade}");
    }
}

#[test]
fn a_cascade_index_hits_as_the_full_one_does_and_counts_what_it_costs() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = |index, device| FlashOptions {
        index,
        rules: ReplayRules {
            missing_sizes: MissingSizes::Fixed(300),
            ..ReplayRules::default()
        },
        ..options("20%", device)
    };
    let cascade = pumice::IndexOptions::cascade(0.06);
    let trace = "zipf:keys=100000,theta=0.9,requests=150000,seed=7";
    let path = ReplayDevice::Path(dir.path().join("device"));
    let simulated = replay(trace, &small(cascade, ReplayDevice::Sim));
    assert_eq!(simulated, replay(trace, &small(cascade, path)));
    assert!(
        simulated
            .cascade
            .is_some_and(|cascade| cascade.mapping_bytes_written > 0)
    );
    let trace = "zipf:keys=400000,theta=0.9,requests=700000,seed=7";
    let simulated = replay(trace, &small(cascade, ReplayDevice::Sim));
    let full = replay(trace, &small(pumice::IndexOptions::Full, ReplayDevice::Sim));
    let (hits, full_hits) = (
        simulated.object_hit_ratio.unwrap(),
        full.object_hit_ratio.unwrap(),
    );
    assert!((hits - full_hits).abs() < 0.01, "{hits}, {full_hits}");
    assert_eq!(full.flash_rounds_per_hit, full.flash_reads_per_hit);
    assert!(full.cascade.is_none());
    let counted = simulated.cascade.unwrap();
    assert!(
        counted.reorganisations > 0
            && counted.tier1_hits.min(counted.tier2_hits).min(counted.tier3_hits) > 0
            && counted.forgotten == 0,
        "{counted:?}"
    );
    let (reads, rounds) = (
        simulated.flash_reads_per_hit.unwrap(),
        simulated.flash_rounds_per_hit.unwrap(),
    );
    assert!(
        (1.0..1.6).contains(&reads) && (1.0..1.5).contains(&rounds),
        "{reads}, {rounds}"
    );
    let in_vain = simulated.flash_reads_per_miss.unwrap();
    assert!((0.001..0.15).contains(&in_vain), "{in_vain}");
    // Tier 1 has a page at least for each partition, which weighs much on so few objects.
    let of_flash = counted.tier2_bytes + counted.tier3_bytes + counted.directory_bytes;
    assert!(of_flash * 3 < full.index_dram_bytes.unwrap(), "{counted:?}");
    assert!(
        counted.tier1_mappings * 4 < counted.tier2_mappings + counted.tier3_mappings,
        "{counted:?}"
    );
    let share = counted.mapping_bytes_written as f64 / simulated.bytes_inserted.unwrap() as f64;
    assert!((0.02..0.2).contains(&share), "{share}");
}

#[test]
fn layout_clock_misses_less_than_lru_and_does_not_push_out_what_is_hot_with_what_comes_once() {
    let clock = FlashOptions {
        layout: LayoutOptions::new(LayoutName::Clock, None, None, None).unwrap(),
        index: pumice::IndexOptions::cascade(0.06),
        rules: ReplayRules {
            missing_sizes: MissingSizes::Fixed(300),
            warmup: Warmup::new(0.5).unwrap(),
            ..ReplayRules::default()
        },
        ..options("20%", ReplayDevice::Sim)
    };
    let name = "zipf:keys=200000,theta=0.9,requests=800000,seed=7";
    let report = replay(name, &clock);
    let lru = ExactOptions {
        policy: "lru".to_owned(),
        object_bytes_max: None,
        size: (report.object_bytes_resident_mean.unwrap() as u64)
            .to_string()
            .parse()
            .unwrap(),
        rules: clock.rules.clone(),
    };
    let lru = replay_exact(&trace(name), &lru, &mut |_| ()).unwrap();
    let [misses, lru_misses] = [&report, &lru].map(|report| 1.0 - report.object_hit_ratio.unwrap());
    assert!(misses < 0.95 * lru_misses, "{misses}, {lru_misses}");
    let amplification = report.app_write_amplification.unwrap();
    assert!((1.2..2.0).contains(&amplification), "{amplification}");
}

#[test]
fn objects_of_many_slices_give_the_same_counts_on_a_real_file_too() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let with = |device| FlashOptions {
        rules: ReplayRules {
            missing_sizes: MissingSizes::Fixed(150_000),
            ..ReplayRules::default()
        },
        ..options("4MiB", device)
    };
    let trace = "zipf:keys=60,theta=0.9,requests=1500,seed=7";
    let simulated = replay(trace, &with(ReplayDevice::Sim));
    assert_eq!(
        simulated,
        replay(trace, &with(ReplayDevice::Path(dir.path().join("device"))))
    );
    assert!(simulated.object_hit_ratio.unwrap() > 0.1, "{simulated:?}");
    assert!(
        simulated.objects_cached <= 26,
        "{} objects of 150,000 bytes in 4 MiB",
        simulated.objects_cached
    );
}

#[test]
fn a_cache_that_holds_everything_misses_only_first_requests() {
    let report = replay(ZIPF, &options("300%", ReplayDevice::Sim));
    let misses = (1.0 - report.object_hit_ratio.unwrap()) * report.requests as f64;
    assert_eq!(misses.round() as u64, report.objects_cached);
    assert_eq!(report.flash_reads_per_miss, Some(0.0));
    assert_eq!(report.objects_rejected, 0);
}

#[test]
fn a_size_below_the_smallest_device_is_refused_and_the_smallest_named() {
    for superblock_blocks in [0, 1, 4] {
        let run = |size: &str| {
            let options = FlashOptions {
                superblock_blocks,
                ..options(size, ReplayDevice::Sim)
            };
            replay_flash(&trace(ZIPF), &options, &mut |_| ())
        };
        let message = run("100KiB").unwrap_err().to_string();
        let smallest: u64 = message
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .next_back()
            .unwrap_or_else(|| panic!("no number in {message}"));
        let report = run(&smallest.to_string()).unwrap();
        assert_eq!(report.device_write_amplification.is_some(), superblock_blocks > 0);
        assert!(run(&(smallest - 4096).to_string()).is_err());
        // From there on there is a drive for each size.
        for superblocks in 1..40 {
            run(&(smallest + superblocks * (64 << 10) + 8192).to_string()).unwrap();
        }
    }
}

#[test]
fn a_file_that_holds_something_else_is_refused_and_untouched() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("letters");
    let content = b"not a cache ".repeat(1 << 18);
    std::fs::write(&path, &content).unwrap();
    let options = options("3MiB", ReplayDevice::Path(path.clone()));
    let error = replay_flash(&trace(ZIPF), &options, &mut |_| ()).unwrap_err();
    assert!(matches!(error, SimError::Open(_)), "{error}");
    assert!(std::fs::read(&path).unwrap() == content);
}

#[test]
fn what_a_server_left_is_refused_and_untouched_unless_it_may_be_erased() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("device");
    let with = |size, reformat| FlashOptions {
        reformat,
        ..options(size, ReplayDevice::Path(path.clone()))
    };
    replay(ZIPF, &with("3MiB", false));
    // As a server leaves it: both superblocks are its own.
    let mut content = std::fs::read(&path).unwrap();
    for slot in content[..8192].chunks_mut(4096) {
        let SlotContent::Valid(superblock) = Superblock::decode(slot) else {
            panic!("a replay left it");
        };
        assert_eq!(superblock.maker, Maker::Replay);
        let maker = Maker::Serve;
        slot.copy_from_slice(&Superblock { maker, ..superblock }.encode());
    }
    std::fs::write(&path, &content).unwrap();
    for size in ["3MiB", "6MiB"] {
        let refused = replay_flash(&trace(ZIPF), &with(size, false), &mut |_| ()).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains("pumice serve") && said.contains("--reformat"),
            "{said}"
        );
        assert!(std::fs::read(&path).unwrap() == content, "{size}");
    }
    replay(ZIPF, &with("3MiB", true));
    replay(ZIPF, &with("3MiB", false));
}

#[test]
fn ripq_and_sipq_give_the_same_counts_twice_and_on_a_real_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("device");
    for (layout, policy) in [
        (LayoutName::Ripq, "slru-3"),
        (LayoutName::Ripq, "gdsf-3"),
        (LayoutName::Ripq, "lfu"),
        (LayoutName::Sipq, "slru-3"),
        (LayoutName::Sipq, "gdsf-3"),
    ] {
        let with = |device| FlashOptions {
            layout: LayoutOptions::new(layout, Some(policy), Some(0.15), Some(0.9)).unwrap(),
            ..options("30%", device)
        };
        let simulated = replay(ZIPF, &with(ReplayDevice::Sim));
        assert_eq!(simulated, replay(ZIPF, &with(ReplayDevice::Sim)));
        assert_eq!(simulated, replay(ZIPF, &with(ReplayDevice::Path(path.clone()))));
    }
}

/// The measure of fidelity: hits of the layout, and of its exact twin with as many object bytes; by objects and by bytes.
fn fidelity(policy: &str) -> [[f64; 2]; 2] {
    // Hits move to other keys as time goes by, and sizes differ.
    let name = "latest:keys=60000,theta=0.9,requests=600000,size=500-3500,seed=7";
    let rules = ReplayRules {
        missing_sizes: MissingSizes::Fixed(1),
        warmup: Warmup::new(0.4).unwrap(),
        ..ReplayRules::default()
    };
    let with = FlashOptions {
        layout: LayoutOptions::new(LayoutName::Ripq, Some(policy), None, None).unwrap(),
        rules: rules.clone(),
        ..options("40MiB", ReplayDevice::Sim)
    };
    let layout = replay(name, &with);
    let bytes = layout.object_bytes_resident_mean.unwrap() as u64;
    let twin = ExactOptions {
        policy: policy.into(),
        size: bytes.to_string().parse().unwrap(),
        object_bytes_max: None,
        rules,
    };
    let twin = replay_exact(&trace(name), &twin, &mut |_| ()).unwrap();
    [&layout, &twin].map(|report| [report.object_hit_ratio.unwrap(), report.byte_hit_ratio.unwrap()])
}

#[test]
fn ripq_hits_as_its_exact_twin_does() {
    // The bounds of docs/ripq.md; on bytes of gdsf there is none.
    for (policy, objects, bytes) in [
        ("slru-1", 0.003, 0.003),
        ("slru-2", 0.003, 0.003),
        ("slru-3", 0.003, 0.003),
        ("gdsf-1", 0.01, 1.0),
        ("gdsf-2", 0.01, 1.0),
        ("gdsf-3", 0.01, 1.0),
        // As gdsf, since it is absolute, too.
        ("lfu", 0.01, 0.01),
    ] {
        let [layout, twin] = fidelity(policy);
        println!("{policy}: {layout:.4?} and {twin:.4?}");
        for (at, most) in [objects, bytes].into_iter().enumerate() {
            assert!(
                layout[at] > twin[at] - most,
                "{policy}: {layout:?} against {twin:?}"
            );
        }
    }
}

#[test]
fn policies_bring_their_own_occupancy_for_ripq_alone() {
    let theta = |layout, policy| {
        LayoutOptions::new(layout, Some(policy), None, None)
            .unwrap()
            .theta
    };
    let ripq = [
        "lru", "slru-1", "slru-2", "slru-3", "gdsf-1", "gdsf-2", "gdsf-3", "lfu",
    ];
    let ripq = ripq.map(|policy| theta(LayoutName::Ripq, policy));
    assert_eq!(ripq, [0.75, 0.75, 1.0, 1.0, 0.6, 0.5, 1.0, 1.0]);
    assert_eq!(theta(LayoutName::Sipq, "lru"), 0.5);
    let given = LayoutOptions::new(LayoutName::Ripq, Some("lru"), None, Some(1.0)).unwrap();
    assert_eq!(given.theta, 1.0, "what is given counts");
    assert_eq!(theta(LayoutName::Fifo, "fifo"), 1.0);
}

#[test]
fn sipq_is_fifo_without_a_queue_and_hits_more_with_one() {
    let with = |theta| FlashOptions {
        layout: LayoutOptions::new(LayoutName::Sipq, Some("slru-3"), None, Some(theta)).unwrap(),
        ..options("30%", ReplayDevice::Sim)
    };
    let fifo = replay(ZIPF, &options("30%", ReplayDevice::Sim));
    let named = |report: Report| Report {
        layout: "fifo".into(),
        policy: "fifo".into(),
        index_dram_bytes: fifo.index_dram_bytes,
        ..report
    };
    assert_eq!(named(replay(ZIPF, &with(0.0))), fifo);
    // Whatever the policy, and with deletes and overwrites.
    let mut random = pumice_world::Random(9);
    let mut below = |n: u64| random.below(n);
    let mut changes = String::from("time,id,size,op\n");
    for at in 0..20_000 {
        let op = ["get", "get", "get", "set", "set", "delete"][below(6) as usize];
        let keys = 1 + below(3_000);
        let key = below(keys);
        changes += &format!("{at},{key},{},{op}\n", 500 + key % 7 * 300);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changes.csv");
    std::fs::write(&path, changes).unwrap();
    let columns = Some("time=1,id=2,size=3,op=4,header=true".parse().unwrap());
    let changes = Trace::new(
        &path,
        TraceOptions {
            format: None,
            columns,
        },
    )
    .unwrap();
    for policy in ["slru-1", "slru-3", "gdsf-1", "gdsf-3", "lfu"] {
        let options = |layout| FlashOptions {
            layout,
            rules: ReplayRules {
                ops: OpsMode::AsRecorded,
                ..options("30%", ReplayDevice::Sim).rules
            },
            ..options("30%", ReplayDevice::Sim)
        };
        let sipq = LayoutOptions::new(LayoutName::Sipq, Some(policy), None, Some(0.0)).unwrap();
        let replay = |layout| {
            let report = replay_flash(&changes, &options(layout), &mut |_| ()).unwrap();
            let counts = (report.objects_cached, report.bytes_inserted);
            let ratios = (report.object_hit_ratio, report.byte_hit_ratio);
            (ratios, counts, report.bytes_written_host.unwrap())
        };
        let (sipq, fifo) = (replay(sipq), replay(LayoutOptions::default()));
        assert_eq!((sipq.0, sipq.1), (fifo.0, fifo.1), "{policy}");
        // A checkpoint also says that there are no keys, in so many bytes that it may end in the next sector.
        assert!(
            [0, 4096].contains(&(sipq.2 - fifo.2)),
            "{policy}: {sipq:?} {fifo:?}"
        );
    }
    let (half, most) = (replay(ZIPF, &with(0.5)), replay(ZIPF, &with(0.9)));
    let hits = |report: &Report| report.object_hit_ratio.unwrap();
    let writes = |report: &Report| report.app_write_amplification.unwrap();
    assert!(
        hits(&half) > hits(&fifo) + 0.01 && hits(&most) > hits(&half),
        "{} {} {}",
        hits(&fifo),
        hits(&half),
        hits(&most)
    );
    assert!(writes(&half) > writes(&fifo) && writes(&most) > writes(&half));
}

#[test]
fn sipq_keeps_no_more_than_finds_room_where_blocks_are_few() {
    // What is kept free, open, or a checkpoint's or mappings' is a large share of some twenty blocks.
    let name = "latest:keys=60000,theta=0.9,requests=300000,seed=7";
    for index in [pumice::IndexOptions::Full, pumice::IndexOptions::cascade(0.06)] {
        for theta in [0.5, 0.9] {
            let report = replay(
                name,
                &FlashOptions {
                    layout: LayoutOptions::new(LayoutName::Sipq, Some("slru-1"), None, Some(theta)).unwrap(),
                    index,
                    ..options("25MiB", ReplayDevice::Sim)
                },
            );
            let amplification = report.app_write_amplification.unwrap();
            println!("{index:?}, theta {theta}: {amplification:.2}");
            assert!(amplification < 3.0, "{index:?}, theta {theta}: {amplification}");
        }
    }
}

#[test]
fn objects_in_slices_count_the_same_on_a_real_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let with = |device| FlashOptions {
        layout: LayoutOptions::new(LayoutName::Ripq, Some("gdsf-3"), None, None).unwrap(),
        // What is read of slices goes to the DRAM tier, in the order in which it was asked for.
        dram_bytes: 2 << 20,
        block_bytes: Some(64 << 10),
        ..options("8MiB", device)
    };
    let trace = "zipf:keys=1000,theta=0.9,requests=6000,size=1000-150000,seed=7";
    let simulated = replay(trace, &with(ReplayDevice::Sim));
    let reads = simulated.flash_reads_per_hit.unwrap();
    assert!(reads > 1.5, "{reads}: most are in slices");
    let path = dir.path().join("device");
    assert_eq!(simulated, replay(trace, &with(ReplayDevice::Path(path))));
}

#[test]
fn a_drive_that_is_told_of_free_blocks_copies_less() {
    let with = |trim| FlashOptions {
        layout: LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), None, None).unwrap(),
        superblock_blocks: 4,
        trim,
        ..options("30MiB", ReplayDevice::Sim)
    };
    let trace = "zipf:keys=40000,theta=0.9,requests=200000,size=600-8192,seed=7";
    let (deaf, told) = (replay(trace, &with(false)), replay(trace, &with(true)));
    let [deaf_writes, told_writes] = [&deaf, &told].map(|report| report.device_write_amplification.unwrap());
    println!("{deaf_writes:.4} without, {told_writes:.4} with TRIM");
    assert!(told_writes < deaf_writes * 0.99);
    let of_the_cache = |report: &Report| (report.object_hit_ratio, report.bytes_written_host);
    assert_eq!(
        of_the_cache(&deaf),
        of_the_cache(&told),
        "the cache does the same"
    );
}

#[test]
fn a_drive_reports_what_it_writes() {
    let drive = FlashOptions {
        superblock_blocks: 1,
        ..options("30%", ReplayDevice::Sim)
    };
    let fifo = replay(ZIPF, &drive);
    let device = fifo.device_write_amplification.unwrap();
    assert!(
        (1.0..1.05).contains(&device),
        "first in, first out writes in a circle: {device}"
    );
    let combined = fifo.combined_write_amplification.unwrap();
    assert!((combined - device * fifo.app_write_amplification.unwrap()).abs() < 1e-9);
    let erases = [
        fifo.erases_min.map(f64::from),
        fifo.erases_mean,
        fifo.erases_max.map(f64::from),
    ];
    let [min, mean, max] = erases.map(|erases| erases.expect("there is a drive"));
    assert!(
        min < mean && mean < max,
        "{min}, {mean}, {max}: the log has its own superblocks"
    );
    let written = fifo.device_written_bytes.unwrap() as f64 / fifo.bytes_written_host.unwrap() as f64;
    assert!((0.98..=1.0).contains(&written), "{written}: all but log records");
    let hits = fifo.object_hit_ratio.unwrap() * fifo.requests as f64;
    let reads = fifo.device_reads.unwrap() as f64 / (hits * fifo.flash_reads_per_hit.unwrap());
    assert!(
        (1.0..1.05).contains(&reads),
        "{reads}: hits, and footers of blocks that go"
    );
    // What is erased is what was written, but for the first time, when the drive was new.
    let written = device * fifo.bytes_written_host.unwrap() as f64;
    let rounds = written / (fifo.flash_bytes.unwrap() as f64 / 0.9);
    assert!(
        (rounds - mean - 1.0).abs() < 0.2,
        "{mean} erases in {rounds} rounds"
    );
    assert_eq!(
        Report {
            device_write_amplification: None,
            combined_write_amplification: None,
            erases_min: None,
            erases_mean: None,
            erases_max: None,
            ..fifo
        },
        replay(ZIPF, &options("30%", ReplayDevice::Sim)),
        "the drive changes nothing else"
    );
}

#[test]
fn a_set_is_left_out_whose_get_would_have_hit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recorded.csv");
    // Each key is missed and set, twice, and set once more.
    let round = |rows: &[(u64, &str)]| -> String {
        (0..100)
            .flat_map(|key| {
                rows.iter()
                    .map(move |(size, op)| format!("1,{key},{size},{op}\n"))
            })
            .collect()
    };
    let twice = round(&[(0, "get"), (1000, "set")]).repeat(2);
    let text = format!("time,id,size,op\n{twice}{}", round(&[(1000, "set")]));
    std::fs::write(&path, text).unwrap();
    let columns = Some("time=1,id=2,size=3,op=4,header=true".parse().unwrap());
    let format = None;
    let recorded = Trace::new(&path, TraceOptions { format, columns }).unwrap();
    let inserted = |ops| {
        let mut options = options("8MiB", ReplayDevice::Sim);
        options.rules.ops = ops;
        let report = replay_flash(&recorded, &options, &mut |_| ()).unwrap();
        assert_eq!(report.object_hit_ratio, Some(0.5));
        report.bytes_inserted.unwrap()
    };
    // Two of each three sets.
    assert_eq!(
        inserted(OpsMode::LookAside) * 3,
        inserted(OpsMode::AsRecorded) * 2
    );
}
