//! Slots of a cascade index through restarts: what was asked for stays what it was, and a checkpoint that lies about slots costs
//! misses at most.

use crate::common::{
    Model, Random, Rig, Weights, check_get, clock, gdsf, key, narrow_tier1, ripq, step, value,
};
use pumice::{CacheOptions, CascadeOptions, IndexOptions, LayoutOptions};
use pumice_blocks::superblock::{CheckpointRef, SlotContent, Superblock};
use pumice_device::{Device, MemDevice, MemMedium, SECTOR_BYTES};
use pumice_record::codec::{Fields, checksum};
use pumice_world::ManualClock;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK_BYTES: u64 = 64 << 10;
/// Bytes of a checkpoint's stream in a block, which at this size are one chunk.
const ROOM: usize = BLOCK_BYTES as usize - SECTOR_BYTES;
const NO_BLOCK: u32 = u32::MAX;
const DEAD: [u64; 2] = [127, 31];

fn options(layout: LayoutOptions, index: CascadeOptions) -> CacheOptions {
    CacheOptions {
        dram_bytes: 0,
        block_bytes: Some(BLOCK_BYTES),
        item_bytes_max: 200 << 10,
        buffers_max: 10,
        index: IndexOptions::Cascade(index),
        layout,
        ..CacheOptions::default()
    }
}

/// `clock`, `ripq`, and `ripq` with accesses: slots of 1, 7 and 7 bits.
fn layouts() -> [(LayoutOptions, u32); 3] {
    [(clock(), 1), (ripq(), 7), (gdsf(), 7)]
}

/// Everything in tier 1.
fn wide_tier1() -> CascadeOptions {
    CascadeOptions {
        tier1_min: 5_000,
        tier1_share: 1.0,
        page_entries: 4,
    }
}

fn open(medium: &Arc<MemMedium>, options: CacheOptions) -> Rig<MemDevice> {
    let clock = Arc::new(ManualClock::new(1_000));
    Rig::open(MemDevice::new(Arc::clone(medium)), clock, options)
}

fn close(rig: Rig<MemDevice>) {
    rig.run(rig.cache.close(&rig.cx)).unwrap();
}

/// The slots of one block in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockSlots {
    len: u32,
    strides: Vec<u32>,
    words: Vec<u64>,
}

impl BlockSlots {
    fn values(&self, width: u32) -> Vec<u64> {
        let per_word = 64 / width;
        let slot =
            |n: u32| self.words[(n / per_word) as usize] >> (n % per_word * width) & ((1 << width) - 1);
        (0..self.len).map(slot).collect()
    }

    /// Another number of slots: what is new is above all that was there.
    fn resize(&mut self, len: u32, width: u32) {
        let mut last = self.strides.last().map_or(0, |offset| offset + 16);
        self.len = len;
        self.strides.truncate(len.div_ceil(64) as usize);
        while self.strides.len() < len.div_ceil(64) as usize {
            self.strides.push(last);
            last += 16;
        }
        self.words.resize(len.div_ceil(64 / width) as usize, 0);
    }
}

/// A checkpoint's stream, taken from a medium.
struct Checkpoint {
    superblock: Superblock,
    blocks: Vec<u32>,
    before: Vec<u8>,
    width: u8,
    slots: Vec<(u32, BlockSlots)>,
}

impl Checkpoint {
    fn load(medium: &Arc<MemMedium>) -> Self {
        let device = MemDevice::new(Arc::clone(medium));
        let read = |offset: u64, len: usize| {
            let mut bytes = vec![0; len];
            device.read_log(offset, &mut bytes).unwrap();
            bytes
        };
        let newest = [0, SECTOR_BYTES as u64].into_iter().filter_map(|offset| {
            match Superblock::decode(&read(offset, SECTOR_BYTES)) {
                SlotContent::Valid(superblock) => Some(superblock),
                _ => None,
            }
        });
        let superblock = newest.max_by_key(|superblock| superblock.generation).unwrap();
        assert!(superblock.clean);
        let (mut blocks, mut stream) = (Vec::new(), Vec::new());
        let mut next = superblock.checkpoints[0].first_block;
        while next != NO_BLOCK {
            blocks.push(next);
            let offset = superblock.geometry.block_offset(next);
            let header = read(offset, 40);
            let mut fields = Fields(&header[20..]);
            next = fields.u32().unwrap();
            let len = fields.u64().unwrap() as usize;
            stream.extend(read(offset + SECTOR_BYTES as u64, len));
        }
        let at = slots_at(&stream);
        let (width, slots) = decode(&stream[at..]);
        let checkpoint = Self {
            superblock,
            blocks,
            before: stream[..at].to_vec(),
            width,
            slots,
        };
        assert_eq!(checkpoint.tail(), stream[at..]);
        checkpoint
    }

