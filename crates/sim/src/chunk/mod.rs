//! Replays of a volume's chunks through a deduplicating cache: the store that serves, and models of others to compare with.
//!
//! The cache stands before a volume, write-through: a write enters, and so does what a read has missed. Nothing is in DRAM but indexes.

mod austere;
mod content;
mod full;
mod lists;
mod production;

use crate::error::SimError;
use crate::flash::drive;
use crate::objects::ObjectNumbers;
use crate::prepare::ReplayProgress;
use crate::rules::Unit;
use crate::size::CacheSize;
use pumice_blocks::{Geometry, OpenError};
use pumice_trace::{BATCH_REQUESTS, Op, Request, Trace};
use serde::Serialize;
use std::str::FromStr;
use std::time::Instant;

/// Bytes of a chunk where a trace has no sizes.
const CHUNK_BYTES: u32 = 32 << 10;
/// The shortest chunk: a sector.
const CHUNK_BYTES_MIN: u32 = 512;
/// A block has room for so many chunks at least.
const BLOCK_CHUNKS_MIN: u64 = 4;
/// Contents of a chunk's room, as they compress to a half.
const CONTENTS_PER_CHUNK: u64 = 2;

/// A cache of chunks to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkCacheName {
    /// The store that serves.
    Pumice,
    /// AustereCache: buckets, a sketch, places by hash.
    Austere,
    /// CacheDedup's D-LRU.
    DLru,
    /// CacheDedup's D-ARC.
    DArc,
    /// D-LRU with compression.
    CdLru,
    /// D-ARC with compression.
    CdArc,
}

impl ChunkCacheName {
    const ALL: [(&str, Self); 6] = [
        ("pumice", Self::Pumice),
        ("austere", Self::Austere),
        ("d-lru", Self::DLru),
        ("d-arc", Self::DArc),
        ("cd-lru", Self::CdLru),
        ("cd-arc", Self::CdArc),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, cache)| *cache == self)
            .map_or("", |(name, _)| name)
    }

    /// Whether it is one of CacheDedup's.
    pub fn has_full_index(self) -> bool {
        !matches!(self, Self::Pumice | Self::Austere)
    }
}

impl FromStr for ChunkCacheName {
    type Err = SimError;

    /// # Errors
    /// [`SimError::ChunkCache`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, cache)| *cache)
            .ok_or_else(|| SimError::ChunkCache {
                given: text.to_owned(),
                known: Self::ALL.map(|(name, _)| name).join(", "),
            })
    }
}

/// How many addresses a cache may map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Addresses {
    /// So many.
    Count(u64),
    /// So many for each chunk that the cache device has room for without compression: `4d`.
    PerChunk(f64),
}

impl Addresses {
    fn of(self, chunks: u64) -> u64 {
        match self {
            Addresses::Count(count) => count,
            Addresses::PerChunk(times) => (chunks as f64 * times) as u64,
        }
    }
}

impl FromStr for Addresses {
    type Err = SimError;

    /// # Errors
    /// [`SimError::Addresses`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        let parsed = match text.strip_suffix('d') {
            Some(times) => times
                .parse()
                .ok()
                .filter(|times: &f64| *times > 0.0 && *times <= 1e6)
                .map(Addresses::PerChunk),
            None => text.parse().ok().filter(|count| *count > 0).map(Addresses::Count),
        };
        parsed.ok_or_else(|| SimError::Addresses(text.to_owned()))
    }
}

/// What to replay.
#[derive(Debug, Clone)]
pub struct ChunkOptions {
    /// The cache.
    pub cache: ChunkCacheName,
    /// Addresses that it may map.
    pub addresses: Addresses,
    /// The whole cache device; a share is of the trace's distinct addresses.
    pub size: CacheSize,
    /// Bytes of a chunk; `None`: those of the trace's requests, else 32 KiB.
    pub chunk_bytes: Option<u32>,
    /// DRAM of a full index: what its addresses leave is for fingerprints. `None`: as many as the device has room for.
    pub dram_bytes: Option<u64>,
    /// Bytes of a block; `None` follows from the size.
    pub block_bytes: Option<u64>,
    /// Blocks of an erase unit of the simulated drive, a tenth of which is its own.
    pub superblock_blocks: u32,
}

