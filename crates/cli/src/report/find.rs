//! The traces of a folder, and those that are generated beside them.

use super::no_traces;
use anyhow::Context;
use pumice_sim::Workload;
use pumice_trace::{Format, Trace, TraceOptions};
use std::fs;
use std::path::{Path, PathBuf};

/// What is in a folder.
#[derive(Debug)]
pub struct Found {
    /// What can be replayed.
    pub workloads: Vec<Workload>,
    /// What cannot, or not here.
    pub skipped: Vec<Skipped>,
}

/// A file that is no trace to replay, and why.
#[derive(Debug)]
pub struct Skipped {
    /// Its name in the folder.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Where CacheLib's published distributions are.
const DISTRIBUTIONS: &str = "distributions";

/// Parts of names whose formats are binary without a header.
const BY_NAME: [(&str, Format); 5] = [
    ("scarab-recs", Format::KeysBeI64),
    ("cache2k-", Format::KeysBeU32),
    (".lis", Format::Arc),
    (".oracleGeneral", Format::OracleGeneral),
    (".vscsi", Format::Vscsi),
];

/// Finds the traces under `directory`: those that its manifest.json names, or else every file whose format shows.
///
/// # Errors
/// Usage where there is no such folder, or no trace in it.
pub fn find(directory: &Path, quick: bool, only: &[String]) -> anyhow::Result<Found> {
    if !directory.is_dir() {
        return Err(no_traces(directory, "no such folder"));
    }
    let mut found = Found {
        workloads: Vec::new(),
        skipped: Vec::new(),
    };
    let names = match manifest(directory)? {
        Some(names) => names,
        None => {
            let mut names = Vec::new();
            walk(directory, Path::new(""), &mut names)?;
            names.sort();
            names
        }
    };
    for name in names {
        match file(directory, &name) {
            Ok(workload) => found.workloads.push(workload),
            Err(reason) => found.skipped.push(Skipped { name, reason }),
        }
    }
    for (name, spec) in generated(directory, quick) {
        let trace =
            Trace::new(&spec, TraceOptions::default()).with_context(|| format!("cannot generate {name}"))?;
        found.workloads.push(Workload {
            name: format!("{name} (generated)"),
            source: spec,
            trace,
        });
    }
    if found.workloads.is_empty() {
        let reasons: Vec<String> = found
            .skipped
            .iter()
            .map(|skipped| format!("; {}: {}", skipped.name, skipped.reason))
            .collect();
        return Err(no_traces(
            directory,
            &format!("no traces in it{}", reasons.concat()),
        ));
    }
    // Whatever there is, a plain Zipf distribution to compare with.
    let (keys, requests) = if quick {
        (20_000, 60_000)
    } else {
        (100_000, 1_000_000)
    };
    let spec = format!("zipf:keys={keys},theta=0.9,requests={requests},size=600-8192");
    found.workloads.push(Workload {
        name: "zipf (generated)".to_owned(),
        trace: Trace::new(&spec, TraceOptions::default()).context("cannot generate zipf")?,
        source: spec,
    });
    if !only.is_empty() {
        found.leave_out(only);
        if found.workloads.is_empty() {
            return Err(no_traces(directory, "no trace has what --only says in its name"));
        }
    }
    Ok(found)
}

impl Found {
    fn leave_out(&mut self, only: &[String]) {
        let (kept, left) = std::mem::take(&mut self.workloads)
            .into_iter()
            .partition(|workload| only.iter().any(|part| workload.name.contains(part.as_str())));
        self.workloads = kept;
        let left: Vec<Workload> = left;
        self.skipped.extend(left.into_iter().map(|workload| Skipped {
            name: workload.name,
            reason: "left out by --only".to_owned(),
        }));
    }
}

/// The names in `manifest.json`, if there is one.
fn manifest(directory: &Path) -> anyhow::Result<Option<Vec<String>>> {
    let path = directory.join("manifest.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let entries: Vec<serde_json::Value> = serde_json::from_slice(&text)
        .with_context(|| format!("{}: expected a list of files", path.display()))?;
    let mut names: Vec<String> = entries
        .iter()
        .filter_map(|entry| Some(entry.get("file")?.as_str()?.to_owned()))
        .collect();
    names.sort();
    names.dedup();
    Ok(Some(names))
}

/// The files below `directory`, but for those that distributions consist of. Links to files count; links to folders are not
/// followed, since they may lead back.
fn walk(directory: &Path, below: &Path, names: &mut Vec<String>) -> anyhow::Result<()> {
    let path = directory.join(below);
    let entries = fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        let name: PathBuf = below.join(entry.file_name());
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot read {}", entry.path().display()))?;
        if kind.is_dir() {
            if name != Path::new(DISTRIBUTIONS) {
                walk(directory, &name, names)?;
            }
        } else if !(kind.is_symlink() && entry.path().is_dir()) {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Opens a file to see whether it is a trace.
fn file(directory: &Path, name: &str) -> Result<Workload, String> {
    let known = BY_NAME.iter().find(|(part, _)| name.contains(part));
    let format = known.map(|(_, format)| *format);
    let path = directory.join(name);
    let options = TraceOptions {
        format,
        columns: None,
    };
    let say = |error: pumice_trace::TraceError| {
        // The name stands beside it already.
        let text = error.to_string();
        match text.strip_prefix(&format!("{}: ", path.display())) {
            Some(rest) => rest.to_owned(),
            None => text,
        }
    };
    let trace = Trace::new(&path, options).map_err(say)?;
    let mut reader = trace.open().map_err(say)?;
    reader.next_batch(&mut Vec::new()).map_err(say)?;
    Ok(Workload {
        name: name.to_owned(),
        source: format!("file, format {}", reader.format_name()),
        trace,
    })
}

/// Traces after CacheLib's published distributions: so many keys that blocks are of a megabyte and more where objects are large,
/// and so many requests that the measured half fills the flash more than 5 times.
fn generated(directory: &Path, quick: bool) -> Vec<(&'static str, String)> {
    let numbers = if quick {
        [("cdn", 4_000, 40_000), ("kvcache_reg", 500_000, 400_000)]
    } else {
        [
            ("cdn", 1_500_000, 6_000_000),
            ("kvcache_reg", 3_000_000, 12_000_000),
        ]
    };
    numbers
        .into_iter()
        .filter_map(|(name, keys, requests)| {
            let config = directory
                .join(DISTRIBUTIONS)
                .join("cachelib")
                .join(name)
                .join("config.json");
            let spec = format!(
                "cachelib:config={},keys={keys},requests={requests}",
                config.display()
            );
            config.is_file().then_some((name, spec))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_found_by_content_and_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
        write("a.txt", b"1 2 3\n");
        write("cache2k-x.trace", &[0, 0, 0, 1]);
        write("noise", b"\x00\x01");
        write("b.vscsi", b"1 2 3\n");
        let found = find(directory.path(), true, &[]).unwrap();
        let names: Vec<&str> = found
            .workloads
            .iter()
            .map(|workload| workload.name.as_str())
            .collect();
        assert_eq!(names, ["a.txt", "cache2k-x.trace", "zipf (generated)"]);
        let skipped: Vec<&str> = found
            .skipped
            .iter()
            .map(|skipped| skipped.name.as_str())
            .collect();
        assert_eq!(skipped, ["b.vscsi", "noise"]);
        let one = find(directory.path(), true, &["a.t".into()]).unwrap();
        assert_eq!(one.workloads.len(), 1);
        // A manifest says what there is.
        write("manifest.json", br#"[{"file": "a.txt"}, {"file": "gone"}]"#);
        let found = find(directory.path(), true, &[]).unwrap();
        assert_eq!((found.workloads.len(), found.skipped.len()), (2, 1));
    }

    #[test]
    fn links_to_folders_are_not_followed_but_those_to_files_are() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("traces");
        fs::create_dir_all(directory.join("below")).unwrap();
        fs::write(directory.join("below/a.txt"), b"1 2 3\n").unwrap();
        fs::write(outer.path().join("elsewhere"), b"1 2 3\n").unwrap();
        symlink("../elsewhere", directory.join("b.txt")).unwrap();
        // Back to where the search began.
        symlink("..", directory.join("below/back")).unwrap();
        symlink("nothing", directory.join("c.txt")).unwrap();
        let found = find(&directory, true, &[]).unwrap();
        let names: Vec<&str> = found
            .workloads
            .iter()
            .map(|workload| workload.name.as_str())
            .collect();
        assert_eq!(names, ["b.txt", "below/a.txt", "zipf (generated)"]);
        let skipped: Vec<&str> = found
            .skipped
            .iter()
            .map(|skipped| skipped.name.as_str())
            .collect();
        assert_eq!(skipped, ["c.txt"]);
    }
}
