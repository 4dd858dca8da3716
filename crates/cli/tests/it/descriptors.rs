//! A server that has no file descriptors for more connections.

use crate::common::{Server, place};
use rustix::process::{Resource, Rlimit, prlimit};
use std::time::{Duration, Instant};

#[test]
fn who_finds_no_descriptor_waits_and_the_log_says_so_once() {
    let directory = place();
    let server = Server::start(directory.path());
    let few = Some(64);
    let limit = Rlimit {
        current: few,
        maximum: few,
    };
    prlimit(Some(server.pid()), Resource::Nofile, limit).unwrap();
    let clients: Vec<_> = (0..100).map(|_| server.client()).collect();
    let said = || server.stderr().matches("cannot accept").count();
    let started = Instant::now();
    while said() == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "it says nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Time for a dozen attempts more.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(said(), 1, "{}", server.stderr());
    drop(clients);
    let mut client = server.client();
    client.set("a", b"1");
    assert_eq!(client.get("a").as_deref(), Some(&b"1"[..]));
    assert!(server.stop().success());
}
