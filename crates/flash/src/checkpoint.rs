//! Checkpoints: a snapshot of all mappings, so that a restart reads little and the log can be cut.
//!
//! A checkpoint is a stream of bytes in ordinary blocks, chained by their headers. It is fuzzy: shards are dumped one
//! after the other while requests go on, each with the log position at its dump.
//!
//! # Order, and what a crash leaves
//! 1. Note, under one lock, which blocks are sealed or open, the next sequence, and the log position from which records
//!    matter. Blocks sealed later are found by their trailers.
//! 2. Write the stream. Crash: the superblock still names the checkpoints before, whose blocks are untouched.
//! 3. (With `power`) flush, then write the superblock. Crash: one of its two slots is valid, either is consistent.
//! 4. Free the blocks of the checkpoint before the last, and forget the log records that only it needed.

use crate::codec::{Fields, checksum};
use crate::geometry::Geometry;
use crate::store::{Durability, FlashStore, State, add};
use crate::superblock::CheckpointRef;
use crate::{Mappings, OpenError};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::{Buffer, Payload};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAGIC: u32 = u32::from_le_bytes(*b"PMcp");
/// About how many bytes are written or read at a time.
const CHUNK_BYTES: u64 = 256 << 10;
/// Marks the last block of a chain.
const NO_BLOCK: u32 = u32::MAX;

/// Header in the first sector of each checkpoint block, little-endian.
///
/// | offset | size | field         | meaning                                       |
/// |-------:|-----:|---------------|-----------------------------------------------|
/// |      0 |    4 | `crc32c`      | over the cache id and bytes 4..40             |
/// |      4 |    4 | magic         | `PMcp`                                        |
/// |      8 |    8 | `id`          | the checkpoint's number                       |
/// |     16 |    4 | `part`        | 0, 1, … along the chain                       |
/// |     20 |    4 | `next`        | next block, 2^32 - 1 at the end               |
/// |     24 |    8 | `len`         | bytes of the stream in this block             |
/// |     32 |    8 | `chunk_crcs`  | XOR of rotated CRC-32Cs of the chunks         |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartHeader {
    id: u64,
    part: u32,
    next: u32,
    len: u64,
    chunk_crcs: u64,
}

const PART_HEADER_BYTES: usize = 40;

impl PartHeader {
    fn encode(&self, cache_id: u64) -> [u8; PART_HEADER_BYTES] {
        let mut out = [0; PART_HEADER_BYTES];
        out[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&self.part.to_le_bytes());
        out[20..24].copy_from_slice(&self.next.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out[32..40].copy_from_slice(&self.chunk_crcs.to_le_bytes());
        let crc = checksum(cache_id, &[&out[4..]]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..PART_HEADER_BYTES)?);
        if fields.u32()? != checksum(cache_id, &[&bytes[4..PART_HEADER_BYTES]]) || fields.u32()? != MAGIC {
            return None;
        }
        Some(Self {
            id: fields.u64()?,
            part: fields.u32()?,
            next: fields.u32()?,
            len: fields.u64()?,
            chunk_crcs: fields.u64()?,
        })
    }
}

/// Bytes of a whole chunk: a whole number of them fills a block, so that writer and reader cut alike.
fn chunk_bytes(geometry: &Geometry) -> usize {
    let room = geometry.block_bytes - SECTOR_BYTES as u64;
    let chunk = room / room.div_ceil(CHUNK_BYTES) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    usize::try_from(chunk).expect("at most 256 KiB")
}

fn mix(crcs: u64, chunk: u64, crc: u32) -> u64 {
    crcs ^ u64::from(crc).rotate_left((chunk % 64) as u32)
}

/// What a block was when the checkpoint was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRole {
    Other,
    Sealed,
    Open,
}

/// One block in a checkpoint's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) sequence: u64,
    pub(crate) role: BlockRole,
    pub(crate) footer_len: u32,
    pub(crate) expiry_max: u32,
}

const ROW_BYTES: usize = 17;

/// The head of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Blocks with this sequence or a higher one were opened later.
    pub(crate) next_sequence: u64,
    pub(crate) log_start: u64,
    pub(crate) flush_at: u32,
    pub(crate) shards: u32,
    pub(crate) entry_bytes: u32,
    pub(crate) rows: Vec<BlockRow>,
}

