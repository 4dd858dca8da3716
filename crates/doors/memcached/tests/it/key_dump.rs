//! lru_crawler metadump over a socket.

use crate::common::{Client, START_SECS, Server, config, script};
use pumice::CacheOptions;
use pumice_door_memcached::DoorConfig;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

/// The lines of a list, up to its END, by key. Nothing was asked behind it.
fn read_list(client: &mut Client<TcpStream>) -> BTreeMap<String, String> {
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut bytes = [0; 1 << 16];
        let count = client.stream.read(&mut bytes).expect("it goes on");
        assert!(count > 0, "closed");
        text.extend(&bytes[..count]);
    }
    let text = String::from_utf8(text).expect("keys are encoded");
    let lines = text.strip_suffix("END\r\n").expect("it ends so");
    let mut list = BTreeMap::new();
    for line in lines.lines() {
        let (key, rest) = line
            .strip_prefix("key=")
            .and_then(|line| line.split_once(' '))
            .unwrap_or_else(|| panic!("{line:?}"));
        assert_eq!(
            list.insert(key.to_owned(), rest.to_owned()),
            None,
            "{key} is listed twice"
        );
    }
    list
}

fn list(client: &mut Client<TcpStream>) -> BTreeMap<String, String> {
    client.send("lru_crawler metadump all\r\n");
    read_list(client)
}

fn fill(client: &mut Client<TcpStream>, keys: std::ops::Range<u32>, value_len: usize) {
    let value = "v".repeat(value_len);
    for chunk in keys.collect::<Vec<_>>().chunks(100) {
        let sets = chunk
            .iter()
            .map(|n| format!("set key:{n} 0 0 {value_len} noreply\r\n{value}\r\n"));
        client.ask(sets.collect::<String>() + "mn\r\n", "MN\r\n");
    }
}

#[test]
fn lines_are_memcacheds() {
    let server = Server::start(config());
    let mut client = server.client();
    assert_eq!(list(&mut client), BTreeMap::new());
    let plain = client.ask("ms a%~ 3 c\r\nabc\r\n", "HD c#\r\n")[0];
    let binary = client.ask("ms AAH/IA== 0 b T100 c\r\n\r\n", "HD c#\r\n")[0];
    client.ask("mg AAH/IA== b\r\n", "HD\r\n");
    client.ask("set gone 0 5 1\r\nx\r\n", "STORED\r\n");
    server.clock.advance_secs(5);
    let large = format!("set large 0 0 600000\r\n{}\r\n", "v".repeat(600_000));
    client.ask(large, "STORED\r\n");
    let list = list(&mut client);
    let expiry = START_SECS + 100;
    let expected = [
        (
            "%00%01%FF%20",
            format!("exp={expiry} la=0 cas={binary} fetch=yes cls=1 size=23"),
        ),
        ("a%25~", format!("exp=-1 la=0 cas={plain} fetch=no cls=1 size=25")),
    ];
    for (key, line) in expected {
        assert_eq!(list.get(key), Some(&line), "{list:?}");
    }
    assert!(list["large"].ends_with("fetch=no cls=1 size=600024"), "{list:?}");
    assert_eq!(list.len(), 3, "{list:?}");
    server.stop();
}

#[test]
fn other_commands_stand_before_and_behind_it() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("lru_crawler metadump 2\r\n", "END\r\n"),
            ("lru_crawler metadump 0\r\n", "BADCLASS invalid class id\r\n"),
            ("lru_crawler\r\n", "ERROR\r\n"),
            ("lru_crawler sleep 5\r\n", "ERROR\r\n"),
            ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
            (
                "get a\r\nlru_crawler metadump 2\r\nget a\r\n",
                "VALUE a 0 1\r\nx\r\nEND\r\nEND\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
            ),
        ],
    );
    let mut client = server.client();
    client.send("get a\r\nlru_crawler metadump all\r\nget a\r\n");
    client.expect("VALUE a 0 1\r\nx\r\nEND\r\n");
    client.expect("key=a exp=-1 la=0 cas=# fetch=yes cls=1 size=21\nEND\r\n");
    client.expect("VALUE a 0 1\r\nx\r\nEND\r\n");
    server.stop();
}

/// The DRAM tier holds a few percent of the keys: these are listed, and what is on flash alone is not.
#[test]
fn what_is_in_dram_is_listed() {
    let options = CacheOptions {
        dram_bytes: 1 << 20,
        buffers_max: 24,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config(), options);
    let mut client = server.client();
    fill(&mut client, 0..20_000, 300);
    client.ask("delete key:19999\r\n", "DELETED\r\n");
    let keys = list(&mut client);
    assert!((100..10_000).contains(&keys.len()), "{} are there", keys.len());
    assert!(!keys.contains_key("key%3A19999"));
    for (key, line) in &keys {
        let key = key.replace("%3A", ":");
        assert!(
            line.ends_with(&format!("size={}", 19 + key.len() + 300)),
            "{line}"
        );
        client.ask(format!("mg {key} s\r\n"), "HD s300\r\n");
    }
    server.stop();
}

#[test]
fn a_client_that_does_not_read_holds_up_its_own_list_alone() {
    let server = Server::start(DoorConfig {
        drain_timeout: Duration::from_millis(100),
        ..config()
    });
    let mut client = server.client();
    let keys = 200_000;
    fill(&mut client, 0..keys, 10);
    let mut slow = server.client();
    slow.send("lru_crawler metadump all\r\n");
    slow.expect("key=");
    // What sockets hold is less than all the lines, so it is still under way. A stop does not wait for it.
    client.ask("get key:5\r\n", "VALUE key:5 0 10\r\nvvvvvvvvvv\r\nEND\r\n");
    client.send("lru_crawler metadump all\r\n");
    let mut lines = 0;
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut bytes = [0; 1 << 16];
        let count = client.stream.read(&mut bytes).expect("it goes on");
        assert!(count > 0, "closed");
        lines += bytes[..count].iter().filter(|byte| **byte == b'\n').count();
        text = [&text[text.len().saturating_sub(8)..], &bytes[..count]].concat();
    }
    // END is one, too.
    assert_eq!(lines, keys as usize + 1);
    server.stop();
}
