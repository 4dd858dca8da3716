//! Where an object is, as far as that is known without reading flash. Asking leaves no trace: it is no hit, and expires
//! nothing.

use crate::cache::{Cx, Inner, ObjectCache};
use crate::large::Manifest;
use crate::part::PartId;
use pumice_device::Device;
use pumice_flash::Source;
use pumice_index::Mapping;
use pumice_memory::Buffer;
use pumice_record::{Record, SliceId};

/// Where an object is; see [`ObjectCache::locate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Located {
    /// What is known of the object; `None` where the device alone has it.
    pub known: Option<KnownObject>,
    /// Whether the DRAM tier has it.
    pub in_dram_tier: bool,
    /// Its copy on flash. A block buffer counts as flash.
    pub flash: Option<FlashCopy>,
}

/// What memory knows of an object: the DRAM tier, or the buffer of a block that is not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownObject {
    /// The version: memcached's CAS unique.
    pub version: u64,
    /// Unix seconds from which on the object is gone; 0 = never.
    pub expiry: u32,
    /// Length of the value in bytes, of a large object too.
    pub value_len: u64,
}

/// What the index and the layout know of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashCopy {
    /// Whether a crash now would leave it: its block is written as a whole or as far as it, is not being reclaimed, and what is on flash
    /// would be trusted.
    pub written: bool,
    /// Length of its record, with header, key and padding.
    pub record_bytes: u32,
    /// Its position in the queue, from 0 (the next to go) to 1; `None` under a layout without such a queue.
    pub position: Option<f64>,
}

impl KnownObject {
    fn of<B: Buffer>(record: &Record<B>) -> Option<Self> {
        let header = *record.header();
        let value_len = if header.slice == SliceId::Head {
            Manifest::decode(record)?.value_len
        } else {
            header.value_len.into()
        };
        Some(Self {
            version: header.version,
            expiry: header.expiry,
            value_len,
        })
    }
}

impl<D: Device + Clone> ObjectCache<D> {
    /// Where the object under a key is, without I/O and without counting as a hit; `None` where it is nowhere.
    ///
    /// If it is on the device and not in memory, only the index was asked, which knows some bits of the key's hash and
    /// not the key: what is mapped may be another key's object, or have expired. A read would tell ([`ObjectCache::get`]).
    /// Where memory has the object, the full key was compared.
    ///
    /// Of a large object this tells about its head; each of its slices has a place of its own.
    pub fn locate(&self, cx: &Cx<D>, key: &[u8]) -> Option<Located> {
        self.flush_if_due(cx);
        let inner = &*self.inner;
        let part = PartId::object(key);
        let hash = inner.hasher.hash(&part);
        let shard = inner.lock(hash);
        let mapping = shard.flash.find(hash).live();
        if let Some(found) = shard.dram.find(&inner.tier, hash, |record| part.is(record)) {
            if cx.is_past(found.record.header().expiry) {
                return None;
            }
            // What else is mapped under these hash bits is another key's.
            let own = mapping.filter(|_| inner.is_flash_location(&shard, hash, found.flash_location));
            return Some(Located {
                known: KnownObject::of(&found.record),
                in_dram_tier: true,
                flash: own.map(|mapping| inner.flash_copy(mapping)),
            });
        }
        let mapping = mapping?;
        let known = match inner.store().source(mapping.location) {
            Source::Device { .. } => None,
            Source::Memory(block) => {
                let record = inner.store().peek_memory(&block, mapping.location)?;
                if !part.is(&record) || cx.is_past(record.header().expiry) {
                    return None;
                }
                KnownObject::of(&record)
            }
        };
        Some(Located {
            known,
            in_dram_tier: false,
            flash: Some(inner.flash_copy(mapping)),
        })
    }
}

