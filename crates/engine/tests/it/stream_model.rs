//! Writers, readers, ranges, followers and replaced heads against a plain map: without a crash, and with one at writes and log appends.

use crate::common::{KINDS, Random, Rig, key, of_kind};
use pumice::{CacheOptions, Follower, Meta, NewObject, ObjectWriter, Outcome};
use pumice_device::{AlignedBuf, Payload};
use pumice_testkit::{CrashPoint, FaultPlan, FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

const KEYS: u64 = 6;

/// What a key holds.
#[derive(Clone, PartialEq, Eq)]
struct Held {
    value: Vec<u8>,
    head: Vec<u8>,
    flags: u32,
}

/// An object that is being written.
struct Writing {
    n: u64,
    writer: ObjectWriter<FaultyDevice>,
    held: Held,
    appended: usize,
    follower: Option<(Follower<FaultyDevice>, usize)>,
}

/// What a key held when that was on flash; since then its head alone was replaced, once at most.
struct Written {
    held: Held,
    /// Whether all is there after a crash: nothing was evicted before.
    is_whole: bool,
}

struct Model {
    live: HashMap<u64, Held>,
    /// What a crash could have left under the last step's key before it.
    before: Option<(u64, Vec<Held>)>,
    /// A crash may leave this instead of what keys hold.
    written: HashMap<u64, Written>,
    writing: Vec<Writing>,
    hits: u64,
    misses: u64,
}

fn bytes(random: &mut Random, len: u64) -> Vec<u8> {
    let salt = random.next_u64() as u32;
    let words = (0..).flat_map(|n: u32| (n.wrapping_mul(2_654_435_761) ^ salt).to_le_bytes());
    words.take(len as usize).collect()
}

fn flat(parts: &pumice::Pieces<AlignedBuf>) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts.parts() {
        let Payload::Bytes(part) = part else {
            panic!("real bytes")
        };
        out.extend_from_slice(part);
    }
    assert_eq!(out.len(), parts.len());
    out
}

impl Model {
    fn new() -> Self {
        Self {
            live: HashMap::new(),
            before: None,
            written: HashMap::new(),
            writing: Vec::new(),
            hits: 0,
            misses: 0,
        }
    }

    /// Whether an object is one that its key may hold.
    fn is_legal(&self, n: u64, held: &Held) -> bool {
        let before = self.before.as_ref().filter(|(other, _)| *other == n);
        self.live.get(&n) == Some(held)
            || before.is_some_and(|(_, before)| before.contains(held))
            || self.written.get(&n).is_some_and(|written| written.held == *held)
    }

    fn replaced(&mut self, n: u64) {
        let written = self.written.remove(&n).map(|written| written.held);
        self.before = Some((n, written.into_iter().chain(self.live.remove(&n)).collect()));
    }

