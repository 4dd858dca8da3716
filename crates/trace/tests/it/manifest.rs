//! The summary of every public trace against the figures that were computed of it by other means.

use crate::public::{options, traces};
use pumice_trace::{Summary, Trace, TraceKey};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

fn summary(folder: &Path, file: &str, key: TraceKey) -> Summary {
    let trace = Trace::new(folder.join(file), options(file))
        .unwrap()
        .with_key(key);
    Summary::of(&trace, &mut |_| {}).unwrap()
}

/// Compares a figure that the manifest has; returns whether it has it.
fn agrees(file: &str, entry: &Value, name: &str, found: Option<f64>) -> bool {
    let Some(expected) = entry[name].as_f64() else {
        return false;
    };
    let found = found.unwrap_or_else(|| panic!("{file}: no figure for {name}"));
    assert!(
        (found - expected).abs() <= 1e-12 * expected.abs(),
        "{file}: {name} is {found}, the manifest says {expected}"
    );
    true
}

/// Checks one file and returns how many figures agree.
fn check(folder: &Path, entry: &Value) -> usize {
    let file = entry["file"].as_str().unwrap();
    let found = summary(folder, file, TraceKey::Object);
    let float = |number: u64| Some(number as f64);
    let mut figures = vec![
        ("accesses", float(found.accesses)),
        ("distinct", float(found.objects)),
        ("one_hit_frac", found.one_hit_share),
        ("top1pct_share", found.top_1_percent_share),
        ("write_frac_accesses", found.write_share_accesses),
    ];
    let in_bytes = entry["footprint_unit"] == "bytes";
    assert_eq!(found.footprint_bytes.is_some(), in_bytes, "{file}: sizes");
    if let Some(sizes) = &found.object_size {
        figures.extend([
            ("footprint", found.footprint_bytes.map(|bytes| bytes as f64)),
            ("bytes_requested", found.bytes_requested.map(|bytes| bytes as f64)),
            (
                "raw_bytes_requested",
                found.bytes_recorded.map(|bytes| bytes as f64),
            ),
            ("max_obj", float(sizes.largest)),
        ]);
        // There a size that is not known is 0.
        if found.accesses_without_size == Some(0) {
            let resized = found.objects_resized.map(|count| count as f64);
            figures.extend([
                ("mean_obj", Some(sizes.mean)),
                ("median_obj", Some(sizes.median)),
                ("objects_with_size_change", resized),
            ]);
        }
    }
    let extra = &entry["extra"];
    let of_disks = [
        ("requests", float(found.requests)),
        ("write_frac_req", found.write_share),
        ("write_frac_bytes", found.write_share_bytes),
        ("unaligned_4k", found.unaligned_requests.map(|count| count as f64)),
    ];
    let mut agreeing = figures
        .into_iter()
        .filter(|(name, figure)| agrees(file, entry, name, *figure))
        .count();
    agreeing += of_disks
        .into_iter()
        .filter(|(name, figure)| agrees(file, extra, name, *figure))
        .count();
    assert_eq!(
        found.page_bytes.is_some(),
        extra["requests"].is_u64(),
        "{file}: pages"
    );
    let has_ops = entry["write_frac_accesses"].is_f64();
    assert_eq!(found.write_share.is_some(), has_ops, "{file}: operations");
    if let Some(contents) = extra["distinct_fingerprints"].as_u64() {
        let by_content = summary(folder, file, TraceKey::Fingerprint);
        assert_eq!(
            (by_content.objects, by_content.page_bytes),
            (contents, None),
            "{file}"
        );
    }
    agreeing
}

#[test]
fn summaries_agree_with_the_manifest() {
    let Some(folder) = traces("manifest.json") else {
        return;
    };
    let text = std::fs::read(folder.join("manifest.json")).unwrap();
    let mut entries: Vec<Value> = serde_json::from_slice(&text).unwrap();
    assert!(entries.len() >= 21, "the manifest names {} files", entries.len());
    // The longest first, since they are the last to end.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry["accesses"].as_u64()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let agreeing = check(&folder, entry);
                    assert!(agreeing >= 4, "{}: {agreeing} figures", entry["file"]);
                }
            });
        }
    });
}
