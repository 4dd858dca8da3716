//! Which objects go to flash: the seam between a cache, which knows when an object could be written, and the rule that says whether it is
//! worth the wear.
//!
//! Source: Zhang et al., "Multi-level Hybrid Cache: Impact and Feasibility", section 3.2 (*LRU_f*: only a fraction f of the updates is
//! written). What is refused stays in DRAM as long as that has room for it. A rule knows hashes, sizes and times, not keys, blocks or tiers.
//! While more blocks of flash are free than reclaims keep free, each admits all: what is written then takes nothing's place. That is so of a
//! new cache until it is full, and after what empties blocks: a `flush_all`, a checkpoint that gives back the blocks of the one before.
//!
//! The size that a limit looks at is that of the object with header and key; of one that is stored in slices it is that of the value. Under index
//! `cascade` a key whose mapping is not in DRAM counts as new. A `touch` of an object on flash is no new object: it is written again unless the
//! budget is empty.
//!
//! # `second-hit`
//!
//! A ghost has a fingerprint of 13 bits for each of the keys that missed on flash, or were set, last: nine tenths of as many as flash holds objects.
//! It has how often they came, too, up to 7. Four new keys in a thousand are taken for known ones (`mistaken_ppm`). The number of objects follows
//! from the mean length of those that came new in about the last half of a turn of the flash. Where that is a sixteenth less than before, or a
//! quarter more, the ghost is made anew, and has forgotten all keys. It takes at most 2 bytes for each object that flash holds (0.5 GB for 1 TiB of
//! 4 KiB, 5.8 GB of 300 bytes), and no more than a seventh of the pool with index `full`, a quarter with `cascade`: where that is not enough it
//! remembers fewer keys. The head of `second_hit.rs` says when `random:F` takes over. The rule cannot
//!
//! - tell a set that nobody waits for from one that follows a miss: both count as accesses;
//! - admit at the first miss what will be hot: a new hot object costs one more miss;
//! - notice keys that come twice further apart than nine tenths of a flash's worth of other misses (it then writes and hits nearly nothing), or
//!   among so many that come often that `random` would gain less than 1 %;
//! - remember over a restart: what is evicted after a restart comes back at its second miss only;
//! - count exactly what `random` would have: where keys come a third time after the ghost has forgotten them, it falls back more often than it should.
//!
//! # The budget over restarts
//!
//! Each checkpoint says on flash what is saved or overdrawn, and what stop and start write is paid for.
//!
//! - After a clean stop the next start goes on with it, and with what has flowed in since: a full bucket admits at once, an empty one earns nothing.
//! - After a crash nothing is saved, since nobody knows what was spent. Owed is what was overdrawn at the last checkpoint, less what has flowed in
//!   since, and with the invalidations in the log after it and one checkpoint that may have been under way. Not known, and forgiven, are pages of
//!   mappings written after the checkpoint and what the last blocks lacked when they were sealed.
//! - The time between two runs is that of the wall clock. Where it went back, nothing has flowed in until it has caught up. A jump ahead pays what was
//!   owed, up to the budget of a period, and saves a full bucket at most: 4.2 % of the budget.
//! - Another budget begins with what the former had left, at most what it can save itself. A new cache, and a start after one without a budget, begin
//!   with nothing saved and nothing owed.
//!
//! Some bytes are charged late, and come on top of the budget of a period: what a block lacks when it is sealed, the survivors of a block that a
//! reclaim has begun, a checkpoint, and what was in buffers when the period began. Invalidations, superblocks, pages of mappings and checkpoints are
//! never held back. No more is owed than the budget of one period.
//!
//! # Chunks of volumes
//!
//! A chunk is judged before its content is known: a duplicate is refused, too, although it would take 48 bytes. Each is taken to be as long as the mean
//! of what has entered since the start. The ghost takes at most 2 bytes for each chunk that the cache holds. For `second-hit` a write in write-back
//! is no access, and neither is what NBD's CACHE brings in. While nothing is saved, reclaims move no content: what is clean is dropped, and what is
//! dirty is cleaned first.
#![forbid(unsafe_code)]

mod budget;
mod figures;
mod ghost;
mod rule;
mod second_hit;

pub use budget::{BadBudget, Left, Moment, SmallBudget, WriteBudget};
pub use figures::AdmissionFigures;
pub use rule::{BadRule, Rule};

