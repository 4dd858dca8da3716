//! A partition against a model: what it says is right or a miss, and what must hit does, but for some in a thousand.

mod answers;

use super::filter::{Cell, FilterShape};
use super::flash_tiers::{GENERATION_CELL_BITS, GENERATION_PAGES};
use super::*;
use crate::full::IndexShape;
use crate::{Heard, KeyHash, Known, Lookup, Mapping, StoredCopy, Survivor};
use locks::Mutex;
use pumice_memory::PagePool;
use pumice_world::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK_BYTES: u64 = 1 << 20;
const BLOCKS: u64 = 64;
const UNIT: u64 = 16;
/// Blocks that new objects go round in, and those that moved ones do.
const RINGS: [std::ops::Range<u64>; 2] = [1..BLOCKS - 16, BLOCKS - 16..BLOCKS];

/// Pages in memory, and blocks whose sequences go up.
#[derive(Default)]
struct Space {
    pages: Mutex<BTreeMap<PageNumber, [u8; PAGE_PAYLOAD_BYTES]>>,
    next: Mutex<PageNumber>,
    is_full: AtomicBool,
    written: AtomicU64,
    due: AtomicU64,
    charged: AtomicU64,
    sequences: Mutex<Vec<u64>>,
    /// The block that is being reclaimed.
    leaving: Mutex<Option<u64>>,
    oldest: AtomicU64,
}

impl MapSpace for Space {
    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
    }

    fn put(&self, payload: &[u8; PAGE_PAYLOAD_BYTES]) -> Option<PageNumber> {
        let mut next = self.next.lock();
        *next += 1;
        self.pages.lock().insert(*next, *payload);
        self.written.fetch_add(1, Ordering::Relaxed);
        Some(*next)
    }

    fn charge(&self, before: usize, after: usize) {
        let charged = self.charged.load(Ordering::Relaxed);
        self.charged
            .store(charged - before as u64 + after as u64, Ordering::Relaxed);
    }

    fn wants_reorganisation(&self, _: u32) {
        self.due.fetch_add(1, Ordering::Relaxed);
    }

    fn release(&self, page: PageNumber) {
        assert!(self.pages.lock().remove(&page).is_some(), "released twice");
    }

    fn generation_at(&self, location: Location) -> Generation {
        let block = location.offset / BLOCK_BYTES;
        let sequence = self.sequences.lock()[block as usize];
        if *self.leaving.lock() == Some(block) {
            Generation::Ending(sequence)
        } else {
            Generation::Sequence(sequence)
        }
    }

    fn oldest_generation(&self) -> u64 {
        self.oldest.load(Ordering::Relaxed)
    }

    fn next_generation(&self) -> u64 {
        self.sequences.lock().iter().max().map_or(0, |latest| latest + 1)
    }
}

struct Model {
    shard: CascadeShard,
    space: Arc<Space>,
    /// What each key is mapped to.
    live: BTreeMap<KeyHash, Location>,
    /// What each block was written with.
    blocks: Vec<Vec<(KeyHash, Location)>>,
    /// Copies that are known to be dead, as slots say it: tier 1 had their mappings when they were superseded or moved, or a
    /// reorganisation has named them.
    dead: BTreeSet<Location>,
    /// Live copies in victims of which tier 1 did not know, and those of them that were told to be live.
    doubted: u64,
    kept: u64,
    sequence: u64,
    /// The block that each ring fills, and where the next object goes.
    open: [u64; 2],
    at: [u64; 2],
    /// Of how many live objects of a victim one is moved; 0: none.
    moves: u64,
    moved: u64,
    random: Random,
    begun: Option<Reorganisation>,
    reads: u64,
    /// Whether keys share cells of filters by the dozen, with tags of their own.
    is_clustered: bool,
    /// Whether slots say which copies are dead; else the history of invalidations says what it can.
    has_slots: bool,
}

