//! One shard of either index, behind one set of questions.

use crate::cascade::{CascadeShard, Plan};
use crate::{FullShard, KeyHash, Location, Lookup, Mapping, TableFull};

/// What DRAM knows of a copy, or of all copies of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The hash is mapped so: the copy counts.
    Live(Mapping),
    /// Nothing leads to it.
    Dead,
    /// The mapping may be on flash.
    Unknown,
}

impl Known {
    /// The mapping, where it is known.
    pub fn live(self) -> Option<Mapping> {
        match self {
            Known::Live(mapping) => Some(mapping),
            Known::Dead | Known::Unknown => None,
        }
    }
}

/// What another copy, or none, has taken the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superseded {
    /// What DRAM knew the hash to be mapped to.
    pub known: Option<Mapping>,
    /// Whether a start might find a copy of it in a block all the same: then a record must void it.
    pub may_be_more: bool,
    /// Whether the new mapping is there; false where there was no room, or none was given: then nothing is mapped.
    pub is_mapped: bool,
}

/// What becomes of a copy in a block that is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivor {
    /// It counts, and this is its mapping.
    Keep(Mapping),
    /// It does not count.
    Drop,
    /// These pages tell, once they are read and resolved.
    Ask(Plan),
}

/// A copy that a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCopy {
    /// What a mapping to it says.
    pub mapping: Mapping,
    /// The sequence of its block.
    pub opened_at: u64,
    /// What the store itself has heard of it.
    pub heard: Heard,
}

/// What a store knows of a copy beside the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It keeps nothing of the kind.
    Nothing,
    /// It has heard of every death that DRAM knew, and of none of this copy.
    Alive,
    /// It would have heard of its death, but cannot say any more.
    Lost,
    /// It is dead, or may be.
    Dead,
}

/// How large a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSize {
    /// Number of mappings; in a cascade with those that are superseded or void and were not dropped yet.
    pub mappings: usize,
    /// DRAM held, in bytes, slack included.
    pub dram_bytes: usize,
    /// Bytes of which a dump is a multiple: of one mapping, and of a cascade one.
    pub entry_bytes: usize,
}

/// A shard of the index that a cache was opened with: which key is where on flash, for a slice of the hash space.
///
/// An index need not know. It answers with one of three things, from DRAM and at once: *so it is*, *so it is not*, *pages of mappings
/// tell*. Its callers have one path for all indexes, with these rules:
///
/// - **Get.** [`lookup`](IndexShard::lookup) answers with a mapping, a miss, or a plan of pages. Whoever gets a plan reads them
///   without a lock, and brings them to [`resolve`](CascadeShard::resolve). Mappings are of hashes: the full key is compared with the
///   record. [`hit`](IndexShard::hit) hears of what was found.
/// - **Set, delete.** [`supersede`](IndexShard::supersede) says what DRAM knew, and whether a start might find another copy. *If there
///   may be more, log it*: with a record that voids all copies below a version. A caller that cannot, since its own copy is older
///   than what the record would have to void, calls [`note_unlogged`](CascadeShard::note_unlogged), and the next `supersede` says so.
/// - **Seal.** A footer lists what is not [`Known::Dead`]. So it may list what is dead, of which there is a record then.
/// - **Reclaim.** [`survivor`](IndexShard::survivor) says of each copy in the victim whether it counts. What it cannot say costs a
///   read, or the object. A copy that is moved is mapped anew by [`relocate`](IndexShard::relocate), one that is not
///   dropped by [`reclaim`](IndexShard::reclaim).
/// - **Checkpoint, start.** [`dump`](IndexShard::dump) has all that DRAM knows; what blocks got since, and what the log voids, comes
///   on top.
///
/// Each method is called under the shard's lock, and none waits. The answer for two hashes may be one: the index tells keys apart by
/// [`IndexShape::identity_bits`](crate::IndexShape::identity_bits) bits.
///
/// # Another index
/// It is a variant here, and a module beside [`full`](crate::full). One that knows all mappings is the smallest:
/// [`FullShard`] over a table, for which `Unknown`, `may_be_more` and `Ask` do not exist. What it says:
///
/// ```
/// use pumice_index::{FullShard, Heard, IndexShape, IndexShard, Known, Location, Mapping, StoredCopy, Survivor};
/// use pumice_memory::PagePool;
///
/// let shape = IndexShape::new(1 << 30, 0, 0);
/// let mut shard = IndexShard::Full(FullShard::new(shape, PagePool::standalone(1 << 20)?));
/// let at = |offset| Mapping { location: Location { offset, len: 512 }, note: 0 };
/// let (hash, old, new) = (7 << 40, at(4096), at(8192));
///
/// let first = shard.supersede(hash, Some(old));
/// assert!(first.is_mapped && first.known.is_none() && !first.may_be_more);
/// let second = shard.supersede(hash, Some(new));
/// assert_eq!(second.known, Some(old));
///
/// // What the seal of the block of `old` asks, and its reclaim.
/// assert_eq!(shard.known(hash, old.location), Known::Dead);
/// let copy = |mapping| StoredCopy { mapping, opened_at: 1, heard: Heard::Nothing };
/// assert_eq!(shard.survivor(hash, &copy(old)), Survivor::Drop);
/// assert_eq!(shard.survivor(hash, &copy(new)), Survivor::Keep(new));
///
/// // Its copy is moved, and then the key is deleted.
/// let leaves_mapping = shard.relocate(hash, new.location, at(12_288));
/// assert_eq!(leaves_mapping, Ok(false), "nothing on flash maps it to there");
/// assert_eq!(shard.supersede(hash, None).known, Some(at(12_288)));
/// assert_eq!(shard.find(hash), Known::Dead);
/// # Ok::<(), std::io::Error>(())
/// ```
pub enum IndexShard {
    /// Every mapping in DRAM.
    Full(FullShard),
    /// Hot mappings in DRAM, the rest on flash.
    Cascade(Box<CascadeShard>),
}

