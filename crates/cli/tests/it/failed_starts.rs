//! Starts that fail leave nothing behind, whatever limit of the system they meet, and say who or what is in their way.

use crate::common::{Server, place, pumice, text};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Starts a server under a limit of the shell's `ulimit`.
fn limited(directory: &Path, limit: &str, flags: &str) -> Output {
    Command::new("sh")
        .args(["-c", &format!("ulimit {limit}; exec \"$0\" serve \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_pumice"))
        .args(flags.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("there is a shell")
}

#[test]
fn nothing_is_left_by_a_start_that_meets_a_limit() {
    let objects = "--memcached unix:m --admin off --pid-file pid --flash c.flash --flash-size 64MiB --dram 128MiB --threads 2 \
                   --performance-tier p.tier --performance-size 16MiB";
    let objects = objects.replace("--pid-file", "-P");
    let volume = "--nbd unix:n --admin off --backing disk --cache c.cache --cache-size 64MiB --dram 128MiB --threads 2";
    for (limit, said, which) in [
        // In blocks of 512 bytes or 1 KiB: less than each file either way.
        (
            "-f 8192",
            "cannot reserve 67108864 bytes",
            &[&objects[..], volume][..],
        ),
        // KiB: enough for the program, and less than the DRAM. A volume takes that when it needs it.
        ("-v 100000", "Cannot allocate memory", &[&objects]),
        ("-n 18", "Too many open files", &[&objects, volume]),
    ] {
        for flags in which {
            let directory = place();
            let path = directory.path();
            std::fs::File::create(path.join("disk"))
                .unwrap()
                .set_len(16 << 20)
                .unwrap();
            let output = limited(path, limit, flags);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{limit}, {flags}: {stderr}");
            assert!(stderr.contains(said), "{limit}, {flags}: {stderr}");
            let left = std::fs::read_dir(path).unwrap();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["disk"], "{limit}, {flags}: {stderr}");
        }
    }
}

#[test]
fn files_that_were_there_stay_when_a_start_fails() {
    let directory = place();
    let path = directory.path();
    assert!(Server::start(path).stop().success());
    let before = std::fs::read(path.join("c.flash")).unwrap();
    let output = limited(
        path,
        "-n 18",
        "--memcached unix:m --admin off --flash c.flash --dram 128MiB --threads 2",
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(std::fs::read(path.join("c.flash")).unwrap().len() == before.len());
    assert!(Server::start(path).stop().success());
}

#[test]
fn who_holds_a_file_is_named_at_once_and_waited_for() {
    let directory = place();
    let path = directory.path();
    let server = Server::start(path);
    let holder = format!("is in use by process {} (pumice)", server.pid().as_raw_nonzero());
    let started = Instant::now();
    let Err(refused) = Server::start_with(path, &[], "") else {
        panic!("two servers have one file");
    };
    assert!(
        started.elapsed() > Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    let waits = format!("{holder}: waits up to 5 s for it");
    let ends = format!("{holder} (waited 5000 ms for it)");
    assert!(
        refused.stderr.contains(&waits) && refused.stderr.contains(&ends),
        "{refused:?}"
    );
    let said = text(&pumice(path, "inspect c.flash").stderr);
    assert!(
        said.contains(&format!("process {} (pumice)", server.pid().as_raw_nonzero())),
        "{said}"
    );
}
