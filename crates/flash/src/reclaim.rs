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
//! The record comes first here too; then the objects that stay are copied to the open blocks that the layout says, and the victim is
//! free. A crash finds those of them whose new block was sealed; what was in a buffer is
//! gone. (To keep the victim until then would keep a block for every section that fills slowly.)

use crate::footer::FooterEntry;
use crate::layout::{Choice, Fate};
use crate::store::{BlockInfo, FlashStore, Order, Pool, Victim};
use crate::survivors::{MovedCopy, Origin};
use crate::{CopyMove, Gone, Mappings};
use pumice_blocks::footer::{Trailer, decode_entries};
use pumice_blocks::log::Kind;
use pumice_blocks::{Claim, State, add, give_turn};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Mapping;
use pumice_memory::Buffer;
use pumice_record::{Record, is_expired};
use std::sync::atomic::Ordering;

/// Entries of a footer that are looked at before other tasks get their turn.
pub(crate) const ENTRIES_PER_TURN: usize = 1024;

/// What becomes of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Nothing in it is mapped.
    Empty,
    /// Its live objects go, as evicted or expired.
    Evict,
    /// The objects that the layout keeps move, the others go.
    Lowest,
    /// Its live objects move.
    Rescue,
}

impl How {
    /// Whether what stays of the victim is moved before the victim is free.
    pub(crate) fn moves(self) -> bool {
        matches!(self, How::Lowest | How::Rescue)
    }
}

/// Entries between the one whose memory is asked for and the one in work.
const PREFETCH_DISTANCE: usize = 8;