/// Calls the same method of whichever shard it is.
macro_rules! either {
    ($self:expr, $shard:ident => $call:expr) => {
        match $self {
            IndexShard::Full($shard) => $call,
            IndexShard::Cascade($shard) => $call,
        }
    };
}

impl IndexShard {
    /// The cascade's shard, if it is one.
    pub fn cascade(&mut self) -> Option<&mut CascadeShard> {
        match self {
            IndexShard::Full(_) => None,
            IndexShard::Cascade(shard) => Some(shard),
        }
    }

    /// Asks for the memory that a question about `hash` will need.
    pub fn prefetch(&self, hash: KeyHash) {
        either!(self, shard => shard.prefetch(hash));
    }

    /// What is known of `hash`.
    pub fn lookup(&mut self, hash: KeyHash) -> Lookup {
        match self {
            IndexShard::Full(shard) => shard.mapping(hash).map_or(Lookup::Miss, Lookup::Hit),
            IndexShard::Cascade(shard) => shard.lookup(hash),
        }
    }

    /// What DRAM knows of the copy of `hash` at `location`. Where it has no mapping of the hash at all, the copy is unknown to an index that
    /// is partly on flash: filters are not asked.
    pub fn known(&self, hash: KeyHash, location: Location) -> Known {
        match self {
            IndexShard::Full(shard) => shard.live(hash, location).map_or(Known::Dead, Known::Live),
            IndexShard::Cascade(shard) => shard.known(hash, location),
        }
    }

    /// Where `hash` is mapped to, as far as DRAM tells; filters are asked.
    pub fn find(&self, hash: KeyHash) -> Known {
        match self {
            IndexShard::Full(shard) => shard.mapping(hash).map_or(Known::Dead, Known::Live),
            IndexShard::Cascade(shard) => shard.find(hash),
        }
    }

    /// Maps `hash` to `new`, or to nothing, in place of whatever it was mapped to. Where there may be more, the caller logs that.
    pub fn supersede(&mut self, hash: KeyHash, new: Option<Mapping>) -> Superseded {
        match self {
            IndexShard::Full(shard) => {
                let (known, is_mapped) = match new {
                    Some(new) => shard.set(hash, new).map_or((None, false), |known| (known, true)),
                    None => (shard.remove(hash), false),
                };
                Superseded {
                    known,
                    may_be_more: false,
                    is_mapped,
                }
            }
            IndexShard::Cascade(shard) => shard.supersede(hash, new),
        }
    }

