//! A log of numbers under numbers: the smallest store that blocks can have. The oldest block goes first, with all that is in it.

use parking_lot::Mutex;
use pumice_blocks::chain::{StreamReader, put_len};
use pumice_blocks::footer::{Entry, OWN_BYTES, Trailer};
use pumice_blocks::log::{Kind, LogRecord, OwnKind};
use pumice_blocks::open::read_superblock;
use pumice_blocks::recovery::{LogEnd, Recovery, Restore, Restored, StartClock};
use pumice_blocks::{
    Blocks, Claim, Contents, Coverage, Durability, Geometry, Logged, Maker, OpenBlock, OpenError, Owner,
    Pool, SealEnd, Start, State, StoreId, StreamWriter, Superblock, Task, Tenant, Work,
};
use pumice_device::{Device, FaultyDevice, FaultyMedium};
use pumice_memory::{AlignedBuf, Buffer, Payload};
use pumice_record::codec::{Fields, checksum};
use pumice_world::{Executor, Spawner};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

pub const STORE: StoreId = StoreId { kind: 999, format: 1 };
const BLOCK_BYTES: u64 = 64 << 10;
const NOW: u32 = 1_000;
/// A piece: checksum, sequence, key, version, value, and bytes that fill blocks soon.
const PIECE_BYTES: usize = 4_000;
const HEAD_BYTES: usize = 32;

/// A value as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub key: u64,
    pub version: u64,
    /// Bytes into the block.
    pub offset: u32,
}

impl Entry for Place {
    const BYTES: usize = 20;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>, _: u32) -> Option<Self> {
        Some(Self {
            key: fields.u64()?,
            version: fields.u64()?,
            offset: fields.u32()?,
        })
    }

    fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + PIECE_BYTES as u64
    }
}

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

/// The types of this store. Sealed blocks, the oldest first, are its part of the pool; it has no work of its own.
pub struct Toy;

impl Owner for Toy {
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

/// Where each key's value is: number of the block, and the place in it. Its lock comes before those of blocks.
type Index = HashMap<u64, (u32, Place)>;

struct Inner {
    base: Blocks<Toy>,
    /// Whether it refuses what it cannot log, as a store with the only copy does. Else it holds copies, and starts empty after that.
    keeps: bool,
    index: Mutex<Index>,
    /// The block that is being filled, under the lock of the index.
    active: Mutex<Option<Arc<OpenBlock<Toy>>>>,
    /// Whether a start after a crash is to discard what the next checkpoint has.
    distrusts: AtomicBool,
}

/// The store while one of its blocks is written.
struct Sealer<'a> {
    toy: &'a Inner,
    device: &'a FaultyDevice,
}

impl Tenant<Toy> for Sealer<'_> {
    fn compose(&self, block: &OpenBlock<Toy>, mut entries: Vec<Place>) -> Contents<Place> {
        let index = self.toy.index.lock();
        entries.retain(|place| index.get(&place.key) == Some(&(block.id, *place)));
        let own = (!entries.is_empty()).then_some([0; OWN_BYTES]);
        Contents { entries, own }
    }

    fn settle(&self, block: &OpenBlock<Toy>, end: SealEnd, _: &[Place]) {
        if let SealEnd::Failed(logged) = end {
            if self.toy.decide(self.device, logged).is_err() {
                let reason = "a block that was not written may come back".to_owned();
                self.toy.base.shared.take_out(reason);
            }
            self.toy.index.lock().retain(|_, (id, _)| *id != block.id);
        }
    }

    fn file(&self, pool: &mut Pool<Toy>, block: u32, end: SealEnd) {
        if end == SealEnd::Written {
            pool.own.push_back(block);
        }
    }
}

impl Inner {
    /// Decides whether a change may be made, whose record ended so.
    fn decide(&self, device: &FaultyDevice, logged: Logged) -> Result<(), Logged> {
        match logged {
            Logged::Stored | Logged::Off => {}
            Logged::NoRoom | Logged::Failed if self.keeps => return Err(logged),
            // What is on a fenced device is void as it is.
            Logged::NoRoom | Logged::Failed if self.base.is_out() => {}
            Logged::NoRoom | Logged::Failed => self.base.lose_record(device),
        }
        Ok(())
    }

