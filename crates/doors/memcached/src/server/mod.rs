//! Connections: listening, handing out, serving, shutting down.
//!
//! One worker accepts and hands connections to all workers in turn. A connection stays on its worker: it reads into a
//! buffer that is given back while the connection is idle, executes every whole command, and sends the replies together.
//! What a client can make the door hold is bounded: lines by [`Limits`](crate::parse::Limits), replies by flushing at
//! 64 KiB plus one object and not reading on from a peer that does not read, and what all connections hold together by
//! budgets of bytes ([`BudgetSizes`](crate::BudgetSizes)).

mod accept;
mod connection;
mod foreign;
mod input;
mod key_dump;
mod progress;
mod reading;
mod reads;
mod receive;
mod sender;
mod stream;

use crate::budget::Budgets;
use crate::config::DoorConfig;
use crate::counters::DoorStats;
use crate::execute::Executor;
use crate::seldom::Seldom;
use crate::shared::Shared;
use accept::Listener;
use connection::Connection;
use input::BufferPool;
use pumice::{Cx, ObjectCache};
use pumice_device::Device;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stream::{Accepted, Registered, Stream};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::Accept;

/// A place among the open connections, given back when dropped.
struct Guard {
    stats: Arc<DoorStats>,
}

impl Guard {
    /// A place, unless there are too many connections. Only the accepting worker calls this.
    fn take(shared: &Shared) -> Option<Self> {
        let stats = &shared.stats;
        if stats.curr_connections.load(Ordering::Relaxed) >= shared.config.max_connections as u64 {
            stats.rejected_connections.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("a connection is turned away: there are --max-connections");
            return None;
        }
        stats.curr_connections.fetch_add(1, Ordering::Relaxed);
        stats.total_connections.fetch_add(1, Ordering::Relaxed);
        Some(Self {
            stats: Arc::clone(stats),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stats.curr_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on its way to a worker.
struct Handover {
    accepted: Accepted,
    guard: Guard,
}

/// One worker's part of the door.
struct Worker<D: Device + Clone> {
    executor: Executor<D>,
    buffers: BufferPool,
    /// Set at shutdown: connections end when they have executed what was sent to them.
    stopping: Cell<bool>,
    /// Wakes the connections that wait for their peers then.
    stopped: Notify,
}

/// The memcached door, bound and ready for its workers. Shared by their threads.
pub struct Door {
    shared: Arc<Shared>,
    tcp_addrs: Vec<SocketAddr>,
    tls_addrs: Vec<SocketAddr>,
    listeners: Mutex<Vec<Listener>>,
    senders: Vec<UnboundedSender<Handover>>,
    receivers: Mutex<Vec<Option<UnboundedReceiver<Handover>>>>,
    /// Turns true when no more connections are handed out.
    accepted_all: watch::Sender<bool>,
}

impl Door {
    /// Binds every socket of the configuration. Connections wait in the backlog until the workers run.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn bind(mut config: DoorConfig) -> io::Result<Self> {
        // A window fits into a connection's buffer.
        let window = &mut config.limits.keys_window_bytes;
        *window = (*window).min(input::BUFFER_BYTES);
        let listeners = config
            .listen
            .iter()
            .map(|listen| Listener::bind(listen, &config))
            .collect::<io::Result<Vec<_>>>()?;
        let workers = config.workers.max(1);
        let largest_value = config.limits.max_value_bytes as usize + 2;
        let (senders, receivers) = (0..workers)
            .map(|_| {
                let (sender, receiver) = unbounded_channel();
                (sender, Some(receiver))
            })
            .unzip();
        Ok(Self {
            tcp_addrs: listeners.iter().filter_map(Listener::tcp_addr).collect(),
            tls_addrs: listeners.iter().filter_map(Listener::tls_addr).collect(),
            accepted_all: watch::Sender::new(false),
            listeners: Mutex::new(listeners),
            senders,
            receivers: Mutex::new(receivers),
            shared: Arc::new(Shared {
                stats: Arc::new(DoorStats::new(workers)),
                budgets: Budgets::new(config.budgets, largest_value),
                started: Instant::now(),
                foreign_said: Seldom::default(),
                accept_said: Seldom::default(),
                config,
            }),
        })
    }

    /// The TCP addresses it listens on, with the ports that the system chose; without those of TLS.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.tcp_addrs
    }

    /// The addresses on which it speaks TLS, with the ports that the system chose.
    pub fn tls_addrs(&self) -> &[SocketAddr] {
        &self.tls_addrs
    }

    /// What the door counts.
    pub fn stats(&self) -> Arc<DoorStats> {
        Arc::clone(&self.shared.stats)
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
        mut shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let mut receiver = self.receivers.lock().unwrap_or_else(PoisonError::into_inner)[index]
            .take()
            .expect("each worker runs once");
        let worker = Rc::new(Worker {
            executor: Executor {
                cx,
                cache,
                shared: Arc::clone(&self.shared),
                index,
            },
            buffers: BufferPool::default(),
            stopping: Cell::new(false),
            stopped: Notify::new(),
        });
        let mut acceptors = JoinSet::new();
        let mut accepting = None;
        if index == 0 {
            accepting = Some(Accepting(&self.accepted_all));
            let next = Arc::new(AtomicUsize::new(0));
            let listeners =
                std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
            for listener in listeners {
                let accept = accept::accept(
                    listener,
                    Arc::clone(&self.shared),
                    self.senders.clone(),
                    Arc::clone(&next),
                    shutdown.clone(),
                );
                acceptors.spawn_local(accept);
            }
        }
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                handover = receiver.recv() => {
                    let Some(handover) = handover else { break };
                    connections.spawn_local(serve(Rc::clone(&worker), handover));
                }
                Some(_) = connections.join_next() => {}
                Some(ended) = acceptors.join_next() => ended??,
                _ = shutdown.wait_for(|stop| *stop) => break,
            }
        }
        worker.stopping.set(true);
        worker.stopped.notify_waiters();
        let drain = async {
            // They take what waits in the backlogs, and close the listening sockets.
            while acceptors.join_next().await.is_some() {}
            drop(accepting);
            // Fails only with the door.
            let _ = self.accepted_all.subscribe().wait_for(|all| *all).await;
            while let Ok(handover) = receiver.try_recv() {
                connections.spawn_local(serve(Rc::clone(&worker), handover));
            }
            while connections.join_next().await.is_some() {}
        };
        if tokio::time::timeout(self.shared.config.drain_timeout, drain)
            .await
            .is_err()
        {
            connections.shutdown().await;
        }
        Ok(())
    }
}

