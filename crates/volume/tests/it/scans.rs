//! Scans leave the cache as it is. The clock of these volumes stands still, so no scan pauses.

use crate::backing::FaultyBacking;
use crate::case::{Case, bytes_of, content, wide};
use crate::rig::{CHUNK, Rig, SIZE, medium, settings, volatile};
use bytes::Bytes;
use pumice_testkit::FaultyMedium;
use pumice_volume::{Mode, Settings};
use pumice_world::Random;
use std::ops::Range;
use std::sync::Arc;

const CUTOFF: u64 = 4 * CHUNK as u64;
/// Chunks that are read often, and of which scans have none.
const HOT: Range<usize> = 0..61;
/// Whole chunks of the volume.
const CHUNKS: usize = 300;

/// A cache device that holds half of the volume, and an index for all of it.
fn narrow_flash(mode: Mode, dram_chunks: usize, ahead_chunks: usize) -> Settings {
    let mut settings = settings(mode, 1);
    (settings.cache.mappings, settings.cache.contents) = (1_000, 2_000);
    settings.dram_bytes = dram_chunks * CHUNK;
    settings.read_ahead_bytes = (ahead_chunks * CHUNK) as u64;
    settings.scan_cutoff_bytes = CUTOFF;
    settings
}

fn filled(seed: u64) -> FaultyBacking {
    let backing = FaultyBacking::new(SIZE, seed);
    let bytes: Vec<u8> = (0..=CHUNKS).flat_map(|chunk| content(chunk, 0)).collect();
    backing.write_elsewhere(0, &bytes[..SIZE]);
    backing
}

fn read(rig: &Rig, chunk: usize) {
    let found = rig.run(rig.volume.read((chunk * CHUNK) as u64, CHUNK)).unwrap();
    assert!(found == content(chunk, 0), "chunk {chunk}");
}

/// Reads the hot set in random order. Returns the number of hits, and of hits in DRAM.
fn hits_of_hot(rig: &Rig) -> (u64, u64) {
    let before = rig.volume.shared().counts();
    HOT.for_each(|number| read(rig, number * 7 % HOT.end));
    rig.settle();
    let after = rig.volume.shared().counts();
    let in_dram = after.read_dram_hits - before.read_dram_hits;
    (after.read_hits - before.read_hits + in_dram, in_dram)
}

/// A volume whose cache is full, and has the hot set.
fn warmed(settings: &Settings, seed: u64) -> (Rig, FaultyBacking) {
    let backing = filled(seed);
    let rig = Rig::open(settings, &medium(seed), &backing).unwrap();
    for number in 0..3 * CHUNKS {
        read(&rig, number * 37 % CHUNKS);
        rig.settle();
    }
    assert!(!rig.volume.shared().store().unwrap().has_free_room(0..1));
    for _ in 0..4 {
        hits_of_hot(&rig);
    }
    (rig, backing)
}

/// Four times the rest of the volume, one read or write after the other.
fn scan(rig: &Rig, writes: bool) {
    for _ in 0..4 {
        for chunk in HOT.end..CHUNKS {
            match writes {
                false => read(rig, chunk),
                true => {
                    let data = Bytes::from(content(chunk, 1));
                    rig.run(rig.volume.write((chunk * CHUNK) as u64, data, false))
                        .unwrap();
                }
            }
            rig.settle();
        }
    }
}

#[test]
fn the_hot_set_is_there_after_a_scan() {
    let (mut lost, mut all) = (0, 0);
    for (seed, writes) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (dram, ahead) = ([0, 150][seed as usize % 2], [0, 8][seed as usize / 2 % 2]);
        let mode = [Mode::WriteThrough, Mode::WriteBack][seed as usize / 4];
        let settings = narrow_flash(mode, dram, ahead);
        let (rig, _) = warmed(&settings, seed);
        let (before, in_dram) = hits_of_hot(&rig);
        let flash = rig.volume.shared().store().unwrap().counts();
        scan(&rig, writes);
        let (after, still_in_dram) = hits_of_hot(&rig);
        rig.check_books();
        let counts = rig.volume.shared().counts();
        let what = format!(
            "{mode:?}, dram {dram}, ahead {ahead}, writes {writes}: {before}, {after}, in DRAM {in_dram}, {still_in_dram}, {counts:?}"
        );
        assert!(before >= 59, "{what}");
        assert!(after + 4 >= before, "{what}");
        assert!(
            (dram == 0 || in_dram > 50) && still_in_dram * 4 >= in_dram * 3,
            "{what}"
        );
        (lost, all) = (lost + before.saturating_sub(after), all + before);
        match writes {
            false => assert!(counts.fills_scan > 300 && counts.writes_scan == 0, "{what}"),
            true => assert!(counts.writes_scan > 900 && counts.fills_scan == 0, "{what}"),
        }
        // What is below the cut-off enters: of each of the four, and a read-ahead of it.
        let stored = rig.volume.shared().store().unwrap().counts().stored_contents - flash.stored_contents;
        assert!(stored <= 80, "{stored} contents entered: {what}");

        // Without a cut-off the same scan pushes it out. (Writes do not enter DRAM.)
        let settings = Settings {
            scan_cutoff_bytes: 0,
            ..settings
        };
        let (rig, _) = warmed(&settings, seed);
        scan(&rig, writes);
        assert!(hits_of_hot(&rig).0 < 30 || (writes && dram > 0));
    }
    assert!(lost * 50 < all, "{lost} of {all}");
}

