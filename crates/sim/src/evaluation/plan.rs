//! What is run on every trace.

use std::fmt;

use pumice_flash::{Layout, LayoutOptions};

use crate::ftl::WriteSizeOptions;

/// The policies that the paper evaluates under RIPQ.
pub const RIPQ_POLICIES: [&str; 6] = ["slru-1", "slru-2", "slru-3", "gdsf-1", "gdsf-2", "gdsf-3"];

/// The policy whose curves over θ and min-raise are always run.
pub(super) const CURVE_POLICY: &str = "slru-3";

/// The policies whose curves over α are drawn.
const ALPHA_POLICIES: [&str; 2] = ["slru-3", "gdsf-3"];

/// One replay.
#[derive(Debug, Clone, PartialEq)]
pub enum Setup {
    /// A policy on an exact queue, of this part of the footprint.
    Exact {
        /// The policy.
        policy: &'static str,
        /// Percent of the footprint.
        percent: u32,
    },
    /// A flash layout, followed by its exact twin at equal object bytes.
    Flash {
        /// The layout.
        layout: Layout,
        /// The policy.
        policy: &'static str,
        /// RIPQ's α.
        alpha: f64,
        /// The logical occupancy θ.
        theta: f64,
        /// RIPQ's min-raise.
        min_raise: f64,
        /// Blocks in one superblock of the simulated drive.
        superblock_blocks: u32,
    },
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setup::Exact { policy, percent } => write!(f, "exact {policy}, {percent} %"),
            Setup::Flash {
                layout: Layout::Fifo,
                superblock_blocks,
                ..
            } => write!(f, "fifo, superblock {superblock_blocks}"),
            Setup::Flash {
                layout: Layout::Sipq,
                policy,
                theta,
                superblock_blocks,
                ..
            } => write!(f, "sipq {policy}, theta {theta}, superblock {superblock_blocks}"),
            Setup::Flash {
                layout,
                policy,
                alpha,
                theta,
                min_raise,
                superblock_blocks,
            } => write!(
                f,
                "{layout} {policy}, alpha {alpha}, theta {theta}, min-raise {min_raise}, superblock {superblock_blocks}"
            ),
        }
    }
}

/// What to run. The same for all traces.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Percent of the footprint that the flash layouts get.
    pub percent: u32,
    /// Percents of the footprint for the exact algorithms; has [`percent`](Plan::percent).
    pub exact_percents: Vec<u32>,
    /// The part of the requests that fills the cache before figures are counted.
    pub warmup: f64,
    /// Blocks in one superblock of the simulated drive: all that are tried, the first of them where one is enough.
    pub superblocks: Vec<u32>,
    /// Values of θ, from the largest.
    pub thetas: Vec<f64>,
    /// Values of RIPQ's min-raise, from the smallest.
    pub min_raises: Vec<f64>,
    /// Logical occupancies of SIPQ, from the smallest.
    pub sipq_thetas: Vec<f64>,
    /// Values of α, from the largest.
    pub alphas: Vec<f64>,
    /// Bytes of an object where the trace has no sizes.
    pub object_bytes: u64,
    /// Amplification against write size and utilisation.
    pub write_sizes: WriteSizeOptions,
}

impl Plan {
    /// The whole evaluation.
    pub fn full() -> Self {
        Self {
            percent: 10,
            exact_percents: vec![5, 10, 20],
            warmup: 0.5,
            superblocks: vec![1, 4],
            thetas: vec![1.0, 0.65, 0.6, 0.55, 0.5, 0.4, 0.35],
            min_raises: vec![0.0, 0.35, 0.4, 0.5, 0.6],
            sipq_thetas: vec![0.5, 0.9],
            alphas: vec![1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0, 1.0 / 32.0],
            object_bytes: 4 << 10,
            write_sizes: WriteSizeOptions::default(),
        }
    }

    /// Every part of it with few points and a small simulated drive, to see that it works.
    pub fn quick() -> Self {
        let write_sizes = WriteSizeOptions::default();
        Self {
            exact_percents: vec![10, 20],
            thetas: vec![1.0, 0.5],
            min_raises: vec![0.0, 0.4],
            alphas: vec![1.0 / 2.0, 1.0 / 16.0],
            write_sizes: WriteSizeOptions {
                superblocks: 64,
                write_bytes: vec![write_sizes.superblock_bytes / 8, write_sizes.superblock_bytes],
                utilisations: vec![0.5, 0.9],
                warmup: 1,
                measured: 1,
                ..write_sizes
            },
            ..Self::full()
        }
    }

    /// The α of everything but the curve over α: finer than what `serve` has, which holds a buffer for each section.
    pub fn alpha(&self) -> f64 {
        1.0 / 16.0
    }

    /// The θ that `policy` has where none is given.
    pub fn theta(&self, policy: &'static str) -> f64 {
        standard(Layout::Ripq, policy).theta
    }

