//! A cached volume: a slow *backing device*, and before it a [`ChunkStore`](pumice_chunk::store::ChunkStore) on a fast one.
//!
//! # What an answer means
//!
//! The backing device has the newest content of each byte at any time: a write is answered when the backing device has taken it, in every
//! [`Mode`]. What is cached is a copy, which a failure may cost and nothing else. The order of a write:
//!
//! ```text
//! 1  the range is locked against other changes of its chunks
//! 2  what is cached of its chunks is void, and no crash brings it back    (begin_write, commit)
//! 3  the backing device takes the bytes
//! 4  they enter the cache, beside what was cached of the same chunks      (fill; in write-through)
//! ```
//! So overlapping writes reach cache and backing device in one order. A read asks the cache, and the backing device for the chunks of which
//! the cache lacks a byte that is wanted; whole chunks are read there and enter the cache, unless somebody has written meanwhile. With [`Shared::with_dram`] what reads found is kept in
//! DRAM too; a write only removes it there.
//!
//! # Power cuts
//!
//! [`Volume::flush`] flushes the backing device. What the backing device loses because it was not flushed, the cache must not have either:
//! a region is durably marked before it is written, and after a power cut nothing that is cached of a marked region counts. So a void
//! needs no flush of its own, nor does a client's flush wait for the cache device. [`Volume::tick`] clears the marks of regions that rest.
//!
//! # Failures
//!
//! | what | effect |
//! | --- | --- |
//! | the cache cannot be read, or a checksum is wrong | the backing device answers |
//! | the cache device fails | it is taken out; reads and writes go on, if the next start is sure to know of it |
//! | and the next start would not know | writes fail with [`VolumeError::Cache`] until a start in [`Mode::PassThrough`] |
//! | the backing device fails a read or a write | that request fails; after a write old or new bytes are there, sector by sector |
//! | the backing device fails a flush | nothing that is cached of what was written since counts; this and each later flush fail, until a start |

mod backing;
mod change;
mod dram;
mod locks;
mod read;
mod volume;

pub use backing::{Backing, Extent};
pub use volume::{Settings, Shared, Volume};

use std::io;
use std::sync::atomic::AtomicU64;

/// Which requests the cache takes part in. Another mode takes a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reads and writes enter the cache.
    WriteThrough,
    /// Reads enter the cache, writes only void what it has.
    WriteAround,
    /// Reads enter the cache, changes are refused.
    ReadOnly,
    /// There is no cache.
    PassThrough,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The volume is read-only.
    #[error("the volume is served read-only")]
    ReadOnly,
    /// A part of the range is not in the volume.
    #[error("bytes {offset} to {end} are beyond the end of the volume, which has {size}")]
    Range {
        /// Where it begins.
        offset: u64,
        /// Where it ends.
        end: u64,
        /// Bytes of the volume.
        size: u64,
    },
    /// The backing device failed.
    #[error("backing device: {0}")]
    Backing(io::Error),
    /// What the cache device has can be neither voided nor fenced, so the volume must not change.
    #[error(
        "cache device: {0}; the volume is not changed, so that no later start serves old data: start in pass-through, which discards the cache"
    )]
    Cache(io::Error),
    /// An earlier flush failed.
    #[error(
        "the backing device failed a flush earlier, and may have lost what was written before: check it, and start again"
    )]
    Unflushed,
}

pumice_world::figures! {
    /// Running totals of a volume since it was opened. Each chunk that a request touches counts once.
    pub struct VolumeCounts;
    of
    /// The same, while they run.
    pub struct Counters: AtomicU64;
    /// Chunks of reads.
    Counter read_chunks,
    /// Of those, chunks that were in DRAM.
    Counter read_dram_hits,
    /// Of those, chunks that the cache device answered.
    Counter read_hits,
    /// Of those, chunks of which the cache had a part that was not enough.
    Counter read_part_hits,
    /// Of those, chunks of which the cache had nothing.
    Counter read_misses,
    /// Bytes read from the backing device for them.
    Counter backing_read_bytes,
    /// Chunks that were read from the backing device to enter the cache.
    Counter fills,
    /// Of those, chunks that were stored.
    Counter fills_stored,
    /// Of those, chunks whose content was there already.
    Counter fills_duplicate,
    /// Of those, chunks that somebody wrote meanwhile.
    Counter fills_late,
    /// Of those, chunks for which the cache had no room.
    Counter fills_no_room,
    /// Of those, chunks that found the cache device taken out.
    Counter fills_out,
    /// Chunks of writes that were begun.
    Counter write_chunks,
    /// Of those, chunks that were stored.
    Counter writes_stored,
    /// Of those, chunks whose content was there already.
    Counter writes_duplicate,
    /// Of those, chunks that bypassed the cache because of its mode.
    Counter writes_around,
    /// Of those, chunks whose content was void before it could enter.
    Counter writes_late,
    /// Of those, chunks for which the cache had no room.
    Counter writes_no_room,
    /// Of those, chunks that found the cache device taken out.
    Counter writes_out,
    /// Of those, chunks that were not written: the backing device failed, or the cache could not be voided.
    Counter writes_failed,
    /// Bytes written to the backing device.
    Counter backing_written_bytes,
    /// Chunks of which a part was made zero.
    Counter zeroed_chunks,
    /// Bytes of holes that were trimmed again, which costs nothing.
    Counter trimmed_hole_bytes,
    /// Flushes of the backing device.
    Counter backing_flushes,
}

impl VolumeCounts {
    /// The books: kinds of chunks, how many of each were begun by these counts, and how many have ended by `ended`.
    pub fn balance(&self, ended: &Self) -> [(&'static str, u64, u64); 3] {
        let reads = [
            ended.read_dram_hits,
            ended.read_hits,
            ended.read_part_hits,
            ended.read_misses,
        ];
        let fills = [
            ended.fills_stored,
            ended.fills_duplicate,
            ended.fills_late,
            ended.fills_no_room,
            ended.fills_out,
        ];
        let writes = [
            ended.writes_stored,
            ended.writes_duplicate,
            ended.writes_around,
            ended.writes_late,
            ended.writes_no_room,
            ended.writes_out,
            ended.writes_failed,
        ];
        [
            ("chunks of reads", self.read_chunks, reads.iter().sum()),
            ("fills", self.fills, fills.iter().sum()),
            ("chunks of writes", self.write_chunks, writes.iter().sum()),
        ]
    }
}
