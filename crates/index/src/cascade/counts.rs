//! What a partition counts, what it takes, and whether it agrees with itself.

use super::flash_tiers::Generation;
use super::partition::CascadeShard;

pumice_world::figures! {
    /// What a partition has counted, and what it takes.
    pub struct CascadeCounts;
    /// Mappings in DRAM.
    Gauge tier1_mappings,
    /// Mappings in pages of tier 2, superseded and void ones that were not dropped yet included.
    Gauge tier2_mappings,
    /// Mappings in pages of tier 3, superseded and void ones that were not dropped yet included.
    Gauge tier3_mappings,
    /// DRAM of the mappings in DRAM.
    Gauge tier1_bytes,
    /// DRAM of the filters over tier 2.
    Gauge tier2_bytes,
    /// DRAM of the filter over tier 3.
    Gauge tier3_bytes,
    /// DRAM of what names pages of mappings.
    Gauge directory_bytes,
    /// Lookups that tier 1 resolved: the key is mapped.
    Counter tier1_hits,
    /// Lookups that a page of tier 2 resolved.
    Counter tier2_hits,
    /// Lookups that a page of tier 3 resolved.
    Counter tier3_hits,
    /// Lookups that read pages in vain.
    Counter false_plans,
    /// Reorganisations.
    Counter reorganisations,
    /// Times that a whole partition was forgotten, for want of memory or because a page could not be read.
    Counter forgotten,
}

impl CascadeCounts {
    /// Mappings in pages of both tiers on flash.
    pub fn flash_mappings(&self) -> u64 {
        self.tier2_mappings + self.tier3_mappings
    }

    /// DRAM of what grows with the mappings on flash, in bytes.
    pub fn heap_bytes(&self) -> usize {
        (self.tier2_bytes + self.tier3_bytes + self.directory_bytes) as usize
    }
}

impl CascadeShard {
    /// What is counted, and what it takes.
    pub fn counts(&self) -> CascadeCounts {
        let narrow = || self.flash.generations().iter().map(Generation::filter);
        let wide = self.flash.wide().filter();
        CascadeCounts {
            tier1_mappings: self.tier1.len() as u64,
            tier2_mappings: narrow().map(|filter| filter.alive() as u64).sum(),
            tier3_mappings: wide.alive() as u64,
            tier1_bytes: self.tier1.dram_bytes() as u64,
            tier2_bytes: narrow().map(|filter| filter.dram_bytes() as u64).sum(),
            tier3_bytes: wide.dram_bytes() as u64,
            directory_bytes: (self.flash.directory_bytes() + size_of::<Self>()) as u64,
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
        self.flash.check_invariants();
        let merged = self.merging.as_ref().map_or(0, |merging| merging.generations);
        assert!(merged <= self.flash.generations().len());
    }
}
