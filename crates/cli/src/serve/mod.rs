//! `pumice serve`: the server.
//!
//! The main thread reads the settings, opens flash device and sockets, starts the workers and then runs a small event
//! loop of its own for signals and the admin door, so that neither slows a worker.

mod access;
pub(crate) mod config;
mod course;
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
pub(crate) mod volumes;
mod worker;

pub use familiar::Familiar;

use crate::settings::{Layers, Settings};
use crate::usage::usage;
use access::Access;
use anyhow::{Context, anyhow};
use clap::Args;
use config::ServeConfig;
use course::Course;
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
use std::time::{Duration, Instant};
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
    /// example flash=nvme*40, or with --nbd cache=optane*40,backing=nvme*40. What the device really takes comes on top where it is more
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
        if args.accept_clock {
            return Err(usage(
                "--accept-clock says nothing of volumes; leave it out with --nbd",
            ));
        }
        let kinds = args.throttle.unwrap_or_default();
        if let Some(other) = kinds.beside(&["cache", "backing"]) {
            return Err(usage(format!(
                "--throttle {other}=: a server of volumes has cache= and backing="
            )));
        }
        return volumes::run(&config, &kinds);
    }
    let config = ServeConfig::resolve(&layers, args.reformat, &args.familiar)?;
    // Keys and passwords are often root's alone.
    let access = Access::load(&config)?;
    if let Some(user) = &config.user {
        user::become_user(user)?;
    }
    limits::allow_open_files(config.max_connections, config.threads, 2);
    let kinds = args.throttle.unwrap_or_default();
    if let Some(other) = kinds.beside(&["flash", "performance-tier"]) {
        return Err(usage(format!(
            "--throttle {other}=: that is of volumes; give --nbd, --backing and --cache"
        )));
    }
    if kinds.performance_tier.is_some() && config.performance_tier.is_none() {
        return Err(usage(
            "--throttle: there is no performance tier; give --performance-tier",
        ));
    }
    // Whether it can work is known before anything is made.
    let target = flash::look(&config)?;
    let connections = Connections::plan(&config, config.dram);
    let division = memory::divide(&config, &target)?;
    let performance = performance::look(&config, &target, division.plan.block_bytes)?;
    // Before the flash file is made: a failed start leaves no new file behind.
    let door = bind(&config, &connections, &access)?;
    let admin = config.admin.map(bind_admin).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let _pid_file = config.pid_file.as_deref().map(PidFile::write).transpose()?;
    limits::outlive_large_files(&runtime)?;
    let (flash, new_file) = target.open(&config)?;
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
    let common = Arc::new(Common {
        clock: Arc::new(clock),
        flash,
        checkpoint_bytes: target.checkpoint_bytes,
        options: CacheOptions {
            accept_clock: args.accept_clock,
            absence_secs_max: config.max_absence_secs,
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
        course: Course::new(config.threads),
    });
    let figures = Arc::new(ServerFigures::new(
        Arc::clone(&common),
        config.dram,
        config.endurance,
    ));
    runtime.block_on(async {
        tokio::spawn(watch_figures(Arc::clone(&figures)));
        let address = match admin {
            None => None,
            Some(listener) => Some(start_admin(listener, Arc::clone(&figures))?),
        };
        let work = {
            let common = Arc::clone(&common);
            move |index| worker::run(index, &common)
        };
        let ready = |opened: &Opened| {
            new_file.keep();
            common.performance.iter().for_each(|tier| tier.new_file.keep());
            report::recovered(&opened.recovered, opened.took);
            report::ready(&config, &common.door, address);
        };
        let closed = common.course.run(work, ready, || access.reload()).await?;
        report::lifetime(&figures.pace());
        report::stopped(closed.as_ref());
        Ok(())
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
        admission: config.admission,
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
    let division = memory::divide(config, &target)?;
    cache_options(config, &target, &division)
}

/// The smallest budget of DRAM that a server with these settings takes for so many bytes of flash.
pub(crate) fn smallest_dram(config: &ServeConfig, capacity: u64) -> Option<u64> {
    memory::smallest(config, &Target::empty(config, capacity), 1)
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

/// Warns of counters that rise and should not, and says each day what the flash device has to take.
async fn watch_figures(figures: Arc<ServerFigures>) {
    let mut watch = Watch::default();
    let (day, mut said) = (Duration::from_secs(86_400), Instant::now());
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        if said.elapsed() >= day {
            said += day;
            report::lifetime(&figures.pace());
        }
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
}
