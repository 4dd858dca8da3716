//! The door over a real socket.

use futures_util::FutureExt;
use pumice_door_admin::{BookLine, BooksFault, Figures, Group, NotRecorded, Requests, Source, serve};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Default)]
struct Fixed {
    ready: AtomicBool,
    balanced: AtomicBool,
    limited: AtomicBool,
    /// Bytes of a part of what is told of requests; 0: nothing is.
    part_bytes: usize,
    /// Of how many keys one is told; 0: none.
    told: Arc<AtomicU64>,
}

/// Tells as much as is asked for; parts of one byte only at first.
struct Parts(usize, Arc<AtomicU64>);

impl Requests for Parts {
    fn take(&mut self, lines: &mut Vec<u8>) {
        lines.resize(self.0, b'x');
        if self.0 == 1 {
            self.0 = 0;
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.1.store(0, Ordering::Relaxed);
    }
}

impl Source for Fixed {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
    fn limitation(&self) -> Option<String> {
        let limited = self.limited.load(Ordering::Relaxed);
        limited.then(|| "no flash".to_owned())
    }
    fn figures(&self) -> Figures {
        Figures {
            version: "9.9",
            commit: Some("c0ffee"),
            ready: self.is_ready(),
            limitation: self.limitation(),
            books: vec![BookLine {
                name: "offered",
                entries: 1,
                bytes: 2,
            }],
            latency: Vec::new(),
            index_rounds: vec![0, 7, 2, 1],
            groups: vec![Group {
                room: "flash",
                figures: vec![pumice_world::Figure::documented(
                    "written_bytes",
                    "Bytes",
                    pumice_world::Kind::Counter,
                    3,
                )],
            }],
            volumes: Vec::new(),
        }
    }
    fn check_books(&self) -> Result<(), BooksFault> {
        if self.balanced.load(Ordering::Relaxed) {
            Ok(())
        } else if self.ready.load(Ordering::Relaxed) {
            Err(BooksFault::Unbalanced("one is missing".to_owned()))
        } else {
            Err(BooksFault::NotNow("not yet".to_owned()))
        }
    }
    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        if self.part_bytes == 0 {
            return Err(NotRecorded::Never);
        }
        match self.told.swap(one_in, Ordering::Relaxed) {
            0 => Ok(Box::new(Parts(self.part_bytes, Arc::clone(&self.told)))),
            _ => Err(NotRecorded::Busy),
        }
    }
}

/// Head and body of a reply.
async fn ask_with(address: std::net::SocketAddr, path: &str, header: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

async fn ask(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let (head, body) = ask_with(address, path, "").await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

#[tokio::test]
async fn metrics_are_in_the_format_that_is_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Fixed::default())));
    let plain = "content-type: text/plain; version=0.0.4; charset=utf-8";
    let open = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    let prometheus = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\n";
    for (header, kind, line) in [
        ("", plain, "# TYPE pumice_flash_written_bytes_total counter"),
        ("Accept: */*\r\n", plain, "# TYPE pumice_build_info gauge"),
        (
            "Accept: text/plain\r\n",
            plain,
            "# HELP pumice_flash_written_bytes_total Bytes",
        ),
        (prometheus, open, "# TYPE pumice_flash_written_bytes counter"),
    ] {
        let (head, body) = ask_with(address, "/metrics", header).await;
        assert!(head.lines().any(|found| found == kind), "{header}: {head}");
        assert!(body.lines().any(|found| found == line), "{header}: {body}");
        assert_eq!(body.ends_with("# EOF\n"), kind == open, "{header}: {body}");
        let samples = body.lines().filter(|line| !line.starts_with('#'));
        let sample = "pumice_flash_written_bytes_total 3";
        assert_eq!(
            samples.filter(|found| *found == sample).count(),
            1,
            "{header}: {body}"
        );
    }
    server.abort();
}

#[tokio::test]
async fn every_path_answers_what_it_promises() {
    let source = Arc::new(Fixed::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::clone(&source) as Arc<dyn Source>));
    assert_eq!(ask(address, "/healthz").await.0, 200);
    assert_eq!(ask(address, "/readyz").await, (503, "not ready\n".to_owned()));
    source.limited.store(true, Ordering::Relaxed);
    assert_eq!(
        ask(address, "/readyz").await,
        (503, "not ready\nno flash\n".to_owned())
    );
    source.limited.store(false, Ordering::Relaxed);
    assert_eq!(ask(address, "/books").await, (503, "not yet\n".to_owned()));
    source.ready.store(true, Ordering::Relaxed);
    assert_eq!(ask(address, "/books").await, (500, "one is missing\n".to_owned()));
    source.balanced.store(true, Ordering::Relaxed);
    assert_eq!(ask(address, "/readyz").await, (200, "ready\n".to_owned()));
    source.limited.store(true, Ordering::Relaxed);
    assert_eq!(
        ask(address, "/readyz").await,
        (200, "ready\nno flash\n".to_owned())
    );
    assert_eq!(ask(address, "/healthz").await.0, 200);
    assert_eq!(ask(address, "/books").await.0, 200);
    let (status, body) = ask(address, "/stats").await;
    assert_eq!(status, 200);
    assert_eq!(
        body,
        r#"{"version":"9.9","commit":"c0ffee","ready":true,"limitation":"no flash","books":{"offered":{"entries":1,"bytes":2}},"latency":[],"index_rounds":[0,7,2,1],"flash":{"written_bytes":3}}"#
    );
    let (status, body) = ask(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(body.contains("pumice_flash_written_bytes_total 3\n"), "{body}");
    assert_eq!(ask(address, "/nothing").await.0, 404);
    server.abort();
}