    /// The slots as they are written.
    fn tail(&self) -> Vec<u8> {
        let mut bytes = vec![self.width];
        for (block, slots) in &self.slots {
            bytes.extend(block.to_le_bytes());
            bytes.extend(slots.len.to_le_bytes());
            bytes.extend(slots.strides.iter().flat_map(|offset| offset.to_le_bytes()));
            bytes.extend(slots.words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend(NO_BLOCK.to_le_bytes());
        bytes
    }

    /// Writes the checkpoint with these slots instead, and all checksums as they must be. There is no other one.
    fn store(&self, medium: &Arc<MemMedium>, tail: &[u8]) {
        let device = MemDevice::new(Arc::clone(medium));
        let stream = [&self.before, tail].concat();
        let mut superblock = self.superblock;
        let parts = stream.len().div_ceil(ROOM);
        assert!(parts <= self.blocks.len(), "{} bytes", stream.len());
        for (part, bytes) in stream.chunks(ROOM).enumerate() {
            let next = if part + 1 < parts {
                self.blocks[part + 1]
            } else {
                NO_BLOCK
            };
            let mut header = vec![0; 40];
            header[4..8].copy_from_slice(b"PMcp");
            header[8..16].copy_from_slice(&superblock.checkpoints[0].id.to_le_bytes());
            header[16..20].copy_from_slice(&(part as u32).to_le_bytes());
            header[20..24].copy_from_slice(&next.to_le_bytes());
            header[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            let crc = u64::from(checksum(superblock.cache_id, &[bytes]));
            header[32..40].copy_from_slice(&crc.to_le_bytes());
            let crc = checksum(superblock.cache_id, &[&header[4..]]);
            header[..4].copy_from_slice(&crc.to_le_bytes());
            let offset = superblock.geometry.block_offset(self.blocks[part]);
            device.append_log(offset, &header).unwrap();
            device.append_log(offset + SECTOR_BYTES as u64, bytes).unwrap();
        }
        superblock.checkpoints[0].len = stream.len() as u64;
        superblock.checkpoints[1] = CheckpointRef::default();
        for _ in 0..2 {
            superblock.generation += 1;
            let offset = superblock.slot_offset();
            device.append_log(offset, &superblock.encode()).unwrap();
        }
    }
}

/// Where the slots begin in the stream of a cache without keys of `sipq`; see docs/formats.md.
fn slots_at(stream: &[u8]) -> usize {
    let mut fields = Fields(stream);
    fields.bytes(16).unwrap();
    let rows = fields.u32().unwrap() as usize;
    fields.bytes(rows * 17 + 4).unwrap();
    let shards = fields.u32().unwrap();
    fields.bytes(4 + rows * 4).unwrap();
    let places = fields.u32().unwrap() as usize;
    fields.bytes(places * 9 + 20).unwrap();
    for _ in 0..2 {
        let ranks = fields.u32().unwrap() as usize;
        fields.bytes(ranks * 24).unwrap();
    }
    for _ in 0..shards {
        fields.u64().unwrap();
        let len = fields.u64().unwrap() as usize;
        fields.bytes(len).unwrap();
    }
    // What was invalidated.
    fields.u64().unwrap();
    for _ in 0..fields.u32().unwrap() {
        fields.bytes(16).unwrap();
        let words = fields.u64().unwrap() as usize;
        fields.bytes(words * 8).unwrap();
    }
    stream.len() - fields.0.len()
}

fn decode(bytes: &[u8]) -> (u8, Vec<(u32, BlockSlots)>) {
    let mut fields = Fields(bytes);
    let [width] = fields.array().unwrap();
    let mut slots = Vec::new();
    loop {
        let block = fields.u32().unwrap();
        if block == NO_BLOCK {
            assert!(fields.0.is_empty());
            return (width, slots);
        }
        let len = fields.u32().unwrap();
        let words = len.div_ceil(64 / u32::from(width));
        let saved = BlockSlots {
            len,
            strides: (0..len.div_ceil(64)).map(|_| fields.u32().unwrap()).collect(),
            words: (0..words).map(|_| fields.u64().unwrap()).collect(),
        };
        slots.push((block, saved));
    }
}

/// Objects of which every fourth is asked for, then a turn of the flash with new ones: the shares that are left of those asked for
/// and of the others.
fn shares_left(layout: LayoutOptions, index: CascadeOptions, blocks: u64, restart: bool) -> (f64, f64) {
    let (old, turn) = (blocks * 1_000 / 192, blocks * 6_000 / 192);
    let options = options(layout, index);
    let medium = Arc::new(MemMedium::new(blocks * BLOCK_BYTES));
    let mut rig = open(&medium, options);
    // Others first, so that under `ripq` too the flash is full, and what is new stands in the lower third.
    for n in (50_000..50_000 + turn).chain(0..old) {
        assert!(rig.set(&key(n), &value(n, 0, 2_000)));
        rig.settle();
    }
    for n in (0..old).step_by(4) {
        assert!(rig.get(&key(n)).is_some());
    }
    if restart {
        close(rig);
        rig = open(&medium, options);
        assert!(
            rig.recovered.clean && rig.recovered.objects > blocks * 25,
            "{:?}",
            rig.recovered
        );
        rig.check();
    }
    for n in 10_000..10_000 + turn {
        assert!(rig.set(&key(n), &value(n, 0, 2_000)));
        rig.settle();
    }
    rig.check();
    let survivors = rig.cache.stats().flash.survivors;
    assert!(survivors > old / 10, "{survivors} objects were moved");
    let (mut hot, mut cold) = (0, 0);
    for n in 0..old {
        let got = rig.get(&key(n));
        assert!(got.as_ref().is_none_or(|got| *got == value(n, 0, 2_000)));
        let counter = if n % 4 == 0 { &mut hot } else { &mut cold };
        *counter += u64::from(got.is_some());
    }
    (hot as f64 / (old / 4) as f64, cold as f64 / (old * 3 / 4) as f64)
}

#[test]
fn what_was_asked_for_before_a_clean_stop_outlives_its_block_and_the_rest_does_not() {
    // Of few blocks none are kept free ahead of need.
    let few = layouts().into_iter().take(2).map(|layout| (64, layout));
    for (blocks, (layout, width)) in few.chain(layouts().map(|layout| (192, layout))) {
        let before = shares_left(layout, wide_tier1(), blocks, false);
        let after = shares_left(layout, wide_tier1(), blocks, true);
        println!("{blocks} blocks, width {width}: {before:?} without a restart, {after:?} with one");
        // A hit under gdsf counts for less the longer ago it was.
        let hot_min = if layout.policy.is_absolute() { 0.5 } else { 0.8 };
        assert!(before.0 > hot_min && before.1 < 0.1, "width {width}: {before:?}");
        assert!(after.0 > hot_min && after.1 < 0.1, "width {width}: {after:?}");
    }
}

#[test]
fn blocks_of_kept_objects_are_known_again_after_a_clean_stop_and_after_a_kill() {
    let (clock, width) = layouts()[0];
    assert_eq!(width, 1);
    for kill in [false, true] {
        let options = options(clock, wide_tier1());
        let medium = Arc::new(MemMedium::new(64 * BLOCK_BYTES));
        let mut rig = open(&medium, options);
        for n in 0..4_000 {
            assert!(rig.set(&key(n), &value(n, 0, 2_000)));
            rig.settle();
            // One of four is asked for while it is new, and some of what was kept.
            for asked in [n.saturating_sub(40), n.saturating_sub(900)] {
                if asked % 4 == 0 {
                    rig.get(&key(asked));
                }
            }
        }
        let (kept, sealed) = (rig.cache.stats().blocks_kept, rig.cache.stats().blocks_sealed);
        assert!(kept > 10 && kept < sealed, "{kept} of {sealed} blocks");
        if kill {
            drop(rig);
        } else {
            close(rig);
        }
        rig = open(&medium, options);
        assert_eq!(rig.recovered.clean, !kill);
        let again = rig.cache.stats().blocks_kept;
        // A clean stop writes the open block of kept objects too; what a kill had open is gone.
        assert!(
            (kept..=kept + 1).contains(&again),
            "{kept}, then {again}, kill {kill}"
        );
        rig.check();
    }
}

#[test]
fn after_a_clean_stop_it_is_known_what_was_invalidated() {
    // Nearly all mappings are on flash: their objects are kept only if it is known that nothing took their place.
    let index = CascadeOptions {
        tier1_min: 10,
        tier1_share: 0.05,
        page_entries: 50,
    };
    for (layout, width) in layouts().into_iter().take(2) {
        let before = shares_left(layout, index, 192, false);
        let after = shares_left(layout, index, 192, true);
        println!("width {width}: {before:?} without a restart, {after:?} with one");
        assert!(before.0 > 0.8 && before.1 < 0.1, "width {width}: {before:?}");
        assert!(after.0 > 0.8 && after.1 < 0.1, "width {width}: {after:?}");
    }
}

/// A cache with some history, cleanly closed, and what it may hold.
fn history(options: CacheOptions, seed: u64) -> (Arc<MemMedium>, Model) {
    let medium = Arc::new(MemMedium::new(3 << 20));
    let rig = open(&medium, options);
    let (mut model, mut random) = (Model::default(), Random(seed));
    for n in 0..3_000 {
        step(&rig, &mut model, &mut random, &weights(), n, KEYS, false);
    }
    rig.check();
    close(rig);
    (medium, model)
}

const KEYS: u64 = 500;

fn weights() -> Weights {
    Weights {
        get: 30,
        set: 30,
        large: 3,
        delete: 4,
        append: 2,
        touch: 2,
        flush: 0,
        tick: 0,
    }
}

#[test]
fn a_restart_saves_the_slots_that_it_found() {
    for (layout, width) in layouts() {
        for index in [narrow_tier1(), wide_tier1()] {
            let options = options(layout, index);
            let (medium, _) = history(options, 6);
            let before = Checkpoint::load(&medium);
            assert_eq!(u32::from(before.width), width);
            let mut kinds = BTreeMap::new();
            for (_, slots) in &before.slots {
                for slot in slots.values(width) {
                    *kinds.entry(slot).or_insert(0) += 1;
                }
            }
            println!("width {width}: {kinds:?}");
            assert!(kinds.len() as u32 >= 2 * width.min(4), "{kinds:?}");
            assert!(
                width == 1 || DEAD.iter().any(|dead| kinds.contains_key(dead)),
                "{kinds:?}"
            );
            let rig = open(&medium, options);
            assert!(rig.recovered.clean);
            rig.check();
            close(rig);
            let after = Checkpoint::load(&medium);
            assert_eq!(after.slots, before.slots);
        }
    }
}

fn copy_of(medium: &Arc<MemMedium>) -> Arc<MemMedium> {
    let mut bytes = vec![0; medium.capacity() as usize];
    let copy = Arc::new(MemMedium::new(medium.capacity()));
    MemDevice::new(Arc::clone(medium))
        .read_log(0, &mut bytes)
        .unwrap();
    MemDevice::new(Arc::clone(&copy)).append_log(0, &bytes).unwrap();
    copy
}

/// Opens a cache whose slots somebody has written, uses it, and restarts it once more.
fn use_it(medium: &Arc<MemMedium>, options: CacheOptions, mut model: Model, discards: bool, what: &str) {
    let rig = open(medium, options);
    assert_eq!(rig.recovered.discarded, discards, "{what}: {:?}", rig.recovered);
    rig.check();
    for n in 0..KEYS {
        check_get(&rig, &mut model, n, false);
    }
    assert!(discards == (model.hits == 0), "{what}: {} hits", model.hits);
    rig.check();
    let mut random = Random(99);
    for n in 0..1_200 {
        step(&rig, &mut model, &mut random, &weights(), 10_000 + n, KEYS, false);
        if n % 200 == 199 {
            rig.check();
        }
    }
    let counts = rig.cache.stats().flash;
    assert!(counts.reclaimed_blocks > 3, "{what}");
    assert_eq!(
        counts.corrupt_records, 0,
        "{what}: nothing leads to another generation of a block"
    );
    close(rig);
    let rig = open(medium, options);
    assert!(rig.recovered.clean, "{what}");
    rig.check();
    for n in 0..KEYS {
        check_get(&rig, &mut model, n, false);
    }
}

/// What is done to the slots of each block.
type Change = fn(&mut BlockSlots, u32, &mut Random);

#[test]
fn slots_that_lie_cost_misses_at_most() {
    let changes: [(&str, Change); 9] = [
        ("none", |slots, width, _| slots.resize(0, width)),
        ("half of them", |slots, width, _| {
            slots.resize(slots.len / 2, width)
        }),
        ("one", |slots, width, _| slots.resize(1, width)),
        ("too many", |slots, width, _| slots.resize(slots.len + 70, width)),
        ("all new", |slots, _, _| slots.words.fill(0)),
        ("all bits set", |slots, _, _| slots.words.fill(u64::MAX)),
        ("one group", |slots, _, _| slots.words.fill(0x1111_1111_1111_1111)),
        ("any words", |slots, _, random| {
            slots.words.iter_mut().for_each(|word| *word = random.next_u64());
        }),
        ("other offsets", |slots, _, random| {
            let first = random.below(1_000) as u32;
            for (at, offset) in (0..).zip(&mut slots.strides) {
                *offset = (first + at * 1_000) / 16 * 16;
            }
        }),
    ];
    let mut random = Random(1);
    for (layout, width) in layouts() {
        let options = options(layout, narrow_tier1());
        let (medium, model) = history(options, 8);
        for (what, change) in changes {
            let medium = copy_of(&medium);
            let mut checkpoint = Checkpoint::load(&medium);
            for (_, slots) in &mut checkpoint.slots {
                change(slots, width, &mut random);
            }
            checkpoint.store(&medium, &checkpoint.tail());
            let model = Model {
                live: model.live.clone(),
                ..Model::default()
            };
            use_it(&medium, options, model, false, &format!("width {width}, {what}"));
        }
    }
}

#[test]
fn slots_of_wrong_blocks_or_widths_cost_misses_at_most_and_damage_empties_the_cache() {
    /// Changes the checkpoint and says what is to be written as slots, and whether that is damage.
    type Forgery = fn(&mut Checkpoint) -> (Vec<u8>, bool);
    let forgeries: [(&str, Forgery); 11] = [
        ("as they were", |checkpoint| (checkpoint.tail(), false)),
        ("no block", |checkpoint| {
            checkpoint.slots.clear();
            (checkpoint.tail(), false)
        }),
        ("each the next one's", |checkpoint| {
            let mut blocks: Vec<u32> = checkpoint.slots.iter().map(|(block, _)| *block).collect();
            blocks.rotate_left(1);
            for ((block, _), other) in checkpoint.slots.iter_mut().zip(blocks) {
                *block = other;
            }
            (checkpoint.tail(), false)
        }),
        ("all one block's", |checkpoint| {
            let first = checkpoint.slots[0].0;
            checkpoint.slots.iter_mut().for_each(|(block, _)| *block = first);
            (checkpoint.tail(), false)
        }),
        ("blocks of the checkpoint", |checkpoint| {
            let own = checkpoint.blocks[0];
            checkpoint.slots[0].0 = own;
            (checkpoint.tail(), false)
        }),
        ("another width", |checkpoint| {
            checkpoint.width = 2;
            for (_, slots) in &mut checkpoint.slots {
                slots.resize(slots.len, 2);
            }
            (checkpoint.tail(), false)
        }),
        ("a width of nothing", |checkpoint| {
            checkpoint.width = 0;
            for (_, slots) in &mut checkpoint.slots {
                slots.resize(slots.len, 1);
            }
            (checkpoint.tail(), false)
        }),
        ("a width that no slot has", |checkpoint| {
            checkpoint.width = 9;
            (checkpoint.tail(), true)
        }),
        ("a block outside the device", |checkpoint| {
            checkpoint.slots[0].0 = NO_BLOCK - 1;
            (checkpoint.tail(), true)
        }),
        ("cut off", |checkpoint| {
            let mut tail = checkpoint.tail();
            tail.truncate(tail.len() * 2 / 3);
            (tail, true)
        }),
        ("a count of what is not there", |checkpoint| {
            let mut tail = checkpoint.tail();
            tail[5..9].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
            (tail, true)
        }),
    ];
    for (layout, width) in layouts() {
        let options = options(layout, narrow_tier1());
        let (medium, model) = history(options, 8);
        for (what, forge) in forgeries {
            let medium = copy_of(&medium);
            let mut checkpoint = Checkpoint::load(&medium);
            let (tail, damages) = forge(&mut checkpoint);
            checkpoint.store(&medium, &tail);
            let model = Model {
                live: model.live.clone(),
                ..Model::default()
            };
            use_it(
                &medium,
                options,
                model,
                damages,
                &format!("width {width}, {what}"),
            );
        }
    }
}
