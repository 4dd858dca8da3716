//! Peers that do not read what was found for them in DRAM.

use crate::common::{Client, Server, config, set, value};
use pumice::CacheOptions;
use pumice_door_memcached::{DoorConfig, Listen};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const HOT: usize = 40;
const LEN: usize = 15_000;

fn values(keys: impl Iterator<Item = String>, seeds: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut reply = Vec::new();
    for (key, seed) in keys.zip(seeds) {
        reply.extend(format!("VALUE {key} 0 {LEN}\r\n").into_bytes());
        reply.extend(value(LEN, seed));
        reply.extend(b"\r\n");
    }
    reply
}

/// Behind a read of flash hits in DRAM wait for their turn. While the peer does not read, that may take for ever.
#[test]
fn what_waits_behind_a_read_of_flash_for_a_peer_is_evicted_as_everything_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut config = DoorConfig { ..config() };
    config.listen.push(Listen::Unix {
        path: path.clone(),
        mode: None,
    });
    let options = CacheOptions {
        dram_bytes: 16 << 20,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config, options);
    let mut client = server.client();
    let mut fill = |name: &str, count: usize| {
        for number in 0..count {
            client.send(set(&format!("{name}{number}"), &value(LEN, number)));
            client.expect("STORED\r\n");
        }
    };
    fill("cold", 1);
    fill("filler", 1_200);
    fill("hot", HOT);
    let hot: String = (0..HOT).map(|number| format!(" hot{number}")).collect();
    // A socket of this kind has room for some fourteen of them.
    let mut deaf: Vec<_> = (0..1)
        .map(|_| {
            let stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut deaf = Client { stream };
            deaf.send(format!("get cold0{hot}\r\n"));
            deaf
        })
        .collect();
    for deaf in &mut deaf {
        // Once the first bytes are there it is at work.
        deaf.expect("VALUE cold0");
    }
    fill("filler", 2_000);
    let from_flash = || server.stats().counts().get_hits_flash;
    let before = from_flash();
    let reply = values((0..HOT).map(|number| format!("hot{number}")), 0..HOT);
    client.send(format!("get{hot}\r\n"));
    client.expect_bytes(&reply);
    client.expect("END\r\n");
    assert_eq!(from_flash() - before, HOT as u64);
    // Whoever reads late gets all the same.
    for mut deaf in deaf {
        deaf.expect_bytes(&values(["cold0".into()].into_iter(), 0..1)["VALUE cold0".len()..]);
        deaf.expect_bytes(&reply);
        deaf.expect("END\r\n");
    }
    server.stop();
}
