//! `pumice trace`, and replays by fingerprint.

use crate::common::{pumice, said};
use serde_json::Value;
use std::path::Path;

fn json(directory: &Path, line: &str) -> Value {
    serde_json::from_str(&said(directory, line)).unwrap()
}

/// Status and error of a line that fails and prints nothing.
fn refused(directory: &Path, line: &str) -> (Option<i32>, String) {
    let output = pumice(directory, line);
    assert!(output.stdout.is_empty(), "{line}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Disk requests at four addresses with two contents.
const FIU: &str = "1 7 nfsd 0 8 W 6 0 0000000000000001000000000000000a\n\
                   2 7 nfsd 8 8 W 6 0 0000000000000001000000000000000a\n\
                   3 7 nfsd 16 8 R 6 0 0000000000000002000000000000000b\n\
                   4 7 nfsd 24 8 R 6 0 0000000000000001000000000000000a\n";

#[test]
fn info_says_what_is_in_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t"), "1 5 100\n2 6 50\n3 5 100\n").unwrap();
    let found = json(folder.path(), "trace info t --json");
    assert_eq!(found["format"], "time-id-size");
    assert_eq!((&found["requests"], &found["objects"]), (&3.into(), &2.into()));
    assert_eq!(found["footprint_bytes"], 150);
    assert_eq!(found["object_size"]["median"], 75.0);
    assert!(found["write_share"].is_null() && found["page_bytes"].is_null());
    let text = said(folder.path(), "trace info t");
    assert!(text.contains("footprint      150 bytes (150 B)\n"), "{text}");
    assert!(text.contains("writes         unknown"), "{text}");

    std::fs::write(folder.path().join("disk"), FIU).unwrap();
    let found = json(folder.path(), "trace info disk --json");
    assert_eq!(
        (&found["objects"], &found["page_bytes"]),
        (&4.into(), &4096.into())
    );
    assert_eq!(
        (&found["write_share"], &found["unaligned_requests"]),
        (&0.5.into(), &0.into())
    );
    let found = json(folder.path(), "trace info disk --json --key fingerprint");
    assert_eq!(
        (&found["objects"], &found["footprint_bytes"]),
        (&2.into(), &8192.into())
    );
    let text = said(folder.path(), "trace info disk");
    assert!(
        text.contains("distinct pages 4\n") && text.contains("50.00 % of the requests"),
        "{text}"
    );
    let text = said(folder.path(), "trace info zipf:keys=10,theta=0.9,requests=100");
    assert!(text.contains("requests       100\n"), "{text}");
}

/// A part of the requests of a recording have no size: what was made of them is said.
#[test]
fn a_replay_says_what_it_took_for_sizes_that_are_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "time,id,size,op,ttl\n1,7,,get,\n1,7,50,set,0\n2,8,,get,\n3,7,50,get,\n4,7,,delete,\n";
    std::fs::write(folder.path().join("recorded"), rows).unwrap();
    let replay = "replay recorded --layout exact --policy lru --flash-size 100%";
    let found = json(folder.path(), &format!("{replay} --json"));
    assert_eq!(found["flash_bytes"], 50 + 4096);
    let without = &found["settings"]["without_size"];
    assert_eq!(
        (
            &without["requests"],
            &without["unknown"],
            &without["assumed_bytes"]
        ),
        (&2.into(), &1.into(), &4096.into())
    );
    let text = said(folder.path(), &format!("{replay} --object-size 100"));
    let expected =
        "2 requests: 1 took the next size of their key, 1 one that it had before, or 100 bytes, assumed";
    assert!(text.contains(expected), "{text}");
    let text = said(folder.path(), "trace info recorded");
    assert!(
        text.contains("footprint      50 bytes") && text.contains("without size   2 accesses; 1 objects"),
        "{text}"
    );
    let advice = "advise recorded --dram-price 4 --flash-price 0.1 --miss-latency 1ms --no-replay";
    let text = said(folder.path(), advice);
    assert!(text.contains("2 requests record no size"), "{text}");
}

#[test]
fn a_file_that_could_have_two_formats_is_refused_with_both() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("four"), "1 5 120 0\n2 6 80 0\n3 5 120 0\n").unwrap();
    std::fs::write(folder.path().join("commas"), "1,5,120\n").unwrap();
    for (line, names) in [
        ("trace info four", "arc or csv"),
        ("replay commas", "jedi or csv"),
    ] {
        let (status, text) = refused(folder.path(), line);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(names) && text.contains("--columns"), "{text}");
    }
    let columns = "--columns time=1,id=2,size=3,delimiter=space";
    let found = json(folder.path(), &format!("trace info four {columns} --json"));
    assert_eq!(
        (&found["requests"], &found["footprint_bytes"]),
        (&3.into(), &200.into())
    );
}

#[test]
fn a_replay_by_fingerprint_finds_content_under_any_address() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("disk"), FIU).unwrap();
    let replay = "replay disk --layout exact --policy lru --flash-size 8192 --json";
    let by_address = json(folder.path(), replay);
    assert_eq!(by_address["object_hit_ratio"], 0.0);
    let by_content = json(folder.path(), &format!("{replay} --key fingerprint"));
    assert_eq!(
        (&by_content["object_hit_ratio"], &by_content["requests"]),
        (&0.5.into(), &4.into())
    );
}

