//! `pumice replay` with lists: a replay of each combination, a table, and a picture of the curves.

use super::{ReplayArgs, check_built, layout, note, report};
use crate::plot::{self, Line};
use anyhow::Context;
use pumice_console::{Bar, Printed, as_json, causes, complain, say, usage};
use pumice_sim::Report;
use pumice_trace::Human;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A flag that may be a list.
type Axis = fn(&mut ReplayArgs) -> &mut Option<String>;

/// Columns of the csv; figures are named as in the JSON.
const COLUMNS: &str = "trace,layout,policy,flash_size,dram,flash_admit,requests,index,flash_bytes,object_hit_ratio,byte_hit_ratio,\
                       bytes_written_host,app_write_amplification,flash_reads_per_hit,flash_reads_per_miss,index_dram_bytes";

/// All combinations of what the lists say; sizes of flash change fastest. In a list of layouts those without a policy have one cell whatever
/// the policies.
pub(super) fn cells(args: &ReplayArgs) -> Vec<ReplayArgs> {
    let mut cells = vec![args.clone()];
    expand(&mut cells, |cell| &mut cell.layout);
    if cells.len() > 1 {
        let without = |cell: &&mut ReplayArgs| !has_policies(cell.layout());
        cells
            .iter_mut()
            .filter(without)
            .for_each(|cell| cell.policy = None);
    }
    let others: [Axis; 3] = [
        |cell| &mut cell.policy,
        |cell| &mut cell.dram,
        |cell| &mut cell.flash_admit,
    ];
    others.into_iter().for_each(|axis| expand(&mut cells, axis));
    let of_sizes = |cell: ReplayArgs| match cell.flash_size.len() {
        0 | 1 => vec![cell],
        _ => {
            let sizes = cell.flash_size.iter().map(|size| ReplayArgs {
                flash_size: vec![size.clone()],
                ..cell.clone()
            });
            sizes.collect()
        }
    };
    cells.into_iter().flat_map(of_sizes).collect()
}

fn has_policies(layout: &str) -> bool {
    !matches!(layout, "fifo" | "clock")
}

/// Replaces each cell by one for each value of an axis.
fn expand(cells: &mut Vec<ReplayArgs>, axis: Axis) {
    let all = std::mem::take(cells).into_iter().flat_map(|mut cell| {
        let Some(list) = axis(&mut cell).clone() else {
            return vec![cell];
        };
        let values = list.split(',').map(|value| {
            let mut cell = cell.clone();
            *axis(&mut cell) = Some(value.trim().to_owned());
            cell
        });
        values.collect()
    });
    *cells = all.collect();
}

