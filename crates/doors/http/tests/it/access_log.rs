//! Lines of the access log, and files that do not take them.

use http::Version;
use pumice_door_http::access_log::{AccessLog, AccessLogConfig, AccessLogFormat, Entry};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

fn entry() -> Entry<'static> {
    Entry {
        client: Some([192, 0, 2, 7].into()),
        time: UNIX_EPOCH + Duration::from_millis(784_111_777_042),
        duration: Duration::from_micros(1234),
        method: "GET",
        host: "example.org",
        target: "/a?b=c",
        version: Version::HTTP_11,
        status: 200,
        bytes: 5120,
        referer: None,
        user_agent: Some(b"curl/8.5.0"),
        cache: "hit",
    }
}

fn open(path: &Path, format: &str) -> AccessLog {
    let format: AccessLogFormat = format.parse().unwrap();
    let path = path.to_owned();
    let hidden = ["token", "a b"].map(str::to_owned).to_vec();
    AccessLog::open(&AccessLogConfig { path, format }, hidden).unwrap()
}

/// What is written of some requests.
fn lines(format: &str, entries: &[Entry<'_>]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = open(&path, format);
    for entry in entries {
        log.write(entry);
    }
    drop(log);
    std::fs::read_to_string(path).unwrap()
}

const COMBINED: &str = "192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=c HTTP/1.1\" 200 5120 \"-\" \"curl/8.5.0\" \"hit\" 0.001234\n";

#[test]
fn a_line_has_what_its_format_says() {
    let other = Entry {
        client: None,
        version: Version::HTTP_2,
        referer: Some(b"https://example.org/"),
        user_agent: None,
        duration: Duration::from_secs(61),
        ..entry()
    };
    assert_eq!(
        lines("combined", &[entry(), other]),
        COMBINED.to_owned()
            + "unix: - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=c HTTP/2.0\" 200 5120 \"https://example.org/\" \"-\" \"hit\" 61.000000\n"
    );
    let common = "\"method\":\"GET\",\"host\":\"example.org\",\"target\":\"/a?b=c\",\"version\":";
    let (time, tail) = (
        "{\"time\":\"1994-11-06T08:49:37.042Z\",",
        "\"status\":200,\"bytes\":5120,",
    );
    assert_eq!(
        lines("json", &[entry(), other]),
        format!(
            "{time}\"client\":\"192.0.2.7\",{common}\"HTTP/1.1\",{tail}\"user_agent\":\"curl/8.5.0\",\"cache\":\"hit\",\"seconds\":0.001234}}\n\
             {time}\"client\":\"unix:\",{common}\"HTTP/2.0\",{tail}\"referer\":\"https://example.org/\",\"cache\":\"hit\",\"seconds\":61.0}}\n"
        )
    );
    assert!("common".parse::<AccessLogFormat>().is_err());
}

#[test]
fn nothing_that_a_client_sends_breaks_a_line() {
    let bytes: Vec<u8> = (0..=255).collect();
    let odd = Entry {
        target: "/\"\\\n\r\u{1b}[31mä\u{85}\u{2028}",
        method: "G\"ET",
        host: "a\"b",
        referer: Some(&bytes),
        user_agent: Some(&bytes),
        ..entry()
    };
    let line = lines("combined", &[odd]);
    assert!(
        line.contains("\"G\\x22ET /\\x22\\x5C\\x0A\\x0D\\x1B[31m\\xC3\\xA4\\xC2\\x85"),
        "{line}"
    );
    let (text, end) = line.split_at(line.len() - 1);
    assert!(text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) && end == "\n");
    assert_eq!(text.matches('"').count(), 8);
    let line = lines("json", &[odd]);
    assert_eq!(line.lines().count(), 1);
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(read["target"], odd.target);
    assert_eq!(read["host"], "a\"b");
}

