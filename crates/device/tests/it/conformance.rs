//! Every device runs the one suite.

use pumice_device::{
    CountingDevice, DeviceCounters, Engine, FileDevice, FileOptions, FileShared, MemDevice, MemMedium,
    Profile, RealTime, SparseDevice, SparseMedium, Throttle, ThrottledDevice, Timeline, VirtualTime,
};
use pumice_testkit::conformance::{MIN_CAPACITY, check};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use std::sync::Arc;

const THREE_TIB: u64 = 3 << 40;

#[test]
fn memory_conforms() {
    let medium = Arc::new(MemMedium::new(MIN_CAPACITY));
    check(|| MemDevice::new(Arc::clone(&medium)));
}

#[test]
fn three_tib_of_memory_conform_and_cost_only_what_was_written() {
    let medium = Arc::new(MemMedium::new(THREE_TIB + 5));
    assert_eq!(medium.capacity(), THREE_TIB);
    check(|| MemDevice::new(Arc::clone(&medium)));
    assert!(medium.resident_bytes() < 64 << 20, "{}", medium.resident_bytes());
}

#[test]
fn sparse_conforms() {
    let medium = Arc::new(SparseMedium::new(MIN_CAPACITY));
    check(|| SparseDevice::new(Arc::clone(&medium)));
}

#[test]
fn three_tib_sparse_conform() {
    let medium = Arc::new(SparseMedium::new(THREE_TIB));
    check(|| SparseDevice::new(Arc::clone(&medium)));
}

#[test]
fn counting_conforms() {
    let medium = Arc::new(MemMedium::new(MIN_CAPACITY));
    let counters = Arc::new(DeviceCounters::new());
    check(|| CountingDevice::new(MemDevice::new(Arc::clone(&medium)), Arc::clone(&counters)));
    assert!(counters.snapshot().reads > 1000);
}

#[test]
fn throttled_conforms_in_virtual_time_as_any_kind_of_device() {
    for profile in Profile::ALL {
        let medium = Arc::new(MemMedium::new(MIN_CAPACITY));
        let time = Arc::new(VirtualTime::new());
        let throttle = Arc::new(Throttle::new(&profile, Arc::clone(&time) as _));
        check(|| ThrottledDevice::new(MemDevice::new(Arc::clone(&medium)), Arc::clone(&throttle)));
        assert!(
            time.now_ns() > profile.read.latency_ns * 100,
            "{profile}: {}",
            time.now_ns()
        );
    }
}

#[test]
fn throttled_conforms_over_a_device_that_completes_in_any_order() {
    for seed in 0..5 {
        let plan = FaultPlan {
            delay: true,
            ..FaultPlan::default()
        };
        let medium = Arc::new(FaultyMedium::new(MIN_CAPACITY, seed, plan));
        let throttle = Arc::new(Throttle::new(&Profile::OPTANE, Arc::new(VirtualTime::new())));
        check(|| ThrottledDevice::new(FaultyDevice::new(Arc::clone(&medium)), Arc::clone(&throttle)));
    }
}

#[test]
fn throttled_conforms_in_real_time() {
    let medium = Arc::new(MemMedium::new(MIN_CAPACITY));
    let throttle = Arc::new(Throttle::new(&Profile::NVM, Arc::new(RealTime::new())));
    check(|| ThrottledDevice::new(MemDevice::new(Arc::clone(&medium)), Arc::clone(&throttle)));
}

#[test]
fn faulty_without_faults_conforms() {
    let medium = Arc::new(FaultyMedium::new(MIN_CAPACITY, 1, FaultPlan::default()));
    check(|| FaultyDevice::new(Arc::clone(&medium)));
}

#[test]
fn faulty_with_delays_conforms_for_many_seeds() {
    for seed in 0..20 {
        let plan = FaultPlan {
            delay: true,
            ..FaultPlan::default()
        };
        let medium = Arc::new(FaultyMedium::new(MIN_CAPACITY, seed, plan));
        check(|| FaultyDevice::new(Arc::clone(&medium)));
    }
}

fn check_file(size: u64, preallocate: bool, direct: bool, io_uring: bool, entries: u32) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = FileOptions {
        size: Some(size),
        preallocate,
        direct,
        io_uring,
        io_threads: 4,
        ..FileOptions::default()
    };
    let shared = Arc::new(FileShared::open(&dir.path().join("flash"), &options).unwrap());
    // Where the machine refuses io_uring, this runs on threads; where it does not, it must not.
    assert!(io_uring || shared.engine() == Engine::Threads);
    assert!(direct || !shared.is_direct());
    check(|| FileDevice::new(Arc::clone(&shared), entries).unwrap());
}

#[test]
fn a_file_through_io_uring_and_o_direct_conforms() {
    check_file(MIN_CAPACITY, true, true, true, 64);
}

#[test]
fn a_file_through_a_tiny_ring_conforms() {
    check_file(MIN_CAPACITY, true, true, true, 2);
}

#[test]
fn a_file_through_io_uring_and_the_page_cache_conforms() {
    check_file(MIN_CAPACITY, true, false, true, 64);
}

#[test]
fn a_file_through_threads_and_o_direct_conforms() {
    check_file(MIN_CAPACITY, true, true, false, 64);
}

#[test]
fn a_file_through_threads_and_the_page_cache_conforms() {
    check_file(MIN_CAPACITY, true, false, false, 2);
}

#[test]
fn a_file_of_three_tib_with_holes_conforms() {
    check_file(THREE_TIB, false, true, true, 64);
    check_file(THREE_TIB, false, true, false, 64);
}
