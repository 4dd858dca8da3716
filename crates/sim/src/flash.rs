//! Replays under a flash layout: the very engine that serves, on a simulated or a real device.
//!
//! Requests run one after the other, and all background work that a request made due runs to its end before the next.
//! So nothing depends on how long a device takes: a simulated device and a real file give the same counts.

use std::fmt;
use std::future::Future;
use std::iter::zip;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pumice::{
    BooksSnapshot, CacheOptions, Cx, FlashWrite, Found, IndexOptions, LargeLookup, Lookup, Maker, Meta,
    ObjectCache, RejectReason, Stats,
};
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::{Geometry, OpenError};
use pumice_device::{
    CountingDevice, Device, DeviceCounters, DeviceCounts, FileDevice, FileOptions, FileShared, Payload,
    Profile, RealTime, SparseDevice, SparseMedium, Throttle, ThrottledDevice, Timeline, VirtualTime,
};
use pumice_flash::{LayoutName, LayoutOptions, STORE};
use pumice_trace::{BATCH_REQUESTS, Op, Trace};
use pumice_world::{Executor, ManualClock, Random};

use crate::accesses::Access;
use crate::counts::Counts;
use crate::error::SimError;
use crate::ftl::{EraseSpread, Ftl, FtlCounts, FtlDevice, FtlOptions};
use crate::prepare::{Prepared, ReplayProgress, prepare};
use crate::report::{CascadeReport, Report, Settings};
use crate::rules::{MissingSizes, OpsMode, ReplayRules, Unit};
use crate::size::CacheSize;
use crate::spared::Spared;

/// Block buffers: more than any layout fills at a time, so that none is waited for.
const BUFFERS: usize = 160;
/// Bytes of a block by default: the smallest, so that small devices have a queue worth its name.
const BLOCK_BYTES_MIN: u64 = 64 << 10;
/// The share of a simulated drive that is the flash tier.
const UTILISATION: f64 = 0.9;
/// The longest value that a replay makes up, in bytes.
const CONTENT_MAX: u64 = 1 << 30;
/// Operations that a replay's ring holds.
const RING_ENTRIES: u32 = 64;

/// What the flash tier stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayDevice {
    /// A simulated device: headers, footers, log and checkpoints are real bytes, values only have a length.
    Sim,
    /// A file or block device; what a replay left there is erased, anything else is refused.
    Path(PathBuf),
}

/// What a server makes of a flash tier of so many bytes.
#[derive(Clone)]
pub struct AsServed(pub Arc<dyn Fn(u64) -> Result<CacheOptions, String>>);

impl fmt::Debug for AsServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsServed")
    }
}

/// What to replay under a flash layout.
#[derive(Debug, Clone)]
pub struct FlashOptions {
    /// The layout, its policy, and what steers it.
    pub layout: LayoutOptions,
    /// Bytes of flash: of the whole device, log and footers included.
    pub size: CacheSize,
    /// Bytes of DRAM for items and index; 0: no DRAM tier, and an index as large as it needs to be.
    pub dram_bytes: u64,
    /// Where mappings are.
    pub index: IndexOptions,
    /// Bytes of a block; `None` follows from the size.
    pub block_bytes: Option<u64>,
    /// Where it is given, the cache is what a server makes of the flash tier, and `layout`, `dram_bytes`, `index` and `block_bytes` are
    /// not looked at.
    pub served: Option<AsServed>,
    /// What the flash tier stands on.
    pub device: ReplayDevice,
    /// Erase whatever is on a file or block device.
    pub reformat: bool,
    /// Under the simulated device a drive whose erase unit is so many blocks, with a tenth of its flash for itself; 0: none, and
    /// no device write amplification.
    pub superblock_blocks: u32,
    /// That drive is told of blocks that are free (TRIM).
    pub trim: bool,
    /// The kind of device that it is to be as slow as. A simulated one takes no real time for it, and the report has what it would
    /// have taken.
    pub throttle: Option<Profile>,
    /// What requests mean. Objects without sizes must have been given one: flash is measured in bytes.
    pub rules: ReplayRules,
}

