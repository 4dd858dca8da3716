//! Dirty chunks: the cache has their only copy.
//!
//! ```text
//! write-back 1  append the content, or replace the older one in its buffer (absorb); map the chunk, dirty
//!                                                                        (begin_write_back, WriteGuard::fill)
//! write-back 2  on a flush of a client: write all blocks out, flush      (persist)
//!
//! clean 1  list dirty chunks                                             (dirty_from, dirty_in_work)
//! clean 2  read one, see that it is durable, and write it to the volume, with its range locked
//!                                                                        (read_dirty, persist_of, the caller)
//! clean 3  flush the volume                                              (the caller)
//! clean 4  log that it is clean; flush; clear its bit, unless a write came since 2     (made_clean)
//! ```
//! No record voids the old content of a chunk that is written back: the version of the new mapping is higher. So until the new content is
//! durable, a crash leaves the old one. Three rules keep the old one until then: the footer of its block lists it although the index has
//! it no more; a checkpoint ends after the blocks are durable that its mappings lead to; and so does a reclaim.
//!
//! Until a flush nothing stands on a log record: a chunk is clean only once its record is durable, a region is marked durably before the
//! volume is written there, and a block is written anew only once the record of its reclaim is durable. So a power cut may take any records
//! that were not flushed.
//!
//! Blocks with dirty chunks are not reclaimed. Their mappings may stand in other blocks, as references: a reclaim takes only blocks that were
//! sealed before both checkpoints began which a start may find.

use super::fill::aligned;
use super::reclaim::batches;
use super::{Change, ChunkStore, Chunks, Maps, Open};
use crate::lba::Slot;
use crate::store::read::{Chunk, Fetched, Unreadable};
use pumice_blocks::{Logged, Task, Work, give_turn};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A dirty content that was read to be written to the volume.
pub struct Copied {
    slot: Slot,
    number: u64,
}

/// Chunks that the log says are clean, and the index not yet. No checkpoint begins meanwhile: it would have them as dirty, and a start with it
/// does not go by records before it.
struct LoggedClean<'s, 'a, B: Buffer> {
    store: &'s ChunkStore<B>,
    chunks: Vec<&'a Copied>,
}

impl<B: Buffer> Drop for LoggedClean<'_, '_, B> {
    fn drop(&mut self) {
        if self.store.cleaning.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A checkpoint may wait for it.
            self.store.base.shared.change(|_| {});
        }
    }
}

impl<B: Buffer> Maps<B> {
    /// Whether a chunk is dirty, and was not written since it was read.
    fn is_still(&mut self, copied: &Copied) -> bool {
        let address = copied.slot.address;
        let is_same = self.copies.get(&address) == Some(&copied.number);
        is_same && self.lba.get(address) == Some(copied.slot)
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// Number of dirty chunks.
    pub fn dirty(&self) -> u64 {
        self.maps.lock().lba.dirty()
    }

    /// Whether chunks may become dirty, or some were dirty at the start.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Dirty chunks of a range.
    pub fn dirty_among(&self, chunks: std::ops::Range<u64>) -> Vec<u64> {
        let maps = self.maps.lock();
        match maps.lba.dirty() {
            0 => Vec::new(),
            _ => chunks
                .filter(|address| maps.lba.get(*address).is_some_and(|slot| slot.is_dirty))
                .collect(),
        }
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

    /// Addresses of the dirty chunks that must be clean before a piece of work can be done, in order, and not many more than `most`. If the
    /// work is a reclaim, no chunk is mapped to its blocks from here on. Cost: a pass over the LBA-index, unless no chunk is dirty.
    pub async fn dirty_in_work(&self, work: &Work<Chunks<B>>, most: usize) -> Vec<u64> {
        let Task::Own(victims) = work.task() else {
            return Vec::new();
        };
        self.retire(victims);
        self.dirty_in(victims, most).await
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
        if self.dirty() == 0 {
            return;
        }
        let mut wants = true;
        for batch in batches(self.bucket_counts().0) {
            {
                let maps = self.maps.lock();
                for bucket in batch {
                    maps.lba.visit_dirty(bucket, |slot| wants &= show(slot));
                }
            }
            if !wants {
                return;
            }
            give_turn().await;
        }
    }

    /// Reads a dirty chunk, to be written to the volume; `None` if it is clean. The caller keeps writes of the chunk out until it is written.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub async fn read_dirty<D: Device<Buf = B>>(
        &self,
        device: &D,
        address: u64,
    ) -> Result<Option<(Chunk, Copied)>, Unreadable> {
        let (spot, copied) = {
            let mut maps = self.maps.lock();
            let Some(slot) = maps.lba.get(address).filter(|slot| slot.is_dirty) else {
                return Ok(None);
            };
            let number = maps.version();
            maps.copies.insert(address, number);
            (self.spot_of(&maps, slot), Copied { slot, number })
        };
        match self.fetch(device, &spot.ok_or(Unreadable)?).await {
            Fetched::Whole(chunk) => Ok(Some((chunk, copied))),
            // No reclaim moves a dirty chunk: another task has cleaned it.
            Fetched::Moved => Ok(None),
            Fetched::Failed | Fetched::Damaged(_) => Err(Unreadable),
        }
    }

    /// What was read is not written to the volume after all.
    pub fn forget_copies<'a>(&self, copied: impl IntoIterator<Item = &'a Copied>) {
        let mut maps = self.maps.lock();
        for copied in copied {
            if maps.is_still(copied) {
                maps.copies.remove(&copied.slot.address);
            }
        }
    }

