//! Queues of numbers.

const NONE: u32 = u32::MAX;
/// The list of numbers that are in none.
pub(super) const OUT: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Link {
    /// Towards the newest.
    newer: u32,
    older: u32,
    list: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    len: usize,
}

/// `LISTS` queues, the newest first; a number is in at most one of them.
pub(super) struct Lists<const LISTS: usize> {
    links: Vec<Link>,
    ends: [Ends; LISTS],
}

impl<const LISTS: usize> Lists<LISTS> {
    pub(super) fn new() -> Self {
        let empty = Ends {
            newest: NONE,
            oldest: NONE,
            len: 0,
        };
        Self {
            links: Vec::new(),
            ends: [empty; LISTS],
        }
    }

    /// Where a number is.
    pub(super) fn list(&self, number: u32) -> u8 {
        self.links.get(number as usize).map_or(OUT, |link| link.list)
    }

    pub(super) fn len(&self, list: u8) -> usize {
        self.ends[usize::from(list)].len
    }

    pub(super) fn oldest(&self, list: u8) -> Option<u32> {
        let oldest = self.ends[usize::from(list)].oldest;
        (oldest != NONE).then_some(oldest)
    }

    /// Makes a number the newest of a list, and takes it out of the one that it was in.
    pub(super) fn push(&mut self, list: u8, number: u32) {
        self.remove(number);
        if self.links.len() <= number as usize {
            let out = Link {
                newer: NONE,
                older: NONE,
                list: OUT,
            };
            self.links.resize(number as usize + 1, out);
        }
        let ends = &mut self.ends[usize::from(list)];
        self.links[number as usize] = Link {
            newer: NONE,
            older: ends.newest,
            list,
        };
        match ends.newest {
            NONE => ends.oldest = number,
            newest => self.links[newest as usize].newer = number,
        }
        ends.newest = number;
        ends.len += 1;
    }

    /// Takes a number out of the list that it is in.
    pub(super) fn remove(&mut self, number: u32) {
        let list = self.list(number);
        if list == OUT {
            return;
        }
        let Link { newer, older, .. } = self.links[number as usize];
        let ends = &mut self.ends[usize::from(list)];
        match newer {
            NONE => ends.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => ends.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        ends.len -= 1;
        self.links[number as usize].list = OUT;
    }
}
