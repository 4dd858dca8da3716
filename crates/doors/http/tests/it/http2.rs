//! HTTP/2, frame by frame.

use crate::common::{Origin, Server, config};
use pumice_door_http::{DoorConfig, Listen, TlsIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../memcached/tests/data")
        .join(name)
}

/// A connection that has agreed on HTTP/2.
fn connect(server: &Server) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(data("server.crt")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(session, TcpStream::connect(server.door.tls_addrs()[0]).unwrap());
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

#[test]
fn a_stream_without_a_window_is_not_waited_for() {
    let origin = Origin::always("cache-control: max-age=100", &[b'x'; 100_000]);
    let server = Server::start(DoorConfig {
        listen: vec![Listen::Tls(SocketAddr::from(([127, 0, 0, 1], 0)))],
        tls: Some(TlsIdentity::load(&data("server.crt"), &data("server.key")).unwrap()),
        stall_timeout: Duration::from_secs(2),
        ..config(origin.address)
    });
    let mut client = connect(&server);
    // SETTINGS: no window for any stream.
    client.write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
    // HEADERS: GET, https, path and authority.
    let fields = [&[0x82, 0x87, 0x04, 2][..], b"/x", &[0x01, 11], b"example.org"].concat();
    client.write_all(&frame(1, 5, 1, &fields)).unwrap();
    for _ in 0..10 {
        // WINDOW_UPDATE.
        client.write_all(&frame(8, 0, 1, &[0, 0, 1, 0])).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(server.counts().slow_clients_closed, 0);
    }
    server.wait_until("it is closed", |counts| counts.slow_clients_closed == 1);
    while server.door.stats().curr_connections() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // What it held has come back.
    server.wait_until("it is over", |counts| counts.sent_bytes > 0);
    server.stop();
}
