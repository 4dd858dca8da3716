//! Checkpoint chains: a stream of bytes in ordinary blocks, linked by their headers.
//!
//! The stream begins with a [`Head`]: what every block was when the checkpoint was begun, and from where on the log matters. All that
//! follows is the owner's.

use crate::geometry::Geometry;
use crate::open::OpenError;
use crate::superblock::CheckpointRef;
use pumice_memory::{Buffer, SECTOR_BYTES};
use pumice_record::codec::{Fields, checksum};
use std::io;

const MAGIC: u32 = u32::from_le_bytes(*b"PMcp");
/// About how many bytes are written or read at a time.
const CHUNK_BYTES: u64 = 256 << 10;
/// Marks the last block of a chain.
pub const NO_BLOCK: u32 = u32::MAX;

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
pub struct PartHeader {
    /// Number of the checkpoint.
    pub id: u64,
    /// Place in the chain, from 0.
    pub part: u32,
    /// The next block of the chain, or [`NO_BLOCK`].
    pub next: u32,
    /// Bytes of the stream in this block.
    pub len: u64,
    /// Checksum over the chunks of this block, see [`mix`].
    pub chunk_crcs: u64,
}

/// Length of a [`PartHeader`] in bytes.
pub const PART_HEADER_BYTES: usize = 40;

impl PartHeader {
    /// The bytes.
    pub fn encode(&self, cache_id: u64) -> [u8; PART_HEADER_BYTES] {
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

    /// Reads a header; `None` where the bytes are not one of this cache's.
    pub fn decode(cache_id: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..PART_HEADER_BYTES)?);
        if fields.u32()? != checksum(cache_id, &[&bytes[4..PART_HEADER_BYTES]]) || fields.u32()? != MAGIC {
            return None;
        }
        Some(Self {
            id: fields.count()?,
            part: fields.u32()?,
            next: fields.u32()?,
            len: fields.count()?,
            chunk_crcs: fields.u64()?,
        })
    }
}

/// Bytes of a whole chunk: a whole number of them fills a block, so that writer and reader cut alike.
pub fn chunk_bytes(geometry: &Geometry) -> usize {
    let room = geometry.block_bytes - SECTOR_BYTES as u64;
    let chunk = room / room.div_ceil(CHUNK_BYTES) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    usize::try_from(chunk).expect("at most 256 KiB")
}

/// Adds the checksum of chunk number `chunk` of a block to those of the chunks before it.
pub fn mix(crcs: u64, chunk: u64, crc: u32) -> u64 {
    crcs ^ u64::from(crc).rotate_left((chunk % 64) as u32)
}

/// What a block was when the checkpoint was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockRole {
    /// Neither sealed nor open.
    Other = 0,
    /// Written whole, with a footer.
    Sealed = 1,
    /// Being filled, or on its way to the device.
    Open = 2,
}

/// One block in a checkpoint's table. 17 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// Its sequence.
    pub sequence: u64,
    /// Its role.
    pub role: BlockRole,
    /// Length of footer and trailer, where it is sealed.
    pub footer_len: u32,
    /// The owner's: what a start after a clean stop needs of the trailer, which it does not read.
    pub own: u32,
}

/// Length of a [`BlockRow`] in bytes.
pub const ROW_BYTES: usize = 17;

/// The head of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Blocks with this sequence or a higher one were opened later.
    pub next_sequence: u64,
    /// Log position from which on records matter.
    pub log_start: u64,
    /// Every block.
    pub rows: Vec<BlockRow>,
}

/// Bytes of a [`Head`] before its rows.
pub const HEAD_BYTES: usize = 20;

impl Head {
    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.next_sequence.to_le_bytes());
        out.extend_from_slice(&self.log_start.to_le_bytes());
        put_len(self.rows.len(), out);
        for row in &self.rows {
            out.extend_from_slice(&row.sequence.to_le_bytes());
            out.push(row.role as u8);
            out.extend_from_slice(&row.footer_len.to_le_bytes());
            out.extend_from_slice(&row.own.to_le_bytes());
        }
    }
}

/// Appends the length of a list, for [`StreamReader::list`].
pub fn put_len(len: usize, out: &mut Vec<u8>) {
    let len = u32::try_from(len).expect("far fewer than 2^32");
    out.extend_from_slice(&len.to_le_bytes());
}

