//! One shard's table of the items in DRAM.

use crate::segments::DramTier;
use pumice_index::{KeyHash, PackedTable, TableFull, TableShape};
use pumice_memory::{Buffer, PagePool};
use pumice_record::{Record, RecordParts};
use std::sync::Arc;

/// The highest hit count that S3-FIFO keeps: two bits.
pub const FREQUENCY_MAX: u64 = 3;
const FREQUENCY_BITS: u32 = 2;

/// How hashes and addresses are packed.
#[derive(Clone, Copy, Debug)]
pub struct DramShape {
    table: TableShape,
    shard_bits: u32,
    address_bits: u32,
    identity_bits: u32,
}

impl DramShape {
    /// The shape for addresses below `address_end` and 2^`shard_bits` shards, where the flash index tells the upper
    /// `identity_bits` of a hash apart. No more of it is used here, so that whoever shares a mapping on flash is found under
    /// the same tag.
    pub fn new(address_end: u64, shard_bits: u32, identity_bits: u32) -> Self {
        let address_bits = (64 - address_end.leading_zeros()).max(1);
        let payload_bits = address_bits + FREQUENCY_BITS;
        let rest_bytes = if payload_bits <= 32 { 6 } else { 7 };
        Self {
            table: TableShape::new(rest_bytes, payload_bits),
            shard_bits,
            address_bits,
            identity_bits,
        }
    }

    fn tag(&self, hash: KeyHash) -> u64 {
        let known = hash & u64::MAX << (64 - self.identity_bits);
        (known << self.shard_bits) >> (64 - self.table.tag_bits())
    }

    fn address(&self, payload: u64) -> u64 {
        payload & ((1 << self.address_bits) - 1)
    }

    fn frequency(&self, payload: u64) -> u64 {
        payload >> self.address_bits
    }

    fn pack(&self, address: u64, frequency: u64) -> u64 {
        frequency << self.address_bits | address
    }
}

/// The table; every method is called under the shard's lock.
pub struct DramShard {
    shape: DramShape,
    table: PackedTable,
}

/// An item that was found, its segment pinned.
pub struct Found<B> {
    /// The item.
    pub record: Record<B>,
    /// Where its copy on flash was, when it was written to DRAM.
    pub flash_location: u64,
    /// Its address.
    pub address: u64,
    /// Hits since it was written, at most [`FREQUENCY_MAX`].
    pub frequency: u64,
}

impl<B: Buffer> DramTier<B> {
    /// Takes in an item that was read from flash, where `flash_location` says, unless the shard has one that `is_same`; whether it did.
    pub fn promote(
        &self,
        shard: &mut DramShard,
        hash: KeyHash,
        parts: &RecordParts<'_>,
        flash_location: u64,
        is_same: impl Fn(&Record<B>) -> bool,
    ) -> bool {
        if shard.find(self, hash, is_same).is_some() {
            return false;
        }
        let queue = self.ghost.lock().queue_for(hash);
        let reserved = self.write(queue, parts, flash_location);
        reserved.is_some_and(|reserved| shard.insert(hash, reserved.address).is_ok())
    }
}

impl DramShard {
    /// An empty shard that takes its pages from `pool`.
    pub fn new(shape: DramShape, pool: Arc<PagePool>) -> Self {
        Self {
            shape,
            table: PackedTable::new(shape.table, pool),
        }
    }

    /// Finds the item under `hash` that `is` knows as the wanted one.
    pub fn find<B: Buffer>(
        &self,
        tier: &DramTier<B>,
        hash: KeyHash,
        is: impl Fn(&Record<B>) -> bool,
    ) -> Option<Found<B>> {
        let mut found = None;
        self.table.find(self.shape.tag(hash), |payload| {
            let address = self.shape.address(payload);
            let (record, flash_location) = tier.read(address);
            if !is(&record) {
                return false;
            }
            found = Some(Found {
                record,
                flash_location,
                address,
                frequency: self.shape.frequency(payload),
            });
            true
        });
        found
    }

