//! Splits lines into tokens.

/// The tokens of a line: what stands between spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Tokens<'a> {
    pub(super) const fn new(rest: &'a [u8]) -> Self {
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

    #[test]
    fn tokens_are_separated_by_any_number_of_spaces() {
        let tokens: Vec<&[u8]> = Tokens::new(b"  a bb   c ").collect();
        assert_eq!(tokens, [&b"a"[..], b"bb", b"c"]);
    }
}
