//! A store over a faulty device, with the plainest index there is, on one thread.
#![allow(dead_code, reason = "each test binary uses its own part")]

use locks::Mutex;
use pumice_blocks::Durability;
use pumice_device::{AlignedBuf, Device, Payload};
use pumice_flash::recovery::{open_superblock, recover, settle};
use pumice_flash::{
    Arrival, CopyMove, FlashStore, Gone, LayoutName, LayoutOptions, Mappings, OpenOptions, Rank, Recovered,
    Source, Work,
};
use pumice_index::{FullShard, IndexShape, IndexShard, KeyHash, Location, Mapping};
use pumice_memory::{PagePool, SegmentPool};
use pumice_record::payload_checksum;
use pumice_record::{Record, RecordParts, SliceId};
use pumice_testkit::{FaultyDevice, FaultyMedium};
use pumice_world::{Executor, Spawner};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub const BLOCK_BYTES: u64 = 64 << 10;
const SHARD_BITS: u32 = 4;
pub const NOW: u32 = 1_000;

pub use pumice_world::Random;

pub fn hash(n: u64) -> KeyHash {
    pumice_world::mix64(n)
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// The index, and what was given up in it.
pub struct Index {
    shards: Vec<Mutex<IndexShard>>,
    shape: IndexShape,
    store: OnceLock<FlashStore<AlignedBuf>>,
    medium: Arc<FaultyMedium>,
    keys: u64,
    /// Keys whose block was chosen to be given up.
    pub given_up: Mutex<HashSet<u64>>,
    pub gone: Mutex<HashMap<&'static str, u64>>,
    /// Times that a shard was locked.
    pub locks: AtomicU64,
    /// What another thread does in the moment after a move has found no room.
    pub after_no_room: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Index {
    fn new(medium: &Arc<FaultyMedium>, keys: u64, layout: LayoutName) -> Self {
        let segments = Arc::new(SegmentPool::with_limit(4, 1 << 20, 4).unwrap());
        let pages = PagePool::new(segments);
        while pages.grow() {}
        let shape = IndexShape::new(medium.capacity(), SHARD_BITS, layout.note_bits());
        Self {
            shards: (0..shape.shards())
                .map(|_| Mutex::new(IndexShard::Full(FullShard::new(shape, Arc::clone(&pages)))))
                .collect(),
            shape,
            store: OnceLock::new(),
            medium: Arc::clone(medium),
            keys,
            given_up: Mutex::default(),
            gone: Mutex::default(),
            locks: AtomicU64::new(0),
            after_no_room: Mutex::default(),
        }
    }

    pub fn store(&self) -> &FlashStore<AlignedBuf> {
        self.store.get().expect("set before it is handed out")
    }

    /// The mapping of a key that has one.
    pub fn mapping_of(&self, n: u64) -> Mapping {
        self.with(hash(n), |shard| shard.find(hash(n)).live())
            .expect("it is mapped")
    }

    pub fn location(&self, n: u64) -> Option<Location> {
        self.with(hash(n), |shard| shard.find(hash(n)).live())
            .map(|mapping| mapping.location)
    }

    fn count(&self, why: Gone) {
        let name = match why {
            Gone::Evicted => "evicted",
            Gone::Expired => "expired",
            Gone::Corrupt => "corrupt",
            Gone::Lost => "lost",
        };
        *self.gone.lock().entry(name).or_default() += 1;
    }
}

impl Mappings for Index {
    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut IndexShard) -> R) -> R {
        self.locks.fetch_add(1, Ordering::Relaxed);
        f(&mut self.shards[shard].lock())
    }

    fn hash_of(&self, _: &[u8], _: SliceId, _: u64) -> KeyHash {
        unreachable!("nothing is written before its block is full")
    }

    fn identity_bits(&self) -> u32 {
        self.shape.identity_bits()
    }

    fn shard_of(&self, hash: KeyHash) -> usize {
        self.shape.shard_of(hash)
    }

    fn drop_copy(&self, hash: KeyHash, own: Mapping, why: Gone) -> bool {
        let removed = self.with(hash, |shard| {
            shard.known(hash, own.location).live()?;
            let mapping = shard.remove(hash)?;
            self.store().order.forget(Some(hash), mapping);
            Some(mapping)
        });
        if removed.is_some() {
            self.count(why);
            // After a crash reads and writes fail: that is not the store's choice.
            if matches!(why, Gone::Evicted | Gone::Expired) || !self.medium.is_crashed() {
                let found = (0..self.keys).find(|n| self::hash(*n) == hash);
                self.given_up.lock().extend(found);
            }
        }
        removed.is_some()
    }

    fn move_copy(
        &self,
        hash: KeyHash,
        from: Mapping,
        append: impl FnOnce(Mapping) -> Option<Mapping>,
    ) -> CopyMove {
        let moved = self.with(hash, |shard| {
            let Some(mapping) = shard.known(hash, from.location).live() else {
                return CopyMove::Dead;
            };
            let moved = append(mapping).is_some_and(|to| shard.relocate(hash, from.location, to).is_ok());
            if moved && self.store().order.options().needs().moving_bytes > 0 {
                // A crash may lose what stands in a buffer, moved there or not.
                let found = (0..self.keys).find(|n| self::hash(*n) == hash);
                self.given_up.lock().extend(found);
            }
            if moved {
                CopyMove::Moved {
                    leaves_mapping: false,
                }
            } else {
                CopyMove::NoRoom
            }
        });
        let after = self.after_no_room.lock().take_if(|_| moved == CopyMove::NoRoom);
        if let Some(after) = after {
            after();
        }
        moved
    }

    fn give_up_all(&self) {
        for n in 0..self.keys {
            let removed = self.with(hash(n), |shard| shard.remove(hash(n)));
            if let Some(mapping) = removed {
                self.store().order.forget(Some(hash(n)), mapping);
                self.count(Gone::Lost);
            }
        }
    }

    fn sweep(&self, offset: u64, len: u64, why: Gone) -> u64 {
        let range = offset..offset + len;
        let mut swept = 0;
        for n in 0..self.keys {
            if self.location(n).is_some_and(|l| range.contains(&l.offset)) {
                let mapping = self.with(hash(n), |shard| shard.remove(hash(n)));
                self.store()
                    .order
                    .forget(Some(hash(n)), mapping.expect("just seen"));
                self.count(why);
                self.given_up.lock().insert(n);
                swept += 1;
            }
        }
        swept
    }
}

