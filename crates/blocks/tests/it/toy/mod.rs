//! A log of numbers under numbers: the smallest store that blocks can have. The oldest block goes first, with all that is in it.
//!
//! Here is what it does while it runs, as their owner ([`Owner`]) and while a block is sealed ([`Tenant`]). [`piece`] is what it writes,
//! [`recovery`] its start; [`rig`] is for tests.

pub mod piece;
pub mod recovery;
pub mod rig;

use locks::Mutex;
use piece::{PIECE_BYTES, Place, piece_head, read_piece};
use pumice_blocks::chain::put_len;
use pumice_blocks::footer::{Entry, OWN_BYTES};
use pumice_blocks::log::{Kind, OwnKind};
use pumice_blocks::{
    Blocks, Claim, Contents, Coverage, Logged, OpenBlock, Owner, Pool, SealEnd, State, StoreId, StreamWriter,
    Task, Tenant, Work,
};
use pumice_memory::{AlignedBuf, Buffer, Payload};
use pumice_testkit::FaultyDevice;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub const STORE: StoreId = StoreId { kind: 999, format: 1 };
const NOW: u32 = 1_000;

/// A key lost the value that it had before version `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

impl OwnKind for Died {
    fn number(self) -> u16 {
        0
    }

    fn from_number(number: u16) -> Option<Self> {
        (number == 0).then_some(Died)
    }
}

/// The types of this store. Sealed blocks, the oldest first, are its part of the pool; its only work is to give up the oldest.
pub struct Types;

impl Owner for Types {
    type Buf = AlignedBuf;
    type Kind = Died;
    type Entry = Place;
    type Tag = ();
    type Info = ();
    type State = VecDeque<u32>;
    type Task = ();

    fn task_ended(_: &mut VecDeque<u32>, (): &()) {}

    fn put_back(_: &mut VecDeque<u32>, _: Claim, (): ()) -> Option<()> {
        None
    }
}

/// Where each key's value is: number of the block, and the place in it.
type Index = HashMap<u64, (u32, Place)>;

/// What changes together. Its lock comes before those of blocks.
#[derive(Default)]
pub struct Maps {
    pub index: Index,
    /// The block that is being filled.
    pub active: Option<Arc<OpenBlock<Types>>>,
}

/// The store. Its users share one handle on the device.
pub struct Toy {
    pub base: Blocks<Types>,
    pub device: FaultyDevice,
    /// Whether it refuses what it cannot log, as a store with the only copy does. Else it holds copies, and starts empty after that.
    keeps: bool,
    pub maps: Mutex<Maps>,
    /// Whether a start after a crash is to discard what the next checkpoint has.
    pub distrusts: AtomicBool,
}

impl Tenant<Types> for Toy {
    fn compose(&self, block: &OpenBlock<Types>, mut entries: Vec<Place>) -> Contents<Place> {
        let maps = self.maps.lock();
        entries.retain(|place| maps.index.get(&place.key) == Some(&(block.id, *place)));
        let own = (!entries.is_empty()).then_some([0; OWN_BYTES]);
        Contents { entries, own }
    }

    fn settle(&self, block: &OpenBlock<Types>, end: SealEnd, _: &[Place]) {
        if let SealEnd::Failed(logged) = end {
            if self.decide(logged).is_err() {
                let reason = "a block that was not written may come back".to_owned();
                self.base.shared.take_out(reason);
            }
            self.maps.lock().index.retain(|_, (id, _)| *id != block.id);
        }
    }

    fn file(&self, pool: &mut Pool<Types>, block: u32, end: SealEnd) {
        if end == SealEnd::Written {
            pool.own.push_back(block);
        }
    }
}

impl Toy {
    /// Decides whether a change may be made, whose record ended so.
    fn decide(&self, logged: Logged) -> Result<(), Logged> {
        match logged {
            Logged::Stored | Logged::Off => {}
            Logged::NoRoom | Logged::Failed if self.keeps => return Err(logged),
            // What is on a fenced device is void as it is.
            Logged::NoRoom | Logged::Failed if self.base.is_out() => {}
            Logged::NoRoom | Logged::Failed => self.base.journal.lose_record(&self.device),
        }
        Ok(())
    }