use budget::Bucket;
use figures::Cells;
use ghost::Ghost;
use pumice_memory::PagePool;
use pumice_world::mix64;
use second_hit::SecondHit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The smallest object that is reckoned with, and the most of them.
const OBJECT_BYTES_MIN: u64 = 64;
const OBJECTS_MAX: u64 = 1 << 32;

/// Why an object does not go to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The rule is against it.
    Rule,
    /// The budget of bytes has nothing left for it.
    Budget,
    /// It is too large.
    Size,
    /// It expires too soon.
    Expiry,
}

/// An object that could be written to flash.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Hash of its key.
    pub hash: u64,
    /// Bytes that it takes on flash.
    pub bytes: u64,
    /// Its version: asked twice about one set, a random rule answers the same.
    pub version: u64,
    /// Seconds until it expires; `None`: never.
    pub ttl_secs: Option<u32>,
    /// Whether flash holds an older copy of it.
    pub is_on_flash: bool,
    /// Whether it was asked for while DRAM had it, or comes back soon after it left.
    pub was_hit: bool,
    /// Whether more blocks of flash are free than reclaims keep free: of a new cache until it is full, and again after what empties blocks, such
    /// as a `flush_all`, or a checkpoint that gives back those of the one before.
    pub is_filling: bool,
}

/// The settings of an [`Admission`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdmissionOptions {
    /// The rule.
    pub rule: Rule,
    /// Bytes of objects that flash can hold.
    pub flash_bytes: u64,
    /// Objects that flash can hold, or for which there is memory, at most. How many flash holds follows from those that come.
    pub objects: u64,
    /// The largest object that is admitted; 0: all are.
    pub object_bytes_max: u64,
    /// Objects that expire sooner are not admitted; 0: all are.
    pub ttl_secs_min: u32,
    /// Bytes that may be sent to the device, if there is a bound.
    pub budget: Option<WriteBudget>,
}

impl AdmissionOptions {
    /// Whether anything may ever be refused.
    pub fn is_any(&self) -> bool {
        let has_limit = self.object_bytes_max != 0 || self.ttl_secs_min != 0;
        self.rule != Rule::All || has_limit || self.budget.is_some()
    }
}

/// Says of each object whether it goes to flash. All threads share one.
pub struct Admission {
    options: AdmissionOptions,
    second_hit: Option<SecondHit>,
    bucket: Option<Bucket>,
    counts: Cells,
}

impl Admission {
    /// One that knows of nothing yet. `second-hit` takes pages of `pool` as keys come, while more than `spare_pages` are free.
    pub fn new(options: AdmissionOptions, pool: &Arc<PagePool>, spare_pages: usize) -> Self {
        let second_hit = || {
            let pool = Arc::clone(pool);
            SecondHit::new(options.flash_bytes, objects(&options), pool, spare_pages)
        };
        Self {
            second_hit: (options.rule == Rule::SecondHit).then(second_hit),
            bucket: options.budget.map(Bucket::new),
            options,
            counts: Cells::default(),
        }
    }

