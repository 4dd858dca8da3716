//! Eviction from the DRAM tier, and the DRAM that the index needs.
//!
//! S3-FIFO (Yang et al., SOSP 2023): an item leaves the small queue for the main queue if it was hit more than once, else for
//! the ghosts; an item of the main queue that was hit goes round again with one hit less.

use crate::books::LeftBehind;
use crate::cache::{Cx, Inner, ObjectCache};
use crate::large::ROOM_TRIES_MAX;
use crate::object::Meta;
use crate::part::PartId;
use pumice_device::Device;
use pumice_flash::LogKind;
use pumice_memory::Buffer;
use pumice_record::Record;
use pumice_tier::Queue;
use std::collections::HashSet;

/// The DRAM tier keeps at least this many segments, whatever the index wants.
pub(crate) const SEGMENTS_FLOOR: usize = 8;
/// Pages beyond those of the index that are kept free for the rule of admission, which leaves the index its own.
const PAGES_BEYOND: usize = 64;
/// Hits that take an item from the small queue to the main queue.
const PROMOTION_HITS: u64 = 2;
/// Items that a clean stop writes between two waits for background work.
const FLUSH_BATCH: usize = 256;

impl<D: Device + Clone> ObjectCache<D> {
    /// Before an insertion: sees that DRAM has free segments, and the index pages. No lock is held.
    pub(crate) fn make_room(&self, cx: &Cx<D>) {
        Room { cache: self, cx }.make();
    }

    /// Sees to a delayed flush whose time has come.
    pub(crate) fn flush_if_due(&self, cx: &Cx<D>) {
        let at = self.inner.store().flush_at();
        if at != 0 && at <= cx.now() {
            self.inner.flush_now(cx, true);
            self.kick(cx);
        }
    }

    /// Removes every object: now, or (with `at`, in Unix seconds) what was set before that moment when it comes. Cost: one
    /// pass over the index, with all shards locked.
    pub fn flush_all(&self, cx: &Cx<D>, at: Option<u32>) {
        match at.filter(|at| *at > cx.now()) {
            Some(at) => self.inner.store().set_flush_at(&cx.device, at),
            None => self.inner.flush_now(cx, false),
        }
        self.kick(cx);
    }

    /// Empties DRAM for a clean stop: writes to flash what flash has no copy of, and waits for buffers. Each segment that was
    /// written is room for the mappings of the next ones. Returns what had to be dropped.
    pub(crate) async fn flush_dram(&self, cx: &Cx<D>) -> LeftBehind {
        let inner = &*self.inner;
        let mut left = LeftBehind::default();
        for segment in inner.tier.take_all() {
            let mut items = Vec::new();
            inner.tier.visit(&segment, |address, _, _| items.push(address));
            for batch in items.chunks(FLUSH_BATCH) {
                // Background writes have their turn here: with index `cascade`, of pages of mappings.
                self.quiesce(cx).await;
                for address in batch {
                    Room { cache: self, cx }
                        .flush_item(segment.queue, *address, &mut left)
                        .await;
                }
            }
            inner.tier.recycle(segment, false);
        }
        left
    }
}

/// The DRAM that items, the index and the rule of admission share, for whoever needs room in it.
struct Room<'a, D: Device + Clone> {
    cache: &'a ObjectCache<D>,
    cx: &'a Cx<D>,
}

