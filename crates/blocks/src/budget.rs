//! What a write budget had left, in a superblock.

use crate::geometry::LOG_RECORD_BYTES;
use crate::superblock::OWN_BYTES;
use pumice_memory::SECTOR_BYTES;

/// Four superblocks, charged to each checkpoint in advance: its own, and those that the next start writes, or that drop the older checkpoint.
const CHARGED_BYTES: u64 = 4 * SECTOR_BYTES as u64;

/// What a write budget had left when the newest checkpoint was finished, all that was sent until then taken out.
///
/// | offset | size | field   |
/// |-------:|-----:|---------|
/// |      0 |    4 | `at_secs` |
/// |      4 |    8 | `bytes`, signed |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetLevel {
    /// Bytes; below 0 where it was overdrawn.
    pub bytes: i64,
    /// A moment from which on more has flowed in, in Unix seconds; 0: there was no budget.
    pub at_secs: u32,
}

impl BudgetLevel {
    /// Reads it from the owner's bytes of a superblock.
    pub fn get(own: &[u8; OWN_BYTES], at: usize) -> Self {
        let at_secs = own[at..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let bytes = own[at + 4..].first_chunk();
        Self {
            bytes: bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes)),
            at_secs,
        }
    }

    /// Writes it there.
    pub fn put(self, own: &mut [u8; OWN_BYTES], at: usize) {
        own[at..][..4].copy_from_slice(&self.at_secs.to_le_bytes());
        own[at + 4..][..8].copy_from_slice(&self.bytes.to_le_bytes());
    }

    /// The level to store in a checkpoint's superblock: superblocks are charged in advance.
    pub fn at_checkpoint(self) -> Self {
        self.less(CHARGED_BYTES)
    }

    /// For a start after a crash: the level to write, and the bytes that may have been sent since the newest checkpoint without asking the
    /// budget. Those are the records found in the log, and one checkpoint that was not finished. The level is charged for the checkpoint alone:
    /// if this start crashes before its own checkpoint, the next finds the records again, and is charged for one more checkpoint.
    pub fn after_crash(self, checkpoint_len: u64, log_records: u64) -> (Self, u64) {
        let checkpoint = checkpoint_len + CHARGED_BYTES;
        (self.less(checkpoint), checkpoint + log_records * LOG_RECORD_BYTES)
    }

    /// With so many bytes less, where there was a budget.
    fn less(self, bytes: u64) -> Self {
        match self.at_secs {
            0 => self,
            at_secs => Self {
                bytes: self.bytes.saturating_sub_unsigned(bytes),
                at_secs,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_owed_where_there_was_a_budget() {
        let level = BudgetLevel {
            bytes: -5,
            at_secs: 7,
        };
        let (charged, unpaid) = level.after_crash(1_000, 3);
        assert_eq!(unpaid, 1_000 + 4 * 4_096 + 3 * 32);
        assert_eq!((charged.bytes, charged.at_secs), (-5 - 1_000 - 4 * 4_096, 7));
        assert_eq!(level.at_checkpoint().bytes, -5 - 4 * 4_096);
        let none = BudgetLevel::default();
        assert_eq!((none.after_crash(1_000, 3).0, none.at_checkpoint()), (none, none));
        let least = BudgetLevel {
            bytes: i64::MIN,
            ..level
        };
        assert_eq!(least.after_crash(u64::MAX >> 1, 0).0, least);
        let mut own = [0; OWN_BYTES];
        charged.put(&mut own, 52);
        assert_eq!(BudgetLevel::get(&own, 52), charged);
    }
}
