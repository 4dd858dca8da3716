//! A worker's handle on the flash device and the performance tier, and the open cache.

use super::performance::Performance;
use crate::host::{RING_ENTRIES, Tasks, Worker, drive, each_second};
use crate::throttle::Paced;
use anyhow::Context;
use pumice::{Cx, ObjectCache, Recovered};
use pumice_device::{CountingDevice, Device, FileDevice, Overdue};
use pumice_nhc::Tiered;
use pumice_world::Task;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A worker's handle on one device, which counts, and is slower where that was asked for.
type One = CountingDevice<Paced<FileDevice>>;

/// A worker's handle on the flash device, and on the performance tier where there is one.
pub type ServedDevice = Tiered<One, One>;

/// The cache as `serve` runs it.
pub type ServedCache = ObjectCache<ServedDevice>;

/// The open cache.
#[derive(Clone)]
pub struct Opened {
    /// The cache.
    pub cache: Arc<ServedCache>,
    /// What was on the device.
    pub recovered: Recovered,
    /// How long that took to find out.
    pub took: Duration,
}

/// What a worker has of its own.
pub struct Handle {
    /// The devices, as the engine takes them.
    pub cx: Cx<ServedDevice>,
    /// Whether it is that of worker 0.
    pub is_first: bool,
    flash: FileDevice,
    /// What the flash device has not answered in time, until the cache hears of it.
    overdue: Cell<Option<Overdue>>,
    /// When the log was told last how long the flash lasts.
    pub said: Cell<Instant>,
}

impl super::Objects {
    pub(super) fn make_handle(&self, worker: &Worker) -> anyhow::Result<Handle> {
        let flash = FileDevice::new(Arc::clone(&self.flash), RING_ENTRIES)
            .context("cannot make a handle on the flash device")?;
        worker.drive(flash.clone(), "flash device".to_owned())?;
        let paced = self.throttling.device(flash.clone());
        let paced = paced.context("cannot throttle the flash device")?;
        let counting = CountingDevice::new(paced, Arc::clone(&self.counters[worker.index]));
        let tiered = match &self.performance {
            None => Tiered::without(counting),
            Some(performance) => above(counting, worker, performance),
        };
        let cx = Cx::new(tiered, Arc::clone(&self.clock), Rc::new(worker.tasks.clone()));
        let gated = flash.clone();
        let log_gate = Rc::new(move || gated.log_wait().map(|wait| Box::pin(wait) as Task));
        let log_gate = Some(log_gate as Rc<dyn Fn() -> Option<Task>>);
        Ok(Handle {
            cx: Cx { log_gate, ..cx },
            is_first: worker.index == 0,
            flash,
            overdue: Cell::new(None),
            said: Cell::new(self.started),
        })
    }
}

impl Handle {
    /// Counts a second of the flash device; 0: it may take any time. What it does not answer takes it out, also what was there before the
    /// cache was open.
    pub fn tick(&self, timeout_secs: u32, opened: Option<&Opened>) {
        if timeout_secs > 0
            && let Some(ended) = self.flash.tick(timeout_secs).pop()
        {
            self.overdue.set(Some(ended));
        }
        let Some(Opened { cache, .. }) = opened else {
            return;
        };
        if let Some(overdue) = self.overdue.take() {
            cache.flash_is_overdue(&self.cx, overdue);
        }
        cache.tick(&self.cx);
    }
}

/// A handle on the flash device and on the performance tier. Where the latter cannot be had, the flash serves alone.
fn above(lower: One, worker: &Worker, performance: &Performance) -> ServedDevice {
    let tier = &performance.tier;
    let handle = || {
        let device = FileDevice::new(Arc::clone(&performance.shared), RING_ENTRIES)?;
        let driver = drive(device.clone())?;
        anyhow::Ok((performance.throttling.device(device)?, driver))
    };
    let (device, driver) = match handle() {
        Ok(handle) => handle,
        Err(error) => {
            tier.leave_out(format!("worker {} has no handle on it: {error:#}", worker.index));
            return Tiered::without(lower);
        }
    };
    let upper = CountingDevice::new(device, Arc::clone(&performance.counters[worker.index]));
    let tasks: Rc<Tasks> = Rc::new(worker.tasks.clone());
    let tiered = Tiered::new(lower, upper, Arc::clone(tier), tasks);
    let (driven, watched) = (Arc::clone(tier), tiered.clone());
    tokio::task::spawn_local(async move {
        let Err(error) = driver.await;
        driven.leave_out(format!("its event loop failed: {error}"));
    });
    each_second(move || watched.tick_upper());
    tiered
}
