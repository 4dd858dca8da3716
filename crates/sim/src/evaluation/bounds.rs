//! Each figure that is asked for, from the replays: what was seen, and whether it is as it must be.

use pumice_device::{Direction, Profile};
use pumice_flash::Layout;

use super::plan::{CURVE_POLICY, RIPQ_POLICIES, Setup, once};
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
    let all = standard_runs(evaluation, &RIPQ_POLICIES);
    if let Some(failed) = failed(evaluation, &all) {
        return failed;
    }
    let all: Vec<&Run> = (all.into_iter())
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

/// Highest amplification, and most points lower than the twin, where the twin hits more than half of the time.
const ELSEWHERE: (f64, f64) = (1.40, 0.6);

/// Points lower than the twin; GDSF's bytes are not bounded.
fn bounded_loss(run: &Run) -> Option<f64> {
    match run.setup {
        Setup::Flash { policy, .. } if policy.starts_with("gdsf") => run.object_loss(),
        _ => run.worse_loss(),
    }
}

/// How far a replay is from these bounds, as the larger share of one.
fn elsewhere(run: &Run) -> Option<f64> {
    Some((combined(run)? / ELSEWHERE.0).max(bounded_loss(run)? / ELSEWHERE.1))
}

/// What is to be run after [`Plan::flash`](super::Plan::flash): the curves over θ and min-raise of each policy that as it is by
/// default misses the bounds of those whose twin hits more than half of the time, with each superblock.
pub(super) fn curves_needed(evaluation: &Evaluation) -> Vec<(usize, Setup)> {
    let plan = &evaluation.plan;
    let mut needed = Vec::new();
    for workload in evaluation.qualifying() {
        let rows = (RIPQ_POLICIES.into_iter())
            .flat_map(|policy| plan.superblocks.iter().map(move |of| (policy, *of)));
        for (policy, superblock) in rows {
            let row = evaluation.run(workload, &plan.ripq(policy, superblock));
            let row = row.filter(|run| twin_ratio(run).is_some_and(|ratio| ratio > 0.5));
            if row
                .and_then(elsewhere)
                .is_some_and(|distance| distance > 1.0 + EPSILON)
            {
                let setups = once(plan.curves(policy, superblock).map(|(_, setup)| setup));
                let new = setups
                    .into_iter()
                    .filter(|setup| evaluation.run(workload, setup).is_none());
                needed.extend(new.map(|setup| (workload, setup)));
            }
        }
    }
    needed
}

/// The point of the curves over θ and min-raise that is nearest to its bounds, where the twin hits more often; of policies other
/// than SLRU-3 where the default misses them.
pub(super) fn writes_against_hits(evaluation: &Evaluation) -> Seen {
    let plan = &evaluation.plan;
    if let Some(failed) = failed(evaluation, &standard_runs(evaluation, &RIPQ_POLICIES)) {
        return failed;
    }
    let mut seen = Vec::new();
    let (mut rows, mut met, mut holds) = (0, 0, true);
    for workload in evaluation.qualifying() {
        for superblock in &plan.superblocks {
            for policy in RIPQ_POLICIES {
                let usual = evaluation.run(workload, &plan.ripq(policy, *superblock));
                if usual.and_then(twin_ratio).is_none_or(|ratio| ratio <= 0.5) {
                    continue;
                }
                rows += 1;
                let is_met = usual
                    .and_then(elsewhere)
                    .is_some_and(|distance| distance <= 1.0 + EPSILON);
                if policy != CURVE_POLICY && is_met {
                    met += 1;
                    continue;
                }
                let points = plan.curves(policy, *superblock).filter_map(|(point, setup)| {
                    let run = evaluation.run(workload, &setup)?;
                    let said = format!(
                        "{}: {point} gives {:.3} and {:.3} points",
                        name(evaluation, run),
                        combined(run)?,
                        bounded_loss(run)?
                    );
                    Some((elsewhere(run)?, said))
                });
                // The closest speaks for the curve.
                match points.min_by(|a, b| a.0.total_cmp(&b.0)) {
                    Some((distance, said)) => {
                        holds &= distance <= 1.0 + EPSILON;
                        seen.push(said);
                    }
                    None => {
                        holds = false;
                        seen.push(format!(
                            "{}, {policy}, superblock {superblock}: no point",
                            evaluation.workloads[workload].name
                        ));
                    }
                }
            }
        }
    }
    if rows == 0 {
        return unmeasured("no trace that qualifies is hit more than half of the time");
    }
    let others = format!("of {rows} rows {met} of policies other than {CURVE_POLICY} hold by default");
    seen.insert(0, others);
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
            seen.push(format!(
                "{}: a replay failed",
                evaluation.workloads[workload].name
            ));
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
            let (true, Some(best), Some((_, left)), Some((_, right))) = (
                curve.len() == plan.alphas.len(),
                curve.iter().map(|point| point.1).max_by(f64::total_cmp),
                curve.first().copied(),
                curve.last().copied(),
            ) else {
                holds = false;
                seen.push(format!(
                    "{}, {policy}: a replay failed",
                    evaluation.workloads[workload].name
                ));
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
/// there are few objects, what does not grow with them weighs most: so larger caches are judged.
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
    let seen: Vec<_> = ["slru-3", "gdsf-3"]
        .into_iter()
        .filter_map(|policy| Some((policy, range(policy)?)))
        .collect();
    if seen.is_empty() {
        return unmeasured(
            "no cache of a trace that qualifies holds 50,000 objects: bench/ripq_replay.py, bench/ripq_scale.py",
        );
    }
    let told = seen
        .iter()
        .map(|(policy, (low, high))| format!("{policy} {low:.1} to {high:.1} B"));
    (
        format!(
            "caches of {OBJECTS_MIN} objects and more: {}",
            told.collect::<Vec<_>>().join("; ")
        ),
        Verdict::of(seen.iter().all(|(_, (_, high))| *high <= 16.0)),
    )
}

#[cfg(test)]
mod tests;
