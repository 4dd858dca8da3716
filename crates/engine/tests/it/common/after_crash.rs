//! What a cache that was opened after a crash may hold, and how its life goes on.

use super::{Entry, Model, Random, Rig, Weights, given_meta, key, step};
use pumice_device::Device;
use std::ops::Range;

/// Takes numbered steps with keys below `keys`, until `is_over`.
pub fn live<D: Device + Clone>(
    rig: &Rig<D>,
    model: &mut Model,
    random: &mut Random,
    weights: &Weights,
    steps: Range<u64>,
    keys: u64,
    is_over: impl Fn() -> bool,
) {
    for n in steps {
        step(rig, model, random, weights, n, keys, false);
        if is_over() {
            return;
        }
    }
}

/// Reads every key below `keys`: the newest value or, of what the last step was to replace, the one before is legal, and nothing else.
/// What is there is what the model holds from then on; of what is missing `missing` tells it. Returns how many were there.
pub fn reconcile<D: Device + Clone>(
    rig: &Rig<D>,
    model: &mut Model,
    keys: u64,
    what: &str,
    missing: impl Fn(&mut Model, u64),
) -> u64 {
    let now = rig.clock_secs();
    let mut served = 0;
    for n in 0..keys {
        let Some(object) = rig.run(rig.cache.get(&rig.cx, &key(n))) else {
            missing(model, n);
            continue;
        };
        served += 1;
        let got = Entry {
            value: object.to_vec(),
            meta: given_meta(&object),
        };
        let is_live = |entry: &&Entry| entry.meta.expiry == 0 || entry.meta.expiry > now;
        let newest = model.live.get(&n).filter(is_live);
        let older = model.before.get(&n).and_then(Option::as_ref).filter(is_live);
        let head =
            |entry: &Entry| String::from_utf8_lossy(&entry.value[..entry.value.len().min(40)]).into_owned();
        assert!(
            Some(&got) == newest || Some(&got) == older,
            "{what}: key {n} came back as {:?}; newest {:?}, before {:?}",
            head(&got),
            newest.map(head),
            older.map(head),
        );
        model.live.insert(n, got);
    }
    served
}
