//! Reclaim: making blocks free again.
//!
//! The victim is a block without a live object, or whose objects have all expired, wherever it stands; else one that
//! is more than half dead, whose live objects are moved to the active block; else the oldest (FIFO), whose objects
//! are evicted.
//!
//! A record of the reclaim goes to the log before the first mapping is removed: from then on a key of the victim may
//! be set again without a record, so the victim's copies must not come back, even while the block still stands on
//! flash.

use crate::footer::{FooterEntry, Trailer, decode_entries};
use crate::log::LogKind;
use crate::record::{Record, is_expired};
use crate::store::{FlashStore, State, Structure, add};
use crate::{Gone, Mappings};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Location;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

enum How {
    /// Nothing in it is mapped.
    Empty,
    /// Its live objects go, as evicted or expired.
    Evict,
    /// Its live objects move.
    Compact,
}

impl<B: Buffer> FlashStore<B> {
    /// Reclaims blocks until enough are free.
    pub(crate) async fn reclaim<D: Device<Buf = B>, M: Mappings>(&self, device: &D, mappings: &M, now: u32) {
        // Each round frees one block; compacting may take one, and gives back more than half of it.
        let rounds_max = self.geometry.blocks as usize * 2;
        for _ in 0..rounds_max {
            let Some((id, how)) = self.choose_victim(now) else {
                return;
            };
            self.reclaim_block(device, mappings, now, id, how).await;
        }
    }

    /// Takes the victim out of the queue.
    fn choose_victim(&self, now: u32) -> Option<(u32, How)> {
        let mut structure = self.structure.lock();
        if !self.wants_reclaim(&structure) {
            return None;
        }
        let (at, how) = self.pick(&structure, now)?;
        let id = structure.queue.remove(at)?;
        self.blocks[id as usize].set_state(State::Reclaiming);
        Some((id, how))
    }

    fn pick(&self, structure: &Structure<B>, now: u32) -> Option<(usize, How)> {
        let mut deadest: Option<(usize, u64)> = None;
        for (at, id) in structure.queue.iter().enumerate() {
            let info = &self.blocks[*id as usize];
            let live = info.live.load(Ordering::Relaxed);
            let filled = info.filled.load(Ordering::Relaxed);
            if live == 0 {
                return Some((at, How::Empty));
            }
            if is_expired(info.expiry_max.load(Ordering::Relaxed), now) {
                return Some((at, How::Evict));
            }
            if live * 2 < filled && deadest.is_none_or(|(_, least)| live < least) {
                deadest = Some((at, live));
            }
        }
        match deadest {
            // The oldest block goes as a whole anyway.
            Some((at, _)) if at != 0 => Some((at, How::Compact)),
            _ => (!structure.queue.is_empty()).then_some((0, How::Evict)),
        }
    }

    /// Claims the right to reclaim the oldest block whatever is free, for a host that needs the DRAM of its mappings; false
    /// where a reclaim is under way. Then [`FlashStore::finish_early_reclaim`] must be run.
    pub fn begin_early_reclaim(&self) -> bool {
        let mut structure = self.structure.lock();
        if structure.reclaiming || structure.queue.is_empty() {
            return false;
        }
        structure.reclaiming = true;
        structure.in_flight += 1;
        true
    }

