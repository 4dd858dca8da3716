//! CacheDedup's caches, with full indexes: D-LRU and D-ARC, and the same with compression.
//!
//! Source: Li, Jean-Baptiste, Riveros, Narasimhan, Zhang and Zhao, *CacheDedup: In-line Deduplication for Flash Caching* (FAST 2016).
//! Addresses lead to fingerprints, fingerprints to data; a hit needs both. D-LRU keeps an LRU queue of each. D-ARC keeps the addresses as
//! ARC does; data goes when no address leads to it, so room for data is made by demoting addresses.
//!
//! Kinder to them than what can be built: with compression a content takes its own bytes and no more, wherever it is, and nothing of
//! the index is written; the ghosts of D-ARC come on top of its addresses, and take no DRAM.

use super::content::stored_bytes;
use super::lists::{Lists, OUT};
use super::{Cached, ChunkCache, Tally, Volume};
use crate::error::SimError;
use crate::ftl::Ftl;
use hashbrown::HashMap;

/// DRAM of an address, and of a fingerprint: the fields, and the links of a list.
const ADDRESS_BYTES: u64 = 28 + 16;
const FINGERPRINT_BYTES: u64 = 32 + 16;
/// Lists of addresses: seen once, seen again, and ghosts of both. D-LRU has the first alone.
const T1: u8 = 0;
const T2: u8 = 1;
const B1: u8 = 2;
const B2: u8 = 3;
/// Lists of data: somebody leads there, nobody does. D-LRU has the first alone.
const USED: u8 = 0;
const UNUSED: u8 = 1;

/// What of a content is cached.
#[derive(Clone, Copy)]
struct Data {
    content: u64,
    bytes: u32,
    /// Addresses of T1 and T2 that lead here.
    references: u32,
}

/// The data, in slots.
struct DataCache {
    by_content: HashMap<u64, u32>,
    slots: Vec<Data>,
    free: Vec<u32>,
    lists: Lists<2>,
    bytes: u64,
    bytes_max: u64,
    contents_max: u64,
}

impl DataCache {
    fn has_room(&self, bytes: u32) -> bool {
        self.bytes + u64::from(bytes) <= self.bytes_max && (self.by_content.len() as u64) < self.contents_max
    }

    fn insert(&mut self, content: u64, bytes: u32) -> u32 {
        let data = Data {
            content,
            bytes,
            references: 0,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = data;
                slot
            }
            None => {
                self.slots.push(data);
                self.slots.len() as u32 - 1
            }
        };
        self.by_content.insert(content, slot);
        self.bytes += u64::from(bytes);
        slot
    }

    fn evict(&mut self, slot: u32) {
        let data = self.slots[slot as usize];
        self.lists.remove(slot);
        self.by_content.remove(&data.content);
        self.bytes -= u64::from(data.bytes);
        self.free.push(slot);
    }
}

/// One of the four.
pub(super) struct FullIndex {
    volume: Volume,
    is_arc: bool,
    is_compressed: bool,
    addresses_max: usize,
    /// The content of each address that is in a list.
    contents: Vec<u64>,
    addresses: Lists<4>,
    data: DataCache,
    /// ARC's target for T1.
    target: usize,
    drive: Option<Ftl>,
    tally: Tally,
}

impl FullIndex {
    /// `contents_max` bounds the fingerprints; `drive` has room for whole chunks, and is there without compression alone.
    pub(super) fn new(
        volume: Volume,
        is_arc: bool,
        is_compressed: bool,
        contents_max: Option<u64>,
        drive: Option<Ftl>,
    ) -> Self {
        let data = DataCache {
            by_content: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            lists: Lists::new(),
            bytes: 0,
            bytes_max: volume.cache_bytes,
            contents_max: contents_max.unwrap_or(u64::MAX),
        };
        Self {
            volume,
            is_arc,
            is_compressed,
            addresses_max: usize::try_from(volume.mappings).unwrap_or(usize::MAX).max(1),
            contents: vec![0; volume.chunks as usize],
            addresses: Lists::new(),
            data,
            target: 0,
            drive,
            tally: Tally::default(),
        }
    }

    fn is_mapped(&self, address: u32) -> bool {
        matches!(self.addresses.list(address), T1 | T2)
    }

    /// Under ARC an address that is mapped holds its data.
    fn refer(&mut self, slot: u32) {
        self.data.slots[slot as usize].references += 1;
        self.data.lists.push(USED, slot);
    }

    fn release(&mut self, address: u32) {
        let Some(slot) = self
            .data
            .by_content
            .get(&self.contents[address as usize])
            .copied()
        else {
            return;
        };
        let data = &mut self.data.slots[slot as usize];
        data.references -= 1;
        if data.references == 0 {
            self.data.lists.push(UNUSED, slot);
        }
    }

