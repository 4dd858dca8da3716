//! A volume in write-back, and what it must hold.

use crate::backing::FaultyBacking;
use crate::rig::{CHUNK, Rig, SIZE, settings, volatile};
use bytes::Bytes;
use pumice_blocks::Geometry;
use pumice_chunk::store::ChunkStore;
use pumice_device::Device;
use pumice_memory::{AlignedBuf, Buffer};
use pumice_testkit::FaultyMedium;
use pumice_volume::{Mode, Settings, VolumeError};
use pumice_world::Random;
use std::ops::Range;
use std::sync::Arc;

/// Seconds that no test waits for.
const NEVER: u32 = 1_000_000;

/// A volume, and what it must hold.
pub struct Case {
    pub rig: Option<Rig>,
    pub medium: Arc<FaultyMedium>,
    pub backing: FaultyBacking,
    pub settings: Settings,
    pub array: Vec<u8>,
}

/// No content is like another, and none is compressible.
pub fn content(chunk: usize, version: u64) -> Vec<u8> {
    let mut random = Random(chunk as u64 * 1_000 + version);
    let words = (0..CHUNK / 8).flat_map(|_| random.next_u64().to_le_bytes());
    words.collect()
}

pub fn bytes_of(chunks: Range<usize>) -> Range<usize> {
    chunks.start * CHUNK..chunks.end * CHUNK
}

/// A cache with room for the whole volume, and a cleaner that waits for ever.
pub fn wide() -> Settings {
    let mut settings = settings(Mode::WriteBack, 1);
    (settings.cache.mappings, settings.cache.contents) = (1_000, 2_000);
    (settings.write_back.age_secs, settings.write_back.dirty_max) = (NEVER, 1.0);
    settings
}

/// The same with one bucket, so that reads evict, and room for `dirty` dirty chunks.
pub fn narrow(dirty: u32) -> Settings {
    let mut settings = wide();
    (settings.cache.mappings, settings.cache.contents) = (128, 400);
    settings.write_back.dirty_max = f64::from(dirty) / 128.0;
    settings
}

impl Case {
    pub fn new(seed: u64, settings: Settings) -> Self {
        Self::with(
            Arc::new(FaultyMedium::new(8 << 20, seed, volatile())),
            seed,
            settings,
        )
    }

    pub fn with(medium: Arc<FaultyMedium>, seed: u64, settings: Settings) -> Self {
        let mut case = Self {
            rig: None,
            medium,
            backing: FaultyBacking::new(SIZE, seed),
            settings,
            array: vec![0; SIZE],
        };
        case.start(Mode::WriteBack).unwrap();
        case
    }

    pub fn rig(&self) -> &Rig {
        self.rig.as_ref().unwrap()
    }

    pub fn store(&self) -> &ChunkStore<AlignedBuf> {
        self.rig().volume.shared().store().unwrap()
    }

    pub fn start(&mut self, mode: Mode) -> Result<(), String> {
        self.settings.mode = mode;
        self.rig = Some(Rig::open(&self.settings, &self.medium, &self.backing)?);
        Ok(())
    }

    pub fn close(&mut self) {
        let rig = self.rig.take().unwrap();
        rig.check_books();
        rig.run(rig.volume.close()).unwrap();
    }

    /// Ends all, and gives the devices back as a crash, or a power cut, leaves them.
    pub fn crash(&mut self, cuts_power: bool) {
        match cuts_power {
            false => {
                self.medium.crash();
                self.backing.crash();
            }
            true => {
                self.medium.cut_power();
                self.backing.cut_power();
                self.settings.cache.boot += 1;
            }
        }
        self.rig = None;
        self.medium.restart();
        self.medium.set_plan(volatile());
        self.backing.restart();
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), VolumeError> {
        let data = Bytes::copy_from_slice(bytes);
        self.rig()
            .run(self.rig().volume.write(offset as u64, data, false))?;
        self.array[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    pub fn put(&mut self, chunks: impl IntoIterator<Item = usize>, version: u64) {
        for chunk in chunks {
            self.write(chunk * CHUNK, &content(chunk, version)).unwrap();
        }
    }

    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>, VolumeError> {
        self.rig()
            .run(self.rig().volume.read(range.start as u64, range.len()))
    }

    pub fn zero(&mut self, range: Range<usize>, may_punch: bool) -> Result<(), VolumeError> {
        let (offset, len) = (range.start as u64, range.len() as u64);
        self.rig().run(self.rig().volume.zero(offset, len, may_punch))?;
        self.array[range].fill(0);
        Ok(())
    }

    pub fn flush(&self) -> Result<(), VolumeError> {
        self.rig().run(self.rig().volume.flush())
    }

    pub fn drain(&self) -> Result<(), VolumeError> {
        self.rig().run(self.rig().volume.drain())
    }

    pub fn dirty(&self) -> u64 {
        self.rig().volume.dirty().0
    }

    pub fn cleaned(&self) -> u64 {
        self.rig().volume.shared().counts().cleaned_chunks
    }

    /// Lets a second pass, and the work that is due in it. A volume without requests is idle.
    pub fn second(&self, is_idle: bool) {
        if !is_idle {
            self.read(SIZE - 1..SIZE).unwrap();
        }
        self.rig().tick();
        self.rig().settle();
    }

    pub fn check(&self, range: Range<usize>) {
        for at in range.clone().step_by(CHUNK) {
            let chunk = at..(at + CHUNK).min(range.end);
            let found = self.read(chunk.clone()).unwrap();
            assert!(found == self.array[chunk], "chunk {}", at / CHUNK);
        }
    }

    /// All of it, twice: evictions reveal nothing else.
    pub fn check_all(&self) {
        self.check(0..SIZE);
        self.check(0..SIZE);
        self.rig().check_books();
    }

    pub fn check_backing(&self) {
        assert!(
            self.backing.bytes() == self.array,
            "the backing device lacks something"
        );
    }

    pub fn geometry(&self) -> Geometry {
        Geometry::plan(self.medium.capacity(), self.settings.cache.block_bytes).unwrap()
    }

    /// Damages the content of a chunk on the cache device.
    pub fn rot(&self, chunk: usize, version: u64) {
        assert!(self.store().is_on_device(chunk as u64), "its block is sealed");
        let block_bytes = self.settings.cache.block_bytes;
        let offset = self
            .geometry()
            .block_offset(self.store().place(chunk as u64).unwrap().block);
        let block = self.rig().device.read(offset, block_bytes as usize);
        let block = self.rig().run(block).unwrap();
        let block = block.bytes(0, block_bytes as usize).unwrap();
        let content = content(chunk, version);
        let at = block.windows(32).position(|bytes| *bytes == content[..32]);
        self.medium.rot_at(offset + at.unwrap() as u64 + 100);
    }
}
