//! The classic commands over a socket.

use crate::common;

use crate::common::{Server, config, script};
use pumice::{CacheOptions, FlashWrite};

#[test]
fn storage_commands_store_when_they_should() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("get a\r\n", "END\r\n"),
            ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
            ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
            ("gets a\r\n", "VALUE a 5 3 #\r\nabc\r\nEND\r\n"),
            ("add a 1 0 1\r\n1\r\n", "NOT_STORED\r\n"),
            ("add b 1 0 1\r\n1\r\n", "STORED\r\n"),
            ("replace b 2 0 1\r\n3\r\n", "STORED\r\n"),
            ("replace none 2 0 1\r\n3\r\n", "NOT_STORED\r\n"),
            ("append b 9 9 2\r\n45\r\n", "STORED\r\n"),
            ("prepend b 1 1 2\r\n00\r\n", "STORED\r\n"),
            ("get b\r\n", "VALUE b 2 5\r\n00345\r\nEND\r\n"),
            ("append none 1 0 1\r\n1\r\n", "NOT_STORED\r\n"),
            ("prepend none 1 0 1\r\n1\r\n", "NOT_STORED\r\n"),
            ("set e 0 0 0\r\n\r\n", "STORED\r\n"),
            ("get e\r\n", "VALUE e 0 0\r\n\r\nEND\r\n"),
            ("set f 4294967295 0 1\r\na\r\n", "STORED\r\n"),
            ("get f\r\n", "VALUE f 4294967295 1\r\na\r\nEND\r\n"),
            ("set c 0 0 4\r\na\r\nb\r\n", "STORED\r\n"),
            ("get c\r\n", "VALUE c 0 4\r\na\r\nb\r\nEND\r\n"),
        ],
    );
    server.stop();
}

#[test]
fn many_keys_are_answered_in_order_and_misses_left_out() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\n", "STORED\r\nSTORED\r\n"),
            (
                "get b none a b\r\n",
                "VALUE b 0 1\r\n2\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n",
            ),
            ("get none nope\r\n", "END\r\n"),
            (
                "gets a b\r\n",
                "VALUE a 0 1 #\r\n1\r\nVALUE b 0 1 #\r\n2\r\nEND\r\n",
            ),
        ],
    );
    let counts = server.stats().counts();
    assert_eq!((counts.cmd_get, counts.get_hits, counts.get_misses), (8, 5, 3));
}

#[test]
fn noreply_is_silent_about_everything_but_reads() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("set a 0 0 2 noreply\r\n10\r\n", ""),
            ("add a 0 0 1 noreply\r\n1\r\n", ""),
            ("append a 0 0 1 noreply\r\n0\r\n", ""),
            ("incr a 5 noreply\r\n", ""),
            ("get a\r\n", "VALUE a 0 3\r\n105\r\nEND\r\n"),
            ("decr a 5 noreply\r\n", ""),
            ("touch a 0 noreply\r\n", ""),
            ("get a\r\n", "VALUE a 0 3\r\n100\r\nEND\r\n"),
            ("cas a 0 0 1 1 noreply\r\n1\r\n", ""),
            ("delete a noreply\r\n", ""),
            ("delete a 0 noreply\r\n", ""),
            ("verbosity 1 noreply\r\n", ""),
            ("flush_all noreply\r\n", ""),
            ("set a x 0 1 noreply\r\n", ""),
            ("set a 0 0 1 noreply\r\nabc", ""),
            ("get a\r\n", "END\r\n"),
        ],
    );
}

#[test]
fn cas_stores_only_over_the_version_that_was_read() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("cas a 1 0 1 5\r\n1\r\n", "NOT_FOUND\r\n");
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let first = client.ask("gets a\r\n", "VALUE a 0 1 #\r\n1\r\nEND\r\n")[0];
    client.ask(format!("cas a 2 0 1 {first}\r\n2\r\n"), "STORED\r\n");
    client.ask(format!("cas a 3 0 1 {first}\r\n3\r\n"), "EXISTS\r\n");
    let second = client.ask("gets a\r\n", "VALUE a 2 1 #\r\n2\r\nEND\r\n")[0];
    assert_ne!(first, second);
    client.ask("append a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask(format!("cas a 3 0 1 {second}\r\n3\r\n"), "EXISTS\r\n");
    let counts = server.stats().counts();
    assert_eq!((counts.cas_hits, counts.cas_misses, counts.cas_badval), (1, 1, 2));
}

