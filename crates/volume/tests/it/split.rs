//! Reads of clean chunks that go to the backing device.

use crate::backing::{Faults, FaultyBacking};
use crate::case::{bytes_of, content, wide};
use crate::rig::{CHUNK, Rig, SIZE, settings, volatile};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use pumice_testkit::FaultyMedium;
use pumice_volume::{Mode, VolumeCounts};
use pumice_world::Random;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

const SECTOR: usize = 512;
/// Chunks that are asked for: more than a bucket of the index has, so that fills evict.
const CHUNKS: usize = 160;

fn medium(seed: u64) -> Arc<FaultyMedium> {
    Arc::new(FaultyMedium::new(8 << 20, seed, volatile()))
}

/// A chunk all of whose words say which it is, and its version.
fn versioned(chunk: usize, version: u64) -> Vec<u8> {
    let word = ((chunk as u64) << 32 | version).to_le_bytes();
    word.repeat(CHUNK / word.len())
}

/// What is known of the versions of a chunk.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The newest of which a write has ended, or that a read has found.
    seen: u64,
    /// The newest of which a write has begun.
    begun: u64,
}

struct Reader {
    rig: Rig,
    known: Rc<RefCell<Vec<Known>>>,
    wrong: Rc<RefCell<Vec<String>>>,
}

impl Reader {
    /// Reads chunks: each sector must have a version that is no older than what anybody has seen before the read began.
    async fn read(&self, chunks: std::ops::Range<usize>) {
        let before: Vec<u64> = chunks
            .clone()
            .map(|chunk| self.known.borrow()[chunk].seen)
            .collect();
        let range = bytes_of(chunks.clone());
        let read = self.rig.volume.read(range.start as u64, range.len());
        let bytes = read.await.expect("nothing fails");
        let mut known = self.known.borrow_mut();
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            let at = number * SECTOR / CHUNK;
            let chunk = chunks.start + at;
            let word = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
            let (owner, version) = (word >> 32, word & 0xFFFF_FFFF);
            let is_whole = sector.chunks(8).all(|other| other == &sector[..8]);
            let is_known = (before[at]..=known[chunk].begun).contains(&version);
            if !is_whole || owner != chunk as u64 || !is_known {
                let wanted = (before[at], known[chunk].begun);
                let wrong = format!("chunk {chunk} has version {version} of {owner}, may have {wanted:?}");
                self.wrong.borrow_mut().push(wrong);
            }
            known[chunk].seen = known[chunk].seen.max(version);
        }
    }

    async fn write(&self, chunk: usize) {
        let version = {
            let known = &mut self.known.borrow_mut()[chunk];
            known.begun += 1;
            known.begun
        };
        let bytes = Bytes::from(versioned(chunk, version));
        let write = self.rig.volume.write((chunk * CHUNK) as u64, bytes, false);
        write.await.expect("nothing fails");
        let known = &mut self.known.borrow_mut()[chunk];
        known.seen = known.seen.max(version);
    }
}

/// Runs many readers and writers at once, through evictions, cleans, crashes and starts. Returns the wrong answers, and the counts.
fn run(seed: u64, mode: Mode, plants: bool) -> (Vec<String>, VolumeCounts) {
    let (medium, backing) = (medium(seed), FaultyBacking::new(SIZE, seed));
    let mut random = Random(seed);
    let mut settings = settings(mode, 1);
    settings.dram_bytes = (seed as usize % 2) * 40 * CHUNK;
    let known: Rc<RefCell<Vec<Known>>> = Rc::new(RefCell::new(vec![Known::default(); CHUNKS]));
    for chunk in 0..CHUNKS {
        backing.write_elsewhere(chunk * CHUNK, &versioned(chunk, 0));
    }
    let (wrong, mut counts) = (Rc::default(), VolumeCounts::default());
    for life in 0..3 {
        let load_admit = [0.5, 0.1, 0.0][random.below(3) as usize];
        let split = Some((load_admit, random.below(4) > 0));
        let reader = Reader {
            rig: Rig::open_with(&settings, &medium, &backing, split).unwrap(),
            known: Rc::clone(&known),
            wrong: Rc::clone(&wrong),
        };
        for round in 0..40 {
            let mut written = BTreeSet::new();
            let mut requests: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            for _ in 0..12 {
                let spread = 1 + random.below(CHUNKS as u64 - 4);
                let chunk = random.below(spread) as usize;
                let reader = &reader;
                match random.below(8) {
                    0 if written.insert(chunk) => requests.push(Box::pin(reader.write(chunk))),
                    1 => requests.push(Box::pin(async move {
                        reader.read(chunk..chunk + 1).await;
                        reader.read(chunk..chunk + 1).await;
                    })),
                    2 => requests.push(Box::pin(reader.read(chunk..chunk + 3))),
                    _ => requests.push(Box::pin(reader.read(chunk..chunk + 1))),
                }
            }
            let idle = async {
                if round % 4 == 0 {
                    reader.rig.volume.tick().await;
                }
            };
            reader.rig.run(join(join_all(requests), idle));
            if plants && round % 8 == 7 {
                // Somebody writes to the volume beside its cache.
                let chunk = random.below(20) as usize;
                let seen = known.borrow()[chunk].seen;
                backing.write_elsewhere(chunk * CHUNK, &versioned(chunk, seen.saturating_sub(1)));
            }
        }
        reader.rig.run(reader.rig.volume.flush()).unwrap();
        reader.rig.check_books();
        counts += reader.rig.volume.shared().counts();
        match life {
            0 => {
                medium.crash();
                backing.crash();
            }
            _ => {
                medium.cut_power();
                backing.cut_power();
                settings.cache.boot += 1;
            }
        }
        drop(reader);
        medium.restart();
        backing.restart();
    }
    (wrong.take(), counts)
}