/// `None` where it is no row of a block of `block_bytes`.
fn decode_row(fields: &mut Fields<'_>, block_bytes: u64) -> Option<BlockRow> {
    let sequence = fields.count()?;
    let role = match fields.array()? {
        [0] => BlockRole::Other,
        [1] => BlockRole::Sealed,
        [2] => BlockRole::Open,
        _ => return None,
    };
    let footer_len = fields.u32()?;
    (u64::from(footer_len) <= block_bytes).then_some(BlockRow {
        sequence,
        role,
        footer_len,
        own: fields.u32()?,
    })
}

/// Reads a checkpoint's stream back, chunk by chunk. `R` reads bytes of the device, of which offset and length are whole sectors.
pub struct StreamReader<'a, R> {
    read: R,
    geometry: &'a Geometry,
    cache_id: u64,
    /// The chain, with the bytes in each block.
    parts: Vec<(u32, PartHeader)>,
    part: usize,
    at: u64,
    chunks: u64,
    crcs: u64,
    pending: Vec<u8>,
    /// Bytes of the stream before those that were taken last, and with them.
    taken: [u64; 2],
}

fn bad(offset: u64, what: impl Into<String>) -> OpenError {
    let what = what.into();
    OpenError::Checkpoint { offset, what }
}

async fn read_from<B, R>(read: &R, offset: u64, len: usize) -> Result<B, OpenError>
where
    R: AsyncFn(u64, usize) -> io::Result<B>,
{
    let read = read(offset, len).await;
    read.map_err(|error| bad(offset, format!("{len} bytes cannot be read: {error}")))
}

impl<'a, B: Buffer, R: AsyncFn(u64, usize) -> io::Result<B>> StreamReader<'a, R> {
    /// Follows the chain of headers of a checkpoint that the superblock at `named_at` names.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not whole.
    pub async fn open(
        read: R,
        geometry: &'a Geometry,
        cache_id: u64,
        checkpoint: &CheckpointRef,
        mut named_at: u64,
    ) -> Result<Self, OpenError> {
        let mut parts = Vec::new();
        let mut block = checkpoint.first_block;
        let mut total: u64 = 0;
        while block != NO_BLOCK {
            let number = parts.len();
            if block >= geometry.blocks || number >= geometry.blocks as usize {
                let what = format!("its chain leads to block {block}, of {}", geometry.blocks);
                return Err(bad(named_at, what));
            }
            named_at = geometry.block_offset(block);
            let sector = read_from(&read, named_at, SECTOR_BYTES).await?;
            let header = sector
                .bytes(0, PART_HEADER_BYTES)
                .and_then(|bytes| PartHeader::decode(cache_id, bytes))
                .filter(|h| h.id == checkpoint.id && h.part as usize == number)
                .filter(|h| (1..=geometry.block_bytes - SECTOR_BYTES as u64).contains(&h.len))
                .ok_or_else(|| {
                    bad(
                        named_at,
                        format!("the header of its part {number} is not there, or damaged"),
                    )
                })?;
            total += header.len;
            parts.push((block, header));
            block = header.next;
        }
        if total != checkpoint.len {
            let what = format!(
                "its blocks hold {total} bytes, and the superblock says {}",
                checkpoint.len
            );
            return Err(bad(named_at, what));
        }
        Ok(Self {
            read,
            geometry,
            cache_id,
            parts,
            part: 0,
            at: 0,
            chunks: 0,
            crcs: 0,
            pending: Vec::new(),
            taken: [0; 2],
        })
    }

