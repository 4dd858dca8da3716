//! `ripq`: several open blocks, each at its priority; what is raised is written again when its block is the next to go (RIPQ paper,
//! section 4.2: materialisation). Blocks that are mostly dead go before their turn.

pub(super) mod note;
pub mod queue;
pub(crate) mod ranks;

use super::ground::{Ground, NotePlace};
use super::options::{LayoutOptions, note_place};
use super::seam::{
    ACCESSED, Arrival, Choice, Fate, Hits, Layout, Placed, Rank, SavedOrder, Wants, rank_after,
};
use super::slots::Slots;
use crate::block::SealedBlock;
use note::{Code, Note};
use pumice_blocks::{Geometry, State};
use pumice_index::{IndexKind, Location, Mapping};
use pumice_policy::{Hit, Policy, Priority};
use queue::{Queue, QueueShape, SECTION_BLOCKS_MIN, SavedPlace, Seat};
use ranks::Ranks;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;

/// The queue, and what turns absolute priorities into positions in it.
pub(super) struct Ripq {
    policy: &'static dyn Policy,
    policy_checksum: u32,
    theta: f64,
    code: Code,
    shape: QueueShape,
    queue: Queue,
    ranks: Ranks,
    /// Whether nearly all blocks have been in use since the store was last empty.
    has_been_full: bool,
    /// Bytes of all blocks.
    bytes: u64,
    raised_at_start: u64,
}

impl Ripq {
    pub(super) fn new(options: &LayoutOptions, index: IndexKind, geometry: &Geometry) -> Self {
        let code = Code::of(options.policy, note_place(options.layout, index));
        let shape = QueueShape {
            alpha: options
                .alpha
                .max(SECTION_BLOCKS_MIN / f64::from(geometry.blocks))
                .min(1.0),
            marks: code.marks(),
            granule: geometry.block_bytes,
        };
        Self {
            policy: options.policy,
            policy_checksum: options.policy_checksum(),
            theta: options.theta,
            code,
            shape,
            queue: Queue::new(shape, geometry.blocks),
            ranks: Ranks::new(),
            has_been_full: false,
            bytes: geometry.block_bytes * u64::from(geometry.blocks),
            raised_at_start: 0,
        }
    }

    fn priority_new(&self, object_bytes: u64) -> Priority {
        let priority = self.policy.on_insert(object_bytes, self.ranks.lowest());
        if self.has_been_full {
            priority
        } else {
            priority.while_filling()
        }
    }

    /// The position of a priority in the queue.
    fn position_of(&self, priority: Priority) -> f64 {
        match priority {
            Priority::Relative(position) => position,
            Priority::Absolute(value) => self.ranks.position(value),
        }
    }

    /// Takes note of a store that is full, but for what is left of objects that a flush has removed.
    fn note_fill(&mut self, is_full: bool) {
        self.has_been_full |= is_full && self.queue.bytes() * 2 > self.bytes;
    }

    /// `None` of a dead object.
    fn note(&self, ground: Ground<'_>, mapping: Mapping) -> Option<Note> {
        // Of a block without slots nothing is known.
        ground
            .note(mapping)
            .map_or(Some(Note::NEW), |bits| self.code.decode(bits))
    }

    /// Where an object of this note counts.
    fn seat(&self, ground: Ground<'_>, location: Location, note: Option<Note>) -> Seat {
        match note {
            Some(Note { mark, .. }) if mark != 0 => Seat::Virtual(mark),
            _ => Seat::Device(ground.block_of(location)),
        }
    }

    /// `None` where the object is known to be dead.
    fn hit_of(&self, ground: Ground<'_>, mapping: Mapping, object_bytes: u64) -> Option<(Hit, Seat, Note)> {
        let note = self.note(ground, mapping)?;
        let seat = self.seat(ground, mapping.location, Some(note));
        let hit = Hit {
            position: self.queue.position(seat),
            accesses: (note.accesses + 1).min(self.policy.accesses_max()),
            size: object_bytes,
            lowest: self.ranks.lowest(),
        };
        Some((hit, seat, note))
    }

