//! A server that was told its drive's erase unit: blocks are written by the unit, and what was held is there after a clean stop.

use crate::common::{Server, name, place, value};
use pumice_flash::superblock::{SlotContent, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
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

/// What the superblock says was sent to the drive is a guess at worst.
#[test]
fn any_number_of_bytes_sent_is_as_good_as_none() {
    let directory = place();
    let directory = directory.path();
    let server = start(directory, "--erase-unit 256KiB");
    fill(&server);
    assert!(server.stop().success());
    for (sent, unit) in [
        (4096 * 12_345, "256KiB"),
        (12_345, "64KiB"),
        (u64::MAX, "256KiB"),
        ((1 << 62) - 1, "64KiB"),
    ] {
        let file = File::options()
            .read(true)
            .write(true)
            .open(directory.join("c.flash"))
            .unwrap();
        let mut is_changed = false;
        for slot in 0..2 {
            let mut sector = vec![0; 4096];
            file.read_exact_at(&mut sector, slot * 4096).unwrap();
            if let SlotContent::Valid(found) = Superblock::decode(&sector)
                && found.clean
            {
                assert!(found.sent > 16 << 20, "{}", found.sent);
                let changed = Superblock { sent, ..found };
                file.write_all_at(&changed.encode(), slot * 4096).unwrap();
                is_changed = true;
            }
        }
        assert!(is_changed);
        let server = start(directory, &format!("--erase-unit {unit}"));
        assert!(server.recovered("after a clean stop"));
        fill(&server);
        let found = compare(&server);
        assert!(found > 4_000, "{found}");
        assert!(metric(&server, "pumice_flash_padding_bytes_total").is_multiple_of(4096));
        assert!(server.stop().success());
    }
}