/// Replays `trace` through a flash layout, empty at first. `progress` is called now and then.
///
/// # Errors
/// [`SimError`]: an unknown layout or policy, a size below the smallest possible device (which is named), a trace or
/// device that cannot be read.
pub fn replay_flash(
    trace: &Trace,
    options: &FlashOptions,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    debug_assert!(!matches!(options.rules.missing_sizes, MissingSizes::Unit));
    let start = Instant::now();
    let prepared = prepare(trace, &options.rules, &options.size, false, progress)?;
    let setup = Setup::of(options, prepared.capacity)?;
    match &options.device {
        ReplayDevice::Sim => {
            let blocks_start = setup.geometry.block_offset(0);
            let medium = SparseMedium::with_grid(setup.geometry.capacity, blocks_start);
            let device = SparseDevice::new(Arc::new(medium));
            if options.superblock_blocks == 0 {
                let stage = Stage::of(device, setup);
                return throttled(trace, options, prepared, stage, start, progress);
            }
            let Geometry {
                capacity,
                block_bytes,
                ..
            } = setup.geometry;
            let drive = drive(capacity, block_bytes, options.superblock_blocks, options.trim)?;
            let drive = Arc::new(Mutex::new(drive));
            let device = FtlDevice::new(device, Arc::clone(&drive)).map_err(SimError::Ftl)?;
            let stage = Stage {
                drive: Some(drive),
                ..Stage::of(device, setup)
            };
            throttled(trace, options, prepared, stage, start, progress)
        }
        ReplayDevice::Path(path) => {
            let open = FileOptions {
                size: Some(setup.geometry.capacity),
                ..FileOptions::default()
            };
            if !options.reformat {
                refuse_others(path)?;
            }
            let shared = FileShared::open(path, &open).map_err(SimError::File)?;
            let device =
                FileDevice::new(Arc::new(shared), RING_ENTRIES).map_err(|source| SimError::DeviceIo {
                    what: "opening the device",
                    source,
                })?;
            // One filler serves all values; each is cut to its length.
            let filler = filler();
            let stage = Stage {
                filler: &filler,
                ..Stage::of(device, setup)
            };
            throttled(trace, options, prepared, stage, start, progress)
        }
    }
}

/// Refuses a device that holds anything but what a replay left, and changes nothing.
fn refuse_others(path: &Path) -> Result<(), SimError> {
    let is_empty = std::fs::metadata(path).map_or(true, |meta| meta.is_file() && meta.len() == 0);
    if is_empty {
        return Ok(());
    }
    let as_it_is = FileOptions {
        preallocate: false,
        create: false,
        ..FileOptions::default()
    };
    let shared = FileShared::open(path, &as_it_is).map_err(SimError::File)?;
    let device = FileDevice::new(Arc::new(shared), 2).map_err(|source| SimError::DeviceIo {
        what: "opening the device",
        source,
    })?;
    let found = read_superblock(&device, STORE).map_err(SimError::Open)?;
    found.map_or(Ok(()), |superblock| {
        check_maker(&superblock, Maker::Replay).map_err(SimError::Open)
    })
}

/// Replays on a device that is as slow as was asked for.
fn throttled<D: Device + Clone>(
    trace: &Trace,
    options: &FlashOptions,
    prepared: Prepared<'_>,
    stage: Stage<'_, D>,
    start: Instant,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    let Some(profile) = &options.throttle else {
        return replay(trace, options, prepared, stage, start, progress);
    };
    let time: Option<Arc<dyn Timeline>> = match options.device {
        ReplayDevice::Sim => Some(Arc::new(VirtualTime::new())),
        ReplayDevice::Path(_) => None,
    };
    let timeline = time.clone().unwrap_or_else(|| Arc::new(RealTime::new()));
    let throttle = Arc::new(Throttle::new(profile, timeline));
    let stage = Stage {
        device: ThrottledDevice::new(stage.device, throttle),
        drive: stage.drive,
        filler: stage.filler,
        time,
        setup: stage.setup,
    };
    replay(trace, options, prepared, stage, start, progress)
}

fn whole_sectors(bytes: u64) -> u64 {
    bytes / 4096 * 4096
}

/// How the cache is opened, and how the flash is divided.
#[derive(Clone, Copy)]
struct Setup {
    cache: CacheOptions,
    geometry: Geometry,
}

