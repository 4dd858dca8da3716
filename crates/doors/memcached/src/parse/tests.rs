//! Wire tables and properties of the parser.

use super::*;
use proptest::prelude::*;

fn limits() -> Limits {
    Limits {
        max_value_bytes: 1000,
        ..Limits::default()
    }
}

/// What the parser makes of a whole stream: commands as text, and what it would answer by itself.
fn script(input: &[u8]) -> Vec<String> {
    script_of_cuts(input, [input.len()])
}

/// The same of a stream that comes in pieces: what is complete at each of the `ends` is taken, as from a connection's buffer. The last
/// one is that of the stream.
fn script_of_cuts(input: &[u8], ends: impl IntoIterator<Item = usize>) -> Vec<String> {
    let (mut seen, mut start) = (Vec::new(), 0);
    let mut lacks = None;
    for end in ends {
        lacks = None;
        while start < end {
            let (said, consumed, skip) = match parse(&input[start..end], &limits()) {
                Parsed::Incomplete(needed) => {
                    lacks = Some(format!("{needed:?}"));
                    break;
                }
                // What follows is read with the head before it.
                Parsed::TooLong | Parsed::Keys { .. } | Parsed::BadFrame { .. } => {
                    seen.push("too long".to_owned());
                    return seen;
                }
                Parsed::Command { command, consumed } => {
                    let skip = match command {
                        Command::TooLarge(large) => large.skip,
                        _ => 0,
                    };
                    (format!("{command:?}"), consumed, skip)
                }
                Parsed::Malformed {
                    reply,
                    consumed,
                    skip,
                } => (reply.to_owned(), consumed, skip),
            };
            seen.push(said);
            start += consumed + usize::try_from(skip).unwrap();
        }
    }
    seen.extend(lacks);
    seen
}

fn one(input: &[u8]) -> Command<'_> {
    match parse(input, &limits()) {
        Parsed::Command { command, consumed } => {
            assert_eq!(consumed, input.len());
            command
        }
        other => panic!("{other:?}"),
    }
}

