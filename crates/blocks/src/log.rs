//! The log ring: what changed since the newest checkpoint.
//!
//! A ring of 32-byte records at fixed slots. A record is appended before anyone sees its change, with an ordinary buffered
//! write: it survives the end of the process at the price of a copy to the page cache. A checkpoint makes the records before it
//! unnecessary. This room knows two kinds of record, both about blocks; all others are the owner's ([`OwnKind`]).

use crate::geometry::{Geometry, LOG_RECORD_BYTES};
use crate::rot;
use locks::Mutex;
use pumice_device::Device;
use pumice_record::codec::{Fields, checksum};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The kinds of record that an owner adds to the log.
///
/// ```
/// use pumice_blocks::log::OwnKind;
///
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// enum Kind {
///     Delete,
/// }
///
/// impl OwnKind for Kind {
///     fn number(self) -> u16 {
///         1
///     }
///
///     fn from_number(number: u16) -> Option<Self> {
///         (number == 1).then_some(Kind::Delete)
///     }
/// }
/// ```
pub trait OwnKind: Copy + Eq {
    /// The number of this kind on the device, below 65,520; no two kinds share one.
    fn number(self) -> u16;

    /// The kind that has this number; `None` makes its record damaged.
    fn from_number(number: u16) -> Option<Self>;
}

/// The meaning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<K> {
    /// Block `a` in its generation `b` is reclaimed: nothing in it counts any more.
    Reclaim,
    /// A block in its generation `b` was active, and its beginning is on the device: `a` is a [`PrefixMark`].
    Prefix,
    /// The owner's.
    Own(K),
}

impl<K: OwnKind> From<K> for Kind<K> {
    fn from(kind: K) -> Self {
        Kind::Own(kind)
    }
}

/// Numbers from here on are the owner's.
const OWN_NUMBERS: u16 = 16;

impl<K: OwnKind> Kind<K> {
    fn number(self) -> u16 {
        match self {
            Kind::Reclaim => 1,
            Kind::Prefix => 2,
            Kind::Own(kind) => OWN_NUMBERS + kind.number(),
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Kind::Reclaim),
            2 => Some(Kind::Prefix),
            _ => K::from_number(number.checked_sub(OWN_NUMBERS)?).map(Kind::Own),
        }
    }
}

/// `a` of a record of a prefix, from the lowest bit on. A block has at most 2^16 sectors, its footer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMark {
    /// Number of the block.
    pub block: u32,
    /// The end of the prefix, in sectors from the start of the block.
    pub end_sectors: u16,
    /// The owner's.
    pub own: u16,
}

impl PrefixMark {
    /// The 64 bits.
    pub fn encode(self) -> u64 {
        u64::from(self.block) | u64::from(self.end_sectors) << 32 | u64::from(self.own) << 48
    }

    /// Reads what [`PrefixMark::encode`] wrote; any bits are a mark.
    pub fn decode(a: u64) -> Self {
        let (block, end_sectors, own) = (a as u32, (a >> 32) as u16, (a >> 48) as u16);
        Self {
            block,
            end_sectors,
            own,
        }
    }
}

/// One record. 32 bytes, little-endian.
///
/// | offset | size | field      | meaning                                                               |
/// |-------:|-----:|------------|-----------------------------------------------------------------------|
/// |      0 |    4 | `crc32c`   | over the cache id and bytes 4..32                                     |
/// |      4 |    2 | `kind`     | 1 reclaim, 2 prefix, from 16 on the owner's                           |
/// |      6 |    2 | zero       |                                                                       |
/// |      8 |    8 | `position` | counts records since format; slot = position mod slots: tells old laps |
/// |     16 |    8 | `a`        | block, a prefix's mark, or the owner's                                |
/// |     24 |    8 | `b`        | sequence, or the owner's                                              |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<K> {
    /// The meaning of `a` and `b`.
    pub kind: Kind<K>,
    /// Place in the log's whole history.
    pub position: u64,
    /// Block, mark, or the owner's.
    pub a: u64,
    /// Sequence, or the owner's.
    pub b: u64,
}

