//! A backing device on another machine, over NBD (Network Block Device).
//!
//! A thread has one connection for all handles, so a flush covers the changes of all of them. If the connection is lost, it is made anew,
//! and requests wait meanwhile.
//!
//! # What a flush means
//!
//! A server may lose changes that it has answered and not flushed, if it dies. So each change is kept until a flush that was sent after its
//! answer has succeeded. Over a new connection the kept changes are sent again, in order, before anything else. The client flushes by
//! itself when it keeps [`KEPT_BYTES`]. Once a flush has failed none succeeds: the server may have lost what it does not know of.
//!
//! # Without a connection
//!
//! When a connection is lost, its requests wait for the next one. If none answers within the time that [`Remote::connect`] was given, all
//! requests fail with [`std::io::ErrorKind::NotConnected`], until there is a connection again. A flush that failed so has lost nothing: the
//! changes are kept. A change that was sent fails with [`std::io::ErrorKind::TimedOut`] instead: the server may still perform it.
//!
//! # Limits
//!
//! It asks for `NBD_OPT_GO` and simple replies. There is no TLS, and no question about holes: all of the device counts as data. A server
//! that cannot flush, or that wants requests aligned to more than a byte, is refused.
#![forbid(unsafe_code)]

mod client;
mod open;
mod uri;
pub mod wire;

pub use client::{KEPT_BYTES, Remote, RemoteCounts};
pub use open::Stream;
pub use uri::{Place, Uri, UriError};
pub use wire::{Device, Export, HandshakeError};
