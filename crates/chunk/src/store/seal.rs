//! The footer of a full block, and the end of its write.

use super::{ChunkStore, Chunks, Open, Starts};
use crate::piece::{Entry, Kind};
use crate::place::Place;
use pumice_blocks::footer::OWN_BYTES;
use pumice_blocks::{Contents, Pool, SealEnd, State, Tenant};
use pumice_device::Device;
use pumice_memory::Buffer;

/// The store while one of its blocks is written.
pub(super) struct Sealer<'a, B: Buffer, D> {
    pub(super) store: &'a ChunkStore<B>,
    pub(super) device: &'a D,
}

impl<B: Buffer, D: Device<Buf = B>> Tenant<Chunks<B>> for Sealer<'_, B, D> {
    /// Lists all contents, since they are numbered by their order, with their mapping only if the index still has it; and references that
    /// the index still has.
    fn compose(&self, block: &Open<B>, mut entries: Vec<Entry>) -> Contents<Entry> {
        let maps = self.store.maps.lock();
        entries.retain_mut(|entry| {
            let (place, is_content) = match entry.kind {
                Kind::Content { number, .. } => (
                    Place {
                        block: block.id,
                        number,
                    },
                    true,
                ),
                Kind::Reference { block, number, .. } => (Place { block, number }, false),
            };
            let is_live = maps.lba.get(entry.address) == Some(place);
            if !is_live {
                entry.version = 0;
            }
            is_live || is_content
        });
        let own = (!entries.is_empty()).then_some([0; OWN_BYTES]);
        Contents { entries, own }
    }

    fn settle(&self, block: &Open<B>, end: SealEnd, _: &[Entry]) {
        if end == SealEnd::Written {
            return;
        }
        let store = self.store;
        if let SealEnd::Failed(logged) = end {
            store.make_good(self.device, logged);
        }
        {
            // Duplicates are mapped under this lock: none is mapped to this block from here on.
            let _maps = store.maps.lock();
            store.base.blocks[block.id as usize].set_state(State::Reclaiming);
        }
        store
            .forget_places(|place| place.block == block.id)
            .for_each(drop);
        store.maps.lock().starts[block.id as usize] = Starts::None;
    }

    fn file(&self, pool: &mut Pool<Chunks<B>>, block: u32, end: SealEnd) {
        if end == SealEnd::Written {
            pool.own.order.push_back(block);
        }
    }
}
