//! The meta commands mg, ms, md, ma and me (mn has no arguments).
//!
//! Flags that memcached knows but that mean nothing to the command are passed over, as it does. One flag is refused: l of
//! mg, because no time of the last access is kept.

use super::command::{
    Command, Exptime, Limits, LineResult, MetaDebug, MetaFlags, MetaRequest, Mode, Refused, Request, Store,
    StoreReply, replies,
};
use super::keys::Key;
use super::line::Tokens;
use super::number;
use super::store::{request, value_len};

/// The most flags that mg, md and ma take.
const MAX_FLAGS: usize = 17;

/// The most flags that ms takes.
const MAX_SET_FLAGS: usize = 16;

/// The longest opaque token, its letter included.
const MAX_OPAQUE_BYTES: usize = 32;

/// What the flags of a command say, those of ms included.
struct Scanned<'a> {
    request: MetaRequest<'a>,
    client_flags: u32,
    mode: Option<u8>,
    long_opaque: bool,
}

impl<'a> Scanned<'a> {
    fn new(key: Key<'a>, tokens: Tokens<'a>) -> Self {
        Self {
            request: MetaRequest::new(key, MetaFlags { tokens }),
            client_flags: 0,
            mode: None,
            long_opaque: false,
        }
    }

    /// Takes in one flag.
    fn flag(&mut self, letter: u8, argument: &[u8]) -> Result<(), Wrong> {
        let request = &mut self.request;
        match letter {
            b'b' => {
                request.key = request
                    .key
                    .into_base64()
                    .ok_or(Wrong::Noted(replies::BAD_KEY_CODE))?
            }
            b'q' => request.quiet = true,
            b'v' => request.value = true,
            b'u' => request.aside = true,
            b'I' => request.invalidate = true,
            b'T' => request.touch = Some(exptime(argument)?),
            b'N' => request.vivify = Some(exptime(argument)?),
            b'R' => request.recache = Some(exptime(argument)?),
            b'F' => self.client_flags = number::flags(argument).ok_or(Wrong::Unnamed)?,
            b'C' => {
                let unique = number::unsigned(argument).ok_or(Wrong::Noted(replies::BAD_TOKEN))?;
                request.compare = Some(unique);
            }
            b'M' => match argument {
                [mode] => self.mode = Some(*mode),
                _ => return Err(Wrong::Noted(replies::MODE_LENGTH)),
            },
            b'D' => {
                request.by = number::unsigned(argument).ok_or(Wrong::Noted(replies::BAD_META_DELTA))?;
            }
            b'J' => {
                request.initial = number::unsigned(argument).ok_or(Wrong::Noted(replies::BAD_INITIAL))?;
            }
            b'O' => self.long_opaque = argument.len() >= MAX_OPAQUE_BYTES,
            // P and L are for proxies.
            b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' => {}
            _ => return Err(Wrong::AtOnce(replies::INVALID_FLAG)),
        }
        Ok(())
    }
}

