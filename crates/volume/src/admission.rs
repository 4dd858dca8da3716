//! Admission: which chunks enter the cache device, by a rule and by a budget of bytes that it is sent.
//!
//! ```text
//! read         a chunk that is missing enters if the rule and the budget let it; else it is served, and kept in DRAM alone
//! write        the same; a chunk that is refused is void in the cache, as in write-around
//! write-back   the rule refuses nothing: absorbing writes is what the mode is for. What the budget refuses goes through, as at the dirty limit
//! ```
//! A chunk is judged before its content is known, so a duplicate may be refused, too. The judge takes it to be as long as the mean of what has
//! entered since the start, duplicates included. Until it has entered, the most that a chunk may take counts as sent; then what it took. While
//! the cache has free room a rule admits all. Reclaims move nothing while the budget is empty; dirty chunks are cleaned before a reclaim anyway.
//! Voids, marks, records of cleaned chunks and checkpoints are never held back.

use crate::{Backing, Settings, Shared, Volume};
use pumice_admit::{Admission, AdmissionFigures, AdmissionOptions, Candidate, Left, Moment, Refusal, Rule};
use pumice_blocks::BudgetLevel;
use pumice_chunk::store::{BudgetOwner, Options};
use pumice_device::Device;
use pumice_memory::Buffer;
use pumice_world::mix64;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Decides what enters. There is none where nothing may be refused.
pub(crate) struct Judge {
    admission: Admission,
    /// When the volume was opened.
    begun: Moment,
    /// Chunks judged so far.
    judged: AtomicU64,
    /// Bytes of chunks that were admitted and have not entered yet.
    entering: AtomicU64,
}

/// Why a chunk is to enter.
#[derive(Clone, Copy)]
pub(crate) enum Cause {
    /// It was read.
    Read,
    /// It was written through. Before it was voided, the cache may have had an older content.
    Write { was_cached: bool },
    /// It is written back, or a client has told the cache to have it: no rule is asked, and the budget refuses it later than others.
    Command,
}

/// A chunk that was admitted. It counts as sent from now on: keep this until it has entered.
pub(crate) struct Admitted<'a>(Option<(&'a Judge, u64)>);

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some((judge, bytes)) = self.0 {
            judge.entering.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Judge {
    /// One for a cache on a device of so many bytes; `None` where everything enters.
    ///
    /// # Errors
    /// There is no memory for what the rule remembers.
    pub(crate) fn of(
        settings: &Settings,
        cache: &Options,
        capacity: u64,
        begun: Moment,
    ) -> io::Result<Option<Arc<Self>>> {
        let (rule, budget) = (settings.rule, settings.write_budget);
        let options = AdmissionOptions {
            rule,
            budget,
            flash_bytes: capacity,
            objects: match rule {
                Rule::SecondHit => cache.mappings,
                Rule::All | Rule::Random(_) => 0,
            },
            ..AdmissionOptions::default()
        };
        if !options.is_any() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            admission: Admission::standalone(options)?,
            begun,
            judged: AtomicU64::new(0),
            entering: AtomicU64::new(0),
        })))
    }

    /// Who has the write budget, if there is one.
    pub(crate) fn budget(self: &Arc<Self>) -> Option<Arc<dyn BudgetOwner>> {
        let has_budget = self.admission.has_budget();
        has_budget.then(|| Arc::clone(self) as _)
    }

    /// `sent` bytes have been sent to the device; the time if somebody has looked at a clock.
    fn look(&self, now_ns: Option<u64>, sent: u64) {
        let entering = self.entering.load(Ordering::Relaxed);
        self.admission.look(now_ns, sent + entering);
    }
}

impl BudgetOwner for Judge {
    fn resume(&self, left: BudgetLevel, unpaid: Option<u64>) {
        let BudgetLevel { bytes, at_secs } = left;
        self.admission.resume(Left { bytes, at_secs }, unpaid, self.begun);
    }

    fn left(&self, sent: u64) -> BudgetLevel {
        self.look(None, sent);
        let Left { bytes, at_secs } = self.admission.left().unwrap_or_default();
        BudgetLevel { bytes, at_secs }
    }

    fn may_keep(&self, sent: u64) -> bool {
        self.look(None, sent);
        self.admission.may_keep()
    }
}

impl<B: Buffer> Shared<B> {
    /// What was admitted and what was not; `None` where nothing is refused.
    pub fn admission(&self) -> Option<AdmissionFigures> {
        self.judge.as_ref().map(|judge| judge.admission.figures())
    }

    /// Notes that a read found a chunk on the cache device.
    pub(crate) fn note_hit(&self, chunk: u64) {
        if let Some(judge) = &self.judge {
            judge.admission.hit(mix64(chunk));
        }
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Tells the write budget, where there is one, what time it is and what was sent.
    pub(crate) fn look_at_budget(&self) {
        if let (Some(judge), Some((store, _))) = (&self.0.shared.judge, self.cache())
            && judge.admission.has_budget()
        {
            judge.look(Some(self.0.clock.monotonic_ns()), store.sent_bytes());
        }
    }

    /// Whether a chunk enters the cache device. Nothing is refused where that has failed.
    pub(crate) fn admit(&self, chunk: u64, cause: Cause) -> Result<Admitted<'_>, Refusal> {
        let (Some(judge), Some((store, _))) = (&self.0.shared.judge, self.cache()) else {
            return Ok(Admitted(None));
        };
        if store.failure().is_some() {
            return Ok(Admitted(None));
        }
        self.look_at_budget();
        let bytes = store.mean_entry_bytes();
        let is_cached = match cause {
            // A part of it.
            Cause::Read => Some(store.place(chunk).is_some()),
            Cause::Write { was_cached } => Some(was_cached),
            Cause::Command => None,
        };
        match is_cached {
            None => judge.admission.judge_by_budget(bytes)?,
            Some(is_cached) => judge.admission.judge(&Candidate {
                hash: mix64(chunk),
                bytes,
                // Chance is asked anew at each access.
                version: judge.judged.fetch_add(1, Ordering::Relaxed),
                ttl_secs: None,
                is_on_flash: is_cached,
                was_hit: false,
                is_filling: store.has_free_room(chunk..chunk + 1),
            })?,
        }
        // Many at once may be longer than the mean.
        let bytes = store.shape().piece_max() as u64;
        judge.entering.fetch_add(bytes, Ordering::Relaxed);
        Ok(Admitted(Some((&**judge, bytes))))
    }

    /// Whether what is read ahead can be kept until it is asked for: a rule may keep it off the cache device.
    pub(crate) fn can_keep_ahead(&self, chunks: std::ops::Range<u64>) -> bool {
        let has_room = || self.cache().is_some_and(|(store, _)| store.has_free_room(chunks));
        self.0.shared.judge.is_none() || self.0.shared.dram.is_on() || has_room()
    }
}
