//! `pumice report ripq`: what it writes, and errors that say what was wrong.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn report(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pumice"))
        .args(["report", "ripq"])
        .args(arguments)
        .output()
        .expect("the program was built with this test")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// A skewed trace of `requests` to objects of 500 to 20,499 bytes, as `time id size`.
fn write_trace(path: &Path, requests: u64, objects: u64) {
    let mut state = 1u64;
    let mut lines = String::new();
    for time in 0..requests {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let part = (state >> 33) as f64 / (1u64 << 31) as f64;
        let id = (part.powi(3) * objects as f64) as u64;
        writeln!(lines, "{time} {id} {}", 500 + id * 7919 % 20000).unwrap();
    }
    fs::write(path, lines).unwrap();
}

/// The lines of a table by its columns' names.
fn parse_csv(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut rows = text.lines().map(|line| {
        let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '"' if is_quoted && letters.peek() == Some(&'"') => {
                    letters.next();
                    cell.push('"');
                }
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(std::mem::take(&mut cell)),
                other => cell.push(other),
            }
        }
        assert!(!is_quoted, "{line}");
        cells.push(cell);
        cells
    });
    let header = rows.next().expect("a header");
    rows.map(|cells| {
        assert_eq!(cells.len(), header.len(), "{cells:?}");
        header.iter().cloned().zip(cells).collect()
    })
    .collect()
}

/// Checks that every element is closed, but for those that have no end in HTML.
fn check_elements(page: &str) {
    let mut open = Vec::new();
    for part in page.split('<').skip(1) {
        let (tag, _) = part
            .split_once('>')
            .unwrap_or_else(|| panic!("`<{part}` has no end"));
        let name = tag.split_whitespace().next().unwrap_or_default();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed.to_owned()), "closed by <{tag}>");
        } else if !name.starts_with('!') && name != "meta" && !tag.ends_with('/') {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}

#[test]
fn a_quick_report_has_all_sections_and_figures_that_can_be() {
    let directory = tempfile::tempdir().unwrap();
    let traces = directory.path().join("traces");
    fs::create_dir(&traces).unwrap();
    write_trace(&traces.join("skewed <1>.txt"), 30_000, 20_000);
    write_trace(&traces.join("tiny.txt"), 50, 20);
    fs::write(traces.join("noise.vscsi"), b"\x00\x01").unwrap();
    let out = directory.path().join("out");
    let run = |jobs| {
        let output = report(&[
            "--traces",
            text(&traces),
            "--out",
            text(&out),
            "--quick",
            "--jobs",
            jobs,
            "--only",
            "txt",
        ]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("skipped: noise.vscsi"), "{said}");
        assert!(said.contains("skewed <1>.txt: ripq slru-3"), "{said}");
        parse_csv(&fs::read_to_string(out.join("ripq.csv")).unwrap())
    };
    let rows = run("2");
    check_rows(&rows);
    let page = fs::read_to_string(out.join("ripq.html")).unwrap();
    check_elements(&page);
    for id in [
        "summary",
        "method",
        "traces",
        "figure-7",
        "figure-8",
        "theta",
        "min-raise",
        "figure-9",
        "figure-2",
    ] {
        assert!(page.contains(&format!("<h2 id=\"{id}\">")), "{id}");
    }
    assert!(page.contains("skewed &lt;1&gt;.txt") && page.contains("noise.vscsi"));
    // Figure 7: 2 for each trace. Figure 8: 5, θ: 2, min-raise: 2, figure 9: 1 for the trace that fits. Figure 2: 1.
    assert_eq!(page.matches("<svg").count(), 2 * 2 + 10 + 1);
    for number in ["NaN", "inf"] {
        assert!(!page.contains(&format!(">{number}<")), "{number}");
    }
    // Only times depend on who was first.
    let without_times = |rows: Vec<BTreeMap<String, String>>| -> Vec<BTreeMap<String, String>> {
        let timeless = |mut row: BTreeMap<String, String>| {
            row.retain(|name, _| name != "elapsed_seconds" && name != "requests_per_second");
            row
        };
        rows.into_iter().map(timeless).collect()
    };
    assert_eq!(without_times(rows), without_times(run("1")));
}

