//! Dirty chunks: the cache has their only copy.
//!
//! ```text
//! write-back 1  append the content, or replace the older one in its buffer (absorb); map the chunk, dirty
//!                                                                        (begin_write_back, WriteGuard::fill)
//! write-back 2  on a flush of a client: write all blocks out, flush      (persist)
//!
//! clean 1  list dirty chunks                                             (Addresses::dirty_from, dirty_in_work)
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

use super::ChunkStore;
use super::addresses::Copied;
use super::owner::{Change, Chunks, aligned};
use super::read::{Chunk, Fetched, Unreadable};
use pumice_blocks::{Logged, Task, Work};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Chunks that the log says are clean, and the index not yet. No checkpoint begins meanwhile: it would have them as dirty, and a start with it
/// does not go by records before it.
struct LoggedClean<'s, 'a, B: Buffer> {
    store: &'s ChunkStore<B>,
    chunks: Vec<&'a Copied>,
}

impl<'s, 'a, B: Buffer> LoggedClean<'s, 'a, B> {
    /// Logs that chunks are clean, as many as the log has room for, and takes them from `left`. Takes from it, too, those that were written since
    /// they were read, and stay dirty.
    fn log<D: Device<Buf = B>>(
        store: &'s ChunkStore<B>,
        device: &D,
        left: &mut BTreeMap<u64, &'a Copied>,
        may_wait: bool,
    ) -> io::Result<Self> {
        let mut mapped = store.addresses.lock();
        left.retain(|_, copied| mapped.is_still(copied));
        // All changes append under this lock.
        let room = match may_wait {
            true => store.base.journal.room(),
            false => store.base.journal.room_of_work(),
        };
        let version = mapped.next_version();
        let records: Vec<(u64, u8)> = runs(left.keys().copied())
            .into_iter()
            .flat_map(aligned)
            .take(usize::try_from(room).unwrap_or(usize::MAX))
            .collect();
        store.cleaning.fetch_add(1, Ordering::AcqRel);
        let mut logged = Self {
            store,
            chunks: Vec::new(),
        };
        for (index, level) in records {
            if store
                .base
                .journal
                .append(device, Change::Clean(level), index, version)
                != Logged::Stored
            {
                return Err(io::Error::other("the log of the cache device takes no record"));
            }
            let end = (index + 1) << level;
            let rest = left.split_off(&end);
            logged.chunks.extend(std::mem::replace(left, rest).into_values());
        }
        Ok(logged)
    }
}

impl<B: Buffer> Drop for LoggedClean<'_, '_, B> {
    fn drop(&mut self) {
        if self.store.cleaning.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A checkpoint may wait for it.
            self.store.base.shared.change(|_| {});
        }
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// Number of dirty chunks.
    pub fn dirty(&self) -> u64 {
        self.addresses.lock().index.dirty()
    }

    /// Whether chunks may become dirty, or some were dirty at the start.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Dirty chunks of a range.
    pub fn dirty_among(&self, chunks: Range<u64>) -> Vec<u64> {
        let mapped = self.addresses.lock();
        match mapped.index.dirty() {
            0 => Vec::new(),
            _ => chunks.filter(|address| mapped.is_dirty(*address)).collect(),
        }
    }

    /// Addresses of the dirty chunks that must be clean before a piece of work can be done, in order, and not many more than `most`. If the
    /// work is a reclaim, no chunk is mapped to its blocks from here on. Cost: a pass over the LBA-index, unless no chunk is dirty.
    pub async fn dirty_in_work(&self, work: &Work<Chunks<B>>, most: usize) -> Vec<u64> {
        let Task::Own(victims) = work.task() else {
            return Vec::new();
        };
        self.appender.retire(&self.addresses.lock(), victims);
        self.addresses.dirty_in(victims, most).await
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
            let mut mapped = self.addresses.lock();
            let Some(slot) = mapped.index.get(address).filter(|slot| slot.is_dirty) else {
                return Ok(None);
            };
            (self.appender.spot_of(slot), mapped.copy(slot))
        };
        match spot.ok_or(Unreadable)?.fetch(&self.base, device).await {
            Fetched::Whole(chunk) => Ok(Some((chunk, copied))),
            // No reclaim moves a dirty chunk: another task has cleaned it.
            Fetched::Moved => Ok(None),
            Fetched::Failed | Fetched::Damaged(_) => Err(Unreadable),
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
            let logged = LoggedClean::log(self, device, &mut left, may_wait)?;
            self.base.journal.commit(device).await?;
            {
                let mut mapped = self.addresses.lock();
                for copied in &logged.chunks {
                    if mapped.is_still(copied) {
                        let slot = copied.slot;
                        cleaned += u64::from(mapped.index.clean(slot.address, slot.place));
                        mapped.forget_copy(slot.address);
                    }
                }
            }
            drop(logged);
            has_room = left.is_empty() || may_wait && self.base.journal.wait_for_room(1).await;
        }
        self.addresses.forget_copies(left.into_values());
        match has_room || !may_wait {
            true => Ok(cleaned),
            false => Err(io::Error::other(
                "the log of the cache device is full, and no checkpoint can be written",
            )),
        }
    }

    /// Waits until everything that was cached before survives a crash, and, under durability `power`, a power cut. Other tasks perform the
    /// work that it waits for.
    ///
    /// # Errors
    /// The device fails: what was written back last may be lost.
    pub async fn persist<D: Device<Buf = B>>(&self, device: &D) -> io::Result<()> {
        self.base.write_out().await;
        self.base.journal.commit(device).await?;
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

    /// Whether the log is nearly full, and a checkpoint is about to make room.
    pub fn is_log_short(&self) -> bool {
        self.base.journal.is_short()
    }
}

/// Runs of consecutive numbers, which are in order.
fn runs(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}
