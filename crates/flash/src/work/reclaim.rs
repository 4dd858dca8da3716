//! Reclaim: making blocks free again.
//!
//! The victim is a block without a live object, or whose objects have all expired, wherever it stands; else one that
//! is more than half dead, where the layout wants that, whose live objects are moved; else the one that the layout says, with what it
//! keeps ([`Layout::victim`](crate::layout::Layout::victim), [`keeps`](crate::layout::Layout::keeps)).
//!
//! Several blocks may be reclaimed at once, each by a piece of work of its own, because most of a reclaim is waiting for the
//! device; in lockstep there is one at a time.
//!
//! A record of the reclaim goes to the log before the first mapping is removed: from then on a key of the victim may
//! be set again without a record, so the victim's copies must not come back, even while the block still stands on
//! flash.
//!
//! # Survivors
//!
//! The record comes first here too; then the objects that stay are copied to the open blocks that the layout names, and the victim is
//! free. A start after a crash finds the copies whose new block was written; copies that were in a buffer are lost. (To keep each victim
//! until its copies are written would hold a block for every section that fills slowly.)

use super::survivors::{MovedCopy, Origin};
use super::{PREFETCH_DISTANCE, Worker, prefetch_ahead};
use crate::footer::{ENTRIES_PER_TURN, FooterEntry};
use crate::layout::{Choice, Fate};
use crate::objects::{How, Pool, Victim};
use crate::order::OrderState;
use crate::{CopyMove, Gone, Mappings};
use pumice_blocks::footer::{Trailer, decode_entries};
use pumice_blocks::log::Kind;
use pumice_blocks::{Claim, State, add, turn_after};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Mapping;
use pumice_memory::Buffer;
use pumice_record::{Record, is_expired};
use std::sync::atomic::Ordering;

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Reclaims blocks until enough are free.
    pub(super) async fn reclaim(&self, claim: Claim) {
        let rounds_max = self.store.geometry.blocks as usize * 2;
        for round in 0..rounds_max {
            let Some((id, how)) = self.choose_victim(claim, round) else {
                return;
            };
            self.reclaim_block(id, how).await;
        }
    }

    /// Reclaims the block that the layout names, and before it the victims whose reclaim was broken off. `round`: calls before this one in
    /// the same piece of work.
    pub(super) async fn reclaim_early(&self, claim: Claim, round: usize) {
        while let Some((id, how)) = self.choose(claim, |pool, _| pool.own.ready.pop_front()) {
            self.reclaim_block(id, self.how_now(how)).await;
        }
        if let Some((id, how)) = self.choose_lowest(claim, round) {
            self.reclaim_block(id, self.how_now(how)).await;
        }
    }

    /// At a clean stop no block is open any more: survivors would open new ones, which nobody writes.
    fn how_now(&self, how: How) -> How {
        let is_any_open = !self.store.order.lock().open.is_empty();
        if is_any_open { how } else { How::Evict }
    }

    fn choose_lowest(&self, claim: Claim, round: usize) -> Option<(u32, How)> {
        self.choose(claim, |pool, order| {
            let (id, how) = self.next_victim(pool, order, round, true)?;
            pool.own.queue.retain(|queued| *queued != id);
            Some((id, how))
        })
    }

    /// The victim that is the layout's choice, when so many have gone before it in the same piece of work.
    fn next_victim(
        &self,
        pool: &Pool<B>,
        order: &mut OrderState<B>,
        round: usize,
        is_forced: bool,
    ) -> Option<(u32, How)> {
        let choice = Choice {
            ground: self.store.order.ground(),
            by_age: &pool.own.queue,
            free: pool.free.len(),
            round,
            idle: pool.own.victims_idle,
            is_forced,
        };
        let (id, fate) = order.layout.victim(&choice)?;
        let how = match fate {
            Fate::Drop => How::Evict,
            Fate::Move => How::Lowest,
        };
        Some((id, how))
    }

    /// Takes a victim out of the pool and notes what becomes of it.
    fn choose(
        &self,
        claim: Claim,
        take: impl FnOnce(&mut Pool<B>, &mut OrderState<B>) -> Option<(u32, How)>,
    ) -> Option<(u32, How)> {
        let mut order = self.store.order.lock();
        let mut pool = self.store.shared.pool.lock();
        let (id, mut how) = take(&mut pool, &mut order)?;
        if how.moves() && !self.mappings.may_keep() {
            how = How::Evict;
        }
        if how != How::Empty {
            order.layout.note_full();
        }
        self.store.blocks[id as usize].set_state(State::Reclaiming);
        pool.own.victims.push(Victim {
            id,
            how,
            stays: u64::MAX,
            claim,
        });
        Some((id, how))
    }

    fn choose_victim(&self, claim: Claim, round: usize) -> Option<(u32, How)> {
        self.choose(claim, |pool, order| {
            if !self.store.wants_reclaim(pool) {
                return None;
            }
            if let Some(ready) = pool.own.ready.pop_front() {
                return Some(ready);
            }
            pool.own
                .note_victim(self.store.counters.appended_objects.load(Ordering::Relaxed));
            let (id, how) = self.pick(pool, order, round)?;
            pool.own.queue.retain(|queued| *queued != id);
            Some((id, how))
        })
    }

    fn pick(&self, pool: &Pool<B>, order: &mut OrderState<B>, round: usize) -> Option<(u32, How)> {
        let lowest = self.next_victim(pool, order, round, false);
        let mut deadest: Option<(u32, u64)> = None;
        if !self.store.order.has_early_victims.swap(false, Ordering::Relaxed) {
            return lowest;
        }
        for id in order.layout.sealed(self.store.order.ground(), &pool.own.queue) {
            let info = &self.store.blocks[id as usize];
            let live = info.live.load(Ordering::Relaxed);
            let is_early = self.store.order.is_early_victim(info, live);
            if info.expiry_max.load(Ordering::Relaxed) != u32::MAX || is_early {
                // Worth another look next time.
                self.store.order.has_early_victims.store(true, Ordering::Relaxed);
            }
            if live == 0 {
                // Where that is an estimate, what was raised and is there all the same moves.
                let is_estimate = !self.store.is_authoritative() && self.store.order.wants.compaction;
                return Some((id, if is_estimate { How::Rescue } else { How::Empty }));
            }
            if is_expired(info.expiry_max.load(Ordering::Relaxed), self.now) {
                return Some((id, How::Evict));
            }
            if is_early && deadest.is_none_or(|(_, least)| live < least) {
                deadest = Some((id, live));
            }
        }
        // The lowest block goes anyway; and at once where nothing may be kept.
        let deadest = deadest.filter(|_| self.mappings.may_keep());
        let deadest = deadest.filter(|(id, _)| lowest.is_none_or(|(lowest, _)| *id != lowest));
        deadest.map(|(id, _)| (id, How::Rescue)).or(lowest)
    }

    /// Removes what is still mapped to a block, and frees it. May be broken off anywhere and done again.
    async fn reclaim_block(&self, id: u32, how: How) {
        let info = &self.store.blocks[id as usize];
        let sequence = info.sequence.load(Ordering::Relaxed);
        self.store
            .append_log(self.device, Kind::Reclaim, u64::from(id), sequence);
        let begun = info.reclaims.load(Ordering::Relaxed);
        info.reclaims.store(begun.saturating_add(1), Ordering::Relaxed);
        // Of one that was broken off it is not known what is done; and where not all deaths are known, what lives is an estimate.
        let is_empty = begun == 0
            && self.store.is_authoritative()
            && (how == How::Empty || info.live.load(Ordering::Acquire) == 0);
        let (mut reclaimed, mut all) = (None, None);
        let mut moved = Vec::new();
        if !is_empty && let Some(mut entries) = self.read_footer(id, sequence).await {
            let bytes: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
            reclaimed = Some((entries.len() as u64, bytes));
            all = self.store.order.knows_deaths().then(|| entries.clone());
            if how.moves() {
                let origin = Origin {
                    id,
                    sequence,
                    is_tail: how == How::Lowest,
                };
                (entries, moved) = self.move_survivors(&origin, entries).await;
            }
            // No lookup finds a mapping to it on flash from here on, and brings it back to DRAM.
            info.is_leaving.store(true, Ordering::Release);
            for (at, entry) in entries.iter().enumerate() {
                turn_after(at, ENTRIES_PER_TURN).await;
                prefetch_ahead(self.mappings, &entries, at);
                self.drop_entry(id, entry);
            }
            for (at, copy) in moved.iter().enumerate() {
                turn_after(at, ENTRIES_PER_TURN).await;
                if let Some(later) = moved.get(at + PREFETCH_DISTANCE) {
                    self.mappings.prefetch(later.hash);
                }
                let [from, to] = copy.places();
                self.mappings.with(copy.hash, |shard| {
                    if let Some(shard) = shard.cascade() {
                        shard.forget_moved(copy.hash, from, to);
                    }
                });
            }
        }
        // Where the footer cannot be read the index alone knows what pointed here. A copy whose footer entry was wrong
        // must not survive either, so whatever is still live is swept too. A cascade index does not know of all deaths, and
        // what leads here from flash is void as soon as the block has another sequence.
        info.is_leaving.store(true, Ordering::Release);
        let rest = info.live.load(Ordering::Acquire);
        if !self.store.is_authoritative()
            && let Some((count, bytes)) = reclaimed
        {
            self.mappings
                .account_rest((rest * count / bytes.max(1)).min(count), rest);
        } else if rest != 0 || !self.store.is_authoritative() {
            let offset = self.store.geometry.block_offset(id);
            self.mappings
                .sweep(offset, self.store.geometry.block_bytes, Gone::Corrupt);
        }
        info.live.store(0, Ordering::Relaxed);
        self.store.order.settle_slots(id, all.as_deref());
        if !self.store.is_authoritative() {
            // What is mapped on flash to this generation of the block is void from here on. No block has this sequence.
            info.sequence.store(0, Ordering::Release);
        }
        self.store.order.freed(id);
        self.device.discard(
            self.store.geometry.block_offset(id),
            self.store.geometry.block_bytes,
        );
        add(&self.store.counters.reclaimed_blocks, 1);
        let oldest = self.store.shared.change(|pool| {
            pool.own.victims.retain(|victim| victim.id != id);
            self.store.give_back(pool, id);
            // Others that are being reclaimed, too, and one of kept objects may be open for long.
            let victims = pool.own.victims.iter().map(|victim| victim.id);
            let ready = pool.own.ready.iter().map(|(id, _)| *id);
            let sealed = pool
                .own
                .queue
                .front()
                .copied()
                .into_iter()
                .chain(victims)
                .chain(ready);
            let sealed = sealed.map(|id| self.store.blocks[id as usize].sequence.load(Ordering::Relaxed));
            let to_seal = pool.to_seal.iter().map(|block| block.sequence);
            let open = self.store.open.lock().iter().map(|block| block.sequence).min();
            sealed.chain(to_seal).chain(open).min().unwrap_or(0)
        });
        if let Some(pages) = self.store.mapping_pages() {
            pages.log.note_oldest(oldest);
        }
    }

    /// Lets go of an object of a victim, if it is live.
    pub(super) fn drop_entry(&self, id: u32, entry: &FooterEntry) {
        let why = if is_expired(entry.expiry, self.now) {
            Gone::Expired
        } else {
            Gone::Evicted
        };
        self.mappings
            .drop_copy(entry.hash, self.store.order.ground().mapping(id, entry), why);
    }

    /// Reads and checks the footer of a sealed block, step by step as it was written: reads of clients come in between.
    pub(super) async fn read_footer(&self, id: u32, sequence: u64) -> Option<Vec<FooterEntry>> {
        let footer_len = self.store.blocks[id as usize].footer_len.load(Ordering::Relaxed) as usize;
        let len = footer_len.next_multiple_of(SECTOR_BYTES);
        let block_bytes = usize::try_from(self.store.geometry.block_bytes).ok()?;
        let start = self.store.geometry.block_offset(id) + (block_bytes.checked_sub(len)?) as u64;
        let mut bytes = Vec::with_capacity(footer_len);
        let (mut at, mut skipped) = (0, len - footer_len);
        while at < len {
            let step = self.store.step_bytes.min(len - at);
            let read = self.store.shared.read(self.device, start + at as u64, step);
            let buffer = match read.await {
                Ok(buffer) => buffer,
                Err(error) => {
                    tracing::warn!("reading the footer of block {id}: {error}");
                    add(&self.store.totals.read_errors, 1);
                    return None;
                }
            };
            bytes.extend_from_slice(buffer.bytes(skipped, step - skipped)?);
            (at, skipped) = (at + step, 0);
        }
        let trailer = Trailer::decode(self.store.cache_id, &bytes)?;
        if trailer.block != id || trailer.sequence != sequence {
            return None;
        }
        decode_entries(self.store.cache_id, &trailer, &bytes, block_bytes)
    }

    /// Copies a live record to the active block; its copy becomes live by compare-and-set of the mapping. Returns how that ended, and
    /// what the index is to forget when the victim is gone.
    pub(super) fn move_record(
        &self,
        hash: u64,
        from: Mapping,
        record: &Record<B>,
    ) -> (CopyMove, Option<MovedCopy>) {
        // The block must not be sealed before the mapping is made: the guard outlives the call.
        let mut guard = None;
        let mut former = None;
        let moved = self.mappings.move_copy(hash, from, |mapping| {
            let appended = self.store.append_survivor(hash, &record.parts(), mapping)?;
            former = Some(mapping);
            Some(guard.insert(appended).mapping)
        });
        if let Some(former) = former {
            // The object lives on, and with it its rank.
            self.store.order.forget(None, former);
        }
        let leaves_mapping = moved == CopyMove::Moved { leaves_mapping: true };
        let copy = guard
            .filter(|_| leaves_mapping)
            .map(|to| MovedCopy::new(hash, from.location, to.mapping.location));
        (moved, copy)
    }
}