const HEAD_BYTES: usize = 32;

impl Head {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.next_sequence.to_le_bytes());
        out.extend_from_slice(&self.log_start.to_le_bytes());
        out.extend_from_slice(&self.flush_at.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.extend_from_slice(&self.entry_bytes.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.rows.len())
                .expect("blocks are numbered by u32")
                .to_le_bytes(),
        );
        for row in &self.rows {
            out.extend_from_slice(&row.sequence.to_le_bytes());
            out.push(match row.role {
                BlockRole::Other => 0,
                BlockRole::Sealed => 1,
                BlockRole::Open => 2,
            });
            out.extend_from_slice(&row.footer_len.to_le_bytes());
            out.extend_from_slice(&row.expiry_max.to_le_bytes());
        }
    }
}

/// Writes a stream into blocks.
struct StreamWriter<'a, B, D, M> {
    store: &'a FlashStore<B>,
    device: &'a D,
    mappings: &'a M,
    now: u32,
    id: u64,
    blocks: Vec<u32>,
    pending: Vec<u8>,
    header: PartHeader,
    chunks: u64,
    total: u64,
}

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> StreamWriter<'_, B, D, M> {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        let len = chunk_bytes(&self.store.geometry);
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
        let room = self.store.geometry.block_bytes - SECTOR_BYTES as u64;
        if self.blocks.is_empty() || self.header.len + chunk_bytes(&self.store.geometry) as u64 > room {
            self.next_block().await?;
        }
        let block = *self.blocks.last().expect("just made sure");
        let offset = self.store.geometry.block_offset(block) + SECTOR_BYTES as u64 + self.header.len;
        put(self.store, self.device, offset, bytes).await?;
        self.header.chunk_crcs = mix(
            self.header.chunk_crcs,
            self.chunks,
            checksum(self.store.cache_id, &[bytes]),
        );
        self.chunks += 1;
        self.header.len += bytes.len() as u64;
        self.total += bytes.len() as u64;
        Ok(())
    }

    async fn next_block(&mut self) -> io::Result<()> {
        if self.blocks.len() * 4 >= self.store.geometry.blocks as usize {
            return Err(io::Error::other(
                "a snapshot of the index would fill a quarter of the device",
            ));
        }
        let block = self
            .store
            .take_checkpoint_block(self.device, self.mappings, self.now)
            .await?;
        if !self.blocks.is_empty() {
            self.close_block(block).await?;
        }
        self.header = PartHeader {
            id: self.id,
            part: u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks"),
            next: NO_BLOCK,
            len: 0,
            chunk_crcs: 0,
        };
        self.chunks = 0;
        self.blocks.push(block);
        Ok(())
    }

    async fn close_block(&mut self, next: u32) -> io::Result<()> {
        self.header.next = next;
        let block = *self.blocks.last().expect("a block is open");
        let bytes = self.header.encode(self.store.cache_id);
        put(
            self.store,
            self.device,
            self.store.geometry.block_offset(block),
            &bytes,
        )
        .await
    }

    async fn finish(&mut self) -> io::Result<()> {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.chunk(&last).await?;
        }
        self.close_block(NO_BLOCK).await
    }
}

async fn put<B: Buffer, D: Device<Buf = B>>(
    store: &FlashStore<B>,
    device: &D,
    offset: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let len = bytes.len().next_multiple_of(SECTOR_BYTES);
    let buffer = B::with_len(len);
    // SAFETY: the buffer was just made; nobody else knows it.
    unsafe { buffer.put(0, Payload::Bytes(bytes)) };
    add(&store.counters.written_bytes, len as u64);
    add(&store.counters.checkpoint_bytes, len as u64);
    device.write(offset, Arc::new(buffer), 0..len).await
}

