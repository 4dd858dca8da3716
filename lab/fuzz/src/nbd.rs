//! The NBD door's parsers: a handshake and requests are answered as the protocol has it, however the bytes were cut.

use crate::bytes::{Bytes, composed};
use pumice_door_nbd::protocol::{
    Command, Errno, ExportInfo, Handshake, MAX_EXTENTS, MAX_OPTION_BYTES, MAX_PAYLOAD_BYTES, REQUEST_BYTES,
    Refusal, Request, Session, Step, status_payload,
};
use pumice_door_nbd::{Extent, Shape};

const HEAD_BYTES: usize = 16;

/// What a client sends, or, after an odd byte, options and requests that are made to begin as such.
pub(crate) fn run(data: &[u8]) {
    let Some((first, input)) = composed(data, compose) else {
        return;
    };
    let whole = serve(&input, usize::MAX);
    // In pieces, as the bytes themselves say.
    let piece = usize::from(first / 2 % 31) + 1;
    assert_eq!(whole, serve(&input, piece), "in pieces of {piece}");
    status(&data[1..]);
}

fn exports() -> Vec<ExportInfo> {
    let export = |name: &str, size_bytes, is_read_only| ExportInfo {
        name: name.to_owned(),
        description: "a device".to_owned(),
        shape: Shape {
            size_bytes,
            is_read_only,
            preferred_bytes: 4096,
        },
    };
    vec![
        export("a", 1 << 40, false),
        export("b", 513, true),
        export("c", u64::MAX, false),
    ]
}

/// A handshake and requests with their magic numbers, of fields that the bytes choose.
fn compose(data: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes(data);
    let mut input = vec![0, 0, 0, bytes.u8() & 3];
    let options = bytes.u8() % 8;
    for _ in 0..options {
        let number = u32::from(bytes.u8() % 13);
        let mut option = Vec::new();
        // A name and numbers are made to fit in most cases.
        match bytes.u8() % 4 {
            0 => option.extend_from_slice(bytes.take(40)),
            kind => {
                let name = bytes.take(usize::from(kind / 2));
                option.extend_from_slice(&(name.len() as u32).to_be_bytes());
                option.extend_from_slice(name);
                let count = bytes.u8() % 4;
                if number == 9 || number == 10 {
                    option.extend_from_slice(&u32::from(count).to_be_bytes());
                    for _ in 0..count {
                        let query: &[u8] = match bytes.u8() % 4 {
                            0 => b"base:allocation",
                            1 => b"base:",
                            _ => bytes.take(5),
                        };
                        option.extend_from_slice(&(query.len() as u32).to_be_bytes());
                        option.extend_from_slice(query);
                    }
                } else if number == 6 || number == 7 {
                    option.extend_from_slice(&u16::from(count).to_be_bytes());
                    for _ in 0..count {
                        option.extend_from_slice(&[0, bytes.u8() % 8]);
                    }
                }
            }
        }
        if matches!(number, 2 | 3 | 8) && bytes.u8() % 4 != 0 {
            option.clear();
        }
        input.extend_from_slice(b"IHAVEOPT");
        input.extend_from_slice(&number.to_be_bytes());
        input.extend_from_slice(&(option.len() as u32).to_be_bytes());
        input.extend_from_slice(&option);
    }
    while !bytes.is_empty() {
        let request = Request {
            // In one of five none.
            flags: (1_u32 << (bytes.u8() % 20)) as u16,
            kind: u16::from(bytes.u8() % 10),
            cookie: u64::from(bytes.u8()),
            offset: match bytes.u8() % 4 {
                0 => 0,
                1 => u64::from(bytes.u16()),
                2 => u64::MAX - u64::from(bytes.u16()),
                _ => bytes.u64(),
            },
            length: match bytes.u8() % 4 {
                0 => u32::from(bytes.u8()),
                1 => u32::from(bytes.u16()),
                2 => MAX_PAYLOAD_BYTES + u32::from(bytes.u8()) - 128,
                _ => bytes.u32(),
            },
        };
        input.extend_from_slice(&request.encode());
    }
    input
}

/// What the door made of the input.
#[derive(Debug, Default, PartialEq)]
struct Served {
    steps: Vec<Step>,
    replies: Vec<u8>,
    commands: Vec<Result<Command, Refusal>>,
    /// Bytes behind the last thing that was whole.
    left: usize,
}

