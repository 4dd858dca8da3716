//! Runs of a volume, and what they come to.

use super::backing::{Generated, content};
use pumice_admit::Rule;
use pumice_blocks::{Durability, Maker};
use pumice_chunk::store::Options;
use pumice_device::{
    AlignedBuf, Delays, Device, MemDevice, MemMedium, Profile, Throttle, ThrottledDevice, Timeline,
    VirtualTime,
};
use pumice_nhc::{Objective, Split};
use pumice_sim::SimError;
use pumice_trace::Zipf;
use pumice_volume::{Mode, Settings, Shared, ThrottledBacking, Volume, VolumeCounts, WriteBack};
use pumice_world::{Clock, Executor, Random, Spawner, mix64};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Chunks of which each is read so seldom that the cache has it no more.
const COLD: u64 = 1 << 22;
/// Virtual time for which a number of clients is tried.
const TRIED_NS: u64 = 400_000_000;
/// N1 clients come to this share of the most.
const NEARLY_ALL: f64 = 0.95;
const CLIENTS_MAX: u64 = 256;
const SECOND: u64 = 1_000_000_000;

/// What a volume is asked for.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The cache device.
    pub upper: Profile,
    /// The backing device.
    pub lower: Profile,
    /// Number of clients, as a multiple of N1. N1 is the fewest clients with which a cache without splitting reaches 95 % of its highest rate of reads.
    pub closed: f64,
    /// So many clients, in place of that.
    pub clients: Option<u64>,
    /// The share of reads that hit.
    pub hits: f64,
    /// The share of writes, of chunks that hit.
    pub writes: f64,
    /// Chunks that are read and written again and again.
    pub chunks: u64,
    /// The exponent of Zipf's law among them.
    pub theta: f64,
    /// Bytes of a chunk and of a request.
    pub chunk_bytes: u32,
    /// The mode.
    pub mode: Mode,
    /// When dirty chunks are cleaned.
    pub write_back: WriteBack,
    /// What is to be best.
    pub objective: Objective,
    /// Seconds of virtual time before requests count.
    pub ahead_secs: u64,
    /// Seconds of virtual time in which they count.
    pub seconds: u64,
    /// Seed of all that is drawn.
    pub seed: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeRun {
    /// Requests done in a second.
    pub per_second: f64,
    /// The share of chunks read that the cache had.
    pub hits: f64,
    /// The share of these that went to the backing device.
    pub redirected: f64,
    /// The share of these that could have: clean ones.
    pub movable: f64,
    /// Chunks that the cleaner wrote, for each chunk that clients wrote.
    pub cleaned: f64,
    /// `load_admit` at the end.
    pub load_admit: f64,
    /// `data_admit` at the end.
    pub data_admit: bool,
}

/// What load splitting gains, by reads alone and with writes.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeReport {
    /// The cache device.
    pub upper: String,
    /// The backing device.
    pub lower: String,
    /// Mode of the volume.
    pub mode: &'static str,
    /// The share of writes.
    pub writes: f64,
    /// Seed.
    pub seed: u64,
    /// Fewest clients with which a cache that is not split comes to 95 % of its most.
    pub n1: u64,
    /// Clients of the runs.
    pub clients: u64,
    /// Reads alone, not split.
    pub reads_classic: VolumeRun,
    /// Reads alone, split.
    pub reads_split: VolumeRun,
    /// With writes, not split.
    pub writes_classic: VolumeRun,
    /// With writes, split.
    pub writes_split: VolumeRun,
    /// By how much splitting is faster, by reads alone: 0.5 is one and a half times as fast.
    pub reads_gain: f64,
    /// The same with writes.
    pub writes_gain: f64,
    /// The gain with writes over that of reads alone.
    pub gain_kept: f64,
}

struct VirtualClock(Arc<VirtualTime>);

