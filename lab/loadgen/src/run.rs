//! Puts a run together: connections, threads, phases, and what is read while it goes.

use crate::barrier::Barrier;
use crate::cpu;
use crate::engine::{self, Feed, Finished, Pace, Phase, Progress, Shared, Worker, WorkerOptions};
use crate::error::LoadError;
use crate::keys::{Distinct, KeySource};
use crate::keytext::KeyText;
use crate::options::Options;
use crate::report::{Measured, Report, report};
use crate::schedule::Schedule;
use crate::sizes::ValueSizes;
use crate::value::Values;
use crate::versions::VersionTable;
use crate::workload::{Draws, Workload};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// Requests and about how many bytes are under way per connection while keys are preloaded, at most.
const PRELOAD_DEPTH: usize = 32;
const PRELOAD_BYTES: usize = 128 << 10;
/// Keys whose versions are remembered by default: of a source that says how many it has, and of others.
const VERSION_KEYS_MAX: usize = 32 << 20;
const VERSION_KEYS_UNKNOWN: usize = 4 << 20;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Every key is set once.
    Preload,
    /// The load runs and is not measured.
    WarmUp,
    /// The load is measured.
    Measure,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// What it is doing.
    pub stage: Stage,
    /// How much of that is done, from 0 to 1.
    pub fraction: f64,
    /// Requests per second since the last time.
    pub requests_per_second: f64,
    /// Wrong answers so far.
    pub wrong: u64,
}

/// When the load begins, and is measured: nanoseconds of the run's clock.
#[derive(Clone, Copy)]
struct Plan {
    begin: u64,
    start: u64,
    stop: u64,
}

/// How long the preload took, and of how many keys it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preloaded {
    pub keys: u64,
    pub took: Duration,
}

type Outcome = Result<Finished, LoadError>;

/// Makes a run. `show` is told now and then how far it has come.
///
/// # Errors
/// [`LoadError`]: settings, keys that cannot be read, a server that is not there. Errors of single requests and
/// connections are in the report.
pub fn run(options: &Options, show: &mut dyn FnMut(Status)) -> Result<Report, LoadError> {
    options.check()?;
    let keys = KeyText::new(&options.key_prefix, options.key_size)
        .map_err(|what| LoadError::Settings(format!("--key-size, --key-prefix: {what}")))?;
    let source = KeySource::open(&options.keys, options.trace()?)?;
    let workload = Arc::new(Workload::new(
        source,
        options.mix.clone(),
        options.value_sizes()?,
        options.scan_keys,
    )?);
    if let Some(pid) = options.server_pid {
        cpu::time_of(pid).map_err(|error| LoadError::Settings(format!("--server-pid {pid}: {error}")))?;
    }
    // Connected first, since it is what fails most often.
    let mut sockets = connect(options)?;
    let preload = (options.preload || options.preload_only)
        .then(|| workload.source.distinct())
        .transpose()?;
    let preload = preload.map(Arc::new);
    let known = workload.source.count();
    let known = preload.as_ref().map(|keys| keys.count()).or(known);
    let known = known.and_then(|keys| usize::try_from(keys).ok());
    let version_keys = options
        .version_keys
        .unwrap_or_else(|| known.map_or(VERSION_KEYS_UNKNOWN, |keys| keys.min(VERSION_KEYS_MAX)));
    let shared = Arc::new(Shared {
        workload,
        keys,
        values: Values::new(stamp()),
        versions: VersionTable::new(version_keys),
        ttl: options.ttl,
    });
    let barrier = Arc::new(Barrier::new(options.threads));
    let clock = Instant::now();
    let next_preload = Arc::new(AtomicU64::new(0));
    let budget = options
        .requests
        .map(|requests| Arc::new(AtomicI64::new(i64::try_from(requests).unwrap_or(i64::MAX))));
    let mut threads = Vec::new();
    for thread in 0..options.threads {
        let count = options.connections / options.threads
            + usize::from(thread < options.connections % options.threads);
        let member = Member {
            thread,
            options: options.clone(),
            clock,
            shared: Arc::clone(&shared),
            preload: preload.clone(),
            next_preload: Arc::clone(&next_preload),
            budget: budget.clone(),
            barrier: Arc::clone(&barrier),
            progress: Arc::new(Progress::default()),
        };
        let progress = Arc::clone(&member.progress);
        let sockets = sockets.split_off(sockets.len() - count);
        threads.push((progress, thread::spawn(move || member.run(sockets))));
    }
    let mut watch = Watch {
        threads: &threads,
        last: (Instant::now(), 0),
        show,
    };
    while !barrier.wait_for_all(PROGRESS_EVERY) {
        let total = preload.as_ref().map_or(1, |keys| keys.count()).max(1);
        let taken = next_preload.load(Relaxed).min(total);
        watch.tell(Stage::Preload, taken as f64 / total as f64);
    }
    let preloaded = preload.as_ref().map(|keys| Preloaded {
        keys: keys.count(),
        took: clock.elapsed(),
    });
    let is_over = options.preload_only || threads.iter().any(|(progress, _)| progress.has_failed());
    let plan = (!is_over).then(|| {
        let begin = engine::nanoseconds(clock.elapsed() + Duration::from_millis(1));
        let start = begin + engine::nanoseconds(options.warm_up);
        let stop = options
            .duration()
            .map_or(u64::MAX, |duration| start + engine::nanoseconds(duration));
        Plan { begin, start, stop }
    });
    barrier.open(plan);
    let server = plan.map(|plan| watch.load(options, clock, plan));
    let mut finished = Vec::new();
    for (_, thread) in threads {
        finished.push(join(thread)?);
    }
    let measured = Measured {
        window: plan.map(|plan| (plan.start, plan.stop)),
        finished,
        preloaded,
        server_cpu: server.flatten(),
        key_size: shared.keys.size(),
    };
    Ok(report(options, measured))
}

