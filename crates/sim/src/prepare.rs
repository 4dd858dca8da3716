//! What comes before any replay: opening the trace, and a first pass over it where a figure about the whole is needed.

use pumice_trace::{Progress, Trace};

use crate::accesses::Accesses;
use crate::error::SimError;
use crate::rules::ReplayRules;
use crate::size::CacheSize;

/// How far a replay has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// The current pass over the trace, from 1.
    pub pass: u32,
    /// How many there will be.
    pub passes: u32,
    /// How far the pass has come.
    pub progress: Progress,
}

/// A replay about to begin.
pub struct Prepared<'a> {
    /// The accesses, at the start of the trace.
    pub accesses: Accesses<'a>,
    /// The cache size in the replay's unit; not 0.
    pub capacity: u64,
    /// Accesses before figures are counted.
    pub warmup: u64,
    /// The number of passes in all.
    pub passes: u32,
}

/// Opens `trace` and resolves `size` and the warm-up, with a first pass over the trace if either needs it. `objects`: the
/// replay tells objects apart by their numbers.
///
/// # Errors
/// Those of reading the trace; [`SimError::ReadOnce`] for a pipe that needs two passes; those of
/// [`CacheSize::resolve`].
pub fn prepare<'a>(
    trace: &'a Trace,
    rules: &'a ReplayRules,
    size: &CacheSize,
    objects: bool,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Prepared<'a>, SimError> {
    let mut accesses = Accesses::open(trace, rules)?;
    accesses.tell_objects_apart(objects || size.needs_footprint());
    let reason = if size.needs_footprint() {
        "a size in percent"
    } else if !rules.warmup.is_none() {
        "a warm-up"
    } else {
        let capacity = size.resolve(accesses.unit(), 0, trace.name())?;
        return Ok(Prepared {
            accesses,
            capacity,
            warmup: 0,
            passes: 1,
        });
    };
    if !trace.is_rereadable() {
        return Err(SimError::ReadOnce {
            trace: trace.name().to_owned(),
            reason,
        });
    }
    let survey = accesses.survey(&mut |done| {
        progress(ReplayProgress {
            pass: 1,
            passes: 2,
            progress: done,
        })
    })?;
    let capacity = size.resolve(accesses.unit(), survey.footprint, trace.name())?;
    let warmup = rules.warmup.of(survey.accesses);
    Ok(Prepared {
        accesses,
        capacity,
        warmup,
        passes: 2,
    })
}
