//! Two exact tiers: against layout `exact`, and by hand.

use pumice_models::{TierCounts, TiersOptions, TiersReport, replay_tiers};
use pumice_sim::{ExactOptions, MissingSizes, OpsMode, ReplayRules, Warmup, replay_exact};
use pumice_trace::{Trace, TraceOptions};

const ZIPF: &str = "zipf:keys=20000,theta=0.8,requests=200000,seed=7";

fn tiers(trace: &Trace, dram: &str, flash: &str, rule: &str, ops: OpsMode) -> TiersReport {
    let options = TiersOptions {
        dram: dram.parse().unwrap(),
        flash: flash.parse().unwrap(),
        rule: rule.parse().unwrap(),
        object_bytes_max: 0,
        rules: rules(ops, Warmup::default()),
    };
    replay_tiers(trace, &options, &mut |_| {}).unwrap()
}

fn rules(ops: OpsMode, warmup: Warmup) -> ReplayRules {
    ReplayRules {
        ops,
        missing_sizes: MissingSizes::Fixed(4096),
        warmup,
        ..ReplayRules::default()
    }
}

fn zipf() -> Trace {
    Trace::new(ZIPF, TraceOptions::default()).unwrap()
}

/// Hits of LRU of one size, whole and second half.
fn lru(trace: &Trace, size: &str, warmup: f64) -> u64 {
    let options = ExactOptions {
        policy: "lru".into(),
        size: size.parse().unwrap(),
        object_bytes_max: None,
        rules: rules(OpsMode::Lookup, Warmup::new(warmup).unwrap()),
    };
    let report = replay_exact(trace, &options, &mut |_| {}).unwrap();
    (report.object_hit_ratio.unwrap() * report.requests as f64).round() as u64
}

#[test]
fn each_tier_is_an_exact_lru_of_what_reaches_it() {
    let trace = zipf();
    let report = tiers(&trace, "1MiB", "8MiB", "all", OpsMode::Lookup);
    assert_eq!(report.whole.dram_hits, lru(&trace, "1MiB", 0.0));
    assert_eq!(report.second_half.dram_hits, lru(&trace, "1MiB", 0.5));
    // DRAM that is too small for an object lets all through to flash.
    let report = tiers(&trace, "1KiB", "8MiB", "all", OpsMode::Lookup);
    assert_eq!((report.whole.dram_hits, report.second_half.dram_hits), (0, 0));
    assert_eq!(report.whole.flash_hits, lru(&trace, "8MiB", 0.0));
    assert_eq!(report.second_half.flash_hits, lru(&trace, "8MiB", 0.5));
    let misses = report.whole.lookups - report.whole.flash_hits;
    assert_eq!(report.whole.written_objects, misses);
    assert_eq!(report.whole.written_bytes, misses * 4096);
    assert_eq!(
        (report.whole.lookups, report.second_half.lookups),
        (200_000, 100_000)
    );
}

#[test]
fn rules_say_what_is_written_and_the_same_each_time() {
    let trace = zipf();
    let run = |rule| tiers(&trace, "1MiB", "8MiB", rule, OpsMode::Lookup);
    let (all, random, second) = (run("all"), run("random:0.25"), run("second-hit"));
    assert_eq!(random.second_half, run("random:0.25").second_half);
    assert_eq!(second.second_half, run("second-hit").second_half);
    // Of more misses than under `all` a quarter is written.
    let share = random.second_half.written_objects as f64 / all.second_half.written_objects as f64;
    assert!((0.22..0.35).contains(&share), "{share}");
    assert!(second.second_half.written_objects < all.second_half.written_objects / 2);
    assert!(second.second_half.hit_ratio() > all.second_half.hit_ratio());
    // All three fill flash alike.
    assert!(random.whole.written_objects > 2048);
    assert_eq!(all.rule_bytes, 0);
    // And 4 KiB.
    assert!(second.rule_bytes > 0 && second.rule_bytes <= 2 * second.flash_objects + 4096);
    let refused = second.admission["refused_by_rule_objects"];
    assert_eq!(second.admission["admitted_objects"], second.whole.written_objects);
    let misses = second.whole.lookups - second.whole.dram_hits - second.whole.flash_hits;
    assert_eq!(refused + second.whole.written_objects, misses);
}

#[test]
fn what_is_refused_is_not_found_on_flash_in_an_older_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    // Flash holds one object, DRAM none.
    std::fs::write(
        &path,
        "1,set\n1,get\n2,set\n1,get\n1,delete\n2,get\n2,delete\n2,get\n",
    )
    .unwrap();
    let options = TraceOptions {
        format: None,
        columns: Some("id=1,op=2".parse().unwrap()),
    };
    let trace = Trace::new(&path, options).unwrap();
    let run = |rule| tiers(&trace, "1KiB", "4KiB", rule, OpsMode::AsRecorded).whole;
    let counted = |flash_hits, written_objects| TierCounts {
        lookups: 4,
        dram_hits: 0,
        flash_hits,
        written_objects,
        written_bytes: written_objects * 4096,
    };
    assert_eq!(run("all"), counted(2, 2));
    // The second set is refused, and the first object stays.
    assert_eq!(run("second-hit"), counted(2, 1));
    std::fs::write(&path, "1,set\n2,set\n1,set\n1,get\n").unwrap();
    // The third, with nothing on flash to replace, is random's to refuse or not.
    let third = run("random:0.000001");
    assert_eq!(
        (third.lookups, third.flash_hits, third.written_objects),
        (1, 0, 1)
    );
}

#[test]
fn objects_above_the_limit_stay_off_flash() {
    let trace = Trace::new(format!("{ZIPF},size=100-8000"), TraceOptions::default()).unwrap();
    let run = |object_bytes_max| {
        let options = TiersOptions {
            dram: "1MiB".parse().unwrap(),
            flash: "10%".parse().unwrap(),
            rule: pumice_admit::Rule::All,
            object_bytes_max,
            rules: rules(OpsMode::Lookup, Warmup::default()),
        };
        replay_tiers(&trace, &options, &mut |_| {}).unwrap()
    };
    let (all, small) = (run(0), run(4000));
    assert_eq!(all.admission["refused_size_objects"], 0);
    assert!(small.admission["refused_size_objects"] > 10_000);
    let mean = small.whole.written_bytes / small.whole.written_objects;
    assert!((1500..2600).contains(&mean), "{mean}");
}