/// Says at its end that no more connections are handed out.
struct Accepting<'d>(&'d watch::Sender<bool>);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Serves one connection; its place is given back at the end, a panic included.
async fn serve<D: Device + Clone>(worker: Rc<Worker<D>>, handover: Handover) {
    let Handover {
        accepted,
        guard: _guard,
    } = handover;
    let registered = match Stream::register(accepted) {
        Ok(registered) => registered,
        Err(error) => {
            if worker.executor.shared.accept_said.is_due() {
                tracing::warn!(%error, "cannot serve a connection");
            }
            return;
        }
    };
    let stream = match registered {
        Registered::Ready(stream) => stream,
        Registered::Handshake(accept) => match Box::pin(shake_hands(&worker, accept)).await {
            Ok(stream) => stream,
            Err(error) => {
                worker.executor.stats().counters.ssl_handshake_errors.add(1);
                tracing::debug!(%error, "TLS handshake failed");
                return;
            }
        },
    };
    if let Err(error) = Connection::new(stream, Rc::clone(&worker)).serve().await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits for the handshake, within its time, and not beyond a stop.
async fn shake_hands<D: Device + Clone>(
    worker: &Worker<D>,
    accept: Box<Accept<TcpStream>>,
) -> io::Result<Stream> {
    let is_stopping = worker.stopping.get();
    let timeout = match is_stopping {
        true => Duration::ZERO,
        false => worker.executor.shared.config.handshake_timeout,
    };
    tokio::select! {
        biased;
        shaken = tokio::time::timeout(timeout, accept) => Ok(Stream::Tls(Box::new(shaken??))),
        () = worker.stopped.notified(), if !is_stopping => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}
