//! What unit tests of the engine share.

use crate::cache::{Cx, ObjectCache};
use crate::locate::Located;
use crate::{CacheOptions, Meta};
use pumice_device::{MemDevice, MemMedium, Payload};
use pumice_world::{Executor, ManualClock};
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const START_SECS: u32 = 1_000;

/// A cache on a device in memory.
pub(crate) struct Rig {
    pub(crate) executor: Executor,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) cx: Cx<MemDevice>,
    pub(crate) cache: ObjectCache<MemDevice>,
}

pub(crate) fn run<T>(executor: &Executor, future: impl Future<Output = T>) -> T {
    let result: Result<T, Infallible> = executor.block_on(future, || Ok(()));
    let Ok(value) = result;
    value
}

impl Rig {
    pub(crate) fn open(medium: &Arc<MemMedium>, options: CacheOptions) -> Self {
        let executor = Executor::new();
        let clock = Arc::new(ManualClock::new(START_SECS));
        let device = MemDevice::new(Arc::clone(medium));
        let cx = Cx::new(device, Arc::clone(&clock) as _, Rc::new(executor.spawner()));
        let (cache, _) = run(&executor, ObjectCache::open(&cx, options)).expect("it opens");
        Self {
            executor,
            clock,
            cx,
            cache,
        }
    }

    pub(crate) fn new(options: CacheOptions) -> Self {
        Self::open(&Arc::new(MemMedium::new(16 << 20)), options)
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