    /// Makes chunks clean whose contents the volume has, durably: those that were not written since they were read. Returns how many. With
    /// `may_wait` it waits where the log has no room for all; otherwise the rest stays dirty. Another task makes room.
    ///
    /// # Errors
    /// The log takes no record and cannot get room, or the device fails: the rest stays dirty.
    pub async fn made_clean<D: Device<Buf = B>>(
        &self,
        device: &D,
        copied: &[Copied],
        may_wait: bool,
    ) -> io::Result<u64> {
        let mut left: BTreeMap<u64, &Copied> = copied
            .iter()
            .map(|copied| (copied.slot.address, copied))
            .collect();
        let (mut cleaned, mut has_room) = (0, true);
        while !left.is_empty() && has_room {
            let may_log = || !self.is_beginning.load(Ordering::Acquire);
            self.base.wait_for(|_| may_log()).await;
            let logged = self.log_clean(device, &mut left, may_wait)?;
            self.base.commit(device).await?;
            {
                let mut maps = self.maps.lock();
                for copied in &logged.chunks {
                    if maps.is_still(copied) {
                        cleaned += u64::from(maps.lba.clean(copied.slot.address, copied.slot.place));
                        maps.copies.remove(&copied.slot.address);
                    }
                }
            }
            drop(logged);
            has_room = left.is_empty() || may_wait && self.base.wait_for_log(1).await;
        }
        self.forget_copies(left.into_values());
        match has_room || !may_wait {
            true => Ok(cleaned),
            false => Err(io::Error::other(
                "the log of the cache device is full, and no checkpoint can be written",
            )),
        }
    }

    /// Logs that chunks are clean, as many as the log has room for, and takes them from `left`. Takes from it, too, those that were written since
    /// they were read, and stay dirty.
    fn log_clean<'a, D: Device<Buf = B>>(
        &self,
        device: &D,
        left: &mut BTreeMap<u64, &'a Copied>,
        may_wait: bool,
    ) -> io::Result<LoggedClean<'_, 'a, B>> {
        let mut maps = self.maps.lock();
        left.retain(|_, copied| maps.is_still(copied));
        // All changes append under this lock.
        let room = match may_wait {
            true => self.base.log_room(),
            false => self.base.log_room_of_work(),
        };
        let version = maps.version();
        let records: Vec<(u64, u8)> = runs(left.keys().copied())
            .into_iter()
            .flat_map(aligned)
            .take(usize::try_from(room).unwrap_or(usize::MAX))
            .collect();
        self.cleaning.fetch_add(1, Ordering::AcqRel);
        let mut logged = LoggedClean {
            store: self,
            chunks: Vec::new(),
        };
        for (index, level) in records {
            if self.base.append_log(device, Change::Clean(level), index, version) != Logged::Stored {
                return Err(io::Error::other("the log of the cache device takes no record"));
            }
            let end = (index + 1) << level;
            let rest = left.split_off(&end);
            logged.chunks.extend(std::mem::replace(left, rest).into_values());
        }
        Ok(logged)
    }

    /// Waits until everything that was cached before survives a crash, and, under durability `power`, a power cut. Other tasks perform the
    /// work that it waits for.
    ///
    /// # Errors
    /// The device fails: what was written back last may be lost.
    pub async fn persist<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        self.base.write_out().await;
        self.base.commit(device).await?;
        match self.base.is_out() {
            true => Err(io::Error::other("the cache device has failed")),
            false => Ok(()),
        }
    }

    /// The same, of what was cached of some chunks before. Does nothing where that is durable already.
    ///
    /// # Errors
    /// As [`ChunkStore::persist`].
    pub async fn persist_of<D: Device<Buf = B>>(&self, device: &D, chunks: &Range<u64>) -> io::Result<()> {
        match self.base.has_unwritten(|entry| chunks.contains(&entry.address)) || self.base.is_out() {
            true => self.persist(device).await,
            false => Ok(()),
        }
    }

    /// Writes what was appended to the active block. If that finds no room for padding, the block is closed, and written as a whole.
    pub(super) async fn write_beginning<D: Device<Buf = B>>(
        &self,
        device: &D,
        block: &Arc<Open<B>>,
        now: u32,
    ) -> io::Result<()> {
        let prefix = {
            let mut maps = self.maps.lock();
            if !maps
                .active
                .as_ref()
                .is_some_and(|active| Arc::ptr_eq(active, block))
            {
                return Ok(());
            }
            let Some(prefix) = block.begin_prefix() else {
                self.close_active(&mut maps);
                return Ok(());
            };
            prefix
        };
        self.base.begin_prefix(block, &prefix);
        if prefix.range.is_empty() {
            return Ok(());
        }
        self.base.fill_hole(device, block, &prefix).await;
        // A start finds the others by their headers.
        let own = (prefix.range.start == 0).then_some(0);
        match self.base.write_prefix(device, block, &prefix, own, now).await? {
            Logged::Stored | Logged::Off => Ok(()),
            Logged::Failed => Err(io::Error::other("the log takes no record")),
            // A start finds a full block without a record.
            Logged::NoRoom => {
                let mut maps = self.maps.lock();
                if maps
                    .active
                    .as_ref()
                    .is_some_and(|active| Arc::ptr_eq(active, block))
                {
                    self.close_active(&mut maps);
                }
                Ok(())
            }
        }
    }

    /// Whether the log is nearly full, and a checkpoint is about to make room.
    pub fn is_log_short(&self) -> bool {
        self.base.is_log_short()
    }
}

/// Runs of consecutive numbers, which are in order.
fn runs(numbers: impl Iterator<Item = u64>) -> Vec<std::ops::Range<u64>> {
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}
