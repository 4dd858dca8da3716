//! Connections: handshake, requests, replies.
//!
//! A connection stays on its worker. One future reads requests and sends replies. Each request is a task of its own, so requests run
//! concurrently and are answered in any order. A lost connection cancels no request, and a worker ends after the last of them.
//!
//! # Memory
//!
//! A connection has a *window* of bytes, its part of [`DoorConfig::memory_bytes`]. A request takes its part of the window before its data
//! is received, and gives it back when its reply has been sent. While the window is used up, the connection reads no further request. A
//! write or a read above [`PIECE_BYTES`] goes in pieces, one after the other, and takes the bytes of one piece. So no client waits for the
//! memory of another, and memory is bounded. A range to be cached, trimmed or zeroed may have 4 GiB; it goes in pieces, too, and ends after
//! the piece under way if its connection is lost.
//!
//! A simple reply cannot be interleaved with another one. A simple reply in pieces takes the whole window, so that no other request is
//! under way.

mod connection;
mod execute;
mod input;
mod link;

use crate::config::DoorConfig;
use crate::counters::DoorStats;
use crate::export::{Export, SPAN_BYTES};
use crate::protocol::ExportInfo;
use connection::Connection;
use pumice_net::{Arrived, Floor, FloorConfig, Stop};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Bytes of a piece of a long read or write. Pieces end where the export's offset is a multiple of this.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Bytes of the window that a request takes beside its data: for its task and the reply's header.
pub(crate) const REQUEST_COST_BYTES: usize = 4 << 10;

/// Least bytes of a connection: its receive buffer, a request with one piece, and what the export holds beside it.
pub(crate) const LEAST_CONNECTION_BYTES: usize =
    input::BUFFER_BYTES + 2 * REQUEST_COST_BYTES + PIECE_BYTES + 2 * SPAN_BYTES as usize;

/// The NBD door, bound and ready for its workers. Shared by their threads.
pub struct Door {
    config: DoorConfig,
    stats: Arc<DoorStats>,
    floor: Arc<Floor>,
}

/// One worker's part of the door.
struct Worker<E> {
    /// The worker's number.
    index: usize,
    exports: Vec<Rc<E>>,
    infos: Vec<ExportInfo>,
    stats: Arc<DoorStats>,
    config: DoorConfig,
    stop: Stop,
    under_way: UnderWay,
}

impl Door {
    /// Finds out whether it can listen where the configuration says. Nobody can connect before [`Door::listen`], or worker 0 runs.
    ///
    /// # Errors
    /// A [`ConfigError`](crate::ConfigError) as [`io::ErrorKind::InvalidInput`], or what the operating system said, with the address.
    pub fn bind(config: DoorConfig) -> io::Result<Self> {
        config
            .check()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let floor = Floor::bind(FloorConfig {
            listen: config.listen.clone(),
            workers: config.workers,
            max_connections: config.max_connections,
            // NBD has no message for it: the client gets no greeting.
            one_too_many: b"",
            backlog: config.backlog,
            tls: None,
            alpn: &[],
            handshake_timeout: config.handshake_timeout,
            drain_timeout: config.drain_timeout,
        })?;
        let connections = Arc::clone(floor.connections());
        Ok(Self {
            stats: Arc::new(DoorStats::new(
                config.workers.max(1),
                config.exports.len(),
                connections,
            )),
            floor: Arc::new(floor),
            config,
        })
    }

    /// Lets clients connect. Their connections wait in the backlog until the workers run.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn listen(&self) -> io::Result<()> {
        self.floor.listen()
    }

    /// The TCP addresses it listens on, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.floor.local_addrs()
    }

    /// Counters and latency.
    pub fn stats(&self) -> Arc<DoorStats> {
        Arc::clone(&self.stats)
    }

    /// Serves one worker's share of the connections with its handles on the exports, until `shutdown` turns true (or its sender is
    /// dropped). Then it reads no more requests, and answers those under way within the drain timeout. It returns when the last request
    /// has ended, even if that takes longer; replies after the timeout are dropped.
    ///
    /// To be called once for each of `0..workers`, each on its own thread, inside a `LocalSet` of a current-thread runtime
    /// with I/O and time enabled. Worker 0 accepts for all.
    ///
    /// # Errors
    /// The sockets cannot be registered with the event loop.
    ///
    /// # Panics
    /// If `index` is not below the number of workers or was used before, or if there is not one handle for each export.
    pub async fn run_worker<E: Export>(
        &self,
        index: usize,
        exports: Vec<Rc<E>>,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        assert_eq!(
            exports.len(),
            self.config.exports.len(),
            "a handle for each export"
        );
        let infos = self.config.exports.iter().zip(&exports);
        let worker = Rc::new(Worker {
            index,
            infos: infos
                .map(|(named, export)| ExportInfo {
                    name: named.name.clone(),
                    description: named.description.clone(),
                    shape: export.shape(),
                })
                .collect(),
            exports,
            stats: Arc::clone(&self.stats),
            config: self.config.clone(),
            stop: Stop::default(),
            under_way: UnderWay::default(),
        });
        let serve = |arrived| serve(Rc::clone(&worker), Arc::clone(&self.floor), arrived);
        let served = self.floor.run_worker(index, &worker.stop, shutdown, serve).await;
        worker.under_way.ended().await;
        served
    }
}

/// Serves one connection. Its place among `max_connections` is given back when its last request has ended.
async fn serve<E: Export>(worker: Rc<Worker<E>>, floor: Arc<Floor>, arrived: Arrived) {
    let (stream, _guard) = match arrived.open(&worker.stop).await {
        Ok(opened) => opened,
        Err(refused) => return floor.say_unserved(&refused),
    };
    if let Err(error) = Connection::new(stream, worker).serve().await {
        tracing::debug!(%error, "an NBD connection ended");
    }
}

/// Counts requests under way.
#[derive(Clone, Default)]
struct UnderWay(Rc<UnderWayState>);

#[derive(Default)]
struct UnderWayState {
    count: Cell<usize>,
    ended: Notify,
}

/// A request under way, until dropped.
struct OneUnderWay(Rc<UnderWayState>);

impl UnderWay {
    fn enter(&self) -> OneUnderWay {
        self.0.count.set(self.0.count.get() + 1);
        OneUnderWay(Rc::clone(&self.0))
    }

    fn is_none(&self) -> bool {
        self.0.count.get() == 0
    }

    /// Ready when no request is under way.
    async fn ended(&self) {
        while !self.is_none() {
            self.0.ended.notified().await;
        }
    }
}

impl Drop for OneUnderWay {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0 {
            self.0.ended.notify_one();
        }
    }
}

/// Runs a request as a task that ends by itself, also when its connection is lost.
fn spawn_request(worker: &UnderWay, connection: &UnderWay, request: impl Future<Output = ()> + 'static) {
    let under_way = (worker.enter(), connection.enter());
    tokio::task::spawn_local(async move {
        request.await;
        drop(under_way);
    });
}
