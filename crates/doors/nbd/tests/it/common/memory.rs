//! A block device in memory that tests can hold up, break and look into.

use bytes::Bytes;
use pumice_door_nbd::{Export, ExportError, Extent, Shape};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// Bytes that are allocated together.
const BLOCK_BYTES: u64 = 4096;

/// What happened to it.
#[derive(Debug, Default)]
pub struct Seen {
    pub writes_begun: AtomicUsize,
    pub writes_ended: AtomicUsize,
    pub writes_dropped: AtomicUsize,
    pub durable_writes: AtomicUsize,
    pub flushes: AtomicUsize,
    pub cached_pieces: AtomicUsize,
    /// Bytes of reads and writes that are held by the device or the door.
    pub held_bytes: AtomicUsize,
    pub most_held_bytes: AtomicUsize,
}

impl Seen {
    fn hold(&self, bytes: usize) {
        let held = self.held_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.most_held_bytes.fetch_max(held, Ordering::SeqCst);
    }
}

#[derive(Clone)]
pub struct Memory {
    shape: Shape,
    content: Arc<Mutex<Content>>,
    /// Requests that begin at this offset or above wait until it rises.
    gate: watch::Receiver<u64>,
    /// Requests that touch this offset fail.
    broken_at: Arc<AtomicU64>,
    pub seen: Arc<Seen>,
}

struct Content {
    bytes: Vec<u8>,
    allocated: BTreeSet<u64>,
}

/// Bytes that are counted while somebody has them.
struct Held(Vec<u8>, Arc<Seen>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.1.held_bytes.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

/// A write that ends or is dropped.
struct OneWrite<'s> {
    seen: &'s Seen,
    bytes: usize,
    is_over: bool,
}

impl Drop for OneWrite<'_> {
    fn drop(&mut self) {
        self.seen.held_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        let count = match self.is_over {
            true => &self.seen.writes_ended,
            false => &self.seen.writes_dropped,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets requests below an offset through, and breaks an offset.
pub struct Control {
    pub gate: watch::Sender<u64>,
    pub broken_at: Arc<AtomicU64>,
}

impl Memory {
    pub fn new(size_bytes: u64, is_read_only: bool) -> (Self, Control) {
        let (sender, gate) = watch::channel(u64::MAX);
        let broken_at = Arc::new(AtomicU64::new(u64::MAX));
        let memory = Self {
            shape: Shape {
                size_bytes,
                is_read_only,
                preferred_bytes: 4096,
            },
            content: Arc::new(Mutex::new(Content {
                bytes: vec![0; usize::try_from(size_bytes).unwrap()],
                allocated: BTreeSet::new(),
            })),
            gate,
            broken_at: Arc::clone(&broken_at),
            seen: Arc::default(),
        };
        let control = Control {
            gate: sender,
            broken_at,
        };
        (memory, control)
    }

    async fn pass(&self, offset: u64, length: u64) -> Result<(), ExportError> {
        let mut gate = self.gate.clone();
        // Whoever controlled it has gone: nothing waits any more.
        let _ = gate.wait_for(|below| offset < *below).await;
        let broken = self.broken_at.load(Ordering::SeqCst);
        match (offset..offset + length).contains(&broken) {
            true => Err(ExportError::Io),
            false => Ok(()),
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }
}

fn range(offset: u64, length: u64) -> std::ops::Range<usize> {
    let from = usize::try_from(offset).unwrap();
    from..from + usize::try_from(length).unwrap()
}

impl Export for Memory {
    fn shape(&self) -> Shape {
        self.shape
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, ExportError> {
        self.pass(offset, length as u64).await?;
        let bytes = self.content().bytes[range(offset, length as u64)].to_vec();
        self.seen.hold(length);
        Ok(Bytes::from_owner(Held(bytes, Arc::clone(&self.seen))))
    }

    async fn write(&self, offset: u64, data: Bytes, is_durable: bool) -> Result<(), ExportError> {
        let length = data.len() as u64;
        self.seen.writes_begun.fetch_add(1, Ordering::SeqCst);
        self.seen.hold(data.len());
        let mut write = OneWrite {
            seen: &self.seen,
            bytes: data.len(),
            is_over: false,
        };
        let passed = self.pass(offset, length).await;
        write.is_over = true;
        passed?;
        let mut content = self.content();
        content.bytes[range(offset, length)].copy_from_slice(&data);
        content
            .allocated
            .extend(offset / BLOCK_BYTES..=(offset + length - 1) / BLOCK_BYTES);
        let durable = usize::from(is_durable);
        self.seen.durable_writes.fetch_add(durable, Ordering::SeqCst);
        Ok(())
    }

    async fn zero(&self, offset: u64, length: u64, may_punch: bool) -> Result<(), ExportError> {
        self.pass(offset, length).await?;
        if !may_punch {
            let zeros = Bytes::from(vec![0; usize::try_from(length).unwrap()]);
            return self.write(offset, zeros, false).await;
        }
        let mut content = self.content();
        content.bytes[range(offset, length)].fill(0);
        let whole = offset.div_ceil(BLOCK_BYTES)..(offset + length) / BLOCK_BYTES;
        content.allocated.retain(|block| !whole.contains(block));
        Ok(())
    }

    async fn flush(&self) -> Result<(), ExportError> {
        self.seen.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn status(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>, ExportError> {
        self.pass(offset, length).await?;
        let content = self.content();
        let (mut at, end) = (offset, offset + length);
        let mut extents = Vec::new();
        while at < end && extents.len() < most {
            let next = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let is_hole = !content.allocated.contains(&(at / BLOCK_BYTES));
            extents.push(Extent {
                length: next - at,
                is_hole,
            });
            at = next;
        }
        Ok(extents)
    }

    async fn cache(&self, offset: u64, length: u64) -> Result<(), ExportError> {
        self.seen.cached_pieces.fetch_add(1, Ordering::SeqCst);
        self.pass(offset, length).await
    }
}
