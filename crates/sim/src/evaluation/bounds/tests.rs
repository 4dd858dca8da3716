use super::super::results::{BlockPlan, Workload};
use super::*;
use crate::evaluation::Plan;
use pumice_trace::{Trace, TraceOptions};

/// A thousand requests, with no figure that anything here looks at.
fn report() -> Report {
    serde_json::from_str(
        r#"{"trace":"t","requests":1000,"layout":"fifo","policy":"fifo","index":"full","flash_bytes":1,"dram_bytes":0,
        "object_hit_ratio":null,"byte_hit_ratio":null,"objects_cached":2,"object_bytes_resident_mean":null,
        "objects_rejected":0,"bytes_inserted":4,"bytes_written_host":null,"app_write_amplification":null,
        "device_write_amplification":null,"combined_write_amplification":null,"index_dram_bytes":null,
        "index_bytes_written":null,"flash_reads_per_hit":null,"flash_reads_per_miss":null,"elapsed_seconds":1.0,
        "requests_per_second":5.0,"flash_rounds_per_hit":null,"cascade":null,
        "device_reads":null,"device_read_bytes":null,"device_writes":null,"device_written_bytes":null}"#,
    )
    .unwrap()
}

/// A replay that hits and writes so much, and a twin that hits so many points more, of objects and bytes.
fn run_of(setup: Setup, hits: f64, losses: (f64, f64), amplification: f64) -> Run {
    let hit = |objects, bytes| Report {
        object_hit_ratio: Some(objects),
        byte_hit_ratio: Some(bytes),
        bytes_inserted: 9,
        combined_write_amplification: Some(amplification),
        ..report()
    };
    Run {
        workload: 0,
        setup,
        blocks: Some(BlockPlan {
            block_bytes: 64 << 10,
            blocks: 600,
        }),
        result: Ok(hit(hits, hits)),
        twin: Some(Ok(hit(hits + losses.0 / 100.0, hits + losses.1 / 100.0))),
    }
}

#[test]
fn who_misses_the_bounds_by_default_needs_a_curve_and_it_decides() {
    let plan = Plan::full();
    let mut evaluation = Evaluation {
        workloads: vec![Workload {
            name: "t".to_owned(),
            source: String::new(),
            trace: Trace::new("t", TraceOptions::default()).unwrap(),
        }],
        runs: vec![
            run_of(plan.ripq("slru-3", 1), 0.6, (0.1, 0.1), 1.7),
            run_of(plan.ripq("slru-3", 4), 0.6, (0.1, 0.1), 1.2),
            // Hit less than half of the time, good enough, bytes of no matter, and lower by too much.
            run_of(plan.ripq("slru-1", 1), 0.4, (0.1, 0.1), 1.7),
            run_of(plan.ripq("slru-2", 1), 0.6, (0.1, 0.6), 1.4),
            run_of(plan.ripq("gdsf-1", 1), 0.6, (0.1, 3.0), 1.3),
            run_of(plan.ripq("gdsf-2", 1), 0.6, (0.7, 0.1), 1.1),
            // Good enough with a superblock of one block alone.
            run_of(plan.ripq("slru-2", 4), 0.6, (0.1, 0.1), 1.7),
        ],
        write_sizes: Vec::new(),
        plan: plan.clone(),
    };
    let needed = curves_needed(&evaluation);
    let of = |name: &str| {
        needed
            .iter()
            .filter(|(_, setup)| matches!(setup, Setup::Flash { policy, .. } if *policy == name))
            .count()
    };
    // 6 values of θ and 4 of min-raise that are not the default; of gdsf-2 it is 0.5.
    assert_eq!(
        (of("slru-3"), of("gdsf-2"), of("slru-2"), needed.len()),
        (10, 10, 10, 30),
        "{needed:?}"
    );
    assert!(needed.iter().all(|(_, setup)| matches!(
        setup,
        Setup::Flash { superblock_blocks, policy, .. } if (*superblock_blocks == 4) == (*policy == "slru-2")
    )));

    let holds = |evaluation: &Evaluation| writes_against_hits(evaluation).1;
    assert_eq!(holds(&evaluation), Verdict::Fails);
    // A trace that only other policies hit more than half of the time.
    let mut others = Evaluation {
        runs: vec![
            run_of(plan.ripq("slru-3", 1), 0.4, (0.1, 0.1), 1.1),
            run_of(plan.ripq("gdsf-1", 1), 0.6, (0.1, 0.1), 1.1),
        ],
        ..evaluation.clone()
    };
    assert_eq!(
        holds(&others),
        Verdict::Holds,
        "{}",
        writes_against_hits(&others).0
    );
    others
        .runs
        .push(run_of(plan.ripq("gdsf-1", 4), 0.6, (0.1, 0.1), 3.1));
    assert_eq!(
        holds(&others),
        Verdict::Fails,
        "{}",
        writes_against_hits(&others).0
    );
    others.runs.truncate(1);
    assert_eq!(holds(&others), Verdict::NotMeasured);
    evaluation
        .runs
        .push(run_of(plan.at_theta("slru-3", 0.5, 1), 0.6, (0.6, 0.1), 1.3));
    assert_eq!(holds(&evaluation), Verdict::Fails, "gdsf-2 is 0.7 points lower");
    evaluation
        .runs
        .push(run_of(plan.at_min_raise("gdsf-2", 0.4, 1), 0.6, (0.5, 9.0), 1.4));
    assert_eq!(
        holds(&evaluation),
        Verdict::Fails,
        "slru-2 writes 1.7 times with superblocks of four"
    );
    evaluation
        .runs
        .push(run_of(plan.at_theta("slru-2", 0.5, 4), 0.6, (0.5, 0.6), 1.4));
    assert_eq!(
        holds(&evaluation),
        Verdict::Holds,
        "{}",
        writes_against_hits(&evaluation).0
    );
    evaluation
        .runs
        .push(run_of(plan.ripq("gdsf-3", 4), 0.6, (0.1, 0.1), 1.5));
    assert_eq!(holds(&evaluation), Verdict::Fails, "no curve shows it");
    evaluation.runs.pop();
    let mut broken = run_of(plan.ripq("gdsf-3", 1), 0.4, (0.1, 0.1), 1.1);
    for verdict in [Verdict::Holds, Verdict::Fails] {
        evaluation.runs.push(broken.clone());
        assert_eq!(holds(&evaluation), verdict);
        assert_eq!(
            amplification(&evaluation).0.contains("failed"),
            broken.result.is_err()
        );
        evaluation.runs.pop();
        broken.result = Err("it failed".to_owned());
    }
}

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
    let mut report = Report {
        device_reads: Some(100_000),
        device_read_bytes: Some(400_000_000),
        device_writes: Some(100),
        device_written_bytes: Some(1_000_000_000),
        ..report()
    };
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
