//! `--throttle`: devices that are as slow as others would be, in the time that passes.
//!
//! The waits have to be exact to microseconds. A timer of the event loop has milliseconds, and a sleep ends 60 µs late. So the event loop
//! sleeps until shortly before an operation is done by the model, and is awake for the rest, while it goes on serving.

use pumice_device::{
    Delays, Device, MemDevice, MemMedium, Profile, RealTime, Throttle, ThrottledDevice, Timeline, VirtualTime,
};
use pumice_volume::{Backing, ThrottledBacking};
use pumice_world::{Executor, Spawner};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

/// The event loop is awake for so long before an operation is done: the kernel's slack of a timer, 50 µs, and the time until a processor runs.
const AWAKE_NS: u64 = 100_000;

/// How long a self-test of one kind takes, about, in nanoseconds.
const TEST_NS: u64 = 200_000_000;

/// A kind whose reads take longer by the model is not tested: a start would wait for it.
const TESTED_US_MAX: f64 = 100_000.0;

/// A deviation of more than so many percent from the model is a warning.
const TOLERANCE_PERCENT: f64 = 5.0;

/// Which kinds of devices those of a server are to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Of `--flash`.
    pub flash: Option<Profile>,
    /// Of `--performance-tier`.
    pub performance_tier: Option<Profile>,
    /// Of each `--cache`.
    pub cache: Option<Profile>,
    /// Of each `--backing`.
    pub backing: Option<Profile>,
}

impl Kinds {
    /// All kinds, with the names of their devices.
    fn named(&self) -> [(&'static str, Option<Profile>); 4] {
        [
            ("flash", self.flash),
            ("performance-tier", self.performance_tier),
            ("cache", self.cache),
            ("backing", self.backing),
        ]
    }

    /// The first device that has a kind and is none of `devices`.
    pub fn beside(&self, devices: &[&str]) -> Option<&'static str> {
        let given = self.named().into_iter().filter(|(_, kind)| kind.is_some());
        given.map(|(name, _)| name).find(|name| !devices.contains(name))
    }

    /// Whether a device has a kind.
    pub fn has(&self, device: &str) -> bool {
        self.kind(device).is_some()
    }

    fn kind(&self, device: &str) -> Option<Profile> {
        self.named().into_iter().find(|(name, _)| *name == device)?.1
    }

    /// How a device is slowed down from now on.
    pub fn of(&self, device: &str) -> Throttling {
        let throttle = |profile| Arc::new(Throttle::new(&profile, Arc::new(RealTime::new())));
        Throttling(self.kind(device).map(throttle))
    }
}

impl FromStr for Kinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = Self::default();
        for part in text.split(',') {
            let (device, kind) = part.split_once('=').unwrap_or(("flash", part));
            let slot = match device.trim() {
                "flash" => &mut kinds.flash,
                "performance-tier" => &mut kinds.performance_tier,
                "cache" => &mut kinds.cache,
                "backing" => &mut kinds.backing,
                other => {
                    return Err(format!(
                        "there are flash= and performance-tier=, with --nbd cache= and backing=, not `{other}=`"
                    ));
                }
            };
            let profile = kind
                .trim()
                .parse()
                .map_err(|error: pumice_device::ProfileError| error.to_string())?;
            if slot.replace(profile).is_some() {
                return Err(format!("`{device}` is given twice"));
            }
        }
        Ok(kinds)
    }
}

/// How a device is slowed down; not at all where it has no kind.
#[derive(Clone)]
pub struct Throttling(Option<Arc<Throttle>>);

/// A handle on a device, as slow as asked for.
pub type Paced<D> = ThrottledDevice<D>;

/// A handle on a backing device, as slow as asked for.
pub type PacedBacking<K> = ThrottledBacking<K>;

impl Throttling {
    /// Slows a handle on a device down, on this event loop.
    ///
    /// # Errors
    /// What the system says of the timer.
    pub fn device<D: Device>(&self, device: D) -> io::Result<Paced<D>> {
        let device = ThrottledDevice::new(device, self.0.clone());
        self.start(device.delays())?;
        Ok(device)
    }

