//! A packed hash table in pages: tag in, payload out, 8 to 10 bytes an entry, never doubled.
//!
//! # Benefits
//! - An entry costs `2 + rest_bytes` bytes; at the load this table keeps (87 to 94 %) that is about 10 bytes for a 9-byte entry.
//! - Growth is by one twelfth, page by page: the old table is given back while the new one is filled, so growing needs
//!   the growth itself and a few kilobytes, never a second table.
//! - A lookup touches one cache line for the tags and one for each match.
//!
//! # Costs
//! - Growth moves every entry of this table (some 12 moves per insert while growing): keep tables small, that is, have
//!   many shards.
//! - Keys are not here: what looks equal to the stored bits *is* equal to this table; its users verify or accept it.
//!
//! # Layout
//! A table is an array of `n` buckets of 256 bytes, 4 to a page, `n` any multiple of 4. An entry's home is bucket
//! `tag * n >> tag_bits`, computed from stored bits only, which is what lets a table of any size be rebuilt without
//! the keys. What does not fit its home goes to the next bucket with room.
//!
//! | offset | size | field      | meaning                                                              |
//! |-------:|-----:|------------|----------------------------------------------------------------------|
//! |      0 |    1 | `count`    | entries in this bucket, packed to the front                          |
//! |      1 |    1 | zero       |                                                                      |
//! |      2 |    2 | `passed`   | entries that found this bucket full and went on; 65535 means unknown |
//! |      4 | 2·N  | `tags`     | low 16 bits of each entry's tag                                      |
//! |  4+2·N | r·N  | `rests`    | upper tag bits over payload, `r` = `rest_bytes`, little-endian       |
//!
//! N = 252 / (2 + r): 31, 28 or 25 for r = 6, 7, 8.

mod walk;

use pumice_memory::{PAGE_BYTES, Page, PagePool, prefetch};
use std::collections::VecDeque;
use std::sync::Arc;

const BUCKET_BYTES: usize = 256;
const BUCKETS_PER_PAGE: usize = PAGE_BYTES / BUCKET_BYTES;
const HEADER_BYTES: usize = 4;
/// Above this load the table grows.
const LOAD_MAX_PERCENT: usize = 94;
const PASSED_UNKNOWN: u16 = u16::MAX;

type Bucket = [u8; BUCKET_BYTES];

/// How the bits of an entry are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    rest_bytes: usize,
    tag_bits: u32,
    payload_bits: u32,
    per_bucket: usize,
}

impl TableShape {
    /// A shape with `payload_bits` of payload in entries of `2 + rest_bytes` bytes; all other bits are tag.
    ///
    /// # Panics
    /// Where `rest_bytes` is not 6, 7 or 8, or fewer than 17 bits would be left for the tag.
    pub fn new(rest_bytes: usize, payload_bits: u32) -> Self {
        assert!((6..=8).contains(&rest_bytes), "entries have 8 to 10 bytes");
        let rest_bits = u32::try_from(rest_bytes * 8).expect("at most 64");
        assert!(payload_bits < rest_bits, "no bit left for the tag");
        Self {
            rest_bytes,
            tag_bits: 16 + rest_bits - payload_bits,
            payload_bits,
            per_bucket: (BUCKET_BYTES - HEADER_BYTES) / (2 + rest_bytes),
        }
    }

    /// Width of a tag in bits.
    pub fn tag_bits(&self) -> u32 {
        self.tag_bits
    }

    /// Bytes of one entry, without slack.
    pub fn entry_bytes(&self) -> usize {
        2 + self.rest_bytes
    }

    /// Width of a payload in bits.
    pub fn payload_bits(&self) -> u32 {
        self.payload_bits
    }

    /// Tag and payload of an entry that [`PackedTable::dump`] wrote, [`TableShape::entry_bytes`] long.
    pub fn undump(&self, entry: &[u8]) -> (u64, u64) {
        let mut wide = [0; 16];
        wide[..entry.len()].copy_from_slice(entry);
        let whole = u128::from_le_bytes(wide);
        (
            (whole >> self.payload_bits) as u64,
            whole as u64 & self.payload_mask(),
        )
    }

    fn payload_mask(&self) -> u64 {
        (1 << self.payload_bits) - 1
    }
}

/// No page was to be had and the table has no room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

