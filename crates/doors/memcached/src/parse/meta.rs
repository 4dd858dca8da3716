//! The meta commands mg, ms, md and me (mn has no arguments).
//!
//! Flags that memcached knows and that would change what a command does, but that need state which Pumice does not keep
//! per object (stale and win tokens, time of the last access), are refused as invalid rather than passed over: N, R, h and
//! l of mg, I of ms and md. Flags that memcached knows but that mean nothing to the command are passed over, as it does.

use super::line::Tokens;
use super::store::{request, value_len};
use super::{
    Command, Exptime, Key, Limits, LineResult, Mode, Refused, Request, Store, StoreReply, number, replies,
};

/// More flags than this are refused: there are fewer different ones.
const MAX_FLAGS: usize = 21;

/// The longest opaque token, its letter included.
const MAX_OPAQUE_BYTES: usize = 32;

/// The flags of a meta command in the order in which they were given, all of them checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlags<'a> {
    tokens: Tokens<'a>,
}

impl<'a> MetaFlags<'a> {
    /// Each flag as it was given: its letter and its argument.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        self.tokens
            .filter_map(|token| token.split_first().map(|(letter, argument)| (*letter, argument)))
    }
}

/// mg: one key to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaGet<'a> {
    /// The key.
    pub key: Key<'a>,
    /// What to answer.
    pub flags: MetaFlags<'a>,
    /// The value is wanted.
    pub value: bool,
    /// A miss is not answered.
    pub quiet: bool,
    /// The new expiry.
    pub touch: Option<Exptime>,
}

/// md: one key to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaDelete<'a> {
    /// The key.
    pub key: Key<'a>,
    /// What to answer.
    pub flags: MetaFlags<'a>,
    /// Success is not answered.
    pub quiet: bool,
    /// The CAS unique that the key must hold.
    pub compare: Option<u64>,
}

/// me: one key to say where its object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaDebug<'a> {
    /// The key.
    pub key: Key<'a>,
}

/// What the flags of a command say, whatever the command.
struct Scanned<'a> {
    key: Key<'a>,
    flags: MetaFlags<'a>,
    quiet: bool,
    value: bool,
    exptime: Option<Exptime>,
    client_flags: u32,
    compare: Option<u64>,
    mode: Option<u8>,
}

/// Reads the flags. `refused` are those which the command would have to obey and cannot.
fn scan<'a>(key: Key<'a>, tokens: Tokens<'a>, refused: &[u8]) -> Result<Scanned<'a>, &'static str> {
    let mut scanned = Scanned {
        key,
        flags: MetaFlags { tokens },
        quiet: false,
        value: false,
        exptime: None,
        client_flags: 0,
        compare: None,
        mode: None,
    };
    if { tokens }.count() > MAX_FLAGS {
        return Err(replies::FLAGS_TOO_LONG);
    }
    let mut seen = 0u128;
    for (letter, argument) in scanned.flags.iter() {
        let bit = 1u128
            .checked_shl(u32::from(letter))
            .ok_or(replies::INVALID_FLAG)?;
        if seen & bit != 0 {
            return Err(replies::DUPLICATE_FLAG);
        }
        seen |= bit;
        if refused.contains(&letter) {
            return Err(replies::INVALID_FLAG);
        }
        match letter {
            b'b' => scanned.key = key.into_base64().ok_or(replies::BAD_KEY_CODE)?,
            b'q' => scanned.quiet = true,
            b'v' => scanned.value = true,
            b'T' => {
                let exptime = number::signed(argument).ok_or(replies::BAD_TOKEN)?;
                scanned.exptime = Some(Exptime(exptime));
            }
            b'F' => scanned.client_flags = number::flags(argument).ok_or(replies::BAD_FORMAT)?,
            b'C' => scanned.compare = Some(number::unsigned(argument).ok_or(replies::BAD_TOKEN)?),
            b'M' => match argument {
                [mode] => scanned.mode = Some(*mode),
                _ => return Err(replies::MODE_LENGTH),
            },
            b'N' | b'R' => {
                number::signed(argument).ok_or(replies::BAD_TOKEN)?;
            }
            b'D' | b'J' => {
                number::unsigned(argument).ok_or(replies::BAD_TOKEN)?;
            }
            b'O' if argument.len() >= MAX_OPAQUE_BYTES => return Err(replies::OPAQUE_TOO_LONG),
            // P and L are for proxies; u asks not to count as an access, which is a hint.
            b'O' | b'P' | b'L' | b'u' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' | b'I' => {}
            _ => return Err(replies::INVALID_FLAG),
        }
    }
    Ok(scanned)
}

fn first_key<'a>(tokens: &mut Tokens<'a>) -> Result<Key<'a>, Refused> {
    let token = tokens.next().ok_or_else(|| Refused::new(replies::ERROR))?;
    Key::plain(token).ok_or_else(|| Refused::new(replies::BAD_FORMAT))
}

pub(super) fn get(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let key = first_key(&mut tokens)?;
    let scanned = scan(key, tokens, b"NRhl").map_err(Refused::new)?;
    Ok(Request::Whole(Command::MetaGet(MetaGet {
        key: scanned.key,
        flags: scanned.flags,
        value: scanned.value,
        quiet: scanned.quiet,
        touch: scanned.exptime,
    })))
}

pub(super) fn set<'a>(mut tokens: Tokens<'a>, limits: &Limits) -> LineResult<'a> {
    let key = first_key(&mut tokens)?;
    let len = tokens
        .next()
        .and_then(value_len)
        .ok_or_else(|| Refused::new(replies::BAD_FORMAT))?;
    // From here on the length of the value is known: whatever else is wrong, the value is passed over.
    let refused = |reply| Refused { reply, skip: len + 2 };
    let scanned = scan(key, tokens, b"I").map_err(refused)?;
    let mode = match scanned.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'R') => Mode::Replace,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(_) => return Err(refused(replies::MODE_INVALID)),
    };
    let store = Store {
        key: scanned.key,
        mode,
        flags: scanned.client_flags,
        exptime: scanned.exptime.unwrap_or(Exptime(0)),
        compare: scanned.compare,
        value: b"",
        reply: StoreReply::Meta {
            flags: scanned.flags,
            quiet: scanned.quiet,
        },
    };
    Ok(request(store, len, limits))
}

pub(super) fn delete(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let key = first_key(&mut tokens)?;
    let scanned = scan(key, tokens, b"I").map_err(|reply| {
        Refused::new(match reply {
            replies::OPAQUE_TOO_LONG | replies::FLAGS_TOO_LONG => reply,
            _ => replies::INVALID_OR_DUPLICATE,
        })
    })?;
    Ok(Request::Whole(Command::MetaDelete(MetaDelete {
        key: scanned.key,
        flags: scanned.flags,
        quiet: scanned.quiet,
        compare: scanned.compare,
    })))
}

/// As memcached has it: b counts directly behind the key, everything else is passed over, and there is one error.
pub(super) fn debug(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let refused = || Refused::new(replies::BAD_FORMAT);
    let key = tokens.next().and_then(Key::plain).ok_or_else(refused)?;
    let key = match tokens.next() {
        Some(b"b") => key.into_base64().ok_or_else(refused)?,
        _ => key,
    };
    Ok(Request::Whole(Command::MetaDebug(MetaDebug { key })))
}
