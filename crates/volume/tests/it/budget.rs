//! The write budget in virtual time: what the cache device counts is at most a twentieth above it in any period, whatever clients want.

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

type Counted = CountingDevice<MemDevice>;

/// Bytes that the device was sent in each second, and what became of the requests.
struct Lived {
    sent: Vec<u64>,
    counts: VolumeCounts,
}

impl Lived {
    /// The most in any period.
    fn most(&self) -> u64 {
        let periods = self.sent.windows(PERIOD_SECS);
        periods.map(|period| period.iter().sum()).max().unwrap()
    }

    fn last(&self) -> u64 {
        self.sent[(PERIODS - 1) * PERIOD_SECS..].iter().sum()
    }
}

/// Random writes, reads and TRIMs, of one chunk to four, and flushes. The second period begins quietly.
fn live(mode: Mode, rule: Rule, budget: Option<u64>) -> Lived {
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
    let backing = Memory::new(CHUNKS * CHUNK);
    let counters = Arc::new(DeviceCounters::new());
    let medium = Arc::new(MemMedium::new(12 << 20));
    let device: Counted = CountingDevice::new(MemDevice::new(medium), Arc::clone(&counters));
    let executor = Executor::new();
    let park = || device.turn(true).map(drop);
    let opened = executor.block_on(Shared::open(&settings, Some(&device), &backing), park);
    let (shared, _) = opened.unwrap().unwrap();
    let clock = Arc::new(ManualClock::new(1));
    let volume = Volume::new(
        Arc::new(shared),
        Some(device.clone()),
        backing,
        Rc::new(executor.spawner()),
        Arc::<ManualClock>::clone(&clock),
    );
    let sent = || {
        let counts = counters.snapshot();
        counts.written_bytes + counts.log_bytes
    };
    let (mut random, mut before, mut all) = (Random(3), sent(), Vec::new());
    let mut noise: Vec<u8> = (0..CHUNK).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    for second in 0..PERIODS * PERIOD_SECS {
        let is_quiet = (PERIOD_SECS..PERIOD_SECS + 100).contains(&second);
        for _ in 0..if is_quiet { 0 } else { 12 } {
            let chunks = 1 + random.below(4) as usize;
            let chunk = match random.below(2) {
                0 => random.below(400),
                _ => random.below((CHUNKS - 4) as u64),
            } as usize;
            let (offset, len) = ((chunk * CHUNK) as u64, chunks * CHUNK);
            executor
                .block_on(
                    async {
                        match random.below(10) {
                            0..5 => {
                                // No content is like another.
                                for chunk in noise[..len].chunks_mut(CHUNK) {
                                    chunk[..8].copy_from_slice(&random.next_u64().to_le_bytes());
                                }
                                let data = Bytes::copy_from_slice(&noise[..len]);
                                volume.write(offset, data, false).await.unwrap();
                            }
                            5 => volume.flush().await.unwrap(),
                            6 => volume.zero(offset, len as u64, true).await.unwrap(),
                            _ => drop(volume.read(offset, len).await.unwrap()),
                        }
                    },
                    park,
                )
                .unwrap();
        }
        clock.advance_secs(1);
        executor.block_on(volume.tick(), park).unwrap();
        executor.run_until_idle(park).unwrap();
        all.push(sent() - before);
        before = sent();
    }
    let counts = volume.shared().counts();
    for (what, begun, ended) in counts.balance(&counts) {
        assert_eq!(begun, ended, "{what}: {counts:?}");
    }
    volume.shared().store().unwrap().check_invariants();
    Lived { sent: all, counts }
}

#[test]
fn no_period_takes_more_than_the_budget_and_one_with_demand_takes_it() {
    for (mode, rule) in [
        (Mode::WriteBack, Rule::All),
        (Mode::WriteBack, Rule::SecondHit),
        (Mode::WriteThrough, Rule::All),
    ] {
        let demand = live(mode, Rule::All, None).last();
        for part in [2, 4] {
            let budget = demand / part;
            let lived = live(mode, rule, Some(budget));
            let share = |bytes: u64| bytes as f64 / budget as f64;
            let what = format!(
                "{mode:?}, {rule}, 1/{part} of {demand}: {:.3} at most, {:.3} last; {:?}",
                share(lived.most()),
                share(lived.last()),
                lived.counts
            );
            println!("{what}");
            assert!(share(lived.most()) <= 1.05, "{what}");
            assert!(share(lived.last()) >= 0.95, "{what}");
            assert!(
                lived.counts.fills_budget > 0 && lived.counts.writes_budget > 0,
                "{what}"
            );
        }
    }
}
