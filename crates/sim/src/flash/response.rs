//! Response times of gets, in virtual time.
//!
//! One client sends each request as soon as the one before is answered; the times in the trace do not pace it. Blocks are written meanwhile, and
//! reads may wait behind these writes.
//!
//! | request | time |
//! | --- | --- |
//! | hit that waited for the device | that wait |
//! | hit that did not | `dram_ns` |
//! | miss | the wait of its lookup, and `miss_ns` |
//! | set, delete | its wait, and `dram_ns`; not part of the mean |

use futures_util::future::OptionFuture;
use pumice_device::{Delay, Delays, Timeline};
use std::sync::Arc;

/// What requests take beside the device, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// A hit that reads nothing from the device, a set, a delete.
    pub dram_ns: u64,
    /// A miss.
    pub miss_ns: u64,
}

/// Lets the time of requests pass, and takes that of gets.
pub(super) struct Stopwatch {
    timed: Timed,
    time: Arc<dyn Timeline>,
    delays: Delays,
    sum_ns: u128,
    count: u64,
}

impl Stopwatch {
    /// Of a throttled device, whose delays are on that timeline.
    pub(super) fn new(timed: Timed, time: Arc<dyn Timeline>, delays: Delays) -> Self {
        Self {
            timed,
            time,
            delays,
            sum_ns: 0,
            count: 0,
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.time.now_ns()
    }

    /// The rest of a get that began then and has been looked up.
    pub(super) fn rest(&self, began: u64, hit: bool) -> OptionFuture<Delay> {
        self.pass(match hit {
            true if self.now() > began => 0,
            true => self.timed.dram_ns,
            false => self.timed.miss_ns,
        })
    }

    /// A get that began then has its answer.
    pub(super) fn end(&mut self, began: u64) {
        self.sum_ns += u128::from(self.now() - began);
        self.count += 1;
    }

    /// A set or a delete, beside what it waited for.
    pub(super) fn change(&self) -> OptionFuture<Delay> {
        self.pass(self.timed.dram_ns)
    }

    fn pass(&self, ns: u64) -> OptionFuture<Delay> {
        (ns > 0).then(|| self.delays.after(ns)).flatten().into()
    }

    /// Forgets the gets so far.
    pub(super) fn reset(&mut self) {
        (self.sum_ns, self.count) = (0, 0);
    }

    /// The mean of gets, in nanoseconds.
    pub(super) fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }
}
