//! What a superblock says of a store of objects beside what it says of any store.

use crate::layout::LayoutName;
use pumice_blocks::BudgetLevel;
use pumice_blocks::superblock::{OWN_BYTES, StoreId};
use pumice_index::IndexKind;
use pumice_record::codec::Fields;

/// A store of objects, and the version of its formats.
pub const STORE: StoreId = StoreId { kind: 1, format: 4 };

/// The settings that blocks and mappings were written with.
///
/// | offset | size | field       | meaning                          |
/// |-------:|-----:|-------------|----------------------------------|
/// |      0 |    8 | `hash_seed` | seed of the key hash             |
/// |      8 |    2 | `layout`    | 1 = fifo, 2 = sipq, 3 = ripq, 4 = clock |
/// |     10 |    1 | `index`     | 0 = full, 1 = cascade            |
/// |     11 |    1 | zero        |                                  |
/// |     12 |    4 | `budget_at` | of [`BudgetLevel`]               |
/// |     16 |    8 | `budget`    | of the same, signed              |
/// |     24 |   40 | zero        |                                  |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Seed of the key hash; random at format time.
    pub hash_seed: u64,
    /// How objects are arranged.
    pub layout: LayoutName,
    /// Where mappings are.
    pub index: IndexKind,
    /// What the write budget had left.
    pub budget: BudgetLevel,
}

impl Settings {
    /// Where the budget's level is.
    pub(crate) const BUDGET: usize = 12;

    /// As the superblock has them.
    pub fn encode(&self) -> [u8; OWN_BYTES] {
        let mut out = [0; OWN_BYTES];
        out[..8].copy_from_slice(&self.hash_seed.to_le_bytes());
        out[8..10].copy_from_slice(&(self.layout as u16).to_le_bytes());
        out[10] = self.index as u8;
        self.budget.put(&mut out, Self::BUDGET);
        out
    }

    /// Reads them; `None` where they cannot be.
    pub fn decode(bytes: &[u8; OWN_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (hash_seed, layout, index, zero) = (fields.u64()?, fields.u16()?, fields.u8()?, fields.u8()?);
        let settings = Self {
            hash_seed,
            layout: LayoutName::from_number(layout)?,
            index: IndexKind::from_number(index)?,
            budget: BudgetLevel::get(bytes, Self::BUDGET),
        };
        let is_zero = zero == 0 && bytes[24..].iter().all(|byte| *byte == 0);
        is_zero.then_some(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nonsense_is_not() {
        for layout in LayoutName::ALL {
            for index in IndexKind::ALL {
                let settings = Settings {
                    hash_seed: 0x0102_0304_0506_0708,
                    layout,
                    index,
                    budget: BudgetLevel {
                        bytes: -0x1112_1314_1516_1718,
                        at_secs: 0x2122_2324,
                    },
                };
                let bytes = settings.encode();
                assert_eq!(
                    bytes[11..25],
                    [
                        0, 0x24, 0x23, 0x22, 0x21, 0xE8, 0xE8, 0xE9, 0xEA, 0xEB, 0xEC, 0xED, 0xEE, 0
                    ]
                );
                assert_eq!(Settings::decode(&bytes), Some(settings));
                for (at, byte) in [(8, 0xFF), (9, 1), (10, 0xFF), (11, 1), (24, 1), (63, 1)] {
                    let mut bad = bytes;
                    bad[at] = byte;
                    assert_eq!(Settings::decode(&bad), None, "byte {at}");
                }
            }
        }
    }
}
