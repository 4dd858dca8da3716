//! The fixed newstyle handshake, from the server's greeting to the export that is used.
//!
//! The client answers the [`greeting`] with flags of 32 bits, and then sends options, each with a header of 16 bytes (`IHAVEOPT`, number,
//! length of the data). [`Handshake::step`] takes one of these at a time and appends the replies.

use super::reply::ALLOCATION;
use super::request::MAX_PAYLOAD_BYTES;
use super::{take, take_string, take_u16, take_u32};
use crate::export::Shape;

/// Bytes of the [`greeting`].
const GREETING_BYTES: usize = 18;

/// Most bytes of a string in the protocol: an export's name or description.
pub const MAX_NAME_BYTES: usize = 4096;

/// Most bytes of an option's data. The data of a longer option is skipped, and the option refused.
pub const MAX_OPTION_BYTES: usize = 16 << 10;

const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const OPTION_HEAD_BYTES: usize = 16;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;

const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const LIST_META_CONTEXT: u32 = 9;
const SET_META_CONTEXT: u32 = 10;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const ERR_UNSUP: u32 = (1 << 31) + 1;
const ERR_INVALID: u32 = (1 << 31) + 3;
const ERR_UNKNOWN: u32 = (1 << 31) + 6;
const ERR_TOO_BIG: u32 = (1 << 31) + 9;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

const CONTEXT: &[u8] = b"base:allocation";
const NAMESPACE: &[u8] = b"base:";

const HAS_FLAGS: u16 = 1 << 0;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const CAN_MULTI_CONN: u16 = 1 << 8;
const SEND_CACHE: u16 = 1 << 10;

/// An export as the handshake describes it. The first export is also found under the empty name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name, of at most [`MAX_NAME_BYTES`].
    pub name: String,
    /// A description for people, of at most [`MAX_NAME_BYTES`].
    pub description: String,
    /// Size, and whether it may be changed.
    pub shape: Shape,
}

impl ExportInfo {
    /// The commands that clients may send. CAN_MULTI_CONN is among the flags: a FLUSH covers the answered writes of all connections.
    pub fn transmission_flags(&self) -> u16 {
        let common = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
        match self.shape.is_read_only {
            true => common | READ_ONLY,
            false => common | SEND_TRIM | SEND_WRITE_ZEROES,
        }
    }
}

/// What client and server have negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The number of the export among those offered.
    pub export: usize,
    /// Whether a READ gets a structured reply.
    pub is_structured: bool,
    /// Whether BLOCK_STATUS may be asked, for `base:allocation`.
    pub has_status: bool,
}

/// Outcome of [`Handshake::step`]. The caller sends the appended replies in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was consumed, since the message is incomplete.
    Incomplete {
        /// Bytes that the message has at least: at most 16 + [`MAX_OPTION_BYTES`].
        needed: usize,
    },
    /// A message was consumed.
    Next {
        /// Its bytes.
        consumed: usize,
    },
    /// A header was consumed; the data behind it is to be skipped.
    Skip {
        /// Bytes of the header.
        consumed: usize,
        /// Bytes of the data.
        skip: u32,
    },
    /// The handshake is over; requests follow.
    Serve {
        /// Bytes of the last option.
        consumed: usize,
        /// What client and server have negotiated.
        session: Session,
    },
    /// The connection is to be closed.
    Close,
}

/// The server's first message.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..8].copy_from_slice(b"NBDMAGIC");
    greeting[8..16].copy_from_slice(&OPTION_MAGIC);
    greeting[16..].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    greeting
}

/// The server's side of a handshake.
#[derive(Debug, Default)]
pub struct Handshake {
    /// Whether the client has sent its flags.
    is_greeted: bool,
    has_no_zeroes: bool,
    is_structured: bool,
    /// The export for which `base:allocation` was selected.
    status_of: Option<usize>,
}

/// The error of a refused option, and a text for people.
struct Refused(u32, String);

