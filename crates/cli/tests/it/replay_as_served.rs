//! A replay with a server's settings is the server: the same blocks, buffers and division of DRAM, and so the same hits.

use crate::common::{Server, place, pumice, text};
use pumice_trace::{Trace, TraceOptions};
use std::collections::HashMap;
use std::path::Path;

const TRACE: &str = "zipf:keys=30000,theta=0.8,requests=60000,size=2000-10000,seed=3";

fn replay(directory: &Path, flags: &str) -> serde_json::Value {
    let output = pumice(
        directory,
        &format!("replay {TRACE} --json --superblock 0 {flags}"),
    );
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("has no effect"), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The hit ratio of the trace through a running server: a miss is followed by a set.
fn served(server: &Server) -> f64 {
    let mut client = server.client();
    let mut requests = Trace::new(TRACE, TraceOptions::default())
        .unwrap()
        .open()
        .unwrap();
    let value = vec![b'v'; 10_000];
    // Keys of 8 bytes, as a replay has them.
    let mut names: HashMap<u64, String> = HashMap::new();
    let (mut hits, mut lookups) = (0, 0);
    let mut batch = Vec::new();
    while requests.next_batch(&mut batch).unwrap() {
        for request in &batch {
            let number = names.len();
            let name = names.entry(request.key).or_insert_with(|| format!("{number:08}"));
            lookups += 1;
            match client.get(name) {
                Some(_) => hits += 1,
                None => client.set(name, &value[..request.size.unwrap() as usize]),
            }
        }
    }
    f64::from(hits) / f64::from(lookups)
}

#[test]
fn a_replay_of_a_servers_settings_hits_as_the_server_does() {
    const OWN: [&str; 5] = ["--dram", "--flash-size", "--block-size", "--layout", "--index"];
    for settings in [
        "dram = \"64MiB\"\nflash-size = \"80MiB\"\npolicy = \"slru-3\"\nflash-write = \"eviction\"\n",
        "dram = \"64MiB\"\nflash-size = \"80MiB\"\nlayout = \"fifo\"\nblock-size = \"256KiB\"\n",
        "dram = \"64MiB\"\nflash-size = \"80MiB\"\nflash-admit = \"second-hit\"\nflash-admit-size-max = \"8KiB\"\n",
    ] {
        let directory = place();
        std::fs::write(
            directory.path().join("own.toml"),
            format!("{settings}threads = 1\n"),
        )
        .unwrap();
        let report = replay(directory.path(), "--config own.toml");
        let server = Server::start_with(directory.path(), &OWN, "--config own.toml").unwrap();
        let of_server = served(&server);
        let of_replay = report["object_hit_ratio"].as_f64().unwrap();
        println!("{settings}{of_server} {of_replay} {}", report["settings"]);
        assert!((0.2..0.9).contains(&of_server), "{of_server}");
        assert!(
            (of_server - of_replay).abs() <= 0.003,
            "{settings}served {of_server}, replayed {of_replay}"
        );
        // The same division: blocks, buffers, and DRAM for items and index.
        let said = server.said.join("\n");
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let mib = |bytes: u64| {
            let mib = bytes as f64 / f64::from(1 << 20);
            format!("{mib:.1} MiB").replace(".0 MiB", " MiB")
        };
        let buffers = number(&report["settings"]["buffers"]);
        let pool = mib(number(&report["dram_bytes"]));
        for part in [
            format!("= {pool} for items and index"),
            format!("for {buffers} block buffers"),
        ] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        let block = number(&report["settings"]["block_bytes"]);
        let block = mib(block).replace("0.2 MiB", "256 KiB");
        assert!(said.contains(&format!("in blocks of {block},")), "{said}");
        assert!(server.stop().success());
        // A flag counts for more than the file.
        let more = replay(directory.path(), "--config own.toml --dram 96MiB");
        assert!(more["dram_bytes"].as_u64() > report["dram_bytes"].as_u64());
        assert!(more["object_hit_ratio"].as_f64().unwrap() > of_replay + 0.003);
        // Without a file the flags alone are a server's.
        if settings.contains("fifo") {
            let flags = "--dram 64MiB --flash-size 80MiB --layout fifo --block-size 256KiB";
            let alone = replay(directory.path(), flags);
            assert_eq!(alone["object_hit_ratio"], report["object_hit_ratio"]);
            assert_eq!(alone["settings"]["buffers"], report["settings"]["buffers"]);
        }
    }
}

#[test]
fn a_budget_that_serve_refuses_is_refused() {
    let output = pumice(place().path(), &format!("replay {TRACE} --dram 1MiB"));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--dram 1 MiB is too little"), "{said}");
}
