//! Listening sockets: binding them, and handing connections to the workers.

use super::config::Listen;
use super::stream::Accepted;
use super::{Guard, Handover, Shared};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::UnboundedSender;

/// What a connection hears that is one too many.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// How long to wait after a failed accept: out of descriptors, most likely, which passes when connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A bound socket that no event loop knows yet.
pub(super) enum Listener {
    Tcp(std::net::TcpListener),
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
    pub(super) fn bind(listen: &Listen, backlog: u32) -> io::Result<Self> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        match listen {
            Listen::Tcp(address) => bind_tcp(*address, backlog)
                .map(Listener::Tcp)
                .map_err(|error| named(&error, address)),
            Listen::Unix { path, mode } => bind_unix(path, *mode, backlog)
                .map(|listener| Listener::Unix(listener, SocketFile(path.clone())))
                .map_err(|error| named(&error, path.display())),
        }
    }

    /// Where it listens, for TCP.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
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

/// Accepts connections and hands them to the workers in turn. Never returns; it is dropped at shutdown.
pub(super) async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Handover>>,
    next: Arc<AtomicUsize>,
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
    match listener {
        Listener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            loop {
                match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
                    Ok(stream) => hand_over(Accepted::Tcp(stream)),
                    Err(error) => pause(&error).await,
                }
            }
        }
        Listener::Unix(listener, _file) => {
            let listener = UnixListener::from_std(listener)?;
            loop {
                match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
                    Ok(stream) => hand_over(Accepted::Unix(stream)),
                    Err(error) => pause(&error).await,
                }
            }
        }
    }
}

async fn pause(error: &io::Error) {
    // A client that gave up before it was accepted is none of our business.
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tracing::warn!(%error, "cannot accept a connection");
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
        Accepted::Unix(stream) => farewell(&stream),
    }
}
