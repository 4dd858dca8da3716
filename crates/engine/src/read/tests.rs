use super::{Access, LOOKUPS_MAX, Lookup, MOVES_MAX};
use crate::cache::ROUNDS;
use crate::part::PartId;
use crate::testing::{CASCADE, Rig, VALUE, run, small};
use crate::{CacheOptions, IndexOptions, LayoutName, LayoutOptions, Meta, Tier};
use pumice_device::Device;
use pumice_index::Lookup as IndexLookup;
use pumice_record::RecordParts;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

#[test]
fn gets_alone_see_that_the_index_has_pages_to_grow_with() {
    let rig = Rig::new(CacheOptions {
        dram_bytes: 0,
        index: CASCADE,
        ..CacheOptions::default()
    });
    let key = |n: u32| format!("key-{n}").into_bytes();
    for n in 0..2_000 {
        rig.set(&key(n), b"value", 0);
        rig.settle();
    }
    rig.write_open_blocks();
    let pages = &rig.cache.inner.pages;
    let taken: Vec<_> = std::iter::from_fn(|| pages.take()).collect();
    assert!(!taken.is_empty());
    assert_eq!(pages.free_pages(), 0);
    let read_before = rig.cache.device_reads().all();
    for n in 0..2_000 {
        assert!(rig.get(&key(n)).is_some(), "key {n}");
    }
    assert!(
        rig.cache.device_reads().all() > read_before + 2_000,
        "mappings were read"
    );
    assert!(pages.free_pages() >= rig.cache.inner.pages_low);
}

/// A cache whose object `key`, with these marks, is on the device alone.
fn with_key_on_flash(dram_bytes: usize, index: IndexOptions, marks: u8) -> Rig<FaultyDevice> {
    let medium = Arc::new(FaultyMedium::new(16 << 20, 1, FaultPlan::default()));
    let options = CacheOptions {
        dram_bytes,
        index,
        ..CacheOptions::default()
    };
    let rig = Rig::on(FaultyDevice::new(medium), options);
    let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
    let parts = RecordParts {
        marks,
        ..small(b"key", inner.store().next_version())
    };
    let flash_location = inner.append_from_dram(&rig.cx, &mut inner.lock(hash), hash, &parts, false);
    assert_ne!(flash_location, 0, "there is room");
    inner.books.offered.add(inner.store().padded_len(&parts));
    rig.write_open_blocks();
    rig
}

/// Polls a read that waits for the device.
fn poll<F: Future>(rig: &Rig<FaultyDevice>, read: Pin<&mut F>) -> Poll<F::Output> {
    let medium = rig.cx.device.medium();
    medium.set_plan(FaultPlan {
        delay: true,
        ..FaultPlan::default()
    });
    let polled = read.poll(&mut Context::from_waker(Waker::noop()));
    medium.set_plan(FaultPlan::default());
    polled
}

/// Gets `key`, with a change while each read is under way, which then ends as planned: how often the device was asked, and whether it
/// was a hit.
fn fetch(rig: &Rig<FaultyDevice>, ends: &FaultPlan, mut change: impl FnMut()) -> (usize, bool) {
    let Lookup::Read(fetch) = rig.cache.lookup(&rig.cx, b"key", Access::Count) else {
        panic!("it is on flash alone");
    };
    let medium = rig.cx.device.medium();
    let mut fetch = pin!(rig.cache.fetch(&rig.cx, b"key", fetch, Access::Count));
    for reads in 0..100 {
        if let Poll::Ready(found) = poll(rig, fetch.as_mut()) {
            return (reads, matches!(found, Lookup::Known(Some(_))));
        }
        change();
        medium.set_plan(ends.clone());
        while medium.reads_pending() > 0 {
            rig.cx.device.turn(true).unwrap();
        }
    }
    panic!("it is read again and again")
}

