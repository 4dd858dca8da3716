//! The parsers of the memcached protocols: what they accept means what it says, and how the bytes were cut changes nothing.

use crate::bytes::cuts;
use pumice_door_memcached::parse::{
    Command, Exptime, Get, Key, KeyScratch, Limits, MetaFlags, MetaRequest, Mode, Needed, Parsed, Protocol,
    Store, StoreReply, parse,
};
use std::fmt::Write as _;

/// Classic commands, and whatever else the bytes are.
pub(crate) fn classic(data: &[u8]) {
    for limits in [Limits::default(), narrow()] {
        walk(data, &limits);
    }
}

/// Meta commands: the first byte of each line chooses one.
pub(crate) fn meta(data: &[u8]) {
    const NAMES: [&[u8]; 6] = [b"mg ", b"ms ", b"md ", b"ma ", b"me ", b"mn "];
    let mut input = Vec::with_capacity(2 * data.len());
    for line in data.split(|byte| *byte == b'\n') {
        match line.split_first() {
            // The rest of a value, or any other line.
            Some((0x80.., rest)) => input.extend_from_slice(rest),
            Some((chosen, rest)) => {
                input.extend_from_slice(NAMES[usize::from(*chosen) % NAMES.len()]);
                input.extend_from_slice(rest);
            }
            None => {}
        }
        input.extend_from_slice(b"\r\n");
    }
    classic(&input);
}

/// Limits that short inputs reach.
pub(crate) fn narrow() -> Limits {
    Limits {
        max_value_bytes: 8,
        max_line_bytes: 48,
        keys_window_bytes: 96,
    }
}

/// Checks everything that stands in `input`, one after the other.
fn walk(mut input: &[u8], limits: &Limits) {
    while !input.is_empty() {
        let parsed = parse(input, limits);
        let taken = match parsed {
            Parsed::Incomplete(needed) => return check_incomplete(input, needed, limits),
            Parsed::BadFrame { .. } => panic!("a frame among words"),
            Parsed::TooLong => return check_too_long(input, limits),
            Parsed::Keys { get, head_len, rest } => return check_keys(input, get, head_len, rest, limits),
            Parsed::Command { command, consumed } => {
                check_command(&command, &input[..consumed], limits);
                let skip = match command {
                    Command::TooLarge(large) => large.skip,
                    _ => 0,
                };
                consumed as u64 + skip
            }
            Parsed::Malformed {
                reply,
                consumed,
                skip,
            } => {
                assert!(reply.is_empty() || reply.ends_with("\r\n"), "{reply:?}");
                consumed as u64 + skip
            }
        };
        let (Parsed::Command { consumed, .. } | Parsed::Malformed { consumed, .. }) = parsed else {
            return;
        };
        assert!((1..=input.len()).contains(&consumed));
        assert!(parse(&input[..consumed], limits) == parsed, "what follows counts");
        for cut in cuts(consumed) {
            let needed = parse(&input[..cut], limits);
            assert!(
                matches!(needed, Parsed::Incomplete(_)),
                "cut at {cut}: {needed:?}"
            );
        }
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        input = input.get(taken..).unwrap_or_default();
    }
}

fn bound(input: &[u8], limits: &Limits) -> usize {
    let lists_keys = [&b"get "[..], b"gets ", b"gat ", b"gats "];
    match lists_keys.iter().any(|name| input.starts_with(name)) {
        true => limits.keys_window_bytes,
        false => limits.max_line_bytes,
    }
}

fn check_incomplete(input: &[u8], needed: Needed<'_>, limits: &Limits) {
    match needed {
        Needed::Line => {
            assert!(!input.contains(&b'\n') && input.len() < bound(input, limits));
        }
        Needed::Value {
            line_len, value_len, ..
        } => {
            assert!(input[..line_len].ends_with(b"\n") && value_len <= limits.max_value_bytes);
            assert!(input.len() < line_len + value_len as usize + 2);
            let line = parse(&input[..line_len], limits);
            assert!(line == Parsed::Incomplete(needed), "{line:?}");
        }
    }
}

fn check_too_long(input: &[u8], limits: &Limits) {
    let bound = bound(input, limits);
    assert!(!input[..bound - 1].contains(&b'\n'));
    let before = parse(&input[..bound - 1], limits);
    assert!(before == Parsed::Incomplete(Needed::Line), "{before:?}");
}

