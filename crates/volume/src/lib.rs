//! A cached volume: a slow *backing device*, and before it a [`ChunkStore`](pumice_chunk::store::ChunkStore) on a fast one.
//!
//! # What an answer means
//!
//! In [`Mode::WriteBack`] a write is answered when the cache has it: see below. In every other [`Mode`] it is answered after the backing device
//! has taken it, which has the newest content of each byte at any time; the cache has copies only, and a failure costs copies at most. The
//! order of such a write:
//!
//! ```text
//! 1  the range is locked against other changes of its chunks
//! 2  cached copies of its chunks are voided, so that no crash brings them back    (begin_write, commit)
//! 3  the backing device takes the bytes
//! 4  the bytes enter the cache                                           (fill; in write-through)
//! ```
//! So overlapping writes reach cache and backing device in one order. A read asks the cache. Chunks of which the cache lacks a wanted byte
//! are read whole from the backing device; they enter the cache, unless a write came meanwhile. With [`Settings::dram_bytes`] chunks that were
//! read are kept in DRAM too; a write only removes them there.
//!
//! # Read-ahead
//!
//! Chunks that a sequential stream will want (`streams`) are filled as by a read that misses, by a task of their own (`ahead`), with the same
//! rule against writes. A read waits for a read-ahead of its chunks, and then looks them up.
//!
//! # Scans
//!
//! Streams of more bytes than a cut-off, of reads and of writes apart, are *scans* (`scan`). They enter the cache only while it has free room,
//! so that they push out nothing that is asked for again. What is read ahead of them is in DRAM until they have passed it.
//!
//! # Admission
//!
//! A rule says which chunks are worth the wear of the cache device, a budget how much it is sent (`admission`). What is refused is served, and
//! stays in DRAM as long as that has room; a write that is refused voids what was cached.
//!
//! # Load splitting
//!
//! With [`Shared::split_reads`] some reads of cached chunks go to the backing device (`split`).
//!
//! # Write-back
//!
//! A write enters the cache, and its chunks are *dirty* until a *cleaner* has written them to the backing device. The cleaner goes through
//! the dirty chunks in order of address, so that the backing device gets long writes, and each chunk at most once for all writes of a
//! pass. [`Volume::tick`] starts a pass when the last began [`WriteBack::age_secs`] ago, when nobody asks anything, or when half of the
//! limit is dirty. At the limit, and where the cache has no room, a write goes through, like a TRIM: its chunks are cleaned before, so that
//! the cache has no dirty copy that could come back. Every start cleans what an earlier one has left dirty, except in
//! [`Mode::ReadOnly`].
//!
//! # Power cuts
//!
//! [`Volume::flush`] makes the cache durable if it may have dirty chunks, and flushes the backing device if it was written. A power cut may undo writes that were not flushed, and the cache must not keep what they
//! wrote: a region is durably marked before it is written, and after a power cut nothing cached of a marked region counts. So neither a
//! void nor a client's flush waits for a flush of the cache device. [`Volume::tick`] clears the marks of regions that are not written.
//!
//! # Failures
//!
//! | what | effect |
//! | --- | --- |
//! | the cache cannot be read, or a checksum is wrong | the backing device answers |
//! | the cache device fails | it is fenced, durably; reads and writes go on without it |
//! | the fence cannot be made durable | writes fail with [`VolumeError::Cache`] until a start in [`Mode::PassThrough`] |
//! | the backing device fails a read or a write | that request fails; after a write each sector has its old or its new bytes |
//! | the backing device fails a flush | the cache is given up; this and each later flush fail, until a start |
//! | a dirty chunk cannot be read | its range fails with [`VolumeError::Unreadable`] |
//! | the cache device fails while chunks are dirty | reads of these and all changes fail, until a start that finds them |
//! | the cleaner cannot write | chunks stay dirty; it tries again in its next pass |

mod admission;
mod ahead;
mod backing;
mod change;
mod clean;
mod dram;
mod flush;
mod locks;
mod plan;
mod read;
mod scan;
mod split;
mod streams;
mod throttled;
mod volume;
mod write;

pub use backing::{Backing, Extent};
pub use clean::WriteBack;
pub use plan::{CachePlan, PlanError, Wanted};
pub use throttled::ThrottledBacking;
pub use volume::{Settings, Shared, Volume};

use pumice_chunk::store::Unreadable;
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// How the cache is used. A start chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reads and writes enter the cache, and the backing device takes writes later.
    WriteBack,
    /// Reads and writes enter the cache.
    WriteThrough,
    /// Reads enter the cache; writes only void cached copies.
    WriteAround,
    /// Reads enter the cache, changes are refused.
    ReadOnly,
    /// There is no cache.
    PassThrough,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 5] = [
        Mode::WriteBack,
        Mode::WriteThrough,
        Mode::WriteAround,
        Mode::ReadOnly,
        Mode::PassThrough,
    ];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Mode::WriteBack => "write-back",
            Mode::WriteThrough => "write-through",
            Mode::WriteAround => "write-around",
            Mode::ReadOnly => "read-only",
            Mode::PassThrough => "pass-through",
        }
    }
}

/// A long read goes span by span, so that a volume holds little beside the bytes that are read: at most twice this, as it was read and as
/// it is kept. Spans end at multiples of this. A multiple of each chunk size.
pub const SPAN_BYTES: u64 = 256 << 10;

