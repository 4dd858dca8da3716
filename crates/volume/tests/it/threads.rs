//! Several threads, each with its own handles.

use crate::rig::{CHUNK, settings};
use bytes::Bytes;
use locks::Mutex;
use pumice_device::{MemDevice, MemMedium};
use pumice_volume::{Backing, Extent, Mode, Settings, Shared, Volume};
use pumice_world::{Executor, Job, ManualClock, Offload, Random};
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const CHUNKS: usize = 40;
const THREADS: usize = 4;

#[derive(Clone)]
pub struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![0; bytes])))
    }
}

impl Backing for Memory {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn modified(&self) -> io::Result<u64> {
        Ok(0)
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        pumice_blocks::give_turn().await;
        let bytes = self.0.lock()[offset as usize..][..len].to_vec();
        pumice_blocks::give_turn().await;
        Ok(bytes)
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        pumice_blocks::give_turn().await;
        // In two halves: whoever overlaps leaves a mixture.
        let (first, second) = data.split_at(data.len() / 2);
        self.0.lock()[offset as usize..][..first.len()].copy_from_slice(first);
        std::thread::yield_now();
        pumice_blocks::give_turn().await;
        self.0.lock()[offset as usize + first.len()..][..second.len()].copy_from_slice(second);
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64, _: bool) -> io::Result<()> {
        self.0.lock()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn extents(&self, _: u64, len: u64, _: usize) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent {
            length: len,
            is_hole: false,
        }])
    }
}

/// Computes each content on a thread of its own.
struct Threads;

impl Offload for Threads {
    fn pays(&self, _: usize, _: usize) -> bool {
        true
    }

    fn run(&self, job: Job) {
        std::thread::spawn(job);
    }
}

fn idle() -> Result<(), Infallible> {
    std::thread::yield_now();
    Ok(())
}

#[test]
fn threads_leave_cache_and_backing_device_alike() {
    for round in 0..6 {
        let backing = Memory::new(CHUNKS * CHUNK);
        let medium = Arc::new(MemMedium::new(1 << 20));
        let device = MemDevice::new(Arc::clone(&medium));
        let settings = Settings {
            dram_bytes: (round % 2) * 32 * CHUNK,
            read_ahead_bytes: 8 * CHUNK as u64,
            scan_cutoff_bytes: (round / 2 * 6 * CHUNK) as u64,
            ..settings([Mode::WriteThrough, Mode::WriteBack][round / 4], 1)
        };
        let clock = ManualClock::new(1);
        let opened = Shared::open(&settings, Some(&device), &backing, &clock);
        let (mut shared, _) = Executor::new().block_on(opened, idle).unwrap().unwrap();
        if round >= 2 {
            shared.offload_to(Arc::new(Threads));
        }
        let (shared, ended) = (Arc::new(shared), Arc::new(AtomicU32::new(0)));
        let volume = |executor: &Executor| {
            Volume::new(
                Arc::clone(&shared),
                Some(MemDevice::new(Arc::clone(&medium))),
                backing.clone(),
                Rc::new(executor.spawner()),
                Arc::new(ManualClock::new(1)),
            )
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (volume, ended) = (&volume, Arc::clone(&ended));
                scope.spawn(move || {
                    let executor = Executor::new();
                    let volume = volume(&executor);
                    let mut random = Random((round * THREADS + thread) as u64);
                    for step in 0..600 {
                        let start = random.below((CHUNKS * CHUNK - 3 * CHUNK) as u64);
                        let len = 1 + random.below(3 * CHUNK as u64);
                        let request = async {
                            match random.below(10) {
                                0..4 => {
                                    let bytes = vec![step as u8; len as usize];
                                    volume
                                        .write(start, Bytes::from(bytes), step % 50 == 0)
                                        .await
                                        .unwrap();
                                }
                                4 => volume.zero(start, len, true).await.unwrap(),
                                5 => volume.tick().await,
                                6 => {
                                    for chunk in 0..16 {
                                        volume
                                            .read(start % 4096 + (chunk * CHUNK) as u64, CHUNK)
                                            .await
                                            .unwrap();
                                    }
                                }
                                _ => drop(volume.read(start, len as usize).await.unwrap()),
                            }
                        };
                        executor.block_on(request, idle).unwrap();
                    }
                    // Others may wait for what runs here.
                    ended.fetch_add(1, Ordering::AcqRel);
                    let all = std::future::poll_fn(|context| match ended.load(Ordering::Acquire) {
                        all if all == THREADS as u32 => std::task::Poll::Ready(()),
                        _ => {
                            context.waker().wake_by_ref();
                            std::task::Poll::Pending
                        }
                    });
                    executor.block_on(all, idle).unwrap();
                    executor.run_until_idle(idle).unwrap();
                });
            }
        });
        let executor = Executor::new();
        let volume = volume(&executor);
        executor.block_on(volume.drain(), idle).unwrap().unwrap();
        let found = executor
            .block_on(volume.read(0, CHUNKS * CHUNK), idle)
            .unwrap()
            .unwrap();
        assert!(found == *backing.0.lock(), "round {round}");
        let counts = shared.counts();
        assert!(
            counts.read_hits + counts.read_dram_hits > 100 && counts.writes_stored > 500,
            "{counts:?}"
        );
        executor.block_on(volume.close(), idle).unwrap().unwrap();
        shared.store().unwrap().check_invariants();
    }
}
