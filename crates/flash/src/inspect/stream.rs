//! What a checkpoint says, read back from blocks whose checksums are right.

use super::mappings::MappingShape;
use super::{Part, Source, Walk};
use crate::checkpoint::{
    BlockRole, BlockRow, FILL_BYTES, HEAD_BYTES, KEY_BYTES, KEYS_BATCH, NO_BLOCK, PLACE_BYTES, PartHeader,
    RANK_BYTES, RANKS_HEAD_BYTES, ROW_BYTES, chunk_bytes, decode_fill,
};
use crate::codec::Fields;
use crate::footer::{ENTRY_BYTES, TRAILER_BYTES};
use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::store::{FILTERS_MAX, Invalidated};
use crate::superblock::CheckpointRef;
use pumice_device::SECTOR_BYTES;
use pumice_index::IndexKind;

/// Items that are read at a time.
const BATCH: u64 = 4096;
/// Bins and sampled keys, at most.
const BINS_MAX: u32 = 512;
const SAMPLE_MAX: u32 = 65_536;

/// What of a checkpoint the blocks are compared with.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) next_sequence: u64,
    pub(super) rows: Vec<BlockRow>,
    /// Whether a page that it names stands on the block.
    pub(super) has_pages: Vec<bool>,
    pub(super) blocks: u32,
    pub(super) mappings: u64,
    /// The checksum of the name of the policy.
    pub(super) policy: u32,
}

impl Snapshot {
    pub(super) fn row(&self, block: u32) -> Option<&BlockRow> {
        self.rows.get(block as usize)
    }
}

/// The stream does not go on as it must.
pub(super) struct Broken {
    pub(super) offset: u64,
    pub(super) what: String,
}

/// A stream, chunk by chunk.
pub(super) struct Stream<'a, S: ?Sized> {
    source: &'a S,
    geometry: Geometry,
    parts: Vec<(u32, PartHeader)>,
    part: usize,
    /// Bytes of the part that were read.
    at: u64,
    chunk: Vec<u8>,
    chunk_offset: u64,
    used: usize,
    /// Bytes taken so far.
    pub(super) taken: u64,
}

impl<'a, S: Source + ?Sized> Stream<'a, S> {
    pub(super) fn new(source: &'a S, geometry: Geometry, parts: Vec<(u32, PartHeader)>) -> Self {
        Self {
            source,
            geometry,
            parts,
            part: 0,
            at: 0,
            chunk: Vec::new(),
            chunk_offset: 0,
            used: 0,
            taken: 0,
        }
    }

    /// Where the next byte stands.
    pub(super) fn offset(&self) -> u64 {
        self.chunk_offset + self.used as u64
    }

    pub(super) fn broken(&self, what: impl Into<String>) -> Broken {
        Broken {
            offset: self.offset(),
            what: what.into(),
        }
    }

    fn fill(&mut self) -> Result<(), Broken> {
        while self
            .parts
            .get(self.part)
            .is_some_and(|(_, header)| self.at >= header.len)
        {
            (self.part, self.at) = (self.part + 1, 0);
        }
        let Some((block, header)) = self.parts.get(self.part) else {
            return Err(self.broken("the checkpoint ends early"));
        };
        let len = (header.len - self.at).min(chunk_bytes(&self.geometry) as u64);
        self.chunk_offset = self.geometry.block_offset(*block) + SECTOR_BYTES as u64 + self.at;
        self.chunk.resize(len as usize, 0);
        self.used = 0;
        self.at += len;
        self.source
            .read(self.chunk_offset, &mut self.chunk)
            .map_err(|error| self.broken(format!("{len} bytes cannot be read: {error}")))
    }

    /// The next `len` bytes; no more than a batch.
    pub(super) fn take(&mut self, len: usize) -> Result<Vec<u8>, Broken> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            if self.used == self.chunk.len() {
                self.fill()?;
            }
            let count = (len - out.len()).min(self.chunk.len() - self.used);
            out.extend_from_slice(&self.chunk[self.used..][..count]);
            self.used += count;
        }
        self.taken += len as u64;
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Broken> {
        let bytes = self.take(4)?;
        Ok(Fields(&bytes).u32().expect("4 bytes"))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Broken> {
        let bytes = self.take(8)?;
        Ok(Fields(&bytes).u64().expect("8 bytes"))
    }

    /// Shows `count` items of `len` bytes each, with their offsets on the device.
    pub(super) fn items(
        &mut self,
        count: u64,
        len: usize,
        mut visit: impl FnMut(&[u8], u64),
    ) -> Result<(), Broken> {
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let offset = self.offset();
            let bytes = self.take(batch as usize * len)?;
            for (at, item) in bytes.chunks_exact(len).enumerate() {
                visit(item, offset + (at * len) as u64);
            }
            left -= batch;
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        let is_rest = |(at, (_, header)): (usize, &(u32, PartHeader))| at > self.part && header.len > 0;
        self.used == self.chunk.len()
            && self
                .parts
                .get(self.part)
                .is_none_or(|(_, header)| self.at >= header.len)
            && !self.parts.iter().enumerate().any(is_rest)
    }
}

