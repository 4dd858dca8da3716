//! What a simulated device does to a store.

use crate::{CrashPoint, FaultPlan};
use pumice_world::Random;

/// A healthy device: its operations end some time after they began.
pub fn calm() -> FaultPlan {
    FaultPlan {
        delay: true,
        ..FaultPlan::default()
    }
}

/// The same with a write cache, which a power cut empties.
pub fn volatile() -> FaultPlan {
    FaultPlan {
        volatile: true,
        ..calm()
    }
}

/// A device whose process ends at the `point`-th write or append from now on; the first is 1.
pub fn crash_at(point: u64) -> FaultPlan {
    FaultPlan {
        crash: Some(CrashPoint::WriteOrAppend(point)),
        ..calm()
    }
}

/// A probability: often none, else anything from seldom to often.
fn chance(random: &mut Random, most: f64) -> f64 {
    match random.below(5) {
        0 => most,
        1 => most / 4.0,
        2 => most / 20.0,
        _ => 0.0,
    }
}

/// All faults together but hangs and death; which of them there are, and how often, is drawn. Half of the plans end with a crash.
pub fn any_faults(random: &mut Random) -> FaultPlan {
    let crash = (random.below(2) == 0).then(|| CrashPoint::WriteOrAppend(1 + random.below(300)));
    FaultPlan {
        crash,
        lost_write: chance(random, 0.2),
        write_error: chance(random, 0.2),
        append_error: chance(random, 0.02),
        misdirected_write: chance(random, 0.2),
        no_space: chance(random, 0.1),
        bit_rot: chance(random, 0.2),
        log_bit_rot: chance(random, 0.05),
        read_error: chance(random, 0.2),
        delay: random.below(8) != 0,
        slow: chance(random, 0.3),
        ..FaultPlan::default()
    }
}
