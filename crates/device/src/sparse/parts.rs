//! The real parts of a chunk of a simulated device, in little memory.
//!
//! What is real there are the headers of records and tables of them, and one header, or one row, is much like another. So only
//! the words of 32 bits are kept in which a part differs: a short part from the first one, the rows of a long part from its first
//! row. It knows nothing of what the words mean.

/// Words of the longest short part: its mask is half a word.
const SHORT_WORDS: usize = 16;
/// Words of the longest row of a long part.
const ROW_WORDS_MAX: usize = 16;
/// Words at the start of a long part by which the length of its rows is told.
const SAMPLE_WORDS: usize = 6 * ROW_WORDS_MAX;

/// The parts, never none. In words:
///
/// ```text
/// | number of parts | per part: its offset, where its data starts in "data" | data |
///                              16 bits   16 bits
///
/// data of a part of up to 16 words: | length - 1, mask          | words in the mask |
/// data of a longer one:             | length - 1, words per row | masks | words in the masks |
///                                     16 bits     16 bits
/// ```
///
/// A mask has a bit for each word that is not zero after the exclusive or with the word that it is compared with.
#[derive(Debug)]
pub(super) struct Parts {
    words: Box<[u32]>,
}

impl Parts {
    /// Shows the parts that overlap `at..end`, cut to it, in rising order.
    pub(super) fn each(&self, at: usize, end: usize, mut show: impl FnMut(usize, &[u8])) {
        let count = self.words[0] as usize;
        let (index, data) = self.words[1..].split_at(count);
        let first = index.partition_point(|entry| offset_of(*entry) <= at);
        let mut base = [0; SHORT_WORDS];
        if len_of(data[0]) <= 4 * SHORT_WORDS {
            add_short(&mut base, data);
        }
        for entry in &index[first.saturating_sub(1)..] {
            let start = offset_of(*entry);
            if start >= end {
                break;
            }
            let part = &data[data_of(*entry)..];
            let len = len_of(part[0]);
            let from = at.saturating_sub(start).min(len);
            let to = (end - start).min(len);
            if from >= to {
                continue;
            }
            if len <= 4 * SHORT_WORDS {
                let mut words = base;
                if data_of(*entry) > 0 {
                    add_short(&mut words, part);
                }
                let bytes = words.map(u32::to_le_bytes);
                show(start + from, &bytes.as_flattened()[from..to]);
            } else {
                let first_word = from / 4;
                let bytes = long_words(part, first_word, to.div_ceil(4));
                show(start + from, &bytes[from - 4 * first_word..to - 4 * first_word]);
            }
        }
    }

    /// Memory held, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.words)
    }
}

fn offset_of(entry: u32) -> usize {
    (entry & 0xFFFF) as usize
}

fn data_of(entry: u32) -> usize {
    (entry >> 16) as usize
}

fn len_of(head: u32) -> usize {
    (head & 0xFFFF) as usize + 1
}

/// Adds what a short part keeps.
#[inline]
fn add_short(words: &mut [u32; SHORT_WORDS], part: &[u32]) {
    let mut mask = part[0] >> 16;
    for kept in &part[1..] {
        if mask == 0 {
            break;
        }
        words[mask.trailing_zeros() as usize % SHORT_WORDS] ^= kept;
        mask &= mask - 1;
    }
}

/// The bytes of the words `from..to` of a long part.
fn long_words(part: &[u32], from: usize, to: usize) -> Vec<u8> {
    let row = (part[0] >> 16) as usize;
    let count = len_of(part[0]).div_ceil(4);
    let (masks, kept) = part[1..].split_at(count.div_ceil(32));
    let mut first_row = [0; ROW_WORDS_MAX];
    unmask(masks, kept, 0, row, |at, word| first_row[at] = word);
    let mut bytes = Vec::with_capacity(4 * (to - from));
    // The column of the word that is next.
    let mut column = if row == 0 { 0 } else { from % row };
    unmask(masks, kept, from, to, |at, word| {
        let above = if at < row { 0 } else { first_row[column] };
        bytes.extend_from_slice(&(word ^ above).to_le_bytes());
        column = if column + 1 >= row { 0 } else { column + 1 };
    });
    bytes
}

