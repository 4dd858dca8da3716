//! The NBD door as clients see it.

mod common;
mod handshake;
mod memory;
mod requests;
mod shutdown;
