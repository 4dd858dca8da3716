//! The meta commands over a socket.

mod common;

use common::{Server, config, script};
use pumice::{CacheOptions, FlashWrite, Layout, LayoutOptions};

#[test]
fn mg_answers_what_the_flags_ask_for() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("mg a\r\n", "EN\r\n"),
            ("mg a v k O123 q\r\n", ""),
            ("mg a k Oabc\r\n", "EN ka Oabc\r\n"),
            ("set a 5 100 3\r\nabc\r\n", "STORED\r\n"),
            ("mg a\r\n", "HD\r\n"),
            ("mg a v\r\n", "VA 3\r\nabc\r\n"),
            (
                "mg a s v f t c k Oxyz q\r\n",
                "VA 3 s3 f5 t100 c# ka Oxyz\r\nabc\r\n",
            ),
            ("mg YQ== b k v\r\n", "VA 3 kYQ== b\r\nabc\r\n"),
            ("mg a T30 t v\r\n", "VA 3 t30\r\nabc\r\n"),
            ("mg a t\r\n", "HD t30\r\n"),
            ("mg a T-1\r\n", "HD\r\n"),
            ("mg a v\r\n", "EN\r\n"),
            ("mg none T30 q\r\n", ""),
        ],
    );
    server.stop();
}

#[test]
fn ms_stores_in_the_mode_that_it_names() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("ms a 2 MA\r\nhi\r\n", "NS\r\n"),
            ("ms a 2 MP\r\nhi\r\n", "NS\r\n"),
            ("ms a 2 MR\r\nhi\r\n", "NS\r\n"),
            ("ms a 2 ME F7 T50\r\nhi\r\n", "HD\r\n"),
            ("ms a 2 ME q k O1\r\nhi\r\n", "NS ka O1\r\n"),
            ("ms a 2 MA\r\nho\r\n", "HD\r\n"),
            ("ms a 2 MP\r\nho\r\n", "HD\r\n"),
            ("mg a v f t\r\n", "VA 6 f7 t50\r\nhohiho\r\n"),
            ("ms a 2 MR\r\nyo\r\n", "HD\r\n"),
            ("mg a v f t\r\n", "VA 2 f0 t-1\r\nyo\r\n"),
            ("ms a 2 q\r\nhi\r\n", ""),
            ("ms YQ== 2 b k c O3\r\nhx\r\n", "HD kYQ== b c# O3\r\n"),
            ("mg a v k\r\n", "VA 2 ka\r\nhx\r\n"),
            ("ms a 2 T-1\r\nhi\r\n", "HD\r\n"),
            ("mg a v\r\n", "EN\r\n"),
        ],
    );
}

#[test]
fn ms_and_md_compare_versions() {
    let server = Server::start(config());
    let mut client = server.client();
    client.ask("ms a 2 C5\r\nhi\r\n", "NF\r\n");
    client.ask("md a C5\r\n", "NF\r\n");
    let first = client.ask("ms a 2 c\r\nhi\r\n", "HD c#\r\n")[0];
    let second = client.ask(format!("ms a 2 c C{first}\r\nho\r\n"), "HD c#\r\n")[0];
    assert_eq!(client.ask("mg a c\r\n", "HD c#\r\n")[0], second);
    client.ask(format!("ms a 2 C{first} q O1 k\r\nhi\r\n"), "EX O1 ka\r\n");
    client.ask(format!("md a C{first} q\r\n"), "EX\r\n");
    client.ask(format!("md a C{second} k O2\r\n"), "HD ka O2\r\n");
    client.ask("mg a\r\n", "EN\r\n");
}

#[test]
fn md_deletes() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("md a\r\n", "NF\r\n"),
            ("md a q\r\n", "NF\r\n"),
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("md a q\r\n", ""),
            ("mg a\r\n", "EN\r\n"),
            ("md YQ== b k O1\r\n", "NF kYQ== b O1\r\n"),
            ("set a 0 0 1\r\n1\r\n", "STORED\r\n"),
            ("md YQ== b\r\n", "HD\r\n"),
        ],
    );
}

#[test]
fn base64_keys_may_hold_any_byte() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("ms AAEgDQo= 2 b\r\nhi\r\n", "HD\r\n"),
            ("mg AAEgDQo= b v k\r\n", "VA 2 kAAEgDQo= b\r\nhi\r\n"),
        ],
    );
}

