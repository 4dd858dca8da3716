//! What is wrong on a device, for any store: the walk of a start, with its readers, which writes nothing.
//!
//! A crash may leave a torn superblock, a torn record at the log's end, and blocks that were never sealed; that is no damage. Where both
//! would look alike, the state of the superblock decides: after a clean stop nothing may be torn.

use crate::chain::{BlockRole, Head, PART_HEADER_BYTES, StreamReader};
use crate::footer::Trailer;
use crate::geometry::LOG_RECORD_BYTES;
use crate::log::{self, LogRecord, OwnKind};
use crate::open::read_twice;
use crate::recovery::{LogEnd, LogSummary, READ_DEPTH, Recovery, Restore, Snapshot};
use crate::rot::mended;
use crate::superblock::{CheckpointRef, SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use std::collections::HashMap;
use std::ops::Range;

/// What an inspection has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// What must not be, with its place: damage, or a mistake of the program.
    pub problems: Vec<String>,
    /// Bytes that say what is there. After a clean stop any changed bit among them is a problem.
    pub metadata: Vec<Range<u64>>,
}

/// Inspects the device that `superblock`, the newest, was read from. `owner` is empty, and restores what checkpoints have of it. DRAM:
/// what a start takes for its owner's part of a checkpoint and one footer.
pub async fn inspect<D: Device, O: Restore>(
    device: &D,
    superblock: &Superblock,
    owner: &mut O,
) -> Inspection {
    let mut walk = Walk {
        recovery: Recovery::new(device, *superblock),
        newest: *superblock,
        found: Inspection::default(),
    };
    walk.other_slot();
    // The next start forgets everything.
    if superblock.discard && !superblock.clean {
        return walk.found;
    }
    let named = superblock.checkpoints.into_iter();
    let named: Vec<CheckpointRef> = named.filter(|named| named.id != 0).collect();
    walk.log::<O::Kind>(named.iter().map(|named| named.log_start).min().unwrap_or(0));
    let mut base = None;
    for (age, checkpoint) in named.iter().enumerate() {
        let snapshot = walk.checkpoint(checkpoint, owner).await;
        if base.is_none() && snapshot.is_some() {
            walk.recovery.clean = superblock.clean && age == 0;
            base = snapshot;
        }
    }
    if base.is_none() && (superblock.clean || !named.is_empty()) {
        walk.wrong(
            superblock.slot_offset(),
            "no checkpoint is whole: a start forgets everything",
        );
        return walk.found;
    }
    match walk.recovery.log::<O::Kind, _>(base.as_ref(), |_, _| {}) {
        LogEnd::Whole(summary) => walk.blocks::<O>(base.as_ref(), &summary).await,
        // Without a checkpoint a crash may have cut formatting short.
        LogEnd::Missing if base.is_some() => {
            walk.wrong(
                superblock.geometry.log_offset,
                "the log is not the one that was written",
            );
        }
        LogEnd::Missing | LogEnd::Gap(_) | LogEnd::Failed(_) => {}
    }
    walk.found
}

/// An inspection under way.
struct Walk<'a, D> {
    recovery: Recovery<'a, D>,
    newest: Superblock,
    found: Inspection,
}

