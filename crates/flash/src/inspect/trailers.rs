//! What the last bytes of a block are.

use super::bit::{Flip, flipped_bit, say};
use crate::codec::checksum;
use crate::footer::{TRAILER_BYTES, Trailer};

/// What stands where a trailer would.
pub(super) enum Tail {
    /// A trailer of this cache.
    Whole(Trailer),
    /// What was one. Where a single bit is wrong, with what it said.
    Damaged(Option<Trailer>, String),
    /// A trailer of another cache, or of this one before it was emptied.
    OtherCache(u64),
    /// No trailer.
    Nothing,
}

/// Looks at the last bytes of `block`, which stand at `offset`.
pub(super) fn examine(cache_id: u64, block: u32, bytes: &[u8; TRAILER_BYTES], offset: u64) -> Tail {
    if let Some(trailer) = Trailer::decode(cache_id, bytes) {
        return Tail::Whole(trailer);
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if let Some(flip) = flipped_bit(TRAILER_BYTES - 4, word(0), checksum(cache_id, &[&bytes[4..]])) {
        let mut mended = *bytes;
        match flip {
            Flip::Covered { byte, bit } => mended[4 + byte] ^= 1 << bit,
            Flip::Checksum { bit } => mended[(bit / 8) as usize] ^= 1 << (bit % 8),
        }
        if let Some(trailer) = Trailer::decode(cache_id, &mended) {
            let what = say(flip, offset, |byte| offset + 4 + byte as u64);
            return Tail::Damaged(Some(trailer), what);
        }
    }
    let owner = u64::from(word(24)) | u64::from(word(28)) << 32;
    if owner != cache_id && Trailer::decode(owner, bytes).is_some() {
        return Tail::OtherCache(owner);
    }
    // Zeros and values do not look like this by accident.
    let signs = [
        bytes[4..8] == *b"PMbk",
        word(8) == 1,
        word(12) == block,
        owner == cache_id,
    ];
    if signs.into_iter().filter(|sign| *sign).count() >= 3 {
        return Tail::Damaged(None, "its checksum is wrong".to_owned());
    }
    Tail::Nothing
}