/// Calls `show` with the words `from..to`, 0 for those that were not kept.
fn unmask(masks: &[u32], kept: &[u32], from: usize, to: usize, mut show: impl FnMut(usize, u32)) {
    let mut next: usize = masks[..from / 32]
        .iter()
        .map(|mask| mask.count_ones() as usize)
        .sum();
    if from < to {
        next += (masks[from / 32] & ((1 << (from % 32)) - 1)).count_ones() as usize;
    }
    for at in from..to {
        if masks[at / 32] >> (at % 32) & 1 == 0 {
            show(at, 0);
        } else {
            show(at, kept[next]);
            next += 1;
        }
    }
}

/// Makes [`Parts`]. One that is used again keeps its memory.
#[derive(Debug, Default)]
pub(super) struct PartsMaker {
    /// Where parts start in the chunk, and in `bytes`.
    starts: Vec<(usize, usize)>,
    bytes: Vec<u8>,
    index: Vec<u32>,
    data: Vec<u32>,
    words: Vec<u32>,
}

impl PartsMaker {
    /// Adds a part of at least one byte behind all others; parts that touch become one.
    pub(super) fn push(&mut self, at: usize, bytes: &[u8]) {
        let touches = self
            .starts
            .last()
            .is_some_and(|(start, from)| start + (self.bytes.len() - from) == at);
        if !touches {
            self.starts.push((at, self.bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The parts since the last call, `None` if there were none.
    pub(super) fn finish(&mut self) -> Option<Parts> {
        if self.starts.is_empty() {
            return None;
        }
        self.index.clear();
        self.data.clear();
        let mut base = [0; SHORT_WORDS];
        for (number, (at, from)) in self.starts.iter().enumerate() {
            let to = self
                .starts
                .get(number + 1)
                .map_or(self.bytes.len(), |next| next.1);
            let part = &self.bytes[*from..to];
            // The densest are single bytes with one in between: two words for every two bytes, which 16 bits can number.
            self.index.push(low_half(*at) | low_half(self.data.len()) << 16);
            self.words.clear();
            let (whole, rest) = part.as_chunks::<4>();
            self.words
                .extend(whole.iter().map(|word| u32::from_le_bytes(*word)));
            if !rest.is_empty() {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                self.words.push(u32::from_le_bytes(word));
            }
            if self.words.len() > SHORT_WORDS {
                push_long(&mut self.data, &self.words, part.len());
                continue;
            }
            push_short(&mut self.data, &self.words, part.len(), &base);
            if number == 0 {
                base[..self.words.len()].copy_from_slice(&self.words);
            }
        }
        let count = low_half(self.starts.len());
        let mut words = Vec::with_capacity(1 + self.index.len() + self.data.len());
        words.push(count);
        words.extend_from_slice(&self.index);
        words.extend_from_slice(&self.data);
        self.starts.clear();
        self.bytes.clear();
        Some(Parts {
            words: words.into_boxed_slice(),
        })
    }
}

fn low_half(number: usize) -> u32 {
    u32::from(u16::try_from(number).expect("numbers of a chunk have 16 bits"))
}

fn push_short(data: &mut Vec<u32>, words: &[u32], len: usize, base: &[u32; SHORT_WORDS]) {
    let head = data.len();
    let mut mask = 0;
    data.push(0);
    // Words beyond the end are the base's when they are read, and cut off then.
    for (at, (word, base)) in words.iter().zip(base).enumerate() {
        if word != base {
            mask |= 1 << at;
            data.push(word ^ base);
        }
    }
    data[head] = low_half(len - 1) | mask << 16;
}

fn push_long(data: &mut Vec<u32>, words: &[u32], len: usize) {
    let row = row_len(words);
    data.push(low_half(len - 1) | low_half(row) << 16);
    let masks = data.len();
    data.resize(masks + words.len().div_ceil(32), 0);
    let mut column = 0;
    for (at, word) in words.iter().enumerate() {
        let above = if at < row || row == 0 { 0 } else { words[column] };
        if *word != above {
            data[masks + at / 32] |= 1 << (at % 32);
            data.push(word ^ above);
        }
        column = if column + 1 >= row { 0 } else { column + 1 };
    }
}

/// The distance at which most words at the start are equal; 0 if none are.
fn row_len(words: &[u32]) -> usize {
    let sample = &words[..words.len().min(SAMPLE_WORDS)];
    let equal = |row: usize| sample.iter().zip(&sample[row..]).filter(|(a, b)| a == b).count();
    let (most, row) = (1..=ROW_WORDS_MAX)
        .map(|row| (equal(row), std::cmp::Reverse(row)))
        .max()
        .unwrap_or_default();
    if most == 0 { 0 } else { row.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::CHUNK_BYTES;

    fn make(parts: &[(usize, Vec<u8>)]) -> Parts {
        let mut maker = PartsMaker::default();
        // What was made before must leave nothing behind.
        maker.push(3, b"earlier");
        maker.finish();
        parts.iter().for_each(|(at, part)| maker.push(*at, part));
        maker.finish().expect("parts")
    }

    fn seen(parts: &Parts, at: usize, end: usize) -> Vec<Option<u8>> {
        let mut bytes = vec![None; end - at];
        parts.each(at, end, |start, part| {
            for (to, byte) in bytes[start - at..][..part.len()].iter_mut().zip(part) {
                assert_eq!(to.replace(*byte), None, "shown twice");
            }
        });
        bytes
    }

    #[test]
    fn parts_of_any_length_and_likeness_come_back_in_every_cut() {
        let mut numbers = pumice_world::Random(3);
        let mut random = |below: usize| numbers.below(below as u64) as usize;
        for round in 0..300 {
            let mut model = vec![None; CHUNK_BYTES];
            let mut parts = Vec::new();
            let mut at = random(200);
            let row = 1 + random(70);
            while at < CHUNK_BYTES && parts.len() < 40 {
                let len = 1 + random([5, 64, 70, 300, 20_000][round % 5]);
                let len = len.min(CHUNK_BYTES - at);
                // Bytes that mostly repeat from row to row and from part to part.
                let part: Vec<u8> = (0..len)
                    .map(|i| if random(4) == 0 { random(256) } else { i % row } as u8)
                    .collect();
                for (to, byte) in model[at..].iter_mut().zip(&part) {
                    *to = Some(*byte);
                }
                parts.push((at, part));
                at += len + random(3) * random(1000);
            }
            let made = make(&parts);
            assert_eq!(seen(&made, 0, CHUNK_BYTES), model);
            for _ in 0..50 {
                let from = random(CHUNK_BYTES);
                let to = from + random(CHUNK_BYTES - from + 1);
                assert_eq!(seen(&made, from, to), model[from..to], "{from}..{to}");
            }
        }
    }

    #[test]
    fn the_most_parts_and_the_longest_find_room() {
        let bytes: Vec<_> = (0..CHUNK_BYTES / 2).map(|i| (2 * i, vec![i as u8])).collect();
        let made = make(&bytes);
        assert_eq!(
            seen(&made, CHUNK_BYTES - 4, CHUNK_BYTES),
            [Some(254), None, Some(255), None]
        );
        let whole: Vec<u8> = (0..CHUNK_BYTES).map(|i| ((i * i) >> 7) as u8).collect();
        let made = make(&[(0, whole.clone())]);
        assert_eq!(
            seen(&made, 0, CHUNK_BYTES),
            whole.iter().copied().map(Some).collect::<Vec<_>>()
        );
        assert!(made.memory() <= CHUNK_BYTES / 32 * 33 + 16);
    }

    /// What a cache writes: headers in which a checksum, a counter and a key differ, and a table with a row for each.
    #[test]
    fn headers_and_rows_that_are_alike_take_half_of_their_bytes() {
        let mixed = |n: u64| (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        let mut headers = Vec::new();
        let mut table = Vec::new();
        for n in 0..100_u64 {
            let mut header = mixed(n)[..4].to_vec();
            header.extend_from_slice(&[0; 4]);
            header.extend_from_slice(&(77 << 40 | (1000 + n)).to_le_bytes());
            header.extend_from_slice(&[5; 20]);
            header.extend_from_slice(&mixed(n << 20));
            headers.push((n as usize * 600, header));
            table.extend_from_slice(&mixed(n << 21));
            table.extend_from_slice(&(77 << 40 | (1000 + n)).to_le_bytes());
            table.extend_from_slice(&(n as u32 * 600).to_le_bytes());
            table.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
        }
        let headers = make(&headers).memory();
        assert!(headers <= 100 * 24 + 60, "{headers} bytes for headers");
        let rows = make(&[(0, table)]).memory();
        assert!(rows <= 100 * 17 + 60, "{rows} bytes for rows");
    }
}
