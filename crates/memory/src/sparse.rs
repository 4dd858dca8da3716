//! A buffer that keeps headers and forgets values.

mod packed;
mod puts;

use crate::{Buffer, Payload};
use locks::Mutex;
use packed::Packed;
use puts::Puts;
use std::sync::OnceLock;

/// A buffer that holds only what was put as bytes; the rest of it is length without content.
///
/// Parts are kept as they were put: [`Buffer::bytes`] answers for ranges inside one put. A later put replaces what
/// it overlaps.
#[derive(Debug)]
pub struct SparseBuf {
    len: usize,
    /// What the buffer was made with, part by part. Read without a lock as long as nothing was put.
    given: Packed,
    /// From the first put on, all parts, those of `given` included.
    puts: OnceLock<Box<Mutex<Puts>>>,
}

impl SparseBuf {
    /// Adds a part to a buffer that is being made, behind all parts that it has; parts that touch become one.
    ///
    /// # Panics
    /// Where parts are out of order, or reach past the end, or something was put already.
    pub fn push_part(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at.checked_add(bytes.len()).is_some_and(|end| end <= self.len),
            "part past the end of a buffer"
        );
        assert!(self.puts.get().is_none(), "parts come before puts");
        self.given.push(at, bytes);
    }

    /// The real parts that overlap `at..at + len`, cut to it, with offsets relative to `at`.
    pub fn parts(&self, at: usize, len: usize) -> Vec<(usize, Box<[u8]>)> {
        let mut parts = Vec::new();
        self.for_each_part(at, len, |at, part| parts.push((at, Box::from(part))));
        parts
    }

    /// Shows what [`SparseBuf::parts`] returns, in rising order. The buffer may be locked meanwhile: `show` must not
    /// use it.
    pub fn for_each_part(&self, at: usize, len: usize, mut show: impl FnMut(usize, &[u8])) {
        let end = at.saturating_add(len);
        let show = |start: usize, part: &[u8]| show(start - at, part);
        match self.puts.get() {
            Some(puts) => puts.lock().each(at, end, show),
            None => self.given.each(at, end, show),
        }
    }
}

/// Shows `part`, which starts at `start`, cut to `at..end`, unless nothing is left of it.
fn show_cut(start: usize, part: &[u8], at: usize, end: usize, show: &mut impl FnMut(usize, &[u8])) {
    let from = at.saturating_sub(start).min(part.len());
    let to = end.saturating_sub(start).min(part.len());
    if from < to {
        show(start + from, &part[from..to]);
    }
}

