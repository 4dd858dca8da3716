//! `sipq`: one open block, and the oldest block is the victim. An exact queue of keys in DRAM says which of its objects are written
//! again (RIPQ paper, section 5, "Single Insertion Priority Queue").

pub(crate) mod keys;

use super::ground::Ground;
use super::options::LayoutOptions;
use super::seam::{ACCESSED, Arrival, Choice, Fate, Hits, Layout, Placed, Rank, Wants, rank_after};
use keys::KeyQueue;
use pumice_blocks::Geometry;
use pumice_index::Mapping;
use pumice_policy::{Hit, Policy, Priority};

/// After so many victims in one piece of work the next ones go whole.
const ROUNDS_MAX: usize = 32;

pub(super) struct Sipq {
    policy: &'static dyn Policy,
    checkpoints: bool,
    open: Option<u32>,
    keys: KeyQueue,
}

impl Sipq {
    pub(super) fn new(options: &LayoutOptions, geometry: &Geometry) -> Self {
        Self {
            policy: options.policy,
            checkpoints: options.theta > 0.0,
            open: None,
            keys: KeyQueue::of(options, geometry),
        }
    }
}

impl Layout for Sipq {
    fn wants(&self) -> Wants {
        Wants {
            hits: Hits::Every,
            ranks: true,
            checkpoints: self.checkpoints,
            ..Wants::default()
        }
    }

    fn rank(&self, _ground: Ground<'_>, arrival: Arrival, object_bytes: u64) -> Rank {
        let policy = self.policy;
        let new = || Rank {
            priority: policy.on_insert(object_bytes, self.keys.lowest()),
            accesses: 1,
        };
        let (position, accesses) = match arrival {
            Arrival::New => return new(),
            Arrival::Asked => {
                let position = match new().priority {
                    Priority::Relative(position) => position,
                    // Policies with absolute priorities do not look at it.
                    Priority::Absolute(_) => 0.0,
                };
                (position, ACCESSED)
            }
            Arrival::Again { hash, .. } => match self.keys.standing(hash) {
                Some((position, accesses)) => (position, accesses + 1),
                None => return new(),
            },
        };
        let hit = Hit {
            position,
            accesses: accesses.min(policy.accesses_max()),
            size: object_bytes,
            lowest: self.keys.lowest(),
        };
        rank_after(policy, &hit, || new().priority)
    }

    fn insert(&mut self, hash: u64, len: u64, rank: Rank, _beside: Option<u32>) -> Placed {
        self.keys.insert(hash, len, rank.priority, rank.accesses);
        Placed::default()
    }

    fn open_block(&self, _point: usize) -> Option<u32> {
        self.open
    }

    fn opened(&mut self, _point: usize, block: u32, _is_full: bool) {
        self.open = Some(block);
    }

    fn closed(&mut self, _block: u32, fill: Option<(usize, &dyn Fn() -> usize)>) {
        self.open = None;
        if let Some((bytes, blocks)) = fill {
            self.keys.note_block(bytes, blocks());
        }
    }

    fn hit(&mut self, ground: Ground<'_>, hash: u64, mapping: Mapping, object_bytes: u64) -> (u32, bool) {
        self.keys.hit(hash, ground.counted_len(mapping), object_bytes);
        (mapping.note, false)
    }

    fn died(&mut self, _ground: Ground<'_>, hash: Option<u64>, _mapping: Mapping) -> bool {
        hash.into_iter().for_each(|hash| self.keys.remove(hash));
        true
    }

    fn forget_key(&mut self, hash: u64) {
        self.keys.remove(hash);
    }

    fn forget_all(&mut self) {
        self.keys.clear();
    }

    fn victim(&mut self, choice: &Choice<'_>) -> Option<(u32, Fate)> {
        // All blocks had their turn, and nothing new came in: what is kept, with its mappings, is more than finds room.
        let is_stuck = choice.idle > choice.by_age.len() || choice.round >= ROUNDS_MAX;
        let fate = if is_stuck { Fate::Drop } else { Fate::Move };
        Some((choice.oldest()?, fate))
    }

    fn keeps(&self, _ground: Ground<'_>, hash: u64, _mapping: Mapping, _is_tail: bool) -> bool {
        self.keys.contains(hash)
    }

    fn keys(&self) -> Option<&KeyQueue> {
        Some(&self.keys)
    }

    fn keys_mut(&mut self) -> Option<&mut KeyQueue> {
        Some(&mut self.keys)
    }

    fn dram_bytes(&self) -> u64 {
        self.keys.dram_bytes()
    }

    fn check(&self, _ground: Ground<'_>) -> Option<u64> {
        self.keys.check_invariants();
        None
    }
}
