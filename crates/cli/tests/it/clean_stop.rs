//! A clean stop of the real program with objects that DRAM alone holds.

use crate::common::{Server, place};

const OBJECTS: u32 = 100_000;

/// Sets small objects, stops and starts; what the stop said, and how many objects the start found.
fn stop_and_start(flags: &str) -> (String, u32) {
    let directory = place();
    let start = || Server::start_with(directory.path(), &["--flash-size", "--layout"], flags).unwrap();
    let server = start();
    let mut client = server.client();
    let sets = (0..OBJECTS).map(|n| format!("set key-{n} 0 0 8 noreply\r\n{n:08}\r\n"));
    client.ask(&format!("{}version", sets.collect::<String>()));
    let held: u32 = client.stat("curr_items").parse().unwrap();
    assert_eq!(held, OBJECTS);
    let (status, said) = server.stop_and_hear();
    assert!(status.success());
    let server = start();
    // Where few blocks are free, the start reclaims some at once: what `stats` says is fewer.
    let found = server.stderr();
    let found = found.split_once("recovered: ").unwrap().1;
    let back = found.split_once(" objects").unwrap().0.parse().unwrap();
    (said, back)
}

#[test]
fn objects_that_dram_alone_held_are_back_after_a_clean_stop() {
    let (said, back) = stop_and_start("--layout fifo --flash-write eviction --flash-size 32MiB");
    assert!(back >= OBJECTS / 100 * 99, "{back} are back; {said}");
    assert!(said.contains("stopped: cache closed"), "{said}");
}

#[test]
fn a_clean_stop_says_how_many_objects_are_left_behind() {
    for flags in [
        "--layout fifo --flash-write eviction --flash-size 4MiB",
        "--layout ripq --flash-size 4MiB",
        "--layout fifo --flash-size 16MiB --flash-admit-size-max 10",
        "--layout fifo --flash-size 16MiB --flash-write-budget 200MB/day",
    ] {
        let (said, back) = stop_and_start(flags);
        assert!(back < OBJECTS / 10 * 9, "{flags}: {back} are back");
        let left = format!("left behind: {} objects: ", OBJECTS - back);
        assert!(said.contains(&left), "{flags}: {left:?} expected, not {said:?}");
    }
}
