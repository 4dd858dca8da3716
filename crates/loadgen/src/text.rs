//! The report for people.

use crate::report::{Latency, Report};
use std::fmt::Write;

/// The report as lines of text.
pub fn text(report: &Report) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    let settings = &report.settings;
    lines.push((
        "target",
        format!(
            "{}, {} connections of {} threads, {} deep",
            settings.target, settings.connections, settings.threads, settings.pipeline
        ),
    ));
    let rate = settings.rate.map_or("closed loop".to_owned(), |rate| {
        let spacing = if settings.poisson {
            "Poisson"
        } else {
            "evenly spaced"
        };
        format!("open loop, {rate} per second, {spacing}")
    });
    lines.push((
        "workload",
        format!(
            "{} of {}, values of {}; {rate}",
            settings.mix, settings.keys, settings.value_size
        ),
    ));
    if let Some(preload) = &report.preload {
        let rate = preload.keys as f64 / preload.seconds.max(1e-9);
        lines.push((
            "preload",
            format!(
                "{} keys in {:.2} s, {rate:.0} per second",
                preload.keys, preload.seconds
            ),
        ));
    }
    if report.seconds > 0.0 {
        measured(report, &mut lines);
    }
    let mut text = String::new();
    for (name, line) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<16} {line}");
    }
    latencies(report, &mut text);
    errors(report, &mut text);
    text
}

fn measured(report: &Report, lines: &mut Vec<(&str, String)>) {
    lines.push((
        "requests",
        format!(
            "{:.0} per second (median of seconds), {:.0} overall, {} in {:.2} s",
            report.requests_per_second_median, report.requests_per_second, report.requests, report.seconds
        ),
    ));
    if let Some(ratio) = report.hit_ratio {
        lines.push((
            "hit ratio",
            format!("{:.4} % of {} keys", ratio * 100.0, report.lookups),
        ));
    }
    let rate = |bytes: u64| bytes as f64 / report.seconds / f64::from(1 << 20);
    lines.push((
        "bytes",
        format!(
            "{:.1} MiB/s received, {:.1} MiB/s sent",
            rate(report.bytes_in),
            rate(report.bytes_out)
        ),
    ));
    let client = &report.client;
    lines.push((
        "client",
        format!(
            "{:.1} % idle, {:.3} us of CPU per request",
            client.idle_share * 100.0,
            client.cpu_us_per_request
        ),
    ));
    if let Some(server) = &report.server {
        lines.push((
            "server",
            format!(
                "{:.2} cores, {:.3} us of CPU per request",
                server.cores, server.cpu_us_per_request
            ),
        ));
    }
    if client.idle_share < 0.05 {
        lines.push((
            "",
            "the client had hardly any time to spare: this measures the client".to_owned(),
        ));
    }
    if let Some(arrivals) = report.arrivals.as_ref().filter(|arrivals| arrivals.fell_behind) {
        lines.push((
            "FELL BEHIND",
            format!(
                "{} per second were to be sent, and {:.0} were: {} of {} arrivals were not sent, the oldest waited {:.3} s",
                report.settings.rate.unwrap_or_default(),
                arrivals.sent_per_second,
                arrivals.not_sent,
                arrivals.due,
                arrivals.behind_seconds
            ),
        ));
    }
}

fn latencies(report: &Report, text: &mut String) {
    let kinds = report.kinds.iter();
    let mut rows: Vec<(&str, Option<&Latency>)> =
        kinds.map(|(name, kind)| (*name, kind.latency.as_ref())).collect();
    if let Some(late) = report
        .arrivals
        .as_ref()
        .and_then(|arrivals| arrivals.not_sent_latency.as_ref())
    {
        rows.push(("not sent", Some(late)));
    }
    if rows.len() > 1 {
        rows.push(("all", report.latency.as_ref()));
    }
    if rows.is_empty() {
        return;
    }
    let heads = ["mean", "p50", "p90", "p99", "p99.9", "p99.99"];
    let _ = write!(text, "\n{:<11} {:>12}", "latency, us", "operations");
    let _ = writeln!(text, "{}", heads.map(|head| format!(" {head:>10}")).concat());
    for (name, latency) in rows {
        let figures = latency.map(|of| {
            [
                of.mean_us,
                of.p50_us,
                of.p90_us,
                of.p99_us,
                of.p99_9_us,
                of.p99_99_us,
            ]
        });
        let cells = match figures {
            Some(figures) => figures.map(|figure| format!(" {figure:>10.1}")),
            None => heads.map(|_| format!(" {:>10}", "-")),
        };
        let count = latency.map_or(0, |latency| latency.count);
        let _ = writeln!(text, "{name:<11} {count:>12}{}", cells.concat());
    }
}

fn errors(report: &Report, text: &mut String) {
    if report.errors.is_empty() && report.unanswered == 0 {
        let _ = writeln!(text, "\nno errors; every value was verified");
        return;
    }
    let _ = writeln!(text, "\nerrors");
    for (name, count) in &report.errors {
        let _ = writeln!(text, "  {name:<18} {count}");
    }
    if report.unanswered > 0 {
        let _ = writeln!(text, "  {:<18} {}", "unanswered", report.unanswered);
    }
    for example in &report.examples {
        let _ = writeln!(text, "  {}: {}", example.kind, example.what);
    }
}
