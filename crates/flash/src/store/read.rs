//! Reading records: from buffers and from the device.

use super::FlashStore;
use super::appended::position_of;
use crate::objects::OpenBlock;
use pumice_blocks::footer::Trailer;
use pumice_blocks::{State, add};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Location;
use pumice_memory::Buffer;
use pumice_record::Record;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the bytes of a record can be had; decided under the shard's lock.
pub enum Source<B: Buffer> {
    /// In an open block's buffer.
    Memory(Arc<OpenBlock<B>>),
    /// On the device, in this generation of its block.
    Device {
        /// Sequence of the block when its mapping was seen.
        sequence: u64,
    },
}

/// Why a record could not be read.
#[derive(Debug)]
pub enum ReadFault {
    /// Its block has been reclaimed since the mapping was seen: look up again.
    Reclaimed,
    /// What stands there is not what was written.
    Corrupt,
    /// The device failed.
    Device(io::Error),
}

impl<B: Buffer> FlashStore<B> {
    /// Where the record at `location` can be read; called under the shard's lock that the mapping was seen under.
    pub fn source(&self, location: Location) -> Source<B> {
        let id = self.order.ground().block_of(location);
        let block = &self.blocks[id as usize];
        if block.state().is_open()
            && let Some(open) = self.find_open(id)
        {
            return Source::Memory(open);
        }
        Source::Device {
            sequence: block.sequence.load(Ordering::Acquire),
        }
    }

    /// Whether a start after a crash now would find the copy at `location`: its block, or a prefix with the copy, is written and not
    /// being reclaimed, and that start would trust what it finds. Called under the lock of the shard that maps it.
    pub fn is_written(&self, location: Location) -> bool {
        let id = self.order.ground().block_of(location);
        let is_there = match self.blocks[id as usize].state() {
            State::Sealed => true,
            State::Active | State::Sealing => self.find_open(id).is_some_and(|block| {
                position_of(&block, location) + location.len as usize <= block.written()
            }),
            _ => false,
        };
        is_there && !self.journal.superblock.lock().discard
    }

    /// Whether a block of objects stands at `location`, in a buffer or written, on a device that was not given up.
    pub fn holds_objects(&self, location: Location) -> bool {
        let info = self.order.ground().info(location);
        !self.shared.is_given_up()
            && !matches!(
                info.state(),
                State::Free | State::Checkpoint | State::Lent | State::Bad
            )
    }

    /// Reads a record from an open block.
    pub fn read_memory(&self, block: &OpenBlock<B>, location: Location) -> Option<Record<B>> {
        add(&self.counters.buffer_reads, 1);
        self.peek_memory(block, location)
    }

    /// As [`FlashStore::read_memory`], without being counted.
    pub fn peek_memory(&self, block: &OpenBlock<B>, location: Location) -> Option<Record<B>> {
        Record::decode(
            Arc::clone(&block.buffer),
            position_of(block, location),
            location.len as usize,
            self.cache_id,
            block.sequence,
            false,
        )
    }

    /// Reads a record from the device: one read of the sectors it touches.
    ///
    /// # Errors
    /// [`ReadFault`].
    pub async fn read_device<D: Device<Buf = B>>(
        &self,
        device: &D,
        location: Location,
        sequence: u64,
    ) -> Result<Record<B>, ReadFault> {
        let sector = SECTOR_BYTES as u64;
        let start = location.offset / sector * sector;
        let end = (location.offset + u64::from(location.len)).next_multiple_of(sector);
        let len = usize::try_from(end - start).expect("at most 1 MiB and two sectors");
        add(&self.counters.record_reads, 1);
        let at = usize::try_from(location.offset - start).expect("below a sector");
        let (cache_id, record_len) = (self.cache_id, location.len as usize);
        let decode =
            move |buffer: B| Record::decode(Arc::new(buffer), at, record_len, cache_id, sequence, true);
        // The block may have begun another generation while a read was under way: then the bytes mean nothing.
        let info = self.order.ground().info(location);
        let is_reclaimed = || info.sequence.load(Ordering::Acquire) != sequence;
        if !self.is_out()
            && let Some(record) = device.read_copy(start, len, decode).await
        {
            return if is_reclaimed() {
                Err(ReadFault::Reclaimed)
            } else {
                Ok(record)
            };
        }
        let read = self.shared.read(device, start, len).await;
        if is_reclaimed() {
            return Err(ReadFault::Reclaimed);
        }
        let buffer = read.map_err(|error| {
            add(&self.totals.read_errors, 1);
            ReadFault::Device(error)
        })?;
        decode(buffer).ok_or_else(|| {
            add(&self.counters.corrupt_records, 1);
            ReadFault::Corrupt
        })
    }

    /// The block whose last sector this is, if it is a block of objects that is on the device as a whole, in this generation.
    pub fn sealed_block(&self, last_sector: &[u8]) -> Option<u32> {
        let trailer = Trailer::decode(self.cache_id, last_sector)?;
        let info = self.blocks.get(trailer.block as usize)?;
        let is_it =
            info.state() == State::Sealed && info.sequence.load(Ordering::Acquire) == trailer.sequence;
        is_it.then_some(trailer.block)
    }

    /// Counts a record that was another key's.
    pub fn count_key_mismatch(&self) {
        add(&self.counters.key_mismatches, 1);
    }
}
