//! Parts that do not change any more, one after the other in memory.

/// Parts that an index without memory of its own holds: what a read of one record brings.
const FEW: usize = 3;
/// Room for their bytes.
const FEW_BYTES: usize = 160;

/// Where a part starts in the range, and where its bytes start. They reach to where the next one's start.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    at: usize,
    from: usize,
}

/// Parts of a range in rising order; those that touch are one. Without parts there is no memory.
#[derive(Debug)]
pub(super) struct Packed {
    index: Index,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Index {
    Few { parts: [Part; FEW], count: usize },
    Many(Vec<Part>),
}

impl Default for Packed {
    fn default() -> Self {
        Self {
            index: Index::Few {
                parts: [Part::default(); FEW],
                count: 0,
            },
            bytes: Vec::new(),
        }
    }
}

impl Packed {
    /// Adds a part behind all others.
    ///
    /// # Panics
    /// Where it starts before the end of the last one.
    pub(super) fn push(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = self
            .parts()
            .last()
            .map(|last| last.at + (self.bytes.len() - last.from));
        assert!(end.is_none_or(|end| end <= at), "parts rise");
        if end != Some(at) {
            let from = self.bytes.len();
            self.index.push(Part { at, from });
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(bytes.len().max(FEW_BYTES));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes of `at..at + len` where they are inside one part.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        let number = self.starts_up_to(at).checked_sub(1)?;
        let (start, part) = self.part(number)?;
        part.get(at - start..)?.get(..len)
    }

    /// Shows the parts that overlap `at..end`, cut to it.
    pub(super) fn each(&self, at: usize, end: usize, mut show: impl FnMut(usize, &[u8])) {
        let first = self.starts_up_to(at).saturating_sub(1);
        for (start, part) in (first..).map_while(|number| self.part(number)) {
            if start >= end {
                break;
            }
            super::show_cut(start, part, at, end, &mut show);
        }
    }

    fn parts(&self) -> &[Part] {
        match &self.index {
            Index::Few { parts, count } => &parts[..*count],
            Index::Many(parts) => parts,
        }
    }

    /// The number of parts that start at `at` or before.
    fn starts_up_to(&self, at: usize) -> usize {
        self.parts().partition_point(|part| part.at <= at)
    }

    fn part(&self, number: usize) -> Option<(usize, &[u8])> {
        let parts = self.parts();
        let part = parts.get(number)?;
        let to = parts.get(number + 1).map_or(self.bytes.len(), |next| next.from);
        Some((part.at, &self.bytes[part.from..to]))
    }
}

impl Index {
    fn push(&mut self, part: Part) {
        match self {
            Index::Few { parts, count } if *count < FEW => {
                parts[*count] = part;
                *count += 1;
            }
            Index::Few { parts, .. } => {
                let mut many = Vec::with_capacity(4 * FEW);
                many.extend_from_slice(parts);
                many.push(part);
                *self = Index::Many(many);
            }
            Index::Many(parts) => parts.push(part),
        }
    }
}
