//! `pumice-bench memcached`: exit status, and errors that say what was wrong.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::thread;

fn bench(arguments: &str) -> Output {
    crate::bench(&format!("memcached {arguments}"), &[])
}

/// A server that answers every line with the same words.
fn parrot(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |stream: TcpStream| {
        let mut writer = stream.try_clone().unwrap();
        for line in BufReader::new(stream).split(b'\n') {
            if line.is_err() || writer.write_all(words).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address.to_string()
}

#[test]
fn bad_usage_ends_with_2_and_says_what_is_wrong() {
    for (flags, part) in [
        ("", "--target"),
        ("--target here", "HOST:PORT"),
        ("--target a:1 --mix put", "`put`"),
        ("--target a:1 --value-size 9-1", "`9-1`"),
        ("--target a:1 --value-size trace", "no sizes"),
        ("--target a:1 --keys zipf:keys=0,theta=1", "keys"),
        ("--target a:1 --threads 2 --connections 1", "--connections"),
        ("--target a:1 --seconds=-1", "seconds"),
        ("--target a:1 --poisson", "--rate"),
        ("--target a:1 --key-size 5", "--key-size"),
        ("--target a:1 --key-size 1K", "key size 1024"),
        ("--target a:1 --format nonsense", "nonsense"),
    ] {
        let output = bench(flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags}: {said}");
        assert!(said.contains(part), "{flags}: {said}");
    }
}

#[test]
fn a_target_that_is_not_there_ends_with_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let output = bench(&format!("--target {address}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cannot connect") && said.contains(&address.to_string()),
        "{said}"
    );
}

#[test]
fn misses_are_no_errors_and_foreign_values_are() {
    let flags = "--warm-up 0 --requests 200 --connections 2 --mix get --keys zipf:keys=9,theta=1 --json";
    let output = bench(&format!("--target {} {flags}", parrot(b"END\r\n")));
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["requests"], &report["hit_ratio"]),
        (&200.into(), &0.0.into())
    );
    assert_eq!(report["settings"]["mix"], "get");

    let output = bench(&format!(
        "--target {} {flags}",
        parrot(b"VALUE other 0 1\r\nx\r\nEND\r\n")
    ));
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["errors"]["foreign_value"], 200);
    assert!(String::from_utf8_lossy(&output.stderr).contains("200 foreign_value"));
}
