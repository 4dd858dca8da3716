//! The faulty device does what its plan says, no less and no more.

use pumice_device::{AlignedBuf, Buffer, Device, Payload};
use pumice_testkit::conformance::block_on;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

const SECTOR: usize = 4096;

fn faulty(seed: u64, plan: FaultPlan) -> (Arc<FaultyMedium>, FaultyDevice) {
    let medium = Arc::new(FaultyMedium::new(1 << 20, seed, plan));
    (Arc::clone(&medium), FaultyDevice::new(medium))
}

fn filled(byte: u8, sectors: usize) -> Arc<AlignedBuf> {
    let buf = AlignedBuf::with_len(sectors * SECTOR);
    // SAFETY: nobody else knows the buffer.
    unsafe { buf.put(0, Payload::Bytes(&vec![byte; sectors * SECTOR])) };
    Arc::new(buf)
}

fn write(device: &FaultyDevice, sector: u64, byte: u8, sectors: usize) -> io::Result<()> {
    let write = device.write(sector * SECTOR as u64, filled(byte, sectors), 0..sectors * SECTOR);
    block_on(device, write)
}

fn read(device: &FaultyDevice, sector: u64, sectors: usize) -> io::Result<AlignedBuf> {
    block_on(device, device.read(sector * SECTOR as u64, sectors * SECTOR))
}

/// The byte that fills each sector, which must be one.
fn sectors(device: &FaultyDevice, sector: u64, count: usize) -> Vec<u8> {
    let buf = read(device, sector, count).unwrap();
    buf.as_slice()
        .chunks(SECTOR)
        .map(|sector| {
            assert!(sector.iter().all(|b| *b == sector[0]), "a sector is torn");
            sector[0]
        })
        .collect()
}

#[test]
fn a_crash_tears_its_write_and_fails_everything_until_the_restart() {
    let mut shapes = [false; 5];
    for seed in 0..200 {
        let plan = FaultPlan {
            crash: Some(CrashPoint::Write(3)),
            ..FaultPlan::default()
        };
        let (medium, device) = faulty(seed, plan);
        write(&device, 0, 1, 8).unwrap();
        device.append_log(900_000, b"before").unwrap();
        write(&device, 8, 2, 8).unwrap();
        assert!(write(&device, 0, 3, 8).is_err());
        assert!(medium.is_crashed());
        assert!(read(&device, 8, 1).is_err() && write(&device, 8, 9, 1).is_err());
        assert!(device.append_log(900_000, b"after!").is_err());
        assert!(device.read_log(900_000, &mut [0; 6]).is_err());
        assert!(block_on(&device, device.sync()).is_err());
        medium.restart();
        assert_eq!(sectors(&device, 8, 8), [2; 8]);
        let mut log = [0; 6];
        device.read_log(900_000, &mut log).unwrap();
        assert_eq!(&log, b"before");
        let torn = sectors(&device, 0, 8);
        assert!(torn.iter().all(|b| *b == 1 || *b == 3), "{torn:?}");
        let new = torn.iter().filter(|b| **b == 3).count();
        shapes[match new {
            0 => 0,
            8 => 1,
            _ if torn.is_sorted_by(|a, b| a >= b) => 2,
            _ if torn.is_sorted() => 3,
            _ => 4,
        }] = true;
        write(&device, 0, 4, 8).unwrap();
        assert_eq!(sectors(&device, 0, 8), [4; 8]);
        assert_eq!((medium.counts().crashes, medium.counts().torn_writes), (1, 1));
    }
    assert_eq!(
        shapes, [true; 5],
        "none, all, a first part, a last part, scattered"
    );
}

#[test]
fn a_crash_cuts_its_log_append_at_some_byte() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let plan = FaultPlan {
            crash: Some(CrashPoint::Append(2)),
            ..FaultPlan::default()
        };
        let (medium, device) = faulty(seed, plan);
        write(&device, 0, 1, 1).unwrap();
        device.append_log(500_001, b"first").unwrap();
        assert!(device.append_log(500_006, b"second").is_err());
        medium.restart();
        let mut log = [0; 11];
        device.read_log(500_001, &mut log).unwrap();
        let kept = log.iter().position(|b| *b == 0).unwrap_or(11);
        assert_eq!(log[..kept], b"firstsecond"[..kept]);
        assert!(log[kept..].iter().all(|b| *b == 0));
        lengths.insert(kept);
    }
    assert_eq!(lengths, (5..=11).collect());
}

#[test]
fn writes_and_appends_count_together_where_asked() {
    let plan = FaultPlan {
        crash: Some(CrashPoint::WriteOrAppend(3)),
        ..FaultPlan::default()
    };
    let (medium, device) = faulty(1, plan.clone());
    write(&device, 0, 1, 1).unwrap();
    device.append_log(500_000, b"x").unwrap();
    assert!(write(&device, 0, 1, 1).is_err());
    medium.restart();
    medium.set_plan(plan);
    write(&device, 0, 1, 1).unwrap();
    write(&device, 0, 1, 1).unwrap();
    assert!(device.append_log(500_000, b"x").is_err());
    assert_eq!(medium.counts().crashes, 2);
}

#[test]
fn lost_writes_are_reported_done_and_leave_the_old_content() {
    let (medium, device) = faulty(7, FaultPlan::default());
    write(&device, 0, 1, 100).unwrap();
    medium.set_plan(FaultPlan {
        lost_write: 0.5,
        ..FaultPlan::default()
    });
    for sector in 0..100 {
        write(&device, sector, 2, 1).unwrap();
    }
    let old = sectors(&device, 0, 100).iter().filter(|b| **b == 1).count();
    assert_eq!(medium.counts().lost_writes, old as u64);
    assert!((20..=80).contains(&old), "{old}");
}

