//! Listening sockets: binding them, and handing connections to the workers.

use crate::floor::{FloorConfig, Guard, Handover, Listen, Shared};
use crate::stream::Accepted;
use crate::tls::TlsIdentity;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// Pause after a failed accept. Most likely no descriptor is free, until connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A bound socket that no event loop knows yet.
pub(crate) struct Listener {
    socket: Socket,
    kind: Kind,
}

enum Kind {
    Tcp,
    Tls(TlsIdentity),
    Unix { _file: SocketFile },
}

/// A socket's file, removed when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn named(error: &io::Error, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {what}: {error}"))
}

impl Listener {
    /// Binds a socket; errors name the address.
    pub(crate) fn bind(listen: &Listen, config: &FloorConfig) -> io::Result<Self> {
        let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX);
        let (address, kind) = match listen {
            Listen::Tcp(address) => (address, Kind::Tcp),
            Listen::Tls(address) => {
                let missing =
                    || io::Error::new(io::ErrorKind::InvalidInput, "TLS needs a certificate and a key");
                let identity = config.tls.clone().ok_or_else(|| named(&missing(), address))?;
                (address, Kind::Tls(identity))
            }
            Listen::Unix { path, mode } => {
                let socket =
                    bind_unix(path, *mode, backlog).map_err(|error| named(&error, path.display()))?;
                let _file = SocketFile(path.clone());
                let kind = Kind::Unix { _file };
                return Ok(Self { socket, kind });
            }
        };
        let socket = bind_tcp(*address, backlog).map_err(|error| named(&error, address))?;
        Ok(Self { socket, kind })
    }

    /// Where it listens, for TCP without TLS.
    pub(crate) fn tcp_addr(&self) -> Option<SocketAddr> {
        matches!(self.kind, Kind::Tcp).then(|| self.addr()).flatten()
    }

    /// Where it listens, for TLS.
    pub(crate) fn tls_addr(&self) -> Option<SocketAddr> {
        matches!(self.kind, Kind::Tls(_)).then(|| self.addr()).flatten()
    }

    fn addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }
}

fn bind_tcp(address: SocketAddr, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<Socket> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process answers there",
            ));
        }
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Accepts connections and hands them to the workers in turn. At shutdown it accepts the backlog, and ends.
pub(crate) async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Handover>>,
    next: Arc<AtomicUsize>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let Listener { socket, kind } = listener;
    let hand_over = |socket: Socket| {
        let accepted = match &kind {
            Kind::Tcp => Accepted::Tcp(socket),
            Kind::Tls(identity) => Accepted::Tls(socket, identity.clone()),
            Kind::Unix { .. } => Accepted::Unix(socket),
        };
        let Some(guard) = Guard::take(&shared) else {
            turn_away(accepted, shared.config.one_too_many);
            return;
        };
        let worker = next.fetch_add(1, Ordering::Relaxed) % workers.len();
        // Fails only if the worker has ended, at shutdown; the connection is then closed.
        drop(workers[worker].send(Handover { accepted, guard }));
    };
    let listening = match &kind {
        Kind::Unix { .. } => Listening::Unix(UnixListener::from_std(socket.into())?),
        Kind::Tcp | Kind::Tls(_) => Listening::Tcp(TcpListener::from_std(socket.into())?),
    };
    let accept_all = async {
        loop {
            match listening.accept().await {
                Ok(socket) => hand_over(socket),
                // The client disconnected before the accept.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if shared.accept_said.is_due() {
                        tracing::warn!(%error, "cannot accept connections for now");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept_all => {}
        _ = shutdown.wait_for(|stop| *stop) => {}
    }
    // For their clients, connections in the backlog are established: requests sent on them must be answered.
    while let Ok(socket) = listening.accept_now() {
        hand_over(socket);
    }
    Ok(())
}

/// A listening socket that the event loop knows.
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
    async fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Listening::Tcp(listener) => listener.accept().await?.0.into_std()?.into(),
            Listening::Unix(listener) => listener.accept().await?.0.into_std()?.into(),
        })
    }

    /// Accepts a connection without waiting for the event loop.
    fn accept_now(&self) -> io::Result<Socket> {
        let listener = match self {
            Listening::Tcp(listener) => SockRef::from(listener),
            Listening::Unix(listener) => SockRef::from(listener),
        };
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Sends `words` to a connection above the limit, and closes it. Reads up to 4 KiB first: closing a socket with unread bytes may discard
/// the message.
fn turn_away(accepted: Accepted, words: &[u8]) {
    // A TLS client expects a handshake, so it gets no message.
    if let Accepted::Tcp(socket) | Accepted::Unix(socket) = accepted {
        let mut unread = [0; 4096];
        // The socket does not block. Errors mean that the client has gone, too.
        let _ = (&socket).write(words);
        let _ = (&socket).read(&mut unread);
        let _ = socket.shutdown(Shutdown::Write);
    }
}
