//! The DRAM tier of a volume: chunks that were read lately, before those on flash. Each shard evicts by CLOCK.
//!
//! What a scan alone wants is *passing*: it is dropped behind the scan, so that the scan takes as much of the tier as is fetched ahead of it.

use locks::Mutex;
use pumice_chunk::store::Chunk;
use pumice_world::mix64;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shards, each with its own lock and hand.
const SHARDS: u64 = 16;
/// Bytes of a chunk beside its data: slot, map entry, reference counts, rounding of the allocator.
const OVERHEAD_BYTES: usize = 160;

struct Slot {
    address: u64,
    chunk: Arc<Chunk>,
    /// Whether it was read since the hand passed.
    is_touched: bool,
    /// Whether only scans have asked for it.
    is_passing: bool,
}

#[derive(Default)]
struct Shard {
    /// Positions in `slots`, by address.
    map: HashMap<u64, usize>,
    slots: Vec<Slot>,
    /// The slot that is looked at next. Those before it were looked at, or inserted, last.
    hand: usize,
    bytes: usize,
}

impl Shard {
    fn remove(&mut self, address: u64) {
        let Some(at) = self.map.remove(&address) else {
            return;
        };
        self.bytes -= cost(&self.slots.swap_remove(at).chunk);
        if let Some(moved) = self.slots.get(at) {
            self.map.insert(moved.address, at);
        }
    }

    /// Evicts until `bytes` fit into `most`. The hand passes each slot at most twice.
    fn make_room(&mut self, bytes: usize, most: usize) {
        while self.bytes + bytes > most && !self.slots.is_empty() {
            self.hand %= self.slots.len();
            let slot = &mut self.slots[self.hand];
            if std::mem::take(&mut slot.is_touched) {
                self.hand += 1;
            } else {
                let address = slot.address;
                self.remove(address);
            }
        }
    }

    /// Inserts a slot right behind the hand: a whole round passes before it is looked at.
    fn push(&mut self, slot: Slot) {
        self.bytes += cost(&slot.chunk);
        let (at, last) = (self.hand.min(self.slots.len()), self.slots.len());
        self.map.insert(slot.address, at);
        self.slots.push(slot);
        self.slots.swap(at, last);
        if at < last {
            self.map.insert(self.slots[last].address, last);
        }
        self.hand = at + 1;
    }
}

fn cost(chunk: &Chunk) -> usize {
    chunk.bytes.capacity() + OVERHEAD_BYTES
}

/// The DRAM tier. It has the bytes of the backing device: each change of a chunk removes it here.
pub(crate) struct Dram {
    shards: Box<[Mutex<Shard>]>,
    /// Budget of a shard.
    bytes_max: AtomicUsize,
}

