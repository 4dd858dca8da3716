//! Frames of the binary protocol: a head of 24 bytes, then extras, key and value. Numbers are big-endian.
//!
//! | bytes | request | reply |
//! | --- | --- | --- |
//! | 0 | 0x80 | 0x81 |
//! | 1 | opcode | that of the request |
//! | 2, 3 | length of the key | the same |
//! | 4 | length of the extras | the same |
//! | 5 | type of the data, not looked at | 0 |
//! | 6, 7 | not looked at | [`Status`] |
//! | 8 to 11 | length of extras, key and value together | the same |
//! | 12 to 15 | opaque | that of the request |
//! | 16 to 23 | CAS unique that the key must hold; 0 compares nothing | that of the object, or 0 |

/// Length of a head.
pub const HEAD_BYTES: usize = 24;

/// The first byte of a request.
pub(super) const REQUEST: u8 = 0x80;

/// The first byte of a reply.
const REPLY: u8 = 0x81;

/// What the reply to a frame repeats of it, and what it is not to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The command.
    pub opcode: u8,
    /// Bytes of the client's.
    pub opaque: [u8; 4],
    /// A miss of get and gat is not answered, nor success of the others.
    pub quiet: bool,
    /// The key is wanted (getk, gatk).
    pub with_key: bool,
}

/// The head of a request.
pub(super) struct Head {
    pub(super) opcode: u8,
    pub(super) opaque: [u8; 4],
    pub(super) extras_len: usize,
    pub(super) key_len: usize,
    /// Of extras, key and value.
    pub(super) body_len: u32,
    pub(super) unique: u64,
}

impl Head {
    /// The head at the start of `input`, if it is there and is one.
    pub(super) fn of(input: &[u8]) -> Option<Self> {
        let head = input.first_chunk::<HEAD_BYTES>()?;
        let [magic, opcode, key_high, key_low, extras_len, _, _, _, rest @ ..] = *head;
        let [b0, b1, b2, b3, o0, o1, o2, o3, unique @ ..] = rest;
        (magic == REQUEST).then_some(Self {
            opcode,
            opaque: [o0, o1, o2, o3],
            extras_len: usize::from(extras_len),
            key_len: usize::from(u16::from_be_bytes([key_high, key_low])),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]),
            unique: u64::from_be_bytes(unique),
        })
    }

    /// Length of the value; `None` where the lengths contradict each other.
    pub(super) fn value_len(&self) -> Option<u32> {
        let others = u32::try_from(self.extras_len + self.key_len).ok()?;
        self.body_len.checked_sub(others)
    }
}

/// What a reply says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done.
    Done,
    /// The key holds nothing.
    NotFound,
    /// The key holds something, or has another CAS unique.
    Exists,
    /// The value is larger than any may be.
    TooLarge,
    /// A frame of such a command looks otherwise.
    Invalid,
    /// There is nothing to append to, or too much would come of it.
    NotStored,
    /// The value is no number.
    NotNumeric,
    /// Who asks is not known, or has to say so first.
    AuthFailed,
    /// User and password are expected.
    AuthGoesOn,
    /// There is no such command.
    Unknown,
    /// There is no room.
    NoMemory,
    /// The change lost to others too often.
    Busy,
}

impl Status {
    /// Its number and, for people, its message, as memcached has both. It has no number of its own for [`Status::Busy`].
    fn parts(self) -> (u16, &'static str) {
        match self {
            Status::Done => (0, ""),
            Status::NotFound => (1, "Not found"),
            Status::Exists => (2, "Data exists for key."),
            Status::TooLarge => (3, "Too large."),
            Status::Invalid => (4, "Invalid arguments"),
            Status::NotStored => (5, "Not stored."),
            Status::NotNumeric => (6, "Non-numeric server-side value for incr or decr"),
            Status::AuthFailed => (0x20, "Auth failure."),
            Status::AuthGoesOn => (0x21, ""),
            Status::Unknown => (0x81, "Unknown command"),
            Status::NoMemory => (0x82, "Out of memory"),
            Status::Busy => (0x82, "Too many changes to this key at once, try again"),
        }
    }

    /// The value of a reply that says no more.
    pub(crate) fn message(self) -> &'static str {
        self.parts().1
    }
}

impl Frame {
    /// The head of a reply, for extras, key and value of these lengths.
    pub(crate) fn reply(&self, status: Status, unique: u64, lens: [usize; 3]) -> [u8; HEAD_BYTES] {
        let [extras_len, key_len, value_len] = lens;
        // No key is longer than 250 bytes, and extras have 4; `--max-item-size` leaves room for both.
        let body_len = u32::try_from(extras_len + key_len + value_len).unwrap_or(u32::MAX);
        let mut head = [0; HEAD_BYTES];
        head[0] = REPLY;
        head[1] = self.opcode;
        head[2..4].copy_from_slice(&u16::try_from(key_len).unwrap_or(u16::MAX).to_be_bytes());
        head[4] = u8::try_from(extras_len).unwrap_or(u8::MAX);
        head[6..8].copy_from_slice(&status.parts().0.to_be_bytes());
        head[8..12].copy_from_slice(&body_len.to_be_bytes());
        head[12..16].copy_from_slice(&self.opaque);
        head[16..].copy_from_slice(&unique.to_be_bytes());
        head
    }
}