    fn step(&mut self, rig: &Rig<FaultyDevice>, random: &mut Random, must_hit: bool) {
        let (n, cx, cache) = (random.below(KEYS), &rig.cx, &rig.cache);
        let name = key(n);
        match random.below(20) {
            0..3 if self.writing.len() < 3 => {
                let len = match random.below(4) {
                    0 => random.below(3_000),
                    1 => random.below(30_000),
                    _ => random.below(200_000),
                };
                let head = [0, 0, 30, 2_000][random.below(4) as usize];
                let held = Held {
                    value: bytes(random, len),
                    head: bytes(random, head),
                    flags: random.next_u64() as u32,
                };
                let new = NewObject {
                    meta: Meta {
                        flags: held.flags,
                        ..Meta::default()
                    },
                    len: (random.below(2) == 0).then_some(len),
                    head: &held.head,
                    never_on_flash: random.below(8) == 0 && !must_hit,
                };
                let writer = cache.begin(cx, &name, new).expect("not too long");
                let follower = (random.below(2) == 0).then(|| (writer.follow().reader(cache, cx, 0), 0));
                self.writing.push(Writing {
                    n,
                    writer,
                    held,
                    appended: 0,
                    follower,
                });
            }
            0..8 if !self.writing.is_empty() => self.append(rig, random),
            8..11 if !self.writing.is_empty() => self.finish(rig, random),
            11 if !self.writing.is_empty() => {
                let at = random.below(self.writing.len() as u64) as usize;
                self.writing.swap_remove(at);
            }
            12 => {
                let seen = rig.run(cache.get_head(cx, &name));
                let Some(seen) = seen else {
                    assert!(!must_hit || !self.live.contains_key(&n), "key {n}");
                    return;
                };
                let mut held = self.live.get(&n).cloned().expect("what is there was stored");
                assert!(held.head == seen.head(), "key {n}");
                let head_len = [0, 40, 3_000][random.below(3) as usize];
                let before = held.clone();
                self.note_written(rig, n);
                let written = self.written.remove(&n).filter(|written| written.held == held);
                self.replaced(n);
                // Of two that come before the first of them is written nothing is kept.
                self.written.extend(written.map(|written| (n, written)));
                held.head = bytes(random, head_len);
                held.flags = random.next_u64() as u32;
                let meta = Meta {
                    flags: held.flags,
                    ..seen.meta()
                };
                match rig.run(cache.replace_head(cx, seen, &held.head, meta)) {
                    Outcome::Stored { .. } => drop(self.live.insert(n, held)),
                    Outcome::Rejected(_) => {
                        // It may have stayed as it was.
                        self.live.insert(n, before);
                    }
                    outcome => panic!("{outcome:?}"),
                }
            }
            13 => {
                self.replaced(n);
                rig.run(cache.delete(cx, &name));
            }
            14 => {
                self.replaced(n);
                let value = bytes(random, 500);
                if rig.set(&name, &value) {
                    let held = Held {
                        value,
                        head: Vec::new(),
                        flags: 0,
                    };
                    self.live.insert(n, held);
                }
            }
            15 | 16 => {
                // What has been in a buffer for long is written.
                rig.clock.advance_secs(4);
                cache.tick(cx);
                rig.settle();
                (0..KEYS).for_each(|n| self.note_written(rig, n));
            }
            _ => self.read(rig, random, n, must_hit),
        }
    }

    /// What is on flash now, from its head to its slices, is there after a crash.
    fn note_written(&mut self, rig: &Rig<FaultyDevice>, n: u64) {
        let Some(held) = self.live.get(&n).filter(|_| is_written(rig, &key(n))) else {
            return;
        };
        let flash = rig.cache.stats().flash;
        let written = Written {
            held: held.clone(),
            is_whole: flash.reclaimed_blocks + flash.dropped_no_block == 0,
        };
        self.written.insert(n, written);
    }

    fn append(&mut self, rig: &Rig<FaultyDevice>, random: &mut Random) {
        let at = random.below(self.writing.len() as u64) as usize;
        let writing = &mut self.writing[at];
        let left = &writing.held.value[writing.appended..];
        let now = &left[..left.len().min(random.below(60_000) as usize)];
        if rig.run(writing.writer.append(now)).is_err() {
            self.writing.swap_remove(at);
            return;
        }
        writing.appended += now.len();
        if let Some((follower, read)) = &mut writing.follower
            && *read < writing.appended
        {
            match rig.run(follower.read()) {
                Ok(pieces) => {
                    let got = flat(&pieces.expect("it is not finished"));
                    assert!(writing.held.value[*read..].starts_with(&got));
                    *read += got.len();
                }
                // What has left the writer may have been evicted.
                Err(_) => writing.follower = None,
            }
        }
    }

    fn finish(&mut self, rig: &Rig<FaultyDevice>, random: &mut Random) {
        let at = random.below(self.writing.len() as u64) as usize;
        let Writing {
            n,
            mut writer,
            held,
            appended,
            ..
        } = self.writing.swap_remove(at);
        if rig.run(writer.append(&held.value[appended..])).is_err() {
            return;
        }
        let mut is_wanted = true;
        let before = self.live.get(&n).cloned();
        let stored = if random.below(3) == 0 {
            let wants = random.below(2) == 0;
            let outcome = rig.run(writer.finish_if(|seen| {
                is_wanted = seen.is_some() == wants;
                let meta = Meta {
                    flags: held.flags,
                    ..Meta::default()
                };
                is_wanted.then_some(meta)
            }));
            assert_eq!(outcome == Outcome::Kept, !is_wanted);
            matches!(outcome, Outcome::Stored { .. })
        } else {
            rig.run(writer.finish()).is_ok()
        };
        if is_wanted {
            self.replaced(n);
            match stored {
                true => drop(self.live.insert(n, held)),
                // On a condition it stays; else it is gone.
                false => drop(before.map(|before| self.live.insert(n, before))),
            }
        }
    }

