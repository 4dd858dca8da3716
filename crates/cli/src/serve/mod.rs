//! `pumice serve`: the server.
//!
//! The main thread reads the settings, opens flash device and sockets, starts the workers and then runs a small event
//! loop of its own for signals and the admin door, so that neither slows a worker.

mod access;
pub(crate) mod config;
mod familiar;
mod figures;
pub(crate) mod flash;
mod limits;
mod listen;
mod log;
mod memory;
mod performance;
mod report;
mod throttle;
mod user;
mod volumes;
mod worker;

pub use familiar::Familiar;

use crate::settings::{Layers, Settings};
use crate::usage::usage;
use access::Access;
use anyhow::{Context, anyhow};
use clap::Args;
use config::ServeConfig;
use figures::{ServerFigures, Watch};
use flash::Target;
use memory::{Connections, Division};
use pumice::{CacheOptions, IndexOptions, LayoutOptions};
use pumice_door_admin::Source;
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{Door, DoorConfig};
use pumice_world::SystemClock;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use volumes::VolumesConfig;
use worker::{Common, Opened};

/// Of a cascade index, mappings in DRAM for each on flash.
pub(crate) const TIER1_SHARE: f64 = 0.03;

/// Flags of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// A file of settings; every flag below but --reformat, --accept-clock and --throttle is a key of it, and an environment variable
    /// (--flash-size is `flash-size` there and PUMICE_FLASH_SIZE)
    #[arg(long, value_name = "FILE", env = "PUMICE_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,

    /// Make an empty cache of the flash device, whatever is on it
    #[arg(long)]
    reformat: bool,

    /// Believe a clock that is more than a day ahead of the last time that the flash device saw, now and not at the second start
    #[arg(long)]
    accept_clock: bool,

    /// Make devices as slow as other kinds would be, to try them out: dram, nvm, optane, nvme, sata or hdd, or N times as slow, for
    /// example flash=nvme*40. What the device really takes comes on top where it is more
    #[arg(long, value_name = "KINDS")]
    throttle: Option<throttle::Kinds>,

    #[command(flatten)]
    familiar: Familiar,
}

/// Runs a server to its end.
///
/// # Errors
/// Usage, or what failed.
pub fn run(mut args: ServeArgs) -> anyhow::Result<()> {
    let warnings = args.familiar.fold_into(&mut args.settings)?;
    let layers = Layers::collect(args.settings, args.config.as_deref())?;
    log::start(&layers.log_format(), args.familiar.verbosity)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if let Some(config) = VolumesConfig::resolve(&layers, args.reformat, &args.familiar)? {
        if args.accept_clock || args.throttle.is_some() {
            return Err(usage(
                "--accept-clock and --throttle say nothing of volumes; leave them out with --nbd",
            ));
        }
        return volumes::run(&config);
    }
    let config = ServeConfig::resolve(&layers, args.reformat, &args.familiar)?;
    // Keys and passwords are often root's alone.
    let access = Access::load(&config)?;
    if let Some(user) = &config.user {
        user::become_user(user)?;
    }
    limits::allow_open_files(config.max_connections, config.threads);
    let kinds = args.throttle.unwrap_or_default();
    if kinds.performance_tier.is_some() && config.performance_tier.is_none() {
        return Err(usage(
            "--throttle: there is no performance tier; give --performance-tier",
        ));
    }
    // Whether it can work is known before anything is made.
    let target = flash::look(&config)?;
    let connections = Connections::plan(&config);
    let division = memory::divide(&config, &target, &connections)?;
    let performance = performance::look(&config, &target, division.plan.block_bytes)?;
    // Before the flash file is made: a failed start leaves no new file behind.
    let door = bind(&config, &connections, &access)?;
    let admin = config.admin.map(bind_admin).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let _pid_file = config.pid_file.as_deref().map(PidFile::write).transpose()?;
    let flash = target.open(&config)?;
    let performance = match performance {
        None => None,
        Some(Err(left_out)) => Some(Err(left_out)),
        Some(Ok(wanted)) => Some(wanted.open(&config, throttle::throttle(kinds.performance_tier))?),
    };
    let (performance, tier_left_out) = match performance.transpose() {
        Ok(performance) => (performance, None),
        Err(reason) => (None, Some(reason)),
    };
    report::start(&config, &flash, &target, &division, performance.as_ref());
    let clock = SystemClock::new(target.time);
    if clock.behind_secs() > 86_400 {
        tracing::warn!(
            "the clock is {} days behind the last time that the flash device saw: times to live count from that, and absolute times of \
             clients before it are past, until the clock has caught up or the cache is made anew with --reformat",
            clock.behind_secs() / 86_400
        );
    }
    runtime
        .block_on(throttle::test_all(&kinds))
        .context("--throttle")?;
    let (stop, stopping) = watch::channel(false);
    let common = Arc::new(Common {
        clock: Arc::new(clock),
        flash,
        checkpoint_bytes: target.checkpoint_bytes,
        options: CacheOptions {
            accept_clock: args.accept_clock,
            random: random()?,
            has_tier: config.performance_tier.is_some(),
            ..cache_options(&config, &target, &division)?
        },
        throttle: throttle::throttle(kinds.flash),
        flash_timeout_secs: config.flash_timeout_secs,
        counters: (0..config.threads).map(|_| Arc::default()).collect(),
        performance,
        tier_left_out,
        door,
        workers: config.threads,
        stop: stopping,
        opened: watch::Sender::new(None),
        drained: watch::Sender::new(0),
        closed: watch::Sender::new(false),
    });
    let figures = Arc::new(ServerFigures::new(Arc::clone(&common), config.dram));
    runtime.block_on(async {
        tokio::spawn(watch_figures(Arc::clone(&figures)));
        let address = match admin {
            None => None,
            Some(listener) => Some(start_admin(listener, Arc::clone(&figures))?),
        };
        supervise(&config, &access, common, &stop, address).await
    })
}