#[test]
fn bit_rot_on_read_is_one_bit_and_gone_at_the_next_read() {
    let (medium, device) = faulty(7, FaultPlan::default());
    write(&device, 0, 0, 2).unwrap();
    medium.set_plan(FaultPlan {
        bit_rot: 1.0,
        log_bit_rot: 1.0,
        ..FaultPlan::default()
    });
    let wrong = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    for _ in 0..10 {
        assert_eq!(wrong(read(&device, 0, 2).unwrap().as_slice()), 1);
        let mut log = [0; 100];
        device.read_log(500_000, &mut log).unwrap();
        assert_eq!(wrong(&log), 1);
    }
    assert_eq!(medium.counts().rotten_bits, 20);
    medium.set_plan(FaultPlan::default());
    assert_eq!(wrong(read(&device, 0, 2).unwrap().as_slice()), 0);
    medium.rot_at(5000);
    for _ in 0..2 {
        let buf = read(&device, 0, 2).unwrap();
        assert!(wrong(buf.as_slice()) == 1 && buf.as_slice()[5000] != 0);
    }
}

#[test]
fn reads_of_a_bad_range_fail_and_others_do_not() {
    let plan = FaultPlan {
        bad_ranges: vec![5000..5001, 300_000..300_001],
        ..FaultPlan::default()
    };
    let (medium, device) = faulty(7, plan);
    assert!(read(&device, 0, 1).is_ok() && read(&device, 2, 4).is_ok());
    assert!(read(&device, 1, 1).is_err() && read(&device, 0, 3).is_err());
    assert!(device.read_log(4990, &mut [0; 10]).is_ok());
    assert!(device.read_log(4990, &mut [0; 11]).is_err());
    assert_eq!(medium.counts().read_errors, 3);
}

#[test]
fn errors_come_with_their_probability_and_leave_each_sector_old_or_new() {
    let plan = FaultPlan {
        write_error: 0.3,
        read_error: 0.3,
        append_error: 0.3,
        ..FaultPlan::default()
    };
    let (medium, device) = faulty(3, plan);
    let mut failed = (0, 0, 0);
    for round in 0..200_u8 {
        failed.0 += u64::from(write(&device, 0, round, 4).is_err());
        failed.1 += u64::from(read(&device, 0, 4).is_err());
        failed.2 += u64::from(device.append_log(900_000, b"record").is_err());
    }
    let counts = medium.counts();
    assert_eq!(
        (counts.write_errors, counts.read_errors, counts.append_errors),
        failed
    );
    for failed in [failed.0, failed.1, failed.2] {
        assert!((30..=90).contains(&failed), "{failed} of 200");
    }
    medium.set_plan(FaultPlan::default());
    write(&device, 0, 1, 4).unwrap();
    medium.set_plan(FaultPlan {
        write_error: 1.0,
        ..FaultPlan::default()
    });
    assert!(write(&device, 0, 2, 4).is_err());
    assert!(sectors(&device, 0, 4).iter().all(|b| *b == 1 || *b == 2));
}

/// Which of 20 writes to 20 sectors completed first, second and so on.
fn completion_order(seed: u64) -> Vec<u64> {
    let (_, device) = faulty(
        seed,
        FaultPlan {
            delay: true,
            ..FaultPlan::default()
        },
    );
    let order = Rc::new(RefCell::new(Vec::new()));
    let executor = pumice_world::Executor::new();
    for sector in 0..20 {
        let write = device.write(sector * SECTOR as u64, filled(1, 1), 0..SECTOR);
        let order = Rc::clone(&order);
        pumice_world::Spawner::spawn(
            &executor.spawner(),
            Box::pin(async move {
                write.await.unwrap();
                order.borrow_mut().push(sector);
            }),
        );
    }
    executor.run_until_idle(|| device.turn(true).map(drop)).unwrap();
    order.take()
}

#[test]
fn delayed_operations_complete_in_an_order_that_the_seed_decides() {
    let order = completion_order(1);
    assert_eq!(order, completion_order(1));
    assert_ne!(order, completion_order(2));
    assert!(!order.is_sorted());
}

#[test]
fn a_delayed_operation_has_no_effect_before_a_turn() {
    let (medium, device) = faulty(
        1,
        FaultPlan {
            delay: true,
            ..FaultPlan::default()
        },
    );
    let mut write = pin!(device.write(0, filled(1, 1), 0..SECTOR));
    let noop = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(write.as_mut().poll(noop).is_pending());
    assert_eq!(medium.counts().writes, 0);
    assert_eq!(device.turn(false).unwrap(), 1);
    assert!(write.as_mut().poll(noop).is_ready());
}

#[test]
fn a_crash_tears_every_write_under_way_and_wakes_who_waits() {
    for seed in 0..20 {
        let (medium, device) = faulty(seed, FaultPlan::default());
        write(&device, 0, 1, 64).unwrap();
        medium.set_plan(FaultPlan {
            delay: true,
            crash: Some(CrashPoint::Append(1)),
            ..FaultPlan::default()
        });
        let writes: Vec<_> = (0..8)
            .map(|i| device.write(i * 8 * SECTOR as u64, filled(2, 8), 0..8 * SECTOR))
            .collect();
        assert!(device.append_log(900_000, b"record").is_err());
        for write in writes {
            assert!(block_on(&device, write).is_err());
        }
        medium.restart();
        let after = sectors(&device, 0, 64);
        assert!(after.contains(&1) && after.contains(&2), "{after:?}");
        assert_eq!(medium.counts().torn_writes, 8);
    }
}
