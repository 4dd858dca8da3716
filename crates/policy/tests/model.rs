//! Every exact policy against a naive one that shifts vectors, and golden counts on a small workload.

use proptest::prelude::*;
use pumice_policy::{ExactPolicy, GreedyDual, Insertion, Lists, Twin, policy_named};

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

fn agrees_with_naive(hit_renews: bool, mut policy: impl ExactPolicy, actions: &[Action]) {
    let capacity = policy.capacity();
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

fn twin(policy: &str, capacity: u64) -> Twin {
    Twin::new(policy_named(policy).unwrap(), capacity)
}

proptest! {
    #[test]
    fn fifo_agrees_with_the_naive_version(capacity in 0u64..60, actions in actions()) {
        agrees_with_naive(false, Lists::fifo(capacity), &actions);
        agrees_with_naive(false, twin("fifo", capacity), &actions);
    }

    #[test]
    fn lru_agrees_with_the_naive_version(capacity in 0u64..60, actions in actions()) {
        agrees_with_naive(true, Lists::lru(capacity), &actions);
        agrees_with_naive(true, twin("lru", capacity), &actions);
        agrees_with_naive(true, twin("slru-1", capacity), &actions);
    }
}

/// Textbook SLRU on vectors, from the oldest to the newest.
struct NaiveLists {
    lists: Vec<Vec<(u32, u64)>>,
    capacity: u64,
}

impl NaiveLists {
    fn bytes(&self, list: usize) -> u64 {
        self.lists[list].iter().map(|(_, size)| size).sum()
    }

    fn used(&self) -> u64 {
        (0..self.lists.len()).map(|list| self.bytes(list)).sum()
    }

    fn limit(&self) -> u64 {
        self.capacity / self.lists.len() as u64
    }

    fn take(&mut self, object: u32) -> Option<(usize, u64)> {
        for (at, list) in self.lists.iter_mut().enumerate() {
            if let Some(index) = list.iter().position(|(found, _)| *found == object) {
                return Some((at, list.remove(index).1));
            }
        }
        None
    }

    fn lookup(&mut self, object: u32) -> bool {
        let Some((list, size)) = self.take(object) else {
            return false;
        };
        let to = (list + 1).min(self.lists.len() - 1);
        self.lists[to].push((object, size));
        for list in (0..=to).rev() {
            if self.bytes(list) <= self.limit() {
                break;
            }
            while self.bytes(list) > self.limit() {
                let oldest = self.lists[list].remove(0);
                if list > 0 {
                    self.lists[list - 1].push(oldest);
                }
            }
        }
        true
    }

    fn insert(&mut self, object: u32, size: u64) -> Insertion {
        self.take(object);
        if size > self.limit() {
            return Insertion::Rejected;
        }
        while self.used() + size > self.capacity {
            let lowest = self.lists.iter_mut().find(|list| !list.is_empty());
            lowest.expect("something is resident").remove(0);
        }
        let room = (0..self.lists.len()).find(|list| self.bytes(*list) + size <= self.limit());
        self.lists[room.unwrap_or(0)].push((object, size));
        Insertion::Inserted
    }
}

/// Textbook GDSF: (object, size, accesses, value, time of the last access), the next to go found by looking at all.
struct NaiveGreedyDual {
    objects: Vec<(u32, u64, u32, f64, usize)>,
    capacity: u64,
    evicted: f64,
}

impl NaiveGreedyDual {
    fn touch(&mut self, object: u32, now: usize) -> bool {
        let evicted = self.evicted;
        let found = self.objects.iter_mut().find(|entry| entry.0 == object);
        found.is_some_and(|entry| {
            entry.2 += 1;
            (entry.3, entry.4) = (evicted + f64::from(entry.2) * 1.0e6 / entry.1.max(1) as f64, now);
            true
        })
    }

    fn remove(&mut self, object: u32) -> Option<u64> {
        let at = self.objects.iter().position(|entry| entry.0 == object)?;
        Some(self.objects.remove(at).1)
    }

    fn in_order(&self) -> Vec<u32> {
        let mut sorted = self.objects.clone();
        sorted.sort_by(|one, other| (one.3, one.4).partial_cmp(&(other.3, other.4)).unwrap());
        sorted.iter().map(|entry| entry.0).collect()
    }

    fn insert(&mut self, object: u32, size: u64, now: usize) -> Insertion {
        self.remove(object);
        if size > self.capacity {
            return Insertion::Rejected;
        }
        let value = self.evicted + 1.0e6 / size.max(1) as f64;
        self.objects.push((object, size, 1, value, now));
        while self.objects.iter().map(|entry| entry.1).sum::<u64>() > self.capacity {
            let lowest = self.in_order()[0];
            let entry = self.objects.iter().find(|entry| entry.0 == lowest);
            self.evicted = entry.expect("it is resident").3;
            self.remove(lowest);
        }
        Insertion::Inserted
    }
}

proptest! {
    #[test]
    fn slru_lists_agree_with_the_naive_version(lists in 1u32..5, capacity in 0u64..60, actions in actions()) {
        let mut policy = Lists::slru(lists, capacity);
        let mut naive = NaiveLists { lists: vec![Vec::new(); lists as usize], capacity };
        for action in &actions {
            match *action {
                Action::Lookup(object) => assert_eq!(policy.lookup(object), naive.lookup(object), "{action:?}"),
                Action::Insert(object, size) => {
                    assert_eq!(policy.insert(object, size), naive.insert(object, size), "{action:?}");
                }
                Action::Remove(object) => {
                    assert_eq!(policy.remove(object), naive.take(object).map(|taken| taken.1), "{action:?}");
                }
            }
            policy.check_invariants();
            let order: Vec<u32> = policy.eviction_order().collect();
            let expected: Vec<u32> = naive.lists.iter().flatten().map(|(object, _)| *object).collect();
            assert_eq!(order, expected, "after {action:?}");
        }
    }

    #[test]
    fn greedy_dual_agrees_with_the_naive_version(capacity in 0u64..60, actions in actions()) {
        let mut policy = GreedyDual::new(capacity);
        let mut naive = NaiveGreedyDual { objects: Vec::new(), capacity, evicted: 0.0 };
        for (now, action) in actions.iter().enumerate() {
            match *action {
                Action::Lookup(object) => assert_eq!(policy.lookup(object), naive.touch(object, now), "{action:?}"),
                Action::Insert(object, size) => {
                    assert_eq!(policy.insert(object, size), naive.insert(object, size, now), "{action:?}");
                }
                Action::Remove(object) => assert_eq!(policy.remove(object), naive.remove(object), "{action:?}"),
            }
            policy.check_invariants();
            assert_eq!(policy.eviction_order().collect::<Vec<_>>(), naive.in_order(), "after {action:?}");
        }
    }
}

/// Runs a long skewed workload through both and compares every hit, and the order now and then.
fn agree_request_by_request(mut one: impl ExactPolicy, mut other: impl ExactPolicy, sized: bool) {
    let mut state = 99u64;
    for step in 0..60_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 33) as f64 / f64::from(1u32 << 31);
        // The cube favours low objects about as Zipf's law does.
        let object = (uniform.powi(3) * 20_000.0) as u32;
        let size = if sized {
            1 + u64::from(object) * 7919 % 997
        } else {
            1
        };
        let hit = one.lookup(object);
        assert_eq!(hit, other.lookup(object), "request {step}");
        if !hit {
            assert_eq!(
                one.insert(object, size),
                other.insert(object, size),
                "request {step}"
            );
        }
        assert_eq!(
            (one.used(), one.len()),
            (other.used(), other.len()),
            "request {step}"
        );
        if step % 10_000 == 9_999 {
            one.check_invariants();
            assert!(
                one.eviction_order().eq(other.eviction_order()),
                "after request {step}"
            );
        }
    }
}

