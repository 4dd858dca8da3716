//! A server whose flash file is on a file system that is frozen, as for a snapshot. Needs root, loop devices, mkfs.ext4 and fsfreeze;
//! where one is missing the test says so.

use crate::common::{Server, name, place, value};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

struct Mounted(PathBuf);

fn run(program: &str, arguments: &[&Path]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Mounted {
    fn new(directory: &Path) -> Result<Self, String> {
        let (image, point) = (directory.join("image"), directory.join("on"));
        std::fs::create_dir(&point).unwrap();
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run("mkfs.ext4", &[Path::new("-q"), &image])?;
        run("mount", &[Path::new("-o"), Path::new("loop"), &image, &point])?;
        Ok(Self(point))
    }

    fn freeze(&self, how: &str) {
        run("fsfreeze", &[Path::new(how), &self.0]).unwrap();
        if how == "-f" {
            // A test that waits in vain fails, and does not hang.
            let point = self.0.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_secs(60));
                let _ = run("fsfreeze", &[Path::new("-u"), &point]);
            });
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It is frozen only where a test has failed.
        let _ = run("fsfreeze", &[Path::new("-u"), &self.0]);
        // The ring of a server that was killed may keep it for a moment.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(why) = run("umount", &[&self.0]) {
            if Instant::now() > end {
                return eprintln!("it stays mounted: {why}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Gets what is in DRAM for a while, and says how long the longest took.
fn longest_get(server: &Server, secs: u64) -> Duration {
    let (mut client, end) = (server.client(), Instant::now() + Duration::from_secs(secs));
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let start = Instant::now();
        assert!(client.get("hot").is_some());
        longest = longest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    longest
}

/// A file system that is there to be frozen, and a server on it with 2,000 keys, and `hot` in DRAM. None where that cannot be tried.
fn mounted(directory: &Path, flags: &str) -> Option<(Mounted, Server)> {
    let mounted = Mounted::new(directory);
    let mounted = mounted
        .inspect_err(|why| println!("not tried here: {why}"))
        .ok()?;
    let server = Server::start_with(directory, &["--flash"], &format!("--flash on/c.flash {flags}"));
    let server = server.unwrap_or_else(|refused| panic!("{refused:?}"));
    let mut client = server.client();
    for key in 0..2_000 {
        client.set(&name(key), &value(key, 1));
    }
    client.set("hot", b"hot");
    Some((mounted, server))
}

#[test]
fn dram_answers_while_the_file_system_is_frozen_and_the_device_is_taken_out() {
    let directory = place();
    let Some((mounted, server)) = mounted(directory.path(), "--flash-timeout 2") else {
        return;
    };
    let mut client = server.client();
    std::thread::scope(|scope| {
        // Overwrites of what is on flash append to the log, some of them just when it freezes.
        let writers: Vec<_> = (0..4)
            .map(|n| {
                let mut client = server.client();
                scope.spawn(move || {
                    let end = Instant::now() + Duration::from_secs(8);
                    let keys = (0..2_000).cycle().skip(500 * n);
                    keys.take_while(|_| Instant::now() < end)
                        .for_each(|key| client.set(&name(key), &value(key, 2)));
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        mounted.freeze("-f");
        let longest = longest_get(&server, 6);
        let (is_out, ready) = (client.stat("flash_out"), server.admin("/readyz").1);
        mounted.freeze("-u");
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(
            longest < Duration::from_secs(1),
            "a get from DRAM took {longest:?}"
        );
        assert_eq!(is_out, "1");
        assert!(ready.contains("the flash device was taken out"), "{ready}");
    });
    drop(client);
    server.kill();
}

/// A snapshot takes a moment. Changes wait for it, and nothing is taken out.
#[test]
fn changes_wait_for_a_snapshot() {
    let directory = place();
    let Some((mounted, server)) = mounted(directory.path(), "--flash-timeout 30") else {
        return;
    };
    let mut client = server.client();
    std::thread::scope(|scope| {
        mounted.freeze("-f");
        let writer = scope.spawn(|| {
            let mut client = server.client();
            client.set(&name(1), &value(1, 2));
            client.get(&name(1))
        });
        let longest = longest_get(&server, 1);
        let is_waiting = !writer.is_finished();
        mounted.freeze("-u");
        assert!(is_waiting && longest < Duration::from_millis(500), "{longest:?}");
        assert_eq!(writer.join().unwrap(), Some(value(1, 2)));
    });
    assert_eq!(client.stat("flash_out"), "0");
    drop(client);
    assert!(server.stop().success());
}
