//! One shard of either index, behind one set of questions.

use crate::cascade::{CascadeShard, Plan, Resolved, SavedHistory};
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

/// A shard of the index that a cache was opened with: which key is where on flash, for a slice of the hash space.
///
/// An index need not know. It answers with one of three things, from DRAM and at once: *so it is*, *so it is not*, *pages of mappings
/// tell*. Its callers have one path for all indexes, with these rules:
///
/// - **Get.** [`lookup`](IndexShard::lookup) answers with a mapping, a miss, or a plan of pages. Whoever gets a plan reads them
///   without a lock, and brings them to [`resolve`](IndexShard::resolve). Mappings are of hashes: the full key is compared with the record.
/// - **Set, delete.** [`supersede`](IndexShard::supersede) says what DRAM knew, and whether a start might find another copy. *If there
///   may be more, log it*: with a record that voids all copies below a version. A caller that cannot, since its own copy is older
///   than what the record would have to void, calls [`note_unlogged`](IndexShard::note_unlogged), and the next `supersede` says so.
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

    /// What is known of `hash` once the pages of `plan` were read, which a lookup asked for: [`CascadeShard::resolve`].
    pub fn resolve<'a>(
        &mut self,
        hash: KeyHash,
        plan: &Plan,
        payloads: impl IntoIterator<Item = Option<&'a [u8]>>,
    ) -> Lookup {
        let resolved = match self {
            IndexShard::Full(_) => Resolved::Again,
            IndexShard::Cascade(shard) => shard.resolve(hash, plan, payloads),
        };
        match resolved {
            Resolved::Hit(mapping) => Lookup::Hit(mapping),
            Resolved::Miss => Lookup::Miss,
            Resolved::Again => self.lookup(hash),
        }
    }

    /// As [`IndexShard::lookup`], but it leaves no trace.
    pub fn peek(&self, hash: KeyHash) -> Lookup {
        match self {
            IndexShard::Full(shard) => shard.mapping(hash).map_or(Lookup::Miss, Lookup::Hit),
            IndexShard::Cascade(shard) => shard.peek(hash),
        }
    }

    /// Where `hash` is mapped to, as far as DRAM knows.
    pub fn get(&self, hash: KeyHash) -> Option<Location> {
        self.mapping(hash).map(|mapping| mapping.location)
    }

    /// Where `hash` is mapped to, and the note, as far as DRAM knows.
    pub fn mapping(&self, hash: KeyHash) -> Option<Mapping> {
        either!(self, shard => shard.mapping(hash))
    }

    /// The mapping of `hash` if it is to `location`, as far as DRAM knows.
    pub fn live(&self, hash: KeyHash, location: Location) -> Option<Mapping> {
        either!(self, shard => shard.live(hash, location))
    }

    /// Whether DRAM knows that `hash` is mapped to `location`.
    pub fn is_live(&self, hash: KeyHash, location: Location) -> bool {
        self.live(hash, location).is_some()
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

    /// What [`IndexShard::supersede`] would say of what may be more.
    pub fn may_be_more(&self, hash: KeyHash) -> bool {
        match self {
            IndexShard::Full(_) => false,
            IndexShard::Cascade(shard) => shard.may_be_more(hash),
        }
    }

    /// Remembers that blocks may have copies of `hash` that no mapping leads to, and that no record voids.
    pub fn note_unlogged(&mut self, hash: KeyHash) {
        match self {
            IndexShard::Full(_) => {}
            IndexShard::Cascade(shard) => shard.note_unlogged(hash),
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

    /// Maps `hash` to `to`, where its copy was moved from `from`. Returns whether flash still maps it to there, where it is to be
    /// forgotten when its block goes ([`IndexShard::forget_moved`]).
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

    /// Maps `hash` to `new` if DRAM knows it at `old`, and returns what was there.
    pub fn compare_and_set(&mut self, hash: KeyHash, old: Location, new: Mapping) -> Option<Mapping> {
        either!(self, shard => shard.compare_and_set(hash, old, new))
    }

    /// Changes the note of `hash` if it is mapped to `location`.
    pub fn set_note(&mut self, hash: KeyHash, location: Location, note: u32) {
        match self {
            IndexShard::Full(shard) => shard.set_note(hash, location, note),
            IndexShard::Cascade(_) => {}
        }
    }

    /// Removes the mapping of `hash`, whatever it is, and returns it as far as DRAM knows it.
    pub fn remove(&mut self, hash: KeyHash) -> Option<Mapping> {
        either!(self, shard => shard.remove(hash))
    }

    /// Removes the mapping of `hash` if DRAM knows it at `location`.
    pub fn remove_at(&mut self, hash: KeyHash, location: Location) -> Option<Mapping> {
        either!(self, shard => shard.remove_at(hash, location))
    }

    /// Drops the mapping to a copy whose block is reclaimed, and returns it where it was known to be live.
    pub fn reclaim(&mut self, hash: KeyHash, copy: &StoredCopy) -> Option<Mapping> {
        match self {
            IndexShard::Full(shard) => shard.remove_at(hash, copy.mapping.location),
            IndexShard::Cascade(shard) => shard.reclaim(hash, copy),
        }
    }

    /// Lets flash forget that `hash` was mapped to `from` ([`IndexShard::relocate`]), whose block goes, now that it was moved to `to`.
    pub fn forget_moved(&mut self, hash: KeyHash, from: Location, to: Location) {
        match self {
            IndexShard::Full(_) => {}
            IndexShard::Cascade(shard) => shard.forget_moved(hash, from, to),
        }
    }

    /// Bytes of which a dump is a multiple: of one mapping, and of a cascade one.
    pub fn entry_bytes(&self) -> usize {
        match self {
            IndexShard::Full(shard) => shard.entry_bytes(),
            IndexShard::Cascade(_) => 1,
        }
    }

    /// Number of mappings; in a cascade with those that are superseded or void and were not dropped yet.
    pub fn len(&self) -> usize {
        either!(self, shard => shard.len())
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// DRAM held, in bytes, slack included.
    pub fn dram_bytes(&self) -> usize {
        either!(self, shard => shard.dram_bytes())
    }

    /// Calls `visit` with every mapping that DRAM knows.
    pub fn for_each(&self, visit: impl FnMut(Mapping)) {
        either!(self, shard => shard.for_each(visit));
    }

    /// Changes the note of every mapping to what `note` says; a cascade keeps none, and asks for none.
    pub fn rewrite_notes(&mut self, note: impl FnMut(Mapping) -> u32) {
        match self {
            IndexShard::Full(shard) => shard.rewrite_notes(note),
            IndexShard::Cascade(_) => {}
        }
    }

    /// Keeps, of the mappings that DRAM knows, those that `keep` likes.
    pub fn retain(&mut self, keep: impl FnMut(Mapping) -> bool) {
        either!(self, shard => shard.retain(keep));
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        either!(self, shard => shard.clear());
    }

    /// What a checkpoint keeps of what was superseded lately; any shard has that of all. Nothing is known of it any more then.
    pub fn take_history(&self) -> SavedHistory {
        match self {
            IndexShard::Full(_) => SavedHistory::nothing(),
            IndexShard::Cascade(shard) => shard.take_history(),
        }
    }

    /// Begins with what a clean stop has saved of what was superseded lately, for all shards; without it nothing is known. Where the store
    /// `knows_deaths`, and says [`Heard::Alive`] of a copy, none are remembered here.
    pub fn begin_history(&self, saved: Option<SavedHistory>, knows_deaths: bool) {
        match self {
            IndexShard::Full(_) => {}
            IndexShard::Cascade(shard) => shard.begin_history(saved, knows_deaths),
        }
    }

    /// DRAM of what was superseded lately, of all shards, in bytes.
    pub fn history_bytes(&self) -> usize {
        match self {
            IndexShard::Full(_) => 0,
            IndexShard::Cascade(shard) => shard.history_bytes(),
        }
    }

    /// Appends what DRAM has to `out`, for a checkpoint.
    pub fn dump(&self, out: &mut Vec<u8>) {
        either!(self, shard => shard.dump(out));
    }

    /// Makes room for so many mappings of the dump of a full index.
    pub fn reserve(&mut self, mappings: usize) {
        match self {
            IndexShard::Full(shard) => shard.reserve(mappings),
            IndexShard::Cascade(_) => {}
        }
    }

    /// Adds one mapping of the dump of a full index; false where there is no room.
    pub fn load_entry(&mut self, entry: &[u8]) -> bool {
        match self {
            IndexShard::Full(shard) => shard.load(entry),
            IndexShard::Cascade(_) => false,
        }
    }

    /// Re-derives what is counted.
    ///
    /// # Panics
    /// Where it does not agree.
    pub fn check_invariants(&self) {
        either!(self, shard => shard.check_invariants());
    }
}