    /// The blocks of the chain, and how many bytes of the stream each holds.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, u64)> {
        self.parts.iter().map(|(block, header)| (*block, header.len))
    }

    /// Where on the device byte `at` of the stream stands.
    pub fn offset_of(&self, mut at: u64) -> u64 {
        let holds = |(_, header): &&(u32, PartHeader)| {
            let is_here = at < header.len;
            at -= if is_here { 0 } else { header.len };
            is_here
        };
        let part = self.parts.iter().find(holds).or(self.parts.last());
        part.map_or(0, |(block, _)| {
            self.geometry.block_offset(*block) + SECTOR_BYTES as u64 + at
        })
    }

    /// Where on the device those bytes begin that were taken last.
    pub fn offset(&self) -> u64 {
        self.offset_of(self.taken[0])
    }

    /// That the bytes that were taken last cannot be.
    pub fn bad(&self, what: impl Into<String>) -> OpenError {
        bad(self.offset(), what)
    }

    /// The next `len` bytes. Checksums are per block: what is returned may prove bad only at the block's end, so
    /// nothing may be trusted before [`StreamReader::finish`].
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn take(&mut self, len: usize) -> Result<Vec<u8>, OpenError> {
        while self.pending.len() < len {
            self.fill().await?;
        }
        self.taken = [self.taken[1], self.taken[1] + len as u64];
        let rest = self.pending.split_off(len);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    async fn fill(&mut self) -> Result<(), OpenError> {
        let Some((block, header)) = self.parts.get(self.part).copied() else {
            return Err(self.bad("it ends early"));
        };
        let len = usize::try_from(header.len - self.at)
            .expect("at most 256 MiB")
            .min(chunk_bytes(self.geometry));
        let start = self.geometry.block_offset(block) + SECTOR_BYTES as u64;
        let buffer = read_from(&self.read, start + self.at, len.next_multiple_of(SECTOR_BYTES)).await?;
        let bytes = buffer.bytes(0, len).ok_or_else(|| bad(start, "it is damaged"))?;
        self.crcs = mix(self.crcs, self.chunks, checksum(self.cache_id, &[bytes]));
        self.pending.extend_from_slice(bytes);
        self.chunks += 1;
        self.at += len as u64;
        if self.at >= header.len {
            if self.crcs != header.chunk_crcs {
                return Err(bad(
                    start,
                    format!("the checksum of its part in block {block} is wrong"),
                ));
            }
            (self.part, self.at, self.chunks, self.crcs) = (self.part + 1, 0, 0, 0);
        }
        Ok(())
    }

    /// Reads and checks what is left, and returns how much that was.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn finish(mut self) -> Result<u64, OpenError> {
        while self.part < self.parts.len() {
            self.fill().await?;
            self.pending.clear();
        }
        let all: u64 = self.blocks().map(|(_, len)| len).sum();
        Ok(all - self.taken[1])
    }

    /// Reads the head of the stream.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is damaged.
    pub async fn head(&mut self) -> Result<Head, OpenError> {
        let bytes = self.take(HEAD_BYTES).await?;
        let mut fields = Fields(&bytes);
        let (Some(next_sequence), Some(log_start), Some(count)) =
            (fields.count(), fields.count(), fields.u32())
        else {
            return Err(self.bad("its head is damaged"));
        };
        if count != self.geometry.blocks {
            let what = format!(
                "it is of {count} blocks, and the device has {}",
                self.geometry.blocks
            );
            return Err(self.bad(what));
        }
        let block_bytes = self.geometry.block_bytes;
        let row = |fields: &mut Fields<'_>| decode_row(fields, block_bytes);
        let rows = self.items("row of block", count, ROW_BYTES, row).await?;
        Ok(Head {
            next_sequence,
            log_start,
            rows,
        })
    }

    /// Bytes of the whole stream.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|(_, header)| header.len).sum()
    }

    /// Whether the stream has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The division of the device.
    pub fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// Reads `words` numbers of 64 bits.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn words<T: FromIterator<u64>>(&mut self, words: usize) -> Result<T, OpenError> {
        let bytes = self.take(words * 8).await?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Reads a number of 32 bits.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn u32(&mut self) -> Result<u32, OpenError> {
        let bytes = self.take(4).await?;
        Ok(Fields(&bytes).u32().expect("four bytes were taken"))
    }

    /// Reads a list with its length before it.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn list<T>(
        &mut self,
        what: &str,
        item_bytes: usize,
        decode: impl Fn(&mut Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, OpenError> {
        let count = self.u32().await?;
        self.items(what, count, item_bytes, decode).await
    }

    /// Reads `count` items. Its checksum may not have been seen yet, so it is not trusted.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where it is not there, or damaged.
    pub async fn items<T>(
        &mut self,
        what: &str,
        count: u32,
        item_bytes: usize,
        decode: impl Fn(&mut Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>, OpenError> {
        let mut items = Vec::new();
        let mut left = count as usize;
        while left > 0 {
            let batch = left.min(4096);
            let bytes = self.take(batch * item_bytes).await?;
            let mut fields = Fields(&bytes);
            for _ in 0..batch {
                let item = decode(&mut fields);
                items.push(item.ok_or_else(|| self.bad(format!("its {what} {} is damaged", items.len())))?);
            }
            left -= batch;
        }
        Ok(items)
    }
}
