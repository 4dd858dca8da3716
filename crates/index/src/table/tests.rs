use super::*;
use pumice_world::Random;
use std::collections::HashMap;

/// Random operations against a plain multimap, with few distinct tags so that collisions are the rule.
fn model(rest_bytes: usize, payload_bits: u32, tag_mask: u64, seed: u64) {
    let pool = PagePool::standalone(4 << 20).unwrap();
    let shape = TableShape::new(rest_bytes, payload_bits);
    let mut table = PackedTable::new(shape, Arc::clone(&pool));
    let mut naive: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut state = Random(seed);
    for step in 0..60_000u32 {
        let tag = state.next_u64() & ((1 << shape.tag_bits()) - 1) & tag_mask;
        let payload = state.next_u64() & ((1 << payload_bits) - 1);
        let grow = step % 20_000 < 12_000;
        match state.next_u64() % 10 {
            0..=5 if grow => {
                table.insert(tag, payload).unwrap();
                naive.entry(tag).or_default().push(payload);
            }
            6 => {
                let changed = table.update(tag, |_| Some(payload));
                let list = naive.entry(tag).or_default();
                match changed {
                    Some((old, new)) => {
                        assert_eq!(new, payload);
                        let at = list
                            .iter()
                            .position(|p| *p == old)
                            .expect("the old payload was there");
                        list[at] = payload;
                    }
                    None => assert!(list.is_empty()),
                }
            }
            _ => {
                // Remove some entry that exists, else look for one that does not.
                let tag = naive.keys().next().copied().filter(|_| !grow).unwrap_or(tag);
                let removed = table.remove(tag, |_| true);
                let list = naive.entry(tag).or_default();
                match removed {
                    Some(payload) => {
                        let at = list.iter().position(|p| *p == payload).expect("it was there");
                        list.swap_remove(at);
                    }
                    None => assert!(list.is_empty(), "an entry that must be found was not"),
                }
                if list.is_empty() {
                    naive.remove(&tag);
                }
            }
        }
        if step % 5_000 == 0 {
            table.check_invariants();
        }
    }
    let mut all: Vec<(u64, u64)> = naive
        .iter()
        .flat_map(|(t, l)| l.iter().map(|p| (*t, *p)))
        .collect();
    let mut got = Vec::new();
    table.for_each(|tag, payload| got.push((tag, payload)));
    all.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, all);
    table.clear();
    assert_eq!(pool.free_pages(), pool.total_pages(), "a page leaked");
}

#[test]
fn agrees_with_a_plain_multimap() {
    for (rest_bytes, payload_bits) in [(6, 28), (7, 43), (8, 52)] {
        model(rest_bytes, payload_bits, u64::MAX, 1);
    }
}

#[test]
fn agrees_with_a_plain_multimap_when_tags_collide() {
    model(7, 43, 0x3, 2);
    model(7, 43, 0xFFFF, 3);
    model(8, 52, !0xFFFF, 4);
}

/// The most bytes that an entry costs while a table grows from `from` to `to` entries.
fn worst_cost(from: u32, to: u32) -> f64 {
    let pool = PagePool::standalone(8 << 20).unwrap();
    let mut table = PackedTable::new(TableShape::new(7, 43), pool);
    let mut state = Random(5);
    let mut worst: f64 = 0.0;
    for n in 1..=to {
        let tag = state.next_u64() & ((1 << table.shape().tag_bits()) - 1);
        table.insert(tag, u64::from(n)).unwrap();
        if n > from {
            worst = worst.max(table.dram_bytes() as f64 / f64::from(n));
        }
    }
    worst
}

#[test]
fn ten_million_entries_would_cost_about_ten_bytes_each_and_few_hundred_little_more() {
    // One shard of 256 at 10 million objects.
    let worst = [worst_cost(30_000, 45_000), worst_cost(400, 1_000)];
    assert!(worst[0] < 11.0 && worst[1] < 12.5, "{worst:?} bytes an entry");
}

#[test]
fn entries_in_the_order_of_their_tags_are_taken_in_linear_time() {
    const ENTRIES: u64 = 150_000;
    let shape = TableShape::new(7, 43);
    for pages in [4_096, 1_200] {
        let pool = PagePool::standalone(pages * PAGE_BYTES).unwrap();
        let mut table = PackedTable::new(shape, pool);
        let step = (1 << shape.tag_bits()) / ENTRIES;
        let start = std::time::Instant::now();
        table.reserve(ENTRIES as usize);
        let taken = (0..ENTRIES)
            .filter(|n| table.insert(n * step, *n).is_ok())
            .count();
        // In a table that grows from empty it takes some hundred times as long.
        let took = start.elapsed();
        assert!(
            took.as_secs() < 2,
            "{took:?} for {ENTRIES} entries, {pages} pages"
        );
        let room = PackedTable::entries_of_pages(shape, pages);
        assert!(
            taken >= room.min(ENTRIES as usize),
            "{taken} of {ENTRIES}, {pages} pages"
        );
        table.check_invariants();
    }
}

