//! The only command in words of a connection that has not authenticated itself: `set <key> <flags> <exptime> <length>` whose value is
//! the user, a space, and the password.

use super::line::Tokens;
use super::number;

/// The longest value that is looked at. No user and password of an auth file need as much.
const MAX_VALUE_BYTES: usize = 1 << 10;

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";
const FAILED: &str = "CLIENT_ERROR authentication failure\r\n";
const BAD_END: &str = "CLIENT_ERROR bad command line termination\r\n";
const BAD_FORMAT: &str = "CLIENT_ERROR bad authentication token format\r\n";

/// What stands at the start of the input of a connection that is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<'a> {
    /// The beginning of something.
    Incomplete {
        /// Whether a part of a value is missing, and no part of a line.
        is_value: bool,
    },
    /// A user and a password to look up.
    Credentials {
        /// The user.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
        /// Bytes of the input it takes.
        consumed: usize,
    },
    /// Anything else.
    Refused {
        /// What memcached answers, with its line end.
        reply: &'static str,
        /// Bytes of the input it takes.
        consumed: usize,
        /// Bytes that follow and are passed over.
        skip: u64,
    },
    /// The first line of an HTTP request: the connection has to be closed.
    Http,
    /// A line of `line_max` bytes or more: the connection has to be closed.
    TooLong,
}

impl Attempt<'_> {
    /// What a wrong user or password is answered, with its line end.
    pub const FAILED: &'static str = FAILED;
    /// What the right ones are answered, with its line end.
    pub const GRANTED: &'static str = "STORED\r\n";
}

/// Says what stands at the start of `input`. Never panics, and allocates nothing. As in memcached, key, flags and exptime may
/// be anything, and so may what follows the length or the password.
pub fn parse_attempt(input: &[u8], line_max: usize) -> Attempt<'_> {
    let window = input.get(..line_max).unwrap_or(input);
    let Some(newline) = memchr::memchr(b'\n', window) else {
        return match input.len() >= line_max {
            true => Attempt::TooLong,
            false => Attempt::Incomplete { is_value: false },
        };
    };
    let line = &window[..newline];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line_len = newline + 1;
    let Some(value_len) = announced(line) else {
        if super::is_http(line) {
            return Attempt::Http;
        }
        return Attempt::Refused {
            reply: UNAUTHENTICATED,
            consumed: line_len,
            skip: 0,
        };
    };
    let Some(len) = usize::try_from(value_len)
        .ok()
        .filter(|len| *len <= MAX_VALUE_BYTES)
    else {
        return Attempt::Refused {
            reply: FAILED,
            consumed: line_len,
            skip: u64::from(value_len) + 2,
        };
    };
    let consumed = line_len + len + 2;
    let Some((value, end)) = input.get(line_len..consumed).map(|rest| rest.split_at(len)) else {
        return Attempt::Incomplete { is_value: true };
    };
    let refused = |reply| Attempt::Refused {
        reply,
        consumed,
        skip: 0,
    };
    if end != b"\r\n" {
        return refused(BAD_END);
    }
    let mut tokens = Tokens::new(value);
    match (tokens.next(), tokens.next()) {
        (Some(user), Some(password)) => Attempt::Credentials {
            user,
            password,
            consumed,
        },
        _ => refused(BAD_FORMAT),
    }
}

/// The length of the value that a line announces, if it is a `set`.
fn announced(line: &[u8]) -> Option<u32> {
    let mut tokens = Tokens::new(line);
    if tokens.next() != Some(b"set") {
        return None;
    }
    u32::try_from(number::unsigned(tokens.nth(3)?)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE_MAX: usize = 2048;

    fn refused(input: &str) -> (&'static str, usize, u64) {
        match parse_attempt(input.as_bytes(), LINE_MAX) {
            Attempt::Refused {
                reply,
                consumed,
                skip,
            } => (reply, consumed, skip),
            other => panic!("{input:?}: {other:?}"),
        }
    }

    fn credentials(input: &str) -> (&str, &str, usize) {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        match parse_attempt(input.as_bytes(), LINE_MAX) {
            Attempt::Credentials {
                user,
                password,
                consumed,
            } => (text(user), text(password), consumed),
            other => panic!("{input:?}: {other:?}"),
        }
    }

    #[test]
    fn a_set_brings_user_and_password() {
        assert_eq!(
            credentials("set k 0 0 7\r\nfoo bar\r\nget a\r\n"),
            ("foo", "bar", 22)
        );
        for other in [
            "set k x y 7\r\nfoo bar\r\n",
            "set k 0 0 7 noreply\r\nfoo bar\r\n",
            "set k 0 0 7\nfoo bar\r\n",
            " set  k 0 0 +07\r\nfoo bar\r\n",
            "set k 0 0 9\r\n foo  bar\r\n",
            "set k 0 0 13\r\nfoo bar extra\r\n",
        ] {
            assert_eq!(credentials(other), ("foo", "bar", other.len()), "{other:?}");
        }
    }

    #[test]
    fn everything_else_is_refused_line_by_line() {
        for line in [
            "get a\r\n",
            "\r\n",
            "\n",
            "quit\r\n",
            "mn\r\n",
            "set k 0 0\r\n",
            "set k 0 0 x\r\n",
            "set k 0 0 -1\r\n",
            "set k 0 0 7x\r\n",
            "set k 0 0 4294967296\r\n",
            "add k 0 0 7\r\n",
            "SET k 0 0 7\r\n",
        ] {
            assert_eq!(refused(&format!("{line}more")), (UNAUTHENTICATED, line.len(), 0));
        }
        assert_eq!(refused("set k 0 0 3\r\nfoo\r\n"), (BAD_FORMAT, 18, 0));
        assert_eq!(refused("set k 0 0 0\r\n\r\n"), (BAD_FORMAT, 15, 0));
        assert_eq!(refused("set k 0 0 7\r\nfoo barXX"), (BAD_END, 22, 0));
        assert_eq!(refused("set k 0 0 1025\r\n"), (FAILED, 16, 1027));
        assert_eq!(refused("set k 0 0 4294967295\r\n").2, (1 << 32) + 1);
    }

    #[test]
    fn what_is_not_whole_is_waited_for_up_to_a_bound() {
        fn waits(input: &str) -> Attempt<'_> {
            parse_attempt(input.as_bytes(), LINE_MAX)
        }
        assert_eq!(waits(""), Attempt::Incomplete { is_value: false });
        assert_eq!(waits("set k 0 0 7\r"), Attempt::Incomplete { is_value: false });
        assert_eq!(
            waits("set k 0 0 7\r\nfoo bar\r"),
            Attempt::Incomplete { is_value: true }
        );
        assert_eq!(waits(&"x".repeat(2047)), Attempt::Incomplete { is_value: false });
        assert_eq!(waits(&"x".repeat(2048)), Attempt::TooLong);
        assert_eq!(waits(&("x".repeat(2048) + "\r\n")), Attempt::TooLong);
    }

    proptest! {
        #[test]
        fn how_the_input_was_cut_changes_no_answer(input in "(set k 0 0 [0-9]{1,5}\r\n[a-c \r\n]{0,12}){1,3}", cut in 0usize..60) {
            let whole = parse_attempt(input.as_bytes(), LINE_MAX);
            let cut = &input.as_bytes()[..cut.min(input.len())];
            match parse_attempt(cut, LINE_MAX) {
                Attempt::Incomplete { is_value } => prop_assert_eq!(is_value, cut.contains(&b'\n')),
                answered => prop_assert_eq!(answered, whole),
            }
        }
    }
}
