//! The two protocols: in words, classic and meta, and in frames.

use super::command::{Limits, Needed, Parsed};
use super::frame::REQUEST;

/// What a connection speaks. Its first byte says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Lines of words.
    #[default]
    Text,
    /// Frames.
    Binary,
}

impl Protocol {
    /// What a connection speaks that begins with this byte.
    pub fn of(first: u8) -> Self {
        match first {
            REQUEST => Protocol::Binary,
            _ => Protocol::Text,
        }
    }

    /// What stands behind a value.
    pub fn value_end(self) -> &'static [u8] {
        match self {
            Protocol::Text => b"\r\n",
            Protocol::Binary => b"",
        }
    }

    /// Says what a storage command is whose value was received apart: `line` is all before the value, and `value` goes to the end of
    /// [`Protocol::value_end`]. `consumed` counts both.
    pub fn parse_apart<'a>(self, line: &'a [u8], value: &'a [u8], limits: &Limits) -> Parsed<'a> {
        match self.parse(line, limits) {
            Parsed::Incomplete(Needed::Value {
                line_len,
                value_len,
                store,
            }) => super::attach((store, value_len), line_len, value, self),
            _ => Parsed::TooLong,
        }
    }
}