/// Asks for what a later entry of a footer will need; hashes are all over the index, so each would wait for memory.
pub(crate) fn prefetch_ahead<M: Mappings>(mappings: &M, entries: &[FooterEntry], at: usize) {
    if let Some(later) = entries.get(at + PREFETCH_DISTANCE) {
        mappings.prefetch(later.hash);
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Reclaims blocks until enough are free.
    pub(crate) async fn reclaim<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        claim: Claim,
    ) {
        let rounds_max = self.geometry.blocks as usize * 2;
        for round in 0..rounds_max {
            let Some((id, how)) = self.choose_victim(now, claim, round) else {
                return;
            };
            self.reclaim_block(device, mappings, now, id, how).await;
        }
    }

    /// Reclaims the oldest block, and before it those that need not wait any more; `round` says how often the caller has asked for
    /// it in a row.
    pub(crate) async fn reclaim_early<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        claim: Claim,
        round: usize,
    ) {
        while let Some((id, how)) = self.choose(claim, |pool, _| pool.own.ready.pop_front()) {
            self.reclaim_block(device, mappings, now, id, self.how_now(how))
                .await;
        }
        if let Some((id, how)) = self.choose_lowest(claim, round) {
            self.reclaim_block(device, mappings, now, id, self.how_now(how))
                .await;
        }
    }

    /// At a clean stop no block is open any more: survivors would open new ones, which nobody writes.
    fn how_now(&self, how: How) -> How {
        let is_any_open = !self.order.lock().open.is_empty();
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
        order: &mut Order<B>,
        round: usize,
        is_forced: bool,
    ) -> Option<(u32, How)> {
        let choice = Choice {
            ground: self.ground(),
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
        take: impl FnOnce(&mut Pool<B>, &mut Order<B>) -> Option<(u32, How)>,
    ) -> Option<(u32, How)> {
        let mut order = self.order.lock();
        let mut pool = self.shared.pool.lock();
        let (id, how) = take(&mut pool, &mut order)?;
        if how != How::Empty {
            order.layout.note_full();
        }
        self.blocks[id as usize].set_state(State::Reclaiming);
        pool.own.victims.push(Victim {
            id,
            how,
            stays: u64::MAX,
            claim,
        });
        Some((id, how))
    }

    fn choose_victim(&self, now: u32, claim: Claim, round: usize) -> Option<(u32, How)> {
        self.choose(claim, |pool, order| {
            if !self.wants_reclaim(pool) {
                return None;
            }
            if let Some(ready) = pool.own.ready.pop_front() {
                return Some(ready);
            }
            pool.own
                .note_victim(self.counters.appended_objects.load(Ordering::Relaxed));
            let (id, how) = self.pick(pool, order, now, round)?;
            pool.own.queue.retain(|queued| *queued != id);
            Some((id, how))
        })
    }

    /// Whether a sealed block goes before the lowest when room is wanted: an empty one, and where the layout wants compaction, one
    /// that is mostly dead.
    pub(crate) fn is_early_victim(&self, info: &BlockInfo, live: u64) -> bool {
        info.state() == State::Sealed
            && live * 2 < info.filled.load(Ordering::Relaxed)
            && (live == 0 || self.wants.compaction)
    }

    fn pick(&self, pool: &Pool<B>, order: &mut Order<B>, now: u32, round: usize) -> Option<(u32, How)> {
        let lowest = self.next_victim(pool, order, round, false);
        let mut deadest: Option<(u32, u64)> = None;
        if !self.has_early_victims.swap(false, Ordering::Relaxed) {
            return lowest;
        }
        for id in order.layout.sealed(self.ground(), &pool.own.queue) {
            let info = &self.blocks[id as usize];
            let live = info.live.load(Ordering::Relaxed);
            let is_early = self.is_early_victim(info, live);
            if info.expiry_max.load(Ordering::Relaxed) != u32::MAX || is_early {
                // Worth another look next time.
                self.has_early_victims.store(true, Ordering::Relaxed);
            }
            if live == 0 {
                // Where that is an estimate, what was raised and is there all the same moves.
                let is_estimate = !self.is_authoritative() && self.wants.compaction;
                return Some((id, if is_estimate { How::Rescue } else { How::Empty }));
            }
            if is_expired(info.expiry_max.load(Ordering::Relaxed), now) {
                return Some((id, How::Evict));
            }
            if is_early && deadest.is_none_or(|(_, least)| live < least) {
                deadest = Some((id, live));
            }
        }
        // The lowest block goes anyway.
        let deadest = deadest.filter(|(id, _)| lowest.is_none_or(|(lowest, _)| *id != lowest));
        deadest.map(|(id, _)| (id, How::Rescue)).or(lowest)
    }

    /// Removes what is still mapped to a block, and frees it. May be broken off anywhere and done again.
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
        self.append_log(device, Kind::Reclaim, u64::from(id), sequence);
        let begun = info.reclaims.load(Ordering::Relaxed);
        info.reclaims.store(begun.saturating_add(1), Ordering::Relaxed);
        // Of one that was broken off it is not known what is done; and where not all deaths are known, what lives is an estimate.
        let is_empty = begun == 0
            && self.is_authoritative()
            && (how == How::Empty || info.live.load(Ordering::Acquire) == 0);
        let (mut reclaimed, mut all) = (None, None);
        let mut moved = Vec::new();
        if !is_empty && let Some(mut entries) = self.read_footer(device, id, sequence).await {
            let bytes: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
            reclaimed = Some((entries.len() as u64, bytes));
            all = self.knows_deaths().then(|| entries.clone());
            if how.moves() {
                let origin = Origin {
                    id,
                    sequence,
                    is_tail: how == How::Lowest,
                };
                (entries, moved) = self.move_survivors(device, mappings, now, &origin, entries).await;
            }
            // No lookup finds a mapping to it on flash from here on, and brings it back to DRAM.
            info.is_leaving.store(true, Ordering::Release);
            for (at, entry) in entries.iter().enumerate() {
                if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                    give_turn().await;
                }
                prefetch_ahead(mappings, &entries, at);
                self.drop_entry(mappings, now, id, entry);
            }
            for (at, copy) in moved.iter().enumerate() {
                if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                    give_turn().await;
                }
                if let Some(later) = moved.get(at + PREFETCH_DISTANCE) {
                    mappings.prefetch(later.hash);
                }
                let [from, to] = copy.places();
                mappings.with(copy.hash, |shard| shard.forget_moved(copy.hash, from, to));
            }
        }
        // Where the footer cannot be read the index alone knows what pointed here. A copy whose footer entry was wrong
        // must not survive either, so whatever is still live is swept too. A cascade index does not know of all deaths, and
        // what leads here from flash is void as soon as the block has another sequence.
        info.is_leaving.store(true, Ordering::Release);
        let rest = info.live.load(Ordering::Acquire);
        if !self.is_authoritative()
            && let Some((count, bytes)) = reclaimed
        {
            mappings.account_rest((rest * count / bytes.max(1)).min(count), rest);
        } else if rest != 0 || !self.is_authoritative() {
            let offset = self.geometry.block_offset(id);
            mappings.sweep(offset, self.geometry.block_bytes, Gone::Corrupt);
        }
        info.live.store(0, Ordering::Relaxed);
        self.settle_slots(id, all.as_deref());
        if !self.is_authoritative() {
            // What is mapped on flash to this life of the block is void from here on. No block has this sequence.
            info.sequence.store(0, Ordering::Release);
        }
        self.leave_order(id);
        device.discard(self.geometry.block_offset(id), self.geometry.block_bytes);
        add(&self.counters.reclaimed_blocks, 1);
        let oldest = self.shared.change(|pool| {
            pool.own.victims.retain(|victim| victim.id != id);
            self.give_back(pool, id);
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
            let sealed = sealed.map(|id| self.blocks[id as usize].sequence.load(Ordering::Relaxed));
            let to_seal = pool.to_seal.iter().map(|block| block.sequence);
            let open = self.open.lock().iter().map(|block| block.sequence).min();
            sealed.chain(to_seal).chain(open).min().unwrap_or(0)
        });
        self.note_oldest_block(oldest);
    }

    /// Lets go of an object of a victim, if it is live.
    pub(crate) fn drop_entry<M: Mappings>(&self, mappings: &M, now: u32, id: u32, entry: &FooterEntry) {
        let why = if is_expired(entry.expiry, now) {
            Gone::Expired
        } else {
            Gone::Evicted
        };
        mappings.drop_copy(entry.hash, self.mapping(id, entry), why);
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
        let buffer = match self.shared.read(device, offset, len).await {
            Ok(buffer) => buffer,
            Err(error) => {
                tracing::warn!("reading the footer of block {id}: {error}");
                add(&self.totals.read_errors, 1);
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

    /// Copies a live record to the active block; its copy becomes live by compare-and-set of the mapping. Returns how that ended, and
    /// what the index is to forget when the victim is gone.
    pub(crate) fn move_record<M: Mappings>(
        &self,
        mappings: &M,
        hash: u64,
        from: Mapping,
        record: &Record<B>,
    ) -> (CopyMove, Option<MovedCopy>) {
        // The block must not be sealed before the mapping is made: the guard outlives the call.
        let mut guard = None;
        let mut former = None;
        let moved = mappings.move_copy(hash, from, |mapping| {
            let appended = self.append_survivor(hash, &record.parts(), mapping)?;
            former = Some(mapping);
            Some(guard.insert(appended).mapping)
        });
        if let Some(former) = former {
            // The object lives on, and with it its rank.
            self.forget(None, former);
        }
        let leaves_mapping = moved == CopyMove::Moved { leaves_mapping: true };
        let copy = guard
            .filter(|_| leaves_mapping)
            .map(|to| MovedCopy::new(hash, from.location, to.mapping.location));
        (moved, copy)
    }
}
