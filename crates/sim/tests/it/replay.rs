//! Replays of small traces whose outcome can be followed by hand.

use std::cell::Cell;
use std::path::PathBuf;

use pumice_sim::{
    Accesses, ExactOptions, MissingSizes, OpsMode, ReplayRules, Report, SimError, Unit, Warmup, replay_exact,
};
use pumice_trace::{Op, SIZE_REQUESTS, Summary, Trace, TraceOptions};

/// A csv trace of `id,size,op` rows.
struct Sample {
    _folder: tempfile::TempDir,
    path: PathBuf,
    columns: &'static str,
}

fn sample(columns: &'static str, rows: &str) -> Sample {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::write(&path, rows.replace(' ', "\n")).unwrap();
    Sample {
        _folder: folder,
        path,
        columns,
    }
}

impl Sample {
    fn trace(&self) -> Trace {
        let columns = Some(self.columns.parse().unwrap());
        Trace::new(
            &self.path,
            TraceOptions {
                format: None,
                columns,
            },
        )
        .unwrap()
    }

    fn replay_with(&self, policy: &str, size: &str, rules: ReplayRules) -> Result<Report, SimError> {
        let options = ExactOptions {
            policy: policy.into(),
            size: size.parse()?,
            object_bytes_max: None,
            rules,
        };
        replay_exact(&self.trace(), &options, &mut |_| {})
    }

    fn replay(&self, policy: &str, size: &str) -> Report {
        self.replay_with(policy, size, ReplayRules::default()).unwrap()
    }
}

fn hits(report: &Report) -> f64 {
    report.object_hit_ratio.unwrap() * report.requests as f64
}

#[test]
fn fifo_and_lru_differ_where_a_hit_saves_an_object() {
    // With room for two: LRU keeps `a` when `c` comes, FIFO drops it.
    let trace = sample("id=1", "a b a c a");
    assert_eq!(hits(&trace.replay("lru", "2")), 2.0);
    assert_eq!(hits(&trace.replay("fifo", "2")), 1.0);
    let report = trace.replay("lru", "2");
    // Objects are counted, and stand in no field of bytes.
    assert_eq!(report.unit, "objects");
    assert_eq!((report.flash_bytes, report.bytes_inserted), (None, None));
    assert_eq!(report.object_bytes_resident_mean, None);
    assert_eq!(
        (report.requests, report.objects_cached, report.flash_objects),
        (5, 2, Some(2))
    );
    assert_eq!((report.objects_inserted, report.byte_hit_ratio), (Some(3), None));
    assert_eq!(
        report.objects_resident_mean,
        Some((1 + 2 + 2 + 2 + 2) as f64 / 5.0)
    );
}

#[test]
fn the_first_size_of_an_object_holds_and_zero_counts_as_one() {
    let trace = sample("id=1,size=2", "a,10 a,1000 b,0 b,50");
    let report = trace.replay("lru", "11");
    assert_eq!(report.byte_hit_ratio, Some(11.0 / 22.0));
    assert_eq!((report.objects_cached, report.bytes_inserted), (2, Some(11)));
    // Footprint 10 + 1.
    assert_eq!(trace.replay("lru", "100%").flash_bytes, Some(11));
    assert_eq!(trace.replay("lru", "50%").flash_bytes, Some(5));
}

#[test]
fn an_object_larger_than_the_cache_is_a_miss_and_evicts_nothing() {
    let trace = sample("id=1,size=2", "a,5 big,11 big,11 a,5");
    let report = trace.replay("lru", "10");
    assert_eq!(
        (hits(&report), report.objects_rejected, report.objects_cached),
        (1.0, 2, 1)
    );
}

#[test]
fn the_warmup_fills_the_cache_and_is_not_counted() {
    let trace = sample("id=1", "a b c a b c a x");
    let warm = |fraction| ReplayRules {
        warmup: Warmup::new(fraction).unwrap(),
        ..ReplayRules::default()
    };
    let report = trace.replay_with("lru", "5", warm(0.5)).unwrap();
    assert_eq!(
        (report.requests, report.object_hit_ratio, report.objects_inserted),
        (4, Some(0.75), Some(1))
    );
    let all = trace.replay_with("lru", "5", warm(0.0)).unwrap();
    assert_eq!((all.requests, all.object_hit_ratio), (8, Some(0.5)));
    let last = trace.replay_with("lru", "5", warm(0.99)).unwrap();
    assert_eq!((last.requests, last.object_hit_ratio), (1, Some(0.0)));
}

