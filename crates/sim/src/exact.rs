//! Replays under layout `exact`: a policy on an exact queue, with nothing but objects counted against the capacity.

use std::time::Instant;

use pumice_policy::{ExactPolicy, Fifo, Insertion, Lru};
use pumice_trace::{BATCH_REQUESTS, Op, Trace};

use crate::accesses::Accesses;
use crate::counts::Counts;
use crate::error::SimError;
use crate::prepare::{Prepared, ReplayProgress, prepare};
use crate::report::Report;
use crate::rules::{OpsMode, ReplayRules, Unit};
use crate::size::CacheSize;

/// Names of the policies there are for layout `exact`.
pub const EXACT_POLICIES: [&str; 2] = [Fifo::NAME, Lru::NAME];

/// What to replay under layout `exact`.
#[derive(Debug, Clone)]
pub struct ExactOptions {
    /// One of [`EXACT_POLICIES`].
    pub policy: String,
    /// The capacity.
    pub size: CacheSize,
    /// What requests mean.
    pub rules: ReplayRules,
}

/// Replays `trace` through an exact cache, empty at first. `progress` is called now and then.
///
/// An object larger than the cache is a miss and is not inserted. Every hit and miss is that of the reference
/// simulators with the same policy.
///
/// # Errors
/// [`SimError`]: an unknown policy, a size that cannot be, a trace that cannot be read.
pub fn replay_exact(
    trace: &Trace,
    options: &ExactOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    match options.policy.as_str() {
        Fifo::NAME => replay::<Fifo>(trace, options, progress),
        Lru::NAME => replay::<Lru>(trace, options, progress),
        other => Err(SimError::Policy {
            policy: other.to_owned(),
            layout: "exact",
            known: EXACT_POLICIES.join(", "),
        }),
    }
}

fn replay<P: ExactPolicy>(
    trace: &Trace,
    options: &ExactOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    let start = Instant::now();
    let Prepared {
        mut accesses,
        capacity,
        warmup,
        passes,
        ..
    } = prepare(trace, &options.rules, &options.size, progress)?;
    let mut policy = P::new(capacity);
    let mut counts = Counts::after(warmup);
    let mut report_progress = |accesses: &Accesses<'_>| {
        progress(ReplayProgress {
            pass: passes,
            passes,
            progress: accesses.progress(),
        });
    };
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    while accesses.next_batch(&mut batch)? {
        match options.rules.ops {
            OpsMode::Lookup => {
                for access in &batch {
                    counts.next_request();
                    look_up_or_insert(&mut policy, &mut counts, access.object, access.size);
                    counts.resident(policy.used());
                }
            }
            OpsMode::AsRecorded => {
                for access in &batch {
                    counts.next_request();
                    as_recorded(&mut policy, &mut counts, access.object, access.size, access.op);
                    counts.resident(policy.used());
                }
            }
        }
        report_progress(&accesses);
    }
    let elapsed = start.elapsed().as_secs_f64();
    Ok(Report {
        trace: trace.name().to_owned(),
        requests: counts.requests(),
        layout: "exact".into(),
        policy: P::NAME.into(),
        index: None,
        flash_bytes: capacity,
        dram_bytes: 0,
        object_hit_ratio: counts.object_hit_ratio(),
        byte_hit_ratio: counts.byte_hit_ratio().filter(|_| accesses.unit() == Unit::Bytes),
        objects_cached: policy.len() as u64,
        object_bytes_resident_mean: counts.bytes_resident_mean(),
        objects_rejected: counts.objects_rejected,
        bytes_inserted: u64::try_from(counts.bytes_inserted).unwrap_or(u64::MAX),
        bytes_written_host: None,
        app_write_amplification: None,
        device_write_amplification: None,
        combined_write_amplification: None,
        index_dram_bytes: None,
        index_bytes_written: None,
        flash_reads_per_hit: None,
        flash_reads_per_miss: None,
        elapsed_seconds: elapsed,
        requests_per_second: if elapsed > 0.0 {
            counts.requests_replayed as f64 / elapsed
        } else {
            0.0
        },
    })
}

#[inline]
fn look_up_or_insert<P: ExactPolicy>(policy: &mut P, counts: &mut Counts, object: u32, size: u64) {
    let hit = policy.lookup(object);
    counts.lookup(hit, size);
    if !hit {
        insert(policy, counts, object, size);
    }
}

fn as_recorded<P: ExactPolicy>(policy: &mut P, counts: &mut Counts, object: u32, size: u64, op: Op) {
    match op {
        Op::Get => {
            let resident = policy.size_of(object);
            policy.lookup(object);
            counts.lookup(resident.is_some(), resident.unwrap_or(size));
        }
        Op::Set => insert(policy, counts, object, size),
        Op::Delete => {
            policy.remove(object);
        }
    }
}

#[inline]
fn insert<P: ExactPolicy>(policy: &mut P, counts: &mut Counts, object: u32, size: u64) {
    match policy.insert(object, size) {
        Insertion::Inserted => counts.inserted(size),
        Insertion::Rejected => counts.rejected(),
    }
}
