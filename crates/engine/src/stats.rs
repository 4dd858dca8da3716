//! Figures of a running cache.

use crate::books::{BooksFault, BooksSnapshot};
use crate::cache::{LockedShard, ObjectCache, ROUNDS};
use pumice_admit::AdmissionFigures;
use pumice_blocks::BlockCounts;
use pumice_device::Device;
use pumice_flash::{FlashCounts, MappingDram};
use pumice_index::Mapping;
use pumice_index::cascade::CascadeCounts;
use std::sync::atomic::Ordering;

/// Figures at one moment. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The books.
    pub books: BooksSnapshot,
    /// Entries that are there, counted now from the tables: one in DRAM and on flash counts once.
    pub resident_entries: u64,
    /// Their bytes, from the books.
    pub resident_bytes: u64,
    /// Entries that had expired when their place was wanted: nobody asked for them since.
    pub expired_unasked: u64,
    /// Items in DRAM.
    pub dram_items: u64,
    /// Mappings of the flash index.
    pub flash_items: u64,
    /// Answers of admission; zeros where everything is let in.
    pub admission: AdmissionFigures,
    /// What the store counts of objects.
    pub flash: FlashCounts,
    /// What it counts of blocks.
    pub blocks: BlockCounts,
    /// DRAM of the flash index, slack included.
    pub index_dram_bytes: u64,
    /// Of a cascade index, summed over its partitions.
    pub cascade: CascadeCounts,
    /// DRAM of a cascade index beside its partitions.
    pub mapping_dram: MappingDram,
    /// Lookups that went to flash, by the reads of each that had to wait for each other; the last are of that many and more.
    pub rounds: [u64; ROUNDS],
    /// Flash of the blocks that hold mappings.
    pub mapping_flash_bytes: u64,
    /// DRAM of the DRAM tier's table.
    pub dram_table_bytes: u64,
    /// DRAM of the tier's segments that it may use.
    pub dram_segment_bytes: u64,
    /// DRAM of the tier's segments that hold items.
    pub dram_used_bytes: u64,
    /// DRAM of the ghost queue.
    pub ghost_bytes: u64,
    /// DRAM of block buffers.
    pub block_buffer_bytes: u64,
    /// Bytes of the flash device.
    pub flash_capacity_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that are sealed.
    pub blocks_sealed: u64,
    /// Blocks that are sealed and hold what layout `clock` has kept.
    pub blocks_kept: u64,
    /// Blocks that are buffers.
    pub blocks_open: u64,
    /// Blocks that hold checkpoints.
    pub blocks_checkpoint: u64,
    /// Whether the flash device was taken out.
    pub flash_out: bool,
    /// Whether the next start will know of that.
    pub flash_out_remembered: bool,
    /// Seconds for which the oldest object that was to go to flash has been in a block buffer alone, where a crash loses it, and with
    /// durability `power` a power cut; up to one too many.
    pub unwritten_secs: u32,
    /// Log records in use.
    pub log_used: u64,
    /// Log records that fit.
    pub log_slots: u64,
}

/// Reads from the device for lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceReads {
    /// Reads of records.
    pub records: u64,
    /// Reads of pages of mappings.
    pub mappings: u64,
    /// Lookups that read such pages, all that one wants at once.
    pub mapping_rounds: u64,
}

impl DeviceReads {
    /// All reads.
    pub fn all(&self) -> u64 {
        self.records + self.mappings
    }

    /// Reads that had to wait for each other. Each slice of a large object counts, although four are read at once.
    pub fn rounds(&self) -> u64 {
        self.records + self.mapping_rounds
    }
}

