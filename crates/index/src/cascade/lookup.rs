//! Looking a key up: tier 1 first, then a plan of the pages that may have it, and what they say.

use super::Generation;
use super::flash_tiers::Void;
use super::partition::CascadeShard;
use super::plan::Plan;
use super::tier1::Entry;
use crate::mapping::{KeyHash, Mapping};

/// What an index knows of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key, if it is on flash at all, is there: there is one mapping per tag.
    Hit(Mapping),
    /// The key is not on flash.
    Miss,
    /// The mapping itself is on flash: these reads tell more.
    Read(Plan),
}

impl CascadeShard {
    /// Asks for the memory that a question about `hash` will need.
    pub fn prefetch(&self, hash: KeyHash) {
        self.tier1.prefetch(self.shape.tag(hash));
    }

    /// What tier 1 knows: `Err` nothing, `Ok(None)` that the key is not on flash.
    fn ask_tier1(&mut self, tag: u64) -> Result<Option<Mapping>, Unknown> {
        let known = self.tier1.ask(tag).ok_or(Unknown)?.mapping;
        self.counts.tier1_hits += u64::from(known.is_some());
        Ok(known)
    }

    /// Looks `hash` up: the mapping, a miss, or the pages that tell more.
    pub fn lookup(&mut self, hash: KeyHash) -> Lookup {
        let tag = self.shape.tag(hash);
        if let Ok(known) = self.ask_tier1(tag) {
            return known.map_or(Lookup::Miss, Lookup::Hit);
        }
        self.flash
            .plan(tag, self.epoch)
            .map_or(Lookup::Miss, Lookup::Read)
    }

    /// Says what the pages of `plan`, in its order, have for `hash`; `None` stands for a page that could not be read. A mapping
    /// that is found is known to tier 1 from then on. Where pages have come or gone meanwhile, it is looked up again.
    pub fn resolve<'a>(
        &mut self,
        hash: KeyHash,
        plan: &Plan,
        payloads: impl IntoIterator<Item = Option<&'a [u8]>>,
    ) -> Lookup {
        let tag = self.shape.tag(hash);
        if let Ok(known) = self.ask_tier1(tag) {
            return known.map_or(Lookup::Miss, Lookup::Hit);
        }
        if self.flash.plan(tag, self.epoch).as_ref() != Some(plan) {
            return self.lookup(hash);
        }
        let mut is_void = None;
        match self.read_plan(tag, plan, payloads) {
            Said::Unreadable => {
                // What it said is lost, and an older page must not speak in its place.
                self.forget_all();
                return Lookup::Miss;
            }
            Said::Mapped(mapping, at) => {
                let is_tier2 = at < usize::from(plan.tier2);
                self.counts.tier2_hits += u64::from(is_tier2);
                self.counts.tier3_hits += u64::from(!is_tier2);
                self.learn(tag, mapping);
                return Lookup::Hit(mapping);
            }
            Said::Void(void) => is_void = Some(void),
            // Whoever reclaims the block makes the filter forget it.
            Said::Ending | Said::Nothing => {}
        }
        self.counts.false_plans += 1;
        if !plan.is_cut && !self.is_blank() && self.tier1.len() < self.tier1_limit() {
            // Often the key is set next. It is known by then that nothing has to be hidden: what is void stays so.
            let _ = self.tier1.put(tag, Entry::clean(None));
            self.demote(None);
        }
        if let Some(void) = is_void {
            self.forget_in_page(tag, void);
        }
        Lookup::Miss
    }

    /// What the pages of `plan` say of `tag`. The newest that has it decides: where it is void there is nothing, since an older one
    /// was superseded.
    fn read_plan<'a>(
        &self,
        tag: u64,
        plan: &Plan,
        payloads: impl IntoIterator<Item = Option<&'a [u8]>>,
    ) -> Said {
        for (at, (number, payload)) in plan.pages().iter().zip(payloads).enumerate() {
            let Some(page) = payload.and_then(|payload| self.pages.decode(self.partition, payload)) else {
                return Said::Unreadable;
            };
            let Some((slot, entry)) = page.find(tag) else {
                continue;
            };
            let generation = entry
                .mapping
                .map(|mapping| self.space.generation_at(mapping.location));
            let is_own = entry.generation != 0
                && generation.is_some_and(|generation| {
                    self.pages.generation(generation.sequence()) == entry.generation
                });
            return match entry.mapping.filter(|_| is_own) {
                Some(_) if matches!(generation, Some(Generation::Ending(_))) => Said::Ending,
                Some(mapping) => Said::Mapped(mapping, at),
                None => Said::Void(Void {
                    page: *number,
                    beside: page.beside(slot),
                }),
            };
        }
        Said::Nothing
    }

    /// As [`CascadeShard::lookup`], but it leaves no trace.
    pub fn peek(&self, hash: KeyHash) -> Lookup {
        let tag = self.shape.tag(hash);
        if let Some(entry) = self.tier1.find(tag) {
            return entry.mapping.map_or(Lookup::Miss, Lookup::Hit);
        }
        self.flash
            .plan(tag, self.epoch)
            .map_or(Lookup::Miss, Lookup::Read)
    }

    /// Makes tier 1 know what flash says. It stays there at first, whatever else has to leave: whoever changes the object looks
    /// for it there, and would read it again and again.
    fn learn(&mut self, tag: u64, mapping: Mapping) {
        let entry = Entry::clean(Some(mapping));
        self.makes_room();
        if self.tier1.put(tag, entry).is_err() {
            self.tier1.drop_clean();
            // Where all are dirty and there is no page for one more, a change is refused.
            let _ = self.tier1.put(tag, entry);
        }
        self.demote(Some(tag));
    }
}

/// Tier 1 has no entry.
struct Unknown;

/// What pages say of a tag.
enum Said {
    /// One of them cannot be read.
    Unreadable,
    /// It is mapped to a block that is being reclaimed.
    Ending,
    /// It is mapped so, by the page at this place in the plan.
    Mapped(Mapping, usize),
    /// Its mapping is void.
    Void(Void),
    Nothing,
}
