//! The order as it is kept on flash, and made again from that.

use super::{Mark, Queue, QueueShape, Section};

/// A place as it is kept on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedPlace {
    /// Whether it is the first, from the tail, of a section.
    pub starts_section: bool,
    /// Its device block.
    pub block: Option<u32>,
    /// Its mark.
    pub mark: Mark,
}

impl Queue {
    /// The order as it is, without bytes.
    pub fn save(&self) -> impl Iterator<Item = SavedPlace> + '_ {
        self.sections.iter().flat_map(move |section| {
            section
                .order
                .iter()
                .enumerate()
                .map(move |(at, place)| SavedPlace {
                    starts_section: at == 0,
                    block: self.block(*place),
                    mark: self.places[*place as usize].mark.into(),
                })
        })
    }

    /// A queue in a saved order, without bytes; each section gets a new active place where its last one has a block. Marks that
    /// cannot be are left out.
    pub fn restore(shape: QueueShape, blocks: u32, saved: impl Iterator<Item = SavedPlace>) -> Self {
        let mut queue = Self::new(shape, blocks);
        let mut sections: Vec<Section> = Vec::new();
        queue.sections.clear();
        queue.places.truncate(1);
        for place in saved {
            let id = queue.new_place();
            if let Some(block) = place
                .block
                .filter(|block| queue.placed.get(*block as usize) == Some(&0))
            {
                queue.place_block(id, block);
            }
            let is_free = |mark: &Mark| queue.marked.get(*mark as usize) == Some(&0);
            if let Some(mark) = Some(place.mark).filter(|mark| *mark != 0 && is_free(mark)) {
                queue.places[id as usize].mark = mark as u16;
                queue.marked[mark as usize] = id;
            }
            if sections.is_empty() || (place.starts_section && sections.len() < queue.sections_max()) {
                sections.push(Section::default());
            }
            sections.last_mut().expect("just made").order.push(id);
        }
        if sections.is_empty() {
            sections.push(Section::default());
        }
        for section in &mut sections {
            if section
                .order
                .last()
                .is_none_or(|last| queue.block(*last).is_some())
            {
                let active = queue.new_place();
                section.order.push(active);
            }
        }
        queue.sections = sections;
        queue.free_marks = (1..shape.marks.max(1))
            .rev()
            .filter(|mark| queue.marked[*mark as usize] == 0)
            .collect();
        for section in 0..queue.sections.len() {
            queue.renumber(section);
        }
        queue
    }

    /// Puts sealed blocks that no saved order knows so many places below the head each; for recovery, which has the block that was
    /// written first first: what is put at the same depth later stands above. Cost: for each a shift of the places above it.
    pub fn insert_blocks(&mut self, blocks: impl Iterator<Item = (u32, usize)>) {
        for (block, depth) in blocks {
            let mut left = depth;
            let mut at = self.sections.len() - 1;
            while at > 0 && left >= self.sections[at].order.len() {
                left -= self.sections[at].order.len();
                at -= 1;
            }
            let id = self.new_place();
            self.place_block(id, block);
            let order = &mut self.sections[at].order;
            // Below the active place, which is the last.
            let within = (order.len() - 1).saturating_sub(left);
            order.insert(within, id);
        }
        self.renumber_from(0);
    }

    /// Removes virtual places that recovery found nothing for.
    pub fn drop_bare_places(&mut self) {
        for place in &mut self.places {
            if place.virtual_objects == 0 && place.mark != 0 {
                self.marked[place.mark as usize] = 0;
                self.free_marks.push(std::mem::take(&mut place.mark).into());
            }
        }
        for number in 0..self.sections.len() {
            let active = self.active(number);
            let (places, free) = (&self.places, &mut self.free_places);
            self.sections[number].order.retain(|id| {
                let place = &places[*id as usize];
                let stays = *id == active || !place.is_bare() || place.device_bytes != 0;
                if !stays {
                    free.push(*id);
                }
                stays
            });
        }
        self.renumber_from(0);
    }
}
