//! Bytes by 64-bit offset, kept in chunks that exist only where something was written.

use std::collections::HashMap;

/// Size of a chunk, in bytes: small enough that a few scattered sectors of a huge device stay cheap. A position in it has 16 bits.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

/// A sparse array of bytes; what was never written reads as zeros.
#[derive(Debug, Default, Clone)]
pub struct ChunkMap {
    chunks: HashMap<usize, Box<[u8]>>,
}

impl ChunkMap {
    /// Fills `out` with the bytes at `offset`.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for span in spans(offset, out.len()) {
            let to = &mut out[span.at..][..span.len];
            match self.chunks.get(&span.chunk) {
                Some(bytes) => to.copy_from_slice(&bytes[span.within..][..span.len]),
                None => to.fill(0),
            }
        }
    }

    /// Puts `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for span in spans(offset, bytes.len()) {
            let to = self.chunks.entry(span.chunk);
            let to = to.or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            to[span.within..][..span.len].copy_from_slice(&bytes[span.at..][..span.len]);
        }
    }

    /// Memory held, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES as u64
    }
}

/// What a range has in one chunk.
pub(crate) struct Span {
    pub(crate) chunk: usize,
    /// Where it starts in the chunk.
    pub(crate) within: usize,
    /// Where it starts in the range.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Cuts a range at the borders of chunks. The caller has checked that it does not overflow.
pub(crate) fn spans(offset: u64, len: usize) -> impl Iterator<Item = Span> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let position = offset + at as u64;
        let within = (position % CHUNK_BYTES as u64) as usize;
        let span = Span {
            chunk: usize::try_from(position / CHUNK_BYTES as u64)
                .expect("an offset of 64 bits in chunks of 16"),
            within,
            at,
            len: (CHUNK_BYTES - within).min(len - at),
        };
        at += span.len;
        (span.len > 0).then_some(span)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_across_chunks_is_read_back_and_its_surroundings_are_zero() {
        let mut map = ChunkMap::default();
        let offset = (3 << 40) - 5;
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 2).map(|i| (i % 251) as u8 + 1).collect();
        map.write(offset, &bytes);
        let mut out = vec![9; bytes.len() + 2];
        map.read(offset - 1, &mut out);
        assert_eq!(out[0], 0);
        assert_eq!(out[1..=bytes.len()], bytes[..]);
        assert_eq!(out[bytes.len() + 1], 0);
        assert_eq!(map.resident_bytes(), 3 * CHUNK_BYTES as u64);
    }
}