    /// Asks for the memory that a question about `hash` will need.
    pub fn prefetch(&self, hash: KeyHash) {
        self.table.prefetch(self.shape.tag(hash));
    }

    /// Asks for the beginning of the item under `hash` that is found first.
    pub fn prefetch_item<B: Buffer>(&self, tier: &DramTier<B>, hash: KeyHash) {
        self.table.find(self.shape.tag(hash), |payload| {
            tier.prefetch(self.shape.address(payload));
            true
        });
    }

    /// Finds the item under `hash` whose flash location is `flash_location`: its address and hits.
    pub fn at_flash_location<B: Buffer>(
        &self,
        tier: &DramTier<B>,
        hash: KeyHash,
        flash_location: u64,
    ) -> Option<(u64, u64)> {
        let found = self.table.find(self.shape.tag(hash), |payload| {
            tier.read(self.shape.address(payload)).1 == flash_location
        });
        found.map(|payload| (self.shape.address(payload), self.shape.frequency(payload)))
    }

    /// Whether there is an item under `hash` whose flash location is `flash_location`.
    pub fn has_flash_location<B: Buffer>(
        &self,
        tier: &DramTier<B>,
        hash: KeyHash,
        flash_location: u64,
    ) -> bool {
        self.at_flash_location(tier, hash, flash_location).is_some()
    }

    /// Counts a hit on the item at `address`.
    pub fn hit(&mut self, hash: KeyHash, address: u64) {
        let shape = self.shape;
        self.table.update(shape.tag(hash), |payload| {
            (shape.address(payload) == address)
                .then(|| shape.pack(address, (shape.frequency(payload) + 1).min(FREQUENCY_MAX)))
        });
    }

    /// Hits of the item at `address`, or `None` where it is not mapped.
    pub fn frequency(&self, hash: KeyHash, address: u64) -> Option<u64> {
        let shape = &self.shape;
        self.table
            .find(shape.tag(hash), |payload| shape.address(payload) == address)
            .map(|p| shape.frequency(p))
    }

    /// Maps a new item.
    ///
    /// # Errors
    /// [`TableFull`] where no page is to be had.
    pub fn insert(&mut self, hash: KeyHash, address: u64) -> Result<(), TableFull> {
        self.table
            .insert(self.shape.tag(hash), self.shape.pack(address, 0))
    }

    /// Moves an item to another address, with another hit count.
    pub fn relocate(&mut self, hash: KeyHash, from: u64, to: u64, frequency: u64) -> bool {
        let shape = self.shape;
        self.table
            .update(shape.tag(hash), |payload| {
                (shape.address(payload) == from).then(|| shape.pack(to, frequency))
            })
            .is_some()
    }

    /// Removes the item at `address`.
    pub fn remove(&mut self, hash: KeyHash, address: u64) -> bool {
        let shape = self.shape;
        self.table
            .remove(shape.tag(hash), |payload| shape.address(payload) == address)
            .is_some()
    }

    /// Calls `visit` with the address of every item.
    pub fn for_each(&self, mut visit: impl FnMut(u64)) {
        self.table
            .for_each(|_, payload| visit(self.shape.address(payload)));
    }

    /// Calls `visit` with address and hits of the items of about `buckets` buckets of the table, from where `from` says: 0 to begin
    /// with, then what the call before returned, which is `None` at the end. The shard may change
    /// between two calls: an item that is there all the time is visited once.
    pub fn visit_from(&self, from: u64, buckets: usize, mut visit: impl FnMut(u64, u64)) -> Option<u64> {
        let shape = &self.shape;
        self.table.visit_from(from, buckets, |_, payload| {
            visit(shape.address(payload), shape.frequency(payload));
        })
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// DRAM held, in bytes.
    pub fn dram_bytes(&self) -> usize {
        self.table.dram_bytes()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Re-derives the table's accounting.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        self.table.check_invariants();
    }
}
