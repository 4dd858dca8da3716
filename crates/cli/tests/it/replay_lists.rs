//! `pumice replay` with lists.

use crate::common::{self, pumice};
use std::path::Path;
use std::process::Output;

const TRACE: &str = "zipf:keys=3000,theta=0.8,requests=20000,size=2048,seed=7";

fn replay(directory: &Path, flags: &str) -> Output {
    pumice(directory, &format!("replay {TRACE} {flags}"))
}

fn said(directory: &Path, flags: &str) -> String {
    common::said(directory, &format!("replay {TRACE} {flags}"))
}

#[test]
fn a_list_is_a_replay_of_each_combination() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let grid = "--flash-size 1MiB,50% --layout ripq,fifo,exact --policy lru,slru-3";
    let text = said(directory, &format!("{grid} --json --jobs 2"));
    let found: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    // Fifo has no policy, so it has one curve.
    let mut cells = Vec::new();
    for cell in [
        "ripq --policy lru",
        "ripq --policy slru-3",
        "fifo",
        "exact --policy lru",
        "exact --policy slru-3",
    ] {
        cells.extend(["1MiB", "50%"].map(|size| format!("--layout {cell} --flash-size {size}")));
    }
    assert_eq!(found.len(), cells.len());
    for (cell, found) in cells.iter().zip(&found) {
        let alone: serde_json::Value =
            serde_json::from_str(&said(directory, &format!("{cell} --json"))).unwrap();
        for figure in [
            "layout",
            "policy",
            "flash_bytes",
            "object_hit_ratio",
            "bytes_written_host",
            "settings",
        ] {
            assert_eq!(found[figure], alone[figure], "{cell}: {figure}");
        }
    }
    let table = said(directory, &format!("{grid} --plot curves.svg"));
    assert_eq!(table.lines().count(), 1 + cells.len(), "{table}");
    assert!(table.starts_with("layout  policy  size  flash"), "{table}");
    let curves = std::fs::read_to_string(directory.join("curves.svg")).unwrap();
    assert_eq!(curves.matches("<polyline").count(), 5, "{curves}");
    let csv = said(directory, &format!("{grid} --csv"));
    let rows: Vec<&str> = csv.lines().collect();
    let first = format!("\"{TRACE}\",ripq,lru,1MiB,,,20000,full,1048576,");
    assert!(
        rows[0].starts_with("trace,layout,policy,flash_size,") && rows[1].starts_with(&first),
        "{csv}"
    );
    assert!(
        rows.iter()
            .all(|row| row.rsplit('"').next().unwrap().split(',').count() == 16),
        "{csv}"
    );
}

#[test]
fn a_replay_that_fails_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let output = replay(folder.path(), "--flash-size 1KiB,4MiB --csv");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("pumice: ripq, 1KiB: --flash-size"), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    for (flags, why) in [
        ("--layout ripq,nothing", "`nothing`: no such layout"),
        (
            "--flash-size 1MiB,2MiB --timeline t",
            "--timeline is of one replay",
        ),
        (
            "--flash-size 1MiB,2MiB --device d --jobs 2",
            "--jobs with --device PATH",
        ),
        ("--csv --json", "cannot be used with"),
    ] {
        let output = replay(folder.path(), flags);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags}: {errors}");
        assert!(
            errors.contains(why) && output.stdout.is_empty(),
            "{flags}: {errors}"
        );
    }
}
