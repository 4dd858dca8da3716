//! A store of objects, as far as blocks know it: its tasks, and what a reclaim chooses from.

use crate::block::{ObjectInfo, Stream};
use crate::footer::FooterEntry;
use crate::log::LogKind;
use crate::mapping_log::{Due, PendingWrite};
use pumice_blocks::{Claim, Owner};
use pumice_memory::Buffer;
use std::collections::VecDeque;
use std::marker::PhantomData;

/// A block of objects that is a buffer still.
pub type OpenBlock<B> = pumice_blocks::OpenBlock<Objects<B>>;
pub(crate) type Pool<B> = pumice_blocks::Pool<Objects<B>>;
pub(crate) type Shared<B> = pumice_blocks::Shared<Objects<B>>;
/// A piece of background work, to be given to [`FlashStore::perform`](crate::FlashStore::perform).
pub type Work<B> = pumice_blocks::Work<Objects<B>>;

/// A store of objects, as far as blocks know it.
pub struct Objects<B>(PhantomData<B>);

impl<B: Buffer> Owner for Objects<B> {
    type Buf = B;
    type Kind = LogKind;
    type Entry = FooterEntry;
    type Tag = Stream;
    type Info = ObjectInfo;
    type State = Reclaims;
    type Task = Task<B>;

    fn task_ended(reclaims: &mut Reclaims, task: &Task<B>) {
        match task {
            Task::Reclaim | Task::EarlyReclaim => reclaims.reclaiming -= 1,
            Task::WriteMappings(_) => {}
            Task::Reorganise(_) => reclaims.reorganising = false,
        }
    }

    fn put_back(reclaims: &mut Reclaims, claim: Claim, task: Task<B>) -> Option<Task<B>> {
        match task {
            Task::Reclaim | Task::EarlyReclaim => reclaims.give_up_victims(claim),
            // They know what to do when they are dropped.
            Task::WriteMappings(_) | Task::Reorganise(_) => return Some(task),
        }
        None
    }
}

/// Work beside that of blocks.
pub enum Task<B: Buffer> {
    /// Make blocks free until enough are.
    Reclaim,
    /// Make one block free whatever is free.
    EarlyReclaim,
    /// Write pages of mappings.
    WriteMappings(PendingWrite<B>),
    /// Merge the pages of a partition.
    Reorganise(Due<B>),
}

/// What becomes of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Nothing in it is mapped.
    Empty,
    /// Its live objects go, as evicted or expired.
    Evict,
    /// The objects that the layout keeps move, the others go.
    Lowest,
    /// Its live objects move.
    Rescue,
}

impl How {
    /// Whether what stays of the victim is moved before the victim is free.
    pub(crate) fn moves(self) -> bool {
        matches!(self, How::Lowest | How::Rescue)
    }
}

/// A block that is being reclaimed.
pub(crate) struct Victim {
    pub(crate) id: u32,
    pub(crate) how: How,
    /// Bytes of it that are to be moved, at most.
    pub(crate) stays: u64,
    /// The work that does it.
    pub(crate) claim: Claim,
}

/// Reclaims, and what they choose from: changed in one step with the pool of blocks.
#[derive(Default)]
pub struct Reclaims {
    /// Sealed blocks in order of sequence, the oldest first.
    pub(crate) queue: VecDeque<u32>,
    /// Pieces of work that reclaim.
    pub(crate) reclaiming: usize,
    pub(crate) victims: Vec<Victim>,
    /// Victims in a row that were chosen while no new object came in, and the objects that had come in before.
    pub(crate) victims_idle: usize,
    appended_at_victim: u64,
    /// How many of those that are being reclaimed wait for a block to move objects to.
    pub(crate) stalled: usize,
    /// Victims whose reclaim was broken off; they go before all others.
    pub(crate) ready: VecDeque<(u32, How)>,
    /// Blocks sealed when the last early reclaim was begun.
    pub(crate) early_at: Option<u64>,
    /// Whether pages of mappings found no block to stand on.
    pub(crate) mappings_want_block: bool,
    /// Whether a partition of mappings is being reorganised.
    pub(crate) reorganising: bool,
}

impl Reclaims {
    pub(crate) fn new(queue: VecDeque<u32>) -> Self {
        Self {
            queue,
            ..Self::default()
        }
    }

    /// A victim is about to be chosen, when so many new objects have come in.
    pub(crate) fn note_victim(&mut self, appended: u64) {
        if std::mem::replace(&mut self.appended_at_victim, appended) == appended {
            self.victims_idle += 1;
        } else {
            self.victims_idle = 0;
        }
    }

    /// Victims whose reclaim was broken off are the next ones again, for what they were chosen for.
    fn give_up_victims(&mut self, claim: Claim) {
        let ready = &mut self.ready;
        self.victims.retain(|victim| {
            let stays = victim.claim != claim;
            if !stays {
                ready.push_front((victim.id, victim.how));
            }
            stays
        });
    }

    /// Whether there is a block to reclaim.
    pub(crate) fn has_victim(&self) -> bool {
        !self.ready.is_empty() || !self.queue.is_empty()
    }
}
