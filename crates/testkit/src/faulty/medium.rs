//! The medium that handles share.

use super::plan::{FaultCounts, FaultPlan};
use super::state::State;
use locks::{Mutex, MutexGuard};
use pumice_device::SECTOR_BYTES;
use std::task::Waker;

/// A medium in memory that fails as its [`FaultPlan`] says, shared by its handles. Its content survives crashes, as
/// far as they leave it.
#[derive(Debug)]
pub struct FaultyMedium {
    capacity: u64,
    state: Mutex<State>,
}

impl FaultyMedium {
    /// A medium of `capacity` bytes, rounded down to whole sectors, all zero. `seed` decides every choice.
    pub fn new(capacity: u64, seed: u64, plan: FaultPlan) -> Self {
        Self {
            capacity: capacity - capacity % SECTOR_BYTES as u64,
            state: Mutex::new(State::new(capacity - capacity % SECTOR_BYTES as u64, seed, plan)),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes another plan from the next operation on; the numbers of its crash point count from here.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.state.lock().set_plan(plan);
    }

    /// Whether the device has crashed and was not restarted.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().is_crashed()
    }

    /// Crashes now, between two operations; writes under way are torn.
    pub fn crash(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.crash();
            state.end_pending()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Cuts the power now: crashes, and of what was completed since the last sync under a plan that is
    /// [`volatile`](FaultPlan::volatile) only a choice stays.
    pub fn cut_power(&self) {
        self.crash();
        self.state.lock().lose_unflushed();
    }

    /// Ends a crash: operations work again, on the content that the crash left. The crash point of the plan is
    /// taken out; its other faults go on.
    pub fn restart(&self) {
        self.state.lock().restart();
    }

    /// Flips one bit of the stored byte at `offset`, until it is written again.
    pub fn rot_at(&self, offset: u64) {
        self.state.lock().rot_at(offset);
    }

    /// What passed and what was injected.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().counts()
    }

    /// Bytes of the reads that are under way.
    pub fn reads_pending(&self) -> usize {
        self.state.lock().reads_pending()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
