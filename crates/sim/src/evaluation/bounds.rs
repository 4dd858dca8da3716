//! Each figure that is asked for, from the replays: what was seen, and whether it is as it must be.

use pumice_device::{Direction, Profile};
use pumice_flash::Layout;

use super::plan::{RIPQ_POLICIES, Setup};
use super::results::{Evaluation, Run};
use super::summary::Verdict;
use crate::report::Report;

/// Points below the best of a curve over α at which it counts as arrived.
const KNEE_POINTS: f64 = 0.3;
/// Fewest objects of which it is told what DRAM each takes.
const OBJECTS_MIN: u64 = 50_000;
/// The drive whose throughput is modelled.
pub const SATURATED: Profile = Profile::NVME;
/// Slack for comparing numbers that were computed in floating point.
const EPSILON: f64 = 1e-9;

/// What was seen, and whether it is as it must be.
pub(super) type Seen = (String, Verdict);

/// What is said of a figure that nothing here measures.
pub(super) fn unmeasured(why: &str) -> Seen {
    (why.to_owned(), Verdict::NotMeasured)
}

/// What is said where no trace has what is asked for.
fn none() -> Seen {
    unmeasured("no trace qualifies for it")
}

fn name(evaluation: &Evaluation, run: &Run) -> String {
    let Setup::Flash {
        layout,
        policy,
        superblock_blocks,
        ..
    } = &run.setup
    else {
        return run.setup.to_string();
    };
    let policy = if *layout == Layout::Fifo { "" } else { policy };
    format!(
        "{}, {policy}, superblock {superblock_blocks}",
        evaluation.workloads[run.workload].name
    )
}

