//! Reading ahead of sequential streams.

use crate::locks::{Held, RangeLocks};
use crate::streams::{Limits, Streams};
use crate::{Backing, Volume, chunks_of};
use locks::Mutex;
use pumice_blocks::add;
use pumice_device::Device;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all threads share of the read-ahead of a volume.
pub(crate) struct Ahead {
    /// Most bytes under way; 0 = read-ahead is off.
    bytes_max: u64,
    /// Bytes under way.
    bytes: AtomicU64,
    streams: Mutex<Streams>,
    /// Ranges of chunks that are being filled.
    filling: Arc<RangeLocks>,
}

impl Ahead {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: AtomicU64::new(0),
            streams: Mutex::default(),
            filling: Arc::default(),
        }
    }

    /// Waits for the read-aheads of these chunks that are under way.
    pub(crate) async fn passed(&self, chunks: Range<u64>) {
        if self.bytes.load(Ordering::Acquire) > 0 {
            self.filling.passed(chunks).await;
        }
    }

    /// Notes how long a fill took, in nanoseconds.
    pub(crate) fn filled_in(&self, ns: u64) {
        if self.bytes_max > 0 {
            self.streams.lock().filled_in(ns);
        }
    }

    /// Takes memory for a piece, if there is enough.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.bytes.fetch_update(set, fetch, more).is_ok()
    }
}

impl<D: Device, K: Backing> Volume<D, K> {
    /// Notes a read of a client, and begins to read ahead if the read belongs to a stream. Returns whether the read belongs to a scan; a read that
    /// `must_fill` never does.
    pub(crate) fn follow_read(&self, offset: u64, len: u64, must_fill: bool) -> bool {
        let shared = &self.0.shared;
        let ahead = &shared.ahead;
        let cutoff = if must_fill { 0 } else { shared.scans.cutoff };
        let Some((store, _)) = self.cache().filter(|_| ahead.bytes_max > 0 || cutoff > 0) else {
            return false;
        };
        // Without its cache device the volume could keep little.
        if len == 0 || store.failure().is_some() {
            return false;
        }
        let limits = Limits {
            chunk_bytes: store.shape().chunk_bytes.into(),
            size: shared.size,
            ahead_max: ahead.bytes_max,
            cutoff,
        };
        let mut begun = Vec::new();
        let followed = ahead.streams.lock().read(
            offset..offset + len,
            self.0.clock.monotonic_ns(),
            limits,
            |piece, is_scan| {
                let chunks = chunks_of(limits.chunk_bytes, piece.start, piece.end - piece.start);
                let is_missing = |chunk: &u64| self.is_missing(*chunk, is_scan, must_fill);
                let missing = chunks.clone().filter(is_missing).count() as u64;
                let admits = self.admits_misses() || store.has_free_room(chunks.clone());
                let can_keep = self.can_keep(chunks.clone(), is_scan)
                    && (must_fill || self.can_keep_ahead(chunks.clone()));
                if missing > 0 && admits && can_keep {
                    let bytes = (chunks.end - chunks.start) * limits.chunk_bytes;
                    if !ahead.take(bytes) {
                        return None;
                    }
                    // The range is locked from here on: reads that come before the task runs wait for it, too.
                    let held = Held::queue(Arc::clone(&ahead.filling), chunks.clone());
                    begun.push((held, chunks, bytes, is_scan));
                    return Some(missing * limits.chunk_bytes);
                }
                Some(0)
            },
        );
        add(&shared.counters.read_ahead_unused_bytes, followed.unused);
        for (held, chunks, bytes, is_scan) in begun {
            let this = self.clone();
            self.0.spawner.spawn(Box::pin(async move {
                held.turn().await;
                this.fill_missing(limits.chunk_bytes, chunks, is_scan, must_fill)
                    .await;
                drop(held);
                this.shared().ahead.bytes.fetch_sub(bytes, Ordering::AcqRel);
            }));
        }
        followed.is_scan
    }

    /// Whether a chunk is to be fetched: not if it is in DRAM, and need not be on the cache device.
    fn is_missing(&self, chunk: u64, is_scan: bool, must_fill: bool) -> bool {
        let shared = &self.0.shared;
        let is_placed = self
            .cache()
            .is_some_and(|(store, _)| store.place(chunk).is_some());
        let may_stay_out = is_scan || shared.judge.is_some() && !must_fill;
        !(is_placed || may_stay_out && shared.dram.has(chunk))
    }

    /// Fills those of some chunks that are not cached: a read-ahead for another stream may have filled some by now.
    async fn fill_missing(&self, chunk_bytes: u64, chunks: Range<u64>, is_scan: bool, must_fill: bool) {
        let is_missing = |chunk: &u64| self.is_missing(*chunk, is_scan, must_fill);
        let counters = &self.0.shared.counters;
        let mut rest = chunks;
        while let Some(first) = rest.find(is_missing) {
            let end = rest.find(|chunk| !is_missing(chunk)).unwrap_or(rest.end);
            add(&counters.read_ahead_bytes, (end - first) * chunk_bytes);
            let scanned = is_scan.then_some(0);
            if self
                .read_and_fill(chunk_bytes, first..end, scanned, must_fill)
                .await
                .is_err()
            {
                add(&counters.read_aheads_failed, 1);
            }
        }
    }
}
