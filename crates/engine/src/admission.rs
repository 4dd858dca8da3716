//! Asking whether an object is worth its copy on flash.
//!
//! Mode `insertion` asks when an object is set, mode `eviction` when DRAM lets go of it; each once. What was refused at its set carries a
//! mark in DRAM, and is gone when it leaves DRAM. (In replays of five traces, asking again about objects that were hit in DRAM brought fewer
//! hits for each byte written.) A large object is asked about once, when it is set, for all of its slices, which go to flash as they come in
//! both modes. If the write budget is empty when a slice leaves DRAM that flash has no copy of any more, it is dropped, and the object is a miss.

use crate::admit::Admit;
use crate::cache::{Cx, Inner, Shard};
use crate::object::Meta;
use crate::part::PartId;
use pumice_admit::{Candidate, Left, Moment};
use pumice_blocks::BudgetLevel;
use pumice_device::Device;
use pumice_flash::Recovered;
use pumice_index::KeyHash;
use pumice_memory::Buffer;
use pumice_record::{RecordParts, SliceId};

/// What is known of a key before its new object comes.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    pub(crate) is_on_flash: bool,
    /// Whether it was asked for in DRAM, or is back soon after it left.
    pub(crate) was_hit: bool,
}

impl Before {
    /// With the hits of what DRAM has under the key.
    pub(crate) fn with_hits(self, shard: &Shard, hash: KeyHash, former: Option<u64>) -> Self {
        let hits = former.and_then(|address| shard.dram.frequency(hash, address));
        Self {
            was_hit: self.was_hit || hits.is_some_and(|hits| hits > 0),
            ..self
        }
    }
}

