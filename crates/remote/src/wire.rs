//! The client's side of the protocol: the handshake, and the bytes of requests and replies. All numbers are big-endian.
//!
//! Source: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTIONS: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPT_GO: u32 = 7;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
/// Replies with this bit are errors.
const REP_ERROR: u32 = 1 << 31;
/// Longest reply to an option that is read.
const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;

/// Flag of an export: it takes no changes.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Flag of an export: it has FLUSH.
pub const FLAG_FLUSH: u16 = 1 << 2;
/// Flag of an export: changes may have [`FUA`].
pub const FLAG_FUA: u16 = 1 << 3;
/// Flag of an export: it has TRIM.
pub const FLAG_TRIM: u16 = 1 << 5;
/// Flag of an export: it has WRITE_ZEROES.
pub const FLAG_ZEROES: u16 = 1 << 6;
/// Flag of an export: its connections see each other's changes, and a FLUSH covers those of all.
pub const FLAG_MULTI_CONN: u16 = 1 << 8;

/// Longest payload that every server takes, if it says nothing else.
const PAYLOAD_BYTES: u32 = 32 << 20;

/// Error of a server that shuts down.
pub const SHUTDOWN: u32 = 108;

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply's header.
pub const REPLY_BYTES: usize = 16;

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size in bytes.
    pub size: u64,
    /// What it can: `FLAG_…`.
    pub flags: u16,
    /// Bytes that offsets and lengths of requests are multiples of.
    pub minimum: u32,
    /// Most bytes of a read or a write.
    pub maximum: u32,
}

/// The device of an export, as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its size in bytes.
    pub size: u64,
    /// Whether it takes no changes.
    pub is_read_only: bool,
    /// Whether it has WRITE_ZEROES.
    pub can_zero: bool,
    /// Most bytes of a read or a write.
    pub payload_max: u32,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// An error of the socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It speaks another protocol.
    #[error("it does not speak NBD with fixed newstyle negotiation")]
    Protocol,
    /// The server refuses the export, with its number and text.
    #[error("the server refuses the export: error {0:#x} {1}")]
    Refused(u32, String),
    /// It does not know FLUSH, so nothing written to it would be known as durable.
    #[error("the export can be written but not flushed")]
    NoFlush,
    /// It wants aligned requests; the alignment.
    #[error(
        "the export wants requests aligned to {0} bytes, which is not built: let its server take any, as nbdkit's filter blocksize does"
    )]
    Aligned(u32),
    /// It is empty, or has more bytes than a file can.
    #[error("the export has {0} bytes")]
    Size(u64),
    /// It takes requests of so many bytes at most, less than 4096.
    #[error("the export takes requests of up to {0} bytes alone")]
    Short(u32),
}

/// Asks for an export, until requests may be sent.
///
/// # Errors
/// Those of the socket and of the protocol, a refusal, and a size of no use.
pub async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    export: &str,
) -> Result<Export, HandshakeError> {
    if stream.read_u64().await? != GREETING || stream.read_u64().await? != OPTIONS {
        return Err(HandshakeError::Protocol);
    }
    let flags = stream.read_u16().await?;
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(HandshakeError::Protocol);
    }
    let mut out = u32::from(FIXED_NEWSTYLE | flags & NO_ZEROES)
        .to_be_bytes()
        .to_vec();
    let name_len = u32::try_from(export.len()).map_err(|_| HandshakeError::Protocol)?;
    out.extend(OPTIONS.to_be_bytes());
    out.extend(OPT_GO.to_be_bytes());
    out.extend((name_len + 8).to_be_bytes());
    out.extend(name_len.to_be_bytes());
    out.extend(export.as_bytes());
    // One wish.
    out.extend(1u16.to_be_bytes());
    out.extend(INFO_BLOCK_SIZE.to_be_bytes());
    stream.write_all(&out).await?;
    let mut found = None;
    let (mut least, mut most) = (1, PAYLOAD_BYTES);
    loop {
        let is_reply = stream.read_u64().await? == OPTION_REPLY && stream.read_u32().await? == OPT_GO;
        let (kind, len) = (stream.read_u32().await?, stream.read_u32().await?);
        if !is_reply || len > OPTION_REPLY_BYTES_MAX {
            return Err(HandshakeError::Protocol);
        }
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).await?;
        match kind {
            REP_ACK => break,
            REP_INFO => match info(&data) {
                Some(Info::Export { size, flags }) => found = Some((size, flags)),
                Some(Info::BlockSize { minimum, maximum }) => (least, most) = (minimum, maximum),
                Some(Info::Other) => {}
                None => return Err(HandshakeError::Protocol),
            },
            kind if kind & REP_ERROR != 0 => {
                let text = String::from_utf8_lossy(&data)
                    .chars()
                    .filter(|c| !c.is_control())
                    .collect();
                return Err(HandshakeError::Refused(kind, text));
            }
            _ => return Err(HandshakeError::Protocol),
        }
    }
    let (size, flags) = found.ok_or(HandshakeError::Protocol)?;
    match size == 0 || i64::try_from(size).is_err() {
        true => Err(HandshakeError::Size(size)),
        false => Ok(Export {
            size,
            flags,
            minimum: least.max(1),
            maximum: most.min(PAYLOAD_BYTES),
        }),
    }
}