#[test]
fn a_record_whose_block_has_begun_another_generation_after_each_read_is_a_miss_after_three() {
    let rig = with_key_on_flash(0, IndexOptions::Full, 0);
    let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
    let (_, sequence) = inner.place_of(inner.lock(hash).flash.find(hash)).unwrap();
    let mut blocks = inner.store().blocks.iter();
    let block = blocks.find(|block| block.sequence.load(Ordering::Relaxed) == sequence);
    let sequence = &block.unwrap().sequence;
    let found = fetch(&rig, &FaultPlan::default(), || {
        sequence.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(found, (LOOKUPS_MAX, false));
    assert_eq!(inner.rounds[LOOKUPS_MAX].load(Ordering::Relaxed), 1);
}

#[test]
fn a_mapping_whose_pages_have_moved_after_each_read_is_a_miss_after_seventeen() {
    let rig = with_key_on_flash(0, CASCADE, 0);
    let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
    let peek = || inner.lock(hash).flash.cascade().expect("it is one").peek(hash);
    let keys = (0u32..).map(|n| n.to_le_bytes());
    let is_beside = |key: &[u8; 4]| inner.shape.shard_of(rig.hash(key)) == inner.shape.shard_of(hash);
    let (beside, elsewhere): (Vec<_>, Vec<_>) = keys.take(3_000).partition(is_beside);
    let (mut beside, mut elsewhere) = (beside.iter().cycle(), elsewhere.iter().cycle());
    let set = |key: Option<&[u8; 4]>| {
        rig.set(key.expect("there is no end"), VALUE, 0);
        rig.settle();
    };
    // What flash maps of it moves with others of its shard, and those of other shards write what is moved.
    let mut move_pages = || {
        let before = peek();
        while peek() == before || !matches!(peek(), IndexLookup::Read(_)) {
            set(beside.next());
        }
        let IndexLookup::Read(plan) = peek() else {
            unreachable!("just seen")
        };
        let pages = inner.store().mapping_pages().expect("of a cascade");
        while poll(&rig, pin!(pages.read(&rig.cx.device, plan.pages()))).is_ready() {
            set(elsewhere.next());
        }
        assert_eq!(peek(), IndexLookup::Read(plan));
    };
    move_pages();
    let found = fetch(&rig, &FaultPlan::default(), move_pages);
    assert_eq!(found, (MOVES_MAX + 1, false));
    assert_eq!(inner.rounds[ROUNDS - 1].load(Ordering::Relaxed), 1, "and more");
}

#[test]
fn a_read_that_fails_says_nothing_of_what_was_set_meanwhile() {
    let rig = with_key_on_flash(0, IndexOptions::Full, 0);
    let ends = FaultPlan {
        read_error: 1.0,
        ..FaultPlan::default()
    };
    let found = fetch(&rig, &ends, || {
        rig.set(b"key", b"newer", 0);
    });
    assert_eq!(found, (1, true));
}

#[test]
fn a_copy_that_cannot_be_read_is_gone_and_that_is_logged() {
    let rig = with_key_on_flash(0, IndexOptions::Full, 0);
    let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
    let ends = FaultPlan {
        read_error: 1.0,
        ..FaultPlan::default()
    };
    let records = rig.cache.stats().blocks.log_records;
    assert_eq!(fetch(&rig, &ends, || {}), (1, false));
    assert_eq!(inner.lock(hash).flash.find(hash).live(), None);
    let stats = rig.cache.stats();
    assert_eq!((stats.blocks.log_records - records, stats.books.lost.0), (1, 1));
    rig.cache.check_books().unwrap();
}

#[test]
fn what_was_read_goes_to_dram_as_used_unless_it_was_deleted_meanwhile() {
    for (marks, is_deleted) in [(0, false), (Meta::USED, false), (0, true)] {
        let rig = with_key_on_flash(4 << 20, IndexOptions::Full, marks);
        let found = fetch(&rig, &FaultPlan::default(), || {
            if is_deleted {
                run(&rig.executor, rig.cache.delete(&rig.cx, b"key"));
            }
        });
        assert_eq!(found, (1, true), "it was there");
        let object = run(&rig.executor, rig.cache.get(&rig.cx, b"key"));
        let seen = object.map(|object| (object.tier(), object.marks()));
        assert_eq!(seen, (!is_deleted).then_some((Tier::Dram, Meta::USED)));
    }
}

#[test]
fn a_peek_at_what_memory_has_leaves_no_trace() {
    for dram_bytes in [0, 4 << 20] {
        let rig = Rig::new(CacheOptions {
            dram_bytes,
            layout: LayoutOptions::new(LayoutName::Clock, None, None, None).unwrap(),
            ..CacheOptions::default()
        });
        let (inner, hash) = (&rig.cache.inner, rig.hash(b"key"));
        rig.set(b"key", VALUE, 0);
        let trace = || {
            let part = PartId::object(b"key");
            let shard = inner.lock(hash);
            let item = shard.dram.find(&inner.tier, hash, |record| part.is(record));
            let note = shard.flash.find(hash).live().map(|mapping| mapping.note);
            (item.map(|item| item.frequency), note)
        };
        let before = trace();
        let found = rig.cache.lookup(&rig.cx, b"key", Access::Peek);
        assert!(matches!(found, Lookup::Known(Some(_))));
        assert_eq!(trace(), before);
        let marks = || run(&rig.executor, rig.cache.get(&rig.cx, b"key")).map(|object| object.marks());
        let used = if dram_bytes == 0 { 0 } else { Meta::USED };
        assert_eq!(
            [marks(), marks()],
            [Some(0), Some(used)],
            "the first get is told of none"
        );
        assert_ne!(trace(), before);
    }
}