/// The table; see the module's text. Several entries may have equal tags.
pub struct PackedTable {
    shape: TableShape,
    pool: Arc<PagePool>,
    /// Bucket `b` is in page `b / 4`. Pages are missing only while a rebuild is under way.
    pages: Vec<Option<Page>>,
    len: usize,
}

impl PackedTable {
    /// An empty table, which holds no page.
    pub fn new(shape: TableShape, pool: Arc<PagePool>) -> Self {
        Self {
            shape,
            pool,
            pages: Vec::new(),
            len: 0,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How the bits of an entry are divided.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// DRAM held, in bytes: pages and their directory.
    pub fn dram_bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES + self.pages.capacity() * size_of::<Option<Page>>()
    }

    /// The first payload under `tag` that `accept` likes.
    pub fn find(&self, tag: u64, accept: impl FnMut(u64) -> bool) -> Option<u64> {
        self.seek(tag, accept).map(|at| at.payload)
    }

    /// Asks for the bucket where `tag` is at home, so that a search that comes soon need not wait for memory.
    pub fn prefetch(&self, tag: u64) {
        if !self.pages.is_empty() {
            prefetch(self.bucket(self.home(tag)));
        }
    }

    /// Adds an entry; it does not look for an equal one.
    ///
    /// # Errors
    /// [`TableFull`]; the table is then as it was.
    pub fn insert(&mut self, tag: u64, payload: u64) -> Result<(), TableFull> {
        debug_assert!(tag >> self.shape.tag_bits == 0 && payload >> self.shape.payload_bits == 0);
        let slots = self.buckets() * self.shape.per_bucket;
        if (self.len + 1) * 100 > slots * LOAD_MAX_PERCENT {
            let grown = self.pages.len() + (self.pages.len() / 12).max(1);
            if !self.rebuild(grown) && (self.len + 1) * 100 > slots * 98 {
                return Err(TableFull);
            }
        }
        self.place(tag, payload);
        self.len += 1;
        Ok(())
    }

    /// Changes the first payload under `tag` that `change` answers with `Some`, and returns (old, new).
    pub fn update(&mut self, tag: u64, mut change: impl FnMut(u64) -> Option<u64>) -> Option<(u64, u64)> {
        let mut new = None;
        let at = self.seek(tag, |payload| {
            new = change(payload);
            new.is_some()
        })?;
        let new = new.expect("seek stopped at an accepted payload");
        debug_assert!(new >> self.shape.payload_bits == 0);
        if new != at.payload {
            self.write_rest(at.bucket, at.slot, tag, new);
        }
        Some((at.payload, new))
    }

    /// Removes the first entry under `tag` whose payload `accept` likes, and returns the payload.
    pub fn remove(&mut self, tag: u64, accept: impl FnMut(u64) -> bool) -> Option<u64> {
        let at = self.seek(tag, accept)?;
        self.take_out(tag, at.bucket, at.slot);
        self.len -= 1;
        // Far emptier than it was: give pages back. 40 % to 80 % leaves room on both sides before the next rebuild.
        let slots = self.buckets() * self.shape.per_bucket;
        if self.pages.len() > 1 && self.len * 100 < slots * 40 {
            let wanted = (self.len * 100 / 80)
                .div_ceil(self.shape.per_bucket * BUCKETS_PER_PAGE)
                .max(1);
            self.rebuild(wanted);
        }
        Some(at.payload)
    }

    /// How many entries so many pages hold before the table grows.
    pub(crate) fn entries_of_pages(shape: TableShape, pages: usize) -> usize {
        pages * BUCKETS_PER_PAGE * shape.per_bucket * LOAD_MAX_PERCENT / 100
    }

    /// Gives back the pages that a table with room for so many entries, at least those that it has, does not need.
    pub(crate) fn shrink_to(&mut self, entries: usize) {
        let wanted = self.pages_for(entries.max(self.len));
        if wanted < self.pages.len() {
            self.rebuild(wanted);
        }
    }

    /// Takes the pages that so many more entries need, as far as the pool has them. Entries that come in the order of their tags need
    /// that: in a table that grows under them all crowd at its front, and each insertion passes all that came before.
    pub(crate) fn reserve(&mut self, more: usize) {
        let most = self.pages.len() + self.pool.free_pages();
        let wanted = self.pages_for(self.len.saturating_add(more)).min(most);
        if wanted > self.pages.len() {
            self.rebuild(wanted);
        }
    }

    fn pages_for(&self, entries: usize) -> usize {
        let slots = entries.saturating_mul(100).div_ceil(LOAD_MAX_PERCENT);
        slots.div_ceil(self.shape.per_bucket * BUCKETS_PER_PAGE)
    }

    /// Appends every entry to `out`, for a checkpoint: tag over payload.
    pub fn dump(&self, out: &mut Vec<u8>) {
        out.reserve(self.len() * self.shape.entry_bytes());
        self.for_each(|tag, payload| {
            let whole = u128::from(tag) << self.shape.payload_bits | u128::from(payload);
            out.extend_from_slice(&whole.to_le_bytes()[..self.shape.entry_bytes()]);
        });
    }

    /// Calls `visit` with every (tag, payload), in no useful order.
    pub fn for_each(&self, mut visit: impl FnMut(u64, u64)) {
        for bucket in 0..self.buckets() {
            for slot in 0..self.count(bucket) {
                let (tag, payload) = self.entry(bucket, slot);
                visit(tag, payload);
            }
        }
    }

    /// Changes every payload to what `change` makes of it.
    pub fn rewrite(&mut self, mut change: impl FnMut(u64) -> u64) {
        for bucket in 0..self.buckets() {
            self.sweep(bucket, |_, payload| Swept::Keep(change(payload)));
        }
    }

    /// Keeps the entries that `keep` likes.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, u64) -> bool) {
        for bucket in 0..self.buckets() {
            self.sweep(bucket, |tag, payload| match keep(tag, payload) {
                true => Swept::Keep(payload),
                false => Swept::Take,
            });
        }
    }

