//! A performance tier under a real server: what it does, what is refused, and what it costs to lose it.

use crate::common::{Server, place, pumice, said};
use pumice_nhc::{Found, UpperSuperblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const TIER: &str = "--performance-tier p.tier --performance-size 24MiB";
const KEYS: u32 = 12_000;

fn key(n: u32) -> String {
    format!("key-{n}")
}

fn value(n: u32) -> Vec<u8> {
    format!("<{n}>").into_bytes().repeat(400)
}

/// With so little DRAM that most reads are of flash.
fn start(directory: &Path, more: &str) -> Server {
    let small =
        "--dram 34MiB --flash-size 48MiB --max-item-size 16KiB --max-connections 16 --flush-interval 1";
    Server::start_with(directory, &["--dram", "--flash-size"], &format!("{small} {more}"))
        .unwrap_or_else(|refused| panic!("{refused:?}"))
}

/// Sets everything, where no buffer had room again.
fn fill(server: &Server) {
    let mut client = server.client();
    let keys: Vec<u32> = (0..KEYS).collect();
    for batch in keys.chunks(200) {
        let dropped = || server.figure("pumice_flash_dropped_no_block_total");
        let mut before = dropped();
        loop {
            batch.iter().for_each(|n| client.set(&key(*n), &value(*n)));
            let now = dropped();
            if now == before {
                break;
            }
            before = now;
        }
    }
    server.wait_until_written();
}

/// Reads everything a few times; how much was there. What is there is right.
fn read(server: &Server, rounds: u32) -> u32 {
    let mut client = server.client();
    let mut found = 0;
    let keys: Vec<u32> = (0..KEYS).collect();
    for numbers in (0..rounds).flat_map(|_| keys.chunks(40)) {
        let names: Vec<String> = numbers.iter().map(|n| key(*n)).collect();
        for (name, read) in client.get_many(&names) {
            let n = name.strip_prefix("key-").unwrap().parse().unwrap();
            assert!(read == value(n), "{name}");
            found += 1;
        }
    }
    found / rounds
}

fn refused(directory: &Path, status: i32, more: &str, words: &[&str]) {
    let Err(refused) = Server::start_with(directory, &[], more) else {
        panic!("it starts with {more}");
    };
    assert_eq!(refused.status.code(), Some(status), "{refused:?}");
    for words in words {
        assert!(refused.stderr.contains(words), "{words:?}: {refused:?}");
    }
}

#[test]
fn copies_are_made_read_found_again_and_given_up_for_nothing() {
    let directory = place();
    let directory = directory.path();
    let server = start(directory, "");
    fill(&server);
    server.kill();
    // Added to a used cache.
    let server = start(directory, TIER);
    let all = read(&server, 3);
    assert!(all > KEYS * 9 / 10, "{all}");
    let figure = |server: &Server, name: &str| server.figure(&format!("pumice_performance_{name}"));
    assert!(figure(&server, "copies") > 50 && figure(&server, "copy_reads_total") > 500);
    server.kill();
    let of_tier = said(directory, "inspect p.tier");
    assert!(of_tier.contains("383 places of 64 KiB"), "{of_tier}");
    assert!(said(directory, "inspect c.flash").contains("with a performance tier"));
    let server = start(directory, TIER);
    while figure(&server, "adopted_copies_total") <= 50 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(read(&server, 2) >= all && figure(&server, "copy_reads_total") > 500);
    assert_eq!(figure(&server, "made_good_total"), 0);
    // Under the server: every copy is wrong from here on.
    let tier = File::options()
        .write(true)
        .open(directory.join("p.tier"))
        .unwrap();
    for sector in 1..6144 {
        tier.write_all_at(b"nonsense nonsense nonsense", sector * 4096 + 40)
            .unwrap();
    }
    assert!(read(&server, 2) >= all);
    assert!(figure(&server, "made_good_total") > 0);
    assert_eq!(server.figure("pumice_flash_corrupt_records_total"), 0);
    assert!(server.stop().success());
    // Taken away.
    let server = start(directory, "");
    assert!(read(&server, 1) >= all);
    assert!(server.stop().success());
    assert!(!said(directory, "inspect c.flash").contains("with a performance tier"));
}

#[test]
fn what_makes_no_sense_is_refused_when_a_tier_is_added() {
    let directory = place();
    let directory = directory.path();
    assert!(Server::start(directory).stop().success());
    refused(
        directory,
        2,
        "--performance-size 8MiB",
        &["--performance-tier is not given"],
    );
    refused(
        directory,
        2,
        "--performance-tier p.tier",
        &["--performance-size says how large"],
    );
    let same = "--performance-tier ./c.flash --performance-size 8MiB";
    refused(directory, 2, same, &["./c.flash", "the flash device itself"]);
    std::os::unix::fs::symlink("c.flash", directory.join("link")).unwrap();
    let same = "--performance-tier link --performance-size 8MiB";
    refused(directory, 2, same, &["the flash device itself"]);
    let large = "--performance-tier p.tier --performance-size 17MiB";
    refused(directory, 2, large, &["17 MiB", "the flash has 16 MiB"]);
    let small = "--performance-tier p.tier --performance-size 124KiB";
    refused(directory, 2, small, &["at least 131072 bytes"]);
    assert!(
        !directory.join("p.tier").exists(),
        "a failed start leaves nothing"
    );
    let foreign = vec![7; 1 << 20];
    std::fs::write(directory.join("p.tier"), &foreign).unwrap();
    let tier = "--performance-tier p.tier --performance-size 8MiB";
    refused(directory, 1, tier, &["p.tier", "holds no copies of Pumice's"]);
    let directory_as_tier = "--performance-tier . --performance-size 8MiB";
    refused(
        directory,
        1,
        directory_as_tier,
        &["neither a regular file nor a block device"],
    );
    // A cache is not copies either.
    std::fs::copy(directory.join("c.flash"), directory.join("d.flash")).unwrap();
    let other = "--performance-tier d.flash --performance-size 8MiB";
    refused(directory, 1, other, &["holds no copies of Pumice's"]);
    assert_eq!(std::fs::read(directory.join("p.tier")).unwrap(), foreign);
}

/// The limit of a file's size stands for a disk without room: either way its space cannot be reserved.
#[test]
fn a_tier_for_which_there_is_no_room_is_refused_and_nothing_is_left_of_it() {
    let directory = place();
    let directory = directory.path();
    assert!(Server::start(directory).stop().success());
    let before = std::fs::read(directory.join("c.flash")).unwrap();
    // In blocks of 512 bytes or 1 KiB, as the shell has it; less than the tier either way.
    let limited = "ulimit -f 8192; exec \"$0\" serve \"$@\"";
    let flags = "--memcached 127.0.0.1:0 --dram 96MiB --flash c.flash --performance-tier p.tier --performance-size 12MiB";
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_pumice")])
        .args(flags.split_whitespace())
        .current_dir(directory)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for words in [
        "performance tier p.tier",
        "cannot reserve 12582912 bytes for p.tier",
        "choose a smaller size",
    ] {
        assert!(stderr.contains(words), "{words:?}: {stderr}");
    }
    assert!(
        !directory.join("p.tier").exists(),
        "a failed start leaves nothing"
    );
    assert!(std::fs::read(directory.join("c.flash")).unwrap() == before);
    let fits = "--performance-tier p.tier --performance-size 12MiB";
    let server = Server::start_with(directory, &[], fits).unwrap_or_else(|refused| panic!("{refused:?}"));
    assert!(server.stop().success());
}

/// A superblock with sizes that cannot be costs its copies, and no start.
#[test]
fn sizes_of_a_hostile_superblock_are_not_believed() {
    let directory = place();
    let directory = directory.path();
    let tier = "--performance-tier p.tier";
    let begin = |more: &str| {
        let flags = format!("{tier} {more}");
        Server::start_with(directory, &[], &flags).unwrap_or_else(|refused| panic!("{refused:?}"))
    };
    assert!(begin("--performance-size 8MiB").stop().success());
    let file = File::options()
        .read(true)
        .write(true)
        .open(directory.join("p.tier"))
        .unwrap();
    let mut sector = vec![0; 4096];
    for (bytes, block_bytes) in [
        (u64::MAX, 64 << 10),
        (u64::MAX - 4095, 64 << 10),
        (8 << 20, 0),
        (8 << 20, u64::MAX - 4095),
        (0, 0),
        ((8 << 20) + 1, 64 << 10),
    ] {
        file.read_exact_at(&mut sector, 0).unwrap();
        let Found::Copies(real) = UpperSuperblock::decode(&sector) else {
            panic!("it is a tier");
        };
        let hostile = UpperSuperblock {
            bytes,
            block_bytes,
            ..real
        };
        file.write_all_at(&hostile.encode(), 0).unwrap();
        let output = pumice(directory, "inspect p.tier");
        assert!(
            output.status.code().is_some_and(|status| status < 3),
            "{output:?}"
        );
        let server = begin("");
        assert!(!server.stderr().contains("panic"), "{}", server.stderr());
        assert!(server.stop().success());
    }
}

#[test]
fn a_tier_that_is_not_what_it_was_is_left_out_and_not_touched() {
    let directory = place();
    let directory = directory.path();
    let server = start(directory, TIER);
    fill(&server);
    let all = read(&server, 2);
    assert!(server.stop().success());
    let path = directory.join("p.tier");
    let whole = std::fs::read(&path).unwrap();
    let left_out_with = |tier: &str, why: &str| {
        let server = start(directory, tier);
        assert!(
            server.stderr().contains("is left out") && server.stderr().contains(why),
            "{}",
            server.stderr()
        );
        assert!(read(&server, 1) >= all);
        let (_, stats) = server.admin("/stats");
        assert!(
            stats.contains("\"limitation\":\"the performance tier") && stats.contains(why),
            "{stats}"
        );
        assert_eq!(server.figure("pumice_performance_works"), 0);
        server.kill();
    };
    let left_out = |why: &str| left_out_with(TIER, why);
    std::fs::remove_file(&path).unwrap();
    left_out("it is missing");
    assert!(!path.exists());
    std::fs::write(&path, &whole[..5 << 20]).unwrap();
    left_out("it was cut short");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5 << 20);
    let foreign = vec![7; 25 << 20];
    std::fs::write(&path, &foreign).unwrap();
    left_out("holds no copies");
    assert_eq!(std::fs::read(&path).unwrap(), foreign);
    // Copies of another, larger cache, by their own word.
    let larger = UpperSuperblock {
        owner: 1,
        bytes: 1 << 40,
        block_bytes: 64 << 10,
    };
    std::fs::write(&path, larger.encode()).unwrap();
    left_out_with("--performance-tier p.tier", "of more there can be no copy");
    // What it was, later.
    std::fs::write(&path, &whole).unwrap();
    let server = start(directory, TIER);
    assert!(!server.stderr().contains("is left out"));
    assert!(read(&server, 2) >= all);
    server.kill();
    // An empty file is an invitation.
    std::fs::write(&path, b"").unwrap();
    let server = start(directory, TIER);
    assert!(!server.stderr().contains("is left out"));
    assert!(read(&server, 2) >= all && server.figure("pumice_performance_copies") > 0);
    assert!(server.stop().success());
}