impl<B: Buffer> FlashStore<B> {
    /// Writes a checkpoint. `clean`: nothing will change after it, and the superblock says so.
    ///
    /// # Errors
    /// What the device said, or that the snapshot would take too much of it; the checkpoints before stay good.
    pub async fn checkpoint<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        clean: bool,
    ) -> io::Result<()> {
        let failures = self.counters.log_failures.load(Ordering::Acquire);
        let (head, failure_may_count) = self.head(mappings);
        let id = self
            .superblock
            .lock()
            .checkpoints
            .iter()
            .map(|c| c.id)
            .max()
            .unwrap_or(0)
            + 1;
        let mut writer = StreamWriter {
            store: self,
            device,
            mappings,
            now,
            id,
            blocks: Vec::new(),
            pending: Vec::new(),
            header: PartHeader {
                id,
                part: 0,
                next: NO_BLOCK,
                len: 0,
                chunk_crcs: 0,
            },
            chunks: 0,
            total: 0,
        };
        let written = async {
            let mut bytes = Vec::new();
            head.encode(&mut bytes);
            writer.write(&bytes).await?;
            for shard in 0..mappings.shards() {
                bytes.clear();
                bytes.extend_from_slice(&[0; 16]);
                let (position, count) = mappings.with_shard(shard, |shard| {
                    shard.dump(&mut bytes);
                    (self.log.position(), shard.len() as u64)
                });
                bytes[..8].copy_from_slice(&position.to_le_bytes());
                bytes[8..16].copy_from_slice(&count.to_le_bytes());
                writer.write(&bytes).await?;
            }
            writer.finish().await?;
            if self.durability() == Durability::Power {
                device.sync().await?;
            }
            Ok(())
        }
        .await;
        let (blocks, total) = (std::mem::take(&mut writer.blocks), writer.total);
        if let Err(error) = written {
            self.free_checkpoint_blocks(blocks);
            return Err(error);
        }
        let newest = CheckpointRef {
            id,
            first_block: blocks[0],
            len: total,
            log_start: head.log_start,
        };
        let previous = {
            let mut superblock = self.superblock.lock();
            let before = *superblock;
            let previous = superblock.checkpoints[0];
            superblock.checkpoints = [newest, previous];
            superblock.clean = clean;
            // A record that could not be stored is made good by this checkpoint, unless it came after a dump, or voids what
            // the footer of a block lists that is still on its way.
            let has_failed = self.counters.log_failures.load(Ordering::Acquire) != failures;
            superblock.discard = self.durability() == Durability::Off || has_failed || failure_may_count;
            superblock.time = superblock.time.max(now);
            if !self.write_superblock(device, &mut superblock) {
                *superblock = before;
                drop(superblock);
                self.free_checkpoint_blocks(blocks);
                return Err(io::Error::other("the superblock could not be written"));
            }
            previous
        };
        if self.durability() == Durability::Power {
            device.sync().await?;
        }
        let needed = if previous.id == 0 {
            head.log_start
        } else {
            previous.log_start
        };
        self.log.truncate(head.log_start, needed);
        add(&self.counters.checkpoints, 1);
        let dropped = {
            let mut structure = self.structure.lock();
            let [newest, previous] = &mut structure.checkpoint_blocks;
            std::mem::replace(previous, std::mem::replace(newest, blocks))
        };
        self.free_checkpoint_blocks(dropped);
        Ok(())
    }

    /// Gives up the checkpoint before the newest, so that no later start can fall back to it.
    pub(crate) fn forget_previous_checkpoint<D: Device>(&self, device: &D) {
        {
            let mut superblock = self.superblock.lock();
            superblock.checkpoints[1] = CheckpointRef::default();
            if !self.write_superblock(device, &mut superblock) {
                drop(superblock);
                self.distrust(device);
                return;
            }
        }
        let covered = self.log.last_checkpoint();
        self.log.truncate(covered, covered);
        let blocks = std::mem::take(&mut self.structure.lock().checkpoint_blocks[1]);
        self.free_checkpoint_blocks(blocks);
    }

    /// The head of a checkpoint that begins now, and whether a log record that could not be stored concerns a block that is
    /// still open.
    fn head<M: Mappings>(&self, mappings: &M) -> (Head, bool) {
        // Before the locks below: shards come first in the lock order.
        let entry_bytes = mappings.with_shard(0, |shard| shard.entry_bytes());
        let structure = self.structure.lock();
        let open = self.open.lock();
        // A block that is sealing was composed, or will be, with what was live at its own moment: records since then count.
        let log_start = open
            .iter()
            .map(|block| block.sealing_position.load(Ordering::Acquire))
            .fold(self.log.position(), u64::min);
        let failed_below = self.log_failed_below.load(Ordering::Acquire);
        let failure_may_count = open
            .iter()
            .any(|block| block.sealing_position.load(Ordering::Acquire) < failed_below);
        let rows = self
            .blocks
            .iter()
            .map(|info| BlockRow {
                sequence: info.sequence.load(Ordering::Relaxed),
                role: match info.state() {
                    State::Sealed => BlockRole::Sealed,
                    State::Active | State::Sealing => BlockRole::Open,
                    State::Free | State::Reclaiming | State::Checkpoint => BlockRole::Other,
                },
                footer_len: info.footer_len.load(Ordering::Relaxed),
                expiry_max: info.expiry_max.load(Ordering::Relaxed),
            })
            .collect();
        let head = Head {
            next_sequence: structure.next_sequence,
            log_start,
            flush_at: self.flush_at(),
            shards: u32::try_from(mappings.shards()).expect("few shards"),
            entry_bytes: u32::try_from(entry_bytes).expect("about ten"),
            rows,
        };
        (head, failure_may_count)
    }

    async fn take_checkpoint_block<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
    ) -> io::Result<u32> {
        for _ in 0..self.geometry.blocks {
            {
                let mut structure = self.structure.lock();
                if structure.free.len() >= 2 {
                    let id = structure.free.pop_front().expect("at least two");
                    let info = &self.blocks[id as usize];
                    // Another life: a read that is still under way must not take these bytes for the former one's.
                    info.sequence.store(structure.next_sequence, Ordering::Release);
                    structure.next_sequence += 1;
                    info.set_state(State::Checkpoint);
                    return Ok(id);
                }
            }
            if self.begin_early_reclaim() {
                self.finish_early_reclaim(device, mappings, now).await;
            } else {
                let busy = {
                    let structure = self.structure.lock();
                    structure.reclaiming || !structure.to_seal.is_empty()
                };
                if !busy {
                    break;
                }
                self.wait_for(|structure| !structure.reclaiming || structure.free.len() >= 2)
                    .await;
            }
        }
        Err(io::Error::other("no block is free for a checkpoint"))
    }

    fn free_checkpoint_blocks(&self, blocks: Vec<u32>) {
        for block in &blocks {
            self.blocks[*block as usize].set_state(State::Free);
        }
        self.work_done(|structure| structure.free.extend(blocks));
    }
}

