//! The invalidation log: what was on flash and must not come back.
//!
//! A ring of 32-byte records at fixed slots. A record is appended before the change it tells of is seen by anyone, with
//! an ordinary buffered write: it survives the end of the process at the price of a copy to the page cache.
//! A checkpoint makes the records before it unnecessary.

use crate::geometry::{Geometry, LOG_RECORD_BYTES};
use parking_lot::Mutex;
use pumice_device::Device;
use pumice_record::codec::{Fields, checksum};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Copies of the hash `a` with a version below `b` are void.
    Invalidate,
    /// All copies with a version below `b` are void.
    FlushAll,
    /// From the Unix second `a` on, what was set before is void: a delayed flush. `a` = 0 takes it back.
    FlushAt,
    /// Block `a` in its life `b` is reclaimed: nothing in it counts any more.
    Reclaim,
    /// A block in its life `b` was active, and what it began with is on the device: `a` says which, and how far that reaches.
    Prefix,
    /// As `Invalidate`, of a copy in a prefix that had died before: what is mapped under `a` meanwhile stays.
    Void,
}

/// What `a` of a record of a prefix says, from the lowest bit on. A block has at most 2^16 sectors, its footer included.
#[derive(Clone, Copy)]
pub(crate) struct PrefixMark {
    pub(crate) block: u32,
    /// Where the prefix ends.
    pub(crate) end_sectors: u16,
    /// Where the block stood in the queue, as in a [trailer](crate::footer::Trailer).
    pub(crate) position: u16,
}

impl PrefixMark {
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.block) | u64::from(self.end_sectors) << 32 | u64::from(self.position) << 48
    }

    pub(crate) fn decode(a: u64) -> Self {
        let (block, end_sectors, position) = (a as u32, (a >> 32) as u16, (a >> 48) as u16);
        Self {
            block,
            end_sectors,
            position,
        }
    }
}

/// One record. 32 bytes, little-endian.
///
/// | offset | size | field      | meaning                                                               |
/// |-------:|-----:|------------|-----------------------------------------------------------------------|
/// |      0 |    4 | `crc32c`   | over the cache id and bytes 4..32                                     |
/// |      4 |    2 | `kind`     | 1 invalidate, 2 flush all, 3 flush at, 4 reclaim, 5 prefix, 6 void    |
/// |      6 |    2 | zero       |                                                                       |
/// |      8 |    8 | `position` | counts records since format; slot = position mod slots: tells old laps |
/// |     16 |    8 | `a`        | hash, time, block, or a prefix's mark                                 |
/// |     24 |    8 | `b`        | version or sequence                                                   |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// What happened.
    pub kind: LogKind,
    /// Place in the log's whole history.
    pub position: u64,
    /// Hash, time or block.
    pub a: u64,
    /// Version or sequence.
    pub b: u64,
}

impl LogRecord {
    /// The bytes.
    pub fn encode(&self, cache_id: u64) -> [u8; LOG_RECORD_BYTES as usize] {
        let mut out = [0; LOG_RECORD_BYTES as usize];
        let kind: u16 = match self.kind {
            LogKind::Invalidate => 1,
            LogKind::FlushAll => 2,
            LogKind::FlushAt => 3,
            LogKind::Reclaim => 4,
            LogKind::Prefix => 5,
            LogKind::Void => 6,
        };
        out[4..6].copy_from_slice(&kind.to_le_bytes());
        out[8..16].copy_from_slice(&self.position.to_le_bytes());
        out[16..24].copy_from_slice(&self.a.to_le_bytes());
        out[24..32].copy_from_slice(&self.b.to_le_bytes());
        let crc = checksum(cache_id, &[&out[4..]]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a record; `None` where the bytes are not one of this cache's.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let crc = fields.u32()?;
        if crc != checksum(cache_id, &[bytes.get(4..LOG_RECORD_BYTES as usize)?]) {
            return None;
        }
        let kind = match fields.u16()? {
            1 => LogKind::Invalidate,
            2 => LogKind::FlushAll,
            3 => LogKind::FlushAt,
            4 => LogKind::Reclaim,
            5 => LogKind::Prefix,
            6 => LogKind::Void,
            _ => return None,
        };
        if fields.u16()? != 0 {
            return None;
        }
        Some(Self {
            kind,
            position: fields.count()?,
            a: fields.u64()?,
            b: fields.u64()?,
        })
    }
}

/// Appends records; see the module's text.
pub struct Log {
    cache_id: u64,
    offset: u64,
    slots: u64,
    /// Next position; the lock orders appends.
    next: Mutex<u64>,
    /// The same, for readers that may be a little late.
    next_seen: AtomicU64,
    /// Records below this position are no longer needed.
    tail: AtomicU64,
    /// Records below this position are covered by the newest checkpoint.
    checkpointed: AtomicU64,
}

impl Log {
    /// A log that goes on at `next` and still needs what is from `tail` on.
    pub fn new(cache_id: u64, geometry: &Geometry, tail: u64, next: u64) -> Self {
        Self {
            cache_id,
            offset: geometry.log_offset,
            slots: geometry.log_slots,
            next: Mutex::new(next),
            next_seen: AtomicU64::new(next),
            tail: AtomicU64::new(tail),
            checkpointed: AtomicU64::new(tail),
        }
    }

