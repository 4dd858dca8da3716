//! What is on a device, read and never written: for people, and to find what is not as it must be.
//!
//! [`inspect`] walks superblocks, log, checkpoints, pages of mappings and blocks in the order in which a start would believe them, with
//! the readers of a start, and tells a [`Sink`] of each thing that is wrong, with its place.
//!
//! What a crash may leave is told apart from what must not be (docs/formats.md, "What a crash leaves"): a [`Severity::Leftover`] is no
//! damage. Where both would look alike, one thing decides: a checksum that a single bit explains is rot, since a torn write changes
//! whole sectors.
//!
//! DRAM: a block, a stretch of the log, the image of a partition, and about a hundred bytes for each block of the device.

mod blocks;
mod checkpoint;
mod log;
mod pages;
mod summary;
mod superblocks;

pub use summary::{BlockCounts, CheckpointSummary, Finding, LogSummary, Part, Severity, Summary};

use crate::settings::{STORE, Settings};
use pumice_blocks::superblock::{FORMAT, StoreId, Superblock};
use pumice_record::codec::value_checksum;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Bytes that can be looked at: a device, or a copy of one.
pub trait Source {
    /// How many there are.
    fn bytes(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// What the device said; also where the range is not all there.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl Source for [u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Who hears of what was found.
pub trait Sink {
    /// Something that is wrong, or was left by a crash.
    fn found(&mut self, finding: Finding);

    /// Bytes that count: a changed bit among them is an inconsistency. Everything else is unused space.
    fn used(&mut self, _range: Range<u64>) {}
}

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// No bytes at all.
    #[error("it is empty: 0 bytes; `pumice serve` would make a cache of it")]
    Empty,
    /// All zero where superblocks are.
    #[error("there are no superblocks, only zeros: it was never formatted")]
    Blank,
    /// Too short for superblocks.
    #[error("{len} bytes are too few to be a cache: it is no cache, or was truncated")]
    TooShort {
        /// Bytes that are there.
        len: u64,
    },
    /// Not ours.
    #[error("this is no Pumice cache: bytes 0 and 4096 begin with something else than `PUMICE`")]
    NotACache,
    /// A newer or older format.
    #[error(
        "it has format version {0}, and this program knows version {FORMAT}; use the program that made it"
    )]
    OtherFormat(u32),
    /// Another kind of store, or another version of its formats.
    #[error(
        "it has a store of kind {}, format {}, and this program knows kind {}, format {} there; use the program that made it",
        .0.kind, .0.format, STORE.kind, STORE.format
    )]
    OtherStore(StoreId),
    /// Neither superblock is whole.
    #[error("both superblocks are damaged, at byte 0 and at byte 4096: no start can use this cache")]
    Damaged,
    /// The superblock is whole, and the settings in it mean nothing to this program.
    #[error(
        "the superblock at byte {at} is whole, but the settings of the store in it are none that this program knows; use the program \
         that made it"
    )]
    UnknownSettings {
        /// Where the superblock stands, in bytes.
        at: u64,
    },
    /// Shorter than its superblock says.
    #[error(
        "it was truncated: the superblock speaks of {capacity} bytes, and {len} are there; no start can use it"
    )]
    Truncated {
        /// Bytes that are there.
        len: u64,
        /// Bytes that the cache was made with.
        capacity: u64,
    },
    /// The superblocks cannot be read.
    #[error("reading the superblocks: {0}")]
    Read(#[from] io::Error),
}

/// Looks at a device; with `verify` at every byte that counts, otherwise at what says what is there. What is wrong goes to `sink`.
///
/// # Errors
/// Where it is no cache that this program knows.
pub fn inspect<S: Source + ?Sized>(
    source: &S,
    sink: &mut dyn Sink,
    verify: bool,
) -> Result<Summary, InspectError> {
    let mut walk = superblocks::open(source, sink, verify)?;
    if walk.summary.will_be_emptied {
        walk.summary.blocks.free = walk.superblock.geometry.blocks.into();
        let what = "no whole log was kept since the last stop: the next start empties the cache";
        walk.tell(true, Part::Device, 0, what);
        return Ok(walk.summary);
    }
    let named = walk.superblock.checkpoints.into_iter();
    let named: Vec<_> = named.filter(|named| named.id != 0).collect();
    walk.log(named.iter().map(|named| named.log_start).min().unwrap_or(0));
    let mut base = None;
    for (age, reference) in named.iter().enumerate() {
        let Some(snapshot) = walk.checkpoint(reference).filter(|_| base.is_none()) else {
            continue;
        };
        let is_newest = age == 0;
        walk.summary.checkpoint = Some(CheckpointSummary {
            id: reference.id,
            first_block: reference.first_block,
            bytes: reference.len,
            blocks: snapshot.blocks,
            mappings: snapshot.mappings,
            is_newest,
        });
        (walk.summary.mapping_pages, walk.summary.page_mappings) = (snapshot.pages, snapshot.page_mappings);
        let is_its = |name: &&str| value_checksum(name.as_bytes()) == snapshot.policy;
        walk.summary.policy = pumice_policy::POLICY_NAMES.into_iter().find(is_its);
        if !(walk.superblock.clean && is_newest) {
            walk.log_reaches(Some(reference.log_start));
        }
        base = Some(snapshot);
    }
    if base.is_none() && named.is_empty() {
        walk.log_reaches(None);
    } else if base.is_none() {
        walk.summary.will_be_emptied = true;
        let what = "no checkpoint is whole: the next start empties the cache";
        walk.tell(true, Part::Device, 0, what);
    }
    walk.blocks(&base.unwrap_or_default());
    Ok(walk.summary)
}

/// Runs what never waits, because a [`Source`] answers at once.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("nothing waits for a source"),
    }
}

/// A walk that is under way.
struct Walk<'a, S: Source + ?Sized> {
    source: &'a S,
    sink: &'a mut dyn Sink,
    verify: bool,
    superblock: Superblock,
    settings: Settings,
    summary: Summary,
    /// The highest sequence of each block that the log says was reclaimed.
    reclaimed: Vec<u64>,
    /// The highest sequence of each block that the log has a prefix of.
    prefixed: Vec<u64>,
    /// Whether a checkpoint that the superblock names stands on the block.
    in_chain: Vec<bool>,
}

impl<S: Source + ?Sized> Walk<'_, S> {
    fn tell(&mut self, is_leftover: bool, part: Part, offset: u64, what: impl Into<String>) {
        let (count, severity) = if is_leftover {
            (&mut self.summary.leftovers, Severity::Leftover)
        } else {
            (&mut self.summary.inconsistencies, Severity::Inconsistency)
        };
        *count += 1;
        self.sink.found(Finding {
            severity,
            part,
            offset,
            what: what.into(),
        });
    }

    /// Something must not be.
    fn wrong(&mut self, part: Part, offset: u64, what: impl Into<String>) {
        self.tell(false, part, offset, what);
    }

    fn used(&mut self, offset: u64, len: u64) {
        self.summary.bytes_used += len;
        self.sink.used(offset..offset + len);
    }

    /// Reads bytes; where that fails it is wrong, and there are none.
    fn read(&mut self, part: Part, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self.source.read(offset, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.wrong(part, offset, format!("{len} bytes cannot be read: {error}"));
                None
            }
        }
    }
}
