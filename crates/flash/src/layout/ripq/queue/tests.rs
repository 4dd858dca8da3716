mod few_marks;

use super::*;
use pumice_world::Random;
use std::collections::{HashMap, VecDeque};

const BLOCK_BYTES: u64 = 4_096;

#[derive(Clone, Copy, Debug)]
struct Object {
    block: u32,
    mark: Mark,
    bytes: u64,
}

impl Object {
    fn seat(&self) -> Seat {
        match self.mark {
            0 => Seat::Device(self.block),
            mark => Seat::Virtual(mark),
        }
    }
}

/// A queue with objects in its blocks, as a store has them, and what they add up to.
struct Rig {
    queue: Queue,
    objects: HashMap<u64, Object>,
    filled: Vec<u64>,
    free: VecDeque<u32>,
    open: Vec<u32>,
    next: u64,
    /// Objects that were appended, by insertion and from the lowest block, and updates that took effect.
    written: u64,
    updates: u64,
    /// Open blocks that were handed from a merged section to another.
    adopted: u64,
}

impl Rig {
    fn new(alpha: f64, marks: u32, blocks: u32) -> Self {
        let shape = QueueShape {
            alpha,
            marks,
            granule: BLOCK_BYTES,
        };
        Self {
            queue: Queue::new(shape, blocks),
            objects: HashMap::new(),
            filled: vec![0; blocks as usize],
            free: (0..blocks).collect(),
            open: Vec::new(),
            next: 0,
            written: 0,
            updates: 0,
            adopted: 0,
        }
    }

    fn append(&mut self, section: usize, bytes: u64) -> Option<u32> {
        if let Some(block) = self.queue.active_block(section) {
            assert!(self.open.contains(&block), "block {block} is no more open");
            if self.filled[block as usize] + bytes > BLOCK_BYTES {
                self.open.retain(|open| *open != block);
                self.queue.close(block);
            }
        }
        let block = match self.queue.active_block(section) {
            Some(block) => block,
            None => {
                if self.queue.adopt(section) {
                    self.adopted += 1;
                    return self.append(section, bytes);
                }
                let block = self.free.pop_front()?;
                self.filled[block as usize] = 0;
                self.queue.open(section, block);
                self.open.push(block);
                block
            }
        };
        self.filled[block as usize] += bytes;
        self.queue.add(Seat::Device(block), bytes);
        self.rebalance();
        Some(block)
    }

    /// The end of each operation.
    fn rebalance(&mut self) {
        self.queue.rebalance();
        self.queue.check_balance();
    }

    fn insert(&mut self, bytes: u64, priority: f64) {
        let section = self.queue.insertion_section(priority);
        self.queue.note_insertion(section, priority);
        if let Some(block) = self.append(section, bytes) {
            let object = Object {
                block,
                mark: 0,
                bytes,
            };
            self.objects.insert(self.next, object);
            self.next += 1;
            self.written += 1;
        }
    }

    fn increase(&mut self, id: u64, priority: f64) {
        let object = self.objects[&id];
        let before = self.queue.position(object.seat());
        if let Some(mark) = self.queue.increase(object.seat(), object.bytes, priority) {
            self.objects.get_mut(&id).unwrap().mark = mark;
            self.updates += 1;
            self.rebalance();
            let after = self.queue.position(self.objects[&id].seat());
            // Its own bytes, and half a place, are all that a place can be off.
            let slack = 2.0 * (BLOCK_BYTES + object.bytes) as f64 / self.queue.bytes() as f64;
            assert!(after >= before - slack, "{before} fell to {after}");
        }
    }

    fn remove(&mut self, id: u64) {
        let object = self.objects.remove(&id).unwrap();
        self.queue.remove(object.seat(), object.bytes);
        self.rebalance();
    }

    /// Takes the lowest sealed block out; what was raised moves.
    fn delete_min(&mut self) {
        let open = self.open.clone();
        let Some(victim) = self.queue.blocks().find(|block| !open.contains(block)) else {
            return;
        };
        self.written += self.take_out(victim);
    }

    /// Returns how many objects moved.
    fn take_out(&mut self, victim: u32) -> u64 {
        let mut count = 0;
        let inside: Vec<u64> = (self.objects.iter())
            .filter(|(_, object)| object.block == victim)
            .map(|(id, _)| *id)
            .collect();
        for id in inside {
            let object = self.objects[&id];
            let position = self.queue.position(object.seat());
            let stays = object.mark != 0 && !self.queue.is_nearest_the_end(position);
            let section = self.queue.section_of(object.seat());
            let moved = if stays {
                self.append(section, object.bytes)
            } else {
                None
            };
            self.remove(id);
            if let Some(block) = moved {
                count += 1;
                let bytes = object.bytes;
                self.objects.insert(
                    id,
                    Object {
                        block,
                        mark: 0,
                        bytes,
                    },
                );
            }
        }
        self.queue.release(victim);
        self.rebalance();
        self.free.push_back(victim);
        count
    }

