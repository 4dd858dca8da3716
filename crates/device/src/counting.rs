//! Counts what passes to another device.

use crate::{Device, Operation, forward};
use futures_util::FutureExt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pumice_world::figures! {
    /// What a device was asked for, since the process started.
    ///
    /// Operations and bytes are counted when they are asked for, whether they succeed or not, and so are those whose
    /// future is dropped; `errors` counts the failures that were reported to a caller.
    pub struct DeviceCounts;
    of
    /// Counters shared by all handles on one device; they only rise.
    pub struct DeviceCounters: AtomicU64;
    /// Reads asked for.
    Counter reads,
    /// Bytes asked for by reads.
    Counter read_bytes,
    /// Writes of blocks, pages and checkpoints.
    Counter writes,
    /// Bytes sent by writes of blocks, pages and checkpoints.
    Counter written_bytes,
    /// Appends of log records and superblocks.
    Counter log_appends,
    /// Bytes sent by appends of log records and superblocks.
    Counter log_bytes,
    /// Flushes.
    Counter syncs,
    /// Operations of any kind that ended with an error.
    Counter errors,
}

impl DeviceCounters {
    /// Counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes asked for by reads so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    fn seen<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            add(&self.errors, 1);
        }
        result
    }
}

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// A handle that counts and passes everything on. Cost: two relaxed atomic additions per operation.
#[derive(Debug, Clone)]
pub struct CountingDevice<D> {
    inner: D,
    counters: Arc<DeviceCounters>,
}

impl<D: Device> CountingDevice<D> {
    /// Counts what passes to `inner` in `counters`, which other handles may share.
    pub fn new(inner: D, counters: Arc<DeviceCounters>) -> Self {
        Self { inner, counters }
    }
}

impl<D: Device> Device for CountingDevice<D> {
    type Buf = D::Buf;
    forward!(inner: capacity, is_hole, discard, tick, turn);

    fn read(&self, offset: u64, len: usize) -> impl Operation<Self::Buf> {
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, len);
        let counters = Arc::clone(&self.counters);
        let operation = self.inner.read(offset, len);
        operation.map(move |result| counters.seen(result))
    }

    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()> {
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, range.len());
        let counters = Arc::clone(&self.counters);
        let operation = self.inner.write(offset, data, range);
        operation.map(move |result| counters.seen(result))
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        add(&self.counters.log_appends, 1);
        add(&self.counters.log_bytes, bytes.len());
        self.counters.seen(self.inner.append_log(offset, bytes))
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.counters.seen(self.inner.read_log(offset, out))
    }

    fn sync(&self) -> impl Operation<()> {
        add(&self.counters.syncs, 1);
        let counters = Arc::clone(&self.counters);
        let operation = self.inner.sync();
        operation.map(move |result| counters.seen(result))
    }
}
