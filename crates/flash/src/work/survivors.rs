//! Moving what a reclaim keeps: the objects that stay go to the active blocks of their sections.
//!
//! Where DRAM does not know whether an object is live, pages of mappings are asked first, many at a time and at most one for every two
//! objects. Only what stays is read: neighbours in one read, single objects one by one, several reads under way at once. Whether an
//! object stays is asked twice, before its read and before its copy: meanwhile it may have been deleted, or others may have
//! overtaken it. What looked like going before is not asked again, and goes.
//!
//! A victim's block is free only when all that stays has found room in others, and several victims move objects at once. New
//! objects therefore leave as many free blocks as the bytes need that are still to move; and where there is none all the same,
//! a reclaim waits until another one has freed its victim. The last that does not wait lets go of what finds no room, so that
//! they never all wait.

use super::{Worker, prefetch_ahead};
use crate::footer::{ENTRIES_PER_TURN, FooterEntry};
use crate::layout::{NotePlace, RECLAIM_READ_BYTES};
use crate::objects::{Reclaims, Shared};
use crate::{CopyMove, Mappings};
use pumice_blocks::{add, give_turn, turn_after};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::cascade::PageNumber;
use pumice_index::{Location, Mapping, Survivor};
use pumice_memory::Buffer;
use pumice_record::{Record, is_expired};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A read is at most so long, unless one record is longer.
const READ_BYTES_MAX: u64 = 256 << 10;
/// What stays is read together with what stands between if that is at most so much.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Reads of one victim at once.
const READS_MAX: usize = 8;
/// Rounds of waiting for room, for one victim.
const WAITS_MAX: usize = 16;

/// Objects of a victim of which it is unknown whether they are live, and whose pages of mappings are read at once.
const ASKED_AT_ONCE: usize = 32;
/// Of so many objects of a victim one page may be read to learn that.
const ENTRIES_PER_PAGE_ASKED: usize = 2;

/// What becomes of an object of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
    /// It is worth its copy, if it is live.
    Unknown,
}

/// Objects that one read brings.
pub(super) struct Run {
    pub(super) sectors: Range<u64>,
    pub(super) entries: Vec<FooterEntry>,
}

impl Run {
    pub(super) fn bytes(&self) -> u64 {
        self.sectors.end - self.sectors.start
    }
}

/// A block whose objects are moved.
pub(super) struct Origin {
    pub(super) id: u32,
    pub(super) sequence: u64,
    /// Whether it is the lowest block: what nobody has asked for since it was written does not stay.
    pub(super) is_tail: bool,
}

/// An object that was moved, and whose mapping on flash is to go with the victim.
pub(super) struct MovedCopy {
    pub(super) hash: u64,
    /// Offsets on the device, of copies that take the same length.
    from: u64,
    to: u64,
    len: u32,
}

impl MovedCopy {
    pub(super) fn new(hash: u64, from: Location, to: Location) -> Self {
        debug_assert_eq!(from.len, to.len);
        Self {
            hash,
            from: from.offset,
            to: to.offset,
            len: from.len,
        }
    }