/// How a cache is opened with these settings and this division of the budget.
fn cache_options(config: &ServeConfig, target: &Target, division: &Division) -> anyhow::Result<CacheOptions> {
    let plan = &division.plan;
    Ok(CacheOptions {
        dram_bytes: usize::try_from(plan.pool).context("the DRAM budget does not fit this machine")?,
        buffers_max: plan.buffers,
        block_bytes: Some(plan.block_bytes),
        reformat: config.reformat,
        layout: LayoutOptions {
            virtual_keys_max: plan.virtual_keys,
            ..target.layout
        },
        index: IndexOptions::of(division.index, TIER1_SHARE),
        index_heap_bytes: usize::try_from(plan.index_heap).unwrap_or(usize::MAX),
        flash_write: config.flash_write,
        durability: config.durability,
        flush_interval_secs: config.flush_interval_secs,
        item_bytes_max: config.max_item_size as usize,
        ..CacheOptions::default()
    })
}

/// What a server with these settings makes of an empty flash tier of so many bytes, for a replay.
///
/// # Errors
/// Usage, as [`memory::divide`].
pub(crate) fn options_of_empty(config: &ServeConfig, capacity: u64) -> anyhow::Result<CacheOptions> {
    let target = Target::empty(config, capacity);
    let division = memory::divide(config, &target, &Connections::plan(config))?;
    cache_options(config, &target, &division)
}

fn bind(config: &ServeConfig, connections: &Connections, access: &Access) -> anyhow::Result<Door> {
    Door::bind(DoorConfig {
        listen: config.memcached.clone(),
        workers: config.threads,
        max_connections: config.max_connections,
        limits: Limits {
            max_value_bytes: config.max_item_size,
            ..Limits::default()
        },
        backlog: config.backlog,
        budgets: connections.budgets,
        idle_timeout: config.idle_timeout,
        auth: access.auth.clone(),
        tls: access.tls.clone(),
        limit_maxbytes: config.dram,
        ..DoorConfig::default()
    })
    .context("memcached door (--memcached chooses another address)")
}

fn bind_admin(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error: std::io::Error| {
        anyhow!("admin door: cannot listen on {address}: {error} (--admin chooses another address, or off)")
    })
}

/// Serves the admin door on the event loop of this thread; returns its address.
fn start_admin<S: Source>(listener: TcpListener, figures: Arc<S>) -> anyhow::Result<SocketAddr> {
    let address = listener.local_addr().context("admin door")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("admin door")?;
    tokio::spawn(pumice_door_admin::serve(listener, figures));
    Ok(address)
}

/// Warns of counters that rise and should not.
async fn watch_figures(figures: Arc<ServerFigures>) {
    let mut watch = Watch::default();
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        for line in watch.look(&figures.figures().groups, Instant::now()) {
            tracing::warn!("{line}");
        }
    }
}

/// Random numbers for a new cache.
fn random() -> anyhow::Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    let mut source = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    for number in &mut bytes {
        source.read_exact(number).context("cannot read /dev/urandom")?;
    }
    Ok(bytes.map(u64::from_le_bytes))
}

/// A file with the process id, removed at the end.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: &std::path::Path) -> anyhow::Result<Self> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write the process id to {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How a worker ended.
struct Ended {
    index: usize,
    result: anyhow::Result<Option<worker::Closed>>,
}

fn start_worker(
    index: usize,
    common: &Arc<Common>,
    ended: mpsc::UnboundedSender<Ended>,
) -> anyhow::Result<JoinHandle<()>> {
    let common = Arc::clone(common);
    std::thread::Builder::new()
        .name(format!("pumice-worker-{index}"))
        .spawn(move || {
            let run = std::panic::AssertUnwindSafe(|| worker::run(index, &common));
            let result =
                std::panic::catch_unwind(run).unwrap_or_else(|_| Err(anyhow!("worker {index} panicked")));
            // The main thread outlives the workers.
            let _ = ended.send(Ended { index, result });
        })
        .context("cannot start a worker thread")
}