/// A volume, and the room before it.
#[derive(Clone, Copy)]
struct Volume {
    chunks: u64,
    chunk_bytes: u32,
    cache_bytes: u64,
    mappings: u64,
}

impl Volume {
    /// Fingerprints that an index of it has.
    fn fingerprints(&self, is_compressed: bool) -> u64 {
        let chunks = self.cache_bytes / u64::from(self.chunk_bytes);
        if is_compressed {
            chunks * CONTENTS_PER_CHUNK
        } else {
            chunks
        }
    }
}

/// A chunk, numbered in order of first use, and what it holds.
#[derive(Clone, Copy)]
struct Cached {
    address: u32,
    content: u64,
}

/// What a cache has counted.
#[derive(Clone, Copy, Default)]
struct Tally {
    device_bytes: u64,
    compressed_new_bytes: u64,
    new_contents: u64,
    duplicates: u64,
    refused: u64,
    mapped: u64,
    contents: u64,
    address_dram_bytes: u64,
    content_dram_bytes: u64,
    device_write_amplification: Option<f64>,
    store: Option<pumice_chunk::store::ChunkCounts>,
}

impl Tally {
    fn stored(&mut self, compressed: u32) {
        self.new_contents += 1;
        self.compressed_new_bytes += u64::from(compressed);
    }
}

trait ChunkCache {
    /// A read; whether the cache had it. What it had not enters.
    fn read(&mut self, cached: Cached) -> Result<bool, SimError>;
    fn write(&mut self, cached: Cached) -> Result<(), SimError>;
    fn finish(&mut self) -> Result<Tally, SimError>;
}

/// The figures of a replay of chunks. Field names and their order are a contract; a field that does not apply is null.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChunkReport {
    /// The trace's name as given.
    pub trace: String,
    /// The cache.
    pub cache: &'static str,
    /// Requests.
    pub requests: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Reads that the cache served.
    pub hits: u64,
    /// Hits / reads; null without reads.
    pub hit_ratio: Option<f64>,
    /// Writes.
    pub writes: u64,
    /// Writes of a content that some request before had.
    pub writes_of_known: u64,
    /// Writes of the content that the chunk had already.
    pub writes_in_place: u64,
    /// Writes and fills of a content that the cache had.
    pub duplicates: u64,
    /// Writes and fills of one that it had not, and stored.
    pub new_contents: u64,
    /// Writes and fills that did not enter.
    pub refused: u64,
    /// Distinct addresses of the trace.
    pub distinct_addresses: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of the whole cache device.
    pub cache_bytes: u64,
    /// Addresses that the cache may map.
    pub addresses: u64,
    /// Bytes written to the cache device, metadata included.
    pub device_bytes: u64,
    /// Compressed bytes of the contents that were stored, without headers.
    pub compressed_new_bytes: u64,
    /// Bytes that the drive's flash writes / bytes sent to it; null where places are not modelled.
    pub device_write_amplification: Option<f64>,
    /// Bytes written to the device × its amplification / compressed new bytes.
    pub written_per_new_byte: Option<f64>,
    /// 1 - bytes written to the device / bytes of writes and fills; null without any.
    pub write_reduction: Option<f64>,
    /// Addresses that are mapped at the end.
    pub mapped: u64,
    /// Distinct contents at the end.
    pub contents: u64,
    /// DRAM of the index of addresses.
    pub address_dram_bytes: u64,
    /// DRAM of the index of contents, and of where they are.
    pub content_dram_bytes: u64,
    /// Contents that the store has moved; null for models.
    pub moved_contents: Option<u64>,
    /// Their bytes.
    pub moved_bytes: Option<u64>,
    /// Mappings that a full bucket of the store has evicted.
    pub evicted_mappings: Option<u64>,
    /// Mappings that the store's reclaims have dropped.
    pub reclaimed_mappings: Option<u64>,
    /// Blocks of the device.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Wall time, first pass included.
    pub elapsed_seconds: f64,
}

