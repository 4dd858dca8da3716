//! What a connection may send at once: many commands, many keys, commands in pieces.

use crate::common::{Server, config, hit, set, value};
use pumice::CacheOptions;
use pumice_door_memcached::Operation;

#[test]
fn a_long_pipeline_is_answered_in_order() {
    let server = Server::start(config());
    let mut client = server.client();
    let (mut send, mut expected) = (Vec::new(), Vec::new());
    for number in 0..2000 {
        let key = format!("key{number}");
        let value = value(number % 300, number);
        send.extend(set(&key, &value));
        send.extend(format!("get {key}\r\nmg {key} s\r\n").bytes());
        expected.extend(b"STORED\r\n");
        expected.extend(hit(&key, &value));
        expected.extend(format!("HD s{}\r\n", value.len()).bytes());
    }
    client.send(&send);
    client.expect_bytes(&expected);
    let stats = server.stats();
    assert_eq!(stats.latency(Operation::Set).count(), 2000);
    assert_eq!(stats.latency(Operation::GetDram).count(), 4000);
    server.stop();
}

#[test]
fn commands_may_arrive_byte_by_byte() {
    let server = Server::start(config());
    let mut client = server.client();
    for byte in b"set a 0 0 5\r\na\r\nbc\r\nget a\r\nms b 2 k\r\nhi\r\nbogus\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\nVALUE a 0 5\r\na\r\nbc\r\nEND\r\nHD kb\r\nERROR\r\n");
}

#[test]
fn flash_reads_of_a_run_are_made_together_and_answered_in_order() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    let cold: Vec<(String, Vec<u8>)> = (0..100)
        .map(|number| (format!("cold{number}"), value(3000 + number * 17, number)))
        .collect();
    for (key, value) in &cold {
        client.send(set(key, value));
        client.expect("STORED\r\n");
    }
    // Enough to push them out of DRAM and out of the block buffers.
    for number in 0..1200 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    let (mut keys, mut expected) = (String::new(), Vec::new());
    for (number, (key, value)) in cold.iter().enumerate() {
        let warm = format!("warm{number}");
        client.send(set(&warm, warm.as_bytes()));
        client.expect("STORED\r\n");
        keys.push_str(&format!(" {key} {warm} none{number}"));
        for (key, value) in [(key, value), (&warm, &warm.clone().into_bytes())] {
            let mut reply = hit(key, value);
            reply.truncate(reply.len() - b"END\r\n".len());
            expected.extend(reply);
        }
    }
    client.send(format!("get{keys}\r\n"));
    client.expect_bytes(&expected);
    client.expect("END\r\n");
    let counts = server.stats().counts();
    assert_eq!((counts.get_hits, counts.get_misses), (200, 100));
    assert!(counts.get_hits_flash >= 90, "{counts:?}");
    assert_eq!(
        server.stats().latency(Operation::GetFlash).count(),
        counts.get_hits_flash
    );
    let most = server.reads.most();
    assert!(most > 8 && most <= 64, "{most} reads at once");
    server.stop();
}

/// A server whose keys `a` and `b` are on flash only.
fn with_a_and_b_on_flash() -> Server {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    client.ask(
        "set a 0 0 3\r\nold\r\nset b 7 0 1\r\n5\r\n",
        "STORED\r\nSTORED\r\n",
    );
    for number in 0..1200 {
        client.send(set(&format!("filler{number}"), &value(20_000, number)));
        client.expect("STORED\r\n");
    }
    server
}

#[test]
fn a_write_behind_reads_of_flash_is_seen_by_what_follows_only() {
    let server = with_a_and_b_on_flash();
    let mut client = server.client();
    client.send("get a b\r\nmg a v\r\nmg none v q\r\nset a 0 0 3\r\nnew\r\nget a\r\nincr b 1\r\nappend b 0 0 1\r\n0\r\nmg b v f\r\nmn\r\n");
    client.expect(
        "VALUE a 0 3\r\nold\r\nVALUE b 7 1\r\n5\r\nEND\r\nVA 3\r\nold\r\nSTORED\r\nVALUE a 0 3\r\nnew\r\nEND\r\n6\r\nSTORED\r\nVA 2 f7\r\n60\r\nMN\r\n",
    );
    assert!(server.stats().counts().get_hits_flash >= 2);
    server.stop();
}

#[test]
fn a_change_behind_a_read_of_flash_makes_no_first_hit_of_another_key_a_second() {
    let server = with_a_and_b_on_flash();
    let mut client = server.client();
    client.send("mg a v\r\nmg none N30 v\r\nmg b h v\r\n");
    client.expect("VA 3\r\nold\r\nVA 0 W\r\n\r\nVA 1 h0\r\n5\r\n");
    client.ask("mg b h\r\n", "HD h1\r\n");
    assert!(server.stats().counts().get_hits_flash >= 2);
    server.stop();
}

#[test]
fn a_get_may_list_very_many_keys() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("set key7 0 0 1\r\n7\r\n", "STORED\r\n");
    let keys: String = (0..60_000).map(|number| format!(" key{number}")).collect();
    client.ask(format!("get{keys}\r\n"), "VALUE key7 0 1\r\n7\r\nEND\r\n");
    client.ask("get key7\r\n", "VALUE key7 0 1\r\n7\r\nEND\r\n");
}