impl Setup {
    /// # Errors
    /// Too little flash, before a file is made of it; what a server would say.
    fn of(options: &FlashOptions, capacity: u64) -> Result<Self, SimError> {
        let capacity = whole_sectors(capacity);
        let cache = match &options.served {
            Some(AsServed(made)) => made(capacity).map_err(SimError::Served)?,
            None => CacheOptions {
                dram_bytes: usize::try_from(options.dram_bytes).unwrap_or(usize::MAX),
                block_bytes: options.block_bytes,
                buffers_max: BUFFERS,
                layout: options.layout,
                index: options.index,
                item_bytes_max: usize::MAX,
                ..CacheOptions::default()
            },
        };
        let block_bytes = cache
            .block_bytes
            .unwrap_or_else(|| Geometry::block_bytes_for(capacity, BLOCK_BYTES_MIN, 1, u64::MAX));
        let geometry = Geometry::plan(capacity, block_bytes)
            .map_err(|error| SimError::Open(OpenError::Geometry(error)))?;
        // Nothing larger than the device can ever be whole on it, and half of it leaves room for what comes meanwhile. On a file an
        // object has content, which is in memory.
        let mut largest = u64::from(geometry.blocks) * geometry.block_bytes / 2;
        if matches!(options.device, ReplayDevice::Path(_)) {
            largest = largest.min(CONTENT_MAX);
        }
        let largest = usize::try_from(largest).unwrap_or(usize::MAX);
        let cache = CacheOptions {
            block_bytes: Some(block_bytes),
            reformat: true,
            lockstep: true,
            item_bytes_max: cache.item_bytes_max.min(largest),
            ..cache
        };
        Ok(Self { cache, geometry })
    }
}

/// A drive of which a device of `capacity` bytes is nine tenths, or less if it is small.
pub(crate) fn drive(
    capacity: u64,
    block_bytes: u64,
    superblock_blocks: u32,
    trim: bool,
) -> Result<Ftl, SimError> {
    let ftl = (FtlOptions {
        // As drives do: what is copied has lived for long, what the host writes has not. It also keeps what the drive does by
        // itself from shifting what the host has aligned.
        separate_copies: true,
        trim,
        ..FtlOptions::at_utilisation(capacity, UTILISATION, block_bytes, superblock_blocks)
    })
    .with_least_spare();
    Ftl::new(ftl).map_err(SimError::Ftl)
}

/// The content of all values on a real device: 16 MiB that do not compress to nothing.
fn filler() -> Vec<u8> {
    let mut random = Random(1);
    let mut out = Vec::with_capacity(16 << 20);
    while out.len() < 16 << 20 {
        out.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    out
}

/// The engine under replay, with its executor.
struct Replay<D: Device + Clone> {
    executor: Executor,
    cx: Cx<D>,
    cache: ObjectCache<D>,
}

impl<D: Device + Clone> Replay<D> {
    fn open(device: D, cache_options: CacheOptions) -> Result<Self, SimError> {
        let executor = Executor::new();
        let cx = Cx::new(device, Arc::new(ManualClock::new(1)), Rc::new(executor.spawner()));
        let cache_options = CacheOptions {
            maker: Maker::Replay,
            ..cache_options
        };
        let (cache, _) = executor
            .block_on(ObjectCache::open(&cx, cache_options), park(&cx.device))
            .map_err(|source| SimError::DeviceIo {
                what: "opening the cache",
                source,
            })?
            .map_err(SimError::Open)?;
        Ok(Self { executor, cx, cache })
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, SimError> {
        let mut future = pin!(future);
        // On a simulated device most are done at once, and need no waker.
        let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(value) = first {
            return Ok(value);
        }
        self.executor
            .block_on(future, park(&self.cx.device))
            .map_err(|source| SimError::DeviceIo {
                what: "waiting for the device",
                source,
            })
    }

    fn settle(&self) -> Result<(), SimError> {
        self.executor
            .run_until_idle(park(&self.cx.device))
            .map_err(|source| SimError::DeviceIo {
                what: "waiting for the device",
                source,
            })
    }

    fn lookup(&self, key: &[u8]) -> Result<bool, SimError> {
        match self.cache.lookup(&self.cx, key) {
            Lookup::Hit(_) => Ok(true),
            Lookup::Miss => Ok(false),
            Lookup::Large(large) => self.read_large(key, large),
            Lookup::Flash(flash) => match self.block_on(self.cache.finish(&self.cx, key, flash))? {
                Found::Hit(_) => Ok(true),
                Found::Miss => Ok(false),
                Found::Large(large) => self.read_large(key, large),
            },
        }
    }

    fn read_large(&self, key: &[u8], large: LargeLookup<D::Buf>) -> Result<bool, SimError> {
        Ok(self
            .block_on(self.cache.read_large(&self.cx, key, large))?
            .is_some())
    }

    fn insert(&self, key: &[u8], value: Payload<'_>) -> Result<Result<u64, RejectReason>, SimError> {
        self.block_on(self.cache.store(&self.cx, key, value, Meta::default()))
    }
}

fn park<D: Device>(device: &D) -> impl FnMut() -> std::io::Result<()> + '_ {
    move || device.turn(true).map(|_| ())
}

/// What the device and the index did, counted around lookups.
#[derive(Default)]
struct Reads {
    hit_reads: u64,
    miss_reads: u64,
    /// Reads of which each had to wait for the one before, of hits.
    hit_rounds: u64,
}

/// What a replay runs on.
struct Stage<'a, D> {
    device: D,
    /// The simulated drive under it.
    drive: Option<Arc<Mutex<Ftl>>>,
    /// What values are made of; empty: they only have a length.
    filler: &'a [u8],
    /// The time that the device takes, where that is not the time that passes.
    time: Option<Arc<dyn Timeline>>,
    setup: Setup,
}

