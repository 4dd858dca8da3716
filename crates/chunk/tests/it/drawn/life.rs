//! A life: its start, its operations, its end, and what must be read then.

use super::host::{Host, Keeps, Volume};
use super::{
    Begin, CHUNK, Checkpoints, Cleaner, Clock, DIMENSIONS, Damage, End, Flushes, Index, Keep, Length, Power,
    Room, Run, Size, Speed, Totals,
};
use pumice_blocks::{Durability, Geometry, give_turn};
use pumice_chunk::store::{BudgetOwner, ChunkStore, Found, Options};
use pumice_device::Device;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_testkit::{Disk, Life, volatile};
use pumice_world::{Executor, Random};
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

impl Run {
    pub(super) fn new(seed: u64) -> Self {
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
            medium: Arc::new(FaultyMedium::new(bytes, seed, volatile())),
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

    pub(super) fn options(&self) -> Options {
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

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    pub(super) fn host(&self) -> Rc<Host> {
        Rc::clone(self.host.as_ref().expect("it runs"))
    }

    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let (host, mut idle) = (self.host(), 0);
        let ended = self.executor.block_on(future, || host.park(&mut idle));
        ended.unwrap_or_else(|error| self.wrong(&error.to_string()))
    }

    /// Lets background work go on.
    pub(super) fn turn(&self) {
        let host = self.host();
        host.kick();
        host.device.turn(true).expect("no turn of this device fails");
        self.run(give_turn());
    }

    /// Runs background work to its end.
    pub(super) fn settle(&self) {
        let host = self.host();
        while !self.medium.is_crashed() && host.store.has_work() {
            host.kick();
            let mut idle = 0;
            let ended = self.executor.run_until_idle(|| host.park(&mut idle));
            ended.unwrap_or_else(|error| host.failed("background work", &error));
        }
    }

    pub(super) fn wrong(&self, what: &str) -> ! {
        panic!("{}: {what}; {}", self.what, self.life.describe())
    }

    /// Operations, until the end that was drawn.
    pub(super) fn live(&mut self, totals: &mut Totals) {
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
            ..volatile()
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
                self.quiet = Some(host.store.addresses().quiet_regions(self.random.below(2) == 0));
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

    pub(super) fn end(&mut self, totals: &mut Totals) {
        let host = self.host();
        (self.left, self.fill, self.quiet) = (0, None, None);
        let is_stop = self.life.get::<End>() == End::Stop;
        if is_stop || self.life.get::<End>() == End::Idle && self.below(2) == 0 {
            self.settle();
            self.flush();
            host.store.check_invariants();
            if is_stop {
                let quiet = host.store.addresses().quiet_regions(true);
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
    pub(super) fn die(&mut self, totals: &mut Totals) {
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

    pub(super) fn open(&mut self) -> Result<(), String> {
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

    pub(super) fn revive(&self) {
        self.medium.restart();
        self.medium.set_plan(volatile());
    }

    /// A start that may be killed before it ends, once or more; whether it has succeeded then.
    pub(super) fn start(&mut self, newest: Option<u32>, totals: &mut Totals) -> bool {
        self.revive();
        let damage = self.life.get::<Damage>();
        if damage != Damage::None {
            self.rot(newest.filter(|_| damage == Damage::Newest));
            (self.left, totals.damaged_starts) = (0, totals.damaged_starts + 1);
        }
        if self.life.get::<Begin>() == Begin::Killed {
            for _ in 0..1 + self.below(3) {
                let crash = Some(CrashPoint::WriteOrAppend(1 + self.random.below(24)));
                self.medium.set_plan(FaultPlan { crash, ..volatile() });
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
    pub(super) fn rot(&mut self, block: Option<u32>) {
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
    pub(super) fn read_all(&mut self, totals: &mut Totals) {
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
    pub(super) fn drain(&mut self) {
        let host = self.host();
        let mut is_settled = false;
        while host.store.dirty() > 0 {
            let dirty = self.run(host.store.addresses().dirty_from(0, 64));
            if self.run(host.clean(dirty, true)) > 0 {
                is_settled = false;
            } else if is_settled {
                self.wrong("nothing can be cleaned");
            } else {
                // A reclaim may be cleaning what is left.
                self.settle();
                is_settled = true;
            }
        }
        for address in 0..self.chunks {
            let bytes = self.volume.borrow().chunk(address);
            self.compare(address, &bytes);
        }
    }
}
