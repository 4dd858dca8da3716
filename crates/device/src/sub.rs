//! A range of another device, as a device.

use crate::{
    Buffer, Device, SECTOR_BYTES, check_log_range, check_range, check_write_range, forward, invalid,
};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A handle on a range of a device: two stores, or two tiers, share a drive. Each range has a handle of its own on the drive, because time
/// is counted for each handle ([`Device::tick`]). A flush flushes the whole drive.
#[derive(Debug, Clone)]
pub struct SubDevice<D> {
    inner: D,
    start: u64,
    len: u64,
}

impl<D: Device> SubDevice<D> {
    /// The bytes `range` of `inner`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where the range is empty, is not of whole sectors, or reaches past the end of `inner`.
    pub fn new(inner: D, range: Range<u64>) -> io::Result<Self> {
        let sector = SECTOR_BYTES as u64;
        let capacity = inner.capacity();
        let what = if range.is_empty() {
            "is empty"
        } else if !range.start.is_multiple_of(sector) || !range.end.is_multiple_of(sector) {
            "is not of whole sectors of 4096 bytes"
        } else if range.end > capacity {
            "reaches past the end"
        } else {
            return Ok(Self {
                inner,
                start: range.start,
                len: range.end - range.start,
            });
        };
        Err(invalid(format!(
            "part of a device from byte {} to {}: {what} (capacity {capacity})",
            range.start, range.end
        )))
    }
}

impl<D: Device> Device for SubDevice<D> {
    type Buf = D::Buf;
    forward!(inner: sync, tick, turn);

    fn capacity(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<Self::Buf>> + 'static {
        let checked = check_range(self.len, offset, len);
        let read = checked.map(|()| self.inner.read(self.start + offset, len));
        async move { read?.await }
    }

    fn read_copy<T: 'static>(
        &self,
        offset: u64,
        len: usize,
        check: impl Fn(Self::Buf) -> Option<T> + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let checked = check_range(self.len, offset, len).ok();
        let read = checked.map(|()| self.inner.read_copy(self.start + offset, len, check));
        async move { read?.await }
    }

    fn write(
        &self,
        offset: u64,
        data: Arc<Self::Buf>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let checked = check_write_range(self.len, offset, data.len(), &range);
        let write = checked.map(|()| self.inner.write(self.start + offset, data, range));
        async move { write?.await }
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_log_range(self.len, offset, bytes.len())?;
        self.inner.append_log(self.start + offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_log_range(self.len, offset, out.len())?;
        self.inner.read_log(self.start + offset, out)
    }

    fn is_hole(&self, offset: u64) -> bool {
        offset < self.len && self.inner.is_hole(self.start + offset)
    }

    fn discard(&self, offset: u64, len: u64) {
        // A hint: what is outside is another's.
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            self.inner.discard(self.start + offset, len);
        }
    }
}