impl<D: Device> ObjectCache<D> {
    /// Reads all figures. Cost: takes each shard's lock in turn, for some nanoseconds.
    pub fn stats(&self) -> Stats {
        let inner = &*self.inner;
        let mut stats = Stats {
            books: inner.books.snapshot(),
            ..Stats::default()
        };
        for shard in &inner.shards {
            let mut shard = shard.0.lock();
            if let Some(cascade) = shard.flash.cascade() {
                stats.cascade += cascade.counts();
            }
            stats.dram_items += shard.dram.len() as u64;
            let index = shard.flash.size();
            stats.flash_items += index.mappings as u64;
            stats.index_dram_bytes += index.dram_bytes as u64;
            stats.dram_table_bytes += shard.dram.dram_bytes() as u64;
        }
        let store = inner.store();
        stats.mapping_flash_bytes = store.mapping_pages().map_or(0, |pages| pages.flash_bytes());
        let history_bytes = |shard: &LockedShard| Some(shard.0.lock().flash.cascade()?.history_bytes());
        let history_bytes = inner.shards.first().and_then(history_bytes);
        stats.mapping_dram = store.mapping_dram_bytes(history_bytes.unwrap_or(0) as u64);
        stats.index_dram_bytes += store.order.dram_bytes() + stats.mapping_dram.all();
        (stats.resident_entries, stats.resident_bytes) = stats.books.resident();
        stats.expired_unasked = inner.expired_unasked.load(Ordering::Relaxed);
        stats.admission = self.admission();
        stats.flash = store.counts();
        stats.blocks = store.totals.snapshot();
        stats.dram_segment_bytes = inner.tier.budget_bytes();
        stats.dram_used_bytes = inner.tier.used_bytes();
        stats.ghost_bytes = inner.tier.ghost_bytes();
        stats.block_buffer_bytes = store.buffer_bytes();
        stats.flash_capacity_bytes = store.geometry.capacity;
        stats.block_bytes = store.geometry.block_bytes;
        let (free, sealed, open, checkpoint) = store.block_usage();
        stats.blocks_free = free as u64;
        stats.blocks_sealed = sealed as u64;
        stats.blocks_kept = store.order.kept_blocks() as u64;
        stats.blocks_open = open as u64;
        stats.blocks_checkpoint = checkpoint as u64;
        stats.flash_out = store.is_out();
        stats.flash_out_remembered = store.shared.is_remembered();
        stats.unwritten_secs = store.unwritten_secs();
        (stats.log_used, stats.log_slots) = store.journal.log.usage();
        stats.rounds = std::array::from_fn(|at| inner.rounds[at].load(Ordering::Relaxed));
        stats
    }

    /// Answers of admission so far; cheap.
    pub fn admission(&self) -> AdmissionFigures {
        let admit = self.inner.admit.as_ref();
        admit.map_or_else(AdmissionFigures::default, |admit| admit.admission.figures())
    }

    /// Bytes sent to the device since the cache was opened; cheap.
    pub fn written_bytes(&self) -> u64 {
        self.inner.store().totals.snapshot().written_bytes
    }

    /// The books alone; cheap.
    pub fn books(&self) -> BooksSnapshot {
        self.inner.books.snapshot()
    }

    /// Reads of records and of mappings from the device so far; cheap.
    pub fn device_reads(&self) -> DeviceReads {
        let counts = self.inner.store().counts();
        DeviceReads {
            records: counts.record_reads,
            mappings: counts.mapping_reads,
            mapping_rounds: counts.mapping_rounds,
        }
    }

    /// Counts what is resident, entry by entry, and compares it with the books. Requests and background work go on meanwhile; one
    /// shard at a time is locked. Where the index does not know all that it maps nothing is compared. Cost: it visits every entry.
    ///
    /// # Errors
    /// What does not balance; or that something came or went, so that nothing can be said.
    pub fn check_books(&self) -> Result<(), BooksFault> {
        let inner = &*self.inner;
        let (mut entries, mut bytes) = (0u64, 0u64);
        let before = inner.books.snapshot();
        for shard in &inner.shards {
            let shard = shard.0.lock();
            shard.flash.check_invariants();
            shard.dram.check_invariants();
            let mut flash_locations = std::collections::HashSet::new();
            shard.flash.for_each(|Mapping { location, .. }| {
                flash_locations.insert(inner.flash_location(location));
                entries += 1;
                bytes += u64::from(location.len);
            });
            shard.dram.for_each(|address| {
                let (record, flash_location) = inner.tier.read(address);
                if !flash_locations.contains(&flash_location) {
                    entries += 1;
                    bytes += inner.store().padded_len(&record.parts());
                }
            });
        }
        // Who comes or goes is in the books before the shard's lock is free again, and lines only rise: the same books before and
        // after mean that none did between.
        let books = inner.books.snapshot();
        if !inner.store().is_authoritative() || books.resident() == (entries, bytes) {
            return Ok(());
        }
        if books != before {
            return Err(BooksFault::Moved);
        }
        Err(BooksFault::Unbalanced(format!(
            "resident: {entries} entries of {bytes} bytes; books: {:?} from {books:?}",
            books.resident()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheOptions;
    use crate::testing::Rig;

    #[test]
    fn books_that_say_less_or_more_than_there_is_are_wrong() {
        let rig = Rig::new(CacheOptions::default());
        rig.set(b"key", b"value", 0);
        assert_eq!(rig.cache.check_books(), Ok(()));
        let (inner, wrong) = (&rig.cache.inner, || {
            matches!(rig.cache.check_books(), Err(BooksFault::Unbalanced(_)))
        });
        inner.books.offered.add(16);
        assert!(wrong());
        inner.books.evicted.add(16);
        assert!(!wrong());
        inner.books.evicted.add(16);
        assert!(wrong());
    }
}
