//! A real server in this process, and a client that writes and reads every byte itself.

mod client;
pub mod memory;

pub use client::{Client, NEGOTIATE_ALL};

use memory::{Control, Memory, Seen};
use pumice_door_nbd::{Door, DoorConfig, ExportName, Listen};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Size of the first export, `disk`. The second one, `image`, is read-only and has 513 bytes.
pub const DISK_BYTES: u64 = 64 << 20;

pub struct Server {
    pub door: Arc<Door>,
    pub control: Control,
    pub seen: Arc<Seen>,
    shutdown: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
}

/// The settings of a server on any free port.
pub fn config() -> DoorConfig {
    let named = |name: &str| ExportName {
        name: name.to_owned(),
        description: format!("a {name}"),
    };
    DoorConfig {
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
        workers: 2,
        exports: vec![named("disk"), named("image")],
        ..DoorConfig::default()
    }
}

impl Server {
    pub fn start(config: DoorConfig) -> Self {
        let workers = config.workers;
        let door = Arc::new(Door::bind(config).expect("any free port"));
        door.listen().expect("listens");
        let (disk, control) = Memory::new(DISK_BYTES, false);
        let (image, _) = Memory::new(513, true);
        let seen = Arc::clone(&disk.seen);
        let (shutdown, _) = watch::channel(false);
        let run = |index| {
            let (door, shutdown) = (Arc::clone(&door), shutdown.subscribe());
            let (disk, image) = (disk.clone(), image.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                let exports = vec![Rc::new(disk), Rc::new(image)];
                let serve = door.run_worker(index, exports, shutdown);
                tokio::task::LocalSet::new()
                    .block_on(&runtime, serve)
                    .expect("sockets");
            })
        };
        Self {
            workers: (0..workers).map(run).collect(),
            door,
            control,
            seen,
            shutdown,
        }
    }

    /// A client that has connected and sent nothing.
    pub fn connect(&self) -> Client {
        Client::tcp(self.door.local_addrs()[0])
    }

    /// A client of the disk, with everything that can be agreed upon.
    pub fn open(&self) -> Client {
        let mut client = self.connect();
        client.negotiate("disk", NEGOTIATE_ALL);
        client
    }

    /// Tells it to stop, without waiting.
    pub fn stop(&self) {
        self.shutdown.send_replace(true);
    }

    /// Waits for its end.
    pub fn join(mut self) {
        self.stop();
        for worker in self.workers.drain(..) {
            worker.join().expect("a worker ends well");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        // Nothing is held up for ever.
        self.control.gate.send_replace(u64::MAX);
        for worker in self.workers.drain(..) {
            if worker.join().is_err() && !std::thread::panicking() {
                panic!("a worker panicked");
            }
        }
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