    /// Appends a record. `Ok(false)` where the log is full: the record is not stored.
    ///
    /// # Errors
    /// What the device said; the record counts as not stored.
    pub fn append<D: Device>(&self, device: &D, kind: LogKind, a: u64, b: u64) -> io::Result<bool> {
        let mut next = self.next.lock();
        if *next - self.tail.load(Ordering::Acquire) >= self.slots {
            return Ok(false);
        }
        let record = LogRecord {
            kind,
            position: *next,
            a,
            b,
        };
        let slot = *next % self.slots;
        device.append_log(
            self.offset + slot * LOG_RECORD_BYTES,
            &record.encode(self.cache_id),
        )?;
        *next += 1;
        self.next_seen.store(*next, Ordering::Release);
        Ok(true)
    }

    /// The next record's position: every record appended before has a lower one.
    pub fn position(&self) -> u64 {
        self.next_seen.load(Ordering::Acquire)
    }

    /// Notes that the newest checkpoint covers the records below `covered`, and forgets those below `needed`, which only
    /// older checkpoints would need.
    pub fn truncate(&self, covered: u64, needed: u64) {
        self.checkpointed.fetch_max(covered, Ordering::AcqRel);
        self.tail.fetch_max(needed, Ordering::AcqRel);
    }

    /// Position up to which the newest checkpoint covers the log.
    pub fn last_checkpoint(&self) -> u64 {
        self.checkpointed.load(Ordering::Acquire)
    }

    /// Records in use, and records that fit.
    pub fn usage(&self) -> (u64, u64) {
        (
            self.position().saturating_sub(self.tail.load(Ordering::Acquire)),
            self.slots,
        )
    }
}

/// Whether the log is the one that a checkpoint was written beside, from `start` on: the record before that one is there, or where it
/// was another of this cache. A log that was erased, or is another cache's, would else pass as one that nothing was added to.
///
/// # Errors
/// What the device said.
pub fn reaches(
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    cache_id: u64,
    geometry: &Geometry,
    start: u64,
) -> io::Result<bool> {
    let before = start.saturating_sub(1);
    let slot = before % geometry.log_slots;
    let mut bytes = [0; LOG_RECORD_BYTES as usize];
    read(geometry.log_offset + slot * LOG_RECORD_BYTES, &mut bytes)?;
    let found = LogRecord::decode(cache_id, &bytes);
    Ok(found.is_some_and(|record| record.position >= before && record.position % geometry.log_slots == slot))
}

/// How a log ended at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Where the log goes on.
    pub next: u64,
    /// Records from the wanted position on.
    pub records: u64,
    /// A record is missing among others: nobody knows what it said.
    pub has_gap: bool,
    /// Bytes read.
    pub bytes_read: u64,
}

/// Slots that are read at a time; the log ends where so many in a row hold no record of this lap.
const STRETCH_SLOTS: u64 = 8192;

/// DRAM that [`scan`] takes, in bytes.
pub const SCAN_BYTES: u64 = STRETCH_SLOTS * LOG_RECORD_BYTES;

/// Reads the log from `start` on, until a stretch of 8,192 slots holds no record of this lap, and shows each record to
/// `visit`, in order.
///
/// # Errors
/// What the device said.
pub fn scan(
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    cache_id: u64,
    geometry: &Geometry,
    start: u64,
    mut visit: impl FnMut(&LogRecord),
) -> io::Result<LogEnd> {
    let slots = geometry.log_slots;
    let mut end = LogEnd {
        next: start,
        records: 0,
        has_gap: false,
        bytes_read: 0,
    };
    let mut bytes = Vec::new();
    let mut position = start;
    while position < start + slots {
        // To the end of the stretch, of the ring, and of one lap.
        let slot = position % slots;
        let count = STRETCH_SLOTS.min(slots - slot).min(start + slots - position);
        bytes.resize((count * LOG_RECORD_BYTES) as usize, 0);
        read(geometry.log_offset + slot * LOG_RECORD_BYTES, &mut bytes)?;
        end.bytes_read += bytes.len() as u64;
        let before = end.records;
        let (slots, _) = bytes.as_chunks::<{ LOG_RECORD_BYTES as usize }>();
        for (expected, bytes) in (position..).zip(slots) {
            let record = LogRecord::decode(cache_id, bytes);
            let Some(record) = record.filter(|record| record.position == expected) else {
                continue;
            };
            end.has_gap |= record.position != end.next;
            end.next = record.position + 1;
            end.records += 1;
            visit(&record);
        }
        position += count;
        if end.records == before && count == STRETCH_SLOTS {
            break;
        }
    }
    Ok(end)
}
