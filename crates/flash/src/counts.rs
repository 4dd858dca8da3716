//! Running totals.

use std::sync::atomic::AtomicU64;

pumice_world::figures! {
    /// DRAM of a cascade index beside its partitions, in bytes.
    pub struct MappingDram;
    /// DRAM of pages of mappings until they are written.
    Gauge buffer_bytes,
    /// DRAM of what is kept of each object of a sealed block.
    Gauge slot_bytes,
    /// DRAM of filters of what was invalidated lately.
    Gauge invalidated_bytes,
}

impl MappingDram {
    /// All of it.
    pub fn all(&self) -> u64 {
        self.buffer_bytes + self.slot_bytes + self.invalidated_bytes
    }
}

pumice_world::figures! {
    /// Running totals of objects since the store was opened.
    pub struct FlashCounts;
    of pub(crate) struct Counters: AtomicU64;
    /// Objects appended for the first time (slices counted singly).
    Counter appended_objects,
    /// Encoded bytes of objects appended for the first time, without padding.
    Counter appended_bytes,
    /// Objects moved out of reclaimed blocks.
    Counter survivors,
    /// Encoded bytes of objects moved out of reclaimed blocks, without padding.
    Counter survivor_bytes,
    /// Objects moved that were not raised since they were written: of blocks that go before their turn, because most of them is dead.
    Counter survivors_unraised,
    /// Increases that took effect: the object counts virtually in another place than before, and is to be written again.
    Counter raises,
    /// Objects that were to be moved out of a reclaimed block and found no room: they were lost with it.
    Counter survivors_dropped,
    /// Bytes read to move objects out of reclaimed blocks, of which footers are no part.
    Counter reclaim_read_bytes,
    /// Bytes written in pages of mappings.
    Counter mapping_bytes,
    /// Reads of pages of mappings for lookups.
    Counter mapping_reads,
    /// Reads of pages of mappings for reclaims, which ask them for what DRAM does not know of a victim's objects.
    Counter reclaim_mapping_reads,
    /// Lookups that read pages of mappings.
    Counter mapping_rounds,
    /// Partitions of mappings that were reorganised.
    Counter reorganisations,
    /// Bytes read to reorganise partitions of mappings.
    Counter reorganisation_read_bytes,
    /// Blocks made free.
    Counter reclaimed_blocks,
    /// Flash copies dropped, because no block was free, or no buffer for one.
    Counter dropped_no_block,
    /// Reads of records from the device.
    Counter record_reads,
    /// Reads of records from buffers.
    Counter buffer_reads,
    /// Records that were not what was written.
    Counter corrupt_records,
    /// Records that were another key's.
    Counter key_mismatches,
}
