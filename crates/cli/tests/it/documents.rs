//! What documents and comments name is there: files, headings, paths.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Texts below `folder` by path, but for what is built, fetched or data.
fn texts(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.')
                && !["target", "corpus", "records", "artifacts"].contains(&name.as_str())
            {
                texts(&path, found);
            }
            continue;
        }
        let is_text = ["md", "rs", "py", "toml", "sh"]
            .iter()
            .any(|end| path.extension().is_some_and(|own| own == *end));
        if is_text || name == "check" {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.insert(path, text);
        }
    }
}

/// The anchors of a page, as GitHub makes them of its headings.
fn anchors(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if !is_code && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().to_lowercase();
            let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.push(kept.collect::<String>().replace(' ', "-"));
        }
    }
    found
}

/// Whatever stands between `open` and the next of `close`.
fn between<'a>(text: &'a str, open: &'a str, close: &'a [char]) -> impl Iterator<Item = &'a str> {
    text.match_indices(open).map(move |(at, _)| {
        let rest = &text[at + open.len()..];
        &rest[..rest.find(close).unwrap_or(rest.len())]
    })
}

/// Why nothing is at `target`, a path with or without an anchor.
fn fault(target: &str, folder: &Path, all: &BTreeMap<PathBuf, String>) -> Option<&'static str> {
    let (file, anchor) = target
        .split_once('#')
        .map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let Ok(path) = folder.join(file).canonicalize() else {
        return Some("there is no such file");
    };
    let anchor = anchor?;
    let known = all
        .get(&path)
        .is_some_and(|page| anchors(page).iter().any(|own| own == anchor));
    (!known).then_some("it has no such heading")
}

#[test]
fn documents_and_comments_name_what_is_there() {
    let root = root();
    let mut all = BTreeMap::new();
    texts(&root, &mut all);
    let mut faults = Vec::new();
    let mut checked = 0;
    for (path, text) in &all {
        let mut check = |target: &str, folder: &Path| {
            checked += 1;
            if let Some(what) = fault(target, folder, &all) {
                faults.push(format!(
                    "{}: {target}: {what}",
                    path.strip_prefix(&root).unwrap().display()
                ));
            }
        };
        let is_page = path.extension().is_some_and(|end| end == "md");
        if is_page {
            let folder = path.parent().unwrap();
            for target in between(text, "](", &[')', ' ']).filter(|target| !target.contains("://")) {
                // A heading of the page itself.
                let own = format!("{}{target}", path.file_name().unwrap().to_string_lossy());
                check(if target.starts_with('#') { &own } else { target }, folder);
            }
            let is_ours = |path: &&str| {
                ["crates/", "lab/", "bench/", "tests/", "harness/"]
                    .iter()
                    .any(|room| path.starts_with(room))
            };
            let is_path = |path: &&str| {
                !path.contains([' ', '*', '…', '<', '{']) && !path.contains("libfuzzer/artifacts")
            };
            let code = text
                .split('`')
                .skip(1)
                .step_by(2)
                .map(|code| code.split("::").next().unwrap());
            for target in code.filter(is_ours).filter(is_path) {
                check(target, &root);
            }
        }
        if !path.ends_with("documents.rs") {
            for name in between(
                text,
                "docs/",
                &[' ', '\n', ')', ']', '`', '"', ',', ';', ':', '\''],
            ) {
                let name = name.trim_end_matches('.');
                if name.contains(".md") {
                    check(&format!("docs/{name}"), &root);
                }
            }
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
