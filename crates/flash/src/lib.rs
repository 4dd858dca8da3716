//! An object store on a flash device: large aligned writes only, reclaim by blocks, and a restart that never serves
//! a deleted or older value.
//!
//! Objects are appended to an active block in DRAM; a full block is composed (dead objects struck, footer added),
//! written from start to end and from then on immutable. Space is reclaimed by whole blocks. What is overwritten or
//! deleted while it stands on flash is recorded in the invalidation log before anyone hears of it.
//!
//! Layouts: `fifo`, `clock`, `sipq`, `ripq`. The formats are described in `docs/formats.md`.

pub mod block;
mod checkpoint;
mod counts;
pub mod footer;
pub mod inspect;
mod layout;
pub mod log;
mod mapping_log;
mod objects;
mod open_options;
mod order;
pub mod recovery;
mod settings;
pub mod store;
mod work;

pub use counts::{FlashCounts, MappingDram};
pub use layout::ripq::queue;
pub use layout::{
    Arrival, LayoutError, LayoutName, LayoutNeeds, LayoutOptions, RECLAIM_READ_BYTES, Rank,
    VIRTUAL_KEY_BYTES, slot_bits,
};
pub use log::{LogKind, LogRecord};
pub use mapping_log::{MappingBytes, MappingLog, mapping_log_bytes};
pub use objects::{OpenBlock, Work};
pub use open_options::OpenOptions;
pub use order::Order;
pub use recovery::{Recovered, Tally, recovery_bytes};
pub use settings::{STORE, Settings};
pub use store::{Appended, Coming, FlashStore, MappingPages, ReadFault, Source, record_max};

use pumice_blocks::BudgetLevel;
use pumice_index::{IndexShard, KeyHash, Location, Mapping};
use pumice_record::SliceId;

/// Why a copy on flash is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its block was reclaimed.
    Evicted,
    /// Its expiry had passed when its block was reclaimed.
    Expired,
    /// It could not be read back as it was written.
    Corrupt,
    /// Its block could not be written.
    Lost,
}

/// How moving a survivor's copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMove {
    /// It is mapped where it is now.
    Moved {
        /// Whether an index that is partly on flash still maps it there to where it was, and is to forget that when its block goes
        /// ([`IndexShard::relocate`]).
        leaves_mapping: bool,
    },
    /// It was dead, or is now: there is nothing to move.
    Dead,
    /// There was no room.
    NoRoom,
}

/// Who holds the mappings: shards of an index, each behind one lock that is never held across I/O.
pub trait Mappings {
    /// Number of shards.
    fn shards(&self) -> usize;

    /// Runs `f` on one shard, under its lock.
    fn with_shard<R>(&self, shard: usize, f: impl FnOnce(&mut IndexShard) -> R) -> R;

    /// Called without any lock before mappings of so many bytes, or some single ones, are added at a start, so that the index can be
    /// given memory.
    fn make_room(&self, _bytes: usize) {}

    /// How many bits of a hash, from the top, the index tells apart.
    fn identity_bits(&self) -> u32;

    /// The shard that `hash` belongs to.
    fn shard_of(&self, hash: KeyHash) -> usize;

    /// Runs `f` on the shard of `hash`, under its lock.
    fn with<R>(&self, hash: KeyHash, f: impl FnOnce(&mut IndexShard) -> R) -> R {
        self.with_shard(self.shard_of(hash), f)
    }

    /// The hash of the record of a key that is this slice of the set of that version, or no slice.
    fn hash_of(&self, key: &[u8], slice: SliceId, version: u64) -> KeyHash;

    /// Asks for the memory that a question about `hash` will need.
    fn prefetch(&self, hash: KeyHash) {
        self.with(hash, |shard| shard.prefetch(hash));
    }

    /// Called when a block is free of objects, for as many of them, and their bytes, as [`Mappings::drop_copy`] could not account
    /// for: what died unknown to DRAM, in an index that does not know all.
    fn account_rest(&self, _objects: u64, _bytes: u64) {}

    /// Removes the mapping of `hash` if it is to the place of `own`, and accounts for it; true if it was.
    fn drop_copy(&self, hash: KeyHash, own: Mapping, why: Gone) -> bool;

    /// Makes a survivor's copy live: if `hash` is mapped to `from` ([`IndexShard::survivor`]), calls `append` with the mapping, under the
    /// shard's lock, and maps it to what that returns.
    fn move_copy(
        &self,
        hash: KeyHash,
        from: Mapping,
        append: impl FnOnce(Mapping) -> Option<Mapping>,
    ) -> CopyMove;

    /// Whether more than the flash tier wants an object to stay: the DRAM tier has it, too.
    fn is_hot(&self, _hash: KeyHash, _location: Location) -> bool {
        false
    }

    /// Whether what a reclaim keeps may be written again. Called under the locks of order and pool.
    fn may_keep(&self) -> bool {
        true
    }

    /// What the write budget has left now, if there is one. Called without any lock.
    fn budget(&self) -> Option<BudgetLevel> {
        None
    }

    /// Removes every mapping and accounts for it as lost: the device was taken out, and nothing is mapped to it any more.
    fn give_up_all(&self);

    /// Removes every mapping into `offset..offset + len`, when nothing better than a sweep is possible; returns how many.
    fn sweep(&self, offset: u64, len: u64, why: Gone) -> u64;
}
