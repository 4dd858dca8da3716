//! Replays under a flash layout: the very engine that serves, on a simulated or a real device.
//!
//! Requests run one after the other, and all background work that a request made due runs to its end before the next.
//! So nothing depends on how long a device takes: a simulated device and a real file give the same counts.
//!
//! A replay that tells response times ([`Timed`]) does not wait for that work: as in a server it goes on while requests do, in virtual time.

mod measured;
mod response;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pumice::{
    AdmissionOptions, BooksSnapshot, CacheOptions, Cx, DeviceReads, FlashWrite, IndexOptions, Lookup, Maker,
    Meta, ObjectCache, RejectReason,
};
use pumice_blocks::open::{check_maker, read_superblock};
use pumice_blocks::{Geometry, OpenError};
use pumice_device::{
    CountingDevice, Device, DeviceCounters, FileDevice, FileOptions, FileShared, Payload, Profile, RealTime,
    SparseDevice, SparseMedium, Throttle, ThrottledDevice, Timeline, VirtualTime,
};
use pumice_flash::{LayoutOptions, STORE};
use pumice_trace::{BATCH_REQUESTS, OBJECT_BYTES, Op, Trace};
use pumice_world::{Executor, ManualClock, Random};

use crate::accesses::Access;
use crate::counts::Counts;
use crate::error::SimError;
use crate::ftl::{Ftl, FtlDevice, FtlOptions};
use crate::prepare::{Prepared, ReplayProgress, prepare};
use crate::report::{Report, Settings};
use crate::rules::{MissingSizes, OpsMode, ReplayRules};
use crate::size::CacheSize;
use crate::spared::Spared;
use measured::{Measured, Snapshot, report, settings};
use response::Stopwatch;
pub use response::Timed;

/// Block buffers: more than any layout fills at a time, so that none is waited for.
const BUFFERS: usize = 160;
/// Bytes of a block by default: the smallest, so that small devices have a queue worth its name.
const BLOCK_BYTES_MIN: u64 = 64 << 10;
/// The share of a simulated drive that is the flash tier.
const UTILISATION: f64 = 0.9;
/// The longest value that a replay makes up, in bytes.
const CONTENT_MAX: u64 = 1 << 30;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
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
    /// When objects go to flash.
    pub flash_write: FlashWrite,
    /// Which ones do.
    pub admission: AdmissionOptions,
    /// Where mappings are.
    pub index: IndexOptions,
    /// Bytes of a block; `None` follows from the size.
    pub block_bytes: Option<u64>,
    /// Where it is given, the cache is what a server makes of the flash tier, and `layout`, `dram_bytes`, `flash_write`, `admission`, `index` and `block_bytes`
    /// are not looked at.
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
    /// Tell how long gets take. Needs `throttle`, and the simulated device.
    pub timed: Option<Timed>,
    /// What requests mean. Objects without sizes must have been given one: flash is measured in bytes.
    pub rules: ReplayRules,
}

impl FlashOptions {
    /// A cache of a size, in all else what a replay has where nothing is said: layout `ripq`, all mappings in DRAM and nothing else there, no
    /// drive under the simulated device. Objects without sizes have [`OBJECT_BYTES`].
    pub fn of(size: CacheSize) -> Self {
        Self {
            layout: LayoutOptions::default(),
            size,
            dram_bytes: 0,
            flash_write: FlashWrite::default(),
            admission: AdmissionOptions::default(),
            index: IndexOptions::Full,
            block_bytes: None,
            served: None,
            device: ReplayDevice::Sim,
            reformat: false,
            superblock_blocks: 0,
            trim: false,
            throttle: None,
            timed: None,
            rules: ReplayRules {
                missing_sizes: MissingSizes::Fixed(OBJECT_BYTES),
                ..ReplayRules::default()
            },
        }
    }
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
    if setup.cache.admission.budget.is_some() && !passes_time(trace)? {
        return Err(SimError::NoTimes(trace.name().to_owned()));
    }
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
    let device = ThrottledDevice::new(stage.device, throttle);
    let stage = Stage {
        stopwatch: (time.as_ref().zip(options.timed))
            .map(|(time, timed)| Stopwatch::new(timed, Arc::clone(time), device.delays().clone())),
        device,
        drive: stage.drive,
        filler: stage.filler,
        time,
        setup: stage.setup,
    };
    replay(trace, options, prepared, stage, start, progress)
}

/// Whether requests of a trace are at more than one time; believed of a pipe, which can be read only once.
fn passes_time(trace: &Trace) -> Result<bool, SimError> {
    if trace.seed().is_some() || !trace.is_rereadable() {
        // Generators have no times.
        return Ok(trace.seed().is_none());
    }
    let mut reader = trace.open()?;
    let (mut batch, mut first) = (Vec::with_capacity(BATCH_REQUESTS), None);
    while reader.next_batch(&mut batch)? {
        if batch
            .iter()
            .any(|request| request.time != *first.get_or_insert(request.time))
        {
            return Ok(true);
        }
    }
    Ok(false)
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
                flash_write: options.flash_write,
                admission: options.admission,
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
        if let Some(budget) = cache.admission.budget {
            budget.check(block_bytes).map_err(SimError::WriteBudget)?;
        }
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
            lockstep: options.timed.is_none(),
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
    clock: Arc<ManualClock>,
    cx: Cx<D>,
    cache: ObjectCache<D>,
    /// Reads of slices that a server makes while it makes another of the same object.
    reads_beside: Cell<u64>,
}