    /// ARC: demotes an address to a ghost; whether there was one.
    fn demote(&mut self) -> bool {
        let from = if self.addresses.len(T1) > 0 && self.addresses.len(T1) >= self.target.max(1)
            || self.addresses.len(T2) == 0
        {
            T1
        } else {
            T2
        };
        let Some(address) = self.addresses.oldest(from) else {
            return false;
        };
        self.release(address);
        self.addresses.push(if from == T1 { B1 } else { B2 }, address);
        let (t1, t2) = (self.addresses.len(T1), self.addresses.len(T2));
        let resident = (t1 + t2).max(1);
        while self.addresses.len(B1) + self.addresses.len(B2) > resident {
            let from_b1 = t1 + self.addresses.len(B1) > resident || self.addresses.len(B2) == 0;
            let ghost = self.addresses.oldest(if from_b1 { B1 } else { B2 });
            let ghost = ghost.or_else(|| self.addresses.oldest(B2));
            ghost.into_iter().for_each(|ghost| self.addresses.remove(ghost));
        }
        true
    }

    fn make_room(&mut self, bytes: u32) {
        while !self.data.has_room(bytes) {
            if self.is_arc {
                match self.data.lists.oldest(UNUSED) {
                    Some(slot) => self.data.evict(slot),
                    None if self.demote() => {}
                    None => return,
                }
            } else {
                match self.data.lists.oldest(USED) {
                    Some(slot) => self.data.evict(slot),
                    None => return,
                }
            }
        }
    }

    /// The slot of a content; it is written where it is not there.
    fn store(&mut self, content: u64) -> u32 {
        if let Some(slot) = self.data.by_content.get(&content) {
            self.tally.duplicates += 1;
            return *slot;
        }
        let chunk_bytes = self.volume.chunk_bytes;
        let compressed = stored_bytes(content, chunk_bytes);
        let bytes = if self.is_compressed {
            compressed
        } else {
            chunk_bytes
        };
        self.make_room(bytes);
        let slot = self.data.insert(content, bytes);
        self.tally.stored(compressed);
        self.tally.device_bytes += u64::from(bytes);
        if let Some(drive) = &mut self.drive {
            drive.write(u64::from(slot) * u64::from(chunk_bytes), bytes.into());
        }
        slot
    }

    fn enter(&mut self, address: u32, content: u64) {
        if !self.is_arc {
            let slot = self.store(content);
            self.data.lists.push(USED, slot);
            self.addresses.push(T1, address);
            self.contents[address as usize] = content;
            if self.addresses.len(T1) > self.addresses_max
                && let Some(oldest) = self.addresses.oldest(T1)
            {
                self.addresses.remove(oldest);
            }
            return;
        }
        let to = match self.addresses.list(address) {
            T1 | T2 => {
                self.release(address);
                T2
            }
            B1 => {
                let (b1, b2) = (self.addresses.len(B1), self.addresses.len(B2));
                let most = self.addresses.len(T1) + self.addresses.len(T2);
                self.target = (self.target + (b2 / b1).max(1)).min(most);
                T2
            }
            B2 => {
                let (b1, b2) = (self.addresses.len(B1), self.addresses.len(B2));
                self.target = self.target.saturating_sub((b1 / b2).max(1));
                T2
            }
            _ => T1,
        };
        self.addresses.remove(address);
        while self.addresses.len(T1) + self.addresses.len(T2) >= self.addresses_max && self.demote() {}
        let slot = self.store(content);
        self.refer(slot);
        self.contents[address as usize] = content;
        self.addresses.push(to, address);
    }
}

impl ChunkCache for FullIndex {
    fn read(&mut self, cached: Cached) -> Result<bool, SimError> {
        let Cached { address, content } = cached;
        let slot = self.data.by_content.get(&content).copied();
        if let Some(slot) = slot.filter(|_| self.is_mapped(address)) {
            let to = if self.is_arc { T2 } else { T1 };
            self.addresses.push(to, address);
            self.data.lists.push(USED, slot);
            return Ok(true);
        }
        self.enter(address, content);
        Ok(false)
    }

    fn write(&mut self, cached: Cached) -> Result<(), SimError> {
        self.enter(cached.address, cached.content);
        Ok(())
    }

    fn finish(&mut self) -> Result<Tally, SimError> {
        let mapped = (self.addresses.len(T1) + self.addresses.len(T2)) as u64;
        debug_assert_eq!(self.addresses.list(u32::MAX), OUT);
        let fingerprints = self.volume.fingerprints(self.is_compressed);
        Ok(Tally {
            mapped,
            contents: self.data.by_content.len() as u64,
            address_dram_bytes: self.volume.mappings * ADDRESS_BYTES,
            content_dram_bytes: fingerprints.min(self.data.contents_max) * FINGERPRINT_BYTES,
            device_write_amplification: self.drive.as_ref().and_then(Ftl::device_write_amplification),
            ..self.tally
        })
    }
}

/// The fingerprints that DRAM of so many bytes has room for beside so many addresses.
pub(super) fn fingerprints_in(dram_bytes: u64, addresses: u64) -> u64 {
    dram_bytes.saturating_sub(addresses.saturating_mul(ADDRESS_BYTES)) / FINGERPRINT_BYTES
}