#[test]
fn delete_and_touch_say_what_they_found() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("delete a\r\n", "NOT_FOUND\r\n"),
            ("touch a 0\r\n", "NOT_FOUND\r\n"),
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("touch a 0\r\n", "TOUCHED\r\n"),
            ("delete a\r\n", "DELETED\r\n"),
            ("get a\r\n", "END\r\n"),
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("delete a 0\r\n", "DELETED\r\n"),
            (
                "delete a 1\r\n",
                "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
            ),
        ],
    );
}

#[test]
fn numbers_count_as_in_memcached() {
    let server = Server::start(config());
    let not_a_number = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    script(
        &server,
        &[
            ("incr a 1\r\n", "NOT_FOUND\r\n"),
            ("decr a 1\r\n", "NOT_FOUND\r\n"),
            ("set a 7 0 2\r\n10\r\n", "STORED\r\n"),
            ("incr a 1\r\n", "11\r\n"),
            ("decr a 2\r\n", "9\r\n"),
            ("get a\r\n", "VALUE a 7 2\r\n9 \r\nEND\r\n"),
            ("decr a 100\r\n", "0\r\n"),
            ("get a\r\n", "VALUE a 7 2\r\n0 \r\nEND\r\n"),
            ("incr a 18446744073709551615\r\n", "18446744073709551615\r\n"),
            ("incr a 2\r\n", "1\r\n"),
            ("get a\r\n", "VALUE a 7 20\r\n1                   \r\nEND\r\n"),
            (
                "incr a 18446744073709551616\r\n",
                "CLIENT_ERROR invalid numeric delta argument\r\n",
            ),
            ("incr a x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
            ("set a 0 0 3\r\n099\r\n", "STORED\r\n"),
            ("incr a 1\r\n", "100\r\n"),
            ("set a 0 0 3\r\nabc\r\n", "STORED\r\n"),
            ("incr a 1\r\n", not_a_number),
            ("decr a 1\r\n", not_a_number),
            ("set a 0 0 0\r\n\r\n", "STORED\r\n"),
            ("incr a 1\r\n", not_a_number),
            ("set a 0 0 2\r\n-1\r\n", "STORED\r\n"),
            ("incr a 1\r\n", not_a_number),
            ("get a\r\n", "VALUE a 0 2\r\n-1\r\nEND\r\n"),
        ],
    );
}

#[test]
fn expiry_is_relative_up_to_thirty_days_and_absolute_above() {
    let server = Server::start(config());
    let absolute = common::START_SECS + 10;
    script(
        &server,
        &[
            ("set relative 0 10 1\r\n1\r\n", "STORED\r\n"),
            (&format!("set absolute 0 {absolute} 1\r\n1\r\n"), "STORED\r\n"),
            ("set month 0 2592000 1\r\n1\r\n", "STORED\r\n"),
            ("set past 0 2592001 1\r\n1\r\n", "STORED\r\n"),
            ("set negative 0 -1 1\r\n1\r\n", "STORED\r\n"),
            ("set never 0 0 1\r\n1\r\n", "STORED\r\n"),
            (
                "get past negative month relative\r\n",
                "VALUE month 0 1\r\n1\r\nVALUE relative 0 1\r\n1\r\nEND\r\n",
            ),
        ],
    );
    server.clock.advance_secs(9);
    script(
        &server,
        &[
            ("mg relative t\r\n", "HD t1\r\n"),
            ("mg absolute t\r\n", "HD t1\r\n"),
        ],
    );
    server.clock.advance_secs(1);
    script(
        &server,
        &[
            ("get relative absolute\r\n", "END\r\n"),
            ("mg month t\r\n", "HD t2591990\r\n"),
            ("touch relative 0\r\n", "NOT_FOUND\r\n"),
            ("touch month 5\r\n", "TOUCHED\r\n"),
            ("mg month t\r\n", "HD t5\r\n"),
            (
                "gat 0 month never\r\n",
                "VALUE month 0 1\r\n1\r\nVALUE never 0 1\r\n1\r\nEND\r\n",
            ),
            ("mg month t\r\n", "HD t-1\r\n"),
            ("gats 7 never none\r\n", "VALUE never 0 1 #\r\n1\r\nEND\r\n"),
            ("mg never t\r\n", "HD t7\r\n"),
            ("gat -1 never\r\n", "VALUE never 0 1\r\n1\r\nEND\r\n"),
            ("get never\r\n", "END\r\n"),
            ("touch month -1\r\n", "TOUCHED\r\n"),
            ("get month\r\n", "END\r\n"),
        ],
    );
}

/// Of one that is stored in slices, too, wherever they are.
#[test]
fn a_gat_that_lets_an_object_expire_gives_it_once_more() {
    for (dram_bytes, flash_write) in [
        (0, FlashWrite::Insertion),
        (4 << 20, FlashWrite::Insertion),
        (4 << 20, FlashWrite::Eviction),
    ] {
        let options = CacheOptions {
            dram_bytes,
            flash_write,
            block_bytes: Some(64 << 10),
            ..CacheOptions::default()
        };
        let server = Server::start_with(config(), options);
        let mut client = server.client();
        for len in [10, 300_000] {
            let value = "v".repeat(len);
            let hit = format!("VALUE key 3 {len}\r\n{value}\r\nEND\r\n");
            for gat in ["gat -1 key\r\n", "gat 10 key\r\n"] {
                client.ask(format!("set key 3 0 {len}\r\n{value}\r\n"), "STORED\r\n");
                client.ask(gat, &hit);
                client.ask("get key\r\n", if gat.contains("-1") { "END\r\n" } else { &hit });
                server.clock.advance_secs(10);
                client.ask("get key\r\n", "END\r\n");
            }
        }
        server.stop();
    }
}

#[test]
fn the_unique_that_gats_reports_is_the_one_that_cas_takes() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let unique = client.ask("gats 100 a\r\n", "VALUE a 0 1 #\r\n1\r\nEND\r\n")[0];
    client.ask(format!("cas a 0 0 1 {unique}\r\n2\r\n"), "STORED\r\n");
}

