//! The queue against a vector, with nodes so small that a few objects make a deep tree.

use super::*;
use pumice_world::Random;

/// A vector from the lowest object to the highest.
#[derive(Default)]
struct Naive {
    order: Vec<(u32, u64, f64)>,
    lowest: f64,
    filled: u64,
}

impl Naive {
    fn total(&self) -> u64 {
        self.order.iter().map(|(_, size, _)| size).sum()
    }

    fn index_of(&self, object: u32) -> Option<usize> {
        self.order.iter().position(|(found, ..)| *found == object)
    }

    /// Where an object that is not there is to be put in.
    fn place(&mut self, priority: Priority, size: u64) -> usize {
        let bytes = self.total() + size;
        self.filled = self.filled.max(bytes);
        match priority {
            Priority::Absolute(value) => self
                .order
                .iter()
                .take_while(|(.., found)| *found <= value)
                .count(),
            Priority::Relative(share) if share >= 1.0 => self.order.len(),
            Priority::Relative(share) => {
                let upper_end = (share * (2 * self.filled) as f64).floor() as u64;
                let mut below = self.filled - bytes;
                let middles = self.order.iter().map(|(_, size, _)| {
                    below += size;
                    2 * below - size
                });
                middles
                    .take_while(|middle| *middle + 2 * size <= upper_end)
                    .count()
            }
        }
    }

    fn insert_at(&mut self, place: usize, object: u32, size: u64, priority: Priority) {
        let value = match priority {
            Priority::Absolute(value) => value,
            Priority::Relative(_) => 0.0,
        };
        self.order.insert(place, (object, size, value));
        self.note_lowest();
    }

    fn increase(&mut self, object: u32, priority: Priority) {
        let Some(index) = self.index_of(object) else {
            return;
        };
        let (_, size, value) = self.order[index];
        if matches!(priority, Priority::Absolute(wanted) if wanted < value) {
            return;
        }
        let entry = self.order.remove(index);
        let place = self.place(priority, size);
        if place > index || matches!(priority, Priority::Absolute(_)) {
            self.insert_at(place, object, size, priority);
        } else {
            self.order.insert(index, entry);
        }
        self.note_lowest();
    }

    fn remove(&mut self, object: u32) -> Option<u64> {
        let index = self.index_of(object)?;
        let size = self.order.remove(index).1;
        self.filled -= size;
        self.note_lowest();
        Some(size)
    }

    fn pop_min(&mut self) -> Option<(u32, u64)> {
        let lowest = self.order.first().copied();
        let popped = lowest.map(|(object, size, _)| (object, size));
        self.order.drain(..usize::from(popped.is_some()));
        self.note_lowest();
        popped
    }

    fn shrink_to(&mut self, bytes: u64) {
        self.filled = self.filled.min(bytes.max(self.total()));
    }

    fn position(&self, object: u32, is_absolute: bool) -> Option<f64> {
        let index = self.index_of(object)?;
        let below: u64 = self.order[..index].iter().map(|(_, size, _)| size).sum();
        let (free, bytes) = match is_absolute {
            true => (0, self.total()),
            false => (self.filled - self.total(), self.filled),
        };
        Some(((free + below) as f64 + self.order[index].1 as f64 / 2.0) / bytes as f64)
    }

    fn note_lowest(&mut self) {
        if let Some((.., value)) = self.order.first() {
            self.lowest = self.lowest.max(*value);
        }
    }
}

/// How priorities are drawn.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Anywhere,
    /// At a few points, as SLRU does.
    Points,
    Values,
    /// A few values that rise with the lowest.
    Drift,
}

impl Shape {
    fn is_absolute(self) -> bool {
        matches!(self, Shape::Values | Shape::Drift)
    }

    fn draw(self, random: &mut Random, lowest: f64) -> Priority {
        match self {
            Shape::Anywhere => Priority::Relative(random.next_f64()),
            Shape::Points => Priority::Relative((1 + random.below(3)) as f64 / 3.0),
            Shape::Values => Priority::Absolute(random.next_f64()),
            Shape::Drift => Priority::Absolute(lowest + (1 + random.below(4)) as f64),
        }
    }
}

