//! Opening a device: format it, or find out what it holds.
//!
//! After a clean stop the newest checkpoint tells everything. Otherwise:
//! 1. the newest valid checkpoint gives mappings, and which blocks were sealed or open when it was begun;
//! 2. every block's trailer is read. A block that the checkpoint knows as sealed, in the same life, is *covered*: its
//!    mappings come from the checkpoint. A block that was open then, or opened later, is *new*: its mappings come from
//!    its footer. Every other block counts for nothing: it was reclaimed, or never finished;
//! 3. the log since the checkpoint says which copies are void, and which blocks were reclaimed;
//! 4. a new checkpoint is written ([`settle`]) before the first request, so that no later start depends on what this one read.
//!
//! Where the log has a hole, or no checkpoint is whole, the cache starts empty: nothing wrong is ever served.

use crate::Mappings;
use crate::checkpoint::{BlockRole, Head, StreamReader};
use crate::footer::{TRAILER_BYTES, Trailer, decode_entries};
use crate::geometry::{Geometry, GeometryError, SUPERBLOCKS_BYTES};
use crate::log::{self, LogKind, LogRecord};
use crate::record::is_expired;
use crate::store::{Durability, FlashStore, Start, add};
use crate::superblock::{CheckpointRef, SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_index::Location;
use pumice_memory::Buffer;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;

/// Bits of a version below the epoch: 2^44 sets per start, and 2^20 starts.
const EPOCH_SHIFT: u32 = 44;
/// Trailers read at a time.
const READ_DEPTH: usize = 32;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device failed.
    #[error("{what}: {source}")]
    Device {
        /// What was being done.
        what: &'static str,
        /// What the device said.
        source: io::Error,
    },
    /// The size does not work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is something else on it.
    #[error("the device is not empty and holds no Pumice cache; give another, or --reformat to erase it")]
    Foreign,
    /// A newer or older format.
    #[error("the device has format version {0}, this program knows version {known}; use the program that made it, or --reformat to erase it", known = crate::superblock::FORMAT)]
    OtherFormat(u32),
    /// Both superblocks are damaged.
    #[error("both superblocks of the device are damaged; --reformat makes an empty cache of it")]
    Damaged,
    /// Flags and superblock disagree.
    #[error(
        "{what} is {wanted} by the settings but {found} on the device; change the setting, or --reformat to erase the device"
    )]
    Disagrees {
        /// Which setting.
        what: &'static str,
        /// What was asked for.
        wanted: u64,
        /// What the superblock says.
        found: u64,
    },
    /// A checkpoint is not whole; recovery goes on without it.
    #[error("checkpoint unusable: {0}")]
    Checkpoint(&'static str),
    /// The start cannot be recorded.
    #[error("the device cannot record this start; it failed {0} times")]
    Unwritable(u32),
}

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Block size in bytes to format with; an existing cache must agree where `check_block_bytes` is set.
    pub block_bytes: u64,
    /// Whether the user chose the block size.
    pub check_block_bytes: bool,
    /// Erase whatever is there.
    pub reformat: bool,
    /// What a reply promises.
    pub durability: Durability,
    /// The most block buffers, at least 2.
    pub buffers_max: usize,
    /// Objects start at multiples of this many bytes.
    pub unit_bytes: u64,
    /// One piece of background work at a time, so that nothing depends on how long a device takes: for replay.
    pub lockstep: bool,
    /// Unix time in seconds.
    pub now: u32,
    /// Random numbers for a new cache: its id and the seed of its hash.
    pub random: [u64; 2],
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that are back.
    pub objects: u64,
    /// Their bytes, padding included.
    pub bytes: u64,
    /// Whether the last stop was clean.
    pub clean: bool,
    /// Whether the device was formatted.
    pub formatted: bool,
    /// Whether what was there had to be forgotten.
    pub discarded: bool,
    /// Bytes read from the device.
    pub bytes_read: u64,
    /// Log records applied.
    pub log_records: u64,
    /// Mappings for which there was no DRAM.
    pub no_memory: u64,
    /// The highest Unix time that the device has recorded, in seconds: the clock must not show less.
    pub time: u32,
    /// Whether [`settle`] has to write a checkpoint.
    pub needs_checkpoint: bool,
}

