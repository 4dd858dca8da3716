//! Connections: from the floor to hyper, and its requests to the proxy.

pub(crate) mod body;
mod connection;
mod noted;

use crate::access_log::AccessLog;
use crate::config::DoorConfig;
use crate::counters::DoorStats;
use crate::key::Scheme;
use crate::origin::Origin;
use crate::proxy::{Flights, Proxy, Spared, Voids};
use anyhow::Context;
use body::Progress;
use http::{HeaderValue, StatusCode};
pub(crate) use noted::Noted;
use pumice::{Cx, ObjectCache};
use pumice_device::Device;
use pumice_net::{BudgetSizes, Budgets, Floor, FloorConfig, Stop};
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What a connection hears that is one too many.
const ONE_TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The longest piece of a body that is held as one; budgets have room for two.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// What all workers share.
pub(crate) struct Shared {
    pub(crate) config: DoorConfig,
    pub(crate) stats: Arc<DoorStats>,
    pub(crate) budgets: Budgets,
    /// What this server calls itself in `Via`; no other has the same.
    pub(crate) pseudonym: String,
    /// Requests to the origin that others may join.
    pub(crate) flights: Arc<Flights>,
    /// Keys for which the origin is left alone.
    pub(crate) spared: Spared,
    pub(crate) voids: Voids,
    pub(crate) log: Option<AccessLog>,
}

/// A number that nobody can guess.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The HTTP door, bound and ready for its workers. Shared by their threads.
pub struct Door {
    shared: Arc<Shared>,
    floor: Arc<Floor>,
}

/// One worker's part of the door.
struct Worker<D: Device + Clone> {
    proxy: Rc<Proxy<D>>,
    floor: Arc<Floor>,
    stop: Stop,
}

/// A connection's client.
pub(crate) struct Client {
    /// `None` over a unix socket.
    pub(crate) address: Option<IpAddr>,
    pub(crate) scheme: Scheme,
    /// Requests so far.
    requests: Cell<u64>,
    /// Requests whose answers are not sent yet.
    under_way: Cell<usize>,
    /// An answer has ended before its end.
    is_cut: Cell<bool>,
    is_http2: bool,
    /// Of the answers that HTTP/2 sends at once.
    progress: RefCell<Vec<Weak<Progress>>>,
}

impl Client {
    /// What is to be told how an answer gets on: over HTTP/2, where a client that gives one stream no window may take those of others.
    pub(crate) fn progress(&self) -> Option<Rc<Progress>> {
        self.is_http2.then(|| {
            let progress = Rc::default();
            let mut all = self.progress.borrow_mut();
            all.retain(|other| other.strong_count() > 0);
            all.push(Rc::downgrade(&progress));
            progress
        })
    }

    /// Whether it has taken nothing of one of its answers for so long.
    fn is_stalled(&self, timeout: Duration) -> bool {
        let all = self.progress.borrow();
        let mut alive = all.iter().filter_map(Weak::upgrade);
        alive.any(|progress| progress.is_stalled(timeout))
    }
}

/// A request whose answer is not sent yet, and what the access log is to say of it.
pub(crate) struct UnderWay {
    client: Rc<Client>,
    noted: Option<Box<Noted>>,
}

impl UnderWay {
    pub(crate) fn begin(client: &Rc<Client>, noted: Option<Box<Noted>>) -> Self {
        client.requests.set(client.requests.get() + 1);
        client.under_way.set(client.under_way.get() + 1);
        Self {
            client: Rc::clone(client),
            noted,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Notes what is answered.
    pub(crate) fn answered(&mut self, status: StatusCode, cache: Option<&HeaderValue>) {
        if let Some(noted) = &mut self.noted {
            noted.answered(status, cache);
        }
    }

    /// Notes that the answer is over.
    pub(crate) fn ended(&mut self, log: Option<&AccessLog>, sent: u64) {
        if let (Some(noted), Some(log)) = (self.noted.take(), log) {
            noted.write(log, sent);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let under_way = &self.client.under_way;
        under_way.set(under_way.get() - 1);
    }
}

impl Door {
    /// Finds out whether it can listen where the configuration says. Nobody can connect before [`Door::listen`], or worker 0 runs.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn bind(config: DoorConfig) -> anyhow::Result<Self> {
        let floor = Floor::bind(FloorConfig {
            listen: config.listen.clone(),
            workers: config.workers,
            max_connections: config.max_connections,
            one_too_many: ONE_TOO_MANY,
            backlog: config.backlog,
            tls: config.tls.clone(),
            alpn: &[b"h2", b"http/1.1", b"http/1.0"],
            handshake_timeout: config.handshake_timeout,
            drain_timeout: config.drain_timeout,
        })?;
        let sizes = BudgetSizes {
            input: config.memory_bytes / 4,
            output: config.memory_bytes / 4 * 3,
        };
        let connections = Arc::clone(floor.connections());
        let log = config.access_log.as_ref();
        let log = log.map(|log| AccessLog::open(log, config.rules.log_hide()));
        let log = log.transpose().context("the access log")?;
        let log_dropped = log.as_ref().map(AccessLog::dropped_cell).unwrap_or_default();
        let shared = Shared {
            stats: Arc::new(DoorStats::new(config.workers.max(1), connections, log_dropped)),
            budgets: Budgets::new(sizes, PIECE_BYTES_MAX),
            pseudonym: format!("pumice-{:016x}", random()),
            flights: Arc::default(),
            spared: Spared::default(),
            voids: Voids::default(),
            log,
            config,
        };
        Ok(Self {
            floor: Arc::new(floor),
            shared: Arc::new(shared),
        })
    }

    /// Lets clients connect. Their connections wait in the backlog until the workers run.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn listen(&self) -> io::Result<()> {
        self.floor.listen()
    }

    /// The TCP addresses it listens on, with the ports that the system chose; without those of TLS.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.floor.local_addrs()
    }

    /// The addresses on which it speaks TLS, with the ports that the system chose.
    pub fn tls_addrs(&self) -> &[SocketAddr] {
        self.floor.tls_addrs()
    }

    /// What the door counts.
    pub fn stats(&self) -> Arc<DoorStats> {
        Arc::clone(&self.shared.stats)
    }

    /// Serves one worker's share of the connections until `shutdown` turns true (or its sender is gone), then ends them: answers under way
    /// are sent, within the drain timeout.
    ///
    /// To be called once for each of `0..workers`, each on its own thread, inside a `LocalSet` of a current-thread runtime
    /// with I/O and time enabled. Worker 0 accepts for all.
    ///
    /// # Errors
    /// Where the sockets cannot be registered with the event loop, or the origin's settings are of no use.
    ///
    /// # Panics
    /// On an index that is not below the number of workers or was used before.
    pub async fn run_worker<D: Device + Clone>(
        &self,
        index: usize,
        cx: Rc<Cx<D>>,
        cache: Arc<ObjectCache<D>>,
        shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let proxy = Proxy {
            cx,
            cache,
            origin: Origin::new(&self.shared.config.origin).context("the origin")?,
            shared: Arc::clone(&self.shared),
            index,
            pins: Rc::default(),
        };
        let worker = Rc::new(Worker {
            proxy: Rc::new(proxy),
            floor: Arc::clone(&self.floor),
            stop: Stop::default(),
        });
        let serve = |arrived| connection::serve(Rc::clone(&worker), arrived);
        self.floor
            .run_worker(index, &worker.stop, shutdown, serve)
            .await?;
        Ok(())
    }
}
