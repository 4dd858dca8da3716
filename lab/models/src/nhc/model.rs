//! Requests on two devices, event by event, in virtual time.

use super::cache::Clock;
use super::options::{CellOptions, Change};
use pumice_device::{Kind, Lanes};
use pumice_nhc::{Counts, Governor, Meter, Side, Switch};
use pumice_trace::Zipf;
use pumice_world::{Random, mix64};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Copies to the upper device under way at most; what is read beyond is not copied.
const COPIES_MAX: u32 = 64;

/// What steers a run.
pub(super) enum Control {
    /// Nothing: the switch stands.
    Held(Arc<Switch>),
    Driven(Box<dyn Governor>),
}

impl Control {
    pub(super) fn held(load_admit: f64, data_admit: bool) -> Self {
        Self::Held(Arc::new(Switch::new(load_admit, data_admit)))
    }

    fn switch(&self) -> &Arc<Switch> {
        match self {
            Self::Held(switch) => switch,
            Self::Driven(governor) => governor.switch(),
        }
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arrivals {
    /// So many clients that wait for each answer, and ask again at once.
    Clients(u64),
    /// So many requests a second, at times that know nothing of each other; no more than `most` under way, the others refused.
    Poisson { rate: f64, most: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    Read {
        begun: u64,
        is_upper: bool,
        missed: Option<u64>,
    },
    Write {
        begun: u64,
    },
    Copied {
        key: u64,
    },
}

/// What the upper device has.
enum Content {
    /// This share of what is asked for.
    Share(f64),
    /// What a cache of blocks has.
    Cache {
        cache: Clock,
        zipf: Zipf,
        generation: u64,
        replaced: f64,
    },
}

/// Two devices under load.
pub(super) struct Model<'a> {
    options: &'a CellOptions,
    control: Control,
    switch: Arc<Switch>,
    lanes: [Lanes; 2],
    content: Content,
    reads: f64,
    arrivals: Arrivals,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events so far, and requests: the order of what happens at one time.
    sequence: u64,
    /// Whether an arrival is to come: one stream, whatever the load was changed to.
    arrival_at: Option<u64>,
    /// When an arrival was refused, since when as many are under way as may be.
    full_since: Option<u64>,
    now: u64,
    under_way: u64,
    copies: u32,
    random: Random,
    meter: Meter,
    pub(super) refused: u64,
    /// `load_admit` by requests.
    pub(super) load_admit_sum: f64,
}

impl<'a> Model<'a> {
    pub(super) fn new(options: &'a CellOptions, arrivals: Arrivals, control: Control) -> Self {
        let mut random = Random(mix64(options.seed));
        let device = |mut profile: pumice_device::Profile, salt: u64| {
            profile.seed = mix64(options.seed ^ salt);
            Lanes::new(&profile)
        };
        let content = match options.cache {
            None => Content::Share(options.hits),
            Some(cache) => {
                let zipf = Zipf::new(cache.keys, cache.theta).expect("its options were checked");
                let mut filled = Clock::new(cache.blocks);
                for _ in 0..20 * cache.blocks {
                    let key = zipf.draw(&mut random);
                    if !filled.touch(key) {
                        filled.insert(key);
                    }
                }
                Content::Cache {
                    cache: filled,
                    zipf,
                    generation: 0,
                    replaced: 0.0,
                }
            }
        };
        let mut model = Self {
            options,
            switch: Arc::clone(control.switch()),
            control,
            lanes: [device(options.upper, 1), device(options.lower, 2)],
            content,
            reads: options.reads,
            arrivals,
            events: BinaryHeap::new(),
            sequence: 0,
            arrival_at: None,
            full_since: None,
            now: 0,
            under_way: 0,
            copies: 0,
            random,
            meter: Meter::new(),
            refused: 0,
            load_admit_sum: 0.0,
        };
        model.start();
        model
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn switch(&self) -> &Switch {
        &self.switch
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        counts.add(&self.meter, self.now);
        counts
    }

    /// Changes the load from now on.
    pub(super) fn change(&mut self, change: &Change, arrivals: Arrivals) {
        self.reads = change.reads.unwrap_or(self.reads);
        match &mut self.content {
            Content::Share(hits) => *hits = change.hits.unwrap_or(*hits),
            Content::Cache {
                generation, replaced, ..
            } if change.replaced > 0.0 => {
                *generation += 1;
                *replaced = change.replaced;
            }
            Content::Cache { .. } => {}
        }
        self.arrivals = arrivals;
        self.start();
    }

    /// Runs until so many requests are done in all, or this time has come.
    pub(super) fn run(&mut self, completions: u64, until_ns: u64) {
        while self.meter.completions() < completions {
            match self.events.peek() {
                Some(Reverse((at, ..))) if *at <= until_ns => {}
                _ => {
                    self.now = self.now.max(until_ns.min(u64::MAX - 1));
                    return;
                }
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                return;
            };
            self.now = at;
            self.happens(event);
            if let Control::Driven(governor) = &mut self.control
                && governor.is_due(self.meter.completions(), at)
            {
                let mut counts = Counts::new();
                counts.add(&self.meter, at);
                governor.window(&counts, at);
            }
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrival => {
                if self.arrival_at == Some(self.now) {
                    self.arrive();
                }
            }
            Event::Read {
                begun,
                is_upper,
                missed,
            } => {
                let side = if is_upper { Side::Upper } else { Side::Lower };
                self.meter.end_read(side, begun, self.now);
                if let Some(key) = missed
                    && self.switch.data_admit()
                    && self.copies < COPIES_MAX
                {
                    self.copies += 1;
                    let done = self.begin(Side::Upper, Kind::Write);
                    self.at(done, Event::Copied { key });
                }
                self.ended();
            }
            Event::Write { begun } => {
                self.meter.end_write(begun, self.now);
                self.ended();
            }
            Event::Copied { key } => {
                self.copies -= 1;
                if let Content::Cache { cache, .. } = &mut self.content
                    && !cache.touch(key)
                {
                    cache.insert(key);
                }
            }
        }
    }

    /// Starts clients that are new, or the stream of arrivals.
    fn start(&mut self) {
        (self.arrival_at, self.full_since) = (None, None);
        match self.arrivals {
            Arrivals::Clients(clients) => {
                while self.under_way < clients {
                    self.issue();
                }
            }
            Arrivals::Poisson { .. } => self.next_arrival(),
        }
    }

    fn next_arrival(&mut self) {
        let Arrivals::Poisson { rate, .. } = self.arrivals else {
            return;
        };
        let pause = -(1.0 - self.random.next_f64()).ln() / rate * 1e9;
        let at = self.now + (pause as u64).max(1);
        self.arrival_at = Some(at);
        self.at(at, Event::Arrival);
    }

    fn arrive(&mut self) {
        let Arrivals::Poisson { most, .. } = self.arrivals else {
            return;
        };
        // Arrivals know nothing of each other: those that are refused until one more may be under way are counted then.
        if self.under_way >= most {
            self.full_since = Some(self.now);
            return;
        }
        self.issue();
        self.next_arrival();
    }

    /// A request is done.
    fn ended(&mut self) {
        self.under_way -= 1;
        if let Arrivals::Poisson { rate, .. } = self.arrivals
            && let Some(since) = self.full_since.take()
        {
            self.refused += 1 + (rate * (self.now - since) as f64 / 1e9).round() as u64;
            self.next_arrival();
        }
        if let Arrivals::Clients(clients) = self.arrivals
            && self.under_way < clients
        {
            self.issue();
        }
    }

    /// A request begins.
    fn issue(&mut self) {
        self.under_way += 1;
        let begun = self.now;
        self.meter.begin(begun);
        let (key, is_hit) = self.look();
        self.load_admit_sum += self.switch.load_admit();
        if self.reads < 1.0 && self.random.next_f64() >= self.reads {
            // Written through; what the upper device has not stays so.
            let mut done = self.begin(Side::Lower, Kind::Write);
            if is_hit {
                done = done.max(self.begin(Side::Upper, Kind::Write));
            }
            return self.at(done, Event::Write { begun });
        }
        let (side, missed) = if is_hit {
            self.meter.hit();
            (self.switch.route((self.random.next_u64() >> 32) as u32), None)
        } else {
            self.meter.miss();
            (Side::Lower, Some(key))
        };
        let done = self.begin(side, Kind::Read);
        let is_upper = side == Side::Upper;
        self.at(
            done,
            Event::Read {
                begun,
                is_upper,
                missed,
            },
        );
    }

    /// What is asked for, and whether the upper device has it.
    fn look(&mut self) -> (u64, bool) {
        match &mut self.content {
            Content::Share(hits) => (0, self.random.next_f64() < *hits),
            Content::Cache {
                cache,
                zipf,
                generation,
                replaced,
            } => {
                let rank = zipf.draw(&mut self.random);
                let is_new = (mix64(rank) >> 11) as f64 / (1u64 << 53) as f64 >= 1.0 - *replaced;
                let key = if is_new { rank + (*generation << 40) } else { rank };
                (key, cache.touch(key))
            }
        }
    }

    /// An operation on a device, somewhere.
    fn begin(&mut self, side: Side, kind: Kind) -> u64 {
        let offset = mix64(self.sequence) >> 24 << 12;
        self.lanes[side as usize].begin(self.now, kind, offset, self.options.bytes)
    }
}