/// A superblock that is in order, and what it took to get it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    superblock: Superblock,
    formatted: bool,
    discarded: bool,
}

impl Opened {
    /// The seed of the key hash.
    pub fn hash_seed(&self) -> u64 {
        self.superblock.hash_seed
    }

    /// The division of the device.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The highest Unix time the device has recorded, in seconds.
    pub fn time(&self) -> u32 {
        self.superblock.time
    }
}

fn device_error(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Device { what, source }
}

/// Reads the superblock, or formats an empty device.
///
/// # Errors
/// [`OpenError`]; the device is then as it was.
pub async fn open_superblock<D: Device>(device: &D, options: &OpenOptions) -> Result<Opened, OpenError> {
    let fresh = || -> Result<Opened, OpenError> {
        let superblock = Superblock {
            cache_id: options.random[0],
            hash_seed: options.random[1],
            geometry: Geometry::plan(device.capacity(), options.block_bytes)?,
            generation: 0,
            epoch: 0,
            clean: false,
            discard: false,
            time: options.now,
            checkpoints: [CheckpointRef::default(); 2],
        };
        Ok(Opened {
            superblock,
            formatted: true,
            discarded: false,
        })
    };
    if options.reformat {
        return fresh();
    }
    if device.capacity() < SUPERBLOCKS_BYTES {
        return fresh();
    }
    let mut slots = Vec::new();
    for slot in 0..2u64 {
        let mut sector = vec![0; SECTOR_BYTES];
        device
            .read_log(slot * SECTOR_BYTES as u64, &mut sector)
            .map_err(device_error("reading the superblock"))?;
        slots.push(Superblock::decode(&sector));
    }
    let newest = slots
        .iter()
        .filter_map(|slot| match slot {
            SlotContent::Valid(superblock) => Some(*superblock),
            _ => None,
        })
        .max_by_key(|superblock| superblock.generation);
    let Some(superblock) = newest else {
        if slots.contains(&SlotContent::Foreign) {
            return Err(OpenError::Foreign);
        }
        if let Some(format) = slots.iter().find_map(|s| match s {
            SlotContent::OtherFormat(format) => Some(*format),
            _ => None,
        }) {
            return Err(OpenError::OtherFormat(format));
        }
        if slots.contains(&SlotContent::Damaged) && !slots.contains(&SlotContent::Empty) {
            return Err(OpenError::Damaged);
        }
        // Empty, or a format that never got past its first superblock.
        if slots.contains(&SlotContent::Damaged) || is_blank(device).await? {
            return fresh();
        }
        return Err(OpenError::Foreign);
    };
    let found = superblock.geometry;
    let usable = device.capacity() / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    if usable != found.capacity {
        return Err(OpenError::Disagrees {
            what: "the size of the device",
            wanted: usable,
            found: found.capacity,
        });
    }
    if options.check_block_bytes && options.block_bytes != found.block_bytes {
        return Err(OpenError::Disagrees {
            what: "the block size",
            wanted: options.block_bytes,
            found: found.block_bytes,
        });
    }
    Ok(Opened {
        superblock,
        formatted: false,
        discarded: false,
    })
}

/// Whether the device's first MiB is zero, as in a new file: a device without our superblock that holds anything else
/// is somebody's.
async fn is_blank<D: Device>(device: &D) -> Result<bool, OpenError> {
    let len = device.capacity().min(1 << 20) as usize / SECTOR_BYTES * SECTOR_BYTES;
    let mut bytes = vec![0; len];
    device
        .read_log(0, &mut bytes)
        .map_err(device_error("reading the device's start"))?;
    Ok(bytes.iter().all(|b| *b == 0))
}