/// RIPQ as it is by default with these policies, on the traces that qualify and all drives.
fn standard_runs<'a>(evaluation: &'a Evaluation, policies: &[&'static str]) -> Vec<&'a Run> {
    let plan = &evaluation.plan;
    let mut runs = Vec::new();
    for workload in evaluation.qualifying() {
        for superblock in &plan.superblocks {
            let setups = policies.iter().map(|policy| plan.ripq(policy, *superblock));
            runs.extend(setups.filter_map(|setup| evaluation.run(workload, &setup)));
        }
    }
    runs
}

/// The largest of a figure and its replay.
fn worst<'a>(runs: &[&'a Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<(f64, &'a Run)> {
    runs.iter()
        .filter_map(|run| Some((figure(run)?, *run)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Says that a replay failed, which no bound survives.
fn failed(evaluation: &Evaluation, runs: &[&Run]) -> Option<Seen> {
    let run = runs
        .iter()
        .find(|run| run.report().is_none() || run.twin_report().is_none())?;
    Some((format!("{}: failed", name(evaluation, run)), Verdict::Fails))
}

/// SLRU-1..3 against the twins, by objects and bytes.
pub(super) fn slru_fidelity(evaluation: &Evaluation) -> Seen {
    let runs = standard_runs(evaluation, &RIPQ_POLICIES[..3]);
    if let Some(failed) = failed(evaluation, &runs) {
        return failed;
    }
    let (Some((objects, of_objects)), Some((bytes, of_bytes))) =
        (worst(&runs, Run::object_loss), worst(&runs, Run::byte_loss))
    else {
        return none();
    };
    (
        format!(
            "objects: at most {objects:.3} points lower ({}); bytes: at most {bytes:.3} ({})",
            name(evaluation, of_objects),
            name(evaluation, of_bytes)
        ),
        Verdict::of(objects.max(bytes) <= 0.3),
    )
}

/// GDSF-1..3 against the twins, by objects.
pub(super) fn gdsf_fidelity(evaluation: &Evaluation) -> Seen {
    let runs = standard_runs(evaluation, &RIPQ_POLICIES[3..]);
    if let Some(failed) = failed(evaluation, &runs) {
        return failed;
    }
    let Some((loss, run)) = worst(&runs, Run::object_loss) else {
        return none();
    };
    (
        format!("at most {loss:.3} points lower ({})", name(evaluation, run)),
        Verdict::of(loss <= 1.0),
    )
}

/// Points that a layout hits more than FIFO, and its twin more than FIFO's.
pub(super) fn gain_over_fifo(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    let superblock = plan.superblocks[0];
    let mut seen = Vec::new();
    let mut holds = true;
    for workload in evaluation.qualifying() {
        let Some(fifo) = evaluation.run(workload, &plan.fifo(superblock)) else {
            continue;
        };
        let mut gains = Vec::new();
        for (policy, is_bytes, bound) in [("gdsf-3", false, 1.0), ("slru-3", true, 0.3)] {
            let ratio = |report: &Report| {
                if is_bytes {
                    report.byte_hit_ratio
                } else {
                    report.object_hit_ratio
                }
            };
            let ripq = evaluation.run(workload, &plan.ripq(policy, superblock));
            let gain = || {
                let ripq = ripq?;
                let points = |a: Option<f64>, b: Option<f64>| Some((a? - b?) * 100.0);
                Some((
                    points(ratio(ripq.report()?), ratio(fifo.report()?))?,
                    points(ratio(ripq.twin_report()?), ratio(fifo.twin_report()?))?,
                ))
            };
            let Some((gain, twin)) = gain() else {
                holds = false;
                continue;
            };
            holds &= gain >= twin - bound - EPSILON;
            gains.push(format!("{policy} {gain:+.2} (twin {twin:+.2})"));
        }
        seen.push(format!(
            "{}: {}",
            evaluation.workloads[workload].name,
            gains.join(", ")
        ));
    }
    if seen.is_empty() {
        return none();
    }
    (format!("points: {}", seen.join("; ")), Verdict::of(holds))
}

/// The twin's object hit ratio, which says under which bound amplification falls.
fn twin_ratio(run: &Run) -> Option<f64> {
    run.twin_report()?.object_hit_ratio
}

fn combined(run: &Run) -> Option<f64> {
    run.report()?.combined_write_amplification
}

/// Combined write amplification where the twin hits at most half of the time.
pub(super) fn amplification(evaluation: &Evaluation) -> Seen {
    let all: Vec<&Run> = standard_runs(evaluation, &RIPQ_POLICIES)
        .into_iter()
        .filter(|run| twin_ratio(run).is_some_and(|ratio| ratio <= 0.5))
        .collect();
    let mut seen = Vec::new();
    let mut holds = true;
    for superblock in &evaluation.plan.superblocks {
        let runs: Vec<&Run> = all
            .iter()
            .copied()
            .filter(|run| matches!(run.setup, Setup::Flash { superblock_blocks, .. } if superblock_blocks == *superblock))
            .collect();
        let (Some((high, run)), Some((low, _))) = (
            worst(&runs, combined),
            worst(&runs, |run| combined(run).map(|amplification| -amplification)),
        ) else {
            continue;
        };
        holds &= high <= 1.25;
        seen.push(format!("{:.3} to {high:.3} ({})", -low, name(evaluation, run)));
    }
    if seen.is_empty() {
        return unmeasured("no trace that qualifies is hit so seldom");
    }
    (seen.join("; "), Verdict::of(holds))
}

/// The point of the curves over θ and min-raise that is nearest to its bounds, where the twin hits more often.
pub(super) fn writes_against_hits(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    let mut seen = Vec::new();
    let mut holds = true;
    for workload in evaluation.qualifying() {
        for superblock in &plan.superblocks {
            let probe = evaluation.run(workload, &plan.ripq("slru-3", *superblock));
            if probe.and_then(twin_ratio).is_none_or(|ratio| ratio <= 0.5) {
                continue;
            }
            let thetas = plan.thetas.iter();
            let thetas = thetas.map(|theta| (format!("θ {theta}"), plan.at_theta(*theta, *superblock)));
            let raises = plan.min_raises.iter();
            let raises = raises.map(|least| {
                (
                    format!("min-raise {least}"),
                    plan.at_min_raise(*least, *superblock),
                )
            });
            let points = thetas.chain(raises).filter_map(|(name, setup)| {
                let run = evaluation.run(workload, &setup)?;
                Some((name, combined(run)?, run.worse_loss()?))
            });
            // How far a point is from what it must be; the closest speaks for the curve.
            let distance =
                |(_, amplification, loss): &(String, f64, f64)| (amplification / 1.40).max(loss / 0.6);
            let Some(best) = points.min_by(|a, b| distance(a).total_cmp(&distance(b))) else {
                holds = false;
                continue;
            };
            holds &= distance(&best) <= 1.0 + EPSILON;
            let (point, amplification, loss) = best;
            seen.push(format!(
                "{}, superblock {superblock}: {point} gives {amplification:.3} and {loss:.3} points",
                evaluation.workloads[workload].name
            ));
        }
    }
    if seen.is_empty() {
        return unmeasured("no trace that qualifies is hit more than half of the time");
    }
    (seen.join("; "), Verdict::of(holds))
}

/// Amplification under SIPQ: at the smallest occupancy SLRU from one segment to three, at the largest GDSF.
pub(super) fn sipq_amplification(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    let (Some(small), Some(large)) = (plan.sipq_thetas.first(), plan.sipq_thetas.last()) else {
        return none();
    };
    let mut seen = Vec::new();
    let mut holds = true;
    for workload in evaluation.qualifying() {
        let at = |policy, theta: &f64| {
            combined(evaluation.run(workload, &plan.sipq(policy, *theta, plan.superblocks[0]))?)
        };
        let rows = [
            ("slru-1", small),
            ("slru-2", small),
            ("slru-3", small),
            ("gdsf-1", large),
            ("gdsf-3", large),
        ];
        let [
            Some(slru_1),
            Some(slru_2),
            Some(slru_3),
            Some(gdsf_1),
            Some(gdsf_3),
        ] = rows.map(|(policy, theta)| at(policy, theta))
        else {
            holds = false;
            continue;
        };
        // More segments keep more, and a fuller device writes what it keeps more often.
        holds &= slru_1 < slru_3 && slru_3 < gdsf_1.min(gdsf_3);
        seen.push(format!(
            "{}: SLRU-1..3 {slru_1:.2}, {slru_2:.2}, {slru_3:.2}; GDSF-1 and -3 {gdsf_1:.2}, {gdsf_3:.2}",
            evaluation.workloads[workload].name
        ));
    }
    if seen.is_empty() {
        return none();
    }
    (
        format!("SLRU at θ {small}, GDSF at {large}: {}", seen.join("; ")),
        Verdict::of(holds),
    )
}

/// Where the curves over α arrive.
pub(super) fn insertion_points(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    let mut seen = Vec::new();
    let mut holds = true;
    for workload in evaluation.qualifying() {
        let fifo = evaluation.run(workload, &plan.fifo(plan.superblocks[0]));
        let fifo = fifo
            .and_then(Run::report)
            .and_then(|report| report.object_hit_ratio);
        for (policy, allowed) in [("slru-3", 4.0), ("gdsf-3", 8.0)] {
            // From few insertion points to many.
            let curve: Vec<(f64, f64)> = plan
                .alphas
                .iter()
                .filter_map(|alpha| {
                    let run =
                        evaluation.run(workload, &plan.at_alpha(policy, *alpha, plan.superblocks[0]))?;
                    Some((1.0 / alpha, run.report()?.object_hit_ratio? * 100.0))
                })
                .collect();
            let (Some(best), Some((_, left)), Some((_, right))) = (
                curve.iter().map(|point| point.1).max_by(f64::total_cmp),
                curve.first().copied(),
                curve.last().copied(),
            ) else {
                holds = false;
                continue;
            };
            let knee = knee(&curve, best);
            holds &= knee <= allowed + EPSILON;
            let above = fifo.map_or(String::new(), |fifo| {
                format!(", {:+.2} points from FIFO", left - fifo * 100.0)
            });
            seen.push(format!(
                "{}, {policy}: {knee:.0} (left end {:.2} below the best{above}; right end {:.2} below the best)",
                evaluation.workloads[workload].name,
                best - left,
                best - right
            ));
        }
    }
    if seen.is_empty() {
        return none();
    }
    (
        format!("within {KNEE_POINTS} points of the best at: {}", seen.join("; ")),
        Verdict::of(holds),
    )
}

/// The least number of insertion points at which the curve is near its best.
fn knee(curve: &[(f64, f64)], best: f64) -> f64 {
    curve
        .iter()
        .find(|point| point.1 >= best - KNEE_POINTS)
        .map_or(f64::INFINITY, |point| point.0)
}

/// Requests per second.
pub(super) fn replay_speed(evaluation: &Evaluation) -> Seen {
    let runs = standard_runs(evaluation, &["slru-3"]);
    let speed = |run: &Run| Some(run.report()?.requests_per_second / 1e6);
    let (Some((high, _)), Some((low, run))) = (
        worst(&runs, speed),
        worst(&runs, |run| speed(run).map(|speed| -speed)),
    ) else {
        return none();
    };
    (
        format!(
            "{:.2} to {high:.2} M requests/s, with reading the trace twice and a simulated drive, beside other replays; \
             lowest: {}",
            -low,
            name(evaluation, run)
        ),
        // With --jobs 1 it is the speed of one core alone.
        if -low >= 1.0 {
            Verdict::Holds
        } else {
            Verdict::Fails
        },
    )
}

/// Requests per second of a saturated device of this kind, which reads and writes in turns: an operation costs its share of the
/// latency or of the bandwidth, whichever is more, and what the drive copies for itself is read and written too.
pub fn saturated_requests_per_second(report: &Report, profile: &Profile) -> Option<f64> {
    let seconds = |direction: Direction, operations: f64, bytes: f64| {
        let latency = direction.latency_ns as f64 / 1e9 / f64::from(direction.parallelism);
        (operations * latency).max(bytes / direction.bytes_per_second as f64)
    };
    let written = report.device_written_bytes? as f64;
    let copied = (report.device_write_amplification.unwrap_or(1.0) - 1.0).max(0.0) * written;
    let reads = seconds(
        profile.read,
        report.device_reads? as f64,
        report.device_read_bytes? as f64 + copied,
    );
    let writes = seconds(profile.write, report.device_writes? as f64, written + copied);
    let seconds = reads + writes;
    (seconds > 0.0).then(|| report.requests as f64 / seconds)
}

/// RIPQ SLRU-3 against FIFO where the device is the limit.
pub(super) fn throughput(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    let superblock = plan.superblocks[0];
    let profile = SATURATED;
    let mut seen = Vec::new();
    for workload in evaluation.qualifying() {
        let speed = |setup: &Setup| {
            saturated_requests_per_second(evaluation.run(workload, setup)?.report()?, &profile)
        };
        let (Some(ripq), Some(fifo)) = (
            speed(&plan.ripq("slru-3", superblock)),
            speed(&plan.fifo(superblock)),
        ) else {
            continue;
        };
        seen.push((ripq / fifo, &evaluation.workloads[workload].name));
    }
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let seen: Vec<String> = seen
        .iter()
        .map(|(ratio, name)| format!("{name} {ratio:.2}"))
        .collect();
    unmeasured(&format!(
        "a real device is not part of this command (bench/ripq_throughput.py); a modelled, saturated {profile} drive: {}",
        seen.join(", ")
    ))
}

/// Bytes of DRAM for each object: the index and the queue, and with absolute priorities the sample of keys that they are known by. Where
/// there are few objects, what does not grow with them weighs most: so SLRU-3 is judged on larger caches, and GDSF-3 is told.
pub(super) fn index_memory(evaluation: &Evaluation) -> Seen {
    let range = |policy| {
        let mut runs = standard_runs(evaluation, &[policy]);
        runs.retain(|run| {
            run.report()
                .is_some_and(|report| report.objects_cached >= OBJECTS_MIN)
        });
        let bytes = |run: &Run| {
            let report = run.report()?;
            Some(report.index_dram_bytes? as f64 / report.objects_cached.max(1) as f64)
        };
        let (high, _) = worst(&runs, bytes)?;
        let (low, _) = worst(&runs, |run| bytes(run).map(|bytes| -bytes))?;
        Some((-low, high))
    };
    let Some((low, high)) = range("slru-3") else {
        return unmeasured(
            "no cache of a trace that qualifies holds 50,000 objects: bench/ripq_replay.py, bench/ripq_scale.py",
        );
    };
    let sample = range("gdsf-3").map_or(String::new(), |(low, high)| {
        format!("; GDSF-3, which keeps the values of up to 65,536 keys beside: {low:.1} to {high:.1} B")
    });
    (
        format!("SLRU-3, caches of {OBJECTS_MIN} objects and more: {low:.1} to {high:.1} B{sample}"),
        Verdict::of(high <= 16.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saturated_drive_is_bound_by_operations_or_by_bytes_and_by_what_it_copies() {
        let direction = |latency_ns, bytes_per_second, parallelism| Direction {
            latency_ns,
            bytes_per_second,
            parallelism,
        };
        let profile = Profile {
            name: "test",
            read: direction(100_000, 1_000_000_000, 10),
            write: direction(50_000, 500_000_000, 5),
        };
        let mut report: Report = serde_json::from_str(
            r#"{"trace":"t","requests":1000,"layout":"fifo","policy":"fifo","index":"full","flash_bytes":1,"dram_bytes":0,
            "object_hit_ratio":null,"byte_hit_ratio":null,"objects_cached":2,"object_bytes_resident_mean":null,
            "objects_rejected":0,"bytes_inserted":4,"bytes_written_host":null,"app_write_amplification":null,
            "device_write_amplification":null,"combined_write_amplification":null,"index_dram_bytes":null,
            "index_bytes_written":null,"flash_reads_per_hit":null,"flash_reads_per_miss":null,"elapsed_seconds":1.0,
            "requests_per_second":5.0,"flash_rounds_per_hit":null,"cascade":null,
            "device_reads":100000,"device_read_bytes":400000000,"device_writes":100,"device_written_bytes":1000000000}"#,
        )
        .unwrap();
        let seconds = |report: &Report| 1000.0 / saturated_requests_per_second(report, &profile).unwrap();
        // 100,000 reads at 10 us, 10^9 bytes at half a gigabyte a second.
        assert!((seconds(&report) - 3.0).abs() < 1e-9);
        report.device_write_amplification = Some(2.0);
        // The copies are 10^9 bytes more to read and to write, in one piece.
        assert!((seconds(&report) - (1.4 + 4.0)).abs() < 1e-9);
        report.device_reads = None;
        assert_eq!(saturated_requests_per_second(&report, &profile), None);
    }

    #[test]
    fn a_knee_is_where_the_curve_arrives() {
        let curve = [(2.0, 50.0), (4.0, 59.8), (8.0, 60.0), (16.0, 59.9)];
        assert_eq!(knee(&curve, 60.0), 4.0);
        let falls = [(2.0, 60.0), (4.0, 59.0), (8.0, 58.0)];
        assert_eq!(knee(&falls, 60.0), 2.0);
    }
}
