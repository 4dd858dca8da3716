//! The meta commands over a socket.

use crate::common::{Server, config, script};
use pumice::{CacheOptions, FlashWrite, LayoutName, LayoutOptions};

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
fn one_client_wins_what_is_stale_missing_or_about_to_expire() {
    let server = Server::start(config());
    script(
        &server,
        &[
            // Missing.
            ("mg a N30 v t k O1 f s h\r\n", "VA 0 t30 ka O1 f0 s0 h0 W\r\n\r\n"),
            ("mg a N30 v\r\n", "VA 0 Z\r\n\r\n"),
            ("get a\r\n", "VALUE a 0 0\r\n\r\nEND\r\n"),
            ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
            ("set a 0 100 1\r\nx\r\n", "STORED\r\n"),
            ("mg a N30 v t\r\n", "VA 1 t100\r\nx\r\n"),
            // About to expire; the flags count in their order.
            ("mg a R30 t\r\n", "HD t100\r\n"),
            ("mg a R200 t\r\n", "HD t100 W\r\n"),
            ("mg a R200 t T50 q\r\n", "HD t100 Z\r\n"),
            ("set a 0 100 1\r\nx\r\n", "STORED\r\n"),
            ("mg a R60 T50 t\r\n", "HD t50\r\n"),
            ("mg a T40 R45 t\r\n", "HD t40 W\r\n"),
            ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
            ("mg a R200\r\n", "HD\r\n"),
            // Stale.
            ("md a I T30\r\n", "HD\r\n"),
            ("mg a v t\r\n", "VA 1 t30 X W\r\nx\r\n"),
            ("mg a v\r\n", "VA 1 Z X\r\nx\r\n"),
            ("md a I q\r\n", ""),
            ("gat 60 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n"),
            ("mg a v\r\nmg a v\r\n", "VA 1 X W\r\nx\r\nVA 1 Z X\r\nx\r\n"),
            ("append a 0 0 1\r\ny\r\n", "STORED\r\n"),
            ("mg a v\r\n", "VA 2\r\nxy\r\n"),
            ("md none I\r\n", "NF\r\n"),
        ],
    );
    server.stop();
}

#[test]
fn ms_with_an_older_unique_may_store_what_is_stale() {
    let server = Server::start(config());
    let mut client = server.client();
    let old = client.ask("ms a 1 c T100\r\nx\r\n", "HD c#\r\n")[0];
    let new = client.ask("ms a 1 c T100\r\ny\r\n", "HD c#\r\n")[0];
    client.ask(format!("ms a 1 C{} I\r\nz\r\n", new + 1), "EX\r\n");
    client.ask("ms a 1 C0 I\r\nz\r\n", "EX\r\n");
    client.ask(format!("ms a 1 C{old} I MA\r\nz\r\n"), "EX\r\n");
    client.ask("mg a v\r\n", "VA 1\r\ny\r\n");
    client.ask(format!("ms a 1 C{old} I\r\nz\r\n"), "HD\r\n");
    let unique = client.ask("mg a v t c\r\n", "VA 1 t100 c# X W\r\nz\r\n")[0];
    client.ask(format!("ms a 1 C{unique} I\r\nw\r\n"), "HD\r\n");
    client.ask("mg a v\r\n", "VA 1\r\nw\r\n");
    client.ask("ms none 1 C1 I\r\nw\r\n", "NF\r\n");
    client.ask("ms none 1 C1 MR\r\nw\r\n", "NF\r\n");
    server.stop();
}

#[test]
fn ma_adds_and_subtracts() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("ma a\r\n", "NF\r\n"),
            ("ma a q k O1\r\n", "NF ka O1\r\n"),
            ("ma a N30 J13 t v q\r\n", "VA 2 t30\r\n13\r\n"),
            ("ma a v D7\r\n", "VA 2\r\n20\r\n"),
            ("ma a MD v D15 T60 t\r\n", "VA 1 t60\r\n5\r\n"),
            ("get a\r\n", "VALUE a 0 2\r\n5 \r\nEND\r\n"),
            ("ma a M- D99 v\r\n", "VA 1\r\n0\r\n"),
            (
                "ma a MI D18446744073709551615 v\r\n",
                "VA 20\r\n18446744073709551615\r\n",
            ),
            ("ma a M+ v t\r\n", "VA 1 t60\r\n0\r\n"),
            ("ma a q v\r\n", ""),
            ("ma a C1 k O1\r\n", "EX ka O1\r\n"),
            ("ma a C0\r\n", "HD\r\n"),
            ("ma YQ== b k v\r\n", "VA 1 kYQ== b\r\n3\r\n"),
            ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
            (
                "ma a q\r\n",
                "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            ),
            ("ma a MX\r\n", "CLIENT_ERROR invalid mode for ma M token\r\n"),
            ("ma a Dx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
            ("ma\r\n", "ERROR\r\n"),
        ],
    );
    let mut client = server.client();
    let unique = client.ask("ms n 1 c\r\n1\r\n", "HD c#\r\n")[0];
    let next = client.ask(format!("ma n C{unique} c\r\n"), "HD c#\r\n")[0];
    assert!(next > unique);
    client.ask(format!("ma n C{unique}\r\n"), "EX\r\n");
    server.stop();
}