#[test]
fn twins_of_fifo_and_lru_are_fifo_and_lru_request_by_request() {
    for (capacity, sized) in [(5000, false), (1_500_000, true)] {
        agree_request_by_request(twin("fifo", capacity), Lists::fifo(capacity), sized);
        agree_request_by_request(twin("lru", capacity), Lists::lru(capacity), sized);
        agree_request_by_request(twin("slru-1", capacity), Lists::slru(1, capacity), sized);
    }
}

#[test]
fn twins_count_accesses_up_to_the_cap() {
    let mut cache = twin("gdsf-2", 1000);
    for object in 0..3 {
        cache.insert(object, 100);
    }
    for _ in 0..5 {
        cache.lookup(0);
    }
    cache.lookup(1);
    // 0 and 1 have both been used twice or more; 1 came there last.
    assert_eq!(cache.eviction_order().collect::<Vec<_>>(), [2, 0, 1]);
    assert_eq!(cache.queue().value_of(0), cache.queue().value_of(1));
    cache.remove(0);
    cache.insert(0, 100);
    assert!(
        cache.queue().value_of(0) < cache.queue().value_of(1),
        "counted anew"
    );
}

/// Misses of lookups that insert, on a fixed pseudo-random workload: a square of a uniform number favours low objects.
fn misses(mut policy: impl ExactPolicy, size_of: fn(u32) -> u64) -> u64 {
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
        misses(Lists::fifo(50), unit),
        misses(Lists::lru(50), unit),
        misses(Lists::fifo(2500), sized),
        misses(Lists::lru(2500), sized),
        misses(twin("fifo", 50), unit),
        misses(twin("lru", 2500), sized),
    ];
    assert_eq!(
        counts, GOLDEN,
        "an independent program gives the golden counts; change neither lightly"
    );
}

const GOLDEN: [u64; 6] = [16563, 16282, 16481, 16202, 16563, 16202];