/// Runs random operations over `objects` numbers; with a `target`, the lowest go while there are more than so many.
fn agrees(shape: Shape, seed: u64, objects: u64, target: usize, size_max: u64) {
    let mut random = Random(seed);
    let mut naive = Naive::default();
    let mut queue = if shape.is_absolute() {
        ExactQueue::absolute()
    } else {
        ExactQueue::relative()
    };
    for step in 0..4000 {
        let object = random.below(objects) as u32;
        let priority = shape.draw(&mut random, queue.lowest());
        match random.below(10) {
            0 => assert_eq!(queue.remove(object), naive.remove(object)),
            1 if random.below(4) == 0 => {
                let lowest = naive.order.first().copied();
                assert_eq!(queue.min(), lowest.map(|(object, ..)| object));
                assert_eq!(queue.pop_min(), naive.pop_min());
            }
            2 if random.below(16) == 0 => {
                let bytes = random.below(naive.filled + 1);
                queue.shrink_to(bytes);
                naive.shrink_to(bytes);
            }
            _ if naive.index_of(object).is_some() => {
                queue.increase(object, priority);
                naive.increase(object, priority);
            }
            _ => {
                let size = 1 + random.below(size_max);
                let place = naive.place(priority, size);
                naive.insert_at(place, object, size, priority);
                queue.insert(object, size, priority);
            }
        }
        while naive.order.len() > target {
            assert_eq!(queue.pop_min(), naive.pop_min());
        }
        if step % 16 == 0 || naive.order.is_empty() {
            queue.check_invariants();
            let expected: Vec<(u32, u64)> = naive.order.iter().map(|(o, s, _)| (*o, *s)).collect();
            assert_eq!(
                queue.iter().collect::<Vec<_>>(),
                expected,
                "{shape:?}, step {step}"
            );
        }
        assert_eq!((queue.used(), queue.len()), (naive.total(), naive.order.len()));
        assert_eq!(queue.contains(object), naive.index_of(object).is_some());
        assert_eq!(
            queue.size_of(object),
            naive.index_of(object).map(|at| naive.order[at].1)
        );
        match (
            queue.position(object),
            naive.position(object, shape.is_absolute()),
        ) {
            (Some(seen), Some(expected)) => assert!((seen - expected).abs() < 1e-12, "{seen} {expected}"),
            (seen, expected) => assert_eq!(seen, expected),
        }
        if shape.is_absolute() {
            assert_eq!(queue.lowest(), naive.lowest, "{shape:?}, step {step}");
        }
    }
}

#[test]
fn the_queue_agrees_with_a_vector() {
    for shape in [Shape::Anywhere, Shape::Points, Shape::Values, Shape::Drift] {
        for seed in 0..4 {
            agrees(shape, seed, 30, 20, 1);
            agrees(shape, seed, 1000, 400, 100);
            agrees(shape, seed, 600, usize::MAX, 7);
            agrees(shape, seed, 1000, 150, 1 << 40);
        }
    }
}

fn order(queue: &ExactQueue) -> Vec<u32> {
    queue.iter().map(|(object, _)| object).collect()
}

/// The tree of a relative queue.
fn tree(queue: &ExactQueue) -> &Tree<()> {
    match &queue.order {
        Order::Relative { tree, .. } => tree,
        Order::Absolute { .. } => unreachable!("a relative queue"),
    }
}

#[test]
fn an_object_stands_with_its_upper_end_at_the_point() {
    let mut queue = ExactQueue::relative();
    queue.insert(0, 10, Priority::Relative(0.5));
    queue.insert(1, 10, Priority::Relative(1.0));
    // Of 40 bytes 30 end at 0.75, so 10 are below.
    queue.insert(2, 20, Priority::Relative(0.75));
    assert_eq!(order(&queue), [0, 2, 1]);
    queue.insert(3, 40, Priority::Relative(0.5));
    assert_eq!(order(&queue), [3, 0, 2, 1]);
    assert_eq!(queue.position(3), Some(20.0 / 80.0));
    // Its lower end would be at 20, and the middle of 2, without it, is at 20.
    queue.increase(3, Priority::Relative(0.75));
    assert_eq!(order(&queue), [0, 2, 3, 1]);
    queue.increase(3, Priority::Relative(0.7));
    assert_eq!(order(&queue), [0, 2, 3, 1], "not above where it stands");
}

