//! A server of objects: the engine, its performance tier, and a door.

mod access;
pub mod config;
pub mod door;
mod figures;
pub mod flash;
mod memory;
mod performance;
mod report;
mod worker;

pub use config::ServeConfig;
use worker::ServedCache;

use crate::host::files::NewFile;
use crate::host::{Host, Worker, limits, random};
use crate::service::{Door, Service, Share};
use crate::throttle::{Kinds, Throttling};
use access::Access;
use anyhow::Context;
use door::ObjectDoor;
use door::config::Own;
use door::http::Http;
use door::memcached::Memcached;
use flash::Target;
use memory::Division;
use performance::{OrLeftOut, Performance, Wanted};
use pumice::{CacheOptions, IndexOptions, LayoutOptions, ObjectCache};
use pumice_advise::Endurance;
use pumice_console::usage;
use pumice_device::{DeviceCounters, FileShared};
use pumice_door_admin::{BooksFault, Figures};
use pumice_world::{Clock, SystemClock};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::{Handle, Opened};

/// Of a cascade index, mappings in DRAM for each on flash.
pub const TIER1_SHARE: f64 = 0.03;

/// How often the log is told how long the flash lasts.
const DAY: Duration = Duration::from_secs(86_400);

/// A cache of objects that is served.
pub struct Objects {
    flash: Arc<FileShared>,
    /// The file of the flash device, if this start has made that.
    new_file: NewFile,
    clock: Arc<dyn Clock>,
    /// Bytes of the checkpoint that the start reads.
    checkpoint_bytes: u64,
    options: CacheOptions,
    throttling: Throttling,
    /// Seconds after which a flash device that does not answer has failed; 0 = never.
    flash_timeout_secs: u32,
    /// What each worker's handle on the flash device counts.
    counters: Vec<Arc<DeviceCounters>>,
    performance: Option<Performance>,
    /// Why the performance tier that was there before is left out.
    tier_left_out: Option<String>,
    door: Arc<dyn ObjectDoor>,
    shares: Vec<Share>,
    endurance: Option<Endurance>,
    started: Instant,
}

/// Serves objects until a signal or a failure.
///
/// # Errors
/// Usage, or what failed.
pub fn run(config: &ServeConfig, accept_clock: bool, kinds: Kinds) -> anyhow::Result<()> {
    // Keys and passwords are often root's alone.
    let access = Access::load(&config.door)?;
    let host = Host::new(&config.host, kinds)?;
    let threads = config.host.threads;
    limits::allow_open_files(config.door.all_connections(threads), threads, 2);
    if let Some(other) = kinds.beside(&["flash", "performance-tier"]) {
        return Err(usage(format!(
            "--throttle {other}=: that is of volumes; give --nbd, --backing and --cache"
        )));
    }
    if kinds.has("performance-tier") && config.performance_tier.is_none() {
        return Err(usage(
            "--throttle: there is no performance tier; give --performance-tier",
        ));
    }
    // Whether it can work is known before anything is made: a failed start leaves no new file behind.
    let target = flash::look(config)?;
    let division = memory::divide(config, &target)?;
    let performance = performance::look(config, &target, division.plan.block_bytes)?;
    let (door, host_config) = (&config.door, &config.host);
    let door: Arc<dyn ObjectDoor> = match &door.own {
        Own::Memcached(own) => Arc::new(Memcached::bind(door, own, host_config, access)?),
        Own::Http(own) => {
            let bytes_max = door.object_bytes_max(target.capacity);
            Arc::new(Http::bind(door, own, host_config, bytes_max, access)?)
        }
    };
    host.run(vec![Arc::clone(&door) as Arc<dyn Door>], |host| {
        let mut options = cache_options(config, &target, &division)?;
        options.accept_clock = accept_clock;
        Objects::prepare(config, host.kinds, &target, &division, performance, door, options)
    })
}

impl Objects {
    /// Opens the devices, making files and reserving their space where that is needed.
    fn prepare(
        config: &ServeConfig,
        kinds: Kinds,
        target: &Target,
        division: &Division,
        performance: Option<OrLeftOut<Wanted>>,
        door: Arc<dyn ObjectDoor>,
        options: CacheOptions,
    ) -> anyhow::Result<Self> {
        let (flash, new_file) = target.open(config)?;
        let performance = match performance {
            Some(Ok(wanted)) => Some(wanted.open(config, kinds.of("performance-tier"))?),
            Some(Err(left_out)) => Some(Err(left_out)),
            None => None,
        };
        let (performance, tier_left_out) = match performance.transpose() {
            Ok(performance) => (performance, None),
            Err(reason) => (None, Some(reason)),
        };
        report::start(config, &flash, target, division, performance.as_ref());
        let clock = SystemClock::new(target.time);
        if clock.behind_secs() > 86_400 {
            tracing::warn!(
                "the clock is {} days behind the last time that the flash device saw: times to live count from that, and absolute times of \
                 clients before it are past, until the clock has caught up or the cache is made anew with --reformat",
                clock.behind_secs() / 86_400
            );
        }
        let plan = &division.plan;
        Ok(Self {
            flash,
            new_file,
            clock: Arc::new(clock),
            checkpoint_bytes: target.checkpoint_bytes,
            options: CacheOptions {
                absence_secs_max: config.host.max_absence_secs,
                random: random()?,
                has_tier: config.performance_tier.is_some(),
                ..options
            },
            throttling: kinds.of("flash"),
            flash_timeout_secs: config.host.flash_timeout_secs,
            counters: (0..config.host.threads).map(|_| Arc::default()).collect(),
            performance,
            tier_left_out,
            door,
            shares: vec![
                Share::new("items and index", plan.pool),
                Share::new("block buffers", plan.block_buffers),
                Share::new("connections", plan.connections),
                Share::new("the program", plan.base),
            ],
            endurance: config.host.endurance,
            started: Instant::now(),
        })
    }
}

