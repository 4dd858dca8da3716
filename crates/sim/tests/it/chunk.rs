//! Replays of a volume's chunks: the store that serves and the models beside it.

use crate::public::traces;
use crate::reference::FIGURES;
use pumice_sim::{ChunkCacheName, ChunkOptions, ChunkReport, SimError, replay_chunks};
use pumice_trace::{Trace, TraceOptions};
use std::collections::HashMap;

const ALL: [&str; 6] = ["pumice", "austere", "d-lru", "d-arc", "cd-lru", "cd-arc"];

fn replay(trace: &Trace, cache: &str, addresses: &str, size: &str) -> ChunkReport {
    let options = ChunkOptions {
        cache: cache.parse().unwrap(),
        addresses: addresses.parse().unwrap(),
        size: size.parse().unwrap(),
        chunk_bytes: None,
        dram_bytes: None,
        block_bytes: None,
        superblock_blocks: 1,
    };
    replay_chunks(trace, &options, &mut |_| {}).unwrap()
}

fn trace(spec: &str) -> Trace {
    Trace::new(spec, TraceOptions::default()).unwrap()
}

/// A mail server's requests, larger than which the cache is: a read hits where its page was read or written before.
#[test]
fn the_fiu_sample_has_the_hits_and_duplicates_that_it_has() {
    let Some(folder) = traces(FIGURES) else { return };
    let trace = Trace::new(
        folder.join("dedup/fiu-mail-cheetah.10000.blkparse.zst"),
        TraceOptions::default(),
    )
    .unwrap();
    for cache in ["pumice", "d-lru", "cd-lru", "cd-arc"] {
        let report = replay(&trace, cache, "100d", "200%");
        assert_eq!((report.requests, report.chunk_bytes), (9_997, 4096), "{cache}");
        assert_eq!(report.hits, 582, "{cache}");
        assert_eq!(
            (report.writes, report.writes_of_known, report.writes_in_place),
            (1_101, 304, 61),
            "{cache}"
        );
        assert_eq!(report.refused, 0);
        assert_eq!(report.new_contents, 9_110, "{cache}: the distinct contents");
        assert_eq!(report.contents, 9_110, "{cache}");
    }
}

/// Reads that hit in a cache that forgets nothing, and the distinct contents.
fn unbounded(trace: &Trace) -> (u64, u64) {
    let (mut held, mut contents) = (HashMap::new(), std::collections::HashSet::new());
    let (mut hits, mut batch) = (0, Vec::new());
    let mut reader = trace.open().unwrap();
    while reader.next_batch(&mut batch).unwrap() {
        for request in &batch {
            let content = request.content.unwrap();
            let was = held.insert(request.key, content);
            hits += u64::from(request.op == pumice_trace::Op::Get && was.is_some());
            contents.insert(content);
        }
    }
    (hits, contents.len() as u64)
}

#[test]
fn a_cache_with_room_for_all_hits_all_that_was_seen_before() {
    let trace =
        trace("block:chunks=1024,requests=6000,writes=0.5,duplicates=0.7,theta=0.8,drift=0.002,seed=5");
    let (hits, contents) = unbounded(&trace);
    for cache in ["pumice", "d-lru", "d-arc", "cd-lru", "cd-arc"] {
        let report = replay(&trace, cache, "4d", "600%");
        assert_eq!((report.hits, report.new_contents), (hits, contents), "{cache}");
        assert_eq!(report.reads + report.writes, 6000);
    }
    // Buckets of hashes overflow, prefixes collide.
    let austere = replay(&trace, "austere", "4d", "1600%");
    assert!(hits - austere.hits <= hits / 50, "{} of {hits}", austere.hits);
}

/// What the paper finds, at a small size: duplicates and compression make room, where more addresses than chunks may be mapped.
#[test]
fn deduplication_and_compression_hit_more_than_as_many_addresses_as_chunks() {
    let trace = trace("block:chunks=4096,requests=40000,writes=0.8,duplicates=0.9,theta=0.8,seed=2");
    let run = |cache, addresses| replay(&trace, cache, addresses, "25%");
    let found: HashMap<&str, ChunkReport> = ALL.iter().map(|cache| (*cache, run(cache, "4d"))).collect();
    let ratio = |report: &ChunkReport| report.hit_ratio.unwrap();
    for cache in ["pumice", "austere"] {
        let report = &found[cache];
        for other in ["d-lru", "cd-lru", "cd-arc"] {
            let gain = ratio(report) - ratio(&run(other, "1d"));
            assert!(
                gain > 0.2,
                "{cache} against {other} with as many addresses: {gain}"
            );
        }
        let dram = |report: &ChunkReport| report.address_dram_bytes + report.content_dram_bytes;
        assert!(dram(report) * 5 < dram(&found["cd-arc"]));
    }
    assert!(ratio(&found["cd-lru"]) >= ratio(&found["d-lru"]));
    assert!(ratio(&found["cd-arc"]) >= ratio(&found["d-arc"]));
    let (pumice, austere) = (&found["pumice"], &found["austere"]);
    assert!(ratio(pumice) - ratio(austere) > -0.025, "{pumice:?} {austere:?}");
    assert!(pumice.device_bytes < austere.device_bytes);
    let amplification = |report: &ChunkReport| report.device_write_amplification.unwrap();
    assert!(amplification(pumice) < 1.2 && amplification(austere) > amplification(pumice));
    assert_eq!(found["cd-lru"].device_bytes, found["cd-lru"].compressed_new_bytes);
}

