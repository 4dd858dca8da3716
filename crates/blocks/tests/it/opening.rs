//! A start on a device that another program, another kind of store or a fault has changed.

use crate::toy::STORE;
use crate::{Copies, OnlyCopy};
use pumice_blocks::chain::{NO_BLOCK, PartHeader};
use pumice_blocks::geometry::LOG_RECORD_BYTES;
use pumice_blocks::log::{Kind, LogRecord, OwnKind, PrefixMark};
use pumice_blocks::{Blocks, Geometry, Owner, SlotContent, State, StoreId, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use pumice_testkit::Store;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SECTOR: u64 = SECTOR_BYTES as u64;
const KEYS: u64 = 60;

pub fn device(medium: &Arc<FaultyMedium>) -> FaultyDevice {
    FaultyDevice::new(Arc::clone(medium))
}

pub fn open<S: Store>(medium: &Arc<FaultyMedium>) -> S {
    S::open(device(medium)).unwrap()
}

/// What a start says that does not come to its end.
fn refused<S: Store>(medium: &Arc<FaultyMedium>) -> String {
    S::open(device(medium)).map(drop).unwrap_err()
}

pub fn read(medium: &Arc<FaultyMedium>, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device(medium).read_log(offset, &mut bytes).unwrap();
    bytes
}

pub fn write(medium: &Arc<FaultyMedium>, offset: u64, bytes: &[u8]) {
    device(medium).append_log(offset, bytes).unwrap();
}

pub fn superblocks(medium: &Arc<FaultyMedium>) -> [Superblock; 2] {
    [0, SECTOR].map(
        |slot| match Superblock::decode(&read(medium, slot, SECTOR_BYTES)) {
            SlotContent::Valid(superblock) => superblock,
            other => panic!("slot at {slot}: {other:?}"),
        },
    )
}

pub fn newest(medium: &Arc<FaultyMedium>) -> Superblock {
    let [first, second] = superblocks(medium);
    if first.generation > second.generation {
        first
    } else {
        second
    }
}

/// A store on a device of its own, of which every value but the last few is on the device.
pub fn filled<S: Store>(capacity: u64, keys: u64) -> (Arc<FaultyMedium>, S) {
    filled_by(11, capacity, keys)
}

fn filled_by<S: Store>(seed: u64, capacity: u64, keys: u64) -> (Arc<FaultyMedium>, S) {
    let medium = Arc::new(FaultyMedium::new(capacity, seed, FaultPlan::default()));
    let mut store: S = open(&medium);
    for key in 0..keys {
        assert!(store.set(key, key * 7));
        if key % 8 == 0 {
            store.settle();
        }
    }
    store.settle();
    (medium, store)
}

pub fn crash<S: Store>(medium: &Arc<FaultyMedium>, store: S) {
    medium.crash();
    drop(store);
    medium.restart();
}

/// The superblock of a cache of format 3, as it stood in slot 1; all else of the sector is zero.
const FORMAT_3: [u64; 14] = [
    0x0A0D_4543_494D_5550,
    0xCD7C_0BF7_0000_0003,
    0x0123_4567_89AB_CDEF,
    0x2A,
    0x0400_0000,
    0x0001_0000,
    0x03F7,
    0x0A,
    0x2000,
    0x4000,
    0x0008_2000,
    1,
    0x6B49_D200_0000_0001,
    3,
];

#[test]
fn a_device_of_an_older_format_is_refused_by_name_and_stays_as_it_is() {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
    write(&medium, SECTOR, &FORMAT_3.map(u64::to_le_bytes).concat());
    let before = read(&medium, 0, 1 << 20);
    let message = refused::<Copies>(&medium);
    assert!(
        message.contains("format version 3") && message.contains("version 4"),
        "{message}"
    );
    assert!(before == read(&medium, 0, 1 << 20), "it was written to");
}

/// One superblock of zeros beside a damaged one is a format that was cut short only where nothing was stored yet.
#[test]
fn a_cache_without_superblocks_is_no_empty_device() {
    let damaged = |medium: &Arc<FaultyMedium>, slot| {
        let mut sector = read(medium, slot, SECTOR_BYTES);
        sector[100] ^= 1;
        write(medium, slot, &sector);
    };
    let zero = |medium: &Arc<FaultyMedium>, slot| write(medium, slot, &[0; SECTOR_BYTES]);
    for is_clean in [false, true] {
        for slot in [0, SECTOR] {
            let (medium, store) = filled::<OnlyCopy>(1 << 20, KEYS);
            match is_clean {
                true => store.close().unwrap(),
                false => crash(&medium, store),
            }
            zero(&medium, slot);
            damaged(&medium, SECTOR - slot);
            let before = read(&medium, 0, 1 << 20);
            assert!(refused::<OnlyCopy>(&medium).contains("both superblocks"));
            assert!(before == read(&medium, 0, 1 << 20), "it was written to");
        }
    }
    for slot in [0, SECTOR] {
        let (medium, store) = filled::<OnlyCopy>(1 << 20, 0);
        crash(&medium, store);
        let superblock = read(&medium, slot, SECTOR_BYTES);
        let medium = Arc::new(FaultyMedium::new(1 << 20, 11, FaultPlan::default()));
        write(&medium, slot, &superblock);
        damaged(&medium, slot);
        open::<OnlyCopy>(&medium).close().unwrap();
    }
    let (medium, store) = filled::<OnlyCopy>(1 << 20, 0);
    crash(&medium, store);
    [0, SECTOR].into_iter().for_each(|slot| damaged(&medium, slot));
    write(&medium, 2 * SECTOR, &[0; SECTOR_BYTES]);
    assert!(refused::<OnlyCopy>(&medium).contains("both superblocks"));
}

#[test]
fn another_kind_of_store_or_another_format_of_it_is_refused_and_stays_as_it_is() {
    let others = [
        StoreId { kind: 1, ..STORE },
        StoreId {
            format: STORE.format + 1,
            ..STORE
        },
    ];
    for other in others {
        let (medium, store) = filled::<Copies>(1 << 20, KEYS);
        crash(&medium, store);
        for superblock in superblocks(&medium) {
            let superblock = Superblock {
                store: other,
                ..superblock
            };
            write(&medium, superblock.slot_offset(), &superblock.encode());
        }
        let before = read(&medium, 0, 1 << 20);
        let message = refused::<Copies>(&medium);
        for store in [other, STORE] {
            let named = format!("kind {}, format {}", store.kind, store.format);
            assert!(message.contains(&named), "{message}");
        }
        assert!(before == read(&medium, 0, 1 << 20), "it was written to");
    }
}

#[test]
fn a_checkpoint_of_two_blocks_is_read_and_where_the_second_is_damaged_the_one_before_counts() {
    const MANY: u64 = 3_000;
    let (medium, store) = filled::<Copies>(16 << 20, MANY);
    store.close().unwrap();
    let superblock = newest(&medium);
    let [checkpoint, before] = superblock.checkpoints;
    let first = superblock.geometry.block_offset(checkpoint.first_block);
    let header = PartHeader::decode(superblock.cache_id, &read(&medium, first, SECTOR_BYTES)).unwrap();
    assert!(superblock.clean && header.next != NO_BLOCK && header.len < checkpoint.len && before.id != 0);
    let second = superblock.geometry.block_offset(header.next);
    for is_damaged in [false, true] {
        if is_damaged {
            medium.rot_at(second + SECTOR + 10);
        }
        let mut store: Copies = open(&medium);
        assert!(!store.has_forgotten());
        for key in 0..MANY {
            assert_eq!(store.get(key), Some(key * 7), "key {key}, damaged: {is_damaged}");
        }
        store.check();
        if is_damaged {
            assert_eq!(newest(&medium).checkpoints[1].id, 0);
            break;
        }
        // As it was: a start writes superblocks only.
        assert_eq!(newest(&medium).checkpoints[0], checkpoint);
        drop(store);
        for slot in [
            superblock,
            Superblock {
                generation: superblock.generation + 1,
                ..superblock
            },
        ] {
            write(&medium, slot.slot_offset(), &slot.encode());
        }
    }
}

/// Zeroes the record `back` before the end of a log; the store crashes.
fn lose_a_record<S: Store>(medium: &Arc<FaultyMedium>, store: S, geometry: &Geometry, position: u64) {
    crash(medium, store);
    let slot = position % geometry.log_slots;
    let record = [0; LOG_RECORD_BYTES as usize];
    write(medium, geometry.log_offset + slot * LOG_RECORD_BYTES, &record);
}

#[test]
fn a_gap_in_the_log_is_reported() {
    for back in [2, 7] {
        let (medium, store) = filled::<Copies>(1 << 20, KEYS);
        store.log_nothing(9);
        let (geometry, position) = (newest(&medium).geometry, store.base().journal.log.position());
        lose_a_record(&medium, store, &geometry, position - back);
        assert!(
            open::<Copies>(&medium).has_forgotten(),
            "{back}: copies start empty"
        );

        let (medium, store) = filled::<OnlyCopy>(1 << 20, KEYS);
        store.log_nothing(9);
        let (geometry, position) = (newest(&medium).geometry, store.base().journal.log.position());
        lose_a_record(&medium, store, &geometry, position - back);
        assert!(
            refused::<OnlyCopy>(&medium).contains("gap"),
            "{back}: the only copy is refused"
        );
    }
}

#[test]
fn a_log_that_is_not_there_is_reported() {
    for has_checkpoint in [false, true] {
        let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
        if has_checkpoint {
            store.log_nothing(3);
            store.checkpoint().unwrap();
        }
        assert_eq!(newest(&medium).checkpoints[0].id != 0, has_checkpoint);
        crash(&medium, store);
        let geometry = newest(&medium).geometry;
        let log = vec![0; (geometry.log_slots * LOG_RECORD_BYTES) as usize];
        let whole = read(&medium, geometry.log_offset, log.len());
        write(&medium, geometry.log_offset, &log);
        assert!(
            open::<Copies>(&medium).has_forgotten(),
            "checkpoint: {has_checkpoint}"
        );
        assert!(whole != log);
    }
    let (medium, store) = filled::<OnlyCopy>(1 << 20, KEYS);
    crash(&medium, store);
    let geometry = newest(&medium).geometry;
    let log = vec![0; (geometry.log_slots * LOG_RECORD_BYTES) as usize];
    write(&medium, geometry.log_offset, &log);
    assert!(refused::<OnlyCopy>(&medium).contains("missing"));
}

#[test]
fn no_start_goes_back_behind_the_checkpoint_of_an_unclean_one() {
    let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    assert!(newest(&medium).checkpoints[1].id != 0);
    store.log_nothing(5);
    crash(&medium, store);
    let store: Copies = open(&medium);
    let [first, second] = superblocks(&medium);
    assert_eq!(first.checkpoints[1].id + second.checkpoints[1].id, 0);
    assert_eq!(first.checkpoints[0], second.checkpoints[0]);
    // Nor is its log kept.
    let log = &store.base().journal.log;
    assert_eq!(log.usage().0, log.position() - first.checkpoints[0].log_start);
}

#[test]
fn no_start_goes_back_behind_a_record_that_was_lost() {
    let (medium, mut store) = filled::<Copies>(1 << 20, KEYS);
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    assert!(newest(&medium).checkpoints[1].id != 0);
    store.log_nothing(u64::MAX);
    store.delete(3);
    assert!(superblocks(&medium).iter().all(|superblock| superblock.discard));
    store.checkpoint().unwrap();
    let superblock = newest(&medium);
    assert_eq!((superblock.discard, superblock.checkpoints[1].id), (false, 0));
    store.checkpoint().unwrap();
    assert!(
        newest(&medium).checkpoints[1].id != 0,
        "from then on there are two again"
    );
}

/// An owner without records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Never {}

impl OwnKind for Never {
    fn number(self) -> u16 {
        match self {}
    }

    fn from_number(_: u16) -> Option<Self> {
        None
    }
}

/// Adds records to the log of a store that has crashed, from `position` on.
fn forge(medium: &Arc<FaultyMedium>, position: u64, records: &[(Kind<Never>, u64, u64)]) {
    let superblock = newest(medium);
    let geometry = superblock.geometry;
    for (position, (kind, a, b)) in (position..).zip(records) {
        let record = LogRecord {
            kind: *kind,
            position,
            a: *a,
            b: *b,
        };
        write(
            medium,
            geometry.record_offset(position),
            &record.encode(superblock.cache_id),
        );
    }
}

#[test]
fn sequences_go_on_above_all_that_were_taken_and_do_not_leap() {
    // Blocks that were sealed, a buffer that was lost, a prefix.
    let mut prefixes = 0;
    for (keys, is_flushed) in [(KEYS, false), (KEYS + 5, false), (KEYS + 5, true)] {
        let (medium, mut store) = filled::<Copies>(1 << 20, keys);
        if is_flushed {
            (0..4).for_each(|_| store.turn());
            store.settle();
        } else {
            // Until no buffer is left: all of them are lost, with sequences that no trailer shows.
            assert!((1_000..).take_while(|key| store.set(*key, 1)).count() > 16);
        }
        let (before, position) = (store.next_sequence(), store.base().journal.log.position());
        crash(&medium, store);
        // No block ever has such a sequence; blocks that there are not count for nothing.
        let mark = PrefixMark {
            block: 2,
            end_sectors: 1,
            own: 0,
        };
        let nowhere = PrefixMark { block: 500, ..mark };
        let behind = PrefixMark {
            block: newest(&medium).geometry.blocks,
            ..mark
        };
        let records = [
            (Kind::Reclaim, 2, 1 << 62),
            (Kind::Reclaim, 2, u64::MAX),
            (Kind::Prefix, mark.encode(), 1 << 62),
            (Kind::Prefix, mark.encode(), u64::MAX),
            (Kind::Prefix, nowhere.encode(), before),
            (Kind::Prefix, behind.encode(), before),
            (Kind::Reclaim, 500, before),
            (Kind::Reclaim, u64::MAX, before),
        ];
        forge(&medium, position, &records);
        let mut store: Copies = open(&medium);
        assert!(!store.has_forgotten());
        let (blocks, next) = (newest(&medium).geometry.blocks, store.next_sequence());
        let highest = before + u64::from(blocks) + 2;
        assert!((before..=highest).contains(&next), "{next}, before {before}");
        for key in 0..KEYS - 16 {
            assert_eq!(store.get(key), Some(key * 7), "key {key}");
        }
        store.check();
        prefixes += store.found.prefixes;
    }
    assert_eq!(prefixes, 1, "of the one that was flushed");
}

/// A store with a checkpoint that knows a sealed block whose trailer has rotted since; the number of that block.
fn without_a_block<S: Store>(parts: impl Fn(&mut S) -> u32) -> (Arc<FaultyMedium>, u32) {
    let (medium, mut store) = filled::<S>(1 << 20, KEYS);
    let block = parts(&mut store);
    crash(&medium, store);
    let geometry = newest(&medium).geometry;
    medium.rot_at(geometry.block_offset(block) + geometry.block_bytes - 60);
    (medium, block)
}

#[test]
fn a_sealed_block_that_is_not_there_any_more_is_reported() {
    let (medium, block) = without_a_block(|store: &mut Copies| {
        store.checkpoint().unwrap();
        store.oldest_sealed()
    });
    let mut store: Copies = open(&medium);
    assert_eq!(store.found.lost, [block]);
    let gone = (0..KEYS - 16).filter(|key| store.get(*key).is_none()).count();
    assert!((1..=16).contains(&gone), "{gone} of one block");
    crash(&medium, store);
    // The checkpoint of that start does not know it any more.
    assert!(open::<Copies>(&medium).found.lost.is_empty());

    let (medium, _) = without_a_block(|store: &mut OnlyCopy| {
        store.checkpoint().unwrap();
        store.oldest_sealed()
    });
    assert!(refused::<OnlyCopy>(&medium).contains("a block is not there"));
}

#[test]
fn the_beginning_of_a_block_that_was_sealed_before_the_checkpoint_is_not_adopted() {
    let (medium, block) = without_a_block(|store: &mut Copies| {
        store.checkpoint().unwrap();
        let block = store.oldest_sealed();
        // As where its beginning was written and it was sealed while an older one was still being written.
        let mark = PrefixMark {
            block,
            end_sectors: 15,
            own: 0,
        };
        let sequence = store.base().blocks[block as usize]
            .sequence
            .load(Ordering::Relaxed);
        let (medium, position) = (
            Arc::clone(store.toy.device.medium()),
            store.base().journal.log.position(),
        );
        forge(&medium, position, &[(Kind::Prefix, mark.encode(), sequence)]);
        block
    });
    let mut store: Copies = open(&medium);
    assert_eq!((&store.found.lost[..], store.found.prefixes), (&[block][..], 0));
    // What of it had died by then the log need not tell.
    let gone = (0..KEYS - 16).filter(|key| store.get(*key).is_none()).count();
    assert!((1..=16).contains(&gone), "{gone} of one block");
}

/// Power is cut while the start mends its log: the record is there before a superblock says that the stop was not clean.
#[test]
fn a_power_cut_within_the_start_that_mends_a_log_loses_nothing() {
    for (point, seed) in (1..=4).flat_map(|point| (0..16).map(move |seed| (point, seed))) {
        let (medium, store) = filled_by::<OnlyCopy>(seed, 1 << 20, KEYS);
        store.close().unwrap();
        let superblock = newest(&medium);
        let (geometry, start) = (superblock.geometry, superblock.checkpoints[0].log_start);
        let nothing = [0; LOG_RECORD_BYTES as usize];
        write(&medium, geometry.record_offset(start - 1), &nothing);
        medium.set_plan(FaultPlan {
            volatile: true,
            crash: Some(CrashPoint::WriteOrAppend(point)),
            ..FaultPlan::default()
        });
        drop(OnlyCopy::open(device(&medium)));
        medium.cut_power();
        medium.restart();
        medium.set_plan(FaultPlan::default());
        let mut store: OnlyCopy = open(&medium);
        for key in 0..KEYS {
            assert_eq!(store.get(key), Some(key * 7), "key {key}, cut at {point}");
        }
    }
}

/// A start after a clean stop needs no log before that, and neither does the start after it.
fn needs_no_log_before_a_clean_stop<S: Store>(blocks: impl Fn(&S) -> usize) {
    let (medium, store) = filled::<S>(1 << 20, KEYS);
    store.close().unwrap();
    let superblock = newest(&medium);
    assert!(superblock.clean && superblock.checkpoints[0].log_start > 0);
    let log = vec![0; (superblock.geometry.log_slots * LOG_RECORD_BYTES) as usize];
    write(&medium, superblock.geometry.log_offset, &log);
    for _ in 0..2 {
        let mut store: S = open(&medium);
        assert!(!store.has_forgotten());
        for key in 0..KEYS {
            assert_eq!(store.get(key), Some(key * 7), "key {key}");
        }
        let sealed = KEYS.div_ceil(16) as usize;
        assert_eq!(blocks(&store), sealed, "and no other block has any");
        crash(&medium, store);
    }
}

#[test]
fn a_clean_stop_needs_no_log_before_it() {
    fn sealed<O: Owner>(base: &Blocks<O>) -> usize {
        let blocks = base.blocks.iter();
        blocks.filter(|block| block.state() == State::Sealed).count()
    }
    needs_no_log_before_a_clean_stop(|store: &Copies| sealed(store.base()));
    needs_no_log_before_a_clean_stop(|store: &OnlyCopy| sealed(store.base()));
}