    fn read(&mut self, rig: &Rig<FaultyDevice>, random: &mut Random, n: u64, must_hit: bool) {
        let (name, cx, cache) = (key(n), &rig.cx, &rig.cache);
        let Some(object) = rig.run(cache.get_head(cx, &name)) else {
            assert!(!must_hit || !self.live.contains_key(&n), "key {n}");
            self.misses += 1;
            return;
        };
        let held = self.live.get(&n).expect("what is there was stored");
        assert!(
            held.head == object.head()
                && held.flags == object.flags()
                && held.value.len() == object.value_len()
        );
        let len = held.value.len() as u64;
        let from = random.below(len + 1);
        let to = from + random.below(len - from + 1);
        let mut reader = cache.reader(cx, &name, &object);
        reader.range(from..to);
        let mut got = Vec::new();
        loop {
            match rig.run(reader.read()) {
                Ok(Some(pieces)) => got.extend(flat(&pieces)),
                Ok(None) => break,
                Err(broken) => {
                    assert!(!must_hit, "key {n}: {broken}");
                    self.misses += 1;
                    assert!(held.value[from as usize..].starts_with(&got));
                    return;
                }
            }
        }
        assert!(got == held.value[from as usize..to as usize], "key {n}");
        self.hits += 1;
    }

    /// After a crash: each key holds what it held, or what it held before the last step, or nothing.
    /// What was written and had its head replaced at most is there, if `must_hit`.
    fn reconcile(&mut self, rig: &Rig<FaultyDevice>, must_hit: bool, what: &str) -> u64 {
        let mut served = 0;
        for n in 0..KEYS {
            let object = rig.run(rig.cache.get(&rig.cx, &key(n)));
            let Some(object) = object else {
                let was_whole = self.written.get(&n).is_some_and(|written| written.is_whole);
                assert!(!must_hit || !was_whole, "{what}: key {n} is gone");
                self.live.remove(&n);
                continue;
            };
            let held = Held {
                value: object.to_vec(),
                head: object.head().to_vec(),
                flags: object.flags(),
            };
            assert!(self.is_legal(n, &held), "{what}: key {n}");
            self.live.insert(n, held);
            served += 1;
        }
        served
    }
}

/// Whether a crash now would leave what a key holds.
fn is_written(rig: &Rig<FaultyDevice>, key: &[u8]) -> bool {
    let located = rig.cache.locate(&rig.cx, key);
    located
        .and_then(|located| located.flash)
        .is_some_and(|flash| flash.written)
}

fn open(medium: &Arc<FaultyMedium>, clock: &Arc<ManualClock>, options: CacheOptions) -> Rig<FaultyDevice> {
    Rig::open(FaultyDevice::new(Arc::clone(medium)), Arc::clone(clock), options)
}

fn medium(flash_bytes: u64, seed: u64) -> Arc<FaultyMedium> {
    let plan = FaultPlan {
        delay: true,
        ..FaultPlan::default()
    };
    Arc::new(FaultyMedium::new(flash_bytes, seed, plan))
}

#[test]
fn nothing_wrong_is_read_and_what_must_be_there_is() {
    for seed in 0..2 * KINDS {
        // On the larger device nothing is evicted.
        let must_hit = seed % 2 == 0;
        let (medium, clock) = (
            medium(if must_hit { 64 << 20 } else { 2 << 20 }, seed),
            Arc::new(ManualClock::new(1_000)),
        );
        let options = CacheOptions {
            dram_bytes: [0, 1 << 20][seed as usize / 2 % 2],
            buffers_max: 16,
            ..of_kind(seed / 2)
        };
        let rig = open(&medium, &clock, options);
        let (mut model, mut random) = (Model::new(), Random(seed));
        for _ in 0..300 {
            model.step(&rig, &mut random, must_hit);
        }
        model.writing.clear();
        rig.check();
        let entries = rig.cache.books().resident().0;
        for n in 0..KEYS {
            rig.run(rig.cache.delete(&rig.cx, &key(n)));
        }
        rig.check();
        println!(
            "seed {seed}: {} hits, {} misses, {entries} entries",
            model.hits, model.misses
        );
        assert!(model.hits > 10, "{}", model.hits);
    }
}

