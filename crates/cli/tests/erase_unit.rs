//! A server that was told its drive's erase unit: blocks are written by the unit, and what was held is there after a clean stop.

mod common;

use common::{Server, name, place, value};
use std::path::Path;

/// More than the flash holds, which is some 4,900.
const KEYS: u32 = 8_000;

fn start(directory: &Path, more: &str) -> Server {
    let more = format!("--layout ripq {more}");
    Server::start_with(directory, &["--layout"], &more).unwrap_or_else(|refused| panic!("{refused:?}"))
}

fn fill(server: &Server) {
    let mut client = server.client();
    for key in 0..KEYS {
        client.set(&name(key), &value(key, 1));
    }
}

/// Reads all keys; how many are there. None is another's, or cut.
fn compare(server: &Server) -> u32 {
    let mut client = server.client();
    let mut found = 0;
    for key in 0..KEYS {
        let got = client.get(&name(key));
        assert!(got.is_none() || got == Some(value(key, 1)), "key {key}");
        found += u32::from(got.is_some());
    }
    found
}

fn metric(server: &Server, name: &str) -> u64 {
    let (status, text) = server.admin("/metrics");
    assert_eq!(status, 200);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name}"));
    value.trim().parse().unwrap()
}

#[test]
fn blocks_are_written_by_the_unit_and_a_stop_writes_what_is_held() {
    let directory = place();
    let directory = directory.path();
    let server = start(directory, "--erase-unit 256KiB");
    fill(&server);
    let of = |name| metric(&server, &format!("pumice_flash_{name}_blocks_total"));
    let (grouped, sealed) = (of("grouped"), of("sealed"));
    assert!(
        grouped > 100 && grouped * 10 > sealed * 9,
        "{grouped} of {sealed}"
    );
    assert!(server.stop().success());
    // It may be another at each start.
    let server = start(directory, "");
    assert!(server.recovered("after a clean stop"));
    let found = compare(&server);
    assert!(found > 4_500, "{found}");
    assert_eq!(metric(&server, "pumice_flash_grouped_blocks_total"), 0);
}

#[test]
fn what_was_held_is_missing_after_a_kill_and_nothing_is_wrong() {
    let directory = place();
    let directory = directory.path();
    let server = start(directory, "--erase-unit 256KiB");
    fill(&server);
    server.kill();
    let server = start(directory, "--erase-unit 256KiB");
    let found = compare(&server);
    // At most six units and what was being filled.
    assert!(found > 4_000, "{found}");
}

#[test]
fn a_unit_that_takes_more_buffers_than_there_are_is_named() {
    let directory = place();
    let server = start(directory.path(), "--erase-unit 1GiB");
    let said = server.stderr();
    assert!(
        said.contains("written as they come") && said.contains("buffers"),
        "{said}"
    );
}
