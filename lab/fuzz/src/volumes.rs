//! Cache devices that real volumes were served with, and what must be known of them.

use crate::edits::{BLOCK_BYTES, bytes_of_medium, superblock, u64_at};
use crate::image::never;
use pumice_admit::Rule;
use pumice_blocks::footer::{TRAILER_BYTES, Trailer, decode_entries};
use pumice_blocks::inspect::Inspection;
use pumice_blocks::{Durability, Maker, OpenError};
use pumice_chunk::Place;
use pumice_chunk::piece::{Entry, HEADER_BYTES, Kind as Piece};
use pumice_chunk::store::{ChunkStore, DamagedChunk, Found, Options};
use pumice_device::{AlignedBuf, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_volume::{Backing, Extent, Mode, Settings, Shared, Volume, VolumeError, WriteBack};
use pumice_world::{Executor, ManualClock, Random};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

const FLASH_BYTES: u64 = 1 << 20;
pub(crate) const CHUNK: usize = 4 << 10;
pub(crate) const CHUNKS: usize = 150;
/// No write mixes the bytes of one.
pub(crate) const SECTOR: usize = 512;
/// The run of the machine.
pub(crate) const BOOT: u64 = 1;
const STEPS: u64 = 400;
/// Bytes of a superblock that say something.
const SUPERBLOCK_BYTES: usize = 240;

/// A backing device in memory, which survives the volume.
#[derive(Clone)]
pub(crate) struct Ram(pub(crate) Rc<RefCell<Vec<u8>>>);

impl Ram {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(bytes)))
    }
}

impl Backing for Ram {
    fn size(&self) -> u64 {
        (CHUNKS * CHUNK) as u64
    }

    fn modified(&self) -> io::Result<u64> {
        Ok(0)
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        Ok(self.0.borrow()[offset as usize..][..len].to_vec())
    }

    async fn write_at(&self, offset: u64, data: bytes::Bytes) -> io::Result<()> {
        self.0.borrow_mut()[offset as usize..][..data.len()].copy_from_slice(&data);
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64, _: bool) -> io::Result<()> {
        self.0.borrow_mut()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn extents(&self, _: u64, length: u64, _: usize) -> io::Result<Vec<Extent>> {
        let is_hole = false;
        Ok(vec![Extent { length, is_hole }])
    }
}

/// A volume on one thread.
pub(crate) struct Rig {
    pub(crate) volume: Volume<MemDevice, Ram>,
    pub(crate) found: Option<Found>,
    clock: Arc<ManualClock>,
    executor: Executor,
}

impl Rig {
    /// Opens a volume; `start` counts the starts on this medium. A cache that has to be made anew is another then, as it is where numbers
    /// are really random.
    pub(crate) fn open(
        medium: &Arc<MemMedium>,
        backing: &Ram,
        mode: Mode,
        boot: u64,
        start: u64,
    ) -> Result<Self, OpenError> {
        let settings = Settings {
            mode,
            dram_bytes: 0,
            read_ahead_bytes: 0,
            scan_cutoff_bytes: 0,
            rule: Rule::All,
            write_budget: None,
            write_back: WriteBack {
                age_secs: 15,
                dirty_max: 1.0,
                bytes_per_sec: 0,
            },
            cache: Options {
                chunk_bytes: CHUNK as u32,
                chunks: 0,
                volume: 7,
                modified: 0,
                boot,
                // One bucket, so that some fills evict.
                mappings: 128,
                contents: 400,
                block_bytes: BLOCK_BYTES,
                buffers_max: 3,
                durability: Durability::Power,
                reformat: false,
                maker: Maker::Serve,
                random: 0x5eed + (start << 20),
                write_back: false,
                absence_secs_max: None,
                now: 1,
            },
        };
        let (executor, clock) = (Executor::new(), Arc::new(ManualClock::new(1)));
        let device = MemDevice::new(Arc::clone(medium));
        let opened = Shared::open(&settings, Some(&device), backing, &*clock);
        let Ok(opened) = executor.block_on(opened, never());
        let (shared, found) = opened?;
        let volume = Volume::new(
            Arc::new(shared),
            Some(device),
            backing.clone(),
            Rc::new(executor.spawner()),
            Arc::<ManualClock>::clone(&clock),
        );
        Ok(Self {
            volume,
            found,
            clock,
            executor,
        })
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let Ok(result) = self.executor.block_on(future, never());
        result
    }

