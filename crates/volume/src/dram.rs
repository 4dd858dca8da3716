//! Chunks in DRAM, before those on flash: CLOCK, a hand in each shard.

use parking_lot::Mutex;
use pumice_chunk::store::Chunk;
use pumice_world::mix64;
use std::collections::HashMap;
use std::sync::Arc;

/// A power of two.
const SHARDS: u64 = 16;
/// What a chunk takes beside its bytes: its slot, its entry in the map, reference counts, and what the allocator rounds up.
const OVERHEAD_BYTES: usize = 160;

struct Slot {
    address: u64,
    chunk: Arc<Chunk>,
    /// Since the hand came by.
    is_touched: bool,
}

#[derive(Default)]
struct Shard {
    /// By address, in `slots`.
    map: HashMap<u64, usize>,
    slots: Vec<Slot>,
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

    /// Evicts until `bytes` fit.
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
}

fn cost(chunk: &Chunk) -> usize {
    chunk.bytes.capacity() + OVERHEAD_BYTES
}

/// The tier. What it has of a chunk is what the backing device has: whoever changes a chunk removes it.
pub(crate) struct Dram {
    shards: Box<[Mutex<Shard>]>,
    /// Of a shard.
    bytes_max: usize,
}

impl Dram {
    /// A tier of so many bytes; of 0 it keeps nothing.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes_max: bytes / SHARDS as usize,
        }
    }

    /// Whether it keeps anything.
    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    fn shard(&self, address: u64) -> &Mutex<Shard> {
        &self.shards[(mix64(address) % SHARDS) as usize]
    }

    /// What it has of a chunk.
    pub(crate) fn get(&self, address: u64) -> Option<Arc<Chunk>> {
        if !self.is_on() {
            return None;
        }
        let mut shard = self.shard(address).lock();
        let at = *shard.map.get(&address)?;
        let slot = &mut shard.slots[at];
        slot.is_touched = true;
        Some(Arc::clone(&slot.chunk))
    }

    /// Takes a chunk, if `is_current` says that nobody has changed it since it was read. Who changes it does so first, and then removes it
    /// here: so that either this sees the change, or that comes after this.
    pub(crate) fn insert(&self, address: u64, chunk: &Arc<Chunk>, is_current: impl FnOnce() -> bool) {
        let bytes = cost(chunk);
        if bytes > self.bytes_max {
            return;
        }
        let mut shard = self.shard(address).lock();
        if !is_current() {
            return;
        }
        shard.remove(address);
        shard.make_room(bytes, self.bytes_max);
        let at = shard.slots.len();
        shard.map.insert(address, at);
        shard.slots.push(Slot {
            address,
            chunk: Arc::clone(chunk),
            is_touched: false,
        });
        shard.bytes += bytes;
    }

    /// A chunk is about to change.
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
        let (start, bytes) = (0, vec![1; len]);
        Arc::new(Chunk { start, bytes })
    }

    #[test]
    fn it_keeps_what_is_read_again_and_stays_within_its_bytes() {
        let dram = Dram::new(16 * 10 * (4096 + OVERHEAD_BYTES));
        for address in 0..2_000 {
            dram.insert(address, &chunk(4096 - (address % 3) as usize), || true);
            let often = dram.get(address % 20);
            if often.is_none() {
                dram.insert(address % 20, &chunk(4096), || true);
            }
            assert!(dram.bytes() <= 16 * 10 * (4096 + OVERHEAD_BYTES));
        }
        let kept = (0..20).filter(|address| dram.get(*address).is_some()).count();
        assert!(kept >= 18, "{kept} of what is read often is there");
        let all = (0..2_000).filter(|address| dram.get(*address).is_some()).count();
        assert!((140..=160).contains(&all), "{all} of 160");
        (0..2_000).for_each(|address| dram.remove(address));
        assert_eq!(dram.bytes(), 0);
        dram.insert(1, &chunk(4096), || false);
        assert!(dram.get(1).is_none(), "somebody has changed it");
        Dram::new(0).insert(1, &chunk(1), || unreachable!("nothing is kept"));
    }
}