const MIXED: &str = "a,10,get a,10,set a,10,get a,20,set a,0,get a,0,delete a,10,get";

#[test]
fn under_lookup_sets_are_lookups_and_deletes_are_left_out() {
    let report = sample("id=1,size=2,op=3", MIXED).replay("lru", "100");
    assert_eq!((report.requests, hits(&report)), (6, 5.0));
    assert_eq!((report.bytes_inserted, report.objects_cached), (Some(10), 1));
}

#[test]
fn as_recorded_gets_look_up_sets_insert_and_deletes_remove() {
    let rules = ReplayRules {
        ops: OpsMode::AsRecorded,
        ..ReplayRules::default()
    };
    let report = sample("id=1,size=2,op=3", MIXED)
        .replay_with("lru", "100", rules)
        .unwrap();
    assert_eq!((report.requests, report.object_hit_ratio), (7, Some(0.5)));
    // Hits of 10 and 20 bytes; misses that record 10 each.
    assert_eq!(report.byte_hit_ratio, Some(30.0 / 50.0));
    assert_eq!((report.bytes_inserted, report.objects_cached), (Some(30), 0));
}

#[test]
fn look_aside_leaves_out_the_set_that_followed_a_miss_which_hits_here() {
    let rules = ReplayRules {
        ops: OpsMode::LookAside,
        ..ReplayRules::default()
    };
    // A miss and its set; a miss when it was recorded, which hits, and the set that is not made; a set without a get.
    let steps = "a,0,get a,10,set a,0,get a,10,set a,10,set b,20,get b,20,set";
    let trace = sample("id=1,size=2,op=3", steps);
    let report = trace.replay_with("lru", "100", rules.clone()).unwrap();
    assert_eq!((report.requests, report.object_hit_ratio), (7, Some(1.0 / 3.0)));
    assert_eq!((report.bytes_inserted, report.objects_cached), (Some(60), 2));
}

/// As `trace record` writes it: what missed has no size, and the set that followed has.
#[test]
fn a_request_without_a_size_has_the_next_of_its_key() {
    let sizes = "id=1,size=2,op=3";
    let recorded = sample(
        sizes,
        "a,,get a,10,set b,,get b,30,set a,10,get b,30,get a,10,get",
    );
    let told = sample(
        sizes,
        "a,10,get a,10,set b,30,get b,30,set a,10,get b,30,get a,10,get",
    );
    for size in ["100%", "75%", "25%"] {
        let (found, expected) = (recorded.replay("lru", size), told.replay("lru", size));
        assert_eq!(
            (found.object_hit_ratio, found.byte_hit_ratio, found.flash_bytes),
            (
                expected.object_hit_ratio,
                expected.byte_hit_ratio,
                expected.flash_bytes
            ),
            "{size}"
        );
        assert_eq!(expected.settings.without_size, None);
        let without = found.settings.without_size.unwrap();
        assert_eq!((without.requests, without.unknown), (2, 0));
    }
    // What never has a size has one that is assumed, and what has one later keeps that.
    let rules = |missing_sizes| ReplayRules {
        missing_sizes,
        ..ReplayRules::default()
    };
    let unknown = sample(sizes, "a,,get b,10,set b,,get a,,get c,,delete");
    for (sizes, assumed) in [(MissingSizes::Fixed(100), 100), (MissingSizes::Unit, 4096)] {
        let report = unknown.replay_with("lru", "100%", rules(sizes)).unwrap();
        assert_eq!(report.flash_bytes, Some(assumed + 10));
        let without = report.settings.without_size.unwrap();
        assert_eq!(
            (without.requests, without.unknown, without.assumed_bytes),
            (3, 3, assumed)
        );
        assert_eq!(
            report.byte_hit_ratio,
            Some((assumed + 10) as f64 / (2 * assumed + 20) as f64)
        );
    }
}