fn connect(options: &Options) -> Result<Vec<OwnedFd>, LoadError> {
    let connect = |_| {
        options
            .target
            .connect(options.timeout)
            .map_err(|source| LoadError::Connect {
                target: options.target.to_string(),
                source,
            })
    };
    (0..options.connections).map(connect).collect()
}

/// A number that is higher in later runs.
pub(crate) fn stamp() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    engine::nanoseconds(since)
}

fn join(thread: JoinHandle<Outcome>) -> Outcome {
    match thread.join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a thread is given.
struct Member {
    thread: usize,
    options: Options,
    clock: Instant,
    shared: Arc<Shared>,
    preload: Option<Arc<Distinct>>,
    next_preload: Arc<AtomicU64>,
    budget: Option<Arc<AtomicI64>>,
    barrier: Arc<Barrier<Option<Plan>>>,
    progress: Arc<Progress>,
}

impl Member {
    fn run(mut self, sockets: Vec<OwnedFd>) -> Outcome {
        let options = WorkerOptions {
            clock: self.clock,
            target: self.options.target.clone(),
            timeout: self.options.timeout,
            connections: sockets.len(),
            receive_bytes: receive_bytes(&self.shared.workload.sizes),
        };
        let mut worker = Worker::new(options, Arc::clone(&self.shared), Arc::clone(&self.progress));
        let mut has_passed = false;
        let (barrier, progress) = (Arc::clone(&self.barrier), Arc::clone(&self.progress));
        let result = engine::run(&mut worker, sockets, &mut || self.next_phase(&mut has_passed));
        if result.is_err() {
            progress.fail();
        }
        if !has_passed {
            barrier.pass();
        }
        result.map(|()| worker.finish())
    }

    fn next_phase(&mut self, has_passed: &mut bool) -> Option<Phase> {
        if let Some(keys) = self.preload.take() {
            let now = engine::nanoseconds(self.clock.elapsed());
            return Some(Phase {
                feed: Feed::preload(
                    keys,
                    Arc::clone(&self.next_preload),
                    Arc::clone(&self.shared.workload),
                ),
                pace: Pace::Closed,
                depth: preload_depth(&self.shared.workload.sizes),
                begin: now,
                start: now,
                stop: u64::MAX,
                budget: None,
                needs_server: true,
            });
        }
        if std::mem::replace(has_passed, true) {
            return None;
        }
        let plan = self.barrier.pass()?;
        let options = &self.options;
        let pace = options.rate.map_or(Pace::Closed, |rate| {
            Pace::Open(Schedule::new(rate, options.poisson, self.thread, options.threads))
        });
        Some(Phase {
            feed: Feed::Draws(Draws::new(
                Arc::clone(&self.shared.workload),
                self.thread,
                options.threads,
            )),
            pace,
            depth: options.pipeline,
            begin: plan.begin,
            start: plan.start,
            stop: plan.stop,
            budget: self.budget.clone(),
            needs_server: options.duration().is_none(),
        })
    }
}

fn preload_depth(sizes: &ValueSizes) -> usize {
    match sizes {
        ValueSizes::Range(_, last) => (PRELOAD_BYTES / (*last as usize + 1)).clamp(1, PRELOAD_DEPTH),
        ValueSizes::Drawn(_) | ValueSizes::Recorded => PRELOAD_DEPTH / 4,
    }
}

/// Bytes that a receive should be able to take: a few values.
fn receive_bytes(sizes: &ValueSizes) -> usize {
    match sizes {
        ValueSizes::Range(_, last) if *last <= 2048 => 16 << 10,
        _ => 64 << 10,
    }
}

/// Watches threads from outside.
struct Watch<'a> {
    threads: &'a [(Arc<Progress>, JoinHandle<Outcome>)],
    last: (Instant, u64),
    show: &'a mut dyn FnMut(Status),
}