#[test]
fn a_scan_fills_a_cache_that_has_free_room() {
    for (seed, mode) in [(1, Mode::WriteThrough), (2, Mode::WriteBack)] {
        let mut settings = narrow_flash(mode, 0, 8);
        settings.write_back = wide().write_back;
        let (backing, medium) = (
            filled(seed),
            Arc::new(FaultyMedium::new(8 << 20, seed, volatile())),
        );
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        (0..CHUNKS).for_each(|chunk| read(&rig, chunk));
        scan(&rig, true);
        let before = rig.volume.shared().counts();
        assert_eq!((before.fills_scan, before.writes_scan), (0, 0));
        let found = rig.run(rig.volume.read(0, CHUNKS * CHUNK)).unwrap();
        for (chunk, found) in found.chunks(CHUNK).enumerate() {
            assert!(
                found == content(chunk, u64::from(chunk >= HOT.end)),
                "chunk {chunk}"
            );
        }
        let counts = rig.volume.shared().counts();
        assert_eq!(counts.read_hits - before.read_hits, CHUNKS as u64);
        assert_eq!(rig.volume.dirty().0 > 0, mode == Mode::WriteBack);
        rig.check_books();
    }
}

/// Reads of an eighth of a chunk, neighbours in either order.
#[test]
fn a_scan_of_small_reads_asks_the_backing_device_for_each_byte_once() {
    const LEN: usize = CHUNK / 8;
    for (seed, dram, ahead) in [(1, 40, 0), (2, 40, 16), (3, 0, 16)] {
        let (rig, backing) = warmed(&narrow_flash(Mode::WriteThrough, dram, ahead), seed);
        let bytes = backing.bytes();
        let scan = bytes_of(HOT.end..CHUNKS);
        let before = rig.volume.shared().counts();
        let mut most = 0;
        for number in 0..scan.len() / LEN {
            let number = if number > 16 { number ^ 1 } else { number };
            let at = scan.start + number * LEN;
            let found = rig.run(rig.volume.read(at as u64, LEN)).unwrap();
            assert!(found == bytes[at..at + LEN]);
            rig.settle();
            most = most.max(rig.volume.shared().dram_bytes());
        }
        let counts = rig.volume.shared().counts();
        let read = counts.backing_read_bytes - before.backing_read_bytes;
        assert!(read <= scan.len() as u64, "{read} of {}: {counts:?}", scan.len());
        assert!(counts.fills_scan > before.fills_scan + 100, "{counts:?}");
        assert!(most <= dram * CHUNK);
        let fetched = counts.read_ahead_bytes - before.read_ahead_bytes;
        match dram {
            // Nothing would keep it: what is ahead is not fetched.
            0 => assert!(fetched <= 8 * CHUNK as u64, "{fetched}"),
            _ => assert_eq!(fetched > 100 * CHUNK as u64, ahead > 0, "{fetched}"),
        }
        rig.check_books();
    }
}

/// As the CACHE command does.
#[test]
fn a_prefetch_fills_what_a_scan_leaves_out() {
    for (seed, dram) in [(1, 0), (2, 150)] {
        let (rig, _) = warmed(&narrow_flash(Mode::WriteAround, dram, 8), seed);
        // From here on neither DRAM nor the cache device has them.
        let bytes: Vec<u8> = (150..260).flat_map(|chunk| content(chunk, 0)).collect();
        rig.run(rig.volume.write(150 * CHUNK as u64, bytes.into(), false))
            .unwrap();
        // What it leaves in DRAM counts as missing.
        (150..170).for_each(|chunk| read(&rig, chunk));
        rig.settle();
        let before = rig.volume.shared().counts();
        // First in no order, so that nothing is read ahead.
        let mixed = (0..50).map(|number| 150 + number * 7 % 50);
        for chunk in mixed.chain(200..260) {
            let filled = rig.volume.prefetch((chunk * CHUNK) as u64, CHUNK);
            rig.run(filled).unwrap();
            rig.settle();
            let store = rig.volume.shared().store().unwrap();
            assert!(store.place(chunk as u64).is_some(), "chunk {chunk}");
        }
        let counts = rig.volume.shared().counts();
        assert_eq!(counts.fills_scan, before.fills_scan);
        rig.check_books();
    }
}