/// Reads a checkpoint's stream back, chunk by chunk.
pub(crate) struct StreamReader<'a, D: Device> {
    device: &'a D,
    geometry: &'a Geometry,
    cache_id: u64,
    /// The chain, with the bytes in each block.
    parts: Vec<(u32, PartHeader)>,
    part: usize,
    at: u64,
    chunks: u64,
    crcs: u64,
    pending: Vec<u8>,
}

impl<'a, D: Device> StreamReader<'a, D> {
    /// Follows the chain of headers.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not whole.
    pub(crate) async fn open(
        device: &'a D,
        geometry: &'a Geometry,
        cache_id: u64,
        checkpoint: &CheckpointRef,
    ) -> Result<Self, OpenError> {
        let mut parts = Vec::new();
        let mut block = checkpoint.first_block;
        let mut total: u64 = 0;
        while block != NO_BLOCK {
            if block >= geometry.blocks || parts.len() >= geometry.blocks as usize {
                return Err(OpenError::Checkpoint("its chain leaves the device"));
            }
            let sector = device
                .read(geometry.block_offset(block), SECTOR_BYTES)
                .await
                .map_err(|_| OpenError::Checkpoint("a header cannot be read"))?;
            let header = sector
                .bytes(0, PART_HEADER_BYTES)
                .and_then(|bytes| PartHeader::decode(cache_id, bytes))
                .filter(|h| h.id == checkpoint.id && h.part as usize == parts.len())
                .filter(|h| h.len <= geometry.block_bytes - SECTOR_BYTES as u64)
                .ok_or(OpenError::Checkpoint("a header is damaged"))?;
            total += header.len;
            parts.push((block, header));
            block = header.next;
        }
        if total != checkpoint.len {
            return Err(OpenError::Checkpoint("it is shorter than the superblock says"));
        }
        Ok(Self {
            device,
            geometry,
            cache_id,
            parts,
            part: 0,
            at: 0,
            chunks: 0,
            crcs: 0,
            pending: Vec::new(),
        })
    }

