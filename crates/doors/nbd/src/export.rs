//! The trait of block devices that the door serves.

use bytes::Bytes;
use std::future::Future;

/// Size and kind of a block device, which the handshake tells clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size in bytes; never changes.
    pub size_bytes: u64,
    /// Whether it refuses all changes.
    pub is_read_only: bool,
    /// Request length with the lowest cost for each byte: a power of two from 512 bytes to 32 MiB. A hint: every range is served.
    pub preferred_bytes: u32,
}

/// Why a request failed, as far as the protocol can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The device does not allow that change: EPERM.
    NotAllowed,
    /// The data cannot be read, or not be stored: EIO.
    Io,
    /// No memory for it: ENOMEM.
    NoMemory,
    /// No room on the medium: ENOSPC.
    NoSpace,
}

/// A part of a block device that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub length: u64,
    /// Whether nothing is allocated for it. A hole reads as zeros.
    pub is_hole: bool,
}

/// See *Memory* of [`Export`].
pub const SPAN_BYTES: u64 = 256 << 10;

/// One worker's handle on a block device. What one handle wrote, every handle reads.
///
/// # Contract
///
/// *Ranges.* Offset and length are in bytes, of any alignment. The length is at least 1, and the range lies inside
/// [`size_bytes`](Shape::size_bytes): the door has checked both. A read or a write has at most the door's window (a few MiB), a range to be
/// cached 1 MiB, a range to be made zero 32 MiB, a range to be described 4 GiB.
///
/// *Memory.* Beside the bytes of a request an export holds at most twice the units of [`preferred_bytes`](Shape::preferred_bytes) that it
/// touches, and at most twice [`SPAN_BYTES`], however long it is.
///
/// *Ordering.* Requests run concurrently. If two changes of the same bytes overlap in time, each sector of 512 bytes has the result of
/// either; a read that overlaps a change finds each sector before or after it. A request sees the effect of all changes whose futures were ready before it began, on any handle.
///
/// *Durability.* A change is in effect when its future is ready. With `is_durable` (FUA) it then also survives a power cut. A
/// [`flush`](Export::flush) makes all changes durable whose futures were ready before it was called, on any handle.
///
/// *Futures.* The door polls every future to its end, also when the client has disconnected; the reply is then dropped.
///
/// *Errors.* After an error the range may hold old or new bytes, sector by sector.
pub trait Export: 'static {
    /// Size and kind. Does not change while the door runs.
    fn shape(&self) -> Shape;

    /// Reads exactly `length` bytes at `offset`.
    fn read(&self, offset: u64, length: usize) -> impl Future<Output = Result<Bytes, ExportError>>;

    /// Writes `data` to `offset`.
    fn write(
        &self,
        offset: u64,
        data: Bytes,
        is_durable: bool,
    ) -> impl Future<Output = Result<(), ExportError>>;

    /// Makes a range read as zeros. `may_punch` is false where the range is to stay allocated; a TRIM asks for true.
    fn zero(
        &self,
        offset: u64,
        length: u64,
        may_punch: bool,
    ) -> impl Future<Output = Result<(), ExportError>>;

    /// Makes all changes durable whose futures were ready before.
    fn flush(&self) -> impl Future<Output = Result<(), ExportError>>;

    /// Lists data and holes of a range: consecutive extents from `offset` on, at least one and at most `most`. They may end before the
    /// range does; the door cuts off bytes beyond it.
    fn status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, ExportError>>;

    /// Reads a range into the cache, if there is one.
    fn cache(&self, offset: u64, length: u64) -> impl Future<Output = Result<(), ExportError>>;
}
