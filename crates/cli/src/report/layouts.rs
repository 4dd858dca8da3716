//! The sections on layouts against their twins: figure 8, and the curves over θ and min-raise.

use super::page::escape;
use super::sections::{by_trace, byte_ratio, charts, object_ratio};
use super::svg::{Chart, Series};
use super::table::{Table, number, percent};
use pumice_sim::{Evaluation, RIPQ_POLICIES, Report, Run, SATURATED, Setup, saturated_requests_per_second};

/// A figure of a replay.
type Figure = fn(&Run) -> Option<f64>;

/// The layouts of figure 8 on one drive: RIPQ with every policy, and FIFO.
fn layouts(evaluation: &Evaluation, superblock: u32) -> Vec<(&'static str, Setup)> {
    let plan = &evaluation.plan;
    let ripq = RIPQ_POLICIES
        .into_iter()
        .map(|policy| (policy, plan.ripq(policy, superblock)));
    ripq.chain([("fifo", plan.fifo(superblock))]).collect()
}

/// SIPQ with every policy.
fn sipq(evaluation: &Evaluation, theta: f64, superblock: u32) -> Vec<(&'static str, Setup)> {
    let plan = &evaluation.plan;
    RIPQ_POLICIES
        .map(|policy| (policy, plan.sipq(policy, theta, superblock)))
        .to_vec()
}

/// Figure 8: fidelity, amplification and throughput.
pub fn figure_8(evaluation: &Evaluation) -> String {
    let words = "RIPQ and SIPQ against their exact twins, and layout fifo. The twins in the charts are those of RIPQ; every \
                 layout has one at its own object bytes. A superblock is the erase unit of the simulated drive, in blocks. The \
                 throughput is that of a modelled NVMe drive that is the bottleneck: what the layout and the drive itself read and \
                 wrote, at the latency, parallelism and bandwidth of `--throttle nvme`, reads and writes in turns; a miss \
                 costs its write, and no back end is waited for.";
    by_trace(
        evaluation,
        "figure-8",
        "Figure 8: fidelity, write amplification, throughput",
        words,
        |at| figure_8_of(evaluation, at),
    )
}