/// Rebuilds the mappings into `mappings` (empty shards, made for the superblock's geometry), and opens the store.
///
/// # Errors
/// [`OpenError::Device`] where this start cannot be recorded on the device. Damage is no error: what is damaged is
/// gone.
pub async fn recover<B: Buffer, D: Device<Buf = B>, M: Mappings>(
    device: &D,
    opened: Opened,
    options: &OpenOptions,
    mappings: &M,
) -> Result<(FlashStore<B>, Recovered), OpenError> {
    let mut recovery = Recovery {
        device,
        mappings,
        superblock: opened.superblock,
        out: Recovered::default(),
        now: options.now,
    };
    recovery.out.formatted = opened.formatted;
    recovery.out.discarded = opened.discarded;
    let found = if opened.formatted {
        Found::default()
    } else {
        recovery.find().await
    };
    let found = match found {
        Found { usable: true, .. } => found,
        _ => {
            // A new identity: no byte that is there can pass as ours again.
            for shard in 0..mappings.shards() {
                mappings.with_shard(shard, pumice_index::FullShard::clear);
            }
            let out = &mut recovery.out;
            out.discarded = !opened.formatted;
            (out.objects, out.bytes) = (0, 0);
            // Made from the old one, so that it differs even where the random number is the same as before.
            let former = recovery
                .superblock
                .cache_id
                .wrapping_add(u64::from(recovery.superblock.epoch));
            recovery.superblock.cache_id = (former ^ options.random[0].rotate_left(32))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add(1);
            recovery.superblock.checkpoints = [CheckpointRef::default(); 2];
            Found {
                epoch: found.epoch,
                time: found.time,
                ..Found::default()
            }
        }
    };
    let mut superblock = recovery.superblock;
    let was_clean = recovery.out.clean;
    superblock.epoch = superblock.epoch.max(found.epoch) + 1;
    superblock.time = superblock.time.max(found.time).max(options.now);
    recovery.out.time = superblock.time;
    superblock.clean = false;
    superblock.discard = options.durability == Durability::Off;
    let start = Start {
        superblock,
        log_next: found.log_next,
        log_tail: superblock.checkpoints[0].log_start,
        next_sequence: found.next_sequence.max(1),
        first_version: u64::from(superblock.epoch) << EPOCH_SHIFT | 1,
        flush_at: found.flush_at,
        checkpoint_blocks: [found.checkpoint_blocks, Vec::new()],
        sealed: found.sealed,
    };
    let store = FlashStore::start(start, options);
    for shard in 0..mappings.shards() {
        mappings.with_shard(shard, |shard| {
            shard.for_each(|location| {
                let info = &store.blocks[store.block_of(location) as usize];
                info.live.fetch_add(u64::from(location.len), Ordering::Relaxed);
                recovery.out.objects += 1;
                recovery.out.bytes += u64::from(location.len);
            });
        });
    }
    // Both slots, so that no superblock of a former identity or of a clean stop can ever win.
    for _ in 0..2 {
        let mut superblock = store.superblock.lock();
        superblock.generation += 1;
        device
            .append_log(superblock.slot_offset(), &superblock.encode())
            .map_err(device_error("writing the superblock"))?;
        add(&store.counters.written_bytes, SECTOR_BYTES as u64);
    }
    if options.durability == Durability::Power || opened.formatted {
        device
            .sync()
            .await
            .map_err(device_error("flushing the superblock"))?;
    }
    if recovery.out.no_memory > 0 {
        tracing::warn!(
            "{} mappings found no room in DRAM: their objects are lost",
            recovery.out.no_memory
        );
    }
    let is_new = recovery.out.formatted || recovery.out.discarded;
    recovery.out.needs_checkpoint = !is_new && (!was_clean || recovery.out.no_memory > 0);
    Ok((store, recovery.out))
}

/// The last step of a start, before the first request. What this start could not read or hold must not come back at a
/// later one: a new checkpoint makes this start's view the only one. (A new identity has nothing that could come back.)
pub async fn settle<B: Buffer, D: Device<Buf = B>, M: Mappings>(
    store: &FlashStore<B>,
    device: &D,
    mappings: &M,
    now: u32,
    recovered: &Recovered,
) {
    if !recovered.needs_checkpoint {
        return;
    }
    match store.checkpoint(device, mappings, now, false).await {
        Ok(()) => store.forget_previous_checkpoint(device),
        Err(error) => {
            tracing::warn!("checkpoint after recovery: {error}");
            store.distrust(device);
        }
    }
}

/// What recovery found out about the device.
#[derive(Default)]
struct Found {
    usable: bool,
    epoch: u32,
    time: u32,
    log_next: u64,
    next_sequence: u64,
    flush_at: u32,
    checkpoint_blocks: Vec<u32>,
    sealed: Vec<(u32, u64, u32, u32)>,
}

