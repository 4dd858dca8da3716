//! What a volume asks of the slow device behind it.

use bytes::Bytes;
use std::future::Future;
use std::io;

/// A part of a backing device that is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub length: u64,
    /// Whether nothing is stored for it, and it reads as zeros.
    pub is_hole: bool,
}

/// One thread's handle on a device of fixed size. What one handle wrote, every handle reads.
///
/// # Contract
///
/// *Ranges* are in bytes, of any alignment, at least one byte, inside [`size`](Backing::size).
///
/// *Futures.* A change begins when its future is first polled. One that is dropped before its end may still happen, at any time.
///
/// *Errors.* After an error a changed range has old or new bytes, each sector of 512 bytes as a whole.
///
/// *Durability.* What a future said to be done survives the end of the process, and a power cut after the next
/// [`flush`](Backing::flush).
pub trait Backing: 'static {
    /// Its size in bytes; never changes.
    fn size(&self) -> u64;

    /// When it was changed last, in nanoseconds since 1970; 0 where that is not known.
    ///
    /// # Errors
    /// What the device said.
    fn modified(&self) -> io::Result<u64>;

    /// Reads exactly `len` bytes.
    fn read_at(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<Vec<u8>>>;

    /// Writes all bytes.
    fn write_at(&self, offset: u64, data: Bytes) -> impl Future<Output = io::Result<()>>;

    /// Makes a range read as zeros for good; with `may_punch` nothing need stay allocated for it.
    fn zero(&self, offset: u64, len: u64, may_punch: bool) -> impl Future<Output = io::Result<()>>;

    /// Makes everything durable that was done before.
    fn flush(&self) -> impl Future<Output = io::Result<()>>;

    /// What a range consists of: consecutive extents from `offset` on, at least one and at most `most`, which may end before the range does
    /// or go on after it.
    fn extents(&self, offset: u64, len: u64, most: usize) -> impl Future<Output = io::Result<Vec<Extent>>>;
}
