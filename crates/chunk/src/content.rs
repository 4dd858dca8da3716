//! Contents: fingerprint and compression.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Bytes of a fingerprint.
pub const FINGERPRINT_BYTES: usize = 20;
/// Compression must save one byte of so many, else decompression at each read costs more than it saves.
const SAVED_MIN: usize = 16;

/// The fingerprint of a content: the first 160 bits of its BLAKE3 hash, the first 32 of them XORed with the byte of the chunk at which it
/// begins. Two contents with the same fingerprint are taken for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

impl Fingerprint {
    /// The fingerprint of `bytes`, which begin at byte `start` of their chunk.
    pub fn of(start: u32, bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        let (first, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
        let mut fingerprint = *first;
        for (byte, of_start) in fingerprint.iter_mut().zip(start.to_le_bytes()) {
            *byte ^= of_start;
        }
        Self(fingerprint)
    }

    /// The first 64 bits: the hash for the FP-index.
    pub fn hash(&self) -> u64 {
        let (first, _) = self.0.split_first_chunk().expect("20 bytes");
        u64::from_le_bytes(*first)
    }
}

/// Coding of a content on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Coding {
    /// Not compressed.
    Plain = 0,
    /// One LZ4 block.
    Lz4 = 1,
}

impl Coding {
    /// The coding with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Plain),
            1 => Some(Self::Lz4),
            _ => None,
        }
    }
}

/// Compresses a content into `scratch`. Returns the content itself if that saves less than a sixteenth.
pub fn compress<'a>(bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> (Coding, &'a [u8]) {
    scratch.resize(get_maximum_output_size(bytes.len()), 0);
    match compress_into(bytes, scratch) {
        Ok(len) if len <= bytes.len() - bytes.len().div_ceil(SAVED_MIN) => (Coding::Lz4, &scratch[..len]),
        _ => (Coding::Plain, bytes),
    }
}

/// Decompresses the `stored` bytes of a content of `len` bytes; `None` if they are damaged. The caller bounds `len`.
pub fn decompress(coding: Coding, stored: &[u8], len: usize) -> Option<Vec<u8>> {
    match coding {
        Coding::Plain => (stored.len() == len).then(|| stored.to_vec()),
        Coding::Lz4 => {
            let mut bytes = vec![0; len];
            let written = decompress_into(stored, &mut bytes).ok()?;
            (written == len).then_some(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use pumice_world::Random;

    proptest! {
        #[test]
        fn any_content_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..5_000), period in 1usize..600) {
            let periodic: Vec<u8> = bytes.iter().cycle().take(bytes.len() * period % 40_000).copied().collect();
            for bytes in [bytes, periodic] {
                let mut scratch = Vec::new();
                let (coding, stored) = compress(&bytes, &mut scratch);
                prop_assert!(stored.len() <= bytes.len());
                prop_assert_eq!(decompress(coding, stored, bytes.len()), Some(bytes));
            }
        }

        #[test]
        fn damaged_contents_are_refused_or_have_the_length(stored in prop::collection::vec(any::<u8>(), 0..500), len in 0usize..70_000) {
            let bytes = decompress(Coding::Lz4, &stored, len);
            prop_assert!(bytes.is_none_or(|bytes| bytes.len() == len));
        }
    }

    #[test]
    fn what_does_not_become_shorter_stays_as_it_is() {
        let mut random = Random(3);
        let noise: Vec<u8> = (0..4_096).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let mut scratch = Vec::new();
        assert_eq!(compress(&noise, &mut scratch), (Coding::Plain, &noise[..]));
        // Three quarters noise, the rest zero.
        let mut half = noise.clone();
        half[3 * noise.len() / 4..].fill(0);
        let (coding, stored) = compress(&half, &mut scratch);
        assert_eq!(coding, Coding::Lz4);
        assert!(stored.len() < noise.len() * 4 / 5);
        assert_eq!(compress(&[], &mut scratch).1.len(), 0);
    }

    #[test]
    fn a_fingerprint_is_of_the_bytes_and_of_where_they_begin() {
        assert_ne!(Fingerprint::of(0, b"content"), Fingerprint::of(0, b"Content"));
        // BLAKE3 of no bytes, as its authors give it: formats depend on it.
        let mut expected = [
            0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49,
            0x9b, 0xcb, 0x25, 0xc9,
        ];
        assert_eq!(Fingerprint::of(0, b"").0, expected);
        expected[1] ^= 2;
        assert_eq!(Fingerprint::of(512, b"").0, expected);
    }
}
