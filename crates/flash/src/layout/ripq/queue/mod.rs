//! The order of blocks by priority: sections, places, and the bytes in them. Pure arithmetic: no I/O, no lock, no key.
//!
//! After RIPQ (FAST '15, section 4.2). From the tail to the head the queue is a list of *sections*, a section a list of *places*. A
//! place is a device block, or virtual content, or both: a pair, the device block above the virtual content. The highest
//! place of a section is its insertion point: what is inserted there goes to its active device block, and when that is full a
//! new, empty place is put above it. FIFO and SIPQ are queues of one section.
//!
//! An object counts once: in the device part of its block's place, or, after an increase, in the virtual part of another.
//!
//! # What differs from the paper
//!
//! - *Virtual insertion points.* Device blocks need a buffer each, so there are only K places to insert at. Virtual content
//!   needs none: an increase goes to the very place where its priority falls, not to the head of the section. When
//!   the virtual part of a place is full (`granule` bytes) it becomes a place of its own, directly below.
//! - *Insertion between points.* The paper takes the head of the section that the priority falls into: up to a section too high.
//!   Here it is the nearer of that point and the next one below; and when a point's block is full, the new one is put where
//!   insertions of late were wanted, not directly above: no data moves, only the boundary between two sections.
//! - A section splits where the split leaves a boundary nearest to its middle, on blocks as the paper has it; a merged section
//!   takes the lower one's buffer over where the upper has none; else the next section without one gets it, with what is in it.

mod check;
mod saved;
mod sections;
mod sums;

pub use saved::SavedPlace;
pub(crate) use sections::SECTION_BLOCKS_MIN;
use sums::Sums;

/// Number of a place; there is no place 0.
type PlaceId = u32;

/// What an object's mapping says of its virtual place: 0 is none.
pub type Mark = u32;

/// Where an object counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// In the device part of a block's place.
    Device(u32),
    /// In the virtual part of the place that has this mark.
    Virtual(Mark),
}

/// So many marks are looked at one by one.
const FEW_MARKS: Mark = 128;
/// Insertions that count for where the next ones are wanted.
const INSERTIONS_AVERAGED: f64 = 32.0;

/// How a queue is shaped.
#[derive(Clone, Copy, Debug)]
pub struct QueueShape {
    /// Sections split above twice this share of the queue, and merge below it; 1 and more: there is one section.
    pub alpha: f64,
    /// Marks are below this; 1: there is no virtual content.
    pub marks: Mark,
    /// Bytes of a block. Virtual content of as many is a full place.
    pub granule: u64,
}

/// Of 32 bytes, since there is one for each block.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    section: u16,
    /// Position in the section, from its tail.
    at: u32,
    /// The device block, plus 1; 0 = none.
    block: u32,
    /// 0 is none.
    mark: u16,
    device_bytes: u64,
    virtual_bytes: u64,
    virtual_objects: u32,
}

impl Place {
    fn bytes(&self) -> u64 {
        self.device_bytes + self.virtual_bytes
    }

    fn is_bare(&self) -> bool {
        self.block == 0 && self.virtual_objects == 0
    }
}

#[derive(Debug, Default)]
struct Section {
    /// From the tail; the last is the active place.
    order: Vec<PlaceId>,
    sums: Sums,
    bytes: u64,
    /// Where what was inserted here lately was to go, in [0, 1], on average; `None` before the first.
    wanted: Option<f64>,
}

/// The order of blocks; see the module's text.
#[derive(Debug)]
pub struct Queue {
    shape: QueueShape,
    /// From the tail.
    sections: Vec<Section>,
    places: Vec<Place>,
    free_places: Vec<PlaceId>,
    /// Place of each block; 0 = none.
    placed: Vec<PlaceId>,
    /// Place of each mark; 0 = free.
    marked: Vec<PlaceId>,
    free_marks: Vec<Mark>,
    /// Open blocks whose sections merged into others that had one.
    spare: Vec<u32>,
    bytes: u64,
}

