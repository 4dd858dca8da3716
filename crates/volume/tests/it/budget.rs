//! The write budget in virtual time: what the cache device counts is at most a twentieth above it in any period, whatever clients want, and
//! however often the volume is stopped or killed.

use crate::rig::{CHUNK, settings};
use crate::threads::Memory;
use bytes::Bytes;
use pumice_admit::{Rule, WriteBudget};
use pumice_device::{CountingDevice, Device, DeviceCounters, MemDevice, MemMedium};
use pumice_volume::{Mode, Settings, Shared, Volume, VolumeCounts};
use pumice_world::{Executor, ManualClock, Random};
use std::rc::Rc;
use std::sync::Arc;

const CHUNKS: usize = 6_000;
const PERIOD_SECS: usize = 600;
const PERIODS: usize = 3;
/// Requests of a second.
const DEMAND: u64 = 12;

type Counted = CountingDevice<MemDevice>;

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stop,
    Kill,
}

struct Run {
    volume: Volume<Counted, Memory>,
    device: Counted,
    executor: Executor,
}

impl Run {
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let park = || self.device.turn(true).map(drop);
        self.executor.block_on(future, park).unwrap()
    }
}

/// A volume that is started again and again, and what its cache device is sent.
struct Server {
    settings: Settings,
    medium: Arc<MemMedium>,
    counters: Arc<DeviceCounters>,
    backing: Memory,
    clock: Arc<ManualClock>,
    run: Option<Run>,
    random: Random,
    /// Compressible to nothing less.
    noise: Vec<u8>,
    counts: VolumeCounts,
    /// Bytes that the device was sent in each second, and until the last.
    sent: Vec<u64>,
    before: u64,
    /// What a bucket holds that never is restarted, at the last second.
    level: f64,
}

impl Server {
    fn new(mode: Mode, rule: Rule, budget: Option<u64>) -> Self {
        let mut settings = Settings {
            rule,
            write_budget: budget.map(|bytes| WriteBudget {
                bytes,
                period_secs: PERIOD_SECS as u32,
            }),
            ..settings(mode, 1)
        };
        (settings.cache.mappings, settings.cache.contents) = (6_000, 6_000);
        settings.write_back.age_secs = 30;
        let mut random = Random(3);
        let mut server = Self {
            settings,
            medium: Arc::new(MemMedium::new(12 << 20)),
            counters: Arc::new(DeviceCounters::new()),
            backing: Memory::new(CHUNKS * CHUNK),
            clock: Arc::new(ManualClock::new(1_000_000)),
            run: None,
            noise: (0..CHUNK).flat_map(|_| random.next_u64().to_le_bytes()).collect(),
            random,
            counts: VolumeCounts::default(),
            sent: Vec::new(),
            before: 0,
            level: 0.0,
        };
        server.start();
        server
    }

    fn start(&mut self) {
        let medium = MemDevice::new(Arc::clone(&self.medium));
        let device: Counted = CountingDevice::new(medium, Arc::clone(&self.counters));
        let (executor, before) = (Executor::new(), self.all());
        let opened = Shared::open(&self.settings, Some(&device), &self.backing, &*self.clock);
        let opened = executor.block_on(opened, || device.turn(true).map(drop));
        let (shared, _) = opened.unwrap().unwrap();
        let counted = shared.store().unwrap().sent_bytes();
        assert_eq!(counted, self.all() - before, "a start counts all that it sends");
        let volume = Volume::new(
            Arc::new(shared),
            Some(device.clone()),
            self.backing.clone(),
            Rc::new(executor.spawner()),
            Arc::<ManualClock>::clone(&self.clock),
        );
        let run = Run {
            volume,
            device,
            executor,
        };
        // Somebody looks at the bucket.
        run.run(run.volume.tick());
        self.run = Some(run);
    }

    fn run(&self) -> &Run {
        self.run.as_ref().expect("it runs")
    }

