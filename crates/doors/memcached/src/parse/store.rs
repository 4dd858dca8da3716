//! set, add, replace, append, prepend, cas; what they share with ms.

use super::command::{
    Command, Exptime, Limits, LineResult, Mode, Refused, Request, Store, StoreReply, TooLarge, replies,
};
use super::keys::Key;
use super::line::Arguments;
use super::number;

/// The largest length of a value that memcached takes for one at all.
const MAX_ANNOUNCED: u64 = i32::MAX as u64 - 3;

/// Reads the length of a value, of one that is too large as well, up to what memcached takes for a length.
pub(super) fn value_len(token: &[u8], limits: &Limits) -> Option<u64> {
    let most = MAX_ANNOUNCED.max(limits.max_value_bytes.into());
    number::unsigned(token).filter(|len| *len <= most)
}

/// A storage command whose line is in order: whole but for its value, or too large.
pub(super) fn request<'a>(store: Store<'a>, len: u64, limits: &Limits) -> Request<'a> {
    match u32::try_from(len) {
        Ok(len) if len <= limits.max_value_bytes => Request::NeedsValue(store, len),
        _ => Request::Whole(Command::TooLarge(TooLarge {
            key: store.key,
            unlink: match store.reply {
                StoreReply::Classic { .. } => store.mode == Mode::Set && store.compare.is_none(),
                _ => true,
            },
            noreply: store.reply.is_noreply(),
            skip: len + 2,
            frame: None,
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
            exptime: Exptime(number::exptime(exptime)?),
            compare: match unique {
                Some(unique) => Some(number::unsigned(unique)?),
                None => None,
            },
            invalidate: false,
            value: b"",
            reply: StoreReply::Classic { noreply },
        };
        Some((store, value_len(len, limits)?))
    };
    let (store, len) = parts().ok_or_else(|| Refused::unless(noreply, replies::BAD_FORMAT))?;
    Ok(request(store, len, limits))
}
