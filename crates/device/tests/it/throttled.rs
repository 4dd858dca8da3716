//! How long a throttled device takes, by the time that it is given.

use pumice_device::{
    AlignedBuf, Buffer, Device, MemDevice, MemMedium, Profile, RealTime, Throttle, ThrottledDevice, Timeline,
    VirtualTime,
};
use pumice_testkit::conformance::block_on;
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
            // From the last place to the first: none follows on the one before.
            let all: Vec<_> = (0..depth)
                .rev()
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
    let (time, device) = throttled(&Profile::NVME);
    let buffer = Arc::new(AlignedBuf::with_len(SECTOR));
    block_on(&device, device.sync()).unwrap();
    assert_eq!(time.now_ns(), 0, "nothing to flush");
    drop(device.read(0, SECTOR));
    drop(device.write(0, Arc::clone(&buffer), 0..SECTOR));
    drop(device.write(1 << 20, buffer, 0..SECTOR));
    block_on(&device, device.sync()).unwrap();
    let (write, read) = (Profile::NVME.write.latency_ns, Profile::NVME.read.latency_ns);
    assert!((write..read).contains(&time.now_ns()), "{}", time.now_ns());
}

#[test]
fn a_disk_that_writes_does_not_read() {
    let (time, device) = throttled(&Profile::HDD);
    let buffer = Arc::new(AlignedBuf::with_len(SECTOR));
    drop(device.write(1 << 20, buffer, 0..SECTOR));
    block_on(&device, device.read(0, SECTOR)).unwrap();
    let two = 2 * Profile::HDD.read.latency_ns;
    assert!(
        (two..two + 1_000_000).contains(&time.now_ns()),
        "{}",
        time.now_ns()
    );
}

#[test]
fn a_disk_seeks_once_for_what_follows() {
    let (time, device) = throttled(&Profile::HDD);
    for n in 0..1_000 {
        block_on(&device, device.read(n * SECTOR as u64, SECTOR)).unwrap();
    }
    let seconds = time.now_ns() as f64 / 1e9;
    let expected = 0.0127 + 1_000.0 * SECTOR as f64 / 250e6;
    assert!(
        (seconds / expected - 1.0).abs() < 0.01,
        "{seconds} s, not {expected} s"
    );
}

#[test]
fn what_is_refused_and_what_goes_to_memory_takes_no_time() {
    let (time, device) = throttled(&Profile::HDD);
    assert!(block_on(&device, device.read(1, SECTOR)).is_err());
    device.append_log(5_000, b"record").unwrap();
    assert_eq!((time.now_ns(), device.delays().next_due_ns()), (0, None));
}

#[test]
fn handles_share_the_device() {
    let (time, one) = throttled(&Profile::HDD);
    let other = one.clone();
    drop(one.read(0, SECTOR));
    block_on(&other, other.read(1 << 20, SECTOR)).unwrap();
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
    let odd = "nvme*40:read=2us/2.5GB/6:vary=30:stall=5ms/200ms:seed=7";
    let profile: Profile = odd.parse().unwrap();
    assert_eq!(profile.write, Profile::NVME.slower(40).write);
    assert_eq!(
        (profile.read.latency_ns, profile.read.bytes_per_second),
        (2_000, 2_500_000_000)
    );
    for text in [odd, "optane*40", "hdd"] {
        let profile: Profile = text.parse().unwrap();
        assert_eq!(profile.to_string().parse(), Ok(profile), "{text}");
    }
    assert_eq!("optane*40".parse::<Profile>().unwrap().to_string(), "optane*40");
    for wrong in [
        "nvme*0",
        "nvme*",
        "nvme:read=5us",
        "nvme:read=5us/0B/1",
        "nvme:write=5us/1GB/0",
        "nvme:vary=101",
        "nvme:stall=5ms/5ms",
        "nvme:stall=5/200",
        "nvme:read=-1us/1GB/1",
        "nvme:lanes=3",
        "nvme:",
        "nvme:read=1us/1GB/1/1",
    ] {
        let part = wrong.split_once(':').map_or(wrong, |(_, part)| part);
        let error = wrong.parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{part}`")), "{error}");
    }
    let error = "tape".parse::<Profile>().unwrap_err().to_string();
    assert!(error.contains("`tape`") && error.contains("hdd"), "{error}");
}