    /// One with a pool of its own, which has enough.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn standalone(options: AdmissionOptions) -> std::io::Result<Self> {
        let pool = PagePool::standalone(Ghost::pool_bytes(objects(&options)))?;
        Ok(Self::new(options, &pool, 0))
    }

    /// Whether `candidate` goes to flash.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(&self, candidate: &Candidate) -> Result<(), Refusal> {
        self.count(self.judgement(candidate), candidate.bytes)
    }

    /// Whether so many bytes go to flash of which no rule is asked, and that nobody remembers: the budget alone may be against it.
    ///
    /// # Errors
    /// It is.
    pub fn judge_by_budget(&self, bytes: u64) -> Result<(), Refusal> {
        let judged = self
            .bucket
            .as_ref()
            .map(|bucket| bucket.judge(Ok(()), true, bytes));
        self.count(judged.unwrap_or(Ok(())), bytes)
    }

    fn count(&self, judged: Result<(), Refusal>, bytes: u64) -> Result<(), Refusal> {
        let counts = &self.counts;
        let count = match judged {
            Ok(()) => &counts.admitted_objects,
            Err(Refusal::Rule) => &counts.refused_by_rule_objects,
            Err(Refusal::Budget) => &counts.refused_by_budget_objects,
            Err(Refusal::Size) => &counts.refused_size_objects,
            Err(Refusal::Expiry) => &counts.refused_expiry_objects,
        };
        count.fetch_add(1, Relaxed);
        counts.asked_bytes.fetch_add(bytes, Relaxed);
        judged
    }

    fn judgement(&self, candidate: &Candidate) -> Result<(), Refusal> {
        let size_max = self.options.object_bytes_max;
        if size_max != 0 && candidate.bytes > size_max {
            return Err(Refusal::Size);
        }
        if candidate
            .ttl_secs
            .is_some_and(|secs| secs < self.options.ttl_secs_min)
        {
            return Err(Refusal::Expiry);
        }
        let is_admitted = match (self.options.rule, &self.second_hit) {
            (_, Some(rule)) => rule.judge(candidate),
            (Rule::Random(share), _) => candidate.is_filling || is_drawn(candidate, share),
            _ => true,
        };
        let by_rule = if is_admitted { Ok(()) } else { Err(Refusal::Rule) };
        let Some(bucket) = &self.bucket else {
            return by_rule;
        };
        let is_second_hit = by_rule.is_ok() && !candidate.is_filling && self.is_by_second_hits();
        let is_known = candidate.is_on_flash || candidate.was_hit || is_second_hit;
        bucket.judge(by_rule, is_known, candidate.bytes)
    }

    /// Whether second hits alone go in.
    fn is_by_second_hits(&self) -> bool {
        let rule = self.second_hit.as_ref();
        rule.is_some_and(|rule| rule.random_share().is_none())
    }

    /// Whether there is a budget, so that [`Admission::look`] is to be called before each question.
    pub fn has_budget(&self) -> bool {
        self.bucket.is_some()
    }

    /// So many bytes have been sent to the device since the start, those included that are on their way, and it is `now_ns`, on a clock that
    /// never goes back; `None` where nobody has looked at it.
    pub fn look(&self, now_ns: Option<u64>, sent: u64) {
        if let Some(bucket) = &self.bucket {
            bucket.look(now_ns, sent);
        }
    }

    /// A run begins at `now`, with what the last one left of its budget ([`Admission::left`]); it holds what can be saved at most. `unpaid`: it
    /// went on after that, or ended before it said all, and may have sent so many bytes since that no budget holds back; then nothing is
    /// left, and what was overdrawn is owed. Without this call a run begins with nothing.
    pub fn resume(&self, left: Left, unpaid: Option<u64>, now: Moment) {
        if let Some(bucket) = &self.bucket {
            bucket.resume(left, unpaid, now);
        }
    }

    /// What is left of the budget, for the next run; `None` where there is none.
    pub fn left(&self) -> Option<Left> {
        self.bucket.as_ref().map(Bucket::save)
    }

    /// Whether the budget has anything left, so that what flash has may be written again.
    pub fn may_keep(&self) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.left() > 0)
    }

    /// An object was found on flash, and not in DRAM.
    pub fn hit(&self, hash: u64) {
        if let Some(rule) = &self.second_hit {
            rule.hit(hash);
        }
    }

    /// DRAM held, in bytes: of `second-hit` at most two for each object that flash holds, and 4 KiB.
    pub fn dram_bytes(&self) -> usize {
        self.second_hit.as_ref().map_or(0, SecondHit::bytes)
    }

    /// What was judged so far, and how the rule stands.
    pub fn figures(&self) -> AdmissionFigures {
        let mut figures = self.counts.snapshot();
        figures.dram_bytes = self.dram_bytes() as u64;
        figures.budget_left_bytes = self.bucket.as_ref().map_or(0, Bucket::left);
        if let Some(rule) = &self.second_hit {
            figures.fallbacks = rule.fallbacks();
            figures.random_ppm = rule.random_share().map_or(0, |share| (share * 1e6).ceil() as u64);
            figures.mistaken_ppm = ghost::MISTAKEN_PPM;
        }
        figures
    }
}

/// How many objects to reckon with, whatever the settings say.
fn objects(options: &AdmissionOptions) -> usize {
    let most = (options.flash_bytes / OBJECT_BYTES_MIN).min(OBJECTS_MAX);
    usize::try_from(options.objects.min(most)).unwrap_or(usize::MAX)
}

