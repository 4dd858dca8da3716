//! A volume on simulated devices, in one thread.

use crate::backing::FaultyBacking;
use pumice_admit::Rule;
use pumice_blocks::{Durability, Maker};
use pumice_chunk::store::{Found, Options};
use pumice_device::Device;
use pumice_nhc::Split;
use pumice_testkit::{FaultyDevice, FaultyMedium};
use pumice_volume::{Mode, Settings, Shared, Volume, WriteBack};
use pumice_world::{Executor, ManualClock};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

pub use pumice_testkit::volatile;

pub const CHUNK: usize = 4096;
/// Not a whole number of chunks.
pub const SIZE: usize = 300 * CHUNK + 1024;

pub fn settings(mode: Mode, boot: u64) -> Settings {
    Settings {
        mode,
        dram_bytes: 0,
        read_ahead_bytes: 0,
        scan_cutoff_bytes: 0,
        rule: Rule::All,
        write_budget: None,
        write_back: WriteBack {
            age_secs: 3,
            dirty_max: 0.5,
            bytes_per_sec: 0,
        },
        cache: Options {
            chunk_bytes: CHUNK as u32,
            chunks: 0,
            volume: 7,
            modified: 0,
            boot,
            // One bucket, so that most fills evict.
            mappings: 128,
            contents: 400,
            block_bytes: 64 << 10,
            buffers_max: 3,
            durability: Durability::Power,
            reformat: false,
            maker: Maker::Serve,
            random: 5,
            write_back: false,
            absence_secs_max: None,
            now: 1,
        },
    }
}

pub fn medium(seed: u64) -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(1 << 20, seed, volatile()))
}

pub struct Rig {
    pub volume: Volume<FaultyDevice, FaultyBacking>,
    pub device: FaultyDevice,
    pub found: Option<Found>,
    clock: Arc<ManualClock>,
    executor: Executor,
}

fn park(device: &FaultyDevice) -> impl FnMut() -> io::Result<()> {
    let device = device.clone();
    move || device.turn(true).map(drop)
}

impl Rig {
    pub fn open(
        settings: &Settings,
        medium: &Arc<FaultyMedium>,
        backing: &FaultyBacking,
    ) -> Result<Self, String> {
        Self::open_with(settings, medium, backing, None)
    }

    /// Opens a volume whose reads are split so: the share of hits that the cache answers, and whether misses enter it.
    pub fn open_with(
        settings: &Settings,
        medium: &Arc<FaultyMedium>,
        backing: &FaultyBacking,
        split: Option<(f64, bool)>,
    ) -> Result<Self, String> {
        let executor = Executor::new();
        let device = FaultyDevice::new(Arc::clone(medium));
        let clock = Arc::new(ManualClock::new(settings.cache.now));
        let opened = Shared::open(settings, Some(&device), backing, &*clock);
        let opened = executor.block_on(opened, park(&device));
        let (mut shared, found) = opened
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())?;
        if let Some((load_admit, data_admit)) = split {
            shared.split_reads(Split::held(load_admit, data_admit));
        }
        let volume = Volume::new(
            Arc::new(shared),
            Some(device.clone()),
            backing.clone(),
            Rc::new(executor.spawner()),
            Arc::<ManualClock>::clone(&clock),
        );
        Ok(Self {
            volume,
            device,
            found,
            clock,
            executor,
        })
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor
            .block_on(future, park(&self.device))
            .expect("something is under way")
    }

    /// Runs a future; the most bytes of reads of the cache device that were under way at once.
    pub fn reads_at_once<T>(&self, future: impl Future<Output = T>) -> (T, usize) {
        let (medium, mut most) = (self.device.medium(), 0);
        let ended = self.executor.block_on(future, || {
            most = most.max(medium.reads_pending());
            self.device.turn(true).map(drop)
        });
        (ended.expect("something is under way"), most)
    }

    /// Lets a second pass.
    pub fn tick(&self) {
        self.clock.advance_secs(1);
        self.run(self.volume.tick());
    }

    /// Runs background work to its end.
    pub fn settle(&self) {
        self.volume.kick();
        let _ = self.executor.run_until_idle(park(&self.device));
    }

    pub fn check_books(&self) {
        let counts = self.volume.shared().counts();
        for (what, begun, ended) in counts.balance(&counts) {
            assert_eq!(begun, ended, "{what}: {counts:?}");
        }
        if let Some(store) = self.volume.shared().store() {
            store.check_invariants();
        }
    }
}
