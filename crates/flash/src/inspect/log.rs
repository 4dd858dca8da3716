//! The log, from the first record that a start could need to its end.

use super::bit::{Flip, flipped_bit, say};
use super::{LogSummary, Part, Source, Walk};
use crate::codec::checksum;
use crate::geometry::LOG_RECORD_BYTES;
use crate::log::{LogKind, LogRecord, STRETCH_SLOTS};
use crate::recovery::EPOCH_SHIFT;

const RECORD_BYTES: usize = LOG_RECORD_BYTES as usize;

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Walks the log from position `start` on, notes which blocks it says were reclaimed, and names what is missing before its end.
    pub(super) fn log(&mut self, start: u64) {
        let geometry = self.superblock.geometry;
        let cache_id = self.superblock.cache_id;
        let slots = geometry.log_slots;
        let mut log = LogSummary {
            start,
            next: start,
            records: 0,
        };
        let end = start.saturating_add(slots);
        let mut position = start;
        while position < end {
            let slot = position % slots;
            let count = STRETCH_SLOTS.min(slots - slot).min(end - position);
            let offset = geometry.log_offset + slot * LOG_RECORD_BYTES;
            let before = log.records;
            let part = Part::Log(position);
            let bytes = self.read(part, offset, (count * LOG_RECORD_BYTES) as usize);
            let records = bytes.as_deref().unwrap_or_default().chunks_exact(RECORD_BYTES);
            for (expected, bytes) in (position..).zip(records) {
                let record = LogRecord::decode(cache_id, bytes);
                let Some(record) = record.filter(|record| record.position == expected) else {
                    continue;
                };
                for missing in log.next..expected {
                    self.missing_record(missing);
                }
                log.next = expected + 1;
                log.records += 1;
                self.log_record(&record, offset + (expected - position) * LOG_RECORD_BYTES);
            }
            position += count;
            if log.records == before && count == STRETCH_SLOTS {
                break;
            }
        }
        if log.next < end {
            self.log_end(log.next);
        }
        self.summary.log = log;
    }

    fn slot_offset(&self, position: u64) -> u64 {
        let geometry = &self.superblock.geometry;
        geometry.log_offset + position % geometry.log_slots * LOG_RECORD_BYTES
    }

    fn log_record(&mut self, record: &LogRecord, offset: u64) {
        self.used(offset, LOG_RECORD_BYTES);
        let part = Part::Log(record.position);
        let newest = u64::from(self.superblock.epoch);
        match record.kind {
            LogKind::Invalidate | LogKind::FlushAll if record.b >> EPOCH_SHIFT > newest => {
                let what = format!(
                    "version {:#x} is of epoch {}, but the superblock's is {newest}",
                    record.b,
                    record.b >> EPOCH_SHIFT
                );
                self.wrong(part, offset, what);
            }
            LogKind::FlushAt if record.a > u64::from(u32::MAX) => {
                self.wrong(
                    part,
                    offset,
                    format!("a flush at second {} can never be", record.a),
                );
            }
            LogKind::Reclaim => {
                let block = usize::try_from(record.a).ok();
                match block.and_then(|block| self.reclaimed.get_mut(block)) {
                    Some(highest) => *highest = record.b.max(*highest),
                    None => {
                        let what = format!("it is about block {}, and there is none", record.a);
                        self.wrong(part, offset, what);
                    }
                }
            }
            LogKind::Invalidate | LogKind::FlushAll | LogKind::FlushAt => {}
        }
    }

    /// A record that is not there, though later ones are.
    fn missing_record(&mut self, position: u64) {
        let (part, offset) = (Part::Log(position), self.slot_offset(position));
        let Some(bytes) = self.read(part, offset, RECORD_BYTES) else {
            return;
        };
        let found = match LogRecord::decode(self.superblock.cache_id, &bytes) {
            Some(record) => format!("record {} stands there", record.position),
            None if bytes.iter().all(|byte| *byte == 0) => "zeros stand there".to_owned(),
            None => self
                .damage(&bytes, offset)
                .unwrap_or_else(|| "its checksum is wrong".to_owned()),
        };
        let what =
            format!("it is missing before the log's end, so the next start empties the cache: {found}");
        self.wrong(part, offset, what);
    }

    /// The slot behind the last record. A crash in an append leaves its first bytes there; a record of which one bit is wrong was
    /// whole once.
    fn log_end(&mut self, position: u64) {
        let (part, offset) = (Part::Log(position), self.slot_offset(position));
        let Some(bytes) = self.read(part, offset, RECORD_BYTES) else {
            return;
        };
        let cache_id = self.superblock.cache_id;
        if LogRecord::decode(cache_id, &bytes).is_some() {
            return;
        }
        if let Some(flip) = record_flip(cache_id, &bytes) {
            let mut mended = bytes.clone();
            let byte = match flip {
                Flip::Covered { byte, bit } => {
                    mended[4 + byte] ^= 1 << bit;
                    4 + byte
                }
                Flip::Checksum { bit } => {
                    mended[(bit / 8) as usize] ^= 1 << (bit % 8);
                    (bit / 8) as usize
                }
            };
            let record = LogRecord::decode(cache_id, &mended);
            if record.is_none_or(|record| record.position != position) {
                return;
            }
            let damage = self.damage(&bytes, offset).unwrap_or_default();
            // The end of a record may lack no more than one bit that is not zero.
            if bytes[byte..].iter().all(|byte| *byte == 0) && !self.superblock.clean {
                let what =
                    format!("an append was cut short by a crash, or the last record is damaged: {damage}");
                return self.note(part, offset, what);
            }
            let what = format!("the last record is damaged, so that no start will see it: {damage}");
            self.wrong(part, offset, what);
        } else if bytes[8..16] == position.to_le_bytes() {
            let what = "an append was cut short by a crash: this is the log's end";
            self.note(part, offset, what.to_owned());
        }
    }

    fn damage(&self, bytes: &[u8], offset: u64) -> Option<String> {
        let flip = record_flip(self.superblock.cache_id, bytes)?;
        Some(say(flip, offset, |byte| offset + 4 + byte as u64))
    }
}

fn record_flip(cache_id: u64, bytes: &[u8]) -> Option<Flip> {
    let (stored, covered) = bytes.split_first_chunk::<4>()?;
    flipped_bit(
        covered.len(),
        u32::from_le_bytes(*stored),
        checksum(cache_id, &[covered]),
    )
}