/// Hands over the input so many bytes at a time, as a connection does.
fn serve(input: &[u8], piece: usize) -> Served {
    let exports = exports();
    let mut served = Served::default();
    let mut handshake = Handshake::default();
    let mut session: Option<Session> = None;
    let (mut start, mut end) = (0, 0);
    let mut skip = 0_u64;
    loop {
        let here = usize::try_from(skip).unwrap_or(usize::MAX).min(end - start);
        start += here;
        skip -= here as u64;
        let bytes = &input[start..end];
        let is_short = if skip > 0 {
            true
        } else if let Some(session) = &session {
            match bytes.first_chunk::<REQUEST_BYTES>() {
                None => true,
                Some(head) => {
                    let Some(request) = Request::parse(head) else {
                        assert_ne!(head[..4], [0x25, 0x60, 0x95, 0x13]);
                        break;
                    };
                    assert_eq!(request.encode(), *head);
                    let shape = &exports[session.export].shape;
                    let command = request.command(session, shape);
                    check_command(&request, session, shape, &command);
                    served.commands.push(command);
                    start += REQUEST_BYTES;
                    skip = match command {
                        Ok(Command::Disconnect) => break,
                        Ok(Command::Write { length, .. }) => length.into(),
                        Ok(_) => 0,
                        Err(refusal) => refusal.payload.into(),
                    };
                    false
                }
            }
        } else {
            let mut out = Vec::new();
            let step = handshake.step(bytes, &exports, &mut out);
            check_step(bytes, step, &out, served.steps.is_empty(), exports.len());
            served.replies.extend_from_slice(&out);
            if !matches!(step, Step::Incomplete { .. }) {
                served.steps.push(step);
            }
            match step {
                Step::Incomplete { .. } => true,
                Step::Next { consumed } => {
                    start += consumed;
                    false
                }
                Step::Skip {
                    consumed,
                    skip: passed,
                } => {
                    start += consumed;
                    skip = passed.into();
                    false
                }
                Step::Serve {
                    consumed,
                    session: agreed,
                } => {
                    start += consumed;
                    session = Some(agreed);
                    false
                }
                Step::Close => break,
            }
        };
        if is_short {
            if end == input.len() {
                served.left = end - start;
                break;
            }
            end = end.saturating_add(piece).min(input.len());
        }
    }
    served
}

