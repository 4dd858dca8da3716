//! Objects that come and go in pieces.

use crate::common::Rig;
use pumice::{
    Access, CacheOptions, FlashWrite, HEAD_BYTES_MAX, Lookup, Meta, NewObject, Object, Outcome, RejectReason,
    Tier,
};
use pumice_blocks::{SlotContent, StoreId, Superblock};
use pumice_device::{Device, MemDevice, MemMedium, Payload, SECTOR_BYTES};
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

fn rig_with(options: CacheOptions) -> Rig<MemDevice> {
    let device = MemDevice::new(Arc::new(MemMedium::new(32 << 20)));
    Rig::open(device, Arc::new(ManualClock::new(1_000)), options)
}

fn rig() -> Rig<MemDevice> {
    rig_with(CacheOptions {
        dram_bytes: 4 << 20,
        block_bytes: Some(256 << 10),
        item_bytes_max: 8 << 20,
        ..CacheOptions::default()
    })
}

/// No two slices of it are equal.
fn bytes(len: usize, salt: u32) -> Vec<u8> {
    let words = (0..).flat_map(|n: u32| (n.wrapping_mul(2_654_435_761) ^ salt).to_le_bytes());
    words.take(len).collect()
}

/// All but the value of what a key holds.
fn head<D: Device + Clone>(rig: &Rig<D>, key: &[u8]) -> Option<Object<D::Buf>> {
    let mut found = rig.cache.lookup(&rig.cx, key, Access::Count);
    loop {
        match found {
            Lookup::Known(object) => return object,
            Lookup::Read(fetch) => found = rig.run(rig.cache.fetch(&rig.cx, key, fetch, Access::Count)),
        }
    }
}

fn read_range<D: Device + Clone>(rig: &Rig<D>, key: &[u8], range: std::ops::Range<u64>) -> Option<Vec<u8>> {
    let object = head(rig, key)?;
    let mut reader = rig.cache.reader(&rig.cx, key, &object);
    reader.range(range);
    let mut out = Vec::new();
    while let Some(pieces) = rig.run(reader.read()).ok()? {
        let before = out.len();
        for part in pieces.parts() {
            let Payload::Bytes(part) = part else {
                panic!("real bytes")
            };
            out.extend_from_slice(part);
        }
        assert_eq!(out.len() - before, pieces.len());
    }
    assert_eq!(reader.left(), 0);
    Some(out)
}

fn write<D: Device + Clone>(
    rig: &Rig<D>,
    key: &[u8],
    value: &[u8],
    new: NewObject<'_>,
) -> Result<u64, RejectReason> {
    let mut writer = rig.cache.begin(&rig.cx, key, new)?;
    let mut left = value;
    let mut step = 1;
    while !left.is_empty() {
        let now;
        (now, left) = left.split_at(step.min(left.len()));
        rig.run(writer.append(now))?;
        step = step * 3 + 1;
    }
    rig.run(writer.finish())
}

#[test]
fn what_comes_in_pieces_is_there_when_it_is_finished_and_any_range_of_it() {
    for flash_write in [FlashWrite::Insertion, FlashWrite::Eviction] {
        let rig = rig_with(CacheOptions {
            flash_write,
            dram_bytes: 4 << 20,
            block_bytes: Some(256 << 10),
            item_bytes_max: 8 << 20,
            ..CacheOptions::default()
        });
        let lens = [0, 1, 20_000, 65_000, 66_000, 1_000_000, 7_000_000];
        for (n, len) in lens.into_iter().enumerate() {
            for told in [true, false] {
                let (key, value) = (format!("{n}{told}").into_bytes(), bytes(len, n as u32));
                let new = NewObject {
                    meta: Meta {
                        flags: 5,
                        ..Meta::default()
                    },
                    len: told.then_some(len as u64),
                    ..NewObject::default()
                };
                assert!(write(&rig, &key, &value, new).is_ok());
                rig.settle();
                assert!(
                    rig.get(&key).as_ref() == Some(&value),
                    "{len} {told} {flash_write:?}"
                );
                assert_eq!(head(&rig, &key).map(|head| head.flags()), Some(5));
                let len = len as u64;
                for range in [
                    0..len,
                    0..1,
                    len / 2..len / 2 + 40_000,
                    len.saturating_sub(1)..u64::MAX,
                ] {
                    let there = range.start.min(len) as usize..range.end.min(len) as usize;
                    assert_eq!(
                        read_range(&rig, &key, range.clone()).as_deref(),
                        Some(&value[there])
                    );
                }
            }
        }
        rig.check();
    }
}

