//! One shard of either index, behind one set of questions.

use crate::cascade::{CascadeShard, Plan, Resolved};
use crate::{FullShard, KeyHash, Location, Lookup, Mapping, TableFull};

/// A shard of the index that a cache was opened with.
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

    /// Whether DRAM knows every mapping: what it does not know is not on flash.
    pub fn is_exact(&self) -> bool {
        matches!(self, IndexShard::Full(_))
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

    /// Whether nothing maps `hash` to `location` any more. What DRAM does not know counts as mapped.
    pub fn is_dead(&self, hash: KeyHash, location: Location) -> bool {
        match self {
            IndexShard::Full(shard) => shard.live(hash, location).is_none(),
            IndexShard::Cascade(shard) => shard.is_dead(hash, location),
        }
    }

    /// Whether flash may have a mapping of `hash` of which DRAM knows nothing.
    pub fn is_unsure(&self, hash: KeyHash) -> bool {
        match self {
            IndexShard::Full(_) => false,
            IndexShard::Cascade(shard) => shard.is_unsure(hash),
        }
    }

    /// Whether of two mappings of `hash` on flash one may supersede the other, so far as DRAM knows.
    pub fn is_contested(&self, hash: KeyHash) -> bool {
        match self {
            IndexShard::Full(_) => false,
            IndexShard::Cascade(shard) => shard.is_contested(hash),
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
        if let IndexShard::Full(shard) = self {
            shard.set_note(hash, location, note);
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

    /// Lets go of an object whose block goes. `is_last` says that nothing has taken the object's place since it was written, so
    /// far as is known. Returns the mapping if there was one.
    pub fn reclaim(&mut self, hash: KeyHash, location: Location, is_last: bool) -> Option<Mapping> {
        match self {
            IndexShard::Full(shard) => shard.remove_at(hash, location),
            IndexShard::Cascade(shard) => shard.reclaim(hash, location, is_last),
        }
    }

    /// Whether an index that is partly on flash maps `hash` to `location` there, where a copy is known to stand that nothing has superseded.
    pub fn is_on_flash(&self, hash: KeyHash, location: Location) -> bool {
        match self {
            IndexShard::Full(_) => false,
            IndexShard::Cascade(shard) => shard.is_on_flash(hash, location),
        }
    }

    /// Lets flash forget that `hash` was mapped to `from` ([`IndexShard::is_on_flash`]), whose block goes, now that it was moved to `to`.
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
        if let IndexShard::Full(shard) = self {
            shard.rewrite_notes(note);
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

    /// Appends what DRAM has to `out`, for a checkpoint.
    pub fn dump(&self, out: &mut Vec<u8>) {
        either!(self, shard => shard.dump(out));
    }

    /// Makes room for so many mappings of the dump of a full index.
    pub fn reserve(&mut self, mappings: usize) {
        if let IndexShard::Full(shard) = self {
            shard.reserve(mappings);
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
