//! Where every object is: a table from object numbers to leaves, in pages, so that it grows without moving.

use crate::exact::ObjectNumber;

const PAGE: usize = 4096;
const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct Homes {
    pages: Vec<Box<[u32; PAGE]>>,
}

impl Homes {
    /// The leaf of an object that is in one.
    #[inline]
    pub(super) fn get(&self, object: ObjectNumber) -> Option<u32> {
        let page = self.pages.get(object as usize / PAGE)?;
        let leaf = page[object as usize % PAGE];
        (leaf != NOWHERE).then_some(leaf)
    }

    #[inline]
    pub(super) fn set(&mut self, object: ObjectNumber, leaf: u32) {
        let page = object as usize / PAGE;
        if page >= self.pages.len() {
            self.grow(page);
        }
        self.pages[page][object as usize % PAGE] = leaf;
    }

    #[inline]
    pub(super) fn clear(&mut self, object: ObjectNumber) {
        self.set(object, NOWHERE);
    }

    /// The number of objects that are in a leaf.
    pub(super) fn count(&self) -> usize {
        let leaves = self.pages.iter().flat_map(|page| page.iter());
        leaves.filter(|leaf| **leaf != NOWHERE).count()
    }

    #[cold]
    fn grow(&mut self, page: usize) {
        self.pages.resize_with(page + 1, || Box::new([NOWHERE; PAGE]));
    }
}