impl<K: OwnKind> LogRecord<K> {
    /// The bytes.
    pub fn encode(&self, cache_id: u64) -> [u8; LOG_RECORD_BYTES as usize] {
        let mut out = [0; LOG_RECORD_BYTES as usize];
        out[4..6].copy_from_slice(&self.kind.number().to_le_bytes());
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
        let kind = Kind::from_number(fields.u16()?)?;
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

/// How an append to the log ended. Only its owner knows whether a change may go on without its record: a cache of copies starts empty
/// after a crash ([`lose_record`](crate::Journal::lose_record)); a store with the only copy waits
/// ([`wait_for_room`](crate::Journal::wait_for_room)), writes a checkpoint and
/// appends again, or refuses the change.
#[must_use = "without its record no start knows of the change: the owner decides what follows"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    /// It is in the log.
    Stored,
    /// The log is full until a checkpoint has made room. Nothing was written.
    NoRoom,
    /// The device failed, or is fenced. The record is not in the log; another append takes its place.
    Failed,
    /// No log is kept: [`Durability::Off`](crate::Durability::Off).
    Off,
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
    pub fn append<D: Device, K: OwnKind>(
        &self,
        device: &D,
        kind: Kind<K>,
        a: u64,
        b: u64,
    ) -> io::Result<bool> {
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
pub fn reaches<K: OwnKind>(
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    cache_id: u64,
    geometry: &Geometry,
    start: u64,
) -> io::Result<bool> {
    let before = start.saturating_sub(1);
    let slot = before % geometry.log_slots;
    let mut bytes = [0; LOG_RECORD_BYTES as usize];
    read(geometry.log_offset + slot * LOG_RECORD_BYTES, &mut bytes)?;
    let found = LogRecord::<K>::decode(cache_id, &bytes);
    Ok(found.is_some_and(|record| record.position >= before && record.position % geometry.log_slots == slot))
}

/// What a pass over the log has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Position of the next record.
    pub next: u64,
    /// Records from the wanted position on.
    pub records: u64,
    /// A record is missing among others.
    pub has_gap: bool,
    /// Bytes read.
    pub bytes_read: u64,
}

/// Slots that are read at a time; the log ends where so many in a row hold no record of this lap.
const STRETCH_SLOTS: u64 = 8192;

/// DRAM that [`scan`] takes, in bytes.
pub const SCAN_BYTES: u64 = STRETCH_SLOTS * LOG_RECORD_BYTES;

/// Reads the log from `start` on, until a stretch of 8,192 slots holds no record of this lap, and shows each record to
/// `visit`, in order. A record with a single wrong bit is not shown.
///
/// # Errors
/// What the device said.
pub fn scan<K: OwnKind>(
    read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    cache_id: u64,
    geometry: &Geometry,
    start: u64,
    visit: impl FnMut(&LogRecord<K>),
) -> io::Result<Scan> {
    let decode = |position, bytes: &[u8]| decode_at(cache_id, position, bytes);
    scan_with(read, decode, geometry, start, visit)
}

/// The same, for a start: a record with a single wrong bit is shown as it was written, and `mended` gets it. Nothing else tells rot of the last
/// records from the log's end. A torn record that passes for one is as good: a record is appended once its change holds, or before
/// anybody relies on the absence of the change.
///
/// # Errors
/// What the device said.
pub(crate) fn scan_mended<K: OwnKind>(
    read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    cache_id: u64,
    geometry: &Geometry,
    start: u64,
    visit: impl FnMut(&LogRecord<K>),
    mut mended: impl FnMut(&LogRecord<K>),
) -> io::Result<Scan> {
    let decode = |position, bytes: &[u8]| {
        decode_at(cache_id, position, bytes).or_else(|| {
            let record = decode_at(cache_id, position, &rot::mended(cache_id, bytes)?)?;
            mended(&record);
            Some(record)
        })
    };
    scan_with(read, decode, geometry, start, visit)
}

/// The record at a position, if these are its bytes.
fn decode_at<K: OwnKind>(cache_id: u64, position: u64, bytes: &[u8]) -> Option<LogRecord<K>> {
    LogRecord::decode(cache_id, bytes).filter(|record| record.position == position)
}

fn scan_with<K: OwnKind>(
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    mut decode: impl FnMut(u64, &[u8]) -> Option<LogRecord<K>>,
    geometry: &Geometry,
    start: u64,
    mut visit: impl FnMut(&LogRecord<K>),
) -> io::Result<Scan> {
    let slots = geometry.log_slots;
    let mut end = Scan {
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
            let Some(record) = decode(expected, bytes) else {
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
