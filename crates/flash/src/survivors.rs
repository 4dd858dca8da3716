//! Moving what a reclaim keeps: the objects that were raised go to the active blocks of their sections.
//!
//! Only what stays is read: neighbours in one read, single objects one by one, the next read under way while one is copied.

use crate::Mappings;
use crate::footer::FooterEntry;
use crate::record::{Record, is_expired};
use crate::store::{FlashStore, State, add};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A read is at most so long, unless one record is longer.
const READ_BYTES_MAX: u64 = 256 << 10;
/// What stays is read together with what stands between if that is at most so much.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Rounds of waiting for a buffer, for one victim.
const WAITS_MAX: usize = 16;

/// Objects that one read brings.
struct Run {
    sectors: Range<u64>,
    entries: Vec<FooterEntry>,
}

impl<B: Buffer> FlashStore<B> {
    /// Moves the objects of a victim that stay, and returns the entries of all others. `is_tail`: it is the lowest block, and
    /// what nobody has asked for since it was written does not stay.
    pub(crate) async fn move_survivors<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        id: u32,
        entries: Vec<FooterEntry>,
        is_tail: bool,
    ) -> Vec<FooterEntry> {
        let sequence = self.sequence_of(id);
        let (stay, mut go): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| {
            let location = self.location(id, entry);
            let mapping = mappings.with(entry.hash, |shard| shard.live(entry.hash, location));
            !is_expired(entry.expiry, now)
                && mapping.is_some_and(|mapping| self.keeps(entry.hash, mapping, is_tail))
        });
        let runs = self.runs(id, stay);
        let start = |run: &Run| {
            let len =
                usize::try_from(run.sectors.end - run.sectors.start).expect("at most 1 MiB and two sectors");
            device.read(run.sectors.start, len)
        };
        let mut waits_left = WAITS_MAX;
        let mut next = runs.first().map(start);
        for (at, run) in runs.iter().enumerate() {
            let Some(read) = next.take() else { break };
            let buffer = read.await;
            next = runs.get(at + 1).map(start);
            let buffer = match buffer {
                Ok(buffer) => Arc::new(buffer),
                Err(error) => {
                    tracing::warn!("reading block {id} to move objects out of it: {error}");
                    add(&self.counters.read_errors, 1);
                    go.extend_from_slice(&run.entries);
                    continue;
                }
            };
            add(
                &self.counters.reclaim_read_bytes,
                run.sectors.end - run.sectors.start,
            );
            for entry in &run.entries {
                let location = self.location(id, entry);
                let position = usize::try_from(location.offset - run.sectors.start).expect("in the buffer");
                let record = Record::decode(
                    Arc::clone(&buffer),
                    position,
                    location.len as usize,
                    self.cache_id,
                    sequence,
                    true,
                );
                let Some(record) = record else {
                    add(&self.counters.corrupt_records, 1);
                    go.push(*entry);
                    continue;
                };
                let mut moved = self.move_record(mappings, id, entry.hash, location, &record);
                while !moved && waits_left > 0 && self.makes_buffer_free(device, mappings, now).await {
                    waits_left -= 1;
                    moved = self.move_record(mappings, id, entry.hash, location, &record);
                }
                if !moved {
                    go.push(*entry);
                }
            }
        }
        go
    }

    /// Writes a block that is full, or waits for one that is being written; whether it is worth trying again.
    async fn makes_buffer_free<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) -> bool {
        if let Some(work) = self.take_seal() {
            self.perform_seal(device, mappings, now, work).await;
            return true;
        }
        if self.shared.structure.lock().sealing == 0 {
            return false;
        }
        let before = self.counters.sealed_blocks.load(Ordering::Relaxed);
        self.wait_for(|structure| {
            structure.sealing == 0 || self.counters.sealed_blocks.load(Ordering::Relaxed) > before
        })
        .await;
        true
    }

    fn sequence_of(&self, id: u32) -> u64 {
        debug_assert_eq!(self.blocks[id as usize].state(), State::Reclaiming);
        self.blocks[id as usize].sequence.load(Ordering::Relaxed)
    }

    /// Groups entries, which are in order of offset, into reads.
    fn runs(&self, id: u32, entries: Vec<FooterEntry>) -> Vec<Run> {
        let sector = SECTOR_BYTES as u64;
        let mut runs: Vec<Run> = Vec::new();
        for entry in entries {
            let location = self.location(id, &entry);
            let start = location.offset / sector * sector;
            let end = (location.offset + u64::from(location.len)).next_multiple_of(sector);
            match runs.last_mut() {
                Some(run)
                    if start <= run.sectors.end + GAP_BYTES_MAX
                        && end - run.sectors.start <= READ_BYTES_MAX =>
                {
                    run.sectors.end = end;
                    run.entries.push(entry);
                }
                _ => runs.push(Run {
                    sectors: start..end,
                    entries: vec![entry],
                }),
            }
        }
        runs
    }
}
