//! Connections: from the listening socket to the shutdown.
//!
//! One worker accepts and hands connections to all workers in turn. A connection stays on its worker.

use crate::accept::{Listener, accept};
use crate::seldom::Seldom;
use crate::stream::{Accepted, Registered, Stream};
use crate::tls::TlsIdentity;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Where a door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A TCP address on which clients speak TLS; needs [`FloorConfig::tls`].
    Tls(SocketAddr),
    /// A unix socket. A socket file without a server is replaced.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its permissions; `None` leaves them to the process's umask.
        mode: Option<u32>,
    },
}

/// The settings of a door's connections.
#[derive(Clone, Debug)]
pub struct FloorConfig {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Workers that will call [`Floor::run_worker`], at least 1.
    pub workers: usize,
    /// The most connections at once; more are turned away.
    pub max_connections: usize,
    /// Message to a connection that is turned away.
    pub one_too_many: &'static [u8],
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Certificate and key of [`Listen::Tls`].
    pub tls: Option<TlsIdentity>,
    /// Protocols that clients may choose in a TLS handshake (RFC 7301), the preferred one first; none where the door has only one.
    pub alpn: &'static [&'static [u8]],
    /// Deadline of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time that connections have to end after a shutdown.
    pub drain_timeout: Duration,
}

/// Counts of connections.
#[derive(Debug, Default)]
pub struct Connections {
    current: AtomicU64,
    total: AtomicU64,
    rejected: AtomicU64,
}

impl Connections {
    /// Connections that are open.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Connections accepted since the start.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Connections turned away since the start, because there were too many.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }
}

/// A place among the open connections, given back when dropped.
#[derive(Debug)]
pub struct Guard(Arc<Connections>);

