//! Scans: requests in a row with more bytes than a cut-off. They take no room of the cache in which other content lies.
//!
//! ```text
//! read   a chunk that is missing enters while the cache has free room; else it is kept in DRAM until the scan has passed it
//! write  the same; else it goes through to the backing device, and voids what is cached
//! ```
//! What is cached is served as to any read. A write of chunks that are dirty enters, as it saves writing their old content to the backing
//! device. In write-back a flush ends all scans of writes: what is flushed bit by bit is a log, and clients wait for it.

use crate::streams::{GAP, Limits, Streams};
use crate::{Mode, Shared};
use locks::Mutex;
use pumice_memory::Buffer;
use pumice_world::Clock;
use std::ops::Range;

/// What all threads share of the scans of a volume.
pub(crate) struct Scans {
    /// Bytes of which a scan has more; 0 = there are none.
    pub(crate) cutoff: u64,
    writes: Mutex<Streams>,
}

impl Scans {
    pub(crate) fn new(cutoff: u64) -> Self {
        Self {
            cutoff,
            writes: Mutex::default(),
        }
    }
}

impl<B: Buffer> Shared<B> {
    /// Notes a write of a client. Returns whether it is of a scan.
    pub(crate) fn is_scan_write(&self, range: Range<u64>, clock: &dyn Clock) -> bool {
        let Scans { cutoff, writes } = &self.scans;
        let caches_writes = matches!(self.mode, Mode::WriteBack | Mode::WriteThrough);
        if *cutoff == 0 || !caches_writes || range.is_empty() {
            return false;
        }
        let limits = Limits {
            chunk_bytes: 1,
            size: self.size,
            ahead_max: 0,
            cutoff: *cutoff,
        };
        let now = clock.monotonic_ns();
        writes.lock().read(range, now, limits, |_, _| None).is_scan
    }

    /// Notes a flush of a client.
    pub(crate) fn end_scan_writes(&self) {
        let scans = &self.scans;
        if scans.cutoff > 0 && self.mode == Mode::WriteBack {
            scans.writes.lock().clear();
        }
    }

    /// Whether a write of these chunks, which is of a scan, leaves the cache out. The caller holds the lock of the chunks.
    pub(crate) fn bypasses(&self, chunks: Range<u64>) -> bool {
        self.store.as_ref().is_some_and(|store| {
            store.failure().is_none()
                && !store.has_free_room(chunks.clone())
                && store.dirty_among(chunks).is_empty()
        })
    }

    /// Drops from DRAM what a scan has passed with this read. Reads that are out of order may come as late as streams allow.
    pub(crate) fn drop_passed(&self, chunk_bytes: u64, read: Range<u64>) {
        let lag = GAP * (read.end - read.start);
        let passed = |at: u64| at.saturating_sub(lag) / chunk_bytes;
        self.dram.drop_passed(passed(read.start)..passed(read.end));
    }
}
