//! With durability `power` no reply says of a change on flash what a power cut could undo.

use crate::common::{Client, Server, config};
use pumice::{CacheOptions, Durability};
use std::net::TcpStream;

fn fill(client: &mut Client<TcpStream>, keys: std::ops::Range<u32>) {
    let value = "7".repeat(300);
    for n in keys {
        client.send(format!("set key:{n} 0 0 300 noreply\r\n{value}\r\n"));
        if n % 100 == 0 {
            client.ask("mn\r\n", "MN\r\n");
        }
    }
    client.ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_change_is_synced_before_its_reply() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            durability: Durability::Power,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    fill(&mut client, 0..4_000);
    for n in 0..3 {
        client.ask(format!("md key:{n} I\r\n"), "HD\r\n");
    }
    client.ask("ms key:3 2 T50\r\n77\r\n", "HD\r\n");
    // What was just written is on flash, too, when others fill its block.
    fill(&mut client, 4_000..8_000);
    server.wait_written();
    let mut syncs_for = |command: &str, reply: &str| {
        let before = server.reads.syncs();
        client.ask(command, reply);
        server.reads.syncs() - before
    };
    for (command, reply) in [
        // These win.
        ("mg key:0\r\n", "HD X W\r\n"),
        ("mn\r\nmg key:1\r\nmn\r\n", "MN\r\nHD X W\r\nMN\r\n"),
        ("mg key:3 R100\r\n", "HD W\r\n"),
        ("mg key:10 T100\r\n", "HD\r\n"),
        ("md key:11 I\r\n", "HD\r\n"),
        ("md key:12\r\n", "HD\r\n"),
        ("ms key:13 1\r\n8\r\n", "HD\r\n"),
        ("ms key:14 1 MA\r\n8\r\n", "HD\r\n"),
        ("set key:15 0 0 1\r\n8\r\n", "STORED\r\n"),
        ("delete key:16\r\n", "DELETED\r\n"),
        ("touch key:17 100\r\n", "TOUCHED\r\n"),
        (
            "gat 100 none key:18 none\r\n",
            &format!("VALUE key:18 0 300\r\n{}\r\nEND\r\n", "7".repeat(300)),
        ),
        ("ms key:19 0 MA\r\n\r\n", "HD\r\n"),
        ("flush_all\r\n", "OK\r\n"),
    ] {
        assert!(syncs_for(command, reply) > 0, "{command:?}");
    }
    for (command, reply) in [
        ("mg key:0\r\n", "EN\r\n"),
        ("mg none N0\r\n", "HD W\r\n"),
        ("md nothing\r\n", "NF\r\n"),
    ] {
        assert_eq!(syncs_for(command, reply), 0, "{command:?}");
    }
    server.stop();
}
