//! Bytes that go to the device for one log record, as the kernel counts them for this process: so this test is alone in it.

use pumice_device::{Device, FileDevice, FileOptions, FileShared};
use pumice_testkit::conformance::block_on;
use std::fs;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Bytes that this process made dirty in the page cache, or wrote past it.
fn written() -> u64 {
    let counts = fs::read_to_string("/proc/self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.unwrap().parse().unwrap()
}

/// The page cache of a file that was written in large pieces has large pieces, on file systems that can.
#[test]
fn a_log_record_costs_a_page_whatever_the_page_cache_had_of_the_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("flash");
    fs::write(&path, vec![0; 8 << 20]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let options = FileOptions {
        size: Some(8 * MIB),
        ..FileOptions::default()
    };
    let shared = Arc::new(FileShared::open(&path, &options).unwrap());
    let device = FileDevice::new(shared, 8).unwrap();
    // As a start does.
    device.read_log(0, &mut vec![0; 2 << 20]).unwrap();
    let before = written();
    for record in 0..10 {
        device.append_log(MIB + record * 32, &[7; 32]).unwrap();
        block_on(&device, device.sync()).unwrap();
    }
    let bytes = written() - before;
    // Where nothing is counted, as in memory, nothing can be seen.
    assert!(bytes <= 10 * (8 << 10), "{bytes} bytes for 10 records");
}