    /// Bytes that the device was sent.
    fn all(&self) -> u64 {
        let counts = self.counters.snapshot();
        counts.written_bytes + counts.log_bytes
    }

    fn left(&self) -> u64 {
        let admission = self.run().volume.shared().admission();
        admission.unwrap().budget_left_bytes
    }

    fn bucket(&self) -> f64 {
        self.settings.write_budget.unwrap().bytes as f64 / 24.0
    }

    /// Ends a run and begins another, so many seconds later.
    fn restart(&mut self, how: End, off_secs: usize) {
        let run = self.run.take().expect("it runs");
        let counts = run.volume.shared().counts();
        for (what, begun, ended) in counts.balance(&counts) {
            assert_eq!(begun, ended, "{what}: {counts:?}");
        }
        run.volume.shared().store().unwrap().check_invariants();
        self.counts += counts;
        if how == End::Stop {
            run.run(run.volume.close()).unwrap();
        }
        drop(run);
        (0..off_secs).for_each(|_| self.second(0));
        self.start();
    }

    /// A second with so many random writes, reads and TRIMs, of one chunk to four, and flushes.
    fn second(&mut self, requests: u64) {
        for _ in 0..requests {
            let chunks = 1 + self.random.below(4) as usize;
            let chunk = match self.random.below(2) {
                0 => self.random.below(400),
                _ => self.random.below((CHUNKS - 4) as u64),
            } as usize;
            let (offset, len) = ((chunk * CHUNK) as u64, chunks * CHUNK);
            let kind = self.random.below(10);
            if kind < 5 {
                // No content is like another.
                for chunk in self.noise[..len].chunks_mut(CHUNK) {
                    chunk[..8].copy_from_slice(&self.random.next_u64().to_le_bytes());
                }
            }
            let data = Bytes::copy_from_slice(&self.noise[..len]);
            let run = self.run();
            run.run(async {
                match kind {
                    0..5 => run.volume.write(offset, data, false).await.unwrap(),
                    5 => run.volume.flush().await.unwrap(),
                    6 => run.volume.zero(offset, len as u64, true).await.unwrap(),
                    _ => drop(run.volume.read(offset, len).await.unwrap()),
                }
            });
        }
        self.clock.advance_secs(1);
        if let Some(run) = &self.run {
            run.run(run.volume.tick());
            let park = || run.device.turn(true).map(drop);
            run.executor.run_until_idle(park).unwrap();
        }
        let all = self.all();
        let sent = all - self.before;
        if let Some(budget) = self.settings.write_budget {
            let flowed = budget.bytes as f64 * 0.99 / PERIOD_SECS as f64;
            self.level = (self.level - sent as f64 + flowed).min(self.bucket());
        }
        self.sent.push(sent);
        self.before = all;
    }

    /// The periods; the second begins quietly. With ends, runs end in turn so each so many seconds.
    fn live(&mut self, ends: &[End], secs: usize) {
        for second in 1..=PERIODS * PERIOD_SECS {
            let is_quiet = (PERIOD_SECS..PERIOD_SECS + 100).contains(&second);
            self.second(if is_quiet { 0 } else { DEMAND });
            if !ends.is_empty() && second % secs == 0 {
                let number = second / secs;
                // After every other the next run is there at once.
                self.restart(ends[number % ends.len()], number % 2 * 2);
                let truth = self.level - (self.all() - self.before) as f64;
                let left = self.left();
                assert!(left as f64 <= truth.max(0.0) + 1.0, "{left} of {truth}");
            }
        }
        self.restart(End::Stop, 0);
    }

    /// The most in any period.
    fn most(&self) -> u64 {
        let periods = self.sent.windows(PERIOD_SECS);
        periods.map(|period| period.iter().sum()).max().unwrap()
    }

    fn last(&self) -> u64 {
        self.sent[self.sent.len() - PERIOD_SECS..].iter().sum()
    }
}

/// Bytes that are sent in the last period without a budget.
fn demand(mode: Mode) -> u64 {
    let mut server = Server::new(mode, Rule::All, None);
    server.live(&[], 1);
    server.last()
}