    fn log(&self, device: &FaultyDevice, kind: impl Into<Kind<Died>>, a: u64, b: u64) -> Result<(), Logged> {
        self.decide(device, self.base.append_log(device, kind, a, b))
    }

    /// Logs the death of what the index has under a key, where flash may have it. Under the lock of the index.
    fn bury(&self, device: &FaultyDevice, index: &mut Index, key: u64, version: u64) -> Result<(), Logged> {
        let Some((block, place)) = index.get(&key).copied() else {
            return Ok(());
        };
        let info = &self.base.blocks[block as usize];
        let is_buffer =
            info.state() == State::Active && place.offset >= info.prefix_end.load(Ordering::Acquire);
        if !is_buffer {
            self.log(device, Died, key, version)?;
        }
        index.remove(&key);
        Ok(())
    }

    fn set(&self, device: &FaultyDevice, key: u64, value: u64, version: u64) -> Result<bool, Logged> {
        let mut index = self.index.lock();
        self.bury(device, &mut index, key, version)?;
        let mut active = self.active.lock();
        for _ in 0..2 {
            if let Some(block) = &*active {
                let entry = |offset, _| Place { key, version, offset };
                if let Some(reserved) = block.reserve(PIECE_BYTES, entry) {
                    let mut head = [0; HEAD_BYTES];
                    let fields = [key, version, value].map(u64::to_le_bytes).concat();
                    head[4..8].copy_from_slice(&(block.sequence as u32).to_le_bytes());
                    head[8..].copy_from_slice(&fields);
                    let crc = checksum(self.base.cache_id, &[&head[4..]]);
                    head[..4].copy_from_slice(&crc.to_le_bytes());
                    // SAFETY: the range was reserved for this piece alone.
                    unsafe { block.buffer.put(reserved.at, Payload::Bytes(&head)) };
                    let place = Place {
                        key,
                        version,
                        offset: reserved.at as u32,
                    };
                    index.insert(key, (block.id, place));
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

    async fn get(&self, device: &FaultyDevice, key: u64) -> Option<u64> {
        let (block, place) = *self.index.lock().get(&key)?;
        let info = &self.base.blocks[block as usize];
        let sequence = info.sequence.load(Ordering::Acquire);
        if let Some(open) = self.base.find_open(block) {
            let value = read_piece(&*open.buffer, place.offset as usize, self.base.cache_id, sequence);
            return value.map(|(_, value)| value);
        }
        let at = self.base.geometry.block_offset(block) + u64::from(place.offset);
        let start = at / 4096 * 4096;
        let read = self.base.shared.read(device, start, 8192).await;
        let is_same = info.sequence.load(Ordering::Acquire) == sequence;
        let buffer = read.ok().filter(|_| is_same)?;
        let (found, value) = read_piece(&buffer, (at - start) as usize, self.base.cache_id, sequence)?;
        (found.key == key && found.version == place.version).then_some(value)
    }

    fn take_work(&self) -> Option<Work<Toy>> {
        if self.base.is_out() {
            return self.base.take_failure_work();
        }
        if let Some(seal) = self.base.take_seal() {
            return Some(seal);
        }
        let mut pool = self.base.shared.pool.lock();
        if let Some(flush) = self.base.take_flush(&mut pool) {
            return Some(flush);
        }
        // Often, so that starts begin with one that blocks were open beside.
        let is_due = self.base.sealed_since_checkpoint() > 5;
        if !pool.checkpointing && self.base.wants_checkpoint(is_due) {
            pool.checkpointing = true;
            return Some(self.base.claim(&mut pool, Task::Checkpoint));
        }
        if pool.in_flight == 0 && pool.free.len() < 3 && !pool.own.is_empty() {
            return Some(self.base.claim(&mut pool, Task::Own(())));
        }
        self.base.shared.has_work.store(false, Ordering::Release);
        None
    }

    async fn perform(&self, device: &FaultyDevice, work: Work<Toy>) {
        match work.task() {
            Task::Seal(_) => {
                let sealer = Sealer { toy: self, device };
                return self.base.seal(device, &sealer, NOW, work).await;
            }
            Task::Flush(block) => {
                // The seal writes these bytes again.
                let _ = self.flush(device, block).await;
            }
            Task::Checkpoint => {
                if let Err(error) = self.checkpoint(device, false).await {
                    self.base.note_checkpoint_failure(&error);
                }
            }
            Task::TakeOut => {
                match self.keeps {
                    true => self.base.keep_after_failure().await,
                    false => drop(self.base.remember_failure(device).await),
                }
                self.index.lock().clear();
                self.base.note_given_up();
            }
            Task::Own(()) => self.reclaim(device),
        }
        work.finish(|_| {});
    }

    async fn flush(&self, device: &FaultyDevice, block: &OpenBlock<Toy>) -> io::Result<()> {
        let prefix = {
            let _active = self.active.lock();
            if !self.base.is_active(block) {
                return Ok(());
            }
            let Some(prefix) = block.begin_prefix() else {
                return Ok(());
            };
            prefix
        };
        self.base.begin_prefix(block, &prefix);
        for place in &prefix.entries {
            let index = self.index.lock();
            if index.get(&place.key) != Some(&(block.id, *place)) {
                self.log(device, Died, place.key, place.version + 1)
                    .map_err(|logged| io::Error::other(format!("{logged:?}")))?;
            }
        }
        let logged = self.base.write_prefix(device, block, &prefix, 0, NOW).await?;
        // Without the record a start finds the block only where it is sealed before: nothing that is stored there was promised.
        let _ = self.decide(device, logged);
        Ok(())
    }

    /// Gives up the oldest block.
    fn reclaim(&self, device: &FaultyDevice) {
        let victim = self.base.shared.pool.lock().own.pop_front();
        let Some(victim) = victim else { return };
        let info = &self.base.blocks[victim as usize];
        let sequence = info.sequence.load(Ordering::Relaxed);
        if let Err(logged) = self.log(device, Kind::Reclaim, victim.into(), sequence) {
            self.base.shared.pool.lock().own.push_front(victim);
            if logged == Logged::Failed {
                self.base.shared.take_out("no block can be freed".to_owned());
            }
            return;
        }
        info.set_state(State::Reclaiming);
        self.index.lock().retain(|_, (id, _)| *id != victim);
        self.base.shared.change(|pool| self.base.give_back(pool, victim));
    }

    async fn checkpoint(&self, device: &FaultyDevice, clean: bool) -> io::Result<bool> {
        let begun = {
            let _active = self.active.lock();
            self.base.begin_checkpoint(|_| 0)
        };
        let take = async || {
            loop {
                let before = self.base.shared.pool.lock().own.len();
                let taken = self.base.take_for_checkpoint(&mut self.base.shared.pool.lock());
                match taken {
                    Some(id) => return Ok(id),
                    None => self.reclaim(device),
                }
                let pool = self.base.shared.pool.lock();
                if pool.free.is_empty() && pool.own.len() == before {
                    return Err(io::Error::other("no block is free"));
                }
            }
        };
        let mut writer = StreamWriter::new(&self.base, device, &begun, take);
        let mut bytes = Vec::new();
        begun.head.encode(&mut bytes);
        {
            let index = self.index.lock();
            bytes.extend_from_slice(&self.base.log.position().to_le_bytes());
            put_len(index.len(), &mut bytes);
            for (block, place) in index.values() {
                bytes.extend_from_slice(&block.to_le_bytes());
                place.encode(&mut bytes);
            }
        }
        writer.write(&bytes).await?;
        let stream = writer.finish().await?;
        let distrusts = self.distrusts.load(Ordering::Relaxed);
        let discard = |coverage| distrusts || coverage == Coverage::Partial;
        let finished = (self.base).finish_checkpoint(device, &begun, stream, NOW, clean, discard);
        finished.await
    }
}

/// The piece at `at`, and its value.
fn read_piece<B: Buffer>(buffer: &B, at: usize, cache_id: u64, sequence: u64) -> Option<(Place, u64)> {
    let bytes = buffer.bytes(at, HEAD_BYTES)?;
    let mut fields = Fields(bytes);
    let is_whole = fields.u32()? == checksum(cache_id, &[&bytes[4..]]) && fields.u32()? == sequence as u32;
    let (key, version, value) = (fields.u64()?, fields.u64()?, fields.u64()?);
    is_whole.then_some((
        Place {
            key,
            version,
            offset: 0,
        },
        value,
    ))
}

/// What a start finds.
#[derive(Default)]
struct Found {
    cache_id: u64,
    /// Whether a start that misses anything is refused.
    keeps: bool,
    index: Index,
    /// Log position at the dump of the index.
    dumped: u64,
    /// Blocks that must be there and are not.
    lost: Vec<u32>,
    /// Blocks that were made of the beginnings of such as were being filled.
    prefixes: u64,
}

impl Restore for Found {
    type Kind = Died;
    type Entry = Place;
    type Own = ();

    async fn restore<B, R>(&mut self, stream: &mut StreamReader<'_, R>) -> Result<(), OpenError>
    where
        B: Buffer,
        R: AsyncFn(u64, usize) -> io::Result<B>,
    {
        let bytes = stream.take(8).await?;
        self.dumped = Fields(&bytes).u64().expect("eight bytes were taken");
        // Checksums are seen at the stream's end only, and places are believed from here on.
        let Geometry {
            blocks, block_bytes, ..
        } = *stream.geometry();
        let mapping = |fields: &mut Fields<'_>| {
            let (block, place) = (fields.u32()?, Place::decode(fields, 0)?);
            (block < blocks && place.range().end <= block_bytes).then_some((block, place))
        };
        for (block, place) in stream.list("mapping", 4 + Place::BYTES, mapping).await? {
            self.index.insert(place.key, (block, place));
        }
        Ok(())
    }

    fn forget(&mut self) {
        (self.index, self.dumped) = (Index::new(), 0);
    }

    fn piece<B: Buffer>(&self, buffer: &B, at: usize, offset: u32, _: u32, sequence: u64) -> Option<Place> {
        let (place, _) = read_piece(buffer, at, self.cache_id, sequence)?;
        Some(Place { offset, ..place })
    }

    fn trailer(&self, _: &[Place], _: u16) -> [u8; OWN_BYTES] {
        [0; OWN_BYTES]
    }
}

impl Found {
    /// Brings what the checkpoint had up to date, or says why it cannot be trusted.
    async fn find(
        &mut self,
        recovery: &mut Recovery<'_, FaultyDevice>,
    ) -> Result<(u64, u64, Vec<u32>, BTreeMap<u64, (u32, u32)>), &'static str> {
        if recovery.superblock.discard && !recovery.superblock.clean {
            return Err("a record was lost");
        }
        let snapshot = match recovery.snapshot(self).await {
            Restored::Whole(snapshot) => Some(snapshot),
            Restored::None => None,
            Restored::Lost => return Err("no checkpoint is whole"),
        };
        let (mut void, mut since) = (HashMap::new(), Vec::new());
        let dumped = self.dumped;
        let end = recovery.log(snapshot.as_ref(), |Died, record: &LogRecord<Died>| {
            let highest = void.entry(record.a).or_insert(0);
            *highest = record.b.max(*highest);
            if record.position >= dumped {
                since.push((record.a, record.b));
            }
        });
        let summary = match end {
            LogEnd::Whole(summary) => summary,
            LogEnd::Gap => return Err("the log has a gap"),
            LogEnd::Missing => return Err("the log is missing"),
            LogEnd::Failed(_) => return Err("the log cannot be read"),
        };
        let blocks = recovery.blocks(snapshot.as_ref(), &summary, self).await;
        (self.lost, self.prefixes) = (blocks.lost, blocks.prefixes);
        if self.keeps && !(self.lost.is_empty() && recovery.unread_blocks.is_empty()) {
            return Err("a block is not there, or cannot be read");
        }
        self.index.retain(|_, (block, _)| blocks.covered[*block as usize]);
        for (key, version) in since {
            if self
                .index
                .get(&key)
                .is_some_and(|(_, place)| place.version < version)
            {
                self.index.remove(&key);
            }
        }
        let mut sealed: BTreeMap<u64, (u32, u32)> = (blocks.sealed.iter())
            .map(|(id, row, _)| (row.sequence, (*id, row.footer_len)))
            .collect();
        for (block, trailer) in blocks.new {
            let Some(entries) = recovery.entries::<Place>(block, &trailer).await else {
                match self.keeps {
                    true => return Err("a footer cannot be read"),
                    false => continue,
                }
            };
            sealed.insert(trailer.sequence, (block, footer_len(&trailer)));
            for place in entries {
                let is_void = void
                    .get(&place.key)
                    .is_some_and(|version| place.version < *version);
                let is_newer = self
                    .index
                    .get(&place.key)
                    .is_none_or(|(_, other)| other.version < place.version);
                if !is_void && is_newer {
                    self.index.insert(place.key, (block, place));
                }
            }
        }
        let own = snapshot.map_or(Vec::new(), |snapshot| snapshot.blocks);
        Ok((summary.scan.next, blocks.next_sequence, own, sealed))
    }
}

fn footer_len(trailer: &Trailer) -> u32 {
    u32::try_from(trailer.footer_len()).expect("shorter than a block")
}

/// The store, for tests of one thread. `KEEPS`: it has the only copy.
/// `POWER`: what is committed survives a power cut.
pub struct ToyStore<const KEEPS: bool, const POWER: bool> {
    inner: Arc<Inner>,
    found: Found,
    device: FaultyDevice,
    executor: Executor,
    forgotten: bool,
    version: u64,
    /// What was given up is told from this: where each key was when it was last asked.
    known: HashMap<u64, (u32, Place)>,
    second: u32,
}

fn park(device: &FaultyDevice) -> impl FnMut() -> io::Result<()> {
    let device = device.clone();
    move || device.turn(true).map(drop)
}

async fn start(
    device: &FaultyDevice,
    keeps: bool,
    durability: Durability,
) -> Result<(Inner, bool, Found), OpenError> {
    let found = read_superblock(device, STORE)?;
    let fresh = || -> Result<Superblock, OpenError> {
        Ok(Superblock {
            cache_id: 77,
            store: STORE,
            geometry: Geometry::plan(device.capacity(), BLOCK_BYTES)?,
            maker: Maker::Serve,
            time: NOW,
            ..Superblock::default()
        })
    };
    let formatted = found.is_none();
    let superblock = found.map_or_else(fresh, Ok)?;
    let mut recovery = Recovery::new(device, superblock);
    let mut restored = Found {
        cache_id: superblock.cache_id,
        keeps,
        ..Found::default()
    };
    let old = match formatted {
        true => None,
        false => match restored.find(&mut recovery).await {
            Err(why) if keeps => {
                let (what, source) = ("the only copy", io::Error::other(why));
                return Err(OpenError::Device { what, source });
            }
            found => found.ok(),
        },
    };
    let (was_clean, mut superblock) = (recovery.clean && old.is_some(), recovery.superblock);
    let forgotten = old.is_none() && !formatted;
    let (log_next, next_sequence, checkpoint, sealed) = old.unwrap_or_else(|| {
        restored.forget();
        superblock.begin_anew(5);
        (0, 1, Vec::new(), BTreeMap::new())
    });
    let clock = StartClock {
        now: NOW,
        accept_clock: false,
    };
    superblock.begin_start(0, 0, clock, formatted);
    superblock.discard = false;
    let is_new = formatted || forgotten;
    let inner = Inner {
        base: Blocks::new(Start {
            superblock,
            log_next,
            log_tail: superblock.checkpoints[0].log_start,
            next_sequence: next_sequence.max(1),
            checkpoint_blocks: [checkpoint, Vec::new()],
            sealed: (sealed.iter())
                .map(|(sequence, (id, footer_len))| (*id, *sequence, *footer_len))
                .collect(),
            durability,
            flush_interval_secs: 2,
            buffers_max: 3,
            now: NOW,
            own: sealed.values().map(|(id, _)| *id).collect(),
        }),
        keeps,
        index: Mutex::new(std::mem::take(&mut restored.index)),
        active: Mutex::new(None),
        distrusts: AtomicBool::new(false),
    };
    inner.base.record_start(device, is_new.then_some(Died)).await?;
    if !is_new && !was_clean {
        let is_only = match inner.checkpoint(device, false).await {
            Ok(_) => inner.base.forget_previous_checkpoint(device),
            Err(_) => false,
        };
        match is_only {
            true => {}
            false if keeps => return Err(OpenError::Unwritable(1)),
            false => inner.base.mark_discard(device),
        }
    }
    Ok((inner, forgotten, restored))
}

/// What tests see of a store.
#[derive(Clone, Debug)]
pub struct Figures {
    pub next_sequence: u64,
    pub log_position: u64,
    pub log_used: u64,
    /// Records that were lost.
    pub lost_records: u64,
    /// Blocks that the start did not find, and must have.
    pub lost_blocks: Vec<u32>,
    /// Blocks that the start made of beginnings.
    pub prefixes: u64,
}

impl<const KEEPS: bool, const POWER: bool> ToyStore<KEEPS, POWER> {
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor
            .block_on(future, park(&self.device))
            .expect("something is under way")
    }

    fn kick(&self) {
        while let Some(work) = self.inner.take_work() {
            let (inner, device) = (Arc::clone(&self.inner), self.device.clone());
            let work = async move { inner.perform(&device, work).await };
            self.executor.spawner().spawn(Box::pin(work));
        }
    }

    /// Makes a change; `None` where it is refused. Where the log is full a checkpoint makes room, or two: the one before the newest needs
    /// its records too.
    fn change<T>(&mut self, change: impl Fn(&Self) -> Result<T, Logged>) -> Option<T> {
        for _ in 0..3 {
            match change(self) {
                Ok(made) => return Some(made),
                Err(Logged::NoRoom) => self
                    .run(self.inner.checkpoint(&self.device, false))
                    .map(drop)
                    .ok()?,
                Err(_) => return None,
            }
        }
        None
    }

    /// Adds records that say nothing to the log, where there is room; how many.
    pub fn log_nothing(&self, records: u64) -> u64 {
        let append = || self.inner.base.append_log(&self.device, Died, u64::MAX, 0);
        (0..records).take_while(|_| append() == Logged::Stored).count() as u64
    }

    /// Waits until all changes are durable.
    pub fn commit(&self) -> io::Result<()> {
        self.run(self.inner.base.commit(&self.device))
    }

    /// Writes a checkpoint, beside all else; whether no start could go back to the one before.
    pub fn checkpoint(&mut self) -> io::Result<bool> {
        self.run(self.inner.checkpoint(&self.device, false))
    }

    /// What it is on.
    pub fn medium(&self) -> &Arc<FaultyMedium> {
        self.device.medium()
    }

    /// What the store is made of.
    pub fn base(&self) -> &Blocks<Toy> {
        &self.inner.base
    }

    /// Says of the next checkpoints whether a start after a crash is to discard what they have.
    pub fn distrust(&self, distrusts: bool) {
        self.inner.distrusts.store(distrusts, Ordering::Relaxed);
    }

    /// Closes the block that is being filled. It is written by the next work that is done.
    pub fn close_active(&self) {
        let active = self.inner.active.lock().take();
        self.inner
            .base
            .close_block(active.expect("a block is being filled"));
    }

    /// The oldest sealed block.
    pub fn oldest_sealed(&self) -> Option<u32> {
        self.inner.base.shared.pool.lock().own.front().copied()
    }

    pub fn figures(&self) -> Figures {
        let base = &self.inner.base;
        Figures {
            next_sequence: base.shared.pool.lock().next_sequence,
            log_position: base.log.position(),
            log_used: base.log_usage().0,
            lost_records: base.totals.log_failures.load(Ordering::Relaxed),
            lost_blocks: self.found.lost.clone(),
            prefixes: self.found.prefixes,
        }
    }

    /// Ends the store as a clean stop does.
    pub fn close(mut self) -> io::Result<()> {
        let active = self.inner.active.lock().take();
        active
            .into_iter()
            .for_each(|block| self.inner.base.close_block(block));
        pumice_testkit::Store::settle(&mut self);
        self.run(self.inner.checkpoint(&self.device, true)).map(drop)
    }
}

/// Looks for a free buffer at the moment when it wakes.
struct Sees {
    inner: Arc<Inner>,
    has_buffer: AtomicBool,
}

impl Wake for Sees {
    fn wake(self: Arc<Self>) {
        let has_buffer = self.inner.base.has_buffer(&self.inner.base.shared.pool.lock());
        self.has_buffer.store(has_buffer, Ordering::Relaxed);
    }
}

impl<const KEEPS: bool, const POWER: bool> ToyStore<KEEPS, POWER> {
    /// Fills all buffers, waits for one, and says whether one was free when the last wake came: on another thread its reader goes on at
    /// once.
    pub fn finds_the_buffer_free(&mut self) -> bool {
        while pumice_testkit::Store::set(self, self.version % 50, 1) {}
        let sees = Arc::new(Sees {
            inner: Arc::clone(&self.inner),
            has_buffer: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&sees));
        let inner = Arc::clone(&self.inner);
        let mut waits = pin!(inner.base.wait_for(|pool| inner.base.has_buffer(pool)));
        while waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            pumice_testkit::Store::turn(self);
        }
        sees.has_buffer.load(Ordering::Relaxed)
    }
}

impl<const KEEPS: bool, const POWER: bool> pumice_testkit::Store for ToyStore<KEEPS, POWER> {
    fn open(device: FaultyDevice) -> Result<Self, String> {
        let executor = Executor::new();
        let durability = if POWER {
            Durability::Power
        } else {
            Durability::Process
        };
        let started = executor.block_on(start(&device, KEEPS, durability), park(&device));
        let (inner, forgotten, found) = match started {
            Ok(started) => started.map_err(|error| error.to_string())?,
            Err(error) => return Err(error.to_string()),
        };
        let epoch = u64::from(inner.base.superblock.lock().epoch);
        let known = inner.index.lock().clone();
        Ok(Self {
            inner: Arc::new(inner),
            found,
            device,
            executor,
            forgotten,
            version: epoch << 44,
            known,
            second: NOW,
        })
    }

