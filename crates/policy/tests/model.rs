//! Every exact policy against a naive one that shifts a vector, and golden counts on a small workload.

use proptest::prelude::*;
use pumice_policy::{ExactPolicy, Fifo, Insertion, Lru};

/// The textbook version: a vector from the oldest to the newest.
struct Naive {
    order: Vec<(u32, u64)>,
    capacity: u64,
    hit_renews: bool,
}

impl Naive {
    fn used(&self) -> u64 {
        self.order.iter().map(|(_, size)| size).sum()
    }

    fn lookup(&mut self, object: u32) -> bool {
        let Some(at) = self.order.iter().position(|(found, _)| *found == object) else {
            return false;
        };
        if self.hit_renews {
            let entry = self.order.remove(at);
            self.order.push(entry);
        }
        true
    }

    fn insert(&mut self, object: u32, size: u64) -> Insertion {
        self.remove(object);
        if size > self.capacity {
            return Insertion::Rejected;
        }
        while self.used() + size > self.capacity {
            self.order.remove(0);
        }
        self.order.push((object, size));
        Insertion::Inserted
    }

    fn remove(&mut self, object: u32) -> Option<u64> {
        let at = self.order.iter().position(|(found, _)| *found == object)?;
        Some(self.order.remove(at).1)
    }
}

#[derive(Debug, Clone)]
enum Action {
    Lookup(u32),
    Insert(u32, u64),
    Remove(u32),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let object = || prop_oneof![0u32..12, 0u32..200];
    let action = prop_oneof![
        5 => object().prop_map(Action::Lookup),
        5 => (object(), prop_oneof![Just(1u64), 0u64..12, Just(u64::MAX)]).prop_map(|(o, s)| Action::Insert(o, s)),
        1 => object().prop_map(Action::Remove),
    ];
    prop::collection::vec(action, 0..200)
}

fn agrees_with_naive<P: ExactPolicy>(hit_renews: bool, capacity: u64, actions: &[Action]) {
    let mut policy = P::new(capacity);
    let mut naive = Naive {
        order: Vec::new(),
        capacity,
        hit_renews,
    };
    for action in actions {
        match *action {
            Action::Lookup(object) => assert_eq!(policy.lookup(object), naive.lookup(object), "{action:?}"),
            Action::Insert(object, size) => {
                assert_eq!(
                    policy.insert(object, size),
                    naive.insert(object, size),
                    "{action:?}"
                );
            }
            Action::Remove(object) => assert_eq!(policy.remove(object), naive.remove(object), "{action:?}"),
        }
        policy.check_invariants();
        let order: Vec<(u32, u64)> = policy
            .eviction_order()
            .map(|object| {
                (
                    object,
                    policy
                        .size_of(object)
                        .expect("an object in the order is resident"),
                )
            })
            .collect();
        assert_eq!(order, naive.order, "after {action:?}");
        assert_eq!(
            (policy.used(), policy.len(), policy.capacity()),
            (naive.used(), naive.order.len(), capacity)
        );
        assert_eq!(policy.is_empty(), naive.order.is_empty());
    }
}

proptest! {
    #[test]
    fn fifo_agrees_with_the_naive_version(capacity in 0u64..60, actions in actions()) {
        agrees_with_naive::<Fifo>(false, capacity, &actions);
    }

    #[test]
    fn lru_agrees_with_the_naive_version(capacity in 0u64..60, actions in actions()) {
        agrees_with_naive::<Lru>(true, capacity, &actions);
    }
}

/// Misses of lookups that insert, on a fixed pseudo-random workload: a square of a uniform number favours low objects.
fn misses<P: ExactPolicy>(capacity: u64, size_of: fn(u32) -> u64) -> u64 {
    let mut policy = P::new(capacity);
    let (mut state, mut misses) = (12_345u64, 0);
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = state >> 44;
        let object = (uniform * uniform / ((1 << 40) / 500)) as u32;
        if !policy.lookup(object) {
            misses += 1;
            policy.insert(object, size_of(object));
        }
    }
    misses
}

#[test]
fn misses_on_a_small_workload_are_the_golden_ones() {
    let unit: fn(u32) -> u64 = |_| 1;
    let sized: fn(u32) -> u64 = |object| 1 + u64::from(object * 7919 % 97);
    let counts = [
        misses::<Fifo>(50, unit),
        misses::<Lru>(50, unit),
        misses::<Fifo>(2500, sized),
        misses::<Lru>(2500, sized),
    ];
    assert_eq!(
        counts, GOLDEN,
        "an independent program gives the golden counts; change neither lightly"
    );
}

const GOLDEN: [u64; 4] = [16563, 16282, 16481, 16202];
