//! `pumice-bench device`: what it prints, and what it refuses.

use std::path::Path;
use std::process::Output;
use tempfile::tempdir;

fn bench(path: &Path, arguments: &str) -> Output {
    crate::bench(&format!("device {arguments}"), &[path])
}

#[test]
fn each_combination_has_a_row_and_the_file_that_was_made_goes() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("new");
    let flags = "--size 4MiB --sizes 4KiB,64KiB --depths 1,8 --reads 100,50,0 --seconds 0.02 --json";
    let output = bench(&path, flags);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!path.exists());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["used_bytes"], 4 << 20);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        let reads = row["reads_percent"].as_u64().unwrap();
        let operations = row["operations"].as_u64().unwrap();
        assert!(operations > 0, "{row}");
        assert_eq!(row["read"].is_null(), reads == 0, "{row}");
        assert_eq!(row["write"].is_null(), reads == 100, "{row}");
        // Little's law: what is under way is the rate by the time of each.
        let side = if reads == 0 { "write" } else { "read" };
        if reads != 50 && operations > 100 {
            let under_way =
                row["operations_per_second"].as_f64().unwrap() * row[side]["mean_us"].as_f64().unwrap() / 1e6;
            let depth = row["depth"].as_f64().unwrap();
            assert!(
                (depth * 0.5..depth * 1.05).contains(&under_way),
                "{under_way}: {row}"
            );
        }
    }
}

#[test]
fn a_throttled_device_is_as_slow_as_its_model() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("new");
    let output = bench(
        &path,
        "--size 1MiB --sizes 4KiB --depths 1,4 --seconds 0.3 --throttle hdd --json",
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["throttle"], "hdd");
    for row in report["rows"].as_array().unwrap() {
        // A disk does one after the other; a busy machine is later, and never earlier.
        let least = 12_700.0 * if row["depth"] == 4 { 2.0 } else { 1.0 };
        assert!(row["read"]["mean_us"].as_f64().unwrap() > least, "{row}");
        assert!(row["operations_per_second"].as_f64().unwrap() < 80.0, "{row}");
    }
}

#[test]
fn what_it_cannot_do_or_must_not_is_refused() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("there");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let refused = |flags: &str, status: i32, part: &str| {
        let output = bench(&path, flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{flags}: {said}");
        assert!(said.contains(part), "{flags}: {said}");
    };
    refused("--reads 100,70", 2, "give --overwrite");
    refused("--size 2MiB", 2, "more than the 1048576 bytes");
    refused("--sizes 2MiB", 2, "fewer than one operation");
    refused("--sizes 5000", 2, "multiple of 4KiB");
    refused("--throttle tape", 2, "no such kind");
    refused("--sizes 1TiB", 2, "bytes of memory");
    refused("--sizes 4MiB --depths 4096", 2, "bytes of memory");
    assert_eq!(std::fs::read(&path).unwrap(), vec![7; 1 << 20]);
    let output = bench(
        &path,
        "--sizes 4KiB --depths 1 --reads 0 --overwrite --seconds 0.02",
    );
    assert_eq!(output.status.code(), Some(0));
    assert_ne!(std::fs::read(&path).unwrap(), vec![7; 1 << 20]);
    let output = bench(directory.path(), "");
    assert_eq!(output.status.code(), Some(1));
}
