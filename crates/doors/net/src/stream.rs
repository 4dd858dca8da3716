//! TCP, TLS and unix sockets as one.

use crate::tls::TlsIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, Socket, TcpKeepalive};
use std::io::{self, IoSlice, Read};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// What a TLS connection may keep encrypted and unsent: a record with all that encryption adds.
const TLS_UNSENT_BYTES: usize = 18 << 10;

/// A peer that has gone without a word, with its machine say, is noticed after two minutes, so that its place is given back.
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

/// A connection that its event loop knows.
pub(crate) enum Registered {
    Ready(Stream),
    /// One that has to shake hands first.
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

    /// Bytes that were taken to be sent, and are not: as many at most.
    pub fn unsent_bytes(&self) -> usize {
        match self {
            Stream::Tls(stream) if stream.get_ref().1.wants_write() => TLS_UNSENT_BYTES,
            _ => 0,
        }
    }

    /// Reads what is there; a read that does not fill the room needs no second one to learn that nothing is left.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(to);
        let read = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, &mut buffer),
        };
        read.map_ok(|()| buffer.filled().len())
    }

    /// Reads what has arrived, whether the event loop knows of it or not; `WouldBlock` where nothing has.
    ///
    /// # Errors
    /// What the socket said.
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

    /// Hands over bytes to be sent; returns how many were taken. Of those TLS may keep some: see [`Stream::flush`].
    ///
    /// # Errors
    /// What the socket said.
    pub fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            (Stream::Tls(stream), slices) => {
                now(|cx| Pin::new(&mut **stream).poll_write_vectored(cx, slices))
            }
            (plain, [one]) => socket!(&*plain, socket => socket.try_write(one)),
            (plain, slices) => socket!(&*plain, socket => socket.try_write_vectored(slices)),
        }
    }

    /// Hands over bytes to be sent, when the socket takes some; returns how many were taken. Of those TLS may keep some.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
        }
    }

    /// Sends what was taken and not sent; `WouldBlock` where some of it is left.
    ///
    /// # Errors
    /// What the socket said.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tls(stream) => now(|cx| Pin::new(&mut **stream).poll_flush(cx)),
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
        }
    }

    /// Says that nothing more is sent, where the protocol has words for it.
    pub fn close(&mut self) {
        if let Stream::Tls(stream) = self {
            // Whoever does not take it, or has gone, learns it from the socket.
            let _ = now(|cx| Pin::new(&mut **stream).poll_shutdown(cx));
        }
    }

    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// What the socket said.
    pub async fn writable(&self) -> io::Result<()> {
        socket!(self, socket => socket.writable().await)
    }

    /// Whether the socket has room for a good part of what it can buffer. Where it has not, [`Stream::writable`] waits for
    /// that.
    ///
    /// # Errors
    /// What the socket said.
    pub fn has_room(&self) -> io::Result<bool> {
        let asked = socket!(self, socket => socket.try_io(Interest::WRITABLE, || has_room(socket)));
        match asked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What an operation comes to at once; [`Stream::writable`] waits for more.
fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// `WouldBlock` where a socket has no room, so that the event loop looks for it.
fn has_room(socket: impl AsFd) -> io::Result<()> {
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once))?;
    // Errors and hang-ups are left to the write that meets them.
    match fds[0].revents().is_empty() {
        true => Err(io::ErrorKind::WouldBlock.into()),
        false => Ok(()),
    }
}
