//! The write budget over restarts, in virtual time: a start goes on with what the last run had left, after a crash with its debts alone, and
//! no sequence of starts gets more out of it.

use crate::common::{Rig, cascade, ripq};
use pumice::{AdmissionOptions, CacheOptions, IndexOptions, LayoutOptions, WriteBudget};
use pumice_blocks::{SlotContent, Superblock};
use pumice_device::{CountingDevice, Device, DeviceCounters, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::{ManualClock, Random};
use std::sync::Arc;

const DAY_MINUTES: usize = 24 * 60;
const BUDGET: u64 = 48_000_000;
const BUCKET: u64 = BUDGET / 24;
const VALUE: [u8; 4_000] = [9; 4_000];

type Counted = CountingDevice<MemDevice>;

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stop,
    Kill,
}

/// A server that is started again and again, without a DRAM tier: what is refused is a miss at once.
struct Server {
    medium: Arc<MemMedium>,
    counters: Arc<DeviceCounters>,
    clock: Arc<ManualClock>,
    options: CacheOptions,
    rig: Option<Rig<Counted>>,
    random: Random,
    /// Bytes that the device was sent in each minute.
    written: Vec<u64>,
    before: u64,
    /// What a bucket holds that never is restarted, at the last minute.
    level: f64,
}

impl Server {
    fn new(options: CacheOptions) -> Self {
        let mut server = Self {
            medium: Arc::new(MemMedium::new(32 << 20)),
            counters: Arc::new(DeviceCounters::new()),
            clock: Arc::new(ManualClock::new(1_000_000)),
            options,
            rig: None,
            random: Random(7),
            written: Vec::new(),
            before: 0,
            level: 0.0,
        };
        server.start();
        server
    }

    fn start(&mut self) {
        let device = CountingDevice::new(
            MemDevice::new(Arc::clone(&self.medium)),
            Arc::clone(&self.counters),
        );
        let before = self.sent();
        let rig = Rig::open(device, Arc::clone(&self.clock), self.options);
        rig.cache.tick(&rig.cx);
        rig.settle();
        self.rig = Some(rig);
        let counted = self.rig().cache.written_bytes();
        assert_eq!(counted, self.sent() - before, "a start counts all that it sends");
    }

    fn rig(&self) -> &Rig<Counted> {
        self.rig.as_ref().expect("it runs")
    }

    fn end(&mut self, how: End) {
        let rig = self.rig.take().expect("it runs");
        if how == End::Stop {
            rig.run(rig.cache.close(&rig.cx)).expect("a stop");
        }
    }

    /// Ends a run and begins another, `off` minutes later.
    fn restart(&mut self, how: End, off: usize) {
        self.end(how);
        (0..off).for_each(|_| self.minute());
        self.start();
    }

    /// Bytes that a bucket would hold that never was restarted.
    fn truth(&self) -> u64 {
        let since = self.sent() - self.before;
        (self.level - since as f64).max(0.0) as u64
    }

    fn sent(&self) -> u64 {
        let counts = self.counters.snapshot();
        counts.written_bytes + counts.log_bytes
    }

    /// A minute ends.
    fn minute(&mut self) {
        self.clock.advance_secs(60);
        if let Some(rig) = &self.rig {
            rig.cache.tick(&rig.cx);
            rig.settle();
        }
        let sent = self.sent();
        self.written.push(sent - self.before);
        let flowed = BUDGET as f64 * 0.99 / DAY_MINUTES as f64;
        self.level = (self.level - (sent - self.before) as f64 + flowed).min(BUCKET as f64);
        self.before = sent;
    }

    /// Gets so many keys, some again and again and most once, and sets those that are not there.
    fn serve(&mut self, requests: u64) {
        for _ in 0..requests {
            let key = match self.random.below(3) {
                0 => self.random.below(2_000),
                _ => 1 << 40 | self.random.next_u64() >> 30,
            };
            let (key, rig) = (key.to_le_bytes(), self.rig());
            if rig.get(&key).is_none() {
                assert!(rig.set(&key, &VALUE));
            }
            rig.settle();
        }
    }

