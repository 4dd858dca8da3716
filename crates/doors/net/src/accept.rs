//! Listening sockets: binding them, listening, and handing connections to the workers.

use crate::floor::{FloorConfig, Guard, Handover, Listen, Shared};
use crate::stream::Accepted;
use crate::tls::TlsIdentity;
use rustix::fs::{Access, access};
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

/// A place to listen at, and the socket once that is so. No event loop knows it yet.
pub(crate) struct Listener {
    kind: Kind,
    socket: Socket,
    backlog: i32,
    is_listening: bool,
}

enum Kind {
    Tcp,
    Tls(TlsIdentity),
    Unix(SocketFile),
}

/// A unix socket's place, and its file once it is there, which is removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    mode: Option<u32>,
    is_there: bool,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there {
            // The file may be gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn named(error: &io::Error, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {what}: {error}"))
}

impl Listener {
    /// Finds out whether it can listen there; errors name the address. Nobody can connect before [`Listener::listen`]. A TCP socket is bound. The
    /// file of a unix socket is made by [`Listener::listen`] alone: a server that starts meanwhile removes the file of a socket that does not listen.
    pub(crate) fn bind(listen: &Listen, config: &FloorConfig) -> io::Result<Self> {
        let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX);
        let (socket, kind) = match listen {
            Listen::Tcp(address) => (bind_tcp(*address), Kind::Tcp),
            Listen::Tls(address) => {
                let missing =
                    || io::Error::new(io::ErrorKind::InvalidInput, "TLS needs a certificate and a key");
                let identity = config.tls.as_ref().ok_or_else(|| named(&missing(), address))?;
                (bind_tcp(*address), Kind::Tls(identity.with_alpn(config.alpn)))
            }
            Listen::Unix { path, mode } => {
                let socket = check_unix(path).and_then(|()| Socket::new(Domain::UNIX, Type::STREAM, None));
                let (path, mode, is_there) = (path.clone(), *mode, false);
                (socket, Kind::Unix(SocketFile { path, mode, is_there }))
            }
        };
        let socket = socket.map_err(|error| match listen {
            Listen::Tcp(address) | Listen::Tls(address) => named(&error, address),
            Listen::Unix { path, .. } => named(&error, path.display()),
        })?;
        Ok(Self {
            kind,
            socket,
            backlog,
            is_listening: false,
        })
    }

    /// Lets clients connect, from the first call on.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        if self.is_listening {
            return Ok(());
        }
        let listened = match &mut self.kind {
            Kind::Tcp | Kind::Tls(_) => self.socket.listen(self.backlog),
            Kind::Unix(file) => listen_unix(&self.socket, file, self.backlog),
        };
        let listened = listened.and_then(|()| self.socket.set_nonblocking(true));
        self.is_listening = listened.is_ok();
        listened.map_err(|error| match (&self.kind, self.addr()) {
            (Kind::Unix(file), _) => named(&error, file.path.display()),
            (_, Some(address)) => named(&error, address),
            (_, None) => error,
        })
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

fn bind_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether a socket without a server is there.
fn is_left_over(path: &Path) -> io::Result<bool> {
    let in_use = |what| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => in_use("there is a file that is no socket"),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => in_use("another process answers there"),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
            Err(error) => Err(error),
        },
    }
}

fn check_unix(path: &Path) -> io::Result<()> {
    SockAddr::unix(path)?;
    is_left_over(path)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

fn listen_unix(socket: &Socket, file: &mut SocketFile, backlog: i32) -> io::Result<()> {
    if is_left_over(&file.path)? {
        std::fs::remove_file(&file.path)?;
    }
    socket.bind(&SockAddr::unix(&file.path)?)?;
    file.is_there = true;
    if let Some(mode) = file.mode {
        std::fs::set_permissions(&file.path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(backlog)
}

/// Accepts connections and hands them to the workers in turn. At shutdown it accepts the backlog, and ends.
pub(crate) async fn accept(
    listener: Listener,
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Handover>>,
    next: Arc<AtomicUsize>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let Listener { socket, kind, .. } = listener;
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
