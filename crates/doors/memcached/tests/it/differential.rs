//! The same bytes to Pumice and to memcached, where it is installed: the same bytes must come back.
//!
//! Left out are the places where Pumice differs on purpose; `parse`'s text lists them.

use crate::common;

use crate::common::{Server, config};
use pumice_door_memcached::{DoorConfig, Listen};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Memcached(Child);

impl Memcached {
    /// Starts memcached on a unix socket; nothing where it is not installed.
    fn start(socket: &Path) -> Option<Self> {
        let child = Command::new("memcached")
            .args(["-u", "nobody", "-a", "777", "-t", "1", "-s"])
            .arg(socket)
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut memcached = Self(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(socket).is_err() {
            if let Ok(Some(status)) = memcached.0.try_wait() {
                panic!("memcached ended with {status}");
            }
            assert!(Instant::now() < deadline, "memcached does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(memcached)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a case on a connection of its own to an emptied cache; returns all that comes back.
fn answer(socket: &Path, case: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    stream.write_all(b"flush_all\r\n").expect("it reads");
    let mut ok = [0; 4];
    stream.read_exact(&mut ok).expect("it answers");
    let mut send = case.to_vec();
    send.extend_from_slice(b"\r\nquit\r\n");
    stream.write_all(&send).expect("it reads");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("it closes");
    normal(&String::from_utf8_lossy(&all))
}

/// Replaces what no two servers have in common: CAS uniques, and of me all fields but the expiry of what never expires.
fn normal(answer: &str) -> String {
    answer
        .split_inclusive("\r\n")
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            if words[0] == "ME" {
                return format!("{} <fields>\r\n", words[..3].join(" "));
            }
            let words = words.iter().enumerate().map(|(at, word)| {
                let unique = (at == 4 && words[0] == "VALUE")
                    || (at > 0 && ["HD", "VA"].contains(&words[0]) && word.starts_with('c'));
                if unique { "<cas>\r\n" } else { *word }
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn cases() -> Vec<Vec<u8>> {
    let long = "k".repeat(251);
    let full = "k".repeat(250);
    let big = "x".repeat(2_000_000);
    let texts = [
        // Lines.
        "\r\n",
        "\n",
        " \r\n",
        "a\r\n",
        "ab\r\n",
        "get\r\n",
        "get \r\n",
        "gets\r\n",
        "get a\n",
        " get a\r\n",
        "get  a   b \r\n",
        "GET a\r\n",
        "gat\r\n",
        "gat 0\r\n",
        "gat 0 a\r\n",
        "gat x a\r\n",
        "gats 0 a\r\n",
        // Reading and storing.
        "set a 5 0 3\r\nabc\r\nget a\r\ngets a\r\ngat 0 a\r\ngats 100 a\r\ngat -1 a\r\nget a\r\n",
        "set a 5 0 3\r\nabcdefgh\r\nget a\r\n",
        "set a 5 0 3\r\nab\r\nget a\r\n",
        "set a 5 0 3\nabc\r\nget a\r\n",
        "set a 5 0 3\nabc\nget a\r\nxx\r\n",
        "set a 5 0\r\n",
        "set a\r\n",
        "set\r\n",
        "set a 0 0 3 noreply x\r\nabc\r\n",
        "set a 0 0 3 noreply\r\nabc\r\nget a\r\n",
        "set a 0 0 3 bogus\r\nabc\r\nget a\r\n",
        "set a x 0 3\r\nabc\r\n",
        "set a x 0 3 noreply\r\nabc\r\n",
        "set a 0 x 3\r\nabc\r\n",
        "set a 0 0 -1\r\nabc\r\n",
        "set a 0 0 -1 noreply\r\nabc\r\n",
        "set a 4294967295 0 1\r\na\r\nget a\r\n",
        "set a -1 0 1\r\na\r\nget a\r\n",
        "set a 0 -1 1\r\na\r\nget a\r\n",
        "set a 0 2592001 1\r\na\r\nget a\r\n",
        "set a 0 2592000 1\r\na\r\nget a\r\n",
        "set a 0 2147483647 1\r\na\r\nget a\r\n",
        "set a 0 0 2147483647\r\nabc\r\n",
        "set a 0 0 0\r\n\r\nget a\r\n",
        "set a +1 +1 +1\r\na\r\nget a\r\n",
        "set a 1x 1 1\r\na\r\nget a\r\n",
        "set a 07 1 1\r\na\r\nget a\r\n",
        "add a 1 0 1\r\n1\r\nadd a 1 0 1\r\n2\r\nreplace a 2 0 1\r\n3\r\nget a\r\nappend a 9 9 2\r\n45\r\nprepend a 1 1 2\r\n00\r\nget a\r\n",
        "replace a 1 0 1\r\n1\r\nappend a 1 0 1\r\n1\r\nprepend a 1 0 1\r\n1\r\n",
        "cas a 1 0 1 5\r\n1\r\ncas a 1 0 1\r\n",
        "set a 1 0 1\r\n1\r\ncas a 1 0 1 0\r\n1\r\n",
        "cas a 1 0 1 x\r\n1\r\n",
        "cas a 1 0 1 -1\r\n1\r\n",
        "cas a 1 0 1 5 noreply\r\n1\r\nget a\r\n",
        // Changing.
        "delete a\r\nset a 0 0 1\r\n1\r\ndelete a\r\nset a 0 0 1\r\n1\r\ndelete a 0\r\ndelete a 1\r\ndelete a noreply\r\nget a\r\ndelete a 0 noreply\r\ndelete a 0 0\r\ndelete a 0 0 0\r\ndelete\r\ndelete a foo\r\n",
        "incr a 1\r\ndecr a 1\r\nset a 0 0 2\r\n10\r\nincr a 1\r\ndecr a 2\r\nget a\r\nincr a 18446744073709551615\r\nget a\r\ndecr a 100\r\nget a\r\nincr a 18446744073709551615\r\nincr a 2\r\nget a\r\nincr a -1\r\nincr a x\r\nincr a\r\nincr a 1 noreply\r\nincr a 1 2\r\nget a\r\nincr a 18446744073709551616\r\n",
        "set a 0 0 2\r\n1 \r\nincr a 1\r\nget a\r\nset a 0 0 2\r\n 1\r\nincr a 1\r\nget a\r\n",
        "set a 0 0 3\r\nabc\r\nincr a 1\r\nset a 0 0 0\r\n\r\nincr a 1\r\nset a 0 0 2\r\n-1\r\nincr a 1\r\nset a 0 0 2\r\n+1\r\nincr a 1\r\n",
        "set a 0 0 20\r\n18446744073709551615\r\nincr a 1\r\nget a\r\nset a 0 0 20\r\n18446744073709551616\r\nincr a 1\r\n",
        "set a 0 0 21\r\n000000000000000000001\r\nincr a 1\r\nget a\r\nset a 0 0 3\r\n1x2\r\nincr a 1\r\nset a 0 0 3\r\n1 x\r\nincr a 1\r\nget a\r\n",
        "set a 0 0 3\r\n099\r\nincr a 1\r\nget a\r\nset a 0 0 3\r\n007\r\ndecr a 1\r\nget a\r\n",
        "incr a x noreply\r\n",
        "touch a 0\r\nset a 0 0 1\r\n1\r\ntouch a 0\r\ntouch a x\r\ntouch a\r\ntouch a 0 noreply\r\ntouch a 0 x\r\ntouch a -1\r\nget a\r\ntouch a 1 2 3\r\n",
        // Administration.
        "flush_all x\r\nflush_all noreply\r\nflush_all 0 noreply\r\nflush_all 0 0 0\r\nflush_all 0 0\r\nflush_all x noreply\r\n",
        "verbosity\r\nverbosity 1\r\nverbosity 1 noreply\r\nverbosity x\r\nverbosity 1 2 3\r\nverbosity noreply\r\n",
        "quit x\r\nversion\r\n",
        "shutdown\r\n",
        "shutdown x\r\n",
        "stats foo\r\n",
        "stats reset\r\nstats reset x\r\n",
        "misbehave\r\n",
        "mop\r\n",
        // Keys that are odd but legal.
        "set a\tb 0 0 1\r\n1\r\nget a\tb\r\nget a\rb\r\nget a\r\r\n",
        "set \x10\x7f 0 0 1\r\n1\r\nget \x10\x7f\r\n",
        // Meta.
        "mn\r\n",
        "mn x\r\n",
        "mg\r\n",
        "mg a\r\n",
        "mg a v\r\n",
        "mg a v k O123 q\r\nmn\r\n",
        "mg a k Oabc\r\n",
        "set a 5 100 3\r\nabc\r\nmg a\r\nmg a v\r\nmg a s v f t c k Oxyz q\r\nmg a t\r\nmg a T0 t\r\nmg a k\r\nmg a v v\r\nmg a !\r\nmg a z\r\nmg a T\r\nmg a Tx\r\nmg a T-1 v\r\nmg a v\r\n",
        "mg a I\r\nmg a M\r\nmg a S\r\nmg a F1\r\nmg a C1\r\nmg a D1\r\nmg a J1\r\nmg a x\r\nmg a E1\r\nmg a L\r\nmg a vk\r\nmg a 5\r\nmg a u\r\n",
        "mg a Oooooooooooooooooooooooooooooooo\r\nmg a Ooooooooooooooooooooooooooooooooo\r\n",
        "mg $$$ b\r\n",
        "mg YQ b\r\n",
        "mg YQ== k b O9\r\n",
        "ms a\r\n",
        "ms a 2\r\nhi\r\nmg a v f t\r\nms a 2 F5 T100\r\nho\r\nmg a v f t c\r\nms a 2 k O1 c\r\nho\r\n",
        "ms YQ== 2 b k c O3\r\nhi\r\nmg YQ== v k b\r\nget a\r\n",
        "ms a S2\r\nhi\r\n",
        "ms a x\r\nhi\r\n",
        "ms a -1\r\nhi\r\n",
        "ms a 2 C5\r\nhi\r\n",
        "ms a 2\r\nhi\r\nms a 2 C5\r\nhi\r\nms a 2 C5 q O1 k\r\nhi\r\nms a 2 Cx\r\nhi\r\n",
        "ms a 2 MA\r\nhi\r\nms a 2 MP\r\nhi\r\nms a 2 MR\r\nhi\r\nms a 2 ME\r\nhi\r\nms a 2 ME\r\nhi\r\nms a 2 MA\r\nho\r\nms a 2 MP\r\nho\r\nmg a v\r\nms a 2 MR\r\nyo\r\nms a 2 MS F3\r\nyo\r\nms a 2 Ms\r\nyo\r\nms a 2 Mset\r\nyo\r\nms a 2 Mx\r\nyo\r\nms a 2 M\r\nyo\r\nmg a v f\r\n",
        "ms a 2 q\r\nhi\r\nmg a v\r\nms a 2 ME q\r\nhi\r\nmn\r\n",
        "ms a 2 v\r\nhi\r\nms a 2 !\r\nhi\r\nms a 2 Fx\r\nhi\r\nms a 2 Tx\r\nhi\r\nms a 2 T1 T1\r\nhi\r\nms a 2 E5\r\nhi\r\nms a 2 s\r\nhi\r\n",
        "ms a 5 q\r\nhi\r\nxxx\r\nmn\r\n",
        "ms a 2 k O5\r\nhixx\r\nmn\r\n",
        "ms a 2 T-1\r\nhi\r\nmg a v\r\n",
        "ms a 2 F-1\r\nhi\r\n",
        "ms\r\n",
        "ms $$ 2 b\r\nhi\r\n",
        "ms a 2 q C5\r\nhi\r\n",
        "ms a 2 MA C5\r\nhi\r\nms a 2\r\nhi\r\nms a 2 ME C5\r\nhi\r\n",
        "md\r\n",
        "md a\r\nset a 0 0 1\r\n1\r\nmd a\r\nset a 0 0 1\r\n1\r\nmd a C5\r\nmd a C5 q\r\nmd a q\r\nmd a q\r\nmd a k O1\r\nmn\r\n",
        "md YQ== b k O1\r\n",
        "set a 0 0 1\r\n1\r\nmd a k b O1\r\n",
        "set a 0 0 1\r\n1\r\nmd YQ== k b O1\r\nget a\r\n",
        "md a v\r\nmd a !\r\nmd a C\r\nmd a Cx\r\nmd a x\r\nmd a T30\r\nmd a O12345678901234567890123456789012\r\n",
        "me\r\nme a\r\nme a q k O1\r\nmn\r\nme YQ== b\r\nme YQ== k b\r\nme YQ== bx\r\n",
        "me YQ b\r\nme a b b\r\nme  a   b  \r\nmn\r\n",
        "set a 5 0 3\r\nabc\r\nme a\r\nme  a  \r\nme a b\r\nme a q z ! v v b\r\nmg a t f\r\n",
        "ms Ag== 2 b\r\nhi\r\nme Ag== b\r\nme Ag==\r\nset \x10\tx 0 -1 1\r\na\r\nme \x10\tx\r\n",
        "mx\r\n",
    ];
    let mut cases: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let built = [
        format!("get {full}\r\n"),
        format!("get {long}\r\n"),
        format!("get a {long}\r\n"),
        format!("set {long} 0 0 3\r\nabc\r\nset {long} 0 0 3 noreply\r\nabc\r\n"),
        format!(
            "delete {long}\r\ndelete {long} noreply\r\nincr {long} 1\r\nincr {long} 1 noreply\r\ntouch {long} 0\r\n"
        ),
        format!("mg {long} v\r\nms {long} 2\r\nhi\r\nmd {long}\r\n"),
        format!("mg {} b k\r\n", "Y".repeat(252)),
        format!("me {full}\r\nme {long}\r\nme {} b\r\n", "Y".repeat(252)),
        format!("me a{}\r\n", " s".repeat(30)),
        format!("set a 0 0 1\r\n1\r\nset a 0 0 2000000\r\n{big}\r\nget a\r\n"),
        format!("set a 0 0 1\r\n1\r\nset a 0 0 2000000 noreply\r\n{big}\r\nget a\r\n"),
        format!("set a 0 0 1\r\n1\r\nadd a 0 0 2000000\r\n{big}\r\nget a\r\n"),
        format!("ms a 2000000 O4\r\n{big}\r\nmn\r\n"),
        format!("get {}\r\n", "k ".repeat(3000)),
        format!("mg a{}\r\n", " s".repeat(30)),
        format!("set a 0 0 300000\r\n{}\r\nmg a s\r\nget a\r\n", &big[..300_000]),
    ];
    cases.extend(built.into_iter().map(String::into_bytes));
    cases
}

/// The beginning of a text, to print.
fn short(text: &str) -> String {
    let beginning: String = text.chars().take(400).collect();
    format!("{beginning:?}")
}

#[test]
fn pumice_answers_as_memcached_does() {
    let directory = tempfile::tempdir().expect("a directory");
    // memcached gives up root before it binds.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("allowed");
    let theirs = directory.path().join("memcached");
    let Some(_memcached) = Memcached::start(&theirs) else {
        eprintln!("memcached is not installed: nothing was compared");
        return;
    };
    let ours = directory.path().join("pumice");
    let server = Server::start(DoorConfig {
        listen: vec![Listen::Unix {
            path: ours.clone(),
            mode: None,
        }],
        ..config()
    });
    // Absolute times must mean the same to both.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    server.clock.advance_secs(
        u32::try_from(now)
            .expect("before 2106")
            .saturating_sub(common::START_SECS),
    );
    let mut different = Vec::new();
    for case in cases() {
        let (theirs, ours) = (answer(&theirs, &case), answer(&ours, &case));
        if theirs != ours {
            let case = String::from_utf8_lossy(&case).into_owned();
            different.push(format!(
                "{}\n  memcached {}\n  pumice    {}",
                short(&case),
                short(&theirs),
                short(&ours)
            ));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    server.stop();
}
