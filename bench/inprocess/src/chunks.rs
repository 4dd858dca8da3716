//! Whole chunks written to the chunk store on a memory device, and fingerprint and compression alone.

use crate::ChunksArgs;
use crate::measure::Start;
use anyhow::{Context, ensure};
use bytes::Bytes;
use pumice_blocks::{Durability, Maker};
use pumice_chunk::content::{Fingerprint, compress};
use pumice_chunk::store::{ChunkStore, Filled, Options};
use pumice_device::{AlignedBuf, Device, MemDevice, MemMedium};
use pumice_world::{Executor, Random};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Arc;

const CHUNK_BYTES: usize = 32 << 10;
const DEVICE_BYTES: u64 = 256 << 20;
/// Chunks of the volume. Compressed, they fill a quarter of the device, so a reclaim finds nothing to keep.
const CHUNKS: u64 = 4096;
/// Writes that fill the device, at half a chunk each.
const WARM_UP: u64 = 2 * DEVICE_BYTES / CHUNK_BYTES as u64;
/// Contents of the duplicates. A prime: each write changes the content of its chunk.
const DUPLICATES: u64 = 1021;
const NOW: u32 = 1;

/// Contents that compress to a half, as fio makes them with `buffer_compress_percentage=50`: 256 random bytes and 256 zeros, in turns.
struct Contents(Vec<Bytes>);

impl Contents {
    fn new() -> Self {
        let mut random = Random(1);
        let content = |_| {
            let mut bytes = vec![0; CHUNK_BYTES];
            for part in bytes.chunks_mut(512) {
                for word in part[..256].chunks_mut(8) {
                    word.copy_from_slice(&random.next_u64().to_le_bytes());
                }
            }
            bytes.into()
        };
        Self((0..16).map(content).collect())
    }

    /// The content with this number.
    fn get(&mut self, number: u64) -> Bytes {
        let content = &mut self.0[number as usize % 16];
        let mut bytes = std::mem::take(content)
            .try_into_mut()
            .expect("the store keeps no content");
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        *content = bytes.freeze();
        content.clone()
    }
}

struct Store {
    store: ChunkStore<AlignedBuf>,
    device: MemDevice,
    executor: Executor,
}

impl Store {
    fn new() -> anyhow::Result<Self> {
        let device = MemDevice::new(Arc::new(MemMedium::new(DEVICE_BYTES)));
        let options = Options {
            chunk_bytes: CHUNK_BYTES as u32,
            chunks: CHUNKS,
            volume: 0,
            modified: 0,
            boot: 0,
            mappings: CHUNKS,
            contents: WARM_UP * 11 / 10,
            block_bytes: 256 << 10,
            buffers_max: 8,
            durability: Durability::Power,
            reformat: false,
            maker: Maker::Serve,
            random: 1,
            write_back: false,
            absence_secs_max: None,
            now: NOW,
        };
        let executor = Executor::new();
        let opened = executor.block_on(ChunkStore::open(&device, &options, None), || {
            device.turn(true).map(drop)
        });
        let (store, _) = opened.context("opening the store")??;
        Ok(Self {
            store,
            device,
            executor,
        })
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> anyhow::Result<T> {
        Ok(self
            .executor
            .block_on(future, || self.device.turn(true).map(drop))?)
    }

    /// A write of a whole chunk, and the background work that became due.
    fn write(&self, address: u64, bytes: Bytes) -> anyhow::Result<Filled> {
        let mut guard = self
            .store
            .begin_write(&self.device, address..address + 1)
            .expect("its log has room");
        self.run(guard.commit(&self.device))??;
        let filled = self.run(guard.fill(&self.device, address, 0, bytes))?;
        drop(guard);
        while let Some(work) = self.store.take_work() {
            self.run(self.store.perform(&self.device, NOW, work))?;
        }
        Ok(filled)
    }
}

/// CPU time of `writes` calls, in microseconds a call.
fn cpu_us(writes: u64, mut call: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let start = Start::now()?;
    for number in 0..writes {
        call(number)?;
    }
    Ok(start.took()?.cpu_seconds * 1e6 / writes as f64)
}

pub fn chunks(args: &ChunksArgs) -> anyhow::Result<Value> {
    let mut contents = Contents::new();
    let (unique_us, duplicate_us) = if args.alone {
        let mut scratch = Vec::new();
        let unique = |number| {
            let bytes = contents.get(number);
            black_box((Fingerprint::of(0, &bytes), compress(&bytes, &mut scratch)));
            Ok(())
        };
        let unique_us = cpu_us(args.writes, unique)?;
        let duplicate = |number| {
            black_box(Fingerprint::of(0, &contents.get(number % DUPLICATES)));
            Ok(())
        };
        (unique_us, cpu_us(args.writes, duplicate)?)
    } else {
        let store = Store::new()?;
        // Numbers from here on belong to no duplicate.
        let mut next = DUPLICATES;
        let mut unique = |number: u64| {
            let filled = store.write(number % CHUNKS, contents.get(next))?;
            next += 1;
            ensure!(filled == Filled::Stored, "{filled:?}");
            Ok(())
        };
        (0..WARM_UP).try_for_each(&mut unique)?;
        let unique_us = cpu_us(args.writes, unique)?;
        let mut duplicate = |number: u64| {
            store.write(number % CHUNKS, contents.get(number % DUPLICATES))?;
            Ok(())
        };
        (0..CHUNKS).try_for_each(&mut duplicate)?;
        let before = store.store.counts().duplicates;
        let duplicate_us = cpu_us(args.writes, duplicate)?;
        let duplicates = store.store.counts().duplicates - before;
        ensure!(
            duplicates >= args.writes / 100 * 99,
            "{duplicates} duplicates of {} writes",
            args.writes
        );
        (unique_us, duplicate_us)
    };
    Ok(
        json!({ "alone": args.alone, "writes": args.writes, "unique_us": unique_us, "duplicate_us": duplicate_us }),
    )
}