/// The keys of a part and those of the rest are all of the line's.
fn check_keys(input: &[u8], get: Get<'_>, head_len: usize, rest: usize, limits: &Limits) {
    assert!(head_len < rest && rest < limits.keys_window_bytes);
    assert!(!input[..limits.keys_window_bytes].contains(&b'\n'));
    let listed: Vec<_> = get.keys.collect();
    assert!(!listed.is_empty() && listed == words(&input[head_len..rest]));
    let rest = [&input[..head_len], &input[rest..]].concat();
    assert!(words(&rest).len() < words(input).len());
    walk(&rest, limits);
}

/// A command that was accepted: it is what its words say, and written anew it is the same command.
fn check_command(command: &Command<'_>, bytes: &[u8], limits: &Limits) {
    let words = words(bytes);
    match command {
        Command::Get(get) => check_get(get, &words),
        Command::Store(store) => {
            check_store(store, &words, limits);
            let line_len = bytes.len() - store.value.len() - 2;
            let apart = Protocol::Text.parse_apart(&bytes[..line_len], &bytes[line_len..], limits);
            let consumed = bytes.len();
            let whole = Parsed::Command {
                command: *command,
                consumed,
            };
            assert!(apart == whole, "{apart:?}, {whole:?}");
        }
        Command::TooLarge(large) => {
            assert!(large.skip > u64::from(limits.max_value_bytes) + 2);
            check_key(&large.key);
        }
        Command::Delete(delete) => {
            check_key(&delete.key);
            assert_eq!(delete.key.token(), words[1]);
            assert_eq!(
                delete.noreply,
                words.last() == Some(&&b"noreply"[..]) && words.len() > 2
            );
        }
        Command::Delta(delta) => {
            check_key(&delta.key);
            assert_eq!((delta.key.token(), Some(delta.by)), (words[1], number(words[2])));
            assert_eq!(delta.up, words[0] == b"incr");
        }
        Command::Touch(touch) => {
            check_key(&touch.key);
            assert_eq!(
                (touch.key.token(), Some(touch.exptime)),
                (words[1], exptime(words[2]))
            );
        }
        Command::MetaGet(request) | Command::MetaDelete(request) | Command::MetaDelta(request) => {
            let said = Said::of(&request.key, request.flags, &words[2..]);
            let MetaRequest {
                quiet,
                value,
                aside,
                invalidate,
                ..
            } = *request;
            let expected = (said.has(b'q'), said.has(b'v'), said.has(b'u'), said.has(b'I'));
            assert_eq!((quiet, value, aside, invalidate), expected);
            let times = (said.exptime(b'T'), said.exptime(b'N'), said.exptime(b'R'));
            assert_eq!((request.touch, request.vivify, request.recache), times);
            let numbers = (said.number(b'D').unwrap_or(1), said.number(b'J').unwrap_or(0));
            assert_eq!((request.by, request.initial), numbers);
            let is_delta = matches!(command, Command::MetaDelta(_));
            let compare = said.number(b'C').filter(|unique| *unique != 0 || !is_delta);
            assert_eq!(request.compare, compare);
            let down = is_delta && matches!(said.argument(b'M'), Some(b"D" | b"-"));
            assert_eq!(request.up, !down);
        }
        Command::MetaDebug(debug) => check_key(&debug.key),
        _ => {}
    }
    let Some(written) = write(command) else { return };
    let wide = Limits {
        max_value_bytes: limits.max_value_bytes,
        max_line_bytes: limits.max_line_bytes + 64,
        keys_window_bytes: limits.keys_window_bytes + 64,
    };
    match parse(&written, &wide) {
        Parsed::Command {
            command: again,
            consumed,
        } => {
            assert_eq!(consumed, written.len());
            assert_eq!(describe(&again), describe(command));
        }
        other => panic!("{}: {other:?}", written.escape_ascii()),
    }
}

/// The words of a line.
fn words(bytes: &[u8]) -> Vec<&[u8]> {
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(bytes.len());
    let line = &bytes[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty())
        .collect()
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

fn number(word: &[u8]) -> Option<u64> {
    text(word)?.parse().ok()
}

fn exptime(word: &[u8]) -> Option<Exptime> {
    text(word)?.parse().ok().map(Exptime)
}

fn check_key(key: &Key<'_>) {
    let token = key.token();
    assert!((1..=250).contains(&token.len()), "{}", token.len());
    assert!(!token.iter().any(|byte| matches!(byte, b' ' | b'\n' | 0)));
    let mut scratch: KeyScratch = [0; 250];
    let bytes = key.bytes(&mut scratch);
    if !key.is_base64() {
        assert_eq!(bytes, token);
        return;
    }
    let again = base64(bytes);
    assert_eq!(again.len(), token.len());
    // Before the padding, bits that say nothing may be set.
    let sure = bytes.len() * 8 / 6;
    assert_eq!(again[..sure], token[..sure]);
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    for group in bytes.chunks(3) {
        let mut bits = 0u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(group.get(at).copied().unwrap_or(0));
        }
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= group.len() { digit } else { b'=' });
        }
    }
    out
}