#[test]
fn hidden_fields_of_queries_are_not_written() {
    for (target, shown) in [
        ("/?token=secret", "/?token=***"),
        ("/?a=1&token=secret&b=2", "/?a=1&token=***&b=2"),
        (
            "/?token=secret;token=secret&token=&token",
            "/?token=***;token=***&token=***&token=***",
        ),
        ("/?%74oke%6E=secret=secret?token=secret", "/?%74oke%6E=***"),
        ("/?a%20b=secret&%=1&%7=2&%zz=3&", "/?a%20b=***&%=1&%7=2&%zz=3&"),
        ("/?tokens=1&Token=2&atoken=3", "/?tokens=1&Token=2&atoken=3"),
        ("/token=1?", "/token=1?"),
        ("*", "*"),
    ] {
        let referer = format!("https://example.org{target}");
        let entry = Entry {
            target,
            referer: Some(referer.as_bytes()),
            ..entry()
        };
        for format in ["combined", "json"] {
            let line = lines(format, &[entry]);
            assert!(line.contains(&format!("https://example.org{shown}\"")), "{line}");
            assert!(
                line.contains(&format!(" {shown} ")) || line.contains(&format!("\"{shown}\"")),
                "{line}"
            );
            assert!(!line.contains("secret"));
        }
    }
}

fn wait_until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_log_that_is_moved_away_is_begun_anew_and_one_that_is_there_is_continued() {
    let directory = tempfile::tempdir().unwrap();
    let [path, old] = ["logs/log", "logs/log.1"].map(|name| directory.path().join(name));
    let missing = AccessLog::open(
        &AccessLogConfig {
            path: path.clone(),
            format: AccessLogFormat::Json,
        },
        Vec::new(),
    );
    let error = missing.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("access log {}: ", path.display())),
        "{error}"
    );
    std::fs::create_dir(directory.path().join("logs")).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(&path, "first\n").unwrap();
    let log = open(&path, "combined");
    log.write(&entry());
    wait_until(|| read(&path) == format!("first\n{COMBINED}"));
    std::fs::rename(&path, &old).unwrap();
    log.write(&entry());
    wait_until(|| read(&path) == COMBINED);
    assert_eq!(log.dropped(), 0);
    // Nowhere to write: counted, until there is a place again.
    std::fs::remove_dir_all(directory.path().join("logs")).unwrap();
    log.write(&entry());
    wait_until(|| log.dropped() == 1);
    log.write(&entry());
    log.write(&entry());
    wait_until(|| log.dropped() == 3);
    std::fs::create_dir(directory.path().join("logs")).unwrap();
    log.write(&entry());
    wait_until(|| read(&path) == COMBINED);
    assert_eq!(log.dropped(), 3);
}

#[test]
fn a_full_disk_costs_a_count() {
    let log = open(Path::new("/dev/full"), "json");
    for _ in 0..100 {
        log.write(&entry());
    }
    wait_until(|| log.dropped() == 100);
}

#[test]
fn a_file_that_takes_nothing_stops_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let (opened, path_there) = (
        std::thread::spawn({
            let path = path.clone();
            move || std::fs::File::open(path).unwrap()
        }),
        path,
    );
    let log = open(&path_there, "combined");
    let mut reader = opened.join().unwrap();
    let start = Instant::now();
    let count = 40_000;
    for _ in 0..count {
        log.write(&entry());
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(log.dropped() > 0);
    // What was taken is whole.
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let dropped = log.dropped();
    drop(log);
    let text = reading.join().unwrap();
    assert_eq!(text, COMBINED.repeat(text.len() / COMBINED.len()));
    assert_eq!(
        text.len() / COMBINED.len(),
        count - usize::try_from(dropped).unwrap()
    );
}

#[test]
fn lines_of_many_threads_stay_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = open(&path, "combined");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    log.write(&entry());
                }
            });
        }
    });
    drop(log);
    assert_eq!(std::fs::read_to_string(path).unwrap(), COMBINED.repeat(4000));
}
