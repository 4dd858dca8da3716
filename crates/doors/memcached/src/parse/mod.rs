//! memcached's protocols, in words (classic and meta) and in frames (binary): bytes in, commands out; no sockets, no cache.
//!
//! [`Protocol::parse`] looks at the start of a buffer and says what stands there. A command borrows the buffer: keys and values
//! are not copied. It never panics, allocates nothing, and answers the same however the input was cut into packets.
//! Lines are bounded by [`Limits`]; values are counted, never allocated, here.
//!
//! The parser of words differs from memcached 1.6 on purpose where memcached misreads its input: keys with a NUL are refused (memcached
//! drops the rest of the line), client flags above 32 bits are refused (memcached wraps them), expiry times from 2^32 on are
//! far off (memcached wraps them at 32 bits), and a line is too long at 2048 bytes however it arrives (memcached: only if it arrives in
//! pieces).

mod admin;
mod auth;
mod binary;
mod command;
mod frame;
mod keys;
mod line;
mod meta;
mod modify;
mod number;
mod protocol;
mod store;
#[cfg(test)]
mod tests;

pub use auth::{Attempt, parse_attempt};
pub(crate) use binary::not_for_strangers;
pub(crate) use command::replies;
pub use command::{
    Command, Delete, Delta, Exptime, Get, GetOne, Limits, MetaDebug, MetaFlags, MetaRequest, Mode, Needed,
    Parsed, Sasl, Store, StoreReply, TooLarge, Touch,
};
pub use frame::{Frame, HEAD_BYTES, Status};
pub use keys::{Key, KeyScratch, MAX_KEY_BYTES};
pub use line::Tokens;
pub(crate) use number::in_value as number_in_value;
pub use protocol::Protocol;

use command::{LineResult, Refused, Request};
use line::Arguments;

/// The commands whose lines may list many keys.
const MANY_KEYS: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];

impl Protocol {
    /// Says what stands at the start of `input`. It never panics, allocates nothing, and answers the same however the input was cut into
    /// packets.
    ///
    /// A line ends with LF or CR LF, as memcached has it; a lone CR belongs to the line. The bound on its length holds whether the newline
    /// has arrived or not.
    pub fn parse<'a>(self, input: &'a [u8], limits: &Limits) -> Parsed<'a> {
        if self == Protocol::Binary {
            return binary::parse(input, limits);
        }
        let lists_keys = MANY_KEYS.iter().any(|name| input.starts_with(name));
        let bound = match lists_keys {
            true => limits.keys_window_bytes,
            false => limits.max_line_bytes,
        };
        let window = input.get(..bound).unwrap_or(input);
        let Some(newline) = memchr::memchr(b'\n', window) else {
            if input.len() < bound {
                return Parsed::Incomplete(Needed::Line);
            }
            let first_keys = lists_keys.then(|| keys::first_keys(window)).flatten();
            return first_keys.map_or(Parsed::TooLong, |(get, head_len, rest)| Parsed::Keys {
                get,
                head_len,
                rest,
            });
        };
        let line = match window[..newline].strip_suffix(b"\r") {
            Some(without) if newline > 1 => without,
            _ => &window[..newline],
        };
        let consumed = newline + 1;
        let mut tokens = Tokens::new(line);
        let name = tokens.next().unwrap_or(b"");
        let understood: LineResult<'a> = match name {
            // The version of HTTP has a slash.
            b"get" | b"gets" | b"delete" if memchr::memchr(b'/', line).is_some() && is_http(line) => {
                Ok(Request::Whole(Command::Http))
            }
            b"get" => keys::get(tokens, false, None),
            b"gets" => keys::get(tokens, true, None),
            b"mg" => meta::get(tokens),
            b"ms" => meta::set(tokens, limits),
            b"md" => meta::delete(tokens),
            b"ma" => meta::delta(tokens),
            b"me" => meta::debug(tokens),
            b"mn" => Ok(Request::Whole(Command::MetaNoop)),
            b"gat" => keys::gat(tokens, false),
            b"gats" => keys::gat(tokens, true),
            b"set" => store::store(&Arguments::collect(tokens), Mode::Set, limits),
            b"add" => store::store(&Arguments::collect(tokens), Mode::Add, limits),
            b"replace" => store::store(&Arguments::collect(tokens), Mode::Replace, limits),
            b"append" => store::store(&Arguments::collect(tokens), Mode::Append, limits),
            b"prepend" => store::store(&Arguments::collect(tokens), Mode::Prepend, limits),
            b"cas" => store::cas(&Arguments::collect(tokens), limits),
            b"delete" => modify::delete(&Arguments::collect(tokens)),
            b"incr" => modify::delta(&Arguments::collect(tokens), true),
            b"decr" => modify::delta(&Arguments::collect(tokens), false),
            b"touch" => modify::touch(&Arguments::collect(tokens)),
            b"flush_all" => admin::flush_all(&Arguments::collect(tokens)),
            b"verbosity" => admin::verbosity(&Arguments::collect(tokens)),
            b"version" => Ok(Request::Whole(Command::Version(None))),
            b"lru_crawler" => admin::lru_crawler(&Arguments::collect(tokens)),
            b"stats" => Ok(Request::Whole(Command::Stats {
                what: tokens.next(),
                frame: None,
            })),
            b"quit" => Ok(Request::Whole(Command::Quit(None))),
            b"shutdown" => Ok(Request::Whole(Command::Shutdown)),
            _ if is_http(line) => Ok(Request::Whole(Command::Http)),
            _ => Err(Refused::new(replies::ERROR)),
        };
        match understood {
            Ok(Request::Whole(command)) => Parsed::Command { command, consumed },
            Ok(Request::NeedsValue(store, value_len)) => {
                attach((store, value_len), consumed, &input[consumed..], Protocol::Text)
            }
            Err(Refused { reply, skip }) => Parsed::Malformed {
                reply,
                consumed,
                skip,
            },
        }
    }
}

/// Says what stands at the start of `input`, in words.
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    Protocol::Text.parse(input, limits)
}

/// A storage command with its value, if that stands at the start of `rest` with its end.
fn attach<'a>(
    (store, value_len): (Store<'a>, u32),
    line_len: usize,
    rest: &'a [u8],
    protocol: Protocol,
) -> Parsed<'a> {
    let (len, expected) = (value_len as usize, protocol.value_end());
    let whole = rest.get(..len + expected.len());
    let Some((value, end)) = whole.map(|whole| whole.split_at(len)) else {
        return Parsed::Incomplete(Needed::Value {
            line_len,
            value_len,
            store,
        });
    };
    let consumed = line_len + len + expected.len();
    if end != expected {
        return Parsed::Malformed {
            reply: if store.reply.is_noreply() {
                ""
            } else {
                replies::BAD_CHUNK
            },
            consumed,
            skip: 0,
        };
    }
    Parsed::Command {
        command: Command::Store(Store { value, ..store }),
        consumed,
    }
}

/// Whether a line is the first of an HTTP request. A command that memcached knows may have such a word as a key; a path before it
/// gives it away all the same.
fn is_http(line: &[u8]) -> bool {
    let is_version = |word: &[u8]| {
        word.get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"))
    };
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let is_known = words
        .next()
        .is_some_and(|name| matches!(name, b"get" | b"gets" | b"delete"));
    let target = words.clone().next().unwrap_or_default();
    words.any(is_version)
        && (!is_known || target.starts_with(b"/") || target.windows(3).any(|part| part == b"://"))
}