fn check_get(get: &Get<'_>, words: &[&[u8]]) {
    let touches = matches!(words[0], b"gat" | b"gats");
    assert_eq!(get.with_cas, matches!(words[0], b"gets" | b"gats"));
    assert_eq!(get.touch, if touches { exptime(words[1]) } else { None });
    let keys: Vec<&[u8]> = get.keys.collect();
    assert_eq!(keys, words[1 + usize::from(touches)..]);
    assert!(keys.iter().all(|key| key.len() <= 250 && !key.contains(&0)));
}

fn check_store(store: &Store<'_>, words: &[&[u8]], limits: &Limits) {
    check_key(&store.key);
    assert!(store.value.len() as u64 <= u64::from(limits.max_value_bytes));
    assert_eq!(store.key.token(), words[1]);
    match store.reply {
        StoreReply::Classic { noreply } => {
            assert_eq!(number(words[2]), Some(u64::from(store.flags)));
            assert_eq!(exptime(words[3]), Some(store.exptime));
            assert_eq!(number(words[4]), Some(store.value.len() as u64));
            let unique = (words[0] == b"cas").then(|| number(words[5]).expect("a number"));
            assert_eq!(store.compare, unique);
            assert_eq!(noreply, words.last() == Some(&&b"noreply"[..]));
        }
        StoreReply::Meta { flags, quiet } => {
            let said = Said::of(&store.key, flags, &words[3..]);
            assert_eq!(number(words[2]), Some(store.value.len() as u64));
            assert_eq!(u64::from(store.flags), said.number(b'F').unwrap_or(0));
            assert_eq!(store.exptime, said.exptime(b'T').unwrap_or(Exptime(0)));
            assert_eq!(store.compare, said.number(b'C'));
            assert_eq!((store.invalidate, quiet), (said.has(b'I'), said.has(b'q')));
            let mode = match said.argument(b'M') {
                None | Some(b"S") => Mode::Set,
                Some(b"E") => Mode::Add,
                Some(b"R") => Mode::Replace,
                Some(b"A") => Mode::Append,
                Some(b"P") => Mode::Prepend,
                Some(other) => panic!("mode {}", other.escape_ascii()),
            };
            assert_eq!(store.mode, mode);
        }
        StoreReply::Frame(_) => panic!("a frame among words"),
    }
}

/// What the flags of a meta command say, read in the plainest way.
struct Said<'a>(Vec<(u8, &'a [u8])>);

impl<'a> Said<'a> {
    fn of(key: &Key<'_>, flags: MetaFlags<'_>, words: &[&'a [u8]]) -> Self {
        let said = Self(words.iter().map(|word| (word[0], &word[1..])).collect());
        assert!(flags.iter().eq(said.0.iter().copied()), "{flags:?}");
        for (at, (letter, _)) in said.0.iter().enumerate() {
            assert!(!said.0[..at].iter().any(|(other, _)| other == letter), "twice");
        }
        check_key(key);
        assert_eq!(key.is_base64(), said.has(b'b'));
        assert!(said.argument(b'O').is_none_or(|opaque| opaque.len() < 32));
        said
    }

    fn argument(&self, letter: u8) -> Option<&'a [u8]> {
        let found = self.0.iter().find(|(known, _)| *known == letter);
        found.map(|(_, argument)| *argument)
    }

    fn has(&self, letter: u8) -> bool {
        self.argument(letter).is_some()
    }

    fn number(&self, letter: u8) -> Option<u64> {
        self.argument(letter).map(|word| number(word).expect("a number"))
    }

    fn exptime(&self, letter: u8) -> Option<Exptime> {
        self.argument(letter).map(|word| exptime(word).expect("a time"))
    }
}