    /// Slows a handle on a backing device down, on this event loop.
    ///
    /// # Errors
    /// What the system says of the timer.
    pub fn backing<K: Backing>(&self, backing: K) -> io::Result<PacedBacking<K>> {
        let delays = Delays::new(self.0.clone());
        self.start(&delays)?;
        Ok(ThrottledBacking::new(backing, delays))
    }

    fn start(&self, delays: &Delays) -> io::Result<()> {
        match self.0 {
            Some(_) => start_pacing(delays),
            None => Ok(()),
        }
    }
}

/// A task of this event loop ends the operations of a handle when the model is done with them.
///
/// # Errors
/// What the system says of the timer.
fn start_pacing(delays: &Delays) -> io::Result<()> {
    let paced = pace(delays.clone())?;
    tokio::task::spawn_local(async move {
        let Err(error) = paced.await;
        tracing::error!("--throttle: the timer failed, and what waits for it is never done: {error}");
    });
    Ok(())
}

/// Ends the operations of a handle when the model is done with them.
///
/// # Errors
/// What the system says of the timer.
fn pace(delays: Delays) -> io::Result<impl Future<Output = io::Result<Infallible>>> {
    let timer = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe, and newer than the oldest tokio that serves us"
    )]
    let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
    Ok(async move {
        loop {
            let due = delays.due_before(u64::MAX).await;
            match delays.wait_ns(due).checked_sub(AWAKE_NS) {
                Some(asleep @ 1..) => {
                    set(&timer, asleep)?;
                    tokio::select! {
                        ready = timer.readable() => ready?.clear_ready(),
                        _ = delays.due_before(due) => {}
                    }
                }
                _ => {
                    delays.end_due();
                    tokio::task::yield_now().await;
                }
            }
        }
    })
}

fn set(timer: &AsyncFd<OwnedFd>, ns: u64) -> io::Result<()> {
    let spec = |ns: u64| Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (ns % 1_000_000_000) as _,
    };
    let once = Itimerspec {
        it_interval: spec(0),
        it_value: spec(ns),
    };
    rustix::time::timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// Reads of 4 KiB: what one alone takes, in microseconds, and how many a second there are of many at once.
#[derive(Clone, Copy, Debug)]
struct Speed {
    mean_us: f64,
    per_second: f64,
}

/// Compares each kind with its model, and says how far they are apart.
///
/// # Errors
/// What the system says of the timer.
pub async fn test_all(kinds: &Kinds) -> io::Result<()> {
    for (name, kind) in kinds.named() {
        if let Some(kind) = kind {
            LocalSet::new().run_until(test(name, kind)).await?;
        }
    }
    Ok(())
}

/// Compares a kind of device with its model, on this event loop, and says how far they are apart.
///
/// # Errors
/// What the system says of the timer.
async fn test(name: &str, kind: Profile) -> io::Result<()> {
    let model = of_model(kind)?;
    if model.mean_us > TESTED_US_MAX {
        tracing::info!(
            "{name} is as slow as {kind}: a read of 4 KiB takes {:.0} us by the model; not tested",
            model.mean_us
        );
        return Ok(());
    }
    let found = of_event_loop(kind, model).await?;
    let said = format!(
        "{name} is as slow as {kind}: a read of 4 KiB takes {:.1} us (model {:.1}), and there are {:.0} a second of many at once (model {:.0})",
        found.mean_us, model.mean_us, found.per_second, model.per_second
    );
    let off = |found: f64, model: f64| (found / model - 1.0).abs() * 100.0;
    let off = off(found.mean_us, model.mean_us).max(off(found.per_second, model.per_second));
    if off > TOLERANCE_PERCENT {
        tracing::warn!(
            "{said}: {off:.0} % off, so figures are not the model's. The processors are busy, or this kind is too fast for them"
        );
    } else {
        tracing::info!("{said}");
    }
    Ok(())
}

/// Enough that the lanes never wait.
fn many(kind: &Profile) -> u32 {
    kind.read.parallelism.saturating_mul(2)
}

