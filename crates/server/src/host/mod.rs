//! What every service shares: the settings of a process, worker threads, signals, drain, tick, figures and readiness.
//!
//! The main thread checks settings and devices, binds doors, starts the workers, and then runs a small event loop of its own for signals
//! and the admin door, so that neither slows a worker.

pub(crate) mod compute;
pub(crate) mod config;
mod course;
pub(crate) mod figures;
pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod listen;
mod log;
mod user;
mod worker;

pub use compute::{ComputeThreads, Jobs};
pub use config::{HostConfig, memory_bytes};
pub use log::start as start_log;
pub use worker::{RING_ENTRIES, Tasks, Worker, drive, each_second};

use crate::service::{Door, Service, check_plan};
use crate::throttle::{self, Kinds};
use anyhow::{Context, anyhow};
use course::Course;
use figures::{HostFigures, Watch};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Logs a line.
pub fn line(text: fmt::Arguments<'_>) {
    tracing::info!("{text}");
}

/// A process that serves.
pub struct Host<'a> {
    /// Its settings.
    pub config: &'a HostConfig,
    /// How slow devices are to be.
    pub kinds: Kinds,
    /// Threads that compute for event loops, if the service has started any.
    pub compute: Option<ComputeThreads>,
}

/// A service that runs, for all threads.
pub(crate) struct Running<S: Service> {
    service: S,
    doors: Vec<Arc<dyn Door>>,
    course: Course<S::Opened>,
    jobs: Option<Arc<Jobs>>,
    dram: u64,
    started: Instant,
}

impl<'a> Host<'a> {
    /// A process with these settings. Gives up root, if it is to; so what root alone can read has been read.
    ///
    /// # Errors
    /// There is no such user, or the system refuses.
    pub fn new(config: &'a HostConfig, kinds: Kinds) -> anyhow::Result<Self> {
        if let Some(user) = &config.user {
            user::become_user(user)?;
        }
        Ok(Self {
            config,
            kinds,
            compute: None,
        })
    }

    /// Serves until a signal or a failure. `prepare` makes and opens devices: all else has been checked by then, and its doors are bound.
    ///
    /// # Errors
    /// Usage, or what failed.
    pub fn run<S: Service>(
        mut self,
        doors: Vec<Arc<dyn Door>>,
        prepare: impl FnOnce(&mut Self) -> anyhow::Result<S>,
    ) -> anyhow::Result<()> {
        let admin = self.config.admin.map(bind_admin).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start an event loop")?;
        let _pid_file = self.config.pid_file.as_deref().map(PidFile::write).transpose()?;
        limits::outlive_large_files(&runtime)?;
        let service = prepare(&mut self)?;
        check_plan(&service.plan(), self.config.dram)?;
        runtime
            .block_on(throttle::test_all(&self.kinds))
            .context("--throttle")?;
        let server = Arc::new(Running {
            service,
            doors,
            course: Course::new(self.config.threads),
            jobs: self.compute.as_ref().map(ComputeThreads::jobs),
            dram: self.config.dram,
            started: Instant::now(),
        });
        runtime.block_on(server.serve(admin))
    }
}

impl<S: Service> Running<S> {
    async fn serve(self: &Arc<Self>, admin: Option<TcpListener>) -> anyhow::Result<()> {
        tokio::spawn(Arc::clone(self).watch());
        let figures = Arc::new(HostFigures(Arc::clone(self)));
        let mut places: Vec<String> = self.doors.iter().flat_map(|door| door.places()).collect();
        if let Some(listener) = admin {
            places.push(format!(
                "admin on {}",
                listener.local_addr().context("admin door")?
            ));
            let listener = tokio::net::TcpListener::from_std(listener).context("admin door")?;
            tokio::spawn(pumice_door_admin::serve(listener, figures));
        }
        let server = Arc::clone(self);
        let work = move |index| worker::run(index, &server);
        let ready = || line(format_args!("ready: {}", places.join(", ")));
        let reload = || self.doors.iter().for_each(|door| door.reload());
        match self.course.run(work, ready, reload).await? {
            Some(took) => line(format_args!(
                "stopped: {} closed in {:.3} s",
                S::CLOSED,
                took.as_secs_f64()
            )),
            None => line(format_args!("stopped: before the start had ended")),
        }
        Ok(())
    }

    /// Warns of counters that rise and should not.
    async fn watch(self: Arc<Self>) {
        let mut watch = Watch::new(S::WATCHED);
        while !S::WATCHED.is_empty() {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let figures = self.service.figures(self.course.served().as_ref());
            for line in watch.look(&figures.groups, Instant::now()) {
                tracing::warn!("{line}");
            }
        }
    }
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

/// Random numbers for a new cache.
pub(crate) fn random() -> anyhow::Result<[u64; 2]> {
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
    fn write(path: &Path) -> anyhow::Result<Self> {
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
