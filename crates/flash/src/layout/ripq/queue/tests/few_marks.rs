//! Raises where no mark is left.

use super::*;

/// Where a place stands: its section and its position there.
fn order(queue: &Queue, id: PlaceId) -> (u16, u32) {
    let place = &queue.places[id as usize];
    (place.section, place.at)
}

/// Bytes below each place, added up from the tail.
fn bytes_below(queue: &Queue) -> HashMap<PlaceId, u64> {
    let mut below = 0;
    let mut all = HashMap::new();
    for id in queue.sections.iter().flat_map(|section| &section.order) {
        all.insert(*id, below);
        below += queue.places[*id as usize].bytes();
    }
    all
}

/// The mark that a raise must get where none is left, by a look at every group; `None`: it stays.
fn mark_of_few(queue: &Queue, from: PlaceId, target: PlaceId) -> Option<Mark> {
    if queue.places[target as usize].mark != 0 {
        return Some(queue.places[target as usize].mark.into());
    }
    let granule = (queue.shape.granule).max(2 * queue.bytes() / u64::from(queue.shape.marks));
    let below = bytes_below(queue);
    let section = queue.places[target as usize].section;
    let mut groups: Vec<(bool, u64, Mark)> = Vec::new();
    for mark in 1..queue.shape.marks {
        let id = queue.marked[mark as usize];
        let place = &queue.places[id as usize];
        let is_far = place.section != section;
        if order(queue, id) > order(queue, from) && !(is_far && place.virtual_bytes >= granule) {
            groups.push((is_far, below[&id].abs_diff(below[&target]), mark));
        }
    }
    groups.sort_unstable();
    groups.first().map(|(_, _, mark)| *mark)
}

#[test]
fn with_few_marks_a_raise_goes_to_the_nearest_group_above_with_room() {
    for (seed, marks) in [(1, 14), (2, 15), (3, 5)] {
        let mut random = Random(seed * 77);
        let mut rig = Rig::new(0.0625, marks, 150);
        let (mut near, mut far, mut full, mut stayed) = (0, 0, 0, 0);
        for step in 0..12_000 {
            while rig.free.len() < 3 {
                rig.delete_min();
            }
            rig.insert(1 + random.below(BLOCK_BYTES / 4), 1.0 / 3.0);
            let id = rig.next - 1 - random.below(rig.objects.len() as u64);
            let Some(object) = rig.objects.get(&id).copied() else {
                continue;
            };
            // Most go to the head, as they would under slru.
            let priority = if step % 3 == 0 { random.next_f64() } else { 1.0 };
            let queue = &rig.queue;
            let (from, target) = (queue.place_of(object.seat()), queue.virtual_place(priority));
            if !queue.free_marks.is_empty() || order(queue, target) <= order(queue, from) {
                rig.increase(id, priority);
                continue;
            }
            let wanted = mark_of_few(queue, from, target);
            let before: Vec<_> = queue.marked.iter().map(|id| order(queue, *id)).collect();
            let (from, target) = (order(queue, from), order(queue, target));
            let mark = rig.queue.increase(object.seat(), object.bytes, priority);
            assert_eq!(mark, wanted, "step {step}: from {from:?} to {target:?}");
            match mark {
                None => stayed += 1,
                Some(mark) => {
                    let group = before[mark as usize];
                    assert!(group > from, "{from:?} fell to {group:?}");
                    let counter = if group.0 == target.0 { &mut near } else { &mut far };
                    *counter += 1;
                    rig.objects.get_mut(&id).unwrap().mark = mark;
                    rig.updates += 1;
                }
            }
            rig.rebalance();
            let granule = (rig.queue.shape.granule).max(2 * rig.queue.bytes() / u64::from(marks));
            let is_full = |id: &PlaceId| rig.queue.places[*id as usize].virtual_bytes >= granule;
            full += usize::from(rig.queue.marked[1..].iter().any(is_full));
            if step % 50 == 0 {
                rig.check();
            }
        }
        rig.check();
        println!("{marks} marks: {near} near, {far} far, {stayed} stayed, {full} times a group was full");
        assert!(
            near > 100 && far > 100 && stayed > 20 && full > 20,
            "this shows little"
        );
    }
}

#[test]
fn a_full_group_takes_no_raise_from_another_section_and_none_is_lowered() {
    let mut rig = Rig::new(0.125, 14, 300);
    for _ in 0..1_000 {
        rig.insert(1_000, 1.0);
    }
    // Thirteen groups, each above the other, far below the head.
    for id in 0..13 {
        rig.increase(id, 0.3 + 0.01 * id as f64);
    }
    let mark = |rig: &Rig, id: u64| rig.objects[&id].mark;
    assert!(rig.queue.free_marks.is_empty() && mark(&rig, 12) != mark(&rig, 11));
    rig.increase(13, 0.95);
    assert_eq!(
        mark(&rig, 13),
        mark(&rig, 12),
        "the highest is the nearest to the head"
    );
    // It becomes full: two of fourteen parts of all bytes.
    let mut next = 14;
    while rig.queue.places[rig.queue.marked[mark(&rig, 12) as usize] as usize].virtual_bytes < 142_858 {
        rig.increase(next, 0.95);
        assert_eq!(mark(&rig, next), mark(&rig, 12));
        next += 1;
    }
    rig.increase(next, 0.95);
    assert_eq!(mark(&rig, next), mark(&rig, 11), "the next below has room");
    // What stands above all groups stays.
    let high = rig.objects[&900];
    let before = rig.queue.position(high.seat());
    assert_eq!(rig.queue.increase(high.seat(), high.bytes, 0.97), None);
    assert!(rig.queue.position(high.seat()) >= before);
    rig.check();
}