impl Export {
    /// The device behind it.
    ///
    /// # Errors
    /// It cannot flush, wants aligned requests, or takes short ones alone.
    pub fn device(self) -> Result<Device, HandshakeError> {
        let has = |flag| self.flags & flag != 0;
        match () {
            () if self.maximum < 4096 => Err(HandshakeError::Short(self.maximum)),
            () if self.minimum > 1 => Err(HandshakeError::Aligned(self.minimum)),
            () if !has(FLAG_READ_ONLY) && !has(FLAG_FLUSH) => Err(HandshakeError::NoFlush),
            () => Ok(Device {
                size: self.size,
                is_read_only: has(FLAG_READ_ONLY),
                can_zero: has(FLAG_ZEROES),
                payload_max: self.maximum,
            }),
        }
    }
}

enum Info {
    Export { size: u64, flags: u16 },
    BlockSize { minimum: u32, maximum: u32 },
    Other,
}

fn info(data: &[u8]) -> Option<Info> {
    let (kind, rest) = data.split_first_chunk()?;
    match u16::from_be_bytes(*kind) {
        INFO_EXPORT => {
            let (size, rest) = rest.split_first_chunk()?;
            let (size, flags) = (
                u64::from_be_bytes(*size),
                u16::from_be_bytes(*rest.first_chunk()?),
            );
            Some(Info::Export { size, flags })
        }
        INFO_BLOCK_SIZE => {
            // The preferred size stands between.
            let (minimum, rest) = rest.split_first_chunk()?;
            let maximum = rest.get(4..)?.first_chunk()?;
            let (minimum, maximum) = (u32::from_be_bytes(*minimum), u32::from_be_bytes(*maximum));
            Some(Info::BlockSize { minimum, maximum })
        }
        _ => Some(Info::Other),
    }
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Read.
    Read = 0,
    /// Write.
    Write = 1,
    /// The client leaves.
    Disconnect = 2,
    /// Make what was answered durable.
    Flush = 3,
    /// Forget a range.
    Trim = 4,
    /// Write zeros.
    Zero = 6,
}

/// Flag of a change: it is durable when it is answered.
pub const FUA: u16 = 1 << 0;
/// Flag of [`Command::Zero`]: the range stays allocated.
pub const NO_HOLE: u16 = 1 << 1;

/// The header of a request.
pub fn request(flags: u16, command: Command, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
    let mut out = [0; REQUEST_BYTES];
    out[..4].copy_from_slice(&REQUEST.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..24].copy_from_slice(&offset.to_be_bytes());
    out[24..].copy_from_slice(&len.to_be_bytes());
    out
}

/// Cookie and error number of a simple reply; `None` if the bytes are none.
pub fn reply(bytes: &[u8; REPLY_BYTES]) -> Option<(u64, u32)> {
    let (magic, rest) = bytes.split_first_chunk()?;
    let (error, cookie) = rest.split_first_chunk()?;
    (u32::from_be_bytes(*magic) == REPLY).then_some((
        u64::from_be_bytes(*cookie.first_chunk()?),
        u32::from_be_bytes(*error),
    ))
}

