//! The text protocol as a client sees it: replies, parsed in place.

use memchr::memchr;

/// Longest line of a reply.
const LINE_BYTES_MAX: usize = 2048;
/// Largest value that is believed: the protocol's servers refuse far smaller ones.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// One reply, or one part of the reply to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `VALUE`: an object; more may follow, up to `End`.
    Value {
        /// Its key.
        key: &'a [u8],
        /// Its client flags.
        flags: u64,
        /// Its bytes.
        data: &'a [u8],
        /// Its unique number, in the reply to `gets`.
        cas: Option<u64>,
    },
    /// `END`: no more objects.
    End,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`: the object is not the one that cas named.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `ERROR`.
    Error,
    /// `CLIENT_ERROR`, with the whole line.
    ClientError(&'a [u8]),
    /// `SERVER_ERROR`, with the whole line.
    ServerError(&'a [u8]),
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// A number alone, in reply to `incr` and `decr`.
    Number(u64),
    /// `STAT`: one line of statistics, its name and what follows it.
    Stat(&'a [u8], &'a [u8]),
    /// The reply to a meta command.
    Meta {
        /// Its two letters.
        code: [u8; 2],
        /// The flags behind it.
        flags: &'a [u8],
        /// The value, of `VA`.
        data: Option<&'a [u8]>,
    },
}

/// What is at the start of the bytes received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole reply, and how many bytes it takes.
    Whole(Reply<'a>, usize),
    /// Part of a reply; with fewer than this many bytes in all it need not be tried again.
    Partial(usize),
    /// What no server says; the rest of the connection cannot be understood.
    Broken,
}

/// Parses the reply that `bytes` begin with. Cost: one search for the end of its first line; values are not looked at.
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = memchr(b'\n', window) else {
        return if window.len() < LINE_BYTES_MAX {
            Parsed::Partial(bytes.len() + 1)
        } else {
            Parsed::Broken
        };
    };
    let (line, after) = (&bytes[..end], end + 1);
    let Some((b'\r', line)) = line.split_last() else {
        return Parsed::Broken;
    };
    if let Some(words) = line.strip_prefix(b"VALUE ") {
        return value(bytes, words, after);
    }
    if let Some(words) = line.strip_prefix(b"VA ") {
        let (length, flags) = split_word(words);
        return data(bytes, length, after, |data| Reply::Meta {
            code: *b"VA",
            flags,
            data: Some(data),
        });
    }
    let reply = match line {
        b"END" => Reply::End,
        b"STORED" => Reply::Stored,
        b"DELETED" => Reply::Deleted,
        b"NOT_FOUND" => Reply::NotFound,
        b"NOT_STORED" => Reply::NotStored,
        b"EXISTS" => Reply::Exists,
        b"ERROR" => Reply::Error,
        line if line.starts_with(b"SERVER_ERROR") => Reply::ServerError(line),
        line if line.starts_with(b"CLIENT_ERROR") => Reply::ClientError(line),
        b"TOUCHED" => Reply::Touched,
        b"OK" => Reply::Ok,
        line => match other(line) {
            Some(reply) => reply,
            None => return Parsed::Broken,
        },
    };
    Parsed::Whole(reply, after)
}

/// What is told from the rest of its line.
fn other(line: &[u8]) -> Option<Reply<'_>> {
    let (word, rest) = split_word(line);
    match word {
        b"HD" | b"EN" | b"NF" | b"NS" | b"EX" => Some(Reply::Meta {
            code: [word[0], word[1]],
            flags: rest,
            data: None,
        }),
        b"STAT" => {
            let (name, value) = split_word(rest);
            Some(Reply::Stat(name, value))
        }
        _ => number(line).map(Reply::Number),
    }
}

/// A line up to its first space, and what follows that.
fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b' ', line) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, &[]),
    }
}

/// `words` is `KEY FLAGS LENGTH` or `KEY FLAGS LENGTH CAS`; the value begins at `from`.
fn value<'a>(bytes: &'a [u8], words: &'a [u8], from: usize) -> Parsed<'a> {
    let mut words = words.splitn(4, |byte| *byte == b' ');
    let (Some(key), Some(flags), Some(length)) = (words.next(), words.next(), words.next()) else {
        return Parsed::Broken;
    };
    let cas = match words.next().map(number) {
        None => None,
        Some(Some(cas)) => Some(cas),
        Some(None) => return Parsed::Broken,
    };
    let Some(flags) = number(flags) else {
        return Parsed::Broken;
    };
    if key.is_empty() {
        return Parsed::Broken;
    }
    data(bytes, length, from, |data| Reply::Value {
        key,
        flags,
        data,
        cas,
    })
}

/// A value of `length`, in digits, that begins at `from`.
fn data<'a>(
    bytes: &'a [u8],
    length: &[u8],
    from: usize,
    reply: impl FnOnce(&'a [u8]) -> Reply<'a>,
) -> Parsed<'a> {
    let Some(length) = number(length).and_then(|length| usize::try_from(length).ok()) else {
        return Parsed::Broken;
    };
    if length > VALUE_BYTES_MAX {
        return Parsed::Broken;
    }
    let total = from + length + 2;
    if bytes.len() < total {
        return Parsed::Partial(total);
    }
    if bytes[total - 2..total] != *b"\r\n" {
        return Parsed::Broken;
    }
    Parsed::Whole(reply(&bytes[from..from + length]), total)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Appends a number in decimal digits.
pub fn append_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut from = digits.len();
    loop {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &[u8] = b"VALUE k1 0 5\r\na\r\nb!\r\nEND\r\nSTORED\r\nVALUE key2 4294967295 0 18446744073709551615\r\n\r\n\
        END\r\nDELETED\r\nNOT_FOUND\r\nNOT_STORED\r\nEXISTS\r\nERROR\r\nCLIENT_ERROR bad\r\nSERVER_ERROR out of memory\r\n\
        TOUCHED\r\nOK\r\n18446744073709551615\r\nSTAT pid 12\r\nVA 3 f5 W X\r\na\r\n\r\nHD\r\nEX c7\r\n";

    fn value(key: &'static [u8], flags: u64, data: &'static [u8], cas: Option<u64>) -> Reply<'static> {
        Reply::Value {
            key,
            flags,
            data,
            cas,
        }
    }

    fn meta(code: [u8; 2], flags: &'static [u8], data: Option<&'static [u8]>) -> Reply<'static> {
        Reply::Meta { code, flags, data }
    }

    fn replies() -> Vec<Reply<'static>> {
        vec![
            value(b"k1", 0, b"a\r\nb!", None),
            Reply::End,
            Reply::Stored,
            value(b"key2", u64::from(u32::MAX), b"", Some(u64::MAX)),
            Reply::End,
            Reply::Deleted,
            Reply::NotFound,
            Reply::NotStored,
            Reply::Exists,
            Reply::Error,
            Reply::ClientError(b"CLIENT_ERROR bad"),
            Reply::ServerError(b"SERVER_ERROR out of memory"),
            Reply::Touched,
            Reply::Ok,
            Reply::Number(u64::MAX),
            Reply::Stat(b"pid", b"12"),
            meta(*b"VA", b"f5 W X", Some(b"a\r\n")),
            meta(*b"HD", b"", None),
            meta(*b"EX", b"c7", None),
        ]
    }

    #[test]
    fn replies_are_what_they_say() {
        let (mut at, mut found) = (0, Vec::new());
        while at < STREAM.len() {
            let Parsed::Whole(reply, len) = parse(&STREAM[at..]) else {
                panic!("at {at}: {:?}", parse(&STREAM[at..]));
            };
            found.push(reply);
            at += len;
        }
        assert_eq!(found, replies());
    }

    #[test]
    fn a_reply_split_anywhere_is_partial_and_never_asks_for_too_much() {
        let mut at = 0;
        for expected in replies() {
            let Parsed::Whole(_, len) = parse(&STREAM[at..]) else {
                unreachable!()
            };
            for cut in 0..len {
                match parse(&STREAM[at..at + cut]) {
                    Parsed::Partial(need) => {
                        assert!(need > cut && need <= len, "{expected:?} cut at {cut}: {need}")
                    }
                    other => panic!("{expected:?} cut at {cut}: {other:?}"),
                }
            }
            assert_eq!(parse(&STREAM[at..at + len]), Parsed::Whole(expected, len));
            at += len;
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        for bad in [
            &b"HELLO\r\n"[..],
            b"STORED\n",
            b"\r\n",
            b"VALUE k 0\r\n",
            b"VALUE k 0 x\r\n",
            b"VALUE k 0 -1\r\n",
            b"VALUE k 0 1 \r\n",
            b"VALUE k 0 99999999999\r\n",
            b"VALUE k 0 99999999999999999999\r\n",
            b"VALUE  0 1\r\nx\r\n",
            b"VALUE k 0 1\r\nxyz",
            b"VA 1\r\nxyz",
            b"VA x\r\n",
            b"18446744073709551616\r\n",
            &long,
        ] {
            assert_eq!(parse(bad), Parsed::Broken, "{}", bad.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Parsed::Whole(_, len) = parse(&bytes) {
                prop_assert!(len <= bytes.len());
            }
        }

        #[test]
        fn numbers_are_written_as_they_are_read(value in any::<u64>()) {
            let mut text = Vec::new();
            append_number(&mut text, value);
            prop_assert_eq!(number(&text), Some(value));
        }
    }
}