#[test]
fn a_range_reads_the_slices_that_it_touches() {
    let rig = rig_with(CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(256 << 10),
        item_bytes_max: 8 << 20,
        ..CacheOptions::default()
    });
    let value = bytes(2_000_000, 1);
    assert!(write(&rig, b"key", &value, NewObject::default()).is_ok());
    assert!(write(&rig, b"filler", &bytes(300_000, 2), NewObject::default()).is_ok());
    rig.settle();
    let reads = || rig.cache.stats().flash.record_reads;
    for (range, most) in [
        (1_000_000..1_000_001, 2),
        (500_000..530_000, 4),
        (0..2_000_000, 140),
    ] {
        let before = reads();
        let read = read_range(&rig, b"key", range.start as u64..range.end as u64);
        assert!(read.as_deref() == Some(&value[range.clone()]));
        let made = reads() - before;
        assert!((2..=most).contains(&made), "{range:?}: {made}");
    }
}

#[test]
fn what_is_not_finished_was_never_there_and_leaves_nothing() {
    let rig = rig();
    assert!(rig.set(b"key", b"older"));
    let value = bytes(1_000_000, 1);
    let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
    assert_eq!(rig.run(writer.append(&value)), Ok(()));
    assert!(rig.cache.books().resident().0 > 10, "slices");
    assert_eq!(rig.get(b"key").as_deref(), Some(&b"older"[..]));
    drop(writer);
    assert_eq!(rig.cache.books().resident().0, 1);
    // While it waits, too.
    let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
    while rig.poll_once(writer.append(&value)).is_some() {}
    assert_eq!(
        rig.run(writer.append(b"more")),
        Err(RejectReason::Length),
        "a gap"
    );
    drop(writer);
    rig.settle();
    assert_eq!(rig.cache.books().resident().0, 1);
    assert_eq!(rig.get(b"key").as_deref(), Some(&b"older"[..]));
    rig.check();
}

#[test]
fn a_value_of_another_length_than_was_told_is_refused() {
    let rig = rig();
    for told in [10, 500_000] {
        for len in [told - 1, told + 1] {
            assert!(rig.set(b"key", b"older"));
            let new = NewObject {
                len: Some(told as u64),
                ..NewObject::default()
            };
            assert_eq!(
                write(&rig, b"key", &bytes(len, 0), new),
                Err(RejectReason::Length)
            );
            assert_eq!(rig.get(b"key").as_deref(), Some(&b"older"[..]));
        }
    }
    let too_large = NewObject {
        len: Some(9 << 20),
        ..NewObject::default()
    };
    let refused = rig.cache.begin(&rig.cx, b"key", too_large).err();
    assert_eq!(refused, Some(RejectReason::TooLarge));
    assert_eq!(
        write(&rig, b"key", &bytes(9 << 20, 0), NewObject::default()),
        Err(RejectReason::TooLarge)
    );
    assert_eq!(rig.cache.books().resident().0, 1);
    rig.check();
}

#[test]
fn a_finish_on_a_condition_sees_the_newest_and_leaves_no_slices_where_it_does_not_hold() {
    let rig = rig();
    for len in [1_000, 300_000] {
        let value = bytes(len, 3);
        let begin = || {
            let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
            assert_eq!(rig.run(writer.append(&value)), Ok(()));
            writer
        };
        let mut writer = begin();
        assert!(rig.set(b"key", b"newer"));
        let kept = rig.run(writer.finish_if(|seen| {
            assert_eq!(seen.map(Object::to_vec).as_deref(), Some(&b"newer"[..]));
            None
        }));
        assert_eq!(kept, Outcome::Kept);
        drop(writer);
        assert_eq!(rig.cache.books().resident().0, 1);
        let version = rig.cache.begin(&rig.cx, b"key", NewObject::default()).ok();
        drop(version);
        let stored = rig.run(begin().finish_if(|seen| seen.map(|seen| seen.meta())));
        assert!(matches!(stored, Outcome::Stored { .. }), "{stored:?}");
        assert!(rig.get(b"key").as_ref() == Some(&value));
        assert!(rig.run(rig.cache.delete(&rig.cx, b"key")));
        assert_eq!(rig.cache.books().resident(), (0, 0));
        rig.check();
    }
}