    /// Where it was, and where it is.
    pub(super) fn places(&self) -> [Location; 2] {
        [self.from, self.to].map(|offset| Location {
            offset,
            len: self.len,
        })
    }
}

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Moves the objects of a victim that stay, lets go of those that do not, and returns the entries of those that could
    /// not be moved, and those whose mappings on flash are left.
    pub(super) async fn move_survivors(
        &self,
        origin: &Origin,
        entries: Vec<FooterEntry>,
    ) -> (Vec<FooterEntry>, Vec<MovedCopy>) {
        let (mut stay, mut go, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut asked = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            turn_after(at, ENTRIES_PER_TURN).await;
            prefetch_ahead(self.mappings, &entries, at);
            let fate = self.fate(origin, entry);
            if fate == Fate::Stays {
                stay.push(*entry);
            } else if fate == Fate::Unknown {
                asked.push(*entry);
            } else if !self.store.is_authoritative() {
                // A lookup may still find its mapping on flash, and bring it back to DRAM.
                go.push(*entry);
            } else {
                // While what its mapping stands on is at hand.
                self.drop_entry(origin.id, entry);
            }
        }
        let mut pages_left = entries.len() / ENTRIES_PER_PAGE_ASKED;
        for batch in asked.chunks(ASKED_AT_ONCE) {
            self.ask(origin, batch, &mut pages_left).await;
            for entry in batch {
                let stays = self.fate(origin, entry) == Fate::Stays;
                if stays { &mut stay } else { &mut go }.push(*entry);
            }
        }
        stay.sort_unstable_by_key(|entry| entry.offset);
        let bytes = stay.iter().map(|entry| u64::from(entry.len)).sum();
        if let Some(victim) =
            (self.store.shared.pool.lock().own.victims.iter_mut()).find(|victim| victim.id == origin.id)
        {
            victim.stays = bytes;
        }
        let bytes_max = RECLAIM_READ_BYTES / self.store.reclaims_max() as u64;
        let mut runs = self.runs(origin.id, stay).into_iter();
        let mut next = runs.next();
        let (mut reads, mut bytes) = (VecDeque::new(), 0);
        let mut waits_left = WAITS_MAX;
        loop {
            while let Some(run) = next.take_if(|run| {
                reads.is_empty() || (reads.len() < READS_MAX && bytes + run.bytes() <= bytes_max)
            }) {
                bytes += run.bytes();
                let len = usize::try_from(run.bytes()).expect("at most 1 MiB and two sectors");
                // It starts with this call; awaited are results in the order of runs.
                reads.push_back((self.store.shared.read(self.device, run.sectors.start, len), run));
                next = runs.next();
            }
            let Some((read, run)) = reads.pop_front() else {
                return (go, left);
            };
            match read.await {
                Ok(buffer) => {
                    add(&self.store.counters.reclaim_read_bytes, run.bytes());
                    let buffer = Arc::new(buffer);
                    for entry in &run.entries {
                        if self.fate(origin, entry) != Fate::Stays {
                            go.push(*entry);
                            continue;
                        }
                        let Some(record) = self.survivor(origin, &run, &buffer, entry) else {
                            go.push(*entry);
                            continue;
                        };
                        let from = self.store.order.ground().mapping(origin.id, entry);
                        let move_it = || self.move_record(entry.hash, from, &record);
                        let (mut moved, mut copy) = move_it();
                        while moved == CopyMove::NoRoom && waits_left > 0 && self.makes_room().await {
                            waits_left -= 1;
                            (moved, copy) = move_it();
                        }
                        left.extend(copy);
                        match moved {
                            CopyMove::Moved { .. } => {}
                            CopyMove::Dead => go.push(*entry),
                            CopyMove::NoRoom => {
                                add(&self.store.counters.survivors_dropped, 1);
                                go.push(*entry);
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!("reading block {} to move objects out of it: {error}", origin.id);
                    add(&self.store.totals.read_errors, 1);
                    go.extend_from_slice(&run.entries);
                }
            }
            bytes -= run.bytes();
            give_turn().await;
        }
    }

    /// Whether an object of a victim is live, and worth its copy.
    fn fate(&self, origin: &Origin, entry: &FooterEntry) -> Fate {
        if is_expired(entry.expiry, self.now) {
            return Fate::Goes;
        }
        let own = self.store.order.ground().mapping(origin.id, entry);
        let keeps = |mapping| {
            self.store.order.keeps(entry.hash, mapping, origin.is_tail)
                || (self.store.order.wants.dram_hot && self.mappings.is_hot(entry.hash, own.location))
        };
        // Slots tell without the index, which is slower.
        if self.store.order.notes == NotePlace::Slot && !keeps(own) {
            return Fate::Goes;
        }
        let (mapping, fate) = match self.ask_index(entry.hash, own) {
            Survivor::Keep(mapping) => (mapping, Fate::Stays),
            Survivor::Ask(_) => (own, Fate::Unknown),
            Survivor::Drop => return Fate::Goes,
        };
        if self.store.order.notes == NotePlace::Slot || keeps(mapping) {
            fate
        } else {
            Fate::Goes
        }
    }

    fn ask_index(&self, hash: u64, own: Mapping) -> Survivor {
        self.mappings.with(hash, |shard| {
            shard.survivor(hash, &self.store.order.stored_copy(own))
        })
    }

    /// Reads the pages that may map these objects, all at once, so that DRAM knows their mappings then; of those for which more than
    /// `pages_left` would have to be read it stays unknown.
    async fn ask(&self, origin: &Origin, entries: &[FooterEntry], pages_left: &mut usize) {
        let mut plans = Vec::new();
        for entry in entries {
            let own = self.store.order.ground().mapping(origin.id, entry);
            let Survivor::Ask(plan) = self.ask_index(entry.hash, own) else {
                continue;
            };
            if let Some(left) = pages_left.checked_sub(plan.pages().len()) {
                *pages_left = left;
                plans.push((entry.hash, plan));
            }
        }
        let pages: Vec<PageNumber> = (plans.iter())
            .flat_map(|(_, plan)| plan.pages())
            .copied()
            .collect();
        let reads = &self.store.counters.reclaim_mapping_reads;
        let Some(log_pages) = self.store.mapping_pages() else {
            return;
        };
        let found = log_pages.read_counted(self.device, &pages, reads).await;
        let mut found = found.iter().map(|bytes| bytes.as_ref()?.payload());
        for (hash, plan) in plans {
            let payloads: Vec<_> = found.by_ref().take(plan.pages().len()).collect();
            // What cannot be read costs this object, and not yet the partition.
            if payloads.contains(&None) {
                continue;
            }
            self.mappings.with(hash, |shard| {
                if let Some(shard) = shard.cascade() {
                    shard.resolve(hash, &plan, payloads);
                }
            });
        }
    }

    /// The record of an entry, in the bytes of its run.
    fn survivor(
        &self,
        origin: &Origin,
        run: &Run,
        buffer: &Arc<B>,
        entry: &FooterEntry,
    ) -> Option<Record<B>> {
        let location = self.store.order.ground().location(origin.id, entry);
        let position = usize::try_from(location.offset - run.sectors.start).expect("in the buffer");
        let record = Record::decode(
            Arc::clone(buffer),
            position,
            location.len as usize,
            self.store.cache_id,
            origin.sequence,
            true,
        );
        if record.is_none() {
            add(&self.store.counters.corrupt_records, 1);
        }
        record
    }

    /// Waits for a block where none is free, or else for a buffer; whether it is worth trying again.
    async fn makes_room(&self) -> bool {
        if !self.store.shared.pool.lock().free.is_empty() {
            // Others may have made room since it was found that there is none.
            return self.makes_buffer_free().await || {
                let pool = self.store.shared.pool.lock();
                self.store.has_buffer(&pool) && !pool.free.is_empty()
            };
        }
        let Some(_stall) = Stall::begin(&self.store.shared) else {
            return false;
        };
        self.store
            .wait_for(|pool| !pool.free.is_empty() || pool.own.are_all_stalled())
            .await;
        true
    }

    /// Writes a block that is full, or waits for one that is being written; whether it is worth trying again.
    pub(super) async fn makes_buffer_free(&self) -> bool {
        let seal = self.store.take_seal(&mut self.store.shared.pool.lock());
        if let Some(work) = seal {
            self.perform_seal(work).await;
            return true;
        }
        if self.store.shared.pool.lock().sealing == 0 {
            return false;
        }
        let before = self.store.totals.sealed_blocks.load(Ordering::Relaxed);
        self.store
            .wait_for(|pool| {
                pool.sealing == 0 || self.store.totals.sealed_blocks.load(Ordering::Relaxed) > before
            })
            .await;
        true
    }

    /// Groups entries, which are in order of offset, into reads of at most [`READ_BYTES_MAX`], unless one record is longer.
    fn runs(&self, id: u32, entries: Vec<FooterEntry>) -> Vec<Run> {
        let sector = SECTOR_BYTES as u64;
        let mut runs: Vec<Run> = Vec::new();
        for entry in entries {
            let location = self.store.order.ground().location(id, &entry);
            let start = location.offset / sector * sector;
            let end = (location.offset + u64::from(location.len)).next_multiple_of(sector);
            match runs.last_mut() {
                Some(run)
                    if start <= run.sectors.end + GAP_BYTES_MAX
                        && end - run.sectors.start <= READ_BYTES_MAX =>
                {
                    run.sectors.end = run.sectors.end.max(end);
                    run.entries.push(entry);
                }
                _ => runs.push(Run {
                    sectors: start..end,
                    entries: vec![entry],
                }),
            }
        }
        runs
    }
}

/// A reclaim that waits for a block that another one makes free.
struct Stall<'a, B: Buffer>(&'a Shared<B>);

impl<'a, B: Buffer> Stall<'a, B> {
    /// `None` where all others wait: the last goes on without room, and makes its victim free.
    fn begin(shared: &'a Shared<B>) -> Option<Self> {
        let reclaims = &mut shared.pool.lock().own;
        reclaims.stalled += 1;
        if reclaims.are_all_stalled() {
            reclaims.stalled -= 1;
            return None;
        }
        Some(Self(shared))
    }
}

impl<B: Buffer> Drop for Stall<'_, B> {
    fn drop(&mut self) {
        self.0.pool.lock().own.stalled -= 1;
    }
}

impl Reclaims {
    fn are_all_stalled(&self) -> bool {
        self.stalled >= self.victims.len()
    }
}
