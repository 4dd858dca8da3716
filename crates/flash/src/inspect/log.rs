//! The log, from the first record that a start could need to its end.

use super::{LogSummary, Part, Source, Walk};
use crate::log::{LogKind, LogRecord};
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::log::{self, Kind, PrefixMark};
use pumice_blocks::rot::mended;
use pumice_record::EPOCH_SHIFT;

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Walks the log from position `start` on, notes which blocks it says were reclaimed, and names where records are missing before
    /// its end.
    pub(super) fn log(&mut self, start: u64) {
        let (cache_id, geometry) = (self.superblock.cache_id, self.superblock.geometry);
        let source = self.source;
        let read = |offset, out: &mut [u8]| source.read(offset, out);
        let (mut next, mut records) = (start, 0);
        let end = log::scan::<LogKind>(read, cache_id, &geometry, start, |record| {
            if record.position != next {
                let what = format!(
                    "positions {next} to below {} are missing before the log's end",
                    record.position
                );
                self.lost_log(next, what);
            }
            (next, records) = (record.position + 1, records + 1);
            self.log_record(record);
        });
        // A clean stop says where the log ends at least. These records are named here; its checkpoint is good without them.
        let covered = self.superblock.checkpoints[0].log_start;
        if self.superblock.clean && end.is_ok() && next < covered {
            let what = format!("positions {next} to below {covered} are missing at the log's end");
            self.wrong(Part::Log(next), self.slot_offset(next), what);
            next = covered;
        }
        match end {
            Ok(_) if next < start + geometry.log_slots => self.log_end(next),
            Ok(_) => {}
            Err(error) => self.lost_log(next, format!("the log cannot be read: {error}")),
        }
        self.summary.log = LogSummary { start, next, records };
    }

    fn lost_log(&mut self, position: u64, what: String) {
        self.summary.will_be_emptied = true;
        let what = format!("{what}: the next start empties the cache");
        self.wrong(Part::Log(position), self.slot_offset(position), what);
    }

    fn slot_offset(&self, position: u64) -> u64 {
        self.superblock.geometry.record_offset(position)
    }

    fn log_record(&mut self, record: &LogRecord) {
        let (part, offset) = (Part::Log(record.position), self.slot_offset(record.position));
        self.used(offset, LOG_RECORD_BYTES);
        match record.kind {
            Kind::Own(LogKind::Invalidate) | Kind::Own(LogKind::Void) | Kind::Own(LogKind::FlushAll)
                if record.b >> EPOCH_SHIFT > u64::from(self.superblock.epoch) =>
            {
                let what = "its version is of a later epoch than the superblock's";
                self.wrong(part, offset, what);
            }
            Kind::Own(LogKind::FlushAt) if record.a > u64::from(u32::MAX) => {
                let what = format!("a flush at second {} can never be", record.a);
                self.wrong(part, offset, what);
            }
            Kind::Reclaim => {
                let block = usize::try_from(record.a).ok();
                match block.and_then(|block| self.reclaimed.get_mut(block)) {
                    Some(highest) => *highest = record.b.max(*highest),
                    None => {
                        let what = format!("it is about block {}, and there is none", record.a);
                        self.wrong(part, offset, what);
                    }
                }
            }
            Kind::Prefix => {
                let block = PrefixMark::decode(record.a).block as usize;
                let highest = self.prefixed.get_mut(block);
                highest
                    .into_iter()
                    .for_each(|highest| *highest = record.b.max(*highest));
            }
            Kind::Own(LogKind::Invalidate)
            | Kind::Own(LogKind::FlushAll)
            | Kind::Own(LogKind::FlushAt)
            | Kind::Own(LogKind::Void) => {}
        }
    }

    /// The slot behind the last record. A record with one wrong bit is still known as one of this cache. Other bytes may be the first of an append
    /// that a crash cut short, or a record of a cache that was here before, with any position; after a clean stop they are the latter.
    fn log_end(&mut self, position: u64) {
        let (part, offset) = (Part::Log(position), self.slot_offset(position));
        let Some(bytes) = self.read(part, offset, LOG_RECORD_BYTES as usize) else {
            return;
        };
        let (cache_id, clean) = (self.superblock.cache_id, self.superblock.clean);
        let was = mended(cache_id, &bytes).and_then(|bytes| LogRecord::decode(cache_id, &bytes));
        let is_written = bytes.iter().any(|byte| *byte != 0);
        if was.is_some_and(|record| record.position == position) {
            let what = "the last record is damaged, or a crash cut it short: this is the log's end";
            self.tell(!clean, part, offset, what);
        } else if !clean && is_written && bytes[8..16] == position.to_le_bytes() {
            let what = "a crash cut the record here short, or a former cache left it: this is the log's end";
            self.tell(true, part, offset, what);
        }
    }

    /// Whether the log is still the one that was written beside the checkpoint that needs it from `start` on; `None` without one.
    pub(super) fn log_reaches(&mut self, start: Option<u64>) {
        let source = self.source;
        let read = |offset, out: &mut [u8]| source.read(offset, out);
        let (cache_id, geometry) = (self.superblock.cache_id, self.superblock.geometry);
        let first = start.unwrap_or(0);
        let reaches =
            start == Some(0) || log::reaches::<LogKind>(read, cache_id, &geometry, first).unwrap_or(false);
        if !reaches && !self.summary.will_be_emptied {
            self.summary.will_be_emptied = true;
            let before = first.saturating_sub(1);
            let (part, offset) = (Part::Log(before), self.slot_offset(before));
            let what = "the log is not the one that was written: the next start empties the cache";
            // Without a checkpoint, a crash may have cut formatting short.
            self.tell(start.is_none(), part, offset, what);
        }
    }
}
