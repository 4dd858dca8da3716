//! The report for people.

use crate::report::{Latency, Report};
use std::fmt::Write;

/// The report as lines of text.
pub fn text(report: &Report) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    let settings = &report.settings;
    let target = format!(
        "{}, {} connections of {} threads, {} deep",
        settings.target, settings.connections, settings.threads, settings.pipeline
    );
    lines.push(("target", target));
    let spacing = if settings.poisson {
        "Poisson"
    } else {
        "evenly spaced"
    };
    let rate = settings.rate.map_or("closed loop".to_owned(), |rate| {
        format!("open loop, {rate} per second, {spacing}")
    });
    let workload = format!(
        "{} of {}, values of {}; {rate}",
        settings.mix, settings.keys, settings.value_size
    );
    lines.push(("workload", workload));
    if let Some(preload) = &report.preload {
        let (keys, seconds) = (preload.keys, preload.seconds);
        let rate = keys as f64 / seconds.max(1e-9);
        lines.push((
            "preload",
            format!("{keys} keys in {seconds:.2} s, {rate:.0} per second"),
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
    let requests = format!(
        "{:.0} per second (median of seconds), {:.0} overall, {} in {:.2} s",
        report.requests_per_second_median, report.requests_per_second, report.requests, report.seconds
    );
    lines.push(("requests", requests));
    if let Some(ratio) = report.hit_ratio {
        let hits = format!("{:.4} % of {} keys", ratio * 100.0, report.lookups);
        lines.push(("hit ratio", hits));
    }
    let rate = |bytes: u64| bytes as f64 / report.seconds / f64::from(1 << 20);
    let (received, sent) = (rate(report.bytes_in), rate(report.bytes_out));
    lines.push((
        "bytes",
        format!("{received:.1} MiB/s received, {sent:.1} MiB/s sent"),
    ));
    let (idle, cpu) = (report.client.idle_share, report.client.cpu_us_per_request);
    lines.push((
        "client",
        format!("{:.1} % idle, {cpu:.3} us of CPU per request", idle * 100.0),
    ));
    if let Some(server) = &report.server {
        let (cores, cpu) = (server.cores, server.cpu_us_per_request);
        lines.push((
            "server",
            format!("{cores:.2} cores, {cpu:.3} us of CPU per request"),
        ));
    }
    if idle < 0.05 {
        let what = "the client had hardly any time to spare: this measures the client";
        lines.push(("", what.to_owned()));
    }
    if let Some(arrivals) = report.arrivals.as_ref().filter(|arrivals| arrivals.fell_behind) {
        let what = format!(
            "{} per second were to be sent, and {:.0} were: {} of {} arrivals were not sent, the oldest waited {:.3} s",
            report.settings.rate.unwrap_or_default(),
            arrivals.sent_per_second,
            arrivals.not_sent,
            arrivals.due,
            arrivals.behind_seconds
        );
        lines.push(("FELL BEHIND", what));
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
