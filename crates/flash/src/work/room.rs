//! Room for a checkpoint, which reclaims make where there is none.

use super::Worker;
use crate::Mappings;
use pumice_device::Device;
use pumice_memory::Buffer;
use std::io;

impl<B: Buffer, D: Device<Buf = B>, M: Mappings> Worker<'_, B, D, M> {
    /// Takes a block for the checkpoint that is being written.
    pub(super) async fn take_checkpoint_block(&self) -> io::Result<u32> {
        for round in 0..self.store.geometry.blocks {
            // One is left to survivors.
            if let Some(id) = self.take_free_for_checkpoint(1) {
                return Ok(id);
            }
            if let Some(work) = self.store.claim_early_reclaim(false) {
                self.reclaim_early(work.claim(), round as usize).await;
                work.finish(|_| {});
            } else if self.store.shared.pool.lock().own.reclaiming > 0 {
                self.store
                    .wait_for(|pool| pool.own.reclaiming == 0 || pool.free.len() >= 2)
                    .await;
            } else if !self.makes_buffer_free().await {
                // Nothing is on its way to becoming a victim either. Blocks of mappings wait for this, and survivors there are none.
                if let Some(id) = self.take_free_for_checkpoint(0) {
                    return Ok(id);
                }
                break;
            }
        }
        Err(io::Error::other("no block is free for a checkpoint"))
    }

    /// Takes a free block unless no more than `left` are; the last one only where nothing is being reclaimed.
    fn take_free_for_checkpoint(&self, left: usize) -> Option<u32> {
        let mut pool = self.store.shared.pool.lock();
        if pool.free.len() <= left || (left == 0 && pool.own.reclaiming > 0) {
            return None;
        }
        self.store.take_for_checkpoint(&mut pool)
    }
}
