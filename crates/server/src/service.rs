//! The seam between the host and what it serves.

use crate::host::Worker;
use pumice_console::usage;
use pumice_door_admin::{BooksFault, Figures, NotRecorded, Requests};
use pumice_net::Listen;
use pumice_trace::Human;
use std::future::Future;
use std::net::SocketAddr;

/// A part of the budget of DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// What asks for it, as the log names it.
    pub name: &'static str,
    /// How much, in bytes.
    pub bytes: u64,
}

impl Share {
    /// So many bytes for `name`.
    pub fn new(name: &'static str, bytes: u64) -> Self {
        Self { name, bytes }
    }
}

/// What a [`Host`](crate::host::Host) serves.
///
/// The host makes a handle on each worker, opens on worker 0, opens the doors, runs all workers until the server is to stop and all
/// have drained, and closes on worker 0. Nothing here is called for each request: a service gives its door what answers them.
pub trait Service: Send + Sync + Sized + 'static {
    /// What the log says is closed at the end.
    const CLOSED: &'static str;

    /// Counters of which a rise is logged, once a minute at most: room and name of each.
    const WATCHED: &'static [(&'static str, &'static str)] = &[];

    /// The devices of one worker, on its thread alone.
    type Handle: 'static;

    /// What is served, for all workers.
    type Opened: Clone + Send + Sync + 'static;

    /// The shares of the budget of DRAM that it takes. More than the budget together: the start is refused.
    fn plan(&self) -> Vec<Share>;

    /// Makes the handle of a worker, on its event loop.
    ///
    /// # Errors
    /// A device cannot be had; the server ends.
    fn handle(&self, worker: &Worker) -> anyhow::Result<Self::Handle>;

    /// Opens what is served, on worker 0, and logs what was found. Dropped where the server is to stop before that is done.
    ///
    /// # Errors
    /// It cannot be opened; the server ends.
    fn open(&self, handle: &Self::Handle) -> impl Future<Output = anyhow::Result<Self::Opened>>;

    /// Serves on one worker until [`Worker::stop`] turns true, then answers what has arrived, and ends what it began.
    ///
    /// # Errors
    /// The sockets cannot be served; the server ends.
    fn run(
        &self,
        worker: &Worker,
        handle: &Self::Handle,
        opened: &Self::Opened,
    ) -> impl Future<Output = anyhow::Result<()>>;

    /// Called each second on each worker, from its handle on to its end; without `opened` while the start goes on.
    fn tick(&self, handle: &Self::Handle, opened: Option<&Self::Opened>) {
        let _ = (handle, opened);
    }

    /// Closes on worker 0 what was served, after all workers have drained, and logs what is left behind.
    ///
    /// # Errors
    /// It cannot be closed; the next start finds what a crash would leave.
    fn close(
        &self,
        handle: &Self::Handle,
        opened: &Self::Opened,
    ) -> impl Future<Output = anyhow::Result<()>> {
        let _ = (handle, opened);
        std::future::ready(Ok(()))
    }

    /// Its figures, and what limits it now, on any thread. Those of the process, version and readiness are the host's.
    fn figures(&self, opened: Option<&Self::Opened>) -> Figures;

    /// Counts what is resident and compares it with the books.
    ///
    /// # Errors
    /// What does not balance, or why that cannot be said now.
    fn check_books(&self, opened: Option<&Self::Opened>) -> Result<(), BooksFault> {
        let _ = opened;
        Ok(())
    }
}

/// Where clients of a service connect. It is bound before anything is made or written.
pub trait Door: Send + Sync + 'static {
    /// Lets clients connect.
    ///
    /// # Errors
    /// What the system said; the server ends.
    fn listen(&self) -> anyhow::Result<()>;

    /// Its places, as the log names them.
    fn places(&self) -> Vec<String>;

    /// Reads again what says who may connect.
    fn reload(&self) {}

    /// Begins to record requests, of one key in `one_in`.
    ///
    /// # Errors
    /// Why nothing is recorded.
    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        let _ = one_in;
        Err(NotRecorded::Never)
    }
}

/// The names of places: addresses, the unix sockets among `listen`, and addresses with TLS.
pub(crate) fn places(
    protocol: &str,
    addresses: &[SocketAddr],
    tls: &[SocketAddr],
    listen: &[Listen],
) -> Vec<String> {
    let unix = listen.iter().filter_map(|listen| match listen {
        Listen::Unix { path, .. } => Some(format!("{protocol} on unix:{}", path.display())),
        _ => None,
    });
    let addresses = addresses.iter().map(|address| format!("{protocol} on {address}"));
    let tls = tls
        .iter()
        .map(|address| format!("{protocol} with TLS on {address}"));
    addresses.chain(unix).chain(tls).collect()
}

/// Refuses shares that are more than the budget together.
///
/// # Errors
/// Usage, naming the shares and the smallest budget that works.
pub(crate) fn check_plan(shares: &[Share], dram: u64) -> anyhow::Result<()> {
    let needed: u64 = shares.iter().map(|share| share.bytes).sum();
    if needed <= dram {
        return Ok(());
    }
    let named = shares
        .iter()
        .map(|share| format!("{} {}", share.name, Human(share.bytes)));
    let named: Vec<String> = named.collect();
    Err(usage(format!(
        "--dram {:#} is too little for {}; the smallest that works is {} MiB",
        Human(dram),
        named.join(", "),
        needed.div_ceil(1 << 20)
    )))
}