impl<D: Device> Walk<'_, D> {
    fn wrong(&mut self, offset: u64, what: impl AsRef<str>) {
        self.found
            .problems
            .push(format!("byte {offset}: {}", what.as_ref()));
    }

    fn used(&mut self, offset: u64, len: u64) {
        self.found.metadata.push(offset..offset + len);
    }

    /// The slot of the superblock that does not count: it is one generation older, or was being written at a crash.
    fn other_slot(&mut self) {
        self.used(0, crate::geometry::SUPERBLOCKS_BYTES);
        let newest = self.newest;
        let offset = SECTOR_BYTES as u64 - newest.slot_offset();
        let mut sector = vec![0; SECTOR_BYTES];
        if let Err(error) = self.recovery.device.read_log(offset, &mut sector) {
            return self.wrong(offset, format!("the superblock cannot be read: {error}"));
        }
        match Superblock::decode(&sector) {
            SlotContent::Valid(other) => {
                let is_former = other.generation + 1 == newest.generation && other.epoch <= newest.epoch;
                // A start that forgets everything writes one slot after the other.
                let is_same = other.store == newest.store && other.geometry == newest.geometry;
                if !is_former || !is_same {
                    self.wrong(offset, "the superblock disagrees with the other one");
                }
            }
            _ if newest.generation == 1 => {}
            _ => {
                let signed = [&sector[12..16], &sector[..12], &sector[16..]].concat();
                if newest.clean || mended(0, &signed).is_some() {
                    self.wrong(offset, "the superblock is damaged");
                }
            }
        }
    }

    /// The records that a start could need, from `start` on.
    fn log<K: OwnKind>(&mut self, start: u64) {
        let Superblock {
            cache_id,
            geometry,
            clean,
            ..
        } = self.newest;
        let device = self.recovery.device;
        let mut next = start;
        let read = |offset, out: &mut [u8]| device.read_log(offset, out);
        let scan = log::scan(read, cache_id, &geometry, start, |record: &LogRecord<K>| {
            if record.position != next {
                let what = format!("the log misses its records {next} to below {}", record.position);
                self.wrong(geometry.record_offset(next), what);
            }
            self.used(geometry.record_offset(record.position), LOG_RECORD_BYTES);
            next = record.position + 1;
        });
        if let Err(error) = scan {
            return self.wrong(
                geometry.record_offset(next),
                format!("the log cannot be read: {error}"),
            );
        }
        let mut last = [0; LOG_RECORD_BYTES as usize];
        if clean && device.read_log(geometry.record_offset(next), &mut last).is_ok() {
            let was = mended(cache_id, &last).and_then(|bytes| LogRecord::<K>::decode(cache_id, &bytes));
            if was.is_some_and(|record| record.position == next) {
                self.wrong(
                    geometry.record_offset(next),
                    format!("log record {next}, the last, is damaged"),
                );
            }
        }
    }

    /// A checkpoint that the superblock names, read whole.
    async fn checkpoint<O: Restore>(
        &mut self,
        checkpoint: &CheckpointRef,
        owner: &mut O,
    ) -> Option<Snapshot<O::Own>> {
        let Superblock {
            cache_id, geometry, ..
        } = self.newest;
        let (device, named_at) = (self.recovery.device, self.newest.slot_offset());
        let read = async |offset, len| read_twice(device, offset, len).await;
        let reader = StreamReader::open(read, &geometry, cache_id, checkpoint, named_at).await;
        for (block, len) in reader.iter().flat_map(StreamReader::blocks) {
            let offset = geometry.block_offset(block);
            self.used(offset, PART_HEADER_BYTES as u64);
            self.used(offset + SECTOR_BYTES as u64, len);
        }
        let loaded = self.recovery.load(checkpoint, owner).await;
        owner.forget();
        loaded
            .map_err(|error| self.wrong(named_at, format!("checkpoint {}: {error}", checkpoint.id)))
            .ok()
    }

    /// The footers of blocks that count.
    async fn blocks<O: Restore>(&mut self, base: Option<&Snapshot<O::Own>>, log: &LogSummary) {
        let no_head = Head::default();
        let head = base.map_or(&no_head, |snapshot| &snapshot.head);
        let chain = base.map_or(&[][..], |snapshot| &snapshot.blocks);
        let blocks = 0..self.newest.geometry.blocks;
        let wanted: Vec<u32> = blocks.filter(|block| !chain.contains(block)).collect();
        for batch in wanted.chunks(READ_DEPTH) {
            let trailers: HashMap<u32, Trailer> = self.recovery.trailers(batch).await.into_iter().collect();
            for block in batch {
                self.block::<O>(*block, head, trailers.get(block), log).await;
            }
        }
        for block in std::mem::take(&mut self.recovery.unread_blocks) {
            let offset = self.newest.geometry.block_offset(block);
            self.wrong(offset, format!("the trailer of block {block} cannot be read"));
        }
    }

    async fn block<O: Restore>(
        &mut self,
        block: u32,
        head: &Head,
        trailer: Option<&Trailer>,
        log: &LogSummary,
    ) {
        let geometry = self.newest.geometry;
        let offset = geometry.block_offset(block);
        let row = head.rows.get(block as usize);
        let row = row.filter(|row| !log.is_reclaimed(block, row.sequence));
        if let Some(row) = row.filter(|row| row.role == BlockRole::Sealed) {
            let len = u64::from(row.footer_len);
            self.used(offset + geometry.block_bytes - len, len);
            let trailer = trailer
                .filter(|trailer| trailer.sequence == row.sequence && trailer.footer_len() as u64 == len);
            let entries = match trailer {
                Some(trailer) => self.recovery.entries::<O::Entry>(block, trailer).await,
                None => None,
            };
            if entries.is_none() {
                let what = format!("block {block} has not the footer that the checkpoint knows");
                self.wrong(offset, what);
            }
            return;
        }
        let is_later = |trailer: &&Trailer| {
            let was_open =
                row.is_some_and(|row| row.role == BlockRole::Open && row.sequence == trailer.sequence);
            (was_open || trailer.sequence >= head.next_sequence) && !log.is_reclaimed(block, trailer.sequence)
        };
        let Some(trailer) = trailer.filter(is_later) else {
            return;
        };
        if self.recovery.clean {
            return self.wrong(offset, format!("block {block} was sealed after a clean stop"));
        }
        // A crash tears no sector.
        let is_whole = trailer.footer_len() > SECTOR_BYTES
            || self.recovery.entries::<O::Entry>(block, trailer).await.is_some();
        if !is_whole {
            self.wrong(offset, format!("the footer of block {block} is damaged"));
        }
    }
}
