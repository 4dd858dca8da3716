//! A walk over the records that count, block by block, in bounded memory: header and key of each, as they stand beside the
//! values. The index knows neither; the DRAM tier is not walked here.
//!
//! What is mapped to a place is listed when the walk comes to that place. Objects move meanwhile, always to open blocks: so written
//! blocks are walked first, then those that were written since, and last the open ones. Each block is walked once in each of
//! its lives. An object that is moved may be found in both places; one that is moved twice, or
//! from one buffer to another because sections merge, may be missed. What was set after the
//! walk began is left out, so that a walk ends however much is written meanwhile.
//!
//! With a cascade index DRAM may not know whether a copy is mapped. Where nothing was invalidated under its hash since its block
//! was opened, it is; otherwise the pages of mappings are read that may say more, without teaching tier 1 anything.

mod read;

use crate::Mappings;
use crate::block::OpenBlock;
use crate::footer::FooterEntry;
use crate::record::{HEADER_BYTES, MANIFEST_BYTES, RecordHeader, SliceId, is_expired};
use crate::store::{BlockInfo, FlashStore, State};
use crate::survivors::Run;
use pumice_device::Device;
use pumice_index::cascade::{Plan, Resolved};
use pumice_index::{Location, Lookup};
use pumice_memory::{Buffer, Payload};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Records that are read at a time stand in so many bytes of the device.
const READ_BYTES_MAX: u64 = 64 << 10;
/// What is wanted of a record: its header, the longest key, and what the head of a large object says.
const HEAD_BYTES_MAX: u32 = (HEADER_BYTES + 250 + MANIFEST_BYTES) as u32;
/// Records of an open block that are looked at in one step.
const OPEN_ENTRIES: usize = 512;
/// Objects in one step whose mapping may have to be read first.
const MAPPING_READS: usize = 8;
/// Times that pages of mappings may move while one object's are read.
const MOVES_MAX: usize = 4;

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more.
    More,
    /// Nothing is left.
    End,
}

/// Header and key of a record that is mapped where it stands.
#[derive(Clone, Debug)]
pub struct Walked {
    /// The hash that it is mapped under.
    pub hash: u64,
    /// Where it stands.
    pub location: Location,
    /// Its header.
    pub header: RecordHeader,
    /// Its key.
    pub key: Vec<u8>,
    /// Of the head of a large object its value, which says what the object is made of; of others nothing.
    pub manifest: Vec<u8>,
}

/// Which blocks are taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    Written,
    WrittenSince,
    Open,
}

/// How far a walk has come.
pub struct BlockWalk {
    blocks: Box<[Lives]>,
    /// Versions from here on were given after the walk began.
    versions_end: u64,
    round: Round,
    /// The next block to look at.
    next: u32,
    current: Option<Current>,
}

/// The lives of a block that matter to a walk, by sequence; 0 is none.
#[derive(Clone, Copy, Default)]
struct Lives {
    at_start: u64,
    walked: u64,
}

/// The block in work.
struct Current {
    id: u32,
    sequence: u64,
    place: Place,
    /// Records below this offset are done.
    from: u32,
    entries: VecDeque<FooterEntry>,
    runs: VecDeque<Run>,
}

#[derive(Clone, Copy)]
enum Place {
    /// A buffer, if the block still is one.
    Memory,
    /// The device; `None` before its trailer was read.
    Device(Option<Footer>),
}

/// How far its footer was read.
#[derive(Clone, Copy)]
struct Footer {
    read: u32,
    count: u32,
}

impl BlockWalk {
    /// Versions from here on were given after the walk began; objects that have them are left out.
    pub fn versions_end(&self) -> u64 {
        self.versions_end
    }

    /// The life of a block number at the start, and the one that was walked to its end; 0 stands for none.
    fn lives(&self, block: u32) -> Lives {
        self.blocks[block as usize]
    }
}

