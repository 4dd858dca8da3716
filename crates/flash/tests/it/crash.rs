//! A crash at writes and appends all over a workload, with the store alone, in the runs of testkit: what stood on flash and was neither
//! changed nor given up is there afterwards, all of it; what was changed never comes back.

use crate::common::{NOW, Random, Rig, options, ripq, sipq};
use pumice_blocks::Durability;
use pumice_device::Device;
use pumice_flash::inspect::{Finding, Severity, Sink, inspect};
use pumice_flash::{LayoutOptions, OpenOptions};
use pumice_record::SliceId;
use pumice_testkit::FaultyDevice;
use pumice_testkit::{Inspection, Load, Store, crash_at_every_write, inspect_names_damage, power_cuts};
use std::cell::Cell;
use std::ops::Range;

/// No case has more keys.
const KEYS_MAX: u64 = 900;

const FIFO: u8 = 0;
const SIPQ: u8 = 1;
const RIPQ: u8 = 2;

thread_local! {
    /// The most survivors, and the most reclaimed blocks, of one life.
    static MOST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

struct Flash<const LAYOUT: u8, const POWER: bool> {
    rig: Rig,
    random: Random,
}

impl<const LAYOUT: u8, const POWER: bool> Drop for Flash<LAYOUT, POWER> {
    fn drop(&mut self) {
        let counts = self.rig.store().counts();
        let (survivors, reclaimed) = MOST.get();
        MOST.set((
            survivors.max(counts.survivors),
            reclaimed.max(counts.reclaimed_blocks),
        ));
    }
}

impl<const LAYOUT: u8, const POWER: bool> Store for Flash<LAYOUT, POWER> {
    const SURVIVES_POWER_CUTS: bool = POWER;

    fn open(device: FaultyDevice) -> Result<Self, String> {
        let options = OpenOptions {
            layout: match LAYOUT {
                FIFO => LayoutOptions::default(),
                SIPQ => sipq(),
                _ => ripq(),
            },
            buffers_max: 8,
            ..options(if POWER {
                Durability::Power
            } else {
                Durability::Process
            })
        };
        Ok(Self {
            rig: Rig::open(device.medium(), KEYS_MAX, &options),
            random: Random(1),
        })
    }

    fn has_forgotten(&self) -> bool {
        self.rig.recovered.discarded
    }

    fn set(&mut self, key: u64, value: u64) -> bool {
        // Hits, which move objects up in the queue where there is one.
        for _ in 0..2 {
            self.rig.read(self.random.below(KEYS_MAX / 3));
        }
        let len = 100 + self.random.below(3_000) as usize;
        let bytes: Vec<u8> = value.to_le_bytes().into_iter().cycle().take(len).collect();
        let version = self.rig.remove(key);
        self.rig
            .append_bytes(key, &bytes, version, SliceId::Whole, None)
            .is_some()
    }

    fn delete(&mut self, key: u64) {
        self.rig.delete(key);
    }

    fn commit(&mut self) -> bool {
        let committed = self.rig.run(self.rig.store().journal.commit(&self.rig.device));
        committed.is_ok()
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let (_, bytes) = self.rig.read(key)?;
        let value = *bytes.first_chunk().expect("a value has 100 bytes at least");
        assert!(
            bytes.iter().eq(value.iter().cycle().take(bytes.len())),
            "key {key}"
        );
        Some(u64::from_le_bytes(value))
    }

    fn is_on_device(&mut self, key: u64) -> bool {
        self.rig.is_on_flash(key)
    }

    fn turn(&mut self) {
        self.rig.turn();
    }

    fn settle(&mut self) {
        self.rig.settle();
    }

    fn given_up(&mut self) -> Vec<u64> {
        // A reclaim that the crash has broken off logged its block before it drops what is in it.
        if self.rig.device.medium().is_crashed() {
            self.rig.settle();
        }
        self.rig.index.given_up.lock().drain().collect()
    }

    fn check(&mut self) {
        self.rig.settle();
        self.rig.check_blocks();
    }

    fn close(self) -> Result<(), String> {
        self.rig.store().retire_active();
        self.rig.settle();
        let checkpoint = (self.rig.store()).checkpoint(&self.rig.device, &*self.rig.index, NOW, true);
        self.rig.run(checkpoint).map_err(|error| error.to_string())
    }

    fn inspect(device: FaultyDevice) -> Result<Inspection, String> {
        let mut bytes = vec![0; device.capacity() as usize];
        device
            .read_log(0, &mut bytes)
            .map_err(|error| error.to_string())?;
        let mut found = Found::default();
        inspect(&bytes[..], &mut found, false).map_err(|error| error.to_string())?;
        Ok(found.0)
    }
}

/// What `pumice inspect` says; a leftover of a crash is no problem.
#[derive(Default)]
struct Found(Inspection);

impl Sink for Found {
    fn found(&mut self, finding: Finding) {
        if finding.severity == Severity::Inconsistency {
            self.0.problems.push(finding.to_string());
        }
    }

    fn used(&mut self, range: Range<u64>) {
        self.0.metadata.push(range);
    }
}

#[test]
fn what_is_committed_with_power_survives_power_cuts() {
    let load = Load {
        seed: 4,
        capacity: 2 << 20,
        keys: 600,
        steps: 300,
        stride: 1,
    };
    for totals in [
        power_cuts::<Flash<FIFO, true>>(load, 40),
        power_cuts::<Flash<RIPQ, true>>(load, 40),
    ] {
        println!("{totals:?}");
        assert!(
            totals.power_cuts == 40 && totals.lost_in_power_cuts > 15,
            "{totals:?}"
        );
        assert!(totals.seen.owed > 2_000 && totals.forgotten < 3, "{totals:?}");
    }
}

#[test]
fn an_inspection_names_every_changed_byte_that_counts() {
    let load = Load {
        seed: 3,
        capacity: 1 << 20,
        keys: 250,
        steps: 1_600,
        stride: 11,
    };
    let of_fifo = inspect_names_damage::<Flash<FIFO, false>>(load);
    let of_ripq = inspect_names_damage::<Flash<RIPQ, false>>(load);
    println!("{of_fifo:?} {of_ripq:?}");
    assert!(of_fifo.faults > 1_000 && of_ripq.faults > 1_000);
}

fn crash_everywhere<const LAYOUT: u8, const POWER: bool>(load: Load) {
    MOST.set((0, 0));
    let totals = crash_at_every_write::<Flash<LAYOUT, POWER>>(load);
    let (survivors, reclaimed) = MOST.get();
    println!("{totals:?}, {survivors} survivors, {reclaimed} blocks reclaimed");
    assert!(survivors > 20 || LAYOUT == FIFO, "{survivors}");
    assert!(reclaimed > 8, "{reclaimed}");
    // Two crashes a point.
    assert!(
        totals.crashes > 100 && totals.seen.owed > totals.crashes / 2 * 50,
        "{totals:?}"
    );
}

#[test]
fn what_stood_on_flash_is_there_after_a_crash() {
    crash_everywhere::<FIFO, false>(Load {
        seed: 1,
        capacity: 2 << 20,
        keys: 600,
        steps: 2_400,
        stride: 7,
    });
}

/// A load that moves objects.
fn long() -> Load {
    Load {
        seed: 2,
        capacity: 2 << 20,
        keys: 900,
        steps: 3_400,
        stride: 11,
    }
}

#[test]
fn what_stood_on_flash_is_there_after_a_crash_under_sipq() {
    crash_everywhere::<SIPQ, false>(long());
}

#[test]
fn what_stood_on_flash_is_there_after_a_crash_under_ripq() {
    crash_everywhere::<RIPQ, false>(Load {
        capacity: 3 << 20,
        ..long()
    });
}

#[test]
#[ignore = "every point with many seeds: a minute"]
fn what_stood_on_flash_is_there_after_any_crash() {
    for seed in 2..17 {
        let is_large = seed % 2 == 0;
        let load = Load {
            seed,
            capacity: if is_large { 2 << 20 } else { 1 << 20 },
            keys: if is_large { 600 } else { 250 },
            steps: if is_large { 2_400 } else { 1_600 },
            stride: 3 + seed % 3,
        };
        match (seed % 3, seed % 4) {
            (0, 0) => crash_everywhere::<RIPQ, true>(load),
            (0, _) => crash_everywhere::<RIPQ, false>(load),
            (1, 0) => crash_everywhere::<SIPQ, true>(load),
            (1, _) => crash_everywhere::<SIPQ, false>(load),
            (_, 0) => crash_everywhere::<FIFO, true>(load),
            (_, _) => crash_everywhere::<FIFO, false>(load),
        }
    }
}