#[test]
fn a_write_that_goes_past_the_cache_voids_what_is_there() {
    for (seed, mode) in [
        (1, Mode::WriteThrough),
        (2, Mode::WriteBack),
        (3, Mode::WriteAround),
    ] {
        let mut case = Case::with(medium(seed), seed, narrow_flash(mode, 0, 0));
        case.close();
        case.start(mode).unwrap();
        // Full, and all of it clean.
        for number in 0..3 * CHUNKS {
            case.put([number * 37 % CHUNKS], 1);
            case.rig().settle();
            case.read(bytes_of(number * 37 % CHUNKS..number * 37 % CHUNKS + 1))
                .unwrap();
        }
        case.drain().unwrap();
        let before = case.rig().volume.shared().counts();
        case.put(100..200, 2);
        let counts = case.rig().volume.shared().counts();
        let passed = counts.writes_scan - before.writes_scan;
        assert_eq!(passed, if mode == Mode::WriteAround { 0 } else { 96 });
        assert!((104..200).all(|chunk| case.store().place(chunk).is_none()));
        assert!(case.backing.bytes()[bytes_of(104..200)] == case.array[bytes_of(104..200)]);
        case.check(bytes_of(100..200));
        case.flush().unwrap();
        case.crash(seed % 2 == 0);
        case.start(mode).unwrap();
        case.check_all();
    }
}

#[test]
fn a_scan_over_dirty_chunks_and_a_log_that_is_flushed_stay_in_the_cache() {
    let mut settings = narrow_flash(Mode::WriteBack, 0, 0);
    settings.write_back = wide().write_back;
    let mut case = Case::with(medium(1), 1, settings);
    for number in 0..3 * CHUNKS {
        case.put([number * 37 % CHUNKS], 1);
        case.rig().settle();
    }
    case.drain().unwrap();
    case.put([120, 130], 2);
    let passed = |case: &Case| case.rig().volume.shared().counts().writes_scan;
    let before = (passed(&case), case.cleaned());
    case.put(110..140, 3);
    // Four until it is a scan, and the two that are dirty.
    assert_eq!((passed(&case), case.cleaned()), (before.0 + 24, before.1));
    assert_eq!(case.dirty(), 6);
    for chunk in 200..240 {
        case.put([chunk], 4);
        if chunk % 4 == 3 {
            case.flush().unwrap();
        }
    }
    assert_eq!((passed(&case), case.dirty()), (before.0 + 24, 46));
    case.check_all();
    case.drain().unwrap();
    case.check_backing();
}

/// Scans over and beside writes.
#[test]
fn scans_and_writes_at_once_find_the_newest() {
    let mut scanned = 0;
    for seed in 0..20 {
        let mode = [Mode::WriteThrough, Mode::WriteBack][seed as usize % 2];
        let settings = narrow_flash(mode, [0, 30][seed as usize / 2 % 2], 8);
        let (rig, backing) = warmed(&settings, seed);
        let mut random = Random(seed);
        let scan = async {
            for at in bytes_of(HOT.end..CHUNKS).step_by(CHUNK / 2) {
                rig.volume.read(at as u64, CHUNK / 2).await.unwrap();
            }
        };
        let writes = async {
            for number in 0..200usize {
                let at = (HOT.end + number + random.below(24) as usize).min(CHUNKS - 2) * CHUNK + 512;
                let len = 512 * (1 + random.below(8) as usize);
                let data = Bytes::from(vec![number as u8; len]);
                rig.volume.write(at as u64, data, false).await.unwrap();
                let found = rig.volume.read(at as u64, len).await.unwrap();
                assert!(found == vec![number as u8; len], "seed {seed}, write {number}");
            }
        };
        rig.run(futures_util::future::join(scan, writes));
        rig.settle();
        let found = rig.run(rig.volume.read(0, SIZE)).unwrap();
        rig.run(rig.volume.drain()).unwrap();
        assert!(found == backing.bytes(), "seed {seed}");
        rig.settle();
        rig.check_books();
        let counts = rig.volume.shared().counts();
        scanned += counts.fills_scan + counts.writes_scan;
    }
    assert!(scanned > 1_000, "{scanned}");
}