/// Farther on than requests are looked ahead: a replay that reads the trace twice has the sizes that a summary has.
#[test]
fn a_size_that_comes_late_is_that_of_the_object_from_its_start_on() {
    let others = |from| -> String {
        (from..from + 3 * SIZE_REQUESTS)
            .map(|key| format!("{key},1,get "))
            .collect()
    };
    let rows = format!(
        "a,,get b,,delete {}a,10,set b,30,set {}a,99,get b,,get c,,get",
        others(0),
        others(3 * SIZE_REQUESTS)
    );
    let trace = sample("id=1,size=2,op=3", &rows);
    let others = 6 * SIZE_REQUESTS as u64;
    let known = others + 10 + 30;
    let summary = Summary::of(&trace.trace(), &mut |_| {}).unwrap();
    assert_eq!(
        (summary.footprint_bytes, summary.objects_without_size),
        (Some(known), Some(1))
    );
    let report = trace.replay("lru", "100%");
    assert_eq!(report.flash_bytes, Some(known + 4096));
    assert_eq!(report.bytes_inserted, report.flash_bytes);
    // Twice `a` and once `b` hit.
    let hits = (10 + 10 + 30) as f64;
    assert_eq!(report.byte_hit_ratio, Some(hits / (hits + (known + 4096) as f64)));
    // In one pass it has, until the size comes, one that is assumed.
    let report = trace.replay("lru", "1GiB");
    assert_eq!(report.bytes_inserted, Some(4096 + 30 + others + 4096));
    let requested = (4096 + 30 + others + 4096) as f64;
    assert_eq!(report.byte_hit_ratio, Some(hits / (hits + requested)));
}

#[test]
fn as_recorded_a_set_that_outgrows_the_cache_leaves_nothing_stale() {
    let rules = ReplayRules {
        ops: OpsMode::AsRecorded,
        ..ReplayRules::default()
    };
    let trace = sample("id=1,size=2,op=3", "a,10,set a,101,set a,101,get");
    let report = trace.replay_with("fifo", "100", rules).unwrap();
    assert_eq!(
        (
            report.object_hit_ratio,
            report.objects_rejected,
            report.objects_cached
        ),
        (Some(0.0), 1, 0)
    );
}

#[test]
fn missing_sizes_are_fixed_or_unit_and_given_ones_are_kept() {
    let trace = sample("id=1", "a b a");
    let fixed = ReplayRules {
        missing_sizes: MissingSizes::Fixed(4096),
        ..ReplayRules::default()
    };
    let report = trace.replay_with("lru", "100%", fixed.clone()).unwrap();
    assert_eq!(
        (report.flash_bytes, report.byte_hit_ratio),
        (Some(8192), Some(1.0 / 3.0))
    );
    assert_eq!(
        sample("id=1,size=2", "a,1 b,2")
            .replay_with("lru", "100%", fixed.clone())
            .unwrap()
            .flash_bytes,
        Some(3)
    );
    let ignored = ReplayRules {
        ignores_sizes: true,
        ..fixed
    };
    let report = sample("id=1,size=2", "a,1 b,2").replay_with("lru", "100%", ignored);
    assert_eq!(report.unwrap().flash_bytes, Some(8192));
}

#[test]
fn accesses_carry_keys_numbers_sizes_and_operations() {
    let sample = sample("id=1,size=2,op=3", "7,10,get 8,0,set 7,99,get 7,1,delete 9,3,get");
    let trace = sample.trace();
    let read = |ops| {
        let rules = ReplayRules {
            ops,
            ..ReplayRules::default()
        };
        let mut accesses = Accesses::open(&trace, &rules).unwrap();
        assert_eq!(accesses.unit(), Unit::Bytes);
        let survey = accesses.survey(&mut |_| {}).unwrap();
        assert_eq!((survey.objects, survey.footprint), (3, 14));
        let mut batch = Vec::new();
        assert!(accesses.next_batch(&mut batch).unwrap());
        assert_eq!(survey.accesses, batch.len() as u64);
        assert!(!accesses.next_batch(&mut Vec::new()).unwrap());
        batch
            .iter()
            .map(|access| (access.key, access.object, access.size, access.op))
            .collect::<Vec<_>>()
    };
    let lookup = [
        (7, 0, 10, Op::Get),
        (8, 1, 1, Op::Set),
        (7, 0, 10, Op::Get),
        (9, 2, 3, Op::Get),
    ];
    assert_eq!(read(OpsMode::Lookup), lookup);
    let recorded = [
        (7, 0, 10, Op::Get),
        (8, 1, 1, Op::Set),
        (7, 0, 99, Op::Get),
        (7, 0, 1, Op::Delete),
        (9, 2, 3, Op::Get),
    ];
    assert_eq!(read(OpsMode::AsRecorded), recorded);
}