impl<D: Device + Clone> Room<'_, D> {
    /// Before an insertion: evicts from DRAM until segments are free, and sees that the index has pages. No lock is held.
    pub(crate) fn make(&self) {
        let inner = &*self.cache.inner;
        let pages = inner.pages.free_pages();
        if pages < inner.pages_low {
            self.feed_index();
        } else if inner.admit.is_some() && pages < inner.pages_low + PAGES_BEYOND {
            self.feed_from_dram();
        }
        if inner.index_heap_max > 0 && inner.store().mapping_heap_bytes() > inner.index_heap_max {
            self.reclaim_early();
        }
        if !inner.tier.wants_eviction() {
            return;
        }
        // Each round frees a segment unless all of it survives; an item survives at most four rounds.
        let mut rounds = inner.tier.segments() * 4 + 4;
        while inner.tier.wants_eviction() && rounds > 0 {
            rounds -= 1;
            if !self.evict_segment(false) {
                break;
            }
        }
    }

    /// Gives the index another segment's worth of pages: free ones, else from the DRAM tier, else by giving up the oldest
    /// block and with it its mappings.
    fn feed_index(&self) {
        if !self.feed_from_dram() {
            self.reclaim_early();
        }
    }

    /// As [`Self::feed_index`], but gives up no block; whether there was a segment.
    fn feed_from_dram(&self) -> bool {
        let inner = &*self.cache.inner;
        inner.feed_from_free(SEGMENTS_FLOOR)
            || inner.tier.segments() > SEGMENTS_FLOOR && self.evict_segment(true)
    }

    /// Gives up the oldest block for the DRAM of its mappings: at most once for each block that is sealed, since what a reclaim
    /// frees in the tables is used before the next.
    fn reclaim_early(&self) {
        let inner = &*self.cache.inner;
        if let Some(work) = inner.store().take_early_reclaim() {
            let (cache, cx_task) = (self.cache.clone(), self.cx.clone());
            (self.cx.spawner).spawn(Box::pin(async move { cache.work(cx_task, work).await }));
        }
    }

    /// Empties one segment. With `surrender` its memory becomes the index's.
    fn evict_segment(&self, surrender: bool) -> bool {
        let inner = &*self.cache.inner;
        let Some(segment) = inner.tier.take_victim() else {
            return false;
        };
        let now = self.cx.now();
        inner.tier.visit(&segment, |address, record, flash_location| {
            inner.evict_item(self.cx, now, segment.queue, address, record, flash_location);
        });
        inner.tier.recycle(segment, surrender);
        if surrender {
            inner.segments.raise_limit();
            inner.pages.grow();
        }
        self.cache.kick(self.cx);
        true
    }

    /// Writes one item to flash for a clean stop, or drops it.
    async fn flush_item(&self, queue: Queue, address: u64, left: &mut LeftBehind) {
        let (cache, cx) = (self.cache, self.cx);
        let inner = &*cache.inner;
        let store = inner.store();
        let (record, flash_location) = inner.tier.read(address);
        let mut parts = record.parts();
        let hash = inner.hasher.hash(&PartId::of(&parts));
        let mut tries = 0;
        loop {
            let dropped = store.dropped_no_block();
            let is_stranger_there = {
                let mut shard = inner.lock(hash);
                let Some(hits) = shard.dram.frequency(hash, address) else {
                    return;
                };
                let expired = record.header().is_expired(cx.now());
                if expired || inner.is_flash_location(&shard, hash, flash_location) {
                    shard.dram.remove(hash, address);
                    if expired && !inner.is_flash_location(&shard, hash, flash_location) {
                        inner.expire_unasked(store.padded_len(&parts));
                    }
                    return;
                }
                if hits > 0 {
                    parts.marks |= Meta::USED;
                }
                let was_hit = queue == Queue::Main || hits > 0;
                // Under one tag flash has room for one key; the first stays.
                let is_stranger_there = shard.flash.find(hash).live().is_some();
                // Asked once.
                if tries == 0 && !is_stranger_there && !inner.admits_leaving(cx, hash, &parts, was_hit) {
                    shard.dram.remove(hash, address);
                    inner.books.refused.add(store.padded_len(&parts));
                    return;
                }
                if tries > 0
                    && !is_stranger_there
                    && inner.append_from_dram(cx, &mut shard, hash, &parts, was_hit) != 0
                {
                    shard.dram.remove(hash, address);
                    return;
                }
                is_stranger_there
            };
            let is_out_of_room = store.dropped_no_block() > dropped;
            let may_try = !is_stranger_there && tries < ROOM_TRIES_MAX;
            if may_try && (tries == 0 || cache.wait_for_progress(cx).await) {
                cache.wait_for_room(cx, parts.encoded_len() as u64).await;
                while inner.pages.free_pages() < inner.pages_low && inner.feed_from_free(0) {}
                tries += 1;
                continue;
            }
            inner.lock(hash).dram.remove(hash, address);
            inner.books.evicted.add(store.padded_len(&parts));
            *match (is_stranger_there, is_out_of_room) {
                (true, _) => &mut left.same_tag,
                (false, true) => &mut left.no_room,
                (false, false) => &mut left.no_memory,
            } += 1;
            return;
        }
    }
}

impl<B: Buffer> Inner<B> {
    /// Gives the index a segment that nobody uses: its own, or a free one of the DRAM tier, which keeps `floor`.
    pub(crate) fn feed_from_free(&self, floor: usize) -> bool {
        if self.pages.grow() {
            return true;
        }
        self.tier.surrender_free(floor) && self.segments.raise_limit() && self.pages.grow()
    }

