//! A flash file that is not what it was: at a start that is an error that says what to do, or a recovery that serves nothing wrong.

use crate::common::{Server, name, place, value};
use pumice_blocks::superblock::{FORMAT, Maker, SlotContent, Superblock};
use pumice_record::codec::checksum;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const KEYS: u32 = 1_000;
const SECTOR: usize = 4_096;

/// Fills a cache; deletes a third of what it holds and sets another third anew when all of it is on flash.
fn fill(directory: &Path) -> Server {
    let server = Server::start(directory);
    let mut client = server.client();
    for key in 0..KEYS {
        client.set(&name(key), &value(key, 1));
    }
    drop(client);
    assert!(server.stop().success());
    let server = Server::start(directory);
    let mut client = server.client();
    for key in 0..KEYS {
        match key % 3 {
            0 => assert!(client.delete(&name(key))),
            1 => client.set(&name(key), &value(key, 2)),
            _ => {}
        }
    }
    drop(client);
    server
}

/// Reads all keys: each holds what was last set, or nothing. Returns how many hold something.
fn compare(server: &Server) -> u32 {
    let mut client = server.client();
    let mut found = 0;
    for key in 0..KEYS {
        let expected = match key % 3 {
            0 => None,
            1 => Some(value(key, 2)),
            _ => Some(value(key, 1)),
        };
        let got = client.get(&name(key));
        assert!(got.is_none() || got == expected, "key {key}: {got:?}");
        found += u32::from(got.is_some());
    }
    found
}

fn flash(directory: &Path) -> File {
    let path = directory.join("c.flash");
    File::options().read(true).write(true).open(path).unwrap()
}

fn superblock(directory: &Path) -> Superblock {
    let file = flash(directory);
    let newest = (0..2).filter_map(|slot| match Superblock::decode(&sector(&file, slot)) {
        SlotContent::Valid(superblock) => Some(superblock),
        _ => None,
    });
    newest.max_by_key(|superblock| superblock.generation).unwrap()
}

fn sector(file: &File, slot: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    file.read_exact_at(&mut bytes, slot * SECTOR as u64).unwrap();
    bytes
}

fn refused(directory: &Path, without: &[&str], words: &[&str]) {
    let Err(refused) = Server::start_with(directory, without, "") else {
        panic!("it starts");
    };
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    for words in words {
        assert!(refused.stderr.contains(words), "{words:?}: {refused:?}");
    }
}

#[test]
fn a_file_that_was_cut_short_is_refused_and_left_as_it_is() {
    let directory = place();
    let directory = directory.path();
    assert!(fill(directory).stop().success());
    let half = 8 << 20;
    flash(directory).set_len(half).unwrap();
    let sizes = ["8388608", "16777216", "--reformat", "c.flash"];
    refused(directory, &["--flash-size"], &sizes);
    refused(directory, &[], &sizes);
    assert_eq!(flash(directory).metadata().unwrap().len(), half);
    let server = Server::start_with(directory, &[], "--reformat").unwrap();
    assert!(server.recovered("is new") && compare(&server) == 0);
}

