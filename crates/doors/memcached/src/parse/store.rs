//! set, add, replace, append, prepend, cas; what they share with ms.

use super::line::Arguments;
use super::{Command, Exptime, Key, Limits, LineResult, MetaFlags, Refused, Request, number, replies};

/// What has to be the case for a value to be stored, and what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Always stored.
    Set,
    /// Stored where the key holds nothing.
    Add,
    /// Stored where the key holds something.
    Replace,
    /// Put after what the key holds.
    Append,
    /// Put before what the key holds.
    Prepend,
}

/// A value to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: Key<'a>,
    /// How it is stored.
    pub mode: Mode,
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub exptime: Exptime,
    /// The CAS unique that the key must hold.
    pub compare: Option<u64>,
    /// An older CAS unique than the key holds is taken, too; the object is then stale.
    pub invalidate: bool,
    /// The value.
    pub value: &'a [u8],
    /// How to answer.
    pub reply: StoreReply<'a>,
}

/// How a storage command is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReply<'a> {
    /// In words, or not at all.
    Classic {
        /// No reply is wanted.
        noreply: bool,
    },
    /// In two letters with the flags that were asked for.
    Meta {
        /// The flags.
        flags: MetaFlags<'a>,
        /// Success is not answered.
        quiet: bool,
    },
}

impl StoreReply<'_> {
    /// Whether even errors are not answered (`noreply`; quiet meta commands do answer errors).
    pub fn is_noreply(&self) -> bool {
        matches!(self, StoreReply::Classic { noreply: true })
    }
}

/// A value that is larger than the limit. Its bytes follow and have to be passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge<'a> {
    /// The key.
    pub key: Key<'a>,
    /// Whether what the key holds must go, as memcached has it: after a set, which would have replaced it, and after ms.
    pub unlink: bool,
    /// Whether no answer is wanted.
    pub noreply: bool,
    /// Bytes to pass over: the value and its line end.
    pub skip: u64,
}

/// The largest length of a value that memcached takes for one at all.
const MAX_ANNOUNCED: u64 = i32::MAX as u64 - 3;

/// Reads the length of a value.
pub(super) fn value_len(token: &[u8]) -> Option<u64> {
    number::unsigned(token).filter(|len| *len <= MAX_ANNOUNCED)
}

/// A storage command whose line is in order: whole but for its value, or too large.
pub(super) fn request<'a>(store: Store<'a>, len: u64, limits: &Limits) -> Request<'a> {
    match u32::try_from(len) {
        Ok(len) if len <= limits.max_value_bytes => Request::NeedsValue(store, len),
        _ => Request::Whole(Command::TooLarge(TooLarge {
            key: store.key,
            unlink: match store.reply {
                StoreReply::Classic { .. } => store.mode == Mode::Set && store.compare.is_none(),
                StoreReply::Meta { .. } => true,
            },
            noreply: store.reply.is_noreply(),
            skip: len + 2,
        })),
    }
}

pub(super) fn store<'a>(arguments: &Arguments<'a>, mode: Mode, limits: &Limits) -> LineResult<'a> {
    match arguments.as_slice() {
        [key, flags, exptime, len] | [key, flags, exptime, len, _] => classic(
            [key, flags, exptime, len],
            None,
            mode,
            arguments.noreply(),
            limits,
        ),
        _ => Err(Refused::new(replies::ERROR)),
    }
}

pub(super) fn cas<'a>(arguments: &Arguments<'a>, limits: &Limits) -> LineResult<'a> {
    match arguments.as_slice() {
        [key, flags, exptime, len, unique] | [key, flags, exptime, len, unique, _] => {
            let line = [*key, flags, exptime, len];
            classic(line, Some(unique), Mode::Set, arguments.noreply(), limits)
        }
        _ => Err(Refused::new(replies::ERROR)),
    }
}

fn classic<'a>(
    [key, flags, exptime, len]: [&'a [u8]; 4],
    unique: Option<&[u8]>,
    mode: Mode,
    noreply: bool,
    limits: &Limits,
) -> LineResult<'a> {
    let parts = || {
        let store = Store {
            key: Key::plain(key)?,
            mode,
            flags: number::flags(flags)?,
            exptime: Exptime(number::signed(exptime)?),
            compare: match unique {
                Some(unique) => Some(number::unsigned(unique)?),
                None => None,
            },
            invalidate: false,
            value: b"",
            reply: StoreReply::Classic { noreply },
        };
        Some((store, value_len(len)?))
    };
    let (store, len) = parts().ok_or_else(|| Refused::unless(noreply, replies::BAD_FORMAT))?;
    Ok(request(store, len, limits))
}