    fn has_forgotten(&self) -> bool {
        self.forgotten
    }

    fn set(&mut self, key: u64, value: u64) -> bool {
        self.version += 1;
        self.known.remove(&key);
        let is_there = self.change(|toy| toy.inner.set(&toy.device, key, value, toy.version)) == Some(true);
        if let Some(place) = self.inner.index.lock().get(&key) {
            self.known.insert(key, *place);
        }
        self.kick();
        is_there
    }

    fn delete(&mut self, key: u64) {
        self.version += 1;
        self.known.remove(&key);
        self.change(|toy| {
            let mut index = toy.inner.index.lock();
            toy.inner.bury(&toy.device, &mut index, key, toy.version)
        });
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        self.run(self.inner.get(&self.device, key))
    }

    fn is_on_device(&mut self, key: u64) -> bool {
        let Some((block, place)) = self.inner.index.lock().get(&key).copied() else {
            return false;
        };
        match self.inner.base.find_open(block) {
            Some(open) => place.range().end <= open.written() as u64,
            None => self.inner.base.blocks[block as usize].state() == State::Sealed,
        }
    }

    fn turn(&mut self) {
        self.second += 1;
        self.inner.base.flush_aged(self.second);
        self.kick();
        let _ = self.device.turn(true);
        self.run(std::future::ready(()));
        self.run(pumice_blocks::give_turn());
    }

    fn settle(&mut self) {
        loop {
            self.kick();
            if self.executor.run_until_idle(park(&self.device)).is_err() || !self.inner.base.has_work() {
                return;
            }
        }
    }

    fn given_up(&mut self) -> Vec<u64> {
        let index = self.inner.index.lock();
        let gone: Vec<u64> = (self.known.iter())
            .filter(|(key, place)| index.get(key) != Some(place))
            .map(|(key, _)| *key)
            .collect();
        for key in &gone {
            self.known.remove(key);
        }
        gone
    }

    fn check(&mut self) {
        let index = self.inner.index.lock();
        let pool = self.inner.base.shared.pool.lock();
        for (key, (block, _)) in &*index {
            let state = self.inner.base.blocks[*block as usize].state();
            assert!(
                matches!(state, State::Active | State::Sealing | State::Sealed),
                "key {key} is in block {block}, which is {state:?}"
            );
        }
        for id in &pool.free {
            assert_eq!(self.inner.base.blocks[*id as usize].state(), State::Free);
        }
    }
}
