//! Whether the lists of blocks agree, for tests.

use super::FlashStore;
use pumice_blocks::State;
use pumice_memory::Buffer;

impl<B: Buffer> FlashStore<B> {
    /// Re-derives the queue's accounting, and compares its bytes with those of the blocks, which are the result. While nothing else
    /// runs.
    ///
    /// # Panics
    /// Where they do not agree, or a block is in two lists or in none.
    pub fn check_order(&self) -> u64 {
        self.check_blocks();
        self.order.check()
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
}
