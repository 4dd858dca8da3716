//! `serve --throttle`: a flash device that is as slow as another kind would be.

use crate::common::{Server, name, place, value};
use std::time::{Duration, Instant};

#[test]
fn a_throttled_flash_is_as_slow_as_asked_for_and_answers_right() {
    let directory = place();
    let start = || Server::start_with(directory.path(), &[], "--throttle flash=hdd").unwrap();
    let server = start();
    let said = server.said.join("\n");
    assert!(
        said.contains("flash is as slow as hdd: a read of 4 KiB takes"),
        "{said}"
    );
    server.client().set(&name(1), &value(1, 1));
    assert!(server.stop().success());
    // DRAM is empty now.
    let server = start();
    let mut client = server.client();
    let begun = Instant::now();
    assert_eq!(client.get(&name(1)), Some(value(1, 1)));
    let took = begun.elapsed();
    assert!(took >= Duration::from_micros(12_600), "{took:?}");
    let begun = Instant::now();
    assert_eq!(client.get(&name(2)), None);
    assert!(begun.elapsed() < took, "a miss asks no device");
    assert!(server.stop().success());
}

#[test]
fn a_start_does_not_wait_for_a_kind_that_is_very_slow() {
    let directory = place();
    let server = Server::start_with(directory.path(), &[], "--throttle flash=nvme*1000000").unwrap();
    assert!(server.said.join("\n").contains("not tested"), "{:?}", server.said);
    server.kill();
}

#[test]
fn kinds_that_there_are_not_are_usage() {
    let directory = place();
    for (kinds, part) in [
        ("flash=tape", "no such kind"),
        ("disk=hdd", "there are flash="),
        ("hdd,flash=hdd", "twice"),
        ("performance-tier=hdd", "no performance tier"),
    ] {
        let refused = Server::start_with(directory.path(), &[], &format!("--throttle {kinds}"))
            .err()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}