impl Clock for VirtualClock {
    fn now_secs(&self) -> u32 {
        1 + (self.0.now_ns() / SECOND) as u32
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

type Cache = ThrottledDevice<MemDevice>;

/// Draws what clients ask for.
struct Draw {
    random: Random,
    zipf: Zipf,
    cold: u64,
    versions: u64,
    writes: f64,
}

enum Request {
    Read(u64),
    Write(u64, u64),
}

/// A volume under load.
struct Stage<'a> {
    options: &'a VolumeOptions,
    volume: Volume<Cache, ThrottledBacking<Generated>>,
    device: Cache,
    delays: Delays,
    time: Arc<VirtualTime>,
    executor: Executor,
    next_tick: Cell<u64>,
    draw: Rc<RefCell<Draw>>,
    done: Rc<Cell<u64>>,
}

fn settings(options: &VolumeOptions, cache_bytes: u64) -> Settings {
    let chunks = cache_bytes / u64::from(options.chunk_bytes);
    Settings {
        mode: options.mode,
        dram_bytes: 0,
        read_ahead_bytes: 0,
        scan_cutoff_bytes: 0,
        rule: Rule::All,
        write_budget: None,
        write_back: options.write_back,
        cache: Options {
            chunk_bytes: options.chunk_bytes,
            chunks: 0,
            volume: 1,
            modified: 0,
            boot: 1,
            mappings: chunks * 4,
            contents: chunks * 22 / 10,
            block_bytes: 1 << 20,
            buffers_max: 8,
            durability: Durability::Power,
            reformat: false,
            maker: Maker::Replay,
            random: 1,
            write_back: false,
            absence_secs_max: None,
            now: 1,
        },
    }
}

impl<'a> Stage<'a> {
    fn open(options: &'a VolumeOptions, writes: f64, split: Option<Objective>) -> Result<Self, SimError> {
        let chunk_bytes = u64::from(options.chunk_bytes);
        // Room for what is read again and again four times, and some for the log.
        let cache_bytes = (options.chunks * chunk_bytes * 4).next_multiple_of(1 << 20) + (16 << 20);
        let time = Arc::new(VirtualTime::new());
        let throttle = |profile: &Profile, salt: u64| {
            let mut profile = *profile;
            profile.seed = mix64(options.seed ^ salt);
            Arc::new(Throttle::new(&profile, Arc::<VirtualTime>::clone(&time)))
        };
        let medium = Arc::new(MemMedium::new(cache_bytes));
        let device = ThrottledDevice::new(MemDevice::new(medium), throttle(&options.upper, 1));
        let delays = Delays::new(throttle(&options.lower, 2));
        let inner = Generated::new(options.chunks + COLD, chunk_bytes);
        let backing = ThrottledBacking::new(inner, delays.clone());
        let executor = Executor::new();
        let settings = settings(options, cache_bytes);
        let clock = Arc::new(VirtualClock(Arc::clone(&time)));
        let opened = Shared::<AlignedBuf>::open(&settings, Some(&device), &backing, &*clock);
        let failed = |source| SimError::DeviceIo {
            what: "opening the cache",
            source,
        };
        let parked = || park(&time, &device, &delays, u64::MAX);
        let (mut shared, _) = executor
            .block_on(opened, parked)
            .map_err(failed)?
            .map_err(SimError::Open)?;
        if let Some(objective) = split {
            shared.split_reads(Split::new(objective, Arc::<VirtualTime>::clone(&time)));
        }
        let volume = Volume::new(
            Arc::new(shared),
            Some(device.clone()),
            backing,
            Rc::new(executor.spawner()),
            clock,
        );
        let stage = Self {
            options,
            volume,
            device,
            delays,
            next_tick: Cell::new(time.now_ns() + SECOND),
            time,
            executor,
            draw: Rc::new(RefCell::new(Draw {
                random: Random(mix64(options.seed)),
                zipf: Zipf::new(options.chunks, options.theta).expect("its options were checked"),
                cold: 0,
                versions: 0,
                writes,
            })),
            done: Rc::default(),
        };
        stage.fill()?;
        Ok(stage)
    }