#[test]
fn a_file_that_has_grown_is_used_as_before() {
    let directory = place();
    let directory = directory.path();
    assert!(fill(directory).stop().success());
    flash(directory).set_len(32 << 20).unwrap();
    let server = Server::start_with(directory, &["--flash-size"], "").unwrap();
    assert!(server.recovered("after a clean stop"));
    assert_eq!(compare(&server), KEYS * 2 / 3);
    assert!(server.stop().success());
    // What is asked for in so many words is not what it was made with.
    let Err(refused) = Server::start_with(directory, &["--flash-size"], "--flash-size 32MiB") else {
        panic!("it starts");
    };
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn a_policy_that_is_not_for_the_layout_that_is_there_is_said_to_have_no_effect() {
    let directory = place();
    let directory = directory.path();
    let server = Server::start_with(directory, &["--layout"], "--layout sipq --theta 0.3").unwrap();
    let says = |server: &Server| server.stderr().contains("no effect without --layout sipq");
    assert!(!says(&server) && server.stop().success());
    for (more, is_said) in [
        ("--theta 0.3", true),
        ("--layout sipq --theta 0.3", false),
        ("", false),
    ] {
        let server = Server::start_with(directory, &["--layout"], more).unwrap();
        assert_eq!(says(&server), is_said, "{more}: {}", server.stderr());
        assert!(server.stop().success());
    }
}

#[test]
fn what_a_replay_left_is_no_server_s() {
    let directory = place();
    let directory = directory.path();
    assert!(fill(directory).stop().success());
    let mut found = superblock(directory);
    found.maker = Maker::Replay;
    let file = flash(directory);
    for _ in 0..2 {
        found.generation += 1;
        file.write_all_at(&found.encode(), found.slot_offset()).unwrap();
    }
    refused(directory, &[], &["pumice replay", "--reformat"]);
    let Ok(server) = Server::start_with(directory, &[], "--reformat") else {
        panic!("it may be erased");
    };
    assert!(server.stop().success());
    assert_eq!(superblock(directory).maker, Maker::Serve);
}

/// Whichever of the two is lost, at a clean stop and in a crash.
#[test]
fn one_superblock_of_two_is_enough() {
    for clean in [true, false] {
        for slot in 0..2 {
            for what in ["zero", "noise"] {
                let directory = place();
                let directory = directory.path();
                let server = fill(directory);
                if clean {
                    assert!(server.stop().success());
                } else {
                    server.kill();
                }
                let bytes = [if what == "zero" { 0 } else { 0x5A }; SECTOR];
                flash(directory)
                    .write_all_at(&bytes, slot * SECTOR as u64)
                    .unwrap();
                let server = Server::start(directory);
                let found = compare(&server);
                assert!(
                    found > KEYS / 4,
                    "clean {clean}, slot {slot}, {what}: {found}, {:?}",
                    server.said
                );
                assert!(server.stderr().contains("superblock"), "{}", server.stderr());
                assert!(server.stop().success());
                assert!(superblock(directory).clean, "it is a cache as before");
            }
        }
    }
}

#[test]
fn without_superblocks_it_is_not_ours_or_damaged() {
    for (byte, words) in [(0, "holds no Pumice cache"), (0x5A, "holds no Pumice cache")] {
        let directory = place();
        let directory = directory.path();
        assert!(fill(directory).stop().success());
        flash(directory).write_all_at(&[byte; 2 * SECTOR], 0).unwrap();
        let before = std::fs::read(directory.join("c.flash")).unwrap();
        refused(directory, &[], &[words, "--reformat"]);
        assert!(std::fs::read(directory.join("c.flash")).unwrap() == before);
    }
    let directory = place();
    let directory = directory.path();
    assert!(fill(directory).stop().success());
    for slot in 0..2 {
        flash(directory)
            .write_all_at(&[0x5A], slot * SECTOR as u64 + 50)
            .unwrap();
    }
    refused(directory, &[], &["both superblocks", "--reformat"]);
}

/// A program of a later version has begun to write here: of what it did this one knows nothing.
#[test]
fn one_superblock_of_a_later_format_is_enough_to_refuse() {
    for slot in 0..2 {
        let directory = place();
        let directory = directory.path();
        assert!(fill(directory).stop().success());
        let file = flash(directory);
        let mut bytes = sector(&file, slot);
        bytes[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
        let crc = checksum(0, &[&bytes[..12], &bytes[16..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&bytes, slot * SECTOR as u64).unwrap();
        let later = format!("format version {}", FORMAT + 1);
        let known = format!("knows version {FORMAT}");
        refused(directory, &[], &[&later, &known, "--reformat"]);
    }
}

/// A superblock of another cache, newer or older than ours: what it does not know does not count.
#[test]
fn superblocks_of_two_caches_serve_nothing_of_the_wrong_one() {
    let other = place();
    assert!(fill(other.path()).stop().success());
    let others = superblock(other.path());
    for wins in [true, false] {
        let directory = place();
        let directory = directory.path();
        let server = fill(directory);
        server.kill();
        let ours = superblock(directory);
        assert!(ours.cache_id != others.cache_id && ours.generation > 1);
        let strange = Superblock {
            // One that does not win stands in the slot of ours that does not count.
            generation: if wins { 1_000 } else { 1 + ours.generation % 2 },
            clean: false,
            ..others
        };
        flash(directory)
            .write_all_at(&strange.encode(), strange.slot_offset())
            .unwrap();
        let server = Server::start(directory);
        let found = compare(&server);
        assert_eq!(found == 0, wins, "{found} of a cache that counts or does not");
        let mut client = server.client();
        client.set(&name(0), b"new");
        assert_eq!(client.get(&name(0)).as_deref(), Some(&b"new"[..]));
    }
}

/// The log says what was deleted. Where it is gone, or is another cache's, nothing that it might have voided comes back.
#[test]
fn without_its_log_a_killed_cache_starts_empty() {
    let other = place();
    fill(other.path()).kill();
    for what in ["zero", "noise", "another's"] {
        let directory = place();
        let directory = directory.path();
        fill(directory).kill();
        let geometry = superblock(directory).geometry;
        let len = (geometry.data_offset - geometry.log_offset) as usize;
        let mut log = vec![if what == "zero" { 0 } else { 0x5A }; len];
        if what == "another's" {
            flash(other.path())
                .read_exact_at(&mut log, geometry.log_offset)
                .unwrap();
        }
        flash(directory).write_all_at(&log, geometry.log_offset).unwrap();
        let server = Server::start(directory);
        assert!(
            server.recovered("could not be trusted and is forgotten"),
            "{what}: {:?}",
            server.said
        );
        assert!(
            server.stderr().contains("invalidation log"),
            "{}",
            server.stderr()
        );
        assert_eq!(compare(&server), 0, "{what}");
    }
}

/// After a clean stop there is nothing in the log that counts.
#[test]
fn without_its_log_a_cache_that_was_stopped_has_everything() {
    let directory = place();
    let directory = directory.path();
    assert!(fill(directory).stop().success());
    let geometry = superblock(directory).geometry;
    let log = vec![0; (geometry.data_offset - geometry.log_offset) as usize];
    flash(directory).write_all_at(&log, geometry.log_offset).unwrap();
    let server = Server::start(directory);
    assert!(server.recovered("after a clean stop"), "{:?}", server.said);
    assert_eq!(compare(&server), KEYS * 2 / 3);
    server.kill();
    assert_eq!(compare(&Server::start(directory)), KEYS * 2 / 3);
}

/// A server serves the file that it has opened, whatever the name stands for later; the next takes what is there then.
#[test]
fn a_file_that_is_replaced_while_it_is_served_is_another_cache() {
    let (directory, other) = (place(), place());
    let directory = directory.path();
    let server = Server::start(other.path());
    server.client().set("theirs", b"theirs");
    assert!(server.stop().success());
    let server = fill(directory);
    std::fs::rename(other.path().join("c.flash"), directory.join("c.flash")).unwrap();
    assert_eq!(compare(&server), KEYS * 2 / 3);
    let mut client = server.client();
    client.set("ours", b"ours");
    assert_eq!(client.get("theirs"), None);
    drop(client);
    assert!(server.stop().success());
    let server = Server::start(directory);
    let mut client = server.client();
    assert_eq!(client.get("theirs").as_deref(), Some(&b"theirs"[..]));
    assert_eq!(client.get("ours"), None);
    assert_eq!(compare(&server), 0);
}
