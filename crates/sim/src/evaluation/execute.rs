//! Running a plan, so many replays at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use pumice_flash::{Geometry, LayoutOptions};

use super::bounds::curves_needed;
use super::plan::{Plan, Setup};
use super::results::{BlockPlan, Evaluation, Run, Workload};
use crate::error::SimError;
use crate::exact::{ExactOptions, replay_exact};
use crate::flash::{FlashOptions, ReplayDevice, object_bytes_max, replay_flash};
use crate::ftl::{WriteSizeRow, measure_write_size};
use crate::report::Report;
use crate::rules::{MissingSizes, OpsMode, ReplayRules, Warmup};
use crate::size::CacheSize;

/// Bytes of the smallest block.
const BLOCK_BYTES_MIN: u64 = 64 << 10;

/// One more replay is done.
#[derive(Debug, Clone)]
pub struct Step {
    /// Replays done so far.
    pub done: usize,
    /// Replays that there will be; known in full once every trace was tried, and the curves that its figures ask for.
    pub total: usize,
    /// What has just been done.
    pub what: String,
}

/// One piece of work.
enum Job {
    Replay { workload: usize, setup: Setup },
    WriteSize { write_bytes: u64, utilisation: f64 },
}

enum Outcome {
    Replay(Box<Run>),
    WriteSize(Result<WriteSizeRow, String>),
}

/// Runs `plan` on all `workloads` with `jobs` replays at a time, and calls `progress` after each.
///
/// A replay that fails is part of the outcome. A trace that RIPQ cannot be run on, for example because the device would
/// be too small, is left to the exact algorithms.
pub fn evaluate(
    workloads: Vec<Workload>,
    plan: Plan,
    jobs: usize,
    progress: &mut dyn FnMut(&Step),
) -> Evaluation {
    let probes: Vec<Job> = (0..workloads.len())
        .map(|workload| Job::Replay {
            workload,
            setup: plan.probe(),
        })
        .collect();
    // A guess until the probes say which traces flash can hold.
    let guess = workloads.len() * (plan.flash().len() + plan.exact().len());
    let mut step = Step {
        done: 0,
        total: guess,
        what: String::new(),
    };
    let twins = Twins::default();
    let mut run =
        |work: &[Job], step: &mut Step| run_all(&workloads, &plan, &twins, work, jobs, step, progress);
    let probed = run(&probes, &mut step);
    let mut rest = Vec::new();
    for outcome in &probed {
        let Outcome::Replay(probe) = outcome else { continue };
        let flash = match probe.result {
            Ok(_) => plan.flash(),
            Err(_) => Vec::new(),
        };
        let setups = flash.into_iter().chain(plan.exact());
        rest.extend(
            setups
                .filter(|setup| *setup != probe.setup)
                .map(|setup| Job::Replay {
                    workload: probe.workload,
                    setup,
                }),
        );
    }
    let sizes = &plan.write_sizes;
    for utilisation in &sizes.utilisations {
        rest.extend(sizes.write_bytes.iter().map(|write_bytes| Job::WriteSize {
            write_bytes: *write_bytes,
            utilisation: *utilisation,
        }));
    }
    step.total = probes.len() + rest.len();
    let done = run(&rest, &mut step);
    let mut runs = Vec::new();
    let mut write_sizes = Vec::new();
    for outcome in probed.into_iter().chain(done) {
        match outcome {
            Outcome::Replay(run) => runs.push(*run),
            Outcome::WriteSize(row) => write_sizes.push(row),
        }
    }
    // Stable: a trace's probe comes first, as it does in the plan.
    runs.sort_by_key(|run| run.workload);
    let mut evaluation = Evaluation {
        plan,
        workloads,
        runs,
        write_sizes,
    };
    let curves: Vec<Job> = curves_needed(&evaluation)
        .into_iter()
        .map(|(workload, setup)| Job::Replay { workload, setup })
        .collect();
    step.total += curves.len();
    let (workloads, plan) = (&evaluation.workloads, &evaluation.plan);
    let done = run_all(workloads, plan, &twins, &curves, jobs, &mut step, progress);
    evaluation
        .runs
        .extend(done.into_iter().filter_map(|outcome| match outcome {
            Outcome::Replay(run) => Some(*run),
            Outcome::WriteSize(_) => None,
        }));
    evaluation.runs.sort_by_key(|run| run.workload);
    evaluation
}