#[test]
fn flush_all_works_at_once_and_with_a_delay() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("flush_all\r\n", "OK\r\n"),
            ("get a\r\n", "END\r\n"),
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n"),
            ("flush_all 10\r\n", "OK\r\n"),
            ("get a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n"),
        ],
    );
    server.clock.advance_secs(10);
    script(&server, &[("get a\r\n", "END\r\n")]);
}

#[test]
fn keys_may_have_250_bytes() {
    let server = Server::start(config());
    let key = "k".repeat(250);
    script(
        &server,
        &[
            (&format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n"),
            (
                &format!("get {key}\r\n"),
                &format!("VALUE {key} 0 1\r\n1\r\nEND\r\n"),
            ),
            (
                &format!("get a {key}k\r\n"),
                "CLIENT_ERROR bad command line format\r\n",
            ),
            (
                &format!("set {key}k 0 0 3\r\nabc\r\n"),
                "CLIENT_ERROR bad command line format\r\nERROR\r\n",
            ),
        ],
    );
}

#[test]
fn malformed_commands_leave_the_connection_in_step() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("\r\n", "ERROR\r\n"),
            ("bogus\r\n", "ERROR\r\n"),
            ("GET a\r\n", "ERROR\r\n"),
            ("get\r\n", "ERROR\r\n"),
            ("set a 0 0\r\n", "ERROR\r\n"),
            (
                "set a 5 0 3\r\nabcdefgh\r\n",
                "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
            ),
            (
                "set a 0 0 -1\r\nabc\r\n",
                "CLIENT_ERROR bad command line format\r\nERROR\r\n",
            ),
            ("shutdown\r\n", "ERROR: shutdown not enabled\r\n"),
            ("verbosity 1\r\n", "OK\r\n"),
            ("version\r\n", "VERSION 1.6.18\r\n"),
            ("get a\n", "END\r\n"),
        ],
    );
    server.stop();
}

