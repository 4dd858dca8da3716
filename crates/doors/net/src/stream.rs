//! One type for TCP, TLS and unix sockets.

use crate::tls::TlsIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, Socket, TcpKeepalive};
use std::io::{self, IoSlice, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// Most encrypted bytes that a TLS connection buffers: one record with its overhead.
const TLS_UNSENT_BYTES: usize = 18 << 10;

/// Keepalive notices after two minutes that a peer's machine is gone, and its place is given back.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

/// A connection that no event loop knows yet, on its way to its worker.
pub(crate) enum Accepted {
    Tcp(Socket),
    Tls(Socket, TlsIdentity),
    Unix(Socket),
}

/// A connection on its worker's event loop.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// TCP, encrypted.
    Tls(Box<TlsStream<TcpStream>>),
    /// A unix socket.
    Unix(UnixStream),
}

/// A connection registered with its event loop.
pub(crate) enum Registered {
    Ready(Stream),
    /// A TLS handshake comes first.
    Handshake(Box<Accept<TcpStream>>),
}

macro_rules! socket {
    ($self:expr, $socket:ident => $what:expr) => {
        match $self {
            Stream::Tcp($socket) => $what,
            Stream::Tls(stream) => {
                let $socket = stream.get_ref().0;
                $what
            }
            Stream::Unix($socket) => $what,
        }
    };
}

/// A method of tokio's traits, called on the socket.
macro_rules! forward {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Tcp(socket) => Pin::new(socket).$method($($argument),*),
            Stream::Tls(socket) => Pin::new(socket).$method($($argument),*),
            Stream::Unix(socket) => Pin::new(socket).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_read(cx, to))
    }
}

/// A write to TLS may leave bytes in a buffer, which a flush sends. A shutdown ends this side of the connection.
impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_shutdown(cx))
    }
}

impl Stream {
    /// Registers a connection with the event loop of this thread.
    pub(crate) fn register(accepted: Accepted) -> io::Result<Registered> {
        let tcp = |socket: Socket| {
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&KEEPALIVE)?;
            TcpStream::from_std(socket.into())
        };
        Ok(match accepted {
            Accepted::Tcp(socket) => Registered::Ready(Stream::Tcp(tcp(socket)?)),
            Accepted::Tls(socket, identity) => {
                let acceptor = TlsAcceptor::from(Arc::clone(identity.config()));
                Registered::Handshake(Box::new(acceptor.accept_with(tcp(socket)?, |session| {
                    session.set_buffer_limit(Some(TLS_UNSENT_BYTES));
                })))
            }
            Accepted::Unix(socket) => Registered::Ready(Stream::Unix(UnixStream::from_std(socket.into())?)),
        })
    }

    /// The peer's address; `None` over a unix socket, and where the peer is gone already.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        let address = match self {
            Stream::Tcp(socket) => socket.peer_addr(),
            Stream::Tls(stream) => stream.get_ref().0.peer_addr(),
            Stream::Unix(_) => return None,
        };
        address.ok().map(|address| address.ip().to_canonical())
    }

    /// Makes the end of the connection a reset: the peer does not take what it has got for all. Of no effect on a unix socket.
    pub fn reset_at_end(&self) {
        socket!(self, socket => {
            // Where it fails the connection is gone.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        });
    }

    /// The protocol that the handshake agreed on, one of [`crate::FloorConfig::alpn`]; `None` without TLS, or where the client named none.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Stream::Tls(stream) => stream.get_ref().1.alpn_protocol(),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        }
    }

    /// Upper bound of the bytes that were accepted by a write and are not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        match self {
            Stream::Tls(stream) if stream.get_ref().1.wants_write() => TLS_UNSENT_BYTES,
            _ => 0,
        }
    }

    /// Reads bytes that have arrived; 0 if the peer has closed its side. After a read that does not fill `to`, no second one is needed to
    /// learn that nothing is left.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(to);
        AsyncRead::poll_read(Pin::new(self), cx, &mut buffer).map_ok(|()| buffer.filled().len())
    }

    /// Reads bytes that have arrived, without waiting for the event loop.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; else an error of the socket or of TLS.
    pub fn read_arrived(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Stream::Tls(stream) = self else {
            return socket!(&*self, socket => (&*SockRef::from(socket)).read(to));
        };
        let (socket, session) = stream.get_mut();
        loop {
            match session.reader().read(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if session.read_tls(&mut &*SockRef::from(&*socket))? == 0 {
                return Ok(0);
            }
            let processed = session.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Writes bytes; returns how many were accepted. TLS may buffer some of these: see [`Stream::flush`].
    ///
    /// # Errors
    /// `WouldBlock` if none were accepted; else an error of the socket.
    pub fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            (Stream::Tls(stream), slices) => {
                now(|cx| Pin::new(&mut **stream).poll_write_vectored(cx, slices))
            }
            (plain, [one]) => socket!(&*plain, socket => socket.try_write(one)),
            (plain, slices) => socket!(&*plain, socket => socket.try_write_vectored(slices)),
        }
    }

    /// Sends bytes that TLS has buffered.
    ///
    /// # Errors
    /// `WouldBlock` if some are left; else an error of the socket.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tls(stream) => now(|cx| Pin::new(&mut **stream).poll_flush(cx)),
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
        }
    }

    /// Sends TLS's close notification; nothing on other sockets.
    pub fn close(&mut self) {
        if let Stream::Tls(stream) = self {
            // If it cannot be sent, the peer sees the socket closed.
            let _ = now(|cx| Pin::new(&mut **stream).poll_shutdown(cx));
        }
    }

    /// Waits until the socket has room for a write.
    ///
    /// # Errors
    /// An error of the socket.
    pub async fn writable(&self) -> io::Result<()> {
        socket!(self, socket => socket.writable().await)
    }

    /// Whether a good part of the socket's send buffer is free. If not, [`Stream::writable`] waits for that.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn has_room(&self) -> io::Result<bool> {
        let asked = socket!(self, socket => socket.try_io(Interest::WRITABLE, || has_room(socket)));
        match asked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Polls an operation once; `WouldBlock` if it is pending. [`Stream::writable`] waits for room.
fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// `WouldBlock` if a socket has no room, so that the event loop waits for room.
fn has_room(socket: impl AsFd) -> io::Result<()> {
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once))?;
    // The next write reports errors and hang-ups.
    match fds[0].revents().is_empty() {
        true => Err(io::ErrorKind::WouldBlock.into()),
        false => Ok(()),
    }
}