    /// The note becomes a dead object's; false where it is that already.
    fn note_dead(&self, ground: Ground<'_>, mapping: Mapping) -> bool {
        if ground.notes != NotePlace::Slot {
            return true;
        }
        let dead = self.code.dead();
        let was_dead = ground.with_slot(mapping, |slots, number| {
            let was_dead = slots.get(number) & dead == dead;
            slots.set(number, dead);
            was_dead
        });
        // Where its block has slots and it has none, it was never counted.
        was_dead.map_or_else(|| !ground.has_slots(mapping), |was_dead| !was_dead)
    }
}

impl Layout for Ripq {
    fn wants(&self) -> Wants {
        Wants {
            hits: Hits::Every,
            ranks: true,
            compaction: true,
            checkpoints: true,
            ..Wants::default()
        }
    }

    fn rank(&self, ground: Ground<'_>, arrival: Arrival, object_bytes: u64) -> Rank {
        let new = || Rank {
            priority: self.priority_new(object_bytes),
            accesses: 1,
        };
        let hit = match arrival {
            Arrival::New => return new(),
            Arrival::Asked
            | Arrival::Again {
                old: None,
                may_be_more: true,
                ..
            } => Hit {
                position: self.position_of(new().priority),
                accesses: self.policy.accesses_max().min(ACCESSED),
                size: object_bytes,
                lowest: self.ranks.lowest(),
            },
            Arrival::Again { old, .. } => {
                let Some((hit, ..)) = old.and_then(|old| self.hit_of(ground, old, object_bytes)) else {
                    return new();
                };
                return rank_after(self.policy, &hit, || {
                    self.policy.on_insert(object_bytes, hit.lowest)
                });
            }
        };
        rank_after(self.policy, &hit, || new().priority)
    }

    fn point(&self, rank: Rank, beside: Option<u32>) -> usize {
        // By its place: when the block was sealed the border of its section may have gone below it.
        let beside = beside.filter(|block| self.queue.has_block(*block));
        let position = beside.map_or_else(
            || self.position_of(rank.priority),
            |block| self.queue.position(Seat::Device(block)),
        );
        self.queue.insertion_section(position)
    }

    fn insert(&mut self, hash: u64, len: u64, rank: Rank, beside: Option<u32>) -> Placed {
        if let Priority::Absolute(value) = rank.priority {
            self.ranks.put(hash, value, len);
        }
        let point = self.point(rank, beside);
        if beside.is_none_or(|block| !self.queue.has_block(block)) {
            self.queue.note_insertion(point, self.position_of(rank.priority));
        }
        let note = Note {
            mark: 0,
            accesses: rank.accesses,
        };
        Placed {
            point,
            note: self.code.encode(note),
        }
    }

    fn insert_again(&self, ground: Ground<'_>, from: Mapping) -> (Placed, bool) {
        let note = self.note(ground, from);
        let seat = self.seat(ground, from.location, note);
        let placed = Placed {
            point: self.queue.section_of(seat),
            note: self.code.encode(Note {
                mark: 0,
                ..note.unwrap_or(Note::NEW)
            }),
        };
        (placed, matches!(seat, Seat::Virtual(_)))
    }

    fn points(&self) -> usize {
        self.queue.sections()
    }

    fn open_block(&self, point: usize) -> Option<u32> {
        self.queue.active_block(point)
    }

    fn opened(&mut self, point: usize, block: u32, is_full: bool) {
        self.queue.open(point, block);
        self.note_fill(is_full);
    }

    fn closed(&mut self, block: u32, _fill: Option<(usize, &dyn Fn() -> usize)>) {
        self.queue.close(block);
    }

    fn adopts(&mut self, point: usize) -> bool {
        self.queue.adopt(point)
    }

    fn is_at(&self, block: u32, point: usize) -> bool {
        self.queue.section_of(Seat::Device(block)) == point
    }

    fn appended(&mut self, block: u32, len: u64) {
        self.queue.add(Seat::Device(block), len);
    }

    fn rebalance(&mut self) {
        self.queue.rebalance();
        if cfg!(debug_assertions) {
            self.queue.check_balance();
        }
    }