#[test]
fn me_says_where_an_object_is() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("me a\r\n", "EN\r\n"),
            ("me a q k O1\r\n", "EN\r\n"),
            ("set a 5 100 3\r\nabc\r\n", "STORED\r\n"),
            ("me a\r\n", "ME a exp=100 cas=# size=3 tier=both written=no\r\n"),
            (
                "me YQ== b\r\n",
                "ME YQ== exp=100 cas=# size=3 tier=both written=no\r\n",
            ),
            ("me YQ==\r\n", "EN\r\n"),
            ("touch a 0\r\n", "TOUCHED\r\n"),
            ("me a\r\n", "ME a exp=-1 cas=# size=3 tier=both written=no\r\n"),
            ("me YQ b\r\n", "CLIENT_ERROR bad command line format\r\n"),
            ("touch a -1\r\n", "TOUCHED\r\n"),
            ("me a\r\n", "EN\r\n"),
        ],
    );
    let mut client = server.client();
    let unique = client.ask("ms a 1 c\r\n1\r\n", "HD c#\r\n")[0];
    let fields = client.ask("me a\r\n", "ME a exp=-1 cas=# size=1 tier=both written=no\r\n");
    assert_eq!(fields, [unique]);
    server.clock.advance_secs(7);
    client.ask("ms a 1 T100\r\n1\r\n", "HD\r\n");
    server.clock.advance_secs(30);
    client.ask("me a\r\n", "ME a exp=70 cas=# size=1 tier=both written=no\r\n");
    server.stop();
}

#[test]
fn me_follows_an_object_to_flash() {
    let ripq = LayoutOptions::new(Layout::Ripq, None, None, None).expect("these go together");
    let one_tier = |flash_write, dram_bytes| CacheOptions {
        flash_write,
        dram_bytes,
        layout: ripq,
        block_bytes: Some(64 << 10),
        buffers_max: 16,
        ..CacheOptions::default()
    };
    let value = "x".repeat(10_000);
    let fill = |server: &Server| {
        let mut client = server.client();
        for number in 0..50 {
            client.ask(format!("set f{number} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
        }
        client
    };

    // Without a DRAM tier: in a buffer everything is known, on the device its place.
    let server = Server::start_with(config(), one_tier(FlashWrite::Insertion, 0));
    let mut client = server.client();
    client.ask("set a 0 0 3\r\nabc\r\n", "STORED\r\n");
    client.ask(
        "me a\r\n",
        "ME a exp=-1 cas=# size=3 tier=flash written=no position=#.#\r\n",
    );
    let mut client = fill(&server);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // Writing a block is another task's; until it has, the buffer answers.
    let position = loop {
        client.send("me a\r\nmn\r\n");
        let said = client.line();
        client.expect("MN\r\n");
        if let Some(position) = said.strip_prefix("ME a tier=flash written=yes position=") {
            break position.to_owned();
        }
        assert!(std::time::Instant::now() < deadline, "{said}");
    };
    assert!(position.len() == 5 && position.parse().is_ok_and(|at: f64| (0.0..=1.0).contains(&at)));
    let counts = server.stats().counts();
    assert_eq!((counts.cmd_get, counts.get_hits, counts.get_misses), (0, 0, 0));
    assert!(counts.cmd_meta >= 2, "{counts:?}");
    server.stop();

    // What only the DRAM tier has.
    let server = Server::start_with(config(), one_tier(FlashWrite::Eviction, 64 << 20));
    let mut client = fill(&server);
    client.ask("me f1\r\n", "ME f1 exp=-1 cas=# size=10000 tier=dram\r\n");
    server.stop();
}

#[test]
fn malformed_meta_commands_leave_the_connection_in_step() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("mg\r\n", "ERROR\r\n"),
            ("mx a\r\n", "ERROR\r\n"),
            ("mg a !\r\n", "CLIENT_ERROR invalid flag\r\n"),
            ("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
            ("mg a Tx\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
            ("mg YQ b\r\n", "CLIENT_ERROR error decoding key\r\n"),
            ("ms a\r\n", "CLIENT_ERROR bad command line format\r\n"),
            ("ms a 2 !\r\nhi\r\n", "CLIENT_ERROR invalid flag\r\n"),
            (
                "ms a 2 Mx\r\nhi\r\n",
                "CLIENT_ERROR invalid mode for ms M token\r\n",
            ),
            (
                "ms a 5 q\r\nhi\r\nxxx\r\n",
                "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
            ),
            ("md a !\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
            ("mg a\r\n", "EN\r\n"),
        ],
    );
}
