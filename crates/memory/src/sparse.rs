//! A buffer that keeps headers and forgets values.

use crate::{Buffer, Payload};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A buffer that holds only what was put as bytes; the rest of it is length without content.
///
/// Parts are kept as they were put: [`Buffer::bytes`] answers for ranges inside one put. A later put replaces what
/// it overlaps.
#[derive(Debug)]
pub struct SparseBuf {
    len: usize,
    /// Parts by offset. Boxed slices never move, which is what lets `bytes` lend them out (see there).
    parts: Mutex<BTreeMap<usize, Box<[u8]>>>,
}

impl SparseBuf {
    /// The real parts that overlap `at..at + len`, cut to it, with offsets relative to `at`.
    pub fn parts(&self, at: usize, len: usize) -> Vec<(usize, Box<[u8]>)> {
        let end = at.saturating_add(len);
        let parts = self.parts.lock();
        let first = parts
            .range(..=at)
            .next_back()
            .filter(|(start, part)| *start + part.len() > at)
            .map_or(at, |(start, _)| *start);
        parts
            .range(first..end)
            .map(|(start, part)| {
                let from = at.saturating_sub(*start).min(part.len());
                let to = (end - start).min(part.len());
                ((start + from) - at, Box::from(&part[from..to]))
            })
            .filter(|(_, part): &(usize, Box<[u8]>)| !part.is_empty())
            .collect()
    }
}

impl Buffer for SparseBuf {
    fn with_len(len: usize) -> Self {
        Self {
            len,
            parts: Mutex::new(BTreeMap::new()),
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn reset(&mut self) {
        self.parts.get_mut().clear();
    }

    unsafe fn put(&self, at: usize, payload: Payload<'_>) {
        let end = at.checked_add(payload.len()).expect("range fits usize");
        assert!(end <= self.len, "put past the end of a buffer");
        if payload.is_empty() {
            return;
        }
        let mut parts = self.parts.lock();
        // Cut away what the new part overlaps: at most one part reaches in from the left, others start inside.
        if let Some((&start, part)) = parts.range(..at).next_back()
            && start + part.len() > at
        {
            let part = parts.remove(&start).expect("just seen");
            if start + part.len() > end {
                parts.insert(end, Box::from(&part[end - start..]));
            }
            parts.insert(start, Box::from(&part[..at - start]));
        }
        let inside: Vec<usize> = parts.range(at..end).map(|(start, _)| *start).collect();
        for start in inside {
            let part = parts.remove(&start).expect("just seen");
            if start + part.len() > end {
                parts.insert(end, Box::from(&part[end - start..]));
            }
        }
        if let Payload::Bytes(bytes) = payload {
            parts.insert(at, Box::from(bytes));
        }
    }

    fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        if len == 0 {
            return Some(&[]);
        }
        let parts = self.parts.lock();
        let (start, part) = parts.range(..=at).next_back()?;
        let slice = part.get(at - start..end - start)?;
        // SAFETY: the slice lies in a boxed part, which stays where it is until a put overlaps it. `put`'s contract
        // says that nobody puts over bytes that are lent out, so it lives as long as this borrow of the buffer.
        Some(unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) })
    }

    fn payload(&self, at: usize, len: usize) -> Option<Payload<'_>> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        Some(self.bytes(at, len).map_or(Payload::Void(len), Payload::Bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(buf: &SparseBuf, at: usize, bytes: &[u8]) {
        // SAFETY: single-threaded, and no lent slice is alive.
        unsafe { buf.put(at, Payload::Bytes(bytes)) }
    }

    #[test]
    fn keeps_bytes_and_forgets_voids() {
        let buf = SparseBuf::with_len(4096);
        put(&buf, 10, b"header");
        // SAFETY: as in `put`.
        unsafe { buf.put(16, Payload::Void(100)) };
        assert_eq!(buf.bytes(10, 6), Some(&b"header"[..]));
        assert_eq!(buf.bytes(12, 2), Some(&b"ad"[..]));
        assert_eq!(buf.bytes(10, 7), None);
        assert_eq!(buf.payload(16, 100), Some(Payload::Void(100)));
        assert_eq!(buf.payload(16, 5000), None);
    }

    #[test]
    fn a_later_put_replaces_what_it_overlaps() {
        let buf = SparseBuf::with_len(4096);
        put(&buf, 0, b"0123456789");
        put(&buf, 3, b"abc");
        assert_eq!(buf.bytes(0, 3), Some(&b"012"[..]));
        assert_eq!(buf.bytes(3, 3), Some(&b"abc"[..]));
        assert_eq!(buf.bytes(6, 4), Some(&b"6789"[..]));
        assert_eq!(
            buf.parts(2, 3),
            vec![(0, Box::from(&b"2"[..])), (1, Box::from(&b"ab"[..]))]
        );
    }
}
