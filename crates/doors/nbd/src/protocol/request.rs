//! Requests of the transmission phase.
//!
//! | offset | size | field    | meaning                                                    |
//! |-------:|-----:|----------|------------------------------------------------------------|
//! |      0 |    4 | magic    | 0x25609513                                                 |
//! |      4 |    2 | flags    | FUA 1, NO_HOLE 2, REQ_ONE 8; any other is refused          |
//! |      6 |    2 | kind     | READ 0, WRITE 1, DISC 2, FLUSH 3, TRIM 4, CACHE 5, WRITE_ZEROES 6, BLOCK_STATUS 7 |
//! |      8 |    8 | cookie   | comes back in the reply                                    |
//! |     16 |    8 | offset   |                                                            |
//! |     24 |    4 | length   | a WRITE has as many bytes behind it                        |

use super::{Errno, Session, take, take_u16, take_u32, take_u64};
use crate::export::Shape;

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;

/// Most bytes of a READ or a WRITE.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

const MAGIC: [u8; 4] = 0x2560_9513_u32.to_be_bytes();

const FUA: u16 = 1 << 0;
const NO_HOLE: u16 = 1 << 1;
const REQ_ONE: u16 = 1 << 3;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

/// The fields of a request, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command flags.
    pub flags: u16,
    /// The command's number.
    pub kind: u16,
    /// Chosen by the client; the reply repeats it.
    pub cookie: u64,
    /// Offset in the export, in bytes.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u32,
}

/// A request that may be executed: its range is inside the export and not empty, its flags are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "offset and length are bytes of the export everywhere")]
pub enum Command {
    /// READ.
    Read { offset: u64, length: u32 },
    /// WRITE, with `length` bytes behind the request.
    Write {
        offset: u64,
        length: u32,
        is_durable: bool,
    },
    /// WRITE_ZEROES.
    Zero {
        offset: u64,
        length: u32,
        may_punch: bool,
        is_durable: bool,
    },
    /// TRIM.
    Trim {
        offset: u64,
        length: u32,
        is_durable: bool,
    },
    /// FLUSH.
    Flush,
    /// BLOCK_STATUS.
    Status { offset: u64, length: u32, is_one: bool },
    /// CACHE.
    Cache { offset: u64, length: u32 },
    /// DISC: the client disconnects, and expects no reply.
    Disconnect,
}

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub errno: Errno,
    /// Why, for people.
    pub why: &'static str,
    /// Bytes of its data behind the request, to be skipped.
    pub payload: u32,
}

