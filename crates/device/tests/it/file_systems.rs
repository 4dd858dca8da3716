//! What is asked of ext4, XFS and tmpfs, each one made for the test. That takes root, loop devices and the tools of the file
//! system; where one is missing the test says so and tries the others.

use pumice_device::{Device, FileDevice, FileError, FileOptions, FileShared, Overdue};
use pumice_testkit::conformance::{MIN_CAPACITY, check};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// The least that mkfs.xfs takes is 300 MiB.
const SIZE: u64 = 320 * MIB;

/// A file system that is there until this is dropped.
struct Mounted {
    directory: TempDir,
}

impl Mounted {
    fn new(kind: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, point) = (directory.path().join("image"), directory.path().join("on"));
        std::fs::create_dir(&point).unwrap();
        if kind == "tmpfs" {
            let size = format!("size={SIZE}");
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
                .arg(&point))?;
        } else {
            File::create(&image).unwrap().set_len(SIZE).unwrap();
            run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
            run(Command::new("mount").args(["-o", "loop"]).args([&image, &point]))?;
        }
        Ok(Self { directory })
    }

    fn point(&self) -> PathBuf {
        self.directory.path().join("on")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The kernel may be at the last operations of a ring for a moment.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(why) = run(Command::new("umount").arg(self.point())) {
            if Instant::now() > end {
                return eprintln!("it stays mounted: {why}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn on_each(test: impl Fn(&Path)) {
    for kind in ["ext4", "xfs", "tmpfs"] {
        match Mounted::new(kind) {
            Ok(mounted) => {
                println!("{kind}");
                test(&mounted.point());
            }
            Err(why) => println!("{kind} is not tried here: {why}"),
        }
    }
}

fn open(path: &Path, size: u64) -> Arc<FileShared> {
    let options = FileOptions {
        size: Some(size),
        ..FileOptions::default()
    };
    Arc::new(FileShared::open(path, &options).unwrap_or_else(|error| panic!("{error}")))
}

fn reserved(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn the_contract_holds() {
    on_each(|point| {
        let shared = open(&point.join("flash"), MIN_CAPACITY);
        check(|| FileDevice::new(Arc::clone(&shared), 16).unwrap());
    });
}

/// XFS wants as much free space as a reservation has bytes, whatever is reserved already.
#[test]
fn what_is_reserved_needs_no_space_again() {
    on_each(|point| {
        let path = point.join("flash");
        let size = 160 * MIB;
        for _ in 0..3 {
            drop(open(&path, size));
        }
        // Larger by what is left, about.
        drop(open(&path, size + 32 * MIB));
        assert!(reserved(&path) >= size + 32 * MIB);
    });
}

#[test]
fn holes_are_reserved() {
    on_each(|point| {
        let path = point.join("flash");
        let size = 160 * MIB;
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let piece = vec![7; MIB as usize];
        for at in (0..140).map(|n| n * MIB) {
            file.write_all_at(&piece, at).unwrap();
        }
        drop(file);
        drop(open(&path, size));
        assert!(reserved(&path) >= size);
        let mut found = piece.clone();
        File::open(&path)
            .unwrap()
            .read_exact_at(&mut found, 100 * MIB)
            .unwrap();
        assert!(found == piece, "what is there stays");
    });
}

fn freeze(point: &Path, how: &str) {
    run(Command::new("fsfreeze").arg(how).arg(point)).unwrap();
}

/// A snapshot of a machine or a volume freezes file systems. Whoever appends then gets an error in the time that it has, also where it
/// was appending all the time when that began.
#[test]
fn a_frozen_file_system_blocks_no_append_for_longer_than_the_patience() {
    on_each(|point| {
        if rustix::fs::statfs(point).unwrap().f_type == 0x0102_1994 {
            return println!("tmpfs cannot be frozen");
        }
        for pause in [Duration::ZERO, Duration::from_millis(10)] {
            let shared = open(&point.join("flash"), 64 * MIB);
            let device = FileDevice::new(Arc::clone(&shared), 16).unwrap();
            device.tick(1);
            let (sender, ended) = std::sync::mpsc::channel();
            let appender = std::thread::spawn(move || {
                let device = FileDevice::new(shared, 16).unwrap();
                let append = |n: u64| device.append_log(8192 + n * 32 % MIB, &[7; 32]);
                let error = (0..).find_map(|n| {
                    std::thread::sleep(pause);
                    append(n).err()
                });
                sender.send(error.unwrap()).unwrap();
            });
            std::thread::sleep(Duration::from_millis(100));
            freeze(point, "-f");
            let ended = ended.recv_timeout(Duration::from_secs(10));
            let wait = device.log_wait();
            // Before anything is asserted: nobody else thaws it.
            freeze(point, "-u");
            let error = ended.expect("it blocks no longer");
            assert!(Overdue::is(&error), "{error}");
            assert!(wait.is_some(), "it would have waited");
            appender.join().unwrap();
            drop(device);
            std::fs::remove_file(point.join("flash")).unwrap();
        }
    });
}

/// A file and the loop device on it are one medium.
#[test]
fn a_file_is_not_used_beside_its_loop_device() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("flash");
    drop(open(&path, 16 * MIB));
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&path).output();
    let device = match made {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        other => return println!("loop devices are not tried here: {other:?}"),
    };
    let at_once = FileOptions {
        lock_wait: Duration::ZERO,
        ..FileOptions::default()
    };
    let is_in_use = |path: &Path| matches!(FileShared::open(path, &at_once), Err(FileError::Locked { .. }));
    let results = [&path, &device].map(|first| {
        let held = FileShared::open(first, &at_once).map_err(|error| error.to_string());
        (
            held.map(drop),
            FileShared::open(first, &at_once).map(|_held| is_in_use(&path) && is_in_use(&device)),
        )
    });
    run(Command::new("losetup").arg("-d").arg(&device)).unwrap();
    for (opened, refused) in results {
        opened.unwrap();
        assert!(refused.unwrap());
    }
}

#[test]
fn a_mounted_device_is_refused_at_once_and_called_so() {
    let mounted = match Mounted::new("ext4") {
        Ok(mounted) => mounted,
        Err(why) => return println!("mounted devices are not tried here: {why}"),
    };
    let image = mounted.directory.path().join("image");
    let found = Command::new("losetup").arg("-j").arg(&image).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let device = PathBuf::from(found.split(':').next().unwrap());
    let begun = Instant::now();
    let refused = FileShared::open(&device, &FileOptions::default()).map(drop);
    let took = begun.elapsed();
    let point = mounted.point().canonicalize().unwrap();
    assert!(
        matches!(&refused, Err(FileError::Mounted { at, .. }) if *at == point),
        "{refused:?}"
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
}
