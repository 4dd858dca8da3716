//! Checkpoints: a snapshot of the owner, so that a restart reads little and the log can be cut.
//!
//! A checkpoint is fuzzy: the owner writes its parts one after the other while requests go on, each with the log position at its
//! dump.
//!
//! # Order, and what a crash leaves
//! 1. [`Blocks::begin_checkpoint`] notes, under one lock, which blocks are sealed or open, the next sequence, and the log position from
//!    which records matter. Blocks sealed later are found by their trailers.
//! 2. The owner writes the stream. Crash: the superblock still names the checkpoints before, whose blocks are untouched.
//! 3. [`Blocks::finish_checkpoint`] (with `power`) flushes, then writes the superblock; to both slots where the owner marks it `discard`
//!    and it was not. Crash: one of its two slots is valid, either is consistent.
//! 4. It frees the blocks of the checkpoint before the last, and forgets the log records that only it needed. Where a record was lost
//!    since the last, those of the last too: a start that had to go back to it would find alive what that record voids.

use crate::blocks::{Blocks, Durability, add};
use crate::chain::{BlockRole, BlockRow, Head, NO_BLOCK, PartHeader, chunk_bytes, mix};
use crate::owner::Owner;
use crate::pool::{Block, Pool, State};
use crate::superblock::CheckpointRef;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::{Buffer, Payload};
use pumice_record::codec::checksum;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether a checkpoint makes up for every lost record ([`Journal::lose_record`](crate::Journal::lose_record)). An owner that loses none always finds `Whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// It does, or none was lost.
    Whole,
    /// One came after a part of the snapshot was taken, or voids an entry of a footer that is still on its way.
    Partial,
}

/// A checkpoint that is being written.
pub struct Begun {
    /// Its number.
    pub id: u64,
    /// What the stream begins with.
    pub head: Head,
    /// Whether a lost record may concern a block that is still open.
    concerns_open: bool,
    /// Records lost before.
    lost: u64,
}

/// Writes a stream into blocks. Dropped before its end, it gives them back. `T` takes a free block
/// for it ([`Blocks::take_for_checkpoint`]), and makes one free first where there is none.
pub struct StreamWriter<'a, O: Owner, D, T> {
    base: &'a Blocks<O>,
    device: &'a D,
    take: T,
    id: u64,
    blocks: Vec<u32>,
    pending: Vec<u8>,
    header: PartHeader,
    chunks: u64,
    total: u64,
}

impl<O: Owner, D, T> Drop for StreamWriter<'_, O, D, T> {
    fn drop(&mut self) {
        self.base.free_checkpoint_blocks(std::mem::take(&mut self.blocks));
    }
}

/// A stream that is on the device as a whole. Dropped before [`Blocks::finish_checkpoint`] has taken its blocks, it gives them back.
pub struct WrittenStream<'a, O: Owner> {
    base: &'a Blocks<O>,
    blocks: Vec<u32>,
    len: u64,
}

impl<O: Owner> Drop for WrittenStream<'_, O> {
    fn drop(&mut self) {
        self.base.free_checkpoint_blocks(std::mem::take(&mut self.blocks));
    }
}

impl<'a, O: Owner, D: Device<Buf = O::Buf>, T: AsyncFn() -> io::Result<u32>> StreamWriter<'a, O, D, T> {
    /// A writer of a checkpoint.
    pub fn new(base: &'a Blocks<O>, device: &'a D, begun: &Begun, take: T) -> Self {
        Self {
            base,
            device,
            take,
            id: begun.id,
            blocks: Vec::new(),
            pending: Vec::new(),
            header: PartHeader {
                id: begun.id,
                part: 0,
                next: NO_BLOCK,
                len: 0,
                chunk_crcs: 0,
            },
            chunks: 0,
            total: 0,
        }
    }

    /// Appends bytes to the stream.
    ///
    /// # Errors
    /// What the device said, or that the stream takes too much of it.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        let len = chunk_bytes(&self.base.geometry);
        let whole = self.pending.len() / len * len;
        let rest = self.pending.split_off(whole);
        let chunks = std::mem::replace(&mut self.pending, rest);
        for chunk in chunks.chunks(len) {
            self.chunk(chunk).await?;
        }
        Ok(())
    }

    /// Writes one chunk; all but the last are whole, so none crosses a block's end.
    async fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        let room = self.base.geometry.block_bytes - SECTOR_BYTES as u64;
        if self.blocks.is_empty() || self.header.len + chunk_bytes(&self.base.geometry) as u64 > room {
            self.next_block().await?;
        }
        let block = *self.blocks.last().expect("just made sure");
        let offset = self.base.geometry.block_offset(block) + SECTOR_BYTES as u64 + self.header.len;
        self.put(block, offset, bytes).await?;
        self.header.chunk_crcs = mix(
            self.header.chunk_crcs,
            self.chunks,
            checksum(self.base.cache_id, &[bytes]),
        );
        self.chunks += 1;
        self.header.len += bytes.len() as u64;
        self.total += bytes.len() as u64;
        Ok(())
    }

    async fn next_block(&mut self) -> io::Result<()> {
        if self.blocks.len() * 4 >= self.base.geometry.blocks as usize {
            return Err(io::Error::other(
                "a checkpoint would fill a quarter of the device",
            ));
        }
        let block = (self.take)().await?;
        let former = self.blocks.last().copied();
        self.blocks.push(block);
        if let Some(former) = former {
            self.close_block(former, block).await?;
        }
        self.header = PartHeader {
            id: self.id,
            part: u32::try_from(self.blocks.len() - 1).expect("fewer than 2^32 blocks"),
            next: NO_BLOCK,
            len: 0,
            chunk_crcs: 0,
        };
        self.chunks = 0;
        Ok(())
    }

    async fn close_block(&mut self, block: u32, next: u32) -> io::Result<()> {
        self.header.next = next;
        let bytes = self.header.encode(self.base.cache_id);
        self.put(block, self.base.geometry.block_offset(block), &bytes)
            .await
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// What the device said.
    pub async fn finish(mut self) -> io::Result<WrittenStream<'a, O>> {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.chunk(&last).await?;
        }
        let block = *self.blocks.last().expect("the head was written");
        self.close_block(block, NO_BLOCK).await?;
        Ok(WrittenStream {
            base: self.base,
            blocks: std::mem::take(&mut self.blocks),
            len: self.total,
        })
    }

    async fn put(&self, block: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let base = self.base;
        let len = bytes.len().next_multiple_of(SECTOR_BYTES);
        let buffer = O::Buf::with_len(len);
        // SAFETY: the buffer was just made; nobody else knows it.
        unsafe { buffer.put(0, Payload::Bytes(bytes)) };
        add(&base.totals.written_bytes, len as u64);
        add(&base.totals.checkpoint_bytes, len as u64);
        let written = base
            .shared
            .write(self.device, offset, Arc::new(buffer), 0..len)
            .await;
        base.blocks[block as usize].note_write(written.is_ok());
        written
    }
}

impl<O: Owner> Blocks<O> {
    /// Begins a checkpoint: step 1. `own` says what a row has of a sealed block for its owner. The owner holds the locks under which
    /// blocks are opened and closed.
    pub fn begin_checkpoint(&self, own: impl Fn(&Block<O::Info>) -> u32) -> Begun {
        let sealed = self.totals.sealed_blocks.load(Ordering::Relaxed);
        self.sealed_at_checkpoint.store(sealed, Ordering::Relaxed);
        let lost = self.totals.log_failures.load(Ordering::Acquire);
        let named = self.journal.superblock.lock().checkpoints;
        let id = named.iter().map(|named| named.id).max().unwrap_or(0) + 1;
        let pool = self.shared.pool.lock();
        let open = self.open.lock();
        let positions = || (open.iter()).map(|block| block.sealing_position.load(Ordering::Acquire));
        // A block that is sealing was composed, or will be, with what was live at its own moment: records since then count.
        let log_start = positions().fold(self.journal.log.position(), u64::min);
        let lost_below = self.journal.lost_below.load(Ordering::Acquire);
        let concerns_open = positions().any(|position| position < lost_below);
        let row = |block: &Block<O::Info>| BlockRow {
            sequence: block.sequence.load(Ordering::Relaxed),
            role: match block.state() {
                State::Sealed => BlockRole::Sealed,
                State::Active | State::Sealing => BlockRole::Open,
                State::Free | State::Reclaiming | State::Checkpoint | State::Lent | State::Bad => {
                    BlockRole::Other
                }
            },
            footer_len: block.footer_len.load(Ordering::Relaxed),
            own: own(block),
        };
        Begun {
            id,
            head: Head {
                next_sequence: pool.next_sequence,
                log_start,
                rows: self.blocks.iter().map(row).collect(),
            },
            concerns_open,
            lost,
        }
    }

    /// Makes a stream that was written whole the newest checkpoint: steps 3 and 4. `clean`: nothing changes after it, and the superblock
    /// says so. `discard` decides whether a start after a crash discards everything from here on; it is asked under the lock of the
    /// superblock. Returns whether no start could go back to the checkpoint before.
    ///
    /// # Errors
    /// What the device said; the checkpoints before stay good.
    pub async fn finish_checkpoint<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        begun: &Begun,
        mut stream: WrittenStream<'_, O>,
        now: u32,
        clean: bool,
        discard: impl FnOnce(Coverage) -> bool,
    ) -> io::Result<bool> {
        if self.durability == Durability::Power {
            self.shared.sync(device).await?;
        }
        // From here to where the blocks are noted nothing is waited for: what the superblock names is never given back.
        let (blocks, total) = (std::mem::take(&mut stream.blocks), stream.len);
        let newest = CheckpointRef {
            id: begun.id,
            first_block: blocks[0],
            len: total,
            log_start: begun.head.log_start,
        };
        let previous = {
            let mut superblock = self.journal.superblock.lock();
            let before = *superblock;
            superblock.clean = clean;
            let is_late = self.totals.log_failures.load(Ordering::Acquire) != begun.lost;
            let coverage = if is_late || begun.concerns_open {
                Coverage::Partial
            } else {
                Coverage::Whole
            };
            superblock.discard = discard(coverage);
            // Without all records since the checkpoint before no start can go back to it.
            let previous = if before.discard || superblock.discard || coverage == Coverage::Partial {
                CheckpointRef::default()
            } else {
                before.checkpoints[0]
            };
            superblock.checkpoints = [newest, previous];
            superblock.saw(now);
            let is_written = self.journal.write_superblock(device, &mut superblock);
            if !is_written {
                *superblock = before;
                self.journal.write_superblock_again(device, &mut superblock);
            } else if superblock.discard && !before.discard {
                // A mark is in both slots, as where a record is lost: a start that finds this one unreadable would go by the other, and
                // take what it names for whole. One of the two will do where the other cannot be written.
                self.journal.insist_on_superblock(device, &mut superblock);
            }
            is_written.then_some(previous)
        };
        let Some(previous) = previous else {
            self.shared.change(|pool| pool.checkpoint_dropped.extend(blocks));
            // Until then a power cut may leave the superblock that failed, and it names them.
            if self.durability == Durability::Power {
                self.shared.sync(device).await?;
            }
            self.free_dropped_checkpoints();
            return Err(io::Error::other("the superblock could not be written"));
        };
        {
            let mut pool = self.shared.pool.lock();
            let [newest, older] = &mut pool.checkpoint_blocks;
            let mut dropped = std::mem::replace(older, std::mem::replace(newest, blocks));
            if previous.id == 0 {
                dropped.append(older);
            }
            pool.checkpoint_dropped.extend(dropped);
        }
        if self.durability == Durability::Power {
            self.shared.sync(device).await?;
        }
        let needed = if previous.id == 0 {
            begun.head.log_start
        } else {
            previous.log_start
        };
        self.journal.log.truncate(begun.head.log_start, needed);
        add(&self.totals.checkpoints, 1);
        self.journal.checkpoint_failed_at.store(0, Ordering::Relaxed);
        self.free_dropped_checkpoints();
        Ok(previous.id == 0)
    }

    fn free_dropped_checkpoints(&self) {
        let dropped = std::mem::take(&mut self.shared.pool.lock().checkpoint_dropped);
        self.free_checkpoint_blocks(dropped);
    }

    /// Drops the checkpoint before the newest, so that no later start can fall back to it; false where a superblock may still lead
    /// there.
    #[must_use = "a start may go back to the checkpoint: the owner decides what follows"]
    pub fn forget_previous_checkpoint<D: Device>(&self, device: &D) -> bool {
        {
            let mut superblock = self.journal.superblock.lock();
            superblock.checkpoints[1] = CheckpointRef::default();
            // To both slots: where one cannot be read, and the newest checkpoint neither, the other would lead to the one before.
            if !(0..2).all(|_| self.journal.write_superblock(device, &mut superblock)) {
                return false;
            }
        }
        let covered = self.journal.log.last_checkpoint();
        self.journal.log.truncate(covered, covered);
        let blocks = std::mem::take(&mut self.shared.pool.lock().checkpoint_blocks[1]);
        self.free_checkpoint_blocks(blocks);
        true
    }

    /// Takes a free block for a checkpoint.
    pub fn take_for_checkpoint(&self, pool: &mut Pool<O>) -> Option<u32> {
        let (id, sequence) = pool.take_free()?;
        let info = &self.blocks[id as usize];
        // Another generation: a read that is still under way must not take these bytes for the former one's.
        info.sequence.store(sequence, Ordering::Release);
        info.set_state(State::Checkpoint);
        Some(id)
    }

    fn free_checkpoint_blocks(&self, blocks: Vec<u32>) {
        if blocks.is_empty() {
            return;
        }
        self.shared.change(|pool| {
            for block in blocks {
                self.give_back(pool, block);
            }
        });
    }
}