fn figure_8_of(evaluation: &Evaluation, at: usize) -> Option<String> {
    let plan = &evaluation.plan;
    evaluation.run(at, &plan.probe())?.report()?;
    let first = plan.superblocks[0];
    let labels: Vec<String> = layouts(evaluation, first)
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let of_setups = |name: String, setups: &[(&str, Setup)], figure: &dyn Fn(&Run) -> Option<f64>| Series {
        name,
        values: setups
            .iter()
            .map(|(_, setup)| figure(evaluation.run(at, setup)?))
            .collect(),
    };
    let series = |name: String, superblock: u32, figure: &dyn Fn(&Run) -> Option<f64>| {
        of_setups(name, &layouts(evaluation, superblock), figure)
    };
    let with_sipq = |drawn: &mut Vec<Series>, figure: &dyn Fn(&Run) -> Option<f64>| {
        for theta in &plan.sipq_thetas {
            drawn.push(of_setups(
                format!("sipq-{theta}"),
                &sipq(evaluation, *theta, first),
                figure,
            ));
        }
    };
    let bars = |title, y, series| {
        Chart {
            title,
            x: "policy (fifo: layout fifo)",
            labels: labels.clone(),
            y,
            series,
        }
        .bars()
    };
    let ratios = |title, y, ratio: fn(&Report) -> Option<f64>| {
        let twin = |run: &Run| Some(ratio(run.twin_report()?)? * 100.0);
        let layout = |run: &Run| Some(ratio(run.report()?)? * 100.0);
        let mut drawn = vec![series("exact twin".into(), first, &twin)];
        for superblock in &plan.superblocks {
            drawn.push(series(
                format!("layout, superblock {superblock}"),
                *superblock,
                &layout,
            ));
        }
        with_sipq(&mut drawn, &layout);
        bars(title, y, drawn)
    };
    let application = |run: &Run| run.report()?.app_write_amplification;
    let combined = |run: &Run| run.report()?.combined_write_amplification;
    let speed = |run: &Run| Some(run.report()?.requests_per_second / 1e3);
    let saturated = |run: &Run| Some(saturated_requests_per_second(run.report()?, &SATURATED)? / 1e3);
    let mut writes = vec![series("application".into(), first, &application)];
    for superblock in &plan.superblocks {
        writes.push(series(
            format!("combined, superblock {superblock}"),
            *superblock,
            &combined,
        ));
    }
    with_sipq(&mut writes, &combined);
    let mut speeds = vec![series(format!("superblock {first}"), first, &speed)];
    with_sipq(&mut speeds, &speed);
    let mut drives = Vec::new();
    for superblock in &plan.superblocks {
        drives.push(series(
            format!("layout, superblock {superblock}"),
            *superblock,
            &saturated,
        ));
    }
    with_sipq(&mut drives, &saturated);
    let drawn = charts(&[
        ratios(
            "Object hit ratio against the twin",
            "object hit ratio, %",
            object_ratio,
        ),
        ratios("Byte hit ratio against the twin", "byte hit ratio, %", byte_ratio),
        bars(
            "Write amplification",
            "bytes written / bytes inserted, times",
            writes,
        ),
        bars(
            "Throughput of a saturated NVMe drive",
            "thousand requests / s",
            drives,
        ),
        bars("Speed of the simulation", "thousand requests / s", speeds),
    ]);
    let mut table = Table::new(&[
        "layout",
        "superblock",
        "θ",
        "object hits, %",
        "twin, %",
        "loss, points",
        "byte hits, %",
        "twin, %",
        "loss, points",
        "amplification: application",
        "device",
        "combined",
        "flash reads per hit",
        "rejected (twin)",
        "NVMe drive, thousand requests / s",
        "simulation, thousand requests / s",
    ]);
    let mut rows: Vec<Setup> = Vec::new();
    for superblock in &plan.superblocks {
        rows.extend(
            layouts(evaluation, *superblock)
                .into_iter()
                .map(|(_, setup)| setup),
        );
        for theta in &plan.sipq_thetas {
            let sipq = sipq(evaluation, *theta, *superblock).into_iter();
            rows.extend(sipq.map(|(_, setup)| setup));
        }
    }
    for setup in rows {
        let Setup::Flash {
            layout,
            policy,
            superblock_blocks,
            ..
        } = &setup
        else {
            continue;
        };
        let Some(run) = evaluation.run(at, &setup) else {
            continue;
        };
        let theta = match &setup {
            Setup::Flash { theta, .. } if *policy != "fifo" => theta.to_string(),
            _ => "–".to_owned(),
        };
        let report = run.report();
        let twin = run.twin_report();
        let rejected = |report: Option<&Report>| {
            report.map_or("–".to_owned(), |report| report.objects_rejected.to_string())
        };
        table.row(&[
            if *policy == "fifo" {
                (*policy).to_owned()
            } else {
                format!("{layout} {policy}")
            },
            superblock_blocks.to_string(),
            theta,
            percent(report.and_then(object_ratio)),
            percent(twin.and_then(object_ratio)),
            number(run.object_loss(), 3),
            percent(report.and_then(byte_ratio)),
            percent(twin.and_then(byte_ratio)),
            number(run.byte_loss(), 3),
            number(application(run), 4),
            number(report.and_then(|report| report.device_write_amplification), 4),
            number(combined(run), 4),
            number(report.and_then(|report| report.flash_reads_per_hit), 3),
            format!("{} ({})", rejected(report), rejected(twin)),
            number(saturated(run), 1),
            number(speed(run), 0),
        ]);
    }
    Some(drawn + &table.html() + &failures(evaluation, at))
}

/// The replays of a trace that have no figures, and why.
fn failures(evaluation: &Evaluation, at: usize) -> String {
    let runs = evaluation.runs.iter().filter(|run| run.workload == at);
    let lines = runs.flat_map(|run| {
        let results = [Some(&run.result), run.twin.as_ref()].into_iter().flatten();
        results.filter_map(|result| {
            let error = result.as_ref().err()?;
            Some(format!(
                "<li>{}: {}</li>",
                escape(&run.setup.to_string()),
                escape(error)
            ))
        })
    });
    let lines: String = lines.collect();
    if lines.is_empty() {
        return lines;
    }
    format!("<p>Replays without figures:</p><ul>{lines}</ul>")
}

