//! Layout `exact` against reference miss ratios that an independent simulator computed over public traces.

use crate::public::{options, traces};
use pumice_sim::{ExactOptions, MissingSizes, ReplayRules, replay_exact};
use pumice_trace::{SizeDistribution, Trace, TraceKey};
use std::path::Path;
use std::sync::Arc;

/// Policies that are defined as the reference simulator's, and the reference's names.
const COLUMNS: [(&str, &str); 5] = [
    ("fifo", "FIFO"),
    ("lru", "LRU"),
    ("slru-list-3", "SLRU-3"),
    ("slru-list-4", "SLRU-4"),
    ("gdsf", "GDSF"),
];

const SHARES: [&str; 5] = ["1%", "5%", "10%", "20%", "40%"];

/// The file of the figures.
pub(super) const FIGURES: &str = "reference_miss_ratios.json";

fn reference(folder: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join(FIGURES)).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["traces"].take()
}

/// Bytes of an object where the reference counts objects and the trace has sizes, all the same: pages.
const PAGE_BYTES: u64 = 4096;

/// Replays the trace of a reference entry under the first `columns` of [`COLUMNS`] at the sizes in `shares`, and compares all
/// digits that are given.
///
/// Sizes are given in percent, which takes a first pass over the trace to find the footprint; with `given_sizes` as the number
/// that the reference found.
fn check(entry: &str, columns: &[(&str, &str)], shares: &[&str], given_sizes: bool) {
    let Some(folder) = traces(FIGURES) else { return };
    let reference = &reference(&folder)[entry];
    assert!(reference.is_object(), "no reference for {entry}");
    let (file, how) = entry.split_once('#').unwrap_or((entry, ""));
    let missing_sizes = if how == "kvcache_reg-sizes" {
        let sizes = folder.join("distributions/cachelib/kvcache_reg/sizes.json.zst");
        MissingSizes::Drawn(Arc::new(SizeDistribution::open(&sizes).unwrap()))
    } else {
        MissingSizes::Unit
    };
    let key = if how == "fingerprint" {
        TraceKey::Fingerprint
    } else {
        TraceKey::Object
    };
    let trace = Trace::new(folder.join(file), options(file))
        .unwrap()
        .with_key(key);
    let unit = reference["unit"].as_str().unwrap();
    let object_bytes = match unit {
        "bytes" | "objects" => 1,
        _ => PAGE_BYTES,
    };
    for share in shares {
        let row = &reference["sizes"][share];
        let capacity = row["cache_bytes"]
            .as_u64()
            .or(row["cache_objects"].as_u64())
            .unwrap();
        for (policy, column) in columns {
            let rules = ReplayRules {
                missing_sizes: missing_sizes.clone(),
                ..ReplayRules::default()
            };
            let size = if given_sizes {
                (capacity * object_bytes).to_string()
            } else {
                (*share).to_owned()
            };
            let options = ExactOptions {
                policy: (*policy).into(),
                size: size.parse().unwrap(),
                object_bytes_max: None,
                rules,
            };
            let report = replay_exact(&trace, &options, &mut |_| {}).unwrap();
            let place = format!("{entry}, {policy} at {share}");
            assert_eq!(
                Some(report.requests),
                reference["accesses"].as_u64(),
                "{place}: accesses"
            );
            let size = report.flash_objects.or(report.flash_bytes);
            assert_eq!(size.unwrap() / object_bytes, capacity, "{place}: capacity");
            let ratios = &row[column];
            let object_ratio = ratios["object"].as_f64();
            assert!(object_ratio.is_some(), "{place}: no reference");
            assert_eq!(
                six_digits(report.object_hit_ratio),
                object_ratio,
                "{place}: object miss ratio"
            );
            // Of pages the reference gives no byte miss ratio: it is that of objects.
            let byte_ratio = match unit {
                "bytes" | "objects" => ratios["byte"].as_f64(),
                _ => object_ratio,
            };
            assert_eq!(
                six_digits(report.byte_hit_ratio),
                byte_ratio,
                "{place}: byte miss ratio"
            );
        }
    }
}

/// A miss ratio as the reference prints it.
fn six_digits(hit_ratio: Option<f64>) -> Option<f64> {
    hit_ratio.map(|ratio| format!("{:.6}", 1.0 - ratio).parse().unwrap())
}