    /// Runs background work to its end.
    pub(crate) fn settle(&self) {
        self.volume.kick();
        let Ok(()) = self.executor.run_until_idle(never());
    }

    pub(crate) fn tick(&self) {
        self.clock.advance_secs(1);
        self.run(self.volume.tick());
        self.settle();
    }

    /// A chunk; `None` where the cache has the only copy, and cannot read it.
    pub(crate) fn read(&self, chunk: usize) -> Option<Vec<u8>> {
        match self.run(self.volume.read((chunk * CHUNK) as u64, CHUNK)) {
            Ok(bytes) => Some(bytes),
            Err(VolumeError::Unreadable(_)) => None,
            Err(error) => panic!("chunk {chunk}: {error}"),
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), VolumeError> {
        let data = bytes::Bytes::copy_from_slice(bytes);
        self.run(self.volume.write(offset as u64, data, false))
    }

    pub(crate) fn flush(&self) -> Result<(), VolumeError> {
        self.run(self.volume.flush())
    }

    fn array(&self) -> Vec<u8> {
        let chunks = (0..CHUNKS).map(|chunk| self.read(chunk));
        chunks
            .flat_map(|bytes| bytes.expect("nothing is damaged"))
            .collect()
    }

    pub(crate) fn store(&self) -> Option<&ChunkStore<AlignedBuf>> {
        self.volume.shared().store()
    }
}

/// What `inspect` says of a device.
pub(crate) fn look(medium: &Arc<MemMedium>) -> Result<Option<Inspection>, OpenError> {
    let device = MemDevice::new(Arc::clone(medium));
    let Ok(found) = Executor::new().block_on(ChunkStore::inspect(&device), never());
    found
}

/// What a start would find on a device, in this run of the machine: dirty chunks, and those of them whose contents are damaged. It writes.
pub(crate) fn survey(medium: &Arc<MemMedium>, boot: u64) -> Option<(u64, Vec<usize>)> {
    let (device, mut damaged) = (MemDevice::new(Arc::clone(medium)), Vec::new());
    let mut show = |chunk: DamagedChunk| {
        if chunk.is_dirty {
            damaged.push(chunk.address as usize);
        }
    };
    let survey = ChunkStore::survey(&device, boot, Some(&mut show));
    let Ok(found) = Executor::new().block_on(survey, never());
    let cached = found.ok()??.found.ok()?;
    damaged.sort_unstable();
    Some((cached.dirty, damaged))
}

/// A content of which a part compresses.
pub(crate) fn content(value: u64) -> Vec<u8> {
    let mut random = Random(value);
    let noise = random.below(CHUNK as u64) as usize;
    let mut bytes: Vec<u8> = (0..CHUNK / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    bytes[noise..].fill(value as u8);
    bytes
}

/// What a range of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of the two.
    Superblock(usize),
    Log,
    /// A block of a checkpoint.
    Checkpoint,
    Footer,
    /// A part of the piece that begins here.
    Piece(usize),
}

/// A cache device that a volume was served with, and what is to be known of it.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) backing: Vec<u8>,
    pub(crate) mode: Mode,
    /// Bytes that count.
    pub(crate) parts: Vec<Range<usize>>,
    /// What they are, by where they begin.
    pub(crate) kinds: BTreeMap<usize, Kind>,
    /// The volume.
    pub(crate) array: Vec<u8>,
    /// By chunk: the bytes of its content on the cache device, if that has the only copy.
    pub(crate) dirty: Vec<Option<Range<usize>>>,
    /// Every sector that was ever written: number in the volume, and bytes.
    pub(crate) written: HashSet<(usize, Vec<u8>)>,
    /// The same with the number in the chunk.
    pub(crate) anywhere: HashSet<(usize, Vec<u8>)>,
    /// Log records since the newest checkpoint, in order.
    pub(crate) log: Vec<Range<usize>>,
    /// Blocks that were being filled, and chunks that a piece there is of.
    pub(crate) filling: Vec<Range<usize>>,
    pub(crate) in_filling: HashSet<usize>,
}

impl Image {
    /// Makes one: a volume that was killed once in the middle, and stopped well at the end, or killed again.
    pub(crate) fn make(mode: Mode, is_clean: bool, seed: u64) -> Self {
        let medium = Arc::new(MemMedium::new(FLASH_BYTES));
        let backing = Ram::of(vec![0; CHUNKS * CHUNK]);
        let mut random = Random(seed);
        let per_chunk = CHUNK / SECTOR;
        let mut written: HashSet<(usize, Vec<u8>)> = (0..CHUNKS * per_chunk)
            .map(|number| (number, vec![0; SECTOR]))
            .collect();
        for life in 0..2 {
            let rig = Rig::open(&medium, &backing, mode, BOOT, life).expect("the device opens");
            let mut array = rig.array();
            for step in 0..STEPS {
                let chunk = random.below([CHUNKS, CHUNKS / 4][step as usize % 2] as u64) as usize;
                let value = [random.below(20), life * STEPS + step + 100][random.below(2) as usize];
                let sectors = [random.below(8) as usize, random.below(8) as usize];
                let part = sectors[0].min(sectors[1]) * SECTOR..(sectors[0].max(sectors[1]) + 1) * SECTOR;
                let at = chunk * CHUNK;
                let mut write = |bytes: &[u8], at: usize| {
                    rig.write(at, bytes).expect("memory takes everything");
                    array[at..at + bytes.len()].copy_from_slice(bytes);
                };
                match random.below(10) {
                    0..5 => write(&content(value), at),
                    5 | 6 => write(&content(value)[part.clone()], at + part.start),
                    7 => {
                        let zeroed = rig.run(rig.volume.zero(at as u64, CHUNK as u64, false));
                        zeroed.expect("memory takes everything");
                        array[at..at + CHUNK].fill(0);
                    }
                    8 => assert!(rig.read(chunk).as_deref() == Some(&array[at..at + CHUNK])),
                    _ => rig.tick(),
                }
                let sectors = array[at..at + CHUNK].chunks(SECTOR);
                written.extend((chunk * per_chunk..).zip(sectors.map(<[u8]>::to_vec)));
                // The last writes of a life are not flushed.
                if random.below(12) == 0 || step == STEPS - 12 {
                    rig.flush().expect("memory takes everything");
                    rig.settle();
                }
            }
            if life == 1 && is_clean {
                rig.run(rig.volume.close()).expect("memory takes everything");
            }
        }
        let of_chunk = |(number, bytes): &(usize, Vec<u8>)| (number % per_chunk, bytes.clone());
        let mut image = Self {
            bytes: bytes_of_medium(&medium),
            backing: backing.0.borrow().clone(),
            mode,
            parts: Vec::new(),
            kinds: BTreeMap::new(),
            array: Vec::new(),
            dirty: Vec::new(),
            anywhere: written.iter().map(of_chunk).collect(),
            written,
            log: Vec::new(),
            filling: Vec::new(),
            in_filling: HashSet::new(),
        };
        image.survey(&medium);
        let has_dirty = image.dirty.iter().flatten().count() > 10;
        assert_eq!(has_dirty, mode == Mode::WriteBack);
        assert_eq!(!image.filling.is_empty(), has_dirty && !is_clean);
        image
    }

