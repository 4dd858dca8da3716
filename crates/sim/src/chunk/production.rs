//! The store that serves, on a simulated device.

use super::content::{fill, stored_bytes};
use super::{Cached, ChunkCache, Tally, Volume};
use crate::error::SimError;
use crate::flash::drive;
use crate::ftl::{Ftl, FtlDevice};
use bytes::Bytes;
use pumice_blocks::{Durability, Geometry, Maker};
use pumice_chunk::store::{ChunkStore, Filled, Options};
use pumice_device::{AlignedBuf, CountingDevice, Device, DeviceCounters, MemDevice, MemMedium};
use pumice_world::Executor;
use std::sync::{Arc, Mutex};

/// Block buffers: one that is filled, one that is written, and what a reclaim fills.
const BUFFERS: usize = 8;
const NOW: u32 = 1;

type Drive = CountingDevice<FtlDevice<MemDevice>>;

/// The production store in lockstep: all work that a request made due is done before the next.
pub(super) struct Production {
    volume: Volume,
    store: ChunkStore<AlignedBuf>,
    device: Drive,
    counters: Arc<DeviceCounters>,
    drive: Arc<Mutex<Ftl>>,
    executor: Executor,
    bytes: Vec<u8>,
    tally: Tally,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> SimError {
    move |source| SimError::DeviceIo { what, source }
}

impl Production {
    pub(super) fn new(volume: Volume, geometry: &Geometry, superblock_blocks: u32) -> Result<Self, SimError> {
        let model = drive(geometry.capacity, geometry.block_bytes, superblock_blocks, false)?;
        let model = Arc::new(Mutex::new(model));
        let device = MemDevice::new(Arc::new(MemMedium::new(geometry.capacity)));
        let device = FtlDevice::new(device, Arc::clone(&model)).map_err(SimError::Ftl)?;
        let counters = Arc::new(DeviceCounters::new());
        let device = CountingDevice::new(device, Arc::clone(&counters));
        let options = Options {
            chunk_bytes: volume.chunk_bytes,
            chunks: volume.chunks,
            volume: 0,
            modified: 0,
            boot: 0,
            mappings: volume.mappings,
            contents: volume.fingerprints(true) * 11 / 10,
            block_bytes: geometry.block_bytes,
            buffers_max: BUFFERS,
            durability: Durability::Process,
            reformat: false,
            maker: Maker::Replay,
            random: 1,
            write_back: false,
            absence_secs_max: None,
            now: NOW,
        };
        let executor = Executor::new();
        let (store, _) = executor
            .block_on(ChunkStore::open(&device, &options, None), || {
                device.turn(true).map(drop)
            })
            .map_err(failed("opening the cache"))?
            .map_err(SimError::Open)?;
        Ok(Self {
            volume,
            store,
            device,
            counters,
            drive: model,
            executor,
            bytes: vec![0; volume.chunk_bytes as usize],
            tally: Tally::default(),
        })
    }

    fn content(&self) -> Bytes {
        Bytes::copy_from_slice(&self.bytes)
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, SimError> {
        self.executor
            .block_on(future, || self.device.turn(true).map(drop))
            .map_err(failed("waiting for the device"))
    }

    fn work(&self) -> Result<(), SimError> {
        while let Some(work) = self.store.take_work() {
            self.run(self.store.perform(&self.device, NOW, work))?;
        }
        Ok(())
    }

    fn filled(&mut self, filled: Filled, content: u64) -> Result<(), SimError> {
        match filled {
            Filled::Stored => self.tally.stored(stored_bytes(content, self.volume.chunk_bytes)),
            Filled::Duplicate => self.tally.duplicates += 1,
            Filled::Late | Filled::NoRoom | Filled::Gap => self.tally.refused += 1,
        }
        self.work()
    }
}

impl ChunkCache for Production {
    fn read(&mut self, Cached { address, content }: Cached) -> Result<bool, SimError> {
        let found = self.run(self.store.read(&self.device, address.into()))?;
        if let Ok(Some(chunk)) = found {
            let is_right = chunk.part(0..8) == Some(&content.to_le_bytes());
            return if is_right {
                Ok(true)
            } else {
                Err(SimError::Stale(address.into()))
            };
        }
        let ticket = self.store.begin_fill(address.into());
        fill(content, &mut self.bytes);
        let filled = self.run(self.store.fill(&self.device, ticket, 0, self.content()))?;
        self.filled(filled, content)?;
        Ok(false)
    }

    fn write(&mut self, Cached { address, content }: Cached) -> Result<(), SimError> {
        fill(content, &mut self.bytes);
        let address = u64::from(address);
        let mut guard = self
            .store
            .begin_write(&self.device, address..address + 1)
            .expect("its log has room");
        self.run(guard.commit(&self.device))?
            .map_err(failed("voiding a chunk"))?;
        let filled = self.run(guard.fill(&self.device, address, 0, self.content()))?;
        drop(guard);
        self.filled(filled, content)
    }

    fn finish(&mut self) -> Result<Tally, SimError> {
        let (mapped, contents) = self.store.in_use();
        let [addresses, fingerprints, starts] = self.store.index_bytes();
        let device = self.counters.snapshot();
        let amplification = self
            .drive
            .lock()
            .expect("nothing panics with it")
            .device_write_amplification();
        Ok(Tally {
            mapped,
            contents,
            address_dram_bytes: addresses,
            content_dram_bytes: fingerprints + starts,
            device_bytes: device.written_bytes + device.log_bytes,
            device_write_amplification: amplification,
            store: Some(self.store.counts()),
            ..self.tally
        })
    }
}