impl Handshake {
    /// Takes the next message from the front of `input`, and appends the replies to `out`: for LIST one for each export, else at most some
    /// 10 KiB.
    pub fn step(&mut self, input: &[u8], exports: &[ExportInfo], out: &mut Vec<u8>) -> Step {
        let mut rest = input;
        if !self.is_greeted {
            let Some(flags) = take_u32(&mut rest) else {
                return Step::Incomplete { needed: 4 };
            };
            if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
                return Step::Close;
            }
            self.has_no_zeroes = flags & u32::from(NO_ZEROES) != 0;
            self.is_greeted = true;
            return Step::Next { consumed: 4 };
        }
        let needed = OPTION_HEAD_BYTES;
        let magic = take::<8>(&mut rest);
        if magic.is_some_and(|magic| *magic != OPTION_MAGIC) {
            return Step::Close;
        }
        let (Some(option), Some(length)) = (take_u32(&mut rest), take_u32(&mut rest)) else {
            return Step::Incomplete { needed };
        };
        let data_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if data_bytes > MAX_OPTION_BYTES {
            if option == EXPORT_NAME {
                return Step::Close;
            }
            let why = format!("an option may have {MAX_OPTION_BYTES} bytes");
            reply(out, option, ERR_TOO_BIG, &[why.as_bytes()]);
            return Step::Skip {
                consumed: needed,
                skip: length,
            };
        }
        let consumed = needed + data_bytes;
        let Some(data) = rest.get(..data_bytes) else {
            return Step::Incomplete { needed: consumed };
        };
        let done = match option {
            EXPORT_NAME => {
                return match find(exports, data) {
                    Some(export) => {
                        self.name_reply(&exports[export], out);
                        self.serve(export, consumed)
                    }
                    None => Step::Close,
                };
            }
            ABORT => {
                reply(out, option, REP_ACK, &[]);
                return Step::Close;
            }
            LIST => list(data, exports, out),
            INFO => info(option, data, exports, out).map(drop),
            GO => match info(option, data, exports, out) {
                Ok(export) => {
                    reply(out, option, REP_ACK, &[]);
                    return self.serve(export, consumed);
                }
                Err(refused) => Err(refused),
            },
            STRUCTURED_REPLY => empty(data).map(|()| self.is_structured = true),
            LIST_META_CONTEXT | SET_META_CONTEXT => self.contexts(option, data, exports, out),
            _ => Err(Refused(ERR_UNSUP, format!("option {option} is not supported"))),
        };
        match done {
            Ok(()) => reply(out, option, REP_ACK, &[]),
            Err(Refused(error, why)) => reply(out, option, error, &[why.as_bytes()]),
        }
        Step::Next { consumed }
    }

    fn serve(&self, export: usize, consumed: usize) -> Step {
        let session = Session {
            export,
            is_structured: self.is_structured,
            has_status: self.status_of == Some(export),
        };
        Step::Serve { consumed, session }
    }

    /// The only reply to EXPORT_NAME.
    fn name_reply(&self, export: &ExportInfo, out: &mut Vec<u8>) {
        out.extend_from_slice(&export.shape.size_bytes.to_be_bytes());
        out.extend_from_slice(&export.transmission_flags().to_be_bytes());
        if !self.has_no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
    }

    /// LIST_META_CONTEXT and SET_META_CONTEXT: a name, and queries.
    fn contexts(
        &mut self,
        option: u32,
        mut data: &[u8],
        exports: &[ExportInfo],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let is_set = option == SET_META_CONTEXT;
        if is_set {
            self.status_of = None;
        }
        if !self.is_structured {
            return Err(invalid("structured replies have to be agreed upon first"));
        }
        let malformed = || invalid("the option is cut short or goes on");
        let name = take_string(&mut data).ok_or_else(malformed)?;
        let count = take_u32(&mut data).ok_or_else(malformed)?;
        // LIST_META_CONTEXT without queries asks for all contexts.
        let mut is_meant = !is_set && count == 0;
        for _ in 0..count {
            let query = take_string(&mut data).ok_or_else(malformed)?;
            is_meant |= query == CONTEXT || !is_set && query == NAMESPACE;
        }
        if !data.is_empty() {
            return Err(malformed());
        }
        let export = find(exports, name).ok_or_else(|| unknown(name, exports))?;
        if is_meant {
            let id = if is_set { ALLOCATION } else { 0 };
            reply(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), CONTEXT]);
            if is_set {
                self.status_of = Some(export);
            }
        }
        Ok(())
    }
}

