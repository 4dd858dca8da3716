//! A device in memory whose reads take a while, each another while.

use pumice_device::{AlignedBuf, Device, MemDevice, Operation, forward};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Reads under way now, the most there ever were, and syncs; and what stops a thread that reads.
#[derive(Debug, Default)]
pub struct ReadsUnderWay {
    now: AtomicUsize,
    most: AtomicUsize,
    syncs: AtomicUsize,
    /// Whether reads of 16 KiB and more fail.
    long_fail: AtomicBool,
    gate: Mutex<()>,
}

impl ReadsUnderWay {
    pub fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Until this is dropped whatever thread reads stands still, as if the system did not let it run.
    pub fn block_threads(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().expect("no test fails with it")
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// From now on reads of 16 KiB and more fail: of slices, and not of what describes a large object.
    pub fn fail_long(&self) {
        self.long_fail.store(true, Ordering::SeqCst);
    }

    /// Syncs that were asked for.
    pub fn syncs(&self) -> usize {
        self.syncs.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
pub struct LateDevice {
    pub inner: MemDevice,
    pub reads: Arc<ReadsUnderWay>,
}

impl Device for LateDevice {
    type Buf = AlignedBuf;
    forward!(inner: capacity, write, append_log, read_log, turn);

    fn read(&self, offset: u64, len: usize) -> impl Operation<AlignedBuf> {
        let read = self.inner.read(offset, len);
        let reads = Arc::clone(&self.reads);
        let now = reads.now.fetch_add(1, Ordering::Relaxed) + 1;
        reads.most.fetch_max(now, Ordering::Relaxed);
        drop(self.reads.gate.lock());
        async move {
            // So that later reads are often done before earlier ones.
            for _ in 0..(offset / 4096) % 7 {
                tokio::task::yield_now().await;
            }
            let result = read.await;
            reads.now.fetch_sub(1, Ordering::Relaxed);
            match len >= 16 << 10 && reads.long_fail.load(Ordering::SeqCst) {
                true => Err(io::Error::other("a long read")),
                false => result,
            }
        }
    }

    fn sync(&self) -> impl Operation<()> {
        self.reads.syncs.fetch_add(1, Ordering::SeqCst);
        self.inner.sync()
    }
}