fn throttled(kind: &Profile, time: Arc<dyn Timeline>) -> ThrottledDevice<MemDevice> {
    let medium = MemDevice::new(Arc::new(MemMedium::new(1 << 20)));
    ThrottledDevice::new(medium, Arc::new(Throttle::new(kind, time)))
}

fn of_model(kind: Profile) -> io::Result<Speed> {
    let row = |depth: u32| {
        let time = Arc::new(VirtualTime::new());
        let device = throttled(&kind, Arc::clone(&time) as Arc<dyn Timeline>);
        let (executor, each) = (Executor::new(), (2_000 / depth).max(4));
        for _ in 0..depth {
            let device = device.clone();
            executor.spawner().spawn(Box::pin(async move {
                for _ in 0..each {
                    // A device in memory does not fail.
                    let _ = device.read(0, 4096).await;
                }
            }));
        }
        executor.run_until_idle(|| device.turn(true).map(drop))?;
        let took = time.now_ns() as f64;
        io::Result::Ok((took / f64::from(each) / 1e3, f64::from(each * depth) * 1e9 / took))
    };
    let ((mean_us, _), (_, per_second)) = (row(1)?, row(many(&kind))?);
    Ok(Speed { mean_us, per_second })
}

async fn of_event_loop(kind: Profile, model: Speed) -> io::Result<Speed> {
    let row = async |depth: u32, rate: f64| {
        let time = Arc::new(RealTime::new());
        let device = throttled(&kind, Arc::clone(&time) as Arc<dyn Timeline>);
        let pacer = tokio::task::spawn_local(pace(device.delays().clone())?);
        let each = ((rate * TEST_NS as f64 / 1e9) as u32 / depth).clamp(4, 100_000);
        let start = time.now_ns();
        let readers: Vec<_> = (0..depth)
            .map(|_| {
                let device = device.clone();
                tokio::task::spawn_local(async move {
                    for _ in 0..each {
                        device.read(0, 4096).await?;
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        for reader in readers {
            reader.await.map_err(io::Error::other)??;
        }
        pacer.abort();
        let took = (time.now_ns() - start) as f64;
        io::Result::Ok((took / f64::from(each) / 1e3, f64::from(each * depth) * 1e9 / took))
    };
    let (mean_us, _) = row(1, 1e6 / model.mean_us).await?;
    let (_, per_second) = row(many(&kind), model.per_second).await?;
    Ok(Speed { mean_us, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_given_by_device() {
        let kinds: Kinds = "flash=nvme*40,performance-tier=optane*40".parse().unwrap();
        assert_eq!(kinds.flash, Some(Profile::NVME.slower(40)));
        assert_eq!(kinds.performance_tier, Some(Profile::OPTANE.slower(40)));
        let flash = Kinds {
            flash: Some(Profile::SATA),
            ..Kinds::default()
        };
        assert_eq!("sata".parse(), Ok(flash));
        let kinds: Kinds = "cache=optane*40,backing=nvme*40".parse().unwrap();
        assert_eq!(kinds.cache, Some(Profile::OPTANE.slower(40)));
        assert_eq!(kinds.beside(&["cache", "backing"]), None);
        assert_eq!(kinds.beside(&["flash", "backing"]), Some("cache"));
        for (bad, part) in [
            ("tape", "no such kind"),
            ("disk=sata", "not `disk=`"),
            ("sata,flash=sata", "twice"),
        ] {
            let error = bad.parse::<Kinds>().unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    /// A wait on the event loop is never too short, and is over soon after.
    #[test]
    fn operations_are_done_when_the_model_is() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let kind = Profile::OPTANE.slower(40);
            let time = Arc::new(RealTime::new());
            let device = throttled(&kind, Arc::clone(&time) as Arc<dyn Timeline>);
            tokio::task::spawn_local(pace(device.delays().clone()).unwrap());
            let mut least = u64::MAX;
            for _ in 0..50 {
                let begun = time.now_ns();
                device.read(0, 4096).await.unwrap();
                least = least.min(time.now_ns() - begun);
            }
            assert!((399_000..450_000).contains(&least), "{least} ns");
        });
    }
}
