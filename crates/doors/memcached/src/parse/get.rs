//! get, gets, gat, gats.

use super::line::Tokens;
use super::{Command, Exptime, Key, LineResult, Parsed, Refused, Request, number, replies};

/// One or more keys to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The keys, in order.
    pub keys: Keys<'a>,
    /// Whether the replies carry the CAS unique (gets, gats).
    pub with_cas: bool,
    /// The new expiry (gat, gats).
    pub touch: Option<Exptime>,
}

/// The keys of a [`Get`], all of them checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    tokens: Tokens<'a>,
}

impl<'a> Keys<'a> {
    fn checked(tokens: Tokens<'a>) -> Option<Self> {
        { tokens }
            .all(|token| Key::plain(token).is_some())
            .then_some(Self { tokens })
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.tokens.next()
    }
}

pub(super) fn get(tokens: Tokens<'_>, with_cas: bool) -> LineResult<'_> {
    if { tokens }.next().is_none() {
        return Err(Refused::new(replies::ERROR));
    }
    keys(tokens, with_cas, None)
}

pub(super) fn gat(mut tokens: Tokens<'_>, with_cas: bool) -> LineResult<'_> {
    let Some(exptime) = tokens.next() else {
        return Err(Refused::new(replies::ERROR));
    };
    let Some(exptime) = number::signed(exptime) else {
        return Err(Refused::new(replies::BAD_EXPTIME));
    };
    keys(tokens, with_cas, Some(Exptime(exptime)))
}

/// The keys that stand whole in the window of a line that goes on. The last word is left to the rest, so that there always is one.
/// Nothing where that leaves no key, or one of them is none.
pub(super) fn part(window: &[u8]) -> Option<Parsed<'_>> {
    let mut tokens = Tokens::new(window);
    let (touch, with_cas) = match tokens.next()? {
        b"gat" => (Some(Exptime(number::signed(tokens.next()?)?)), false),
        b"gats" => (Some(Exptime(number::signed(tokens.next()?)?)), true),
        name => (None, name == b"gets"),
    };
    let head_len = window.len() - tokens.rest().len() + 1;
    let listed = window.get(head_len..)?;
    let end = listed.iter().rposition(|byte| *byte != b' ')?;
    let last = listed[..end].iter().rposition(|byte| *byte == b' ')? + 1;
    let tokens = Tokens::new(&listed[..last]);
    { tokens }.next()?;
    let get = Get {
        keys: Keys::checked(tokens)?,
        with_cas,
        touch,
    };
    Some(Parsed::Keys {
        get,
        head_len,
        rest: head_len + last,
    })
}

fn keys(tokens: Tokens<'_>, with_cas: bool, touch: Option<Exptime>) -> LineResult<'_> {
    // One bad key refuses them all, as in memcached, which drops the replies it has prepared.
    let keys = Keys::checked(tokens).ok_or_else(|| Refused::new(replies::BAD_FORMAT))?;
    Ok(Request::Whole(Command::Get(Get {
        keys,
        with_cas,
        touch,
    })))
}