#[test]
fn less_dram_leaves_fewer_fingerprints_beside_the_addresses() {
    let trace = trace("block:chunks=1024,requests=4000,writes=0.5,duplicates=0.1,theta=0.5,seed=5");
    let options = |dram_bytes| ChunkOptions {
        cache: ChunkCacheName::CdLru,
        addresses: "512".parse().unwrap(),
        size: "50%".parse().unwrap(),
        chunk_bytes: None,
        dram_bytes,
        block_bytes: None,
        superblock_blocks: 1,
    };
    let run = |dram| replay_chunks(&trace, &options(dram), &mut |_| {}).unwrap();
    let bounded = run(Some(512 * 44 + 100 * 48));
    assert_eq!((bounded.addresses, bounded.contents), (512, 100));
    assert!(run(None).contents > 300 && run(None).hits > bounded.hits);
}

#[test]
fn traces_without_contents_and_wrong_sizes_are_refused() {
    let refused = |spec: &str, size: &str| {
        let options = ChunkOptions {
            cache: ChunkCacheName::Pumice,
            addresses: "4d".parse().unwrap(),
            size: size.parse().unwrap(),
            chunk_bytes: None,
            dram_bytes: None,
            block_bytes: None,
            superblock_blocks: 1,
        };
        replay_chunks(&trace(spec), &options, &mut |_| {}).unwrap_err()
    };
    let none = refused("zipf:keys=10,requests=10,theta=1", "10%");
    assert!(matches!(none, SimError::NoContents(_)), "{none}");
    let small = refused(
        "block:chunks=64,requests=99,writes=0.5,duplicates=0.5,theta=1",
        "1%",
    );
    assert!(matches!(small, SimError::Open(_)), "{small}");
    for addresses in ["", "0", "-1d", "xd", "1e9d"] {
        assert!(addresses.parse::<pumice_sim::Addresses>().is_err(), "{addresses}");
    }
    assert!("lru".parse::<ChunkCacheName>().is_err());
}

/// A cache that has no room for a bucket of `austere`, and chunks of any length, are replayed, or refused for what they are.
#[test]
fn small_caches_and_odd_chunks_are_replayed_or_refused() {
    let trace = trace("block:chunks=900,requests=3000,writes=1.0,duplicates=0.15,theta=0.2,seed=3");
    let run = |cache: &str, chunk_bytes, size: &str| {
        let options = ChunkOptions {
            cache: cache.parse().unwrap(),
            addresses: "4d".parse().unwrap(),
            size: size.parse().unwrap(),
            chunk_bytes: Some(chunk_bytes),
            dram_bytes: None,
            block_bytes: None,
            superblock_blocks: 1,
        };
        replay_chunks(&trace, &options, &mut |_| {})
    };
    for cache in ALL {
        for chunk_bytes in [0, 1, 511] {
            let refused = run(cache, chunk_bytes, "1MiB").unwrap_err();
            assert!(
                matches!(refused, SimError::ShortChunks(bytes) if bytes == chunk_bytes),
                "{refused}"
            );
        }
        for chunk_bytes in [512, 4 << 10, 32 << 10] {
            for size in ["25%", "600KiB", "1060KiB", "1100KiB"] {
                // Too few blocks for a cache; chunks that the store does not have.
                let is_refused = matches!(
                    (cache, chunk_bytes, size),
                    (_, 512, "25%") | (_, 0x8000, "600KiB") | ("pumice", 512, _)
                );
                match run(cache, chunk_bytes, size) {
                    Ok(report) if !is_refused => assert!(report.contents > 0, "{report:?}"),
                    Err(SimError::Open(_)) if is_refused => {}
                    other => panic!("{cache}, {chunk_bytes}, {size}: {other:?}"),
                }
            }
        }
    }
    let report = run("austere", 4 << 10, "25%").unwrap();
    assert!((1..=104).contains(&report.contents), "{}", report.contents);
    assert!(
        report
            .device_write_amplification
            .is_some_and(|times| times >= 1.0)
    );
}
