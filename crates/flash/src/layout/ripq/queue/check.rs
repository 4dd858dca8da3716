//! The rules of the queue, for tests.

use super::{Place, Queue, Seat};

impl Queue {
    /// Re-derives all counts and checks the rules.
    ///
    /// # Panics
    /// Where one does not hold.
    pub fn check_invariants(&self) {
        let mut total = 0;
        let mut seen = vec![false; self.places.len()];
        for (number, section) in self.sections.iter().enumerate() {
            assert!(!section.order.is_empty(), "section {number} is empty");
            let mut bytes = 0;
            for (at, id) in section.order.iter().enumerate() {
                let place = &self.places[*id as usize];
                assert!(
                    !std::mem::replace(&mut seen[*id as usize], true),
                    "place {id} stands twice"
                );
                assert_eq!(
                    (place.section as usize, place.at as usize),
                    (number, at),
                    "place {id}"
                );
                assert_eq!(section.sums.before(at), bytes, "sums of section {number}");
                assert_eq!(place.mark != 0, place.virtual_objects != 0, "mark of place {id}");
                assert!(
                    place.virtual_objects != 0 || place.virtual_bytes == 0,
                    "virtual bytes of place {id}"
                );
                if let Some(block) = self.block(*id) {
                    assert_eq!(self.placed[block as usize], *id, "block {block}");
                }
                if place.mark != 0 {
                    assert_eq!(self.marked[place.mark as usize], *id, "mark {}", place.mark);
                }
                assert!(
                    at + 1 == section.order.len() || !place.is_bare(),
                    "place {id} is bare"
                );
                bytes += place.bytes();
            }
            assert_eq!(section.bytes, bytes, "bytes of section {number}");
            total += bytes;
        }
        assert_eq!(self.bytes, total, "bytes");
        // The other way round: nothing is kept of a place that stands nowhere.
        let standing = seen.iter().filter(|seen| **seen).count();
        assert_eq!(standing, self.places(), "places");
        for id in &self.free_places {
            assert!(!seen[*id as usize], "place {id} is free and stands");
        }
        for (block, id) in (0u32..).zip(&self.placed) {
            let stands = *id == 0 || (seen[*id as usize] && self.block(*id) == Some(block));
            assert!(stands, "block {block} is said to be at place {id}");
        }
        for block in &self.spare {
            let section = self.section_of(Seat::Device(*block));
            assert!(
                self.has_block(*block) && self.active_block(section) != Some(*block),
                "block {block} is a section's"
            );
        }
        let marks = self.marked.iter().filter(|place| **place != 0).count();
        assert_eq!(marks + self.free_marks.len() + 1, self.marked.len(), "marks");
        assert!(
            self.sections.len() <= self.sections_max().max(1),
            "{} sections",
            self.sections.len()
        );
    }

    /// Compares what counts in each seat with the objects that say they count there, and their bytes.
    ///
    /// # Panics
    /// Where they do not agree.
    pub fn check_seats(&self, objects: impl Iterator<Item = (Seat, u64)>) {
        let mut in_blocks = vec![0; self.placed.len()];
        let mut in_marks = vec![(0, 0); self.marked.len()];
        for (seat, bytes) in objects {
            match seat {
                Seat::Device(block) => in_blocks[block as usize] += bytes,
                Seat::Virtual(mark) => {
                    let (objects, sum) = &mut in_marks[mark as usize];
                    (*objects, *sum) = (*objects + 1, *sum + bytes);
                }
            }
        }
        for (block, (id, bytes)) in self.placed.iter().zip(in_blocks).enumerate() {
            let counted = if *id == 0 {
                0
            } else {
                self.places[*id as usize].device_bytes
            };
            assert_eq!(counted, bytes, "bytes that count in block {block}");
        }
        for (mark, (id, objects)) in self.marked.iter().zip(in_marks).enumerate() {
            let place = if *id == 0 {
                Place::default()
            } else {
                self.places[*id as usize]
            };
            let counted = (place.virtual_objects, place.virtual_bytes);
            assert_eq!(counted, objects, "objects and bytes that count at mark {mark}");
        }
    }

    /// Checks the sizes of sections, which hold from one [`Queue::rebalance`] to the next change.
    ///
    /// # Panics
    /// Where a section is above 2α though it has more than one place with bytes, or two neighbours are below α.
    pub fn check_balance(&self) {
        let (total, least) = (self.bytes, self.section_bytes_min());
        for (at, section) in self.sections.iter().enumerate() {
            let places = section.order.iter().map(|id| self.places[*id as usize].bytes());
            let largest = places.max().unwrap_or(0);
            let bytes = section.bytes;
            assert!(
                // A place that is all of it but for a byte is not split off: the middle is rounded.
                bytes as f64 <= 2.0 * least || largest + 1 >= bytes,
                "section {at} has {bytes} of {total}, and a place of {largest}"
            );
            if let Some(next) = self.sections.get(at + 1) {
                let pair = bytes + next.bytes;
                assert!(
                    pair as f64 >= least,
                    "sections {at} and {} have {pair} of {total}",
                    at + 1
                );
            }
        }
    }
}