fn invalid(why: &str) -> Refused {
    Refused(ERR_INVALID, why.to_owned())
}

fn empty(data: &[u8]) -> Result<(), Refused> {
    match data.is_empty() {
        true => Ok(()),
        false => Err(invalid("this option has no data")),
    }
}

/// The number of the export of this name.
fn find(exports: &[ExportInfo], name: &[u8]) -> Option<usize> {
    let named = exports.iter().position(|export| export.name.as_bytes() == name);
    named.or((name.is_empty() && !exports.is_empty()).then_some(0))
}

fn unknown(name: &[u8], exports: &[ExportInfo]) -> Refused {
    let name = String::from_utf8_lossy(&name[..name.len().min(100)]);
    let count = exports.len();
    let why = format!("no export `{name}` among the {count} here; NBD_OPT_LIST names them");
    Refused(ERR_UNKNOWN, why)
}

fn list(data: &[u8], exports: &[ExportInfo], out: &mut Vec<u8>) -> Result<(), Refused> {
    empty(data)?;
    for export in exports {
        let name = export.name.as_bytes();
        let parts = [
            &(name.len() as u32).to_be_bytes(),
            name,
            export.description.as_bytes(),
        ];
        reply(out, LIST, REP_SERVER, &parts);
    }
    Ok(())
}

