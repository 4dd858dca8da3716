//! Lives of a volume in write-back. Every dimension that a user has is drawn, each with every other: contents and their duplicates, parts, trims,
//! flushes, cleaning, reclaims, the end of a life and the start after it, power cuts, damage. A client reads what was flushed, or something newer.
//!
//! `./check --full test` runs it for an hour; `pumice_testkit::draw_lives` says how to choose seeds.

use crate::backing::{Faults, FaultyBacking};
use crate::rig::{CHUNK, Rig, SIZE, settings, volatile};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use pumice_blocks::give_turn;
use pumice_chunk::store::ChunkCounts;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyMedium};
use pumice_testkit::{Disk, Life, Pairs, SECTOR, dimensions, draw_lives};
use pumice_volume::{Mode as VolumeMode, Settings, VolumeError};
use pumice_world::Random;
use std::ops::Range;
use std::sync::Arc;

/// Seeds that each run of the tests has.
const SEEDS: u64 = 240;
/// Lives of a seed.
const LIVES: usize = 4;
/// Zones of the volume: requests at once are in different ones.
const ZONES: usize = 12;
/// Seconds that no life has.
const NEVER: u32 = 1_000_000;

// A seed keeps the first two: the device is formatted with them.
dimensions! {
    Room "cache": Tiny "1 MiB, of 1 MiB" 1, Small "3 MiB, of 5 MiB" 2, Large "8 MiB, of 1 MiB" 1;
    Index "index": Narrow "a slot for some chunks" 1, Wide "a slot for each" 1;
    Limit "dirty limit": Low "15 %" 1, Half "50 %" 1, All "100 %" 2;
    Share "duplicates": None "none" 1, Half "half" 3, Most "most" 1;
    Pool "pool": Few "4 contents" 1, Some "24" 1, Many "64" 2;
    Kind "contents": Random "random" 1, Compressible "compressible" 1, Mixed "mixed" 1;
    Parts "parts": Whole "whole chunks" 1, Some "parts, too" 1;
    Zeros "zeros": None "none" 2, Trims "trims" 1, Both "trims and zeros" 1;
    Flushes "flushes": Rare "rare" 1, Often "often" 1;
    Fua "FUA": None "none" 1, Some "some" 1;
    Cleaner "cleaner": Idle "when a reclaim needs it" 1, Prompt "each second" 1;
    Clock "seconds": Rare "few" 1, Often "many" 1;
    Depth "requests at once": One "1" 1, Twelve "12" 2;
    Length "length": Short "short" 1, Middle "middle" 1, Long "long" 1;
    Speed "cache device": Even "even" 1, Late "some writes are late" 1;
    Mode "mode": Back "write-back" 4, Through "write-through" 1;
    End "end": Cache "at a write or append of the cache" 6, Backing "at a write of the backing device" 2, Idle "between requests" 2, Stop "a clean stop" 1;
    Power "power": On "on" 2, Cut "cut" 1;
    Begin "start": Whole "whole" 3, Killed "killed once or more" 1;
    Damage "damage": None "none" 11, Bits "bits of the cache" 1;
}

/// Dimensions that a seed keeps.
const KEPT: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Change {
    Write { is_durable: bool },
    Zero { may_punch: bool },
}

/// A request to whole sectors.
struct Request {
    range: Range<usize>,
    /// `None`: a read.
    change: Option<(Change, Vec<u8>)>,
}

#[derive(Debug, Default)]
struct Totals {
    lives: u64,
    requests: u64,
    /// Ends among requests, at drawn points.
    crashes: u64,
    power_cuts: u64,
    /// Starts that were killed.
    killed_starts: u64,
    /// Starts that found dirty chunks.
    dirty_starts: u64,
    /// Starts on damaged devices, and those of them that were refused.
    damaged_starts: u64,
    refused_starts: u64,
    /// Reads of damaged devices that failed.
    unreadable: u64,
    /// Mappings when lives ended between requests, and hits of the starts after them.
    left: u64,
    hits: u64,
    drains: u64,
    chunk: ChunkCounts,
    cleaned: u64,
}

