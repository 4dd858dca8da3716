//! A deduplicated, compressed cache of a volume's chunks: equal contents are stored once.
//!
//! # Words
//!
//! A *chunk* is a part of fixed length of the volume behind the cache; its *address* is its number there. Its content has a *fingerprint*.
//! A *place* is where a content stands on flash: a block, and a number in it. Many addresses may lead to one place.
//!
//! # Layout
//!
//! Contents are appended to large blocks, one behind the other, each with a header; a chunk whose content is there already appends a
//! *reference* of 48 bytes. [`store`] says in which order, and what a crash leaves.
//!
//! ```text
//! address --LBA-index--> place                              DRAM: remainder and place, 5 bytes
//! fingerprint --FP-index--> places that may hold it         DRAM: tag and place, 5 bytes
//! place --offsets of its block--> bytes on flash            DRAM: some 14 bits
//! ```
//!
//! Both indexes are buckets of 128 packed slots, without pointers, lists, counters or references back. The newest slot of a bucket stands
//! first, and the last one leaves a full bucket; so a bucket of the LBA-index is an LRU queue, and evicts on its own.
//!
//! - [`LbaIndex`]: the address goes through a bijection, so that bucket and remainder *are* the address. An answer is exact, and nothing on
//!   flash need be compared.
//! - [`FpIndex`]: bucket and tag are a part of the fingerprint. An answer is a candidate, which counts after the whole fingerprint, which
//!   stands with the content, was compared. A fingerprint that was forgotten costs a second copy of its content and nothing else.
//! - [`Offsets`]: contents of a sealed block stand one behind the other; where they begin is coded as in Elias and Fano's lists.
//!
//! # Sources
//!
//! Wang, Li, Xia, Kruus, Debnath and Lee, *Austere Flash Caching with Deduplication and Compression* (ATC 2020) has the buckets and
//! their LRU by order. It differs: a slot of its FP-index is a place on flash, written at random; its slots hold prefixes of hashes, verified
//! on flash; and a sketch counts references, which here one pass over the LBA-index finds when blocks are reclaimed.

mod buckets;
pub mod content;
mod fp;
mod keep;
mod lba;
mod offsets;
pub mod piece;
mod place;
mod scatter;
pub mod store;

pub use buckets::BUCKET_SLOTS;
pub use fp::FpIndex;
pub use keep::{Candidate, choose};
pub use lba::{LbaIndex, Slot};
pub use offsets::Offsets;
pub use place::{Place, PlaceBits};

/// An index cannot have slots as wide as these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a slot of the {index} would take {bits} bits, of at most 64: use larger chunks, or fewer blocks")]
pub struct TooWide {
    /// Which index.
    pub index: &'static str,
    /// Bits that a slot would take.
    pub bits: u32,
}