fn check_rows(rows: &[BTreeMap<String, String>]) {
    let number = |row: &BTreeMap<String, String>, name: &str| -> Option<f64> {
        let cell = row.get(name).unwrap_or_else(|| panic!("no column {name}"));
        (!cell.is_empty()).then(|| cell.parse().unwrap_or_else(|_| panic!("{name}: `{cell}`")))
    };
    let mut twins = 0;
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(number(row, "run"), Some((at + 1) as f64));
        for name in [
            "object_hit_ratio",
            "byte_hit_ratio",
            "theta",
            "min_raise",
            "alpha",
        ] {
            let is_ratio = number(row, name).is_none_or(|ratio| (0.0..=1.0).contains(&ratio));
            assert!(is_ratio, "{name}: {row:?}");
        }
        for name in ["device_write_amplification", "combined_write_amplification"] {
            let is_in_range = number(row, name).is_none_or(|factor| (0.99..10.0).contains(&factor));
            assert!(is_in_range, "{name}: {row:?}");
        }
        if row["layout"] == "exact" || row["layout"].is_empty() {
            assert_eq!(number(row, "app_write_amplification"), None);
        }
        let Some(of) = number(row, "twin_of") else {
            continue;
        };
        twins += 1;
        // A twin has as many bytes as its layout had of objects, and stands below it.
        let layout = &rows[of as usize - 1];
        assert_eq!(row["policy"], layout["policy"]);
        let resident = number(layout, "object_bytes_resident_mean").unwrap();
        assert!((number(row, "flash_bytes").unwrap() - resident).abs() <= 1.0);
        let loss = number(row, "object_hit_ratio").unwrap() - number(layout, "object_hit_ratio").unwrap();
        let stated = number(layout, "object_loss_points").unwrap();
        assert!((loss * 100.0 - stated).abs() < 1e-9, "{row:?}");
        assert!(stated.abs() < 20.0, "{row:?}");
    }
    let count = |part: &str| {
        let rows = rows.iter();
        rows.filter(|row| row["part"].split(';').any(|of| of == part) && row["twin_of"].is_empty())
            .count()
    };
    // The quick plan on one trace that fits flash and one that does not: 7 policies at 2 sizes each; 7 layouts and 12 of SIPQ on 2 drives,
    // and the replay that showed that the other is too small; 2 θ, 2 min-raises, and 2 α for 2 policies on 2 drives.
    assert_eq!(count("figure 7"), 2 * 14);
    assert_eq!(count("figure 8"), 14 + 24 + 1);
    assert_eq!(count("theta"), 4 + 1);
    assert_eq!(count("min-raise"), 4 + 1);
    assert_eq!(count("figure 9"), 8 + 1);
    assert_eq!(count("figure 2"), 4);
    assert_eq!(twins, 14 + 24 + 2 + 2 + 4);
    let too_small: Vec<_> = rows.iter().filter(|row| !row["error"].is_empty()).collect();
    assert_eq!(too_small.len(), 1);
    assert_eq!(too_small[0]["workload"], "tiny.txt");
}

#[test]
fn what_cannot_be_is_said_with_its_status() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let full = directory.path().join("full");
    fs::create_dir(&full).unwrap();
    write_trace(&full.join("a.txt"), 10, 5);
    let gone = directory.path().join("gone");
    let file = full.join("a.txt");
    let below_file = file.join("out");
    let out = directory.path().join("out");
    for (traces, out, more, status, part) in [
        (&empty, &out, &[][..], 2, "no traces in it"),
        (&gone, &out, &[], 2, "no such folder"),
        (&file, &out, &[], 2, "no such folder"),
        (&full, &out, &["--only", "nothing"], 2, "--only"),
        (&full, &out, &["--jobs", "0"], 2, "--jobs"),
        (&full, &file, &[], 1, "--out: cannot"),
        (&full, &below_file, &[], 1, "--out: cannot"),
    ] {
        let mut arguments = vec!["--traces", text(traces), "--out", text(out), "--quick"];
        arguments.extend(more);
        let output = report(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    assert!(!out.exists(), "bad usage left something behind");
}