fn refusal(input: &[u8]) -> (&'static str, usize) {
    match parse(input, &limits()) {
        Parsed::Malformed {
            reply,
            consumed,
            skip,
        } => (reply, input.len() - consumed - usize::try_from(skip).unwrap()),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

#[test]
fn a_line_ends_with_lf_or_crlf() {
    let consumed = |input| match parse(input, &limits()) {
        Parsed::Command { consumed, .. } => consumed,
        Parsed::Malformed { consumed, reply, .. } => {
            assert_eq!(reply, replies::ERROR);
            consumed
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(consumed(b"get a\r\nget b"), 7);
    assert_eq!(consumed(b"get a\n"), 6);
    assert_eq!(consumed(b"\r\n"), 2);
    assert_eq!(parse(b"get a\r", &limits()), Parsed::Incomplete(Needed::Line));
    let Command::Get(mut get) = one(b"get a\rb\r\n") else {
        panic!("not a get");
    };
    assert_eq!((get.keys.next(), get.keys.next()), (Some(&b"a\rb"[..]), None));
}

#[test]
fn only_lines_of_keys_may_be_long() {
    let limits = limits();
    let mut keys = b"get k ".to_vec();
    keys.resize(limits.keys_window_bytes - 1, b'k');
    assert_eq!(parse(&keys, &limits), Parsed::Incomplete(Needed::Line));
    keys.resize(limits.keys_window_bytes + 1, b'k');
    let Parsed::Keys { get, head_len, rest } = parse(&keys, &limits) else {
        panic!("it goes on");
    };
    assert_eq!((get.keys.count(), head_len, rest), (1, 4, 6));
    assert_eq!(parse(&[b'x'; 2047], &limits), Parsed::Incomplete(Needed::Line));
    assert_eq!(parse(&[b'x'; 2048], &limits), Parsed::TooLong);
}

#[test]
fn a_storage_command_is_whole_with_its_value() {
    let Command::Store(store) = one(b"cas key 7 -1 3 99 noreply\r\na\nb\r\n") else {
        panic!("not a store");
    };
    assert_eq!((store.key.token(), store.flags), (&b"key"[..], 7));
    assert_eq!((store.exptime, store.compare), (Exptime(-1), Some(99)));
    assert_eq!(store.value, b"a\nb");
    assert!(store.reply.is_noreply());
    let Parsed::Incomplete(Needed::Value {
        line_len,
        value_len,
        store,
    }) = parse(b"set k 0 0 5\r\nabc", &limits())
    else {
        panic!("its value is not there");
    };
    assert_eq!((line_len, value_len, store.key.token()), (13, 5, &b"k"[..]));
}

#[test]
fn a_value_received_apart_is_the_same_command() {
    let whole = one(b"ms key 3 T9 k\r\nabc\r\n");
    let apart = Protocol::Text.parse_apart(b"ms key 3 T9 k\r\n", b"abc\r\n", &limits());
    assert_eq!(
        apart,
        Parsed::Command {
            command: whole,
            consumed: 20
        }
    );
    assert!(matches!(
        Protocol::Text.parse_apart(b"ms key 3\r\n", b"abcde", &limits()),
        Parsed::Malformed {
            reply: replies::BAD_CHUNK,
            consumed: 15,
            skip: 0
        }
    ));
}

#[test]
fn malformed_lines_get_memcacheds_answers() {
    let long = format!("get {}", "k".repeat(251));
    for (line, reply) in [
        ("get", "ERROR"),
        ("GET a", "ERROR"),
        ("gat", "ERROR"),
        ("gat x a", "CLIENT_ERROR invalid exptime argument"),
        (&long, "CLIENT_ERROR bad command line format"),
        ("get a\0b", "CLIENT_ERROR bad command line format"),
        ("set a 5 0", "ERROR"),
        ("set a 0 0 3 noreply x", "ERROR"),
        ("set a x 0 3", "CLIENT_ERROR bad command line format"),
        ("set a 0 0 -1", "CLIENT_ERROR bad command line format"),
        ("set a 0 0 2147483647", "CLIENT_ERROR bad command line format"),
        ("set a 4294967296 0 1", "CLIENT_ERROR bad command line format"),
        ("cas a 0 0 1", "ERROR"),
        ("cas a 0 0 1 -1", "CLIENT_ERROR bad command line format"),
        ("delete a 0 0 0", "ERROR"),
        ("incr a", "ERROR"),
        ("incr a -1", "CLIENT_ERROR invalid numeric delta argument"),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
        ("flush_all 0 0 0", "ERROR"),
        ("verbosity", "ERROR"),
        ("verbosity x", "CLIENT_ERROR bad command line format"),
        ("mg", "ERROR"),
        ("mx a", "ERROR"),
        ("mg a v v", "CLIENT_ERROR duplicate flag"),
        ("mg a !", "CLIENT_ERROR invalid flag"),
        ("mg a l", "CLIENT_ERROR invalid flag"),
        ("mg a Tx", "CLIENT_ERROR bad token in command line format"),
        ("mg a$ b", "CLIENT_ERROR error decoding key"),
        ("mg a M", "CLIENT_ERROR incorrect length for M token"),
        ("ms a", "CLIENT_ERROR bad command line format"),
        ("ms a S2", "CLIENT_ERROR bad command line format"),
        ("md a !", "CLIENT_ERROR invalid or duplicate flag"),
        ("md a Cx", "CLIENT_ERROR invalid or duplicate flag"),
    ] {
        let (line, reply) = (format!("{line}\r\n"), format!("{reply}\r\n"));
        assert_eq!(refusal(line.as_bytes()), (&*reply, 0), "{line:?}");
    }
    let others: &[(&[u8], &str)] = &[
        (b"\r\n", "ERROR\r\n"),
        (b"\n", "ERROR\r\n"),
        (b"set a x 0 3 noreply\r\n", ""),
        (b"set a 0 0 1\r\nabc", "CLIENT_ERROR bad data chunk\r\n"),
        (b"set a 0 0 1 noreply\r\nabc", ""),
        (b"delete a 1\r\n", replies::BAD_DELETE),
        (b"flush_all x noreply\r\n", ""),
        (
            b"mg a O12345678901234567890123456789012\r\n",
            replies::OPAQUE_TOO_LONG,
        ),
        (
            b"ms a 2 Mx\r\nab\r\n",
            "CLIENT_ERROR invalid mode for ms M token\r\n",
        ),
        (b"ms a 2 !\r\nab\r\n", "CLIENT_ERROR invalid flag\r\n"),
        (
            b"ms a 2 Cx\r\nab\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        (b"ms a 2 Fx\r\nab\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (b"me\r\n", replies::BAD_FORMAT),
        (b"me a\0b\r\n", replies::BAD_FORMAT),
        (b"me YQ b\r\n", replies::BAD_FORMAT),
        (b"me a b b\r\n", replies::BAD_FORMAT),
    ];
    for (input, reply) in others {
        assert_eq!(refusal(input), (*reply, 0), "{}", input.escape_ascii());
    }
}

#[test]
fn a_value_that_is_too_large_is_announced_and_passed_over() {
    let mut input = b"set k 0 0 1001\r\n".to_vec();
    input.extend([b'x'; 1001]);
    input.extend(b"\r\nversion\r\n");
    let seen = script(&input);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("TooLarge") && seen[0].contains("unlink: true"));
    assert_eq!(seen[1], "Version(None)");
}

#[test]
fn keys_of_a_get_come_in_order() {
    let Command::Get(get) = one(b" gets  a b   c \r\n") else {
        panic!("not a get");
    };
    assert!(get.with_cas);
    assert_eq!(get.keys.collect::<Vec<_>>(), [&b"a"[..], b"b", b"c"]);
}

#[test]
fn meta_flags_come_in_order_with_their_arguments() {
    let Command::MetaGet(get) = one(b"mg YWI= k O12 v b T-1 q\r\n") else {
        panic!("not a meta get");
    };
    assert_eq!(get.key.bytes(&mut [0; MAX_KEY_BYTES]), b"ab");
    assert!(get.value && get.quiet);
    assert_eq!(get.touch, Some(Exptime(-1)));
    let flags: Vec<(u8, &[u8])> = get.flags.iter().collect();
    assert_eq!(flags[..2], [(b'k', &b""[..]), (b'O', b"12")]);
}

#[test]
fn me_takes_a_key_and_nothing_else_but_b() {
    let key = |line: &'static [u8]| {
        let Command::MetaDebug(debug) = one(line) else {
            panic!("not a meta debug");
        };
        (
            debug.key.token(),
            debug.key.bytes(&mut [0; MAX_KEY_BYTES]).to_vec(),
        )
    };
    assert_eq!(key(b"me YWI=\r\n"), (&b"YWI="[..], b"YWI=".to_vec()));
    assert_eq!(key(b"me  YWI=   b v v !\n"), (&b"YWI="[..], b"ab".to_vec()));
    for passed_over in [
        &b"me YWI= v b\r\n"[..],
        b"me YWI= b2\r\n",
        b"me YWI= q k O1 T1 T1 !\r\n",
    ] {
        assert_eq!(key(passed_over).1, b"YWI=", "{passed_over:?}");
    }
    assert_eq!(
        refusal(format!("me {}\r\n", "k".repeat(251)).as_bytes()).0,
        replies::BAD_FORMAT
    );
}

const PIECES: &str = "get |gets |gat |set |add |cas |append |delete |incr |touch |flush_all |mg |ms |md |ma |me |mn|stats |version|\
    verbosity |key |YWI= |0 |-1 |3 |5 |noreply|v |k |b |q |O1 |C5 |MA |T10 |N30 |R9 |I |J1 |D2 |\r\n|\r\n|\r\n|\n|abc\r\n|\
    99999999999999999999 |2000 ";

/// Pieces that commands are made of, so that random streams are often almost right.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::sample::select(PIECES.split('|').collect::<Vec<_>>()).prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

proptest! {
    #[test]
    fn no_input_panics_and_every_step_makes_progress(pieces in prop::collection::vec(piece(), 0..40)) {
        let input = pieces.concat();
        let mut rest = &input[..];
        while !rest.is_empty() {
            let consumed = match parse(rest, &limits()) {
                Parsed::Incomplete(_) | Parsed::Keys { .. } | Parsed::TooLong | Parsed::BadFrame { .. } => break,
                Parsed::Malformed { consumed, reply, .. } => {
                    prop_assert!(reply.is_empty() || reply.ends_with("\r\n"));
                    consumed
                }
                Parsed::Command { command, consumed } => {
                    if let Command::Store(store) = command {
                        prop_assert!(store.value.len() <= 1000);
                        let mut scratch = [0; MAX_KEY_BYTES];
                        prop_assert!(!store.key.bytes(&mut scratch).is_empty());
                        prop_assert_eq!(&rest[consumed - 2..consumed], b"\r\n");
                    }
                    consumed
                }
            };
            prop_assert!(consumed > 0 && consumed <= rest.len());
            rest = &rest[consumed..];
        }
    }

    #[test]
    fn any_cut_of_the_input_gives_the_same_commands(
        pieces in prop::collection::vec(piece(), 0..40),
        cuts in prop::collection::vec(1usize..30, 1..40),
    ) {
        let input = pieces.concat();
        let len = input.len();
        let mut end = 0;
        let cut = cuts.iter().cycle().map(|cut| {
            end = (end + cut).min(len);
            end
        });
        let ends = cut.take_while(|end| *end < len).chain([len]);
        prop_assert_eq!(script_of_cuts(&input, ends), script(&input));
    }
}

#[test]
fn metadump_names_classes_of_which_one_has_objects() {
    let asks = |what: &str| script(format!("lru_crawler metadump {what}\r\n").as_bytes());
    for what in ["all", "hash", "1", "01", "5,1", "1,", ",1", "63,1,2"] {
        assert_eq!(asks(what), ["MetaDump { class_1: true }"], "{what}");
    }
    for what in ["2", "63", "2,3", ","] {
        assert_eq!(asks(what), ["MetaDump { class_1: false }"], "{what}");
    }
    for what in ["0", "64", "-1", "x", "1,x", "ALL", "allx", "18446744073709551617"] {
        assert_eq!(asks(what), [replies::BAD_CLASS], "{what}");
    }
    for what in ["", "all 1", "1 2", "all noreply"] {
        assert_eq!(asks(what), [replies::ERROR], "{what}");
    }
    for line in [
        "lru_crawler",
        "lru_crawler enable",
        "lru_crawler sleep 100",
        "lru_crawler mgdump all",
    ] {
        assert_eq!(
            script(format!("{line}\r\n").as_bytes()),
            [replies::ERROR],
            "{line}"
        );
    }
}