#[test]
fn no_reader_sees_a_value_and_then_an_older_one() {
    for mode in [Mode::WriteThrough, Mode::WriteBack, Mode::WriteAround] {
        let mut totals = VolumeCounts::default();
        for seed in 0..30 {
            let (wrong, counts) = run(seed, mode, false);
            assert_eq!(wrong, Vec::<String>::new(), "seed {seed}, {}", mode.name());
            totals += counts;
        }
        println!("{}: {totals:?}", mode.name());
        assert!(
            totals.read_redirected > 3_000 && totals.read_hits > 1_000 && totals.read_misses > 1_000,
            "{}: {totals:?}",
            mode.name()
        );
        assert!(mode != Mode::WriteBack || totals.read_dirty_hits > 500 && totals.cleaned_chunks > 500);
    }
}

#[test]
fn a_planted_stale_copy_is_caught() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let caught = (0..8).filter(|seed| !run(*seed, mode, true).0.is_empty());
        assert!(caught.count() >= 6, "{}", mode.name());
    }
}

/// A cached, clean chunk with `content(chunk, 1)` of a volume all of whose hits are redirected.
fn all_redirected(mode: Mode) -> (Rig, FaultyBacking) {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    backing.write_elsewhere(7 * CHUNK, &content(7, 1));
    let rig = Rig::open_with(&settings(mode, 1), &medium, &backing, Some((0.0, true))).unwrap();
    assert!(rig.run(rig.volume.read(7 * CHUNK as u64, CHUNK)).unwrap() == content(7, 1));
    assert!(rig.run(rig.volume.read(7 * CHUNK as u64, CHUNK)).unwrap() == content(7, 1));
    assert_eq!(rig.volume.shared().counts().read_redirected, 1);
    (rig, backing)
}

/// The backing device may have given the old bytes out before the write begins, and answer after others have seen the new ones.
#[test]
fn a_redirected_read_that_a_write_overtakes_is_read_again() {
    let (rig, _) = all_redirected(Mode::WriteBack);
    let (mut late, mut early) = (0, 0);
    for version in 2..60 {
        let read = async { rig.volume.read(7 * CHUNK as u64, CHUNK).await.unwrap() };
        let write = async {
            for _ in 0..version % 8 {
                pumice_blocks::give_turn().await;
            }
            let bytes = Bytes::from(content(7, version));
            rig.volume.write(7 * CHUNK as u64, bytes, false).await.unwrap();
            rig.volume.read(7 * CHUNK as u64, CHUNK).await.unwrap()
        };
        let ended = RefCell::new(Vec::new());
        let note = |found: Vec<u8>| ended.borrow_mut().push(found == content(7, version));
        rig.run(join(async { note(read.await) }, async { note(write.await) }));
        let ended = ended.into_inner();
        assert!(ended[1], "an older value came last, at {version}");
        match ended[0] {
            true => late += 1,
            false => early += 1,
        }
        rig.settle();
        rig.run(rig.volume.drain()).unwrap();
    }
    assert!(late > 5 && early > 5, "{late} {early}");
}

#[test]
fn a_dirty_chunk_is_not_redirected_and_a_clean_one_is() {
    let (rig, backing) = all_redirected(Mode::WriteBack);
    let bytes = Bytes::from(content(7, 2));
    rig.run(rig.volume.write(7 * CHUNK as u64, bytes, false)).unwrap();
    let reads = backing.reads();
    for _ in 0..5 {
        assert!(rig.run(rig.volume.read(7 * CHUNK as u64, CHUNK)).unwrap() == content(7, 2));
    }
    let counts = rig.volume.shared().counts();
    assert_eq!((backing.reads(), counts.read_dirty_hits), (reads, 5));
    rig.run(rig.volume.drain()).unwrap();
    assert!(rig.run(rig.volume.read(7 * CHUNK as u64, CHUNK)).unwrap() == content(7, 2));
    assert_eq!(rig.volume.shared().counts().read_redirected, 2);
    rig.check_books();
}

