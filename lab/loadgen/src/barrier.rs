//! Where threads wait for each other between preload and load.

use locks::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Lets everybody through when all have come and the leader has said how it goes on.
#[derive(Debug)]
pub struct Barrier<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    missing: usize,
    plan: Option<T>,
}

impl<T: Clone> Barrier<T> {
    /// A barrier for so many followers and one leader.
    pub fn new(followers: usize) -> Self {
        Barrier {
            state: Mutex::new(State {
                missing: followers,
                plan: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// A follower comes, waits, and is told the plan.
    pub fn pass(&self) -> T {
        let mut state = self.state.lock();
        state.missing -= 1;
        self.changed.notify_all();
        loop {
            if let Some(plan) = &state.plan {
                return plan.clone();
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits at most this long for all followers; returns whether they have come.
    pub fn wait_for_all(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock();
        while state.missing > 0 {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return state.missing == 0;
            }
        }
        true
    }

    /// Tells the plan.
    pub fn open(&self, plan: T) {
        self.state.lock().plan = Some(plan);
        self.changed.notify_all();
    }
}