    fn hit(&mut self, ground: Ground<'_>, hash: u64, mapping: Mapping, object_bytes: u64) -> (u32, bool) {
        let len = ground.counted_len(mapping);
        let Some((hit, seat, mut note)) = self.hit_of(ground, mapping, object_bytes) else {
            return (mapping.note, false);
        };
        if ground.note(mapping).is_none() {
            // Nothing would say where it counts.
            return (mapping.note, false);
        }
        note.accesses = hit.accesses.max(ACCESSED);
        let mut raised = false;
        if let Some(priority) = self.policy.on_hit(&hit) {
            let position = self.position_of(priority);
            if let Priority::Absolute(value) = priority {
                self.ranks.put(hash, value, len);
            }
            if let Some(mark) = self.queue.increase(seat, len, position) {
                note.mark = mark;
                raised = true;
            }
        }
        (ground.set_note(mapping, self.code.encode(note)), raised)
    }

    fn died(&mut self, ground: Ground<'_>, hash: Option<u64>, mapping: Mapping) -> bool {
        let seat = self.seat(ground, mapping.location, self.note(ground, mapping));
        if let Some(hash) = hash {
            self.ranks.take(hash);
        }
        let counted = self.note_dead(ground, mapping);
        if counted {
            self.queue.remove_about(seat, ground.counted_len(mapping));
        }
        counted
    }

    fn is_dead(&self, ground: Ground<'_>, mapping: Mapping) -> bool {
        self.note(ground, mapping).is_none()
    }

    fn forget_key(&mut self, hash: u64) {
        self.ranks.take(hash);
    }

    fn forget_all(&mut self) {
        self.has_been_full = false;
        self.ranks.clear();
    }

    fn victim(&mut self, choice: &Choice<'_>) -> Option<(u32, Fate)> {
        let lowest = self.queue.blocks().find(|id| choice.may_go(*id));
        Some((lowest?, Fate::Move))
    }

    fn sealed(&self, ground: Ground<'_>, _by_age: &VecDeque<u32>) -> Vec<u32> {
        let is_sealed = |id: &u32| ground.blocks[*id as usize].state() == State::Sealed;
        self.queue.blocks().filter(is_sealed).collect()
    }

    fn note_full(&mut self) {
        self.has_been_full = true;
    }

    fn keeps(&self, ground: Ground<'_>, _hash: u64, mapping: Mapping, is_tail: bool) -> bool {
        let Some(note) = self.note(ground, mapping) else {
            return false;
        };
        if !is_tail {
            return true;
        }
        let seat = self.seat(ground, mapping.location, Some(note));
        let position = self.queue.position(seat);
        matches!(seat, Seat::Virtual(_))
            && position >= 1.0 - self.theta
            && !self.queue.is_nearest_the_end(position)
    }

    fn emptied(&mut self, ground: Ground<'_>, block: u32, slots: &Slots, lens: Option<&[u32]>) -> bool {
        let info = &ground.blocks[block as usize];
        let known_mean = match info.mean_len.load(Ordering::Relaxed) {
            0 => None,
            mean => Some(u64::from(mean)),
        };
        let mean = || info.filled.load(Ordering::Relaxed) / u64::from(slots.len().max(1));
        let mut is_known = true;
        for number in 0..slots.len() {
            // What counts in the block itself leaves the order with it.
            let note = self.code.decode(slots.get(number));
            let Some(Note { mark, .. }) = note.filter(|note| note.mark != 0) else {
                continue;
            };
            let len = known_mean.or_else(|| lens?.get(number as usize).map(|len| u64::from(*len)));
            is_known &= len.is_some();
            self.queue
                .remove_about(Seat::Virtual(mark), len.unwrap_or_else(mean));
        }
        is_known
    }

    fn freed(&mut self, block: u32) {
        if self.queue.has_block(block) {
            self.queue.release(block);
        }
    }

    fn trailer_position(&self, _ground: Ground<'_>, block: u32) -> u16 {
        (self.queue.position(Seat::Device(block)) * f64::from(u16::MAX)) as u16
    }

    fn save(&self, _ground: Ground<'_>) -> SavedOrder {
        SavedOrder {
            places: self.queue.save().collect(),
            ranks: self.ranks.save(self.policy_checksum),
        }
    }