struct Run {
    /// Bytes of the volume.
    size: usize,
    rig: Option<Rig>,
    medium: Arc<FaultyMedium>,
    backing: FaultyBacking,
    disk: Disk,
    life: Life,
    random: Random,
    boot: u64,
    version: u64,
    what: String,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1);
        let mut life = Life::draw(DIMENSIONS, &mut random, None);
        life.set(Damage::None);
        life.set(Begin::Whole);
        let (bytes, size) = match life.get::<Room>() {
            Room::Tiny => (1 << 20, SIZE),
            Room::Small => (3 << 20, 4 * SIZE),
            Room::Large => (8 << 20, SIZE),
        };
        Self {
            size,
            rig: None,
            medium: Arc::new(FaultyMedium::new(bytes, seed, volatile())),
            backing: FaultyBacking::new(size, seed),
            disk: Disk::new(size),
            life,
            random,
            boot: 1,
            version: 0,
            what: format!("seed {seed}"),
        }
    }

    fn settings(&self) -> Settings {
        let life = &self.life;
        let mut settings = settings(
            match life.get::<Mode>() {
                Mode::Back => VolumeMode::WriteBack,
                Mode::Through => VolumeMode::WriteThrough,
            },
            self.boot,
        );
        (settings.cache.mappings, settings.cache.contents) = match (life.get::<Index>(), life.get::<Room>()) {
            (Index::Narrow, Room::Small) => (512, 1_000),
            (Index::Narrow, _) => (128, 400),
            (Index::Wide, _) => (1_500, 3_000),
        };
        settings.write_back.dirty_max = match life.get::<Limit>() {
            Limit::Low => 0.15,
            Limit::Half => 0.5,
            Limit::All => 1.0,
        };
        settings.write_back.age_secs = match life.get::<Cleaner>() {
            Cleaner::Idle => NEVER,
            Cleaner::Prompt => 1,
        };
        settings
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().expect("it runs")
    }

    fn is_crashed(&self) -> bool {
        self.medium.is_crashed() || self.backing.is_crashed()
    }

    /// A content of a chunk: `shared` is its number among the contents that many chunks have.
    fn content(&mut self, shared: Option<u64>) -> Vec<u8> {
        self.version += 1;
        let number = shared.unwrap_or(self.version + 1_000);
        let is_random = match self.life.get::<Kind>() {
            Kind::Random => true,
            Kind::Compressible => false,
            Kind::Mixed => number.is_multiple_of(2),
        };
        pumice_testkit::content(number, is_random, CHUNK)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn request(&mut self, zone: usize) -> Request {
        let zone_chunks = self.size / CHUNK / ZONES;
        let first = zone * zone_chunks;
        // A hot part is written often.
        let at = match self.below(2) {
            0 => self.below(3),
            _ => self.below(zone_chunks),
        };
        let chunks = [1, 1, 1, 2, 4, 12][self.below(6)].min(zone_chunks - at);
        let mut range = (first + at) * CHUNK..(first + at + chunks) * CHUNK;
        if self.life.get::<Parts>() == Parts::Some && self.below(2) == 0 {
            range.start += self.below(CHUNK / SECTOR) * SECTOR;
            range.end -= self.below((range.end - range.start) / SECTOR) * SECTOR;
        }
        let zeros = match self.life.get::<Zeros>() {
            Zeros::None => 0,
            _ => 12,
        };
        let change = match self.below(100) {
            draw if draw < 15 => None,
            draw if draw < 15 + zeros => {
                let may_punch = self.life.get::<Zeros>() == Zeros::Trims || self.below(2) == 0;
                Some((Change::Zero { may_punch }, vec![0; range.len()]))
            }
            _ => {
                let is_durable = self.life.get::<Fua>() == Fua::Some && self.below(8) == 0;
                Some((Change::Write { is_durable }, self.bytes(&range)))
            }
        };
        Request { range, change }
    }

    /// Bytes for a range: of contents that many chunks have, or of contents of its own.
    fn bytes(&mut self, range: &Range<usize>) -> Vec<u8> {
        let shared = match self.life.get::<Share>() {
            Share::None => 0,
            Share::Half => 50,
            Share::Most => 90,
        };
        let pool = match self.life.get::<Pool>() {
            Pool::Few => 4,
            Pool::Some => 24,
            Pool::Many => 64,
        };
        let is_shared = self.below(100) < shared;
        let mut bytes = Vec::new();
        for chunk in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            let number = is_shared.then(|| self.random.below(pool));
            let content = self.content(number);
            let part = range.start.max(chunk * CHUNK)..range.end.min((chunk + 1) * CHUNK);
            bytes.extend_from_slice(&content[part.start - chunk * CHUNK..part.end - chunk * CHUNK]);
        }
        bytes
    }

    /// Requests at once, and perhaps a FLUSH among them.
    fn round(&mut self, totals: &mut Totals) {
        let zones: Vec<usize> = match self.life.get::<Depth>() {
            Depth::One => vec![self.below(ZONES)],
            Depth::Twelve => (0..ZONES).collect(),
        };
        let requests: Vec<Request> = zones.into_iter().map(|zone| self.request(zone)).collect();
        let one_of = match self.life.get::<Flushes>() {
            Flushes::Rare => 16,
            Flushes::Often => 3,
        };
        let does_flush = self.below(one_of) == 0;
        let turns = self.below(30);
        let before = does_flush.then(|| self.disk.clone());
        totals.requests += requests.len() as u64;
        let (answers, is_flushed) = {
            let rig = self.rig();
            let all = join_all(requests.iter().map(|request| async {
                let (volume, offset) = (&rig.volume, request.range.start as u64);
                let len = request.range.len();
                match &request.change {
                    None => volume.read(offset, len).await.map(Some),
                    Some((Change::Write { is_durable }, bytes)) => {
                        let data = Bytes::copy_from_slice(bytes);
                        volume.write(offset, data, *is_durable).await.map(|()| None)
                    }
                    Some((Change::Zero { may_punch }, _)) => {
                        let zero = volume.zero(offset, len as u64, *may_punch);
                        zero.await.map(|()| None)
                    }
                }
            }));
            let flush = async {
                for _ in 0..turns {
                    give_turn().await;
                }
                match does_flush {
                    true => rig.volume.flush().await.map(|()| true),
                    false => Ok(false),
                }
            };
            rig.run(join(all, flush))
        };
        match is_flushed {
            Ok(true) => self.disk.flushed(&before.expect("it was asked for")),
            Ok(false) => {}
            Err(error) => self.failed("FLUSH", &error),
        }
        for (request, answer) in requests.into_iter().zip(answers) {
            let offset = request.range.start;
            let error = answer.as_ref().err();
            if let Some(error) = error {
                self.failed(
                    &format!("{:?}", request.change.as_ref().map(|(change, _)| change)),
                    error,
                );
            }
            match (request.change, answer) {
                (Some((change, bytes)), answer) => {
                    let is_durable = matches!(change, Change::Write { is_durable: true });
                    self.disk.change(offset, &bytes, answer.is_ok(), is_durable);
                }
                (None, Ok(Some(bytes))) => {
                    let read = self.disk.read(offset, &bytes);
                    read.unwrap_or_else(|what| self.wrong(&what));
                }
                (None, _) => {}
            }
        }
    }

    /// On healthy devices no request fails.
    fn failed(&self, what: &str, error: &VolumeError) {
        assert!(
            self.is_crashed(),
            "{}: {what}: {error}; {}",
            self.what,
            self.life.describe()
        );
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{}: {what}; {}", self.what, self.life.describe())
    }

    /// Requests, until the end that was drawn.
    fn live(&mut self, totals: &mut Totals) {
        let length = match self.life.get::<Length>() {
            Length::Short => 1,
            Length::Middle => 4,
            Length::Long => 16,
        };
        let point = 1 + self.random.below(100 * length);
        let slow = match self.life.get::<Speed>() {
            Speed::Even => 0.0,
            Speed::Late => 0.2,
        };
        let crash = (self.life.get::<End>() == End::Cache).then_some(CrashPoint::WriteOrAppend(point));
        self.medium.set_plan(FaultPlan {
            crash,
            slow,
            ..volatile()
        });
        self.backing.set(Faults {
            crash_at: (self.life.get::<End>() == End::Backing).then_some(1 + point / 4),
            ..Faults::default()
        });
        let rounds = match self.life.get::<Depth>() {
            Depth::One => 20 + self.below(60 * length as usize),
            Depth::Twelve => 5 + self.below(8 * length as usize),
        };
        let one_of = match self.life.get::<Clock>() {
            Clock::Rare => 24,
            Clock::Often => 3,
        };
        for _ in 0..rounds {
            self.round(totals);
            if self.is_crashed() {
                totals.crashes += 1;
                return;
            }
            match self.below(8) {
                0 => self.rig().settle(),
                1..4 => self.rig().run(give_turn()),
                _ => {}
            }
            if self.below(one_of) == 0 {
                self.rig().tick();
            }
            if self.is_crashed() {
                totals.crashes += 1;
                return;
            }
        }
        let counts = self.rig().volume.shared().counts();
        assert_eq!(
            counts.clean_failures,
            0,
            "{}: {}",
            self.what,
            self.life.describe()
        );
    }

    fn end(&mut self, totals: &mut Totals) {
        let is_crashed = self.is_crashed();
        let rig = self.rig.take().expect("it runs");
        let store = rig.volume.shared().store().expect("it has a cache");
        totals.chunk += store.counts();
        totals.cleaned += rig.volume.shared().counts().cleaned_chunks;
        if !is_crashed {
            rig.settle();
            rig.check_books();
            totals.left += store.in_use().0;
        }
        if !is_crashed && self.life.get::<End>() == End::Stop {
            if self.below(2) == 0 {
                rig.run(rig.volume.drain())
                    .unwrap_or_else(|error| self.wrong(&error.to_string()));
            }
            rig.run(rig.volume.close())
                .unwrap_or_else(|error| self.wrong(&error.to_string()));
            self.disk.stopped();
        }
        self.die(totals);
        drop(rig);
    }

    /// The process dies, and perhaps the power is cut.
    fn die(&mut self, totals: &mut Totals) {
        match self.life.get::<Power>() {
            Power::On => {
                self.medium.crash();
                self.backing.crash();
            }
            Power::Cut => {
                self.medium.cut_power();
                self.backing.cut_power();
                self.boot += 1;
                totals.power_cuts += 1;
            }
        }
    }

    fn revive(&self) {
        self.medium.restart();
        self.medium.set_plan(volatile());
        self.backing.restart();
    }

    /// A start that may be killed before it ends, once or more; whether the volume is served then.
    fn start(&mut self, totals: &mut Totals) -> bool {
        self.revive();
        let is_damaged = self.life.get::<Damage>() == Damage::Bits;
        if is_damaged {
            // Apart from each other: two wrong bits of one content are not told from a torn write.
            let places = 1 + self.random.below(8);
            let room = self.medium.capacity() / places;
            for place in 0..places {
                let offset = place * room + self.random.below(room - 3 * CHUNK as u64);
                self.medium.rot_at(offset);
            }
            totals.damaged_starts += 1;
        }
        if self.life.get::<Begin>() == Begin::Killed {
            for _ in 0..1 + self.below(3) {
                let crash = Some(CrashPoint::WriteOrAppend(1 + self.random.below(24)));
                self.medium.set_plan(FaultPlan { crash, ..volatile() });
                let opened = Rig::open(&self.settings(), &self.medium, &self.backing);
                totals.killed_starts += u32::from(self.medium.is_crashed()) as u64;
                drop(opened);
                self.die(totals);
                self.revive();
            }
        }
        match Rig::open(&self.settings(), &self.medium, &self.backing) {
            Ok(rig) => self.rig = Some(rig),
            Err(error) => {
                assert!(is_damaged, "{}: {error}; {}", self.what, self.life.describe());
                totals.refused_starts += 1;
                return false;
            }
        }
        totals.dirty_starts += u64::from(self.rig().volume.dirty().0 > 0);
        true
    }

    /// All of the volume, twice: evictions show nothing else.
    fn read_all(&mut self, totals: &mut Totals) {
        let is_damaged = self.life.get::<Damage>() == Damage::Bits;
        for is_first in [true, false] {
            for at in (0..self.size).step_by(CHUNK) {
                let range = at..(at + CHUNK).min(self.size);
                let read = self.rig().run(self.rig().volume.read(at as u64, range.len()));
                match read {
                    Ok(bytes) => {
                        let found = match is_first || is_damaged {
                            true => self.disk.found(at, &bytes),
                            false => self.disk.read(at, &bytes),
                        };
                        found.unwrap_or_else(|what| self.wrong(&format!("chunk {}, {what}", at / CHUNK)));
                    }
                    Err(error) => {
                        assert!(is_damaged, "{}: chunk {}: {error}", self.what, at / CHUNK);
                        totals.unreadable += 1;
                    }
                }
            }
            if is_first {
                totals.hits += self.rig().volume.shared().counts().read_hits;
            }
        }
        self.rig().check_books();
    }

    /// The backing device alone has everything.
    fn drain(&mut self) {
        let rig = self.rig();
        let drained = rig.run(rig.volume.drain());
        drained.unwrap_or_else(|error| self.wrong(&error.to_string()));
        assert_eq!(self.rig().volume.dirty().0, 0, "{}", self.what);
        let bytes = self.backing.bytes();
        let read = self.disk.read(0, &bytes);
        read.unwrap_or_else(|what| self.wrong(&format!("drained: {what}")));
    }
}

