//! Rot is told from a torn write: a single wrong bit explains its wrong checksum, and a torn write changes whole sectors.
//!
//! A CRC is linear: how a wrong bit changes it depends on the bit's place alone, and CRC-32C has another answer for each bit of
//! anything shorter than 256 MiB.

use pumice_record::codec::checksum;

/// CRC-32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The only bit that is wrong, of a checksum (0 to 31) or of the `len` bytes behind it, where the right checksum and the one that is
/// there have this difference; `None` where no single one is. O(`len`).
pub fn wrong_bit(len: usize, difference: u32) -> Option<usize> {
    if difference.is_power_of_two() {
        return Some(difference.trailing_zeros() as usize);
    }
    // Of the last bit; each bit before is one step more.
    let mut of_bit = POLYNOMIAL;
    (32..32 + 8 * len).rev().find(|_| {
        let is_this = of_bit == difference;
        of_bit = of_bit >> 1 ^ if of_bit & 1 == 1 { POLYNOMIAL } else { 0 };
        is_this
    })
}

/// What stood there before a single bit of `bytes` went wrong, which begin with their checksum; `None` where that did not happen.
pub fn mended(cache_id: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    mended_with(cache_id, &[], bytes)
}

/// The same, where `salt` enters the checksum before the bytes.
pub fn mended_with(cache_id: u64, salt: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let (stored, covered) = bytes.split_first_chunk()?;
    let difference = u32::from_le_bytes(*stored) ^ checksum(cache_id, &[salt, covered]);
    let bit = wrong_bit(covered.len(), difference)?;
    let mut mended = bytes.to_vec();
    mended[bit / 8] ^= 1 << (bit % 8);
    Some(mended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_bit_is_found_and_two_are_not_taken_for_one() {
        let covered: Vec<u8> = (0..97u8).map(|n| n.wrapping_mul(37)).collect();
        let good = [&checksum(7, &[&covered]).to_le_bytes()[..], &covered].concat();
        assert_eq!(mended(7, &good), None);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(mended(7, &bad).as_ref(), Some(&good), "bit {bit}");
            bad[(bit / 8 + 1) % 101] ^= 4;
            assert_eq!(mended(7, &bad), None, "bit {bit} and another");
        }
    }
}
