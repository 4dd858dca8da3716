//! A deduplicated, compressed cache of a volume's chunks: equal contents are stored once.
//!
//! # Words
//!
//! A *chunk* is a part of fixed length of the volume behind the cache; its *address* is its number there. A *content* is the bytes of a
//! chunk, or of a part of one; its *fingerprint* is a hash of 20 bytes. A *place* is the position of a content on flash: a block, and a
//! number in it. Many addresses may map to one place.
//!
//! # Layout
//!
//! Contents are appended to large blocks, one behind the other, each with a header. A chunk whose content is cached already appends a
//! *reference* of 48 bytes. [`store`] describes the order of changes; a start after a crash is in `store/image.rs`.
//!
//! ```text
//! address --LBA-index--> place                              DRAM: remainder and place, 5 bytes
//! fingerprint --FP-index--> places that may hold it         DRAM: tag and place, 5 bytes
//! place --offsets of its block--> bytes on flash            DRAM: some 14 bits
//! ```
//!
//! Both indexes are buckets of 128 packed slots, without pointers, lists, reference counts or back pointers. The newest slot of a bucket
//! stands first, and a full bucket drops its last slot. So a bucket of the LBA-index is an LRU queue, and evicts on its own. A dirty slot,
//! of a chunk that the volume lacks, is never dropped: the last clean one goes instead.
//!
//! - [`LbaIndex`]: the address goes through a bijection, so that bucket and remainder *are* the address. An answer is exact, without a
//!   comparison on flash.
//! - [`FpIndex`]: bucket and tag are a part of the fingerprint. An answer is a candidate: the whole fingerprint in the content's
//!   header decides. A fingerprint that was forgotten costs a second copy of its content, nothing else.
//! - [`Offsets`]: the offsets of a sealed block's contents, in Elias-Fano coding.
//!
//! # Sources
//!
//! Wang, Li, Xia, Kruus, Debnath and Lee, *Austere Flash Caching with Deduplication and Compression* (ATC 2020) has the buckets and
//! their LRU by order. Three things differ here. A slot of the paper's FP-index is a place on flash, written at random; here contents are
//! appended. Its LBA slots hold prefixes of hashes, verified on flash; here they are exact. It counts references in a sketch; here one pass
//! over the LBA-index finds them when blocks are reclaimed.

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

pub use buckets::{BUCKET_SLOTS, Buckets};
pub use fp::FpIndex;
pub use keep::{Candidate, choose};
pub use lba::{LbaIndex, Slot};
pub use offsets::Offsets;
pub use place::{Place, PlaceBits};

/// The slots of an index would be too wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a slot of the {index} would take {bits} bits, of at most 64: use larger chunks, or fewer blocks")]
pub struct TooWide {
    /// Name of the index.
    pub index: &'static str,
    /// Bits that a slot would take.
    pub bits: u32,
}
