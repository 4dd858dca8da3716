//! The binary protocol: which commands there are, how their frames look, and what they are of the commands that there are in words.

use super::command::{
    Command, Exptime, GetOne, Limits, MetaFlags, MetaRequest, Mode, Needed, Parsed, Sasl, Store, StoreReply,
    TooLarge, Touch,
};
use super::frame::{Frame, HEAD_BYTES, Head, REQUEST, Status};
use super::keys::{Key, MAX_KEY_BYTES};
use super::line::Tokens;
use super::protocol::Protocol;

/// An expiry of incr and decr that lets no number be made.
const MAKE_NONE: u32 = u32::MAX;

/// The longest name of a mechanism of SASL, as memcached has it.
const MAX_MECHANISM_BYTES: usize = 32;

/// The longest answer to a mechanism that is looked at. No user and password of an auth file need as much.
const MAX_ANSWER_BYTES: u32 = 1 << 10;

/// The opcode of an answer to a mechanism that asked for it.
const SASL_STEP: u8 = 0x22;

/// What a frame's opcode stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Store(Mode),
    Delete,
    Delta { up: bool },
    Quit,
    Flush,
    Noop,
    Version,
    Stats,
    Touch,
    GetAndTouch,
    Mechanisms,
    Authenticate,
}

/// What an opcode stands for, whether it is the quiet form, and whether the reply has the key. As in memcached 1.6.18, there is no verbosity.
fn kind(opcode: u8) -> Option<(Kind, bool, bool)> {
    let loud = match opcode {
        0x09 => 0x00,
        0x0d => 0x0c,
        0x11..=0x18 => opcode - 0x10,
        0x19 | 0x1a => opcode - 0x0b,
        0x1e => 0x1d,
        0x24 => 0x23,
        _ => opcode,
    };
    let kind = match loud {
        0x00 | 0x0c => Kind::Get,
        0x01 => Kind::Store(Mode::Set),
        0x02 => Kind::Store(Mode::Add),
        0x03 => Kind::Store(Mode::Replace),
        0x04 => Kind::Delete,
        0x05 => Kind::Delta { up: true },
        0x06 => Kind::Delta { up: false },
        0x07 => Kind::Quit,
        0x08 => Kind::Flush,
        0x0a => Kind::Noop,
        0x0b => Kind::Version,
        0x0e => Kind::Store(Mode::Append),
        0x0f => Kind::Store(Mode::Prepend),
        0x10 => Kind::Stats,
        0x1c => Kind::Touch,
        0x1d | 0x23 => Kind::GetAndTouch,
        0x20 => Kind::Mechanisms,
        0x21 | SASL_STEP => Kind::Authenticate,
        _ => return None,
    };
    Some((kind, loud != opcode, matches!(loud, 0x0c | 0x23)))
}

impl Kind {
    /// Whether frames of this kind have such extras, such a key and such a value.
    fn has(self, extras_len: usize, key_len: usize, value_len: u32) -> bool {
        let (has_key, has_value) = (key_len > 0, value_len > 0);
        match self {
            Kind::Store(Mode::Append | Mode::Prepend) => extras_len == 0 && has_key,
            Kind::Store(_) => extras_len == 8 && has_key,
            Kind::Get | Kind::Delete => extras_len == 0 && has_key && !has_value,
            Kind::Touch | Kind::GetAndTouch => extras_len == 4 && has_key && !has_value,
            Kind::Delta { .. } => extras_len == 20 && has_key && !has_value,
            Kind::Flush => matches!(extras_len, 0 | 4) && !has_key && !has_value,
            Kind::Stats => extras_len == 0 && !has_value,
            Kind::Authenticate => extras_len == 0 && has_key,
            Kind::Quit | Kind::Noop | Kind::Version | Kind::Mechanisms => {
                extras_len == 0 && !has_key && !has_value
            }
        }
    }

    /// Whether it is served to who has not authenticated himself.
    fn is_for_strangers(self) -> bool {
        matches!(self, Kind::Mechanisms | Kind::Authenticate | Kind::Version)
    }
}

/// What a frame is for, if there is such a command, and what its reply repeats.
fn purpose(head: &Head) -> (Option<Kind>, Frame) {
    let known = kind(head.opcode);
    let (quiet, with_key) = known.map_or((false, false), |(_, quiet, with_key)| (quiet, with_key));
    let frame = Frame {
        opcode: head.opcode,
        opaque: head.opaque,
        quiet,
        with_key,
    };
    (known.map(|(kind, ..)| kind), frame)
}

/// The frame at the start of the input of a connection that is not authenticated, if its command is not for such: the connection has to
/// be closed. Its rest need not be there.
pub(crate) fn not_for_strangers(input: &[u8]) -> Option<Frame> {
    let head = Head::of(input).filter(|head| head.value_len().is_some())?;
    let (kind, frame) = purpose(&head);
    (!kind.is_some_and(Kind::is_for_strangers)).then_some(frame)
}