    /// Reclaims the oldest block, as [`FlashStore::begin_early_reclaim`] promised.
    pub async fn finish_early_reclaim<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) {
        let victim = {
            let mut structure = self.structure.lock();
            let id = structure.queue.pop_front();
            if let Some(id) = id {
                self.blocks[id as usize].set_state(State::Reclaiming);
            }
            id
        };
        if let Some(id) = victim {
            self.reclaim_block(device, mappings, now, id, How::Evict).await;
        }
        self.work_done(|structure| {
            structure.reclaiming = false;
            structure.in_flight -= 1;
        });
    }

    async fn reclaim_block<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        id: u32,
        how: How,
    ) {
        let info = &self.blocks[id as usize];
        let sequence = info.sequence.load(Ordering::Relaxed);
        self.append_log(device, LogKind::Reclaim, u64::from(id), sequence);
        let offset = self.geometry.block_offset(id);
        let done = match how {
            How::Empty => true,
            How::Evict => match self.read_footer(device, id, sequence).await {
                Some(entries) => {
                    for entry in &entries {
                        let why = if is_expired(entry.expiry, now) {
                            Gone::Expired
                        } else {
                            Gone::Evicted
                        };
                        mappings.drop_copy(entry.hash, location_of(offset, entry), why);
                    }
                    true
                }
                None => false,
            },
            How::Compact => self.compact(device, mappings, now, id, sequence).await,
        };
        // Where the footer cannot be read the index alone knows what pointed here. A copy whose footer entry was wrong
        // must not survive either, so whatever is still live is swept too.
        if !done || info.live.load(Ordering::Relaxed) != 0 {
            mappings.sweep(offset, self.geometry.block_bytes, Gone::Corrupt);
        }
        info.live.store(0, Ordering::Relaxed);
        info.set_state(State::Free);
        add(&self.counters.reclaimed_blocks, 1);
        self.work_done(|structure| structure.free.push_back(id));
    }

    /// Reads and checks the footer of a sealed block.
    pub(crate) async fn read_footer<D: Device<Buf = B>>(
        &self,
        device: &D,
        id: u32,
        sequence: u64,
    ) -> Option<Vec<FooterEntry>> {
        let footer_len = self.blocks[id as usize].footer_len.load(Ordering::Relaxed) as usize;
        let len = footer_len.next_multiple_of(SECTOR_BYTES);
        let block_bytes = usize::try_from(self.geometry.block_bytes).ok()?;
        let offset = self.geometry.block_offset(id) + (block_bytes.checked_sub(len)?) as u64;
        let buffer = match device.read(offset, len).await {
            Ok(buffer) => buffer,
            Err(error) => {
                tracing::warn!("reading the footer of block {id}: {error}");
                add(&self.counters.read_errors, 1);
                return None;
            }
        };
        let bytes = buffer.bytes(len - footer_len, footer_len)?;
        let trailer = Trailer::decode(self.cache_id, bytes)?;
        if trailer.block != id || trailer.sequence != sequence {
            return None;
        }
        decode_entries(self.cache_id, &trailer, bytes, block_bytes)
    }

    /// Moves the live objects of a block to the active one; false where the block cannot be read.
    async fn compact<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        id: u32,
        sequence: u64,
    ) -> bool {
        let Some(entries) = self.read_footer(device, id, sequence).await else {
            return false;
        };
        let offset = self.geometry.block_offset(id);
        let is_live = |entry: &FooterEntry| {
            mappings.with(entry.hash, |shard| {
                shard.is_live(entry.hash, location_of(offset, entry))
            })
        };
        for entry in entries {
            if !is_live(&entry) {
                continue;
            }
            let location = location_of(offset, &entry);
            if is_expired(entry.expiry, now) {
                mappings.drop_copy(entry.hash, location, Gone::Expired);
                continue;
            }
            let record = match self.read_device(device, location, sequence).await {
                Ok(record) => record,
                Err(fault) => {
                    tracing::debug!("moving an object of block {id}: {fault:?}");
                    mappings.drop_copy(entry.hash, location, Gone::Corrupt);
                    continue;
                }
            };
            if !self.move_record(mappings, entry.hash, location, &record) {
                mappings.drop_copy(entry.hash, location, Gone::Evicted);
            }
        }
        true
    }

    /// Copies a live record to the active block; its copy becomes live by compare-and-set of the mapping. False where
    /// there is no room; true also where the record died meanwhile.
    fn move_record<M: Mappings>(&self, mappings: &M, hash: u64, from: Location, record: &Record<B>) -> bool {
        // The block must not be sealed before the mapping is made: the guard outlives the call.
        let mut guard = None;
        let moved = mappings.move_copy(hash, from, || {
            guard = self.append(hash, &record.parts(), true);
            guard.as_ref().map(|appended| appended.location)
        });
        if moved && guard.is_some() {
            self.forget(from);
        }
        moved
    }
}

fn location_of(block_offset: u64, entry: &FooterEntry) -> Location {
    Location {
        offset: block_offset + u64::from(entry.offset),
        len: entry.len,
    }
}