/// All lives of a seed.
fn run(seed: u64, totals: &mut Totals, pairs: &mut Pairs) {
    let mut run = Run::new(seed);
    for life in 0..LIVES {
        run.what = format!("seed {seed}, life {life}");
        if life > 0 {
            run.life = Life::draw(DIMENSIONS, &mut run.random, Some((&run.life, KEPT)));
        }
        pairs.count(&run.life);
        totals.lives += 1;
        if !run.start(totals) {
            return;
        }
        run.read_all(totals);
        if run.life.get::<Damage>() == Damage::Bits {
            return;
        }
        if run.below(3) == 0 {
            run.drain();
            totals.drains += 1;
        }
        run.live(totals);
        run.end(totals);
    }
    run.what = format!("seed {seed}, the end");
    run.life.set(Damage::None);
    assert!(run.start(totals));
    run.read_all(totals);
    run.drain();
}

#[test]
fn what_was_flushed_is_read_whatever_is_drawn() {
    let mut totals = Totals::default();
    let count = draw_lives(SEEDS, DIMENSIONS, |seed, pairs| run(seed, &mut totals, pairs));
    println!("{totals:?}");
    let chunk = &totals.chunk;
    assert!(
        totals.crashes > count / 2 && totals.dirty_starts > count / 2,
        "{totals:?}"
    );
    assert!(
        chunk.reclaimed_blocks > count && chunk.duplicates > 10 * count,
        "{chunk:?}"
    );
    assert!(totals.hits > 20 * count, "{totals:?}");
}
