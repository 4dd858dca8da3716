//! Layout `exact` against reference miss ratios that an independent simulator computed over public traces.
//!
//! The traces are not part of this repository: the folder that holds them and `reference_miss_ratios.json` is named by
//! the variable `PUMICE_TRACES`, or stands at `../shared/traces` beside the workspace. Without them the tests say so and
//! check nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pumice_sim::{ExactOptions, MissingSizes, ReplayRules, replay_exact};
use pumice_trace::{Format, SizeDistribution, Trace, TraceOptions};

/// Policies that are defined as the reference simulator's, and the reference's names.
const COLUMNS: [(&str, &str); 5] = [
    ("fifo", "FIFO"),
    ("lru", "LRU"),
    ("slru-list-3", "SLRU-3"),
    ("slru-list-4", "SLRU-4"),
    ("gdsf", "GDSF"),
];

const SHARES: [&str; 5] = ["1%", "5%", "10%", "20%", "40%"];

fn traces() -> Option<PathBuf> {
    let folder = std::env::var_os("PUMICE_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
        PathBuf::from,
    );
    if folder.join("reference_miss_ratios.json").is_file() {
        return Some(folder);
    }
    eprintln!(
        "skipped: the reference traces are not there ({} has no reference_miss_ratios.json)",
        folder.display()
    );
    None
}

/// Replays the trace of a reference entry at the sizes in `shares` and compares all digits that are given.
///
/// `format` is `auto` for text; binary traces have to be named.
fn check(entry: &str, format: &str, shares: &[&str]) {
    let Some(folder) = traces() else { return };
    let text = std::fs::read_to_string(folder.join("reference_miss_ratios.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reference = &json["traces"][entry];
    assert!(reference.is_object(), "no reference for {entry}");
    let (file, sizes) = match entry.split_once('#') {
        Some((file, "kvcache_reg-sizes")) => (file, "distributions/cachelib/kvcache_reg/sizes.json.zst"),
        _ => (entry, ""),
    };
    let missing_sizes = if sizes.is_empty() {
        MissingSizes::Unit
    } else {
        MissingSizes::Drawn(Arc::new(SizeDistribution::open(&folder.join(sizes)).unwrap()))
    };
    let options = TraceOptions {
        format: Format::parse_or_auto(format).unwrap(),
        columns: None,
    };
    let trace = Trace::new(folder.join(file), options).unwrap();
    for share in shares {
        let row = &reference["sizes"][share];
        for (policy, column) in COLUMNS {
            let rules = ReplayRules {
                missing_sizes: missing_sizes.clone(),
                ..ReplayRules::default()
            };
            let options = ExactOptions {
                policy: policy.into(),
                size: share.parse().unwrap(),
                rules,
            };
            let report = replay_exact(&trace, &options, &mut |_| {}).unwrap();
            let place = format!("{entry}, {policy} at {share}");
            assert_eq!(
                Some(report.requests),
                reference["accesses"].as_u64(),
                "{place}: accesses"
            );
            let capacity = row["cache_bytes"].as_u64().or(row["cache_objects"].as_u64());
            assert_eq!(Some(report.flash_bytes), capacity, "{place}: capacity");
            let ratios = &row[column];
            assert_eq!(
                six_digits(report.object_hit_ratio),
                ratios["object"].as_f64(),
                "{place}: object miss ratio"
            );
            assert_eq!(
                six_digits(report.byte_hit_ratio),
                ratios["byte"].as_f64(),
                "{place}: byte miss ratio"
            );
        }
    }
}

/// A miss ratio as the reference prints it.
fn six_digits(hit_ratio: Option<f64>) -> Option<f64> {
    hit_ratio.map(|ratio| format!("{:.6}", 1.0 - ratio).parse().unwrap())
}

#[test]
fn object_traces_give_the_reference_ratios() {
    for entry in [
        "object/adaptsize-bu98.request.trace.xz",
        "object/wiki_sampled_train_trace.tsv.zst",
        "object/wiki_sampled_val_trace.tsv.zst",
        "object/jedi-v.gen_sequence.txt.zst",
        "object/mooncake-conversation_trace.jsonl.zst",
    ] {
        check(entry, "auto", &SHARES);
    }
}

#[test]
fn tencent_traces_give_the_reference_ratios() {
    for volume in ["ns1326", "ns1360", "ns2706", "ns3300"] {
        check(
            &format!("block/tencentBlock.{volume}.sample.csv.zst"),
            "auto",
            &SHARES,
        );
    }
}

#[test]
fn key_traces_give_the_reference_ratios() {
    check("kv/scarab-recs.trace.xz", "keys-be-i64", &["1%", "10%", "40%"]);
    check("kv/cache2k-web07.trace.xz", "keys-be-u32", &SHARES);
}

#[test]
fn key_traces_with_drawn_sizes_give_the_reference_ratios() {
    check(
        "kv/scarab-recs.trace.xz#kvcache_reg-sizes",
        "keys-be-i64",
        &["1%", "40%"],
    );
    check(
        "kv/cache2k-web07.trace.xz#kvcache_reg-sizes",
        "keys-be-u32",
        &SHARES,
    );
}

#[test]
fn the_small_arc_trace_gives_the_reference_ratios() {
    check("block/arc-OLTP.lis.zst", "auto", &SHARES);
}

#[test]
fn a_long_key_trace_gives_the_reference_ratios() {
    check("kv/cache2k-orm-busy.trace.xz", "keys-be-u32", &["10%"]);
    check(
        "kv/cache2k-orm-busy.trace.xz#kvcache_reg-sizes",
        "keys-be-u32",
        &["10%"],
    );
}

#[test]
fn long_arc_traces_give_the_reference_ratios() {
    check("block/arc-P3.lis.zst", "auto", &["10%"]);
    check("block/arc-P6.lis.zst", "auto", &["10%"]);
}

#[test]
#[ignore = "every size of the longest traces: about a minute without optimisation"]
fn long_traces_give_the_reference_ratios_at_every_size() {
    check("kv/cache2k-orm-busy.trace.xz", "keys-be-u32", &SHARES);
    check(
        "kv/cache2k-orm-busy.trace.xz#kvcache_reg-sizes",
        "keys-be-u32",
        &SHARES,
    );
    check(
        "kv/scarab-recs.trace.xz#kvcache_reg-sizes",
        "keys-be-i64",
        &SHARES,
    );
    check("block/arc-P3.lis.zst", "auto", &SHARES);
    check("block/arc-P6.lis.zst", "auto", &SHARES);
}
