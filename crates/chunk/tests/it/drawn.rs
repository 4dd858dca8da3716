//! Lives of a store in write-back, before a volume. Every dimension that a volume makes of it is drawn, each with every other: contents and their
//! duplicates, parts, trims, flushes, cleaning, checkpoints, reclaims, the end of a life and the start after it, power cuts, damage. A read finds what
//! was flushed, or something newer. `pumice_testkit::seeds` says how to choose seeds.

use crate::store::CHUNK_BYTES;
use bytes::Bytes;
use futures_channel::oneshot;
use pumice_blocks::{BudgetLevel, Durability, Geometry, Work, give_turn};
use pumice_chunk::store::{BudgetOwner, ChunkCounts, ChunkStore, Chunks, Copied, Filled, Found, Options};
use pumice_chunk::store::{Quiet, Ticket};
use pumice_device::{CrashPoint, Device, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_memory::AlignedBuf;
use pumice_testkit::{Disk, Life, Pairs, SECTOR, dimensions, seeds};
use pumice_world::{Executor, LocalSpawner, Random, Spawner};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

/// Seeds that each run of the tests has.
const SEEDS: u64 = 250;
/// Lives of a seed.
const LIVES: usize = 4;
const CHUNK: usize = CHUNK_BYTES as usize;

// A seed keeps the first three: the device is formatted with them.
dimensions! {
    Room "cache": Tiny "1 MiB" 1, Small "3 MiB" 1;
    Size "volume": Same "as large as the cache" 1, Larger "larger" 1;
    Index "index": Narrow "a slot for some chunks" 1, Wide "a slot for each" 1;
    Limit "dirty limit": Low "15 %" 1, Half "50 %" 1, All "100 %" 2;
    Share "duplicates": None "none" 1, Half "half" 3, Most "most" 1;
    Pool "pool": Few "3 contents" 1, Some "24" 1, Many "64" 2;
    Drift "contents of the pool": Stay "stay" 1, Change "change" 1;
    Kind "contents": Random "random" 1, Compressible "compressible" 1, Mixed "mixed" 1;
    Parts "parts": Whole "whole chunks" 1, Parts "parts, too" 1;
    Rewrites "rewrites": Hot "of what was written last" 1, Oldest "of what is dirty longest, too" 1;
    Trims "trims": None "none" 1, Some "some" 1;
    Through "write-through": None "none" 1, Some "some" 1;
    Fills "reads of the volume": Pass "pass" 1, Enter "enter" 1;
    Flushes "flushes": Rare "rare" 1, Often "often" 1;
    Cleaner "cleaning": Never "none" 1, Reclaim "by reclaims" 2, Subset "of a subset" 1, Both "both" 2;
    Steps "steps of a cleaning": AtOnce "at once" 1, Apart "with writes between them" 1;
    Clock "seconds": Rare "few" 1, Often "many" 1;
    Checkpoints "checkpoints": Rare "rare" 1, Often "often" 1;
    Keep "reclaims keep": All "what is worth it" 2, Nothing "nothing" 1;
    Length "length": Short "short" 1, Middle "middle" 1, Long "long" 1;
    Speed "device": Even "even" 1, Late "some writes are late" 1;
    End "end": Device "at a write or append" 4, Idle "between operations" 2, Work "after a reclaim or a checkpoint" 2, Stop "a clean stop" 1;
    Power "power": On "on" 2, Cut "cut" 1;
    Begin "start": Whole "whole" 3, Killed "killed once or more" 1;
    Damage "damage": None "none" 12, Any "bits anywhere" 1, Newest "bits of the newest block" 1;
}

/// Dimensions that a seed keeps.
const KEPT: usize = 3;

fn calm() -> FaultPlan {
    FaultPlan {
        delay: true,
        volatile: true,
        ..FaultPlan::default()
    }
}

/// Lets reclaims keep what they want, or nothing.
struct Keeps(bool);

impl BudgetOwner for Keeps {
    fn resume(&self, _: BudgetLevel, _: Option<u64>) {}

    fn left(&self, _: u64) -> BudgetLevel {
        BudgetLevel::default()
    }

    fn may_keep(&self, _: u64) -> bool {
        self.0
    }
}

/// The volume behind the cache; it has a write cache.
struct Volume {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last flush.
    since: Vec<(usize, Vec<u8>)>,
}

impl Volume {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.now[offset..][..bytes.len()].copy_from_slice(bytes);
        self.since.push((offset, bytes.to_vec()));
    }

    fn flush(&mut self) {
        for (offset, bytes) in self.since.drain(..) {
            self.durable[offset..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Of each write that was not flushed all, nothing or some sectors stay.
    fn cut_power(&mut self, random: &mut Random) {
        for (offset, bytes) in self.since.drain(..) {
            let kept = random.below(3);
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if kept == 0 || kept == 1 && random.below(2) == 0 {
                    self.durable[offset + number * SECTOR..][..SECTOR].copy_from_slice(sector);
                }
            }
        }
        self.now.clone_from(&self.durable);
    }

    fn chunk(&self, address: u64) -> Vec<u8> {
        self.now[address as usize * CHUNK..][..CHUNK].to_vec()
    }
}

/// A store, and what the program does with it in the background.
struct Host {
    store: ChunkStore<AlignedBuf>,
    device: FaultyDevice,
    volume: Rc<RefCell<Volume>>,
    spawner: LocalSpawner,
    /// Chunks that are copied to the volume, or that a change goes through to.
    held: RefCell<HashSet<u64>>,
    /// Cleanings that wait for operations of the client.
    paused: RefCell<Vec<oneshot::Sender<()>>>,
    random: RefCell<Random>,
    life: Life,
    now: Cell<u32>,
    cleaned: Cell<u64>,
    what: String,
}

impl Host {
    /// On a healthy device nothing fails.
    fn failed(&self, what: &str, error: &dyn std::fmt::Display) {
        if !self.device.medium().is_crashed() && self.life.get::<Damage>() == Damage::None {
            self.wrong(&format!("{what}: {error}"));
        }
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{}: {what}; {}", self.what, self.life.describe())
    }

    fn kick(self: &Rc<Self>) {
        while let Some(work) = self.store.take_work() {
            let host = Rc::clone(self);
            self.spawner
                .spawn(Box::pin(async move { host.perform(work).await }));
        }
    }

    /// Lets the device go on, and in the end what waits for the client.
    fn park(self: &Rc<Self>, idle: &mut u32) -> io::Result<()> {
        self.kick();
        match self.device.turn(true)? {
            0 => *idle += 1,
            _ => *idle = 0,
        }
        match *idle {
            0..10 => Ok(()),
            10..100 => {
                self.release();
                Ok(())
            }
            _ => Err(io::Error::other("nothing is under way")),
        }
    }

    async fn perform(&self, work: Work<Chunks<AlignedBuf>>) {
        let dirty = self.store.dirty_in_work(&work, 4096).await;
        if !dirty.is_empty() {
            let cleaned = match self.life.get::<Cleaner>() {
                Cleaner::Reclaim | Cleaner::Both => self.clean(dirty, false).await,
                Cleaner::Never | Cleaner::Subset => 0,
            };
            if cleaned == 0 && !self.store.is_log_short() {
                self.store.pause_reclaims();
            }
        }
        self.store.perform(&self.device, self.now.get(), work).await;
    }

    /// Cleans chunks that nobody holds. Returns how many.
    async fn clean(&self, mut addresses: Vec<u64>, by_client: bool) -> u64 {
        if !by_client && self.store.is_log_short() {
            return 0;
        }
        let pauses = by_client && self.life.get::<Steps>() == Steps::Apart;
        addresses.retain(|address| self.held.borrow_mut().insert(*address));
        let copied = self.copy_out(&addresses, pauses).await;
        addresses.iter().for_each(|address| {
            self.held.borrow_mut().remove(address);
        });
        self.made_clean(copied, by_client, pauses).await
    }

    async fn copy_out(&self, addresses: &[u64], pauses: bool) -> Vec<Copied> {
        let (mut chunks, mut copied) = (Vec::new(), Vec::new());
        for address in addresses {
            match self.store.read_dirty(&self.device, *address).await {
                Ok(Some((chunk, read))) => {
                    chunks.push((*address as usize * CHUNK + chunk.start as usize, chunk.bytes));
                    copied.push(read);
                }
                Ok(None) => {}
                Err(error) => self.failed("read_dirty", &error),
            }
        }
        self.pause(pauses).await;
        let persisted = self.store.persist(&self.device).await;
        self.pause(pauses).await;
        if let Err(error) = persisted {
            self.failed("persist", &error);
            self.store.forget_copies(&copied);
            return Vec::new();
        }
        for (offset, bytes) in chunks {
            if !self.device.medium().is_crashed() {
                self.volume.borrow_mut().write(offset, &bytes);
            }
        }
        copied
    }

    async fn made_clean(&self, copied: Vec<Copied>, may_wait: bool, pauses: bool) -> u64 {
        self.pause(pauses).await;
        if self.device.medium().is_crashed() {
            return 0;
        }
        self.volume.borrow_mut().flush();
        self.pause(pauses).await;
        let mut wait = pin!(self.store.wait_for_log(u64::MAX));
        if may_wait && self.life.get::<Checkpoints>() == Checkpoints::Often && self.is_one_of(3) {
            // A checkpoint is due meanwhile.
            let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        let made = self.store.made_clean(&self.device, &copied, may_wait).await;
        made.as_ref()
            .err()
            .into_iter()
            .for_each(|error| self.failed("made_clean", error));
        self.cleaned.set(self.cleaned.get() + made.as_ref().unwrap_or(&0));
        made.unwrap_or(0)
    }

    /// Waits for some operations of the client.
    async fn pause(&self, pauses: bool) {
        if pauses && self.is_one_of(2) {
            let (sender, receiver) = oneshot::channel();
            self.paused.borrow_mut().push(sender);
            let _ = receiver.await;
        }
    }

    /// One of so many.
    fn is_one_of(&self, count: u64) -> bool {
        self.random.borrow_mut().below(count) == 0
    }

    fn release(&self) {
        drop(self.paused.take());
    }

    /// Holds chunks, if nobody does.
    fn hold(&self, chunks: Range<u64>) -> bool {
        let mut held = self.held.borrow_mut();
        let is_free = !chunks.clone().any(|chunk| held.contains(&chunk));
        held.extend(chunks.filter(|_| is_free));
        is_free
    }
}

#[derive(Debug, Default)]
struct Totals {
    lives: u64,
    operations: u64,
    /// Ends among operations, at drawn points.
    crashes: u64,
    power_cuts: u64,
    killed_starts: u64,
    /// Starts that found dirty chunks.
    dirty_starts: u64,
    damaged_starts: u64,
    refused_starts: u64,
    /// Chunks of damaged devices that could not be read.
    unreadable: u64,
    /// Mappings when lives ended between operations, with the power on, and hits of the starts after them.
    left: u64,
    hits: u64,
    drains: u64,
    gaps: u64,
    cleaned: u64,
    checkpoints: u64,
    chunk: ChunkCounts,
}

struct Run {
    chunks: u64,
    medium: Arc<FaultyMedium>,
    volume: Rc<RefCell<Volume>>,
    disk: Disk,
    life: Life,
    random: Random,
    boot: u64,
    version: u64,
    /// By chunk: when it was written last.
    written: Vec<u64>,
    /// The number of the pool's first content.
    pool: u64,
    /// The first of the chunks that are changed often.
    hot: u64,
    /// Whether a start must find a cache.
    is_formatted: bool,
    /// Mappings that the next start must find.
    left: u64,
    executor: Executor,
    host: Option<Rc<Host>>,
    fill: Option<(Ticket, u64, Bytes)>,
    quiet: Option<Quiet>,
    /// Whether the volume was changed other than by cleaning since it was flushed.
    is_changed: bool,
    what: String,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xC4);
        let mut life = Life::draw(DIMENSIONS, &mut random, None);
        life.set(Damage::None);
        let bytes = match life.get::<Room>() {
            Room::Tiny => 1 << 20,
            Room::Small => 3 << 20,
        };
        let size = match life.get::<Size>() {
            Size::Same => bytes as usize,
            Size::Larger => 3 * bytes as usize / 2,
        };
        let volume = Volume {
            now: vec![0; size],
            durable: vec![0; size],
            since: Vec::new(),
        };
        Self {
            chunks: (size / CHUNK) as u64,
            medium: Arc::new(FaultyMedium::new(bytes, seed, calm())),
            volume: Rc::new(RefCell::new(volume)),
            disk: Disk::new(size),
            life,
            random,
            boot: 1,
            version: 0,
            written: vec![0; size / CHUNK],
            pool: 0,
            hot: 0,
            is_formatted: false,
            left: 0,
            executor: Executor::new(),
            host: None,
            fill: None,
            quiet: None,
            is_changed: false,
            what: String::new(),
        }
    }

    fn options(&self) -> Options {
        let (mappings, contents) = match (self.life.get::<Index>(), self.life.get::<Room>()) {
            (Index::Narrow, Room::Small) => (512, 1_000),
            (Index::Narrow, Room::Tiny) => (128, 400),
            (Index::Wide, _) => (1_500, 3_000),
        };
        Options {
            chunks: self.chunks,
            mappings,
            contents,
            boot: self.boot,
            durability: Durability::Power,
            write_back: true,
            ..crate::store::options()
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn host(&self) -> Rc<Host> {
        Rc::clone(self.host.as_ref().expect("it runs"))
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let (host, mut idle) = (self.host(), 0);
        let ended = self.executor.block_on(future, || host.park(&mut idle));
        ended.unwrap_or_else(|error| self.wrong(&error.to_string()))
    }

    /// Lets background work go on.
    fn turn(&self) {
        let host = self.host();
        host.kick();
        host.device.turn(true).expect("no turn of this device fails");
        self.run(give_turn());
    }

    /// Runs background work to its end.
    fn settle(&self) {
        let host = self.host();
        while !self.medium.is_crashed() && host.store.has_work() {
            host.kick();
            let mut idle = 0;
            let ended = self.executor.run_until_idle(|| host.park(&mut idle));
            ended.unwrap_or_else(|error| host.failed("background work", &error));
        }
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{}: {what}; {}", self.what, self.life.describe())
    }

    /// A content of a chunk: `shared` is its number among the contents that many chunks have.
    fn content(&mut self, shared: Option<u64>) -> Vec<u8> {
        self.version += 1;
        let number = shared.unwrap_or(self.version + 1_000_000);
        let mut random = Random(number * 77);
        let is_random = match self.life.get::<Kind>() {
            Kind::Random => true,
            Kind::Compressible => false,
            Kind::Mixed => number.is_multiple_of(2),
        };
        let mut bytes = random.next_u64().to_le_bytes().repeat(CHUNK / 8);
        let random_bytes = if is_random {
            CHUNK
        } else {
            (number as usize * 37) % (CHUNK / 2)
        };
        for word in bytes[..random_bytes / 8 * 8].chunks_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        bytes
    }

    /// The dirty chunk that was written first: its block is the next to be reclaimed.
    fn oldest_dirty(&self) -> u64 {
        let dirty = self.run(self.host().store.dirty_from(0, 4096));
        let oldest = dirty
            .into_iter()
            .min_by_key(|address| self.written[*address as usize]);
        oldest.unwrap_or(self.hot)
    }

    /// A range of whole sectors.
    fn range(&mut self) -> Range<usize> {
        let at = match (self.below(12), self.life.get::<Rewrites>()) {
            (0..4, _) => self.random.below(self.chunks),
            (4..8, Rewrites::Oldest) => self.oldest_dirty(),
            _ => (self.hot + self.random.below(24)) % self.chunks,
        };
        let chunks = [1, 1, 1, 2, 4, 12][self.below(6)].min(self.chunks - at) as usize;
        let at = at as usize;
        let mut range = at * CHUNK..(at + chunks) * CHUNK;
        if self.life.get::<Parts>() == Parts::Parts && self.below(2) == 0 {
            // A part often is the same as another, or stands apart from it.
            range.start += [0, 4, self.below(8)][self.below(3)] * SECTOR;
            range.end -= [0, 4, self.below((range.end - range.start) / SECTOR)][self.below(3)] * SECTOR;
            range.end = range.end.max(range.start + SECTOR);
        }
        range
    }

    /// Bytes for a range: of contents that many chunks have, or of contents of its own.
    fn bytes(&mut self, range: &Range<usize>) -> Vec<u8> {
        let shared = match self.life.get::<Share>() {
            Share::None => 0,
            Share::Half => 50,
            Share::Most => 90,
        };
        let pool = match self.life.get::<Pool>() {
            Pool::Few => 3,
            Pool::Some => 24,
            Pool::Many => 64,
        };
        if self.life.get::<Drift>() == Drift::Change && self.below(8) == 0 {
            self.pool += 1;
        }
        let is_shared = self.below(100) < shared;
        let mut bytes = Vec::new();
        for chunk in chunks_of(range) {
            let number = is_shared.then(|| self.pool + self.random.below(pool));
            let content = self.content(number);
            bytes.extend_from_slice(&content[part_of(chunk, range, chunk as usize * CHUNK)]);
        }
        bytes
    }

    /// What a client reads of a chunk, and whether some of it was cached; `None` if it cannot be read.
    fn read(&self, address: u64) -> Option<(Vec<u8>, bool)> {
        let host = self.host();
        let cached = self.run(host.store.read(&host.device, address)).ok()?;
        let mut whole = self.volume.borrow().chunk(address);
        if let Some(cached) = &cached {
            cached.lay_over(0, &mut whole);
        }
        Some((whole, cached.is_some()))
    }

    /// A read, and a fill where the cache had not all; the fill may be late.
    fn read_and_fill(&mut self) {
        let (host, address) = (self.host(), (self.range().start / CHUNK) as u64);
        let ticket = host.store.begin_fill(address);
        let read = self.read(address);
        if self.medium.is_crashed() {
            return;
        }
        let Some((bytes, _)) = read else {
            self.wrong("a chunk cannot be read");
        };
        self.compare(address, &bytes);
        if self.life.get::<Fills>() == Fills::Enter {
            let bytes = Bytes::from(self.volume.borrow().chunk(address));
            let late = self.fill.replace((ticket, address, bytes));
            let fill = if self.below(2) == 0 {
                late
            } else {
                self.fill.take()
            };
            if let Some((ticket, _, bytes)) = fill {
                self.run(host.store.fill(&host.device, ticket, 0, bytes));
            }
        }
    }

    fn compare(&self, address: u64, bytes: &[u8]) {
        let read = self.disk.read(address as usize * CHUNK, bytes);
        read.unwrap_or_else(|what| self.wrong(&format!("chunk {address}, {what}")));
    }

    /// A write to the cache alone; through it where it has no room.
    fn write(&mut self, range: &Range<usize>, bytes: &[u8], totals: &mut Totals) {
        let (host, chunks) = (self.host(), chunks_of(range));
        let most = (host.store.bytes() / CHUNK as u64).min(host.store.shape().mappings);
        let limit = match self.life.get::<Limit>() {
            Limit::Low => most * 15 / 100,
            Limit::Half => most / 2,
            Limit::All => most,
        };
        let may_dirty = host.store.dirty() < limit;
        if !may_dirty || self.life.get::<Through>() == Through::Some && self.below(8) == 0 {
            return self.change(range, bytes, true);
        }
        let mut guard = host.store.begin_write_back(chunks.clone());
        let mut through = Vec::new();
        for chunk in chunks {
            let part = part_of(chunk, range, range.start);
            let start = (range.start + part.start) % CHUNK;
            let new = Bytes::copy_from_slice(&bytes[part]);
            self.run(host.store.wait_for_room());
            let mut filled = self.run(guard.fill(&host.device, chunk, start as u32, new.clone()));
            if filled == Filled::Gap {
                totals.gaps += 1;
                let Some((mut whole, _)) = self.read(chunk) else {
                    host.failed("a gap", &"it cannot be read");
                    return;
                };
                whole[start..][..new.len()].copy_from_slice(&new);
                self.run(host.store.wait_for_room());
                filled = self.run(guard.fill(&host.device, chunk, 0, whole.into()));
            }
            if !matches!(filled, Filled::Stored | Filled::Duplicate) {
                through.push(chunk);
            }
        }
        drop(guard);
        for chunk in through {
            let part = part_of(chunk, range, range.start);
            let at = range.start + part.start..range.start + part.end;
            self.change(&at, &bytes[part], true);
        }
    }

    /// A change of the volume. Its old content is clean first.
    fn change(&mut self, range: &Range<usize>, bytes: &[u8], fills: bool) {
        let (host, chunks) = (self.host(), chunks_of(range));
        while !host.hold(chunks.clone()) {
            host.release();
            self.turn();
        }
        loop {
            let dirty = host.store.dirty_among(chunks.clone());
            if dirty.is_empty() || self.medium.is_crashed() {
                break;
            }
            self.run(async {
                let copied = host.copy_out(&dirty, false).await;
                host.made_clean(copied, true, false).await
            });
        }
        if self.medium.is_crashed() {
            return;
        }
        let records = host.store.records_of(chunks.clone());
        let mut guard = loop {
            let has_room = self.run(host.store.wait_for_log(records));
            match host.store.begin_write(&host.device, chunks.clone()) {
                Some(guard) => break guard,
                None if has_room => {}
                None => return host.failed("a change", &"the log has no room"),
            }
        };
        if let Err(error) = self.run(guard.commit(&host.device)) {
            host.failed("a change", &error);
        }
        if !self.medium.is_crashed() {
            self.volume.borrow_mut().write(range.start, bytes);
            self.is_changed = true;
            for chunk in chunks.clone().filter(|_| fills) {
                let part = part_of(chunk, range, range.start);
                let start = (range.start + part.start) % CHUNK;
                let new = Bytes::copy_from_slice(&bytes[part]);
                self.run(guard.fill(&host.device, chunk, start as u32, new));
            }
        }
        drop(guard);
        let mut held = host.held.borrow_mut();
        held.retain(|chunk| !chunks.contains(chunk));
    }

    fn flush(&mut self) {
        let host = self.host();
        let persisted = self.run(host.store.persist(&host.device));
        if let Err(error) = &persisted {
            host.failed("persist", error);
        }
        if persisted.is_ok() && !self.medium.is_crashed() {
            if std::mem::take(&mut self.is_changed) {
                self.volume.borrow_mut().flush();
            }
            self.disk.stopped();
        }
    }

    /// Flushes the volume, and clears the marks of regions that were quiet before.
    fn clear(&mut self, quiet: &Quiet) {
        let host = self.host();
        self.volume.borrow_mut().flush();
        if let Err(error) = self.run(host.store.clear(&host.device, quiet)) {
            host.failed("clear", &error);
        }
    }

    /// Cleans some dirty chunks, now or while operations go on.
    fn clean_some(&mut self) {
        let (host, from) = (self.host(), self.random.below(self.chunks));
        let (from, most) = ([0, from][self.below(2)], [1, 1, 4, 4, 16, 4096][self.below(6)]);
        let mut dirty = self.run(host.store.dirty_from(from, most));
        if self.below(2) == 0 {
            dirty.retain(|_| self.random.below(2) == 0);
        }
        match self.life.get::<Steps>() {
            Steps::AtOnce => {
                self.run(host.clean(dirty, true));
            }
            Steps::Apart => {
                let spawner = host.spawner.clone();
                spawner.spawn(Box::pin(async move {
                    host.clean(dirty, true).await;
                }));
            }
        }
    }

    fn operate(&mut self, totals: &mut Totals) {
        let trims = if self.life.get::<Trims>() == Trims::Some {
            12
        } else {
            0
        };
        match self.below(100) {
            draw if draw < 15 => self.read_and_fill(),
            draw if draw < 15 + trims => {
                let range = self.range();
                let zeros = vec![0; range.len()];
                self.change(&range, &zeros, false);
                self.disk
                    .change(range.start, &zeros, !self.medium.is_crashed(), false);
            }
            _ => {
                let range = self.range();
                let bytes = self.bytes(&range);
                let version = self.version;
                chunks_of(&range).for_each(|chunk| self.written[chunk as usize] = version);
                self.write(&range, &bytes, totals);
                self.disk
                    .change(range.start, &bytes, !self.medium.is_crashed(), false);
            }
        }
    }

    /// One of so many.
    fn is_one_of(&mut self, count: usize) -> bool {
        !self.medium.is_crashed() && self.below(count) == 0
    }

    /// Operations, until the end that was drawn.
    fn live(&mut self, totals: &mut Totals) {
        let host = self.host();
        let length = match self.life.get::<Length>() {
            Length::Short => 1,
            Length::Middle => 4,
            Length::Long => 12,
        };
        let point = 1 + self.random.below(60 * length);
        let slow = match self.life.get::<Speed>() {
            Speed::Even => 0.0,
            Speed::Late => 0.2,
        };
        let crash = (self.life.get::<End>() == End::Device).then_some(CrashPoint::WriteOrAppend(point));
        self.medium.set_plan(FaultPlan {
            crash,
            slow,
            ..calm()
        });
        let one_of = |is_often| if is_often { 4 } else { 24 };
        let flushes = one_of(self.life.get::<Flushes>() == Flushes::Often);
        let seconds = one_of(self.life.get::<Clock>() == Clock::Often);
        let checkpoints = 2 * one_of(self.life.get::<Checkpoints>() == Checkpoints::Often);
        let cleans = matches!(self.life.get::<Cleaner>(), Cleaner::Subset | Cleaner::Both);
        for _ in 0..20 + self.below(50 * length as usize) {
            totals.operations += 1;
            self.operate(totals);
            if self.is_one_of(flushes) {
                self.flush();
            }
            if cleans && self.is_one_of(10) {
                self.clean_some();
            }
            if self.is_one_of(checkpoints) {
                // A checkpoint is due while somebody waits for room in the log.
                let mut wait = pin!(host.store.wait_for_log(u64::MAX));
                let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                host.kick();
            }
            if self.is_one_of(20) {
                self.quiet = Some(host.store.quiet_regions(self.random.below(2) == 0));
            }
            if self.is_one_of(20)
                && let Some(quiet) = self.quiet.take()
            {
                self.clear(&quiet);
            }
            if self.is_one_of(seconds) {
                host.now.set(host.now.get() + 1);
                host.store.tick(host.now.get());
            }
            if self.is_one_of(50) {
                self.hot = self.random.below(self.chunks);
            }
            if self.is_one_of(4) {
                host.release();
            }
            let work = || host.store.counts().reclaimed_blocks + host.store.block_counts().checkpoints;
            let before = work();
            match self.below(6) {
                0 => self.settle(),
                1..4 => self.turn(),
                _ => {}
            }
            if self.medium.is_crashed() {
                totals.crashes += 1;
                return;
            }
            if self.life.get::<End>() == End::Work && work() > before && self.is_one_of(4) {
                return;
            }
        }
    }

    fn end(&mut self, totals: &mut Totals) {
        let host = self.host();
        (self.left, self.fill, self.quiet) = (0, None, None);
        let is_stop = self.life.get::<End>() == End::Stop;
        if is_stop || self.life.get::<End>() == End::Idle && self.below(2) == 0 {
            self.settle();
            self.flush();
            host.store.check_invariants();
            if is_stop {
                let quiet = host.store.quiet_regions(true);
                self.clear(&quiet);
                let closed = self.run(host.store.close(&host.device, host.now.get(), || Ok(0)));
                closed.unwrap_or_else(|error| self.wrong(&error.to_string()));
                self.disk.stopped();
            }
            self.left = host.store.in_use().0;
        }
        totals.chunk += host.store.counts();
        totals.cleaned += host.cleaned.get();
        totals.checkpoints += host.store.block_counts().checkpoints;
        if self.life.get::<Power>() == Power::Cut && !is_stop {
            self.left = 0;
        }
        self.die(totals);
    }

    /// The process dies, and perhaps the power is cut.
    fn die(&mut self, totals: &mut Totals) {
        match self.life.get::<Power>() {
            Power::On => self.medium.crash(),
            Power::Cut => {
                self.medium.cut_power();
                self.volume.borrow_mut().cut_power(&mut self.random);
                self.boot += 1;
                totals.power_cuts += 1;
            }
        }
        (self.host, self.executor) = (None, Executor::new());
    }

    fn open(&mut self) -> Result<(), String> {
        self.volume.borrow_mut().flush();
        self.is_changed = false;
        let device = FaultyDevice::new(Arc::clone(&self.medium));
        let keeps: Arc<dyn BudgetOwner> = Arc::new(Keeps(self.life.get::<Keep>() == Keep::All));
        let (options, executor) = (self.options(), Executor::new());
        let opened = executor.block_on(ChunkStore::open(&device, &options, Some(keeps)), || {
            device.turn(true).map(drop)
        });
        let opened = opened.map_err(|error: io::Error| error.to_string())?;
        let (store, found) = opened.map_err(|error| error.to_string())?;
        if self.is_formatted && found != Found::Cache && self.life.get::<Damage>() == Damage::None {
            self.wrong("a start forgets the cache");
        }
        self.is_formatted = true;
        self.host = Some(Rc::new(Host {
            store,
            device,
            volume: Rc::clone(&self.volume),
            spawner: executor.spawner(),
            held: RefCell::default(),
            paused: RefCell::default(),
            random: RefCell::new(Random(self.random.next_u64())),
            life: self.life.clone(),
            now: Cell::new(options.now),
            cleaned: Cell::new(0),
            what: self.what.clone(),
        }));
        self.executor = executor;
        Ok(())
    }

    fn revive(&self) {
        self.medium.restart();
        self.medium.set_plan(calm());
    }

    /// A start that may be killed before it ends, once or more; whether it has succeeded then.
    fn start(&mut self, newest: Option<u32>, totals: &mut Totals) -> bool {
        self.revive();
        let damage = self.life.get::<Damage>();
        if damage != Damage::None {
            self.rot(newest.filter(|_| damage == Damage::Newest));
            (self.left, totals.damaged_starts) = (0, totals.damaged_starts + 1);
        }
        if self.life.get::<Begin>() == Begin::Killed {
            for _ in 0..1 + self.below(3) {
                let crash = Some(CrashPoint::WriteOrAppend(1 + self.random.below(24)));
                self.medium.set_plan(FaultPlan { crash, ..calm() });
                let _ = self.open();
                totals.killed_starts += u64::from(self.medium.is_crashed());
                self.die(totals);
                if self.life.get::<Power>() == Power::Cut {
                    self.left = 0;
                }
                self.revive();
            }
        }
        if let Err(error) = self.open() {
            if damage == Damage::None {
                self.wrong(&error);
            }
            totals.refused_starts += 1;
            return false;
        }
        totals.dirty_starts += u64::from(self.host().store.dirty() > 0);
        true
    }

    /// Flips single bits of a block, or of the device. Two in one content would be as a torn write.
    fn rot(&mut self, block: Option<u32>) {
        let (capacity, bytes) = (self.medium.capacity(), self.options().block_bytes);
        let geometry = Geometry::plan(capacity, bytes).expect("it was formatted");
        let range = block.map_or(0..capacity, |block| {
            let start = geometry.block_offset(block);
            start..start + bytes
        });
        let mut rotten: Vec<u64> = Vec::new();
        for _ in 0..1 + self.below(8) {
            let offset = range.start + self.random.below(range.end - range.start);
            if rotten
                .iter()
                .all(|other| other.abs_diff(offset) > 2 * CHUNK as u64)
            {
                self.medium.rot_at(offset);
                rotten.push(offset);
            }
        }
    }

    /// All chunks, twice: evictions show nothing else.
    fn read_all(&mut self, totals: &mut Totals) {
        let is_damaged = self.life.get::<Damage>() != Damage::None;
        let mut hits = 0;
        for is_first in [true, false] {
            for address in 0..self.chunks {
                let Some((bytes, is_hit)) = self.read(address) else {
                    if !is_damaged {
                        self.wrong(&format!("chunk {address} cannot be read"));
                    }
                    totals.unreadable += 1;
                    continue;
                };
                if is_first || is_damaged {
                    let found = self.disk.found(address as usize * CHUNK, &bytes);
                    found.unwrap_or_else(|what| self.wrong(&format!("chunk {address}, {what}")));
                } else {
                    self.compare(address, &bytes);
                }
                hits += u64::from(is_first && is_hit);
            }
        }
        if self.left > 0 {
            totals.left += self.left;
            totals.hits += hits;
        }
        self.host().store.check_invariants();
    }

    /// The volume alone has everything.
    fn drain(&mut self) {
        let host = self.host();
        while host.store.dirty() > 0 {
            let dirty = self.run(host.store.dirty_from(0, 64));
            if self.run(host.clean(dirty, true)) == 0 {
                self.wrong("nothing can be cleaned");
            }
        }
        for address in 0..self.chunks {
            let bytes = self.volume.borrow().chunk(address);
            self.compare(address, &bytes);
        }
    }
}

/// The chunks of a range of bytes.
fn chunks_of(range: &Range<usize>) -> Range<u64> {
    (range.start / CHUNK) as u64..range.end.div_ceil(CHUNK) as u64
}

/// The bytes of a range that are in a chunk, from `origin` on.
fn part_of(chunk: u64, range: &Range<usize>, origin: usize) -> Range<usize> {
    let first = chunk as usize * CHUNK;
    range.start.max(first) - origin..range.end.min(first + CHUNK) - origin
}

/// All lives of a seed.
fn run(seed: u64, totals: &mut Totals, pairs: &mut Pairs) {
    let (mut run, mut newest) = (Run::new(seed), None);
    for life in 0..LIVES {
        run.what = format!("seed {seed}, life {life}");
        if life > 0 {
            run.life = Life::draw(DIMENSIONS, &mut run.random, Some((&run.life, KEPT)));
        }
        pairs.count(&run.life);
        totals.lives += 1;
        if !run.start(newest, totals) {
            return;
        }
        run.read_all(totals);
        if run.life.get::<Damage>() != Damage::None {
            return;
        }
        if run.below(3) == 0 {
            run.drain();
            totals.drains += 1;
        }
        run.live(totals);
        let store = &run.host().store;
        let places = (0..run.chunks).filter_map(|chunk| Some((chunk, store.place(chunk)?)));
        newest = places
            .max_by_key(|(chunk, _)| run.written[*chunk as usize])
            .map(|(_, place)| place.block);
        run.end(totals);
    }
    run.what = format!("seed {seed}, the end");
    run.life.set(Damage::None);
    assert!(run.start(None, totals));
    run.read_all(totals);
    run.drain();
}

#[test]
fn what_was_persisted_is_read_whatever_is_drawn() {
    let (began, mut totals, mut pairs) = (Instant::now(), Totals::default(), Pairs::new(DIMENSIONS));
    let (mut count, mut last) = (0, 0);
    for seed in seeds(SEEDS) {
        run(seed, &mut totals, &mut pairs);
        (count, last) = (count + 1, seed);
    }
    let (table, least) = pairs.report();
    println!("{table}");
    println!(
        "{count} seeds to {last} in {:.0} s, each pair of values was drawn {least} times or more: {totals:?}",
        began.elapsed().as_secs_f64(),
    );
    let (chunk, least) = (&totals.chunk, count / 2);
    assert!(
        totals.crashes > least && totals.dirty_starts > least,
        "{totals:?}"
    );
    assert!(totals.cleaned > count && totals.gaps > count / 10, "{totals:?}");
    assert!(
        chunk.reclaimed_blocks > count && chunk.duplicates > 10 * count,
        "{chunk:?}"
    );
    assert!(totals.hits * 100 >= totals.left * 99, "{totals:?}");
}
