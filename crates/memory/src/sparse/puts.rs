//! Parts that are still being put.

use crate::Payload;

/// Slabs double up to this size, in bytes; a larger part has one of its own.
const SLAB_BYTES_MAX: usize = 64 << 10;
const SLAB_BYTES_MIN: usize = 1 << 10;

/// Parts in rising order, with a gap where the last put was: a put next to it is O(1), another one moves the parts in
/// between over the gap. Their bytes are in slabs and never move.
#[derive(Debug, Default)]
pub(super) struct Puts {
    /// Parts before the gap, rising.
    left: Vec<Part>,
    /// Parts after the gap, falling.
    right: Vec<Part>,
    slabs: Vec<Slab>,
    /// The slab that is being filled.
    filling: usize,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    len: usize,
    slab: usize,
    /// Where its bytes start in the slab.
    from: usize,
}

#[derive(Debug)]
struct Slab {
    /// Never grows past the capacity that it was made with.
    bytes: Vec<u8>,
    /// How many of the bytes are in a part.
    live: usize,
}

impl Part {
    fn end(&self) -> usize {
        self.at + self.len
    }
}

impl Puts {
    /// Forgets all parts and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.left.clear();
        self.right.clear();
        for slab in &mut self.slabs {
            slab.bytes.clear();
            slab.live = 0;
        }
        self.filling = 0;
    }

    /// Replaces what is in the payload's range. No bytes outside of it move.
    pub(super) fn put(&mut self, at: usize, payload: Payload<'_>) {
        let end = at + payload.len();
        self.move_gap(at);
        // One part at most reaches in from the left; it may reach out again on the right.
        if let Some(part) = self.left.last_mut()
            && part.end() > at
        {
            let whole = *part;
            part.len = at - part.at;
            if whole.end() > end {
                self.right.push(Part {
                    at: end,
                    len: whole.end() - end,
                    from: whole.from + (end - whole.at),
                    ..whole
                });
            }
            self.release(whole.slab, whole.end().min(end) - at);
        }
        while let Some(part) = self.right.last_mut()
            && part.at < end
        {
            let (slab, cut) = (part.slab, part.len.min(end - part.at));
            part.at += cut;
            part.from += cut;
            part.len -= cut;
            if part.len == 0 {
                self.right.pop();
            }
            self.release(slab, cut);
        }
        if let Payload::Bytes(bytes) = payload {
            let part = self.store(at, bytes);
            self.left.push(part);
        }
    }

    /// The bytes of `at..at + len` where they are inside one part.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        let part = match self.right.last() {
            Some(next) if next.at <= at => {
                let first = self.right.partition_point(|part| part.at > at);
                self.right.get(first)?
            }
            _ => {
                let after = self.left.partition_point(|part| part.at <= at);
                self.left.get(after.checked_sub(1)?)?
            }
        };
        self.bytes_of(part).get(at - part.at..)?.get(..len)
    }

    /// Shows the parts that overlap `at..end`, cut to it.
    pub(super) fn each(&self, at: usize, end: usize, mut show: impl FnMut(usize, &[u8])) {
        let first = self.left.partition_point(|part| part.end() <= at);
        let left = self.left[first..].iter();
        let first = self.right.partition_point(|part| part.end() > at);
        let right = self.right[..first].iter().rev();
        for part in left.chain(right).take_while(|part| part.at < end) {
            super::show_cut(part.at, self.bytes_of(part), at, end, &mut show);
        }
    }

    /// Puts all parts that start before `at` on the left of the gap, all others on its right.
    fn move_gap(&mut self, at: usize) {
        while let Some(part) = self.right.pop_if(|part| part.at < at) {
            self.left.push(part);
        }
        while let Some(part) = self.left.pop_if(|part| part.at >= at) {
            self.right.push(part);
        }
    }

    fn bytes_of(&self, part: &Part) -> &[u8] {
        let start = self.slabs[part.slab].bytes.as_ptr();
        // SAFETY: the part's bytes are initialised bytes of its slab. Going by the pointer borrows these alone: others
        // of the slab may be lent out.
        unsafe { std::slice::from_raw_parts(start.add(part.from), part.len) }
    }

    fn store(&mut self, at: usize, bytes: &[u8]) -> Part {
        let slab = self.slab_with_room(bytes.len());
        let to = &mut self.slabs[slab];
        let from = to.bytes.len();
        // There is room, so nothing is allocated anew and no bytes move.
        to.bytes.extend_from_slice(bytes);
        to.live += bytes.len();
        Part {
            at,
            len: bytes.len(),
            slab,
            from,
        }
    }

    fn slab_with_room(&mut self, len: usize) -> usize {
        let has_room = |slab: &Slab| slab.bytes.capacity() - slab.bytes.len() >= len;
        if self.slabs.get(self.filling).is_some_and(has_room) {
            return self.filling;
        }
        self.filling = self.slabs.iter().position(has_room).unwrap_or_else(|| {
            let live: usize = self.slabs.iter().map(|slab| slab.live).sum();
            let capacity = live.clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).max(len);
            self.slabs.push(Slab {
                bytes: Vec::with_capacity(capacity),
                live: 0,
            });
            self.slabs.len() - 1
        });
        self.filling
    }

    /// Takes note that so many bytes of a slab are in no part any more. A slab without any is filled again.
    fn release(&mut self, slab: usize, bytes: usize) {
        let slab = &mut self.slabs[slab];
        slab.live -= bytes;
        if slab.live == 0 {
            slab.bytes.clear();
        }
    }

    /// # Panics
    /// Where parts are empty or out of order, or a slab's count is wrong.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let mut live = vec![0; self.slabs.len()];
        let mut end = 0;
        for part in self.left.iter().chain(self.right.iter().rev()) {
            assert!(part.at >= end && part.len > 0, "{part:?} after {end}");
            end = part.end();
            live[part.slab] += part.len;
        }
        for (slab, live) in self.slabs.iter().zip(live) {
            assert_eq!(slab.live, live);
            assert!(live > 0 || slab.bytes.is_empty());
        }
    }

    /// Memory taken for bytes.
    #[cfg(test)]
    pub(super) fn slab_bytes(&self) -> usize {
        self.slabs.iter().map(|slab| slab.bytes.capacity()).sum()
    }
}