/// Says what stands at the start of `input`. What a frame's head announces is judged before any of it is waited for.
pub(super) fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let Some(head) = Head::of(input) else {
        let goes_on = input.len() < HEAD_BYTES && input.first().is_none_or(|first| *first == REQUEST);
        return match goes_on {
            true => Parsed::Incomplete(Needed::Line),
            false => Parsed::BadFrame {
                reply: None,
                len: None,
            },
        };
    };
    let (kind, frame) = purpose(&head);
    let bad = |status, len| Parsed::BadFrame {
        reply: Some((frame, status)),
        len,
    };
    let Some(value_len) = head.value_len() else {
        return bad(Status::Unknown, None);
    };
    if head.key_len > MAX_KEY_BYTES {
        return bad(Status::Invalid, None);
    }
    let frame_len = HEAD_BYTES as u64 + u64::from(head.body_len);
    let Some(kind) = kind else {
        return bad(Status::Unknown, Some(frame_len));
    };
    if !kind.has(head.extras_len, head.key_len, value_len) {
        return bad(Status::Invalid, None);
    }
    let mut line_len = HEAD_BYTES + head.extras_len + head.key_len;
    if kind == Kind::Authenticate {
        if head.key_len > MAX_MECHANISM_BYTES {
            return bad(Status::Invalid, Some(frame_len));
        }
        if value_len > MAX_ANSWER_BYTES {
            return bad(Status::AuthFailed, Some(frame_len));
        }
        line_len += value_len as usize;
    }
    let Some(body) = input.get(HEAD_BYTES..line_len) else {
        return Parsed::Incomplete(Needed::Line);
    };
    let (extras, body) = body.split_at(head.extras_len);
    let (key, answer) = body.split_at(head.key_len);
    let command = match kind {
        Kind::Get | Kind::GetAndTouch => Command::GetOne(GetOne {
            key: Key::raw(key),
            touch: exptime(extras),
            frame,
        }),
        Kind::Store(mode) => return store(input, line_len, (mode, frame, &head), (extras, key), limits),
        Kind::Delete => Command::MetaDelete(MetaRequest {
            compare: unique(&head),
            frame: Some(frame),
            ..MetaRequest::new(Key::raw(key), NO_FLAGS)
        }),
        Kind::Delta { up } => Command::MetaDelta(delta(Key::raw(key), extras, up, (&head, frame))),
        Kind::Touch => Command::Touch(Touch {
            key: Key::raw(key),
            exptime: exptime(extras).unwrap_or(Exptime(0)),
            noreply: false,
            frame: Some(frame),
        }),
        Kind::Quit => Command::Quit(Some(frame)),
        Kind::Flush => Command::FlushAll {
            delay: exptime(extras),
            noreply: false,
            frame: Some(frame),
        },
        Kind::Noop => Command::Noop(frame),
        Kind::Version => Command::Version(Some(frame)),
        Kind::Stats => Command::Stats {
            what: Some(key).filter(|key| !key.is_empty()),
            frame: Some(frame),
        },
        Kind::Mechanisms => Command::Mechanisms(frame),
        Kind::Authenticate => Command::Authenticate(Sasl {
            mechanism: key,
            answer,
            is_step: head.opcode == SASL_STEP,
            frame,
        }),
    };
    Parsed::Command {
        command,
        consumed: line_len,
    }
}

/// Flags of a meta command that has none.
const NO_FLAGS: MetaFlags<'static> = MetaFlags {
    tokens: Tokens::new(b""),
};

/// The flags of an incr or decr that makes a number: its expiry is given.
const MAKES_NUMBER: MetaFlags<'static> = MetaFlags {
    tokens: Tokens::new(b"N"),
};

/// The CAS unique that the key must hold, if any.
fn unique(head: &Head) -> Option<u64> {
    Some(head.unique).filter(|unique| *unique != 0)
}

/// The number at the start of `extras`, if there is one.
fn number(extras: &[u8]) -> Option<u32> {
    extras.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The expiry at the start of `extras`: none of these is negative.
fn exptime(extras: &[u8]) -> Option<Exptime> {
    number(extras).map(|secs| Exptime(i64::from(secs)))
}

/// incr or decr: 8 bytes each of how much and of what a number that is made is, and 4 of the expiry of that.
fn delta<'a>(key: Key<'a>, extras: &[u8], up: bool, (head, frame): (&Head, Frame)) -> MetaRequest<'a> {
    let long = |at: usize| {
        let bytes = extras.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    };
    let vivify = extras
        .get(16..)
        .filter(|expiry| number(expiry) != Some(MAKE_NONE));
    MetaRequest {
        by: long(0),
        up,
        initial: long(8),
        vivify: vivify.and_then(exptime),
        compare: unique(head),
        frame: Some(frame),
        ..MetaRequest::new(key, MAKES_NUMBER)
    }
}

/// set, add, replace: 4 bytes each of flags and expiry; append, prepend: none.
fn store<'a>(
    input: &'a [u8],
    line_len: usize,
    (mode, frame, head): (Mode, Frame, &Head),
    (extras, key): (&'a [u8], &'a [u8]),
    limits: &Limits,
) -> Parsed<'a> {
    let key = Key::raw(key);
    let value_len = head.value_len().unwrap_or(0);
    if value_len > limits.max_value_bytes {
        return Parsed::Command {
            command: Command::TooLarge(TooLarge {
                key,
                unlink: mode == Mode::Set,
                noreply: false,
                skip: u64::from(value_len),
                frame: Some(frame),
            }),
            consumed: line_len,
        };
    }
    let compare = unique(head);
    let store = Store {
        key,
        // As memcached has it, whoever compares does nothing else.
        mode: match mode {
            Mode::Add | Mode::Replace if compare.is_some() => Mode::Set,
            mode => mode,
        },
        flags: number(extras).unwrap_or(0),
        exptime: extras.get(4..).and_then(exptime).unwrap_or(Exptime(0)),
        compare,
        invalidate: false,
        value: b"",
        reply: StoreReply::Frame(frame),
    };
    super::attach((store, value_len), line_len, &input[line_len..], Protocol::Binary)
}