#[tokio::test]
async fn more_connections_than_there_are_places_for_take_those_of_the_oldest() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Fixed::default())));
    let mut unfinished = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").await.unwrap();
        unfinished.push(stream);
    }
    assert_eq!(ask(address, "/healthz").await.0, 200);
    let mut byte = [0];
    let oldest = tokio::time::timeout(Duration::from_secs(10), unfinished[0].read(&mut byte)).await;
    assert!(matches!(oldest, Ok(Ok(0) | Err(_))), "the oldest is closed");
    assert!(
        unfinished[99].read(&mut byte).now_or_never().is_none(),
        "the last is not"
    );
    server.abort();
}

/// Time is stopped, and goes on where nothing else is to do.
#[tokio::test(start_paused = true)]
async fn a_header_that_never_ends_is_given_half_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, Arc::new(Fixed::default())));
    let started = tokio::time::Instant::now();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut reply = [0; 100];
    loop {
        if stream.write_all(b"GET").await.is_err() {
            break;
        }
        match tokio::time::timeout(Duration::from_secs(5), stream.read(&mut reply)).await {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(_)) | Err(_) => assert!(started.elapsed().as_secs() < 100),
        }
    }
    assert_eq!(started.elapsed().as_secs() / 10, 3);
    server.abort();
}

/// A server that tells of requests in parts of so many bytes, and a connection that asks for them.
async fn telling(part_bytes: usize) -> (Arc<Fixed>, std::net::SocketAddr, TcpStream) {
    let fixed = Fixed {
        part_bytes,
        ..Fixed::default()
    };
    let source = Arc::new(fixed);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::clone(&source) as Arc<dyn Source>));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /requests?sample=10 HTTP/1.0\r\n\r\n";
    stream.write_all(request).await.unwrap();
    (source, address, stream)
}

#[tokio::test]
async fn requests_are_told_to_one_who_asks_well() {
    let (source, address, mut stream) = telling(8).await;
    let mut reply = [0; 4096];
    stream.read_exact(&mut reply).await.unwrap();
    let reply = String::from_utf8_lossy(&reply);
    assert!(
        reply.starts_with("HTTP/1.0 200 OK\r\n") && reply.ends_with("xxxx"),
        "{reply}"
    );
    assert_eq!(source.told.load(Ordering::Relaxed), 10);
    let (status, why) = ask(address, "/requests").await;
    assert_eq!((status, why.contains("one at a time")), (409, true));
    for query in ["sample=0", "sample=1000001", "sample=x", "keys=1"] {
        assert_eq!(
            ask(address, &format!("/requests?{query}")).await.0,
            400,
            "{query}"
        );
    }
    drop(stream);
    while source.told.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (_, address, mut stream) = telling(0).await;
    let mut refused = String::new();
    stream.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.0 404"), "{refused}");
    assert_eq!(ask(address, "/requests").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn who_takes_what_is_told_keeps_the_place_and_who_does_not_loses_it() {
    let (source, address, mut stream) = telling(100).await;
    let started = tokio::time::Instant::now();
    let mut bytes = [0; 64 << 10];
    while started.elapsed().as_secs() < 300 {
        assert!(
            stream.read(&mut bytes).await.unwrap() > 0,
            "{:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(ask(address, "/healthz").await.0, 200);
    assert_eq!(
        source.told.load(Ordering::Relaxed),
        10,
        "not the oldest is closed but the one after it"
    );
    // Now it is not read any more.
    while source.told.load(Ordering::Relaxed) > 0 {
        assert!(started.elapsed().as_secs() < 10_000);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Here it is read all the time: one who does not cannot be told apart, while there is little to tell.
#[tokio::test(start_paused = true)]
async fn who_is_told_nothing_for_an_hour_loses_the_place() {
    let (source, _, mut stream) = telling(1).await;
    let started = tokio::time::Instant::now();
    let mut bytes = [0; 4096];
    let mut minutes = 0;
    while minutes < 120 && stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
        minutes = started.elapsed().as_secs() / 60;
    }
    assert!((60..62).contains(&minutes), "{minutes}");
    while source.told.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
}
