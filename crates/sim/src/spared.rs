//! Sets that a client would not have made, had its get hit.

use crate::accesses::Access;
use crate::rules::OpsMode;
use std::collections::{HashMap, VecDeque};

/// Keys that are remembered: a client sets soon what it did not find.
const KEYS_MAX: usize = 64 << 10;

/// And how long, of the trace's time.
const NANOS_MAX: u64 = 60_000_000_000;

/// Keys of gets that missed when they were recorded and hit in the replay. Under look-aside the next set of such a key is what the client did about
/// its miss, if it comes within a minute and the key is not deleted before. Memory: at most 64 Ki keys.
#[derive(Default)]
pub(crate) struct Spared {
    is_on: bool,
    /// With the number of the note, and the time of the get.
    keys: HashMap<u64, (u64, u64)>,
    /// All notes from the oldest on, those of keys that were set since too.
    order: VecDeque<(u64, u64)>,
    notes: u64,
}

impl Spared {
    /// For a replay in which operations are taken so.
    pub(crate) fn new(ops: OpsMode) -> Self {
        Self {
            is_on: ops == OpsMode::LookAside,
            ..Self::default()
        }
    }

    /// Notes a get that hit.
    pub(crate) fn note_hit(&mut self, get: &Access) {
        if !self.is_on || get.fills {
            return;
        }
        self.notes += 1;
        self.keys.insert(get.key, (self.notes, get.nanos));
        self.order.push_back((get.key, self.notes));
        if self.order.len() > KEYS_MAX
            && let Some((key, note)) = self.order.pop_front()
            && self.keys.get(&key).is_some_and(|(newest, _)| *newest == note)
        {
            self.keys.remove(&key);
        }
    }

    /// Whether a set is left out.
    pub(crate) fn takes(&mut self, set: &Access) -> bool {
        let time = self.keys.remove(&set.key).map(|(_, time)| time);
        time.is_some_and(|time| set.nanos.saturating_sub(time) <= NANOS_MAX)
    }

    /// Notes that a key is deleted: what sets it then is no answer to a get before.
    pub(crate) fn note_delete(&mut self, delete: &Access) {
        self.keys.remove(&delete.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_trace::Op;

    fn access(key: u64, fills: bool) -> Access {
        at(0, key, fills)
    }

    fn at(secs: u64, key: u64, fills: bool) -> Access {
        Access {
            key,
            size: 1,
            object: 0,
            nanos: secs * 1_000_000_000,
            op: Op::Get,
            fills,
        }
    }

    #[test]
    fn one_set_is_spared_for_a_get_that_missed_when_it_was_recorded() {
        let mut spared = Spared::new(OpsMode::LookAside);
        spared.note_hit(&access(1, false));
        spared.note_hit(&access(2, true));
        let mut takes = |key| spared.takes(&access(key, false));
        assert_eq!([takes(1), takes(1), takes(2)], [true, false, false]);
        for key in 0..=KEYS_MAX as u64 {
            spared.note_hit(&access(key, false));
        }
        assert!(!spared.takes(&access(0, false)) && spared.takes(&access(1, false)));
        assert_eq!((spared.keys.len(), spared.order.len()), (KEYS_MAX - 1, KEYS_MAX));
        let mut spared = Spared::new(OpsMode::AsRecorded);
        spared.note_hit(&access(1, false));
        assert!(!spared.takes(&access(1, false)));
    }

    #[test]
    fn a_set_after_a_delete_or_after_a_minute_is_not_spared() {
        let mut spared = Spared::new(OpsMode::LookAside);
        spared.note_hit(&access(1, false));
        spared.note_delete(&access(1, false));
        assert!(!spared.takes(&access(1, false)));
        for (secs, is_spared) in [(5, true), (65, true), (66, false), (0, true)] {
            spared.note_hit(&at(5, 1, false));
            assert_eq!(spared.takes(&at(secs, 1, false)), is_spared, "{secs}");
        }
    }
}
