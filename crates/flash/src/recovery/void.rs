//! What the log voids, in bounded memory.

use std::cmp::Reverse;

/// The most records that are held at a time: 4 MiB of them.
pub(crate) const VOID_RECORDS_MAX: usize = 1 << 18;
/// DRAM of one record.
pub(crate) const VOID_RECORD_BYTES: u64 = size_of::<(u64, u64)>() as u64;

/// The highest void version by identity (the bits of a hash that the index tells apart), for a range of identities.
///
/// Where the log has more than fit, the range shrinks from its upper end as records come in; who needs the rest reads
/// the log again for a table that starts where this one ends. A set replaces whatever has the same identity, so its
/// record voids all that has it.
pub(super) struct VoidTable {
    start: u64,
    end: Option<u64>,
    /// Sorted, and without doubles, once [`VoidTable::finish`] was called.
    records: Vec<(u64, u64)>,
    limit: usize,
}

impl VoidTable {
    /// An empty table of identities from `start` on. Room for `limit` records (at least 2) is taken at once.
    pub(super) fn new(start: u64, limit: usize) -> Self {
        Self {
            start,
            end: None,
            records: Vec::with_capacity(limit),
            limit,
        }
    }

    /// Whether an identity is in the range, which may still shrink before [`VoidTable::finish`].
    pub(super) fn covers(&self, identity: u64) -> bool {
        identity >= self.start && self.end.is_none_or(|end| identity < end)
    }

    /// Where the range ends, if something is beyond it.
    pub(super) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Notes that copies of `identity` below `version` are void.
    pub(super) fn add(&mut self, identity: u64, version: u64) {
        if self.records.len() == self.limit && self.covers(identity) {
            self.finish();
            if self.records.len() > self.limit / 2 {
                // Identities differ now, so the rest is not empty and the range shrinks to what stays.
                self.end = Some(self.records[self.limit / 2].0);
                self.records.truncate(self.limit / 2);
            }
        }
        if self.covers(identity) {
            self.records.push((identity, version));
        }
    }

    /// Makes the table ready to be asked.
    pub(super) fn finish(&mut self) {
        self.records
            .sort_unstable_by_key(|(identity, version)| (*identity, Reverse(*version)));
        self.records.dedup_by_key(|(identity, _)| *identity);
    }

    /// Whether a copy is void. The identity is in the range.
    pub(super) fn is_void(&self, identity: u64, version: u64) -> bool {
        self.records
            .binary_search_by_key(&identity, |(identity, _)| *identity)
            .is_ok_and(|at| version < self.records[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn tables_of_all_ranges_together_say_what_all_records_say() {
        for (limit, identities) in [(2, 50), (16, 1_000), (64, 60), (64, 5_000)] {
            let records: Vec<(u64, u64)> = (0..4_000u64)
                .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % identities)
                .zip((0..4_000).map(|n| n * 7 % 1_009))
                .collect();
            let mut plain: HashMap<u64, u64> = HashMap::new();
            for (identity, version) in &records {
                let highest = plain.entry(*identity).or_default();
                *highest = (*highest).max(*version);
            }
            let (mut start, mut seen, mut tables) = (0, 0, 0);
            loop {
                let mut table = VoidTable::new(start, limit);
                let room = table.records.capacity();
                records
                    .iter()
                    .for_each(|(identity, version)| table.add(*identity, *version));
                table.finish();
                assert_eq!(table.records.capacity(), room, "the table has grown");
                for (identity, version) in plain.iter().filter(|(identity, _)| table.covers(**identity)) {
                    seen += 1;
                    assert!(!table.is_void(*identity, *version));
                    assert!(*version == 0 || table.is_void(*identity, version - 1));
                }
                assert!(!table.is_void(identities + 1, 0));
                tables += 1;
                let Some(end) = table.end() else { break };
                assert!(end > start, "the range is empty");
                start = end;
            }
            assert_eq!(seen, plain.len(), "each identity is in one range");
            assert!(
                tables <= 1 + 2 * plain.len() / limit.min(plain.len()) * 2,
                "{tables} tables"
            );
        }
    }
}