/// Performs a piece of work as another thread would, with a device of its own.
pub fn perform_elsewhere(index: &Index, work: Work<AlignedBuf>) {
    let (executor, device) = (Executor::new(), FaultyDevice::new(Arc::clone(&index.medium)));
    let perform = index.store().perform(&device, index, NOW, work);
    executor.block_on(perform, park(&device)).unwrap();
}

/// A store that is open.
pub struct Rig {
    pub executor: Executor,
    pub device: FaultyDevice,
    pub index: Arc<Index>,
    pub recovered: Recovered,
    /// Whether changes start background work.
    pub auto_kick: bool,
}

pub fn ripq() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Ripq, Some("slru-3"), Some(0.2), Some(0.9)).unwrap()
}

pub fn sipq() -> LayoutOptions {
    LayoutOptions::new(LayoutName::Sipq, None, None, None).unwrap()
}

pub fn options(durability: Durability) -> OpenOptions {
    OpenOptions {
        block_bytes: BLOCK_BYTES,
        check_block_bytes: true,
        reformat: false,
        maker: pumice_blocks::Maker::Serve,
        accept_clock: false,
        absence_secs_max: None,
        has_tier: false,
        durability,
        flush_interval_secs: 0,
        buffers_max: 4,
        unit_bytes: 16,
        layout: LayoutOptions::default(),
        index: pumice_index::IndexKind::Full,
        lockstep: false,
        now: NOW,
        random: [7, 11],
    }
}

