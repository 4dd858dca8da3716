//! Opening files, and what a handle on one promises beyond the conformance suite.

use pumice_device::{
    AlignedBuf, Buffer, Device, Engine, FileDevice, FileError, FileOptions, FileShared, Payload,
};
use pumice_testkit::conformance::block_on;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn sized(size: u64) -> FileOptions {
    FileOptions {
        size: Some(size),
        lock_wait: Duration::ZERO,
        ..FileOptions::default()
    }
}

fn open(path: &Path, options: &FileOptions) -> Arc<FileShared> {
    let patient = FileOptions {
        lock_wait: Duration::from_secs(60),
        ..options.clone()
    };
    Arc::new(FileShared::open(path, &patient).unwrap())
}

fn refused(path: &Path, options: &FileOptions) -> FileError {
    match FileShared::open(path, options) {
        Err(error) => error,
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

fn is_locked(error: &FileError) -> bool {
    matches!(error, FileError::Locked { .. })
}

fn filled(byte: u8, len: usize) -> Arc<AlignedBuf> {
    let buf = AlignedBuf::with_len(len);
    // SAFETY: nobody else knows the buffer.
    unsafe { buf.put(0, Payload::Bytes(&vec![byte; len])) };
    Arc::new(buf)
}

/// The same test on both engines.
fn on_both_engines(test: impl Fn(&Path, FileOptions)) {
    for io_uring in [true, false] {
        let dir = dir();
        let options = FileOptions {
            io_uring,
            io_threads: 3,
            ..sized(4 * MIB)
        };
        test(&dir.path().join("flash"), options);
    }
}

#[test]
fn space_is_reserved_when_a_file_is_made_and_not_where_holes_are_asked_for() {
    let dir = dir();
    let path = dir.path().join("full");
    let shared = open(&path, &sized(8 * MIB + 100));
    assert_eq!(shared.capacity(), 8 * MIB);
    assert!(path.metadata().unwrap().blocks() * 512 >= 8 * MIB);
    let path = dir.path().join("holes");
    let options = FileOptions {
        preallocate: false,
        ..sized(8 * MIB)
    };
    assert_eq!(open(&path, &options).capacity(), 8 * MIB);
    assert!(path.metadata().unwrap().blocks() * 512 < MIB);
}

#[test]
fn a_size_beyond_the_disk_is_refused_with_path_and_size_and_leaves_the_file_as_it_was() {
    let dir = dir();
    let path = dir.path().join("flash");
    std::fs::write(&path, [7; 5000]).unwrap();
    let wanted = 1_u64 << 43;
    let error = refused(&path, &sized(wanted));
    assert!(matches!(error, FileError::Reserve { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(path.to_str().unwrap())
            && text.contains(&wanted.to_string())
            && text.contains("smaller size"),
        "{text}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
}

#[test]
fn opening_keeps_what_a_file_holds() {
    let dir = dir();
    let path = dir.path().join("flash");
    let content: Vec<u8> = (0..MIB as usize + 777).map(|i| (i % 253) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let shared = open(&path, &sized(4 * MIB));
    drop(shared);
    let after = std::fs::read(&path).unwrap();
    assert_eq!(after.len() as u64, 4 * MIB);
    assert!(after[..content.len()] == content[..] && after[content.len()..].iter().all(|b| *b == 0));
    // A smaller size uses a part and cuts nothing off.
    assert_eq!(open(&path, &sized(2 * MIB)).capacity(), 2 * MIB);
    assert_eq!(path.metadata().unwrap().len(), 4 * MIB);
    // Without a size, the file's own counts, in whole sectors.
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(MIB + 777)
        .unwrap();
    let options = FileOptions {
        size: None,
        ..sized(0)
    };
    assert_eq!(open(&path, &options).capacity(), MIB);
}

#[test]
fn what_cannot_be_a_device_is_refused() {
    let dir = dir();
    let missing = dir.path().join("missing");
    let unsized_ = FileOptions {
        size: None,
        ..sized(0)
    };
    assert!(matches!(refused(&missing, &unsized_), FileError::NoSize { .. }));
    let absent = FileOptions {
        create: false,
        ..sized(MIB)
    };
    let error = refused(&dir.path().join("absent"), &absent);
    assert!(matches!(&error, FileError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
    assert!(error.to_string().contains("absent"), "{error}");
    assert!(matches!(refused(dir.path(), &sized(MIB)), FileError::Open { .. }));
    assert!(matches!(
        refused(Path::new("/dev/null"), &sized(MIB)),
        FileError::NotAFile { .. }
    ));
    assert!(matches!(
        refused(&missing, &sized(4095)),
        FileError::TooSmall { wanted: 4095, .. }
    ));
}

#[test]
fn a_file_is_held_until_it_and_its_handles_are_gone() {
    on_both_engines(|path, options| {
        let shared = open(path, &options);
        let device = FileDevice::new(Arc::clone(&shared), 8).unwrap();
        drop(shared);
        let error = refused(path, &options);
        assert!(
            is_locked(&error) && error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        let read = device.read(0, 4096);
        drop(device);
        assert!(is_locked(&refused(path, &options)), "a future is a handle too");
        drop(read);
        open(path, &options);
    });
}

#[test]
fn opening_waits_for_a_file_that_is_let_go() {
    let dir = dir();
    let path = dir.path().join("flash");
    let shared = open(&path, &sized(MIB));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let error = refused(&path, &sized(MIB));
            tell.send(is_locked(&error)).unwrap();
            let patient = FileOptions {
                lock_wait: Duration::from_secs(60),
                ..sized(MIB)
            };
            FileShared::open(&path, &patient).map(drop)
        });
        assert!(told.recv().unwrap());
        drop(shared);
        opener.join().unwrap().unwrap();
    });
}

#[test]
fn a_read_past_the_end_of_a_file_that_became_shorter_fails_and_the_device_stays_usable() {
    on_both_engines(|path, options| {
        let device = FileDevice::new(open(path, &options), 8).unwrap();
        block_on(&device, device.write(0, filled(1, 8192), 0..8192)).unwrap();
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(MIB + 700)
            .unwrap();
        let result = block_on(&device, device.read(MIB - 4096, 4 * 4096)).map(drop);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let result = block_on(&device, device.read(3 * MIB, MIB as usize)).map(drop);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(
            error.to_string().contains("read of 1048576 bytes at 3145728"),
            "{error}"
        );
        let mut out = [0; 10];
        let error = device.read_log(2 * MIB, &mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let buf = block_on(&device, device.read(4096, 4096)).unwrap();
        assert_eq!(buf.as_slice(), [1; 4096]);
    });
}

#[test]
fn what_was_written_is_there_when_the_file_is_opened_again() {
    on_both_engines(|path, options| {
        let device = FileDevice::new(open(path, &options), 8).unwrap();
        block_on(&device, device.write(MIB, filled(9, 65536), 0..65536)).unwrap();
        device.append_log(2 * MIB + 3, b"record").unwrap();
        block_on(&device, device.sync()).unwrap();
        drop(device);
        let device = FileDevice::new(open(path, &options), 8).unwrap();
        let buf = block_on(&device, device.read(MIB, 65536)).unwrap();
        assert!(buf.as_slice().iter().all(|b| *b == 9));
        let mut record = [0; 6];
        device.read_log(2 * MIB + 3, &mut record).unwrap();
        assert_eq!(&record, b"record");
    });
}

#[test]
fn the_submit_hook_is_called_once_for_what_is_queued_between_two_turns() {
    on_both_engines(|path, options| {
        let device = FileDevice::new(open(path, &options), 64).unwrap();
        let calls = Rc::new(Cell::new(0));
        let seen = Rc::clone(&calls);
        device.set_submit_hook(Rc::new(move || seen.set(seen.get() + 1)));
        let reads = [
            device.read(0, 4096),
            device.read(4096, 4096),
            device.read(8192, 4096),
        ];
        assert_eq!(calls.get(), 1);
        for read in reads {
            block_on(&device, read).unwrap();
        }
        assert_eq!(calls.get(), 1);
        let sync = device.sync();
        assert_eq!(calls.get(), 2);
        block_on(&device, sync).unwrap();
    });
}

/// Waits for an event, for at most 30 s. The kernel's own work for io_uring may interrupt the wait.
fn woken(poll: &OwnedFd) -> bool {
    let timeout = rustix::event::Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    loop {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
        match epoll::wait(poll, &mut events, Some(&timeout)) {
            Err(Errno::INTR) => {}
            result => return result.unwrap().0.len() == 1,
        }
    }
}

/// What an event loop does: wait for the eventfd, edge-triggered and never read, and turn without blocking.
#[test]
fn the_eventfd_wakes_an_edge_triggered_loop_for_every_result() {
    on_both_engines(|path, options| {
        let device = FileDevice::new(open(path, &options), 16).unwrap();
        // What was never written is read without asking the disk, and so without waiting.
        block_on(&device, device.write(0, filled(1, 4 << 20), 0..4 << 20)).unwrap();
        let mut waits = 0;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(1);
        epoll::add(
            &poll,
            device.event_fd().unwrap(),
            data,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )
        .unwrap();
        for round in 0..300_u64 {
            let mut left = 1 + round as usize % 20;
            let operations: Vec<_> = (0..left as u64)
                .map(|i| device.read((round * 7 + i) % 1000 * 4096, 4096))
                .collect();
            left -= device.turn(false).unwrap();
            while left > 0 {
                waits += 1;
                assert!(woken(&poll), "no wake-up in round {round} with {left} reads left");
                left -= device.turn(false).unwrap();
            }
            for operation in operations {
                let ready = pin!(operation).poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(ready, Poll::Ready(Ok(_))));
            }
        }
        assert!(waits > 100, "hardly any read had to be waited for: {waits}");
    });
}

#[test]
fn dropping_the_last_handle_waits_for_writes_under_way() {
    on_both_engines(|path, options| {
        let shared = open(path, &options);
        for round in 1..20_u8 {
            let device = FileDevice::new(Arc::clone(&shared), 16).unwrap();
            let data = filled(round, MIB as usize);
            drop(device.write(0, Arc::clone(&data), 0..MIB as usize));
            device.turn(false).unwrap();
            drop(device);
            assert_eq!(Arc::strong_count(&data), 1, "the medium still has the buffer");
            let reader = FileDevice::new(Arc::clone(&shared), 16).unwrap();
            let buf = block_on(&reader, reader.read(MIB - 4096, 4096)).unwrap();
            assert_eq!(buf.as_slice(), [round; 4096]);
        }
    });
}

#[test]
fn handles_on_several_threads_write_and_read_at_once() {
    on_both_engines(|path, options| {
        let shared = open(path, &options);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let shared = Arc::clone(&shared);
                scope.spawn(move || {
                    let device = FileDevice::new(shared, 8).unwrap();
                    for round in 0..50_u64 {
                        let place = thread * MIB + round % 16 * 65536;
                        let byte = (thread * 60 + round) as u8;
                        block_on(&device, device.write(place, filled(byte, 65536), 0..65536)).unwrap();
                        let buf = block_on(&device, device.read(place, 65536)).unwrap();
                        assert!(buf.as_slice().iter().all(|b| *b == byte));
                    }
                });
            }
        });
    });
}

#[test]
fn the_engine_and_o_direct_are_as_asked_for() {
    let dir = dir();
    let options = FileOptions {
        io_uring: false,
        direct: false,
        ..sized(MIB)
    };
    let device = FileDevice::new(open(&dir.path().join("flash"), &options), 8).unwrap();
    assert_eq!(device.shared().engine(), Engine::Threads);
    assert_eq!(device.shared().engine().to_string(), "threads");
    assert!(!device.shared().is_direct());
}

#[test]
fn a_part_of_a_file_is_a_hole_until_it_is_written() {
    for preallocate in [false, true] {
        let dir = dir();
        let options = FileOptions {
            preallocate,
            ..sized(4 * MIB)
        };
        let device = FileDevice::new(open(&dir.path().join("flash"), &options), 4).unwrap();
        assert!(device.is_hole(0) && device.is_hole(2 * MIB) && device.is_hole(4 * MIB - 4096));
        let data = Arc::new(AlignedBuf::with_len(8192));
        block_on(&device, device.write(2 * MIB, data, 0..8192)).unwrap();
        assert!(!device.is_hole(2 * MIB) && !device.is_hole(2 * MIB + 4096));
        assert!(device.is_hole(0) && device.is_hole(3 * MIB));
    }
}