    /// Goes through one bucket, below [`PackedTable::buckets`], and does with each entry what `visit` says; whether it got to the
    /// end. Pages are not given back here.
    pub(crate) fn sweep(&mut self, bucket: usize, mut visit: impl FnMut(u64, u64) -> Swept) -> bool {
        let mut slot = 0;
        while slot < self.count(bucket) {
            let (tag, payload) = self.entry(bucket, slot);
            match visit(tag, payload) {
                Swept::Keep(new) => {
                    debug_assert!(new >> self.shape.payload_bits == 0);
                    if new != payload {
                        self.write_rest(bucket, slot, tag, new);
                    }
                    slot += 1;
                }
                Swept::Take => {
                    self.take_out(tag, bucket, slot);
                    self.len -= 1;
                }
                Swept::Stop => return false,
            }
        }
        true
    }

    /// Removes everything and gives all pages back.
    pub fn clear(&mut self) {
        self.pages = Vec::new();
        self.len = 0;
    }

    /// Re-derives counts and reachability.
    ///
    /// # Panics
    /// Where they do not agree.
    pub fn check_invariants(&self) {
        let mut seen = 0;
        for bucket in 0..self.buckets() {
            assert!(
                self.count(bucket) <= self.shape.per_bucket,
                "bucket {bucket} holds more than fits"
            );
            for slot in 0..self.count(bucket) {
                let (tag, payload) = self.entry(bucket, slot);
                seen += 1;
                assert!(
                    self.find(tag, |p| p == payload).is_some(),
                    "entry of bucket {bucket} cannot be found"
                );
            }
        }
        assert_eq!(seen, self.len, "length differs from the entries");
    }