    /// Lets time pass to what is due first, and each second the volume's tick.
    fn wait(&self) -> io::Result<()> {
        park(&self.time, &self.device, &self.delays, self.next_tick.get())?;
        if self.time.now_ns() >= self.next_tick.get() {
            self.next_tick.set(self.next_tick.get() + SECOND);
            let volume = self.volume.clone();
            let tick = async move { volume.tick().await };
            self.executor.spawner().spawn(Box::pin(tick));
        }
        Ok(())
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, SimError> {
        let failed = |source| SimError::DeviceIo {
            what: "running the volume",
            source,
        };
        self.executor.block_on(future, || self.wait()).map_err(failed)
    }

    /// Reads all chunks that are to hit.
    fn fill(&self) -> Result<(), SimError> {
        let chunk_bytes = u64::from(self.options.chunk_bytes);
        self.run(async {
            for chunk in 0..self.options.chunks {
                let read = self.volume.read(chunk * chunk_bytes, chunk_bytes as usize);
                read.await.expect("memory does not fail");
            }
        })
    }

    /// So many clients ask until this time; returns how many requests a second were done.
    fn load(&self, clients: u64, until: u64) -> Result<f64, SimError> {
        let (from, before) = (self.time.now_ns(), self.done.get());
        let all = (0..clients).map(|_| self.client(until));
        self.run(futures_util::future::join_all(all))?;
        let seconds = (self.time.now_ns() - from) as f64 / SECOND as f64;
        Ok((self.done.get() - before) as f64 / seconds)
    }

    async fn client(&self, until: u64) {
        let chunk_bytes = u64::from(self.options.chunk_bytes);
        while self.time.now_ns() < until {
            let request = self.draw.borrow_mut().next(self.options);
            match request {
                Request::Read(chunk) => {
                    let read = self.volume.read(chunk * chunk_bytes, chunk_bytes as usize);
                    drop(read.await.expect("memory does not fail"));
                }
                Request::Write(chunk, version) => {
                    let bytes = content(chunk, version, chunk_bytes as usize);
                    let write = self.volume.write(chunk * chunk_bytes, bytes.into(), false);
                    write.await.expect("memory does not fail");
                }
            }
            self.done.set(self.done.get() + 1);
        }
    }
}

/// Time passes to what is due first on either device, or to `most`.
fn park(time: &VirtualTime, device: &Cache, delays: &Delays, most: u64) -> io::Result<()> {
    let due = device
        .delays()
        .next_due_ns()
        .into_iter()
        .chain(delays.next_due_ns())
        .min();
    let Some(due) = due.or((most < u64::MAX).then_some(most)) else {
        // The device beneath completes at once.
        return device.turn(true).map(drop);
    };
    time.wait_until(due.min(most));
    device.turn(false)?;
    delays.end_due();
    Ok(())
}

impl Draw {
    fn next(&mut self, options: &VolumeOptions) -> Request {
        let is_write = self.random.next_f64() < self.writes;
        if !is_write && self.random.next_f64() >= options.hits {
            self.cold += 1;
            return Request::Read(options.chunks + mix64(self.cold) % COLD);
        }
        // The most read ones are not neighbours.
        let chunk = mix64(self.zipf.draw(&mut self.random)) % options.chunks;
        if !is_write {
            return Request::Read(chunk);
        }
        self.versions += 1;
        Request::Write(chunk, self.versions)
    }
}

/// The fewest clients with which classic caching comes to 95 % of its most.
fn n1(options: &VolumeOptions) -> Result<u64, SimError> {
    let stage = Stage::open(options, 0.0, None)?;
    let rate = |clients| stage.load(clients, stage.time.now_ns() + TRIED_NS);
    let most = rate(CLIENTS_MAX)?;
    let (mut few, mut enough) = (0, 1);
    while enough < CLIENTS_MAX && rate(enough)? < NEARLY_ALL * most {
        few = enough;
        enough *= 2;
    }
    while enough - few > 1 {
        let middle = u64::midpoint(few, enough);
        match rate(middle)? < NEARLY_ALL * most {
            true => few = middle,
            false => enough = middle,
        }
    }
    Ok(enough)
}

fn one(
    options: &VolumeOptions,
    clients: u64,
    writes: f64,
    split: Option<Objective>,
) -> Result<VolumeRun, SimError> {
    let stage = Stage::open(options, writes, split)?;
    let begun = stage.time.now_ns();
    let end = begun + options.ahead_secs * SECOND;
    stage.load(clients, end)?;
    let before = stage.volume.shared().counts();
    let per_second = stage.load(clients, end + options.seconds * SECOND)?;
    let counts = stage.volume.shared().counts();
    let of = |figure: fn(&VolumeCounts) -> u64| (figure(&counts) - figure(&before)) as f64;
    let redirected = of(|counts| counts.read_redirected);
    let hits = of(|counts| counts.read_hits) + redirected;
    let switch = stage.volume.shared().split().map(|split| split.switch());
    Ok(VolumeRun {
        per_second,
        hits: hits / of(|counts| counts.read_chunks),
        redirected: redirected / hits,
        movable: 1.0 - of(|counts| counts.read_dirty_hits) / hits,
        cleaned: of(|counts| counts.cleaned_chunks) / of(|counts| counts.write_chunks).max(1.0),
        load_admit: switch.map_or(1.0, pumice_nhc::Switch::load_admit),
        data_admit: switch.is_none_or(pumice_nhc::Switch::data_admit),
    })
}

/// Runs a volume four times: by reads alone and with writes, split and not.
///
/// # Errors
/// What opening the cache said.
pub fn run_volume(options: &VolumeOptions) -> Result<VolumeReport, SimError> {
    let n1 = n1(options)?;
    let times = ((options.closed * n1 as f64).round() as u64).max(1);
    let clients = options.clients.unwrap_or(times);
    let split = Some(options.objective);
    let reads_classic = one(options, clients, 0.0, None)?;
    let reads_split = one(options, clients, 0.0, split)?;
    let writes_classic = one(options, clients, options.writes, None)?;
    let writes_split = one(options, clients, options.writes, split)?;
    let reads_gain = reads_split.per_second / reads_classic.per_second - 1.0;
    let writes_gain = writes_split.per_second / writes_classic.per_second - 1.0;
    Ok(VolumeReport {
        upper: options.upper.to_string(),
        lower: options.lower.to_string(),
        mode: options.mode.name(),
        writes: options.writes,
        seed: options.seed,
        n1,
        clients,
        reads_classic,
        reads_split,
        writes_classic,
        writes_split,
        reads_gain,
        writes_gain,
        gain_kept: writes_gain / reads_gain,
    })
}
