//! Sets that a client would not have made, had its get hit.

use crate::accesses::Access;
use crate::rules::OpsMode;
use std::collections::{HashMap, VecDeque};

/// Keys that are remembered: a client sets soon what it did not find.
const KEYS_MAX: usize = 64 << 10;

/// Keys of gets that missed when they were recorded and hit in the replay. Under look-aside the next set of such a key is what the client did about
/// its miss. Memory: at most 64 Ki keys.
#[derive(Default)]
pub(crate) struct Spared {
    is_on: bool,
    /// With the number of the note.
    keys: HashMap<u64, u64>,
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
        self.keys.insert(get.key, self.notes);
        self.order.push_back((get.key, self.notes));
        if self.order.len() > KEYS_MAX
            && let Some((key, note)) = self.order.pop_front()
            && self.keys.get(&key) == Some(&note)
        {
            self.keys.remove(&key);
        }
    }

    /// Whether a set is left out.
    pub(crate) fn takes(&mut self, set: &Access) -> bool {
        self.is_on && self.keys.remove(&set.key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_trace::Op;

    fn access(key: u64, fills: bool) -> Access {
        Access {
            nanos: 0,
            key,
            size: 1,
            object: 0,
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
}