impl<B: Buffer> Inner<B> {
    /// Called under the lock of the mapping's shard.
    fn flash_copy(&self, mapping: Mapping) -> FlashCopy {
        let store = self.store();
        FlashCopy {
            written: store.is_written(mapping.location),
            record_bytes: mapping.location.len,
            position: store.order.position(mapping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rig, START_SECS};
    use crate::{CacheOptions, Durability, HashLimit, LayoutName, LayoutOptions};
    use pumice_device::MemMedium;
    use std::sync::Arc;

    fn options(layout: LayoutName, dram_bytes: usize) -> CacheOptions {
        CacheOptions {
            layout: LayoutOptions::new(layout, None, None, None).expect("these go together"),
            dram_bytes,
            ..CacheOptions::default()
        }
    }

    fn known(version: u64, expiry: u32, value_len: u64) -> Option<KnownObject> {
        Some(KnownObject {
            version,
            expiry,
            value_len,
        })
    }

    #[test]
    fn what_memory_has_is_known_in_full() {
        for layout in LayoutName::ALL {
            let rig = Rig::new(options(layout, 4 << 20));
            assert_eq!(rig.locate(b"key"), None);
            let version = rig.set(b"key", &[7; 300], START_SECS + 50);
            let located = rig.locate(b"key").expect("just set");
            assert_eq!(located.known, known(version, START_SECS + 50, 300));
            assert!(located.in_dram_tier);
            let copy = located.flash.expect("set writes to a buffer");
            assert!(
                !copy.written && (325..340).contains(&copy.record_bytes),
                "{copy:?}"
            );
            assert_eq!(copy.position.is_some(), layout == LayoutName::Ripq);
            assert!(
                copy.position
                    .is_none_or(|position| (0.0..=1.0).contains(&position))
            );
            rig.write_open_blocks();
            let later = rig.locate(b"key").expect("still there");
            assert!(later.flash.is_some_and(|copy| copy.written));
            assert_eq!(later.known, located.known);
            rig.clock.advance_secs(49);
            assert!(rig.locate(b"key").is_some());
            rig.clock.advance_secs(1);
            assert_eq!(rig.locate(b"key"), None, "expired");
        }
    }

    #[test]
    fn of_what_the_device_alone_has_only_its_place_is_known() {
        let rig = Rig::new(options(LayoutName::Ripq, 0));
        let version = rig.set(b"key", &[7; 300], 0);
        let buffered = rig.locate(b"key").expect("just set");
        assert_eq!(buffered.known, known(version, 0, 300), "a buffer is memory");
        assert!(!buffered.in_dram_tier && buffered.flash.is_some_and(|copy| !copy.written));
        rig.write_open_blocks();
        let located = rig.locate(b"key").expect("on flash");
        assert_eq!((located.known, located.in_dram_tier), (None, false));
        assert!(
            located
                .flash
                .is_some_and(|copy| copy.written && copy.record_bytes >= 322)
        );
    }

    #[test]
    fn a_large_object_is_its_head() {
        let rig = Rig::new(CacheOptions {
            buffers_max: 16,
            ..options(LayoutName::Fifo, 4 << 20)
        });
        let version = rig.set(b"key", &[7; 200_000], 0);
        let located = rig.locate(b"key").expect("just set");
        assert_eq!(located.known, known(version, 0, 200_000));
        assert!(
            located.flash.is_some_and(|copy| copy.record_bytes < 512),
            "{located:?}"
        );
    }

    #[test]
    fn another_key_with_the_same_hash_bits_is_told_apart_where_memory_has_one() {
        let limited = |dram_bytes| CacheOptions {
            hash_limit: HashLimit(0),
            ..options(LayoutName::Fifo, dram_bytes)
        };
        let rig = Rig::new(limited(0));
        rig.set(b"one", b"1", 0);
        assert_eq!(rig.locate(b"two"), None, "the buffer has the key");
        rig.write_open_blocks();
        assert!(rig.locate(b"two").is_some(), "the index does not");

        let rig = Rig::new(limited(4 << 20));
        rig.set(b"one", b"1", 0);
        rig.set(b"two", b"2", 0);
        rig.write_open_blocks();
        let two = rig.locate(b"two").expect("just set");
        assert!(two.in_dram_tier && two.flash.is_some());
        let one = rig.locate(b"one").expect("the DRAM tier knows keys");
        assert!(one.in_dram_tier, "{one:?}");
        assert_eq!(one.flash, None, "flash has the other key's");
    }

    #[test]
    fn asking_leaves_no_trace() {
        for (layout, dram_bytes) in [
            (LayoutName::Ripq, 0),
            (LayoutName::Sipq, 0),
            (LayoutName::Ripq, 4 << 20),
        ] {
            let rig = Rig::new(options(layout, dram_bytes));
            rig.set(b"key", &[7; 300], START_SECS + 5);
            let hash = rig.cache.inner.hasher.hash(&PartId::object(b"key"));
            let traces = || {
                let shard = rig.cache.inner.lock(hash);
                let part = PartId::object(b"key");
                let item = shard
                    .dram
                    .find(&rig.cache.inner.tier, hash, |record| part.is(record));
                (
                    shard.flash.find(hash).live(),
                    item.map(|item| item.frequency),
                    rig.cache.inner.store().order.virtual_keys(),
                )
            };
            for asked_when in ["buffered", "written", "expired"] {
                let (before, counts) = (traces(), rig.cache.inner.store().counts());
                for _ in 0..3 {
                    assert_eq!(
                        rig.locate(b"key").is_some(),
                        asked_when != "expired" || dram_bytes == 0
                    );
                }
                assert_eq!(traces(), before, "{layout:?}, {asked_when}");
                assert_eq!(
                    rig.cache.inner.store().counts(),
                    counts,
                    "{layout:?}, {asked_when}"
                );
                match asked_when {
                    "buffered" => rig.write_open_blocks(),
                    _ => rig.clock.advance_secs(5),
                }
            }
        }
    }

    /// Several times the device, with hits in between and beginnings of blocks that are written before the block is full; then the end
    /// without a stop.
    #[test]
    fn a_crash_leaves_what_is_said_to_be_written() {
        for layout in LayoutName::ALL {
            let medium = Arc::new(MemMedium::new(16 << 20));
            let options = CacheOptions {
                flush_interval_secs: 1,
                ..options(layout, 4 << 20)
            };
            let rig = Rig::open(&medium, options);
            let key = |number: u32| format!("key {number}").into_bytes();
            let value = |number: u32| number.to_le_bytes().repeat(400);
            for number in 0..30_000 {
                rig.set(&key(number), &value(number), 0);
                if number % 3 == 0 {
                    rig.get(&key(number / 2));
                }
                if number % 64 == 0 {
                    rig.settle();
                }
                // The last objects come after that.
                if number % 1_000 == 990 {
                    rig.clock.advance_secs(1);
                    rig.cache.tick(&rig.cx);
                    rig.settle();
                }
            }
            rig.settle();
            assert!(rig.cache.stats().blocks.prefix_writes > 9, "{layout:?}");
            let written = |number| {
                let located = rig.locate(&key(number))?;
                Some(located.flash?.written)
            };
            let said: Vec<Option<bool>> = (0..30_000).map(written).collect();
            drop(rig);
            let rig = Rig::open(&medium, options);
            let (mut served, mut lost) = (0, 0);
            for (number, said) in (0..).zip(said) {
                let found = rig.get(&key(number));
                assert!(found.as_ref().is_none_or(|found| *found == value(number)));
                match said {
                    Some(true) => {
                        assert!(found.is_some(), "{layout:?}: {number} was written");
                        served += 1;
                    }
                    Some(false) => {
                        assert!(found.is_none(), "{layout:?}: {number} was not written");
                        lost += 1;
                    }
                    None => {}
                }
            }
            assert!(served > 4_000 && lost > 0, "{layout:?}: {served}, {lost}");
        }
    }

    #[test]
    fn what_was_asked_for_in_dram_goes_to_flash_above_what_was_not() {
        let options = CacheOptions {
            flash_write: crate::FlashWrite::Eviction,
            ..options(LayoutName::Ripq, 2 << 20)
        };
        let rig = Rig::open(&Arc::new(MemMedium::new(64 << 20)), options);
        let key = |number: u32| format!("key {number}").into_bytes();
        for number in 0..40_000 {
            rig.set(&key(number), &[7; 300], 0);
            for _ in 0..2 * (number % 2) {
                rig.get(&key(number));
            }
            if number % 64 == 0 {
                rig.settle();
            }
        }
        let mean = |parity: u32| {
            let positions: Vec<f64> = (0..40_000)
                .filter(|number| number % 2 == parity)
                .filter_map(|number| rig.locate(&key(number))?.flash?.position)
                .collect();
            assert!(positions.len() > 500, "{}", positions.len());
            positions.iter().sum::<f64>() / positions.len() as f64
        };
        let (cold, hot) = (mean(0), mean(1));
        assert!(hot > cold + 0.1, "{hot} against {cold}");
    }

    #[test]
    fn nothing_counts_as_written_that_a_start_would_not_trust() {
        let rig = Rig::new(CacheOptions {
            durability: Durability::Off,
            ..options(LayoutName::Fifo, 0)
        });
        rig.set(b"key", b"value", 0);
        rig.write_open_blocks();
        assert!(
            rig.locate(b"key")
                .is_some_and(|located| located.flash.is_some_and(|copy| !copy.written))
        );
    }
}