impl Watch<'_> {
    /// Waits for the end of the load; returns the server's CPU time in the counted stretch.
    fn load(&mut self, options: &Options, clock: Instant, plan: Plan) -> Option<Duration> {
        let read = || options.server_pid.and_then(|pid| cpu::time_of(pid).ok());
        let (mut from, mut to) = (None, None);
        let mut wake = plan.begin;
        while !self.threads.iter().all(|(_, thread)| thread.is_finished()) {
            let now = engine::nanoseconds(clock.elapsed());
            if from.is_none() && now >= plan.start {
                from = Some(read());
            }
            if to.is_none() && now >= plan.stop {
                to = Some(read());
            }
            let (stage, done) = match now.checked_sub(plan.start) {
                None => (
                    Stage::WarmUp,
                    part(now.saturating_sub(plan.begin), plan.start - plan.begin),
                ),
                Some(done) => (Stage::Measure, part(done, plan.stop - plan.start)),
            };
            self.tell(stage, done);
            wake = wake.max(now) + engine::nanoseconds(PROGRESS_EVERY);
            for mark in [plan.start, plan.stop] {
                if mark > now {
                    wake = wake.min(mark);
                }
            }
            let sleep = Duration::from_nanos(wake.saturating_sub(engine::nanoseconds(clock.elapsed())));
            // A run that ends by the number of its requests is looked at more often.
            thread::sleep(if plan.stop == u64::MAX || now >= plan.stop {
                sleep.min(Duration::from_millis(5))
            } else {
                sleep
            });
        }
        let to = to.unwrap_or_else(read);
        Some(to?.saturating_sub(from??))
    }

    fn tell(&mut self, stage: Stage, fraction: f64) {
        let sum = |count: fn(&Progress) -> &AtomicU64| {
            self.threads
                .iter()
                .map(|(progress, _)| count(progress).load(Relaxed))
                .sum::<u64>()
        };
        let answered = sum(|progress| &progress.answered);
        let since = self.last.0.elapsed();
        if since < PROGRESS_EVERY / 2 {
            return;
        }
        let rate = (answered - self.last.1) as f64 / since.as_secs_f64();
        self.last = (Instant::now(), answered);
        (self.show)(Status {
            stage,
            fraction: fraction.clamp(0.0, 1.0),
            requests_per_second: rate,
            wrong: sum(|progress| &progress.wrong),
        });
    }
}

fn part(done: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        done as f64 / whole as f64
    }
}
