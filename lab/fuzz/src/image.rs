//! Devices that real caches were written to, and what must be known of them.

use crate::edits::{BLOCK_BYTES, bytes_of_medium};
use pumice::{CacheOptions, CascadeOptions, Cx, IndexOptions, LayoutName, LayoutOptions, Meta, ObjectCache};
use pumice_blocks::OpenError;
use pumice_device::{MemDevice, MemMedium, Payload};
use pumice_flash::Recovered;
use pumice_flash::inspect::{Finding, Sink, inspect};
use pumice_world::{Clock, Executor, ManualClock, Random};
use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const KEYS: u64 = 90;
pub(crate) const FLASH_BYTES: u64 = 2 << 20;
const START_SECS: u32 = 1_000;
const STEPS: u64 = 700;

/// A cache on one thread.
pub(crate) struct Rig {
    executor: Executor,
    cx: Cx<MemDevice>,
    cache: ObjectCache<MemDevice>,
}

impl Rig {
    /// Opens a cache; `start` counts the starts on this medium. A cache that has to be made anew is another then, as it is where
    /// numbers are really random.
    pub(crate) fn open(
        medium: &Arc<MemMedium>,
        options: CacheOptions,
        start: u64,
    ) -> Result<(Self, Recovered), OpenError> {
        let options = CacheOptions {
            random: [0x5eed + (start << 20), 0xcafe],
            ..options
        };
        let executor = Executor::new();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(START_SECS));
        let device = MemDevice::new(Arc::clone(medium));
        let cx = Cx::new(device, clock, Rc::new(executor.spawner()));
        let Ok(opened) = executor.block_on(ObjectCache::open(&cx, options), never());
        let (cache, recovered) = opened?;
        let rig = Self { executor, cx, cache };
        rig.settle();
        Ok((rig, recovered))
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let Ok(result) = self.executor.block_on(future, never());
        result
    }

    /// Runs background work to its end.
    pub(crate) fn settle(&self) {
        self.run(self.cache.quiesce(&self.cx));
        let Ok(()) = self.executor.run_until_idle(never());
    }

    pub(crate) fn get(&self, key: u64) -> Option<Entry> {
        let object = self.run(self.cache.get(&self.cx, &name(key)))?;
        Some(Entry {
            value: object.to_vec(),
            flags: object.flags(),
            expiry: object.expiry(),
        })
    }

    /// Stores an entry, or makes the key hold nothing.
    pub(crate) fn store(&self, key: u64, entry: &Entry) -> bool {
        let meta = Meta {
            flags: entry.flags,
            expiry: entry.expiry,
            marks: 0,
        };
        let value = Payload::Bytes(&entry.value);
        self.run(self.cache.store(&self.cx, &name(key), value, meta))
            .is_ok()
    }

    pub(crate) fn delete(&self, key: u64) {
        self.run(self.cache.delete(&self.cx, &name(key)));
    }

    pub(crate) fn close(&self) {
        self.settle();
        self.run(self.cache.close(&self.cx))
            .expect("memory takes everything");
    }

    /// The books, the queue and the tables agree with what is there.
    pub(crate) fn check(&self) {
        self.settle();
        self.cache.check_books().expect("the books balance");
        self.cache.check_order();
    }
}

/// A device in memory has nothing to wait for.
pub(crate) fn never() -> impl FnMut() -> Result<(), Infallible> {
    let mut idle = 0;
    move || {
        idle += 1;
        assert!(
            idle < 1_000,
            "stuck: tasks wait, and the device has nothing to complete"
        );
        Ok(())
    }
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    pub(crate) expiry: u32,
}

impl Entry {
    /// One that no other step makes: key and step, repeated to the length.
    pub(crate) fn new(key: u64, step: u64, len: usize) -> Self {
        let unit = format!("<{key}:{step}>").into_bytes();
        Self {
            value: unit.iter().copied().cycle().take(len.max(unit.len())).collect(),
            flags: (key * 1_000 + step) as u32,
            expiry: if step % 9 == 4 { START_SECS + 500 } else { 0 },
        }
    }

    pub(crate) fn head(&self) -> String {
        String::from_utf8_lossy(&self.value[..self.value.len().min(30)]).into_owned()
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Bytes that a cache left on a device.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) options: CacheOptions,
    /// What each key held at some time; what it held last stands at the end, or `None` where that was nothing.
    pub(crate) history: HashMap<u64, Vec<Option<Entry>>>,
    /// Bytes that count, each range something of its own: a superblock, a log record, a trailer, an object.
    pub(crate) parts: Vec<Range<usize>>,
}

