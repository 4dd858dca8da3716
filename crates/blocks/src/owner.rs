//! The seam between blocks and the store that owns them.

use crate::block::OpenBlock;
use crate::blocks::Logged;
use crate::footer::{Entry, OWN_BYTES};
use crate::log::OwnKind;
use crate::pool::Pool;
use crate::work::Claim;
use pumice_memory::Buffer;

/// A kind of store, as far as types go. Everything that it adds to blocks stands beside what it is added to: its part of the pool
/// changes in the same step as the pool, and its part of a block is in the same cache line.
pub trait Owner: Sized {
    /// Memory that devices read into and write from.
    type Buf: Buffer;
    /// Its kinds of log records.
    type Kind: OwnKind;
    /// An entry of a footer.
    type Entry: Entry + Clone;
    /// The owner's label of an open block, such as the stream that fills it; `()` where it needs none.
    type Tag: Copy;
    /// What DRAM has of a block beside its state and sequence.
    type Info: Default;
    /// The owner's part of the pool.
    type State;
    /// The owner's pieces of background work.
    type Task;

    /// A piece of the owner's work has ended, or was dropped. Called under the lock of the pool.
    fn task_ended(state: &mut Self::State, task: &Self::Task);

    /// A piece of the owner's work was dropped before its end: it is due again. Returns what is to be dropped outside the lock of the
    /// pool, under which this is called.
    fn put_back(state: &mut Self::State, claim: Claim, task: Self::Task) -> Option<Self::Task>;
}

/// The footer of a full block, as its owner wants it.
pub struct Contents<E> {
    /// The entries that the footer lists.
    pub entries: Vec<E>,
    /// The owner's bytes of the trailer; `None` where nothing in the block is live, and nothing is to be written.
    pub own: Option<[u8; OWN_BYTES]>,
}

/// How sealing a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealEnd {
    /// It is on the device.
    Written,
    /// Nothing in it was live: nothing was written.
    Empty,
    /// The device failed, and what it has of the block is undefined. The log is to say that nothing in this generation counts; where
    /// it does not, a start may find the block.
    Failed(Logged),
}

/// What sealing asks of a store.
pub trait Tenant<O: Owner> {
    /// Decides what the footer of a full block lists. The block has been `sealing` since before this: what dies from here on is logged.
    fn compose(&self, block: &OpenBlock<O>, entries: Vec<O::Entry>) -> Contents<O::Entry>;

    /// A block was written, or was not, and counts as sealed or free in a moment. Called without locks.
    fn settle(&self, block: &OpenBlock<O>, end: SealEnd, entries: &[O::Entry]);

    /// The same step in which the block changes its state, under the lock of the pool.
    fn file(&self, pool: &mut Pool<O>, block: u32, end: SealEnd);
}
