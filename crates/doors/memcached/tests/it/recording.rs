//! What is told of requests while somebody records them.

use crate::common::{Server, config, script, set, value};
use pumice_door_memcached::Recording;

/// The lines since the last call, without time and key.
fn told(recording: &mut Recording) -> Vec<String> {
    let mut lines = Vec::new();
    recording.take(&mut lines);
    let lines = String::from_utf8(lines).unwrap();
    let words = lines.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    words
        .filter(|words| words.len() > 3)
        .map(|words| format!("{} {}", words[1], words[3..].join(" ")))
        .collect()
}

#[test]
fn every_command_is_told_as_what_it_does() {
    let server = Server::start(config());
    script(&server, &[("set before 0 0 1\r\na\r\n", "STORED\r\n")]);
    let mut recording = server.door.record(1).unwrap();
    for (steps, expected) in [
        (
            vec![
                ("get a b\r\n", "END\r\n"),
                ("set a 0 100 3\r\nabc\r\n", "STORED\r\n"),
                ("get a\r\n", "VALUE a 0 3\r\nabc\r\nEND\r\n"),
                ("mg a v\r\n", "VA 3\r\nabc\r\n"),
                ("mg b v\r\n", "EN\r\n"),
            ],
            vec![
                "get 0 miss",
                "get 0 miss",
                "set 4 ttl=100",
                "get 4",
                "get 4",
                "get 0 miss",
            ],
        ),
        // What stores nothing is not told.
        (
            vec![
                ("add a 0 0 1\r\n1\r\n", "NOT_STORED\r\n"),
                ("add n 0 0 1\r\n9\r\n", "STORED\r\n"),
                ("append n 0 0 1\r\n9\r\n", "STORED\r\n"),
                ("incr n 1\r\n", "100\r\n"),
                ("incr none 1\r\n", "NOT_FOUND\r\n"),
                ("ma n T60\r\n", "HD\r\n"),
                ("ms n 1 T-1\r\n5\r\n", "HD\r\n"),
            ],
            vec![
                "set 2 ttl=0",
                "set 3 ttl=0",
                "set 4 ttl=0",
                "set 4 ttl=60",
                "set 2 ttl=1",
            ],
        ),
        (
            vec![
                ("touch a 50\r\n", "TOUCHED\r\n"),
                ("touch b 50\r\n", "NOT_FOUND\r\n"),
                ("gat 20 a b\r\n", "VALUE a 0 3\r\nabc\r\nEND\r\n"),
                ("mg a s T30\r\n", "HD s3\r\n"),
                ("mg vivified N30\r\n", "HD W\r\n"),
            ],
            vec![
                "touch 4 ttl=50",
                "touch 0 ttl=50 miss",
                "get 4",
                "get 0 miss",
                "get 4",
                "get 0 miss",
            ],
        ),
        (
            vec![
                ("md a I T30\r\n", "HD\r\n"),
                ("md a C1\r\n", "EX\r\n"),
                ("delete a\r\n", "DELETED\r\n"),
                ("delete a\r\n", "NOT_FOUND\r\n"),
                ("md before\r\n", "HD\r\n"),
                ("md before\r\n", "NF\r\n"),
            ],
            vec![
                "touch 4 ttl=30",
                "delete 0",
                "delete 0 miss",
                "delete 0",
                "delete 0 miss",
            ],
        ),
    ] {
        script(&server, &steps);
        assert_eq!(told(&mut recording), expected);
    }
    // A large value waits for room, one that is too large takes the older one with it.
    let mut client = server.client();
    client.ask(set("large", &value(100_000, 1)), "STORED\r\n");
    client.ask(
        set("large", &value(2 << 20, 1)),
        "SERVER_ERROR object too large for cache\r\n",
    );
    assert_eq!(told(&mut recording), ["set 100005 ttl=0", "delete 0"]);
    drop(recording);
    script(&server, &[("get a\r\n", "END\r\n")]);
    assert_eq!(told(&mut server.door.record(1).unwrap()), [""; 0]);
    server.stop();
}