impl Rig {
    pub fn open(medium: &Arc<FaultyMedium>, keys: u64, options: &OpenOptions) -> Self {
        let executor = Executor::new();
        let device = FaultyDevice::new(Arc::clone(medium));
        let index = Index::new(medium, keys, options.layout.layout);
        let recovered = executor
            .block_on(
                async {
                    let opened = open_superblock(&device, options).await.unwrap();
                    let (store, recovered) = recover(&device, opened, options, &index, None).await.unwrap();
                    assert!(index.store.set(store).is_ok());
                    settle(index.store(), &device, &index, NOW, &recovered).await;
                    recovered
                },
                park(&device),
            )
            .unwrap();
        Self {
            executor,
            device,
            index: Arc::new(index),
            recovered,
            auto_kick: true,
        }
    }

    pub fn store(&self) -> &FlashStore<AlignedBuf> {
        self.index.store()
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor.block_on(future, park(&self.device)).unwrap()
    }

    /// Spawns a piece of work.
    pub fn spawn(&self, work: Work<AlignedBuf>) {
        let (index, device) = (Arc::clone(&self.index), self.device.clone());
        self.executor.spawner().spawn(Box::pin(async move {
            index.store().perform(&device, &*index, NOW, work).await;
        }));
    }

    /// Starts background work that is due.
    pub fn kick(&self) {
        while let Some(work) = self.store().take_work() {
            self.spawn(work);
        }
    }

    /// Runs background work to its end.
    pub fn settle(&self) {
        loop {
            self.kick();
            self.executor.run_until_idle(park(&self.device)).unwrap();
            if !self.store().has_work() {
                return;
            }
        }
    }

    /// Completes some of what is under way.
    pub fn turn(&self) {
        self.device.turn(true).unwrap();
        // One poll of each task that is ready.
        self.run(std::future::ready(()));
        self.run(yield_once());
    }

    /// Stores a value of `len` bytes; its version, or `None` where there was no room. The older one is gone either way.
    pub fn set(&self, n: u64, len: usize) -> Option<u64> {
        let version = self.remove(n);
        self.append(n, len, version, SliceId::Whole)
    }

    /// As [`Rig::set`], but where something is there, which counts as a hit on it.
    pub fn set_again(&self, n: u64, len: usize) -> Option<u64> {
        let old = self.index.with(hash(n), |shard| shard.find(hash(n)).live());
        let again = Arrival::Again {
            hash: hash(n),
            old,
            may_be_more: false,
        };
        let rank = self.store().order.rank(again, len as u64);
        let version = self.remove(n);
        self.append_with(n, len, version, SliceId::Whole, Some(rank))
    }

    /// Appends a value, of an object or of one of its slices; as [`Rig::set`].
    pub fn append(&self, n: u64, len: usize, version: u64, slice: SliceId) -> Option<u64> {
        self.append_with(n, len, version, slice, None)
    }

    /// As [`Rig::append`]; without a rank it is a new object's.
    fn append_with(
        &self,
        n: u64,
        len: usize,
        version: u64,
        slice: SliceId,
        rank: Option<Rank>,
    ) -> Option<u64> {
        self.append_bytes(n, &value(n, version, len), version, slice, rank)
    }

    /// As [`Rig::append`], with these bytes; [`Rig::read`] reads them.
    pub fn append_bytes(
        &self,
        n: u64,
        value: &[u8],
        version: u64,
        slice: SliceId,
        rank: Option<Rank>,
    ) -> Option<u64> {
        let name = key(n);
        let payload = Payload::Bytes(value);
        let parts = RecordParts {
            version,
            expiry: 0,
            flags: 0,
            marks: 0,
            slice,
            key: &name,
            head: b"",
            value: payload,
            value_crc: payload_checksum(payload),
        };
        let stored = self.index.with(hash(n), |shard| {
            let new = || {
                self.store()
                    .order
                    .rank(Arrival::New, self.store().padded_len(&parts))
            };
            let rank = rank.unwrap_or_else(new);
            let appended = self.store().append(hash(n), &parts, rank)?;
            shard.set(hash(n), appended.mapping).unwrap();
            Some(version)
        });
        if self.auto_kick {
            self.kick();
        }
        stored
    }