    fn check(&mut self) {
        self.queue.check_invariants();
        self.queue.check_balance();
        let bytes: u64 = self.objects.values().map(|object| object.bytes).sum();
        assert_eq!(self.queue.bytes(), bytes, "each object counts once");
        assert!(
            self.written <= self.next + self.updates,
            "{} objects written for {} insertions and {} updates",
            self.written,
            self.next,
            self.updates
        );
        // The positions of all objects, each with half of its seat, average to a half.
        let weighted: f64 = (self.objects.values())
            .map(|object| self.queue.position(object.seat()) * object.bytes as f64)
            .sum();
        let mean = weighted / bytes.max(1) as f64;
        assert!(bytes == 0 || (mean - 0.5).abs() < 1e-6, "mean position {mean}");
    }
}

/// The rule of the paper, which holds once a share of α is some blocks: no section above 2α and a block, no two neighbours below
/// α together, at most 2/α + 1 sections. Whether it had to hold.
fn check_plain_balance(queue: &Queue) -> bool {
    let share = queue.shape.alpha * queue.bytes as f64;
    if share < 4.0 * BLOCK_BYTES as f64 {
        return false;
    }
    let bytes: Vec<u64> = queue.sections.iter().map(|section| section.bytes).collect();
    for (at, bytes) in bytes.iter().enumerate() {
        let most = 2.0 * share + BLOCK_BYTES as f64;
        assert!(
            *bytes as f64 <= most,
            "section {at} has {bytes}, and may have {most}"
        );
    }
    for pair in bytes.windows(2) {
        assert!((pair[0] + pair[1]) as f64 >= share, "{pair:?} of {share}");
    }
    assert!(
        bytes.len() as f64 <= 2.0 / queue.shape.alpha + 1.0,
        "{} sections",
        bytes.len()
    );
    true
}

#[test]
fn sections_of_a_full_queue_keep_to_the_plain_rule() {
    for (seed, alpha, marks, blocks) in [
        (1, 0.125, 512, 80),
        (2, 0.25, 64, 50),
        (3, 0.0625, 512, 160),
        (4, 0.2, 8, 60),
        (5, 0.3, 64, 50),
    ] {
        let mut random = Random(seed);
        let mut rig = Rig::new(alpha, marks, blocks);
        let (mut held, mut sections) = (0, 0);
        for step in 0..20_000 {
            while rig.free.len() < 3 {
                rig.delete_min();
                check_plain_balance(&rig.queue);
            }
            rig.insert(1 + random.below(BLOCK_BYTES / 4), random.next_f64());
            check_plain_balance(&rig.queue);
            let id = rig.next - 1 - random.below(rig.objects.len() as u64);
            if rig.objects.contains_key(&id) {
                match step % 5 {
                    0 | 2 => rig.increase(id, random.next_f64()),
                    4 => rig.remove(id),
                    _ => {}
                }
            }
            if check_plain_balance(&rig.queue) {
                held += 1;
                sections = sections.max(rig.queue.sections());
            }
        }
        println!("alpha {alpha}: {held} times, up to {sections} sections");
        assert!(held > 18_000, "{held}: the queue was too small");
        assert!(
            sections as f64 > 0.7 / alpha,
            "{sections} sections: this shows nothing"
        );
    }
}

fn exercise(seed: u64, alpha: f64, marks: u32, blocks: u32) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut rig = Rig::new(alpha, marks, blocks);
    let mut sections_seen = 0;
    for step in 0..6_000 {
        let ids: Vec<u64> = if step % 4 == 0 {
            Vec::new()
        } else {
            rig.objects.keys().copied().collect()
        };
        match random.below(10) {
            0..4 => {
                while rig.free.len() < 3 {
                    rig.delete_min();
                }
                rig.insert(1 + random.below(BLOCK_BYTES / 3), 1.0 / 3.0);
            }
            4 => rig.insert(1 + random.below(40), random.next_f64()),
            5..8 if !ids.is_empty() => {
                let id = ids[random.below(ids.len() as u64) as usize];
                rig.increase(id, random.next_f64());
            }
            8 if !ids.is_empty() => rig.remove(ids[random.below(ids.len() as u64) as usize]),
            _ if random.below(20) == 0 => {
                // A block that is mostly dead goes wherever it stands.
                let open = rig.open.clone();
                let sealed: Vec<u32> = rig.queue.blocks().filter(|block| !open.contains(block)).collect();
                if !sealed.is_empty() {
                    rig.take_out(sealed[random.below(sealed.len() as u64) as usize]);
                }
            }
            _ => {}
        }
        sections_seen = sections_seen.max(rig.queue.sections());
        rig.check();
    }
    assert!(
        alpha >= 1.0 || sections_seen > 2,
        "{sections_seen} sections: this shows nothing"
    );
    println!("{} blocks were handed on", rig.adopted);
    assert!(alpha >= 0.125 || rig.adopted > 10, "this shows nothing");
    let ids: Vec<u64> = rig.objects.keys().copied().collect();
    for id in ids {
        rig.remove(id);
    }
    assert_eq!(rig.queue.bytes(), 0, "counters return to zero");
    rig.queue.check_invariants();
}

