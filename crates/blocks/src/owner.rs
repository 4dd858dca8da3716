//! The seam between blocks and the store that owns them.
//!
//! An owner has two parts. [`Owner`] is a list of types. [`Tenant`] is asked three things while a block is sealed. All else is called by
//! the owner, and reports: [`Journal::append`](crate::Journal::append) how an append ended,
//! [`Blocks::finish_checkpoint`](crate::Blocks::finish_checkpoint) whether records were lost, [`recovery`](crate::recovery) what a start
//! found. What a report means for the data, whether a change is made, refused or made again, the owner decides. A start asks the owner
//! for [`Restore`](crate::recovery::Restore) too.
//!
//! The smallest owner: sectors, filled one after the other, of which nothing ever dies. It needs no log, and has no work of its own.
//!
//! ```
//! use pumice_blocks::footer::{Entry, OWN_BYTES};
//! use pumice_blocks::log::OwnKind;
//! use pumice_blocks::{
//!     Blocks, Claim, Contents, Durability, Geometry, Old, OpenBlock, Owner, Pool, STEP_BYTES, SealEnd, Start, State,
//!     Superblock, Tenant,
//! };
//! use pumice_device::{AlignedBuf, Buffer, Device, MemDevice, MemMedium, Payload, SECTOR_BYTES};
//! use pumice_testkit::conformance::block_on;
//! use pumice_record::codec::Fields;
//! use std::ops::Range;
//! use std::sync::Arc;
//!
//! /// An entry of a footer: the place of a sector in its block.
//! #[derive(Clone, Debug, PartialEq)]
//! struct Sector(u32);
//!
//! impl Entry for Sector {
//!     const BYTES: usize = 4;
//!
//!     fn encode(&self, _before: Option<&Self>, out: &mut Vec<u8>) {
//!         out.extend_from_slice(&self.0.to_le_bytes());
//!     }
//!
//!     fn decode(fields: &mut Fields<'_>, _before: Option<&Self>, _number: u32) -> Option<Self> {
//!         fields.u32().map(Sector)
//!     }
//!
//!     fn range(&self) -> Range<u64> {
//!         u64::from(self.0)..u64::from(self.0) + SECTOR_BYTES as u64
//!     }
//! }
//!
//! /// No kind of log record.
//! #[derive(Clone, Copy, PartialEq, Eq)]
//! enum Never {}
//!
//! impl OwnKind for Never {
//!     fn number(self) -> u16 {
//!         match self {}
//!     }
//!
//!     fn from_number(_: u16) -> Option<Self> {
//!         None
//!     }
//! }
//!
//! struct Sectors;
//!
//! impl Owner for Sectors {
//!     type Buf = AlignedBuf;
//!     type Kind = Never;
//!     type Entry = Sector;
//!     type Tag = ();
//!     type Info = ();
//!     /// Sealed blocks, in the order of their sealing.
//!     type State = Vec<u32>;
//!     type Task = ();
//!
//!     fn task_ended(_: &mut Vec<u32>, (): &()) {}
//!
//!     fn put_back(_: &mut Vec<u32>, _: Claim, (): ()) -> Option<()> {
//!         None
//!     }
//! }
//!
//! struct Keeper;
//!
//! impl Tenant<Sectors> for Keeper {
//!     fn compose(&self, _: &OpenBlock<Sectors>, entries: Vec<Sector>) -> Contents<Sector> {
//!         Contents { entries, own: Some([0; OWN_BYTES]) }
//!     }
//!
//!     fn settle(&self, block: &OpenBlock<Sectors>, end: SealEnd, _: &[Sector]) {
//!         if let SealEnd::Failed(logged) = end {
//!             // Here an owner with the only copy would append the sectors of the buffer again, to another block.
//!             eprintln!("block {} could not be written, its record: {logged:?}", block.id);
//!         }
//!     }
//!
//!     fn file(&self, pool: &mut Pool<Sectors>, block: u32, end: SealEnd) {
//!         if end == SealEnd::Written {
//!             pool.own.push(block);
//!         }
//!     }
//! }
//!
//! let medium = Arc::new(MemMedium::new(1 << 20));
//! let device = MemDevice::new(Arc::clone(&medium));
//! let geometry = Geometry::plan(device.capacity(), 64 << 10)?;
//! let blocks = Blocks::<Sectors>::new(Start {
//!     superblock: Superblock { cache_id: 7, geometry, ..Superblock::default() },
//!     old: Old::default(),
//!     durability: Durability::Off,
//!     flush_interval_secs: 0,
//!     buffers_max: 2,
//!     step_bytes: STEP_BYTES,
//!     now: 0,
//!     own: Vec::new(),
//! });
//! block_on(&device, blocks.record_start(&device, None))?;
//!
//! let block = blocks.open_block(&mut blocks.shared.pool.lock(), (), |_| {}).expect("all are free");
//! while let Some(reserved) = block.reserve(SECTOR_BYTES, |offset, _number| Sector(offset)) {
//!     // SAFETY: the range was reserved for this call alone, and nothing reads it yet.
//!     unsafe { block.buffer.put(reserved.at, Payload::Bytes(&[1; SECTOR_BYTES])) };
//! }
//! let id = block.id;
//! blocks.close_block(block);
//! let work = blocks.take_seal(&mut blocks.shared.pool.lock()).expect("a block is full");
//! block_on(&device, blocks.seal(&device, &Keeper, 0, work));
//! assert_eq!(blocks.blocks[id as usize].state(), State::Sealed);
//! assert_eq!(blocks.shared.pool.lock().own, [id]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::block::OpenBlock;
use crate::footer::{Entry, OWN_BYTES};
use crate::log::{Logged, OwnKind};
use crate::pool::Pool;
use pumice_memory::Buffer;

/// The number of a piece of work.
pub type Claim = u64;

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

/// What sealing asks of a store. [`Blocks::seal`](crate::Blocks::seal) calls each once for a block, in this order.
pub trait Tenant<O: Owner> {
    /// Decides what the footer of a full block lists. The block has been `sealing` since before this: what dies from here on is logged.
    fn compose(&self, block: &OpenBlock<O>, entries: Vec<O::Entry>) -> Contents<O::Entry>;

    /// The write of the block has failed, and a log record is about to void what a start may find of it. If the owner fences the device here,
    /// there is no record, and a start finds what was written of the block before.
    fn failed(&self) {}

    /// A block was written, or was not, and counts as sealed or free in a moment. Called without locks.
    fn settle(&self, block: &OpenBlock<O>, end: SealEnd, entries: &[O::Entry]);

    /// The same step in which the block changes its state, under the lock of the pool.
    fn file(&self, pool: &mut Pool<O>, block: u32, end: SealEnd);
}
