//! Keeping blocks aligned to the drive's erase units.
//!
//! A drive fills its erase units in the order of writes, whatever the addresses. Under `ripq` blocks that are written one after
//! the other die at different times; where each of them fills a unit of its own, a unit is free when its block is, and nothing is
//! ever copied. But what is written between blocks (log, superblock, checkpoints) shifts all that follow: then every unit has
//! the end of one block and the start of the next, and waits for both. In a drive with a tenth of spare space that makes 1.7
//! bytes written of each that is sent.
//!
//! So, where the unit is known, what was written beside blocks is made up to whole units from time to time, with zeros on a
//! free block. Cost: at most one unit for each 64th of a unit written beside blocks. Blocks that are larger than a unit gain
//! little. What was sent is counted over clean stops ([`Superblock::sent`](crate::superblock::Superblock)). After a crash the next block is
//! taken to begin a unit, as the last one did: wrong where a checkpoint was written since, and where several blocks fill a unit. What other writers
//! send to the drive, file systems among them, is not known at all.
//! Blocks that are smaller are written by groups that fill a unit ([`crate::store`], `groups`), and it is these that are aligned.

use crate::geometry::LOG_RECORD_BYTES;
use crate::store::{FlashStore, Shared, add};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::{Buffer, Payload};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a page of the drive.
const PAGE_BYTES: u64 = 4096;
/// Bytes that no device is ever sent: 4 EiB.
const SENT_MAX: u64 = 1 << 62;
/// A block may be shifted by this part of a unit.
const SHIFT_MAX: u64 = 64;
/// And by this part of itself where several fill a unit.
const BLOCK_SHIFT_MAX: u64 = 16;
/// Bytes of zeros that are written at a time.
const WRITE_BYTES: u64 = 1 << 20;

/// What the device had been sent before this start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SentBefore {
    /// In bytes, whole pages.
    bytes: u64,
    /// Bytes of the log's last page, which do not count before it is full.
    page_filled: u64,
}

impl SentBefore {
    /// As the superblock says, with the log's position. What the superblock has may be any number; one that no device can have been
    /// sent counts as none.
    pub(crate) fn new(sent: u64, log_next: u64) -> Self {
        let bytes = if sent <= SENT_MAX {
            sent / PAGE_BYTES * PAGE_BYTES
        } else {
            0
        };
        Self {
            bytes,
            page_filled: log_next % (PAGE_BYTES / LOG_RECORD_BYTES) * LOG_RECORD_BYTES,
        }
    }
}

/// A free block to write anything on; given back when it is dropped.
struct Scratch<B> {
    id: u32,
    shared: Arc<Shared<B>>,
}

impl<B> Drop for Scratch<B> {
    fn drop(&mut self) {
        self.shared.change(|structure| structure.free.push_back(self.id));
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Before a block is written: makes up what was written beside blocks to whole units, if that is more than a little.
    pub(crate) async fn align<D: Device<Buf = B>>(&self, device: &D) {
        let unit = self.erase_unit_bytes;
        // Blocks that share units as they come would share them as well if they were aligned.
        let are_units_shared = self.grouping.blocks == 1 && !self.geometry.block_bytes.is_multiple_of(unit);
        if unit == 0 || are_units_shared {
            return;
        }
        let left = self.bytes_to_align(self.bytes_before());
        if left == 0 {
            return;
        }
        let Some(scratch) = self.take_scratch() else {
            return;
        };
        // First, so that another block that is written meanwhile is not aligned as well.
        add(&self.counters.written_bytes, left);
        add(&self.counters.padding_bytes, left);
        let end = self.geometry.block_offset(scratch.id) + left;
        let mut offset = end - left;
        while offset < end {
            let len = usize::try_from((end - offset).min(WRITE_BYTES)).expect("at most 1 MiB");
            let buffer = B::with_len(len);
            // SAFETY: the buffer was just made; nobody else knows it.
            unsafe { buffer.put(0, Payload::Bytes(&[0; 8])) };
            if let Err(error) = self.shared.write(device, offset, Arc::new(buffer), 0..len).await {
                tracing::debug!("aligning to the erase unit: {error}");
                break;
            }
            offset += len as u64;
        }
    }

    /// What is to be made up before a block that would be written behind so many bytes: less than a unit, or than a block where several
    /// fill a unit. Those are aligned to each other, and which of them begins a unit is for who forms the groups.
    pub(crate) fn bytes_to_align(&self, before: u64) -> u64 {
        let (step, tolerated) = if self.grouping.blocks == 1 {
            (self.erase_unit_bytes, self.erase_unit_bytes / SHIFT_MAX)
        } else {
            let block = self.geometry.block_bytes;
            (block, block / BLOCK_SHIFT_MAX)
        };
        let shift = before % step;
        if shift < tolerated.max(SECTOR_BYTES as u64) {
            0
        } else {
            step - shift
        }
    }

    fn take_scratch(&self) -> Option<Scratch<B>> {
        let mut structure = self.shared.structure.lock();
        // Not one of the last: they are for what frees others.
        let id = if structure.free.len() < 3 {
            None
        } else {
            structure.free.pop_back()
        };
        Some(Scratch {
            id: id?,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Bytes that the drive has written for anything but blocks of objects, and for those too where it takes several to fill a unit: not
    /// always are all of a group written.
    pub(crate) fn bytes_before(&self) -> u64 {
        // Blocks first: what is counted in between is counted in both, or in the second only.
        let blocks = if self.grouping.blocks == 1 {
            self.counters.block_bytes.load(Ordering::Relaxed)
        } else {
            0
        };
        self.bytes_sent().saturating_sub(blocks)
    }

    /// All bytes that the drive has been sent, in former lives too as far as these are known. Log records count by whole pages.
    pub(crate) fn bytes_sent(&self) -> u64 {
        let records = self.counters.log_records.load(Ordering::Relaxed) * LOG_RECORD_BYTES;
        let all = self.counters.written_bytes.load(Ordering::Relaxed);
        let SentBefore { bytes, page_filled } = self.sent_before;
        // Whole pages, but that a record may be counted in one of both so far.
        let beside_records = (all + PAGE_BYTES / 2).saturating_sub(records) / PAGE_BYTES * PAGE_BYTES;
        bytes + beside_records + (page_filled + records) / PAGE_BYTES * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_is_whole_pages_and_no_more_than_a_device_can_take() {
        let before = |sent, log_next| {
            let SentBefore { bytes, page_filled } = SentBefore::new(sent, log_next);
            (bytes, page_filled)
        };
        assert_eq!(before(0, 0), (0, 0));
        assert_eq!(before(3 * 4096, 129), (3 * 4096, 32));
        assert_eq!(before(3 * 4096 + 7, 127), (3 * 4096, 127 * 32));
        assert_eq!(before(SENT_MAX + 1, u64::MAX), (0, 127 * 32));
    }
}
