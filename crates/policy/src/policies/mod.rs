//! The policies there are, one file each; a new one adds its file and its line in [`POLICIES`].

mod fifo;
mod gdsf;
mod lfu;
mod slru;

use crate::priority::Policy;

type Build = fn() -> Box<dyn Policy>;

/// Every name on the command line, and what it stands for.
const POLICIES: &[(&str, Build)] = &[
    ("fifo", || Box::new(fifo::Fifo)),
    ("lru", || Box::new(slru::Slru::lru())),
    ("slru-1", || Box::new(slru::Slru::new(1))),
    ("slru-2", || Box::new(slru::Slru::new(2))),
    ("slru-3", || Box::new(slru::Slru::new(3))),
    ("slru-4", || Box::new(slru::Slru::new(4))),
    ("slru-5", || Box::new(slru::Slru::new(5))),
    ("slru-6", || Box::new(slru::Slru::new(6))),
    ("slru-7", || Box::new(slru::Slru::new(7))),
    ("slru-8", || Box::new(slru::Slru::new(8))),
    ("gdsf-1", || Box::new(gdsf::Gdsf::new(1))),
    ("gdsf-2", || Box::new(gdsf::Gdsf::new(2))),
    ("gdsf-3", || Box::new(gdsf::Gdsf::new(3))),
    ("gdsf-4", || Box::new(gdsf::Gdsf::new(4))),
    ("lfu", || Box::new(lfu::Lfu)),
];

/// The names of all policies.
pub const POLICY_NAMES: [&str; POLICIES.len()] = {
    let mut names = [""; POLICIES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = POLICIES[at].0;
        at += 1;
    }
    names
};

/// The policy of this name, one of [`POLICY_NAMES`].
pub fn policy_named(name: &str) -> Option<Box<dyn Policy>> {
    let (_, build) = POLICIES.iter().find(|(known, _)| *known == name)?;
    Some(build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::{Hit, Priority};

    #[test]
    fn every_policy_goes_by_its_name() {
        for name in POLICY_NAMES {
            assert_eq!(policy_named(name).unwrap().name(), name);
        }
        for unknown in ["", "slru", "slru-0", "slru-9", "slru-03", "gdsf", "LRU"] {
            assert!(policy_named(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn priorities_are_of_the_kind_that_is_announced() {
        for name in POLICY_NAMES {
            let policy = policy_named(name).unwrap();
            assert!((1..=4).contains(&policy.accesses_max()), "{name}");
            assert!((0.0..=1.0).contains(&policy.theta()), "{name}");
            // Slots of relative policies tell a first hit from later ones, and no more.
            assert!(policy.is_absolute() || policy.accesses_max() <= 3, "{name}");
            let is_absolute = |priority| match priority {
                Priority::Relative(position) => {
                    assert!((0.0..=1.0).contains(&position), "{name}: {position}");
                    false
                }
                Priority::Absolute(value) => {
                    assert!(value.is_finite() && value >= 7.0, "{name}: {value}");
                    true
                }
            };
            assert_eq!(
                is_absolute(policy.on_insert(5, 7.0)),
                policy.is_absolute(),
                "{name}"
            );
            let accesses = policy.accesses_max().min(2)..=policy.accesses_max();
            let positions = [0.001, 0.25, 0.5, 0.75, 1.0];
            for (position, accesses) in positions
                .into_iter()
                .flat_map(|position| accesses.clone().map(move |accesses| (position, accesses)))
            {
                let hit = Hit {
                    position,
                    accesses,
                    size: 5,
                    lowest: 7.0,
                };
                if let Some(priority) = policy.on_hit(&hit) {
                    assert_eq!(is_absolute(priority), policy.is_absolute(), "{name}");
                }
            }
        }
    }
}