impl Dram {
    /// A tier of `bytes`; off if a shard would not hold a chunk of `chunk_bytes`.
    pub(crate) fn new(bytes: usize, chunk_bytes: usize) -> Self {
        let of_shard = Some(bytes / SHARDS as usize).filter(|bytes| *bytes >= chunk_bytes + OVERHEAD_BYTES);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes_max: of_shard.unwrap_or(0).into(),
        }
    }

    /// Whether it can hold chunks.
    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max() > 0
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Drops all chunks, and takes no more.
    pub(crate) fn give_up(&self) {
        self.bytes_max.store(0, Ordering::Relaxed);
        for shard in &self.shards {
            // Later holders of the lock see that the tier is off.
            *shard.lock() = Shard::default();
        }
    }

    fn shard(&self, address: u64) -> &Mutex<Shard> {
        &self.shards[(mix64(address) % SHARDS) as usize]
    }

    /// The cached part of a chunk. What a scan reads is as likely to be evicted afterwards as before.
    pub(crate) fn get(&self, address: u64, is_scan: bool) -> Option<Arc<Chunk>> {
        if !self.is_on() {
            return None;
        }
        let mut shard = self.shard(address).lock();
        let at = *shard.map.get(&address)?;
        let slot = &mut shard.slots[at];
        if !is_scan {
            (slot.is_touched, slot.is_passing) = (true, false);
        }
        Some(Arc::clone(&slot.chunk))
    }

    /// Whether it has a chunk.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.is_on() && self.shard(address).lock().map.contains_key(&address)
    }

    /// Inserts a chunk, unless it was changed since it was read, which `is_current` tells. What others want stays theirs when a scan inserts it.
    ///
    /// ```text
    /// change 1  begin_write: tickets taken before are not current any more
    /// change 2  remove, under the shard's lock
    /// insert 1  is_current, then insert, under the shard's lock
    /// ```
    /// If insert 1 comes before change 1, change 2 removes the chunk; else `is_current` is false.
    pub(crate) fn insert(
        &self,
        address: u64,
        chunk: &Arc<Chunk>,
        is_scan: bool,
        is_current: impl FnOnce() -> bool,
    ) {
        let bytes = cost(chunk);
        let mut shard = self.shard(address).lock();
        let most = self.bytes_max();
        if bytes > most || !is_current() {
            return;
        }
        let old = shard.map.get(&address).map(|at| &shard.slots[*at]);
        let old = old
            .filter(|_| is_scan)
            .map(|old| (old.is_touched, old.is_passing));
        let (is_touched, is_passing) = old.unwrap_or((false, is_scan));
        shard.remove(address);
        shard.make_room(bytes, most);
        shard.push(Slot {
            address,
            chunk: Arc::clone(chunk),
            is_touched,
            is_passing,
        });
    }

    /// Removes chunks that a scan has passed, and that nobody else has asked for.
    pub(crate) fn drop_passed(&self, chunks: Range<u64>) {
        if !self.is_on() {
            return;
        }
        for address in chunks {
            let mut shard = self.shard(address).lock();
            let at = shard.map.get(&address).copied();
            if at.is_some_and(|at| shard.slots[at].is_passing) {
                shard.remove(address);
            }
        }
    }

    /// Removes a chunk that is about to change.
    pub(crate) fn remove(&self, address: u64) {
        if self.is_on() {
            self.shard(address).lock().remove(address);
        }
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(len: usize) -> Arc<Chunk> {
        Arc::new(Chunk {
            start: 0,
            bytes: vec![1; len],
            is_dirty: false,
        })
    }

    #[test]
    fn what_is_inserted_stays_for_a_round() {
        let dram = Dram::new(16 * 10 * (4096 + OVERHEAD_BYTES), 4096);
        for address in 0..2_000 {
            dram.insert(address, &chunk(4096), false, || true);
            let newest = (0..=address).rev().take(24);
            let missing = newest.filter(|address| !dram.has(*address)).count();
            assert_eq!(missing, 0, "at {address}");
        }
    }

    /// Fetched 80 chunks ahead, read twice, and dropped 40 behind.
    #[test]
    fn a_scan_takes_room_for_what_is_ahead_of_it_and_leaves_the_rest() {
        let dram = Dram::new(16 * 100 * (4096 + OVERHEAD_BYTES), 4096);
        let hot = 0..1_500;
        for address in hot.clone() {
            dram.insert(address, &chunk(4096), false, || true);
        }
        let found = |range: Range<u64>| range.filter(|address| dram.has(*address)).count();
        let before = found(hot.clone());
        for address in 10_000..18_000 {
            dram.insert(address + 80, &chunk(4096), true, || true);
            for _ in 0..2 {
                assert!(address < 10_080 || dram.get(address, true).is_some());
            }
            dram.drop_passed(address - 40..address - 39);
        }
        assert!(found(hot.clone()) + 240 >= before, "{} of {before}", found(hot));
        assert_eq!(found(10_000..20_000), 120);
        // What somebody else has asked for stays, and so does what a scan finds there.
        dram.get(18_001, false);
        dram.insert(5, &chunk(4096), false, || true);
        for address in [5, 18_001] {
            dram.insert(address, &chunk(4096), true, || true);
        }
        dram.drop_passed(0..10);
        dram.drop_passed(17_900..18_010);
        assert!(dram.has(5) && dram.has(18_001) && !dram.has(18_002));
    }

    #[test]
    fn it_keeps_what_is_read_again_and_stays_within_its_bytes() {
        let dram = Dram::new(16 * 10 * (4096 + OVERHEAD_BYTES), 4096);
        for address in 0..2_000 {
            dram.insert(address, &chunk(4096 - (address % 3) as usize), false, || true);
            let often = dram.get(address % 20, false);
            if often.is_none() {
                dram.insert(address % 20, &chunk(4096), false, || true);
            }
            assert!(dram.bytes() <= 16 * 10 * (4096 + OVERHEAD_BYTES));
        }
        let kept = (0..20)
            .filter(|address| dram.get(*address, false).is_some())
            .count();
        assert!(kept >= 18, "{kept} of what is read often is there");
        let all = (0..2_000)
            .filter(|address| dram.get(*address, false).is_some())
            .count();
        assert!((140..=160).contains(&all), "{all} of 160");
        (0..2_000).for_each(|address| dram.remove(address));
        assert_eq!(dram.bytes(), 0);
        dram.insert(1, &chunk(4096), false, || false);
        assert!(dram.get(1, false).is_none(), "somebody has changed it");
        // Nor is there a tier that holds no chunk.
        Dram::new(16 * 4095, 4096).insert(1, &chunk(1), false, || unreachable!("nothing is kept"));
        dram.insert(1, &chunk(1), false, || true);
        dram.give_up();
        dram.insert(2, &chunk(1), false, || true);
        assert_eq!(dram.bytes(), 0);
    }
}
