//! Reads of flash while blocks are written.

use pumice_device::Profile;
use pumice_sim::{DirectOptions, DirectReport, SimError, run_direct};

fn options(block_bytes: u64, object_bytes: u64, writes: f64) -> DirectOptions {
    DirectOptions {
        device: Profile::NVME,
        path: None,
        reformat: false,
        block_bytes,
        buffers: 4,
        object_bytes,
        reads: 0.1,
        writes,
        seconds: 0.05,
        seed: 1,
    }
}

fn run(block_bytes: u64, object_bytes: u64, writes: f64) -> DirectReport {
    run_direct(&options(block_bytes, object_bytes, writes)).unwrap()
}

/// Written at once, a block of 1 MiB makes it six times, footers that are read at once 1.3 times.
#[test]
fn hits_of_flash_take_little_longer_while_blocks_are_written() {
    for (block_bytes, object_bytes) in [(1 << 20, 4096), (1 << 20, 65_536), (4 << 20, 300)] {
        let report = run(block_bytes, object_bytes, 0.25);
        println!("{report:?}");
        assert!(report.idle.p99_ns < 110_000 && report.idle.reads > 200);
        assert!(report.p99_ratio < 1.25, "{}", report.p99_ratio);
        let quarter = Profile::NVME.write.bytes_per_second as f64 / 4.0;
        assert!(report.writing.written_bytes_per_second > 0.9 * quarter);
        assert_eq!(report.writing.dropped, 0);
    }
}

/// Where sets come faster, steps are longer.
#[test]
fn blocks_are_written_as_fast_as_the_device_can_where_they_must() {
    let report = run(1 << 20, 4096, 1.5);
    let all = Profile::NVME.write.bytes_per_second as f64;
    let written = report.writing.written_bytes_per_second;
    assert!(written > 0.85 * all, "{written} bytes a second");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let figures =
        |report: &DirectReport| (report.writing.p99_ns, report.writing.max_ns, report.writing.reads);
    let [first, second] = [(); 2].map(|()| run(1 << 20, 4096, 0.25));
    assert_eq!(figures(&first), figures(&second));
}

#[test]
fn where_no_read_comes_there_are_no_figures() {
    let none = run_direct(&DirectOptions {
        reads: 0.001,
        seconds: 1e-6,
        ..options(1 << 20, 4096, 0.25)
    });
    assert!(matches!(none, Err(SimError::NoReads(_))), "{none:?}");
}

#[test]
fn a_file_that_holds_something_else_is_not_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("diary");
    let text = vec![b'x'; 1 << 20];
    std::fs::write(&path, &text).unwrap();
    let refused = run_direct(&DirectOptions {
        path: Some(path.clone()),
        ..options(1 << 20, 4096, 0.25)
    });
    assert!(matches!(refused, Err(SimError::Open(_))), "{refused:?}");
    assert!(std::fs::read(&path).unwrap() == text);
}
