//! Connections that have to authenticate themselves.

use crate::common::{Server, config};
use pumice_door_memcached::{AuthFile, DoorConfig};
use std::sync::Arc;

const LOGIN: &str = "set auth 0 0 7\r\nfoo bar\r\n";

fn auth(text: &str) -> (tempfile::NamedTempFile, Arc<AuthFile>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let auth = AuthFile::load(file.path()).unwrap();
    (file, Arc::new(auth))
}

fn guarded() -> (Server, Arc<AuthFile>, tempfile::NamedTempFile) {
    let (file, auth) = auth("foo:bar\nother:one\n");
    let server = Server::start(DoorConfig {
        auth: Some(Arc::clone(&auth)),
        ..config()
    });
    (server, auth, file)
}

#[test]
fn nothing_is_executed_before_the_right_password() {
    let (server, _, _file) = guarded();
    let mut client = server.client();
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    for command in [
        "get a\r\n",
        "mn\r\n",
        "flush_all\r\n",
        "quit\r\n",
        "stats\r\n",
        "ms a 1\r\n",
        "\r\n",
    ] {
        client.ask(command, refused);
    }
    client.ask(
        "set k 0 0 7\r\nfoo baz\r\n",
        "CLIENT_ERROR authentication failure\r\n",
    );
    client.ask(
        "set k 0 0 9\r\nother bar\r\n",
        "CLIENT_ERROR authentication failure\r\n",
    );
    client.ask(
        "set k 0 0 3\r\nfoo\r\n",
        "CLIENT_ERROR bad authentication token format\r\n",
    );
    client.ask(
        "set k 0 0 7\r\nfoo barxx",
        "CLIENT_ERROR bad command line termination\r\n",
    );
    // A value that no credentials are as long as is passed over, and not kept.
    let long = [
        &b"set k 0 0 2000000\r\n"[..],
        &[b'x'; 2_000_000],
        b"\r\nget a\r\n",
    ]
    .concat();
    client.ask(long, format!("CLIENT_ERROR authentication failure\r\n{refused}"));
    assert_eq!(server.stats().counts().cmd_set, 0);
    client.ask(LOGIN, "STORED\r\n");
    client.ask(
        "get auth k\r\nset a 0 0 1\r\n1\r\nget a\r\n",
        "END\r\nSTORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
    // From now on it is an ordinary set.
    client.ask(
        format!("{LOGIN}get auth\r\n"),
        "STORED\r\nVALUE auth 0 7\r\nfoo bar\r\nEND\r\n",
    );
    let mut browser = server.client();
    browser.send(format!("POST / HTTP/1.1\r\n{LOGIN}"));
    browser.expect_end();
    // Others are asked all the same.
    server.client().ask("get a\r\n", refused);
    let counts = server.stats().counts();
    assert_eq!((counts.auth_cmds, counts.auth_errors), (3, 2));
    server.stop();
}

#[test]
fn commands_may_stand_behind_the_password_and_it_may_come_in_pieces() {
    let (server, _, _file) = guarded();
    let mut client = server.client();
    client.ask(
        format!("get x\r\n{LOGIN}mn\r\n"),
        "CLIENT_ERROR unauthenticated\r\nSTORED\r\nMN\r\n",
    );
    let mut client = server.client();
    for byte in LOGIN.bytes() {
        client.send([byte]);
    }
    client.ask("mn\r\n", "STORED\r\nMN\r\n");
    let mut client = server.client();
    client.send([b'x'; 2048]);
    client.expect_end();
    server.stop();
}

#[test]
fn a_file_that_is_read_again_counts_for_new_connections() {
    let (server, auth, file) = guarded();
    let mut old = server.client();
    old.ask(LOGIN, "STORED\r\n");
    std::fs::write(file.path(), "foo:new\n").unwrap();
    auth.reload().unwrap();
    old.ask("mn\r\n", "MN\r\n");
    let mut new = server.client();
    new.ask(LOGIN, "CLIENT_ERROR authentication failure\r\n");
    new.ask("set k 0 0 7\r\nfoo new\r\nmn\r\n", "STORED\r\nMN\r\n");
    server.stop();
}