/// What the log says.
struct Void {
    /// Highest invalidating version by the bits of the hash that the index tells apart, sorted by both. A set replaces
    /// whatever has the same bits, so its record voids all that has them.
    by_hash: Vec<(u64, u64)>,
    /// Bits of a hash below those.
    ignored_bits: u32,
    /// Copies below this version are void.
    flushed: u64,
    /// Highest reclaimed sequence by block.
    reclaimed: HashMap<u32, u64>,
}

impl Void {
    fn new(records: &[LogRecord], identity_bits: u32) -> Self {
        let ignored_bits = 64 - identity_bits;
        let mut by_hash: Vec<(u64, u64)> = Vec::new();
        let mut flushed = 0;
        let mut reclaimed: HashMap<u32, u64> = HashMap::new();
        for record in records {
            match record.kind {
                LogKind::Invalidate => by_hash.push((record.a >> ignored_bits, record.b)),
                LogKind::FlushAll => flushed = flushed.max(record.b),
                LogKind::FlushAt => {}
                LogKind::Reclaim => {
                    if let Ok(block) = u32::try_from(record.a) {
                        let highest = reclaimed.entry(block).or_default();
                        *highest = (*highest).max(record.b);
                    }
                }
            }
        }
        by_hash.sort_unstable();
        Self {
            by_hash,
            ignored_bits,
            flushed,
            reclaimed,
        }
    }

    fn is_void(&self, hash: u64, version: u64) -> bool {
        let hash = hash >> self.ignored_bits;
        let end = self.by_hash.partition_point(|(h, _)| *h <= hash);
        let last = end.checked_sub(1).and_then(|at| self.by_hash.get(at));
        version < self.flushed || last.is_some_and(|(h, below)| *h == hash && version < *below)
    }

    fn is_reclaimed(&self, block: u32, sequence: u64) -> bool {
        self.reclaimed
            .get(&block)
            .is_some_and(|highest| sequence <= *highest)
    }
}

struct Recovery<'a, D, M> {
    device: &'a D,
    mappings: &'a M,
    superblock: Superblock,
    out: Recovered,
    now: u32,
}