    pub fn delete(&self, n: u64) {
        self.remove(n);
        if self.auto_kick {
            self.kick();
        }
    }

    pub fn remove(&self, n: u64) -> u64 {
        self.index.with(hash(n), |shard| {
            let version = self.store().next_version();
            let superseded = shard.supersede(hash(n), None);
            (self.store()).invalidate(&self.device, hash(n), &superseded, version);
            version
        })
    }

    /// The version of what is there, checked to the last byte. A hit.
    pub fn get(&self, n: u64) -> Option<u64> {
        let (version, bytes) = self.read(n)?;
        assert_eq!(bytes, value(n, version, bytes.len()));
        Some(version)
    }

    /// The version and the bytes of what is there. A hit.
    pub fn read(&self, n: u64) -> Option<(u64, Vec<u8>)> {
        let location = self.index.location(n)?;
        let record = match self.store().source(location) {
            Source::Memory(block) => self.store().read_memory(&block, location),
            Source::Device { sequence } => self
                .run(self.store().read_device(&self.device, location, sequence))
                .ok(),
        };
        let read = record.map(|record| content(&record, n))?;
        self.index.with(hash(n), |shard| {
            // Background work may have dropped it during the read.
            self.hit_in(shard, n);
        });
        Some(read)
    }

    /// Counts a hit without reading anything.
    pub fn hit(&self, n: u64) {
        self.index.with(hash(n), |shard| self.hit_in(shard, n));
    }

    fn hit_in(&self, shard: &mut IndexShard, n: u64) {
        let order = &self.store().order;
        if let Some(Mapping { location, .. }) = shard.find(hash(n)).live() {
            shard.hit(hash(n), location, |mapping| {
                order.hit(hash(n), mapping, || location.len.into())
            });
        }
    }

    /// Blocks that are being reclaimed.
    pub fn victims(&self) -> usize {
        let (free, sealed, open, checkpoint) = self.store().block_usage();
        let bad = usize::try_from(self.store().totals.snapshot().bad_blocks).unwrap();
        self.store().geometry.blocks as usize - free - sealed - open - checkpoint - bad
    }

    /// Every block has one use, while no work is under way.
    pub fn check_blocks(&self) {
        assert_eq!(self.victims(), 0, "{:?}", self.store().block_usage());
        let mapped: u64 = (0..self.index.keys)
            .filter_map(|n| Some(u64::from(self.index.location(n)?.len)))
            .sum();
        assert_eq!(
            self.store().check_order(),
            mapped,
            "bytes in blocks and in the index"
        );
        self.check_seats();
    }

    /// Every object counts once, where its mapping says; work may be under way.
    pub fn check_seats(&self) {
        let mut mappings = Vec::new();
        for shard in 0..self.index.shards() {
            self.index
                .with_shard(shard, |shard| shard.for_each(|mapping| mappings.push(mapping)));
        }
        self.store().order.check_seats(mappings.into_iter());
    }

    /// Whether what is there stands on flash, and not in a buffer.
    pub fn is_on_flash(&self, n: u64) -> bool {
        let location = self.index.location(n);
        location.is_some_and(|location| matches!(self.store().source(location), Source::Device { .. }))
    }
}

fn value(n: u64, version: u64, len: usize) -> Vec<u8> {
    let unit = format!("<{n}:{version}>").into_bytes();
    unit.iter().copied().cycle().take(len.max(unit.len())).collect()
}

fn content(record: &Record<AlignedBuf>, n: u64) -> (u64, Vec<u8>) {
    let Payload::Bytes(bytes) = record.value() else {
        panic!("a value without bytes")
    };
    assert_eq!(record.key(), key(n));
    (record.header().version, bytes.to_vec())
}

async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

fn park(device: &FaultyDevice) -> impl FnMut() -> Result<(), Infallible> + use<> {
    let device = device.clone();
    let mut idle = 0;
    move || {
        let done = device.turn(true).expect("the device turns");
        idle = if done == 0 { idle + 1 } else { 0 };
        assert!(
            idle < 1_000,
            "stuck: tasks wait, and the device has nothing to complete"
        );
        Ok(())
    }
}