    fn log(&self, kind: impl Into<Kind<Died>>, a: u64, b: u64) -> Result<(), Logged> {
        self.decide(self.base.journal.append(&self.device, kind, a, b))
    }

    /// Drops what the index has under a key. Its death is logged where a start could find it.
    fn bury(&self, index: &mut Index, key: u64, version: u64) -> Result<(), Logged> {
        let Some((block, place)) = index.get(&key).copied() else {
            return Ok(());
        };
        let info = &self.base.blocks[block as usize];
        let is_buffer =
            info.state() == State::Active && place.offset >= info.prefix_end.load(Ordering::Acquire);
        if !is_buffer {
            self.log(Died, key, version)?;
        }
        index.remove(&key);
        Ok(())
    }

    /// Deletes a value. `Err`: it is refused, and the value is there.
    pub fn delete(&self, key: u64, version: u64) -> Result<(), Logged> {
        self.bury(&mut self.maps.lock().index, key, version)
    }

    /// Stores a value; false where there is no room, and then nothing is there. `Err`: it is refused, and the old one is there.
    pub fn set(&self, key: u64, value: u64, version: u64) -> Result<bool, Logged> {
        let Maps { index, active } = &mut *self.maps.lock();
        self.bury(index, key, version)?;
        for _ in 0..2 {
            if let Some(block) = active {
                let place = |offset, _| Place { key, version, offset };
                if let Some(reserved) = block.reserve(PIECE_BYTES, place) {
                    let head = piece_head(self.base.cache_id, block.sequence, [key, version, value]);
                    // SAFETY: the range was reserved for this piece alone.
                    unsafe { block.buffer.put(reserved.at, Payload::Bytes(&head)) };
                    index.insert(key, (block.id, place(reserved.at as u32, 0)));
                    return Ok(true);
                }
            }
            if let Some(full) = active.take() {
                self.base.close_block(full);
            }
            let mut pool = self.base.shared.pool.lock();
            // One is for a checkpoint.
            *active = (pool.free.len() > 1)
                .then(|| self.base.open_block(&mut pool, (), |_| {}))
                .flatten();
        }
        Ok(false)
    }

    pub async fn get(&self, key: u64) -> Option<u64> {
        let (block, place) = *self.maps.lock().index.get(&key)?;
        let (cache_id, info) = (self.base.cache_id, &self.base.blocks[block as usize]);
        let sequence = info.sequence.load(Ordering::Acquire);
        if let Some(open) = self.base.find_open(block) {
            let piece = read_piece(&*open.buffer, place.offset as usize, cache_id, sequence);
            return piece.map(|(_, value)| value);
        }
        let at = self.base.geometry.block_offset(block) + u64::from(place.offset);
        let start = at / 4096 * 4096;
        let read = self.base.shared.read(&self.device, start, 8192).await;
        let is_same = info.sequence.load(Ordering::Acquire) == sequence;
        let buffer = read.ok().filter(|_| is_same)?;
        let (found, value) = read_piece(&buffer, (at - start) as usize, cache_id, sequence)?;
        (found.key == key && found.version == place.version).then_some(value)
    }

    /// Claims a piece of background work, if any is due.
    pub fn take_work(&self) -> Option<Work<Types>> {
        if self.base.is_out() {
            return self.base.take_failure_work();
        }
        let mut pool = self.base.shared.pool.lock();
        if let Some(write) = self.base.take_write(&mut pool) {
            return Some(write);
        }
        // Often, so that starts begin with one that blocks were open beside.
        let is_due = self.base.sealed_since_checkpoint() > 5;
        if !pool.checkpointing && self.base.journal.wants_checkpoint(is_due) {
            pool.checkpointing = true;
            return Some(self.base.claim(&mut pool, Task::Checkpoint));
        }
        if pool.in_flight == 0 && pool.free.len() < 3 && !pool.own.is_empty() {
            return Some(self.base.claim(&mut pool, Task::Own(())));
        }
        self.base.shared.has_work.store(false, Ordering::Release);
        None
    }

