//! A flash file that fails while it is served: the server goes on with DRAM, says so everywhere, and the next start knows.
//!
//! Writes are made to fail by a limit on the size of files that is set on the running server; reads by cutting the file short.

use crate::common::{Server, name, place, value};
use pumice_blocks::superblock::{SlotContent, Superblock};
use rustix::process::{Resource, Rlimit, prlimit};
use std::path::Path;
use std::time::{Duration, Instant};

const KEYS: u32 = 1_500;

fn limit_files(server: &Server, bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(Some(server.pid()), Resource::Fsize, limit).unwrap();
}

/// Where blocks begin on the device.
fn data_offset(directory: &Path) -> u64 {
    let bytes = std::fs::read(directory.join("c.flash")).unwrap();
    let slots = [&bytes[..4_096], &bytes[4_096..8_192]].map(Superblock::decode);
    let mut valid = slots.into_iter().filter_map(|slot| match slot {
        SlotContent::Valid(superblock) => Some(superblock.geometry.data_offset),
        _ => None,
    });
    valid.next().unwrap()
}

/// A server whose objects are on flash and not in DRAM.
fn served_from_flash(directory: &Path) -> Server {
    let server = Server::start(directory);
    let mut client = server.client();
    for key in 0..KEYS {
        client.set(&name(key), &value(key, 1));
    }
    drop(client);
    assert!(server.stop().success());
    Server::start(directory)
}

/// All that a client and an operator see of a server without its device.
fn serves_from_dram(server: &Server, is_remembered: bool) {
    let mut client = server.client();
    for key in 0..200 {
        client.set(&name(key), &value(key, 2));
        assert_eq!(client.get(&name(key)), Some(value(key, 2)), "DRAM answers");
    }
    for key in 100..200 {
        assert!(client.delete(&name(key)));
    }
    assert_eq!(client.get(&name(KEYS - 1)), None, "what only flash had is a miss");
    assert_eq!(client.stat("flash_out"), "1");
    let (status, ready) = server.admin("/readyz");
    assert_eq!(status, 200);
    assert!(
        ready.starts_with("ready\nthe flash device was taken out"),
        "{ready}"
    );
    let next = match is_remembered {
        true => "the next start makes an empty cache of it",
        false => "start the next with --reformat",
    };
    assert!(ready.contains(next), "{ready}");
    assert_eq!(server.admin("/healthz").0, 200);
    let metrics = server.admin("/metrics").1;
    let remembered = format!("pumice_flash_out_remembered {}", u8::from(is_remembered));
    for line in ["pumice_flash_out 1", &remembered] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // What the device held may still be given up one by one.
    let end = Instant::now() + Duration::from_secs(60);
    let mut books = server.admin("/books");
    while books.0 == 503 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        books = server.admin("/books");
    }
    assert_eq!(books.0, 200, "{}", books.1);
    let said = server.stderr();
    assert_eq!(said.matches("the flash device is taken out").count(), 1, "{said}");
}

/// The next start trusts nothing that is there, and is a cache as any other.
fn starts_empty(directory: &Path) {
    let server = Server::start(directory);
    assert!(
        server.recovered("could not be trusted and is forgotten"),
        "{:?}",
        server.said
    );
    let mut client = server.client();
    for key in 0..KEYS {
        assert_eq!(client.get(&name(key)), None, "key {key}");
    }
    assert_eq!(client.stat("flash_out"), "0");
    assert_eq!(server.admin("/readyz"), (200, "ready\n".to_owned()));
    client.set(&name(1), b"new");
    drop(client);
    assert!(server.stop().success());
    let server = Server::start(directory);
    assert!(server.recovered("after a clean stop"), "{:?}", server.said);
    assert_eq!(server.client().get(&name(1)).as_deref(), Some(&b"new"[..]));
}

/// Sets until the device is out.
fn write_until_out(server: &Server) {
    let mut client = server.client();
    for key in 0..20_000 {
        client.set(&name(10_000 + key), &value(key, 1));
        if key % 100 == 0 && client.stat("flash_out") == "1" {
            return;
        }
    }
    panic!("the device is still in use");
}

#[test]
fn a_file_that_cannot_be_written_is_taken_out_and_marked() {
    for clean in [true, false] {
        let directory = place();
        let directory = directory.path();
        let server = served_from_flash(directory);
        // Superblocks and log can be written, blocks cannot.
        limit_files(&server, Some(data_offset(directory)));
        write_until_out(&server);
        serves_from_dram(&server, true);
        if clean {
            assert!(server.stop().success());
        } else {
            server.kill();
        }
        starts_empty(directory);
    }
}

#[test]
fn a_file_that_cannot_even_be_marked_says_so() {
    let directory = place();
    let directory = directory.path();
    let server = served_from_flash(directory);
    // The second superblock cannot be written.
    limit_files(&server, Some(4_096));
    write_until_out(&server);
    serves_from_dram(&server, false);
    assert!(server.stderr().contains("--reformat"), "{}", server.stderr());
    assert!(!server.stop().success());
    // The first could be.
    starts_empty(directory);
}

/// Whether that is found out by a read, or by an append to the log, which is a copy into a mapped page.
#[test]
fn a_file_that_is_cut_short_while_it_is_served_is_taken_out() {
    for by_read in [true, false] {
        let directory = place();
        let directory = directory.path();
        let server = served_from_flash(directory);
        let path = directory.join("c.flash");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        if by_read {
            file.set_len(8_192).unwrap();
            assert_eq!(server.client().get(&name(KEYS - 1)), None, "it cannot be read");
        } else {
            // The window is there from the first append on.
            server.client().set(&name(0), &value(0, 2));
            file.set_len(8_192).unwrap();
            server.client().set(&name(1), &value(1, 2));
        }
        serves_from_dram(&server, true);
        assert!(server.stderr().contains("became shorter"), "{}", server.stderr());
        server.kill();
        let Err(refused) = Server::start_with(directory, &[], "") else {
            panic!("it starts");
        };
        assert!(refused.stderr.contains("cut short"), "{refused:?}");
        // Whoever makes it as long as it was gets an empty cache.
        file.set_len(len).unwrap();
        starts_empty(directory);
    }
}
