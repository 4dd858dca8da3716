//! Reading decisions from the fuzzer's bytes.

use std::borrow::Cow;

/// Bytes that are read from the front; past their end everything is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let len = N.min(self.0.len());
        out[..len].copy_from_slice(self.take(len));
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next `len` bytes, or as many as there are.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// The first byte, and what the others make: themselves, or, where it is odd, what is composed of them.
pub(crate) fn composed(data: &[u8], compose: fn(&[u8]) -> Vec<u8>) -> Option<(u8, Cow<'_, [u8]>)> {
    let (first, rest) = data.split_first()?;
    let input = match first & 1 {
        0 => Cow::Borrowed(rest),
        _ => Cow::Owned(compose(rest)),
    };
    Some((*first, input))
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Where something of this length is to be cut: everywhere if it is short, else near its ends and now and then between.
pub(crate) fn cuts(len: usize) -> impl Iterator<Item = usize> {
    let stride = (len / 64).max(1);
    (0..len).filter(move |cut| *cut < 64 || len - cut <= 64 || cut % stride == 0)
}
