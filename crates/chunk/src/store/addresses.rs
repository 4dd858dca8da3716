//! Addresses of chunks, and the contents that they map to.

use super::regions::{Quiet, Regions};
use crate::lba::{LbaIndex, Slot};
use crate::place::Place;
use locks::{Mutex, MutexGuard};
use pumice_blocks::give_turn;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of stamps that addresses share. The addresses of one write have different ones.
const STAMPS: usize = 4096;
/// Most chunks of one write.
pub const WRITE_CHUNKS_MAX: u64 = STAMPS as u64;
/// What a write adds to its stamps when it begins, and when it ends: see [`Addresses::stamps`].
const BEGUN: u64 = (1 << 32) + 1;
const ENDED: u64 = (1 << 32) - 1;

/// A time in the course of the writes of a chunk, and of those that share its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub(super) address: u64,
    /// Changes when a write begins or ends.
    value: u32,
}

/// Marks the time at which a read of the volume began.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    pub(super) stamp: Stamp,
    /// Whether the chunk was dirty: the volume may have had older bytes, also if it is clean since.
    was_dirty: bool,
}

/// A dirty content that was read to be written to the volume.
pub struct Copied {
    pub(super) slot: Slot,
    number: u64,
}

/// What the lock of the addresses is around. Acquire it before any other lock of the store or of `blocks`. While it is held, the block of a
/// mapping is of the generation that the mapping is of: a reclaim removes mappings before it frees a block.
pub(super) struct Mapped {
    pub(super) index: LbaIndex,
    /// Of the last change.
    pub(super) version: u64,
    /// Dirty chunks that were read to be cleaned and not written since: the number of the last read.
    copies: HashMap<u64, u64>,
}

impl Mapped {
    /// The version of the next change.
    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn is_dirty(&self, address: u64) -> bool {
        self.index.get(address).is_some_and(|slot| slot.is_dirty)
    }

    /// Notes that a dirty chunk is read, to be cleaned.
    pub(super) fn copy(&mut self, slot: Slot) -> Copied {
        let number = self.next_version();
        self.copies.insert(slot.address, number);
        Copied { slot, number }
    }

    /// What was read of a chunk is not its newest content any more.
    pub(super) fn forget_copy(&mut self, address: u64) {
        self.copies.remove(&address);
    }

    /// Whether a chunk is dirty, and was not written since it was read.
    pub(super) fn is_still(&self, copied: &Copied) -> bool {
        let address = copied.slot.address;
        let is_same = self.copies.get(&address) == Some(&copied.number);
        is_same && self.index.get(address) == Some(copied.slot)
    }
}

/// The side of the addresses: which content each chunk has, which writes are under way, which regions are marked.
pub struct Addresses {
    mapped: Mutex<Mapped>,
    /// Each the value of a stamp, above the number of writes under way of the addresses that share it. A write begins under the lock.
    stamps: Box<[AtomicU64]>,
    pub(super) regions: Regions,
}

