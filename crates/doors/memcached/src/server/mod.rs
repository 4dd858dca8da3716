//! Connections: listening, handing out, serving, shutting down.
//!
//! One worker accepts and hands connections to all workers in turn. A connection stays on its worker: it reads into a
//! buffer that is given back while the connection is idle, executes every whole command, and sends the replies together.
//! What a client can make the door hold is bounded: lines by [`Limits`](crate::parse::Limits), replies by flushing at
//! 64 KiB plus one object and not reading on from a peer that does not read, and what all connections hold together by
//! budgets of bytes ([`BudgetSizes`](crate::BudgetSizes)).

mod connection;
mod foreign;
mod input;
mod key_dump;
mod reading;
mod reads;
mod receive;
mod sasl;
mod sender;

use crate::config::DoorConfig;
use crate::counters::DoorStats;
use crate::execute::Executor;
use crate::recording::{Recording, Recordings};
use crate::shared::Shared;
use connection::Connection;
use input::BufferPool;
use pumice::{Cx, ObjectCache};
use pumice_device::Device;
use pumice_net::{Arrived, Budgets, Floor, FloorConfig, Refused, Seldom, Stop};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// What a connection hears that is one too many.
const ONE_TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// One worker's part of the door.
struct Worker<D: Device + Clone> {
    executor: Executor<D>,
    buffers: BufferPool,
    stop: Stop,
}

/// The memcached door, bound and ready for its workers. Shared by their threads.
pub struct Door {
    shared: Arc<Shared>,
    floor: Arc<Floor>,
}

impl Door {
    /// Finds out whether it can listen where the configuration says. Nobody can connect before [`Door::listen`], or worker 0 runs.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn bind(mut config: DoorConfig) -> io::Result<Self> {
        // A window fits into a connection's buffer.
        let window = &mut config.limits.keys_window_bytes;
        *window = (*window).min(input::BUFFER_BYTES);
        let floor = Floor::bind(FloorConfig {
            listen: config.listen.clone(),
            workers: config.workers,
            max_connections: config.max_connections,
            one_too_many: ONE_TOO_MANY,
            backlog: config.backlog,
            tls: config.tls.clone(),
            alpn: &[],
            handshake_timeout: config.handshake_timeout,
            drain_timeout: config.drain_timeout,
        })?;
        let largest_value = config.limits.max_value_bytes as usize + 2;
        let connections = Arc::clone(floor.connections());
        Ok(Self {
            floor: Arc::new(floor),
            shared: Arc::new(Shared {
                stats: Arc::new(DoorStats::new(config.workers.max(1), connections)),
                budgets: Budgets::new(config.budgets, largest_value),
                started: Instant::now(),
                recordings: Arc::new(Recordings::new(config.workers.max(1))),
                foreign_said: Seldom::default(),
                config,
            }),
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

    /// Begins to record requests, of one key in `one_in`; `None` while another recording goes on.
    pub fn record(&self, one_in: u64) -> Option<Recording> {
        Recording::begin(&self.shared.recordings, one_in)
    }

    /// Serves one worker's share of the connections until `shutdown` turns true (or its sender is gone), then ends them:
    /// who has connected by then is served, and what has arrived is executed and answered, within the drain timeout.
    ///
    /// To be called once for each of `0..workers`, each on its own thread, inside a `LocalSet` of a current-thread runtime
    /// with I/O and time enabled. Worker 0 accepts for all.
    ///
    /// # Errors
    /// Where the sockets cannot be registered with the event loop.
    ///
    /// # Panics
    /// On an index that is not below the number of workers or was used before.
    pub async fn run_worker<D: Device + Clone>(
        &self,
        index: usize,
        cx: Rc<Cx<D>>,
        cache: Arc<ObjectCache<D>>,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let worker = Rc::new(Worker {
            executor: Executor {
                cx,
                cache,
                shared: Arc::clone(&self.shared),
                index,
            },
            buffers: BufferPool::default(),
            stop: Stop::default(),
        });
        let serve = |arrived| serve(Rc::clone(&worker), Arc::clone(&self.floor), arrived);
        self.floor.run_worker(index, &worker.stop, shutdown, serve).await
    }
}

/// Serves one connection; its place is given back at the end, a panic included.
async fn serve<D: Device + Clone>(worker: Rc<Worker<D>>, floor: Arc<Floor>, arrived: Arrived) {
    let (stream, _guard) = match arrived.open(&worker.stop).await {
        Ok(opened) => opened,
        Err(refused) => {
            match &refused {
                Refused::Unregistered(_) => floor.say_unserved(&refused),
                Refused::Handshake(_) => {
                    worker.executor.stats().counters.ssl_handshake_errors.add(1);
                    tracing::debug!("{refused}");
                }
            }
            return;
        }
    };
    if let Err(error) = Connection::new(stream, Rc::clone(&worker)).serve().await {
        tracing::debug!(%error, "connection ended");
    }
}