    pub async fn perform(&self, work: Work<Types>) {
        match work.task() {
            Task::Seal(_) => return self.base.seal(&self.device, self, NOW, work).await,
            Task::Flush(block) => {
                // The seal writes these bytes again.
                let _ = self.flush(block).await;
            }
            Task::Checkpoint => {
                if let Err(error) = self.checkpoint(false).await {
                    self.base.journal.note_checkpoint_failure(&error);
                }
            }
            Task::TakeOut => {
                match self.keeps {
                    true => self.base.shared.keep_after_failure().await,
                    false => drop(self.base.journal.remember_failure(&self.device).await),
                }
                self.maps.lock().index.clear();
                self.base.shared.note_given_up();
            }
            Task::Own(()) => drop(self.reclaim()),
        }
        work.finish(|_| {});
    }

    /// Writes the beginning of a block that is being filled.
    async fn flush(&self, block: &OpenBlock<Types>) -> io::Result<()> {
        let prefix = {
            let _maps = self.maps.lock();
            let is_active = self.base.is_active(block);
            is_active.then(|| block.begin_prefix()).flatten()
        };
        let Some(prefix) = prefix else { return Ok(()) };
        self.base.begin_prefix(block, &prefix);
        for place in &prefix.entries {
            let maps = self.maps.lock();
            if maps.index.get(&place.key) != Some(&(block.id, *place)) {
                self.log(Died, place.key, place.version + 1)
                    .map_err(|logged| io::Error::other(format!("{logged:?}")))?;
            }
        }
        let own = (!self.keeps || prefix.range.start == 0).then_some(0);
        let written = self.base.write_prefix(&self.device, block, &prefix, own, NOW);
        // Without the record a start finds the block only where it is sealed before: nothing that is stored there was promised.
        let _ = self.decide(written.await?);
        Ok(())
    }

    /// Gives up the oldest block; false where there is none, or it has to stay.
    fn reclaim(&self) -> bool {
        let victim = self.base.shared.pool.lock().own.pop_front();
        let Some(victim) = victim else { return false };
        let info = &self.base.blocks[victim as usize];
        let sequence = info.sequence.load(Ordering::Relaxed);
        if let Err(logged) = self.log(Kind::Reclaim, victim.into(), sequence) {
            self.base.shared.pool.lock().own.push_front(victim);
            if logged == Logged::Failed {
                self.base.shared.take_out("no block can be freed".to_owned());
            }
            return false;
        }
        info.set_state(State::Reclaiming);
        self.maps.lock().index.retain(|_, (id, _)| *id != victim);
        self.base.shared.change(|pool| self.base.give_back(pool, victim));
        true
    }

    /// Writes a checkpoint; whether no start could go back to the one before. `clean`: nothing changes after it.
    pub async fn checkpoint(&self, clean: bool) -> io::Result<bool> {
        let begun = {
            let _maps = self.maps.lock();
            self.base.begin_checkpoint(|_| 0)
        };
        let take = async || {
            loop {
                let taken = self.base.take_for_checkpoint(&mut self.base.shared.pool.lock());
                match taken {
                    Some(id) => return Ok(id),
                    None if self.reclaim() => {}
                    None => return Err(io::Error::other("no block is free")),
                }
            }
        };
        let mut writer = StreamWriter::new(&self.base, &self.device, &begun, take);
        let mut bytes = Vec::new();
        begun.head.encode(&mut bytes);
        {
            let maps = self.maps.lock();
            bytes.extend_from_slice(&self.base.journal.log.position().to_le_bytes());
            put_len(maps.index.len(), &mut bytes);
            for (block, place) in maps.index.values() {
                bytes.extend_from_slice(&block.to_le_bytes());
                place.encode(None, &mut bytes);
            }
        }
        writer.write(&bytes).await?;
        let stream = writer.finish().await?;
        let distrusts = self.distrusts.load(Ordering::Relaxed);
        let discard = |coverage| distrusts || coverage == Coverage::Partial;
        let finished = (self.base).finish_checkpoint(&self.device, &begun, stream, NOW, clean, discard);
        finished.await
    }
}
