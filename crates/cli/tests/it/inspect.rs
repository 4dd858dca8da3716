//! `pumice inspect`: exit status, what it says of a cache, and that it never writes.

use crate::common::{Server, place, pumice, text};
use serde_json::Value;

/// A directory with a cache `c.flash` in it.
fn cache() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let replay = "replay zipf:keys=3000,theta=0.8,requests=20000,seed=7 --layout ripq --flash-size 4MiB --object-size 2KiB \
                  --device c.flash";
    let output = pumice(directory.path(), replay);
    assert!(output.status.success(), "{}", text(&output.stderr));
    directory
}

#[test]
fn a_cache_is_described_and_not_changed() {
    let directory = cache();
    let path = directory.path().join("c.flash");
    let before = std::fs::read(&path).unwrap();
    let output = pumice(directory.path(), "inspect c.flash --verify");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    for part in ["layout ripq", "index full", "4 MiB", "sealed", "clean, with"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let output = pumice(directory.path(), "inspect c.flash --json");
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["inconsistencies"], 0);
    assert_eq!(report["verified"], false);
    assert_eq!(report["geometry"]["capacity"], 4 << 20);
    let blocks = report["blocks"].as_object().unwrap();
    let of_all: u64 = [
        "sealed",
        "free",
        "checkpoint",
        "mappings",
        "prefixes",
        "open",
        "unknown",
    ]
    .iter()
    .map(|state| blocks[*state].as_u64().unwrap())
    .sum();
    assert_eq!(report["geometry"]["blocks"], of_all);
    assert!(report["objects"].as_u64().unwrap() > 500, "{report}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn an_inconsistency_is_named_with_its_place_and_ends_with_1() {
    let directory = cache();
    let path = directory.path().join("c.flash");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 40] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let output = pumice(directory.path(), "inspect c.flash --verify");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = "inconsistency: byte 4096, superblock 1: it is damaged: its checksum is wrong";
    assert!(said.contains(line), "{said}");
    let output = pumice(directory.path(), "inspect c.flash --verify --json");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let wrong = |finding: &&Value| finding["kind"] == "inconsistency";
    assert_eq!(report["inconsistencies"], findings.iter().filter(wrong).count());
    assert_eq!(findings[0]["offset"], 4096);
    assert_eq!(findings[0]["part"], "superblock 1");
}

#[test]
fn what_cannot_be_looked_at_says_why() {
    let directory = cache();
    let bytes = std::fs::read(directory.path().join("c.flash")).unwrap();
    let mut newer = bytes.clone();
    // The next format, in both superblocks, with their checksums.
    for slot in [0, 4096] {
        newer[slot + 8] += 1;
        let sum =
            pumice_record::codec::checksum(0, &[&newer[slot..slot + 12], &newer[slot + 16..slot + 4096]]);
        newer[slot + 12..slot + 16].copy_from_slice(&sum.to_le_bytes());
    }
    for (content, status, part) in [
        (Some(&[][..]), 1, "it is empty"),
        (Some(&[7; 100_000][..]), 1, "no Pumice cache"),
        (Some(&[0; 100_000][..]), 1, "never formatted"),
        (Some(&bytes[..5_000]), 1, "truncated"),
        (
            Some(&bytes[..bytes.len() / 2]),
            1,
            "it was truncated: the superblock speaks of 4194304 bytes",
        ),
        (Some(&newer[..]), 1, "it has format version 5"),
        (None, 1, "cannot open x.flash"),
    ] {
        let path = directory.path().join("x.flash");
        let _ = std::fs::remove_file(&path);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        for line in ["inspect x.flash", "inspect x.flash --verify --json"] {
            let output = pumice(directory.path(), line);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{line}: {said}");
            assert!(
                said.contains(part) && said.contains("x.flash"),
                "{part:?}: {said}"
            );
            assert!(output.stdout.is_empty());
        }
    }
    for (line, status, part) in [
        ("inspect", 2, "PATH"),
        ("inspect c.flash --repair", 2, "--repair"),
        ("inspect .", 1, "neither a regular file nor a block device"),
        (
            "inspect /dev/null",
            1,
            "neither a regular file nor a block device",
        ),
    ] {
        let output = pumice(directory.path(), line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}: {said}");
        assert!(said.contains(part), "{line}: {said}");
    }
}

#[test]
fn a_running_server_is_named_and_a_stopped_one_leaves_a_clean_cache() {
    let directory = place();
    let server = Server::start(directory.path());
    let refused = pumice(directory.path(), "inspect c.flash");
    assert!(server.stop().success());
    assert_eq!(refused.status.code(), Some(1));
    let why = text(&refused.stderr);
    assert!(why.contains("c.flash is in use by a running server"), "{why}");

    let output = pumice(directory.path(), "inspect c.flash --verify");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("the last stop was clean"), "{said}");
}
