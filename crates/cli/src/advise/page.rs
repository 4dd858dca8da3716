//! The advice as an HTML page: one file, no scripts.

use super::report::{Advice, Row};
use crate::plot::{Line, escaped, svg};
use crate::times::people;
use anyhow::Context;
use pumice_trace::Human;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}th,td{padding:.4rem .6rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}tr.best{background:#eef6ee;font-weight:600}
code{background:#f3f3f3;padding:.15rem .4rem;border-radius:3px}svg{max-width:100%}.note{color:#844}";

/// The file of a page, known to be writable before there is a page. Until then it is called `PATH.part`, and goes again if none is written.
pub(super) struct PageFile {
    path: PathBuf,
    part: Option<PathBuf>,
}

impl PageFile {
    /// # Errors
    /// A path that cannot be written.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        // A pipe or a terminal stays what it is; a directory is refused.
        let is_other = fs::metadata(path).is_ok_and(|there| !there.is_file());
        let part = (!is_other).then(|| {
            let mut name = path.as_os_str().to_owned();
            name.push(".part");
            PathBuf::from(name)
        });
        let opened = match &part {
            Some(part) => fs::File::create(part),
            None => fs::OpenOptions::new().write(true).open(path),
        };
        opened.with_context(|| format!("--html {}", path.display()))?;
        let path = path.to_owned();
        Ok(Self { path, part })
    }

    /// # Errors
    /// Why it cannot be written.
    pub(super) fn write(mut self, text: &str) -> anyhow::Result<()> {
        let written = match &self.part {
            Some(part) => fs::write(part, text).and_then(|()| fs::rename(part, &self.path)),
            None => fs::write(&self.path, text),
        };
        written.with_context(|| format!("--html {}", self.path.display()))?;
        self.part = None;
        Ok(())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // What cannot be removed stays.
            let _ = fs::remove_file(part);
        }
    }
}

impl Advice {
    /// For somebody who buys machines and builds no storage.
    pub(super) fn page(&self) -> String {
        let mut out = String::new();
        let name = escaped(&self.trace);
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Cache sizes for {name}</title>\n<style>{STYLE}</style>\n\
             <h1>Cache sizes for {name}</h1>\n<p>{} requests asked for {} different objects, {} in all. The share of requests that a cache answers \
             itself is its <em>hit ratio</em>; the others are <em>misses</em>, and wait for the store behind it. If nothing were ever evicted, {} would hit.</p>\n",
            self.requests,
            self.objects,
            Human(self.footprint_bytes),
            percent(self.hit_ratio_max)
        );
        let _ = write!(
            out,
            "<p>A request takes {} from DRAM, {} from flash, and {} on a miss.</p>\n<h2>What to buy</h2>\n<table>\n<tr><th></th><th>DRAM</th><th>flash</th>\
             <th>price</th><th>hit ratio</th><th>mean time of a request</th><th>flash lasts</th></tr>\n",
            people(self.dram_ns),
            people(self.flash_ns),
            people(self.miss_ns)
        );
        self.rows.iter().for_each(|row| line(&mut out, row));
        out.push_str("</table>\n");
        if self.rows.iter().any(|row| row.response_error_ns.is_some()) {
            out.push_str(
                "<p>± is how much a simulation of request after request, as fast as they go, differs.</p>\n",
            );
        }
        if self.rows.first().is_some_and(|row| row.what == "nearest") {
            out.push_str(
                "<p class=\"note\">No sizes keep the limit that was asked for: the nearest are shown.</p>\n",
            );
        }
        if let Some(row) = self.rows.first().filter(|row| row.flash_bytes == 0) {
            let _ = writeln!(out, "<p>{}.</p>", capital(&row.no_flash()));
        }
        if let Some(command) = self.rows.first().and_then(|row| row.command.as_ref()) {
            let _ = writeln!(
                out,
                "<p>To run the first row: <code>{}</code></p>",
                escaped(command)
            );
        }
        for line in self.rows.first().into_iter().flat_map(Row::rules) {
            let _ = writeln!(out, "<p>{}.</p>", escaped(&line));
        }
        for turn in self.turns.iter().filter(|turn| turn.is_other) {
            let (dram, flash) = (Human(turn.dram_bytes), Human(turn.flash_bytes));
            let _ = writeln!(
                out,
                "<p>If {}, it would be {dram} of DRAM and {flash} of flash.</p>",
                turn.what
            );
        }
        if let Some(twice) = &self.twice {
            let _ = writeln!(out, "<p>{}.</p>", twice.text());
        }
        for note in &self.notes {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
        }
        out.push_str("<h2>Hit ratio by size</h2>\n");
        out += &self.picture();
        out.push_str(
            "<p>The line is the hit ratio of a cache of that size which evicts what was not asked for longest; dots are the rows of the table \
             (DRAM and flash together hit as the larger of the two).</p>\n",
        );
        let _ = write!(
            out,
            "<p>{}.</p>\n<p>All figures are of look-aside: a request that misses is followed by one that stores the object.</p>\n</html>\n",
            capital(&self.bends())
        );
        out
    }

    /// The curve, and a dot for each row.
    fn picture(&self) -> String {
        let curve = self.curve.iter().map(|(size, ratio, _)| (*size, *ratio));
        let mut lines = vec![Line {
            name: "LRU".to_owned(),
            points: curve.collect(),
        }];
        lines.extend(self.rows.iter().map(|row| Line {
            name: row.what.to_owned(),
            points: vec![(row.flash_bytes.max(row.dram_bytes), row.hit_ratio)],
        }));
        svg("hit ratio by cache size", "size of the cache", &lines, true)
    }
}

fn line(out: &mut String, row: &Row) {
    let class = if row.what == "advice" {
        " class=\"best\""
    } else {
        ""
    };
    let flash = match row.flash_bytes {
        0 => "none".to_owned(),
        bytes => Human(bytes).to_string(),
    };
    let years = row
        .years()
        .map_or("–".to_owned(), |years| format!("{years:.1} years"));
    let _ = writeln!(
        out,
        "<tr{class}><td>{}</td><td>{}</td><td>{flash}</td><td>{:.2}</td><td>{}</td><td>{} {}</td><td>{years}</td></tr>",
        row.what,
        Human(row.dram_bytes),
        row.money,
        percent(row.hit_ratio),
        people(row.response_ns),
        row.error()
    );
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// A sentence.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