impl Buffer for SparseBuf {
    fn with_len(len: usize) -> Self {
        Self {
            len,
            given: Packed::default(),
            puts: OnceLock::new(),
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn reset(&mut self) {
        self.given = Packed::default();
        if let Some(puts) = self.puts.get_mut() {
            puts.get_mut().clear();
        }
    }

    unsafe fn put(&self, at: usize, payload: Payload<'_>) {
        let end = at.checked_add(payload.len()).expect("range fits usize");
        assert!(end <= self.len, "put past the end of a buffer");
        if payload.is_empty() {
            return;
        }
        let puts = self.puts.get_or_init(|| {
            let mut puts = Puts::default();
            self.given
                .each(0, self.len, |at, part| puts.put(at, Payload::Bytes(part)));
            Box::new(Mutex::new(puts))
        });
        puts.lock().put(at, payload);
    }

    fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        if len == 0 {
            return Some(&[]);
        }
        let Some(puts) = self.puts.get() else {
            return self.given.bytes(at, len);
        };
        let puts = puts.lock();
        let slice = puts.bytes(at, len)?;
        // SAFETY: the bytes of a part stay where they are, unchanged, until a put overlaps it or the buffer is reset.
        // `put`'s contract says that nobody puts over bytes that are lent out, and a reset takes the buffer
        // exclusively, so the slice lives as long as this borrow of the buffer.
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
    use pumice_world::Random;

    fn put(buf: &SparseBuf, at: usize, bytes: &[u8]) {
        // SAFETY: single-threaded, and no lent slice is alive.
        unsafe { buf.put(at, Payload::Bytes(bytes)) }
    }

    const LEN: usize = 3000;

    fn random(state: &mut Random, below: usize) -> usize {
        state.below(below as u64) as usize
    }

    /// The number of the put that each byte comes from, and the byte.
    type Model = Vec<Option<(usize, u8)>>;

    fn check(buf: &SparseBuf, model: &Model, at: usize, len: usize) {
        let run = &model[at..at + len];
        let is_one_put = run
            .iter()
            .all(|byte| byte.is_some() && byte.map(|b| b.0) == run[0].map(|b| b.0));
        let expected: Option<Vec<u8>> =
            is_one_put.then(|| run.iter().flatten().map(|(_, byte)| *byte).collect());
        assert_eq!(buf.bytes(at, len), expected.as_deref(), "{len} bytes at {at}");
        let payload = expected.as_deref().map_or(Payload::Void(len), Payload::Bytes);
        assert_eq!(buf.payload(at, len), Some(payload));
        assert_eq!(buf.payload(at, LEN + 1 - at), None);
    }

    fn check_parts(buf: &SparseBuf, model: &Model, at: usize, len: usize) {
        let mut found: Vec<Option<u8>> = vec![None; len];
        let mut end = 0;
        for (start, part) in buf.parts(at, len) {
            assert!(start >= end && !part.is_empty(), "parts rise, and none is empty");
            end = start + part.len();
            found[start..end].copy_from_slice(&part.iter().copied().map(Some).collect::<Vec<_>>());
        }
        let expected: Vec<_> = model[at..at + len].iter().map(|byte| byte.map(|b| b.1)).collect();
        assert_eq!(found, expected, "parts of {len} bytes at {at}");
    }

    /// Puts of any order and length, over a buffer that was empty or given parts, against one entry per byte.
    #[test]
    fn puts_in_any_order_do_what_a_plain_array_does() {
        for seed in 1..=60_u64 {
            let mut state = Random(seed);
            let mut model: Model = vec![None; LEN];
            let mut buf = SparseBuf::with_len(LEN);
            if seed % 3 == 0 {
                // The second and third part touch.
                let given: [(usize, &[u8]); 4] =
                    [(0, &[1; 70]), (500, &[2; 40]), (540, &[3; 9]), (2990, &[4; 10])];
                given.iter().for_each(|(at, part)| buf.push_part(*at, part));
                for (put, (at, part)) in given.iter().enumerate() {
                    let put = if put == 2 { 1 } else { put };
                    model[*at..at + part.len()].fill(Some((put, part[0])));
                }
                check(&buf, &model, 500, 49);
                check(&buf, &model, 499, 49);
                check_parts(&buf, &model, 20, 525);
            }
            let mut next = 0;
            for number in 10..400 {
                let len = 1 + random(&mut state, if number % 7 == 0 { 900 } else { 60 });
                let at = match seed % 2 {
                    0 => random(&mut state, LEN - len),
                    // Rising, over and over: as a segment is filled.
                    _ if next + len > LEN => 0,
                    _ => next,
                };
                next = at + len;
                let bytes: Vec<u8> = (0..len).map(|i| (number * 31 + i) as u8).collect();
                let payload = if random(&mut state, 3) == 0 {
                    Payload::Void(len)
                } else {
                    Payload::Bytes(&bytes)
                };
                // SAFETY: single-threaded, and no lent slice is alive.
                unsafe { buf.put(at, payload) };
                buf.puts.get().expect("puts").lock().check_invariants();
                let is_void = matches!(payload, Payload::Void(_));
                for (i, byte) in bytes.iter().enumerate() {
                    model[at + i] = (!is_void).then_some((number, *byte));
                }
                check(&buf, &model, at, len);
                for _ in 0..20 {
                    let at = random(&mut state, LEN - 1);
                    let len = 1 + random(&mut state, (LEN - at).min(50));
                    check(&buf, &model, at, len);
                    check_parts(&buf, &model, at, len);
                }
            }
            check_parts(&buf, &model, 0, LEN);
            buf.reset();
            check_parts(&buf, &vec![None; LEN], 0, LEN);
        }
    }

    #[test]
    fn lent_bytes_stay_where_they_are_while_other_threads_put() {
        const THREADS: usize = 4;
        const PUTS: usize = 2000;
        let mut buf = SparseBuf::with_len(THREADS * PUTS * 64 + 64);
        buf.push_part(0, &[9; 64]);
        let buf = buf;
        let given = buf.bytes(0, 64).expect("real bytes");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let buf = &buf;
                scope.spawn(move || {
                    let mut lent = Vec::new();
                    for number in 0..PUTS {
                        let at = 64 + (number * THREADS + thread) * 64;
                        put(buf, at, &[(number + thread) as u8; 48]);
                        lent.push(buf.bytes(at, 48).expect("just put"));
                    }
                    for (number, bytes) in lent.into_iter().enumerate() {
                        assert_eq!(bytes, [(number + thread) as u8; 48]);
                    }
                });
            }
        });
        assert_eq!(given, [9; 64]);
    }

    /// The DRAM tier fills a segment again and again without a reset.
    #[test]
    fn memory_follows_the_parts_that_are_left() {
        let mut buf = SparseBuf::with_len(1 << 20);
        for round in 0..50_usize {
            let step = 3000 + round * 10;
            for at in (0..(1 << 20) - step).step_by(step) {
                put(&buf, at, &[7; 60]);
                // SAFETY: as in `put`.
                unsafe { buf.put(at + 60, Payload::Void(step - 60)) };
            }
        }
        let slab_bytes = |buf: &SparseBuf| buf.puts.get().expect("puts").lock().slab_bytes();
        let used = slab_bytes(&buf);
        assert!(used <= 4 * 60 * (1 << 20) / 3000, "{used} bytes of slabs");
        buf.reset();
        put(&buf, 5, b"again");
        assert_eq!(slab_bytes(&buf), used, "a reset keeps the memory");
    }

    #[test]
    fn a_reset_forgets_what_a_buffer_was_made_with() {
        let mut buf = SparseBuf::with_len(4096);
        buf.push_part(10, b"given");
        assert_eq!(buf.bytes(11, 3), Some(&b"ive"[..]));
        buf.reset();
        assert_eq!(buf.payload(11, 3), Some(Payload::Void(3)));
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn parts_past_the_end_are_refused() {
        SparseBuf::with_len(4096).push_part(4090, b"7 bytes");
    }
}