impl Request {
    /// Decodes a request; `None` if the magic number is wrong. The start of the next request is then unknown.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut rest = &bytes[..];
        if take(&mut rest) != Some(&MAGIC) {
            return None;
        }
        Some(Self {
            flags: take_u16(&mut rest)?,
            kind: take_u16(&mut rest)?,
            cookie: take_u64(&mut rest)?,
            offset: take_u64(&mut rest)?,
            length: take_u32(&mut rest)?,
        })
    }

    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Whether the reply, also an error, must be structured in a session with structured replies.
    pub fn has_structured_reply(&self) -> bool {
        matches!(self.kind, READ | BLOCK_STATUS)
    }

    /// Checks the request against the session and the export.
    ///
    /// # Errors
    /// [`Refusal`]: an unknown command or flag, a range that is empty, too long or outside the export, a change of a read-only export, or
    /// BLOCK_STATUS without a metadata context.
    pub fn command(&self, session: &Session, shape: &Shape) -> Result<Command, Refusal> {
        let (offset, length) = (self.offset, self.length);
        let refuse = |errno, why| {
            Err(Refusal {
                errno,
                why,
                payload: if self.kind == WRITE { length } else { 0 },
            })
        };
        // The protocol allows FUA with every command; it matters for changes only.
        let flags = self.flags & !FUA;
        let is_durable = self.flags & FUA != 0;
        let known = match self.kind {
            WRITE_ZEROES => NO_HOLE,
            BLOCK_STATUS => REQ_ONE,
            DISC => return Ok(Command::Disconnect),
            READ | WRITE | FLUSH | TRIM | CACHE => 0,
            _ => return refuse(Errno::Invalid, "unknown command"),
        };
        if flags & !known != 0 {
            return refuse(Errno::Invalid, "flag that this command does not have");
        }
        if self.kind == FLUSH {
            return match (offset, length) {
                (0, 0) => Ok(Command::Flush),
                _ => refuse(Errno::Invalid, "flush of a range"),
            };
        }
        if self.kind == BLOCK_STATUS && !session.has_status {
            return refuse(Errno::Invalid, "no metadata context was agreed upon");
        }
        let is_change = matches!(self.kind, WRITE | TRIM | WRITE_ZEROES);
        if is_change && shape.is_read_only {
            return refuse(Errno::NotAllowed, "the export is read-only");
        }
        if length == 0 {
            return refuse(Errno::Invalid, "length is 0");
        }
        if matches!(self.kind, READ | WRITE) && length > MAX_PAYLOAD_BYTES {
            return refuse(Errno::Invalid, "more than 32 MiB at once");
        }
        let is_inside = offset
            .checked_add(u64::from(length))
            .is_some_and(|end| end <= shape.size_bytes);
        if !is_inside {
            let errno = match self.kind {
                WRITE | WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            return refuse(errno, "past the end of the export");
        }
        Ok(match self.kind {
            READ => Command::Read { offset, length },
            WRITE => Command::Write {
                offset,
                length,
                is_durable,
            },
            TRIM => Command::Trim {
                offset,
                length,
                is_durable,
            },
            CACHE => Command::Cache { offset, length },
            WRITE_ZEROES => Command::Zero {
                offset,
                length,
                may_punch: flags & NO_HOLE == 0,
                is_durable,
            },
            _ => Command::Status {
                offset,
                length,
                is_one: flags & REQ_ONE != 0,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Session = Session {
        export: 0,
        is_structured: true,
        has_status: true,
    };
    const SHAPE: Shape = Shape {
        size_bytes: 1 << 30,
        is_read_only: false,
        preferred_bytes: 4096,
    };

    fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request {
            flags,
            kind,
            cookie: 7,
            offset,
            length,
        }
    }

    fn errno(request: Request, shape: &Shape) -> Option<Errno> {
        let refused = request.command(&SESSION, shape).err()?;
        assert_eq!(
            refused.payload,
            if request.kind == WRITE { request.length } else { 0 }
        );
        Some(refused.errno)
    }

    #[test]
    fn a_request_is_read_as_the_specification_has_it() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 16, 0,
        ];
        let parsed = Request::parse(&bytes).expect("the magic is right");
        assert_eq!(parsed.encode(), bytes);
        assert_eq!(parsed.cookie, 0x0102_0304_0506_0708);
        let write = Command::Write {
            offset: 0x0001_0201,
            length: 4096,
            is_durable: true,
        };
        assert_eq!(parsed.command(&SESSION, &SHAPE), Ok(write));
        let mut wrong = bytes;
        wrong[3] ^= 1;
        assert_eq!(Request::parse(&wrong), None);
    }

    #[test]
    fn ranges_end_where_the_export_does() {
        let end = SHAPE.size_bytes;
        for kind in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS] {
            let beyond = match kind {
                WRITE | WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            assert_eq!(errno(request(kind, 0, end - 513, 513), &SHAPE), None);
            assert_eq!(errno(request(kind, 0, end - 512, 513), &SHAPE), Some(beyond));
            assert_eq!(errno(request(kind, 0, end, 1), &SHAPE), Some(beyond));
            assert_eq!(errno(request(kind, 0, u64::MAX, 1), &SHAPE), Some(beyond));
            assert_eq!(errno(request(kind, 0, 0, 0), &SHAPE), Some(Errno::Invalid));
        }
    }

    #[test]
    fn a_payload_has_at_most_32_mib() {
        for kind in [READ, WRITE] {
            assert_eq!(errno(request(kind, 0, 0, MAX_PAYLOAD_BYTES), &SHAPE), None);
            let over = request(kind, 0, 0, MAX_PAYLOAD_BYTES + 1);
            assert_eq!(errno(over, &SHAPE), Some(Errno::Invalid));
        }
        assert_eq!(errno(request(WRITE_ZEROES, 0, 0, 1 << 30), &SHAPE), None);
    }

    #[test]
    fn each_command_has_its_flags_and_fua() {
        for kind in 0..10 {
            for bit in 0..16 {
                if kind == DISC {
                    continue;
                }
                let length = if kind == FLUSH { 0 } else { 512 };
                let refused = errno(request(kind, 1 << bit, 0, length), &SHAPE).is_some();
                let is_known =
                    bit == 0 || kind == WRITE_ZEROES && bit == 1 || kind == BLOCK_STATUS && bit == 3;
                assert_eq!(refused, kind > BLOCK_STATUS || !is_known, "{kind} {bit}");
            }
        }
    }

    #[test]
    fn nothing_changes_a_read_only_export() {
        let shape = Shape {
            is_read_only: true,
            ..SHAPE
        };
        for kind in [WRITE, TRIM, WRITE_ZEROES] {
            assert_eq!(errno(request(kind, 0, 0, 512), &shape), Some(Errno::NotAllowed));
        }
        for kind in [READ, CACHE, BLOCK_STATUS] {
            assert_eq!(errno(request(kind, 0, 0, 512), &shape), None);
        }
        assert_eq!(errno(request(FLUSH, 0, 0, 0), &shape), None);
        assert_eq!(errno(request(FLUSH, 0, 0, 1), &shape), Some(Errno::Invalid));
    }

    #[test]
    fn status_has_to_be_agreed_upon() {
        let session = Session {
            has_status: false,
            ..SESSION
        };
        let refused = request(BLOCK_STATUS, 0, 0, 512).command(&session, &SHAPE);
        assert_eq!(refused.map_err(|refused| refused.errno), Err(Errno::Invalid));
    }
}
