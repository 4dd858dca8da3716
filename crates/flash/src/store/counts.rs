//! Running totals.

use std::sync::atomic::{AtomicU64, Ordering};

/// DRAM of a cascade index beside its partitions, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingDram {
    /// Pages of mappings until they are written.
    pub buffers: u64,
    /// What is kept of each object of a sealed block.
    pub slots: u64,
    /// Filters of what was invalidated lately.
    pub invalidated: u64,
}

impl MappingDram {
    /// All of it.
    pub fn all(&self) -> u64 {
        self.buffers + self.slots + self.invalidated
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Running totals since the store was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FlashCounts { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(super) fn snapshot(&self) -> FlashCounts {
                FlashCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Objects appended for the first time (slices counted singly).
    appended_objects,
    /// Encoded bytes of those, without padding.
    appended_bytes,
    /// Objects moved out of a victim.
    survivors,
    /// Encoded bytes of those, without padding.
    survivor_bytes,
    /// Objects of those that were not raised since they were written: of blocks that go before their turn, because most of them is dead.
    survivors_unraised,
    /// Increases that took effect: the object counts virtually in another place than before, and is to be written again.
    raises,
    /// Objects that were to be moved out of a victim and found no room: they were lost with it.
    survivors_dropped,
    /// Bytes read to move survivors, of which footers are no part.
    reclaim_read_bytes,
    /// Bytes given to the device: blocks, log, checkpoints, superblocks.
    written_bytes,
    /// Bytes of those in checkpoints.
    checkpoint_bytes,
    /// Bytes of those in pages of mappings.
    mapping_bytes,
    /// Reads of pages of mappings for lookups.
    mapping_reads,
    /// Lookups that read pages of mappings.
    mapping_rounds,
    /// Partitions of mappings that were reorganised.
    reorganisations,
    /// Bytes read to reorganise them.
    reorganisation_read_bytes,
    /// Log records appended.
    log_records,
    /// Log records that could not be stored, so that the cache would start empty after a crash.
    log_failures,
    /// Blocks written.
    sealed_blocks,
    /// Blocks that were no insertion points any more, before they were full, because their sections merged.
    merged_blocks,
    /// Blocks made free.
    reclaimed_blocks,
    /// Writes of blocks that failed.
    write_errors,
    /// Blocks given up until the next start, because their writes failed again and again.
    bad_blocks,
    /// Appends of new objects refused because no block was free, or no buffer for one.
    dropped_no_block,
    /// Reads of records from the device.
    record_reads,
    /// Reads of records from buffers.
    buffer_reads,
    /// Records that were not what was written.
    corrupt_records,
    /// Reads that the device failed.
    read_errors,
    /// Records that were another key's.
    key_mismatches,
    /// Checkpoints written.
    checkpoints,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
