//! Starts that are killed, again and again, after a burst of sets that a kill ended: each start finds what there was.
//!
//! `PUMICE_RUNS=200 cargo test -p pumice-cli --test it killed_starts` makes as many runs, each with a seed of its own.

use crate::common::{Server, message, place};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Of 4 KB: a part of what fits, so that nothing is reclaimed.
const OBJECTS: u64 = 4_000;
const STARTS: u64 = 25;
const START_MILLIS_MAX: u64 = 150;
/// What a block of 64 KiB holds of them, at most.
const PER_BLOCK: u64 = 16;

/// 512 blocks, and none of them given back before a start has ended.
const FLAGS: &str = "--layout ripq --index full --flash-size 34MiB --dram 96MiB --flush-interval 1";

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *state >> 33
}

/// A start that is killed after so long; the objects that it says it found, if it came to that.
fn start_and_kill(directory: &Path, after: Duration) -> Option<u64> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pumice"))
        .arg("serve")
        .args(FLAGS.split_whitespace())
        .args(
            "--memcached 127.0.0.1:0 --admin off --threads 1 --block-size 64KiB --flash c.flash"
                .split_whitespace(),
        )
        .env_remove("PUMICE_RUNS")
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let lines: Vec<String> = lines.map(|line| message(&line).to_owned()).collect();
    child.wait().unwrap();
    found(&lines)
}

fn found(lines: &[String]) -> Option<u64> {
    let line = lines.iter().find_map(|line| line.strip_prefix("recovered: "))?;
    line.split(' ').next()?.parse().ok()
}

fn run(seed: u64) {
    let mut state = seed;
    let directory = place();
    let start = || {
        Server::start_with(
            directory.path(),
            &["--layout", "--index", "--flash-size", "--dram"],
            FLAGS,
        )
        .unwrap()
    };
    let server = start();
    let mut client = server.client();
    let value = "v".repeat(4_000);
    for burst in 0..OBJECTS / 200 {
        let keys = burst * 200..(burst + 1) * 200;
        let sets = keys.map(|n| format!("set key-{n} 0 0 4000 noreply\r\n{value}\r\n"));
        client.ask(&format!("{}version", sets.collect::<String>()));
    }
    let is_quiet = seed.is_multiple_of(2);
    if is_quiet {
        server.wait_until_written();
    }
    let open = if is_quiet {
        0
    } else {
        server.figure("pumice_flash_blocks_open") * PER_BLOCK
    };
    let least = server.figure("pumice_index_mappings").saturating_sub(open);
    assert_eq!(
        server.figure("pumice_flash_reclaimed_blocks_total"),
        0,
        "the flash is large enough"
    );
    drop(client);
    server.kill();
    let mut counts = Vec::new();
    for _ in 0..STARTS {
        let after = Duration::from_millis(random(&mut state) % START_MILLIS_MAX);
        counts.extend(start_and_kill(directory.path(), after));
    }
    let server = start();
    let told = found(&server.said);
    println!(
        "seed {seed}: at least {least} are expected, {} of {STARTS} starts found {counts:?}, the last {told:?}",
        counts.len()
    );
    counts.extend(told);
    assert!(
        counts.iter().all(|count| *count == counts[0] && *count >= least),
        "seed {seed}: {counts:?}, at least {least}; {}",
        server.stderr()
    );
    assert!(server.recovered("after a stop that was not clean"));
}

#[test]
fn starts_that_are_killed_lose_nothing() {
    let runs = std::env::var("PUMICE_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok());
    (1..=runs.unwrap_or(2)).for_each(run);
}
