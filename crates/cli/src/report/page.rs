//! The page: what was asked and seen, the traces, and a section for each figure.

use super::environment::Environment;
use super::find::Skipped;
use super::table::{Table, number};
use super::{layouts, sections};
use pumice_sim::{Evaluation, Qualification, SummaryRow, Verdict};

const STYLE: &str = "
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { border: 1px solid #ddd; padding: .25em .6em; text-align: left; vertical-align: top } th { background: #f3f3f3 }
.wide { overflow-x: auto; margin: .8em 0 } .charts { display: flex; flex-wrap: wrap; gap: 1em }
.charts svg { flex: 1 1 26em; max-width: 38em; height: auto }
svg { font: 12px system-ui, sans-serif; fill: #222 } svg .title { font-size: 14px; font-weight: 600 }
svg .grid { stroke: #e3e3e3 } svg .axis { stroke: #444 }
summary { cursor: pointer; font-weight: 600; margin: .6em 0 }
.holds { background: #ddf3dd } .fails { background: #f8d8d4 } .not { background: #eee }
";

/// The page in HTML, with everything in it.
pub fn page(
    evaluation: &Evaluation,
    rows: &[SummaryRow],
    skipped: &[Skipped],
    environment: &Environment,
) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>RIPQ: the evaluation again</title>\
         <style>{STYLE}</style></head><body>\n<h1>RIPQ: the evaluation again</h1>\n"
    );
    text += &head(environment);
    text += &summary(rows);
    text += &method(evaluation);
    text += &traces(evaluation, skipped);
    text += &sections::figure_7(evaluation);
    text += &layouts::figure_8(evaluation);
    text += &layouts::theta(evaluation);
    text += &layouts::min_raise(evaluation);
    text += &sections::figure_9(evaluation);
    text += &sections::figure_2(evaluation);
    text += "</body></html>\n";
    text
}

/// Text that means nothing in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn head(environment: &Environment) -> String {
    let mut table = Table::new(&["", ""]);
    table.row(&["date", &environment.date]);
    table.row(&["command", &environment.command]);
    let commit = environment.commit.as_deref();
    table.row(&[
        "commit",
        commit.unwrap_or("not known: the working directory is no git checkout"),
    ]);
    table.row(&["program", concat!("pumice ", env!("CARGO_PKG_VERSION"))]);
    table.row(&["machine", &environment.machine]);
    let time = format!(
        "{:.0} s, {} replays at a time",
        environment.elapsed.as_secs_f64(),
        environment.jobs
    );
    table.row(&["run time", &time]);
    table.html()
}

fn summary(rows: &[SummaryRow]) -> String {
    let mut body = String::new();
    for row in rows {
        let class = match row.verdict {
            Verdict::Holds => "holds",
            Verdict::Fails => "fails",
            Verdict::NotMeasured => "not",
        };
        body += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
            escape(row.what),
            escape(row.paper),
            escape(row.must),
            escape(&row.seen),
            row.verdict.name()
        );
    }
    format!(
        "<h2 id=\"summary\">Summary</h2>\n<p>Bounds are taken on the traces that qualify.</p>\
         <div class=\"wide\"><table><thead><tr><th>what</th><th>paper</th><th>must</th><th>seen</th><th>verdict</th></tr>\
         </thead><tbody>{body}</tbody></table></div>\n"
    )
}

fn method(evaluation: &Evaluation) -> String {
    let plan = &evaluation.plan;
    format!(
        "<h2 id=\"method\">How figures are taken</h2>\n<ul>\
         <li>Every request is a lookup, and a miss inserts. Where a trace has no sizes, an object has {} bytes.</li>\
         <li>The flash is {} % of the footprint, the sum of the sizes of all objects; log, footers and padding come out of \
         it. The first {:.0} % of the requests fill the cache, the others count.</li>\
         <li>Fidelity: the layout runs first; its exact twin, the same policy on an exact queue, gets as many bytes as the \
         layout held of objects on average. Loss is the twin's hit ratio less the layout's, in points of percent; below \
         zero the layout hits more.</li>\
         <li>A trace qualifies if the measured requests insert at least 5 times the flash, and there are at least 512 \
         blocks. The others are shown, and no bound is taken on them.</li>\
         <li>Write amplification: the application's is bytes written over bytes of objects inserted; the device's is from \
         a simulated drive (page-mapped, greedy, no TRIM, flash / 0.9 in size) whose superblock is so many blocks; combined \
         is the product.</li>\
         <li>RIPQ has α = {} where nothing else is said, and the θ of its policy: 1, with slru-1 {}, gdsf-1 {}, gdsf-2 {}. SIPQ-0.5 has a queue of keys as large as half of what \
         the flash can hold of objects.</li>\
         <li>Speed is that of a replay on a simulated device, with reading the trace twice, while others run beside it. \
         No device limits it, so it says nothing on the paper's throughput.</li></ul>\n",
        plan.object_bytes,
        plan.percent,
        plan.warmup * 100.0,
        plan.alpha(),
        plan.theta("slru-1"),
        plan.theta("gdsf-1"),
        plan.theta("gdsf-2"),
    )
}

fn traces(evaluation: &Evaluation, skipped: &[Skipped]) -> String {
    let mut table = Table::new(&[
        "trace",
        "how",
        "requests counted",
        "flash, bytes",
        "inserted / flash (at least 5)",
        "blocks (at least 512)",
        "qualifies",
    ]);
    for (at, workload) in evaluation.workloads.iter().enumerate() {
        let probe = evaluation.run(at, &evaluation.plan.probe());
        let counts = evaluation.qualification(at);
        let report = probe.and_then(|run| run.report());
        let verdict = match (counts.map(Qualification::qualifies), probe.map(|run| &run.result)) {
            (Some(true), _) => "yes".to_owned(),
            (Some(false), _) => "no".to_owned(),
            (None, Some(Err(error))) => format!("not run on flash: {error}"),
            (None, _) => "not run on flash".to_owned(),
        };
        table.row(&[
            workload.name.clone(),
            workload.source.clone(),
            report.map_or("–".into(), |report| report.requests.to_string()),
            report.map_or("–".into(), |report| report.flash_bytes.to_string()),
            number(counts.map(|counts| counts.inserted_per_cache), 2),
            counts.map_or("–".into(), |counts| counts.blocks.to_string()),
            verdict,
        ]);
    }
    let mut text = format!("<h2 id=\"traces\">Traces</h2>\n{}", table.html());
    if !skipped.is_empty() {
        let mut table = Table::new(&["skipped", "why"]);
        for file in skipped {
            table.row(&[&file.name, &file.reason]);
        }
        text += &table.html();
    }
    text
}