#[test]
fn no_period_takes_more_than_the_budget_and_one_with_demand_takes_it() {
    for (mode, rule) in [
        (Mode::WriteBack, Rule::All),
        (Mode::WriteBack, Rule::SecondHit),
        (Mode::WriteThrough, Rule::All),
    ] {
        let demand = demand(mode);
        for part in [2, 4] {
            let budget = demand / part;
            let mut server = Server::new(mode, rule, Some(budget));
            server.live(&[], 1);
            let share = |bytes: u64| bytes as f64 / budget as f64;
            let what = format!(
                "{mode:?}, {rule}, 1/{part} of {demand}: {:.3} at most, {:.3} last; {:?}",
                share(server.most()),
                share(server.last()),
                server.counts
            );
            println!("{what}");
            assert!(share(server.most()) <= 1.05, "{what}");
            assert!(share(server.last()) >= 0.95, "{what}");
            assert!(
                server.counts.fills_budget > 0 && server.counts.writes_budget > 0,
                "{what}"
            );
        }
    }
}

#[test]
fn stops_and_kills_cost_little_of_the_budget_and_no_period_takes_more_than_it() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let budget = demand(mode) / 2;
        for (ends, secs, least) in [
            (&[End::Stop][..], 30, 0.9),
            (&[End::Kill], 150, 0.9),
            (&[End::Stop, End::Kill, End::Kill], 50, 0.7),
        ] {
            let mut server = Server::new(mode, Rule::All, Some(budget));
            server.live(ends, secs);
            let share = |bytes: u64| bytes as f64 / budget as f64;
            let (most, last) = (share(server.most()), share(server.last()));
            let what = format!("{mode:?}, {ends:?} each {secs} s: {most:.3} at most, {last:.3} last");
            println!("{what}");
            assert!(most <= 1.05, "{what}");
            assert!(last >= least, "{what}");
        }
    }
}

#[test]
fn a_stop_keeps_what_was_saved_or_overdrawn_and_a_kill_its_debts_alone() {
    let mut server = Server::new(Mode::WriteThrough, Rule::All, Some(24 << 20));
    assert_eq!(server.left(), 0, "a new cache has saved nothing");
    (0..30).for_each(|_| server.second(0));
    let full = server.left();
    assert_eq!(full, 1 << 20);
    server.restart(End::Stop, 0);
    let saved = server.left();
    assert!(
        saved > full * 8 / 10 && saved < full,
        "less what stop and start wrote: {saved}"
    );
    // While it is off it flows in.
    server.restart(End::Stop, 60);
    assert!(server.left() > saved, "{}", server.left());
    // Nobody knows what a run has spent that was killed, nor does a later start.
    server.restart(End::Kill, 60);
    assert_eq!(server.left(), 0);
    server.restart(End::Stop, 0);
    assert_eq!(server.left(), 0);
    let inflow = server.bucket() * 24.0 / PERIOD_SECS as f64;
    for end in [End::Stop, End::Kill] {
        // Nothing holds voids back, nor the checkpoints that they bring.
        for number in 0..20_000u64 {
            let (run, offset) = (server.run(), number % 4_000 * CHUNK as u64);
            run.run(run.volume.zero(offset, CHUNK as u64, false)).unwrap();
        }
        server.second(0);
        let owed = *server.sent.last().unwrap() as f64;
        server.restart(end, 0);
        let secs = (0..).take_while(|_| {
            let is_in_debt = server.left() == 0;
            server.second(0);
            is_in_debt
        });
        let (secs, least) = (secs.take(200).count() as f64, owed / inflow);
        println!("{end:?}: {secs} s, {least:.1} without");
        assert!(least > 10.0, "{owed}");
        // A restart costs a checkpoint and superblocks; a crash what may have been sent, too.
        assert!(
            (least - 3.0..least + 20.0).contains(&secs),
            "{end:?}: {secs} s for {owed}"
        );
    }
}
