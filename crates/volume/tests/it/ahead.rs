//! Reading ahead of streams. The clock of these volumes stands still, so the bytes that a stream has read and the limit alone bound it.

use crate::backing::{Faults, FaultyBacking};
use crate::rig::{CHUNK, Rig, SIZE, medium, settings};
use bytes::Bytes;
use futures_util::future::join_all;
use pumice_volume::{Mode, Settings};
use pumice_world::Random;

const AHEAD: u64 = 32 * CHUNK as u64;

fn ahead(dram_chunks: usize) -> Settings {
    Settings {
        dram_bytes: dram_chunks * CHUNK,
        read_ahead_bytes: AHEAD,
        ..settings(Mode::WriteThrough, 1)
    }
}

fn filled(seed: u64) -> FaultyBacking {
    let (backing, mut random) = (FaultyBacking::new(SIZE, seed), Random(seed));
    let bytes: Vec<u8> = (0..SIZE / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    backing.write_elsewhere(0, &bytes);
    backing
}

/// One read after the other, and eight at once.
#[test]
fn a_stream_is_read_ahead_once_and_its_reads_hit() {
    for (seed, at_once) in [(1, 1), (2, 8), (3, 1), (4, 8)] {
        let (medium, backing) = (medium(seed), filled(seed));
        let dram_chunks = if seed < 3 { 0 } else { 300 };
        let rig = Rig::open(&ahead(dram_chunks), &medium, &backing).unwrap();
        let bytes = backing.bytes();
        for first in (0..SIZE).step_by(at_once * CHUNK) {
            let reads = (first..SIZE).step_by(CHUNK).take(at_once).map(|at| {
                let (volume, bytes) = (rig.volume.clone(), &bytes);
                async move {
                    let len = CHUNK.min(SIZE - at);
                    let found = volume.read(at as u64, len).await.unwrap();
                    assert!(found == bytes[at..at + len]);
                }
            });
            rig.run(join_all(reads));
        }
        rig.settle();
        rig.check_books();
        let counts = rig.volume.shared().counts();
        let hits = counts.read_hits + counts.read_dram_hits;
        assert!(
            hits > 280 && counts.read_misses <= 8,
            "{at_once} at once: {counts:?}"
        );
        assert_eq!(counts.backing_read_bytes, SIZE as u64, "{counts:?}");
        assert!(counts.read_ahead_bytes > 280 * CHUNK as u64, "{counts:?}");
        assert!(backing.reading_max() <= AHEAD + (at_once * CHUNK) as u64);
        assert!(backing.reading_max() > 4 * CHUNK as u64);

        // What is cached is not fetched again.
        let reads = backing.reads();
        for at in (SIZE - 50 * CHUNK..SIZE - CHUNK).step_by(CHUNK) {
            rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
        }
        rig.settle();
        assert_eq!(backing.reads(), reads);
    }
}

/// The second begins where the first has been read ahead to, or is about to be.
#[test]
fn two_streams_of_the_same_bytes_read_them_once() {
    for (seed, lead) in (0..20).map(|seed| (seed, 5 + seed as usize)) {
        let (medium, backing) = (medium(seed), filled(seed));
        let mut settings = ahead(0);
        // No mapping is evicted.
        settings.cache.mappings = 2000;
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        let stream = async |first: usize| {
            for at in (first * CHUNK..200 * CHUNK).step_by(CHUNK) {
                rig.volume.read(at as u64, CHUNK).await.unwrap();
            }
        };
        rig.run(futures_util::future::join(stream(0), stream(lead)));
        rig.settle();
        rig.check_books();
        // Reads before they are streams may miss beside a read-ahead.
        let counts = rig.volume.shared().counts();
        assert!(counts.fills_duplicate <= 6, "{lead} chunks apart: {counts:?}");
    }
}

#[test]
fn random_reads_and_a_volume_without_read_ahead_fetch_nothing_ahead() {
    let (medium, backing) = (medium(1), filled(1));
    let off = Settings {
        read_ahead_bytes: 0,
        ..ahead(0)
    };
    for settings in [&ahead(0), &off] {
        let rig = Rig::open(settings, &medium, &backing).unwrap();
        for number in 0..2 * SIZE / CHUNK {
            let chunk = match settings.read_ahead_bytes {
                0 => number % 300,
                _ => number * 37 % 300,
            };
            rig.run(rig.volume.read((chunk * CHUNK) as u64, CHUNK)).unwrap();
        }
        rig.settle();
        assert_eq!(rig.volume.shared().counts().read_ahead_bytes, 0);
        rig.run(rig.volume.close()).unwrap();
    }
}

/// Streams of all of the volume, while others write before them.
#[test]
fn writes_before_a_stream_are_what_it_reads() {
    let (mut late, mut fetched) = (0, 0);
    for seed in 0..40 {
        let (medium, backing) = (medium(seed), filled(seed));
        let rig = Rig::open(&ahead(seed as usize % 2 * 48), &medium, &backing).unwrap();
        let stream = async {
            for at in (0..300 * CHUNK).step_by(CHUNK) {
                rig.volume.read(at as u64, CHUNK).await.unwrap();
            }
        };
        let mut random = Random(seed);
        let writes = async {
            for number in 0..200usize {
                let at = (number * 3 / 2 + random.below(24) as usize).min(298) * CHUNK + 100;
                let len = 1 + random.below(CHUNK as u64) as usize;
                let data = Bytes::from(vec![number as u8; len]);
                rig.volume.write(at as u64, data, false).await.unwrap();
                // What was answered is found, however far ahead it was read.
                let found = rig.volume.read(at as u64, len).await.unwrap();
                assert!(found == vec![number as u8; len], "seed {seed}, write {number}");
            }
        };
        rig.run(futures_util::future::join(stream, writes));
        rig.settle();
        let bytes = backing.bytes();
        for at in (0..300 * CHUNK).step_by(CHUNK) {
            let found = rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
            assert!(
                found == bytes[at..at + CHUNK],
                "seed {seed}, chunk {}",
                at / CHUNK
            );
        }
        rig.settle();
        rig.check_books();
        let counts = rig.volume.shared().counts();
        late += counts.fills_late;
        fetched += counts.read_ahead_bytes;
    }
    assert!(
        late > 40 && fetched > 40 * 200 * CHUNK as u64,
        "{late}, {fetched}"
    );
}

#[test]
fn a_read_ahead_that_fails_is_counted_and_nobody_hears_of_it() {
    let (medium, backing) = (medium(1), filled(1));
    let rig = Rig::open(&ahead(0), &medium, &backing).unwrap();
    let bad = 100 * CHUNK;
    backing.set(Faults {
        bad_byte: Some(bad as u64),
        ..Faults::default()
    });
    for at in (0..300 * CHUNK).step_by(CHUNK) {
        let read = rig.run(rig.volume.read(at as u64, CHUNK));
        assert_eq!(read.is_err(), at == bad, "chunk {}", at / CHUNK);
    }
    rig.settle();
    rig.check_books();
    assert_eq!(rig.volume.shared().counts().read_aheads_failed, 1);
    // The memory of the one that failed is free again.
    backing.set(Faults::default());
    for at in (0..300 * CHUNK).step_by(CHUNK) {
        rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
    }
    assert!(backing.reading_max() <= AHEAD + CHUNK as u64);
}