/// Nobody asks for it: it goes when its place is wanted.
#[test]
fn what_has_expired_is_counted_apart() {
    let options = CacheOptions {
        dram_bytes: 4 << 20,
        flash_write: FlashWrite::Eviction,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config(), options);
    let mut client = server.client();
    let mut store = |key: String, seconds: u32| {
        let value = "v".repeat(20_000);
        client.ask(
            format!("set {key} 0 {seconds} 20000\r\n{value}\r\n"),
            "STORED\r\n",
        );
    };
    (0..50).for_each(|number| store(format!("short{number}"), 5));
    let mut other = server.client();
    let mut counted = || -> [u64; 3] {
        other.send("stats\r\n");
        let mut text = Vec::new();
        while !text.ends_with(b"END\r\n") {
            text.extend(other.receive(1));
        }
        let text = String::from_utf8(text).unwrap();
        ["expired", "expired_unasked", "curr_items"].map(|name| {
            let found = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            found.expect("it is among them").parse().unwrap()
        })
    };
    server.clock.advance_secs(10);
    assert_eq!(counted(), [0, 0, 50]);
    server.client().ask("get short0\r\n", "END\r\n");
    assert_eq!(counted(), [1, 0, 49]);
    (0..500).for_each(|number| store(format!("long{number}"), 0));
    let [expired, unasked, _] = counted();
    assert_eq!([expired, unasked], [50, 49]);
    client.ask("stats cachedump 1 0\r\n", "ERROR\r\n");
    client.ask("stats conns\r\n", "ERROR\r\n");
    server.stop();
}

#[test]
fn stats_count_what_happened() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask(
        "set a 0 0 1\r\n1\r\nget a b\r\ndelete a\r\n",
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nDELETED\r\n",
    );
    let stats = |client: &mut common::Client<std::net::TcpStream>, command: &str| {
        client.send(command);
        let mut text = Vec::new();
        while !text.ends_with(b"END\r\n") {
            text.extend(client.receive(1));
        }
        String::from_utf8(text).unwrap()
    };
    let text = stats(&mut client, "stats\r\n");
    for line in [
        "STAT cmd_get 2\r\n",
        "STAT cmd_set 1\r\n",
        "STAT get_hits 1\r\n",
        "STAT get_misses 1\r\n",
        "STAT delete_hits 1\r\n",
        "STAT curr_connections 1\r\n",
        "STAT curr_items 0\r\n",
        "STAT threads 2\r\n",
        "STAT pointer_size 64\r\n",
        "STAT time 1800000000\r\n",
    ] {
        assert!(text.contains(line), "{line} not in {text}");
    }
    // What is held and its limit are of items in DRAM, as in memcached; flash has a pair of its own.
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    let text = stats(&mut client, "stats\r\n");
    let value = |name: &str| -> u64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    };
    assert!((1..=value("limit_maxbytes")).contains(&value("bytes")), "{text}");
    assert!(value("flash_bytes") <= value("flash_limit_maxbytes"), "{text}");
    assert!(stats(&mut client, "stats settings\r\n").contains("STAT item_size_max 1048576\r\n"));
    let items = "STAT items:1:number 1\r\nSTAT items:1:mem_requested #\r\nSTAT items:1:evicted 0\r\n\
                 STAT items:1:outofmemory 0\r\nEND\r\n";
    let bytes = client.ask("stats items\r\n", items)[0];
    assert!(
        (21..=80).contains(&bytes),
        "header, key, value and padding: {bytes}"
    );
    let slabs = stats(&mut client, "stats slabs\r\n");
    for line in [
        "STAT 1:get_hits 1\r\n",
        "STAT 1:cmd_set 2\r\n",
        "STAT 1:delete_hits 1\r\n",
        "STAT active_slabs 1\r\n",
    ] {
        assert!(slabs.contains(line), "{line} not in {slabs}");
    }
    client.ask("stats sizes\r\n", "STAT sizes_status disabled\r\nEND\r\n");
    client.ask("delete a\r\n", "DELETED\r\n");
    client.ask("stats items\r\n", "END\r\n");
    let slabs = stats(&mut client, "stats slabs\r\n");
    assert!(
        slabs.starts_with("STAT active_slabs 0\r\nSTAT total_malloced "),
        "{slabs}"
    );
    client.ask("stats reset\r\n", "RESET\r\n");
    assert!(stats(&mut client, "stats\r\n").contains("STAT cmd_get 0\r\n"));
    client.ask("stats bogus\r\n", "ERROR\r\n");
}
