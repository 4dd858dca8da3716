//! The books: what came in equals what is there plus what left, by reason.
//!
//! `recovered + offered = resident + evicted + deleted + expired + overwritten + rejected + refused + corrupt + lost`, in entries
//! and in bytes. An entry is an object, or one slice of a large one; its bytes are its encoded bytes rounded up to the
//! index's unit. An entry that is in DRAM and on flash counts once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why counting what is resident did not confirm the books.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BooksFault {
    /// Something came or went meanwhile, by a request or by work in the background: count again.
    #[error("something came or went while entries were counted: ask again, best when no request runs")]
    Moved,
    /// What is resident is not what the books say. The text has both.
    #[error("{0}")]
    Unbalanced(String),
}

/// One line of the books.
#[derive(Debug, Default)]
pub struct Line {
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl Line {
    /// Adds one entry.
    pub fn add(&self, bytes: u64) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (
            self.entries.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

/// What a clean stop could not keep, in objects; slices of large ones count one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// DRAM alone had them, and no block became free for them.
    pub no_room: u64,
    /// DRAM alone had them, and there was no DRAM for their mappings.
    pub no_memory: u64,
    /// DRAM alone had them, and flash has another object with the same bits of the hash.
    pub same_tag: u64,
    /// Flash had them, and they were evicted for what DRAM had.
    pub displaced: u64,
    /// The device failed to write them.
    pub lost: u64,
    /// DRAM alone had them, and admission keeps them from flash.
    pub refused: u64,
    /// All that there was, where the device was taken out.
    pub taken_out: u64,
}

impl LeftBehind {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.no_room
            + self.no_memory
            + self.same_tag
            + self.displaced
            + self.lost
            + self.refused
            + self.taken_out
    }
}

macro_rules! books {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The books, counted while the cache runs.
        #[derive(Debug, Default)]
        pub struct Books { $($(#[$doc])* pub $name: Line,)* }

        /// The books at one moment: (entries, bytes) for each line.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct BooksSnapshot { $($(#[$doc])* pub $name: (u64, u64),)* }

        impl Books {
            /// Reads every line. Lines move while requests and background work run, so sums hold exactly only while neither does.
            pub fn snapshot(&self) -> BooksSnapshot {
                BooksSnapshot { $($name: self.$name.get(),)* }
            }
        }

        impl BooksSnapshot {
            /// Every line with its name, in the order of the equation.
            pub fn lines(&self) -> Vec<(&'static str, (u64, u64))> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

books! {
    /// Found at the start.
    recovered,
    /// Given to the cache.
    offered,
    /// Left for want of room.
    evicted,
    /// Deleted or flushed by a client.
    deleted,
    /// Time over.
    expired,
    /// A newer value took its place (or that of a stranger with the same hash bits).
    overwritten,
    /// Refused: too large, or no room in either tier.
    rejected,
    /// Admission kept it from flash, and DRAM had no room for it any more.
    refused,
    /// Could not be read back as it was written.
    corrupt,
    /// The device failed to write or read it.
    lost,
}

impl BooksSnapshot {
    /// What must be resident: (entries, bytes). An estimate with index `cascade`, which does not know of every death; never below 0.
    pub fn resident(&self) -> (u64, u64) {
        let gone = [
            self.evicted,
            self.deleted,
            self.expired,
            self.overwritten,
            self.rejected,
            self.refused,
            self.corrupt,
            self.lost,
        ];
        let sum = |side: fn((u64, u64)) -> u64| {
            (side(self.recovered) + side(self.offered))
                .saturating_sub(gone.into_iter().map(side).sum::<u64>())
        };
        (sum(|line| line.0), sum(|line| line.1))
    }
}

impl Line {
    /// Adds many entries at once.
    pub(crate) fn add_many(&self, entries: u64, bytes: u64) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