/// A run with a crash at each of its writes and log appends in turn; `keeps_all` where flash has room for all. How many there were, how many objects came
/// back, and how often it was one that had been written and had its head replaced since.
fn crash_everywhere(
    seed: u64,
    kind: u64,
    flash_bytes: u64,
    dram_bytes: usize,
    keeps_all: bool,
) -> (u64, u64, u64) {
    let options = CacheOptions {
        dram_bytes,
        buffers_max: 10,
        ..of_kind(kind)
    };
    let (mut points, mut served, mut kept) = (0u64, 0, 0);
    for point in 1.. {
        let (medium, clock) = (medium(flash_bytes, seed), Arc::new(ManualClock::new(1_000)));
        let rig = open(&medium, &clock, options);
        medium.set_plan(FaultPlan {
            crash: Some(CrashPoint::WriteOrAppend(point)),
            delay: true,
            ..FaultPlan::default()
        });
        let (mut model, mut random) = (Model::new(), Random(seed));
        for _ in 0..120 {
            model.step(&rig, &mut random, false);
            if medium.is_crashed() {
                break;
            }
        }
        let is_over = !medium.is_crashed();
        if is_over {
            medium.crash();
        }
        std::mem::forget(std::mem::take(&mut model.writing));
        drop(rig);
        medium.restart();
        medium.set_plan(FaultPlan {
            delay: true,
            ..FaultPlan::default()
        });
        let rig = open(&medium, &clock, options);
        kept += model
            .written
            .iter()
            .filter(|(n, written)| written.is_whole && model.live.get(n) != Some(&written.held))
            .count() as u64;
        served += model.reconcile(
            &rig,
            keeps_all,
            &format!("kind {kind}, seed {seed}, crash at {point}"),
        );
        points += 1;
        for _ in 0..10 {
            model.step(&rig, &mut random, false);
        }
        model.writing.clear();
        rig.check();
        if is_over {
            break;
        }
    }
    println!(
        "kind {kind}, seed {seed}: {points} crashes, {served} objects came back, {kept} times after a head was replaced"
    );
    (points, served, kept)
}

#[test]
fn after_a_crash_an_object_is_whole_with_one_of_its_heads_or_it_is_gone() {
    for (kind, dram_bytes) in [(0, 0), (2, 1 << 20), (6, 0), (8, 1 << 20)] {
        let (points, served, _) = crash_everywhere(kind, kind, 3 << 20, dram_bytes, false);
        assert!(points > 50 && served > points / 4, "{points} {served}");
    }
}

/// Where nothing is evicted, what was on flash is back with the head that it had there, or a later one.
#[test]
fn after_a_crash_an_object_whose_head_was_replaced_is_there() {
    let mut kept = 0;
    for (seed, kind, dram_bytes) in [(0, 0, 0), (3, 1, 1 << 20), (2, 2, 1 << 20), (5, 5, 0)] {
        kept += crash_everywhere(seed, kind, 24 << 20, dram_bytes, true).2;
    }
    assert!(kept > 90, "{kept}");
}

