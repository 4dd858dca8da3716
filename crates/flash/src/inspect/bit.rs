//! Which bit is wrong, where it is one.
//!
//! A CRC is linear: what a flipped bit does to it depends on the bit's place alone, and CRC-32C has another answer for each bit of
//! anything shorter than 256 MiB. So a wrong checksum that one bit explains names that bit. This tells rot from a torn write, which
//! changes whole sectors.

/// CRC-32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// One bit that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flip {
    /// Of the bytes that the checksum covers.
    Covered { byte: usize, bit: u32 },
    /// Of the checksum itself.
    Checksum { bit: u32 },
}

/// The bit of `len` bytes, or of their checksum, that explains the difference between the checksums; `None` where no single one does.
/// O(`len`).
pub(super) fn flipped_bit(len: usize, stored: u32, computed: u32) -> Option<Flip> {
    let difference = stored ^ computed;
    if difference.is_power_of_two() {
        return Some(Flip::Checksum {
            bit: difference.trailing_zeros(),
        });
    }
    // Of the last bit; and each bit before is one step more.
    let mut of_bit = POLYNOMIAL;
    for byte in (0..len).rev() {
        for bit in (0..8).rev() {
            if of_bit == difference {
                return Some(Flip::Covered { byte, bit });
            }
            of_bit = of_bit >> 1 ^ if of_bit & 1 == 1 { POLYNOMIAL } else { 0 };
        }
    }
    None
}

/// Where on the device a bit is, in words. `place` says where a covered byte is, `checksum` where the checksum is.
pub(super) fn say(flip: Flip, checksum: u64, place: impl Fn(usize) -> u64) -> String {
    let (byte, bit) = match flip {
        Flip::Covered { byte, bit } => (place(byte), bit),
        Flip::Checksum { bit } => (checksum + u64::from(bit / 8), bit % 8),
    };
    format!("bit {bit} of byte {byte} is wrong")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::checksum;

    #[test]
    fn every_flipped_bit_is_found_and_two_are_not_taken_for_one() {
        let bytes: Vec<u8> = (0..97u8).map(|n| n.wrapping_mul(37)).collect();
        let good = checksum(7, &[&bytes]);
        assert_eq!(flipped_bit(bytes.len(), good, good), None);
        for at in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[at / 8] ^= 1 << (at % 8);
            let (byte, bit) = (at / 8, (at % 8) as u32);
            let found = flipped_bit(bytes.len(), good, checksum(7, &[&bad]));
            assert_eq!(found, Some(Flip::Covered { byte, bit }));
            bad[(at / 8 + 1) % 97] ^= 4;
            assert_eq!(flipped_bit(bytes.len(), good, checksum(7, &[&bad])), None);
        }
        for bit in 0..32 {
            let found = flipped_bit(bytes.len(), good ^ 1 << bit, good);
            assert_eq!(found, Some(Flip::Checksum { bit }));
        }
    }
}
