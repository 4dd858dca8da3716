//! Listening sockets: binding them, and handing connections to the workers.

use super::stream::Accepted;
use super::{Guard, Handover};
use crate::config::{DoorConfig, Listen};
use crate::shared::Shared;
use crate::tls::TlsIdentity;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::convert::Infallible;
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

/// What a connection hears that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// How long to wait after a failed accept: out of descriptors, most likely, which passes when connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A bound socket that no event loop knows yet.
pub(super) enum Listener {
    Tcp(std::net::TcpListener),
    Tls(std::net::TcpListener, TlsIdentity),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// A socket's file, removed when dropped.
pub(super) struct SocketFile(PathBuf);

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
    pub(super) fn bind(listen: &Listen, config: &DoorConfig) -> io::Result<Self> {
        let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX);
        match listen {
            Listen::Tcp(address) => bind_tcp(*address, backlog)
                .map(Listener::Tcp)
                .map_err(|error| named(&error, address)),
            Listen::Tls(address) => {
                let identity = config.tls.clone().ok_or_else(|| {
                    let missing =
                        io::Error::new(io::ErrorKind::InvalidInput, "TLS needs a certificate and a key");
                    named(&missing, address)
                })?;
                bind_tcp(*address, backlog)
                    .map(|listener| Listener::Tls(listener, identity))
                    .map_err(|error| named(&error, address))
            }
            Listen::Unix { path, mode } => bind_unix(path, *mode, backlog)
                .map(|listener| Listener::Unix(listener, SocketFile(path.clone())))
                .map_err(|error| named(&error, path.display())),
        }
    }

    /// Where it listens, for TCP without TLS.
    pub(super) fn tcp_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Tls(..) | Listener::Unix(..) => None,
        }
    }

    /// Where it listens, for TLS.
    pub(super) fn tls_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tls(listener, _) => listener.local_addr().ok(),
            Listener::Tcp(_) | Listener::Unix(..) => None,
        }
    }
}

fn bind_tcp(address: SocketAddr, backlog: i32) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<std::os::unix::net::UnixListener> {
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
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts connections and hands them to the workers in turn. At shutdown it accepts what has connected by then, and ends.
pub(super) async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Handover>>,
    next: Arc<AtomicUsize>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let hand_over = |accepted: Accepted| {
        let Some(guard) = Guard::take(&shared) else {
            turn_away(accepted);
            return;
        };
        let worker = next.fetch_add(1, Ordering::Relaxed) % workers.len();
        // Fails only where the worker has ended, at shutdown; the connection is closed then.
        drop(workers[worker].send(Handover { accepted, guard }));
    };
    let stopped = shutdown.wait_for(|stop| *stop);
    tokio::pin!(stopped);
    match listener {
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            tokio::select! {
                never = accept_tcp(&listener, &shared, |stream| hand_over(Accepted::Tcp(stream))) => match never {},
                _ = stopped => accept_waiting(SockRef::from(&listener), |socket| hand_over(Accepted::Tcp(socket.into()))),
            }
        }
        Listener::Tls(listener, identity) => {
            let listener = TcpListener::from_std(listener)?;
            let with_tls = |stream| hand_over(Accepted::Tls(stream, identity.clone()));
            tokio::select! {
                never = accept_tcp(&listener, &shared, with_tls) => match never {},
                _ = stopped => accept_waiting(SockRef::from(&listener), |socket| with_tls(socket.into())),
            }
        }
        Listener::Unix(listener, _file) => {
            let listener = UnixListener::from_std(listener)?;
            tokio::select! {
                never = accept_unix(&listener, &shared, |stream| hand_over(Accepted::Unix(stream))) => match never {},
                _ = stopped => accept_waiting(SockRef::from(&listener), |socket| hand_over(Accepted::Unix(socket.into()))),
            }
        }
    }
    Ok(())
}

async fn accept_tcp(
    listener: &TcpListener,
    shared: &Shared,
    take: impl Fn(std::net::TcpStream),
) -> Infallible {
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => take(stream),
            Err(error) => pause(shared, &error).await,
        }
    }
}

async fn accept_unix(
    listener: &UnixListener,
    shared: &Shared,
    take: impl Fn(std::os::unix::net::UnixStream),
) -> Infallible {
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => take(stream),
            Err(error) => pause(shared, &error).await,
        }
    }
}

/// Accepts connections that wait, whether the event loop knows of them or not: to their clients they are made, and what was
/// sent on them is to be answered.
fn accept_waiting(listener: SockRef<'_>, take: impl Fn(Socket)) {
    loop {
        match listener.accept() {
            Ok((socket, _)) => match socket.set_nonblocking(true) {
                Ok(()) => take(socket),
                Err(error) => tracing::warn!(%error, "cannot serve a connection"),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // None waits, or there are no descriptors for more.
            Err(_) => return,
        }
    }
}

async fn pause(shared: &Shared, error: &io::Error) {
    // A client that gave up before it was accepted is none of our business.
    if error.kind() != io::ErrorKind::ConnectionAborted {
        if shared.accept_said.is_due() {
            tracing::warn!(%error, "cannot accept connections for now");
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Tells a connection that it is one too many, and closes it. What it has sent is read first, up to a bound, because
/// closing a socket with unread bytes may take the message with it.
fn turn_away(accepted: Accepted) {
    fn farewell(mut stream: impl Read + Write) {
        let mut unread = [0; 4096];
        // The socket does not block, and whoever is turned away and gone does not matter.
        let _ = stream.write(TOO_MANY);
        let _ = stream.read(&mut unread);
    }
    match accepted {
        Accepted::Tcp(stream) => {
            farewell(&stream);
            let _ = SockRef::from(&stream).shutdown(Shutdown::Write);
        }
        // It expects a handshake, and no words.
        Accepted::Tls(..) => {}
        Accepted::Unix(stream) => farewell(&stream),
    }
}