    /// Whether a key that nobody knows goes to flash.
    fn admits(&mut self) -> bool {
        let key = (1 << 41 | self.random.next_u64() >> 30).to_le_bytes();
        assert!(self.rig().set(&key, &VALUE));
        self.rig().get(&key).is_some()
    }

    /// Sets new keys until none goes in any more; how many bytes that took.
    fn burst(&mut self) -> u64 {
        let mut taken = 0;
        while self.admits() {
            taken += VALUE.len() as u64;
            self.rig().settle();
            assert!(taken < BUDGET, "nothing bounds it");
        }
        taken
    }

    fn left(&self) -> u64 {
        self.rig().cache.stats().admission.budget_left_bytes
    }

    /// The most in any day.
    fn most(&self) -> f64 {
        let days = self.written.windows(DAY_MINUTES);
        let most = days.map(|day| day.iter().sum::<u64>()).max();
        most.expect("there are days") as f64 / BUDGET as f64
    }

    fn last_day(&self) -> f64 {
        let last = &self.written[self.written.len() - DAY_MINUTES..];
        last.iter().sum::<u64>() as f64 / BUDGET as f64
    }
}

fn budget(bytes: u64) -> Option<WriteBudget> {
    Some(WriteBudget {
        bytes,
        period_secs: 86_400,
    })
}

fn options() -> CacheOptions {
    CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(64 << 10),
        buffers_max: 12,
        admission: AdmissionOptions {
            budget: budget(BUDGET),
            ..AdmissionOptions::default()
        },
        ..CacheOptions::default()
    }
}

/// Fifo has one block open, so that a stop costs little.
fn fifo() -> CacheOptions {
    CacheOptions {
        layout: LayoutOptions::default(),
        index: IndexOptions::Full,
        ..options()
    }
}

#[test]
fn restarts_and_kills_cost_little_of_the_budget_and_no_day_takes_more_than_it() {
    let kinds = [
        ("fifo", fifo(), 20),
        (
            "ripq",
            CacheOptions {
                layout: ripq(),
                ..options()
            },
            240,
        ),
        (
            "cascade",
            CacheOptions {
                layout: ripq(),
                index: IndexOptions::cascade(0.03),
                ..options()
            },
            240,
        ),
    ];
    for (what, options, minutes) in kinds {
        for (pattern, minutes, least) in [
            (&[End::Stop][..], minutes, 0.95),
            (&[End::Kill], 240, 0.8),
            (&[End::Stop, End::Kill, End::Kill], minutes, 0.3),
        ] {
            let mut server = Server::new(options);
            let mut ends = pattern.iter().cycle();
            for minute in 1..=3 * DAY_MINUTES {
                // A night without requests, a burst, then more than the budget takes.
                let requests = match minute / 60 {
                    0..12 => 0,
                    12 => 200,
                    _ => 30,
                };
                server.serve(requests);
                server.minute();
                if minute % minutes == 0 {
                    let how = *ends.next().expect("endless");
                    // After every other the next run is there at once.
                    server.restart(how, minute / minutes % 2);
                    let (left, truth) = (server.left(), server.truth());
                    assert!(left <= truth + 1, "{what}, {how:?}: {left} of {truth}");
                }
            }
            let (most, last) = (server.most(), server.last_day());
            println!(
                "{what}, {pattern:?} each {minutes} minutes: {most:.3} of the budget in a day at most, {last:.3} on the last"
            );
            assert!(most <= 1.05, "{what}: {most}");
            assert!(last >= least, "{what}: {last}");
            server.rig().check();
        }
    }
}

