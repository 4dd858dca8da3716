//! What a store keeps of a write budget over starts.

use crate::store::{Rig, content, options};
use locks::Mutex;
use pumice_blocks::{BudgetLevel, SlotContent, Superblock};
use pumice_chunk::store::BudgetOwner;
use pumice_device::{Device, SECTOR_BYTES};
use pumice_testkit::Store;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use std::sync::Arc;

/// What a checkpoint is charged for superblocks.
const SUPERBLOCKS: i64 = 4 * 4096;

const LEFT: BudgetLevel = BudgetLevel {
    bytes: 1_000_000,
    at_secs: 77,
};

/// Has always the same left, and notes what starts were told.
#[derive(Default)]
struct Owner(Mutex<Vec<(BudgetLevel, Option<u64>)>>);

impl BudgetOwner for Owner {
    fn resume(&self, left: BudgetLevel, unpaid: Option<u64>) {
        self.0.lock().push((left, unpaid));
    }

    fn left(&self, _: u64) -> BudgetLevel {
        assert!(!self.0.lock().is_empty(), "a start comes first");
        LEFT
    }

    fn may_keep(&self, _: u64) -> bool {
        true
    }
}

struct Starts {
    medium: Arc<FaultyMedium>,
    owner: Arc<Owner>,
}

impl Starts {
    fn new() -> Self {
        Self {
            medium: Arc::new(FaultyMedium::new(4 << 20, 1, FaultPlan::default())),
            owner: Arc::default(),
        }
    }

    /// A store, and what its start was told.
    fn start(&self) -> (Result<Rig, String>, (BudgetLevel, Option<u64>)) {
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        let rig = Rig::try_open_with(device, &options(), Some(Arc::clone(&self.owner) as _));
        let told = *self.owner.0.lock().last().expect("it was told");
        (rig, told)
    }

    fn crash(&self, rig: Result<Rig, String>) {
        drop(rig);
        self.medium.crash();
        self.medium.restart();
    }

    fn stop(rig: Result<Rig, String>) {
        rig.unwrap().close().unwrap();
    }
}

fn less(bytes: i64) -> BudgetLevel {
    BudgetLevel {
        bytes: LEFT.bytes - bytes,
        ..LEFT
    }
}

#[test]
fn a_start_is_told_what_was_left_and_what_a_crash_may_have_cost() {
    let starts = Starts::new();
    let (rig, told) = starts.start();
    assert_eq!(told, (BudgetLevel::default(), None), "of a new cache");
    Starts::stop(rig);
    let (rig, told) = starts.start();
    assert_eq!(told, (less(SUPERBLOCKS), None));
    // Voids and marks after the checkpoint, and none of a checkpoint.
    let mut rig = rig.unwrap();
    for n in 0..20 {
        rig.write(n, 0, &content(n));
        rig.settle();
    }
    let records = rig.store.block_counts().log_records;
    assert!(records >= 20);
    starts.crash(Ok(rig));
    let (rig, (left, unpaid)) = starts.start();
    assert_eq!(left, less(SUPERBLOCKS));
    let checkpoint = unpaid.unwrap() - 32 * records;
    assert!(checkpoint > SUPERBLOCKS as u64, "{checkpoint}");
    // Its own checkpoint, which this start has written, says what the owner has left now.
    starts.crash(rig);
    let (rig, (left, unpaid)) = starts.start();
    assert_eq!(left, less(SUPERBLOCKS));
    assert!(unpaid.unwrap() >= checkpoint);
    Starts::stop(rig);
    // Nobody counts what a run without a budget sends.
    let device = FaultyDevice::new(Arc::clone(&starts.medium));
    Starts::stop(Rig::try_open(device, &options()));
    assert_eq!(starts.start().1, (BudgetLevel::default(), None));
}

/// As docs/formats.md says.
#[test]
fn the_level_has_its_place_in_the_superblock() {
    let starts = Starts::new();
    Starts::stop(starts.start().0);
    let device = FaultyDevice::new(Arc::clone(&starts.medium));
    let superblocks = [0, SECTOR_BYTES as u64].map(|slot| {
        let mut sector = [0; SECTOR_BYTES];
        device.read_log(slot, &mut sector).unwrap();
        let SlotContent::Valid(superblock) = Superblock::decode(&sector) else {
            panic!("it is whole");
        };
        superblock
    });
    let newest = superblocks.iter().max_by_key(|superblock| superblock.generation);
    let own = newest.unwrap().own;
    assert_eq!(own[49..56], [0, 0, 0, 77, 0, 0, 0]);
    assert_eq!(own[56..], (1_000_000 - SUPERBLOCKS).to_le_bytes());
}

#[test]
fn a_start_that_crashes_before_its_checkpoint_is_charged_for_one() {
    let starts = Starts::new();
    Starts::stop(starts.start().0);
    let (rig, (mut before, _)) = starts.start();
    let mut charge = 0;
    starts.crash(rig);
    for run in 0..4 {
        // Both superblocks of the start are there, and nothing of its checkpoint.
        starts.medium.set_plan(FaultPlan {
            crash: Some(CrashPoint::WriteOrAppend(3)),
            ..FaultPlan::default()
        });
        let (rig, (left, unpaid)) = starts.start();
        assert!(starts.medium.is_crashed());
        assert_eq!(before.bytes - left.bytes, charge, "run {run}");
        charge = unpaid.unwrap().cast_signed();
        assert!(charge > SUPERBLOCKS, "{charge}");
        before = left;
        starts.crash(rig);
    }
}