    /// As [`IndexShard::supersede`] with nothing new, but a full index keeps its mapping, as another takes its place in half the time. Before the caller
    /// lets go of the shard it maps another, or says that there is none ([`IndexShard::end_supersede`]).
    pub fn begin_supersede(&mut self, hash: KeyHash) -> Superseded {
        match self {
            IndexShard::Full(shard) => Superseded {
                known: shard.mapping(hash),
                may_be_more: false,
                is_mapped: false,
            },
            IndexShard::Cascade(shard) => shard.supersede(hash, None),
        }
    }

    /// Nothing came in place of what was superseded.
    pub fn end_supersede(&mut self, hash: KeyHash) {
        if let IndexShard::Full(shard) = self {
            shard.remove(hash);
        }
    }

    /// What becomes of a copy of `hash` in a block that is reclaimed.
    pub fn survivor(&self, hash: KeyHash, copy: &StoredCopy) -> Survivor {
        match self {
            IndexShard::Full(shard) => {
                let live = shard.live(hash, copy.mapping.location);
                live.map_or(Survivor::Drop, Survivor::Keep)
            }
            IndexShard::Cascade(shard) => shard.survivor(hash, copy),
        }
    }

    /// A use of the copy of `hash` at `location`: its note becomes what `note` says, where notes are kept. False where DRAM does not know
    /// it there.
    pub fn hit(&mut self, hash: KeyHash, location: Location, mut note: impl FnMut(Mapping) -> u32) -> bool {
        match self {
            IndexShard::Full(shard) => shard.hit(hash, location, note),
            IndexShard::Cascade(shard) => {
                let live = shard.live(hash, location);
                live.map(&mut note).is_some()
            }
        }
    }

    /// Maps `hash` to `to`, where its copy was moved from `from`. Returns whether flash still maps it to there, where it is to be
    /// forgotten when its block goes ([`CascadeShard::forget_moved`]).
    ///
    /// # Errors
    /// [`TableFull`]; the hash is then not mapped.
    pub fn relocate(&mut self, hash: KeyHash, from: Location, to: Mapping) -> Result<bool, TableFull> {
        match self {
            IndexShard::Full(shard) => shard.set(hash, to).map(|_| false),
            IndexShard::Cascade(shard) => shard.relocate(hash, from, to),
        }
    }

    /// Maps `hash`, in place of whatever it was mapped to, of which is returned what DRAM knows.
    ///
    /// # Errors
    /// [`TableFull`]; a full index is as it was, a cascade has no mapping of `hash` any more.
    pub fn set(&mut self, hash: KeyHash, mapping: Mapping) -> Result<Option<Mapping>, TableFull> {
        either!(self, shard => shard.set(hash, mapping))
    }

    /// Removes the mapping of `hash`, whatever it is, and returns it as far as DRAM knows it.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Mapping> {
        either!(self, shard => shard.remove(hash))
    }

    /// Drops the mapping to a copy whose block is reclaimed, and returns it where it was known to be live.
    pub fn reclaim(&mut self, hash: KeyHash, copy: &StoredCopy) -> Option<Mapping> {
        match self {
            IndexShard::Full(shard) => shard.remove_at(hash, copy.mapping.location),
            IndexShard::Cascade(shard) => shard.reclaim(hash, copy),
        }
    }

    /// What it has, and what that takes.
    pub fn size(&self) -> IndexSize {
        IndexSize {
            mappings: either!(self, shard => shard.len()),
            dram_bytes: either!(self, shard => shard.dram_bytes()),
            entry_bytes: match self {
                IndexShard::Full(shard) => shard.entry_bytes(),
                IndexShard::Cascade(_) => 1,
            },
        }
    }

    /// Calls `visit` with every mapping that DRAM knows.
    pub fn for_each(&self, visit: impl FnMut(Mapping)) {
        either!(self, shard => shard.for_each(visit));
    }

    /// Keeps, of the mappings that DRAM knows, those that `keep` likes.
    pub fn retain(&mut self, keep: impl FnMut(Mapping) -> bool) {
        either!(self, shard => shard.retain(keep));
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        either!(self, shard => shard.clear());
    }

    /// Appends what DRAM has to `out`, for a checkpoint.
    pub fn dump(&self, out: &mut Vec<u8>) {
        either!(self, shard => shard.dump(out));
    }

    /// Re-derives what is counted.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        either!(self, shard => shard.check_invariants());
    }
}
