//! Protocols chosen in the TLS handshake, and the stream under tokio's traits.

use pumice_net::{Floor, FloorConfig, Listen, Stop, TlsIdentity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../memcached/tests/data")
        .join(name)
}

/// What a client that trusts `certificate` and offers these protocols is told: what its handshake agreed on, and an echo of 100,000 bytes.
async fn told(address: SocketAddr, certificate: &str, offers: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(data(certificate)).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|name| name.to_vec()).collect();
    let socket = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    let (mut from, mut to) = tokio::io::split(stream);
    let sent = vec![7; 100_000];
    let (mut echo, mut protocol) = (vec![0; sent.len()], Vec::new());
    let send = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    let receive = async {
        from.read_exact(&mut echo).await?;
        from.read_to_end(&mut protocol).await
    };
    tokio::try_join!(send, receive)?;
    assert_eq!(echo, sent);
    Ok(protocol)
}

#[test]
fn a_door_takes_the_protocol_it_prefers_also_after_a_reload() {
    let files = tempfile::tempdir().unwrap();
    let (certificate, key) = (files.path().join("crt"), files.path().join("key"));
    let install = |name: &str| {
        std::fs::copy(data(&format!("{name}.crt")), &certificate).unwrap();
        std::fs::copy(data(&format!("{name}.key")), &key).unwrap();
    };
    install("server");
    let identity = TlsIdentity::load(&certificate, &key).unwrap();
    let floor = |alpn| {
        Floor::bind(FloorConfig {
            listen: vec![Listen::Tls(SocketAddr::from(([127, 0, 0, 1], 0)))],
            workers: 1,
            max_connections: 10,
            one_too_many: b"",
            backlog: 10,
            tls: Some(identity.clone()),
            alpn,
            handshake_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(5),
        })
        .unwrap()
    };
    let (choosy, plain) = (floor(&[b"h2", b"http/1.1"]), floor(&[]));
    let (shutdown, stopped) = watch::channel(false);
    let run = |floor: Floor| {
        let stopped = stopped.clone();
        async move {
            let stop = Rc::new(Stop::default());
            let serve = |arrived: pumice_net::Arrived| {
                let stop = Rc::clone(&stop);
                async move {
                    let Ok((mut stream, _guard)) = arrived.open(&stop).await else {
                        return;
                    };
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).await.unwrap();
                    bytes.extend(stream.alpn().unwrap_or(b"none"));
                    AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
                    AsyncWriteExt::shutdown(&mut stream).await.unwrap();
                }
            };
            floor.run_worker(0, &stop, stopped, serve).await.unwrap();
        }
    };
    let [choosy_at, plain_at] = [choosy.tls_addrs()[0], plain.tls_addrs()[0]];
    let clients = async {
        let h1: &[u8] = b"http/1.1";
        for (offers, expected) in [
            (&[b"h2", h1][..], Some(&b"h2"[..])),
            (&[h1, b"h2"], Some(b"h2")),
            (&[h1], Some(h1)),
            (&[b"spdy", h1], Some(h1)),
            (&[], Some(b"none")),
            (&[b"spdy"], None),
        ] {
            let told = told(choosy_at, "server.crt", offers).await;
            assert_eq!(told.ok().as_deref(), expected, "{offers:?}");
        }
        assert_eq!(told(plain_at, "server.crt", &[b"h2"]).await.unwrap(), b"none");
        install("other");
        identity.reload().unwrap();
        for address in [choosy_at, plain_at] {
            assert!(told(address, "server.crt", &[]).await.is_err());
        }
        assert_eq!(told(choosy_at, "other.crt", &[b"h2", h1]).await.unwrap(), b"h2");
        assert_eq!(told(plain_at, "other.crt", &[b"h2"]).await.unwrap(), b"none");
        shutdown.send_replace(true);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let all = async { tokio::join!(run(choosy), run(plain), clients) };
    LocalSet::new().block_on(&runtime, all);
}