#[test]
fn a_converted_trace_replays_as_the_original() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("disk"), FIU.repeat(3)).unwrap();
    let replay = |rest: &str| {
        let line = format!("replay {rest} --layout exact --policy fifo --flash-size 75% --json");
        let mut report = json(folder.path(), &line);
        let report = report.as_object_mut().unwrap();
        let of_the_run = ["trace", "command", "elapsed_seconds", "requests_per_second"];
        report.retain(|name, _| !of_the_run.contains(&name.as_str()));
        report["settings"].as_object_mut().unwrap().remove("format");
        report.clone()
    };
    let original = replay("disk");
    let text = said(folder.path(), "trace convert disk out.csv.zst --to csv");
    assert!(text.starts_with("out.csv.zst: 12 requests as csv\n"), "{text}");
    assert_eq!(replay("out.csv.zst"), original);
    let text = said(folder.path(), "trace convert disk out.oracle --to oracle-general");
    assert!(text.contains("6 sets are plain accesses"), "{text}");
    assert_eq!(replay("out.oracle"), original);
}

#[test]
fn disk_requests_are_objects_or_pages() {
    let folder = tempfile::tempdir().unwrap();
    let blocks =
        "3,R,8192,4096,1577808000000100\n3,W,12288,8192,1577808000000200\n7,R,8192,4096,1577808000000300\n";
    std::fs::write(folder.path().join("blocks"), blocks).unwrap();
    for (flags, page_bytes, objects, footprint) in [
        ("", serde_json::Value::Null, 3, 16384),
        (" --page-size 4KiB", 4096.into(), 4, 16384),
        (" --page-size 8KiB", 8192.into(), 3, 24576),
    ] {
        let found = json(folder.path(), &format!("trace info blocks --json{flags}"));
        assert_eq!(found["format"], "alibaba-block");
        assert_eq!(
            (&found["page_bytes"], &found["objects"], &found["footprint_bytes"]),
            (&page_bytes, &objects.into(), &footprint.into()),
            "{flags}"
        );
    }
    let (status, errors) = refused(folder.path(), "trace info blocks --page-size 5000");
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("512 to 1 GiB, not 5000"), "{errors}");
}

#[test]
fn bad_usage_ends_with_2_and_damage_with_1() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t"), "1 5 100\n2 6\n").unwrap();
    std::fs::write(folder.path().join("bin"), b"\x00\x01\x02\x03").unwrap();
    for (line, status, parts) in [
        ("trace", 2, &["info"][..]),
        ("trace info bin", 2, &["vscsi", "--format"]),
        ("trace info t --format arcc", 2, &["`arcc`"]),
        (
            "trace info t --key fingerprint",
            2,
            &["format fiu", "time-id-size"],
        ),
        (
            "trace info t --key content",
            2,
            &["--key `content`", "fingerprint"],
        ),
        (
            "trace info zipf:keys=9,theta=1,requests=9 --key fingerprint",
            2,
            &["zipf"],
        ),
        (
            "trace info t --page-size 4KiB",
            2,
            &["--page-size is for disk requests", "msr", "time-id-size"],
        ),
        (
            "trace info t --page-size 4KiB --key object",
            2,
            &["cannot be used with"],
        ),
        ("trace info nowhere", 1, &["cannot open nowhere"]),
        ("trace info t", 1, &["record 2", "before the size"]),
        (
            "trace convert t out --to jedy",
            2,
            &["--to `jedy`", "oracle-general"],
        ),
        ("trace convert t out --to jedi", 2, &["`jedi`", "oracle-general"]),
        ("trace convert t bin --to csv", 2, &["bin is there already"]),
        ("trace convert t out --to csv", 1, &["record 2"]),
        ("trace convert t no/out --to csv", 1, &["no/out"]),
        (
            "trace convert t out --to csv --object-size 5%",
            2,
            &["--object-size", "powers of two)\n"],
        ),
        ("replay t --layout exact --key content", 2, &["--key `content`"]),
    ] {
        let (code, text) = refused(folder.path(), line);
        assert_eq!(code, Some(status), "{line}: {text}");
        for part in parts {
            assert!(text.contains(part), "{line}: {text}");
        }
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "nothing is left behind");
}

#[test]
fn what_convert_wrote_is_read_and_a_format_that_cannot_be_right_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let zipf = "zipf:keys=500,requests=4000,theta=0.9,size=100";
    for to in ["oracle-general", "csv", "time-id-size"] {
        said(folder.path(), &format!("trace convert {zipf} {to} --to {to}"));
        let found = json(folder.path(), &format!("trace info {to} --json"));
        assert_eq!(
            (&found["format"], &found["requests"]),
            (&to.into(), &4000.into()),
            "{to}"
        );
    }
    let sizeless = "trace convert zipf:keys=5,requests=40,theta=0.9 out --to";
    for (rest, is_said) in [
        ("csv", false),
        ("keys-be-i64", false),
        ("time-id-size --object-size 1K", false),
        ("oracle-general", true),
    ] {
        let output = pumice(folder.path(), &format!("{sizeless} {rest}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{rest}: {errors}");
        assert_eq!(
            errors.contains("note: 40 requests have no size"),
            is_said,
            "{rest}: {errors}"
        );
        std::fs::remove_file(folder.path().join("out")).unwrap();
    }
    let output = pumice(folder.path(), "trace info oracle-general");
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut bytes: Vec<u8> = (0..8000u64).flat_map(|key| (key * 7).to_be_bytes()).collect();
    std::fs::write(folder.path().join("new"), &bytes).unwrap();
    for command in ["trace info", "replay"] {
        let output = pumice(
            folder.path(),
            &format!("{command} new --format keys-be-i64 --json"),
        );
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("is --format the right one?"),
            "{command}: {errors}"
        );
    }
    bytes.pop();
    std::fs::write(folder.path().join("new"), &bytes).unwrap();
    let (status, errors) = refused(folder.path(), "trace info new --format keys-be-i64 --json");
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("record 8000"), "{errors}");
}