#[test]
fn h_says_whether_an_object_was_hit_before() {
    let server = Server::start(config());
    script(
        &server,
        &[
            ("set a 0 0 1\r\n5\r\n", "STORED\r\n"),
            ("mg a u h\r\nmg a u h\r\n", "HD h0\r\nHD h0\r\n"),
            (
                "md a I\r\nmg a h\r\nmg a h\r\n",
                "HD\r\nHD h0 X W\r\nHD h1 Z X\r\n",
            ),
            ("set a 0 0 1\r\n5\r\n", "STORED\r\n"),
            ("mg a h\r\nmg a h\r\n", "HD h0\r\nHD h1\r\n"),
            ("set a 0 0 1\r\n5\r\n", "STORED\r\n"),
            ("touch a 100\r\n", "TOUCHED\r\n"),
            ("mg a u h\r\n", "HD h1\r\n"),
            ("incr a 1\r\n", "6\r\n"),
            ("mg a u h\r\n", "HD h1\r\n"),
            ("incr a 5\r\n", "11\r\n"),
            ("mg a u h\r\n", "HD h0\r\n"),
        ],
    );
    server.stop();
}

#[test]
fn marks_go_to_flash_and_runs_of_reads_from_there_keep_their_order() {
    let small = CacheOptions {
        flash_write: FlashWrite::Insertion,
        dram_bytes: 0,
        block_bytes: Some(64 << 10),
        buffers_max: 16,
        ..CacheOptions::default()
    };
    let server = Server::start_with(config(), small);
    let mut client = server.client();
    for key in ["a", "b"] {
        client.ask(format!("set {key} 5 100 3\r\nabc\r\n"), "STORED\r\n");
        client.ask(format!("md {key} I\r\n"), "HD\r\n");
    }
    client.ask("mg b\r\n", "HD X W\r\n");
    let value = "x".repeat(10_000);
    for number in 0..50 {
        client.ask(format!("set f{number} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !{
        client.send("me a\r\nme b\r\n");
        (0..2).all(|_| client.line().contains("written=yes"))
    } {
        client.send("mn\r\n");
        while client.line() != "MN" {}
        assert!(std::time::Instant::now() < deadline, "a and b stay in buffers");
    }
    // What the first N makes, the reads behind it find, though all of them were looked up before.
    client.ask(
        "mg b v\r\nmg new N60 v\r\nmg a v t\r\nget new\r\nmg new N60\r\nmg a v R1000 f\r\nmg b\r\n",
        "VA 3 Z X\r\nabc\r\nVA 0 W\r\n\r\nVA 3 t100 X W\r\nabc\r\nVALUE new 0 0\r\n\r\nEND\r\nHD Z\r\n\
         VA 3 f5 Z X\r\nabc\r\nHD Z X\r\n",
    );
    // And what is in memory is answered as the mg before it has left it, though both wait behind flash.
    client.ask("set c 0 100 1\r\n1\r\n", "STORED\r\n");
    client.ask(
        "mg b v\r\nmg c R200 t\r\nmg c t\r\n",
        "VA 3 Z X\r\nabc\r\nHD t100 W\r\nHD t100 Z\r\n",
    );
    server.stop();
}

#[test]
fn what_is_looked_up_again_behind_flash_was_not_hit_by_that() {
    let server = Server::start_with(
        config(),
        CacheOptions {
            dram_bytes: 4 << 20,
            block_bytes: Some(64 << 10),
            buffers_max: 16,
            ..CacheOptions::default()
        },
    );
    let mut client = server.client();
    for number in 0..20 {
        client.ask(format!("set cold{number} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    let value = "x".repeat(10_000);
    for number in 0..1_000 {
        client.ask(format!("set f{number} 0 0 10000\r\n{value}\r\n"), "STORED\r\n");
    }
    let mut reads = 0;
    for number in 0..20 {
        client.ask(format!("set k{number} 0 0 1\r\n1\r\n"), "STORED\r\n");
        client.ask(
            format!("mg cold{number} v\r\nmg new{number} N0\r\nmg k{number} h\r\nmg k{number} h\r\n"),
            "VA 1\r\n1\r\nHD W\r\nHD h0\r\nHD h1\r\n",
        );
        reads = server.stats().counts().get_hits_flash;
    }
    assert!(reads > 10, "{reads} of 20 were on flash");
    server.stop();
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
    let ripq = LayoutOptions::new(LayoutName::Ripq, None, None, None).expect("these go together");
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