#[test]
fn a_full_pool_refuses_and_changes_nothing() {
    let pool = PagePool::standalone(6 * PAGE_BYTES).unwrap();
    let mut table = PackedTable::new(TableShape::new(7, 43), pool);
    let mut state = Random(6);
    let mut held = Vec::new();
    loop {
        let tag = state.next_u64() & ((1 << table.shape().tag_bits()) - 1);
        if table.insert(tag, held.len() as u64).is_err() {
            break;
        }
        held.push(tag);
    }
    assert!(held.len() > 28 * 16, "refused too early: {}", held.len());
    table.check_invariants();
    for (payload, tag) in held.iter().enumerate() {
        assert_eq!(table.find(*tag, |p| p == payload as u64), Some(payload as u64));
    }
}

#[test]
fn a_table_grows_out_of_a_shortage_of_pages_with_long_spills() {
    // Few distinct homes and a pool that is short of pages most of the time: entries stand far from home when pages come.
    for seed in 0..4 {
        let pool = PagePool::standalone(16 * PAGE_BYTES).unwrap();
        let mut hostages: Vec<Page> = std::iter::from_fn(|| pool.take()).collect();
        let mut table = PackedTable::new(TableShape::new(7, 43), Arc::clone(&pool));
        let mut state = Random(seed);
        let mut held = 0;
        while !hostages.is_empty() {
            let tag = state.next_u64() & ((1 << table.shape().tag_bits()) - 1);
            // Half of the tags share a narrow range, so that one stretch of buckets overflows.
            let tag = if tag & 1 == 0 { tag >> 9 } else { tag };
            match table.insert(tag, held) {
                Ok(()) => held += 1,
                Err(TableFull) => drop(hostages.pop()),
            }
        }
        table.check_invariants();
        assert_eq!(table.len() as u64, held);
    }
}

#[test]
fn retain_keeps_what_it_should() {
    let pool = PagePool::standalone(1 << 20).unwrap();
    let mut table = PackedTable::new(TableShape::new(6, 20), pool);
    let mut state = Random(7);
    for n in 0..5_000u64 {
        let tag = state.next_u64() & ((1 << table.shape().tag_bits()) - 1);
        table.insert(tag, n).unwrap();
    }
    table.retain(|_, payload| payload % 3 == 0);
    assert_eq!(table.len(), 1_667);
    table.check_invariants();
}

/// Pieces of a table that changes between them: what is there all the time is visited once.
#[test]
fn a_walk_in_pieces_visits_once_what_stays() {
    for (entries, changes) in [(0, 0), (1, 0), (5_000, 0), (5_000, 30), (200, 90)] {
        let pool = PagePool::standalone(4 << 20).unwrap();
        let shape = TableShape::new(7, 33);
        let mut table = PackedTable::new(shape, pool);
        let mut state = Random(entries);
        let mut tag = |spread: u64| state.next_u64() & ((1 << shape.tag_bits()) - 1) & spread;
        // Half of them share few tags, so that buckets run over.
        let stays: Vec<u64> = (0..entries)
            .map(|at| {
                tag(if at % 2 == 0 {
                    u64::MAX
                } else {
                    !0 << (shape.tag_bits() - 6)
                })
            })
            .collect();
        for (payload, tag) in stays.iter().enumerate() {
            table.insert(*tag, payload as u64).unwrap();
        }
        let mut seen = vec![0; stays.len()];
        let (mut from, mut pieces, mut others) = (0, 0, Vec::new());
        loop {
            let next = table.visit_from(from, 3, |tag, payload| {
                if let Some(count) = seen.get_mut(payload as usize) {
                    assert_eq!(stays[payload as usize], tag);
                    *count += 1;
                }
            });
            pieces += 1;
            let Some(next) = next else { break };
            assert!(next > from, "it does not go on");
            from = next;
            // It grows in the first pieces, and shrinks again.
            for number in 0..changes {
                if pieces % 20 < 10 {
                    let tag = tag(u64::MAX);
                    table.insert(tag, 1 << 32 | number).unwrap();
                    others.push(tag);
                } else if let Some(tag) = others.pop() {
                    table
                        .remove(tag, |payload| payload >= 1 << 32)
                        .expect("it was put in");
                }
            }
        }
        assert!(
            seen.iter().all(|count| *count == 1),
            "{entries} entries, {changes} changes"
        );
        assert!(entries < 1_000 || pieces > 20, "{pieces} pieces");
    }
}
