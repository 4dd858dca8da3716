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

use crate::footer::FooterEntry;
use crate::layout::NotePlace;
use crate::reclaim::{ENTRIES_PER_TURN, prefetch_ahead};
use crate::store::{FlashStore, Reclaims, Shared};
use crate::{CopyMove, Mappings};
use pumice_blocks::{add, give_turn};
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
/// Bytes that are read, or were read and are being moved, of all victims at once. The share of each is enough for the longest
/// record, but for the two sectors at its ends.
pub const RECLAIM_READ_BYTES: u64 = 2 << 20;
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
pub(crate) struct Run {
    pub(crate) sectors: Range<u64>,
    pub(crate) entries: Vec<FooterEntry>,
}

impl Run {
    pub(crate) fn bytes(&self) -> u64 {
        self.sectors.end - self.sectors.start
    }
}

/// A block whose objects are moved.
pub(crate) struct Origin {
    pub(crate) id: u32,
    pub(crate) sequence: u64,
    /// Whether it is the lowest block: what nobody has asked for since it was written does not stay.
    pub(crate) is_tail: bool,
}

/// An object that was moved, and whose mapping on flash is to go with the victim.
pub(crate) struct MovedCopy {
    pub(crate) hash: u64,
    /// Offsets on the device, of copies that take the same length.
    from: u64,
    to: u64,
    len: u32,
}

impl MovedCopy {
    pub(crate) fn new(hash: u64, from: Location, to: Location) -> Self {
        debug_assert_eq!(from.len, to.len);
        Self {
            hash,
            from: from.offset,
            to: to.offset,
            len: from.len,
        }
    }