#[test]
fn what_is_to_be_on_dram_alone_never_reaches_flash() {
    for flash_write in [FlashWrite::Insertion, FlashWrite::Eviction] {
        for len in [100, 30_000, 300_000] {
            let rig = rig_with(CacheOptions {
                flash_write,
                dram_bytes: 4 << 20,
                block_bytes: Some(256 << 10),
                ..CacheOptions::default()
            });
            let new = NewObject {
                never_on_flash: true,
                ..NewObject::default()
            };
            let value = bytes(len, 3);
            assert!(write(&rig, b"key", &value, new).is_ok());
            assert!(rig.get(b"key").as_ref() == Some(&value));
            assert_eq!(head(&rig, b"key").map(|head| head.tier()), Some(Tier::Dram));
            rig.run(rig.cache.close(&rig.cx)).unwrap();
            assert_eq!(rig.cache.stats().flash.appended_bytes, 0);
        }
    }
}

#[test]
fn what_came_before_a_refusal_is_there_for_followers() {
    let rig = rig_with(CacheOptions {
        item_bytes_max: 900_000,
        ..CacheOptions::default()
    });
    let value = bytes(1_000_000, 4);
    let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
    let mut reader = writer.follow().reader(&rig.cache, &rig.cx, 0);
    assert_eq!(rig.run(writer.append(&value[..800_000])), Ok(()));
    assert!(rig.run(writer.append(&value[800_000..])).is_err());
    assert_eq!(writer.appended(), 800_000);
    writer.end_following();
    assert_eq!(reader.left(), Some(800_000));
    let mut read = Vec::new();
    while let Some(pieces) = rig.run(reader.read()).expect("it is there") {
        for part in pieces.parts() {
            let Payload::Bytes(part) = part else { panic!() };
            read.extend_from_slice(part);
        }
    }
    assert!(read == value[..800_000]);
    drop(writer);
    assert!(rig.get(b"key").is_none());
    rig.check();
}