/// Writes a command in its plainest form; nothing for one without anything in it.
fn write(command: &Command<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut say = |words: &[&[u8]]| {
        for word in words {
            if !out.is_empty() {
                out.push(b' ');
            }
            out.extend_from_slice(word);
        }
    };
    let mut value = None;
    let mut is_silent = false;
    match command {
        Command::Get(get) => {
            say(&[match (get.touch.is_some(), get.with_cas) {
                (false, false) => b"get",
                (false, true) => b"gets",
                (true, false) => b"gat",
                (true, true) => b"gats",
            }]);
            if let Some(Exptime(at)) = get.touch {
                say(&[at.to_string().as_bytes()]);
            }
            get.keys.for_each(|key| say(&[key]));
        }
        Command::Store(store) => {
            let len = store.value.len().to_string();
            match store.reply {
                StoreReply::Classic { noreply } => {
                    say(&[match (store.mode, store.compare) {
                        (Mode::Set, Some(_)) => b"cas",
                        (Mode::Set, None) => b"set",
                        (Mode::Add, _) => b"add",
                        (Mode::Replace, _) => b"replace",
                        (Mode::Append, _) => b"append",
                        (Mode::Prepend, _) => b"prepend",
                    }]);
                    say(&[store.key.token()]);
                    say(&[store.flags.to_string().as_bytes()]);
                    say(&[store.exptime.0.to_string().as_bytes()]);
                    say(&[len.as_bytes()]);
                    if let Some(unique) = store.compare {
                        say(&[unique.to_string().as_bytes()]);
                    }
                    is_silent = noreply;
                }
                StoreReply::Meta { flags, .. } => {
                    say(&[b"ms"]);
                    say(&[store.key.token()]);
                    say(&[len.as_bytes()]);
                    words_of(flags).iter().for_each(|flag| say(&[flag]));
                }
                StoreReply::Frame(_) => return None,
            }
            value = Some(store.value);
        }
        Command::TooLarge(large) => {
            let len = (large.skip - 2).to_string();
            if large.key.is_base64() {
                say(&[b"ms", large.key.token(), len.as_bytes(), b"b"]);
            } else {
                let name: &[u8] = if large.unlink { b"set" } else { b"add" };
                say(&[name, large.key.token(), b"0", b"0", len.as_bytes()]);
            }
            is_silent = large.noreply;
        }
        Command::Delete(delete) => {
            say(&[b"delete", delete.key.token()]);
            is_silent = delete.noreply;
        }
        Command::Delta(delta) => {
            let name: &[u8] = if delta.up { b"incr" } else { b"decr" };
            say(&[name, delta.key.token(), delta.by.to_string().as_bytes()]);
            is_silent = delta.noreply;
        }
        Command::Touch(touch) => {
            say(&[
                b"touch",
                touch.key.token(),
                touch.exptime.0.to_string().as_bytes(),
            ]);
            is_silent = touch.noreply;
        }
        Command::FlushAll { delay, noreply, .. } => {
            say(&[b"flush_all"]);
            if let Some(Exptime(at)) = delay {
                say(&[at.to_string().as_bytes()]);
            }
            is_silent = *noreply;
        }
        Command::MetaGet(request) | Command::MetaDelete(request) | Command::MetaDelta(request) => {
            say(&[match command {
                Command::MetaGet(_) => b"mg",
                Command::MetaDelete(_) => b"md",
                _ => b"ma",
            }]);
            say(&[request.key.token()]);
            words_of(request.flags).iter().for_each(|flag| say(&[flag]));
        }
        Command::MetaDebug(debug) => {
            say(&[b"me", debug.key.token()]);
            if debug.key.is_base64() {
                say(&[b"b"]);
            }
        }
        Command::Stats { what: Some(what), .. } => say(&[b"stats", what]),
        _ => return None,
    }
    if is_silent {
        out.extend_from_slice(b" noreply");
    }
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    Some(out)
}

fn words_of(flags: MetaFlags<'_>) -> Vec<Vec<u8>> {
    let flag = |(letter, argument): (u8, &[u8])| [&[letter], argument].concat();
    flags.iter().map(flag).collect()
}

/// A command as text, without how many spaces it was written with.
fn describe(command: &Command<'_>) -> String {
    let (mut text, mut tail) = (format!("{command:?}"), String::new());
    // The only thing that keeps the line as it was is what is left of it.
    let flags = match command {
        Command::MetaGet(request) | Command::MetaDelete(request) | Command::MetaDelta(request) => {
            Some(request.flags)
        }
        Command::Store(Store {
            reply: StoreReply::Meta { flags, .. },
            ..
        }) => Some(*flags),
        _ => None,
    };
    if let Some(flags) = flags {
        let _ = write!(tail, "{:?}", words_of(flags));
        text = text.replace(&format!("{flags:?}"), "");
    }
    if let Command::Get(get) = command {
        let _ = write!(tail, "{:?}", get.keys.collect::<Vec<_>>());
        text = text.replace(&format!("{:?}", get.keys), "");
    }
    text + &tail
}
