//! A device in memory.

use crate::chunks::ChunkMap;
use crate::{AlignedBuf, AtOnce, Buffer, SECTOR_BYTES, check_log_range, check_range, check_write};
use locks::RwLock;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a device in memory, shared by its handles; they outlive every handle, as a disk outlives a process.
///
/// Memory is taken in chunks of 64 KiB when they are first written, so a large capacity costs nothing by itself.
/// What was never written reads as zeros.
#[derive(Debug)]
pub struct MemMedium {
    capacity: u64,
    chunks: RwLock<ChunkMap>,
}

impl MemMedium {
    /// A medium of `capacity` bytes, rounded down to whole sectors.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity: capacity - capacity % SECTOR_BYTES as u64,
            chunks: RwLock::default(),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Memory taken so far, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.chunks.read().resident_bytes()
    }
}

/// A handle on a [`MemMedium`]. Every operation is done when its call returns; its future is ready at once.
#[derive(Debug, Clone)]
pub struct MemDevice {
    medium: Arc<MemMedium>,
}

impl MemDevice {
    /// A handle on `medium`.
    pub fn new(medium: Arc<MemMedium>) -> Self {
        Self { medium }
    }
}

impl AtOnce for MemDevice {
    type Buf = AlignedBuf;

    fn capacity(&self) -> u64 {
        self.medium.capacity
    }

    fn read_now(&self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        check_range(self.medium.capacity, offset, len)?;
        let mut buf = AlignedBuf::with_len(len);
        self.medium.chunks.read().read(offset, buf.as_mut_slice());
        Ok(buf)
    }

    fn write_now(&self, offset: u64, data: &AlignedBuf, range: Range<usize>) -> io::Result<()> {
        let bytes = check_write(self.medium.capacity, offset, data, range)?;
        self.medium.chunks.write().write(offset, bytes);
        Ok(())
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_log_range(self.medium.capacity, offset, bytes.len())?;
        self.medium.chunks.write().write(offset, bytes);
        Ok(())
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_log_range(self.medium.capacity, offset, out.len())?;
        self.medium.chunks.read().read(offset, out);
        Ok(())
    }
}