#[test]
fn followers_read_what_is_there_wait_for_the_rest_and_hear_of_a_failure() {
    use std::future::Future as _;
    use std::task::{Context, Poll, Waker};
    for (len, fails) in [(40_000, false), (900_000, false), (900_000, true)] {
        let rig = rig();
        let value = bytes(len, 9);
        let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
        let follow = writer.follow();
        let mut readers: Vec<_> = [0, 1_000, len as u64 / 2]
            .map(|at| {
                (
                    follow.reader(&rig.cache, &rig.cx, at),
                    value[at as usize..].to_vec(),
                    0,
                )
            })
            .into();
        let mut context = Context::from_waker(Waker::noop());
        for (n, piece) in value.chunks(17_000).enumerate() {
            assert_eq!(rig.run(writer.append(piece)), Ok(()));
            // The last falls behind.
            let followed = if n % 10 == 9 { 3 } else { 2 };
            for (reader, expected, at) in &mut readers[..followed] {
                loop {
                    let mut read = Box::pin(reader.read());
                    match read.as_mut().poll(&mut context) {
                        Poll::Ready(Ok(Some(pieces))) => {
                            for part in pieces.parts() {
                                let Payload::Bytes(part) = part else { panic!() };
                                assert!(expected[*at..].starts_with(part));
                                *at += part.len();
                            }
                        }
                        Poll::Ready(end) => panic!("{end:?}"),
                        Poll::Pending => break,
                    }
                }
            }
        }
        if fails {
            drop(writer);
        } else {
            assert!(rig.run(writer.finish()).is_ok());
        }
        for (mut reader, expected, mut at) in readers {
            let end = loop {
                match rig.run(reader.read()) {
                    Ok(Some(pieces)) => {
                        for part in pieces.parts() {
                            let Payload::Bytes(part) = part else { panic!() };
                            assert!(expected[at..].starts_with(part));
                            at += part.len();
                        }
                    }
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            assert_eq!(end, !fails);
            assert!(fails || at == expected.len());
        }
        rig.check();
    }
}

#[test]
fn a_head_is_replaced_alone_if_it_is_the_one_that_was_seen() {
    for len in [0, 1_000, 14_000, 40_000, 60_000, 1_000_000] {
        let rig = rig();
        let value = bytes(len, 3);
        let new = NewObject {
            head: &[1; 300],
            len: Some(len as u64),
            ..NewObject::default()
        };
        assert!(write(&rig, b"key", &value, new).is_ok());
        let seen = head(&rig, b"key").unwrap();
        assert_eq!(seen.head(), [1; 300]);
        let stale = seen.clone();
        let before = rig.cache.stats().flash.appended_bytes;
        let meta = Meta {
            flags: 8,
            ..seen.meta()
        };
        let replaced = rig.run(rig.cache.replace_head(&rig.cx, seen, &[2; 500], meta));
        assert!(matches!(replaced, Outcome::Stored { .. }));
        let appended = rig.cache.stats().flash.appended_bytes - before;
        assert!(appended <= 16 << 10, "{appended} for {len}");
        let lost = rig.run(rig.cache.replace_head(&rig.cx, stale, &[3; 500], meta));
        assert_eq!(lost, Outcome::Kept);
        let now = head(&rig, b"key").unwrap();
        assert_eq!((now.head(), now.flags()), (&[2; 500][..], 8));
        assert!(rig.get(b"key").as_ref() == Some(&value));
        rig.check();
    }
}

#[test]
fn after_a_crash_what_was_written_of_a_block_is_back_also_behind_long_heads() {
    let medium = Arc::new(MemMedium::new(32 << 20));
    let clock = Arc::new(ManualClock::new(1_000));
    let options = CacheOptions {
        block_bytes: Some(1 << 20),
        flush_interval_secs: 2,
        ..CacheOptions::default()
    };
    let open = || Rig::open(MemDevice::new(Arc::clone(&medium)), clock.clone(), options);
    let object = |n: usize| {
        (
            bytes(100 + n % 5_000, n as u32),
            bytes(n * 37 % HEAD_BYTES_MAX, !n as u32),
        )
    };
    let rig = open();
    let count = 90;
    for n in 0..count {
        let (value, head) = object(n);
        let new = NewObject {
            head: &head,
            ..NewObject::default()
        };
        write(&rig, format!("key-{n}").as_bytes(), &value, new).unwrap();
    }
    for _ in 0..4 {
        clock.advance_secs(1);
        rig.cache.tick(&rig.cx);
        rig.settle();
    }
    drop(rig);
    let rig = open();
    for n in 0..count {
        let (value, owned) = object(n);
        let found = head(&rig, format!("key-{n}").as_bytes()).unwrap_or_else(|| panic!("object {n} is lost"));
        assert!(found.head() == owned && found.to_vec() == value, "object {n}");
    }
}

#[test]
fn an_upload_that_a_flush_of_all_came_over_is_refused() {
    let rig = rig();
    let value = bytes(3 << 20, 1);
    let mut writer = rig.cache.begin(&rig.cx, b"key", NewObject::default()).unwrap();
    rig.run(writer.append(&value[..2 << 20])).unwrap();
    rig.cache.flush_all(&rig.cx, None);
    rig.run(writer.append(&value[2 << 20..])).unwrap();
    assert_eq!(rig.run(writer.finish()), Err(RejectReason::NoRoom));
    assert!(head(&rig, b"key").is_none());
    rig.settle();
    rig.cache.check_books().unwrap();
}

/// Slices go to flash as they come, also where other objects wait until DRAM evicts them.
#[test]
fn a_value_of_four_times_the_dram_comes_and_goes_however_small_objects_go_to_flash() {
    for flash_write in [FlashWrite::Insertion, FlashWrite::Eviction] {
        for told in [true, false] {
            let plan = FaultPlan {
                delay: true,
                ..FaultPlan::default()
            };
            let medium = Arc::new(FaultyMedium::new(32 << 20, 1, plan));
            let options = CacheOptions {
                flash_write,
                dram_bytes: 2 << 20,
                block_bytes: Some(256 << 10),
                item_bytes_max: 16 << 20,
                ..CacheOptions::default()
            };
            let rig = Rig::open(
                FaultyDevice::new(medium),
                Arc::new(ManualClock::new(1_000)),
                options,
            );
            let value = bytes(8 << 20, 7);
            let new = NewObject {
                len: told.then_some(value.len() as u64),
                head: b"beside it",
                ..NewObject::default()
            };
            let mut writer = rig.cache.begin(&rig.cx, b"key", new).unwrap();
            for (n, piece) in value.chunks(100_000).enumerate() {
                assert_eq!(
                    rig.run(writer.append(piece)),
                    Ok(()),
                    "{flash_write:?}, piece {n}"
                );
                rig.set(format!("other-{n}").as_bytes(), &piece[..2_000]);
            }
            assert!(rig.run(writer.finish()).is_ok());
            for _ in 0..2 {
                let read = read_range(&rig, b"key", 0..u64::MAX);
                assert!(read.as_ref() == Some(&value), "{flash_write:?}");
            }
            assert!(rig.run(rig.cache.close(&rig.cx)).is_ok());
            assert_eq!(rig.cache.books().evicted.0, 0);
            rig.cache.check_books().unwrap();
        }
    }
}

#[test]
fn a_value_longer_than_flash_holds_is_refused_before_it_takes_the_place_of_others() {
    for never_on_flash in [false, true] {
        let rig = rig_with(CacheOptions {
            dram_bytes: 4 << 20,
            block_bytes: Some(256 << 10),
            item_bytes_max: 1 << 30,
            ..CacheOptions::default()
        });
        assert!(rig.set(b"key", b"older"));
        for n in 0..100u32 {
            assert!(rig.set(&n.to_le_bytes(), &[7; 1_000]));
        }
        let most = if never_on_flash { 4 << 20 } else { 32 << 20 };
        for len in [Some(most), Some(1 << 29), None] {
            let new = NewObject {
                len,
                never_on_flash,
                ..NewObject::default()
            };
            let mut appended = 0;
            let refused = match rig.cache.begin(&rig.cx, b"key", new) {
                Err(reason) => reason,
                Ok(mut writer) => loop {
                    assert!(appended <= most && len.is_none());
                    if let Err(reason) = rig.run(writer.append(&[5; 100_000])) {
                        break reason;
                    }
                    appended += 100_000;
                },
            };
            assert_eq!(refused, RejectReason::TooLarge);
            assert_eq!(rig.get(b"key").as_deref(), Some(&b"older"[..]), "untouched");
            if len.is_some() {
                assert_eq!(rig.cache.books().resident().0, 101, "nothing has gone for it");
            }
        }
        // The longest that flash takes, but for a slice; of DRAM, which others' segments are open in, half.
        let is_taken = |len| {
            let new = NewObject {
                len: Some(len),
                never_on_flash,
                ..NewObject::default()
            };
            rig.cache.begin(&rig.cx, b"key", new).is_ok()
        };
        let (mut taken, mut refused) = (1, most);
        while taken + 1 < refused {
            let middle = (taken + refused) / 2;
            match is_taken(middle) {
                true => taken = middle,
                false => refused = middle,
            }
        }
        let fits = match never_on_flash {
            true => taken / 2,
            false => taken - (16 << 10),
        };
        let fits = bytes(fits as usize, 3);
        for len in [Some(fits.len() as u64), None] {
            let new = NewObject {
                len,
                never_on_flash,
                ..NewObject::default()
            };
            assert!(write(&rig, b"key", &fits, new).is_ok(), "{taken} bytes, {len:?}");
            assert!(rig.get(b"key").as_ref() == Some(&fits), "{taken} bytes, {len:?}");
        }
        rig.check();
    }
}

/// Whoever reads an object while another change comes has all of it as it was, or hears that it is gone.
#[test]
fn a_reader_gives_the_value_that_it_began_with_or_breaks() {
    type Change = fn(&Rig<MemDevice>);
    let changes: [(&str, Change, bool); 7] = [
        ("a small set", |rig| assert!(rig.set(b"key", b"newer")), true),
        (
            "a set that waits",
            |rig| assert!(write(rig, b"key", &bytes(900_000, 8), NewObject::default()).is_ok()),
            false,
        ),
        (
            "a set in slices",
            |rig| {
                let value = bytes(900_000, 9);
                let stored = rig
                    .cache
                    .set(&rig.cx, b"key", Payload::Bytes(&value), Meta::default());
                assert!(stored.is_ok());
            },
            false,
        ),
        (
            "a delete",
            |rig| assert!(rig.run(rig.cache.delete(&rig.cx, b"key"))),
            false,
        ),
        ("a flush of all", |rig| rig.cache.flush_all(&rig.cx, None), false),
        (
            "its expiry",
            |rig| {
                rig.clock.advance_secs(100);
                assert_eq!(rig.get(b"key"), None);
            },
            true,
        ),
        (
            "others",
            |rig| {
                for n in 0..40u32 {
                    let value = bytes(900_000, n + 50);
                    assert!(write(rig, &n.to_le_bytes(), &value, NewObject::default()).is_ok());
                }
                rig.settle();
            },
            false,
        ),
    ];
    for dram_bytes in [0, 4 << 20] {
        for (name, change, stays_whole) in changes {
            for reads_before in 0..3 {
                let rig = rig_with(CacheOptions {
                    dram_bytes,
                    block_bytes: Some(256 << 10),
                    ..CacheOptions::default()
                });
                let value = bytes(900_000, 1);
                let new = NewObject {
                    meta: Meta {
                        expiry: 1_050,
                        ..Meta::default()
                    },
                    ..NewObject::default()
                };
                assert!(write(&rig, b"key", &value, new).is_ok());
                rig.settle();
                let object = head(&rig, b"key").unwrap();
                let mut reader = rig.cache.reader(&rig.cx, b"key", &object);
                let (mut read, mut count) = (Vec::new(), 0);
                let is_whole = loop {
                    if count == reads_before {
                        change(&rig);
                    }
                    count += 1;
                    match rig.run(reader.read()) {
                        Ok(Some(pieces)) => {
                            for part in pieces.parts() {
                                let Payload::Bytes(part) = part else { panic!() };
                                read.extend_from_slice(part);
                            }
                        }
                        Ok(None) => break true,
                        Err(_) => break false,
                    }
                };
                assert!(
                    value.starts_with(&read),
                    "{name} after {reads_before} reads: mixed"
                );
                assert_eq!(is_whole, read.len() == value.len());
                assert!(is_whole || !stays_whole, "{name} after {reads_before} reads");
                rig.check();
            }
        }
    }
}

#[test]
fn a_store_of_another_format_is_refused_by_name() {
    let medium = Arc::new(MemMedium::new(32 << 20));
    let clock = Arc::new(ManualClock::new(1_000));
    let device = || MemDevice::new(Arc::clone(&medium));
    let rig = Rig::open(device(), clock.clone(), CacheOptions::default());
    assert!(rig.set(b"key", b"value"));
    assert!(rig.run(rig.cache.close(&rig.cx)).is_ok());
    drop(rig);
    for slot in [0, SECTOR_BYTES as u64] {
        let mut sector = vec![0; SECTOR_BYTES];
        device().read_log(slot, &mut sector).unwrap();
        let SlotContent::Valid(superblock) = Superblock::decode(&sector) else {
            panic!("it was written");
        };
        let store = StoreId {
            format: 3,
            ..superblock.store
        };
        let older = Superblock { store, ..superblock };
        device().append_log(slot, &older.encode()).unwrap();
    }
    let Err(refused) = Rig::try_open(device(), clock, CacheOptions::default()) else {
        panic!("it was opened");
    };
    let message = refused.to_string();
    for named in ["kind 1, format 3", "kind 1, format 4"] {
        assert!(message.contains(named), "{message}");
    }
}
