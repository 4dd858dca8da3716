//! The rules of the accounting, for tests.

use super::{FlashStore, State};
use pumice_index::Mapping;
use pumice_memory::Buffer;
use std::sync::atomic::Ordering;

impl<B: Buffer> FlashStore<B> {
    /// Re-derives the queue's accounting, and compares its bytes with those of the blocks, which are the result. While nothing else
    /// runs.
    ///
    /// # Panics
    /// Where they do not agree, a block is in two lists or in none, or a block that goes before the lowest would not be found.
    pub fn check_order(&self) -> u64 {
        self.check_blocks();
        let order = self.order.lock();
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
        if !self.is_order_estimate.load(Ordering::Relaxed) {
            assert_eq!(counted, live, "bytes in the order and in blocks");
        }
        // Else what is raised is partly guessed.
        if self.is_authoritative() {
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
        let order = self.order.lock();
        let ranks = order.layout.save(self.ground()).ranks;
        let keys: Vec<_> = order
            .layout
            .keys()
            .into_iter()
            .flat_map(|keys| keys.save())
            .collect();
        format!("{ranks:?} {keys:?}")
    }

    /// Whether each block is in one list, and is what that says.
    fn check_blocks(&self) {
        let pool = self.shared.pool.lock();
        let [newest, older] = &pool.checkpoint_blocks;
        let dropped = &pool.checkpoint_dropped;
        let lists: [(&[State], Vec<u32>); 3] = [
            (&[State::Free], pool.free.iter().copied().collect()),
            (&[State::Sealed], pool.own.queue.iter().copied().collect()),
            (
                &[State::Checkpoint, State::Bad],
                [newest, older, dropped].into_iter().flatten().copied().collect(),
            ),
        ];
        let mut is_listed = vec![false; self.blocks.len()];
        for (states, ids) in lists {
            for id in ids {
                let state = self.blocks[id as usize].state();
                assert!(states.contains(&state), "block {id} is {state:?}, not {states:?}");
                assert!(
                    !std::mem::replace(&mut is_listed[id as usize], true),
                    "block {id} is listed twice"
                );
            }
        }
        if pool.in_flight > 0 {
            // Somebody may have one in hand, as for a checkpoint that is being written.
            return;
        }
        for (id, info) in self.blocks.iter().enumerate() {
            let is_lost = matches!(info.state(), State::Free | State::Sealed | State::Checkpoint);
            assert!(
                is_listed[id] || !is_lost,
                "block {id}, {:?}, is in no list",
                info.state()
            );
        }
    }

    /// Compares what counts in each block and each virtual place with the mappings that say they count there; all that there are, of an
    /// index that knows all. While nothing else runs.
    ///
    /// # Panics
    /// Where they do not agree: an object counts nowhere, twice, or elsewhere than it says.
    pub fn check_seats(&self, mut mappings: impl Iterator<Item = Mapping>) {
        let order = self.order.lock();
        order.layout.check_seats(self.ground(), &mut mappings);
    }

    /// Blocks on flash of objects that the layout has kept, apart from others.
    pub fn kept_blocks(&self) -> usize {
        let is_kept =
            |info: &&super::BlockInfo| info.state() == State::Sealed && info.is_kept.load(Ordering::Relaxed);
        self.blocks.iter().filter(is_kept).count()
    }
}