#[test]
fn a_stop_keeps_what_was_saved_and_a_start_adds_what_flowed_in_since() {
    let mut server = Server::new(fifo());
    assert!(!server.admits(), "a new cache has saved nothing");
    (0..120).for_each(|_| server.minute());
    let full = server.left();
    assert_eq!(full, BUCKET);
    server.restart(End::Stop, 0);
    assert!(server.admits(), "at once");
    let saved = server.left();
    assert!(saved > BUCKET * 9 / 10, "less what stop and start wrote: {saved}");
    // What a burst has taken is gone, however often it is started.
    let taken = server.burst();
    assert!((BUCKET / 2..BUCKET).contains(&taken), "{taken}");
    let left = server.left();
    for _ in 0..3 {
        server.restart(End::Stop, 0);
        assert!(!server.admits());
        assert!(server.left() <= left, "{} of {left}", server.left());
    }
    // While it is off it flows in.
    server.restart(End::Stop, 30);
    assert!(server.admits());
    let half = server.burst();
    assert!(half < BUCKET / 2, "{half}");
    // At most what the bucket holds, even where the clock is wrong.
    server.end(End::Stop);
    server.clock.advance_secs(10 * 86_400);
    server.start();
    assert!((BUCKET * 9 / 10..=BUCKET).contains(&server.left()));
    server.burst();
    server.end(End::Stop);
    server.clock = Arc::new(ManualClock::new(1_000_000 + 10 * 86_400));
    server.start();
    assert!(!server.admits(), "nothing where it went back");
}

#[test]
fn a_kill_leaves_nothing_of_what_was_saved() {
    let mut server = Server::new(fifo());
    (0..120).for_each(|_| server.minute());
    // So that the superblock says that the bucket was full.
    server.restart(End::Stop, 0);
    for _ in 0..2 {
        assert!(server.left() > BUCKET * 9 / 10);
        server.burst();
        server.restart(End::Kill, 0);
        assert_eq!(server.left(), 0);
        server.restart(End::Stop, 0);
        assert_eq!(server.left(), 0, "nor is it found later");
        server.restart(End::Kill, 600);
        assert_eq!(server.left(), 0);
        (0..120).for_each(|_| server.minute());
    }
}

/// What recovery itself writes: footers of prefixes, and pages of mappings.
#[test]
fn a_start_counts_all_that_it_sends() {
    for (index, layout) in [
        (IndexOptions::Full, LayoutOptions::default()),
        (cascade(), ripq()),
    ] {
        let mut server = Server::new(CacheOptions {
            index,
            layout,
            flush_interval_secs: 30,
            admission: AdmissionOptions::default(),
            ..fifo()
        });
        for n in 0..40_000u64 {
            assert!(server.rig().set(&n.to_le_bytes(), &[1; 100]));
            server.rig().settle();
        }
        server.minute();
        server.restart(End::Kill, 0);
        let recovered = server.rig().recovered;
        assert!(recovered.prefixes > 0, "{recovered:?}");
    }
}

/// What may have been sent after the last checkpoint: records of the log, and another checkpoint, once for each run.
#[test]
fn a_start_that_crashes_before_its_checkpoint_is_charged_for_one() {
    let medium = Arc::new(FaultyMedium::new(32 << 20, 1, FaultPlan::default()));
    let clock = Arc::new(ManualClock::new(1_000_000));
    let open = || {
        let device = FaultyDevice::new(Arc::clone(&medium));
        Rig::open(device, Arc::clone(&clock), fifo())
    };
    let kill = |rig: Rig<FaultyDevice>| {
        drop(rig);
        medium.crash();
        medium.restart();
    };
    let rig = open();
    clock.advance_secs(3_600);
    rig.cache.tick(&rig.cx);
    for n in 0..100u64 {
        assert!(rig.set(&n.to_le_bytes(), &[1; 100]));
    }
    rig.run(rig.cache.close(&rig.cx)).unwrap();
    drop(rig);
    let rig = open();
    for n in 0..50u64 {
        assert!(rig.run(rig.cache.delete(&rig.cx, &n.to_le_bytes())));
    }
    let mut before = rig.recovered.budget.bytes;
    let mut charge = 0;
    kill(rig);
    for run in 0..4 {
        // Both superblocks of the start are there, and nothing of its checkpoint.
        medium.set_plan(FaultPlan {
            crash: Some(CrashPoint::WriteOrAppend(3)),
            ..FaultPlan::default()
        });
        let rig = open();
        assert!(medium.is_crashed());
        let found = rig.recovered;
        assert!(!found.clean && !found.discarded);
        assert_eq!(before - found.budget.bytes, charge, "run {run}");
        assert!(found.log_records >= 50, "{found:?}");
        charge = (found.unpaid_bytes.unwrap() - 32 * found.log_records).cast_signed();
        assert!(charge > 16 << 10, "{charge}");
        before = found.budget.bytes;
        kill(rig);
    }
}

