//! What a partition counts, what it takes, and whether it agrees with itself.

use super::PageNumber;
use super::partition::{CascadeShard, DIRTY, GENERATION_PAGES, Generation, PAGE_HINT};

/// What a partition has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CascadeCounts {
    /// Mappings in tier 1.
    pub tier1_mappings: u64,
    /// Mappings in pages of tier 2, superseded and void ones that were not dropped yet included.
    pub tier2_mappings: u64,
    /// The same of tier 3.
    pub tier3_mappings: u64,
    /// DRAM of tier 1, in bytes.
    pub tier1_bytes: u64,
    /// DRAM of the filters over tier 2, in bytes.
    pub tier2_bytes: u64,
    /// DRAM of the filter over tier 3, in bytes.
    pub tier3_bytes: u64,
    /// DRAM of what names pages, in bytes.
    pub directory_bytes: u64,
    /// Lookups that tier 1 resolved: the key is mapped.
    pub tier1_hits: u64,
    /// Lookups that a page of tier 2 resolved.
    pub tier2_hits: u64,
    /// Lookups that a page of tier 3 resolved.
    pub tier3_hits: u64,
    /// Lookups that read pages in vain.
    pub false_plans: u64,
    /// Reorganisations.
    pub reorganisations: u64,
    /// Times that a whole partition was forgotten, for want of memory or because a page could not be read.
    pub forgotten: u64,
}

impl CascadeCounts {
    /// Mappings in pages of both tiers on flash.
    pub fn flash_mappings(&self) -> u64 {
        self.tier2_mappings + self.tier3_mappings
    }

    /// Lookups that a page resolved.
    pub fn flash_hits(&self) -> u64 {
        self.tier2_hits + self.tier3_hits
    }

    /// DRAM of what grows with the mappings on flash, in bytes.
    pub fn heap_bytes(&self) -> usize {
        (self.tier2_bytes + self.tier3_bytes + self.directory_bytes) as usize
    }
}

impl std::ops::AddAssign for CascadeCounts {
    fn add_assign(&mut self, other: Self) {
        self.tier1_mappings += other.tier1_mappings;
        self.tier2_mappings += other.tier2_mappings;
        self.tier3_mappings += other.tier3_mappings;
        self.tier1_bytes += other.tier1_bytes;
        self.tier2_bytes += other.tier2_bytes;
        self.tier3_bytes += other.tier3_bytes;
        self.directory_bytes += other.directory_bytes;
        self.tier1_hits += other.tier1_hits;
        self.tier2_hits += other.tier2_hits;
        self.tier3_hits += other.tier3_hits;
        self.false_plans += other.false_plans;
        self.reorganisations += other.reorganisations;
        self.forgotten += other.forgotten;
    }
}

impl CascadeShard {
    /// What is counted, and what it takes.
    pub fn counts(&self) -> CascadeCounts {
        let pages: usize = self
            .generations
            .iter()
            .map(|generation| generation.pages.capacity())
            .sum();
        let directory = pages * size_of::<PageNumber>()
            + self.wide.directory_bytes()
            + self.generations.capacity() * size_of::<Generation>();
        let narrow = || self.generations.iter().map(|generation| &generation.filter);
        CascadeCounts {
            tier1_mappings: self.tier1.len() as u64,
            tier2_mappings: narrow().map(|filter| filter.alive() as u64).sum(),
            tier3_mappings: self.wide.filter().alive() as u64,
            tier1_bytes: self.tier1.dram_bytes() as u64,
            tier2_bytes: narrow().map(|filter| filter.dram_bytes() as u64).sum(),
            tier3_bytes: self.wide.filter().dram_bytes() as u64,
            directory_bytes: (directory + size_of::<Self>()) as u64,
            ..self.counts
        }
    }

    /// DRAM held, in bytes, slack included.
    pub fn dram_bytes(&self) -> usize {
        let counts = self.counts();
        counts.tier1_bytes as usize + counts.heap_bytes()
    }

    /// Number of mappings, superseded and void ones that were not dropped yet included.
    pub fn len(&self) -> usize {
        let counts = self.counts();
        (counts.tier1_mappings + counts.flash_mappings()) as usize
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Re-derives what is counted.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        self.tier1.check_invariants();
        let mut dirty = 0;
        (self.tier1).for_each(|_, payload| dirty += usize::from(self.flags(payload) & DIRTY != 0));
        assert_eq!(dirty, self.dirty, "dirty entries are counted otherwise");
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        assert!(merged <= self.generations.len());
        for generation in &self.generations {
            assert!((1..=GENERATION_PAGES).contains(&generation.pages.len()));
            let named = generation
                .filter
                .entries()
                .all(|entry| ((entry.hint & PAGE_HINT) as usize) < generation.pages.len());
            assert!(named, "an entry is in no page");
        }
        assert!(
            self.wide.is_whole(self.options.page_entries),
            "an entry of tier 3 is in no page"
        );
    }
}
