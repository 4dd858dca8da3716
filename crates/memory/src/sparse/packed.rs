//! Parts that do not change any more, in one piece of memory.

use std::iter::successors;

/// Parts of a range of less than 4 GiB; those that touch are one.
///
/// ```text
/// | number of parts | per part: its offset, where its bytes start in "bytes" | bytes |
///   4 bytes           4 + 4 bytes
/// ```
///
/// A part's bytes reach to where the next one's start. Without parts there is no memory.
#[derive(Debug, Default)]
pub(super) struct Packed {
    memory: Box<[u8]>,
}

const COUNT_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

impl Packed {
    /// Packs the parts that `visit` shows, which come in rising order and do not overlap. It is called twice and must
    /// show the same parts.
    pub(super) fn new(visit: impl Fn(&mut dyn FnMut(usize, &[u8]))) -> Self {
        let (mut count, mut len, mut last_end) = (0, 0, None);
        visit(&mut |at, bytes| {
            assert!(last_end.is_none_or(|end| end <= at), "parts rise");
            count += usize::from(last_end != Some(at));
            len += bytes.len();
            last_end = Some(at + bytes.len());
        });
        if count == 0 {
            return Self::default();
        }
        let index_end = COUNT_BYTES + count * ENTRY_BYTES;
        let mut memory = vec![0; index_end + len].into_boxed_slice();
        memory[..COUNT_BYTES].copy_from_slice(&narrow(count).to_le_bytes());
        let (mut entry, mut from, mut last_end) = (COUNT_BYTES, 0, None);
        visit(&mut |at, bytes| {
            if last_end != Some(at) {
                memory[entry..entry + 4].copy_from_slice(&narrow(at).to_le_bytes());
                memory[entry + 4..entry + 8].copy_from_slice(&narrow(from).to_le_bytes());
                entry += ENTRY_BYTES;
            }
            memory[index_end + from..][..bytes.len()].copy_from_slice(bytes);
            from += bytes.len();
            last_end = Some(at + bytes.len());
        });
        Self { memory }
    }

    /// The bytes of `at..at + len` where they are inside one part.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        let view = self.view()?;
        let (start, part) = view.part(view.starts_up_to(at).checked_sub(1)?)?;
        part.get(at - start..)?.get(..len)
    }

    /// Shows the parts that overlap `at..end`, cut to it.
    pub(super) fn each(&self, at: usize, end: usize, mut show: impl FnMut(usize, &[u8])) {
        let Some(view) = self.view() else { return };
        let first = view.starts_up_to(at).saturating_sub(1);
        for (start, part) in
            successors(Some(first), |number| Some(number + 1)).map_while(|number| view.part(number))
        {
            if start >= end {
                break;
            }
            super::show_cut(start, part, at, end, &mut show);
        }
    }

    fn view(&self) -> Option<View<'_>> {
        let (count, rest) = self.memory.split_first_chunk()?;
        let (index, bytes) = rest.split_at(u32::from_le_bytes(*count) as usize * ENTRY_BYTES);
        Some(View {
            index: index.as_chunks().0,
            bytes,
        })
    }
}

struct View<'a> {
    index: &'a [[u8; ENTRY_BYTES]],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The number of parts that start at `at` or before.
    fn starts_up_to(&self, at: usize) -> usize {
        self.index.partition_point(|entry| fields(entry).0 <= at)
    }

    fn part(&self, number: usize) -> Option<(usize, &'a [u8])> {
        let (start, from) = fields(self.index.get(number)?);
        let to = self
            .index
            .get(number + 1)
            .map_or(self.bytes.len(), |next| fields(next).1);
        Some((start, &self.bytes[from..to]))
    }
}

fn fields(entry: &[u8; ENTRY_BYTES]) -> (usize, usize) {
    let both = u64::from_le_bytes(*entry);
    (both as u32 as usize, (both >> 32) as usize)
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).expect("packed parts are in a range of less than 4 GiB")
}