impl Service for Objects {
    const CLOSED: &'static str = "cache";
    const WATCHED: &'static [(&'static str, &'static str)] = figures::WATCHED;
    type Handle = Handle;
    type Opened = Opened;

    fn plan(&self) -> Vec<Share> {
        self.shares.clone()
    }

    fn handle(&self, worker: &Worker) -> anyhow::Result<Handle> {
        self.make_handle(worker)
    }

    async fn open(&self, handle: &Handle) -> anyhow::Result<Opened> {
        let started = Instant::now();
        let opened = ObjectCache::open(&handle.cx, self.options).await;
        let (cache, recovered) =
            opened.with_context(|| format!("flash device {}", self.flash.path().display()))?;
        let took = started.elapsed();
        report::recovered(&recovered, took);
        Ok(Opened {
            cache: Arc::new(cache),
            recovered,
            took,
        })
    }

    async fn run(&self, worker: &Worker, handle: &Handle, opened: &Opened) -> anyhow::Result<()> {
        let (cx, cache) = (handle.cx.clone(), Arc::clone(&opened.cache));
        if worker.index == 0 {
            self.new_file.keep();
            if let Some(performance) = &self.performance {
                performance.new_file.keep();
                let (device, start) = (cx.device.clone(), performance.start(&cache));
                tokio::task::spawn_local(async move { device.start(start).await });
            }
        }
        let door = &self.door;
        door.run(worker.index, Rc::new(cx), cache, worker.stop()).await
    }

    fn tick(&self, handle: &Handle, opened: Option<&Opened>) {
        handle.tick(self.flash_timeout_secs, opened);
        if handle.is_first && handle.said.get().elapsed() >= DAY {
            handle.said.set(handle.said.get() + DAY);
            report::lifetime(&self.pace());
        }
    }

    async fn close(&self, handle: &Handle, opened: &Opened) -> anyhow::Result<()> {
        let left = opened
            .cache
            .close(&handle.cx)
            .await
            .context("closing the cache")?;
        report::lifetime(&self.pace());
        report::left_behind(&left);
        Ok(())
    }

    fn figures(&self, opened: Option<&Opened>) -> Figures {
        self.all_figures(opened)
    }

    fn check_books(&self, opened: Option<&Opened>) -> Result<(), BooksFault> {
        let Some(Opened { cache, .. }) = opened else {
            return Err(BooksFault::NotNow("the cache is not open yet".to_owned()));
        };
        cache.check_books().map_err(|fault| match fault {
            pumice::BooksFault::Unbalanced(what) => BooksFault::Unbalanced(what),
            moved => BooksFault::NotNow(moved.to_string()),
        })
    }
}

/// How a cache is opened with these settings and this division of the budget.
fn cache_options(config: &ServeConfig, target: &Target, division: &Division) -> anyhow::Result<CacheOptions> {
    let plan = &division.plan;
    Ok(CacheOptions {
        dram_bytes: usize::try_from(plan.pool).context("the DRAM budget does not fit this machine")?,
        buffers_max: plan.buffers,
        block_bytes: Some(plan.block_bytes),
        reformat: config.host.reformat,
        layout: LayoutOptions {
            virtual_keys_max: plan.virtual_keys,
            ..target.layout
        },
        index: IndexOptions::of(division.index, TIER1_SHARE),
        index_heap_bytes: usize::try_from(plan.index_heap).unwrap_or(usize::MAX),
        flash_write: config.flash_write,
        admission: config.admission,
        durability: config.durability,
        flush_interval_secs: config.flush_interval_secs,
        item_bytes_max: usize::try_from(config.door.object_bytes_max(target.capacity)).unwrap_or(usize::MAX),
        ..CacheOptions::default()
    })
}

/// What a server with these settings makes of an empty flash tier of so many bytes, for a replay.
///
/// # Errors
/// Usage: the budget cannot be divided.
pub fn options_of_empty(config: &ServeConfig, capacity: u64) -> anyhow::Result<CacheOptions> {
    let target = Target::empty(config, capacity);
    let division = memory::divide(config, &target)?;
    cache_options(config, &target, &division)
}

/// The smallest budget of DRAM that a server with these settings takes for so many bytes of flash.
pub fn smallest_dram(config: &ServeConfig, capacity: u64) -> Option<u64> {
    memory::smallest(config, &Target::empty(config, capacity), 1)
}