#[test]
fn what_cannot_be_replayed_is_named() {
    let trace = sample("id=1", "a b a");
    let message = |policy, size| {
        trace
            .replay_with(policy, size, ReplayRules::default())
            .unwrap_err()
            .to_string()
    };
    let unknown = message("slru-9", "1");
    assert!(
        unknown.starts_with("no policy `slru-9` for layout exact (policies: fifo, lru, slru-1,"),
        "{unknown}"
    );
    assert!(message("lru", "1MiB").contains("has no sizes"));
    assert!(message("lru", "10%").contains("10% is 0 objects"));
    assert!(message("lru", "ten").contains("`ten`"));
    let columns = Some("id=1".parse().unwrap());
    let gone = Trace::new(
        "/no/such/trace",
        TraceOptions {
            format: None,
            columns,
        },
    )
    .unwrap();
    let options = ExactOptions {
        policy: "lru".into(),
        size: "1".parse().unwrap(),
        object_bytes_max: None,
        rules: ReplayRules::default(),
    };
    assert!(
        replay_exact(&gone, &options, &mut |_| {})
            .unwrap_err()
            .to_string()
            .contains("/no/such/trace")
    );
}

#[test]
fn a_trace_that_can_be_read_once_only_is_refused_where_two_passes_are_needed() {
    let columns = Some("id=1".parse().unwrap());
    let trace = Trace::new(
        "/dev/null",
        TraceOptions {
            format: None,
            columns,
        },
    )
    .unwrap();
    let replay = |size: &str| {
        let options = ExactOptions {
            policy: "lru".into(),
            size: size.parse()?,
            object_bytes_max: None,
            rules: ReplayRules::default(),
        };
        replay_exact(&trace, &options, &mut |_| {})
    };
    assert_eq!(replay("10").unwrap().requests, 0);
    let message = replay("10%").unwrap_err().to_string();
    assert_eq!(
        message,
        "/dev/null cannot be read twice, which a size in percent needs: give a file"
    );
}

#[test]
fn a_damaged_trace_ends_the_replay_with_its_place() {
    let trace = sample("id=1,size=2", "a,1 b,x");
    let error = trace
        .replay_with("lru", "10", ReplayRules::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("record 2 at byte 6: size: ") && error.ends_with("found `x`"),
        "{error}"
    );
}

#[test]
fn an_empty_trace_has_no_ratios() {
    let report = sample("id=1", "").replay("fifo", "10");
    assert_eq!(
        (
            report.requests,
            report.object_hit_ratio,
            report.objects_resident_mean
        ),
        (0, None, None)
    );
}

#[test]
fn a_generator_replays_alike_each_time_and_near_the_expected_ratio() {
    // Uniform requests over 1000 keys into a cache of 250: a quarter hits, whatever the policy.
    let trace = Trace::new(
        "uniform:keys=1000,requests=200000,seed=5",
        TraceOptions::default(),
    )
    .unwrap();
    for policy in ["fifo", "lru"] {
        let warmup = Warmup::new(0.5).unwrap();
        let rules = ReplayRules {
            warmup,
            ..ReplayRules::default()
        };
        let options = ExactOptions {
            policy: policy.into(),
            size: "25%".parse().unwrap(),
            object_bytes_max: None,
            rules,
        };
        let (passes, last) = (Cell::new(0), Cell::new(0.0));
        let replay = || {
            replay_exact(&trace, &options, &mut |at| {
                passes.set(passes.get().max(at.pass));
                last.set(at.progress.fraction());
            })
            .unwrap()
        };
        let (first, second) = (replay(), replay());
        let untimed = |report: Report| Report {
            elapsed_seconds: 0.0,
            requests_per_second: 0.0,
            ..report
        };
        let ratio = first.object_hit_ratio.unwrap();
        assert!((0.24..0.26).contains(&ratio), "{policy}: {ratio}");
        assert_eq!(untimed(first), untimed(second));
        assert_eq!((passes.get(), last.get()), (2, 1.0));
    }
}