impl Addresses {
    /// Those of a volume of `chunks`, with mappings that a start has found. Changes have versions above `version`.
    pub(super) fn new(index: LbaIndex, version: u64, chunks: u64) -> Self {
        Self {
            mapped: Mutex::new(Mapped {
                index,
                version,
                copies: HashMap::new(),
            }),
            stamps: (0..STAMPS).map(|_| AtomicU64::new(0)).collect(),
            regions: Regions::new(chunks),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock()
    }

    /// The stamp now, and whether a write is under way.
    fn state(&self, address: u64) -> (Stamp, bool) {
        let state = self.stamps[address as usize % STAMPS].load(Ordering::Acquire);
        let value = (state >> 32) as u32;
        (Stamp { address, value }, state as u32 > 0)
    }

    /// A write of a chunk begins, under the lock. Nothing that was read before may enter.
    pub(super) fn begin_write(&self, mapped: &mut Mapped, address: u64) -> Stamp {
        mapped.forget_copy(address);
        let before = self.stamps[address as usize % STAMPS].fetch_add(BEGUN, Ordering::AcqRel);
        Stamp {
            address,
            value: (before.wrapping_add(BEGUN) >> 32) as u32,
        }
    }

    /// Writes of chunks end.
    pub(super) fn end_write(&self, chunks: Range<u64>) {
        for address in chunks {
            self.stamps[address as usize % STAMPS].fetch_add(ENDED, Ordering::AcqRel);
        }
    }

    /// Whether what the volume had at the time of `ticket` is the newest.
    pub(super) fn is_newest(&self, mapped: &Mapped, ticket: &Ticket) -> bool {
        let stamp = ticket.stamp;
        self.is_unchanged(stamp) && !ticket.was_dirty && !mapped.is_dirty(stamp.address)
    }

    /// Call it before a read of the store, for [`Addresses::is_unchanged`]. Cost: a load.
    pub fn stamp(&self, address: u64) -> Stamp {
        self.state(address).0
    }

    /// Whether neither the chunk nor one that shares its stamp was written since, or is being written: what the store had then is the
    /// newest. Cost: a load.
    pub fn is_unchanged(&self, stamp: Stamp) -> bool {
        self.state(stamp.address) == (stamp, false)
    }

    pub(super) fn ticket(&self, address: u64) -> Ticket {
        let mapped = self.lock();
        Ticket {
            stamp: self.stamp(address),
            was_dirty: mapped.is_dirty(address),
        }
    }

    /// Call it before a read of the volume in place of the cache: tickets of chunks that are all cached, clean, and not being written; `None` if
    /// one is not. Their mappings become the newest of their buckets, as if they were read here. The bytes that the volume gives are the newest
    /// if all tickets are [current](Addresses::is_current) afterwards.
    pub fn begin_instead(&self, chunks: Range<u64>) -> Option<Vec<Ticket>> {
        let mut mapped = self.lock();
        let ticket = |address| {
            let (stamp, is_written) = self.state(address);
            let slot = mapped.index.touch(address)?;
            (!slot.is_dirty && !is_written).then_some(Ticket {
                stamp,
                was_dirty: false,
            })
        };
        chunks.map(ticket).collect()
    }

    /// Whether the chunk was neither written nor made dirty since `ticket`: what the volume had then is the newest.
    pub fn is_current(&self, ticket: &Ticket) -> bool {
        self.is_newest(&self.lock(), ticket)
    }

    /// Makes the mapping of a chunk the newest of its bucket, as a read does, unless another thread has the lock: call it for reads that a
    /// tier above has served.
    pub fn touch(&self, address: u64) {
        if let Some(mut mapped) = self.mapped.try_lock() {
            mapped.index.touch(address);
        }
    }

    /// Marked regions without a write under way; unless `all`, only those without a write since the previous call. Flush the volume, then
    /// pass them to [`ChunkStore::clear`](super::ChunkStore::clear).
    pub fn quiet_regions(&self, all: bool) -> Quiet {
        self.regions.quiet(all)
    }

    /// Addresses of dirty chunks from `from` on, in order: the `most` lowest. Cost: a pass over the LBA-index.
    pub async fn dirty_from(&self, from: u64, most: usize) -> Vec<u64> {
        let mut lowest = BTreeSet::new();
        self.visit_dirty(|slot| {
            let is_low = lowest.len() < most || lowest.last().is_some_and(|last| slot.address < *last);
            if slot.address >= from && is_low {
                lowest.insert(slot.address);
                if lowest.len() > most {
                    lowest.pop_last();
                }
            }
            true
        })
        .await;
        lowest.into_iter().collect()
    }

    /// Addresses of dirty chunks in blocks, in order, and not many more than `most`.
    pub(super) async fn dirty_in(&self, blocks: &[u32], most: usize) -> Vec<u64> {
        let blocks: HashSet<u32> = blocks.iter().copied().collect();
        let mut found = BTreeSet::new();
        self.visit_dirty(|slot| {
            if blocks.contains(&slot.place.block) {
                found.insert(slot.address);
            }
            found.len() < most
        })
        .await;
        found.into_iter().collect()
    }

    /// Calls `show` with dirty mappings, bucket by bucket, until it returns false.
    async fn visit_dirty(&self, mut show: impl FnMut(Slot) -> bool) {
        if self.lock().index.dirty() == 0 {
            return;
        }
        let mut wants = true;
        for batch in self.batches() {
            {
                let mapped = self.lock();
                for bucket in batch {
                    mapped.index.visit_dirty(bucket, |slot| wants &= show(slot));
                }
            }
            if !wants {
                return;
            }
            give_turn().await;
        }
    }

    /// What was read is not written to the volume after all.
    pub fn forget_copies<'a>(&self, copied: impl IntoIterator<Item = &'a Copied>) {
        let mut mapped = self.lock();
        for copied in copied {
            if mapped.is_still(copied) {
                mapped.forget_copy(copied.slot.address);
            }
        }
    }

    /// All buckets, in batches for one hold of the lock each.
    pub(super) fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.lock().index.batches()
    }

    /// Removes the mappings of some buckets to places for which `is_gone` is true; returns how many.
    pub(super) fn forget_places(&self, buckets: Range<usize>, is_gone: impl Fn(Place) -> bool) -> u64 {
        let mut mapped = self.lock();
        buckets
            .map(|bucket| mapped.index.retain(bucket, |place| !is_gone(place)) as u64)
            .sum()
    }
}
