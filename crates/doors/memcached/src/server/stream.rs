//! TCP and unix sockets as one.

use socket2::SockRef;
use std::io::{self, IoSlice};
use std::net::Shutdown;
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

    /// Reads what is there; `WouldBlock` where nothing is.
    pub(super) fn try_read(&self, to: &mut [u8]) -> io::Result<usize> {
        both!(self, stream => stream.try_read(to))
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        both!(self, stream => stream.readable().await)
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

    /// Lets reads end after what has arrived: wakes a connection that waits for its client.
    pub(super) fn end_reads(&self) {
        let result = both!(self, stream => SockRef::from(stream).shutdown(Shutdown::Read));
        // Fails only where the peer is gone, which ends reads as well.
        drop(result);
    }
}
