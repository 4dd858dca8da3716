//! How long a throttled device takes, by the time that it is given.

use pumice_device::conformance::block_on;
use pumice_device::{
    AlignedBuf, Buffer, Device, MemDevice, MemMedium, Profile, RealTime, Throttle, ThrottledDevice, Timeline,
    VirtualTime,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECTOR: usize = 4_096;
const OPERATIONS: usize = 2_000;

fn throttled(profile: &Profile) -> (Arc<VirtualTime>, ThrottledDevice<MemDevice>) {
    let time = Arc::new(VirtualTime::new());
    let throttle = Arc::new(Throttle::new(profile, Arc::clone(&time) as _));
    let medium = Arc::new(MemMedium::new(64 << 20));
    (time, ThrottledDevice::new(MemDevice::new(medium), throttle))
}

/// Operations a second with so many at a time, by the device's own time.
fn rate(profile: &Profile, depth: usize, bytes: usize, writes: bool) -> f64 {
    let (time, device) = throttled(profile);
    let buffer = Arc::new(AlignedBuf::with_len(bytes));
    let rounds = OPERATIONS / depth;
    for _ in 0..rounds {
        // All are started before the first is waited for.
        if writes {
            let all: Vec<_> = (0..depth)
                .map(|n| device.write((n * bytes) as u64, Arc::clone(&buffer), 0..bytes))
                .collect();
            all.into_iter()
                .for_each(|one| block_on(&device, one).expect("it is written"));
        } else {
            let all: Vec<_> = (0..depth)
                .map(|n| device.read((n * bytes) as u64, bytes))
                .collect();
            all.into_iter()
                .for_each(|one| drop(block_on(&device, one).expect("it is read")));
        }
    }
    (rounds * depth) as f64 * 1e9 / time.now_ns() as f64
}

fn assert_about(what: &str, found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.1,
        "{what}: {found:.0}, and its maker says {expected:.0}"
    );
}

/// The figures that the presets were made of.
#[test]
fn presets_do_what_their_makers_say() {
    for (profile, read_alone, read_many, write_alone, write_many) in [
        (Profile::OPTANE, 100_000.0, 575_000.0, 91_000.0, 550_000.0),
        (Profile::NVME, 15_000.0, 500_000.0, 55_000.0, 500_000.0),
        (Profile::SATA, 10_000.0, 98_000.0, 42_000.0, 90_000.0),
    ] {
        assert_about(profile.name, rate(&profile, 1, SECTOR, false), read_alone);
        assert_about(profile.name, rate(&profile, OPERATIONS, SECTOR, false), read_many);
        assert_about(profile.name, rate(&profile, 1, SECTOR, true), write_alone);
        assert_about(profile.name, rate(&profile, OPERATIONS, SECTOR, true), write_many);
    }
    assert_about("hdd", rate(&Profile::HDD, 10, SECTOR, false), 79.0);
    for profile in Profile::ALL {
        let mib = 1 << 20;
        let gigabytes = rate(&profile, 20, mib, false) * mib as f64 / 1e9;
        let most = profile.read.bytes_per_second as f64 / 1e9;
        assert!(gigabytes <= most * 1.001, "{profile}: {gigabytes} of {most} GB/s");
        assert!(gigabytes > most * 0.2, "{profile}: {gigabytes} of {most} GB/s");
    }
}

#[test]
fn a_sync_waits_for_writes_and_not_for_reads() {
    let (time, device) = throttled(&Profile::HDD);
    let buffer = Arc::new(AlignedBuf::with_len(SECTOR));
    block_on(&device, device.sync()).unwrap();
    assert_eq!(time.now_ns(), 0, "nothing to flush");
    drop(device.read(0, SECTOR));
    drop(device.write(0, Arc::clone(&buffer), 0..SECTOR));
    drop(device.write(1 << 20, buffer, 0..SECTOR));
    block_on(&device, device.sync()).unwrap();
    let two_writes = 2 * Profile::HDD.write.latency_ns;
    assert!(
        (two_writes..two_writes + 1_000_000).contains(&time.now_ns()),
        "{}",
        time.now_ns()
    );
}

#[test]
fn what_is_refused_and_what_goes_to_memory_takes_no_time() {
    let (time, device) = throttled(&Profile::HDD);
    assert!(block_on(&device, device.read(1, SECTOR)).is_err());
    device.append_log(5_000, b"record").unwrap();
    assert_eq!((time.now_ns(), device.next_due_ns()), (0, None));
}

#[test]
fn handles_share_the_device() {
    let (time, one) = throttled(&Profile::HDD);
    let other = one.clone();
    drop(one.read(0, SECTOR));
    block_on(&other, other.read(SECTOR as u64, SECTOR)).unwrap();
    assert!(
        time.now_ns() >= 2 * Profile::HDD.read.latency_ns,
        "{}",
        time.now_ns()
    );
}

#[test]
fn in_real_time_it_takes_real_time() {
    let throttle = Arc::new(Throttle::new(&Profile::HDD, Arc::new(RealTime::new())));
    let device = ThrottledDevice::new(MemDevice::new(Arc::new(MemMedium::new(1 << 20))), throttle);
    let started = Instant::now();
    for _ in 0..3 {
        block_on(&device, device.read(0, SECTOR)).unwrap();
    }
    let took = started.elapsed();
    // A busy machine may take longer.
    assert!(
        took >= Duration::from_nanos(3 * Profile::HDD.read.latency_ns),
        "{took:?}"
    );
}

#[test]
fn kinds_are_known_by_name() {
    for profile in Profile::ALL {
        assert_eq!(profile.name.parse(), Ok(profile));
    }
    let error = "tape".parse::<Profile>().unwrap_err().to_string();
    assert!(error.contains("`tape`") && error.contains("hdd"), "{error}");
}