/// INFO and GO: an export's name, and the kinds of information asked for. Returns the number of the export.
fn info(option: u32, mut data: &[u8], exports: &[ExportInfo], out: &mut Vec<u8>) -> Result<usize, Refused> {
    let malformed = || invalid("the option is cut short or goes on");
    let name = take_string(&mut data).ok_or_else(malformed)?;
    let count = take_u16(&mut data).ok_or_else(malformed)?;
    if data.len() != usize::from(count) * 2 {
        return Err(malformed());
    }
    let number = find(exports, name).ok_or_else(|| unknown(name, exports))?;
    let export = &exports[number];
    let wants = |what: u16| data.chunks_exact(2).any(|asked| asked == what.to_be_bytes());
    let mut tell = |what: u16, parts: &[&[u8]]| {
        let mut all = vec![0; 2];
        all.copy_from_slice(&what.to_be_bytes());
        parts.iter().for_each(|part| all.extend_from_slice(part));
        reply(out, option, REP_INFO, &[&all]);
    };
    if wants(INFO_NAME) {
        tell(INFO_NAME, &[export.name.as_bytes()]);
    }
    if wants(INFO_DESCRIPTION) {
        tell(INFO_DESCRIPTION, &[export.description.as_bytes()]);
    }
    if wants(INFO_BLOCK_SIZE) {
        let sizes = [1, export.shape.preferred_bytes, MAX_PAYLOAD_BYTES].map(u32::to_be_bytes);
        tell(INFO_BLOCK_SIZE, &[sizes.as_flattened()]);
    }
    let size = export.shape.size_bytes.to_be_bytes();
    tell(INFO_EXPORT, &[&size, &export.transmission_flags().to_be_bytes()]);
    Ok(number)
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exports() -> Vec<ExportInfo> {
        let export = |name: &str, size_bytes, is_read_only| ExportInfo {
            name: name.to_owned(),
            description: format!("what {name} is"),
            shape: Shape {
                size_bytes,
                is_read_only,
                preferred_bytes: 32 << 10,
            },
        };
        vec![export("disk", 1 << 30, false), export("image", 513, true)]
    }

    fn greeted() -> Handshake {
        let mut handshake = Handshake::default();
        let step = handshake.step(&[0, 0, 0, 3], &[], &mut Vec::new());
        assert_eq!(step, Step::Next { consumed: 4 });
        handshake
    }

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_MAGIC.to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn string(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    fn go(name: &str, infos: &[u16]) -> Vec<u8> {
        let mut data = string(name);
        data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
        infos
            .iter()
            .for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
        data
    }

    fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = string(name);
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        queries
            .iter()
            .for_each(|query| data.extend_from_slice(&string(query)));
        data
    }

    /// Kinds and data of the replies, which have to be to this option.
    fn replies(mut out: &[u8], number: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        while !out.is_empty() {
            assert_eq!(take(&mut out), Some(&REPLY_MAGIC.to_be_bytes()));
            assert_eq!(take_u32(&mut out), Some(number));
            let kind = take_u32(&mut out).expect("a kind");
            replies.push((kind, take_string(&mut out).expect("as long as it says").to_vec()));
        }
        replies
    }

    fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> (Step, Vec<(u32, Vec<u8>)>) {
        let mut out = Vec::new();
        let input = option(number, data);
        let step = handshake.step(&input, &exports(), &mut out);
        (step, replies(&out, number))
    }

    fn kinds(handshake: &mut Handshake, number: u32, data: &[u8]) -> Vec<u32> {
        let (step, replies) = ask(handshake, number, data);
        let consumed = OPTION_HEAD_BYTES + data.len();
        assert_eq!(step, Step::Next { consumed });
        replies.into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn go_tells_what_was_asked_and_begins_the_session() {
        let data = go("image", &[3, 2, 1, 77]);
        let (step, replies) = ask(&mut greeted(), GO, &data);
        let session = Session {
            export: 1,
            is_structured: false,
            has_status: false,
        };
        let consumed = OPTION_HEAD_BYTES + data.len();
        assert_eq!(step, Step::Serve { consumed, session });
        let infos: Vec<_> = replies.iter().map(|(kind, data)| (*kind, &data[..])).collect();
        let sizes = [0, 3, 0, 0, 0, 1, 0, 0, 128, 0, 2, 0, 0, 0];
        let export = [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0b101, 0b0000_1111];
        assert_eq!(
            infos,
            [
                (REP_INFO, &b"\0\x01image"[..]),
                (REP_INFO, b"\0\x02what image is"),
                (REP_INFO, &sizes),
                (REP_INFO, &export),
                (REP_ACK, b"")
            ]
        );
    }

    #[test]
    fn info_and_refusals_leave_the_handshake_going() {
        let mut handshake = greeted();
        assert_eq!(kinds(&mut handshake, INFO, &go("disk", &[])), [REP_INFO, REP_ACK]);
        assert_eq!(kinds(&mut handshake, INFO, &go("", &[])), [REP_INFO, REP_ACK]);
        for number in [INFO, GO] {
            assert_eq!(kinds(&mut handshake, number, &go("none", &[])), [ERR_UNKNOWN]);
            let mut cut = go("disk", &[1, 2]);
            cut.pop();
            assert_eq!(kinds(&mut handshake, number, &cut), [ERR_INVALID]);
            assert_eq!(kinds(&mut handshake, number, &[255; 6]), [ERR_INVALID]);
        }
        assert_eq!(kinds(&mut handshake, 5, b""), [ERR_UNSUP]);
        assert_eq!(
            kinds(&mut handshake, LIST, b""),
            [REP_SERVER, REP_SERVER, REP_ACK]
        );
        assert_eq!(kinds(&mut handshake, LIST, b"x"), [ERR_INVALID]);
        assert_eq!(kinds(&mut handshake, STRUCTURED_REPLY, b"x"), [ERR_INVALID]);
        assert_eq!(
            ask(&mut handshake, ABORT, b""),
            (Step::Close, vec![(REP_ACK, vec![])])
        );
    }

    #[test]
    fn status_is_agreed_upon_for_one_export_and_after_structured_replies() {
        let mut handshake = greeted();
        let asked = contexts("image", &["x-other:", "base:allocation"]);
        assert_eq!(kinds(&mut handshake, SET_META_CONTEXT, &asked), [ERR_INVALID]);
        assert_eq!(kinds(&mut handshake, STRUCTURED_REPLY, b""), [REP_ACK]);
        let all = [REP_META_CONTEXT, REP_ACK];
        assert_eq!(
            kinds(&mut handshake, LIST_META_CONTEXT, &contexts("image", &[])),
            all
        );
        assert_eq!(
            kinds(&mut handshake, LIST_META_CONTEXT, &contexts("", &["base:"])),
            all
        );
        assert_eq!(
            kinds(&mut handshake, LIST_META_CONTEXT, &contexts("", &["qemu:"])),
            [REP_ACK]
        );
        let has_status = |handshake: &mut Handshake, name| match ask(handshake, GO, &go(name, &[])).0 {
            Step::Serve { session, .. } => session.has_status,
            step => panic!("{step:?}"),
        };
        assert!(!has_status(&mut handshake, "image"));
        let (_, told) = ask(&mut handshake, SET_META_CONTEXT, &asked);
        assert_eq!(told[0], (REP_META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
        assert!(has_status(&mut handshake, "image"));
        assert!(!has_status(&mut handshake, "disk"));
        // The newest set counts, and a set is not a list.
        assert_eq!(
            kinds(&mut handshake, SET_META_CONTEXT, &contexts("image", &["base:"])),
            [REP_ACK]
        );
        assert!(!has_status(&mut handshake, "image"));
        assert_eq!(
            kinds(&mut handshake, SET_META_CONTEXT, &contexts("none", &[])),
            [ERR_UNKNOWN]
        );
        let mut lies = contexts("image", &["base:allocation"]);
        lies[9..13].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(kinds(&mut handshake, SET_META_CONTEXT, &lies), [ERR_INVALID]);
    }

    #[test]
    fn an_export_by_name_has_zeroes_unless_the_client_wants_none() {
        for (flags, length) in [(1, 134), (3, 10)] {
            let mut handshake = Handshake::default();
            handshake.step(&[0, 0, 0, flags], &[], &mut Vec::new());
            let mut out = Vec::new();
            let step = handshake.step(&option(EXPORT_NAME, b"disk"), &exports(), &mut out);
            assert!(matches!(step, Step::Serve { consumed: 20, .. }));
            assert_eq!(out.len(), length);
            assert_eq!(out[..10], [0, 0, 0, 0, 64, 0, 0, 0, 0b101, 0b0110_1101]);
        }
        let (step, replies) = ask(&mut greeted(), EXPORT_NAME, b"none");
        assert_eq!((step, replies.len()), (Step::Close, 0));
    }

    #[test]
    fn what_cannot_be_understood_ends_the_connection() {
        let mut out = Vec::new();
        assert_eq!(
            Handshake::default().step(&[0, 0, 0, 4], &[], &mut out),
            Step::Close
        );
        let mut wrong = option(LIST, b"");
        wrong[7] ^= 1;
        assert_eq!(greeted().step(&wrong, &exports(), &mut out), Step::Close);
        assert_eq!(out, b"");
    }

    #[test]
    fn an_option_that_is_too_large_is_passed_over() {
        let mut head = option(LIST, b"");
        head[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        let mut out = Vec::new();
        let step = greeted().step(&head, &exports(), &mut out);
        let skip = u32::MAX;
        assert_eq!(step, Step::Skip { consumed: 16, skip });
        assert_eq!(replies(&out, LIST)[0].0, ERR_TOO_BIG);
    }

    proptest! {
        #[test]
        fn cut_anywhere_an_option_is_incomplete(number in 0..13u32, data in proptest::collection::vec(any::<u8>(), 0..40)) {
            let whole = option(number, &data);
            for cut in 0..whole.len() {
                let mut out = Vec::new();
                let step = greeted().step(&whole[..cut], &exports(), &mut out);
                let Step::Incomplete { needed } = step else { panic!("{step:?}") };
                prop_assert!(needed > cut && needed <= whole.len() && out.is_empty());
            }
        }
    }
}