impl Model {
    fn new(seed: u64, tier1_max: usize) -> Self {
        let shape = IndexShape::new(BLOCKS * BLOCK_BYTES, 4, IndexShape::CASCADE_NOTE_BITS);
        assert!(UNIT.is_multiple_of(shape.unit_bytes()));
        let space = Arc::new(Space::default());
        *space.sequences.lock() = vec![0; BLOCKS as usize];
        for ring in RINGS {
            space.sequences.lock()[ring.start as usize] = 1;
        }
        let pool = PagePool::standalone(8 << 20).unwrap();
        let options = CascadeOptions {
            tier1_min: tier1_max,
            tier1_share: 0.0,
            page_entries: PAGE_ENTRIES,
        };
        let shared: Arc<dyn MapSpace> = Arc::<Space>::clone(&space);
        let history = Arc::new(History::new(shape, BLOCKS * BLOCK_BYTES, BLOCKS as u32));
        let shard = CascadeShard::new(shape, 0, options, pool, shared, history);
        // As slots say which copies are dead, `dead` does.
        shard.begin_history(None, true);
        Self {
            shard,
            space,
            live: BTreeMap::new(),
            blocks: vec![Vec::new(); BLOCKS as usize],
            dead: BTreeSet::new(),
            doubted: 0,
            kept: 0,
            sequence: 1,
            open: RINGS.map(|ring| ring.start),
            at: RINGS.map(|ring| ring.start * BLOCK_BYTES),
            moves: 0,
            moved: 0,
            random: Random(seed),
            begun: None,
            reads: 0,
            is_clustered: false,
            has_slots: true,
        }
    }

    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// A key's hash: spread over the partition.
    fn hash(key: u64) -> KeyHash {
        let mixed = (key + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 4
    }

    fn hash_of(&self, key: u64) -> KeyHash {
        let hash = Self::hash(key);
        if self.is_clustered {
            // A thousand cells, and below what cells tell apart the rest of the tag.
            hash & 0x0FFC_0000_0000_0000 | key << 25
        } else {
            hash
        }
    }

    /// Gives the next place in a ring, reclaiming the oldest block where the current one is full.
    fn place(&mut self, ring: usize, units: u64) -> Location {
        let len = units * UNIT;
        if self.at[ring] + len > (self.open[ring] + 1) * BLOCK_BYTES {
            let next = self.open[ring] + 1;
            let block = if next == RINGS[ring].end {
                RINGS[ring].start
            } else {
                next
            };
            self.reclaim(block, ring == 0);
            self.sequence += 1;
            self.space.sequences.lock()[block as usize] = self.sequence;
            self.at[ring] = block * BLOCK_BYTES;
            self.open[ring] = block;
        }
        let location = Location {
            offset: self.at[ring],
            len: len as u32,
        };
        self.at[ring] += len;
        location
    }

    /// Empties a block, and first moves some of what lives in it. While that is under way other things happen.
    fn reclaim(&mut self, block: u64, moves: bool) {
        let (mut left, mut rest) = (Vec::new(), Vec::new());
        for (hash, from) in std::mem::take(&mut self.blocks[block as usize]) {
            let is_live = self.live.get(&hash) == Some(&from);
            let is_last = self.is_last(hash, from);
            let is_known = self.shard.live(hash, from).is_some();
            assert!(is_live || !(is_last || is_known), "what is dead would be moved");
            if is_live && !is_known {
                self.doubted += 1;
                self.kept += u64::from(is_last);
            }
            if !(moves && self.moves > 0 && (is_known || is_last) && self.random().is_multiple_of(self.moves))
            {
                rest.push((hash, from));
                continue;
            }
            let to = self.place(1, u64::from(from.len) / UNIT);
            self.dead.insert(from);
            let moved = self.shard.relocate(
                hash,
                from,
                Mapping {
                    location: to,
                    note: 0,
                },
            );
            self.note_mapped(hash, to, moved.is_ok());
            let Ok(leaves_mapping) = moved else { continue };
            self.moved += 1;
            if leaves_mapping {
                left.push((hash, from, to));
            }
            if self.random().is_multiple_of(16) {
                self.reorganise();
            }
        }
        // Moved objects are deleted, overwritten, asked for, and go to flash, before the victim is gone.
        for &(hash, ..) in &left {
            match self.random() % 32 {
                0..4 => self.remove(hash),
                4..8 => {
                    let to = self.place(1, 64);
                    self.note_death(hash);
                    self.map(hash, to);
                }
                8..12 => assert_eq!(self.get(hash), self.live.get(&hash).copied()),
                12 => self.shard.demote_all(),
                13 => self.reorganise(),
                _ => {}
            }
        }
        *self.space.leaving.lock() = Some(block);
        for (hash, location) in rest {
            let known = self.shard.mapping(hash);
            let copy = self.stored_copy(location);
            let gone = self.shard.reclaim(hash, &copy);
            assert!(gone.is_some() || known.is_none_or(|known| known.location != location));
            if self.live.get(&hash) == Some(&location) {
                self.live.remove(&hash);
            }
        }
        for (hash, from, to) in left {
            self.shard.forget_moved(hash, from, to);
            if self.random().is_multiple_of(64) {
                self.reorganise();
            }
        }
        *self.space.leaving.lock() = None;
        self.dead
            .retain(|location| location.offset / BLOCK_BYTES != block);
    }

    /// Whether a copy is the latest for certain, although tier 1 does not know its mapping.
    fn is_last(&self, hash: KeyHash, location: Location) -> bool {
        self.shard.known(hash, location) == Known::Unknown
            && matches!(
                self.shard.survivor(hash, &self.stored_copy(location)),
                Survivor::Keep(_)
            )
    }

    fn stored_copy(&self, location: Location) -> StoredCopy {
        StoredCopy {
            mapping: Mapping { location, note: 0 },
            opened_at: self.space.generation_at(location).sequence(),
            heard: match self.dead.contains(&location) {
                _ if !self.has_slots => Heard::Nothing,
                true => Heard::Dead,
                false => Heard::Alive,
            },
        }
    }

    /// What is mapped is about to be superseded: that is known where tier 1 has the mapping.
    fn note_death(&mut self, hash: KeyHash) {
        self.dead
            .extend(self.shard.mapping(hash).map(|known| known.location));
    }

    /// Maps a key to a new copy.
    fn map(&mut self, hash: KeyHash, location: Location) {
        let known = self.shard.mapping(hash);
        let may_be_more = self.shard.may_be_more(hash);
        let superseded = self.shard.supersede(hash, Some(Mapping { location, note: 0 }));
        assert_eq!((superseded.known, superseded.may_be_more), (known, may_be_more));
        assert!(may_be_more || !self.live.contains_key(&hash), "it was on flash");
        self.note_mapped(hash, location, superseded.is_mapped);
    }

    fn note_mapped(&mut self, hash: KeyHash, location: Location, is_mapped: bool) {
        if is_mapped {
            self.blocks[(location.offset / BLOCK_BYTES) as usize].push((hash, location));
            self.live.insert(hash, location);
        } else {
            self.live.remove(&hash);
        }
    }

    fn remove(&mut self, hash: KeyHash) {
        self.note_death(hash);
        self.shard.supersede(hash, None);
        self.live.remove(&hash);
    }

    fn set(&mut self, key: u64) {
        let hash = self.hash_of(key);
        let location = self.place(0, 64 + key % 128);
        self.note_death(hash);
        self.map(hash, location);
    }

    fn delete(&mut self, key: u64) {
        self.remove(self.hash_of(key));
    }

    fn read(&mut self, page: PageNumber) -> [u8; PAGE_PAYLOAD_BYTES] {
        self.reads += 1;
        self.space.pages.lock()[&page]
    }

    fn get(&mut self, hash: KeyHash) -> Option<Location> {
        for _ in 0..3 {
            match self.shard.lookup(hash) {
                Lookup::Hit(mapping) => return Some(mapping.location),
                Lookup::Miss => return None,
                Lookup::Read(plan) => {
                    let pages: Vec<_> = plan.pages().iter().map(|page| self.read(*page)).collect();
                    let payloads = pages.iter().map(|page| Some(page.as_slice()));
                    match self.shard.resolve(hash, &plan, payloads) {
                        Lookup::Hit(mapping) => {
                            assert_eq!(self.shard.mapping(hash), Some(mapping), "known from then on");
                            return Some(mapping.location);
                        }
                        Lookup::Miss => return None,
                        Lookup::Read(_) => {}
                    }
                }
            }
        }
        panic!("nothing changes between a lookup and its end here");
    }

    fn merge(&mut self, begun: &Reorganisation) -> Merged {
        let pages: Vec<_> = begun
            .pages()
            .collect::<Vec<_>>()
            .into_iter()
            .map(|page| self.read(page))
            .collect();
        let pages = pages.iter().map(<[u8; PAGE_PAYLOAD_BYTES]>::as_slice);
        let merged = begun.merge(pages, |location| self.space.generation_at(location));
        merged.expect("its own pages")
    }

    /// Begins a reorganisation that is due, or finishes the one that was begun.
    fn reorganise(&mut self) {
        match self.begun.take() {
            None if self.space.due.swap(0, Ordering::Relaxed) == 0 => {}
            None => self.begun = self.shard.begin_reorganisation(false),
            Some(begun) => {
                let merged = self.merge(&begun);
                for (superseded, sequence) in merged.superseded() {
                    let block = (superseded.location.offset / BLOCK_BYTES) as usize;
                    if self.space.sequences.lock()[block] == *sequence {
                        let is_it = |(_, location): &&(KeyHash, Location)| *location == superseded.location;
                        if let Some((hash, location)) = self.blocks[block].iter().find(is_it) {
                            assert_ne!(self.live.get(hash), Some(location), "a live one is called dead");
                        }
                        self.dead.insert(superseded.location);
                    }
                }
                let numbers = merged.pages().map(|page| self.space.put(page).unwrap()).collect();
                self.shard.finish_reorganisation(&merged, numbers);
            }
        }
    }
}

fn run(seed: u64, tier1_max: usize, keys: u64, ops: u64, deletes: u64) -> Model {
    let model = run_model(Model::new(seed, tier1_max), keys, ops, deletes);
    let counts = model.shard.counts();
    assert!(counts.reorganisations > 3 && counts.tier2_hits + counts.tier3_hits > 0);
    assert_eq!(model.shard.counts().forgotten, 0);
    model
}

/// Random operations, with an answer checked each.
fn run_model(mut model: Model, keys: u64, ops: u64, deletes: u64) -> Model {
    let mut asked = 0;
    for op in 0..ops {
        let key = model.random() % keys * (model.random() % 8) / 8;
        match model.random() % 100 {
            n if n < deletes => model.delete(key),
            n if n < 45 => model.set(key),
            _ => {
                let hash = model.hash_of(key);
                let expected = model.live.get(&hash).copied();
                let found = model.get(hash);
                assert_eq!(found, expected, "op {op}, key {key}");
                asked += u64::from(expected.is_some());
            }
        }
        if op % 64 == 0 {
            model.reorganise();
        }
        if op % 5000 == 0 {
            let counts = model.shard.counts();
            let charged = model.space.charged.load(Ordering::Relaxed);
            assert_eq!(charged, counts.heap_bytes() as u64);
            model.shard.check_invariants();
        }
    }
    eprintln!(
        "{} of {} live ones in victims told to be live",
        model.kept, model.doubted
    );
    assert!(
        asked > ops / 10,
        "{asked} questions about live keys; {:?}",
        model.shard.counts()
    );
    model
}

#[test]
fn says_what_is_right_and_finds_what_is_there() {
    for seed in 1..3 {
        run(seed, 500, 30_000, 200_000, 0);
        run(seed, 100, 20_000, 200_000, 8);
        run(seed, 4000, 60_000, 300_000, 2);
        run(seed, 0, 5_000, 50_000, 2);
    }
}

#[test]
fn what_lost_its_mapping_without_a_record_is_told_as_long_as_a_block_may_have_it() {
    let mut model = Model::new(1, 300);
    let [hash, later] = [1, 2].map(Model::hash);
    assert!(!model.shard.supersede(hash, None).may_be_more);
    model.shard.note_unlogged(hash);
    assert!(model.shard.may_be_more(hash) && model.shard.find(hash) == Known::Dead);
    let others = (3..10_000).filter(|key| model.shard.may_be_more(Model::hash(*key)));
    assert!(others.count() < 100);
    assert!(model.shard.supersede(hash, None).may_be_more, "it is logged then");
    model.set(1);
    // Filters are closed after as many blocks as there are, and are of no use when those have gone.
    for sequence in 2..2 * BLOCKS + 4 {
        model.space.sequences.lock()[1] = sequence;
        model.shard.note_unlogged(later);
    }
    model.space.oldest.store(2, Ordering::Relaxed);
    model.delete(1);
    assert!(model.shard.may_be_more(hash), "a block may have it");
    model.space.oldest.store(2 * BLOCKS, Ordering::Relaxed);
    assert!(!model.shard.may_be_more(hash) && model.shard.may_be_more(later));
}

#[test]
fn without_slots_the_history_tells_of_most_copies_and_never_wrongly() {
    for (seed, tier1_max, keys, deletes) in [(1, 300, 20_000, 5), (2, 100, 60_000, 2)] {
        let mut model = Model::new(seed, tier1_max);
        model.has_slots = false;
        model.moves = 3;
        let history = History::new(model.shard.shape, 8 * BLOCKS * BLOCK_BYTES, BLOCKS as u32);
        model.shard.history = Arc::new(history);
        let model = run_model(model, keys, 300_000, deletes);
        assert!(
            model.kept * 4 > model.doubted,
            "{} of {}",
            model.kept,
            model.doubted
        );
    }
}

#[test]
fn filters_that_take_keys_for_each_other_lose_none_and_confuse_none() {
    let mut model = Model::new(4, 300);
    model.is_clustered = true;
    run_model(model, 6_000, 400_000, 3);
}

#[test]
fn moving_objects_loses_none_uncovers_nothing_older_and_leaves_little_behind() {
    for (seed, is_clustered, keys, moved) in [
        (1, false, 60_000, 5_000),
        (2, false, 20_000, 1_000),
        (3, true, 6_000, 500),
    ] {
        let mut model = Model::new(seed, 300);
        model.moves = 3;
        model.is_clustered = is_clustered;
        let model = run_model(model, keys, 330_000, 2);
        assert!(model.moved > moved, "{}", model.moved);
        let counts = model.shard.counts();
        eprintln!("{} moved, {} live, {counts:?}", model.moved, model.live.len());
    }
}

#[test]
fn forgetting_one_key_uncovers_no_older_mapping_of_another() {
    let mut model = Model::new(6, 0);
    let known: Vec<u64> = (0..5_000).collect();
    let shape = model.shard.shape;
    let tag = |key: u64| shape.tag(Model::hash(key));
    for key in &known {
        model.set(*key);
    }
    for _ in 0..2 {
        model.begun = model
            .begun
            .take()
            .or_else(|| model.shard.begin_reorganisation(true));
        model.reorganise();
    }
    assert!(model.shard.flash.generations().is_empty() && model.shard.flash.wide().filter().len() > 4_000);
    // A key in the wide table, and one that is nowhere: alike to a generation, but not to the wide table.
    let wide = model.shard.flash.wide().filter().shape();
    let generation = FilterShape::new(
        shape.tag_bits(),
        GENERATION_PAGES * PAGE_ENTRIES,
        GENERATION_CELL_BITS,
        0,
    );
    let in_wide = |key: &u64| model.shard.mapping(Model::hash(*key)).is_none();
    let by_cell: BTreeMap<Cell, u64> = known
        .iter()
        .filter(|key| in_wide(key))
        .map(|key| (generation.cell(tag(*key)), *key))
        .collect();
    let (old, new) = (10_000..)
        .find_map(|key| {
            let old = *by_cell.get(&generation.cell(tag(key)))?;
            (wide.cell(tag(old)) != wide.cell(tag(key))).then_some((old, key))
        })
        .unwrap();
    assert_eq!(
        model.shard.flash.wide().filter().matches(tag(new)).count(),
        0,
        "choose another seed"
    );
    let is_known = |model: &Model, key| model.shard.mapping(Model::hash(key)).is_some();
    let mut others = 20_000..;
    for key in [new, old] {
        model.set(key);
        while is_known(&model, key) {
            model.set(others.next().unwrap());
        }
    }
    let latest = [model.live[&Model::hash(old)], model.live[&Model::hash(new)]];
    // As far as is remembered, nothing has taken its place.
    let copy = StoredCopy {
        heard: Heard::Nothing,
        ..model.stored_copy(latest[1])
    };
    assert!(model.shard.reclaim(Model::hash(new), &copy).is_some());
    // Filters lose an entry now and then, and then what is asked to go is gone already.
    model.shard.reclaim(Model::hash(new), &copy);
    assert_eq!(model.get(Model::hash(old)), Some(latest[0]));
}

#[test]
fn a_dump_makes_the_same_partition_and_a_damaged_one_none_or_another_that_is_whole() {
    let mut model = run(8, 300, 20_000, 150_000, 4);
    let mut bytes = Vec::new();
    model.shard.dump(&mut bytes);
    let empty = Model::new(8, 300);
    let mut other = std::mem::replace(&mut model.shard, empty.shard);
    other.space = Arc::<Space>::clone(&empty.space);
    model.shard.space = Arc::<Space>::clone(&model.space);
    assert!(model.shard.load(&bytes));
    model.shard.check_invariants();
    let mut again = Vec::new();
    model.shard.dump(&mut again);
    // A table may list its entries in another order.
    assert_eq!(again.len(), bytes.len());
    assert_eq!(
        model.shard.counts().flash_mappings(),
        other.counts().flash_mappings()
    );
    let (mut hits, mut live) = (0, 0);
    for key in 0..20_000 {
        let hash = Model::hash(key);
        let (found, expected) = (model.get(hash), model.live.get(&hash).copied());
        assert!(found.is_none() || found == expected);
        live += u64::from(expected.is_some());
        hits += u64::from(found.is_some());
    }
    assert!(hits * 1000 >= live * 995, "{hits} of {live}");
    let mut random = Random(1);
    for len in (0..bytes.len()).step_by(1009) {
        let mut target = Model::new(8, 300);
        assert!(!target.shard.load(&bytes[..len]), "cut at {len}");
        assert!(target.shard.is_empty());
        let mut damaged = bytes.clone();
        let bit = random.below(8 * damaged.len() as u64) as usize;
        damaged[bit / 8] ^= 1 << (bit % 8);
        if target.shard.load(&damaged) {
            target.shard.check_invariants();
            for key in 0..200 {
                let _ = target.shard.lookup(Model::hash(key));
            }
        }
    }
}

#[test]
fn gives_every_page_back() {
    let mut model = run(9, 300, 20_000, 200_000, 5);
    assert!(model.space.pages.lock().len() > 10);
    let begun = (model.begun.take()).or_else(|| model.shard.begin_reorganisation(true));
    let merged = model.merge(&begun.expect("one at a time"));
    model.shard.clear();
    assert_eq!(model.space.pages.lock().len(), 0);
    assert!(model.shard.is_empty());
    let pages = merged
        .pages()
        .map(|page| model.space.put(page).unwrap())
        .collect();
    model.shard.finish_reorganisation(&merged, pages);
    assert_eq!(
        model.space.pages.lock().len(),
        0,
        "what was begun before is given up"
    );
}

#[test]
fn a_full_space_makes_tier_1_grow_to_a_bound_and_then_refuses() {
    let mut model = Model::new(3, 400);
    for key in 0..20_000 {
        model.set(key);
    }
    model.space.is_full.store(true, Ordering::Relaxed);
    // What a filter takes for a key on flash hides something, as far as is known.
    let mut hiding = 0;
    let refused = (0..20_000).filter(|key| {
        let hash = Model::hash(30_000 + key);
        hiding += u64::from(model.shard.find(hash) == Known::Unknown);
        model.set(30_000 + key);
        !model.live.contains_key(&hash)
    });
    assert!(refused.count() > 10_000);
    let counts = model.shard.counts();
    assert!(counts.tier1_mappings <= 2 * 400 + 2 * PAGE_ENTRIES as u64 + hiding);
    assert!(hiding < 1_000, "{hiding} of 20,000");
    for key in 0..50_000 {
        let hash = Model::hash(key);
        let expected = model.live.get(&hash).copied();
        let found = model.get(hash);
        assert!(found.is_none() || found == expected);
    }
}

#[test]
fn a_page_that_cannot_be_read_makes_the_partition_forget_and_nothing_older_speak() {
    let mut model = run(5, 300, 20_000, 100_000, 5);
    let (hash, plan) = (0..20_000)
        .map(Model::hash)
        .find_map(|hash| match model.shard.lookup(hash) {
            Lookup::Read(plan) => Some((hash, plan)),
            _ => None,
        })
        .unwrap();
    assert_eq!(model.shard.resolve(hash, &plan, [None]), Lookup::Miss);
    assert_eq!(model.shard.counts().forgotten, 1);
    for key in 0..20_000 {
        assert_eq!(model.get(Model::hash(key)), None);
    }
    assert!(model.shard.is_blank() && model.shard.may_be_more(hash));
    let last = model.space.next_generation();
    model.space.oldest.store(last - 1, Ordering::Relaxed);
    assert!(model.shard.is_blank(), "a block that was there is left");
    model.space.oldest.store(last, Ordering::Relaxed);
    assert!(
        !model.shard.is_blank() && !model.shard.may_be_more(hash),
        "it has healed"
    );
}

#[test]
fn what_hides_something_goes_beyond_the_bound_and_nothing_is_forgotten() {
    let mut model = Model::new(3, 400);
    for key in 0..20_000 {
        model.set(key);
    }
    model.space.is_full.store(true, Ordering::Relaxed);
    for key in 0..20_000 {
        model.set(key);
    }
    let counts = model.shard.counts();
    assert_eq!(counts.forgotten, 0);
    assert!(counts.tier1_mappings > 10_000, "{counts:?}");
    model.space.is_full.store(false, Ordering::Relaxed);
    for key in 0..20_000 {
        let hash = Model::hash(key);
        let expected = model.live.get(&hash).copied();
        assert_eq!(model.get(hash), expected);
        model.set(key);
    }
    assert!(model.shard.counts().tier1_mappings < 2 * 400 + 2 * PAGE_ENTRIES as u64);
}

#[test]
fn costs_little_dram_and_few_reads_for_keys_that_are_not_there() {
    // As many objects as fit, each set once, and asked for over and over with a skew.
    let mut model = Model::new(2, 2500);
    for key in 0..60_000 {
        let hash = Model::hash(key);
        let location = model.place(0, 80);
        model.shard.set(hash, Mapping { location, note: 0 }).unwrap();
        model.blocks[(location.offset / BLOCK_BYTES) as usize].push((hash, location));
        model.live.insert(hash, location);
        if key % 64 == 0 {
            model.reorganise();
        }
    }
    let counts = model.shard.counts();
    let live = model.live.len() as f64;
    let bytes = model.shard.dram_bytes() as f64;
    eprintln!("{live} live, {bytes} bytes: {:.2} each; {counts:?}", bytes / live);
    eprintln!(
        "written {:.1} bytes an item",
        model.space.written.load(Ordering::Relaxed) as f64 * 4096.0 / 60_000.0
    );
    assert!(bytes / live < 2.5, "{} bytes a mapping", bytes / live);
    model.reads = 0;
    let strangers = (100_000..200_000)
        .filter(|key| model.get(Model::hash(*key)).is_some())
        .count();
    assert!(strangers <= 2, "{strangers} keys have another's tag");
    let reads = model.reads as f64 / 1e5;
    eprintln!("{reads} reads a miss");
    assert!(reads < 0.15, "{reads} reads for each key that is not there");
    // What was evicted is forgotten, too.
    model.reads = 0;
    let evicted: Vec<_> = (0..60_000)
        .map(Model::hash)
        .filter(|hash| !model.live.contains_key(hash))
        .collect();
    assert!(evicted.len() > 5_000);
    for hash in &evicted {
        assert_eq!(model.get(*hash), None);
    }
    let reads = model.reads as f64 / evicted.len() as f64;
    eprintln!("{reads} reads a miss of what was evicted");
    assert!(reads < 0.15, "{reads} reads for each key that was evicted");
    model.reads = 0;
    let keys: Vec<_> = model.live.keys().copied().collect();
    let mut found = 0;
    for hash in &keys {
        found += usize::from(model.get(*hash).is_some());
    }
    let reads = model.reads as f64 / keys.len() as f64;
    eprintln!("{reads} reads a hit, {found} of {}", keys.len());
    assert!(reads < 1.15, "{reads} reads of pages for each hit");
    assert_eq!(found, keys.len());
}

/// A partition after some 20,000 sets, the last of which are dirty and so many, and the keys that it has.
fn filled(seed: u64, tier1_max: usize, dirty: usize) -> (Model, Vec<u64>) {
    let mut model = Model::new(seed, tier1_max);
    let mut end = 0;
    while end < 20_000 || model.shard.tier1.dirty_len() != dirty {
        model.set(end);
        model.reorganise();
        end += 1;
    }
    let keys = (0..end).filter(|key| model.live.contains_key(&Model::hash(*key)));
    let keys = keys.collect();
    (model, keys)
}

#[test]
fn what_is_asked_for_often_stays_in_tier_1_beside_less_than_a_page_of_what_is_dirty() {
    let (mut model, keys) = filled(4, 100, PAGE_ENTRIES - 100);
    let (hot, cold) = keys.split_at(80);
    let mut read_for_hot = 0;
    for (round, cold) in cold.chunks_exact(40).enumerate() {
        let before = model.reads;
        for key in hot {
            assert!(model.get(Model::hash(*key)).is_some());
        }
        if round > 10 {
            read_for_hot += model.reads - before;
        }
        for key in cold {
            assert!(model.get(Model::hash(*key)).is_some());
        }
    }
    model.shard.check_invariants();
    assert!(cold.len() > 10_000);
    assert_eq!(
        read_for_hot, 0,
        "pages were read for keys that are asked for in every round"
    );
}

#[test]
fn dirty_entries_that_no_more_come_to_leave_their_room_to_what_is_asked_for() {
    let (mut model, keys) = filled(5, 32, PAGE_ENTRIES - 10);
    let written = model.space.written.load(Ordering::Relaxed);
    // More than there is room for beside those, less than tier 1 has room for.
    let hot = &keys[..200];
    for round in 0..100 {
        model.reads *= u64::from(round < 90);
        for key in hot {
            assert!(model.get(Model::hash(*key)).is_some());
        }
    }
    model.shard.check_invariants();
    assert_eq!(model.shard.tier1.dirty_len(), 0);
    assert_eq!(model.space.written.load(Ordering::Relaxed), written + 1);
    assert_eq!(model.reads, 0, "pages were read for what tier 1 has room for");
}
