//! What an error names as the smallest that works does work, and the smallest caches keep what they have.

use crate::common::{Server, name, place, value};

/// Starts with these flags beside those that all have less `without`, and again with what the refusal names for `flag`, between `before` and
/// `after`.
fn works_with_what_is_named(without: &[&str], more: &str, flag: &str, [before, after]: [&str; 2]) {
    let directory = place();
    let Err(refused) = Server::start_with(directory.path(), without, more) else {
        panic!("it starts with {more}");
    };
    let said = refused.stderr;
    assert_eq!(refused.status.code(), Some(2), "{said}");
    let named = said
        .split_once(before)
        .and_then(|(_, rest)| rest.split_once(after));
    let (named, _) = named.unwrap_or_else(|| panic!("{before:?} is not in {said}"));
    let mut words: Vec<String> = more.split_whitespace().map(str::to_owned).collect();
    let at = words.iter().position(|word| word == flag).expect("it is a flag");
    words[at + 1] = named.replace(' ', "");
    let started = Server::start_with(directory.path(), without, &words.join(" "));
    let server = started.unwrap_or_else(|refused| panic!("{words:?}: {refused:?}"));
    let mut client = server.client();
    client.set(&name(1), &value(1, 1));
    assert_eq!(client.get(&name(1)), Some(value(1, 1)));
    assert!(server.stop().success());
}

#[test]
fn the_smallest_dram_that_is_named_works() {
    let own = ["--dram", "--flash-size", "--block-size", "--layout", "--index"];
    for flash in ["9MiB", "1GiB", "1280KiB --block-size 64KiB"] {
        for more in [
            "",
            "--index cascade",
            "--layout sipq --index full",
            "--layout sipq --index cascade",
            "--layout ripq --alpha 0.02",
            "--max-connections 20000",
            "--max-item-size 64MiB",
        ] {
            let flags = format!("--flash-size {flash} {more} --dram 1MiB");
            works_with_what_is_named(&own, &flags, "--dram", ["smallest that works is ", "\n"]);
        }
    }
    // No whole number of GiB.
    let large = "--flash-size 1GiB --max-item-size 1GiB --dram 1MiB";
    works_with_what_is_named(&own, large, "--dram", ["smallest that works is ", "\n"]);
}

#[test]
fn the_smallest_flash_that_is_named_works() {
    for blocks in ["64KiB", "1MiB"] {
        for given in ["0", "1KiB", "200KiB"] {
            let flags = format!("--flash-size {given} --block-size {blocks}");
            let own = ["--flash-size", "--block-size"];
            works_with_what_is_named(&own, &flags, "--flash-size", ["at least ", " bytes"]);
        }
    }
    let tier = "--performance-tier p --performance-size 1KiB";
    works_with_what_is_named(&[], tier, "--performance-size", ["at least ", " bytes"]);
}

/// Where DRAM would bound them, as much of an index as there is without any object is not counted.
#[test]
fn the_smallest_caches_with_index_cascade_keep_what_they_have() {
    for size in ["640KiB", "1280KiB", "2MiB"] {
        for layout in ["ripq", "sipq", "clock", "fifo"] {
            let directory = place();
            let flags = format!("--layout {layout} --index cascade --flash-size {size} --dram 128MiB");
            let own = ["--layout", "--index", "--flash-size", "--dram"];
            let start = || Server::start_with(directory.path(), &own, &flags).unwrap();
            let server = start();
            let mut client = server.client();
            (0..100).for_each(|key| client.set(&format!("key{key}"), b"small"));
            drop(client);
            assert!(server.stop().success());
            let server = start();
            let mut client = server.client();
            // What is done at once after a start is done by a set.
            client.set("other", b"small");
            std::thread::sleep(std::time::Duration::from_millis(100));
            let there = (0..100).filter(|key| client.get(&format!("key{key}")).is_some());
            assert!(there.count() >= 99, "{size}, {layout}");
            assert_eq!(server.figure("pumice_flash_reclaimed_blocks_total"), 0);
            drop(client);
            assert!(server.stop().success());
        }
    }
}