#[test]
fn what_stands_above_a_point_keeps_its_bytes_whatever_is_put_in_there() {
    let mut queue = ExactQueue::relative();
    let mut random = Random(3);
    let capacity = 100_000;
    for object in 0..100 {
        queue.insert(object, 1000, Priority::Relative(1.0));
    }
    for object in 100..20_000 {
        // Small ones after large ones leave free what a large one had.
        let size = if random.below(10) == 0 {
            4000
        } else {
            1 + random.below(100)
        };
        while queue.used() + size > capacity {
            queue.pop_min();
        }
        queue.insert(object, size, Priority::Relative(0.5));
        assert!(queue.position(object).unwrap() < 0.505, "{object}");
    }
    // Half of the bytes were above the point, and nothing was hit.
    let old = queue.iter().filter(|(object, _)| *object < 100).count();
    assert!((49..=50).contains(&old), "{old} of the first objects are left");
    while queue.used() > 40_000 {
        queue.pop_min();
    }
    queue.shrink_to(90_000);
    queue.insert(20_000, 1, Priority::Relative(0.0));
    assert!(
        (queue.position(20_000).unwrap() - 5.0 / 9.0).abs() < 0.01,
        "what is free is at the tail"
    );
}

#[test]
fn new_objects_go_to_the_top_until_the_queue_has_been_full() {
    let mut queue = ExactQueue::relative();
    for (object, size) in [(0, 100), (1, 1), (2, 50), (3, 10)] {
        queue.insert_new(object, size, Priority::Relative(0.5));
    }
    assert_eq!(order(&queue), [0, 1, 2, 3], "whatever their sizes");
    queue.remove(3);
    queue.insert_new(3, 10, Priority::Relative(0.5));
    assert_eq!(order(&queue), [0, 1, 2, 3], "what is removed makes no room");
    queue.pop_min();
    queue.insert_new(4, 10, Priority::Relative(0.5));
    assert_eq!(order(&queue), [4, 1, 2, 3]);
    let mut absolute = ExactQueue::absolute();
    absolute.insert_new(0, 10, Priority::Absolute(7.0));
    absolute.insert_new(1, 10, Priority::Absolute(2.0));
    assert_eq!(order(&absolute), [1, 0]);
}

#[test]
fn equal_values_stand_in_order_of_use_and_the_lowest_never_falls() {
    let mut queue = ExactQueue::absolute();
    for object in 0..3 {
        queue.insert(object, 1, Priority::Absolute(5.0));
    }
    queue.increase(0, Priority::Absolute(5.0));
    queue.increase(1, Priority::Absolute(4.0));
    assert_eq!(order(&queue), [1, 2, 0]);
    assert_eq!(queue.lowest(), 5.0);
    queue.insert(9, 1, Priority::Absolute(1.0));
    assert_eq!((queue.min(), queue.lowest()), (Some(9), 5.0));
    while queue.pop_min().is_some() {}
    assert_eq!(queue.lowest(), 5.0);
}

#[test]
fn nodes_are_used_again() {
    let mut queue = ExactQueue::relative();
    let mut random = Random(1);
    let leaves = |queue: &ExactQueue| tree(queue).leaves.len();
    let mut after_first = 0;
    for round in 0..20 {
        for object in 0..2000 {
            queue.insert(object, 1, Priority::Relative(random.next_f64()));
        }
        queue.check_invariants();
        if round == 0 {
            after_first = leaves(&queue);
        }
        for object in 0..2000 {
            queue.remove(object);
        }
        queue.check_invariants();
    }
    assert!(
        leaves(&queue) <= after_first + after_first / 5,
        "{after_first} leaves, then {}",
        leaves(&queue)
    );
}

#[test]
fn side_by_side_insertions_fill_leaves() {
    use super::node::LEAF;
    let mut queue = ExactQueue::relative();
    for object in 0..4000 {
        queue.insert(
            object,
            1,
            Priority::Relative([1.0 / 3.0, 2.0 / 3.0, 1.0][object as usize % 3]),
        );
    }
    let tree = tree(&queue);
    let used = tree.leaves.len() - tree.free_leaves.len();
    assert!(
        used * LEAF < 4000 * 3 / 2,
        "{used} leaves of {LEAF} for 4000 objects"
    );
}

#[test]
#[should_panic(expected = "queue of the other kind")]
fn a_queue_takes_one_kind_of_priority() {
    ExactQueue::relative().insert(0, 1, Priority::Absolute(1.0));
}