impl Queue {
    /// An empty queue for so many blocks: one section.
    ///
    /// # Panics
    /// Where `alpha` or `marks` allows more sections or marks than 16 bits tell apart.
    pub fn new(shape: QueueShape, blocks: u32) -> Self {
        assert!(shape.marks <= 1 << 16 && shape.alpha > 1e-4, "{shape:?}");
        let mut queue = Self {
            shape,
            sections: Vec::new(),
            places: vec![Place::default()],
            free_places: Vec::new(),
            placed: vec![0; blocks as usize],
            marked: vec![0; shape.marks.max(1) as usize],
            free_marks: (1..shape.marks.max(1)).rev().collect(),
            spare: Vec::new(),
            bytes: 0,
        };
        let active = queue.new_place();
        queue.sections.push(Section {
            order: vec![active],
            ..Section::default()
        });
        queue.renumber(0);
        queue
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Objects that count virtually.
    pub fn all_virtual_objects(&self) -> u64 {
        let places = self.places.iter();
        places.map(|place| u64::from(place.virtual_objects)).sum()
    }

    /// Number of sections, which is that of insertion points.
    pub fn sections(&self) -> usize {
        self.sections.len()
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.places.len() - 1 - self.free_places.len()
    }

    /// The open block of a section, if it has one.
    pub fn active_block(&self, section: usize) -> Option<u32> {
        self.block(self.active(section))
    }

    /// Whether a mark is some place's.
    pub fn has_mark(&self, mark: Mark) -> bool {
        self.marked.get(mark as usize).is_some_and(|place| *place != 0)
    }

    /// Objects that count in the virtual place of a mark.
    pub fn virtual_objects(&self, mark: Mark) -> u32 {
        self.places[self.marked[mark as usize] as usize].virtual_objects
    }

    /// DRAM held, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        let places = self.places.capacity() * size_of::<Place>();
        let order = self.places() * (size_of::<PlaceId>() + size_of::<u64>());
        let tables = (self.placed.len() + self.marked.len() + self.free_marks.capacity()) * 4;
        (places + order + tables) as u64
    }

    /// Whether a block stands in the order.
    pub fn has_block(&self, block: u32) -> bool {
        self.placed[block as usize] != 0
    }

    /// The section that a seat is in.
    pub fn section_of(&self, seat: Seat) -> usize {
        self.places[self.place_of(seat) as usize].section as usize
    }

    /// Where an object in this seat stands, in [0, 1]: the bytes below its part of the place, plus half of that part, over all.
    pub fn position(&self, seat: Seat) -> f64 {
        let place = &self.places[self.place_of(seat) as usize];
        let below = self.below(place);
        let middle = match seat {
            Seat::Virtual(_) => below as f64 + place.virtual_bytes as f64 / 2.0,
            Seat::Device(_) => (below + place.virtual_bytes) as f64 + place.device_bytes as f64 / 2.0,
        };
        if self.bytes == 0 {
            0.0
        } else {
            (middle / self.bytes as f64).min(1.0)
        }
    }

    /// The section whose insertion point is nearest to a relative priority.
    pub fn insertion_section(&self, priority: f64) -> usize {
        let last = self.sections.len() - 1;
        if priority >= 1.0 {
            return last;
        }
        let wanted = priority.max(0.0) * self.bytes as f64;
        let mut head = 0.0;
        for (at, section) in self.sections.iter().enumerate() {
            let below = head;
            head += section.bytes as f64;
            if wanted <= head {
                let is_below_nearer = at > 0 && wanted - below < head - wanted;
                return if is_below_nearer { at - 1 } else { at };
            }
        }
        last
    }

    /// Whether the tail's end is nearer to a relative priority than the lowest insertion point: what has such a priority is not
    /// worth a place.
    pub fn is_nearest_the_end(&self, priority: f64) -> bool {
        priority * 2.0 * (self.bytes as f64) < self.sections[0].bytes as f64
    }

    /// The active place of a section, which has no block, gets one.
    pub fn open(&mut self, section: usize, block: u32) {
        let place = self.active(section);
        debug_assert_eq!(self.block(place), None, "place {place} has a block");
        self.place_block(place, block);
    }

