//! The report of a replay for people.

use crate::times::people;
use pumice_sim::{Report, WithoutSize};
use pumice_trace::Human;

/// The report for people.
pub(super) fn summary(report: &Report) -> String {
    let percent =
        |ratio: Option<f64>| ratio.map_or("none".to_owned(), |ratio| format!("{:.4} %", ratio * 100.0));
    let amount = |bytes: Option<u64>, objects: Option<u64>| match (bytes, objects) {
        (Some(bytes), _) => Human(bytes).to_string(),
        (None, objects) => format!("{} objects", objects.unwrap_or(0)),
    };
    let mut lines = vec![
        (
            "trace",
            format!("{}, {} requests counted", report.trace, report.requests),
        ),
        (
            "cache",
            format!(
                "{}, policy {}, {}",
                report.layout,
                report.policy,
                amount(report.flash_bytes, report.flash_objects)
            ),
        ),
        ("object hit ratio", percent(report.object_hit_ratio)),
        ("byte hit ratio", percent(report.byte_hit_ratio)),
        (
            "objects",
            format!(
                "{} cached at the end, {} rejected",
                report.objects_cached, report.objects_rejected
            ),
        ),
        ("inserted", amount(report.bytes_inserted, report.objects_inserted)),
    ];
    let settings = &report.settings;
    if let Some(bytes) = settings.object_size.filter(|_| settings.object_size_is_assumed) {
        let what = format!(
            "{bytes} bytes each, assumed: the trace has no sizes (--object-size and --sizes give them)"
        );
        lines.insert(1, ("object size", what));
    } else if report.unit == "objects" {
        let what =
            "none: the trace has no sizes, so objects are counted (--object-size and --sizes give sizes)";
        lines.insert(1, ("object size", what.to_owned()));
    }
    if let Some(WithoutSize {
        requests,
        unknown,
        assumed_bytes,
    }) = settings.without_size
    {
        let what = format!(
            "{requests} requests: {} took the next size of their key, {unknown} one that it had before, or {assumed_bytes} bytes, assumed (--object-size)",
            requests - unknown
        );
        lines.insert(1, ("without a size", what));
    }
    if let (Some(written), Some(amplification)) = (report.bytes_written_host, report.app_write_amplification)
    {
        lines.push((
            "written",
            format!(
                "{} (write amplification {amplification:.4} of the application{})",
                Human(written),
                report
                    .combined_write_amplification
                    .map_or(String::new(), |combined| format!(
                        ", {combined:.4} with the drive's"
                    )),
            ),
        ));
    }
    if let Some(admission) = &report.admission {
        lines.push((
            "admission",
            format!(
                "{} objects let onto flash; refused {} by the rule, {} by the budget, {} for their size, {} for their expiry",
                admission.admitted_objects,
                admission.refused_by_rule_objects,
                admission.refused_by_budget_objects,
                admission.refused_size_objects,
                admission.refused_expiry_objects
            ),
        ));
    }
    if let Some(index) = report.index_dram_bytes {
        lines.push(("index", format!("{} of DRAM", Human(index))));
    }
    if let Some(cascade) = &report.cascade {
        lines.push((
            "mappings",
            format!(
                "{} in DRAM, {} in tier 2, {} in tier 3; {} written, {} read to reorganise {} partitions",
                cascade.tier1_mappings,
                cascade.tier2_mappings,
                cascade.tier3_mappings,
                Human(cascade.mapping_bytes_written),
                Human(cascade.reorganisation_bytes_read),
                cascade.reorganisations
            ),
        ));
    }
    if let (Some(min), Some(mean), Some(max)) = (report.erases_min, report.erases_mean, report.erases_max) {
        lines.push(("erases", format!("{mean:.1} of each superblock, {min} to {max}")));
    }
    if let Some(seconds) = report.device_seconds {
        let what = format!("{seconds:.3} s by the model, one request at a time");
        lines.push(("device time", what));
    }
    if let Some(mean) = report.response_ns {
        let what = format!("a get takes {}, one after the other by the model", people(mean));
        lines.push(("response time", what));
    }
    if let (Some(hit), Some(miss)) = (report.flash_reads_per_hit, report.flash_reads_per_miss) {
        lines.push(("flash reads", format!("{hit:.4} per hit, {miss:.4} per miss")));
    }
    lines.push((
        "time",
        format!(
            "{:.2} s, {:.0} requests per second",
            report.elapsed_seconds, report.requests_per_second
        ),
    ));
    pumice_console::lines(17, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_the_ratios_and_what_was_assumed() {
        let mut report = Report {
            object_hit_ratio: Some(0.5),
            unit: "objects",
            flash_objects: Some(3),
            ..Report::default()
        };
        let text = summary(&report);
        assert!(text.contains("object hit ratio  50.0000 %\n"), "{text}");
        assert!(
            text.contains("3 objects") && text.contains("objects are counted"),
            "{text}"
        );
        report.unit = "bytes";
        report.settings.object_size = Some(4096);
        assert!(!summary(&report).contains("object size"));
        report.settings.object_size_is_assumed = true;
        assert!(summary(&report).contains("4096 bytes each, assumed"));
    }
}
