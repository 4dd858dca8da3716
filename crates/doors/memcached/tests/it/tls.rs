//! The protocol behind TLS, and peers that do not get that far.

use crate::common::{Client, SMALLEST, Server, config, connect, hit, set, value};
use pumice_door_memcached::parse::Limits;
use pumice_door_memcached::{DoorConfig, Listen, TlsIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn identity() -> TlsIdentity {
    TlsIdentity::load(&data("server.crt"), &data("server.key")).unwrap()
}

fn with_tls() -> DoorConfig {
    DoorConfig {
        listen: vec![Listen::Tls(SocketAddr::from(([127, 0, 0, 1], 0)))],
        tls: Some(identity()),
        ..config()
    }
}

fn client(server: &Server, certificate: &str) -> Client<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(data(certificate)).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let plain = connect(server.door.tls_addrs()[0]);
    Client {
        stream: StreamOwned::new(session, plain.stream),
    }
}

#[test]
fn commands_and_values_of_every_size_pass_through_tls() {
    let server = Server::start(with_tls());
    let mut client = client(&server, "server.crt");
    for size in [0, 1, 15_999, 16_000, 16_001, 16_384, 65_536, 300_000, 1 << 20] {
        let value = value(size, size);
        client.ask(set("a", &value), "STORED\r\n");
        client.send("get a\r\n");
        client.expect_bytes(&hit("a", &value));
    }
    let (mut send, mut expected) = (Vec::new(), Vec::new());
    for number in 0..2000 {
        let value = value(number % 300, number);
        send.extend(set("b", &value));
        send.extend(b"get b\r\n");
        expected.extend(b"STORED\r\n");
        expected.extend(hit("b", &value));
    }
    client.send(&send);
    client.expect_bytes(&expected);
    for byte in b"set a 0 0 5\r\na\r\nbc\r\nquit\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\n");
    client.expect_end();
    server.stop();
}

#[test]
fn a_peer_that_reads_late_gets_everything() {
    let server = Server::start(DoorConfig {
        budgets: SMALLEST,
        limits: Limits {
            max_value_bytes: 100_000,
            ..Limits::default()
        },
        ..with_tls()
    });
    let mut client = client(&server, "server.crt");
    let value = value(60_000, 7);
    client.ask(set("a", &value), "STORED\r\n");
    client.send(b"get a\r\n".repeat(400));
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..400 {
        client.expect_bytes(&hit("a", &value));
    }
    server.stop();
}

#[test]
fn who_shakes_no_hands_is_closed_and_counted() {
    let server = Server::start(DoorConfig {
        handshake_timeout: Duration::from_millis(300),
        ..with_tls()
    });
    let address = server.door.tls_addrs()[0];
    let failed =
        |count| move |stats: &pumice_door_memcached::DoorStats| stats.counts().ssl_handshake_errors == count;
    let mut silent = connect(address);
    silent.expect_end();
    server.wait_until("silence counts", failed(1));
    let mut plain = connect(address);
    plain.send("get a\r\n");
    let mut said = Vec::new();
    // An alert may come, and is no reply.
    let _ = plain.stream.read_to_end(&mut said);
    assert!(said.len() < 16 && !said.starts_with(b"END"), "{said:?}");
    server.wait_until("plain text counts", failed(2));
    // A hello that never ends.
    let mut half = connect(address);
    half.send([&[22, 3, 1, 64, 0, 1, 0, 63, 252][..], &[0; 5000]].concat());
    half.expect_end();
    server.wait_until("half a hello counts", failed(3));
    let mut wrong = client(&server, "other.crt");
    let mut byte = [0];
    assert!(wrong.stream.read(&mut byte).is_err());
    server.wait_until("a client that does not trust counts", failed(4));
    client(&server, "server.crt").ask("mn\r\n", "MN\r\n");
    server.wait_until("all are gone", |stats| stats.curr_connections() == 0);
    server.stop();
}

#[test]
fn certificates_are_changed_without_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("crt"), directory.path().join("key"));
    let install = |name: &str| {
        std::fs::copy(data(&format!("{name}.crt")), &certificate).unwrap();
        std::fs::copy(data(&format!("{name}.key")), &key).unwrap();
    };
    install("server");
    let tls = TlsIdentity::load(&certificate, &key).unwrap();
    let server = Server::start(DoorConfig {
        tls: Some(tls.clone()),
        ..with_tls()
    });
    let mut old = client(&server, "server.crt");
    old.ask("mn\r\n", "MN\r\n");
    install("other");
    tls.reload().unwrap();
    client(&server, "other.crt").ask("mn\r\n", "MN\r\n");
    std::fs::write(&key, "nothing").unwrap();
    assert!(tls.reload().is_err());
    client(&server, "other.crt").ask("mn\r\n", "MN\r\n");
    old.ask("mn\r\n", "MN\r\n");
    server.stop();
}

#[test]
fn what_was_sent_before_the_stop_is_answered() {
    let server = Server::start(with_tls());
    let mut client = client(&server, "server.crt");
    client.ask("mn\r\n", "MN\r\n");
    let value = value(500_000, 1);
    client.send([set("a", &value), b"get a\r\n".repeat(20)].concat());
    server.begin_stop();
    client.expect("STORED\r\n");
    for _ in 0..20 {
        client.expect_bytes(&hit("a", &value));
    }
    client.expect_end();
    server.stop();
}

#[test]
fn a_key_is_taken_whatever_kind_its_label_names() {
    let directory = tempfile::tempdir().unwrap();
    let key = std::fs::read_to_string(data("server.key")).unwrap();
    for label in ["RSA PRIVATE KEY", "EC PRIVATE KEY"] {
        let path = directory.path().join("key");
        std::fs::write(&path, key.replace("PRIVATE KEY", label)).unwrap();
        let tls = TlsIdentity::load(&data("server.crt"), &path).unwrap();
        let server = Server::start(DoorConfig {
            tls: Some(tls),
            ..with_tls()
        });
        client(&server, "server.crt").ask("mn\r\n", "MN\r\n");
        server.stop();
    }
}

#[test]
fn errors_name_the_file_and_show_nothing_of_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let key = std::fs::read_to_string(data("server.key")).unwrap();
    let secret = key.lines().nth(1).unwrap();
    let cut = file(
        "cut",
        key.lines().take(2).collect::<Vec<_>>().join("\n").as_bytes(),
    );
    let (certificate, good) = (data("server.crt"), data("server.key"));
    let cases: [(&Path, &Path, [&str; 2]); 10] = [
        (Path::new("/no/such"), &good, ["/no/such", "No such file"]),
        (
            &file("empty", b""),
            &good,
            ["empty", "there is no certificate in it"],
        ),
        (&good, &good, ["server.key", "there is no certificate in it"]),
        (
            &file(
                "broken",
                b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
            ),
            &good,
            ["broken", "not base64"],
        ),
        (
            &file("large", &[b'x'; (1 << 20) + 1]),
            &good,
            ["large", "larger than 1048576 bytes"],
        ),
        (
            &certificate,
            &certificate,
            ["server.crt", "there is no private key in it"],
        ),
        (&certificate, &cut, ["cut", "no end"]),
        (
            &certificate,
            &data("encrypted.key"),
            ["encrypted.key", "without a passphrase"],
        ),
        (&certificate, &data("other.key"), ["other.key", "KeyMismatch"]),
        (&certificate, &data("p521.key"), ["p521.key", "P-256 or P-384"]),
    ];
    for (certificate, key, parts) in cases {
        let error = TlsIdentity::load(certificate, key).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(!error.contains(&secret[..20]), "{error}");
    }
}