    /// The active place of a section, which has no block, gets the nearest open one that is no section's, if there is one. What counts
    /// in it moves with it. Where hits quickly move what counts, many sections split and merge: sealed then, such blocks would be
    /// padding for the most part.
    pub fn adopt(&mut self, section: usize) -> bool {
        let distance = |block: u32| self.section_of(Seat::Device(block)).abs_diff(section);
        let Some(at) = (0..self.spare.len()).min_by_key(|at| distance(self.spare[*at])) else {
            return false;
        };
        let block = self.spare.swap_remove(at);
        let bytes = self.places[self.placed[block as usize] as usize].device_bytes;
        self.release(block);
        self.open(section, block);
        self.add(Seat::Device(block), bytes);
        true
    }

    /// An open block takes no object any more.
    pub fn close(&mut self, block: u32) {
        match self.spare.iter().position(|spare| *spare == block) {
            Some(at) => {
                self.spare.swap_remove(at);
            }
            None => self.seal(self.section_of(Seat::Device(block))),
        }
    }

    /// Notes where something that goes to a section's insertion point should have gone.
    pub fn note_insertion(&mut self, section: usize, priority: f64) {
        let wanted = &mut self.sections[section].wanted;
        let before = wanted.unwrap_or(priority);
        *wanted = Some(before + (priority - before) / INSERTIONS_AVERAGED);
    }

    /// The active block of a section is full: a new, empty place above it becomes the insertion point. It need not be directly above:
    /// nothing stands in it yet, so it is put where insertions are wanted.
    fn seal(&mut self, section: usize) {
        self.steer(section);
        let active = self.new_place();
        let order = &mut self.sections[section].order;
        order.push(active);
        let first = order.len() - 1;
        self.renumber_behind(section, first);
    }

    /// Counts an object in a seat.
    pub fn add(&mut self, seat: Seat, bytes: u64) {
        let id = self.place_of(seat);
        let place = &mut self.places[id as usize];
        match seat {
            Seat::Device(_) => place.device_bytes += bytes,
            Seat::Virtual(_) => {
                place.virtual_bytes += bytes;
                place.virtual_objects += 1;
            }
        }
        let (section, at) = (place.section as usize, place.at as usize);
        self.sections[section].sums.add(at, bytes);
        self.sections[section].bytes += bytes;
        self.bytes += bytes;
    }

    /// Takes an object out of a seat.
    pub fn remove(&mut self, seat: Seat, bytes: u64) {
        let id = self.place_of(seat);
        let place = &mut self.places[id as usize];
        match seat {
            Seat::Device(_) => place.device_bytes -= bytes,
            Seat::Virtual(_) => {
                place.virtual_bytes -= bytes;
                place.virtual_objects -= 1;
            }
        }
        let (section, at) = (place.section as usize, place.at as usize);
        self.sections[section].sums.subtract(at, bytes);
        self.sections[section].bytes -= bytes;
        self.bytes -= bytes;
        if let Seat::Virtual(_) = seat {
            self.tidy(id);
        }
    }

    /// As [`Queue::remove`] for an object whose length is not known for certain: never more than is there, and with the last object
    /// of a virtual part all that is left.
    pub fn remove_about(&mut self, seat: Seat, bytes: u64) {
        let place = &self.places[self.place_of(seat) as usize];
        let bytes = match seat {
            Seat::Device(_) => bytes.min(place.device_bytes),
            Seat::Virtual(_) if place.virtual_objects == 0 => return,
            Seat::Virtual(_) if place.virtual_objects == 1 => place.virtual_bytes,
            Seat::Virtual(_) => bytes.min(place.virtual_bytes),
        };
        self.remove(seat, bytes);
    }

    /// Moves an object to the virtual place where a relative priority falls, and returns its new mark; `None` where that is not
    /// above its seat, which it keeps then.
    pub fn increase(&mut self, seat: Seat, bytes: u64, priority: f64) -> Option<Mark> {
        if self.shape.marks <= 1 {
            return None;
        }
        let from = self.place_of(seat);
        let target = self.virtual_place(priority);
        let order = |place: PlaceId| {
            let place = &self.places[place as usize];
            (place.section, place.at)
        };
        if order(target) <= order(from) {
            return None;
        }
        let mark = self.mark_for(target, order(from))?;
        // Put in before the other is taken out: that may remove its place, but not this one.
        self.add(Seat::Virtual(mark), bytes);
        self.remove_about(seat, bytes);
        Some(mark)
    }

