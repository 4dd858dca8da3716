//! What a partition counts, what it takes, and whether it agrees with itself.

use super::PageNumber;
use super::partition::{CascadeShard, GENERATION_PAGES, Generation, PAGE_HINT};

/// What a partition has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CascadeCounts {
    /// Mappings in tier 1.
    pub tier1_mappings: u64,
    /// Mappings in pages, superseded and void ones that were not dropped yet included.
    pub flash_mappings: u64,
    /// DRAM of tier 1, in bytes.
    pub tier1_bytes: u64,
    /// DRAM of filters, in bytes.
    pub filter_bytes: u64,
    /// DRAM of what names pages, in bytes.
    pub directory_bytes: u64,
    /// Mappings that pages resolved.
    pub flash_hits: u64,
    /// Lookups that read pages in vain.
    pub false_plans: u64,
    /// Reorganisations.
    pub reorganisations: u64,
    /// Times that a whole partition was forgotten, for want of memory or because a page could not be read.
    pub forgotten: u64,
}

impl std::ops::AddAssign for CascadeCounts {
    fn add_assign(&mut self, other: Self) {
        self.tier1_mappings += other.tier1_mappings;
        self.flash_mappings += other.flash_mappings;
        self.tier1_bytes += other.tier1_bytes;
        self.filter_bytes += other.filter_bytes;
        self.directory_bytes += other.directory_bytes;
        self.flash_hits += other.flash_hits;
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
        let directory = (pages + self.wide.pages.capacity()) * size_of::<PageNumber>()
            + self.generations.capacity() * size_of::<Generation>();
        CascadeCounts {
            tier1_mappings: self.tier1.len() as u64,
            flash_mappings: self.filters().map(|filter| filter.alive() as u64).sum(),
            tier1_bytes: self.tier1.dram_bytes() as u64,
            filter_bytes: self.filters().map(|filter| filter.dram_bytes() as u64).sum(),
            directory_bytes: (directory + size_of::<Self>()) as u64,
            ..self.counts
        }
    }

    /// DRAM held, in bytes, slack included.
    pub fn dram_bytes(&self) -> usize {
        let counts = self.counts();
        (counts.tier1_bytes + counts.filter_bytes + counts.directory_bytes) as usize
    }

    /// Number of mappings, superseded and void ones that were not dropped yet included.
    pub fn len(&self) -> usize {
        let counts = self.counts();
        (counts.tier1_mappings + counts.flash_mappings) as usize
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
        assert_eq!(
            self.wide.pages.len(),
            self.wide.filter.len().div_ceil(self.options.page_entries)
        );
    }
}
