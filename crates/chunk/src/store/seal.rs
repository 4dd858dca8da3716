//! The footer of a full block, and the end of its write.

use super::ChunkStore;
use super::owner::{Change, Chunks, Open};
use crate::piece::{Entry, Kind};
use crate::place::Place;
use pumice_blocks::footer::OWN_BYTES;
use pumice_blocks::{Contents, Pool, SealEnd, Tenant};
use pumice_device::Device;
use pumice_memory::Buffer;

/// The store while one of its blocks is written.
pub(super) struct Sealer<'a, B: Buffer, D> {
    pub(super) store: &'a ChunkStore<B>,
    pub(super) device: &'a D,
}

impl<B: Buffer, D: Device<Buf = B>> Tenant<Chunks<B>> for Sealer<'_, B, D> {
    /// Lists all contents, since they are numbered by their order, with their mapping only if the index still has it, or it was dirty; and
    /// references by the same rule.
    fn compose(&self, block: &Open<B>, mut entries: Vec<Entry>) -> Contents<Entry> {
        let mapped = self.store.addresses.lock();
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
            let slot = mapped.index.get(entry.address).filter(|slot| slot.place == place);
            // A dirty mapping that the index no longer has stays listed. The content that superseded it may not be durable yet, and a crash
            // then restores this one. If a void or a cleaning removed it, a log record with a higher version says so.
            if slot.is_none() && !entry.is_dirty {
                entry.version = 0;
            }
            entry.is_dirty = slot.map_or(entry.is_dirty, |slot| slot.is_dirty);
            entry.version > 0 || is_content
        });
        let own = (!entries.is_empty()).then_some([0; OWN_BYTES]);
        Contents { entries, own }
    }

    /// The beginning of the block may have the only copy of a chunk.
    fn failed(&self) {
        if self.store.keeps {
            let reason = "a block with the only copy of chunks could not be written";
            self.store.base.shared.take_out(reason.to_owned());
        }
    }

    fn settle(&self, block: &Open<B>, end: SealEnd, _: &[Entry]) {
        let store = self.store;
        if end == SealEnd::Written {
            if store.keeps {
                // Without the record a start checks the contents.
                let _ =
                    store
                        .base
                        .journal
                        .append(self.device, Change::Written, block.id.into(), block.sequence);
            }
            return;
        }
        if store.keeps && store.base.is_out() {
            return;
        }
        if let SealEnd::Failed(logged) = end {
            store.appender.make_good(self.device, logged);
        }
        store.appender.retire(&store.addresses.lock(), &[block.id]);
        store
            .forget_places(|place| place.block == block.id)
            .for_each(drop);
        store.appender.forget(block.id);
    }

    fn file(&self, pool: &mut Pool<Chunks<B>>, block: u32, end: SealEnd) {
        if end == SealEnd::Written {
            pool.own.order.push_back(block);
        }
    }
}
