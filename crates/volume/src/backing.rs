//! The trait of the slow device behind a volume.

use bytes::Bytes;
use std::future::Future;
use std::io;

/// A part of a backing device that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub length: u64,
    /// Whether nothing is allocated for it. A hole reads as zeros.
    pub is_hole: bool,
}

/// One thread's handle on a device of fixed size. What one handle wrote, every handle reads.
///
/// # Contract
///
/// *Ranges* are in bytes, of any alignment, at least one byte, inside [`size`](Backing::size).
///
/// *Futures.* A change begins when its future is first polled. If its future is dropped before it is ready, the change may still happen, at
/// any time.
///
/// *Ordering.* A read that overlaps a change in time finds of each sector of 512 bytes all old or all new bytes.
///
/// *Errors.* After an error a changed range has old or new bytes, each sector of 512 bytes as a whole. They may still change, at any time,
/// if [`may_change_later`](Backing::may_change_later) is true of the error.
///
/// A flush that fails with [`NotConnected`](io::ErrorKind::NotConnected) has lost nothing, and may be tried again.
///
/// *Durability.* A change whose future is ready survives the end of the process, and after the next [`flush`](Backing::flush) a power cut.
pub trait Backing: 'static {
    /// Its size in bytes; never changes.
    fn size(&self) -> u64;

    /// What changes with each change of the device by anybody, durably; 0 if unknown. The upper 32 bits change with its bytes alone, the lower
    /// ones also with what is known of it beside them (owner, permissions, attributes).
    ///
    /// # Errors
    /// An error of the device.
    fn modified(&self) -> io::Result<u64>;

    /// Whether a change that failed so may still happen: it was sent to another machine, which has not answered.
    fn may_change_later(&self, _error: &io::Error) -> bool {
        false
    }

    /// Whether it may be read in place of a cache that has the bytes: not while it is away, nor once it has lost a change that it had answered.
    fn can_stand_in(&self) -> bool {
        true
    }

    /// Reads exactly `len` bytes.
    fn read_at(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Writes all bytes.
    fn write_at(&self, offset: u64, data: Bytes) -> impl Future<Output = io::Result<()>>;

    /// Makes a range read as zeros until it is written. With `may_punch` the device may deallocate it.
    fn zero(&self, offset: u64, len: u64, may_punch: bool) -> impl Future<Output = io::Result<()>>;

    /// Makes all changes durable whose futures were ready before.
    fn flush(&self) -> impl Future<Output = io::Result<()>>;

    /// Lists data and holes of a range: consecutive extents from `offset` on, at least one and at most `most`. They may end before the
    /// range does, or beyond it.
    fn extents(&self, offset: u64, len: u64, most: usize) -> impl Future<Output = io::Result<Vec<Extent>>>;
}