    /// Decides over one item of a segment that is being emptied.
    fn evict_item<D: Device<Buf = B>>(
        &self,
        cx: &Cx<D>,
        now: u32,
        queue: Queue,
        address: u64,
        record: &Record<B>,
        flash_location: u64,
    ) {
        let mut parts = record.parts();
        let hash = self.hasher.hash(&PartId::of(&parts));
        let mut shard = self.lock(hash);
        let Some(hits) = shard.dram.frequency(hash, address) else {
            return;
        };
        if hits > 0 {
            parts.marks |= Meta::USED;
        }
        let on_flash = self.is_flash_location(&shard, hash, flash_location);
        let expired = record.header().is_expired(now);
        let stays = match queue {
            Queue::Small => hits >= PROMOTION_HITS,
            Queue::Main => hits > 0,
        };
        if on_flash && hits > 0 {
            // It may leave long after its last hit, with none left to tell of it.
            if let Some(mapping) = shard.flash.find(hash).live() {
                let note = |mapping| {
                    let bytes = || self.object_bytes(&parts);
                    self.store().order.hit(hash, mapping, bytes)
                };
                shard.flash.hit(hash, mapping.location, note);
            }
        }
        if stays && !expired {
            let frequency = if queue == Queue::Small { 0 } else { hits - 1 };
            if let Some(reserved) = self.tier.write(Queue::Main, &parts, flash_location) {
                shard.dram.relocate(hash, address, reserved.address, frequency);
                return;
            }
        }
        shard.dram.remove(hash, address);
        if on_flash {
            if queue == Queue::Small {
                self.tier.remember(hash);
            }
            return;
        }
        let bytes = self.store().padded_len(&parts);
        if expired {
            self.expire_unasked(bytes);
            return;
        }
        if queue == Queue::Small {
            self.tier.remember(hash);
        }
        // Flash has no copy: this is the moment to write one. A stranger of the same tag that is there stays there.
        let was_hit = queue == Queue::Main || hits > 0;
        if shard.flash.find(hash).live().is_some() {
            self.books.evicted.add(bytes);
        } else if !self.admits_leaving(cx, hash, &parts, was_hit) {
            self.books.refused.add(bytes);
        } else if self.append_from_dram(cx, &mut shard, hash, &parts, was_hit) == 0 {
            self.books.evicted.add(bytes);
        }
    }

    /// Removes everything that is there, in one step for all who look. With `due` only if a delayed flush is due, which
    /// another worker may have seen to already.
    pub(crate) fn flush_now<D: Device<Buf = B>>(&self, cx: &Cx<D>, due: bool) {
        let mut shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let at = self.store().flush_at();
        if due && (at == 0 || at > cx.now()) {
            return;
        }
        let version = self.store().next_version();
        self.store().append_log(&cx.device, LogKind::FlushAll, 0, version);
        for shard in &mut shards {
            let mut flash_locations = HashSet::new();
            shard.flash.for_each(|mapping| {
                flash_locations.insert(self.flash_location(mapping.location));
                self.books.deleted.add(u64::from(mapping.location.len));
                self.store().order.forget(None, mapping);
            });
            shard.dram.for_each(|address| {
                let (record, flash_location) = self.tier.read(address);
                if !flash_locations.contains(&flash_location) {
                    self.books.deleted.add(self.store().padded_len(&record.parts()));
                }
            });
            shard.flash.clear();
            shard.dram.clear();
        }
        self.store().flush_done();
    }
}

#[cfg(test)]
mod tests {
    use crate::CacheOptions;
    use crate::testing::{Rig, START_SECS, VALUE};

    #[test]
    fn a_delayed_flush_removes_all_when_it_is_due_and_not_once_another_worker_has_seen_to_it() {
        let rig = Rig::new(CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        });
        rig.set(b"key", VALUE, 0);
        let flush_if_due = || rig.cache.inner.flush_now(&rig.cx, true);
        flush_if_due();
        assert!(rig.get(b"key").is_some(), "there is none");
        rig.cache.flush_all(&rig.cx, Some(START_SECS + 2));
        rig.clock.advance_secs(1);
        flush_if_due();
        assert!(rig.get(b"key").is_some(), "it is not due");
        rig.clock.advance_secs(1);
        flush_if_due();
        assert!(rig.get(b"key").is_none(), "it is due");
        rig.set(b"key", VALUE, 0);
        flush_if_due();
        assert!(rig.get(b"key").is_some(), "it has been seen to");
        rig.cache.flush_all(&rig.cx, None);
        assert!(rig.get(b"key").is_none());
        assert_eq!(rig.cache.books().deleted.0, 2, "in both tiers, and counted once");
        rig.cache.check_books().unwrap();
    }
}
