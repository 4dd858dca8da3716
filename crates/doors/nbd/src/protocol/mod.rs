//! The protocol as functions over bytes: no socket, no clock, no export. All numbers are big-endian.
//!
//! Source: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>. It serves the fixed newstyle handshake ([`Handshake`]), requests
//! with the 28 bytes of [`Request`], and simple or structured replies ([`Head`]). It has no TLS, no extended headers, no fast zeroes and no
//! unfragmented reads; a client that asks for one of these gets an error.

mod handshake;
mod reply;
mod request;

pub use handshake::{ExportInfo, Handshake, MAX_NAME_BYTES, MAX_OPTION_BYTES, Session, Step, greeting};
pub use reply::{Head, MAX_EXTENTS, status_payload};
pub use request::{Command, MAX_PAYLOAD_BYTES, REQUEST_BYTES, Refusal, Request};

use crate::export::ExportError;

/// An error in a reply, with the protocol's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// EPERM.
    NotAllowed = 1,
    /// EIO.
    Io = 5,
    /// ENOMEM.
    NoMemory = 12,
    /// EINVAL.
    Invalid = 22,
    /// ENOSPC.
    NoSpace = 28,
}

impl From<ExportError> for Errno {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::NotAllowed => Errno::NotAllowed,
            ExportError::Io => Errno::Io,
            ExportError::NoMemory => Errno::NoMemory,
            ExportError::NoSpace => Errno::NoSpace,
        }
    }
}

/// The next bytes as an array; `None` where there are fewer.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(head)
}

fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    take(bytes).map(|bytes| u16::from_be_bytes(*bytes))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(|bytes| u32::from_be_bytes(*bytes))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(|bytes| u64::from_be_bytes(*bytes))
}

/// A string behind its length of 32 bits.
fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_u32(bytes)?).ok()?;
    let (string, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(string)
}
