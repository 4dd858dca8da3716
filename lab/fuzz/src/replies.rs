//! The forms of memcached's answers.

use pumice_door_memcached::parse::{Command, Get, MetaFlags, Parsed, StoreReply};

/// Answers that are looked at one after the other.
pub(crate) struct Replies<'a> {
    rest: &'a [u8],
}

impl<'a> Replies<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next line.
    fn line(&mut self) -> &'a [u8] {
        let at = self.rest.windows(2).position(|two| two == b"\r\n");
        let at = at.unwrap_or_else(|| panic!("no line in {}", self.rest.escape_ascii()));
        let line = &self.rest[..at];
        self.rest = &self.rest[at + 2..];
        line
    }

    pub(crate) fn line_is(&mut self, expected: &[u8]) {
        let line = self.line();
        assert!(
            line == expected,
            "{} and not {}",
            line.escape_ascii(),
            expected.escape_ascii()
        );
    }

    fn line_among(&mut self, expected: &[&[u8]]) -> &'a [u8] {
        let line = self.line();
        expect(
            expected.contains(&line) || line.starts_with(b"SERVER_ERROR "),
            line,
        );
        line
    }

    /// The value that a line has announced.
    fn value(&mut self, len: &[u8]) {
        let len: usize = number(len).expect("a length");
        let (value, rest) = self.rest.split_at(len.min(self.rest.len()));
        assert!(
            value.len() == len && rest.starts_with(b"\r\n"),
            "a value of {len}"
        );
        self.rest = &rest[2..];
    }

    /// Takes what answers a command; a no-op follows, or the end.
    pub(crate) fn answers(&mut self, parsed: &Parsed<'_>) {
        match parsed {
            Parsed::Incomplete(_) | Parsed::Keys { .. } | Parsed::BadFrame { .. } => {}
            Parsed::TooLong => self.line_is(b"CLIENT_ERROR line too long"),
            Parsed::Malformed { reply, .. } => {
                if let Some(line) = reply.strip_suffix("\r\n") {
                    self.line_is(line.as_bytes());
                }
            }
            Parsed::Command { command, .. } => self.command(command),
        }
    }

    fn command(&mut self, command: &Command<'_>) {
        const STORED: &[&[u8]] = &[b"STORED", b"NOT_STORED", b"EXISTS", b"NOT_FOUND"];
        let is_noreply = match command {
            Command::Store(store) => store.reply.is_noreply(),
            Command::TooLarge(large) => large.noreply,
            Command::Delete(delete) => delete.noreply,
            Command::Delta(delta) => delta.noreply,
            Command::Touch(touch) => touch.noreply,
            Command::FlushAll { noreply, .. } | Command::Verbosity { noreply } => *noreply,
            Command::Quit(_) | Command::Http => true,
            _ => false,
        };
        if is_noreply {
            return;
        }
        match command {
            Command::Get(get) => self.values(get),
            Command::Store(store) => match store.reply {
                StoreReply::Classic { .. } => {
                    self.line_among(STORED);
                }
                StoreReply::Meta { flags, quiet } => self.meta(flags, quiet, &[b"HD", b"NS", b"EX", b"NF"]),
                StoreReply::Frame(_) => panic!("a frame among words"),
            },
            Command::TooLarge(_) => {
                self.line_is(b"SERVER_ERROR object too large for cache");
            }
            Command::Delete(_) => {
                self.line_among(&[b"DELETED", b"NOT_FOUND"]);
            }
            Command::Delta(_) => {
                const TEXT: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";
                if self.rest.first().is_some_and(u8::is_ascii_digit) {
                    number::<u64>(self.line()).expect("a number of 64 bits");
                } else {
                    self.line_among(&[b"NOT_FOUND", TEXT]);
                }
            }
            Command::Touch(_) => {
                self.line_among(&[b"TOUCHED", b"NOT_FOUND"]);
            }
            Command::FlushAll { .. } | Command::Verbosity { .. } => self.line_is(b"OK"),
            Command::Version(_) => assert!(self.line().starts_with(b"VERSION 1.")),
            Command::Shutdown => self.line_is(b"ERROR: shutdown not enabled"),
            Command::MetaNoop => self.line_is(b"MN"),
            Command::MetaGet(get) => self.meta(get.flags, get.quiet, &[b"HD", b"VA", b"EN"]),
            Command::MetaDelete(delete) => self.meta(delete.flags, delete.quiet, &[b"HD", b"NF", b"EX"]),
            Command::MetaDelta(delta) => {
                self.meta(delta.flags, delta.quiet, &[b"HD", b"VA", b"NF", b"NS", b"EX"]);
            }
            Command::MetaDebug(debug) => {
                let line = self.line();
                let head = [b"ME ", debug.key.token(), b" "].concat();
                expect(line == b"EN" || line.starts_with(&head), line);
            }
            // Statistics, and what this does not know: anything that ends where the no-op's answer stands.
            _ => {
                while !self.rest.starts_with(b"MN\r\n") && !self.rest.is_empty() {
                    self.line();
                }
            }
        }
    }

    /// The values of a get, in the order of its keys.
    fn values(&mut self, get: &Get<'_>) {
        let mut keys = get.keys;
        loop {
            let line = self.line();
            let Some(head) = line.strip_prefix(b"VALUE ") else {
                expect(line == b"END" || line.starts_with(b"SERVER_ERROR "), line);
                return;
            };
            let words: Vec<&[u8]> = head.split(|byte| *byte == b' ').collect();
            assert_eq!(
                words.len(),
                3 + usize::from(get.with_cas),
                "{}",
                line.escape_ascii()
            );
            assert!(
                keys.any(|key| key == words[0]),
                "{} was not asked for",
                words[0].escape_ascii()
            );
            number::<u32>(words[1]).expect("flags");
            if get.with_cas {
                number::<u64>(words[3]).expect("a CAS unique");
            }
            self.value(words[2]);
        }
    }

    /// A meta reply: one of these codes with the flags that were asked for, or nothing if it was quiet.
    fn meta(&mut self, flags: MetaFlags<'_>, quiet: bool, codes: &[&[u8]]) {
        if quiet && self.rest.starts_with(b"MN\r\n") || self.rest.is_empty() {
            return;
        }
        let line = self.line();
        if line.starts_with(b"SERVER_ERROR ") || line.starts_with(b"CLIENT_ERROR ") {
            return;
        }
        let mut words = line.split(|byte| *byte == b' ');
        let code = words.next().unwrap_or_default();
        expect(codes.contains(&code), line);
        let len = (code == b"VA").then(|| words.next().expect("a length"));
        for word in words {
            let (letter, argument) = word.split_first().expect("a flag");
            let asked = flags.iter().find(|(asked, _)| asked == letter);
            match letter {
                // These the server says by itself.
                b'W' | b'Z' | b'X' | b'b' => expect(argument.is_empty(), line),
                b'O' => assert_eq!(asked.map(|(_, opaque)| opaque), Some(argument)),
                b'k' => assert!(asked.is_some() && !argument.is_empty()),
                b't' => assert!(asked.is_some() && (argument == b"-1" || number::<u32>(argument).is_some())),
                _ => expect(asked.is_some() && number::<u64>(argument).is_some(), line),
            }
        }
        if let Some(len) = len {
            self.value(len);
        }
    }
}

#[track_caller]
fn expect(is_right: bool, line: &[u8]) {
    assert!(is_right, "{}", line.escape_ascii());
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