/// Replays all cells and prints what they report. One that fails does not stop the others.
///
/// # Errors
/// Usage, and that of the first cell that failed.
pub(super) fn run(args: &ReplayArgs, cells: &[ReplayArgs]) -> anyhow::Result<()> {
    check(args, cells)?;
    let notes: BTreeSet<_> = cells.iter().flat_map(super::without_effect).collect();
    notes.into_iter().for_each(note);
    let bar = Bar::new("replaying");
    let done: Vec<OnceLock<anyhow::Result<Report>>> = cells.iter().map(|_| OnceLock::new()).collect();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(cell), Some(place)) = (cells.get(at), done.get(at)) else {
                return;
            };
            // Nobody else has this one.
            let _ = place.set(report(cell, &mut |_| {}));
            let done = ended.fetch_add(1, Ordering::Relaxed) as u64 + 1;
            bar.show(done, cells.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        let jobs = usize::from(args.jobs).min(cells.len());
        (0..jobs).for_each(|_| drop(scope.spawn(work)));
    });
    bar.clear();
    let (mut rows, mut failed) = (Vec::new(), None);
    for (cell, result) in cells
        .iter()
        .zip(done.into_iter().filter_map(OnceLock::into_inner))
    {
        match result {
            Ok(report) => rows.push((cell, report)),
            Err(error) if failed.is_none() => failed = Some(error.context(name(cell))),
            Err(error) => complain(format_args!("pumice: {}", causes(&error.context(name(cell))))),
        }
    }
    let text = if args.json {
        let reports: Vec<_> = rows.iter().map(|(_, report)| Printed::of(report)).collect();
        as_json(&reports)?
    } else if args.csv {
        csv(&rows)
    } else {
        table(&rows)
    };
    say(&text);
    if let Some(path) = &args.plot {
        std::fs::write(path, picture(&rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    failed.map_or(Ok(()), Err)
}

/// Refuses what no cell, or not all of them, could do.
fn check(args: &ReplayArgs, cells: &[ReplayArgs]) -> anyhow::Result<()> {
    for cell in cells {
        check_built(cell)?;
        if cell.layout() != "exact" {
            layout(cell)?;
        }
    }
    if cells.len() > 1 {
        if args.timeline.is_some() {
            return Err(usage("--timeline is of one replay, not of a list"));
        }
        if !args.source.trace()?.is_rereadable() {
            return Err(usage(
                "a list of replays reads its trace more than once: give a file",
            ));
        }
        if args.jobs > 1 && args.device != *"sim" {
            return Err(usage(
                "--jobs with --device PATH: replays on a device are one after the other",
            ));
        }
    }
    Ok(())
}

/// What distinguishes a cell from others.
fn name(cell: &ReplayArgs) -> String {
    let size = cell.flash_size.first().map(ToString::to_string);
    let series = series(cell, cell.layout(), cell.policy.as_deref());
    size.map_or(series.clone(), |size| format!("{series}, {size}"))
}

/// What distinguishes the curve that a cell is of.
fn series(cell: &ReplayArgs, layout: &str, policy: Option<&str>) -> String {
    let others = [&cell.dram, &cell.flash_admit].into_iter().flatten();
    let policy = policy.filter(|_| has_policies(layout));
    let parts = [Some(layout), policy].into_iter().flatten();
    parts
        .chain(others.map(String::as_str))
        .collect::<Vec<_>>()
        .join(", ")
}

fn number<T: ToString>(number: Option<T>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

fn csv(rows: &[(&ReplayArgs, Report)]) -> String {
    let lines = rows.iter().map(|(cell, report)| {
        let figures = [
            format!("\"{}\"", report.trace.replace('"', "\"\"")),
            report.layout.clone(),
            report.policy.clone(),
            number(cell.flash_size.first()),
            number(cell.dram.as_ref()),
            number(cell.flash_admit.as_ref()),
            report.requests.to_string(),
            number(report.index.as_ref()),
            number(report.flash_bytes),
            number(report.object_hit_ratio),
            number(report.byte_hit_ratio),
            number(report.bytes_written_host),
            number(report.app_write_amplification),
            number(report.flash_reads_per_hit),
            number(report.flash_reads_per_miss),
            number(report.index_dram_bytes),
        ];
        figures.join(",") + "\n"
    });
    format!("{COLUMNS}\n{}", lines.collect::<String>())
}

/// The table for people; a column in which nothing stands is left out.
fn table(rows: &[(&ReplayArgs, Report)]) -> String {
    let head = [
        "layout",
        "policy",
        "dram",
        "admit",
        "size",
        "flash",
        "object hits",
        "byte hits",
        "written",
        "amplification",
    ];
    let percent = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{:.2} %", ratio * 100.0));
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows.iter().map(|(cell, report)| {
        [
            report.layout.clone(),
            report.policy.clone(),
            number(cell.dram.as_ref()),
            number(cell.flash_admit.as_ref()),
            number(cell.flash_size.first()),
            match report.flash_objects {
                Some(objects) => format!("{objects} objects"),
                None => number(report.flash_bytes.map(Human)),
            },
            percent(report.object_hit_ratio),
            percent(report.byte_hit_ratio),
            number(report.bytes_written_host.map(Human)),
            report
                .app_write_amplification
                .map_or(String::new(), |times| format!("{times:.3}")),
        ]
    }));
    let is_used = |at: &usize| lines.iter().skip(1).any(|line| !line[*at].is_empty());
    let columns: Vec<usize> = (0..head.len()).filter(is_used).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in &lines {
        let fields = columns.iter().map(|at| format!("{:<1$}", line[*at], width(*at)));
        text += fields.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// The curves of object hits by size.
fn picture(rows: &[(&ReplayArgs, Report)]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for (cell, report) in rows {
        let name = series(cell, &report.layout, Some(&report.policy));
        let size = report.flash_bytes.or(report.flash_objects).unwrap_or(0);
        let point = (size, report.object_hit_ratio.unwrap_or(0.0));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
            }),
        }
    }
    let is_bytes = rows.iter().all(|(_, report)| report.flash_bytes.is_some());
    let trace = rows.first().map_or("", |(_, report)| report.trace.as_str());
    plot::svg(
        &format!("{trace}: object hit ratio by size"),
        "size of the flash tier",
        &lines,
        is_bytes,
    )
}