    /// Blocks from the tail to the head, open ones too.
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        let order = self.sections.iter().flat_map(|section| &section.order);
        order.filter_map(|place| self.block(*place))
    }

    /// A block leaves the order, and whatever still counts in it.
    pub fn release(&mut self, block: u32) {
        let left = self.places[self.placed[block as usize] as usize].device_bytes;
        self.remove(Seat::Device(block), left);
        let place = std::mem::take(&mut self.placed[block as usize]);
        self.places[place as usize].block = 0;
        self.tidy(place);
    }

    fn active(&self, section: usize) -> PlaceId {
        *self.sections[section].order.last().expect("never empty")
    }

    fn block(&self, place: PlaceId) -> Option<u32> {
        self.places[place as usize].block.checked_sub(1)
    }

    fn place_block(&mut self, place: PlaceId, block: u32) {
        self.places[place as usize].block = block + 1;
        self.placed[block as usize] = place;
    }

    fn place_of(&self, seat: Seat) -> PlaceId {
        match seat {
            Seat::Device(block) => self.placed[block as usize],
            Seat::Virtual(mark) => self.marked[mark as usize],
        }
    }

    /// Bytes below a place.
    fn below(&self, place: &Place) -> u64 {
        let section = place.section as usize;
        let sections: u64 = self.sections[..section].iter().map(|section| section.bytes).sum();
        sections + self.sections[section].sums.before(place.at as usize)
    }

    /// The place whose virtual part is nearest to a relative priority.
    fn virtual_place(&self, priority: f64) -> PlaceId {
        let mut wanted = (priority.clamp(0.0, 1.0) * self.bytes as f64) as u64;
        let last = self.sections.len() - 1;
        let mut number = 0;
        while number < last && wanted >= self.sections[number].bytes {
            wanted -= self.sections[number].bytes;
            number += 1;
        }
        let section = &self.sections[number];
        let (at, before) = section.sums.find(wanted);
        let place = &self.places[section.order[at] as usize];
        // An object that is put in stands on top of the virtual part: of this place, or of the next above.
        let here = before + place.virtual_bytes;
        let above = before + place.bytes();
        if wanted < here || wanted - here <= above.saturating_sub(wanted) {
            section.order[at]
        } else if let Some(next) = section.order.get(at + 1) {
            *next
        } else if let Some(next) = self.sections.get(number + 1) {
            next.order[0]
        } else {
            section.order[at]
        }
    }

    /// The mark of a place, which gets one if it has none; where no mark is left, that of the nearest place above `floor` that
    /// has one.
    fn mark_for(&mut self, place: PlaceId, floor: (u16, u32)) -> Option<Mark> {
        let slot = self.places[place as usize];
        let granule = self
            .shape
            .granule
            .max(2 * self.bytes / u64::from(self.shape.marks));
        if slot.mark != 0 {
            if slot.virtual_bytes < granule || self.free_marks.is_empty() {
                return Some(slot.mark.into());
            }
            self.set_apart(place);
        }
        let Some(mark) = self.free_marks.pop() else {
            if self.shape.marks <= FEW_MARKS {
                return self.nearest_of_few(&slot, floor, granule);
            }
            return self.nearest_mark(slot.section, slot.at, floor);
        };
        self.places[place as usize].mark = mark as u16;
        self.marked[mark as usize] = place;
        Some(mark)
    }

    /// The mark above `floor` that is nearest to a place: of its section, or else one whose place has room in whatever section.
    /// With few marks all may be elsewhere, and if nothing rose then, what has them would never sink.
    fn nearest_of_few(&self, to: &Place, floor: (u16, u32), granule: u64) -> Option<Mark> {
        let wanted = self.below(to);
        let marked = (1..).zip(&self.marked[1..]).filter(|(_, id)| **id != 0);
        let above = marked.filter_map(|(mark, id)| {
            let place = &self.places[*id as usize];
            let is_near = place.section == to.section;
            let is_good = (place.section, place.at) > floor && (is_near || place.virtual_bytes < granule);
            is_good.then(|| (mark, (!is_near, self.below(place).abs_diff(wanted))))
        });
        Some(above.min_by_key(|(_, distance)| *distance)?.0)
    }

    fn nearest_mark(&self, section: u16, at: u32, floor: (u16, u32)) -> Option<Mark> {
        let section = &self.sections[section as usize];
        let (lower, upper) = section.order.split_at(at as usize);
        let mark = |place: &PlaceId| {
            let place = &self.places[*place as usize];
            (place.mark != 0 && (place.section, place.at) > floor).then_some(place.mark.into())
        };
        let below = lower.iter().rev().position(|place| mark(place).is_some());
        let above = upper.iter().position(|place| mark(place).is_some());
        match (below, above) {
            (Some(down), up) if up.is_none_or(|up| down < up) => mark(&lower[lower.len() - 1 - down]),
            (_, Some(up)) => mark(&upper[up]),
            _ => None,
        }
    }

    /// Makes the virtual part of a place a place of its own, directly below.
    fn set_apart(&mut self, place: PlaceId) {
        let id = self.new_place();
        let slot = &mut self.places[place as usize];
        let (section, at) = (slot.section as usize, slot.at as usize);
        let (mark, virtual_bytes, virtual_objects) = (slot.mark, slot.virtual_bytes, slot.virtual_objects);
        (slot.mark, slot.virtual_bytes, slot.virtual_objects) = (0, 0, 0);
        self.places[id as usize] = Place {
            mark,
            virtual_bytes,
            virtual_objects,
            ..Place::default()
        };
        self.marked[mark as usize] = id;
        self.sections[section].order.insert(at, id);
        self.renumber_behind(section, at);
    }

    /// Gives back the mark of a place without virtual content, and the place if nothing is left of it.
    fn tidy(&mut self, id: PlaceId) {
        let place = &mut self.places[id as usize];
        if place.virtual_objects == 0 && place.mark != 0 {
            self.marked[place.mark as usize] = 0;
            self.free_marks.push(place.mark.into());
            place.mark = 0;
        }
        let section = place.section as usize;
        let is_active = self.active(section) == id;
        let place = &self.places[id as usize];
        if place.is_bare() && place.device_bytes == 0 && !is_active {
            let at = place.at as usize;
            self.sections[section].order.remove(at);
            self.free_places.push(id);
            self.renumber_behind(section, at);
        }
    }

    fn renumber_from(&mut self, first: usize) {
        for section in first..self.sections.len() {
            self.renumber(section);
        }
    }

    fn renumber(&mut self, number: usize) {
        self.renumber_behind(number, 0);
        let places = self.sections[number].order.iter();
        let bytes = places.map(|id| self.places[*id as usize].bytes()).sum();
        self.sections[number].bytes = bytes;
    }

    /// Tells the places of a section from position `first` on where they are. The section's bytes have not changed.
    fn renumber_behind(&mut self, number: usize, first: usize) {
        let section = &mut self.sections[number];
        let behind = &section.order[first..];
        for (at, id) in (first as u32..).zip(behind) {
            let place = &mut self.places[*id as usize];
            place.section = number as u16;
            place.at = at;
        }
        let places = &self.places;
        let bytes = behind.iter().map(|id| places[*id as usize].bytes());
        section.sums.rebuild(first, bytes);
    }

    fn new_place(&mut self) -> PlaceId {
        match self.free_places.pop() {
            Some(id) => {
                self.places[id as usize] = Place::default();
                id
            }
            None => {
                if self.places.len() == self.places.capacity() {
                    // Most places are there after the first fill: what doubles would leave much of it empty.
                    self.places.reserve_exact(self.places.len() / 16 + 16);
                }
                self.places.push(Place::default());
                self.places.len() as PlaceId - 1
            }
        }
    }
}

#[cfg(test)]
mod tests;