/// The error of a reply; `None` if it is success.
pub(crate) fn error(number: u32) -> Option<io::Error> {
    let kind = match number {
        0 => return None,
        1 => io::ErrorKind::PermissionDenied,
        12 => io::ErrorKind::OutOfMemory,
        28 => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    Some(io::Error::new(
        kind,
        format!("the NBD server answered with error {number}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server sends in the handshake: an export of `size`, its flags, its least request.
    fn server(size: u64, flags: u16, least: u32) -> Vec<u8> {
        let mut out = [GREETING.to_be_bytes(), OPTIONS.to_be_bytes()].concat();
        out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        let mut say = |kind: u32, data: &[u8]| {
            out.extend(OPTION_REPLY.to_be_bytes());
            out.extend([OPT_GO, kind, data.len() as u32].map(u32::to_be_bytes).concat());
            out.extend(data);
        };
        let size = size.to_be_bytes();
        say(
            REP_INFO,
            &[&INFO_EXPORT.to_be_bytes()[..], &size, &flags.to_be_bytes()].concat(),
        );
        let sizes = [least, 4096, 1 << 20].map(u32::to_be_bytes).concat();
        say(REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes].concat());
        say(REP_INFO, &[0, 99, 1]);
        say(REP_ACK, &[]);
        out
    }

    async fn shake(says: &[u8]) -> Result<Device, HandshakeError> {
        let (mut here, mut there) = tokio::io::duplex(1 << 20);
        there.write_all(says).await.unwrap();
        there.shutdown().await.unwrap();
        shake_hands(&mut here, "disk").await?.device()
    }

    #[tokio::test]
    async fn an_export_is_known_by_its_flags_and_sizes() {
        let found = shake(&server(5, FLAG_FLUSH | FLAG_ZEROES, 1)).await.unwrap();
        let expected = Device {
            size: 5,
            is_read_only: false,
            can_zero: true,
            payload_max: 1 << 20,
        };
        assert_eq!(found, expected);
        assert!(shake(&server(5, FLAG_READ_ONLY, 1)).await.unwrap().is_read_only);
    }

    #[tokio::test]
    async fn exports_of_no_use_are_refused() {
        let error = |says: Vec<u8>| async move { shake(&says).await.unwrap_err() };
        assert!(matches!(
            error(server(0, FLAG_FLUSH, 1)).await,
            HandshakeError::Size(0)
        ));
        let huge = error(server(1 << 63, FLAG_FLUSH, 1)).await;
        assert!(matches!(huge, HandshakeError::Size(_)));
        assert!(matches!(error(server(5, 0, 1)).await, HandshakeError::NoFlush));
        assert!(matches!(
            error(server(5, FLAG_FLUSH, 512)).await,
            HandshakeError::Aligned(512)
        ));
        let mut refused = server(5, 0, 1)[..18].to_vec();
        refused.extend(OPTION_REPLY.to_be_bytes());
        refused.extend([OPT_GO, REP_ERROR | 6, 3].map(u32::to_be_bytes).concat());
        refused.extend(b"no\n");
        let refused = error(refused).await;
        assert!(
            matches!(&refused, HandshakeError::Refused(0x8000_0006, text) if text == "no"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn whatever_a_server_says_the_handshake_ends() {
        let good = server(5, FLAG_FLUSH, 1);
        for cut in 0..good.len() {
            assert!(shake(&good[..cut]).await.is_err());
            // Every byte counts, but for the sizes and flags, and answers to what was not asked.
            let mut bad = good.clone();
            bad[cut] ^= 0xff;
            let _ = shake(&bad).await;
        }
        let mut long = good[..18].to_vec();
        long.extend(OPTION_REPLY.to_be_bytes());
        long.extend([OPT_GO, REP_INFO, u32::MAX].map(u32::to_be_bytes).concat());
        assert!(matches!(shake(&long).await, Err(HandshakeError::Protocol)));
    }
}
