//! A section for each figure of the paper: charts, with their figures in tables beside. Those of the layouts are in
//! [`layouts`](super::layouts).

use super::page::escape;
use super::svg::{Chart, Series};
use super::table::{Table, number, percent};
use pumice_sim::{Evaluation, Qualification, RIPQ_POLICIES, Report, Run, Setup};

/// What each trace has under a heading; traces that qualify are open.
pub(super) fn by_trace(
    evaluation: &Evaluation,
    id: &str,
    heading: &str,
    words: &str,
    of_trace: impl Fn(usize) -> Option<String>,
) -> String {
    let mut text = format!("<h2 id=\"{id}\">{}</h2>\n<p>{words}</p>\n", escape(heading));
    for (at, workload) in evaluation.workloads.iter().enumerate() {
        let Some(content) = of_trace(at) else { continue };
        let qualifies = evaluation.qualification(at).is_some_and(Qualification::qualifies);
        let (open, note) = if qualifies {
            (" open", "")
        } else {
            ("", " (does not qualify)")
        };
        text += &format!(
            "<details{open}><summary>{}{note}</summary>{content}</details>\n",
            escape(&workload.name)
        );
    }
    text
}

/// Charts beside each other, as many as there is room for.
pub(super) fn charts(charts: &[String]) -> String {
    format!("<div class=\"charts\">{}</div>", charts.concat())
}

/// For choosing a ratio.
pub(super) fn object_ratio(report: &Report) -> Option<f64> {
    report.object_hit_ratio
}

/// For choosing a ratio.
pub(super) fn byte_ratio(report: &Report) -> Option<f64> {
    report.byte_hit_ratio
}

/// Figure 7: exact algorithms at several cache sizes.
pub fn figure_7(evaluation: &Evaluation) -> String {
    let plan = &evaluation.plan;
    let policies: Vec<&'static str> = ["fifo"].into_iter().chain(RIPQ_POLICIES).collect();
    let words = "Policies on an exact queue of some percent of the footprint. Not held to equal object bytes: the queue \
                 has nothing but objects in it.";
    by_trace(
        evaluation,
        "figure-7",
        "Figure 7: exact algorithms",
        words,
        |at| {
            let report = |policy, percent| evaluation.run(at, &Setup::Exact { policy, percent })?.report();
            let curves = |title, y, ratio: fn(&Report) -> Option<f64>| {
                let series = policies.iter().map(|policy| Series {
                    name: (*policy).to_owned(),
                    values: plan
                        .exact_percents
                        .iter()
                        .map(|size| Some(ratio(report(policy, *size)?)? * 100.0))
                        .collect(),
                });
                Chart {
                    title,
                    x: "cache size, percent of the footprint",
                    labels: plan.exact_percents.iter().map(ToString::to_string).collect(),
                    y,
                    series: series.collect(),
                }
                .curves()
            };
            let mut columns = vec!["policy".to_owned()];
            for kind in ["object", "byte"] {
                columns.extend(
                    plan.exact_percents
                        .iter()
                        .map(|size| format!("{kind} hit ratio at {size} %, %")),
                );
            }
            let mut table = Table::new(&columns);
            for policy in &policies {
                let mut cells = vec![(*policy).to_owned()];
                for ratio in [object_ratio, byte_ratio] {
                    let sizes = plan.exact_percents.iter();
                    cells.extend(sizes.map(|size| percent(report(policy, *size).and_then(ratio))));
                }
                table.row(&cells);
            }
            let drawn = charts(&[
                curves("Object hit ratio, exact", "object hit ratio, %", object_ratio),
                curves("Byte hit ratio, exact", "byte hit ratio, %", byte_ratio),
            ]);
            Some(drawn + &table.html())
        },
    )
}

