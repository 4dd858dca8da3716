//! The memcached text protocol, classic and meta: bytes in, commands out; no sockets, no cache.
//!
//! [`parse`] looks at the start of a buffer and says what stands there. A command borrows the buffer: keys and values
//! are not copied. It never panics, allocates nothing, and answers the same however the input was cut into packets.
//! Lines are bounded by [`Limits`]; values are counted, never allocated, here.
//!
//! It differs from memcached 1.6 on purpose where memcached misreads its input: keys with a NUL are refused (memcached
//! drops the rest of the line), client flags above 32 bits are refused (memcached wraps them), expiry times are 64-bit
//! (memcached wraps them at 32), and a line is too long at 2048 bytes however it arrives (memcached: only if it arrives in
//! pieces).

mod admin;
mod auth;
mod get;
mod key;
mod line;
mod meta;
mod modify;
mod number;
mod store;
#[cfg(test)]
mod tests;

pub use auth::{Attempt, parse_attempt};
pub use get::{Get, Keys};
pub use key::{Key, KeyScratch, MAX_KEY_BYTES};
pub use line::Tokens;
pub use meta::{MetaDebug, MetaFlags, MetaRequest};
pub use modify::{Delete, Delta, Touch};
pub(crate) use number::in_value as number_in_value;
pub use store::{Mode, Store, StoreReply, TooLarge};

use line::{Arguments, Line};

/// Bounds on what a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest value in bytes; a larger one is announced, refused and passed over. Default: 1 MiB.
    pub max_value_bytes: u32,
    /// A line with its line end must be shorter than this, in bytes. Default: 2048, as memcached has it.
    pub max_line_bytes: usize,
    /// A line of get, gets, gat or gats may have any number of keys, and is understood in parts of so many bytes. Default: 16 KiB.
    pub keys_window_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_value_bytes: 1 << 20,
            max_line_bytes: 2048,
            keys_window_bytes: 16 << 10,
        }
    }
}

/// What stands at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The beginning of a command.
    Incomplete(Needed),
    /// A whole command, and how many bytes it takes.
    Command {
        /// The command.
        command: Command<'a>,
        /// Its length in bytes, its value included. For [`Command::TooLarge`] without the value.
        consumed: usize,
    },
    /// Something that is no command.
    Malformed {
        /// What memcached answers, with its line end; empty where the client asked for no reply.
        reply: &'static str,
        /// Bytes of the input it takes.
        consumed: usize,
        /// Bytes that follow and are not to be read as commands: the value of a refused command.
        skip: u64,
    },
    /// The first keys of a get, gets, gat or gats whose line goes on beyond [`Limits::keys_window_bytes`].
    Keys {
        /// The command so far: its end does not stand at its keys' end.
        get: Get<'a>,
        /// Length of the command up to its first key.
        head_len: usize,
        /// Where the keys that follow begin: with the head before them they are the rest of the command.
        rest: usize,
    },
    /// A line beyond its bound: nothing after it can be understood, the connection has to be closed.
    TooLong,
}

