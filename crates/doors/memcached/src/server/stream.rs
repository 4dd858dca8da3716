//! TCP and unix sockets as one.

use socket2::SockRef;
use std::io::{self, IoSlice, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection that no event loop knows yet, on its way to its worker.
pub(super) enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

/// A connection on its worker's event loop.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! both {
    ($self:expr, $stream:ident => $what:expr) => {
        match $self {
            Stream::Tcp($stream) => $what,
            Stream::Unix($stream) => $what,
        }
    };
}

impl Stream {
    /// Registers a connection with the event loop of this thread.
    pub(super) fn register(accepted: Accepted) -> io::Result<Self> {
        match accepted {
            Accepted::Tcp(stream) => {
                stream.set_nodelay(true)?;
                TcpStream::from_std(stream).map(Stream::Tcp)
            }
            Accepted::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }

    /// Reads what is there; a read that does not fill the room needs no second one to learn that nothing is left.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut to = ReadBuf::new(to);
        both!(self, stream => Pin::new(stream).poll_read(cx, &mut to)).map_ok(|()| to.filled().len())
    }

    /// Reads what has arrived, whether the event loop knows of it or not; `WouldBlock` where nothing has.
    pub(super) fn read_arrived(&self, to: &mut [u8]) -> io::Result<usize> {
        both!(self, stream => (&*SockRef::from(stream)).read(to))
    }

    pub(super) fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [one] => both!(self, stream => stream.try_write(one)),
            _ => both!(self, stream => stream.try_write_vectored(slices)),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        both!(self, stream => stream.writable().await)
    }
}