/// Figure 9: insertion points.
pub fn figure_9(evaluation: &Evaluation) -> String {
    let plan = &evaluation.plan;
    let words = "About 1/α insertion points. At the left end, α = 1/2, the paper's RIPQ is as good as FIFO; the line of \
                 layout fifo is drawn beside.";
    by_trace(
        evaluation,
        "figure-9",
        "Figure 9: insertion points",
        words,
        |at| {
            evaluation.run(at, &plan.probe())?.report()?;
            let policies = ["slru-3", "gdsf-3"];
            let first = plan.superblocks[0];
            let on = |policy, alpha: f64, superblock| {
                evaluation.run(at, &plan.at_alpha(policy, alpha, superblock))
            };
            let point = |policy, alpha: f64| on(policy, alpha, first);
            let fifo = evaluation.run(at, &plan.fifo(plan.superblocks[0]))?;
            let hits = |run: &Run| Some(run.report()?.object_hit_ratio? * 100.0);
            let mut series: Vec<Series> = policies
                .iter()
                .map(|policy| Series {
                    name: format!("ripq {policy}"),
                    values: plan
                        .alphas
                        .iter()
                        .map(|alpha| hits(point(policy, *alpha)?))
                        .collect(),
                })
                .collect();
            series.push(Series {
                name: "layout fifo".to_owned(),
                values: plan.alphas.iter().map(|_| hits(fifo)).collect(),
            });
            let drawn = charts(&[Chart {
                title: "Object hit ratio against insertion points",
                x: "1 / α (about the number of insertion points)",
                labels: plan
                    .alphas
                    .iter()
                    .map(|alpha| format!("{:.0}", 1.0 / alpha))
                    .collect(),
                y: "object hit ratio, %",
                series,
            }
            .curves()]);
            let mut columns: Vec<String> = [
                "policy",
                "1 / α",
                "object hits, %",
                "above fifo, points",
                "loss against the twin, points",
            ]
            .map(str::to_owned)
            .to_vec();
            let superblocks = plan.superblocks.iter();
            columns.extend(
                superblocks.map(|blocks| format!("combined write amplification, superblock {blocks}")),
            );
            let mut table = Table::new(&columns);
            for policy in policies {
                for alpha in &plan.alphas {
                    let Some(run) = point(policy, *alpha) else {
                        continue;
                    };
                    let above = hits(run).zip(hits(fifo)).map(|(ripq, fifo)| ripq - fifo);
                    let mut cells = vec![
                        policy.to_owned(),
                        format!("{:.0}", 1.0 / alpha),
                        number(hits(run), 3),
                        number(above, 3),
                        number(run.object_loss(), 3),
                    ];
                    cells.extend(plan.superblocks.iter().map(|superblock| {
                        let run = on(policy, *alpha, *superblock);
                        let combined = |run: &Run| run.report()?.combined_write_amplification;
                        number(run.and_then(combined), 4)
                    }));
                    table.row(&cells);
                }
            }
            Some(drawn + &table.html())
        },
    )
}

/// Figure 2: write sizes.
pub fn figure_2(evaluation: &Evaluation) -> String {
    let sizes = &evaluation.plan.write_sizes;
    let point = |write_bytes: u64, utilisation: f64| {
        let mut rows = evaluation.write_sizes.iter().flatten();
        rows.find(|row| row.write_bytes == write_bytes && row.utilisation == utilisation)
            .map(|row| row.device_write_amplification)
    };
    let mebibytes = |bytes: &u64| (bytes >> 20).to_string();
    let superblock = mebibytes(&sizes.superblock_bytes);
    let series = sizes.utilisations.iter().map(|utilisation| Series {
        name: format!("{:.0} % utilisation", utilisation * 100.0),
        values: sizes
            .write_bytes
            .iter()
            .map(|bytes| point(*bytes, *utilisation))
            .collect(),
    });
    let chart = Chart {
        title: "Device write amplification of random aligned writes",
        x: "write size, MiB",
        labels: sizes.write_bytes.iter().map(mebibytes).collect(),
        y: "bytes on flash / bytes written, times",
        series: series.collect(),
    };
    let mut columns = vec!["write size, MiB".to_owned()];
    columns.extend(
        sizes
            .utilisations
            .iter()
            .map(|utilisation| format!("{:.0} %", utilisation * 100.0)),
    );
    let mut table = Table::new(&columns);
    for bytes in &sizes.write_bytes {
        let mut cells = vec![mebibytes(bytes)];
        let utilisations = sizes.utilisations.iter();
        cells.extend(utilisations.map(|utilisation| number(point(*bytes, *utilisation), 3)));
        table.row(&cells);
    }
    let failed: Vec<String> = evaluation
        .write_sizes
        .iter()
        .filter_map(|row| Some(escape(row.as_ref().err()?)))
        .collect();
    format!(
        "<h2 id=\"figure-2\">Figure 2: write size against utilisation</h2>\n<p>A simulated drive with superblocks of \
         {superblock} MiB is filled once and then written at random; no trace is involved. Its device throughput, the other \
         half of the paper's figure, is not modelled.{}</p>\n{}{}\n",
        if failed.is_empty() {
            String::new()
        } else {
            format!(" Failed: {}.", failed.join("; "))
        },
        charts(&[chart.curves()]),
        table.html()
    )
}