/// Fills of a request that run at once: no more bytes than a span has. Each may read from the cache device, to compare a fingerprint.
pub(crate) fn fills_at_once(chunk_bytes: u64) -> usize {
    (SPAN_BYTES / chunk_bytes).clamp(1, 32) as usize
}

/// The chunks that a range touches.
pub(crate) fn chunks_of(chunk_bytes: u64, offset: u64, len: u64) -> Range<u64> {
    offset / chunk_bytes..(offset + len).div_ceil(chunk_bytes)
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The volume is read-only.
    #[error("the volume is served read-only")]
    ReadOnly,
    /// The range ends beyond the volume.
    #[error("bytes {offset} to {end} are beyond the end of the volume, which has {size}")]
    Range {
        /// First byte of the range.
        offset: u64,
        /// End of the range, exclusive.
        end: u64,
        /// Bytes of the volume.
        size: u64,
    },
    /// The backing device failed.
    #[error("backing device: {0}")]
    Backing(io::Error),
    /// The cached copies can be neither voided nor fenced, so the volume must not change.
    #[error("cache device: {0}; the volume is not changed, so that no later start serves old data")]
    Cache(io::Error),
    /// A dirty chunk cannot be read from the cache device.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
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
    /// Chunks of reads that DRAM answered.
    Counter read_dram_hits,
    /// Chunks of reads that the cache device answered.
    Counter read_hits,
    /// Chunks of reads that were cached and clean, and that the backing device answered in place of the cache device: load splitting.
    Counter read_redirected,
    /// Chunks of reads that the cache device answered together with a dirty one, so that the backing device could not. Part of `read_hits`.
    Counter read_dirty_hits,
    /// Chunks of reads that were cached in part, without all wanted bytes.
    Counter read_part_hits,
    /// Chunks of reads that were not cached.
    Counter read_misses,
    /// Bytes read from the backing device.
    Counter backing_read_bytes,
    /// Bytes read ahead of sequential streams.
    Counter read_ahead_bytes,
    /// Bytes read ahead that the stream did not reach, counted when it is forgotten.
    Counter read_ahead_unused_bytes,
    /// Read-aheads that the backing device failed.
    Counter read_aheads_failed,
    /// Chunks read from the backing device for the cache.
    Counter fills,
    /// Fills that were stored.
    Counter fills_stored,
    /// Fills whose content was cached already.
    Counter fills_duplicate,
    /// Fills dropped because the chunk was written meanwhile.
    Counter fills_late,
    /// Fills dropped because the cache had no room.
    Counter fills_no_room,
    /// Chunks of scans that were read from the backing device and not filled, because the cache had no free room.
    Counter fills_scan,
    /// Chunks read from the backing device that the rule of admission kept off the cache device.
    Counter fills_rule,
    /// Chunks read from the backing device that the write budget kept off the cache device.
    Counter fills_budget,
    /// Fills dropped because the cache device has failed.
    Counter fills_out,
    /// Chunks of writes.
    Counter write_chunks,
    /// Chunks of writes that were stored.
    Counter writes_stored,
    /// Chunks of writes whose content was cached already.
    Counter writes_duplicate,
    /// Chunks of writes that bypassed the cache because of its mode.
    Counter writes_around,
    /// Chunks of writes not cached because they were voided before they could enter.
    Counter writes_late,
    /// Chunks of writes not cached because the cache had no room.
    Counter writes_no_room,
    /// Chunks of writes that went through, in write-back, because too many chunks were dirty. Counted by their outcome, too.
    Counter writes_at_limit,
    /// Chunks of writes not cached because they were of scans, and the cache had no free room.
    Counter writes_scan,
    /// Chunks of writes not cached because the rule of admission was against it.
    Counter writes_rule,
    /// Chunks of writes not cached because the write budget had nothing left for them. In write-back they went through.
    Counter writes_budget,
    /// Chunks of writes not cached because the cache device has failed.
    Counter writes_out,
    /// Chunks of writes that failed: the backing device failed, or the cache could not be voided.
    Counter writes_failed,
    /// Bytes written to the backing device.
    Counter backing_written_bytes,
    /// Chunks that were zeroed, also in part.
    Counter zeroed_chunks,
    /// Bytes of TRIM and WRITE_ZEROES that were holes already, and were skipped.
    Counter trimmed_hole_bytes,
    /// Flushes of the backing device.
    Counter backing_flushes,
    /// Dirty chunks that were written to the backing device, and are clean.
    Counter cleaned_chunks,
    /// Bytes of dirty chunks that were written to the backing device.
    Counter cleaned_bytes,
    /// Rounds of the cleaner that failed.
    Counter clean_failures,
}

impl VolumeCounts {
    /// The books: for each kind of chunk its name, how many these counts have begun, and how many had an outcome in `ended`.
    pub fn balance(&self, ended: &Self) -> [(&'static str, u64, u64); 3] {
        let reads = [
            ended.read_dram_hits,
            ended.read_hits,
            ended.read_redirected,
            ended.read_part_hits,
            ended.read_misses,
        ];
        let fills = [
            ended.fills_stored,
            ended.fills_duplicate,
            ended.fills_late,
            ended.fills_no_room,
            ended.fills_scan,
            ended.fills_rule,
            ended.fills_budget,
            ended.fills_out,
        ];
        let writes = [
            ended.writes_stored,
            ended.writes_duplicate,
            ended.writes_around,
            ended.writes_late,
            ended.writes_no_room,
            ended.writes_scan,
            ended.writes_rule,
            ended.writes_budget,
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