    /// Starts from the image, and notes what is there.
    fn survey(&mut self, medium: &Arc<MemMedium>) {
        let metadata = |medium| {
            let found = look(medium).expect("it is a cache").expect("it is not empty");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            let ranges = found.metadata.into_iter();
            ranges
                .map(|range| range.start as usize..range.end as usize)
                .collect::<Vec<_>>()
        };
        let geometry = superblock(&self.bytes).geometry;
        let block_at = |end: usize| {
            let block = geometry.block_of(end as u64 - 1)?;
            let start = geometry.block_offset(block) as usize;
            (start + BLOCK_BYTES as usize == end).then_some((block, start))
        };
        let mut kinds = BTreeMap::from([0, 1].map(|slot| {
            let at = slot * SECTOR_BYTES;
            (at, (at + SUPERBLOCK_BYTES, Kind::Superblock(slot)))
        }));
        for range in metadata(medium) {
            if range.start >= geometry.data_offset as usize && block_at(range.end).is_none() {
                kinds.insert(range.start, (range.end, Kind::Checkpoint));
            } else if range.start >= geometry.log_offset as usize && block_at(range.end).is_none() {
                kinds.insert(range.start, (range.end, Kind::Log));
            }
        }
        let rig =
            Rig::open(medium, &Ram::of(self.backing.clone()), self.mode, BOOT, 2).expect("it is in order");
        assert_eq!(rig.found, Some(Found::Cache));
        self.array = rig.array();
        for (number, bytes) in self.array.chunks(SECTOR).enumerate() {
            assert!(
                self.written.contains(&(number, bytes.to_vec())),
                "sector {number}"
            );
        }
        // The start has given each block that counts a footer, and inspect lists them.
        let (after, id) = (bytes_of_medium(medium), superblock(&self.bytes).cache_id);
        let mut places = HashMap::new();
        for (block, start) in metadata(medium).iter().filter_map(|range| block_at(range.end)) {
            let end = start + BLOCK_BYTES as usize;
            let trailer = Trailer::decode(id, &after[start..end]).expect("inspect has read it");
            let entries = decode_entries::<Entry>(id, &trailer, &after[start..end], BLOCK_BYTES as usize);
            if Trailer::decode(id, &self.bytes[start..end]) == Some(trailer) {
                let trailer_at = end - TRAILER_BYTES;
                kinds.insert(end - trailer.footer_len(), (trailer_at, Kind::Footer));
                kinds.insert(trailer_at, (end, Kind::Footer));
            } else {
                self.filling.push(start..end);
            }
            for entry in entries.expect("inspect has read them") {
                let at = start + entry.offset as usize;
                let piece = at..at + entry.len as usize;
                if let Piece::Content { number, .. } = entry.kind {
                    kinds.insert(at, (at + HEADER_BYTES, Kind::Piece(at)));
                    kinds.insert(at + HEADER_BYTES, (piece.end, Kind::Piece(at)));
                    places.insert(Place { block, number }, piece);
                } else {
                    kinds.insert(at, (piece.end, Kind::Piece(at)));
                }
                if self.filling.last().is_some_and(|block| block.start == start) {
                    self.in_filling.insert(entry.address as usize);
                }
            }
        }
        let store = rig.store().expect("it is not in pass-through");
        let dirty = store.dirty_among(0..CHUNKS as u64);
        let place = |chunk| store.place(chunk).and_then(|place| places.get(&place).cloned());
        let piece = |chunk| {
            dirty
                .contains(&chunk)
                .then(|| place(chunk).expect("it is listed"))
        };
        self.dirty = (0..CHUNKS as u64).map(piece).collect();
        let since = superblock(&self.bytes).checkpoints[0].log_start;
        let records = kinds.iter().filter(|(_, (_, kind))| *kind == Kind::Log);
        let records = records.map(|(start, (end, _))| (u64_at(&self.bytes, start + 8), *start..*end));
        let records: BTreeMap<_, _> = records.filter(|(position, _)| *position >= since).collect();
        self.log = records.into_values().collect();
        for (start, (end, kind)) in kinds.into_iter().filter(|(start, (end, _))| start < end) {
            self.parts.push(start..end);
            self.kinds.insert(start, kind);
        }
    }
}
