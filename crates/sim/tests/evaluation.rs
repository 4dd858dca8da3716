//! [`evaluate`] from end to end on a trace that qualifies.

use std::collections::BTreeSet;

use pumice_sim::{
    Evaluation, Plan, RIPQ_POLICIES, Run, Setup, Verdict, Workload, WriteSizeOptions, evaluate, summary,
};
use pumice_trace::{Trace, TraceOptions};

/// Hit more than half of the time, so that what a policy writes is judged by its curves where the default writes too much.
const OFTEN_HIT: &str = "zipf:keys=60000,theta=1.0,requests=120000,seed=7,size=15000";

fn plan() -> Plan {
    Plan {
        exact_percents: vec![10],
        superblocks: vec![1, 4],
        thetas: vec![1.0, 0.35],
        min_raises: vec![0.0, 0.6],
        sipq_thetas: Vec::new(),
        alphas: vec![1.0 / 16.0],
        write_sizes: WriteSizeOptions {
            write_bytes: Vec::new(),
            ..Plan::quick().write_sizes
        },
        ..Plan::quick()
    }
}

fn policy_of(run: &Run) -> Option<(&'static str, u32)> {
    match run.setup {
        Setup::Flash {
            policy,
            superblock_blocks,
            ..
        } => Some((policy, superblock_blocks)),
        Setup::Exact { .. } => None,
    }
}

/// Whether a policy with what it has by default writes more than 1.40 times, or is more than 0.6 points below its twin.
fn misses_by_default(evaluation: &Evaluation, policy: &'static str, superblock: u32) -> bool {
    let run = evaluation
        .run(0, &evaluation.plan.ripq(policy, superblock))
        .expect("each policy is replayed with what it has by default");
    assert!(
        run.twin_report().unwrap().object_hit_ratio.unwrap() > 0.5,
        "{policy}"
    );
    let points = if policy.starts_with("gdsf") {
        run.object_loss().unwrap()
    } else {
        run.worse_loss().unwrap()
    };
    run.report().unwrap().combined_write_amplification.unwrap() > 1.40 || points > 0.6
}

#[test]
fn the_curves_of_a_policy_are_run_where_its_default_misses() {
    let workloads = vec![Workload {
        name: "often-hit".to_owned(),
        source: OFTEN_HIT.to_owned(),
        trace: Trace::new(OFTEN_HIT, TraceOptions::default()).unwrap(),
    }];
    let mut steps = Vec::new();
    let evaluation = evaluate(workloads, plan(), 2, &mut |step| steps.push(step.clone()));
    assert_eq!(evaluation.qualifying(), [0], "{:?}", evaluation.qualification(0));
    for run in &evaluation.runs {
        assert!(run.report().is_some(), "{}: {:?}", run.setup, run.result);
    }

    let rows = RIPQ_POLICIES
        .into_iter()
        .flat_map(|policy| [(policy, 1), (policy, 4)]);
    let missing: BTreeSet<(&str, u32)> = rows
        .filter(|(policy, superblock)| misses_by_default(&evaluation, policy, *superblock))
        .collect();
    let others = |superblock| (missing.iter()).filter(move |row| row.0 != "slru-3" && row.1 == superblock);
    assert!(
        others(1).count() > 0 && others(4).count() > 0 && missing.len() < 2 * RIPQ_POLICIES.len(),
        "{missing:?}"
    );
    let plan = &evaluation.plan;
    for policy in RIPQ_POLICIES {
        for superblock in [1, 4] {
            let points: Vec<Setup> = plan.curves(policy, superblock).map(|(_, setup)| setup).collect();
            let of_policy = evaluation
                .runs
                .iter()
                .filter(|run| policy_of(run) == Some((policy, superblock)));
            let expected: BTreeSet<String> = if policy == "slru-3" || missing.contains(&(policy, superblock))
            {
                points
                    .iter()
                    .chain([&plan.ripq(policy, superblock)])
                    .map(Setup::to_string)
                    .collect()
            } else {
                BTreeSet::from([plan.ripq(policy, superblock).to_string()])
            };
            let run: Vec<String> = of_policy.map(|run| run.setup.to_string()).collect();
            assert_eq!(
                run.len(),
                expected.len(),
                "{policy}, superblock {superblock}: {run:?}"
            );
            assert_eq!(
                BTreeSet::from_iter(run),
                expected,
                "{policy}, superblock {superblock}"
            );
        }
    }

    // The first pass alone knew nothing of the curves.
    let last = steps.last().unwrap();
    assert_eq!((last.done, last.total), (steps.len(), evaluation.runs.len()));
    let totals: BTreeSet<usize> = steps.iter().map(|step| step.total).collect();
    assert!(totals.len() >= 2, "{totals:?}");

    // The row tells the best point of each, and how many rows need none.
    let rows = summary(&evaluation);
    let row = rows.iter().find(|row| row.what.starts_with("elsewhere")).unwrap();
    let lines: Vec<&str> = row.seen.split("; ").collect();
    let by_default = (RIPQ_POLICIES.into_iter().filter(|policy| *policy != "slru-3"))
        .flat_map(|policy| [(policy, 1), (policy, 4)])
        .filter(|row| !missing.contains(row));
    assert_eq!(
        lines[0],
        format!(
            "of 12 rows {} of policies other than slru-3 hold by default",
            by_default.count()
        )
    );
    let told = missing.iter().chain(&[("slru-3", 1), ("slru-3", 4)]);
    let told = BTreeSet::from_iter(told);
    for (policy, superblock) in &told {
        let setup = format!("{policy}, superblock {superblock}: ");
        assert!(
            (lines.iter()).any(|line| line.contains(&setup) && line.contains(" gives ")),
            "{setup}{}",
            row.seen
        );
    }
    assert_eq!(lines.len(), 1 + told.len(), "{}", row.seen);
    assert_ne!(row.verdict, Verdict::NotMeasured);
}

#[test]
fn a_twin_refuses_what_its_layout_does() {
    // Few keys, of which the largest are above half of the flash, but below all of it.
    let source = "zipf:keys=80,theta=0.5,requests=3000,seed=3,size=1000-1000000";
    let workloads = vec![Workload {
        name: "large".to_owned(),
        source: source.to_owned(),
        trace: Trace::new(source, TraceOptions::default()).unwrap(),
    }];
    let plan = Plan {
        percent: 3,
        exact_percents: Vec::new(),
        superblocks: vec![1],
        thetas: vec![1.0],
        min_raises: vec![0.0],
        ..plan()
    };
    let evaluation = evaluate(workloads, plan, 2, &mut |_| ());
    let mut compared = 0;
    for run in &evaluation.runs {
        let (Some(report), Some(twin)) = (run.report(), run.twin_report()) else {
            continue;
        };
        assert!(report.objects_rejected > 100, "{}: {report:?}", run.setup);
        assert_eq!(report.objects_rejected, twin.objects_rejected, "{}", run.setup);
        compared += 1;
    }
    assert!(compared >= RIPQ_POLICIES.len(), "{compared}");
}