    /// RIPQ with what it has where nothing is given.
    pub fn ripq(&self, policy: &'static str, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Ripq,
            policy,
            alpha: self.alpha(),
            theta: self.theta(policy),
            min_raise: 0.0,
            superblock_blocks,
        }
    }

    /// The layout `fifo`, which has no use for α and θ.
    pub fn fifo(&self, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Fifo,
            policy: "fifo",
            alpha: self.alpha(),
            theta: 1.0,
            min_raise: 0.0,
            superblock_blocks,
        }
    }

    /// SIPQ, which has no use for α.
    pub fn sipq(&self, policy: &'static str, theta: f64, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Sipq,
            policy,
            alpha: self.alpha(),
            theta,
            min_raise: 0.0,
            superblock_blocks,
        }
    }

    /// A point of the curve over θ.
    pub fn at_theta(&self, policy: &'static str, theta: f64, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Ripq,
            policy,
            alpha: self.alpha(),
            theta,
            min_raise: 0.0,
            superblock_blocks,
        }
    }

    /// A point of the curve over min-raise.
    pub fn at_min_raise(&self, policy: &'static str, min_raise: f64, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Ripq,
            policy,
            alpha: self.alpha(),
            theta: self.theta(policy),
            min_raise,
            superblock_blocks,
        }
    }

    /// The curves over θ and min-raise: the name of each point, and the replay. What is on both is there twice.
    pub fn curves(
        &self,
        policy: &'static str,
        superblock_blocks: u32,
    ) -> impl Iterator<Item = (String, Setup)> + '_ {
        let thetas = self.thetas.iter().map(move |theta| {
            let setup = self.at_theta(policy, *theta, superblock_blocks);
            (format!("θ {theta}"), setup)
        });
        let raises = self.min_raises.iter().map(move |least| {
            let setup = self.at_min_raise(policy, *least, superblock_blocks);
            (format!("min-raise {least}"), setup)
        });
        thetas.chain(raises)
    }

    /// A point of the curve over α.
    pub fn at_alpha(&self, policy: &'static str, alpha: f64, superblock_blocks: u32) -> Setup {
        Setup::Flash {
            layout: Layout::Ripq,
            policy,
            alpha,
            theta: self.theta(policy),
            min_raise: 0.0,
            superblock_blocks,
        }
    }

    /// The replay that says whether a trace qualifies.
    pub fn probe(&self) -> Setup {
        self.ripq("slru-3", self.superblocks[0])
    }

    /// The exact algorithms of figure 7.
    pub fn exact(&self) -> Vec<Setup> {
        let policies = ["fifo"].into_iter().chain(RIPQ_POLICIES);
        policies
            .flat_map(|policy| {
                self.exact_percents.iter().map(move |percent| Setup::Exact {
                    policy,
                    percent: *percent,
                })
            })
            .collect()
    }

    /// The layouts of figure 8, the curves over θ and min-raise for SLRU-3, and figure 9.
    pub fn flash(&self) -> Vec<Setup> {
        let mut setups = vec![self.probe()];
        for superblock in &self.superblocks {
            setups.extend(RIPQ_POLICIES.map(|policy| self.ripq(policy, *superblock)));
            setups.push(self.fifo(*superblock));
            setups.extend(self.curves(CURVE_POLICY, *superblock).map(|(_, setup)| setup));
            for theta in &self.sipq_thetas {
                setups.extend(RIPQ_POLICIES.map(|policy| self.sipq(policy, *theta, *superblock)));
            }
            for policy in ALPHA_POLICIES {
                let alphas = self.alphas.iter();
                setups.extend(alphas.map(|alpha| self.at_alpha(policy, *alpha, *superblock)));
            }
        }
        once(setups)
    }

    /// The parts that a replay belongs to, for people.
    pub fn parts(&self, setup: &Setup) -> Vec<&'static str> {
        let Setup::Flash {
            layout,
            policy,
            alpha,
            theta,
            min_raise,
            superblock_blocks,
        } = setup
        else {
            return vec!["figure 7"];
        };
        let mut parts = Vec::new();
        if *setup == self.ripq(policy, *superblock_blocks) || *layout != Layout::Ripq {
            parts.push("figure 8");
        }
        // What other policies have by default is of figure 8 alone: whether their curves are run, figures say.
        let is_curve = *policy == CURVE_POLICY || *setup != self.ripq(policy, *superblock_blocks);
        if is_curve
            && *setup == self.at_theta(policy, *theta, *superblock_blocks)
            && self.thetas.contains(theta)
        {
            parts.push("theta");
        }
        if is_curve
            && *setup == self.at_min_raise(policy, *min_raise, *superblock_blocks)
            && self.min_raises.contains(min_raise)
        {
            parts.push("min-raise");
        }
        if ALPHA_POLICIES.contains(policy)
            && self.alphas.contains(alpha)
            && *setup == self.at_alpha(policy, *alpha, *superblock_blocks)
        {
            parts.push("figure 9");
        }
        parts
    }
}

/// Each setup where it stands first.
pub(super) fn once(setups: impl IntoIterator<Item = Setup>) -> Vec<Setup> {
    let mut seen: Vec<Setup> = Vec::new();
    for setup in setups {
        if !seen.contains(&setup) {
            seen.push(setup);
        }
    }
    seen
}

fn standard(layout: Layout, policy: &'static str) -> LayoutOptions {
    LayoutOptions::new(layout, Some(policy), None, None).expect("a policy that there is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replay_is_there_once_and_belongs_to_a_part() {
        for plan in [Plan::full(), Plan::quick()] {
            let flash = plan.flash();
            for (at, setup) in flash.iter().enumerate() {
                assert!(!flash[..at].contains(setup), "{setup} twice");
                assert!(!plan.parts(setup).is_empty(), "{setup} for nothing");
            }
            assert!(plan.exact_percents.contains(&plan.percent));
            for part in ["figure 8", "theta", "min-raise", "figure 9"] {
                assert!(
                    flash.iter().any(|setup| plan.parts(setup).contains(&part)),
                    "{part}"
                );
            }
        }
        let full = Plan::full().flash();
        // On 2 drives each: figure 8, RIPQ, FIFO, and SIPQ with 2 occupancies; 6 values of θ that are not the usual one; 4 of
        // min-raise; 4 of α for 2 policies.
        assert_eq!(full.len(), 2 * (7 + 12 + 6 + 4 + 8));
    }
}
