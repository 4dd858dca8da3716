//! What is asked of ext4, XFS and tmpfs, each one made for the test. That takes root, loop devices and the tools of the file
//! system; where one is missing the test says so and tries the others.

use pumice_device::conformance::{MIN_CAPACITY, check};
use pumice_device::{FileDevice, FileOptions, FileShared};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
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
        run(Command::new("umount").arg(self.point())).expect("nobody uses it any more");
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