/// Minutes until something new goes in, of a cache whose objects were all deleted on a small budget, ended in between or not.
fn minutes_in_debt(end: Option<End>) -> usize {
    let free = CacheOptions {
        admission: AdmissionOptions::default(),
        ..fifo()
    };
    let mut server = Server::new(free);
    let key = |n: u64| n.to_le_bytes();
    for n in 0..20_000 {
        assert!(server.rig().set(&key(n), &[1; 100]));
        server.rig().settle();
    }
    // 48 blocks, the least: all deletes are some five hours of it.
    server.options.admission.budget = budget(48 * (64 << 10));
    server.restart(End::Stop, 600);
    assert_eq!(server.left(), 0, "there was no budget before");
    for n in 0..20_000 {
        assert!(
            server
                .rig()
                .run(server.rig().cache.delete(&server.rig().cx, &key(n)))
        );
        server.rig().settle();
    }
    if let Some(end) = end {
        server.restart(end, 0);
    }
    let minutes = (0..).take_while(|_| {
        let admits = server.admits();
        server.minute();
        !admits
    });
    minutes.take(2 * DAY_MINUTES).count()
}

#[test]
fn what_invalidations_overdrew_is_owed_after_a_stop_and_after_a_kill() {
    let alone = minutes_in_debt(None);
    assert!(alone > 240, "{alone}");
    for end in [End::Stop, End::Kill] {
        let minutes = minutes_in_debt(Some(end));
        println!("{end:?}: {minutes} minutes, {alone} without");
        // A restart costs a checkpoint, superblocks and the block that was open; a crash what may have been sent, too.
        assert!(minutes >= alone, "{end:?}: {minutes} of {alone}");
        assert!(minutes <= alone + 180, "{end:?}: {minutes} of {alone}");
    }
}

#[test]
fn another_budget_is_that_of_the_next_run() {
    let mut server = Server::new(fifo());
    (0..120).for_each(|_| server.minute());
    server.options.admission.budget = budget(BUDGET / 2);
    server.restart(End::Stop, 0);
    assert!((BUCKET / 2 * 9 / 10..=BUCKET / 2).contains(&server.left()));
    server.options.admission.budget = None;
    server.restart(End::Stop, 0);
    server.options.admission.budget = budget(BUDGET);
    server.restart(End::Stop, 600);
    assert_eq!(server.left(), 0, "nobody counted before");
}

/// Whatever is on flash, with a checksum that is right.
#[test]
fn a_level_that_no_budget_has_is_neither_credit_nor_a_debt_for_ever() {
    let nan = f64::NAN.to_bits().cast_signed();
    for bytes in [i64::MAX, i64::MIN, -1, nan, -nan, 1 << 53] {
        for at_secs in [0, 1, 1_000_100, u32::MAX] {
            for end in [End::Stop, End::Kill] {
                let mut server = Server::new(fifo());
                server.end(end);
                let device = MemDevice::new(Arc::clone(&server.medium));
                for slot in [0, SECTOR_BYTES as u64] {
                    let mut sector = [0; SECTOR_BYTES];
                    device.read_log(slot, &mut sector).unwrap();
                    let SlotContent::Valid(mut superblock) = Superblock::decode(&sector) else {
                        panic!("it is whole");
                    };
                    superblock.own[12..16].copy_from_slice(&at_secs.to_le_bytes());
                    superblock.own[16..24].copy_from_slice(&bytes.to_le_bytes());
                    device.append_log(slot, &superblock.encode()).unwrap();
                }
                server.start();
                let case = format!("{bytes} at {at_secs}, {end:?}");
                let left = server.left();
                assert!(
                    left <= if end == End::Stop { BUCKET } else { 0 },
                    "{case}: {left}"
                );
                assert!(server.burst() <= BUCKET, "{case}");
                (0..DAY_MINUTES + 60).for_each(|_| server.minute());
                assert!(server.admits(), "{case}");
            }
        }
    }
}
