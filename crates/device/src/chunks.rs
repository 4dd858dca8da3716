//! Bytes by 64-bit offset, kept in chunks that exist only where something was written.

use std::collections::HashMap;

/// Size of a chunk, in bytes: small enough that a few scattered sectors of a huge device stay cheap.
const CHUNK_BYTES: usize = 64 * 1024;

/// A sparse array of bytes; what was never written reads as zeros.
#[derive(Debug, Default, Clone)]
pub(crate) struct ChunkMap {
    chunks: HashMap<u64, Box<[u8]>>,
}

impl ChunkMap {
    /// Fills `out` with the bytes at `offset`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for_each_chunk(offset, out.len(), |chunk, within, at, len| {
            let to = &mut out[at..at + len];
            match self.chunks.get(&chunk) {
                Some(bytes) => to.copy_from_slice(&bytes[within..within + len]),
                None => to.fill(0),
            }
        });
    }

    /// Puts `bytes` at `offset`.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_each_chunk(offset, bytes.len(), |chunk, within, at, len| {
            let to = self
                .chunks
                .entry(chunk)
                .or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
            to[within..within + len].copy_from_slice(&bytes[at..at + len]);
        });
    }

    /// Memory held, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES as u64
    }
}

/// Calls `each(chunk, offset in chunk, offset in range, length)` for the chunks that a range touches. The caller has
/// checked that the range does not overflow.
fn for_each_chunk(offset: u64, len: usize, mut each: impl FnMut(u64, usize, usize, usize)) {
    let mut at = 0;
    while at < len {
        let position = offset + at as u64;
        let within = (position % CHUNK_BYTES as u64) as usize;
        let part = (CHUNK_BYTES - within).min(len - at);
        each(position / CHUNK_BYTES as u64, within, at, part);
        at += part;
    }
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