impl<D> Stage<'_, D> {
    fn of(device: D, setup: Setup) -> Self {
        Self {
            device,
            drive: None,
            filler: &[],
            time: None,
            setup,
        }
    }
}

fn replay<D: Device + Clone>(
    trace: &Trace,
    options: &FlashOptions,
    prepared: Prepared<'_>,
    stage: Stage<'_, D>,
    start: Instant,
    progress: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, SimError> {
    let Stage {
        device,
        drive,
        filler,
        time,
        setup,
    } = stage;
    let Setup { cache, geometry } = setup;
    let counters = Arc::new(DeviceCounters::new());
    let device = CountingDevice::new(device, Arc::clone(&counters));
    let Prepared {
        mut accesses,
        capacity,
        warmup,
        passes,
        ..
    } = prepared;
    let replay = Replay::open(device, cache)?;
    let mut counts = Counts::after(warmup);
    let mut reads = Reads::default();
    let snapshot = || Snapshot {
        stats: replay.cache.stats(),
        device: counters.snapshot(),
        device_ns: time.as_ref().map(|time| time.now_ns()),
        drive: drive.as_ref().map(|drive| {
            let drive = drive.lock().expect("nothing panics with it");
            (drive.snapshot(), drive.erases().to_vec())
        }),
    };
    let mut at_warmup = snapshot();
    let mut object_bytes = 0;
    let mut entries_resident: u128 = 0;
    let mut large = false;
    let is_large = |size: u64| size > pumice_flash::record_max(&geometry) - 64;
    // Where no object can be large, nobody asks which there were.
    let asks_for_objects = accesses.object_size().is_none_or(is_large);
    accesses.tell_objects_apart(asks_for_objects);
    let mut keys_seen: Vec<u64> = Vec::new();
    let mut long_value = Vec::new();
    let item_bytes_max = cache.item_bytes_max as u64;
    let mut spared = Spared::new(options.rules.ops);
    let mut batch: Vec<Access> = Vec::with_capacity(BATCH_REQUESTS);
    while accesses.next_batch(&mut batch)? {
        for access in &batch {
            if counts.requests_replayed == warmup {
                at_warmup = snapshot();
                reads = Reads::default();
            }
            counts.next_request();
            if asks_for_objects && access.object as usize == keys_seen.len() {
                keys_seen.push(access.key);
            }
            let key = access.key.to_le_bytes();
            let size = usize::try_from(access.size).unwrap_or(usize::MAX);
            large |= is_large(access.size);
            // One that is refused for its length has no content, however long a trace says it is.
            let value = if filler.is_empty() || access.size > item_bytes_max {
                Payload::Void(size)
            } else if size <= filler.len() {
                Payload::Bytes(&filler[..size])
            } else {
                if long_value.len() < size {
                    long_value = filler.iter().copied().cycle().take(size).collect();
                }
                Payload::Bytes(&long_value[..size])
            };
            let inserts = match (options.rules.ops, access.op) {
                (OpsMode::Lookup, _) | (_, Op::Get) => {
                    let before = replay.cache.device_reads();
                    let hit = replay.lookup(&key)?;
                    let after = replay.cache.device_reads();
                    let made = after.all() - before.all();
                    if hit {
                        reads.hit_rounds += after.rounds() - before.rounds();
                        reads.hit_reads += made;
                        spared.note_hit(access);
                    } else {
                        reads.miss_reads += made;
                    }
                    counts.lookup(hit, access.size);
                    !hit && access.fills
                }
                (_, Op::Set) => !spared.takes(access),
                (_, Op::Delete) => {
                    replay.block_on(replay.cache.delete(&replay.cx, &key))?;
                    false
                }
            };
            if inserts {
                match replay.insert(&key, value)? {
                    Ok(_) => {
                        object_bytes += access.size;
                        counts.inserted(access.size);
                    }
                    Err(_) => counts.rejected(),
                }
            }
            replay.settle()?;
            let (entries, bytes) = replay.cache.books().resident();
            if counts.requests_replayed == warmup + 1 {
                entries_resident = 0;
            }
            entries_resident += u128::from(entries);
            counts.resident(bytes);
        }
        progress(ReplayProgress {
            pass: passes,
            passes,
            progress: accesses.progress(),
        });
    }
    let at_end = snapshot();
    let objects_cached = if large {
        count_objects(&replay, &keys_seen)?
    } else {
        at_end.stats.resident_entries
    };
    let settings = settings(
        options,
        &setup,
        Settings::of(trace, &accesses, &options.rules, &options.size),
    );
    Ok(report(
        trace,
        &cache,
        settings,
        &Measured {
            counts,
            reads,
            at_warmup,
            at_end,
            bytes_beside_values: bytes_beside_values(&replay.cache.books(), object_bytes),
            entries_resident,
            objects_cached,
            capacity,
            start,
        },
    ))
}

/// Counts the objects that would hit: entries of large objects are slices, so the tables do not tell.
fn count_objects<D: Device + Clone>(replay: &Replay<D>, keys: &[u64]) -> Result<u64, SimError> {
    let mut found = 0;
    for key in keys {
        found += u64::from(replay.lookup(&key.to_le_bytes())?);
    }
    Ok(found)
}

/// What a record takes beside its value, in bytes, on average: header, key, padding.
fn bytes_beside_values(books: &BooksSnapshot, object_bytes: u64) -> f64 {
    let entries = books.offered.0 - books.rejected.0;
    let bytes = books.offered.1 - books.rejected.1;
    bytes.saturating_sub(object_bytes) as f64 / entries.max(1) as f64
}

/// What was counted up to some moment, beside requests.
struct Snapshot {
    stats: Stats,
    /// What passed to the device.
    device: DeviceCounts,
    /// What the device has taken, where that is not the time that passes.
    device_ns: Option<u64>,
    /// What the simulated drive did, and the erases of each of its superblocks.
    drive: Option<(FtlCounts, Vec<u32>)>,
}

struct Measured {
    counts: Counts,
    reads: Reads,
    at_warmup: Snapshot,
    at_end: Snapshot,
    bytes_beside_values: f64,
    /// Sum over the requests counted.
    entries_resident: u128,
    objects_cached: u64,
    capacity: u64,
    start: Instant,
}

/// Completes the settings that every layout has.
fn settings(options: &FlashOptions, setup: &Setup, common: Settings) -> Settings {
    let Setup { cache, geometry } = setup;
    let layout = &cache.layout;
    let has_drive = options.device == ReplayDevice::Sim && options.superblock_blocks > 0;
    let tier1 = if let IndexOptions::Cascade(cascade) = cache.index {
        Some(cascade.tier1_share)
    } else {
        None
    };
    Settings {
        alpha: (layout.layout == LayoutName::Ripq).then_some(layout.alpha),
        theta: matches!(layout.layout, LayoutName::Sipq | LayoutName::Ripq).then_some(layout.theta),
        tier1,
        max_object_bytes: Some(cache.item_bytes_max as u64),
        flash_write: (cache.dram_bytes > 0).then_some(match cache.flash_write {
            FlashWrite::Insertion => "insertion",
            FlashWrite::Eviction => "eviction",
        }),
        block_bytes: Some(geometry.block_bytes),
        blocks: Some(geometry.blocks),
        buffers: Some(cache.buffers_max),
        device: Some(match &options.device {
            ReplayDevice::Sim => "sim".to_owned(),
            ReplayDevice::Path(path) => path.display().to_string(),
        }),
        superblock: Some(options.superblock_blocks),
        trim: has_drive.then_some(options.trim),
        throttle: options.throttle.map(|profile| profile.to_string()),
        ..common
    }
}

fn report(trace: &Trace, cache: &CacheOptions, settings: Settings, measured: &Measured) -> Report {
    let Measured {
        counts,
        reads,
        at_warmup:
            Snapshot {
                stats: at_warmup,
                device: before,
                ..
            },
        at_end: Snapshot {
            stats, device: after, ..
        },
        bytes_beside_values,
        entries_resident,
        objects_cached,
        capacity,
        start,
    } = measured;
    let (earlier, later) = (&measured.at_warmup, &measured.at_end);
    let drive = later.drive.as_ref().zip(earlier.drive.as_ref());
    let drive = drive.map(|((now, erases), (before, erases_before))| {
        let erases: Vec<u32> = zip(erases, erases_before)
            .map(|(now, before)| now - before)
            .collect();
        (*now - *before, EraseSpread::of(&erases))
    });
    let device_ns = later.device_ns.zip(earlier.device_ns);
    let elapsed = start.elapsed().as_secs_f64();
    let inserted = stats.flash.appended_bytes - at_warmup.flash.appended_bytes;
    let written = stats.blocks.written_bytes - at_warmup.blocks.written_bytes;
    let index_bytes = |stats: &Stats| stats.blocks.checkpoint_bytes + stats.flash.mapping_bytes;
    let index_written = index_bytes(stats) - index_bytes(at_warmup);
    let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
    let application_amplification = ratio(written, inserted);
    let device_amplification = drive
        .as_ref()
        .and_then(|(counts, _)| counts.device_write_amplification());
    Report {
        trace: trace.name().to_owned(),
        requests: counts.requests(),
        layout: cache.layout.layout.name().into(),
        policy: cache.layout.policy.name(),
        index: Some(cache.index.kind().name().into()),
        unit: Unit::Bytes.name(),
        flash_bytes: Some(*capacity),
        dram_bytes: cache.dram_bytes as u64,
        object_hit_ratio: counts.object_hit_ratio(),
        byte_hit_ratio: counts.byte_hit_ratio(),
        objects_cached: *objects_cached,
        object_bytes_resident_mean: counts.bytes_resident_mean().map(|bytes| {
            let entries = *entries_resident as f64 / counts.requests() as f64;
            bytes - entries * bytes_beside_values
        }),
        objects_rejected: counts.objects_rejected,
        bytes_inserted: Some(inserted),
        bytes_written_host: Some(written),
        app_write_amplification: application_amplification,
        device_write_amplification: device_amplification,
        combined_write_amplification: application_amplification
            .zip(device_amplification)
            .map(|(application, device)| application * device),
        index_dram_bytes: Some(stats.index_dram_bytes),
        index_bytes_written: Some(index_written),
        flash_reads_per_hit: ratio(reads.hit_reads, counts.hits),
        flash_reads_per_miss: ratio(reads.miss_reads, counts.lookups - counts.hits),
        flash_rounds_per_hit: ratio(reads.hit_rounds, counts.hits),
        cascade: matches!(cache.index, IndexOptions::Cascade(_)).then(|| CascadeReport::of(stats, at_warmup)),
        device_seconds: device_ns.map(|(now, before)| (now - before) as f64 / 1e9),
        erases_min: drive.as_ref().map(|(_, spread)| spread.min),
        erases_mean: drive.as_ref().map(|(_, spread)| spread.mean),
        erases_max: drive.as_ref().map(|(_, spread)| spread.max),
        device_reads: Some(after.reads - before.reads),
        device_read_bytes: Some(after.read_bytes - before.read_bytes),
        device_writes: Some(after.writes - before.writes),
        device_written_bytes: Some(after.written_bytes - before.written_bytes),
        elapsed_seconds: elapsed,
        requests_per_second: counts.requests_replayed as f64 / elapsed.max(1e-9),
        settings,
        ..Report::default()
    }
}