impl<D: Device + Clone> Replay<D> {
    fn open(device: D, cache_options: CacheOptions) -> Result<Self, SimError> {
        let executor = Executor::new();
        let clock = Arc::new(ManualClock::new(1));
        let cx = Cx::new(device, Arc::clone(&clock) as _, Rc::new(executor.spawner()));
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
        Ok(Self {
            executor,
            clock,
            cx,
            cache,
            reads_beside: Cell::new(0),
        })
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
        let mut found = self.cache.lookup(&self.cx, key, pumice::Access::Count);
        loop {
            let object = match found {
                Lookup::Known(object) => object,
                Lookup::Read(fetch) => {
                    found = self.block_on(self.cache.fetch(&self.cx, key, fetch, pumice::Access::Count))?;
                    continue;
                }
            };
            let object = match object {
                Some(object) if object.is_large() => object,
                object => return Ok(object.is_some()),
            };
            let before = self.cache.device_reads().records;
            let object = self.block_on(self.cache.gather(&self.cx, key, object))?;
            let slices = self.cache.device_reads().records - before;
            self.reads_beside
                .set(self.reads_beside.get() + slices.saturating_sub(1));
            return Ok(object.is_some());
        }
    }

    /// Reads so far of which each had to wait for the one before.
    fn rounds(&self, reads: DeviceReads) -> u64 {
        reads.rounds() - self.reads_beside.get()
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
    /// Bytes read during hits.
    hit_read_bytes: u64,
    /// Reads of which each had to wait for the one before, of hits.
    hit_rounds: u64,
    /// Hits that read nothing.
    dram_hits: u64,
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
    /// Takes the times of gets.
    stopwatch: Option<Stopwatch>,
    setup: Setup,
}

impl<D> Stage<'_, D> {
    fn of(device: D, setup: Setup) -> Self {
        Self {
            device,
            drive: None,
            filler: &[],
            time: None,
            stopwatch: None,
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
        mut stopwatch,
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
    let mut now = 0;
    let mut timeline = Vec::new();
    let mut batch: Vec<Access> = Vec::with_capacity(BATCH_REQUESTS);
    while accesses.next_batch(&mut batch)? {
        for access in &batch {
            if counts.requests_replayed == warmup {
                at_warmup = snapshot();
                reads = Reads::default();
                stopwatch.iter_mut().for_each(Stopwatch::reset);
            }
            counts.next_request();
            // Of a trace whose times go back, too, the clock does not.
            if access.nanos > now {
                if access.nanos / SECOND > now / SECOND {
                    let asked = replay.cache.admission().asked_bytes;
                    timeline.push((now / SECOND, replay.cache.written_bytes(), asked));
                }
                replay.clock.advance_ns(access.nanos - now);
                now = access.nanos;
            }
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
                    let (rounds_before, bytes_before) = (replay.rounds(before), counters.read_bytes());
                    let began = stopwatch.as_ref().map(Stopwatch::now);
                    let hit = replay.lookup(&key)?;
                    let after = replay.cache.device_reads();
                    let made = after.all() - before.all();
                    if hit {
                        reads.hit_rounds += replay.rounds(after) - rounds_before;
                        reads.hit_read_bytes += counters.read_bytes() - bytes_before;
                        reads.hit_reads += made;
                        reads.dram_hits += u64::from(made == 0);
                        spared.note_hit(access);
                    } else {
                        reads.miss_reads += made;
                    }
                    if let Some((stopwatch, began)) = stopwatch.as_mut().zip(began) {
                        replay.block_on(stopwatch.rest(began, hit))?;
                        stopwatch.end(began);
                    }
                    counts.lookup(hit, access.size);
                    !hit && access.fills
                }
                (_, Op::Set) => !spared.takes(access),
                (_, Op::Delete) => {
                    spared.note_delete(access);
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
            match &stopwatch {
                None => replay.settle()?,
                Some(stopwatch) if inserts || access.op == Op::Delete => {
                    replay.block_on(stopwatch.change())?;
                }
                Some(_) => {}
            }
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
    replay.settle()?;
    let at_end = snapshot();
    let asked = at_end.stats.admission.asked_bytes;
    timeline.push((now / SECOND, at_end.stats.blocks.written_bytes, asked));
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
            response_ns: stopwatch.and_then(|stopwatch| stopwatch.mean_ns()),
            at_warmup,
            at_end,
            bytes_beside_values: bytes_beside_values(&replay.cache.books(), object_bytes),
            entries_resident,
            objects_cached,
            capacity,
            timeline,
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