/// What an incomplete command lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// The end of its line.
    Line,
    /// A part of its value.
    Value {
        /// Length of the command line with its line end.
        line_len: usize,
        /// Length of the value; a CR LF follows it.
        value_len: u32,
    },
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// get, gets, gat, gats.
    Get(Get<'a>),
    /// set, add, replace, append, prepend, cas, ms.
    Store(Store<'a>),
    /// A storage command whose value is too large.
    TooLarge(TooLarge<'a>),
    /// delete.
    Delete(Delete<'a>),
    /// incr, decr.
    Delta(Delta<'a>),
    /// touch.
    Touch(Touch<'a>),
    /// flush_all.
    FlushAll {
        /// When, as memcached writes times; none or 0 is now.
        delay: Option<Exptime>,
        /// No reply is wanted.
        noreply: bool,
    },
    /// verbosity.
    Verbosity {
        /// No reply is wanted.
        noreply: bool,
    },
    /// version.
    Version,
    /// stats, with its argument.
    Stats(Option<&'a [u8]>),
    /// lru_crawler metadump.
    MetaDump {
        /// Whether the classes that are asked for include class 1, the only one that has objects.
        class_1: bool,
    },
    /// quit.
    Quit,
    /// shutdown, which is always refused.
    Shutdown,
    /// The first line of an HTTP request.
    Http,
    /// mn.
    MetaNoop,
    /// mg.
    MetaGet(MetaRequest<'a>),
    /// md.
    MetaDelete(MetaRequest<'a>),
    /// ma.
    MetaDelta(MetaRequest<'a>),
    /// me.
    MetaDebug(MetaDebug<'a>),
}

impl Command<'_> {
    /// Whether it changes an object whatever there is.
    pub(crate) fn changes(&self) -> bool {
        matches!(
            self,
            Command::Store(_)
                | Command::TooLarge(_)
                | Command::Delete(_)
                | Command::Delta(_)
                | Command::Touch(_)
                | Command::FlushAll { .. }
                | Command::MetaDelete(_)
                | Command::MetaDelta(_)
        )
    }
}

/// An expiry time as the protocol writes it: 0 never, up to 30 days relative, above that Unix time, negative at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exptime(pub i64);

/// memcached's answers to what it does not understand.
pub(crate) mod replies {
    pub(crate) const ERROR: &str = "ERROR\r\n";
    pub(crate) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
    pub(crate) const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
    pub(crate) const BAD_CLASS: &str = "BADCLASS invalid class id\r\n";
    pub(crate) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
    pub(crate) const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
    pub(crate) const BAD_DELETE: &str =
        "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
    pub(crate) const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
    pub(crate) const BAD_KEY_CODE: &str = "CLIENT_ERROR error decoding key\r\n";
    pub(crate) const DUPLICATE_FLAG: &str = "CLIENT_ERROR duplicate flag\r\n";
    pub(crate) const INVALID_FLAG: &str = "CLIENT_ERROR invalid flag\r\n";
    pub(crate) const INVALID_OR_DUPLICATE: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
    pub(crate) const FLAGS_TOO_LONG: &str = "CLIENT_ERROR options flags are too long\r\n";
    pub(crate) const TOO_MANY_FLAGS: &str = "CLIENT_ERROR options flags too long\r\n";
    pub(crate) const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long\r\n";
    pub(crate) const MODE_LENGTH: &str = "CLIENT_ERROR incorrect length for M token\r\n";
    pub(crate) const MODE_INVALID: &str = "CLIENT_ERROR invalid mode for ms M token\r\n";
    pub(crate) const DELTA_MODE_INVALID: &str = "CLIENT_ERROR invalid mode for ma M token\r\n";
    pub(crate) const BAD_META_DELTA: &str = "CLIENT_ERROR invalid numeric delta value\r\n";
    pub(crate) const BAD_INITIAL: &str = "CLIENT_ERROR invalid numeric initial value\r\n";
}

/// A refused line: the answer, and the length of a value that follows and must be passed over.
#[derive(Debug)]
struct Refused {
    reply: &'static str,
    skip: u64,
}

impl Refused {
    fn new(reply: &'static str) -> Self {
        Self { reply, skip: 0 }
    }

    /// The refusal of a command that may have asked for no reply.
    fn unless(noreply: bool, reply: &'static str) -> Self {
        Self::new(if noreply { "" } else { reply })
    }
}

/// What a line is: a command, or one that needs a value of some length.
enum Request<'a> {
    Whole(Command<'a>),
    NeedsValue(Store<'a>, u32),
}

type LineResult<'a> = Result<Request<'a>, Refused>;

/// Says what stands at the start of `input`. See the module's text.
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let (line, consumed) = match line::find(input, limits) {
        Line::Whole { line, consumed } => (line, consumed),
        Line::Incomplete => return Parsed::Incomplete(Needed::Line),
        Line::Keys { window } => return get::part(window).unwrap_or(Parsed::TooLong),
        Line::TooLong => return Parsed::TooLong,
    };
    match parse_line(line, limits) {
        Ok(Request::Whole(command)) => Parsed::Command { command, consumed },
        Ok(Request::NeedsValue(store, value_len)) => attach(store, value_len, consumed, &input[consumed..]),
        Err(Refused { reply, skip }) => Parsed::Malformed {
            reply,
            consumed,
            skip,
        },
    }
}

/// Says what a storage command is whose value was received apart: `line` with its line end, and `value` with the two
/// bytes after it. `consumed` counts both.
pub fn parse_apart<'a>(line: &'a [u8], value: &'a [u8], limits: &Limits) -> Parsed<'a> {
    match line::find(line, limits) {
        Line::Whole { line, consumed } => match parse_line(line, limits) {
            Ok(Request::NeedsValue(store, value_len)) => attach(store, value_len, consumed, value),
            _ => Parsed::TooLong,
        },
        _ => Parsed::TooLong,
    }
}

fn attach<'a>(store: Store<'a>, value_len: u32, line_len: usize, rest: &'a [u8]) -> Parsed<'a> {
    let len = value_len as usize;
    let Some((value, end)) = rest.get(..len + 2).map(|whole| whole.split_at(len)) else {
        return Parsed::Incomplete(Needed::Value { line_len, value_len });
    };
    let consumed = line_len + len + 2;
    if end != b"\r\n" {
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

fn parse_line<'a>(line: &'a [u8], limits: &Limits) -> LineResult<'a> {
    let mut tokens = Tokens::new(line);
    let name = tokens.next().unwrap_or(b"");
    match name {
        b"get" | b"gets" | b"delete" if is_http(line) => Ok(Request::Whole(Command::Http)),
        b"get" => get::get(tokens, false),
        b"gets" => get::get(tokens, true),
        b"mg" => meta::get(tokens),
        b"ms" => meta::set(tokens, limits),
        b"md" => meta::delete(tokens),
        b"ma" => meta::delta(tokens),
        b"me" => meta::debug(tokens),
        b"mn" => Ok(Request::Whole(Command::MetaNoop)),
        b"gat" => get::gat(tokens, false),
        b"gats" => get::gat(tokens, true),
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
        b"version" => Ok(Request::Whole(Command::Version)),
        b"lru_crawler" => admin::lru_crawler(&Arguments::collect(tokens)),
        b"stats" => Ok(Request::Whole(Command::Stats(tokens.next()))),
        b"quit" => Ok(Request::Whole(Command::Quit)),
        b"shutdown" => Ok(Request::Whole(Command::Shutdown)),
        _ if is_http(line) => Ok(Request::Whole(Command::Http)),
        _ => Err(Refused::new(replies::ERROR)),
    }
}
