//! What the door asks of a block device.

use bytes::Bytes;
use std::future::Future;

/// What clients learn of a block device before they use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size in bytes; never changes.
    pub size_bytes: u64,
    /// Whether it refuses all changes.
    pub is_read_only: bool,
    /// The length of requests, in bytes, that costs least for each byte: a power of two from 512 to 32 MiB. A hint: every range is served.
    pub preferred_bytes: u32,
}

/// Why a request failed, in the words that the protocol has for it.
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

/// A part of a block device that is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub length: u64,
    /// Whether nothing is allocated for it; it reads as zeros then.
    pub is_hole: bool,
}

/// One worker's handle on a block device. What one handle wrote, every handle reads.
///
/// # Contract
///
/// *Ranges.* Offset and length are in bytes, of any alignment. The length is at least 1, and the range lies inside
/// [`size_bytes`](Shape::size_bytes): the door has checked both. A read or a write has at most the door's window (a few MiB), a range to be
/// cached 1 MiB, a range to be made zero 32 MiB, a range to be described 4 GiB.
///
/// *Ordering.* Requests run concurrently. Where two that change the same bytes overlap in time, either may win, sector by sector. A
/// request that begins after another one's future was ready sees its effect, whichever handle or connection it came by.
///
/// *Durability.* A future that is ready says that the change is in effect. With `is_durable` (FUA) it also survives a power cut, and after
/// a [`flush`](Export::flush) all changes do whose futures were ready before it was called, on any handle.
///
/// *Futures.* The door polls every future to its end, also after its client has gone; a reply then goes nowhere.
///
/// *Errors.* After an error the range may hold old or new bytes, sector by sector.
pub trait Export: 'static {
    /// What clients learn of it. Does not change while the door runs.
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

    /// Makes all changes durable that were answered before.
    fn flush(&self) -> impl Future<Output = Result<(), ExportError>>;

    /// What the range consists of: consecutive extents from `offset` on, at least one and at most `most`. They may end before the range
    /// does; whatever goes beyond it is cut off.
    fn status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, ExportError>>;

    /// Brings a range into the cache. A hint.
    fn cache(&self, offset: u64, length: u64) -> impl Future<Output = Result<(), ExportError>>;
}
