//! The binary protocol: frames mean what their bytes say, however they were cut, and lengths that lie are found out from the head.

use crate::bytes::{Bytes, composed, cuts};
use crate::commands::narrow;
use pumice_door_memcached::parse::{
    Command, Exptime, Frame, HEAD_BYTES, Limits, MetaRequest, Mode, Needed, Parsed, Protocol, Status,
    StoreReply,
};

/// The first byte of a request.
const REQUEST: u8 = 0x80;

/// The first byte of a reply.
pub(crate) const REPLY: u8 = 0x81;

/// The longest name of a mechanism of SASL, and the longest answer to one.
const SASL_MAX: (usize, usize) = (32, 1024);

/// Frames as they are, or, after an odd byte, what is made to begin as frames do.
pub(crate) fn run(data: &[u8]) {
    let Some((_, input)) = composed(data, compose) else {
        return;
    };
    for limits in [Limits::default(), narrow()] {
        walk(&input, &limits);
    }
}

/// Extras of the length that the opcode asks for, mostly; a key, a value, and lengths that are right, mostly.
fn compose(data: &[u8]) -> Vec<u8> {
    let (mut bytes, mut out) = (Bytes(data), Vec::new());
    while !bytes.is_empty() {
        let opcode = bytes.u8() % 0x2a;
        let choice = bytes.u8();
        let extras_len = match choice % 8 {
            0 => usize::from(bytes.u8()),
            _ => match words(opcode).0 {
                "set" | "add" | "replace" => 8,
                "incr" | "decr" => 20,
                "touch" | "gat" => 4,
                "flush" => usize::from(choice & 8) / 2,
                _ => 0,
            },
        };
        let lens = [
            extras_len,
            usize::from(bytes.u8() % 33),
            usize::from(bytes.u8() % 17),
        ];
        let mut body_len = u32::try_from(lens.iter().sum::<usize>()).unwrap();
        if choice & 0xf0 == 0xf0 {
            body_len = bytes.u32();
        }
        let key_len = u16::try_from(lens[1]).unwrap();
        let key_len = if choice & 0xf0 == 0xe0 {
            bytes.u16()
        } else {
            key_len
        };
        out.extend([REQUEST, opcode]);
        out.extend(key_len.to_be_bytes());
        out.push(u8::try_from(lens[0]).unwrap());
        out.extend(bytes.array::<3>());
        out.extend(body_len.to_be_bytes());
        out.extend(bytes.array::<4>());
        out.extend(u64::from(bytes.u8()).to_be_bytes());
        out.extend(bytes.take(lens.iter().sum()));
    }
    out
}

/// The name of a command and the letters behind it, in the plainest way.
fn words(opcode: u8) -> (&'static str, &'static str) {
    match opcode {
        0x00 => ("get", ""),
        0x01 => ("set", ""),
        0x02 => ("add", ""),
        0x03 => ("replace", ""),
        0x04 => ("delete", ""),
        0x05 => ("incr", ""),
        0x06 => ("decr", ""),
        0x07 => ("quit", ""),
        0x08 => ("flush", ""),
        0x09 => ("get", "q"),
        0x0a => ("noop", ""),
        0x0b => ("version", ""),
        0x0c => ("get", "k"),
        0x0d => ("get", "kq"),
        0x0e => ("append", ""),
        0x0f => ("prepend", ""),
        0x10 => ("stat", ""),
        0x11 => ("set", "q"),
        0x12 => ("add", "q"),
        0x13 => ("replace", "q"),
        0x14 => ("delete", "q"),
        0x15 => ("incr", "q"),
        0x16 => ("decr", "q"),
        0x17 => ("quit", "q"),
        0x18 => ("flush", "q"),
        0x19 => ("append", "q"),
        0x1a => ("prepend", "q"),
        0x1c => ("touch", ""),
        0x1d => ("gat", ""),
        0x1e => ("gat", "q"),
        0x20 => ("mechanisms", ""),
        0x21 => ("auth", ""),
        0x22 => ("step", ""),
        0x23 => ("gat", "k"),
        0x24 => ("gat", "kq"),
        _ => ("", ""),
    }
}

/// What stands in the first 24 bytes.
#[derive(Clone, Copy)]
struct Head {
    opcode: u8,
    extras_len: usize,
    key_len: usize,
    body_len: u64,
    opaque: [u8; 4],
    unique: u64,
}

