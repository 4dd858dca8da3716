//! Bytes on a device: the one seam between the engine and whatever stores its flash tier.
//!
//! Implementations: [`FileDevice`] (a file or raw block device through O_DIRECT and io_uring, or ordinary positioned
//! I/O on a few threads where either is refused), [`MemDevice`] (memory), [`SparseDevice`] (keeps headers, forgets
//! values: for simulation), [`CountingDevice`] (counts what passes to another),
//! [`ThrottledDevice`] (as slow as another kind of device). All of them run the conformance suite of `crates/testkit`, which has one more,
//! that fails as it is told. One in memory implements [`AtOnce`], and is a [`Device`] by that. A device of another crate checks ranges with [`check_range`], [`check_write_range`] and [`check_log_range`].

mod at_once;
mod chunks;
mod counting;
mod file;
mod forward;
mod mem;
mod overdue;
mod sparse;
mod throttled;

pub use at_once::AtOnce;
pub use chunks::ChunkMap;
pub use counting::{CountingDevice, DeviceCounters, DeviceCounts};
pub use file::{Engine, FileDevice, FileError, FileOptions, FileShared, file_behind, holder, mounted_at};
pub use mem::{MemDevice, MemMedium};
pub use overdue::{Overdue, Silence};
pub use pumice_memory::{AlignedBuf, Buffer, Payload, SECTOR_BYTES, SparseBuf};
pub use sparse::{SparseDevice, SparseMedium};
pub use throttled::{
    Delay, Delays, Direction, Kind, Lanes, Profile, ProfileError, RealTime, Stalls, Throttle,
    ThrottledDevice, Timeline, VirtualTime, duration,
};

use std::io;
use std::ops::Range;
use std::sync::Arc;

/// One thread's handle on a device of fixed size.
///
/// A device is shared by several threads; each has its own handle (its own io_uring, say), which is why nothing here
/// asks for `Send`. What one handle wrote, every handle reads.
///
/// # Contract
///
/// *Units.* Offsets are 64-bit bytes from the start of the device. For [`read`](Device::read) and
/// [`write`](Device::write), offset and length are multiples of [`SECTOR_BYTES`], the length is not 0, and the range
/// lies inside [`capacity`](Device::capacity); the part of a buffer that is written starts at a multiple as well (O_DIRECT
/// wants the memory aligned too); anything else is [`io::ErrorKind::InvalidInput`] and touches nothing.
/// [`append_log`](Device::append_log) and [`read_log`](Device::read_log) take any offset and length inside the
/// capacity.
///
/// *Buffers.* A read allocates its buffer and hands it out when the device has finished with it. A write shares the
/// buffer: the caller must leave the bytes in `range` unchanged until the future is done; reading them meanwhile is
/// fine. A future that is dropped early changes nothing of this: the device keeps its share of the buffer until the
/// operation is over, so the memory is never freed or reused under it; a dropped write may or may not happen.
///
/// *When an operation starts.* A real device queues an operation when `read` or `write` is *called* (not when the
/// future is first polled) and may submit it together with others at the end of the event loop's turn.
///
/// *Ordering.* Two operations that overlap in time happen in any order. An operation that is started after another
/// one's future has completed sees its effect.
///
/// *Completeness.* Success means all bytes: short reads and writes are continued inside. A read that meets the end of a
/// file that became shorter is an error.
///
/// *Errors.* After an error the content of the written range is undefined (old, new or mixed per sector) until it is
/// written again; the device stays usable for other ranges; nothing else has changed. Reads never return bytes that
/// were not read.
///
/// *Durability.* A completed write survives the end of the process (`kill -9`). Surviving a power cut takes a
/// completed [`sync`](Device::sync) after it.
pub trait Device: 'static {
    /// What reads return and writes take.
    type Buf: Buffer;

    /// Size in bytes, a multiple of [`SECTOR_BYTES`]; never changes.
    fn capacity(&self) -> u64;

    /// Reads `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize) -> impl Operation<Self::Buf>;

    /// Reads `len` bytes at `offset` from a copy on a faster device, where there is one that may be used, and returns what `check` makes of
    /// them. `None`, also where the copy cannot be read or `check` finds its bytes wrong: [`read`](Device::read) them, which never asks a
    /// copy. The default has no copies.
    fn read_copy<T: 'static>(
        &self,
        offset: u64,
        len: usize,
        check: impl Fn(Self::Buf) -> Option<T> + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let _ = (offset, len, check);
        std::future::ready(None)
    }

    /// Writes the bytes `range` of `data` to `offset`.
    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()>;

    /// Writes a few bytes at once and without waiting for the medium: they survive the end of the process when this
    /// returns, and a power cut after the next [`sync`](Device::sync). For small log records of any alignment. Where `write` has
    /// written, nothing may be appended any more until the device is opened anew.
    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads what [`append_log`](Device::append_log) wrote, blocking; only used while a cache opens.
    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Says that the range is of no use until it is written again. A hint, for drives that collect garbage: what is read there from then
    /// on is the old content or anything else. The default does nothing; a device over another passes it on.
    fn discard(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Whether the file has a hole at `offset`, which a write must first make known to its file system. A hint: the default is false; a device
    /// over another asks it.
    fn is_hole(&self, offset: u64) -> bool {
        let _ = offset;
        false
    }

    /// Makes everything that was completed or appended before durable against power cuts.
    fn sync(&self) -> impl Operation<()>;

    /// Passes a second of the caller's time, and ends with [`Overdue`] what is under way on this handle and gets no answer; with 0
    /// everything that is under way or waits. Returns what it has ended, also where the future was dropped before and so nobody else
    /// learns of it.
    ///
    /// With more than 0, that is what is under way while the device has answered nothing at all, on any handle, for more than `patience`
    /// seconds, and what has no answer after 8 times as long although others have. So a device that is only slow ends
    /// nothing, however much waits for it.
    ///
    /// It is as if the futures had been dropped: the device keeps their buffers until it is done with them, and a write may still
    /// happen. The default, for devices that always answer, does nothing.
    ///
    /// Time is counted in calls, by one caller for each handle, so that a process that was stopped or suspended loses nothing by it.
    fn tick(&self, patience: u32) -> Vec<Overdue> {
        let _ = patience;
        Vec::new()
    }

    /// Starts what was queued, and completes what is finished, waking its futures. With `block`, waits for at least
    /// one completion unless nothing is under way. Returns the number of completions. For executors that have
    /// nothing else to do; devices whose operations complete at once return 0.
    fn turn(&self, block: bool) -> io::Result<usize>;
}