/// Whether chance, which answers the same for the same set of the same key, takes a `share`.
fn is_drawn(candidate: &Candidate, share: f64) -> bool {
    let drawn = mix64(candidate.hash ^ mix64(candidate.version));
    // The upper 53 bits are a number from 0 to below 1.
    ((drawn >> 11) as f64) < share * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn standalone(options: AdmissionOptions) -> Admission {
        Admission::standalone(options).expect("there is memory")
    }

    pub(crate) fn candidate(hash: u64) -> Candidate {
        Candidate {
            hash,
            bytes: 4096,
            version: hash,
            ttl_secs: None,
            is_on_flash: false,
            was_hit: false,
            is_filling: false,
        }
    }

    #[test]
    fn chance_takes_its_share_and_answers_the_same_twice() {
        let share = |rule| {
            let admission = standalone(AdmissionOptions {
                rule,
                ..AdmissionOptions::default()
            });
            let taken = |hash| admission.judge(&candidate(hash)).is_ok();
            assert!((0..1000).all(|hash| taken(hash) == taken(hash)));
            (0..100_000).filter(|hash| taken(*hash)).count()
        };
        assert_eq!(share(Rule::All), 100_000);
        let quarter = share(Rule::Random(0.25));
        assert!((24_000..26_000).contains(&quarter), "{quarter}");
        assert_eq!(share(Rule::Random(1.0)), 100_000);
    }

    #[test]
    fn chance_admits_all_while_flash_fills() {
        let admission = standalone(AdmissionOptions {
            rule: Rule::Random(0.25),
            ..AdmissionOptions::default()
        });
        let filling = |hash| Candidate {
            is_filling: true,
            ..candidate(hash)
        };
        assert!((0..1000).all(|hash| admission.judge(&filling(hash)).is_ok()));
        assert!(!(0..1000).all(|hash| admission.judge(&candidate(hash)).is_ok()));
    }

    #[test]
    fn limits_of_size_and_expiry_hold_for_every_rule_and_are_counted() {
        for rule in [Rule::All, Rule::Random(1.0), Rule::SecondHit] {
            let admission = standalone(AdmissionOptions {
                rule,
                object_bytes_max: 4096,
                ttl_secs_min: 60,
                ..AdmissionOptions::default()
            });
            let judge = |bytes, ttl_secs| {
                admission.judge(&Candidate {
                    bytes,
                    ttl_secs,
                    is_filling: true,
                    ..candidate(1)
                })
            };
            assert_eq!(judge(4096, None), Ok(()));
            assert_eq!(judge(4096, Some(60)), Ok(()));
            assert_eq!(judge(4097, None), Err(Refusal::Size));
            assert_eq!(judge(u64::MAX, Some(0)), Err(Refusal::Size));
            assert_eq!(judge(1, Some(59)), Err(Refusal::Expiry));
            let AdmissionFigures {
                admitted_objects,
                refused_by_rule_objects,
                refused_size_objects,
                refused_expiry_objects,
                ..
            } = admission.figures();
            let refused = (
                refused_by_rule_objects,
                refused_size_objects,
                refused_expiry_objects,
            );
            assert_eq!((admitted_objects, refused), (2, (0, 2, 1)));
        }
        let unlimited = standalone(AdmissionOptions::default());
        let judge = |bytes, ttl_secs| {
            unlimited.judge(&Candidate {
                bytes,
                ttl_secs,
                ..candidate(1)
            })
        };
        assert_eq!(judge(u64::MAX, Some(0)), Ok(()));
    }

    #[test]
    fn memory_is_bounded_by_flash_whatever_is_said_of_objects() {
        let options = |objects, flash_bytes| AdmissionOptions {
            rule: Rule::SecondHit,
            objects,
            flash_bytes,
            ..AdmissionOptions::default()
        };
        assert_eq!(objects(&options(u64::MAX, u64::MAX)), 1 << 32);
        assert_eq!(objects(&options(1000, u64::MAX)), 1000);
        let dram_bytes = |options| {
            let admission = standalone(options);
            for hash in (0..100_000).map(mix64) {
                let bytes = 1;
                let _ = admission.judge(&Candidate {
                    bytes,
                    ..candidate(hash)
                });
            }
            admission.dram_bytes()
        };
        let (by_flash, most) = (dram_bytes(options(u64::MAX, 1 << 20)), 2 * (1 << 20) / 64);
        assert!((most * 3 / 4..=most + 4096).contains(&by_flash), "{by_flash}");
        let given = dram_bytes(options(10_000, 1 << 30));
        assert!((15_000..=24_096).contains(&given), "{given}");
        for (count, bytes) in [(0, 0), (0, u64::MAX), (u64::MAX, 0), (1, 1)] {
            let admission = standalone(options(count, bytes));
            for hash in (0..10_000).map(mix64) {
                let _ = admission.judge(&candidate(hash));
                admission.hit(hash);
            }
            assert!(admission.dram_bytes() <= 4096);
        }
        assert_eq!(standalone(AdmissionOptions::default()).dram_bytes(), 0);
    }
}