impl<B: Buffer> FlashStore<B> {
    /// Begins a walk. It takes 16 bytes for each block, and some 100 KiB beside.
    pub fn begin_walk(&self) -> BlockWalk {
        let at_start = |info: &BlockInfo| match info.state() {
            State::Free | State::Checkpoint | State::Mappings | State::Bad => 0,
            _ => info.sequence.load(Ordering::Acquire),
        };
        let lives = self.blocks.iter().map(|info| Lives {
            at_start: at_start(info),
            walked: 0,
        });
        BlockWalk {
            blocks: lives.collect(),
            versions_end: self.next_version(),
            round: Round::Written,
            next: 0,
            current: None,
        }
    }

    /// The sequences of the block at `location` when the walk began, and when it was walked; 0 where it had no objects, and where
    /// it was not walked.
    pub fn walked_at(&self, walk: &BlockWalk, location: Location) -> (u64, u64) {
        let lives = walk.lives(self.block_of(location));
        (lives.at_start, lives.walked)
    }

    /// Does a small piece of a walk: at most one read of 64 KiB, or some of pages of mappings, or of one longer header. Adds what it
    /// finds to `found`, some thousand records at most.
    pub async fn walk<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        walk: &mut BlockWalk,
        found: &mut Vec<Walked>,
    ) -> Step {
        if self.is_out() {
            // Nothing is mapped to it any more.
            return Step::End;
        }
        let Some(mut current) = walk.current.take().or_else(|| self.take_up(walk)) else {
            return Step::End;
        };
        if self.sequence_of(current.id) != current.sequence {
            // What was left of it has gone, or moved to where the walk comes later.
            return Step::More;
        }
        let goes_on = self
            .walk_block(device, mappings, now, walk.versions_end, &mut current, found)
            .await;
        if goes_on {
            walk.current = Some(current);
        } else {
            walk.blocks[current.id as usize].walked = current.sequence;
        }
        Step::More
    }

    fn sequence_of(&self, block: u32) -> u64 {
        self.blocks[block as usize].sequence.load(Ordering::Acquire)
    }

    /// The next block to walk.
    fn take_up(&self, walk: &mut BlockWalk) -> Option<Current> {
        loop {
            while let Some(info) = self.blocks.get(walk.next as usize) {
                let id = walk.next;
                walk.next += 1;
                let sequence = info.sequence.load(Ordering::Acquire);
                let place = match (info.state(), walk.round) {
                    (State::Sealed | State::Moved, _) => Place::Device(None),
                    (State::Reclaiming, Round::WrittenSince | Round::Open) => Place::Device(None),
                    (State::Active | State::Sealing, Round::Open) => Place::Memory,
                    _ => continue,
                };
                if walk.lives(id).walked != sequence {
                    return Some(Current {
                        id,
                        sequence,
                        place,
                        from: 0,
                        entries: VecDeque::new(),
                        runs: VecDeque::new(),
                    });
                }
            }
            walk.next = 0;
            walk.round = match walk.round {
                Round::Written => Round::WrittenSince,
                Round::WrittenSince => Round::Open,
                Round::Open => {
                    walk.next = self.geometry.blocks;
                    return None;
                }
            };
        }
    }

    /// Goes on in a block; false at its end.
    async fn walk_block<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        now: u32,
        versions_end: u64,
        current: &mut Current,
        found: &mut Vec<Walked>,
    ) -> bool {
        if let Some(run) = current.runs.pop_front() {
            self.read_heads(device, current, run, found).await;
            return true;
        }
        if !current.entries.is_empty() {
            let live = self.sort_out(device, mappings, current).await;
            match self.open_block_of(current) {
                Some(block) => found.extend(live.iter().filter_map(|entry| self.look_at(&block, entry))),
                None => current
                    .runs
                    .extend(self.runs(current.id, live, READ_BYTES_MAX, HEAD_BYTES_MAX)),
            }
            return true;
        }
        let entries = match current.place {
            Place::Device(_) => self.next_entries(device, current).await,
            Place::Memory => match self.open_block_of(current) {
                // While another thread composes its footer there is nothing to be seen of it.
                Some(block) => match block.entries_from(current.from, OPEN_ENTRIES) {
                    Some(entries) => Some(entries).filter(|entries| !entries.is_empty()),
                    None => return true,
                },
                None => {
                    // It was written meanwhile.
                    current.place = Place::Device(None);
                    return true;
                }
            },
        };
        let Some(entries) = entries else {
            return false;
        };
        // What was done before the block was written is not done again.
        let from = current.from;
        if let (Place::Memory, Some(last)) = (current.place, entries.last()) {
            current.from = last.offset + last.len;
        }
        let is_wanted = |entry: &FooterEntry| {
            entry.offset >= from && entry.version < versions_end && !is_expired(entry.expiry, now)
        };
        current.entries.extend(entries.into_iter().filter(is_wanted));
        true
    }

    /// The buffer of the block in work, if it is one.
    fn open_block_of(&self, current: &Current) -> Option<Arc<OpenBlock<B>>> {
        let open = self.open.lock();
        let block = open.iter().find(|block| block.id == current.id)?;
        (block.sequence == current.sequence).then(|| Arc::clone(block))
    }

    /// A record in a buffer that was found to be mapped: whoever appended it held the lock of its shard until it was whole.
    fn look_at(&self, block: &OpenBlock<B>, entry: &FooterEntry) -> Option<Walked> {
        let location = self.location(block.id, entry);
        let record = self.peek_memory(block, location)?;
        let header = *record.header();
        let manifest = match (header.slice, record.value()) {
            (SliceId::Part(_), _) => return None,
            (SliceId::Head, Payload::Bytes(bytes)) => bytes.to_vec(),
            _ => Vec::new(),
        };
        Some(Walked {
            hash: entry.hash,
            location,
            header,
            key: record.key().to_vec(),
            manifest,
        })
    }

    /// The next of the entries that are mapped.
    async fn sort_out<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        current: &mut Current,
    ) -> Vec<FooterEntry> {
        let mut live = Vec::new();
        let mut reads_left = MAPPING_READS;
        while reads_left > 0
            && let Some(entry) = current.entries.pop_front()
        {
            let location = self.location(current.id, &entry);
            let known = mappings.with(entry.hash, |shard| match shard.peek(entry.hash) {
                Lookup::Hit(candidates) => Ok(candidates.first().location == location),
                Lookup::Miss => Ok(false),
                Lookup::Read(_) if self.is_last_written(entry.hash, location) => Ok(true),
                Lookup::Read(plan) => Err(plan),
            });
            let is_live = match known {
                Ok(true) => true,
                // Whatever supersedes it would have removed the item in DRAM, too.
                _ if self.mapping_log.get().is_some() && mappings.is_hot(entry.hash, location) => true,
                Ok(false) => false,
                Err(plan) => {
                    reads_left -= 1;
                    self.is_mapped(device, mappings, entry.hash, location, plan).await
                }
            };
            if is_live {
                live.push(entry);
            }
        }
        live
    }

    /// Asks pages of mappings whether a copy is mapped.
    async fn is_mapped<D: Device<Buf = B>, M: Mappings>(
        &self,
        device: &D,
        mappings: &M,
        hash: u64,
        location: Location,
        mut plan: Plan,
    ) -> bool {
        for _ in 0..MOVES_MAX {
            let pages = self.read_mappings(device, plan.pages()).await;
            let payloads = pages.iter().map(|page| page.as_ref()?.payload());
            let resolved = mappings.with(hash, |shard| {
                let Some(shard) = shard.cascade() else {
                    return Err(Resolved::Miss);
                };
                match shard.peek_pages(hash, &plan, payloads) {
                    Resolved::Again => match shard.peek(hash) {
                        Lookup::Read(plan) => Ok(plan),
                        Lookup::Hit(candidates) => Err(Resolved::Hit(candidates.first())),
                        Lookup::Miss => Err(Resolved::Miss),
                    },
                    resolved => Err(resolved),
                }
            });
            match resolved {
                Ok(again) => plan = again,
                Err(Resolved::Hit(mapping)) => return mapping.location == location,
                Err(_) => return false,
            }
        }
        false
    }
}
