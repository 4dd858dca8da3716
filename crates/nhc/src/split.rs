//! How reads are split between two devices: what each handle measures, and who asks the scheduler.
//!
//! A store that has copies of a device's data on a faster one takes a [`Split`] for both devices, and a [`Part`] for each thread.

use crate::scheduler::{Counts, Meter, Objective, Reason, Scheduler, Side, Status, Switch};
use locks::Mutex;
use pumice_device::{Timeline, VirtualTime};
use pumice_world::Random;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What all handles share of a split: the scheduler, and what they measure for it.
pub struct Split {
    switch: Arc<Switch>,
    scheduler: Mutex<Scheduler>,
    /// Those of handles that are gone, too: counts never fall.
    meters: Mutex<Vec<Arc<Meter>>>,
    time: Arc<dyn Timeline>,
    /// Nobody changes the switch.
    is_held: bool,
}

impl Split {
    /// A split for this objective, by times of `time`.
    pub fn new(objective: Objective, time: Arc<dyn Timeline>) -> Arc<Self> {
        let scheduler = Scheduler::new(objective);
        Arc::new(Self {
            switch: Arc::clone(scheduler.switch()),
            scheduler: Mutex::new(scheduler),
            meters: Mutex::default(),
            time,
            is_held: false,
        })
    }

    /// A split that nobody changes: what the scheduler is compared with.
    pub fn held(load_admit: f64, data_admit: bool) -> Arc<Self> {
        Arc::new(Self {
            switch: Arc::new(Switch::new(load_admit, data_admit)),
            // It sets a switch of its own, which nobody asks.
            scheduler: Mutex::new(Scheduler::new(Objective::default())),
            meters: Mutex::default(),
            time: Arc::new(VirtualTime::new()),
            is_held: true,
        })
    }

    /// What the scheduler has set last, trials included.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// What the scheduler does.
    pub fn status(&self) -> Status {
        self.scheduler.lock().status()
    }

    /// Whether it is of use that more hits can be redirected: some are, or that was found to make no difference.
    pub fn wants_movable(&self) -> bool {
        match self.is_held {
            true => self.switch.load_admit() < 1.0,
            false => matches!(self.status().reason, Reason::Redirecting | Reason::NoDifference),
        }
    }

    /// What all handles have counted.
    pub fn counts(&self) -> Counts {
        let (mut counts, now) = (Counts::new(), self.time.now_ns());
        for meter in &*self.meters.lock() {
            counts.add(meter, now);
        }
        counts
    }

    /// Lets the scheduler decide, if it is time and no other thread does that.
    pub fn look(&self) {
        let Some(mut scheduler) = self.scheduler.try_lock() else {
            return;
        };
        let completions = self.meters.lock().iter().map(|meter| meter.completions()).sum();
        if scheduler.is_due(completions) {
            scheduler.window(&self.counts(), self.time.now_ns());
        }
    }
}

/// One handle's part of a split.
pub struct Part {
    split: Arc<Split>,
    meter: Arc<Meter>,
    random: RefCell<Random>,
}

impl Part {
    /// A part for another handle.
    pub fn new(split: &Arc<Split>) -> Self {
        let meter = Arc::new(Meter::new());
        let mut meters = split.meters.lock();
        meters.push(Arc::clone(&meter));
        // Another sequence for each handle.
        let random = RefCell::new(Random(meters.len() as u64));
        Self {
            split: Arc::clone(split),
            meter,
            random,
        }
    }

    /// The split that it is of.
    pub fn split(&self) -> &Arc<Split> {
        &self.split
    }

    /// Where a read goes whose block has a copy.
    pub fn route(&self) -> Side {
        self.hit();
        self.draw()
    }

    /// A read whose block has a copy.
    pub fn hit(&self) {
        self.meter.hit();
    }

    /// Where a read goes if its block has a copy; it may turn out to have none.
    pub fn draw(&self) -> Side {
        let random = self.random.borrow_mut().next_u64();
        self.split.switch.route((random >> 32) as u32)
    }

    /// A read whose block has none.
    pub fn miss(&self) {
        self.meter.miss();
    }

    /// A read or a write begins.
    pub fn begin(self: &Rc<Self>) -> Request {
        let begun = self.split.time.now_ns();
        self.meter.begin(begun);
        Request {
            part: Rc::clone(self),
            begun,
            is_done: false,
        }
    }
}

/// A read or a write that is under way. Where it is dropped it came to nothing.
pub struct Request {
    part: Rc<Part>,
    begun: u64,
    is_done: bool,
}

impl Request {
    /// It was a read, and this device has answered it.
    pub fn end_read(mut self, side: Side) {
        self.is_done = true;
        let now = self.part.split.time.now_ns();
        self.part.meter.end_read(side, self.begun, now);
    }

    /// It was a write, and is done.
    pub fn end_write(mut self) {
        self.is_done = true;
        let now = self.part.split.time.now_ns();
        self.part.meter.end_write(self.begun, now);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_done {
            self.part.meter.abandon(self.part.split.time.now_ns());
        }
    }
}