impl Guard {
    /// Takes a place; `None` if there are too many connections. Only the accepting worker calls this.
    pub(crate) fn take(shared: &Shared) -> Option<Self> {
        let connections = &shared.connections;
        if connections.current() >= shared.config.max_connections as u64 {
            connections.rejected.fetch_add(1, Ordering::Relaxed);
            if shared.rejected_said.is_due() {
                tracing::warn!(
                    "a connection is turned away: there are {}, and --max-connections allows no more; said once a minute",
                    shared.config.max_connections
                );
            }
            return None;
        }
        connections.current.fetch_add(1, Ordering::Relaxed);
        connections.total.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::clone(connections)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on its way to a worker.
pub(crate) struct Handover {
    pub(crate) accepted: Accepted,
    pub(crate) guard: Guard,
}

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The event loop cannot register it.
    #[error("cannot serve a connection: {0}")]
    Unregistered(io::Error),
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Handshake(io::Error),
}

/// A connection that its worker has received.
pub struct Arrived {
    handover: Handover,
    handshake_timeout: Duration,
}

impl Arrived {
    /// Performs the handshake, if any, and returns the stream, and the connection's place: keep it while the connection is served. A stop
    /// ends the handshake.
    ///
    /// # Errors
    /// [`Refused`], also if the handshake exceeds its deadline or a stop ends it.
    pub async fn open(self, stop: &Stop) -> Result<(Stream, Guard), Refused> {
        let Handover { accepted, guard } = self.handover;
        let accept = match Stream::register(accepted).map_err(Refused::Unregistered)? {
            Registered::Ready(stream) => return Ok((stream, guard)),
            Registered::Handshake(accept) => accept,
        };
        let is_stopping = stop.is_stopping();
        let timeout = match is_stopping {
            true => Duration::ZERO,
            false => self.handshake_timeout,
        };
        // Boxed: its state takes some KiB.
        let shaken = Box::pin(async {
            tokio::select! {
                biased;
                shaken = tokio::time::timeout(timeout, accept) => Ok(Stream::Tls(Box::new(shaken??))),
                () = stop.notified(), if !is_stopping => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        });
        Ok((shaken.await.map_err(Refused::Handshake)?, guard))
    }
}

/// Tells the connections of one worker to end.
#[derive(Debug, Default)]
pub struct Stop {
    is_stopping: Cell<bool>,
    notify: Notify,
}

impl Stop {
    /// Whether connections should end after the requests that have arrived.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Ready at the moment of the stop. If called after it, never ready: ask [`Stop::is_stopping`] first.
    pub fn notified(&self) -> impl Future<Output = ()> {
        self.notify.notified()
    }
}

/// State shared by all workers.
pub(crate) struct Shared {
    pub(crate) config: FloorConfig,
    pub(crate) connections: Arc<Connections>,
    /// Limits the log lines about connections that cannot be accepted or served.
    pub(crate) accept_said: Seldom,
    /// The same for connections that are turned away.
    pub(crate) rejected_said: Seldom,
}

/// Bound sockets, and connections on their way to workers. Shared by all threads.
pub struct Floor {
    shared: Arc<Shared>,
    tcp_addrs: Vec<SocketAddr>,
    tls_addrs: Vec<SocketAddr>,
    listeners: Mutex<Vec<Listener>>,
    senders: Vec<UnboundedSender<Handover>>,
    receivers: Mutex<Vec<Option<UnboundedReceiver<Handover>>>>,
    /// True when the last connection was handed out.
    accepted_all: watch::Sender<bool>,
}

impl Floor {
    /// Finds out whether it can listen where the configuration says. Nobody can connect before [`Floor::listen`], or worker 0 runs.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn bind(config: FloorConfig) -> io::Result<Self> {
        let listeners = config
            .listen
            .iter()
            .map(|listen| Listener::bind(listen, &config))
            .collect::<io::Result<Vec<_>>>()?;
        let (senders, receivers) = (0..config.workers.max(1))
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
                config,
                connections: Arc::default(),
                accept_said: Seldom::default(),
                rejected_said: Seldom::default(),
            }),
        })
    }

    /// Lets clients connect. Their connections wait in the backlog until the workers run.
    ///
    /// # Errors
    /// What the operating system said, with the address.
    pub fn listen(&self) -> io::Result<()> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter_mut().try_for_each(Listener::listen)
    }

    /// The TCP addresses it listens on, with the ports that the system chose; without those of TLS.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.tcp_addrs
    }

    /// The addresses on which it speaks TLS, with the ports that the system chose.
    pub fn tls_addrs(&self) -> &[SocketAddr] {
        &self.tls_addrs
    }

    /// How many connections there are.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// Logs that a connection cannot be served, once a minute at most.
    pub fn say_unserved(&self, error: &Refused) {
        if self.shared.accept_said.is_due() {
            tracing::warn!("{error}");
        }
    }

    /// Hands one worker's share of the connections to `serve` until `shutdown` turns true (or its sender is dropped). Then connections in
    /// the backlog are served too, and [`Stop`] tells all to answer the requests that have arrived, and to end. Connections that are still
    /// open after the drain timeout are dropped.
    ///
    /// To be called once for each of `0..workers`, each on its own thread, inside a `LocalSet` of a current-thread runtime
    /// with I/O and time enabled. Worker 0 accepts for all.
    ///
    /// # Errors
    /// The sockets cannot be registered with the event loop.
    ///
    /// # Panics
    /// If `index` is not below the number of workers, or was used before.
    pub async fn run_worker<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        stop: &Stop,
        mut shutdown: watch::Receiver<bool>,
        serve: impl Fn(Arrived) -> F,
    ) -> io::Result<()> {
        let mut receiver = self.receivers.lock().unwrap_or_else(PoisonError::into_inner)[index]
            .take()
            .expect("each worker runs once");
        let serve = |handover| {
            serve(Arrived {
                handover,
                handshake_timeout: self.shared.config.handshake_timeout,
            })
        };
        let mut acceptors = JoinSet::new();
        let mut accepting = None;
        if index == 0 {
            self.listen()?;
            accepting = Some(Accepting(&self.accepted_all));
            let next = Arc::new(AtomicUsize::new(0));
            let listeners =
                std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
            for listener in listeners {
                let accept = accept(
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
                    connections.spawn_local(serve(handover));
                }
                Some(_) = connections.join_next() => {}
                Some(ended) = acceptors.join_next() => ended??,
                _ = shutdown.wait_for(|stop| *stop) => break,
            }
        }
        stop.is_stopping.set(true);
        stop.notify.notify_waiters();
        let drain = async {
            // The acceptors empty the backlogs and close the listening sockets.
            while acceptors.join_next().await.is_some() {}
            drop(accepting);
            // Fails only if the floor was dropped.
            let _ = self.accepted_all.subscribe().wait_for(|all| *all).await;
            while let Ok(handover) = receiver.try_recv() {
                connections.spawn_local(serve(handover));
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

/// When dropped, tells all workers that the last connection was handed out.
struct Accepting<'d>(&'d watch::Sender<bool>);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