    /// The blocks of the chain.
    pub(crate) fn blocks(&self) -> Vec<u32> {
        self.parts.iter().map(|(block, _)| *block).collect()
    }

    /// The next `len` bytes. Checksums are per block: what is returned may prove bad only at the block's end, so
    /// nothing may be trusted before [`StreamReader::finish`].
    pub(crate) async fn take(&mut self, len: usize) -> Result<Vec<u8>, OpenError> {
        while self.pending.len() < len {
            self.fill().await?;
        }
        let rest = self.pending.split_off(len);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    async fn fill(&mut self) -> Result<(), OpenError> {
        let (block, header) = *self
            .parts
            .get(self.part)
            .ok_or(OpenError::Checkpoint("it ends early"))?;
        let len = usize::try_from(header.len - self.at)
            .expect("at most 256 MiB")
            .min(chunk_bytes(self.geometry));
        let offset = self.geometry.block_offset(block) + SECTOR_BYTES as u64 + self.at;
        let buffer = self
            .device
            .read(offset, len.next_multiple_of(SECTOR_BYTES))
            .await
            .map_err(|_| OpenError::Checkpoint("it cannot be read"))?;
        let bytes = buffer
            .bytes(0, len)
            .ok_or(OpenError::Checkpoint("it is damaged"))?;
        self.crcs = mix(self.crcs, self.chunks, checksum(self.cache_id, &[bytes]));
        self.chunks += 1;
        self.pending.extend_from_slice(bytes);
        self.at += len as u64;
        if self.at >= header.len {
            if self.crcs != header.chunk_crcs {
                return Err(OpenError::Checkpoint("its checksum is wrong"));
            }
            (self.part, self.at, self.chunks, self.crcs) = (self.part + 1, 0, 0, 0);
        }
        Ok(())
    }

    /// Reads and checks what is left.
    pub(crate) async fn finish(mut self) -> Result<(), OpenError> {
        while self.part < self.parts.len() {
            self.fill().await?;
            self.pending.clear();
        }
        Ok(())
    }

    /// Reads the head of the stream.
    pub(crate) async fn head(&mut self) -> Result<Head, OpenError> {
        const DAMAGED: OpenError = OpenError::Checkpoint("its head is damaged");
        let bytes = self.take(HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let next_sequence = fields.u64().ok_or(DAMAGED)?;
        let log_start = fields.u64().ok_or(DAMAGED)?;
        let flush_at = fields.u32().ok_or(DAMAGED)?;
        let shards = fields.u32().ok_or(DAMAGED)?;
        let entry_bytes = fields.u32().ok_or(DAMAGED)?;
        let count = fields.u32().ok_or(DAMAGED)?;
        if count != self.geometry.blocks {
            return Err(DAMAGED);
        }
        let bytes = self.take(count as usize * ROW_BYTES).await?;
        let mut fields = Fields(&bytes);
        let mut rows = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let sequence = fields.u64().ok_or(DAMAGED)?;
            let role = match fields.array::<1>().ok_or(DAMAGED)? {
                [0] => BlockRole::Other,
                [1] => BlockRole::Sealed,
                [2] => BlockRole::Open,
                _ => return Err(DAMAGED),
            };
            let footer_len = fields.u32().ok_or(DAMAGED)?;
            let expiry_max = fields.u32().ok_or(DAMAGED)?;
            rows.push(BlockRow {
                sequence,
                role,
                footer_len,
                expiry_max,
            });
        }
        Ok(Head {
            next_sequence,
            log_start,
            flush_at,
            shards,
            entry_bytes,
            rows,
        })
    }

    /// Reads the head of a shard's dump: log position and number of entries.
    pub(crate) async fn shard_head(&mut self) -> Result<(u64, u64), OpenError> {
        let bytes = self.take(16).await?;
        let mut fields = Fields(&bytes);
        match (fields.u64(), fields.u64()) {
            (Some(position), Some(count)) => Ok((position, count)),
            _ => Err(OpenError::Checkpoint("a shard's head is damaged")),
        }
    }
}
