//! The smallest server: the door over an engine whose flash is memory. For trying clients out, and for measuring the door.
//!
//! `cargo run --release -p pumice-door-memcached --example serve -- [PORT [THREADS [MIB]]]`

use pumice::{CacheOptions, Cx, ObjectCache};
use pumice_device::{MemDevice, MemMedium};
use pumice_door_memcached::{Door, DoorConfig, Listen};
use pumice_world::{Clock, Spawner, SystemClock, Task};
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::LocalSet;

struct TokioSpawner;

impl Spawner for TokioSpawner {
    fn spawn(&self, task: Task) {
        tokio::task::spawn_local(task);
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u16| arguments.get(at).map_or(Ok(usual), |text| text.parse());
    let (port, workers, mebibytes) = (number(0, 11211)?, number(1, 2)?, number(2, 64)?);
    let config = DoorConfig {
        listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))],
        workers: usize::from(workers),
        ..DoorConfig::default()
    };
    let workers = config.workers;
    let cache_options = CacheOptions {
        dram_bytes: usize::from(mebibytes) << 20,
        item_bytes_max: config.limits.max_value_bytes as usize,
        ..CacheOptions::default()
    };
    let door = Arc::new(Door::bind(config)?);
    let device = MemDevice::new(Arc::new(MemMedium::new(1 << 30)));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new(0));
    let cx = {
        let (device, clock) = (device.clone(), Arc::clone(&clock));
        move || Rc::new(Cx::new(device.clone(), Arc::clone(&clock), Rc::new(TokioSpawner)))
    };
    let opening = LocalSet::new();
    let (cache, _) = opening.block_on(&runtime()?, async {
        ObjectCache::open(&cx(), cache_options).await
    })?;
    let cache = Arc::new(cache);
    let (stop, stopped) = watch::channel(false);
    let threads: Vec<_> = (0..workers)
        .map(|index| {
            let (door, cache, stopped, cx) =
                (Arc::clone(&door), Arc::clone(&cache), stopped.clone(), cx.clone());
            std::thread::spawn(move || -> std::io::Result<()> {
                LocalSet::new().block_on(&runtime()?, door.run_worker(index, cx(), cache, stopped))
            })
        })
        .collect();
    println!("listening on {:?}", door.local_addrs());
    runtime()?.block_on(tokio::signal::ctrl_c())?;
    stop.send_replace(true);
    for thread in threads {
        thread.join().map_err(|_| "a worker panicked")??;
    }
    Ok(())
}