impl Head {
    fn of(input: &[u8]) -> Self {
        let number = |at: usize, len: usize| {
            let bytes = input[at..at + len].iter();
            bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let len = |at, bytes| usize::try_from(number(at, bytes)).unwrap();
        Self {
            opcode: input[1],
            extras_len: len(4, 1),
            key_len: len(2, 2),
            body_len: number(8, 4),
            opaque: input[12..16].try_into().unwrap(),
            unique: number(16, 8),
        }
    }

    fn before_value(&self) -> usize {
        HEAD_BYTES + self.extras_len + self.key_len
    }

    fn whole_len(&self) -> u64 {
        HEAD_BYTES as u64 + self.body_len
    }

    fn is_honest(&self) -> bool {
        (self.extras_len + self.key_len) as u64 <= self.body_len
    }

    fn check(&self, frame: &Frame) {
        let (_, letters) = words(self.opcode);
        assert_eq!((frame.opcode, frame.opaque), (self.opcode, self.opaque));
        assert_eq!(
            (frame.quiet, frame.with_key),
            (letters.contains('q'), letters.contains('k'))
        );
    }
}

/// Checks everything that stands in `input`, one after the other.
fn walk(mut input: &[u8], limits: &Limits) {
    while !input.is_empty() {
        let parsed = Protocol::Binary.parse(input, limits);
        let taken = match parsed {
            Parsed::Command { command, consumed } => {
                assert!(
                    Protocol::Binary.parse(&input[..consumed], limits) == parsed,
                    "what follows counts"
                );
                for cut in cuts(consumed) {
                    let needed = Protocol::Binary.parse(&input[..cut], limits);
                    assert!(
                        matches!(needed, Parsed::Incomplete(_)),
                        "cut at {cut}: {needed:?}"
                    );
                }
                consumed as u64 + check_command(&command, &input[..consumed], limits)
            }
            Parsed::BadFrame { reply, len } => match check_bad(input, reply, len, limits) {
                Some(len) => len,
                None => return,
            },
            Parsed::Incomplete(needed) => return check_incomplete(input, needed, limits),
            other => panic!("words among frames: {other:?}"),
        };
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        input = input.get(taken..).unwrap_or_default();
    }
}

/// A frame is refused as soon as its head is there, whatever follows.
fn check_bad(input: &[u8], reply: Option<(Frame, Status)>, len: Option<u64>, limits: &Limits) -> Option<u64> {
    let Some((frame, status)) = reply else {
        assert!(input[0] != REQUEST && len.is_none());
        return None;
    };
    let head = Head::of(input);
    head.check(&frame);
    let (name, _) = words(head.opcode);
    let alone = Protocol::Binary.parse(&input[..HEAD_BYTES], limits);
    assert!(alone == Parsed::BadFrame { reply, len });
    let before = Protocol::Binary.parse(&input[..HEAD_BYTES - 1], limits);
    assert!(before == Parsed::Incomplete(Needed::Line));
    if !head.is_honest() || head.key_len > 250 {
        let expected = if head.is_honest() {
            Status::Invalid
        } else {
            Status::Unknown
        };
        assert_eq!((status, len), (expected, None));
    } else if name.is_empty() {
        assert_eq!((status, len), (Status::Unknown, Some(head.whole_len())));
    } else if matches!(name, "auth" | "step") && head.extras_len == 0 && head.key_len > 0 {
        assert_eq!(len, Some(head.whole_len()));
        assert!(head.key_len > SASL_MAX.0 || head.body_len - head.key_len as u64 > SASL_MAX.1 as u64);
    } else {
        assert_eq!((status, len), (Status::Invalid, None));
    }
    len
}

fn check_incomplete(input: &[u8], needed: Needed<'_>, limits: &Limits) {
    if input.len() < HEAD_BYTES {
        return assert!(needed == Needed::Line && input[0] == REQUEST);
    }
    let head = Head::of(input);
    assert!(head.is_honest() && head.key_len <= 250);
    match needed {
        // No more than this is ever waited for in the connection's buffer.
        Needed::Line => {
            let most = head.before_value() + SASL_MAX.1;
            assert!(input.len() < head.before_value() || matches!(words(head.opcode).0, "auth" | "step"));
            assert!(input.len() < most && head.extras_len <= 20);
        }
        Needed::Value {
            line_len, value_len, ..
        } => {
            assert_eq!(line_len, head.before_value());
            assert_eq!((line_len as u64) + u64::from(value_len), head.whole_len());
            assert!(value_len <= limits.max_value_bytes && (input.len() as u64) < head.whole_len());
            let alone = Protocol::Binary.parse(&input[..line_len], limits);
            assert!(alone == Parsed::Incomplete(needed));
        }
    }
}

/// A command that was accepted is what its bytes say. Returns how many bytes of a value are still to be passed over.
fn check_command(command: &Command<'_>, bytes: &[u8], limits: &Limits) -> u64 {
    let head = Head::of(bytes);
    assert!(head.is_honest() && head.key_len <= 250);
    let (extras, body) = bytes[HEAD_BYTES..].split_at(head.extras_len);
    let (key, value) = body.split_at(head.key_len);
    let (name, _) = words(head.opcode);
    let number = |at: usize, len: usize| {
        extras[at..at + len]
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let exptime = |at: usize| Exptime(i64::try_from(number(at, 4)).unwrap());
    let first_exptime = (!extras.is_empty() && head.extras_len < 8).then(|| exptime(0));
    let unique = Some(head.unique).filter(|unique| *unique != 0);
    let mut left = 0;
    let frame = match *command {
        Command::GetOne(get) => {
            assert!(matches!(name, "get" | "gat"));
            assert_eq!((get.key.token(), get.touch), (key, first_exptime));
            assert_eq!(get.touch.is_some(), name == "gat");
            Some(get.frame)
        }
        Command::Store(store) => {
            let mode = match (name, unique) {
                ("append", _) => Mode::Append,
                ("prepend", _) => Mode::Prepend,
                ("add", None) => Mode::Add,
                ("replace", None) => Mode::Replace,
                ("set" | "add" | "replace", _) => Mode::Set,
                _ => panic!("{name} stores"),
            };
            assert_eq!(
                (store.mode, store.compare, store.invalidate),
                (mode, unique, false)
            );
            assert_eq!((store.key.token(), store.value), (key, value));
            if !extras.is_empty() {
                assert_eq!(
                    (u64::from(store.flags), store.exptime),
                    (number(0, 4), exptime(4))
                );
            }
            assert!(value.len() as u64 <= u64::from(limits.max_value_bytes));
            if !value.is_empty() {
                let (before, value) = bytes.split_at(head.before_value());
                let apart = Protocol::Binary.parse_apart(before, value, limits);
                let (command, consumed) = (*command, bytes.len());
                assert!(apart == Parsed::Command { command, consumed });
            }
            match store.reply {
                StoreReply::Frame(frame) => Some(frame),
                other => panic!("{other:?}"),
            }
        }
        Command::TooLarge(large) => {
            assert_eq!((large.key.token(), large.unlink), (key, name == "set"));
            assert_eq!(bytes.len() as u64 + large.skip, head.whole_len());
            assert!(large.skip > u64::from(limits.max_value_bytes));
            left = large.skip;
            large.frame
        }
        Command::MetaDelete(request) => {
            assert_eq!(
                (name, request.key.token(), request.compare),
                ("delete", key, unique)
            );
            plain(&request)
        }
        Command::MetaDelta(request) => {
            assert_eq!((request.key.token(), request.compare), (key, unique));
            assert_eq!(request.up, name == "incr");
            assert_eq!((request.by, request.initial), (number(0, 8), number(8, 8)));
            let makes = number(16, 4) != u64::from(u32::MAX);
            assert_eq!(request.vivify, makes.then(|| exptime(16)));
            plain(&request)
        }
        Command::Touch(touch) => {
            assert_eq!((touch.key.token(), Some(touch.exptime)), (key, first_exptime));
            touch.frame
        }
        Command::FlushAll { delay, frame, .. } => {
            assert_eq!((name, delay), ("flush", first_exptime));
            frame
        }
        Command::Stats { what, frame } => {
            assert_eq!((name, what.unwrap_or_default()), ("stat", key));
            frame
        }
        Command::Authenticate(sasl) => {
            assert_eq!(
                (sasl.mechanism, sasl.answer, sasl.is_step),
                (key, value, name == "step")
            );
            assert!(key.len() <= SASL_MAX.0 && value.len() <= SASL_MAX.1);
            Some(sasl.frame)
        }
        Command::Quit(frame) | Command::Version(frame) => frame,
        Command::Noop(frame) | Command::Mechanisms(frame) => Some(frame),
        other => panic!("words among frames: {other:?}"),
    };
    head.check(&frame.expect("it came in a frame"));
    if left == 0 {
        assert_eq!(bytes.len() as u64, head.whole_len());
    }
    left
}

/// A request that asks for nothing but what a frame can.
fn plain(request: &MetaRequest<'_>) -> Option<Frame> {
    let MetaRequest {
        quiet,
        value,
        aside,
        invalidate,
        touch,
        recache,
        ..
    } = *request;
    assert!(!(quiet || value || aside || invalidate || touch.is_some() || recache.is_some()));
    request.frame
}

/// Replies without those to stat, whose figures depend on how many packets there were. They are whole frames.
pub(crate) fn without_stats(mut answers: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    while !answers.is_empty() {
        let head = Head::of(answers);
        assert!(answers[0] == REPLY && head.is_honest());
        let len = usize::try_from(head.whole_len()).unwrap();
        if words(head.opcode).0 != "stat" {
            kept.extend_from_slice(&answers[..len]);
        }
        answers = &answers[len..];
    }
    kept
}