/// What a device was asked to do, until it is done; see the contract of [`Device`].
pub trait Operation<T>: Future<Output = io::Result<T>> + 'static {}

impl<T, F: Future<Output = io::Result<T>> + 'static> Operation<T> for F {}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Checks a range against the contract of [`Device::read`] and [`Device::write`].
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], naming what is wrong.
pub fn check_range(capacity: u64, offset: u64, len: usize) -> io::Result<()> {
    let what = match offset.checked_add(len as u64) {
        _ if len == 0 => "length is 0",
        _ if !len.is_multiple_of(SECTOR_BYTES) || !offset.is_multiple_of(SECTOR_BYTES as u64) => {
            "not aligned to 4096 bytes"
        }
        Some(end) if end <= capacity => return Ok(()),
        _ => "past the end",
    };
    Err(invalid(format!(
        "device range at {offset}, {len} bytes: {what} (capacity {capacity})"
    )))
}

/// Checks the arguments of [`Device::write`], where `len` is the length of its buffer.
///
/// # Errors
/// As [`check_range`].
pub fn check_write_range(capacity: u64, offset: u64, len: usize, range: &Range<usize>) -> io::Result<()> {
    if range.start > range.end || range.end > len || !range.start.is_multiple_of(SECTOR_BYTES) {
        return Err(invalid(format!(
            "device write at {offset}: part {range:?} of a buffer of {len} bytes is outside or not aligned"
        )));
    }
    check_range(capacity, offset, range.len())
}

/// Checks the arguments of [`Device::write`] and returns the bytes to write.
fn check_write<B: Buffer>(capacity: u64, offset: u64, data: &B, range: Range<usize>) -> io::Result<&[u8]> {
    check_write_range(capacity, offset, data.len(), &range)?;
    let bytes = data.bytes(range.start, range.len());
    bytes.ok_or_else(|| invalid("device write of a buffer without bytes".to_owned()))
}

/// Checks a range against the contract of [`Device::append_log`] and [`Device::read_log`].
///
/// # Errors
/// As [`check_range`].
pub fn check_log_range(capacity: u64, offset: u64, len: usize) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(invalid(format!(
            "device log range at {offset}, {len} bytes: past the end (capacity {capacity})"
        ))),
    }
}
