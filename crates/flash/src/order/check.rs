//! The rules of the accounting, for tests.

use super::Order;
use crate::block::BlockInfo;
use pumice_blocks::State;
use pumice_index::Mapping;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> Order<B> {
    /// Re-derives what counts, and compares its bytes with those of the blocks, which are the result. While nothing else runs.
    ///
    /// # Panics
    /// Where they do not agree, or a block that goes before the lowest would not be found.
    pub(crate) fn check(&self) -> u64 {
        let order = self.lock();
        let mut live = 0;
        for (id, info) in self.blocks.iter().enumerate() {
            let bytes = info.live.load(Ordering::Relaxed);
            let is_known = self.has_early_victims.load(Ordering::Relaxed);
            assert!(
                is_known || !self.is_early_victim(info, bytes),
                "block {id} is forgotten"
            );
            live += bytes;
        }
        let Some(counted) = order.layout.check(self.ground()) else {
            return live;
        };
        if !self.is_estimate.load(Ordering::Relaxed) {
            assert_eq!(counted, live, "bytes in the order and in blocks");
        }
        // Else what is raised is partly guessed.
        if self.is_authoritative {
            let counts = self.counters.snapshot();
            let (written, raised) = (counts.survivors - counts.survivors_unraised, counts.raises);
            let restored = order.layout.raised_at_start();
            assert!(
                written <= raised + restored,
                "{written} objects written again, of {raised} raised, and {restored} before the start"
            );
        }
        live
    }

    /// What a clean stop keeps of priorities, as text to compare: the histogram and the sample under `ripq`, the queue of keys under
    /// `sipq`.
    pub fn priorities(&self) -> String {
        let order = self.lock();
        let ranks = order.layout.save(self.ground()).ranks;
        let keys: Vec<_> = order
            .layout
            .keys()
            .into_iter()
            .flat_map(|keys| keys.save())
            .collect();
        format!("{ranks:?} {keys:?}")
    }

    /// Compares what counts in each block and each virtual place with the mappings that say they count there; all that there are, of an
    /// index that knows all. While nothing else runs.
    ///
    /// # Panics
    /// Where they do not agree: an object counts nowhere, twice, or elsewhere than it says.
    pub fn check_seats(&self, mut mappings: impl Iterator<Item = Mapping>) {
        let order = self.lock();
        order.layout.check_seats(self.ground(), &mut mappings);
    }

    /// Blocks on flash of objects that the layout has kept, apart from others.
    pub fn kept_blocks(&self) -> usize {
        let is_kept =
            |info: &&BlockInfo| info.state() == State::Sealed && info.is_kept.load(Ordering::Relaxed);
        self.blocks.iter().filter(is_kept).count()
    }
}