#[test]
fn objects_count_once_and_sections_keep_their_sizes() {
    for seed in 0..6 {
        exercise(seed, 0.125, 64, 60);
        exercise(seed + 10, 0.25, 512, 40);
        exercise(seed + 20, 0.0625, 8, 150);
        exercise(seed + 30, 1.0, 1, 20);
    }
}

#[test]
fn a_raised_object_stands_where_its_priority_says() {
    let mut rig = Rig::new(0.125, 512, 300);
    for _ in 0..1_000 {
        rig.insert(1_000, 1.0);
    }
    let mut random = Random(5);
    for id in 0..200 {
        let priority = 0.2 + random.next_f64() * 0.8;
        rig.increase(id, priority);
        let object = rig.objects[&id];
        let position = rig.queue.position(object.seat());
        assert!((position - priority).abs() < 0.01, "{position} for {priority}");
    }
}

#[test]
fn an_object_is_never_lowered_nor_moved_within_its_place() {
    let mut rig = Rig::new(0.125, 512, 100);
    for _ in 0..200 {
        rig.insert(1_000, 1.0);
    }
    let top = rig.objects[&199];
    assert_eq!(rig.queue.increase(top.seat(), top.bytes, 1.0), None);
    let middle = rig.objects[&100];
    assert_eq!(rig.queue.increase(middle.seat(), middle.bytes, 0.2), None);
    rig.increase(100, 0.9);
    let raised = rig.objects[&100];
    assert_eq!(rig.queue.increase(raised.seat(), raised.bytes, 0.6), None);
}

#[test]
fn a_saved_order_comes_back() {
    let mut rig = Rig::new(0.125, 64, 80);
    let mut random = Random(9);
    for step in 0..3_000 {
        while rig.free.len() < 3 {
            rig.delete_min();
        }
        rig.insert(1 + random.below(1_000), 0.4);
        let ids: Vec<u64> = rig.objects.keys().copied().collect();
        rig.increase(ids[step % ids.len()], random.next_f64());
    }
    let saved: Vec<SavedPlace> = rig.queue.save().collect();
    let shape = QueueShape {
        alpha: 0.125,
        marks: 64,
        granule: BLOCK_BYTES,
    };
    let mut queue = Queue::restore(shape, 80, saved.iter().copied());
    for object in rig.objects.values() {
        assert!(object.mark == 0 || queue.has_mark(object.mark));
        queue.add(object.seat(), object.bytes);
    }
    queue.drop_bare_places();
    queue.check_invariants();
    assert_eq!(queue.sections(), rig.queue.sections());
    for object in rig.objects.values() {
        let (before, after) = (rig.queue.position(object.seat()), queue.position(object.seat()));
        assert!((before - after).abs() < 1e-9, "{before} became {after}");
    }
    // A saved order that is damaged in any way makes a queue that works.
    for seed in 0..200 {
        let mut random = Random(seed * 7 + 1);
        let damaged: Vec<SavedPlace> = (saved.iter())
            .filter(|_| seed % 3 != 0)
            .map(|place| SavedPlace {
                starts_section: random.below(9) == 0,
                block: place.block.map(|_| random.below(90) as u32),
                mark: random.below(80) as u32,
            })
            .collect();
        let mut queue = Queue::restore(shape, 80, damaged.into_iter());
        queue.drop_bare_places();
        let unknown: Vec<u32> = (0..80).filter(|block| !queue.has_block(*block)).collect();
        if seed % 2 == 0 {
            queue.insert_blocks(unknown.iter().map(|block| (*block, random.below(100) as usize)));
            assert!(unknown.iter().all(|block| queue.has_block(*block)));
        }
        queue.check_invariants();
    }
}

#[test]
fn an_insertion_point_stays_where_insertions_are_wanted() {
    let mut random = Random(5);
    let mut rig = Rig::new(0.125, 64, 400);
    let wanted = 0.4;
    let (mut offs, mut count) = (0.0, 0);
    for round in 0..60_000 {
        // What is raised leaves the lower part, so that without a hand the point would sink.
        if round % 3 == 0 && !rig.objects.is_empty() {
            let id = rig.next - 1 - random.below(rig.objects.len().min(2_000) as u64);
            if rig.objects.contains_key(&id) {
                rig.increase(id, 1.0);
            }
        }
        rig.insert(200, wanted);
        while rig.free.len() < 2 {
            rig.delete_min();
        }
        if round > 20_000 {
            let section = rig.queue.insertion_section(wanted);
            let head: u64 = rig.queue.sections[..=section]
                .iter()
                .map(|section| section.bytes)
                .sum();
            offs += (head as f64 / rig.queue.bytes() as f64 - wanted).abs();
            count += 1;
        }
    }
    rig.queue.check_invariants();
    let off = offs / f64::from(count);
    println!("{off:.4} of the queue off on average");
    assert!(off < 0.02, "{off}");
}
