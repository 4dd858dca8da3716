//! What the replays of an evaluation gave.

use pumice_trace::Trace;

use super::plan::{Plan, Setup};
use crate::ftl::WriteSizeRow;
use crate::report::Report;

/// What the measured half must insert for a trace to qualify, as a multiple of the cache.
const INSERTED_MIN: f64 = 5.0;
/// The blocks there must be for a trace to qualify.
const BLOCKS_MIN: u32 = 512;

/// A trace to evaluate.
#[derive(Debug, Clone)]
pub struct Workload {
    /// A short name.
    pub name: String,
    /// How it was made or read, for people.
    pub source: String,
    /// The trace.
    pub trace: Trace,
}

/// How the flash of a replay is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlan {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// How many there are.
    pub blocks: u32,
}

/// One replay, done.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its trace, by position.
    pub workload: usize,
    /// What was replayed.
    pub setup: Setup,
    /// The blocks, under a flash layout that could be opened.
    pub blocks: Option<BlockPlan>,
    /// The figures, or why there are none.
    pub result: Result<Report, String>,
    /// Those of the exact twin at equal object bytes, under a flash layout.
    pub twin: Option<Result<Report, String>>,
}

impl Run {
    /// The figures, if there are any.
    pub fn report(&self) -> Option<&Report> {
        self.result.as_ref().ok()
    }

    /// Those of the twin.
    pub fn twin_report(&self) -> Option<&Report> {
        self.twin.as_ref()?.as_ref().ok()
    }

    /// Points of object hit ratio that the layout is below its twin; negative where it is above.
    pub fn object_loss(&self) -> Option<f64> {
        self.loss(|report| report.object_hit_ratio)
    }

    /// Points of byte hit ratio that the layout is below its twin.
    pub fn byte_loss(&self) -> Option<f64> {
        self.loss(|report| report.byte_hit_ratio)
    }

    /// The larger of both losses.
    pub fn worse_loss(&self) -> Option<f64> {
        Some(self.object_loss()?.max(self.byte_loss()?))
    }

    fn loss(&self, ratio: impl Fn(&Report) -> Option<f64>) -> Option<f64> {
        Some((ratio(self.twin_report()?)? - ratio(self.report()?)?) * 100.0)
    }
}

/// Whether bounds hold for a trace: it must turn the cache over often enough, and the queue must have blocks enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Qualification {
    /// Bytes inserted while measuring / bytes of the cache.
    pub inserted_per_cache: f64,
    /// Blocks of the cache.
    pub blocks: u32,
}

impl Qualification {
    /// Whether both counts are reached.
    pub fn qualifies(self) -> bool {
        self.inserted_per_cache >= INSERTED_MIN && self.blocks >= BLOCKS_MIN
    }
}

/// All that was run, in an order that does not depend on which replay ended first.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// What was to be run.
    pub plan: Plan,
    /// The traces.
    pub workloads: Vec<Workload>,
    /// The replays, trace by trace.
    pub runs: Vec<Run>,
    /// Amplification against write size and utilisation.
    pub write_sizes: Vec<Result<WriteSizeRow, String>>,
}

impl Evaluation {
    /// The replay of a trace, if it was done.
    pub fn run(&self, workload: usize, setup: &Setup) -> Option<&Run> {
        self.runs
            .iter()
            .find(|run| run.workload == workload && run.setup == *setup)
    }

    /// Both counts; `None` where the trace could not be replayed under RIPQ.
    pub fn qualification(&self, workload: usize) -> Option<Qualification> {
        let run = self.run(workload, &self.plan.probe())?;
        let report = run.report()?;
        Some(Qualification {
            inserted_per_cache: report.bytes_inserted as f64 / report.flash_bytes as f64,
            blocks: run.blocks?.blocks,
        })
    }

    /// The traces for which bounds hold, by position.
    pub fn qualifying(&self) -> Vec<usize> {
        (0..self.workloads.len())
            .filter(|workload| {
                self.qualification(*workload)
                    .is_some_and(Qualification::qualifies)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counts_are_needed() {
        let qualifies = |inserted_per_cache, blocks| {
            Qualification {
                inserted_per_cache,
                blocks,
            }
            .qualifies()
        };
        assert!(qualifies(5.0, 512));
        assert!(!qualifies(4.9, 512));
        assert!(!qualifies(5.0, 511));
    }
}
