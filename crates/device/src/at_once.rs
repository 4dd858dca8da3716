//! Devices that never let anyone wait.

use crate::{Buffer, Device, Operation};
use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A device in memory, every operation of which is done when its call returns; what implements this is a [`Device`], whose contract it keeps.
pub trait AtOnce: 'static {
    /// What reads return and writes take.
    type Buf: Buffer;

    /// Size in bytes.
    fn capacity(&self) -> u64;

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// As [`check_range`](crate::check_range).
    fn read_now(&self, offset: u64, len: usize) -> io::Result<Self::Buf>;

    /// Writes the bytes `range` of `data` to `offset`.
    ///
    /// # Errors
    /// As [`check_write_range`](crate::check_write_range).
    fn write_now(&self, offset: u64, data: &Self::Buf, range: Range<usize>) -> io::Result<()>;

    /// Writes a few bytes of any alignment.
    ///
    /// # Errors
    /// As [`check_log_range`](crate::check_log_range).
    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads bytes of any alignment.
    ///
    /// # Errors
    /// As [`check_log_range`](crate::check_log_range).
    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl<T: AtOnce> Device for T {
    type Buf = T::Buf;

    fn capacity(&self) -> u64 {
        AtOnce::capacity(self)
    }

    fn read(&self, offset: u64, len: usize) -> impl Operation<Self::Buf> {
        ready(self.read_now(offset, len))
    }

    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()> {
        ready(self.write_now(offset, &data, range))
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        AtOnce::append_log(self, offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        AtOnce::read_log(self, offset, out)
    }

    fn sync(&self) -> impl Operation<()> {
        ready(Ok(()))
    }

    fn turn(&self, _block: bool) -> io::Result<usize> {
        Ok(0)
    }
}