#[test]
fn dirty_chunks_that_are_read_are_cleaned_before_others() {
    let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
    let mut settings = wide();
    settings.write_back.bytes_per_sec = 12 * CHUNK as u64;
    let rig = Rig::open_with(&settings, &medium, &backing, Some((0.5, true))).unwrap();
    for chunk in 0..100 {
        let bytes = Bytes::from(content(chunk, 1));
        rig.run(rig.volume.write((chunk * CHUNK) as u64, bytes, false))
            .unwrap();
    }
    let read = |chunks: std::ops::Range<usize>| {
        for chunk in chunks {
            let found = rig.run(rig.volume.read((chunk * CHUNK) as u64, CHUNK)).unwrap();
            assert!(found == content(chunk, 1), "{chunk}");
        }
    };
    // The first requests of a handle ask nothing of the scheduler.
    (0..6).for_each(|_| read(70..76));
    assert_eq!((rig.volume.dirty().0, backing.changes()), (100, 0));
    rig.tick();
    rig.settle();
    assert_eq!(rig.volume.dirty().0, 94);
    assert_eq!(rig.volume.shared().movable_share(), 0.0);
    read(70..76);
    rig.tick();
    assert_eq!(rig.volume.shared().movable_share(), 1.0);
    // No more than the rate allows in a second, however much is read.
    read(0..70);
    rig.settle();
    assert_eq!(rig.volume.dirty().0, 94 - 12);
    rig.check_books();
}

#[test]
fn a_redirected_read_that_fails_is_read_from_the_cache() {
    let (rig, backing) = all_redirected(Mode::WriteThrough);
    backing.set(crate::backing::Faults {
        bad_byte: Some(7 * CHUNK as u64 + 9),
        ..Default::default()
    });
    assert!(rig.run(rig.volume.read(7 * CHUNK as u64, CHUNK)).unwrap() == content(7, 1));
    let counts = rig.volume.shared().counts();
    assert_eq!((counts.read_redirected, counts.read_hits), (1, 1));
    rig.check_books();
}

#[test]
fn a_backing_device_that_is_away_is_not_read_in_place_of_the_cache() {
    let (rig, backing) = all_redirected(Mode::WriteThrough);
    backing.set(Faults {
        is_away: true,
        ..Faults::default()
    });
    let before = (backing.reads(), rig.volume.shared().counts().read_redirected);
    let range = bytes_of(7..8);
    let bytes = rig.run(rig.volume.read(range.start as u64, range.len())).unwrap();
    assert!(bytes == backing.bytes()[range]);
    assert_eq!(
        (backing.reads(), rig.volume.shared().counts().read_redirected),
        before
    );
}

#[test]
fn a_span_is_one_read_of_the_backing_device() {
    let (rig, backing) = all_redirected(Mode::WriteThrough);
    let read = |range: std::ops::Range<usize>| {
        let range = bytes_of(range);
        let bytes = rig.run(rig.volume.read(range.start as u64, range.len())).unwrap();
        assert!(bytes == backing.bytes()[range]);
    };
    read(0..12);
    let before = (backing.reads(), rig.volume.shared().counts().read_redirected);
    read(0..12);
    let after = (backing.reads(), rig.volume.shared().counts().read_redirected);
    assert_eq!(after, (before.0 + 1, before.1 + 12));
}

#[test]
fn misses_do_not_enter_a_full_cache_while_nothing_is_admitted() {
    for dram in [0, 64 * CHUNK] {
        let (medium, backing) = (medium(1), FaultyBacking::new(SIZE, 1));
        backing.write_elsewhere(7 * CHUNK, &content(7, 1));
        let mut settings = settings(Mode::WriteThrough, 1);
        settings.dram_bytes = dram;
        let rig = Rig::open_with(&settings, &medium, &backing, Some((1.0, false))).unwrap();
        let shared = rig.volume.shared();
        let has_room = || shared.store().unwrap().has_free_room(7..8);
        assert!(has_room());
        let mut chunks = (8..SIZE / CHUNK).cycle();
        while has_room() {
            let at = chunks.next().unwrap() * CHUNK;
            rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
        }
        let before = shared.counts();
        assert!(before.fills > 0, "a cache with room takes misses");
        for _ in 0..3 {
            let found = rig.run(rig.volume.read(7 * CHUNK as u64 + 600, 1000)).unwrap();
            assert!(found == content(7, 1)[600..1600]);
        }
        let counts = shared.counts();
        let from_dram = 2 * u64::from(dram > 0);
        let dram_hits = counts.read_dram_hits - before.read_dram_hits;
        assert_eq!((counts.fills, dram_hits), (before.fills, from_dram));
        assert_eq!(counts.read_misses - before.read_misses, 3 - from_dram);
        rig.check_books();
    }
}