    /// Sealed blocks stand as the checkpoint has saved them, others by where they stood when they were sealed.
    fn restore(&mut self, ground: Ground<'_>, sealed: &[SealedBlock], saved: SavedOrder) {
        let known = sealed.iter().filter(|block| block.position.is_none());
        let known: HashSet<u32> = known.map(|block| block.id).collect();
        let places = saved.places.iter().map(|place| SavedPlace {
            block: place.block.filter(|block| known.contains(block)),
            ..*place
        });
        self.queue = Queue::restore(self.shape, ground.geometry.blocks, places);
        let unknown = sealed.iter().filter(|block| !self.queue.has_block(block.id));
        let unknown: Vec<(u32, usize)> = unknown
            .map(|block| {
                let position = f64::from(block.position.unwrap_or(u16::MAX)) / f64::from(u16::MAX);
                (block.id, ((1.0 - position) * sealed.len() as f64) as usize)
            })
            .collect();
        self.queue.insert_blocks(unknown.into_iter());
        self.ranks = Ranks::restore(&saved.ranks, self.policy_checksum);
    }

    fn found(&mut self, ground: Ground<'_>, mapping: Mapping) -> u32 {
        let mut note = self.code.decode(mapping.note).unwrap_or(Note::NEW);
        if !self.queue.has_mark(note.mark) {
            note.mark = 0;
        }
        let seat = self.seat(ground, mapping.location, Some(note));
        self.queue.add(seat, mapping.location.len.into());
        self.code.encode(note)
    }

    /// How long each object is nobody knows: each counts as the mean of its block, also when it goes.
    fn found_block(&mut self, ground: Ground<'_>, block: u32, slots: &mut Slots, filled: u64) -> u64 {
        if slots.len() == 0 {
            self.queue.add(Seat::Device(block), filled);
            return filled;
        }
        let mean = (filled / u64::from(slots.len())).max(1);
        let info = &ground.blocks[block as usize];
        info.mean_len
            .store(u32::try_from(mean).unwrap_or(u32::MAX), Ordering::Relaxed);
        let mut counted = 0;
        for number in 0..slots.len() {
            let Some(mut note) = self.code.decode(slots.get(number)) else {
                continue;
            };
            if note.mark != 0 && !self.queue.has_mark(note.mark) {
                note.mark = 0;
                slots.set(number, self.code.encode(note));
            }
            counted += mean;
            let seat = match note.mark {
                0 => Seat::Device(block),
                mark => Seat::Virtual(mark),
            };
            self.queue.add(seat, mean);
        }
        counted
    }

    fn settle(&mut self, is_full: bool) {
        self.note_fill(is_full);
        self.queue.drop_bare_places();
        self.raised_at_start = self.queue.all_virtual_objects();
        self.queue.rebalance();
    }

    fn sampled_keys(&self) -> Vec<u64> {
        self.ranks.sampled().collect()
    }

    fn pruned(&mut self) {
        self.ranks.shrink();
    }

    fn position(&self, ground: Ground<'_>, mapping: Mapping) -> Option<f64> {
        let seat = self.seat(ground, mapping.location, self.note(ground, mapping));
        Some(self.queue.position(seat))
    }

    fn dram_bytes(&self) -> u64 {
        self.queue.dram_bytes() + self.ranks.dram_bytes()
    }

    fn check(&self, ground: Ground<'_>) -> Option<u64> {
        self.queue.check_invariants();
        self.queue.check_balance();
        if ground.notes == NotePlace::Slot {
            let mut counted = vec![0; self.code.marks() as usize];
            for info in ground.blocks {
                let slots = info.slots.lock();
                let notes = (0..slots.len()).filter_map(|number| self.code.decode(slots.get(number)));
                notes.for_each(|note| counted[note.mark as usize] += 1);
            }
            for (mark, counted) in (1..).zip(&counted[1..]) {
                assert_eq!(
                    *counted,
                    self.queue.virtual_objects(mark),
                    "objects with mark {mark}"
                );
            }
        }
        Some(self.queue.bytes())
    }

    fn check_seats(&self, ground: Ground<'_>, mappings: &mut dyn Iterator<Item = Mapping>) {
        // Elsewhere not all are known.
        if ground.notes == NotePlace::Mapping {
            self.queue.check_seats(mappings.map(|mapping| {
                let seat = self.seat(ground, mapping.location, self.note(ground, mapping));
                (seat, ground.counted_len(mapping))
            }));
        }
    }

    fn raised_at_start(&self) -> u64 {
        self.raised_at_start
    }
}