    /// Number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.pages.len() * BUCKETS_PER_PAGE
    }

    fn home(&self, tag: u64) -> usize {
        // Tags have at most 48 bits minus payload, buckets fewer than 2^24: the product fits u128 always, u64 mostly.
        let wide = u128::from(tag) * self.buckets() as u128;
        usize::try_from(wide >> self.shape.tag_bits).expect("below the number of buckets")
    }

    fn bucket(&self, bucket: usize) -> &Bucket {
        let page = self.pages[bucket / BUCKETS_PER_PAGE]
            .as_ref()
            .expect("no rebuild is under way");
        &page.bytes().as_chunks().0[bucket % BUCKETS_PER_PAGE]
    }

    fn bucket_mut(&mut self, bucket: usize) -> &mut Bucket {
        let page = self.pages[bucket / BUCKETS_PER_PAGE]
            .as_mut()
            .expect("no rebuild is under way");
        &mut page.bytes_mut().as_chunks_mut().0[bucket % BUCKETS_PER_PAGE]
    }

    fn count(&self, bucket: usize) -> usize {
        usize::from(self.bucket(bucket)[0])
    }

    fn entry(&self, bucket: usize, slot: usize) -> (u64, u64) {
        let bytes = self.bucket(bucket);
        let low = u64::from(read_tag(bytes, slot));
        let rest = read_rest(bytes, &self.shape, slot);
        (
            (rest >> self.shape.payload_bits) << 16 | low,
            rest & self.shape.payload_mask(),
        )
    }

    fn seek(&self, tag: u64, mut accept: impl FnMut(u64) -> bool) -> Option<Found> {
        let buckets = self.buckets();
        if buckets == 0 {
            return None;
        }
        let shape = &self.shape;
        let low = tag as u16;
        let high = tag >> 16;
        let mut bucket = self.home(tag);
        for _ in 0..buckets {
            let bytes = self.bucket(bucket);
            let count = usize::from(bytes[0]);
            for slot in Matches::new(bytes, low).take_while(|slot| *slot < count) {
                let rest = read_rest(bytes, shape, slot);
                let payload = rest & shape.payload_mask();
                if rest >> shape.payload_bits == high && accept(payload) {
                    return Some(Found {
                        bucket,
                        slot,
                        payload,
                    });
                }
            }
            if read_passed(bytes) == 0 {
                return None;
            }
            bucket = if bucket + 1 == buckets { 0 } else { bucket + 1 };
        }
        None
    }

    /// Puts an entry into the first bucket with room from its home on. There is room: loads stay below 100 %.
    fn place(&mut self, tag: u64, payload: u64) {
        let buckets = self.buckets();
        let mut bucket = self.home(tag);
        loop {
            let count = self.count(bucket);
            if count < self.shape.per_bucket {
                self.bucket_mut(bucket)[0] += 1;
                self.write_rest(bucket, count, tag, payload);
                let bytes = self.bucket_mut(bucket);
                bytes[HEADER_BYTES + 2 * count..][..2].copy_from_slice(&(tag as u16).to_le_bytes());
                return;
            }
            let bytes = self.bucket_mut(bucket);
            let passed = read_passed(bytes).saturating_add(1);
            bytes[2..4].copy_from_slice(&passed.to_le_bytes());
            bucket = if bucket + 1 == buckets { 0 } else { bucket + 1 };
        }
    }

    fn write_rest(&mut self, bucket: usize, slot: usize, tag: u64, payload: u64) {
        let shape = self.shape;
        let rest = (tag >> 16) << shape.payload_bits | payload;
        let at = HEADER_BYTES + 2 * shape.per_bucket + slot * shape.rest_bytes;
        self.bucket_mut(bucket)[at..at + shape.rest_bytes]
            .copy_from_slice(&rest.to_le_bytes()[..shape.rest_bytes]);
    }

    /// Removes slot `slot` of `bucket` and forgets that its entry passed the buckets before.
    fn take_out(&mut self, tag: u64, bucket: usize, slot: usize) {
        let shape = self.shape;
        let bytes = self.bucket_mut(bucket);
        let last = usize::from(bytes[0]) - 1;
        let tags = HEADER_BYTES;
        let rests = HEADER_BYTES + 2 * shape.per_bucket;
        bytes.copy_within(tags + 2 * last..tags + 2 * last + 2, tags + 2 * slot);
        let from = rests + last * shape.rest_bytes;
        bytes.copy_within(from..from + shape.rest_bytes, rests + slot * shape.rest_bytes);
        bytes[0] -= 1;
        let buckets = self.buckets();
        let mut passed_by = self.home(tag);
        while passed_by != bucket {
            let bytes = self.bucket_mut(passed_by);
            let passed = read_passed(bytes);
            if passed != PASSED_UNKNOWN {
                bytes[2..4].copy_from_slice(&(passed - 1).to_le_bytes());
            }
            passed_by = if passed_by + 1 == buckets {
                0
            } else {
                passed_by + 1
            };
        }
    }

    /// Moves all entries to a table of `page_count` pages; false, and nothing changed, if there are too few pages.
    ///
    /// Old pages are emptied in order, and new ones filled in nearly the same order, from a stash that the emptied ones go to.
    /// Where entries stand far from their homes (long spills, the wrap at the end) the new table may want a page before the
    /// stash has one: then the next old page is emptied early. Old pages and growth together are the new table, so the
    /// stash never runs out for good.
    fn rebuild(&mut self, page_count: usize) -> bool {
        let mut stash: Vec<Page> = Vec::new();
        while self.pages.len() + stash.len() < page_count {
            match self.pool.take() {
                Some(page) => stash.push(page),
                None => return false,
            }
        }
        let mut pages = Vec::with_capacity(page_count);
        pages.resize_with(page_count, || None);
        let mut old = std::mem::replace(&mut self.pages, pages).into_iter().flatten();
        let mut entries = VecDeque::new();
        let shape = self.shape;
        let mut empty_next = |entries: &mut VecDeque<(u64, u64)>, stash: &mut Vec<Page>| {
            let Some(mut page) = old.next() else { return false };
            for bucket in page.bytes().as_chunks::<BUCKET_BYTES>().0 {
                for slot in 0..usize::from(bucket[0]) {
                    let rest = read_rest(bucket, &shape, slot);
                    let tag = (rest >> shape.payload_bits) << 16 | u64::from(read_tag(bucket, slot));
                    entries.push_back((tag, rest & shape.payload_mask()));
                }
            }
            page.bytes_mut().fill(0);
            stash.push(page);
            true
        };
        while !entries.is_empty() || empty_next(&mut entries, &mut stash) {
            let Some((tag, payload)) = entries.pop_front() else {
                continue;
            };
            // Fill in the pages that this entry may touch, spilling included.
            let buckets = self.buckets();
            let mut bucket = self.home(tag);
            loop {
                let page = &mut self.pages[bucket / BUCKETS_PER_PAGE];
                if page.is_none() {
                    if stash.is_empty() {
                        empty_next(&mut entries, &mut stash);
                    }
                    *page = Some(
                        stash
                            .pop()
                            .expect("old pages and growth are as many as the new table has"),
                    );
                }
                if self.count(bucket) < shape.per_bucket {
                    break;
                }
                bucket = if bucket + 1 == buckets { 0 } else { bucket + 1 };
            }
            self.place(tag, payload);
        }
        for page in &mut self.pages {
            if page.is_none() {
                *page = Some(
                    stash
                        .pop()
                        .expect("old pages and growth are as many as the new table has"),
                );
            }
        }
        true
    }
}

