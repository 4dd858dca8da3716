//! What unit tests of the engine share.

use crate::cache::{Cx, ObjectCache};
use crate::locate::Located;
use crate::part::PartId;
use crate::{CacheOptions, CascadeOptions, IndexOptions, Meta};
use pumice_device::{Device, MemDevice, MemMedium, Payload};
use pumice_index::KeyHash;
use pumice_record::payload_checksum;
use pumice_record::{RecordParts, SliceId};
use pumice_world::{Executor, ManualClock};
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const START_SECS: u32 = 1_000;

/// The value of [`small`].
pub(crate) const VALUE: &[u8] = &[1; 100];

/// A cascade index with small pages, so that few mappings are in DRAM.
pub(crate) const CASCADE: IndexOptions = IndexOptions::Cascade(CascadeOptions {
    tier1_min: 3,
    tier1_share: 0.05,
    page_entries: 4,
});

/// The record of a small object.
pub(crate) fn small(key: &[u8], version: u64) -> RecordParts<'_> {
    let value = Payload::Bytes(VALUE);
    RecordParts {
        version,
        expiry: 0,
        flags: 0,
        marks: 0,
        slice: SliceId::Whole,
        key,
        head: b"",
        value,
        value_crc: payload_checksum(value),
    }
}

/// A cache on a device that needs no turns.
pub(crate) struct Rig<D: Device = MemDevice> {
    pub(crate) executor: Executor,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) cx: Cx<D>,
    pub(crate) cache: ObjectCache<D>,
}

pub(crate) fn run<T>(executor: &Executor, future: impl Future<Output = T>) -> T {
    let result: Result<T, Infallible> = executor.block_on(future, || Ok(()));
    let Ok(value) = result;
    value
}

impl Rig {
    pub(crate) fn open(medium: &Arc<MemMedium>, options: CacheOptions) -> Self {
        Self::on(MemDevice::new(Arc::clone(medium)), options)
    }

    pub(crate) fn new(options: CacheOptions) -> Self {
        Self::open(&Arc::new(MemMedium::new(16 << 20)), options)
    }
}

impl<D: Device + Clone> Rig<D> {
    pub(crate) fn on(device: D, options: CacheOptions) -> Self {
        let executor = Executor::new();
        let clock = Arc::new(ManualClock::new(START_SECS));
        let cx = Cx::new(device, Arc::clone(&clock) as _, Rc::new(executor.spawner()));
        let (cache, _) = run(&executor, ObjectCache::open(&cx, options)).expect("it opens");
        Self {
            executor,
            clock,
            cx,
            cache,
        }
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8], expiry: u32) -> u64 {
        let meta = Meta {
            expiry,
            ..Meta::default()
        };
        let set = self.cache.set(&self.cx, key, Payload::Bytes(value), meta);
        set.expect("there is room")
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        run(&self.executor, self.cache.get(&self.cx, key)).map(|object| object.to_vec())
    }

    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.cache.inner.hasher.hash(&PartId::object(key))
    }

    /// Writes a small object to flash as if DRAM evicted it. Does nothing, and is true, where the index in DRAM has the key; false where
    /// there is no room.
    pub(crate) fn evict(&self, key: &[u8], version: u64) -> bool {
        let (inner, hash) = (&self.cache.inner, self.hash(key));
        let mut shard = inner.lock(hash);
        shard.flash.find(hash).live().is_some()
            || inner.append_from_dram(&self.cx, &mut shard, hash, &small(key, version), false) != 0
    }

    pub(crate) fn locate(&self, key: &[u8]) -> Option<Located> {
        self.cache.locate(&self.cx, key)
    }

    pub(crate) fn settle(&self) {
        run(&self.executor, self.cache.quiesce(&self.cx));
    }

    pub(crate) fn write_open_blocks(&self) {
        self.cache.inner.store().retire_active();
        self.settle();
    }
}
