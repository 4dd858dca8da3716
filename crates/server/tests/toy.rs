//! The smallest service: lines come back in capitals. A copy of it is the beginning of another.

use pumice_door_admin::{Figures, group};
use pumice_net::{Arrived, Floor, FloorConfig, Listen, Stop, Stream};
use pumice_server::host::{Host, HostConfig, Worker};
use pumice_server::service::{Door, Service, Share};
use pumice_server::settings::{Layers, Settings};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

struct Lines(Floor);

impl Door for Lines {
    fn listen(&self) -> anyhow::Result<()> {
        Ok(self.0.listen()?)
    }

    fn places(&self) -> Vec<String> {
        vec![format!("toy on {}", self.0.local_addrs()[0])]
    }
}

struct Toy {
    door: Arc<Lines>,
    answered: Arc<AtomicU64>,
}

impl Service for Toy {
    const CLOSED: &'static str = "toy";
    type Handle = ();
    type Opened = ();

    fn plan(&self) -> Vec<Share> {
        vec![Share::new("the toy", 1 << 20)]
    }

    fn handle(&self, _: &Worker) -> anyhow::Result<()> {
        Ok(())
    }

    async fn open(&self, (): &()) -> anyhow::Result<()> {
        Ok(())
    }

    async fn run(&self, worker: &Worker, (): &(), (): &()) -> anyhow::Result<()> {
        let stop = Rc::new(Stop::default());
        let serve = |arrived| answer(arrived, Rc::clone(&stop), Arc::clone(&self.answered));
        let (index, stopping) = (worker.index, worker.stop());
        Ok(self.door.0.run_worker(index, &stop, stopping, serve).await?)
    }

    fn figures(&self, _: Option<&()>) -> Figures {
        let answered = self.answered.load(Relaxed);
        Figures {
            groups: vec![group! { "toy"; Counter lines "Lines answered" = answered; }],
            ..Figures::default()
        }
    }
}

/// Answers lines until the client or the server ends; a line that has begun by then is answered.
async fn answer(arrived: Arrived, stop: Rc<Stop>, answered: Arc<AtomicU64>) {
    let Ok((Stream::Tcp(stream), _guard)) = arrived.open(&stop).await else {
        return;
    };
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    loop {
        tokio::select! {
            read = stream.read_until(b'\n', &mut line) => if read.unwrap_or(0) == 0 { return },
            () = stop.notified(), if !stop.is_stopping() => match line.is_empty() {
                true => return,
                false => continue,
            },
        }
        answered.fetch_add(1, Relaxed);
        let written = stream.write_all(&line.to_ascii_uppercase()).await;
        if written.is_err() || stop.is_stopping() {
            return;
        }
        line.clear();
    }
}

/// Runs a toy under a budget until it is stopped, and hands its address to `bound`.
fn run(dram: &str, bound: impl FnOnce(SocketAddr)) -> anyhow::Result<()> {
    let mut settings = Settings::default();
    (settings.dram, settings.admin) = (Some(vec![dram.into()]), Some(vec!["127.0.0.1:0".into()]));
    let config = HostConfig::resolve(&Layers::collect(settings, None)?, &Default::default())?;
    let door = Arc::new(Lines(Floor::bind(FloorConfig {
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        workers: config.threads,
        max_connections: 10,
        one_too_many: b"",
        backlog: 10,
        tls: None,
        alpn: &[],
        handshake_timeout: Duration::from_secs(1),
        drain_timeout: Duration::from_secs(5),
    })?));
    bound(door.0.local_addrs()[0]);
    let (doors, answered) = (vec![Arc::clone(&door) as Arc<dyn Door>], Arc::default());
    Host::new(&config, Default::default())?.run(doors, |_| Ok(Toy { door, answered }))
}

#[test]
fn a_toy_has_its_share_is_ready_answers_has_a_figure_and_drains() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Mutex::new(log.reopen().unwrap());
    tracing_subscriber::fmt().with_writer(writer).init();
    let refused = run("4KiB", |_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("the toy 1 MiB; the smallest that works is 1 MiB"),
        "{refused}"
    );
    let (sender, bound) = mpsc::channel();
    let server = std::thread::spawn(move || run("16MiB", |address| sender.send(address).unwrap()));
    let address = bound.recv().unwrap();
    let begun = Instant::now();
    let admin = loop {
        let text = std::fs::read_to_string(log.path()).unwrap();
        let place = text
            .strip_suffix('\n')
            .and_then(|text| text.split_once("admin on "));
        if let Some((_, admin)) = place {
            break admin.to_owned();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
    };
    let page = |path: &str| {
        let mut stream = TcpStream::connect(&admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: toy\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let (mut client, mut line) = (TcpStream::connect(address).unwrap(), [0; 6]);
    client.write_all(b"hello\nwor").unwrap();
    client.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HELLO\n");
    assert!(page("/readyz").contains(" 200 "));
    assert!(page("/metrics").contains("\npumice_toy_lines_total 1\n"));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    client.write_all(b"ld\n").unwrap();
    assert_eq!(std::io::read_to_string(client).unwrap(), "WORLD\n", "and the end");
    server.join().unwrap().unwrap();
}
