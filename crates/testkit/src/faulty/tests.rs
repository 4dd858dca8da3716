use super::{FaultPlan, FaultyDevice, FaultyMedium};
use crate::conformance::block_on;
use pumice_device::{AlignedBuf, Buffer, Device, Overdue, Payload, SECTOR_BYTES};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const SECTOR: u64 = SECTOR_BYTES as u64;

fn faulty(seed: u64, plan: FaultPlan) -> (Arc<FaultyMedium>, FaultyDevice) {
    let medium = Arc::new(FaultyMedium::new(1 << 20, seed, plan));
    (Arc::clone(&medium), FaultyDevice::new(medium))
}

fn write(device: &FaultyDevice, sector: u64, byte: u8, sectors: usize) -> io::Result<()> {
    let buf = AlignedBuf::with_len(sectors * SECTOR_BYTES);
    // SAFETY: nobody else knows the buffer.
    unsafe { buf.put(0, Payload::Bytes(&vec![byte; sectors * SECTOR_BYTES])) };
    block_on(
        device,
        device.write(sector * SECTOR, Arc::new(buf), 0..sectors * SECTOR_BYTES),
    )
}

/// The first byte of each sector.
fn sectors(device: &FaultyDevice) -> Vec<u8> {
    let len = device.capacity() as usize;
    let all = block_on(device, device.read(0, len)).unwrap();
    all.as_slice()
        .chunks(SECTOR_BYTES)
        .map(|sector| sector[0])
        .collect()
}

#[test]
fn a_misdirected_write_leaves_its_place_and_changes_another_that_writes_use() {
    for seed in 0..100 {
        let (medium, device) = faulty(seed, FaultPlan::default());
        write(&device, 8, 1, 4).unwrap();
        medium.set_plan(FaultPlan {
            misdirected_write: 1.0,
            ..FaultPlan::default()
        });
        write(&device, 40, 2, 4).unwrap();
        let found = sectors(&device);
        assert_eq!(found[..8], [0; 8], "nothing was ever written there");
        assert_eq!(found.iter().filter(|byte| **byte == 2).count(), 4);
        assert_eq!(medium.counts().misdirected_writes, 1);
    }
}

#[test]
fn without_space_nothing_is_written() {
    let plan = FaultPlan {
        no_space: 1.0,
        ..FaultPlan::default()
    };
    let (medium, device) = faulty(1, plan);
    assert_eq!(
        write(&device, 3, 1, 2).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    let refused = device.append_log(5_000, b"record").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(sectors(&device), [0; 256]);
    assert_eq!(medium.counts().no_space_errors, 2);
}

#[test]
fn a_dead_device_fails_everything_until_another_plan() {
    let plan = FaultPlan {
        dies_at: Some(3),
        ..FaultPlan::default()
    };
    let (medium, device) = faulty(1, plan);
    write(&device, 0, 1, 1).unwrap();
    device.append_log(5_000, b"record").unwrap();
    assert!(write(&device, 8, 2, 1).is_err());
    assert!(write(&device, 0, 3, 1).is_err() && device.append_log(5_000, b"later").is_err());
    assert!(block_on(&device, device.sync()).is_err() && device.read_log(0, &mut [0]).is_err());
    assert!(block_on(&device, device.read(0, SECTOR_BYTES)).is_err());
    assert_eq!(medium.counts().dead_operations, 6);
    medium.set_plan(FaultPlan::default());
    assert_eq!(sectors(&device)[0], 1);
}

#[test]
fn a_late_operation_is_overtaken_and_comes_to_its_end() {
    let mut overtaken = 0;
    for seed in 0..50 {
        let plan = FaultPlan {
            delay: true,
            slow: 0.5,
            ..FaultPlan::default()
        };
        let (medium, device) = faulty(seed, plan);
        let buf = Arc::new(AlignedBuf::with_len(SECTOR_BYTES));
        let first = device.write(0, buf, 0..SECTOR_BYTES);
        write(&device, 8, 1, 1).unwrap();
        let before = medium.counts().writes;
        block_on(&device, first).unwrap();
        overtaken += u64::from(medium.counts().writes > before);
    }
    assert!((5..45).contains(&overtaken), "{overtaken} of 50");
}

#[test]
fn what_hangs_is_ended_by_time_and_may_be_done_by_a_device_that_goes_on() {
    let mut done = 0;
    for seed in 0..50 {
        let plan = FaultPlan {
            hangs_at: Some(2),
            ..FaultPlan::default()
        };
        let (medium, device) = faulty(seed, plan);
        write(&device, 0, 1, 1).unwrap();
        let buf = AlignedBuf::with_len(SECTOR_BYTES);
        // SAFETY: nobody else knows the buffer.
        unsafe { buf.put(0, Payload::Bytes(&[2])) };
        let mut hanging = Box::pin(device.write(0, Arc::new(buf), 0..SECTOR_BYTES));
        let mut poll = || hanging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!((device.turn(true).unwrap(), device.tick(1).len()), (0, 0));
        assert!(poll().is_pending());
        assert_eq!(device.tick(1).len(), 1);
        assert!(matches!(poll(), Poll::Ready(Err(error)) if Overdue::is(&error)));
        assert_eq!((device.tick(0).len(), medium.counts().hung), (0, 1));
        medium.set_plan(FaultPlan::default());
        device.turn(true).unwrap();
        done += u64::from(sectors(&device)[0] == 2);
    }
    assert!((10..40).contains(&done), "{done} of 50");
}

#[test]
fn a_power_cut_takes_only_what_was_not_synced() {
    let (mut kept_writes, mut kept_appends) = (0, 0);
    for seed in 0..200 {
        let plan = FaultPlan {
            volatile: true,
            ..FaultPlan::default()
        };
        let (medium, device) = faulty(seed, plan);
        write(&device, 8, 1, 4).unwrap();
        device.append_log(0, &[1; 32]).unwrap();
        block_on(&device, device.sync()).unwrap();
        write(&device, 8, 2, 4).unwrap();
        write(&device, 9, 3, 1).unwrap();
        (1..5).for_each(|n| device.append_log(n * 32, &[n as u8 + 1; 32]).unwrap());
        medium.cut_power();
        assert!(medium.is_crashed());
        medium.restart();
        let found = sectors(&device);
        let is_legal = |(sector, byte): (usize, &u8)| [1, 2].contains(byte) || (sector == 1 && *byte == 3);
        assert!(found[8..12].iter().enumerate().all(is_legal), "{found:?}");
        kept_writes += u64::from(found[8] == 2);
        let mut log = [0; 160];
        device.read_log(0, &mut log).unwrap();
        // A first part of what one page had.
        let records = log.chunks(32).take_while(|record| record[0] != 0).count();
        assert!(
            records >= 1 && log[records * 32..].iter().all(|byte| *byte == 0),
            "{log:?}"
        );
        kept_appends += records - 1;
    }
    assert!((60..140).contains(&kept_writes), "{kept_writes}");
    assert!((250..550).contains(&kept_appends), "{kept_appends}");
}