/// Runs jobs and returns their outcomes in the order of the jobs.
fn run_all(
    workloads: &[Workload],
    plan: &Plan,
    twins: &Twins,
    jobs: &[Job],
    at_once: usize,
    step: &mut Step,
    progress: &mut dyn FnMut(&Step),
) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut outcomes: Vec<(usize, Outcome)> = Vec::with_capacity(jobs.len());
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, jobs.len().max(1)) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    if send.send((at, run_job(workloads, plan, twins, job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (at, outcome) in receive {
            step.done += 1;
            step.what = describe(workloads, &jobs[at], &outcome);
            progress(step);
            outcomes.push((at, outcome));
        }
    });
    outcomes.sort_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn describe(workloads: &[Workload], job: &Job, outcome: &Outcome) -> String {
    let what = match job {
        Job::Replay { workload, setup } => format!("{}: {setup}", workloads[*workload].name),
        Job::WriteSize {
            write_bytes,
            utilisation,
        } => format!(
            "drive: writes of {} MiB at {:.0} %",
            write_bytes >> 20,
            utilisation * 100.0
        ),
    };
    let error = match outcome {
        Outcome::Replay(run) => run.result.as_ref().err(),
        Outcome::WriteSize(row) => row.as_ref().err(),
    };
    match error {
        Some(error) => format!("{what}: {error}"),
        None => what,
    }
}

fn run_job(workloads: &[Workload], plan: &Plan, twins: &Twins, job: &Job) -> Outcome {
    match job {
        Job::Replay { workload, setup } => {
            let run = replay(&workloads[*workload], *workload, plan, twins, setup);
            Outcome::Replay(Box::new(run))
        }
        Job::WriteSize {
            write_bytes,
            utilisation,
        } => Outcome::WriteSize(
            measure_write_size(&plan.write_sizes, *write_bytes, *utilisation)
                .map_err(|error| error.to_string()),
        ),
    }
}

/// Twins that were replayed: several layouts hold the same bytes, on drives that differ in nothing but their superblocks.
#[derive(Default)]
struct Twins(Mutex<HashMap<TwinOf, Result<Report, String>>>);

/// The trace by position, the policy, and the size.
type TwinOf = (usize, String, String);

impl Twins {
    fn get(&self, of: TwinOf, replay: impl FnOnce() -> Result<Report, SimError>) -> Result<Report, String> {
        let known = self.0.lock().expect("nothing panics with it").get(&of).cloned();
        known.unwrap_or_else(|| {
            let twin = replay().map_err(|error| error.to_string());
            let mut all = self.0.lock().expect("nothing panics with it");
            all.entry(of).or_insert(twin).clone()
        })
    }
}

fn replay(workload: &Workload, position: usize, plan: &Plan, twins: &Twins, setup: &Setup) -> Run {
    let rules = ReplayRules {
        ops: OpsMode::Lookup,
        missing_sizes: MissingSizes::Fixed(plan.object_bytes),
        warmup: Warmup::new(plan.warmup).unwrap_or_default(),
    };
    let exact = |policy: &str, size: &str, object_bytes_max: Option<u64>| -> Result<Report, SimError> {
        let options = ExactOptions {
            policy: policy.to_owned(),
            size: size.parse()?,
            object_bytes_max,
            rules: rules.clone(),
        };
        replay_exact(&workload.trace, &options, &mut |_| ())
    };
    let (result, policy) = match setup {
        Setup::Exact { policy, percent } => (exact(policy, &format!("{percent}%"), None), None),
        Setup::Flash { policy, .. } => (flash(workload, plan, setup, &rules), Some(*policy)),
    };
    let twin = match (&result, policy) {
        (Ok(report), Some(policy)) => report.object_bytes_resident_mean.map(|bytes| {
            let size = format!("{bytes:.0}B");
            let of = (position, policy.to_owned(), size.clone());
            // The same refusals. They follow from the flash, which is the same for all layouts of a trace.
            let object_bytes_max = geometry(report.flash_bytes).map(|geometry| object_bytes_max(&geometry));
            twins.get(of, || exact(policy, &size, object_bytes_max))
        }),
        _ => None,
    };
    Run {
        workload: position,
        setup: setup.clone(),
        blocks: match (&result, policy) {
            (Ok(report), Some(_)) => block_plan(report.flash_bytes),
            _ => None,
        },
        result: result.map_err(|error| error.to_string()),
        twin,
    }
}

fn flash(workload: &Workload, plan: &Plan, setup: &Setup, rules: &ReplayRules) -> Result<Report, SimError> {
    let Setup::Flash {
        layout,
        policy,
        alpha,
        theta,
        min_raise,
        superblock_blocks,
    } = setup
    else {
        unreachable!("exact setups are replayed otherwise");
    };
    let size: CacheSize = format!("{}%", plan.percent).parse()?;
    let options = FlashOptions {
        layout: LayoutOptions::new(*layout, Some(policy), Some(*alpha), Some(*theta))
            .and_then(|options| options.with_min_raise(Some(*min_raise)))
            .expect("plans have what there is"),
        size,
        dram_bytes: 0,
        index: pumice::IndexOptions::Full,
        block_bytes: None,
        device: ReplayDevice::Sim,
        superblock_blocks: *superblock_blocks,
        trim: false,
        throttle: None,
        rules: rules.clone(),
    };
    replay_flash(&workload.trace, &options, &mut |_| ())
}

/// What a replay makes of a device of so many bytes.
fn geometry(flash_bytes: u64) -> Option<Geometry> {
    let block_bytes = Geometry::block_bytes_for(flash_bytes, BLOCK_BYTES_MIN, 1, u64::MAX);
    Geometry::plan(flash_bytes, block_bytes).ok()
}

fn block_plan(flash_bytes: u64) -> Option<BlockPlan> {
    geometry(flash_bytes).map(
        |Geometry {
             block_bytes, blocks, ..
         }| BlockPlan { block_bytes, blocks },
    )
}