impl<S: Source + ?Sized> Walk<'_, S> {
    /// Reads a whole checkpoint.
    pub(super) fn snapshot(
        &mut self,
        stream: &mut Stream<'_, S>,
        reference: &CheckpointRef,
        is_base: bool,
    ) -> Result<Snapshot, Broken> {
        let shape = MappingShape::of(&self.superblock);
        let mut snapshot = self.head(stream, reference, &shape)?;
        for shard in 0..shape.shards {
            let offset = stream.offset();
            let (position, count) = (stream.u64()?, stream.u64()?);
            if !(reference.log_start..=self.summary.log.next).contains(&position) {
                let what = format!(
                    "shard {shard} was dumped at log position {position}, and the log has {} to {}",
                    reference.log_start, self.summary.log.next
                );
                self.wrong(Part::Checkpoint(reference.id), offset, what);
            }
            if self.superblock.index == IndexKind::Cascade {
                self.partition(stream, reference.id, shard, count, &shape, &mut snapshot, is_base)?;
            } else {
                snapshot.mappings += count;
                let mut wrong = Vec::new();
                stream.items(count, shape.entry_bytes, |entry, offset| {
                    wrong.extend(self.misleads(&shape, entry, &snapshot).map(|what| (offset, what)));
                })?;
                for (offset, what) in wrong {
                    self.wrong(Part::Checkpoint(reference.id), offset, what);
                }
            }
        }
        if self.superblock.layout == Layout::Sipq {
            snapshot.policy = stream.u32()?;
            let fill = stream.take(FILL_BYTES)?;
            if decode_fill(&mut Fields(&fill), &self.superblock.geometry).is_none() {
                return Err(stream.broken("what its queue of keys has learned cannot be"));
            }
            loop {
                let batch = stream.u32()?;
                if batch == 0 {
                    break;
                }
                if batch as usize > KEYS_BATCH {
                    return Err(stream.broken(format!("a batch of {batch} keys is too long")));
                }
                stream.items(batch.into(), KEY_BYTES, |_, _| {})?;
            }
        }
        if self.superblock.index == IndexKind::Cascade {
            self.invalidated(stream)?;
            self.slots(stream)?;
        }
        if !stream.is_at_end() {
            return Err(stream.broken("more bytes follow where the checkpoint must end"));
        }
        Ok(snapshot)
    }

    fn head(
        &mut self,
        stream: &mut Stream<'_, S>,
        reference: &CheckpointRef,
        shape: &MappingShape,
    ) -> Result<Snapshot, Broken> {
        let geometry = self.superblock.geometry;
        let part = Part::Checkpoint(reference.id);
        let bytes = stream.take(HEAD_BYTES)?;
        let mut fields = Fields(&bytes);
        let mut long = || fields.u64().expect("the head is long enough");
        let (next_sequence, log_start) = (long(), long());
        let mut short = || fields.u32().expect("the head is long enough");
        let [_flush_at, shards, entry_bytes, blocks] = [(); 4].map(|()| short());
        let wanted = [shape.shards, shape.dumped_bytes as u32, geometry.blocks];
        if [shards, entry_bytes, blocks] != wanted {
            let what = format!(
                "it has {shards} shards, mappings of {entry_bytes} bytes and {blocks} blocks, and must have {wanted:?}"
            );
            return Err(stream.broken(what));
        }
        if log_start != reference.log_start {
            let what = format!(
                "it needs the log from {log_start} on, and the superblock says from {} on",
                reference.log_start
            );
            return Err(stream.broken(what));
        }
        let mut rows = Vec::with_capacity(geometry.blocks as usize);
        let mut wrong = Vec::new();
        stream.items(u64::from(blocks), ROW_BYTES, |row, offset| {
            match block_row(row, next_sequence, geometry.block_bytes) {
                Ok(row) => rows.push(row),
                Err(what) => {
                    wrong.push((offset, format!("its row of block {} {what}", rows.len())));
                    rows.push(BlockRow {
                        sequence: 0,
                        role: BlockRole::Other,
                        footer_len: 0,
                        expiry_max: 0,
                    });
                }
            }
        })?;
        let places = stream.u32()?;
        stream.items(places.into(), PLACE_BYTES, |place, offset| {
            let block = u32::from_le_bytes([place[1], place[2], place[3], place[4]]);
            if place[0] > 1 || (block != NO_BLOCK && block >= geometry.blocks) {
                wrong.push((
                    offset,
                    format!("a place of the queue names block {block}, and there is none"),
                ));
            }
        })?;
        let policy = stream.u32()?;
        stream.take(RANKS_HEAD_BYTES - 4)?;
        for (most, what) in [(BINS_MAX, "bins"), (SAMPLE_MAX, "sampled keys")] {
            let count = stream.u32()?;
            if count > most {
                return Err(stream.broken(format!("{count} {what} are too many")));
            }
            stream.items(count.into(), RANK_BYTES, |_, _| {})?;
        }
        for (offset, what) in wrong {
            self.wrong(part, offset, what);
        }
        let log_next = self.summary.log.next;
        if log_start > log_next {
            let what = format!("it needs the log from {log_start} on, and the log ends at {log_next}");
            self.wrong(part, stream.offset(), what);
        }
        Ok(Snapshot {
            next_sequence,
            rows,
            has_pages: vec![false; geometry.blocks as usize],
            blocks: stream.parts.len() as u32,
            mappings: 0,
            policy,
        })
    }

    fn invalidated(&mut self, stream: &mut Stream<'_, S>) -> Result<(), Broken> {
        let words_max = Invalidated::of(&self.superblock.geometry).words() as u64;
        stream.u64()?;
        let filters = stream.u32()?;
        if filters as usize > FILTERS_MAX {
            return Err(stream.broken(format!(
                "{filters} filters over what was invalidated are too many"
            )));
        }
        for _ in 0..filters {
            let (_closed_at, _hashes, words) = (stream.u64()?, stream.u64()?, stream.u64()?);
            if words > words_max {
                return Err(stream.broken(format!("a filter of {words} words is too long")));
            }
            stream.items(words, 8, |_, _| {})?;
        }
        Ok(())
    }

    fn slots(&mut self, stream: &mut Stream<'_, S>) -> Result<(), Broken> {
        let geometry = self.superblock.geometry;
        let width = u64::from(stream.take(1)?[0]);
        if width > 8 {
            return Err(stream.broken(format!("slots of {width} bits are too wide")));
        }
        loop {
            let block = stream.u32()?;
            if block == NO_BLOCK {
                return Ok(());
            }
            let len = u64::from(stream.u32()?);
            if block >= geometry.blocks || len > geometry.block_bytes {
                return Err(stream.broken(format!(
                    "it has {len} slots for block {block}, and that cannot be"
                )));
            }
            let (mut former, mut is_sorted) = (None, true);
            stream.items(len.div_ceil(64), 4, |offset, _| {
                let offset = u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]);
                is_sorted &= former.is_none_or(|former| former < offset);
                is_sorted &= u64::from(offset) < geometry.block_bytes;
                former = Some(offset);
            })?;
            if !is_sorted {
                return Err(stream.broken(format!(
                    "the offsets of the slots of block {block} are not in order"
                )));
            }
            stream.items(len.div_ceil(64 / width.max(1)), 8, |_, _| {})?;
        }
    }
}

fn block_row(bytes: &[u8], next_sequence: u64, block_bytes: u64) -> Result<BlockRow, String> {
    let mut fields = Fields(bytes);
    let sequence = fields.u64().expect("a row is long enough");
    let role = match fields.array() {
        Some([0]) => BlockRole::Other,
        Some([1]) => BlockRole::Sealed,
        Some([2]) => BlockRole::Open,
        other => return Err(format!("has the role {other:?}")),
    };
    let mut short = || fields.u32().expect("a row is long enough");
    let (footer_len, expiry_max) = (short(), short());
    let entries = (footer_len as usize).checked_sub(TRAILER_BYTES);
    let is_footer = entries.is_some_and(|len| len % ENTRY_BYTES == 0) && u64::from(footer_len) <= block_bytes;
    if role == BlockRole::Sealed && !is_footer {
        return Err(format!("has a footer of {footer_len} bytes"));
    }
    if role != BlockRole::Other && !(1..next_sequence).contains(&sequence) {
        return Err(format!(
            "has sequence {sequence}, and the next is {next_sequence}"
        ));
    }
    Ok(BlockRow {
        sequence,
        role,
        footer_len,
        expiry_max,
    })
}
