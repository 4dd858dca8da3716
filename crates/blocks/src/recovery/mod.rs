//! A start: what checkpoints, log and blocks say.
//!
//! This reports, and its owner decides: whether a log with a hole means that the cache starts empty, or that dirty data is lost and
//! the start is refused, is not known here. After a clean stop the newest checkpoint tells everything. Otherwise:
//! 1. the newest whole checkpoint gives the owner its part, and says which blocks were sealed or open when it was begun
//!    ([`Recovery::snapshot`]);
//! 2. the log since the checkpoint says which blocks were reclaimed and which prefixes were written, and gives the owner its records
//!    ([`Recovery::log`]);
//! 3. every block's trailer is read ([`Recovery::blocks`]). A block that the checkpoint knows as sealed, in the same generation, is
//!    *covered*: the checkpoint has its entries. A block that was open then, or opened later, is *new*: its footer has them. Every other
//!    block counts for nothing: it was reclaimed, or never finished. Where the log has a prefix of a block without a footer, the owner
//!    finds the entries of its pieces, and the footer is written now;
//! 4. the owner writes a new checkpoint before the first request, so that no later start depends on what this one read.

mod prefix;
mod start;

pub use start::StartClock;

use crate::chain::{BlockRole, BlockRow, Head, StreamReader};
use crate::footer::{Entry, OWN_BYTES, TRAILER_BYTES, Trailer, decode_entries};
use crate::geometry::LOG_RECORD_BYTES;
use crate::log::{self, Kind, LogRecord, OwnKind, PrefixMark, Scan};
use crate::open::{OpenError, read_twice};
use crate::superblock::{CheckpointRef, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_memory::Buffer;
use std::collections::{BTreeMap, HashSet};
use std::io;

/// The longest head of a piece, from which its owner tells how long it is, in bytes.
pub const PIECE_HEAD_BYTES_MAX: usize = 12 << 10;
/// No sequence of a block is as high.
const SEQUENCES_MAX: u64 = 1 << 62;
/// Trailers read at a time.
pub(crate) const READ_DEPTH: usize = 32;

/// Where a piece may begin.
#[derive(Clone, Copy, Debug)]
pub struct PieceBegin {
    /// In the buffer that is looked at.
    pub at: usize,
    /// In its block.
    pub offset: u32,
    /// How many pieces of the block are before it.
    pub number: u32,
    /// The sequence of the block.
    pub sequence: u64,
}

/// What a start asks of the owner.
pub trait Restore {
    /// Its kinds of log records.
    type Kind: OwnKind;
    /// An entry of a footer.
    type Entry: Entry;
    /// What it keeps of its part of a checkpoint beside what it restores.
    type Own;

    /// Restores the owner's part of a checkpoint. The head was read. What is read may prove damaged after it was restored.
    ///
    /// # Errors
    /// [`OpenError::Checkpoint`] where the part cannot be used; an older one is tried then.
    #[expect(async_fn_in_trait, reason = "a start is one future of one thread")]
    async fn restore<B, R>(&mut self, stream: &mut StreamReader<'_, R>) -> Result<Self::Own, OpenError>
    where
        B: Buffer,
        R: AsyncFn(u64, usize) -> io::Result<B>;

    /// Forgets what was restored: the checkpoint proved damaged.
    fn forget(&mut self);

    /// The entry of the piece that begins somewhere; `None` where none of the sequence begins there, which ends a prefix. `buffer` has
    /// [`PIECE_HEAD_BYTES_MAX`] bytes of it, or what the prefix has.
    fn piece<B: Buffer>(&self, buffer: &B, begin: PieceBegin) -> Option<Self::Entry>;

    /// Whether the owner finds torn pieces by itself, and logs each death. Then a prefix ends where no piece begins, wherever the log says
    /// that it ends, and only the first one of a block needs a log record.
    fn finds_ends(&self) -> bool {
        false
    }

    /// Whether the owner knows that a block of this generation was durable as a whole. If its footer cannot be read, its prefix does not stand
    /// for it.
    fn was_whole(&self, _block: u32, _sequence: u64) -> bool {
        false
    }

    /// The owner's bytes of the trailer of a block with these entries, which `own` of a prefix's mark belongs to.
    fn trailer(&self, entries: &[Self::Entry], own: u16) -> [u8; OWN_BYTES];
}

/// How restoring a checkpoint ended.
pub enum Restored<T> {
    /// It was restored.
    Whole(Snapshot<T>),
    /// There was none yet.
    None,
    /// None that the superblock names is whole, or, after a clean stop, it names none.
    Lost,
}

/// A checkpoint that was restored.
pub struct Snapshot<T> {
    /// What blocks were when it was begun, and from where on the log matters.
    pub head: Head,
    /// Its own blocks.
    pub blocks: Vec<u32>,
    /// The owner's.
    pub own: T,
}

/// How the log ended.
pub enum LogEnd {
    /// Nothing is missing.
    Whole(LogSummary),
    /// A record is missing among others: its change is unknown. After a power cut it may be one that was never flushed.
    Gap(LogSummary),
    /// The log is not the one that was written beside the checkpoint.
    Missing,
    /// It cannot be read.
    Failed(io::Error),
}

/// What the log says of blocks.
pub struct LogSummary {
    /// Position of the next record, and how much was read.
    pub scan: Scan,
    /// Highest reclaimed sequence by block.
    reclaimed: Vec<u64>,
    /// What was last said of a prefix of each block, and in which generation.
    prefixes: BTreeMap<u32, (PrefixMark, u64)>,
}

impl LogSummary {
    /// Whether a block was reclaimed in this generation, or a later one; false of a block that the device does not have.
    pub fn is_reclaimed(&self, block: u32, sequence: u64) -> bool {
        let highest = self.reclaimed.get(block as usize);
        highest.is_some_and(|highest| sequence <= *highest)
    }
}

/// Blocks that count.
pub struct FoundBlocks {
    /// By block: whether the checkpoint has its entries.
    pub covered: Vec<bool>,
    /// Covered blocks: number, and the row of the checkpoint; where the trailer was read, with that.
    pub sealed: Vec<(u32, BlockRow, Option<Trailer>)>,
    /// Blocks that the checkpoint has as sealed, that were not reclaimed since, and whose trailers are not there: what they hold is
    /// lost. Not known after a clean stop, where trailers are not read.
    pub lost: Vec<u32>,
    /// New blocks, in order of sequence. Their footers were not read.
    pub new: Vec<(u32, Trailer)>,
    /// The lowest sequence that the next generation of any block may have.
    pub next_sequence: u64,
    /// The latest Unix time at which a block was sealed, in seconds.
    pub time: u32,
    /// Blocks that were being filled, of which a prefix is back.
    pub prefixes: u64,
}

/// A start under way.
pub struct Recovery<'a, D> {
    /// The device.
    pub device: &'a D,
    /// The superblock that counts. Where an older checkpoint is gone back to, it names no other.
    pub superblock: Superblock,
    /// Whether the last stop was clean, and its checkpoint is whole.
    pub clean: bool,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Bytes written so far.
    pub bytes_written: u64,
    /// Blocks whose trailers or footers could not be read, or whose prefixes could not be made whole: this start has not, or only in part, what
    /// they hold.
    pub unread_blocks: Vec<u32>,
    /// Log records that had a single wrong bit: position, and the bytes without it.
    mended_records: Vec<(u64, [u8; LOG_RECORD_BYTES as usize])>,
}

impl<'a, D: Device> Recovery<'a, D> {
    /// A start from this superblock.
    pub fn new(device: &'a D, superblock: Superblock) -> Self {
        Self {
            device,
            superblock,
            clean: false,
            bytes_read: 0,
            bytes_written: 0,
            unread_blocks: Vec::new(),
            mended_records: Vec::new(),
        }
    }

    /// Restores the newest checkpoint that is whole. After a clean stop, if the log's last record is damaged, it writes another in its place.
    pub async fn snapshot<O: Restore>(&mut self, owner: &mut O) -> Restored<O::Own> {
        let named = self.superblock.checkpoints.into_iter();
        let named: Vec<CheckpointRef> = named.filter(|named| named.id != 0).collect();
        for (age, checkpoint) in named.iter().enumerate() {
            match self.load(checkpoint, owner).await {
                Ok(snapshot) => {
                    self.superblock.checkpoints = [*checkpoint, CheckpointRef::default()];
                    self.clean = self.superblock.clean && age == 0;
                    if self.clean
                        && let Err(error) = self.mend_log::<O::Kind>(checkpoint.log_start).await
                    {
                        tracing::warn!("mending the log: {error}");
                    }
                    return Restored::Whole(snapshot);
                }
                Err(error) => {
                    tracing::warn!("checkpoint {}: {error}", checkpoint.id);
                    owner.forget();
                }
            }
        }
        match named.is_empty() && !self.superblock.clean {
            true => Restored::None,
            false => Restored::Lost,
        }
    }

    pub(crate) async fn load<O: Restore>(
        &mut self,
        checkpoint: &CheckpointRef,
        owner: &mut O,
    ) -> Result<Snapshot<O::Own>, OpenError> {
        let (device, superblock) = (self.device, self.superblock);
        let read = async |offset, len| read_twice(device, offset, len).await;
        let (geometry, cache_id) = (superblock.geometry, superblock.cache_id);
        let named_at = superblock.slot_offset();
        let mut reader = StreamReader::open(read, &geometry, cache_id, checkpoint, named_at).await?;
        self.bytes_read += checkpoint.len;
        let blocks = reader.blocks().map(|(block, _)| block).collect();
        let head = reader.head().await?;
        if head.log_start != checkpoint.log_start {
            return Err(reader.bad("it needs the log from another position on than the superblock says"));
        }
        let own = owner.restore(&mut reader).await?;
        reader.finish().await?;
        Ok(Snapshot { head, blocks, own })
    }

    /// Reads the log since a checkpoint, `None` where there is none yet, and shows the owner its records. Cost: one pass over what was
    /// written of it.
    pub fn log<K: OwnKind, T>(
        &mut self,
        snapshot: Option<&Snapshot<T>>,
        mut visit: impl FnMut(K, &LogRecord<K>),
    ) -> LogEnd {
        let geometry = self.superblock.geometry;
        let start = snapshot.map_or(0, |snapshot| snapshot.head.log_start);
        // A log that nothing was added to at a clean stop, or that begins with the cache, needs no record before it. With durability
        // `off` there is none.
        if !self.clean && (start > 0 || snapshot.is_none()) {
            match self.log_reaches::<K>(start) {
                Ok(true) => {}
                Ok(false) => return LogEnd::Missing,
                Err(error) => return LogEnd::Failed(error),
            }
        }
        let mut reclaimed = vec![0u64; geometry.blocks as usize];
        let mut prefixes = BTreeMap::new();
        let scan = self.scan(start, |record: &LogRecord<K>| match record.kind {
            // No device reaches such a sequence; later arithmetic would overflow.
            Kind::Prefix | Kind::Reclaim if record.b >= SEQUENCES_MAX => {}
            Kind::Prefix => {
                let mark = PrefixMark::decode(record.a);
                if mark.block < geometry.blocks {
                    prefixes.insert(mark.block, (mark, record.b));
                }
            }
            Kind::Reclaim => {
                let block = usize::try_from(record.a).ok();
                if let Some(highest) = block.and_then(|block| reclaimed.get_mut(block)) {
                    *highest = record.b.max(*highest);
                }
            }
            Kind::Own(kind) => visit(kind, record),
        });
        let scan = match scan {
            Ok(scan) => scan,
            Err(error) => return LogEnd::Failed(error),
        };
        let has_gap = scan.has_gap;
        let summary = LogSummary {
            scan,
            reclaimed,
            prefixes,
        };
        match has_gap {
            true => LogEnd::Gap(summary),
            false => LogEnd::Whole(summary),
        }
    }

    /// Reads the log again, for an owner that cannot hold all it says at once; whether it says the same as before.
    pub fn log_again<K: OwnKind>(
        &mut self,
        start: u64,
        before: &Scan,
        visit: impl FnMut(&LogRecord<K>),
    ) -> bool {
        match self.scan(start, visit) {
            Ok(scan) => scan == *before,
            Err(error) => {
                tracing::warn!("reading the log: {error}");
                false
            }
        }
    }

    fn scan<K: OwnKind>(&mut self, start: u64, visit: impl FnMut(&LogRecord<K>)) -> io::Result<Scan> {
        let superblock = &self.superblock;
        let read = |offset, out: &mut [u8]| self.device.read_log(offset, out);
        let (cache_id, mut mended) = (superblock.cache_id, Vec::new());
        let note = |record: &LogRecord<K>| mended.push((record.position, record.encode(cache_id)));
        let scan = log::scan_mended(read, cache_id, &superblock.geometry, start, visit, note)?;
        self.mended_records = mended;
        self.bytes_read += scan.bytes_read;
        Ok(scan)
    }

    fn log_reaches<K: OwnKind>(&self, start: u64) -> io::Result<bool> {
        let superblock = &self.superblock;
        let read = |offset, out: &mut [u8]| self.device.read_log(offset, out);
        log::reaches::<K>(read, superblock.cache_id, &superblock.geometry, start)
    }

    /// Writes a record that says nothing where the record before `start` is damaged. A start after a clean stop does not need that record. But a
    /// start after a crash looks for it, to tell whether the log is the checkpoint's.
    async fn mend_log<K: OwnKind>(&mut self, start: u64) -> io::Result<()> {
        if start == 0 || self.log_reaches::<K>(start)? {
            return Ok(());
        }
        let position = start - 1;
        tracing::warn!(
            "record {position} of the log is damaged; the last stop was clean, so nothing is lost"
        );
        let superblock = &self.superblock;
        let record = LogRecord::<K> {
            kind: Kind::Reclaim,
            position,
            a: 0,
            b: 0,
        };
        let offset = superblock.geometry.record_offset(position);
        self.bytes_written += LOG_RECORD_BYTES;
        self.device
            .append_log(offset, &record.encode(superblock.cache_id))?;
        // Before a superblock says that the stop was not clean.
        self.device.sync().await
    }

    /// Writes log records that had a single wrong bit as they were: the next start may look for one of them, to tell whose log it is.
    async fn write_mended(&mut self) -> io::Result<()> {
        let mended = std::mem::take(&mut self.mended_records);
        for (position, bytes) in &mended {
            tracing::warn!("record {position} of the log had a wrong bit, and is written anew");
            let offset = self.superblock.geometry.record_offset(*position);
            self.device.append_log(offset, bytes)?;
            self.bytes_written += LOG_RECORD_BYTES;
        }
        match mended.is_empty() {
            true => Ok(()),
            false => self.device.sync().await,
        }
    }

    /// Tells which blocks count, and makes blocks of prefixes. Writes what is wanted for that.
    pub async fn blocks<O: Restore>(
        &mut self,
        snapshot: Option<&Snapshot<O::Own>>,
        summary: &LogSummary,
        owner: &O,
    ) -> FoundBlocks {
        let geometry = self.superblock.geometry;
        let no_head = Head::default();
        let (head, chain) = snapshot.map_or((&no_head, &[][..]), |snapshot| {
            (&snapshot.head, &snapshot.blocks[..])
        });
        let chain: HashSet<u32> = chain.iter().copied().collect();
        let mut found = FoundBlocks {
            covered: vec![false; geometry.blocks as usize],
            sealed: Vec::new(),
            lost: Vec::new(),
            new: Vec::new(),
            next_sequence: head.next_sequence,
            time: 0,
            prefixes: 0,
        };
        if self.clean {
            for (block, row) in (0u32..).zip(&head.rows) {
                // One that was reclaimed for the checkpoint itself was sealed when that began; there may be no record of it.
                if row.role == BlockRole::Sealed
                    && !chain.contains(&block)
                    && !summary.is_reclaimed(block, row.sequence)
                {
                    found.covered[block as usize] = true;
                    found.sealed.push((block, *row, None));
                }
            }
            return found;
        }
        let wanted: Vec<u32> = (0..geometry.blocks)
            .filter(|block| !chain.contains(block))
            .collect();
        if let Err(error) = self.write_mended().await {
            tracing::warn!("mending the log: {error}");
        }
        for batch in wanted.chunks(READ_DEPTH) {
            for (block, trailer) in self.trailers(batch).await {
                // Another store's, or none at all.
                if usize::from(trailer.entry_bytes) != O::Entry::BYTES {
                    continue;
                }
                found.next_sequence = found.next_sequence.max(trailer.sequence + 1);
                found.time = found.time.max(trailer.time);
                if summary.is_reclaimed(block, trailer.sequence) {
                    continue;
                }
                let row = head.rows.get(block as usize);
                match row.filter(|row| row.sequence == trailer.sequence) {
                    Some(row) if row.role == BlockRole::Sealed => {
                        found.covered[block as usize] = true;
                        found.sealed.push((block, *row, Some(trailer)));
                    }
                    Some(row) if row.role == BlockRole::Open => found.new.push((block, trailer)),
                    _ if trailer.sequence >= head.next_sequence => found.new.push((block, trailer)),
                    _ => {}
                }
            }
        }
        let must_be_there = |(block, row): &(u32, &BlockRow)| {
            row.role == BlockRole::Sealed
                && !chain.contains(block)
                && !summary.is_reclaimed(*block, row.sequence)
                && !found.covered[*block as usize]
        };
        found.lost = (0u32..)
            .zip(&head.rows)
            .filter(must_be_there)
            .map(|(block, _)| block)
            .collect();
        self.adopt_prefixes(head, summary, owner, &mut found).await;
        // The block that was open at the crash has a sequence that no trailer shows. It is never used again.
        found.next_sequence += u64::from(geometry.blocks);
        found.new.sort_unstable_by_key(|(_, trailer)| trailer.sequence);
        found
    }

    /// The trailers of a batch of blocks, of those that have one.
    pub(crate) async fn trailers(&mut self, batch: &[u32]) -> Vec<(u32, Trailer)> {
        let geometry = self.superblock.geometry;
        let last_sector =
            |block: u32| geometry.block_offset(block) + geometry.block_bytes - SECTOR_BYTES as u64;
        let mut trailers = Vec::new();
        // All reads of the batch are started before the first is waited for.
        let reads: Vec<_> = batch
            .iter()
            .map(|block| self.device.read(last_sector(*block), SECTOR_BYTES))
            .collect();
        for (block, read) in batch.iter().zip(reads) {
            self.bytes_read += SECTOR_BYTES as u64;
            let read = match read.await {
                Err(_) => self.device.read(last_sector(*block), SECTOR_BYTES).await,
                read => read,
            };
            let sector = match read {
                Ok(sector) => sector,
                Err(error) => {
                    tracing::warn!("reading the trailer of block {block}: {error}");
                    self.unread_blocks.push(*block);
                    continue;
                }
            };
            let trailer = sector
                .bytes(SECTOR_BYTES - TRAILER_BYTES, TRAILER_BYTES)
                .and_then(|bytes| Trailer::decode(self.superblock.cache_id, bytes))
                .filter(|trailer| trailer.block == *block)
                .filter(|trailer| trailer.footer_len() as u64 <= geometry.block_bytes);
            trailers.extend(trailer.map(|trailer| (*block, trailer)));
        }
        trailers
    }

    /// Reads and checks the footer of a new block. One is held at a time: it is shorter than a block.
    pub async fn entries<E: Entry>(&mut self, block: u32, trailer: &Trailer) -> Option<Vec<E>> {
        match self.footer(block, trailer).await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!("reading the footer of block {block}: {error}");
                self.unread_blocks.push(block);
                None
            }
        }
    }

    /// The same; `None` if the footer is not whole.
    pub(super) async fn footer<E: Entry>(
        &mut self,
        block: u32,
        trailer: &Trailer,
    ) -> io::Result<Option<Vec<E>>> {
        let geometry = self.superblock.geometry;
        let footer_len = trailer.footer_len();
        let block_bytes = usize::try_from(geometry.block_bytes).expect("at most 256 MiB");
        let len = footer_len.next_multiple_of(SECTOR_BYTES);
        let Some(start) = block_bytes.checked_sub(len) else {
            return Ok(None);
        };
        let offset = geometry.block_offset(block) + start as u64;
        self.bytes_read += len as u64;
        let buffer = read_twice(self.device, offset, len).await?;
        let bytes = buffer.bytes(len - footer_len, footer_len);
        Ok(bytes.and_then(|bytes| decode_entries(self.superblock.cache_id, trailer, bytes, block_bytes)))
    }
}
