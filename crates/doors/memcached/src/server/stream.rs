//! TCP, TLS and unix sockets as one.

use super::input::BufferPool;
use super::tls::TlsStream;
use crate::tls::TlsIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::io::{self, IoSlice, Read};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection that no event loop knows yet, on its way to its worker.
pub(super) enum Accepted {
    Tcp(std::net::TcpStream),
    Tls(std::net::TcpStream, TlsIdentity),
    Unix(std::os::unix::net::UnixStream),
}

/// A connection on its worker's event loop.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixStream),
}

macro_rules! socket {
    ($self:expr, $socket:ident => $what:expr) => {
        match $self {
            Stream::Tcp($socket) => $what,
            Stream::Tls(stream) => {
                let $socket = stream.socket();
                $what
            }
            Stream::Unix($socket) => $what,
        }
    };
}

impl Stream {
    /// Registers a connection with the event loop of this thread.
    pub(super) fn register(accepted: Accepted) -> io::Result<Self> {
        let tcp = |stream: std::net::TcpStream| {
            stream.set_nodelay(true)?;
            TcpStream::from_std(stream)
        };
        Ok(match accepted {
            Accepted::Tcp(stream) => Stream::Tcp(tcp(stream)?),
            Accepted::Tls(stream, identity) => {
                let config = Arc::clone(identity.config());
                Stream::Tls(Box::new(TlsStream::new(tcp(stream)?, config)?))
            }
            Accepted::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        })
    }

    /// Whether the peer has not yet shown that it speaks the protocol under ours.
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Stream::Tls(stream) if stream.is_handshaking())
    }

    /// Bytes received that are not yet in the reader's hands.
    pub(super) fn received_bytes(&self) -> usize {
        match self {
            Stream::Tls(stream) => stream.received_bytes(),
            Stream::Tcp(_) | Stream::Unix(_) => 0,
        }
    }

    /// Bytes of memory that hold them.
    pub(super) fn received_memory(&self) -> usize {
        match self {
            Stream::Tls(stream) => stream.received_memory(),
            Stream::Tcp(_) | Stream::Unix(_) => 0,
        }
    }

    /// Bytes that were taken to be sent, and are not.
    pub(super) fn unsent_bytes(&self) -> usize {
        match self {
            Stream::Tls(stream) => stream.unsent_bytes(),
            Stream::Tcp(_) | Stream::Unix(_) => 0,
        }
    }

    /// Reads what is there; a read that does not fill the room needs no second one to learn that nothing is left.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut [u8],
        pool: &BufferPool,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(to);
        let read = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Stream::Tls(stream) => return stream.poll_read(cx, to, pool),
        };
        read.map_ok(|()| buffer.filled().len())
    }

    /// Reads what has arrived, whether the event loop knows of it or not; `WouldBlock` where nothing has.
    pub(super) fn read_arrived(&mut self, to: &mut [u8], pool: &BufferPool) -> io::Result<usize> {
        match self {
            Stream::Tls(stream) => stream.read_arrived(to, pool),
            plain => socket!(&*plain, socket => (&*SockRef::from(socket)).read(to)),
        }
    }

    /// Hands over bytes to be sent; returns how many were taken. Of those TLS may keep some: see [`Stream::flush`].
    pub(super) fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            (Stream::Tls(stream), slices) => stream.try_write(slices),
            (plain, [one]) => socket!(&*plain, socket => socket.try_write(one)),
            (plain, slices) => socket!(&*plain, socket => socket.try_write_vectored(slices)),
        }
    }

    /// Sends what was taken and not sent; `WouldBlock` where some of it is left.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Tls(stream) => match stream.flush()? {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            },
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
        }
    }

    /// Says that nothing more is sent, where the protocol has words for it.
    pub(super) fn close(&mut self) {
        if let Stream::Tls(stream) = self {
            stream.close();
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        socket!(self, socket => socket.writable().await)
    }

    /// Whether the socket has room for a good part of what it can buffer. Where it has not, [`Stream::writable`] waits for
    /// that.
    pub(super) fn has_room(&self) -> io::Result<bool> {
        let asked = socket!(self, socket => socket.try_io(Interest::WRITABLE, || has_room(socket)));
        match asked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
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