/// What is wrong with a flag.
enum Wrong {
    /// Nothing after it is looked at.
    AtOnce(&'static str),
    /// Of more of these the last is answered.
    Noted(&'static str),
    /// As [`Wrong::Noted`], but says nothing of its own.
    Unnamed,
}

fn exptime(argument: &[u8]) -> Result<Exptime, Wrong> {
    let exptime = number::exptime(argument).ok_or(Wrong::Noted(replies::BAD_TOKEN))?;
    Ok(Exptime(exptime))
}

/// Reads the flags.
fn scan<'a>(key: Key<'a>, tokens: Tokens<'a>) -> Result<Scanned<'a>, &'static str> {
    let mut scanned = Scanned::new(key, tokens);
    let mut seen = 0u128;
    let mut noted = None;
    for (letter, argument) in scanned.request.flags.iter() {
        let bit = 1u128
            .checked_shl(u32::from(letter))
            .filter(|bit| letter < 127 && seen & bit == 0)
            .ok_or(replies::DUPLICATE_FLAG)?;
        seen |= bit;
        match scanned.flag(letter, argument) {
            Ok(()) => {}
            Err(Wrong::AtOnce(reply)) => return Err(reply),
            Err(Wrong::Noted(reply)) => noted = Some(reply),
            Err(Wrong::Unnamed) => noted = noted.or(Some(replies::BAD_FORMAT)),
        }
    }
    noted.map_or(Ok(scanned), Err)
}

/// As [`scan`], for md and ma: of what is wrong they say little.
fn scan_briefly<'a>(key: Key<'a>, tokens: Tokens<'a>) -> Result<Scanned<'a>, Refused> {
    check_count(tokens, MAX_FLAGS, replies::TOO_MANY_FLAGS)?;
    scan(key, tokens).map_err(|_| Refused::new(replies::INVALID_OR_DUPLICATE))
}

fn check_count(tokens: Tokens<'_>, most: usize, reply: &'static str) -> Result<(), Refused> {
    if { tokens }.count() > most {
        return Err(Refused::new(reply));
    }
    Ok(())
}

fn first_key<'a>(tokens: &mut Tokens<'a>) -> Result<Key<'a>, Refused> {
    let token = tokens.next().ok_or_else(|| Refused::new(replies::ERROR))?;
    Key::plain(token).ok_or_else(|| Refused::new(replies::BAD_FORMAT))
}

pub(super) fn get(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let key = first_key(&mut tokens)?;
    check_count(tokens, MAX_FLAGS, replies::FLAGS_TOO_LONG)?;
    let scanned = scan(key, tokens).map_err(Refused::new)?;
    if scanned.request.flags.iter().any(|(letter, _)| letter == b'l') {
        return Err(Refused::new(replies::INVALID_FLAG));
    }
    if scanned.long_opaque {
        return Err(Refused::new(replies::OPAQUE_TOO_LONG));
    }
    Ok(Request::Whole(Command::MetaGet(scanned.request)))
}

pub(super) fn set<'a>(mut tokens: Tokens<'a>, limits: &Limits) -> LineResult<'a> {
    let key = first_key(&mut tokens)?;
    let len = tokens.next();
    check_count(tokens, MAX_SET_FLAGS, replies::TOO_MANY_FLAGS)?;
    let len = len
        .and_then(|len| value_len(len, limits))
        .ok_or_else(|| Refused::new(replies::BAD_FORMAT))?;
    // From here on the length of the value is known: whatever else is wrong, the value is passed over.
    let refused = |reply| Refused { reply, skip: len + 2 };
    let scanned = scan(key, tokens).map_err(refused)?;
    let mode = match scanned.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'R') => Mode::Replace,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(_) => return Err(refused(replies::MODE_INVALID)),
    };
    if scanned.long_opaque {
        return Err(refused(replies::OPAQUE_TOO_LONG));
    }
    let store = Store {
        key: scanned.request.key,
        mode,
        flags: scanned.client_flags,
        exptime: scanned.request.touch.unwrap_or(Exptime(0)),
        compare: scanned.request.compare,
        invalidate: scanned.request.invalidate,
        value: b"",
        reply: StoreReply::Meta {
            flags: scanned.request.flags,
            quiet: scanned.request.quiet,
        },
    };
    Ok(request(store, len, limits))
}

pub(super) fn delete(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let key = first_key(&mut tokens)?;
    let scanned = scan_briefly(key, tokens)?;
    if scanned.long_opaque {
        return Err(Refused::new(replies::OPAQUE_TOO_LONG));
    }
    Ok(Request::Whole(Command::MetaDelete(scanned.request)))
}

pub(super) fn delta(mut tokens: Tokens<'_>) -> LineResult<'_> {
    let key = first_key(&mut tokens)?;
    let mut scanned = scan_briefly(key, tokens)?;
    scanned.request.up = match scanned.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => return Err(Refused::new(replies::DELTA_MODE_INVALID)),
    };
    if scanned.long_opaque {
        return Err(Refused::new(replies::OPAQUE_TOO_LONG));
    }
    // As memcached has it, 0 compares nothing here.
    scanned.request.compare = scanned.request.compare.filter(|unique| *unique != 0);
    Ok(Request::Whole(Command::MetaDelta(scanned.request)))
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
