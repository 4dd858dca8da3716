//! The sizes of sections: where they split, where they merge, and where the boundaries between them go.

use super::{Queue, Section};

/// Fewest full blocks that a section should have: active blocks are half empty on average, and must not be most of the cache.
pub(crate) const SECTION_BLOCKS_MIN: f64 = 4.0;

impl Queue {
    /// Splits sections that are too large and merges those that are too small.
    pub fn rebalance(&mut self) {
        if self.is_balanced() {
            return;
        }
        let mut at = 0;
        while at < self.sections.len() {
            let least = self.section_bytes_min();
            if self.sections[at].bytes as f64 > 2.0 * least
                && self.sections.len() < self.sections_max()
                && self.split(at)
            {
                at = at.saturating_sub(1);
                continue;
            }
            let pair: u64 = self.sections[at..]
                .iter()
                .take(2)
                .map(|section| section.bytes)
                .sum();
            if at + 1 < self.sections.len() && (pair as f64) < least {
                self.merge(at);
                // There may be room for a section below, now.
                at = 0;
                continue;
            }
            at += 1;
        }
    }

    /// Whether there is nothing to split or merge, as after nearly all changes. Cost: a look at each section.
    fn is_balanced(&self) -> bool {
        if self.shape.alpha >= 1.0 {
            return true;
        }
        let least = self.section_bytes_min();
        let most = (2.0 * least) as u64;
        let mut is_balanced = true;
        let mut below = u64::MAX / 2;
        for section in &self.sections {
            is_balanced &= section.bytes <= most && (below + section.bytes) as f64 >= least;
            below = section.bytes;
        }
        is_balanced
    }

    /// Sections below this merge with a neighbour, above twice of it they split. While the queue fills, a share of it would be
    /// less than a block, and every few insertions would end a section and seal a block that is nearly empty.
    pub(super) fn section_bytes_min(&self) -> f64 {
        let blocks = SECTION_BLOCKS_MIN * self.shape.granule as f64;
        (self.shape.alpha * self.bytes as f64).max(blocks)
    }

    /// The most sections: 2/α + 1, rounded down.
    pub fn sections_max(&self) -> usize {
        (2.0 / self.shape.alpha) as usize + 1
    }

    /// Moves the boundary above a section, whose last place is about to be covered by a new one, towards where insertions are
    /// wanted; no section becomes too large or too small by that.
    pub(super) fn steer(&mut self, number: usize) {
        let Some(wanted) = self.sections[number]
            .wanted
            .filter(|_| number + 1 < self.sections.len())
        else {
            return;
        };
        let wanted = wanted * self.bytes as f64;
        let least = (self.section_bytes_min() / 2.0) as u64;
        let most = (self.section_bytes_min() * 2.0) as u64;
        let mut head: u64 = self.sections[..=number].iter().map(|section| section.bytes).sum();
        let (mut lower, mut upper) = (self.sections[number].bytes, self.sections[number + 1].bytes);
        let mut has_moved = false;
        loop {
            let is_up = wanted > head as f64;
            let from = &self.sections[if is_up { number + 1 } else { number }].order;
            // The last place of the upper section is its insertion point, and one place must stay below.
            let Some(place) = (if is_up { from.first() } else { from.last() }).filter(|_| from.len() > 1)
            else {
                break;
            };
            let bytes = self.places[*place as usize].bytes();
            let is_nearer = (wanted - head as f64).abs() > bytes as f64 / 2.0;
            let (shrinks, grows) = if is_up { (upper, lower) } else { (lower, upper) };
            if !is_nearer || shrinks < least + bytes || grows + bytes > most {
                break;
            }
            if is_up {
                let place = self.sections[number + 1].order.remove(0);
                self.sections[number].order.push(place);
                (head, lower, upper) = (head + bytes, lower + bytes, upper - bytes);
            } else {
                let place = self.sections[number].order.pop().expect("more than one");
                self.sections[number + 1].order.insert(0, place);
                (head, lower, upper) = (head - bytes, lower - bytes, upper + bytes);
            }
            has_moved = true;
        }
        if has_moved {
            self.renumber(number);
            self.renumber(number + 1);
        }
    }

    fn split(&mut self, number: usize) -> bool {
        let section = &self.sections[number];
        let half = section.bytes / 2;
        let (found, before) = section.sums.find(half);
        let after = before + self.places[section.order[found] as usize].bytes();
        let (at, lower) = if half - before <= after.saturating_sub(half) {
            (found, before)
        } else {
            (found + 1, after)
        };
        // A boundary beside a place that is nearly all of the section would only make an empty section.
        if lower == 0 || lower == section.bytes || at == section.order.len() {
            return false;
        }
        let upper = self.sections[number].order.split_off(at);
        let active = self.new_place();
        self.sections[number].order.push(active);
        self.sections.insert(
            number + 1,
            Section {
                order: upper,
                ..Section::default()
            },
        );
        self.renumber_from(number);
        true
    }

    /// Joins a section and the one above. Where both have an open block, the lower one's stays where it is until another section wants it
    /// ([`Queue::adopt`]).
    fn merge(&mut self, number: usize) {
        let upper = self.sections.remove(number + 1);
        let lower_active = self.active(number);
        let upper_active = *upper.order.last().expect("never empty");
        let lower_block = self.places[lower_active as usize].block;
        if lower_block != 0 {
            if self.places[upper_active as usize].block == 0 {
                // The upper section has no open block: it takes this one, as it would take a copy of its content.
                let bytes = std::mem::take(&mut self.places[lower_active as usize].device_bytes);
                self.places[lower_active as usize].block = 0;
                self.places[upper_active as usize].device_bytes += bytes;
                self.place_block(upper_active, lower_block - 1);
            } else {
                self.spare.push(lower_block - 1);
            }
        }
        self.sections[number].order.extend(upper.order);
        self.renumber_from(number);
        self.tidy(lower_active);
    }
}