impl<D: Device, M: Mappings> Recovery<'_, D, M> {
    async fn find(&mut self) -> Found {
        let mut found = Found {
            epoch: self.superblock.epoch,
            time: self.superblock.time,
            ..Found::default()
        };
        if self.superblock.discard && !self.superblock.clean {
            tracing::warn!("the last stop was not clean and no complete log was kept: starting empty");
            return found;
        }
        let named: Vec<CheckpointRef> = self
            .superblock
            .checkpoints
            .into_iter()
            .filter(|c| c.id != 0)
            .collect();
        let mut loaded = None;
        for (age, checkpoint) in named.iter().enumerate() {
            match self.load(checkpoint).await {
                Ok(snapshot) => {
                    self.superblock.checkpoints = [*checkpoint, CheckpointRef::default()];
                    self.out.clean = self.superblock.clean && age == 0;
                    loaded = Some(snapshot);
                    break;
                }
                Err(error) => {
                    tracing::warn!("checkpoint {}: {error}", checkpoint.id);
                    self.clear();
                }
            }
        }
        if loaded.is_none() && (!named.is_empty() || self.superblock.clean) {
            tracing::warn!("no checkpoint is whole: starting empty");
            return found;
        }
        let snapshot = loaded.unwrap_or_default();
        found.checkpoint_blocks = snapshot.blocks.clone();
        found.usable = self.replay(&snapshot, &mut found).await;
        if !found.usable {
            self.out.clean = false;
        }
        found
    }

    fn clear(&self) {
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, pumice_index::FullShard::clear);
        }
    }

    async fn load(&mut self, checkpoint: &CheckpointRef) -> Result<Snapshot, OpenError> {
        let geometry = self.superblock.geometry;
        let mut reader =
            StreamReader::open(self.device, &geometry, self.superblock.cache_id, checkpoint).await?;
        self.out.bytes_read += checkpoint.len;
        let blocks = reader.blocks();
        let head = reader.head().await?;
        let entry_bytes = self.mappings.with_shard(0, |shard| shard.entry_bytes());
        if head.entry_bytes as usize != entry_bytes || head.shards as usize != self.mappings.shards() {
            // Another number of shards cuts hashes differently. The dump has no whole hashes, so it is
            // of no use; footers have them.
            return Err(OpenError::Checkpoint(
                "it was written with another division of the index",
            ));
        }
        let mut positions = Vec::with_capacity(self.mappings.shards());
        for shard in 0..self.mappings.shards() {
            let (position, count) = reader.shard_head().await?;
            positions.push(position);
            let mut left =
                usize::try_from(count).map_err(|_| OpenError::Checkpoint("a shard is too long"))?;
            while left > 0 {
                let batch = left.min(4096);
                self.mappings.make_room();
                let bytes = reader.take(batch * entry_bytes).await?;
                self.out.no_memory += self.mappings.with_shard(shard, |shard| {
                    bytes
                        .chunks_exact(entry_bytes)
                        .filter(|entry| !shard.load(entry, |_| true))
                        .count() as u64
                });
                left -= batch;
            }
        }
        reader.finish().await?;
        Ok(Snapshot {
            head,
            positions,
            blocks,
        })
    }

    /// Brings the snapshot up to date; false where that is not possible.
    async fn replay(&mut self, snapshot: &Snapshot, found: &mut Found) -> bool {
        let geometry = self.superblock.geometry;
        let head = &snapshot.head;
        let scan = match log::scan(self.device, self.superblock.cache_id, &geometry, head.log_start) {
            Ok(scan) => scan,
            Err(error) => {
                tracing::warn!("reading the invalidation log: {error}: starting empty");
                return false;
            }
        };
        if scan.has_gap {
            tracing::warn!("the invalidation log has a hole: starting empty");
            return false;
        }
        self.out.log_records = scan.records.len() as u64;
        self.out.bytes_read += scan.bytes_read;
        found.log_next = scan.next;
        found.flush_at = scan
            .records
            .iter()
            .fold(head.flush_at, |at, record| match record.kind {
                LogKind::FlushAt => u32::try_from(record.a).unwrap_or(0),
                LogKind::FlushAll => 0,
                LogKind::Invalidate | LogKind::Reclaim => at,
            });
        let highest_version = scan
            .records
            .iter()
            .filter(|r| r.kind != LogKind::Reclaim)
            .map(|r| r.b)
            .max();
        self.note_version(found, highest_version.unwrap_or(0));
        let void = Void::new(&scan.records, self.mappings.identity_bits());

        let (covered, new) = self.classify(snapshot, &void, found).await;
        for shard in 0..self.mappings.shards() {
            self.mappings.with_shard(shard, |shard| {
                shard.retain(|location| {
                    geometry
                        .block_of(location.offset)
                        .is_some_and(|block| covered[block as usize])
                });
            });
        }
        for record in &scan.records {
            match record.kind {
                LogKind::Invalidate => {
                    let shard = self.mappings.shard_of(record.a);
                    if snapshot
                        .positions
                        .get(shard)
                        .is_some_and(|dumped| record.position >= *dumped)
                    {
                        self.mappings.with_shard(shard, |shard| shard.remove(record.a));
                    }
                }
                LogKind::FlushAll => {
                    for (shard, dumped) in snapshot.positions.iter().enumerate() {
                        if record.position >= *dumped {
                            self.mappings.with_shard(shard, pumice_index::FullShard::clear);
                        }
                    }
                }
                LogKind::FlushAt | LogKind::Reclaim => {}
            }
        }
        for (block, trailer) in new {
            self.add_block(block, &trailer, &void, found).await;
        }
        true
    }

    /// Decides which blocks are covered by the snapshot and which are new, in order of sequence.
    async fn classify(
        &mut self,
        snapshot: &Snapshot,
        void: &Void,
        found: &mut Found,
    ) -> (Vec<bool>, Vec<(u32, Trailer)>) {
        let geometry = self.superblock.geometry;
        let head = &snapshot.head;
        let mut covered = vec![false; geometry.blocks as usize];
        let mut new = Vec::new();
        found.next_sequence = head.next_sequence;
        if self.out.clean {
            for (block, row) in (0u32..).zip(&head.rows) {
                if row.role == BlockRole::Sealed && !void.is_reclaimed(block, row.sequence) {
                    covered[block as usize] = true;
                    found
                        .sealed
                        .push((block, row.sequence, row.footer_len, row.expiry_max));
                }
            }
            return (covered, new);
        }
        let chain: HashSet<u32> = snapshot.blocks.iter().copied().collect();
        let wanted: Vec<u32> = (0..geometry.blocks)
            .filter(|block| !chain.contains(block))
            .collect();
        for batch in wanted.chunks(READ_DEPTH) {
            // All reads of the batch are started before the first is waited for.
            let reads: Vec<_> = batch
                .iter()
                .map(|block| {
                    let end = geometry.block_offset(*block) + geometry.block_bytes;
                    self.device.read(end - SECTOR_BYTES as u64, SECTOR_BYTES)
                })
                .collect();
            for (block, read) in batch.iter().zip(reads) {
                self.out.bytes_read += SECTOR_BYTES as u64;
                let Ok(sector) = read.await else { continue };
                let trailer = sector
                    .bytes(SECTOR_BYTES - TRAILER_BYTES, TRAILER_BYTES)
                    .and_then(|bytes| Trailer::decode(self.superblock.cache_id, bytes))
                    .filter(|trailer| trailer.block == *block);
                let Some(trailer) = trailer else { continue };
                found.next_sequence = found.next_sequence.max(trailer.sequence + 1);
                found.time = found.time.max(trailer.time);
                if void.is_reclaimed(*block, trailer.sequence) {
                    continue;
                }
                let row = head
                    .rows
                    .get(*block as usize)
                    .filter(|row| row.sequence == trailer.sequence);
                match row.map(|row| row.role) {
                    Some(BlockRole::Sealed) => {
                        covered[*block as usize] = true;
                        let footer_len = u32::try_from(trailer.footer_len()).unwrap_or(u32::MAX);
                        found
                            .sealed
                            .push((*block, trailer.sequence, footer_len, trailer.expiry_max));
                    }
                    Some(BlockRole::Open) => new.push((*block, trailer)),
                    _ if trailer.sequence >= head.next_sequence => new.push((*block, trailer)),
                    _ => {}
                }
            }
        }
        // The block that was open at the crash has a sequence that no trailer shows. It is never used again.
        found.next_sequence += u64::from(geometry.blocks);
        new.sort_unstable_by_key(|(_, trailer)| trailer.sequence);
        (covered, new)
    }

    /// Adds what a new block's footer lists and the log does not void.
    async fn add_block(&mut self, block: u32, trailer: &Trailer, void: &Void, found: &mut Found) {
        let geometry = self.superblock.geometry;
        let footer_len = trailer.footer_len();
        let Ok(block_bytes) = usize::try_from(geometry.block_bytes) else {
            return;
        };
        if footer_len > block_bytes {
            return;
        }
        let len = footer_len.next_multiple_of(SECTOR_BYTES);
        let offset = geometry.block_offset(block) + (block_bytes - len) as u64;
        self.out.bytes_read += len as u64;
        let Ok(buffer) = self.device.read(offset, len).await else {
            return;
        };
        let entries = buffer
            .bytes(len - footer_len, footer_len)
            .and_then(|bytes| decode_entries(self.superblock.cache_id, trailer, bytes, block_bytes));
        let Some(entries) = entries else {
            tracing::warn!("the footer of block {block} is damaged: its objects are lost");
            return;
        };
        found
            .sealed
            .push((block, trailer.sequence, footer_len as u32, trailer.expiry_max));
        for entry in entries {
            self.mappings.make_room();
            self.note_version(found, entry.version);
            if void.is_void(entry.hash, entry.version) || is_expired(entry.expiry, self.now) {
                continue;
            }
            let location = Location {
                offset: geometry.block_offset(block) + u64::from(entry.offset),
                len: entry.len,
            };
            if self
                .mappings
                .with(entry.hash, |shard| shard.set(entry.hash, location))
                .is_err()
            {
                self.out.no_memory += 1;
            }
        }
    }

    fn note_version(&self, found: &mut Found, version: u64) {
        let epoch = u32::try_from(version >> EPOCH_SHIFT).unwrap_or(u32::MAX - 1);
        found.epoch = found.epoch.max(epoch);
    }
}

/// A checkpoint, read back; its mappings are in the shards already.
#[derive(Default)]
struct Snapshot {
    head: Head,
    /// Log position at each shard's dump.
    positions: Vec<u64>,
    blocks: Vec<u32>,
}