/// Heads are replaced twice, after as many turns of what writes the first: a crash at each write and log append leaves no older one than
/// there was.
#[test]
fn a_head_does_not_come_back_once_a_newer_was_there() {
    let heads: [&[u8]; 3] = [b"old", b"new", b"newest"];
    let value = bytes(&mut Random(1), 60_000);
    // How often each was found, and none.
    let mut found_of = [0; 4];
    for turns in (0..12).chain([1_000]) {
        for (kind, dram_bytes) in [(0, 0), (1, 1 << 20)] {
            for point in 1.. {
                let (medium, clock) = (medium(24 << 20, turns), Arc::new(ManualClock::new(1_000)));
                let options = CacheOptions {
                    dram_bytes,
                    buffers_max: 10,
                    ..of_kind(kind)
                };
                let rig = open(&medium, &clock, options);
                let write = || {
                    clock.advance_secs(4);
                    rig.cache.tick(&rig.cx);
                };
                let new = NewObject {
                    head: heads[0],
                    ..NewObject::default()
                };
                let mut writer = rig.cache.begin(&rig.cx, b"key", new).unwrap();
                assert!(rig.run(writer.append(&value)).is_ok());
                assert!(rig.run(writer.finish()).is_ok());
                write();
                rig.settle();
                assert!(is_written(&rig, b"key"));
                medium.set_plan(FaultPlan {
                    crash: Some(CrashPoint::WriteOrAppend(point)),
                    delay: true,
                    ..FaultPlan::default()
                });
                // The oldest and the newest that may be there, and whether there may be none.
                let mut may_be = (0, 0, false);
                for head in [1, 2] {
                    let Some(seen) = rig.run(rig.cache.get_head(&rig.cx, b"key")) else {
                        assert!(medium.is_crashed());
                        break;
                    };
                    let was_written = is_written(&rig, b"key");
                    if medium.is_crashed() {
                        break;
                    }
                    if was_written {
                        may_be.0 = head - 1;
                    }
                    (may_be.1, may_be.2) = (head, !was_written);
                    let meta = seen.meta();
                    let replaced = rig.run(rig.cache.replace_head(&rig.cx, seen, heads[head], meta));
                    if medium.is_crashed() {
                        break;
                    }
                    assert!(matches!(replaced, Outcome::Stored { .. }));
                    if !was_written {
                        may_be.0 = head;
                    }
                    write();
                    let mut left = turns;
                    rig.run(poll_fn(|context| {
                        context.waker().wake_by_ref();
                        left = left.saturating_sub(1);
                        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
                    }));
                }
                if !medium.is_crashed() {
                    rig.settle();
                }
                let is_over = !medium.is_crashed();
                if is_over {
                    medium.crash();
                }
                drop(rig);
                medium.restart();
                let rig = open(&medium, &clock, options);
                let found = rig.run(rig.cache.get(&rig.cx, b"key"));
                let at = found
                    .as_ref()
                    .map(|found| heads.iter().position(|head| *head == found.head()));
                let what = format!("{turns} turns, kind {kind}, crash at {point}: {at:?} of {may_be:?}");
                match at {
                    Some(at) => assert!(at.is_some_and(|at| (may_be.0..=may_be.1).contains(&at)), "{what}"),
                    None => assert!(may_be.2, "{what}"),
                }
                assert!(found.is_none_or(|found| found.to_vec() == value), "{what}");
                found_of[at.flatten().unwrap_or(3)] += 1;
                if is_over {
                    break;
                }
            }
        }
    }
    println!("{found_of:?}");
    assert!(found_of.iter().all(|found| *found > 0), "{found_of:?}");
}

/// An object and the bytes beside it are told apart from others by its version alone.
#[test]
fn a_head_that_was_replaced_comes_back_after_a_stop() {
    let (medium, clock) = (medium(16 << 20, 1), Arc::new(ManualClock::new(1_000)));
    let options = of_kind(0);
    let value = bytes(&mut Random(1), 60_000);
    let rig = open(&medium, &clock, options);
    let new = NewObject {
        head: b"old",
        ..NewObject::default()
    };
    let mut writer = rig.cache.begin(&rig.cx, b"key", new).unwrap();
    assert!(rig.run(writer.append(&value)).is_ok());
    assert!(rig.run(writer.finish()).is_ok());
    let seen = rig.run(rig.cache.get_head(&rig.cx, b"key")).unwrap();
    let meta = seen.meta();
    rig.run(rig.cache.replace_head(&rig.cx, seen, b"new", meta));
    assert!(rig.run(rig.cache.close(&rig.cx)).is_ok());
    drop(rig);
    let rig = open(&medium, &clock, options);
    let seen = rig.run(rig.cache.get(&rig.cx, b"key")).unwrap();
    assert_eq!((seen.head(), seen.to_vec() == value), (&b"new"[..], true));
    assert_eq!(seen.value_len(), 60_000);
}
