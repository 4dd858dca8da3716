//! Keys: up to 250 bytes, plain, (meta commands) base64 or (frames) any; and the lines that list them: get, gets, gat, gats.

use super::command::{Command, Exptime, Get, LineResult, Refused, Request, replies};
use super::line::Tokens;
use super::number;

/// The longest key, in bytes, as it stands in the command.
pub const MAX_KEY_BYTES: usize = 250;

/// Room for a key that has to be decoded.
pub type KeyScratch = [u8; MAX_KEY_BYTES];

/// A key that was checked: 1 to 250 bytes, in words without space, newline and NUL, and valid base64 if marked so.
///
/// memcached's documentation forbids other control characters too, but memcached takes them, and clients rely on that
/// (memcaslap's keys are full of them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    token: &'a [u8],
    base64: bool,
}

impl<'a> Key<'a> {
    /// Checks a plain key.
    pub(super) fn plain(token: &'a [u8]) -> Option<Self> {
        let fits = !token.is_empty() && token.len() <= MAX_KEY_BYTES;
        // Spaces and newlines cannot be in a token. A NUL would end the line in memcached.
        let clean = || memchr::memchr(0, token).is_none();
        (fits && clean()).then_some(Self { token, base64: false })
    }

    /// The key of a frame, whose length was checked: any bytes.
    pub(super) fn raw(token: &'a [u8]) -> Self {
        Self { token, base64: false }
    }

    /// Checks that a plain key is base64 of a key.
    pub(super) fn into_base64(self) -> Option<Self> {
        decode(self.token, &mut [0; MAX_KEY_BYTES])?;
        Some(Self { base64: true, ..self })
    }

    /// The key as it stood in the command, still encoded if it was.
    pub fn token(&self) -> &'a [u8] {
        self.token
    }

    /// Whether the command gave the key in base64.
    pub fn is_base64(&self) -> bool {
        self.base64
    }

    /// The key itself; `scratch` holds it where it has to be decoded.
    pub fn bytes<'s>(&self, scratch: &'s mut KeyScratch) -> &'s [u8]
    where
        'a: 's,
    {
        if !self.base64 {
            return self.token;
        }
        let len = decode(self.token, scratch).expect("checked when the key was made");
        &scratch[..len]
    }
}

/// Reads the keys of get and gets, and of gat and gats those behind the expiry. One bad key refuses them all, as in memcached, which
/// drops the replies it has prepared.
pub(super) fn get(tokens: Tokens<'_>, with_cas: bool, touch: Option<Exptime>) -> LineResult<'_> {
    if touch.is_none() && { tokens }.next().is_none() {
        return Err(Refused::new(replies::ERROR));
    }
    // As [`Key::plain`] has it.
    if !{ tokens }.all(|token| token.len() <= MAX_KEY_BYTES) || memchr::memchr(0, tokens.rest()).is_some() {
        return Err(Refused::new(replies::BAD_FORMAT));
    }
    Ok(Request::Whole(Command::Get(Get {
        keys: tokens,
        with_cas,
        touch,
    })))
}

pub(super) fn gat(mut tokens: Tokens<'_>, with_cas: bool) -> LineResult<'_> {
    let Some(exptime) = tokens.next() else {
        return Err(Refused::new(replies::ERROR));
    };
    let Some(exptime) = number::exptime(exptime) else {
        return Err(Refused::new(replies::BAD_EXPTIME));
    };
    get(tokens, with_cas, Some(Exptime(exptime)))
}

/// The keys that stand whole in the window of a line that goes on, the length of the command up to its first key, and where the keys that
/// follow begin. The last word is left to the rest, so that there always is one. Nothing where that leaves no key, or one of them is none.
pub(super) fn first_keys(window: &[u8]) -> Option<(Get<'_>, usize, usize)> {
    let mut tokens = Tokens::new(window);
    let (touch, with_cas) = match tokens.next()? {
        b"gat" => (Some(Exptime(number::exptime(tokens.next()?)?)), false),
        b"gats" => (Some(Exptime(number::exptime(tokens.next()?)?)), true),
        name => (None, name == b"gets"),
    };
    let head_len = window.len() - tokens.rest().len() + 1;
    let listed = window.get(head_len..)?;
    let end = listed.iter().rposition(|byte| *byte != b' ')?;
    let last = listed[..end].iter().rposition(|byte| *byte == b' ')? + 1;
    let tokens = Tokens::new(&listed[..last]);
    { tokens }.next()?;
    match get(tokens, with_cas, touch) {
        Ok(Request::Whole(Command::Get(get))) => Some((get, head_len, head_len + last)),
        _ => None,
    }
}

fn digit(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Decodes base64 with padding; returns the length, or nothing where it is not base64 or does not fit.
fn decode(token: &[u8], out: &mut [u8]) -> Option<usize> {
    if token.is_empty() || !token.len().is_multiple_of(4) {
        return None;
    }
    let padding = token.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut len = 0;
    for (number, group) in token.chunks_exact(4).enumerate() {
        let last = (number + 1) * 4 == token.len();
        let real = if last { 4 - padding } else { 4 };
        let mut bits = 0;
        for (at, byte) in group.iter().enumerate() {
            bits = bits << 6 | if at < real { digit(*byte)? } else { 0 };
        }
        let [_, bytes @ ..] = bits.to_be_bytes();
        let bytes = &bytes[..real - 1];
        out.get_mut(len..len + bytes.len())?.copy_from_slice(bytes);
        len += bytes.len();
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_1_to_250_clean_bytes() {
        assert!(Key::plain(&[b'k'; 250]).is_some());
        assert!(Key::plain(&[b'k'; 251]).is_none());
        assert!(Key::plain(b"").is_none());
        assert!(Key::plain("schlüssel".as_bytes()).is_some());
        assert!(Key::plain(b"\x10\x7f\t").is_some());
        assert!(Key::plain(b"a\0b").is_none());
    }

    #[test]
    fn base64_keys_decode() {
        let decoded = |token: &'static [u8]| {
            let key = Key::plain(token)?.into_base64()?;
            Some(key.bytes(&mut [0; MAX_KEY_BYTES]).to_vec())
        };
        assert_eq!(decoded(b"YQ=="), Some(b"a".to_vec()));
        assert_eq!(decoded(b"YWI="), Some(b"ab".to_vec()));
        assert_eq!(decoded(b"YWJj"), Some(b"abc".to_vec()));
        assert_eq!(decoded(b"AAH/YWJj"), Some(b"\x00\x01\xffabc".to_vec()));
        for bad in [&b"YQ"[..], b"====", b"Y===", b"YQ==YQ==", b"$$$$", b"YQ=a"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