/// What trades hits for writes.
struct Lever<'a> {
    id: &'a str,
    name: &'a str,
    title: &'a str,
    words: &'a str,
    values: &'a [f64],
    at: &'a dyn Fn(&'static str, f64, u32) -> Setup,
}

/// The curve over θ.
pub fn theta(evaluation: &Evaluation) -> String {
    let plan = &evaluation.plan;
    lever(
        evaluation,
        &Lever {
            id: "theta",
            name: "θ (a share of the queue)",
            title: "θ: write amplification against loss",
            words: "SLRU-3 under RIPQ. With a smaller θ less is written again, and more hits are lost: objects in the last \
                    1 - θ of the queue are not kept when their block goes. The tables also have \
                    other policies, on traces that qualify, with each superblock with which by default they write more \
                    than 1.40 times, or are more than 0.6 points lower, where more than half is hit.",
            values: &plan.thetas,
            at: &|policy, theta, superblock| plan.at_theta(policy, theta, superblock),
        },
    )
}

/// The curve over min-raise.
pub fn min_raise(evaluation: &Evaluation) -> String {
    let plan = &evaluation.plan;
    lever(
        evaluation,
        &Lever {
            id: "min-raise",
            name: "min-raise (a share of the queue)",
            title: "min-raise: write amplification against loss",
            words: "SLRU-3 under RIPQ. A hit that would raise an object by less than this leaves it where it is, unless it has \
                    been raised since it was last written: fewer objects are written again, each for a longer stay. In the tables also other \
                    policies, as for θ.",
            values: &plan.min_raises,
            at: &|policy, least, superblock| plan.at_min_raise(policy, least, superblock),
        },
    )
}

fn lever(evaluation: &Evaluation, lever: &Lever<'_>) -> String {
    let plan = &evaluation.plan;
    by_trace(evaluation, lever.id, lever.title, lever.words, |at| {
        evaluation.run(at, &plan.probe())?.report()?;
        let point_of =
            |policy, value: f64, superblock| evaluation.run(at, &(lever.at)(policy, value, superblock));
        let point = |value, superblock| point_of("slru-3", value, superblock);
        let curves = |title, y, figures: &[(&str, Figure)]| {
            let mut series = Vec::new();
            for (name, figure) in figures {
                for superblock in &plan.superblocks {
                    let values = lever.values.iter();
                    series.push(Series {
                        name: format!("{name}, superblock {superblock}"),
                        values: values.map(|value| figure(point(*value, *superblock)?)).collect(),
                    });
                }
            }
            Chart {
                title,
                x: lever.name,
                labels: lever.values.iter().map(ToString::to_string).collect(),
                y,
                series,
            }
            .curves()
        };
        let combined = |run: &Run| run.report()?.combined_write_amplification;
        let drawn = charts(&[
            curves(
                "Combined write amplification",
                "bytes written / bytes inserted, times",
                &[("combined", combined)],
            ),
            curves(
                "Loss against the twin",
                "loss, points of hit ratio",
                &[("objects", Run::object_loss), ("bytes", Run::byte_loss)],
            ),
        ]);
        let mut table = Table::new(&[
            "policy",
            "superblock",
            lever.name,
            "object hits, %",
            "loss, points",
            "byte hits, %",
            "loss, points",
            "amplification: application",
            "combined",
        ]);
        for (policy, superblock) in RIPQ_POLICIES.into_iter().flat_map(|policy| {
            plan.superblocks
                .iter()
                .map(move |superblock| (policy, superblock))
        }) {
            let runs = lever.values.iter();
            let runs = runs.filter_map(|value| Some((value, point_of(policy, *value, *superblock)?)));
            let runs: Vec<_> = runs.collect();
            // The default alone is no curve.
            for (value, run) in runs.iter().filter(|_| runs.len() > 1) {
                let report = run.report();
                table.row(&[
                    policy.to_owned(),
                    superblock.to_string(),
                    value.to_string(),
                    percent(report.and_then(object_ratio)),
                    number(run.object_loss(), 3),
                    percent(report.and_then(byte_ratio)),
                    number(run.byte_loss(), 3),
                    number(report.and_then(|report| report.app_write_amplification), 4),
                    number(combined(run), 4),
                ]);
            }
        }
        Some(drawn + &table.html())
    })
}