/// Entries of few accesses: every policy at every size.
const SHORT: [&str; 15] = [
    "object/adaptsize-bu98.request.trace.xz",
    "object/wiki_sampled_train_trace.tsv.zst",
    "object/wiki_sampled_val_trace.tsv.zst",
    "object/jedi-v.gen_sequence.txt.zst",
    "object/mooncake-conversation_trace.jsonl.zst",
    "kv/cache2k-web07.trace.xz",
    "kv/cache2k-web07.trace.xz#kvcache_reg-sizes",
    "block/tencentBlock.ns1326.sample.csv.zst",
    "block/tencentBlock.ns1360.sample.csv.zst",
    "block/tencentBlock.ns2706.sample.csv.zst",
    "block/tencentBlock.ns3300.sample.csv.zst",
    "block/linux-mysql.load.gz",
    "block/mqsim-wsrch-small.trace.zst",
    "dedup/fiu-mail-cheetah.10000.blkparse.zst",
    "dedup/fiu-mail-cheetah.10000.blkparse.zst#fingerprint",
];

/// Entries of a million accesses and more: fifo and lru at every size, the other policies at one.
const LONG: [&str; 8] = [
    "kv/scarab-recs.trace.xz",
    "kv/scarab-recs.trace.xz#kvcache_reg-sizes",
    "kv/cache2k-orm-busy.trace.xz",
    "kv/cache2k-orm-busy.trace.xz#kvcache_reg-sizes",
    "block/cloudPhysicsIO.vscsi.zst",
    "block/arc-OLTP.lis.zst",
    "block/arc-P3.lis.zst",
    "block/arc-P6.lis.zst",
];

fn check_long(entry: &str) {
    let (first, others) = COLUMNS.split_at(2);
    check(entry, first, &["1%", "5%", "20%", "40%"], true);
    check(entry, first, &["10%"], false);
    check(entry, others, &["10%"], true);
}

#[test]
fn every_entry_is_checked() {
    let Some(folder) = traces(FIGURES) else { return };
    let reference = reference(&folder);
    let mut there: Vec<&str> = reference
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut checked: Vec<&str> = SHORT.into_iter().chain(LONG).collect();
    there.sort_unstable();
    checked.sort_unstable();
    assert_eq!(there, checked);
    for (entry, rows) in reference.as_object().unwrap() {
        let mut shares: Vec<&str> = rows["sizes"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        shares.sort_by_key(|share| share.len() * 1000 + usize::from(share.as_bytes()[0]));
        assert_eq!(shares, SHARES, "{entry}");
    }
}

#[test]
fn object_traces_give_the_reference_ratios() {
    for entry in SHORT.iter().filter(|entry| entry.starts_with("object/")) {
        check(entry, &COLUMNS, &SHARES, false);
    }
}

#[test]
fn other_short_traces_give_the_reference_ratios() {
    for entry in SHORT.iter().filter(|entry| !entry.starts_with("object/")) {
        check(entry, &COLUMNS, &SHARES, false);
    }
}

#[test]
fn scarab_gives_the_reference_ratios() {
    check_long("kv/scarab-recs.trace.xz");
}

#[test]
fn scarab_with_drawn_sizes_gives_the_reference_ratios() {
    check_long("kv/scarab-recs.trace.xz#kvcache_reg-sizes");
}

#[test]
fn cache2k_orm_gives_the_reference_ratios() {
    check_long("kv/cache2k-orm-busy.trace.xz");
}

#[test]
fn cache2k_orm_with_drawn_sizes_gives_the_reference_ratios() {
    check_long("kv/cache2k-orm-busy.trace.xz#kvcache_reg-sizes");
}

#[test]
fn cloud_physics_gives_the_reference_ratios() {
    check_long("block/cloudPhysicsIO.vscsi.zst");
}

#[test]
fn arc_oltp_gives_the_reference_ratios() {
    check_long("block/arc-OLTP.lis.zst");
}

#[test]
fn arc_p3_gives_the_reference_ratios() {
    check_long("block/arc-P3.lis.zst");
}

#[test]
fn arc_p6_gives_the_reference_ratios() {
    check_long("block/arc-P6.lis.zst");
}

#[test]
#[ignore = "every policy at every size of the longest traces: minutes without optimisation"]
fn long_traces_give_the_reference_ratios_under_every_policy() {
    for entry in LONG {
        check(entry, &COLUMNS, &SHARES, false);
    }
}
