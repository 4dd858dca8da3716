//! Two exact LRU tiers, DRAM above flash, and what an admission rule makes of them.
//!
//! Source: Zhang et al., "Multi-level Hybrid Cache: Impact and Feasibility", section 3.2. What misses goes to DRAM, and from there to flash, if the
//! rule that serves ([`Admission`]) lets it; a hit on flash copies the object to DRAM. A copy in DRAM is evicted without being written. What is
//! refused loses the older copy that flash may have. Only objects count against the sizes, and of LRU on flash there is no such thing as
//! rewriting: `replay` runs layouts.

use pumice_admit::{Admission, AdmissionOptions, Candidate, Rule};
use pumice_policy::{ExactPolicy, Insertion, Lists};
use pumice_sim::{
    Access, CacheSize, OpsMode, Prepared, ReplayProgress, ReplayRules, SimError, Warmup, prepare,
};
use pumice_trace::{BATCH_REQUESTS, Op, Trace};
use pumice_world::mix64;
use serde::Serialize;
use std::collections::BTreeMap;

/// What to run.
#[derive(Debug, Clone)]
pub struct TiersOptions {
    /// Objects in DRAM.
    pub dram: CacheSize,
    /// Objects on flash.
    pub flash: CacheSize,
    /// What goes there.
    pub rule: Rule,
    /// The largest object that goes there; 0: all do.
    pub object_bytes_max: u64,
    /// What requests mean. The warm-up is half of them.
    pub rules: ReplayRules,
}

/// Lookups by the tier that answered, and what was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TierCounts {
    /// Lookups.
    pub lookups: u64,
    /// Those that DRAM answered.
    pub dram_hits: u64,
    /// Those that flash answered.
    pub flash_hits: u64,
    /// Objects written to flash.
    pub written_objects: u64,
    /// Their bytes, or their number, where sizes are not known.
    pub written_bytes: u64,
}

impl TierCounts {
    /// Hits / lookups; `None` without lookups.
    pub fn hit_ratio(&self) -> Option<f64> {
        let hits = self.dram_hits + self.flash_hits;
        (self.lookups > 0).then(|| hits as f64 / self.lookups as f64)
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            lookups: self.lookups - earlier.lookups,
            dram_hits: self.dram_hits - earlier.dram_hits,
            flash_hits: self.flash_hits - earlier.flash_hits,
            written_objects: self.written_objects - earlier.written_objects,
            written_bytes: self.written_bytes - earlier.written_bytes,
        }
    }
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct TiersReport {
    /// The trace.
    pub trace: String,
    /// The rule.
    pub rule: String,
    /// Bytes, or objects.
    pub unit: &'static str,
    /// Objects in DRAM, in that unit.
    pub dram: u64,
    /// Objects on flash.
    pub flash: u64,
    /// How many of the trace's objects flash holds, if they are as large as all are on average.
    pub flash_objects: u64,
    /// The DRAM that the rule takes.
    pub rule_bytes: u64,
    /// All requests.
    pub whole: TierCounts,
    /// Those of the second half.
    pub second_half: TierCounts,
    /// The figures of the rule, by name.
    pub admission: BTreeMap<&'static str, u64>,
}

/// Runs `trace` through the two tiers, empty at first. `progress` is called now and then.
///
/// # Errors
/// [`SimError`]: a size that cannot be, a trace that cannot be read twice.
pub fn replay_tiers(
    trace: &Trace,
    options: &TiersOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<TiersReport, SimError> {
    let rules = ReplayRules {
        warmup: Warmup::new(0.5).unwrap_or_default(),
        ..options.rules.clone()
    };
    let Prepared {
        mut accesses,
        capacity: flash,
        warmup,
        passes,
    } = prepare(trace, &rules, &options.flash, true, progress)?;
    let dram = options
        .dram
        .resolve(accesses.unit(), accesses.footprint(), trace.name())?;
    // All were seen in the first pass.
    let mean = accesses.footprint() as f64 / accesses.objects().max(1) as f64;
    let flash_objects = ((flash as f64 / mean.max(1.0)) as u64).min(accesses.objects());
    let mut tiers = Tiers {
        dram: Lists::lru(dram),
        flash: Lists::lru(flash),
        admission: Admission::standalone(AdmissionOptions {
            rule: options.rule,
            flash_bytes: u64::MAX,
            objects: flash_objects,
            object_bytes_max: options.object_bytes_max,
            ..AdmissionOptions::default()
        })
        .map_err(|source| SimError::DeviceIo {
            what: "reserving memory",
            source,
        })?,
        was_full: false,
        counts: TierCounts::default(),
    };
    let (mut requests, mut first_half) = (0, TierCounts::default());
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    while accesses.next_batch(&mut batch)? {
        for access in &batch {
            if requests == warmup {
                first_half = tiers.counts;
            }
            tiers.request(access, requests, rules.ops);
            requests += 1;
        }
        progress(ReplayProgress {
            pass: passes,
            passes,
            progress: accesses.progress(),
        });
    }
    let figures = tiers.admission.figures().figures();
    Ok(TiersReport {
        trace: trace.name().to_owned(),
        rule: options.rule.to_string(),
        unit: accesses.unit().name(),
        dram,
        flash,
        flash_objects,
        rule_bytes: tiers.admission.dram_bytes() as u64,
        whole: tiers.counts,
        second_half: tiers.counts.since(&first_half),
        admission: figures
            .iter()
            .map(|figure| (figure.name, figure.value as u64))
            .collect(),
    })
}

/// The two tiers.
struct Tiers {
    dram: Lists,
    flash: Lists,
    admission: Admission,
    /// Whether flash had no room for an object once.
    was_full: bool,
    counts: TierCounts,
}

impl Tiers {
    #[inline]
    fn request(&mut self, access: &Access, time: u64, ops: OpsMode) {
        match access.op {
            Op::Delete => {
                self.dram.remove(access.object);
                self.flash.remove(access.object);
            }
            Op::Set if ops != OpsMode::Lookup => self.insert(access, time),
            _ => {
                if !self.look_up(access) && access.fills {
                    self.insert(access, time);
                }
            }
        }
    }

    #[inline]
    fn look_up(&mut self, access: &Access) -> bool {
        self.counts.lookups += 1;
        if self.dram.lookup(access.object) {
            self.counts.dram_hits += 1;
            return true;
        }
        let Some(size) = self.flash.size_of(access.object) else {
            return false;
        };
        self.counts.flash_hits += 1;
        self.admission.hit(mix64(access.key));
        self.flash.lookup(access.object);
        self.dram.insert(access.object, size);
        true
    }

    fn insert(&mut self, access: &Access, time: u64) {
        let (object, size) = (access.object, access.size);
        self.dram.insert(object, size);
        self.was_full |= self.flash.capacity() - self.flash.used() < size;
        let candidate = Candidate {
            hash: mix64(access.key),
            bytes: size,
            version: time,
            ttl_secs: None,
            is_on_flash: self.flash.size_of(object).is_some(),
            was_hit: false,
            is_filling: !self.was_full,
        };
        if self.admission.judge(&candidate).is_err() {
            self.flash.remove(object);
        } else if self.flash.insert(object, size) == Insertion::Inserted {
            self.counts.written_objects += 1;
            self.counts.written_bytes += size;
        }
    }
}