    /// Where it was, and where it is.
    pub(crate) fn places(&self) -> [Location; 2] {
        [self.from, self.to].map(|offset| Location {
            offset,
            len: self.len,
        })
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Moves the objects of a victim that stay, lets go of those that do not, and returns the entries of those that could
    /// not be moved, and those whose mappings on flash are left.
    pub(crate) async fn move_survivors<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        origin: &Origin,
        entries: Vec<FooterEntry>,
    ) -> (Vec<FooterEntry>, Vec<MovedCopy>) {
        let (mut stay, mut go, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut asked = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                give_turn().await;
            }
            prefetch_ahead(mappings, &entries, at);
            let fate = self.fate(mappings, now, origin, entry);
            if fate == Fate::Stays {
                stay.push(*entry);
            } else if fate == Fate::Unknown {
                asked.push(*entry);
            } else if !self.is_authoritative() {
                // A lookup may still find its mapping on flash, and bring it back to DRAM.
                go.push(*entry);
            } else {
                // While what its mapping stands on is at hand.
                self.drop_entry(mappings, now, origin.id, entry);
            }
        }
        let mut pages_left = entries.len() / ENTRIES_PER_PAGE_ASKED;
        for batch in asked.chunks(ASKED_AT_ONCE) {
            self.ask(device, mappings, origin, batch, &mut pages_left).await;
            for entry in batch {
                let stays = self.fate(mappings, now, origin, entry) == Fate::Stays;
                if stays { &mut stay } else { &mut go }.push(*entry);
            }
        }
        stay.sort_unstable_by_key(|entry| entry.offset);
        let bytes = stay.iter().map(|entry| u64::from(entry.len)).sum();
        if let Some(victim) =
            (self.shared.pool.lock().own.victims.iter_mut()).find(|victim| victim.id == origin.id)
        {
            victim.stays = bytes;
        }
        let bytes_max = RECLAIM_READ_BYTES / self.reclaims_max() as u64;
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
                reads.push_back((self.shared.read(device, run.sectors.start, len), run));
                next = runs.next();
            }
            let Some((read, run)) = reads.pop_front() else {
                return (go, left);
            };
            match read.await {
                Ok(buffer) => {
                    add(&self.counters.reclaim_read_bytes, run.bytes());
                    let buffer = Arc::new(buffer);
                    for entry in &run.entries {
                        if self.fate(mappings, now, origin, entry) != Fate::Stays {
                            go.push(*entry);
                            continue;
                        }
                        let Some(record) = self.survivor(origin, &run, &buffer, entry) else {
                            go.push(*entry);
                            continue;
                        };
                        let from = self.mapping(origin.id, entry);
                        let move_it = || self.move_record(mappings, entry.hash, from, &record);
                        let (mut moved, mut copy) = move_it();
                        while moved == CopyMove::NoRoom
                            && waits_left > 0
                            && self.makes_room(device, mappings, now).await
                        {
                            waits_left -= 1;
                            (moved, copy) = move_it();
                        }
                        left.extend(copy);
                        match moved {
                            CopyMove::Moved { .. } => {}
                            CopyMove::Dead => go.push(*entry),
                            CopyMove::NoRoom => {
                                add(&self.counters.survivors_dropped, 1);
                                go.push(*entry);
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!("reading block {} to move objects out of it: {error}", origin.id);
                    add(&self.totals.read_errors, 1);
                    go.extend_from_slice(&run.entries);
                }
            }
            bytes -= run.bytes();
            give_turn().await;
        }
    }

    /// Whether an object of a victim is live, and worth its copy.
    fn fate<M: Mappings>(&self, mappings: &M, now: u32, origin: &Origin, entry: &FooterEntry) -> Fate {
        if is_expired(entry.expiry, now) {
            return Fate::Goes;
        }
        let own = self.mapping(origin.id, entry);
        let keeps = |mapping| {
            self.keeps(entry.hash, mapping, origin.is_tail)
                || (self.wants.dram_hot && mappings.is_hot(entry.hash, own.location))
        };
        // Slots tell without the index, which is slower.
        if self.notes == NotePlace::Slot && !keeps(own) {
            return Fate::Goes;
        }
        let (mapping, fate) = match self.ask_index(mappings, entry.hash, own) {
            Survivor::Keep(mapping) => (mapping, Fate::Stays),
            Survivor::Ask(_) => (own, Fate::Unknown),
            Survivor::Drop => return Fate::Goes,
        };
        if self.notes == NotePlace::Slot || keeps(mapping) {
            fate
        } else {
            Fate::Goes
        }
    }

    fn ask_index<M: Mappings>(&self, mappings: &M, hash: u64, own: Mapping) -> Survivor {
        mappings.with(hash, |shard| shard.survivor(hash, &self.stored_copy(own)))
    }

    /// Reads the pages that may map these objects, all at once, so that DRAM knows their mappings then; of those for which more than
    /// `pages_left` would have to be read it stays unknown.
    async fn ask<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        origin: &Origin,
        entries: &[FooterEntry],
        pages_left: &mut usize,
    ) {
        let mut plans = Vec::new();
        for entry in entries {
            let own = self.mapping(origin.id, entry);
            let Survivor::Ask(plan) = self.ask_index(mappings, entry.hash, own) else {
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
        let reads = &self.counters.reclaim_mapping_reads;
        let found = self.read_pages(device, &pages, reads).await;
        let mut found = found.iter().map(|bytes| bytes.as_ref()?.payload());
        for (hash, plan) in plans {
            let payloads: Vec<_> = found.by_ref().take(plan.pages().len()).collect();
            // What cannot be read costs this object, and not yet the partition.
            if payloads.contains(&None) {
                continue;
            }
            mappings.with(hash, |shard| shard.resolve(hash, &plan, payloads));
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
        let location = self.location(origin.id, entry);
        let position = usize::try_from(location.offset - run.sectors.start).expect("in the buffer");
        let record = Record::decode(
            Arc::clone(buffer),
            position,
            location.len as usize,
            self.cache_id,
            origin.sequence,
            true,
        );
        if record.is_none() {
            add(&self.counters.corrupt_records, 1);
        }
        record
    }

    /// Waits for a block where none is free, or else for a buffer; whether it is worth trying again.
    async fn makes_room<D: Device<Buf = B>, M: Mappings>(&self, device: &D, mappings: &M, now: u32) -> bool {
        if !self.shared.pool.lock().free.is_empty() {
            // Others may have made room since it was found that there is none.
            return self.makes_buffer_free(device, mappings, now).await || {
                let pool = self.shared.pool.lock();
                self.has_buffer(&pool) && !pool.free.is_empty()
            };
        }
        let Some(_stall) = Stall::begin(&self.shared) else {
            return false;
        };
        self.wait_for(|pool| !pool.free.is_empty() || pool.own.are_all_stalled())
            .await;
        true
    }

    /// Writes a block that is full, or waits for one that is being written; whether it is worth trying again.
    pub(crate) async fn makes_buffer_free<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) -> bool {
        if let Some(work) = self.take_seal() {
            self.perform_seal(device, mappings, now, work).await;
            return true;
        }
        if self.shared.pool.lock().sealing == 0 {
            return false;
        }
        let before = self.totals.sealed_blocks.load(Ordering::Relaxed);
        self.wait_for(|pool| pool.sealing == 0 || self.totals.sealed_blocks.load(Ordering::Relaxed) > before)
            .await;
        true
    }

    /// Groups entries, which are in order of offset, into reads of at most [`READ_BYTES_MAX`], unless one record is longer.
    fn runs(&self, id: u32, entries: Vec<FooterEntry>) -> Vec<Run> {
        let sector = SECTOR_BYTES as u64;
        let mut runs: Vec<Run> = Vec::new();
        for entry in entries {
            let location = self.location(id, &entry);
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