/// The record with the mark of what was refused, or without.
pub(crate) fn marked(parts: RecordParts<'_>, is_refused: bool) -> RecordParts<'_> {
    let mark = if is_refused { Meta::REFUSED } else { 0 };
    RecordParts {
        marks: parts.marks & !Meta::REFUSED | mark,
        ..parts
    }
}

impl<B: Buffer> Inner<B> {
    /// Whether a new object, which a record is, may go to flash. Called under its shard's lock.
    #[inline]
    pub(crate) fn admits<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        hash: KeyHash,
        parts: &RecordParts<'_>,
        before: impl FnOnce() -> Before,
    ) -> bool {
        let Some(admit) = &self.admit else { return true };
        self.judge(
            admit,
            cx,
            hash,
            self.object_bytes(parts),
            parts.version,
            parts.expiry,
            before(),
        )
    }

    /// Whether a large object may, all of it: the mark that its parts are to carry.
    pub(crate) fn mark_of_large<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        key: &[u8],
        bytes: u64,
        (version, expiry): (u64, u32),
    ) -> u8 {
        let Some(admit) = &self.admit else { return 0 };
        let part = PartId::object(key);
        let hash = self.hasher.hash(&part);
        let shard = self.lock(hash);
        let in_dram = shard.dram.find(&self.tier, hash, |record| part.is(record));
        let before = Before {
            is_on_flash: shard.flash.find(hash).live().is_some(),
            was_hit: in_dram.is_some_and(|found| found.frequency > 0),
        };
        match self.judge(admit, cx, hash, bytes, version, expiry, before) {
            true => 0,
            false => Meta::REFUSED,
        }
    }

    /// Whether what leaves DRAM, and has no copy on flash, may go there. Called under its shard's lock. A copy that a reclaim has dropped is
    /// written anew, as one that nobody was asked about.
    pub(crate) fn admits_leaving<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        hash: KeyHash,
        parts: &RecordParts<'_>,
        was_hit: bool,
    ) -> bool {
        if parts.marks & Meta::REFUSED != 0 {
            return false;
        }
        if self.admit.is_none() {
            return true;
        }
        if parts.slice != SliceId::Whole {
            return self.may_write_anew(cx);
        }
        self.admits(cx, hash, parts, || Before {
            is_on_flash: false,
            was_hit,
        })
    }

    /// Whether what was admitted before may be written again: unless the write budget is empty.
    pub(crate) fn may_write_anew<D: Device<Buf = B>>(&self, cx: &Cx<D>) -> bool {
        let Some(admit) = &self.admit else { return true };
        self.look_at_budget(admit, cx);
        admit.admission.may_keep()
    }

    #[expect(clippy::too_many_arguments, reason = "the object's, one by one")]
    fn judge<D: Device<Buf = B>>(
        &self,
        admit: &Admit,
        cx: &Cx<D>,
        hash: KeyHash,
        bytes: u64,
        version: u64,
        expiry: u32,
        before: Before,
    ) -> bool {
        self.look_at_budget(admit, cx);
        let judged = admit.admission.judge(&Candidate {
            hash,
            bytes,
            version,
            ttl_secs: (expiry != 0).then(|| expiry.saturating_sub(cx.now())),
            is_on_flash: before.is_on_flash,
            was_hit: before.was_hit,
            is_filling: self.store().is_filling(),
        });
        judged.is_ok()
    }

    /// The write budget goes on where the last run has left it. Called before anything is asked or checkpointed.
    pub(crate) fn resume_budget<D: Device<Buf = B>>(&self, cx: &Cx<D>, found: &Recovered) {
        let Some(admit) = &self.admit else { return };
        let BudgetLevel { bytes, at_secs } = found.budget;
        let now = Moment {
            ns: cx.clock.monotonic_ns(),
            unix_secs: cx.now(),
        };
        let left = Left { bytes, at_secs };
        admit.admission.resume(left, found.unpaid_bytes, now);
    }

    /// What the write budget has left, for the next run.
    pub(crate) fn budget_level(&self) -> Option<BudgetLevel> {
        let admission = &self.admit.as_ref()?.admission;
        admission.look(None, self.store().sent_bytes());
        let Left { bytes, at_secs } = admission.left()?;
        Some(BudgetLevel { bytes, at_secs })
    }

    /// Tells the write budget what time it is.
    pub(crate) fn tick_budget<D: Device<Buf = B>>(&self, cx: &Cx<D>) {
        if let Some(admit) = &self.admit {
            self.look_at_budget(admit, cx);
        }
    }

    fn look_at_budget<D: Device<Buf = B>>(&self, admit: &Admit, cx: &Cx<D>) {
        if admit.admission.has_budget() {
            let now = cx.clock.monotonic_ns();
            admit.admission.look(Some(now), self.store().sent_bytes());
        }
    }

    /// Whether what a reclaim keeps may be written again.
    pub(crate) fn may_keep_more(&self) -> bool {
        let Some(admit) = &self.admit else { return true };
        if admit.admission.has_budget() {
            admit.admission.look(None, self.store().sent_bytes());
        }
        admit.admission.may_keep()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Rig, VALUE, run};
    use crate::{
        Action, AdmissionOptions, CacheOptions, FlashWrite, IndexOptions, LayoutName, LayoutOptions, Meta,
        Outcome, Rule, Stats, WriteBudget,
    };
    use pumice_device::{MemMedium, Payload};
    use pumice_memory::PAGE_BYTES;
    use std::sync::Arc;

    /// Nothing gets in.
    const NONE: AdmissionOptions = AdmissionOptions {
        rule: Rule::All,
        object_bytes_max: 1,
        flash_bytes: 0,
        objects: 0,
        ttl_secs_min: 0,
        budget: None,
    };

    fn options(dram_bytes: usize, flash_write: FlashWrite, admission: AdmissionOptions) -> CacheOptions {
        CacheOptions {
            dram_bytes,
            flash_write,
            admission,
            ..CacheOptions::default()
        }
    }

    const MODES: [FlashWrite; 2] = [FlashWrite::Insertion, FlashWrite::Eviction];

    fn store(rig: &Rig, key: &[u8], len: usize) {
        let value = vec![7; len];
        let stored = (rig.cache).store(&rig.cx, key, Payload::Bytes(&value), Meta::default());
        assert!(run(&rig.executor, stored).is_ok());
    }

    #[test]
    fn what_is_refused_stays_in_dram_and_its_older_copy_on_flash_is_void() {
        let medium = Arc::new(MemMedium::new(16 << 20));
        for mode in MODES {
            let all = options(4 << 20, FlashWrite::Insertion, AdmissionOptions::default());
            let rig = Rig::open(&medium, all);
            rig.set(b"key", b"older", 0);
            store(&rig, b"large", 300_000);
            assert!(run(&rig.executor, rig.cache.close(&rig.cx)).is_ok());
            drop(rig);
            let rig = Rig::open(&medium, options(4 << 20, mode, NONE));
            rig.set(b"key", VALUE, 0);
            store(&rig, b"large", 200_000);
            for (key, len) in [(&b"key"[..], VALUE.len()), (b"large", 200_000)] {
                assert_eq!(rig.get(key).map(|value| value.len()), Some(len), "{mode:?}");
                assert!(
                    rig.locate(key)
                        .is_some_and(|located| located.flash.is_none() && located.in_dram_tier)
                );
            }
            rig.cache.check_books().unwrap();
            // Nor does a stop write it, and says so.
            let left = run(&rig.executor, rig.cache.close(&rig.cx)).unwrap();
            assert!(left.refused >= 2 && left.sum() == left.refused, "{left:?}");
            assert!(rig.cache.books().refused.0 >= 3, "{:?}", rig.cache.books());
            assert_eq!(rig.cache.stats().flash.appended_objects, 0);
            drop(rig);
            let rig = Rig::open(&medium, options(4 << 20, mode, NONE));
            assert_eq!((rig.get(b"key"), rig.get(b"large")), (None, None), "{mode:?}");
        }
    }

    /// Another expiry makes no new object of one that is on flash.
    #[test]
    fn a_touch_leaves_on_flash_what_is_there() {
        let medium = Arc::new(MemMedium::new(16 << 20));
        for mode in MODES {
            let rig = Rig::open(
                &medium,
                options(4 << 20, FlashWrite::Insertion, AdmissionOptions::default()),
            );
            rig.set(b"key", VALUE, 0);
            store(&rig, b"large", 300_000);
            assert!(run(&rig.executor, rig.cache.close(&rig.cx)).is_ok());
            drop(rig);
            let rig = Rig::open(&medium, options(4 << 20, mode, NONE));
            let meta = Meta {
                flags: 5,
                ..Meta::default()
            };
            for key in [&b"key"[..], b"large"] {
                let touch = (rig.cache).update(&rig.cx, key, |_| Action::SetMeta(meta));
                let outcome = run(&rig.executor, touch);
                assert!(matches!(outcome, Outcome::Stored { .. }), "{outcome:?}");
                let located = rig.locate(key).expect("just touched");
                assert!(located.flash.is_some(), "{mode:?}");
            }
            assert!(run(&rig.executor, rig.cache.close(&rig.cx)).is_ok());
            drop(rig);
            let rig = Rig::open(&medium, options(4 << 20, mode, NONE));
            for (key, len) in [(&b"key"[..], VALUE.len()), (b"large", 300_000)] {
                assert_eq!(rig.get(key).map(|value| value.len()), Some(len), "{mode:?}");
            }
            drop(rig);
        }
    }

    #[test]
    fn without_a_dram_tier_what_is_refused_goes_as_it_came_and_counts() {
        let rig = Rig::new(options(0, FlashWrite::Insertion, NONE));
        rig.set(b"key", VALUE, 0);
        store(&rig, b"large", 300_000);
        assert_eq!((rig.get(b"key"), rig.get(b"large")), (None, None));
        let stats = rig.cache.stats();
        assert_eq!(stats.books.refused, stats.books.offered);
        assert!(stats.books.refused.0 > 5, "slices count one by one");
        assert_eq!(
            (
                stats.admission.refused_size_objects,
                stats.admission.admitted_objects
            ),
            (2, 0)
        );
        rig.cache.check_books().unwrap();
    }

    #[test]
    fn a_random_share_goes_to_flash_whole_and_the_rest_goes_with_dram() {
        for mode in MODES {
            let half = AdmissionOptions {
                rule: Rule::Random(0.5),
                object_bytes_max: 0,
                ..NONE
            };
            let rig = Rig::new(CacheOptions {
                buffers_max: 16,
                ..options(1 << 20, mode, half)
            });
            // While flash fills, all do.
            for n in 10_000..18_000u32 {
                rig.set(&n.to_le_bytes(), &[1; 2_000], 0);
                rig.settle();
            }
            let full = rig.cache.stats().admission;
            for n in 0..2_000u32 {
                rig.set(&n.to_le_bytes(), &[1; 2_000], 0);
                rig.settle();
            }
            for n in 0..60u32 {
                store(&rig, format!("large-{n}").as_bytes(), 100_000);
                rig.settle();
            }
            let stats = rig.cache.stats();
            assert_eq!(stats.flash.dropped_no_block, 0);
            let since = stats.admission.since(&full);
            let asked = since.admitted_objects + since.refused_by_rule_objects;
            assert!(
                (1_900..=2_700).contains(&asked),
                "once for each that came to it: {asked}"
            );
            let share = since.admitted_objects as f64 / asked as f64;
            assert!((0.45..0.55).contains(&share), "{share}");
            let large = (0..60u32)
                .filter(|n| rig.get(format!("large-{n}").as_bytes()).is_some())
                .count();
            assert!((15..50).contains(&large), "{large} of 60 large ones, {mode:?}");
            rig.cache.check_books().unwrap();
        }
    }

    #[test]
    fn what_was_refused_at_its_set_is_not_asked_about_again() {
        let rig = Rig::new(options(1 << 20, FlashWrite::Insertion, NONE));
        for n in 0..20_000u32 {
            rig.set(&n.to_le_bytes(), VALUE, 0);
            assert!(rig.get(&n.to_le_bytes()).is_some());
        }
        let stats = rig.cache.stats();
        assert!(stats.books.refused.0 > 10_000, "{:?}", stats.books);
        assert_eq!(stats.admission.refused_size_objects, 20_000);
    }

    #[test]
    fn short_of_budget_known_keys_go_in_and_then_none_and_nothing_is_kept() {
        let budget = WriteBudget {
            bytes: 24 << 20,
            period_secs: 86_400,
        };
        let limited = AdmissionOptions {
            object_bytes_max: 0,
            budget: Some(budget),
            ..NONE
        };
        let rig = Rig::new(options(4 << 20, FlashWrite::Insertion, limited));
        let is_on_flash = |key: &[u8]| rig.locate(key).is_some_and(|located| located.flash.is_some());
        rig.set(b"key", VALUE, 0);
        assert!(!is_on_flash(b"key"), "a start earns nothing");
        assert!(!rig.cache.inner.may_keep_more());
        // Some 16 % of the bucket.
        rig.clock.advance_secs(580);
        rig.set(b"new", VALUE, 0);
        assert!(!is_on_flash(b"new"));
        assert!(rig.get(b"key").is_some());
        rig.set(b"key", VALUE, 0);
        assert!(is_on_flash(b"key"), "it was hit in DRAM");
        assert!(rig.cache.inner.may_keep_more());
        // All of it: what goes in is counted before it is written.
        rig.clock.advance_secs(86_400);
        let mut fits = 0u32;
        while fits < 2_000 {
            let key = fits.to_le_bytes();
            rig.set(&key, &[1; 2_000], 0);
            rig.settle();
            if !is_on_flash(&key) {
                break;
            }
            fits += 1;
        }
        assert!(
            (400..430).contains(&fits),
            "13 sixteenths of a bucket of 1 MiB: {fits}"
        );
        assert_eq!(rig.cache.stats().admission.refused_by_budget_objects, 3);
        rig.cache.check_books().unwrap();
    }

    /// What a ghost takes beside two bytes for an object: the locks of its stripes, and a page and places of tables that are used in part.
    const SLACK_BYTES: u64 = 4096;

    const SECOND_HIT: AdmissionOptions = AdmissionOptions {
        rule: Rule::SecondHit,
        object_bytes_max: 0,
        ..NONE
    };

    /// Segments of the DRAM tier and pages of index and ghost, which share `dram_bytes`.
    fn pool_bytes(rig: &Rig) -> u64 {
        let inner = &rig.cache.inner;
        inner.tier.budget_bytes() + (inner.pages.total_pages() * PAGE_BYTES) as u64
    }

    #[test]
    fn second_hit_takes_two_bytes_for_an_object_on_flash_however_large_they_are() {
        let ripq = LayoutOptions::new(LayoutName::Ripq, None, None, None).unwrap();
        for (len, layout, dram_bytes) in [
            (250, LayoutOptions::default(), 6 << 20),
            (250, ripq, 6 << 20),
            (4_000, ripq, 4 << 20),
            (65_400, ripq, 4 << 20),
            (65_400, LayoutOptions::default(), 0),
        ] {
            let options = CacheOptions {
                buffers_max: 16,
                block_bytes: Some(512 << 10),
                layout,
                ..options(dram_bytes, FlashWrite::Insertion, SECOND_HIT)
            };
            let rig = Rig::open(&Arc::new(MemMedium::new(64 << 20)), options);
            let what = format!("{len} bytes, {:?}, {dram_bytes} of DRAM", layout.layout);
            let set = |n: u64| {
                rig.set(&n.to_le_bytes(), &vec![1; len], 0);
                rig.settle();
            };
            let check = || {
                let stats = rig.cache.stats();
                let (ghost, most) = (stats.admission.dram_bytes, 2 * stats.flash_items + SLACK_BYTES);
                assert!(ghost <= most, "{what}: {ghost} of {most}");
                assert!(dram_bytes == 0 || pool_bytes(&rig) <= dram_bytes as u64, "{what}");
                assert_eq!(stats.flash.dropped_no_block, 0, "{what}");
                stats
            };
            let mut keys = 0..;
            while rig.cache.inner.store().is_filling() {
                set(keys.next().expect("no end"));
            }
            let filled = check();
            let held = filled.flash_items;
            assert_eq!(filled.admission.refused_by_rule_objects, 0, "{what}");
            // Two turns of flash of keys that come once.
            for _ in 0..16 {
                keys.by_ref().take(held as usize / 8).for_each(set);
                check();
            }
            let scanned = check();
            let scan = scanned.admission.since(&filled.admission);
            let (admitted, refused) = (scan.admitted_objects, scan.refused_by_rule_objects);
            assert!(
                admitted * 50 < refused,
                "{what}: {admitted} admitted, {refused} refused"
            );
            // Those of the last half of a turn come again, and go in.
            let now = keys.start;
            (now - held / 2..now).for_each(set);
            let again = check().admission.since(&scanned.admission);
            let admitted = again.admitted_objects;
            assert!(
                admitted * 20 > held / 2 * 19,
                "{what}: {admitted} of {}",
                held / 2
            );
            rig.cache.check_books().unwrap();
        }
    }

    /// Where DRAM is too small for the mappings of all that flash could hold.
    #[test]
    fn second_hit_leaves_the_index_its_pages_where_dram_is_short() {
        for (index, dram_bytes, share) in [
            (IndexOptions::Full, 2 << 20, 7),
            (IndexOptions::cascade(0.03), 1 << 20, 4),
        ] {
            let items = |admission| {
                let options = CacheOptions {
                    buffers_max: 16,
                    block_bytes: Some(256 << 10),
                    index,
                    ..options(dram_bytes, FlashWrite::Insertion, admission)
                };
                let rig = Rig::open(&Arc::new(MemMedium::new(64 << 20)), options);
                for n in 0..400_000u32 {
                    rig.set(&n.to_le_bytes(), &[1; 250], 0);
                    rig.settle();
                }
                assert!(pool_bytes(&rig) <= dram_bytes as u64);
                let stats = rig.cache.stats();
                rig.cache.check_books().unwrap();
                let segment = rig.cache.inner.tier.segment_bytes() as u64;
                (stats, segment)
            };
            let ((all, segment), (second, _)) = (items(AdmissionOptions::default()), items(SECOND_HIT));
            let ghost = second.admission.dram_bytes;
            assert!(ghost > 0 && ghost <= dram_bytes as u64 / share, "{ghost}");
            // What the index and the DRAM tier lose is the ghost's, but for a segment of each.
            let held = |stats: &Stats| stats.index_dram_bytes + stats.dram_segment_bytes;
            let lost = held(&all).saturating_sub(held(&second));
            assert!(lost <= ghost + 2 * segment, "{lost} bytes for a ghost of {ghost}");
            let (all, second) = (all.flash_items, second.flash_items);
            assert!(second * 4 > all * 3, "{second} of {all}");
        }
    }
}
