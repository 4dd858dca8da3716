//! AustereCache, as its authors describe it: buckets, prefixes of hashes, subchunks, and a sketch in place of reference counters.
//!
//! Source: Wang, Li, Xia, Kruus, Debnath and Lee, *Austere Flash Caching with Deduplication and Compression* (ATC 2020). A slot of the
//! FP-index is a place of 8 KiB on flash; a chunk takes neighbouring slots of one bucket. A new chunk takes the place of those whose
//! addresses are worth least together: 2 for each address in the newer half of its bucket of the LBA-index, 1 in the older, summed in a
//! Count-Min sketch. Metadata of a slot, 512 bytes in a region of its own, is written a page of 4 KiB at a time, once for each new mapping.

use super::content::stored_bytes;
use super::{Cached, ChunkCache, Tally, Volume};
use crate::error::SimError;
use crate::ftl::Ftl;
use pumice_world::mix64;

const SUBCHUNK_BYTES: u64 = 8 << 10;
const METADATA_BYTES: u64 = 512;
const METADATA_PAGE_BYTES: u64 = 4 << 10;
const BUCKET_SLOTS: usize = 128;
/// Addresses of a bucket that are recent.
const RECENT: usize = BUCKET_SLOTS / 2;
const PREFIX_BITS: u32 = 16;
const SKETCH_ROWS: usize = 4;
const EMPTY: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Mapping {
    address: u32,
    content: u64,
}

/// A Count-Min sketch of what addresses make contents worth.
struct Sketch {
    rows: [Vec<u32>; SKETCH_ROWS],
}

impl Sketch {
    fn new(width: usize) -> Self {
        Self {
            rows: std::array::from_fn(|_| vec![0; width]),
        }
    }

    fn cell(&self, row: usize, content: u64) -> usize {
        (mix64(content ^ (row as u64 + 1) << 56) % self.rows[row].len() as u64) as usize
    }

    fn add(&mut self, content: u64, change: i32) {
        for row in 0..SKETCH_ROWS {
            let cell = self.cell(row, content);
            self.rows[row][cell] = self.rows[row][cell].saturating_add_signed(change);
        }
    }

    fn count(&self, content: u64) -> u64 {
        let counts = (0..SKETCH_ROWS).map(|row| self.rows[row][self.cell(row, content)]);
        counts.min().unwrap_or(0).into()
    }
}

/// The cache.
pub(super) struct Austere {
    volume: Volume,
    /// By bucket, the newest first.
    mappings: Vec<Vec<Mapping>>,
    /// By bucket and slot: the content of each subchunk.
    slots: Vec<Vec<u64>>,
    /// Slots of each of these buckets: [`BUCKET_SLOTS`], or fewer in the one bucket of a cache that has no room for as many.
    bucket_slots: usize,
    sketch: Sketch,
    drive: Ftl,
    tally: Tally,
}

/// Bucket and prefix of a hash.
fn split(hash: u64, buckets: usize) -> (usize, u64) {
    let upper = u128::from(hash >> PREFIX_BITS);
    let bucket = (upper * buckets as u128) >> (64 - PREFIX_BITS);
    (bucket as usize, hash & ((1 << PREFIX_BITS) - 1))
}

fn address_hash(address: u32) -> u64 {
    mix64(u64::from(address) ^ 0xadd7 << 32)
}

fn content_hash(content: u64) -> u64 {
    mix64(content ^ 0xf1a9 << 32)
}

impl Austere {
    pub(super) fn new(volume: Volume, drive: Ftl) -> Self {
        let slots = (volume.cache_bytes / (SUBCHUNK_BYTES + METADATA_BYTES)) as usize;
        let buckets = (slots / BUCKET_SLOTS).max(1);
        // The metadata of a bucket are whole pages.
        let metadata_slots = (METADATA_PAGE_BYTES / METADATA_BYTES) as usize;
        let bucket_slots = slots.min(BUCKET_SLOTS) / metadata_slots * metadata_slots;
        let address_buckets = volume.mappings.div_ceil(BUCKET_SLOTS as u64).max(1);
        Self {
            volume,
            mappings: vec![Vec::new(); address_buckets as usize],
            slots: vec![vec![EMPTY; bucket_slots]; buckets],
            bucket_slots,
            sketch: Sketch::new(buckets * bucket_slots),
            drive,
            tally: Tally::default(),
        }
    }

    /// Where the content that a slot's prefix matches begins: another one with the same prefix fails the check on flash.
    fn find(&self, content: u64) -> (usize, Option<usize>) {
        let (bucket, prefix) = split(content_hash(content), self.slots.len());
        let is_like = |slot: &u64| {
            *slot == content
                || *slot != EMPTY && split(content_hash(*slot), self.slots.len()) == (bucket, prefix)
        };
        (bucket, self.slots[bucket].iter().position(is_like))
    }

    fn has(&self, content: u64) -> bool {
        let (bucket, at) = self.find(content);
        at.is_some_and(|at| self.slots[bucket][at] == content)
    }

    /// Subchunks of a content, at most a bucket's slots.
    fn subchunks(&self, content: u64) -> usize {
        let bytes = stored_bytes(content, self.volume.chunk_bytes);
        let subchunks = u64::from(bytes).div_ceil(SUBCHUNK_BYTES) as usize;
        subchunks.min(self.bucket_slots)
    }

