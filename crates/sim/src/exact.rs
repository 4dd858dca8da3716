//! Replays under layout `exact`: a policy on an exact queue, with nothing but objects counted against the capacity.

use std::time::Instant;

use pumice_policy::{ExactPolicy, GreedyDual, Insertion, Lists, POLICY_NAMES, Twin, policy_named};
use pumice_trace::{BATCH_REQUESTS, Op, Trace};

use crate::accesses::{Access, Accesses};
use crate::counts::Counts;
use crate::error::SimError;
use crate::prepare::{Prepared, ReplayProgress, prepare};
use crate::report::{Report, Settings};
use crate::rules::{OpsMode, ReplayRules, Unit};
use crate::size::CacheSize;
use crate::spared::Spared;

/// The baselines beside the exact twins: SLRU as so many lists, and GDSF without a cap.
const BASELINES: [&str; 9] = [
    "slru-list-1",
    "slru-list-2",
    "slru-list-3",
    "slru-list-4",
    "slru-list-5",
    "slru-list-6",
    "slru-list-7",
    "slru-list-8",
    "gdsf",
];

/// What to replay under layout `exact`.
#[derive(Debug, Clone)]
pub struct ExactOptions {
    /// One of [`POLICY_NAMES`], which run as their exact twins, or a baseline: `slru-list-1` to `slru-list-8`, or `gdsf`.
    pub policy: String,
    /// The capacity.
    pub size: CacheSize,
    /// Larger objects are refused even if there is room: a layout's limit, for its twin.
    pub object_bytes_max: Option<u64>,
    /// What requests mean.
    pub rules: ReplayRules,
}

/// Replays `trace` through an exact cache, empty at first. `progress` is called now and then.
///
/// An object larger than the cache, or than `object_bytes_max`, is a miss and is not inserted. With fifo, lru and the baselines every hit and miss is
/// that of the reference simulators.
///
/// # Errors
/// [`SimError`]: an unknown policy, a size that cannot be, a trace that cannot be read.
pub fn replay_exact(
    trace: &Trace,
    options: &ExactOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    let name = options.policy.as_str();
    match name {
        // What the twins of these do, faster.
        "fifo" => replay(trace, options, progress, Lists::fifo),
        "lru" => replay(trace, options, progress, Lists::lru),
        "gdsf" => replay(trace, options, progress, GreedyDual::new),
        _ => {
            if let Some(lists) = lists_of(name) {
                return replay(trace, options, progress, |capacity| Lists::slru(lists, capacity));
            }
            let policy = policy_named(name).ok_or_else(|| SimError::Policy {
                policy: name.to_owned(),
                layout: "exact",
                known: [&POLICY_NAMES[..], &BASELINES].concat().join(", "),
            })?;
            replay(trace, options, progress, |capacity| Twin::new(policy, capacity))
        }
    }
}

/// The number of lists of an SLRU baseline.
fn lists_of(name: &str) -> Option<u32> {
    if !BASELINES.contains(&name) {
        return None;
    }
    name.strip_prefix("slru-list-")?.parse().ok()
}

fn replay<P: ExactPolicy>(
    trace: &Trace,
    options: &ExactOptions,
    progress: &mut dyn FnMut(ReplayProgress),
    new: impl FnOnce(u64) -> P,
) -> Result<Report, SimError> {
    let start = Instant::now();
    let Prepared {
        mut accesses,
        capacity,
        warmup,
        passes,
        ..
    } = prepare(trace, &options.rules, &options.size, true, progress)?;
    let mut policy = Limited {
        policy: new(capacity),
        size_max: options.object_bytes_max.unwrap_or(u64::MAX),
    };
    let mut counts = Counts::after(warmup);
    let mut report_progress = |accesses: &Accesses<'_>| {
        progress(ReplayProgress {
            pass: passes,
            passes,
            progress: accesses.progress(),
        });
    };
    let mut spared = Spared::new(options.rules.ops);
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    while accesses.next_batch(&mut batch)? {
        match options.rules.ops {
            OpsMode::Lookup => {
                for access in &batch {
                    counts.next_request();
                    look_up_or_insert(&mut policy, &mut counts, access.object, access.size);
                    counts.resident(policy.policy.used());
                }
            }
            OpsMode::AsRecorded | OpsMode::LookAside => {
                for access in &batch {
                    counts.next_request();
                    as_recorded(&mut policy, &mut counts, &mut spared, access);
                    counts.resident(policy.policy.used());
                }
            }
        }
        report_progress(&accesses);
    }
    let elapsed = start.elapsed().as_secs_f64();
    let (in_bytes, in_objects) = match accesses.unit() {
        Unit::Bytes => (Some(()), None),
        Unit::Objects => (None, Some(())),
    };
    let inserted = u64::try_from(counts.bytes_inserted).unwrap_or(u64::MAX);
    let resident = counts.bytes_resident_mean();
    Ok(Report {
        trace: trace.name().to_owned(),
        requests: counts.requests(),
        layout: "exact".into(),
        policy: policy.policy.name(),
        unit: accesses.unit().name(),
        flash_bytes: in_bytes.map(|()| capacity),
        flash_objects: in_objects.map(|()| capacity),
        object_hit_ratio: counts.object_hit_ratio(),
        byte_hit_ratio: in_bytes.and_then(|()| counts.byte_hit_ratio()),
        objects_cached: policy.policy.len() as u64,
        object_bytes_resident_mean: in_bytes.and(resident),
        objects_resident_mean: in_objects.and(resident),
        objects_rejected: counts.objects_rejected,
        bytes_inserted: in_bytes.map(|()| inserted),
        objects_inserted: in_objects.map(|()| inserted),
        elapsed_seconds: elapsed,
        requests_per_second: counts.requests_replayed as f64 / elapsed.max(1e-9),
        settings: Settings {
            max_object_bytes: options.object_bytes_max,
            ..Settings::of(trace, &accesses, &options.rules, &options.size)
        },
        ..Report::default()
    })
}

/// A policy that refuses what is larger than this.
struct Limited<P> {
    policy: P,
    size_max: u64,
}

impl<P: ExactPolicy> Limited<P> {
    #[inline]
    fn insert(&mut self, counts: &mut Counts, object: u32, size: u64) {
        let inserted = if size <= self.size_max {
            self.policy.insert(object, size)
        } else {
            self.policy.remove(object);
            Insertion::Rejected
        };
        match inserted {
            Insertion::Inserted => counts.inserted(size),
            Insertion::Rejected => counts.rejected(),
        }
    }
}

#[inline]
fn look_up_or_insert<P: ExactPolicy>(cache: &mut Limited<P>, counts: &mut Counts, object: u32, size: u64) {
    let hit = cache.policy.lookup(object);
    counts.lookup(hit, size);
    if !hit {
        cache.insert(counts, object, size);
    }
}

fn as_recorded<P: ExactPolicy>(
    cache: &mut Limited<P>,
    counts: &mut Counts,
    spared: &mut Spared,
    access: &Access,
) {
    let (object, size) = (access.object, access.size);
    match access.op {
        Op::Get => {
            let resident = cache.policy.size_of(object);
            cache.policy.lookup(object);
            counts.lookup(resident.is_some(), resident.unwrap_or(size));
            match resident {
                Some(_) => spared.note_hit(access),
                None if access.fills => cache.insert(counts, object, size),
                None => {}
            }
        }
        Op::Set if spared.takes(access) => {}
        Op::Set => cache.insert(counts, object, size),
        Op::Delete => {
            spared.note_delete(access);
            cache.policy.remove(object);
        }
    }
}
