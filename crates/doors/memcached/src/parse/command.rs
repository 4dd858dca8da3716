//! Commands: what a client may say, what the start of an input is found to be, and how what is no command is refused.

use super::frame::{Frame, Status};
use super::keys::Key;
use super::line::Tokens;

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
    Incomplete(Needed<'a>),
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
    /// A frame that is no command.
    BadFrame {
        /// What memcached answers; none to what does not begin as a frame does.
        reply: Option<(Frame, Status)>,
        /// The bytes it takes, of which not all need be there; none where the connection has to be closed.
        len: Option<u64>,
    },
}

/// What an incomplete command lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed<'a> {
    /// The end of its line, or of its frame but for the value.
    Line,
    /// A part of its value.
    Value {
        /// Length of the command line with its line end, or of the frame before its value.
        line_len: usize,
        /// Length of the value; [`Protocol::value_end`](super::Protocol::value_end) follows it.
        value_len: u32,
        /// The command without its value.
        store: Store<'a>,
    },
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// get, gets, gat, gats.
    Get(Get<'a>),
    /// get, getk, gat, gatk in a frame.
    GetOne(GetOne<'a>),
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
        /// The frame it came in, if it did.
        frame: Option<Frame>,
    },
    /// verbosity.
    Verbosity {
        /// No reply is wanted.
        noreply: bool,
    },
    /// version.
    Version(Option<Frame>),
    /// stats.
    Stats {
        /// Its argument.
        what: Option<&'a [u8]>,
        /// The frame it came in, if it did.
        frame: Option<Frame>,
    },
    /// lru_crawler metadump.
    MetaDump {
        /// Whether the classes that are asked for include class 1, the only one that has objects.
        class_1: bool,
    },
    /// quit.
    Quit(Option<Frame>),
    /// shutdown, which is always refused.
    Shutdown,
    /// The first line of an HTTP request.
    Http,
    /// noop, in a frame.
    Noop(Frame),
    /// The mechanisms of SASL are asked for.
    Mechanisms(Frame),
    /// A mechanism of SASL is begun, or goes on.
    Authenticate(Sasl<'a>),
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
    /// Whether it reads, or stands between reads (mn, noop): what follows one another of these is answered as one run.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Command::Get(get) => get.touch.is_none(),
            Command::GetOne(get) => get.touch.is_none(),
            Command::MetaGet(get) => get.touch.is_none(),
            Command::MetaNoop | Command::Noop(_) => true,
            _ => false,
        }
    }

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

/// One or more keys to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The keys, in order, all of them checked.
    pub keys: Tokens<'a>,
    /// Whether the replies carry the CAS unique (gets, gats).
    pub with_cas: bool,
    /// The new expiry (gat, gats).
    pub touch: Option<Exptime>,
}

/// A key to read, in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetOne<'a> {
    /// The key.
    pub key: Key<'a>,
    /// The new expiry (gat, gatk).
    pub touch: Option<Exptime>,
    /// The frame it came in.
    pub frame: Frame,
}

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
    /// In a frame.
    Frame(Frame),
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
    /// The frame it came in, if it did.
    pub frame: Option<Frame>,
}

/// A key to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: Key<'a>,
    /// No reply is wanted.
    pub noreply: bool,
}

/// A number to add or subtract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a> {
    /// The key.
    pub key: Key<'a>,
    /// How much.
    pub by: u64,
    /// incr, not decr.
    pub up: bool,
    /// No reply is wanted.
    pub noreply: bool,
}

/// A key that gets a new expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: Key<'a>,
    /// When it expires.
    pub exptime: Exptime,
    /// No reply is wanted.
    pub noreply: bool,
    /// The frame it came in, if it did.
    pub frame: Option<Frame>,
}

/// User and password, as a mechanism of SASL has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sasl<'a> {
    /// Its name.
    pub mechanism: &'a [u8],
    /// What the client answers to it.
    pub answer: &'a [u8],
    /// It was asked for that.
    pub is_step: bool,
    /// The frame it came in.
    pub frame: Frame,
}

/// The flags of a meta command in the order in which they were given, all of them checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaFlags<'a> {
    pub(super) tokens: Tokens<'a>,
}

impl<'a> MetaFlags<'a> {
    /// Each flag as it was given: its letter and its argument.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        self.tokens
            .filter_map(|token| token.split_first().map(|(letter, argument)| (*letter, argument)))
    }
}

/// mg, md or ma, or delete, incr or decr in a frame: a key, and what the flags say. What means nothing to the command is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The key.
    pub key: Key<'a>,
    /// What to answer.
    pub flags: MetaFlags<'a>,
    /// A miss of mg is not answered, nor success of the others.
    pub quiet: bool,
    /// The value is wanted, of ma the new number.
    pub value: bool,
    /// mg: it is not to count as an access.
    pub aside: bool,
    /// md: the object is not deleted but marked as stale.
    pub invalidate: bool,
    /// The new expiry, of md that of what is marked as stale.
    pub touch: Option<Exptime>,
    /// On a miss, an object with this expiry is made: an empty one that the client of mg wins, or a number.
    pub vivify: Option<Exptime>,
    /// mg: where less than this is left to live, the client wins.
    pub recache: Option<Exptime>,
    /// md, ma: the CAS unique that the key must hold.
    pub compare: Option<u64>,
    /// ma: how much.
    pub by: u64,
    /// ma: to add, not to subtract.
    pub up: bool,
    /// ma: what a number that is made is.
    pub initial: u64,
    /// The frame it came in, if it did.
    pub frame: Option<Frame>,
}

impl<'a> MetaRequest<'a> {
    /// One whose flags say nothing yet.
    pub(super) fn new(key: Key<'a>, flags: MetaFlags<'a>) -> Self {
        Self {
            key,
            flags,
            quiet: false,
            value: false,
            aside: false,
            invalidate: false,
            touch: None,
            vivify: None,
            recache: None,
            compare: None,
            by: 1,
            up: true,
            initial: 0,
            frame: None,
        }
    }
}

/// me: one key to say where its object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaDebug<'a> {
    /// The key.
    pub key: Key<'a>,
}

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
pub(super) struct Refused {
    pub(super) reply: &'static str,
    pub(super) skip: u64,
}

impl Refused {
    pub(super) fn new(reply: &'static str) -> Self {
        Self { reply, skip: 0 }
    }

    /// The refusal of a command that may have asked for no reply.
    pub(super) fn unless(noreply: bool, reply: &'static str) -> Self {
        Self::new(if noreply { "" } else { reply })
    }
}

/// What a line is: a command, or one that needs a value of some length.
pub(super) enum Request<'a> {
    Whole(Command<'a>),
    NeedsValue(Store<'a>, u32),
}

pub(super) type LineResult<'a> = Result<Request<'a>, Refused>;
