//! Finds lines and splits them into tokens.

use super::Limits;

/// Where the first line of the input ends.
pub(super) enum Line<'a> {
    /// A whole line, without its line end, and the number of bytes it takes with it.
    Whole { line: &'a [u8], consumed: usize },
    /// No newline yet, and one may still come in time.
    Incomplete,
    /// The beginning of a line that lists more keys than a window holds.
    Keys { window: &'a [u8] },
    /// Longer than any line may be.
    TooLong,
}

/// The commands whose lines may list many keys.
const MANY_KEYS: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];

/// Finds the first line. A line ends with LF or CR LF, as memcached has it; a lone CR belongs to the line.
///
/// The bound on the length holds whether the newline has arrived or not, so how the input was cut into packets
/// changes no answer.
pub(super) fn find<'a>(input: &'a [u8], limits: &Limits) -> Line<'a> {
    let lists_keys = MANY_KEYS.iter().any(|name| input.starts_with(name));
    let bound = match lists_keys {
        true => limits.keys_window_bytes,
        false => limits.max_line_bytes,
    };
    let window = input.get(..bound).unwrap_or(input);
    let Some(newline) = memchr::memchr(b'\n', window) else {
        return match (input.len() >= bound, lists_keys) {
            (false, _) => Line::Incomplete,
            (true, true) => Line::Keys { window },
            (true, false) => Line::TooLong,
        };
    };
    let line = &window[..newline];
    let line = match line.strip_suffix(b"\r") {
        Some(without) if newline > 1 => without,
        _ => line,
    };
    Line::Whole {
        line,
        consumed: newline + 1,
    }
}

/// The tokens of a line: what stands between spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while let Some((b' ', rest)) = self.rest.split_first() {
            self.rest = rest;
        }
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr::memchr(b' ', self.rest).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(token)
    }
}

/// The most arguments that are kept; no command takes as many.
const MAX_ARGUMENTS: usize = 8;

/// The arguments of a command, up to [`MAX_ARGUMENTS`].
pub(super) struct Arguments<'a> {
    tokens: [&'a [u8]; MAX_ARGUMENTS],
    count: usize,
}

impl<'a> Arguments<'a> {
    pub(super) fn collect(from: Tokens<'a>) -> Self {
        let mut tokens: [&'a [u8]; MAX_ARGUMENTS] = [b""; MAX_ARGUMENTS];
        let mut count = 0;
        for (slot, token) in tokens.iter_mut().zip(from) {
            *slot = token;
            count += 1;
        }
        Self { tokens, count }
    }

    pub(super) fn as_slice(&self) -> &[&'a [u8]] {
        &self.tokens[..self.count]
    }

    /// Whether the last argument is `noreply`.
    pub(super) fn noreply(&self) -> bool {
        self.as_slice().last().is_some_and(|token| *token == b"noreply")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(input: &[u8]) -> Option<(&[u8], usize)> {
        match find(input, &Limits::default()) {
            Line::Whole { line, consumed } => Some((line, consumed)),
            _ => None,
        }
    }

    #[test]
    fn a_line_ends_with_lf_or_crlf() {
        assert_eq!(line(b"get a\r\nget b"), Some((&b"get a"[..], 7)));
        assert_eq!(line(b"get a\n"), Some((&b"get a"[..], 6)));
        assert_eq!(line(b"\r\n"), Some((&b"\r"[..], 2)));
        assert_eq!(line(b"get a\r"), None);
    }

    #[test]
    fn only_lines_of_keys_may_be_long() {
        let limits = Limits::default();
        let mut keys = b"get ".to_vec();
        keys.resize(limits.keys_window_bytes - 1, b'k');
        assert!(matches!(find(&keys, &limits), Line::Incomplete));
        keys.resize(limits.keys_window_bytes + 1, b'k');
        assert!(
            matches!(find(&keys, &limits), Line::Keys { window } if window.len() == limits.keys_window_bytes)
        );
        assert!(matches!(find(&[b'x'; 2047], &limits), Line::Incomplete));
        assert!(matches!(find(&[b'x'; 2048], &limits), Line::TooLong));
    }

    #[test]
    fn tokens_are_separated_by_any_number_of_spaces() {
        let tokens: Vec<&[u8]> = Tokens::new(b"  a bb   c ").collect();
        assert_eq!(tokens, [&b"a"[..], b"bb", b"c"]);
    }
}