/// Starts the workers, announces readiness, waits for a signal or a failure, and sees to an orderly end.
async fn supervise(
    config: &ServeConfig,
    access: &Access,
    common: Arc<Common>,
    stop: &watch::Sender<bool>,
    admin: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let (sender, mut ended) = mpsc::unbounded_channel();
    let mut threads = Vec::new();
    for index in 0..common.workers {
        threads.push(start_worker(index, &common, sender.clone())?);
    }
    drop(sender);
    let mut opened = common.opened.subscribe();
    let mut is_ready = false;
    let mut running = common.workers;
    let mut failure = None;
    let mut closing = None;
    let mut stops = Stops::default();
    while running > 0 {
        tokio::select! {
            Ok(now) = opened.wait_for(Option::is_some), if !is_ready => {
                is_ready = true;
                if let Some(Opened { recovered, took, .. }) = &*now {
                    report::recovered(recovered, *took);
                }
                report::ready(config, &common.door, admin);
            }
            asked = signals.next() => {
                match asked {
                    Asked::Reload => access.reload(),
                    Asked::Stop => match stops.ask(Instant::now()) {
                        Stop::Begin => {
                            stop.send_replace(true);
                            report::line(format_args!("stopping"));
                        }
                        Stop::Same => report::line(format_args!(
                            "a second signal within a second is the same request; the next ends the server without closing the cache"
                        )),
                        Stop::AtOnce => {
                            tracing::error!("another signal to stop: ended without closing the cache");
                            std::process::exit(1);
                        }
                    },
                }
            }
            Some(Ended { index, result }) = ended.recv() => {
                running -= 1;
                match result {
                    Ok(closed) => closing = closing.or(closed),
                    Err(error) => {
                        failure.get_or_insert(error.context(format!("worker {index}")));
                        // The others end too. Where this one cannot help to close, nobody can.
                        stop.send_replace(true);
                        common.closed.send_replace(true);
                        common.drained.send_replace(common.workers);
                    }
                }
            }
        }
    }
    for thread in threads {
        // A panic was caught and reported already.
        let _ = thread.join();
    }
    match (failure, closing) {
        (Some(error), _) => Err(error),
        (None, closed) => {
            report::stopped(closed.as_ref());
            Ok(())
        }
    }
}

/// SIGTERM and SIGINT, which end the server, and SIGHUP.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}

/// Signals to stop so far.
#[derive(Default)]
struct Stops {
    first: Option<Instant>,
    is_repeated: bool,
}

/// What a signal to stop means.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Begin,
    Same,
    AtOnce,
}

impl Stops {
    /// The first begins an orderly end. Programs that end a process group (`timeout`, a terminal) send one more within a moment, which
    /// asks for nothing else.
    fn ask(&mut self, now: Instant) -> Stop {
        match self.first {
            None => {
                self.first = Some(now);
                Stop::Begin
            }
            Some(first) if !self.is_repeated && now - first <= Duration::from_secs(1) => {
                self.is_repeated = true;
                Stop::Same
            }
            Some(_) => Stop::AtOnce,
        }
    }
}

/// What a signal asks for.
enum Asked {
    Stop,
    Reload,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_settings_is_what_help_says() {
        let mut page = String::from("| flag | meaning | default |\n| --- | --- | --- |\n");
        let command = ServeArgs::augment_args(clap::Command::new("serve"));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let name = argument.get_long().unwrap();
            let value = argument
                .get_value_names()
                .filter(|_| argument.get_action().takes_values());
            let value = value.map_or_else(String::new, |names| format!(" {}", names[0]));
            let help = argument.get_help().unwrap().to_string().replace('\n', " ");
            let (meaning, default) = help.split_once(" [default: ").unwrap_or((&help, "]"));
            let default = default.strip_suffix(']').expect("the default stands at the end");
            page += &format!("| `--{name}{value}` | {meaning} | {default} |\n");
        }
        crate::documents::check("operations.md", "table of settings", &page);
    }

    #[test]
    fn a_second_signal_within_a_second_is_the_same_request() {
        let start = Instant::now();
        let asked = |milliseconds: &[u64]| -> Vec<Stop> {
            let mut stops = Stops::default();
            let times = milliseconds.iter().map(|ms| start + Duration::from_millis(*ms));
            times.map(|time| stops.ask(time)).collect()
        };
        assert_eq!(asked(&[0, 999]), [Stop::Begin, Stop::Same]);
        assert_eq!(asked(&[0, 1001]), [Stop::Begin, Stop::AtOnce]);
        assert_eq!(asked(&[0, 10, 20]), [Stop::Begin, Stop::Same, Stop::AtOnce]);
    }
}
