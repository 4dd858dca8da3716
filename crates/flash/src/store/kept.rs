//! Copies that a crash may find for as long as what has replaced them is not on the device: of a head that was replaced there is
//! then the older, and not nothing.
//!
//! Such a copy is dead as others are, but it is struck from no footer, and the record that voids it is logged when the block of the newer
//! copy is written as far as that. Until then a start finds the newest of both that was written, and a checkpoint has the older. What dies before
//! its block is written and has such a copy behind it is logged at once, although it is a buffer still: that voids the older, too. So of
//! two that are replaced one after the other nothing is kept.

use super::FlashStore;
use crate::log::LogKind;
use crate::objects::OpenBlock;
use crate::{IndexShard, Mappings};
use locks::Mutex;
use pumice_blocks::State;
use pumice_device::Device;
use pumice_index::{KeyHash, Known, Location, Mapping};
use pumice_memory::Buffer;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What replaced a copy that is kept, and is not written yet.
#[derive(Clone, Copy)]
struct Replacing {
    hash: KeyHash,
    version: u64,
    location: Location,
    /// What it replaced, and in which generation of its block.
    old: Mapping,
    old_sequence: u64,
}

#[derive(Default)]
struct Both {
    /// By the offset of the newer copy on the device: one for each head in a block buffer, at most.
    new: BTreeMap<u64, Replacing>,
    /// Offsets of the older copies, and sequences of their blocks.
    old: HashSet<(u64, u64)>,
}

/// Copies that are kept. Its lock comes after those of shards, and no other is taken under it.
#[derive(Default)]
pub(crate) struct KeptCopies {
    both: Mutex<Both>,
    /// How many: where there is none, nobody takes the lock.
    count: AtomicUsize,
}

impl KeptCopies {
    fn change<T>(&self, change: impl FnOnce(&mut Both) -> T) -> T {
        let mut both = self.both.lock();
        let changed = change(&mut both);
        self.count.store(both.new.len(), Ordering::Release);
        changed
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// What is at a location dies, or is written: what it replaced is kept no longer. Whether it had replaced anything.
    pub(crate) fn take(&self, location: Location) -> bool {
        !self.is_empty() && self.change(|both| both.take(location)).is_some()
    }

    pub(crate) fn clear(&self) {
        self.change(|both| *both = Both::default());
    }
}

impl Both {
    fn take(&mut self, location: Location) -> Option<Replacing> {
        let replacing = self.new.remove(&location.offset)?;
        (self.old).remove(&(replacing.old.location.offset, replacing.old_sequence));
        Some(replacing)
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Whether a copy may be kept: it is on the device, and behind it no other is. Called under its shard's lock.
    pub fn may_be_kept(&self, location: Location) -> bool {
        let has_older = !self.kept.is_empty() && self.kept.both.lock().new.contains_key(&location.offset);
        !has_older && self.is_written(location)
    }

    /// Keeps the copy of `old`, which [may be](FlashStore::may_be_kept), until the one at `location`, which has just replaced it, is on the device. Called under the shard's lock
    /// under which that was appended and mapped; nobody has logged that `old` is void.
    pub fn keep_until_written(&self, hash: KeyHash, version: u64, location: Location, old: Mapping) {
        let old_sequence = self.order.sequence_at(old.location);
        self.kept.change(|both| {
            both.old.insert((old.location.offset, old_sequence));
            both.new.insert(
                location.offset,
                Replacing {
                    hash,
                    version,
                    location,
                    old,
                    old_sequence,
                },
            );
        });
    }

    /// Whether a dead copy is kept. Called under its shard's lock.
    pub(crate) fn is_kept(&self, location: Location) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        let place = (location.offset, self.order.sequence_at(location));
        self.kept.both.lock().old.contains(&place)
    }

    /// So many bytes of a block from its start are on the device, or none of them will be: what was kept for them is void.
    pub(crate) fn end_kept<D: Device, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        block: &OpenBlock<B>,
        end: usize,
    ) {
        if self.kept.is_empty() {
            return;
        }
        let range = block.device_offset..block.device_offset + end as u64;
        let both = self.kept.both.lock();
        let due: Vec<Replacing> = both.new.range(range).map(|(_, replacing)| *replacing).collect();
        drop(both);
        for Replacing {
            hash,
            version,
            location,
            ..
        } in due
        {
            mappings.with(hash, |shard| {
                if self.kept.take(location) && shard.known(hash, location) != Known::Dead {
                    self.append_log(device, LogKind::Invalidate, hash, version);
                }
            });
        }
    }

    /// Dumps a shard for a checkpoint, with the copies that are kept in the place of those that are not written. Called under its lock.
    pub(crate) fn dump_with_kept<M: Mappings>(
        &self,
        mappings: &M,
        number: usize,
        shard: &mut IndexShard,
        out: &mut Vec<u8>,
    ) {
        let mut replaced = Vec::new();
        // In a cascade another mapping may push one to flash: a checkpoint of it has the newer copy alone.
        if let IndexShard::Full(shard) = shard
            && !self.kept.is_empty()
        {
            for replacing in self.kept.both.lock().new.values() {
                let Replacing {
                    hash, location, old, ..
                } = *replacing;
                let info = self.order.ground().info(old.location);
                let is_written = info.state() == State::Sealed
                    && self.order.sequence_at(old.location) == replacing.old_sequence;
                if is_written
                    && mappings.shard_of(hash) == number
                    && let Some(new) = shard.live(hash, location)
                    && shard.set(hash, old).is_ok()
                {
                    replaced.push((hash, new));
                }
            }
        }
        shard.dump(out);
        for (hash, new) in replaced {
            shard.set(hash, new).expect("it takes the place of another");
        }
    }
}
