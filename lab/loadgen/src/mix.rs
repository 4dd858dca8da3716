//! Mixes of operations.

use pumice_world::Random;
use std::fmt;
use std::str::FromStr;

/// What an operation does with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `get`.
    Get,
    /// `get`, and where that misses a `set` of the key.
    LookAside,
    /// `set`.
    Set,
    /// `delete`.
    Delete,
    /// `gets`, then `cas` of what was found. A miss ends it.
    ReadModifyWrite,
    /// One `get` of several keys.
    Scan,
    /// `set` of a key that has not been there before.
    Insert,
}

/// The names of actions in a mix.
const ACTIONS: [(&str, Action); 7] = [
    ("get", Action::Get),
    ("look-aside", Action::LookAside),
    ("set", Action::Set),
    ("delete", Action::Delete),
    ("rmw", Action::ReadModifyWrite),
    ("scan", Action::Scan),
    ("insert", Action::Insert),
];

/// How often each action is taken.
///
/// Named mixes:
///
/// | name | what |
/// |---|---|
/// | `get`, `set`, `delete`, `look-aside`, `rmw`, `scan` | that alone |
/// | `ycsb-a` | 50 % get, 50 % set |
/// | `ycsb-b` | 95 % get, 5 % set |
/// | `ycsb-c` | get |
/// | `ycsb-d` | 95 % get of the latest keys, 5 % insert |
/// | `ycsb-e` | 95 % scan, 5 % insert |
/// | `ycsb-f` | 50 % get, 50 % rmw |
/// | `trace` | what the trace says: get, set or delete |
///
/// Others are written `get:95,set:5` with any weights. The memcached protocol has no scan, so a scan is one `get` of 1
/// to 16 keys (uniform; the bound is a setting) whose numbers follow each other. `ycsb-d` reads with the Zipf
/// exponent of the key generator, from the newest key backwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    name: String,
    /// Upper ends in the range of 32-bit numbers, ascending.
    ends: Vec<(u64, Action)>,
    is_latest: bool,
}

impl Mix {
    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether keys are drawn by how lately they were inserted.
    pub fn is_latest(&self) -> bool {
        self.is_latest
    }

    /// Whether the mix takes this action.
    pub fn has(&self, action: Action) -> bool {
        self.ends.iter().any(|(_, taken)| *taken == action)
    }

    /// Draws an action; `None` where the trace decides.
    pub fn draw(&self, random: &mut Random) -> Option<Action> {
        match self.ends.as_slice() {
            [] => None,
            [(_, only)] => Some(*only),
            ends => {
                let point = random.next_u64() >> 32;
                ends.iter()
                    .find(|(end, _)| point < *end)
                    .or(ends.last())
                    .map(|(_, action)| *action)
            }
        }
    }

    fn from_weights(name: &str, weights: &[(Action, f64)], is_latest: bool) -> Result<Self, String> {
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if !(total > 0.0 && total.is_finite()) {
            return Err(format!("mix `{name}`: no weight is above 0"));
        }
        let mut sum = 0.0;
        let ends = weights
            .iter()
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(action, weight)| {
                sum += weight;
                ((sum / total * 4_294_967_296.0).round() as u64, *action)
            })
            .collect();
        Ok(Mix {
            name: name.to_owned(),
            ends,
            is_latest,
        })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        use Action::{Get, Insert, ReadModifyWrite, Scan, Set};
        let halves = |one, other| [(one, 50.0), (other, 50.0)];
        let mostly = |one, other| [(one, 95.0), (other, 5.0)];
        match name {
            "ycsb-a" => return Mix::from_weights(name, &halves(Get, Set), false),
            "ycsb-b" => return Mix::from_weights(name, &mostly(Get, Set), false),
            "ycsb-c" => return Mix::from_weights(name, &[(Get, 1.0)], false),
            "ycsb-d" => return Mix::from_weights(name, &mostly(Get, Insert), true),
            "ycsb-e" => return Mix::from_weights(name, &mostly(Scan, Insert), false),
            "ycsb-f" => return Mix::from_weights(name, &halves(Get, ReadModifyWrite), false),
            "trace" => {
                return Ok(Mix {
                    name: name.to_owned(),
                    ends: Vec::new(),
                    is_latest: false,
                });
            }
            _ => {}
        }
        let mut weights = Vec::new();
        for part in name.split(',') {
            let (action, weight) = part.split_once(':').unwrap_or((part, "1"));
            let action = ACTIONS
                .iter()
                .find(|(known, _)| *known == action)
                .map(|(_, action)| *action);
            let weight = weight
                .parse()
                .ok()
                .filter(|weight: &f64| weight.is_finite() && *weight >= 0.0);
            let (Some(action), Some(weight)) = (action, weight) else {
                return Err(format!(
                    "mix `{name}`: expected get, set, delete, look-aside, rmw, scan, insert, ycsb-a to ycsb-f, trace, \
                     or weights such as get:95,set:5; found `{part}`"
                ));
            };
            if weights.iter().any(|(known, _)| *known == action) {
                return Err(format!("mix `{name}`: `{part}` names an action again"));
            }
            weights.push((action, weight));
        }
        Mix::from_weights(name, &weights, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_drawn_by_weight() {
        for (name, action, share) in [
            ("get", Action::Get, 1.0),
            ("ycsb-a", Action::Set, 0.5),
            ("ycsb-b", Action::Set, 0.05),
            ("ycsb-d", Action::Insert, 0.05),
            ("ycsb-e", Action::Scan, 0.95),
            ("ycsb-f", Action::ReadModifyWrite, 0.5),
            ("get:3,set:1,delete:0", Action::Set, 0.25),
        ] {
            let mix: Mix = name.parse().unwrap();
            let mut random = Random(5);
            let taken = (0..100_000)
                .filter(|_| mix.draw(&mut random) == Some(action))
                .count();
            assert!((taken as f64 / 100_000.0 - share).abs() < 0.01, "{name}: {taken}");
        }
        let trace: Mix = "trace".parse().unwrap();
        assert!(trace.draw(&mut Random(1)).is_none());
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for bad in [
            "",
            "put",
            "ycsb-g",
            "get:x",
            "get:-1",
            "get:0",
            "get:1,get:2",
            "get:inf",
            "get,,set",
        ] {
            assert!(bad.parse::<Mix>().is_err(), "{bad}");
        }
    }
}