/// Checks what a step made of the bytes, and its replies.
fn check_step(bytes: &[u8], step: Step, mut out: &[u8], is_first: bool, exports: usize) {
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    match step {
        Step::Incomplete { needed } => {
            assert!(needed > bytes.len() && needed <= HEAD_BYTES + MAX_OPTION_BYTES);
            assert!(out.is_empty());
            return;
        }
        Step::Close if out.is_empty() => return,
        Step::Next { consumed: 4 } if is_first => return assert!(out.is_empty()),
        _ => assert_eq!(bytes[..8], *b"IHAVEOPT"),
    }
    let (option, length) = (number(8), number(12) as usize);
    match step {
        Step::Next { consumed } | Step::Serve { consumed, .. } => assert_eq!(consumed, HEAD_BYTES + length),
        Step::Skip { consumed, skip } => {
            assert_eq!((consumed, skip as usize), (HEAD_BYTES, length));
            assert!(length > MAX_OPTION_BYTES);
        }
        Step::Close => assert_eq!(option, 2),
        Step::Incomplete { .. } => unreachable!("above"),
    }
    if let Step::Serve { session, .. } = step {
        assert!(session.export < exports && (session.is_structured || !session.has_status));
        if option == 1 {
            assert!(out.len() == 10 || out.len() == 134 && out[10..].iter().all(|byte| *byte == 0));
            return;
        }
        assert_eq!(option, 7);
    }
    let mut kinds = Vec::new();
    while !out.is_empty() {
        let (head, rest) = out.split_at(20);
        assert_eq!(head[..8], 0x3_e889_0455_65a9_u64.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(word(8), option);
        let (data, rest) = rest.split_at(word(16) as usize);
        let kind = word(12);
        if kind == 1 {
            assert!(data.is_empty());
        } else if kind >= 1 << 31 {
            assert!(std::str::from_utf8(data).is_ok_and(|text| !text.is_empty() && text.len() < 4096));
        }
        kinds.push(kind);
        out = rest;
    }
    // One last reply, and before it what that option tells.
    let (last, told) = kinds.split_last().expect("an answer");
    assert!(*last == 1 || *last > 1 << 31 && told.is_empty());
    let tells = match option {
        3 => 2,
        6 | 7 => 3,
        9 | 10 => 4,
        _ => 0,
    };
    assert!(told.iter().all(|kind| *kind == tells));
    assert_eq!(matches!(step, Step::Serve { .. }), option == 7 && *last == 1);
}

/// Checks a request against the specification, read in the plainest way.
fn check_command(request: &Request, session: &Session, shape: &Shape, command: &Result<Command, Refusal>) {
    let Request {
        flags,
        kind,
        offset,
        length,
        ..
    } = *request;
    if kind == 2 {
        return assert_eq!(*command, Ok(Command::Disconnect));
    }
    let is_beyond = u128::from(offset) + u128::from(length) > u128::from(shape.size_bytes);
    let allowed = match kind {
        6 => 0b11,
        7 => 0b1001,
        0..=5 => 0b1,
        _ => 0,
    };
    let expected = if kind > 7 || flags & !allowed != 0 {
        Some(Errno::Invalid)
    } else if kind == 3 {
        (offset != 0 || length != 0).then_some(Errno::Invalid)
    } else if kind == 7 && !session.has_status {
        Some(Errno::Invalid)
    } else if matches!(kind, 1 | 4 | 6) && shape.is_read_only {
        Some(Errno::NotAllowed)
    } else if length == 0 || kind < 2 && length > MAX_PAYLOAD_BYTES {
        Some(Errno::Invalid)
    } else if is_beyond {
        Some(if matches!(kind, 1 | 6) {
            Errno::NoSpace
        } else {
            Errno::Invalid
        })
    } else {
        None
    };
    assert_eq!(
        command.err().map(|refused| refused.errno),
        expected,
        "{request:?}"
    );
    if let Err(refusal) = command {
        assert_eq!(refusal.payload, if kind == 1 { length } else { 0 });
        return;
    }
    let fua = flags & 1 == 1;
    let same = match command.expect("not refused") {
        Command::Read { offset: o, length: l } => kind == 0 && (o, l) == (offset, length),
        Command::Write {
            offset: o,
            length: l,
            is_durable,
        } => kind == 1 && (o, l, is_durable) == (offset, length, fua),
        Command::Flush => kind == 3,
        Command::Trim {
            offset: o,
            length: l,
            is_durable,
        } => kind == 4 && (o, l, is_durable) == (offset, length, fua),
        Command::Cache { offset: o, length: l } => kind == 5 && (o, l) == (offset, length),
        Command::Zero {
            offset: o,
            length: l,
            may_punch,
            is_durable,
        } => kind == 6 && (o, l, may_punch, is_durable) == (offset, length, flags & 2 == 0, fua),
        Command::Status {
            offset: o,
            length: l,
            is_one,
        } => kind == 7 && (o, l, is_one) == (offset, length, flags & 8 != 0),
        Command::Disconnect => false,
    };
    assert!(same, "{request:?} is no {command:?}");
}

/// A status describes its range from the front, and never more of it.
fn status(data: &[u8]) {
    let mut bytes = Bytes(data);
    let length = bytes.u32().max(1);
    let most = usize::from(bytes.u8()) + 1;
    assert!(most <= MAX_EXTENTS);
    let mut extents = Vec::new();
    while !bytes.is_empty() {
        let state = bytes.u8();
        extents.push(Extent {
            length: bytes.u64() >> (state / 4),
            is_hole: state & 1 == 1,
        });
    }
    let payload = status_payload(&extents, length, most);
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let described: Vec<_> = payload[4..]
        .chunks(8)
        .map(|one| (word(&one[..4]), word(&one[4..])))
        .collect();
    assert!(!described.is_empty() && described.len() <= most);
    let state_at = |at: u64| {
        let mut before = 0_u128;
        for extent in &extents {
            before += u128::from(extent.length);
            if u128::from(at) < before {
                return if extent.is_hole { 3 } else { 0 };
            }
        }
        0
    };
    let mut at = 0_u64;
    for (part, state) in &described {
        assert!(*part > 0);
        assert_eq!(
            (state_at(at), state_at(at + u64::from(*part) - 1)),
            (*state, *state)
        );
        at += u64::from(*part);
    }
    assert!(at <= u64::from(length));
    assert!(described.windows(2).all(|pair| pair[0].1 != pair[1].1));
}