impl Image {
    /// Makes one: a cache that was killed once in the middle, and stopped well at the end, or killed again.
    fn make(options: CacheOptions, is_clean: bool, seed: u64) -> Self {
        let medium = Arc::new(MemMedium::new(FLASH_BYTES));
        let mut history: HashMap<u64, Vec<Option<Entry>>> = HashMap::new();
        let mut random = Random(seed);
        // The plain remainder: kept inputs are for these very images.
        let mut below = |n: u64| random.next_u64() % n;
        for life in 0..2 {
            let (rig, _) = Rig::open(&medium, options, life).expect("the device opens");
            for step in life * STEPS..(life + 1) * STEPS {
                let key = below(KEYS);
                let entry = match below(16) {
                    0 | 1 => None,
                    2 if step % 3 == 0 => Some(Entry::new(key, step, 18_000 + below(20_000) as usize)),
                    3 | 4 => Some(Entry::new(key, step, below(6_000) as usize)),
                    _ => Some(Entry::new(key, step, below(900) as usize)),
                };
                let held = match &entry {
                    Some(entry) if rig.store(key, entry) => Some(entry.clone()),
                    Some(_) => None,
                    None => {
                        rig.delete(key);
                        None
                    }
                };
                history.entry(key).or_default().push(held);
                if below(3) == 0 {
                    rig.settle();
                }
                if below(4) == 0 {
                    rig.get(below(KEYS));
                }
            }
            if life == 1 && is_clean {
                rig.close();
            }
        }
        let bytes = bytes_of_medium(&medium);
        let parts = parts(&bytes);
        Self {
            bytes,
            options,
            history,
            parts,
        }
    }
}

/// What counts in an image that is in order.
fn parts(bytes: &[u8]) -> Vec<Range<usize>> {
    #[derive(Default)]
    struct Parts(Vec<Range<usize>>);
    impl Sink for Parts {
        fn found(&mut self, finding: Finding) {
            assert!(
                finding.severity == pumice_flash::inspect::Severity::Leftover,
                "{finding}"
            );
        }
        fn used(&mut self, range: Range<u64>) {
            self.0.push(range.start as usize..range.end as usize);
        }
    }
    let mut parts = Parts::default();
    inspect(bytes, &mut parts, true).expect("it is a cache");
    parts.0.retain(|range| !range.is_empty());
    parts.0.sort_by_key(|range| (range.start, range.end));
    parts.0
}

/// Images of caches with a full index, under each layout, stopped well and killed.
pub(crate) fn full() -> Vec<Image> {
    images(IndexOptions::Full)
}

/// The same with a cascade index whose pages are small, so that most mappings are on flash.
pub(crate) fn cascade() -> Vec<Image> {
    images(IndexOptions::Cascade(CascadeOptions {
        tier1_min: 3,
        tier1_share: 0.05,
        page_entries: 4,
    }))
}

/// Two of each layout and kind of policy. An input names an image by its place here, so new ones come last.
fn images(index: IndexOptions) -> Vec<Image> {
    let layouts = [
        LayoutOptions::default(),
        ripq("slru-3"),
        sipq("slru-3"),
        sipq("gdsf-2"),
        ripq("gdsf-2"),
        LayoutOptions::new(LayoutName::Clock, None, None, None).expect("it has no settings"),
    ];
    let of_layout = |(seed, layout): (u64, &LayoutOptions)| {
        let options = CacheOptions {
            dram_bytes: 640 << 10,
            block_bytes: Some(BLOCK_BYTES),
            item_bytes_max: 200 << 10,
            buffers_max: 10,
            layout: *layout,
            index,
            ..CacheOptions::default()
        };
        [true, false].map(|is_clean| Image::make(options, is_clean, 2 * seed + u64::from(is_clean)))
    };
    (1..).zip(&layouts).flat_map(of_layout).collect()
}

fn ripq(policy: &str) -> LayoutOptions {
    LayoutOptions::new(LayoutName::Ripq, Some(policy), Some(0.25), Some(0.9)).expect("in range")
}

fn sipq(policy: &str) -> LayoutOptions {
    LayoutOptions {
        virtual_keys_max: 100,
        ..LayoutOptions::new(LayoutName::Sipq, Some(policy), None, Some(0.6)).expect("in range")
    }
}