/// What [`PackedTable::sweep`] does with an entry.
pub(crate) enum Swept {
    /// Keeps it, with this payload.
    Keep(u64),
    /// Removes it.
    Take,
    /// Leaves it and all that follow as they are.
    Stop,
}

struct Found {
    bucket: usize,
    slot: usize,
    payload: u64,
}

fn read_passed(bucket: &Bucket) -> u16 {
    u16::from_le_bytes([bucket[2], bucket[3]])
}

fn read_tag(bucket: &Bucket, slot: usize) -> u16 {
    let at = HEADER_BYTES + 2 * slot;
    u16::from_le_bytes([bucket[at], bucket[at + 1]])
}

/// Reads the eight bytes that end with the entry: one load, whatever the entry's length.
fn read_rest(bucket: &Bucket, shape: &TableShape, slot: usize) -> u64 {
    let end = HEADER_BYTES + 2 * shape.per_bucket + (slot + 1) * shape.rest_bytes;
    let wide = bucket[end - 8..end].first_chunk().expect("eight bytes");
    u64::from_le_bytes(*wide) >> (64 - 8 * shape.rest_bytes)
}

/// Slots of a bucket whose low tag is a wanted one, rising. Bit `16 i + k` stands for slot `4 k + i`: the tags are compared four
/// at a time, in words of 64 bits.
struct Matches(u64);

impl Matches {
    #[inline]
    fn new(bucket: &Bucket, low: u16) -> Self {
        const ONES: u64 = 0x0001_0001_0001_0001;
        const LOW_BITS: u64 = 0x7FFF * ONES;
        let wanted = u64::from(low) * ONES;
        let words = bucket[HEADER_BYTES..HEADER_BYTES + 64].as_chunks::<8>().0;
        let mut matches = 0;
        for (k, word) in words.iter().enumerate() {
            let differing = u64::from_le_bytes(*word) ^ wanted;
            // The highest bit of each tag that differs in any; no sum carries into the next tag.
            let any = ((differing & LOW_BITS) + LOW_BITS) | differing;
            matches |= (!any >> 15 & ONES) << k;
        }
        Self(matches)
    }
}

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let halves = self.0 | self.0 >> 32;
        let k = ((halves | halves >> 16) & 0xFF).trailing_zeros();
        let i = (self.0 >> k & 0x0001_0001_0001_0001).trailing_zeros() / 16;
        self.0 ^= 1 << (16 * i + k);
        Some((4 * k + i) as usize)
    }
}

#[cfg(test)]
mod tests;