    /// The slots that cost least: what the chunks in them, also in part, are worth together.
    fn victims(&self, bucket: usize, wanted: usize) -> usize {
        let slots = &self.slots[bucket];
        // What each chunk is worth, at its first slot; then sums of those that a window begins or touches.
        let mut worth = [0u64; BUCKET_SLOTS];
        for at in 0..slots.len() {
            let is_first = at == 0 || slots[at - 1] != slots[at];
            worth[at] = match slots[at] {
                EMPTY => 0,
                content if is_first => self.sketch.count(content),
                _ => worth[at - 1],
            };
        }
        let cost = |start: usize| {
            let mut sum = worth[start];
            for at in start + 1..start + wanted {
                if slots[at] != slots[at - 1] {
                    sum += worth[at];
                }
            }
            sum
        };
        (0..=slots.len() - wanted)
            .min_by_key(|start| cost(*start))
            .unwrap_or(0)
    }

    fn evict(&mut self, bucket: usize, content: u64) {
        for slot in &mut self.slots[bucket] {
            if *slot == content {
                *slot = EMPTY;
            }
        }
    }

    fn store(&mut self, content: u64) -> usize {
        let (bucket, found) = self.find(content);
        if let Some(at) = found {
            let other = self.slots[bucket][at];
            self.evict(bucket, other);
        }
        let wanted = self.subchunks(content);
        let start = self.victims(bucket, wanted);
        for at in start..start + wanted {
            let victim = self.slots[bucket][at];
            if victim != EMPTY {
                self.evict(bucket, victim);
            }
        }
        self.slots[bucket][start..start + wanted].fill(content);
        self.tally.stored(stored_bytes(content, self.volume.chunk_bytes));
        let slot = (bucket * self.bucket_slots + start) as u64;
        let region = (self.slots.len() * self.bucket_slots) as u64 * METADATA_BYTES;
        self.write(region + slot * SUBCHUNK_BYTES, wanted as u64 * SUBCHUNK_BYTES);
        bucket * self.bucket_slots + start
    }

    fn write(&mut self, offset: u64, bytes: u64) {
        self.tally.device_bytes += bytes;
        self.drive.write(offset, bytes);
    }

    fn write_metadata(&mut self, slot: usize) {
        let page = slot as u64 * METADATA_BYTES / METADATA_PAGE_BYTES;
        self.write(page * METADATA_PAGE_BYTES, METADATA_PAGE_BYTES);
    }

    /// Makes a mapping its bucket's newest.
    fn touch(&mut self, bucket: usize, at: usize) {
        let mappings = &mut self.mappings[bucket];
        if at >= RECENT {
            self.sketch.add(mappings[at].content, 1);
            self.sketch.add(mappings[RECENT - 1].content, -1);
        }
        mappings[..=at].rotate_right(1);
    }

    /// Maps an address, as its bucket's newest; whether it led elsewhere.
    fn map(&mut self, address: u32, content: u64) -> bool {
        let (bucket, prefix) = split(address_hash(address), self.mappings.len());
        let is_like =
            |mapping: &Mapping| split(address_hash(mapping.address), self.mappings.len()).1 == prefix;
        if let Some(at) = self.mappings[bucket].iter().position(is_like) {
            let old = std::mem::replace(&mut self.mappings[bucket][at], Mapping { address, content });
            if old.address == address && old.content == content {
                self.touch(bucket, at);
                return false;
            }
            let worth = if at < RECENT { 2 } else { 1 };
            self.sketch.add(old.content, -worth);
            self.sketch.add(content, worth);
            self.touch(bucket, at);
            return true;
        }
        let mappings = &mut self.mappings[bucket];
        if mappings.len() == BUCKET_SLOTS
            && let Some(oldest) = mappings.pop()
        {
            self.sketch.add(oldest.content, -1);
        }
        if mappings.len() >= RECENT {
            self.sketch.add(mappings[RECENT - 1].content, -1);
        }
        mappings.insert(0, Mapping { address, content });
        self.sketch.add(content, 2);
        true
    }

    fn enter(&mut self, Cached { address, content }: Cached) {
        let is_new = self.map(address, content);
        let (bucket, found) = self.find(content);
        let found = found.filter(|at| self.slots[bucket][*at] == content);
        match found {
            Some(at) => {
                self.tally.duplicates += 1;
                if is_new {
                    self.write_metadata(bucket * self.bucket_slots + at);
                }
            }
            None => {
                let slot = self.store(content);
                self.write_metadata(slot);
            }
        }
    }
}

impl ChunkCache for Austere {
    fn read(&mut self, cached: Cached) -> Result<bool, SimError> {
        let Cached { address, content } = cached;
        let (bucket, _) = split(address_hash(address), self.mappings.len());
        let at = self.mappings[bucket]
            .iter()
            .position(|mapping| mapping.address == address);
        if let Some(at) = at
            && self.mappings[bucket][at].content == content
            && self.has(content)
        {
            self.touch(bucket, at);
            return Ok(true);
        }
        self.enter(cached);
        Ok(false)
    }

    fn write(&mut self, cached: Cached) -> Result<(), SimError> {
        self.enter(cached);
        Ok(())
    }

    fn finish(&mut self) -> Result<Tally, SimError> {
        let mut contents = 0;
        for bucket in &self.slots {
            let firsts = (0..bucket.len()).filter(|at| *at == 0 || bucket[at - 1] != bucket[*at]);
            contents += firsts.filter(|at| bucket[*at] != EMPTY).count() as u64;
        }
        let slots = (self.slots.len() * self.bucket_slots) as u64;
        Ok(Tally {
            mapped: self.mappings.iter().map(|bucket| bucket.len() as u64).sum(),
            contents,
            // A prefix of the address' hash, a hash of the fingerprint, a flag; a prefix and a flag, and the sketch.
            address_dram_bytes: (self.mappings.len() * BUCKET_SLOTS) as u64 * 53 / 8,
            content_dram_bytes: slots * 17 / 8 + slots * SKETCH_ROWS as u64,
            device_write_amplification: self.drive.device_write_amplification(),
            ..self.tally
        })
    }
}