/// What a first pass over a trace finds.
struct Surveyed {
    numbers: ObjectNumbers,
    chunk_bytes: u32,
}

fn survey(
    trace: &Trace,
    options: &ChunkOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Surveyed, SimError> {
    let mut reader = trace.open()?;
    let (mut batch, mut numbers) = (Vec::with_capacity(BATCH_REQUESTS), ObjectNumbers::default());
    let mut sized = None;
    while reader.next_batch(&mut batch)? {
        for request in &batch {
            number(&mut numbers, trace, request)?;
            if request.content.is_none() {
                return Err(SimError::NoContents(trace.name().to_owned()));
            }
            sized = sized.or(request.size);
        }
        progress(ReplayProgress {
            pass: 1,
            passes: 2,
            progress: reader.progress(),
        });
    }
    let recorded = sized.and_then(|bytes| u32::try_from(bytes).ok());
    let chunk_bytes = match (options.chunk_bytes, recorded) {
        (Some(given), Some(recorded)) if given != recorded => {
            return Err(SimError::ChunkBytes {
                trace: trace.name().to_owned(),
                recorded,
            });
        }
        (given, recorded) => given.or(recorded).unwrap_or(CHUNK_BYTES),
    };
    if chunk_bytes < CHUNK_BYTES_MIN {
        return Err(SimError::ShortChunks(chunk_bytes));
    }
    Ok(Surveyed { numbers, chunk_bytes })
}

fn number(numbers: &mut ObjectNumbers, trace: &Trace, request: &Request) -> Result<u32, SimError> {
    let found = numbers.number(request.key);
    found
        .map(|(number, _)| number)
        .ok_or_else(|| SimError::TooManyObjects {
            trace: trace.name().to_owned(),
            limit: pumice_policy::MAX_OBJECTS,
        })
}

/// Replays `trace` through a cache of chunks, empty at first. `progress` is called now and then.
///
/// # Errors
/// [`SimError`]: a trace without contents, sizes that cannot be, a trace that cannot be read twice.
pub fn replay_chunks(
    trace: &Trace,
    options: &ChunkOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<ChunkReport, SimError> {
    let start = Instant::now();
    if !trace.is_rereadable() {
        return Err(SimError::ReadOnce {
            trace: trace.name().to_owned(),
            reason: "a cache of chunks",
        });
    }
    let Surveyed {
        mut numbers,
        chunk_bytes,
    } = survey(trace, options, progress)?;
    let chunks = u64::from(numbers.len());
    let footprint = chunks * u64::from(chunk_bytes);
    let cache_bytes = options.size.resolve(Unit::Bytes, footprint, trace.name())? / 4096 * 4096;
    let volume = Volume {
        chunks,
        chunk_bytes,
        cache_bytes,
        mappings: options
            .addresses
            .of(cache_bytes / u64::from(chunk_bytes))
            .clamp(1, chunks.max(1)),
    };
    let geometry = geometry(&volume, options)?;
    let mut cache = open(&volume, &geometry, options)?;
    let mut report = ChunkReport {
        trace: trace.name().to_owned(),
        cache: options.cache.name(),
        distinct_addresses: chunks,
        chunk_bytes,
        cache_bytes,
        addresses: volume.mappings,
        blocks: geometry.blocks,
        block_bytes: geometry.block_bytes,
        ..ChunkReport::default()
    };
    let (mut held, mut seen) = (vec![None; chunks as usize], hashbrown::HashSet::new());
    let mut reader = trace.open()?;
    let mut batch = Vec::with_capacity(BATCH_REQUESTS);
    while reader.next_batch(&mut batch)? {
        for request in &batch {
            let address = number(&mut numbers, trace, request)?;
            let content = request
                .content
                .ok_or_else(|| SimError::NoContents(trace.name().to_owned()))?;
            let cached = Cached { address, content };
            report.requests += 1;
            // A file may have changed since the first pass.
            let held = held
                .get_mut(address as usize)
                .ok_or_else(|| SimError::Changed(trace.name().to_owned()))?;
            let is_known = !seen.insert(content);
            match request.op {
                Op::Get => {
                    report.reads += 1;
                    report.hits += u64::from(cache.read(cached)?);
                }
                Op::Set => {
                    report.writes += 1;
                    report.writes_of_known += u64::from(is_known);
                    report.writes_in_place += u64::from(*held == Some(content));
                    cache.write(cached)?;
                }
                Op::Delete => {}
            }
            *held = Some(content);
        }
        progress(ReplayProgress {
            pass: 2,
            passes: 2,
            progress: reader.progress(),
        });
    }
    report.add(&cache.finish()?);
    report.elapsed_seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

impl ChunkReport {
    fn add(&mut self, tally: &Tally) {
        let ratio = |part: f64, whole: u64| (whole > 0).then(|| part / whole as f64);
        let entered = (self.writes + self.reads - self.hits) * u64::from(self.chunk_bytes);
        let written = tally.device_bytes as f64;
        self.hit_ratio = ratio(self.hits as f64, self.reads);
        self.duplicates = tally.duplicates;
        self.new_contents = tally.new_contents;
        self.refused = tally.refused;
        self.device_bytes = tally.device_bytes;
        self.compressed_new_bytes = tally.compressed_new_bytes;
        self.device_write_amplification = tally.device_write_amplification;
        self.written_per_new_byte = (tally.device_write_amplification)
            .and_then(|times| ratio(written * times, tally.compressed_new_bytes));
        self.write_reduction = ratio(written, entered).map(|written| 1.0 - written);
        self.mapped = tally.mapped;
        self.contents = tally.contents;
        self.address_dram_bytes = tally.address_dram_bytes;
        self.content_dram_bytes = tally.content_dram_bytes;
        self.moved_contents = tally.store.map(|store| store.moved_contents);
        self.moved_bytes = tally.store.map(|store| store.moved_flash_bytes);
        self.evicted_mappings = tally.store.map(|store| store.evicted_mappings);
        self.reclaimed_mappings = tally.store.map(|store| store.reclaimed_mappings);
    }
}

fn geometry(volume: &Volume, options: &ChunkOptions) -> Result<Geometry, SimError> {
    let min = (BLOCK_CHUNKS_MIN * u64::from(volume.chunk_bytes)).max(64 << 10);
    let block_bytes = options
        .block_bytes
        .unwrap_or_else(|| Geometry::block_bytes_for(volume.cache_bytes, min, 1, u64::MAX));
    Geometry::plan(volume.cache_bytes, block_bytes)
        .map_err(|error| SimError::Open(OpenError::Geometry(error)))
}

fn open(
    volume: &Volume,
    geometry: &Geometry,
    options: &ChunkOptions,
) -> Result<Box<dyn ChunkCache>, SimError> {
    let drive = || {
        drive(
            geometry.capacity,
            geometry.block_bytes,
            options.superblock_blocks,
            false,
        )
    };
    let full = |is_arc: bool, is_compressed: bool| {
        let contents_max = (options.dram_bytes).map(|dram| full::fingerprints_in(dram, volume.mappings));
        let drive = if is_compressed { None } else { Some(drive()?) };
        let cache = full::FullIndex::new(*volume, is_arc, is_compressed, contents_max, drive);
        Ok::<_, SimError>(Box::new(cache) as Box<dyn ChunkCache>)
    };
    match options.cache {
        ChunkCacheName::Pumice => {
            let store = production::Production::new(*volume, geometry, options.superblock_blocks)?;
            Ok(Box::new(store))
        }
        ChunkCacheName::Austere => Ok(Box::new(austere::Austere::new(*volume, drive()?))),
        ChunkCacheName::DLru => full(false, false),
        ChunkCacheName::DArc => full(true, false),
        ChunkCacheName::CdLru => full(false, true),
        ChunkCacheName::CdArc => full(true, true),
    }
}
