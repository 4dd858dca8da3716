//! Checkpoints: marks, both indexes, and offsets of contents.

use super::ChunkStore;
use super::shape::Owned;
use pumice_blocks::chain::{BlockRole, put_len};
use pumice_blocks::{BudgetLevel, Coverage, Durability, StreamWriter};
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;
use std::sync::atomic::Ordering;

/// A checkpoint that waits until chunks that are logged as clean are so in the index, too. No others are logged meanwhile.
struct Beginning<'a, B: Buffer>(&'a ChunkStore<B>);

impl<'a, B: Buffer> Beginning<'a, B> {
    fn new(store: &'a ChunkStore<B>) -> Self {
        store.is_beginning.store(true, Ordering::Release);
        Self(store)
    }
}

impl<B: Buffer> Drop for Beginning<'_, B> {
    fn drop(&mut self) {
        self.0.is_beginning.store(false, Ordering::Release);
        self.0.base.shared.change(|_| {});
    }
}

impl<B: Buffer> ChunkStore<B> {
    /// Writes a checkpoint. No reclaim runs at the same time. `clean` is given at a clean stop: the time of the volume's last change.
    pub(super) async fn checkpoint<D: Device<Buf = B>>(
        &self,
        device: &D,
        now: u32,
        clean: Option<u64>,
    ) -> io::Result<()> {
        let begin = || {
            let mapped = self.addresses.lock();
            if self.cleaning.load(Ordering::Acquire) > 0 {
                return None;
            }
            Some((
                self.appender.begin_checkpoint(),
                self.base.journal.log.position(),
                mapped.version,
                self.addresses.regions.marked(),
            ))
        };
        let mut beginning = None;
        let (begun, position, version, marked) = loop {
            if let Some(begun) = begin() {
                break begun;
            }
            beginning.get_or_insert_with(|| Beginning::new(self));
            let is_over = || self.cleaning.load(Ordering::Acquire) == 0;
            self.base.wait_for(|_| is_over()).await;
        };
        drop(beginning);
        let take = async || {
            let taken = self.base.take_for_checkpoint(&mut self.base.shared.pool.lock());
            taken.ok_or_else(|| io::Error::other("no block is free for a checkpoint"))
        };
        let mut writer = StreamWriter::new(&self.base, device, &begun, take);
        let mut bytes = Vec::new();
        begun.head.encode(&mut bytes);
        // A start applies all voids from this log position on to the dump. That may drop a mapping made between the void and the dump of
        // its bucket; the footer of its block, which was open then or later, restores it.
        bytes.extend_from_slice(&position.to_le_bytes());
        bytes.extend_from_slice(&clean.unwrap_or(0).to_le_bytes());
        // The dump has what mappings up to this version led to. A block that is sealed late may list them again, although one that was
        // sealed before it has newer ones.
        bytes.extend_from_slice(&version.to_le_bytes());
        put_len(marked.len(), &mut bytes);
        marked
            .iter()
            .for_each(|region| bytes.extend_from_slice(&region.to_le_bytes()));
        for buckets in self.addresses.batches() {
            self.addresses.lock().index.dump(buckets, &mut bytes);
            writer.write(&bytes).await?;
            bytes.clear();
        }
        let batches = self.fingerprints.lock().batches();
        for buckets in batches {
            self.fingerprints.lock().dump(buckets, &mut bytes);
            writer.write(&bytes).await?;
            bytes.clear();
        }
        let next_sequence = self.base.shared.pool.lock().next_sequence;
        bytes.extend_from_slice(&next_sequence.to_le_bytes());
        let rows = (0u32..).zip(&begun.head.rows);
        let sealed: Vec<u32> = rows
            .filter(|(_, row)| row.role == BlockRole::Sealed)
            .map(|(block, _)| block)
            .collect();
        put_len(sealed.len(), &mut bytes);
        writer.write(&bytes).await?;
        bytes.clear();
        for block in sealed {
            bytes.extend_from_slice(&block.to_le_bytes());
            let starts = self.appender.starts_of(block);
            put_len(starts.len(), &mut bytes);
            starts
                .iter()
                .for_each(|start| bytes.extend_from_slice(&start.to_le_bytes()));
            writer.write(&bytes).await?;
            bytes.clear();
        }
        let stream = writer.finish().await?;
        // What a dirty chunk is mapped to must be there before the checkpoint is, which has no older mapping.
        if self.keeps {
            self.persist(device).await?;
        }
        let budget = self.budget.as_ref();
        let left = budget.map_or(BudgetLevel::default(), |budget| budget.left(self.sent_bytes()));
        (left.at_checkpoint()).put(&mut self.base.journal.superblock.lock().own, Owned::BUDGET);
        let is_off = self.base.durability == Durability::Off;
        let discard = |coverage| is_off || (coverage == Coverage::Partial && !self.keeps);
        self.base
            .finish_checkpoint(device, &begun, stream, now, clean.is_some(), discard)
            .await?;
        // A start replays the footers of blocks that were open, over the dump.
        let open = (begun.head.rows.iter()).filter(|row| row.role == BlockRole::Open);
        let oldest = open.map(|row| row.sequence).min();
        let covered = &mut self.base.shared.pool.lock().own.covered;
        *covered = [covered[1], oldest.unwrap_or(begun.head.next_sequence)];
        Ok(())
    }
}
