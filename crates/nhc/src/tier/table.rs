//! Which block has a copy, and where: one word for each block, changed by compare-and-swap.

use super::Division;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word: the version in the upper 32 bits, then two marks, then the place plus 1, or 0.
const VERSION: u64 = 1 << 32;
/// The block is not whole: a part of it was written, or it was discarded, and its end was not written since.
const OPEN: u64 = 1 << 31;
/// A copy of the block was wrong, or it cannot be read: no other is made before it is written again.
const BARRED: u64 = 1 << 30;
const PLACE: u64 = BARRED - 1;

/// What a block was when its copy was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

pub struct Table {
    division: Division,
    words: Box<[AtomicU64]>,
    /// Writes under way in each block, or whose end nobody knows.
    writing: Box<[AtomicU32]>,
    /// Reads of each block since they were taken last.
    reads: Box<[AtomicU32]>,
    /// Reads under way in each place.
    pins: Box<[AtomicU32]>,
    void_copies: AtomicU64,
}

fn zeros<T: Default>(count: u32) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

fn place_of(word: u64) -> Option<u32> {
    ((word & PLACE) as u32).checked_sub(1)
}

impl Table {
    pub fn new(division: Division, places: u32) -> Self {
        // The place has 30 bits.
        let places = places.min(PLACE as u32 - 1);
        Self {
            division,
            words: zeros(division.blocks),
            writing: zeros(division.blocks),
            reads: zeros(division.blocks),
            pins: zeros(places),
            void_copies: AtomicU64::new(0),
        }
    }

    pub fn division(&self) -> &Division {
        &self.division
    }

    pub fn places(&self) -> u32 {
        self.pins.len() as u32
    }

    pub fn void_copies(&self) -> u64 {
        self.void_copies.load(Ordering::Relaxed)
    }

    pub fn copies(&self) -> u64 {
        let words = self.words.iter();
        words
            .filter(|word| place_of(word.load(Ordering::Relaxed)).is_some())
            .count() as u64
    }

    /// Counts a read of a block.
    pub fn note_read(&self, block: u32) {
        self.reads[block as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The reads of a block since the last call.
    pub fn take_reads(&self, block: u32) -> u32 {
        self.reads[block as usize].swap(0, Ordering::Relaxed)
    }

    pub fn place(&self, block: u32) -> Option<u32> {
        place_of(self.words[block as usize].load(Ordering::SeqCst))
    }

    /// Grows with each write and discard.
    pub fn version(&self, block: u32) -> u32 {
        (self.words[block as usize].load(Ordering::Relaxed) / VERSION) as u32
    }

    pub fn is_pinned(&self, place: u32) -> bool {
        self.pins[place as usize].load(Ordering::SeqCst) != 0
    }

    /// The place of a block's copy, pinned until [`Table::unpin`].
    pub fn pin(&self, block: u32) -> Option<u32> {
        let place = self.place(block)?;
        self.pins[place as usize].fetch_add(1, Ordering::SeqCst);
        // It may have gone, and its place be about to be written: then the pin came too late.
        if self.place(block) == Some(place) {
            return Some(place);
        }
        self.unpin(place);
        None
    }

    pub fn unpin(&self, place: u32) {
        self.pins[place as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// A new version of a block, without a copy.
    fn renew(&self, block: u32, marks: u64) {
        let new = |word: u64| (word & !(VERSION - 1)).wrapping_add(VERSION) | marks;
        let word = &self.words[block as usize];
        let mut old = word.load(Ordering::SeqCst);
        while let Err(now) = word.compare_exchange_weak(old, new(old), Ordering::SeqCst, Ordering::SeqCst) {
            old = now;
        }
        if place_of(old).is_some() {
            self.void_copies.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A write is about to be submitted: the copies of its blocks are void.
    pub fn begin_write(&self, offset: u64, len: u64) {
        for block in self.division.blocks_of(offset, len) {
            self.writing[block as usize].fetch_add(1, Ordering::SeqCst);
            let end = self.division.block_offset(block) + self.division.block_bytes;
            self.renew(block, if offset + len >= end { 0 } else { OPEN });
        }
    }

    /// A write has ended, and the device will not come back to it.
    pub fn end_write(&self, offset: u64, len: u64, succeeded: bool) {
        for block in self.division.blocks_of(offset, len) {
            if !succeeded {
                self.renew(block, OPEN);
            }
            self.writing[block as usize].fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub fn discard(&self, offset: u64, len: u64) {
        for block in self.division.blocks_of(offset, len) {
            self.renew(block, OPEN);
        }
    }

    /// What a block is, if a copy of it may be begun.
    pub fn begin_copy(&self, block: u32) -> Option<Seen> {
        let word = self.words[block as usize].load(Ordering::SeqCst);
        // After the word: a write that it does not count is not submitted yet, and will change it.
        let is_quiet = self.writing[block as usize].load(Ordering::SeqCst) == 0;
        (is_quiet && word & (OPEN | BARRED | PLACE) == 0).then_some(Seen(word))
    }

    /// Whether nothing was written since.
    pub fn is_still(&self, block: u32, seen: Seen) -> bool {
        self.words[block as usize].load(Ordering::SeqCst) == seen.0
    }

    /// Enters a copy, if nothing was written since.
    pub fn enter(&self, block: u32, seen: Seen, place: u32) -> bool {
        self.words[block as usize]
            .compare_exchange(
                seen.0,
                seen.0 | u64::from(place + 1),
                Ordering::SeqCst,
                Ordering::SeqCst,
            )
            .is_ok()
    }

    /// Gives up a block's copy at a place, and all others in this version where `bars`. Returns whether it was there.
    pub fn give_up(&self, block: u32, place: u32, bars: bool) -> bool {
        let word = &self.words[block as usize];
        let mut old = word.load(Ordering::SeqCst);
        while place_of(old) == Some(place) {
            let new = old & !PLACE | if bars { BARRED } else { 0 };
            match word.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// No copy of this version is to be made.
    pub fn bar(&self, block: u32, seen: Seen) {
        let _ = self.words[block as usize].compare_exchange(
            seen.0,
            seen.0 | BARRED,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}
