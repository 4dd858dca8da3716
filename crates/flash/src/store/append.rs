//! Appending: the active block, and the buffers it comes from.

use super::{FlashStore, State, Structure, add};
use crate::block::{Appended, OpenBlock};
use crate::record::RecordParts;
use pumice_index::Location;
use pumice_memory::Buffer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Length of a record in a block, padding included.
    pub fn padded_len(&self, parts: &RecordParts<'_>) -> u64 {
        (parts.encoded_len() as u64).next_multiple_of(self.unit_bytes)
    }

    /// The longest record, in bytes.
    pub fn record_max(&self) -> u64 {
        self.geometry.record_max()
    }

    /// Appends a record to the active block. The caller holds the lock of the shard of `hash`, makes the mapping, and
    /// then drops what this returns. `None` where no buffer or block is free, or the record is longer than
    /// [`FlashStore::record_max`]; that is counted.
    pub fn append(&self, hash: u64, parts: &RecordParts<'_>, survivor: bool) -> Option<Appended<B>> {
        let len = self.padded_len(parts);
        if len > self.geometry.record_max() {
            return None;
        }
        let len = usize::try_from(len).expect("at most 1 MiB");
        let mut active = self.active.lock();
        let appended = loop {
            let Some(block) = &*active else {
                *active = Some(self.open_block(survivor)?);
                continue;
            };
            // Reserved under the `active` lock, copied under the block's own rules.
            if let Some(appended) = block.append(self.cache_id, hash, parts, len, survivor) {
                break appended;
            }
            let full = active.take().expect("just matched");
            self.retire(full);
        };
        drop(active);
        if survivor {
            add(&self.counters.survivors, 1);
        } else {
            add(&self.counters.appended_objects, 1);
            add(&self.counters.appended_bytes, parts.encoded_len() as u64);
        }
        let info = &self.blocks[appended.block().id as usize];
        info.live
            .fetch_add(u64::from(appended.location.len), Ordering::Relaxed);
        if survivor {
            // Read under the lock of this key's shard, which the caller holds now.
            info.has_survivors.store(true, Ordering::Relaxed);
        }
        Some(appended)
    }

    /// Starts sealing the active block, however full it is. For a clean stop, and for tests.
    pub fn retire_active(&self) {
        let mut active = self.active.lock();
        if let Some(full) = active.take() {
            self.retire(full);
        }
    }

    /// Called under the `active` lock: whoever finds a block active there may go on appending to it.
    fn retire(&self, block: Arc<OpenBlock<B>>) {
        block
            .sealing_position
            .store(self.log.position(), Ordering::Release);
        self.blocks[block.id as usize].set_state(State::Sealing);
        let mut structure = self.shared.structure.lock();
        structure.to_seal.push_back(block);
        self.shared.has_work.store(true, Ordering::Release);
    }

    fn open_block(&self, survivor: bool) -> Option<Arc<OpenBlock<B>>> {
        let mut structure = self.shared.structure.lock();
        // The last free block is for survivors and checkpoints, whose work frees others.
        if structure.free.len() < if survivor { 1 } else { 2 } {
            add(&self.counters.dropped_no_block, 1);
            self.shared.has_work.store(true, Ordering::Release);
            return None;
        }
        let Some(buffer) = self.take_buffer(&mut structure) else {
            add(&self.counters.dropped_no_buffer, 1);
            return None;
        };
        let id = structure.free.pop_front().expect("counted above");
        let sequence = structure.next_sequence;
        structure.next_sequence += 1;
        let info = &self.blocks[id as usize];
        info.sequence.store(sequence, Ordering::Relaxed);
        info.live.store(0, Ordering::Relaxed);
        info.has_survivors.store(false, Ordering::Relaxed);
        info.set_state(State::Active);
        let block = Arc::new(OpenBlock::new(
            id,
            sequence,
            self.geometry.block_offset(id),
            buffer,
        ));
        self.open.lock().push(Arc::clone(&block));
        drop(structure);
        self.shared.has_work.store(true, Ordering::Release);
        Some(block)
    }

    fn take_buffer(&self, structure: &mut Structure<B>) -> Option<Arc<B>> {
        // A buffer that a reader still looks at stays in the list until that is over.
        for at in 0..structure.buffers.len() {
            if let Some(buffer) = Arc::get_mut(&mut structure.buffers[at]) {
                buffer.reset();
                return Some(structure.buffers.swap_remove(at));
            }
        }
        if structure.buffers_made < self.buffers_max {
            structure.buffers_made += 1;
            let len = usize::try_from(self.geometry.block_bytes).expect("at most 256 MiB");
            return Some(Arc::new(B::with_len(len)));
        }
        None
    }

    pub(crate) fn has_buffer(&self, structure: &Structure<B>) -> bool {
        structure.buffers_made < self.buffers_max
            || structure.buffers.iter().any(|b| Arc::strong_count(b) == 1)
    }

    /// Whether an append of `len` bytes would find a buffer and a block now, so that a caller that may wait knows when to.
    pub fn has_room(&self, len: u64) -> bool {
        let len = usize::try_from(len.next_multiple_of(self.unit_bytes)).unwrap_or(usize::MAX);
        if self.active.lock().as_ref().is_some_and(|block| block.fits(len)) {
            return true;
        }
        let structure = self.shared.structure.lock();
        self.has_buffer(&structure) && structure.free.len() >= 2
    }

    /// Number of blocks that are full but not yet written.
    pub fn unsealed_backlog(&self) -> usize {
        self.open.lock().len()
    }

    /// Sequence of the block that holds `location`.
    pub fn sequence_at(&self, location: Location) -> u64 {
        self.blocks[self.block_of(location) as usize]
            .sequence
            .load(Ordering::Acquire)
    }

    pub(crate) fn block_of(&self, location: Location) -> u32 {
        self.geometry
            .block_of(location.offset)
            .expect("locations are made here")
    }
}
