//! Write-back with many requests at once, in a cache smaller than what is written, and crashes among them.

use crate::backing::{Faults, SECTOR};
use crate::case::{Case, bytes_of, content, narrow, wide};
use crate::rig::{CHUNK, calm};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use pumice_blocks::give_turn;
use pumice_device::{CrashPoint, FaultPlan, FaultyMedium};
use pumice_volume::Mode;
use pumice_world::Random;
use std::sync::Arc;

const CHUNKS: usize = 120;
const SEEDS: u64 = 500;

/// Contents of all lengths on flash. Many are of other chunks, too.
fn varied(chunk: usize, version: u64) -> Vec<u8> {
    let (chunk, version) = match version % 4 {
        0 => (chunk % 3, version / 16),
        _ => (chunk, version),
    };
    let mut content = content(chunk, version);
    content[CHUNK - (version as usize * 37) % (CHUNK / 2)..].fill(version as u8);
    content
}

/// What a chunk may have.
#[derive(Clone)]
struct Chunk {
    /// When it was last flushed.
    durable: Vec<u8>,
    /// Contents of the changes since then, the newest last. Of a change that failed each sector may be old or new.
    since: Vec<Vec<u8>>,
    is_sure: bool,
}

impl Chunk {
    fn changed(&mut self, bytes: &[u8], is_done: bool) {
        self.since.push(bytes.to_vec());
        self.is_sure = is_done;
    }

    fn newest(&self) -> &Vec<u8> {
        self.since.last().unwrap_or(&self.durable)
    }

    /// After a crash any of them, by sector. What a start finds is there to stay.
    fn found(&mut self, bytes: &[u8], what: &str) {
        for (at, sector) in (0..).step_by(SECTOR).zip(bytes.chunks(SECTOR)) {
            let mut all = self.since.iter().chain([&self.durable]);
            assert!(
                all.any(|known| known[at..at + SECTOR] == *sector),
                "{what}, sector {}",
                at / SECTOR
            );
        }
        (self.durable, self.since, self.is_sure) = (bytes.to_vec(), Vec::new(), true);
    }
}

#[test]
fn crashes_among_many_writes_lose_nothing_that_was_flushed() {
    let (mut crashes, mut dirty, mut absorbed) = (0, 0, 0);
    for seed in 0..SEEDS {
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, calm()));
        let mut case = Case::with(medium, seed, narrow([20, 60, 500][seed as usize % 3]));
        let mut random = Random(seed);
        let first = Chunk {
            durable: vec![0; CHUNK],
            since: Vec::new(),
            is_sure: true,
        };
        let mut chunks = vec![first; CHUNKS];
        let mut version = 0;
        for life in 0..4 {
            let point = 1 + random.below(150);
            let is_backing = random.below(4) == 0;
            let crash = (!is_backing).then_some(CrashPoint::WriteOrAppend(point));
            case.medium.set_plan(FaultPlan {
                crash,
                // Some writes are overtaken by many others.
                slow: [0.0, 0.2][random.below(2) as usize],
                ..calm()
            });
            case.backing.set(Faults {
                crash_at: is_backing.then_some(1 + point / 4),
                ..Faults::default()
            });
            for _ in 0..40 {
                version += 1;
                // A hot part is written often.
                let hot = [12, CHUNKS][random.below(2) as usize];
                let changes: Vec<(usize, bool)> = (0..12)
                    .map(|n| {
                        (
                            n * hot / 12 + random.below(hot as u64 / 12) as usize,
                            random.below(12) == 0,
                        )
                    })
                    .collect();
                let rig = case.rig.as_ref().unwrap();
                let all = join_all(changes.iter().map(|(chunk, is_zero)| {
                    let (volume, offset) = (&rig.volume, (chunk * CHUNK) as u64);
                    async move {
                        match is_zero {
                            true => volume.zero(offset, CHUNK as u64, version % 2 == 0).await,
                            false => {
                                let data = Bytes::from(varied(*chunk, version));
                                volume.write(offset, data, false).await
                            }
                        }
                    }
                }));
                let turns = random.below(30);
                let does_flush = random.below(4) == 0;
                let flush = async {
                    for _ in 0..turns {
                        give_turn().await;
                    }
                    match does_flush {
                        true => rig.volume.flush().await.is_ok(),
                        false => false,
                    }
                };
                let before = chunks.clone();
                let (changed, is_flushed) = rig.run(join(all, flush));
                if is_flushed {
                    for (chunk, before) in chunks.iter_mut().zip(before) {
                        if before.is_sure {
                            (chunk.durable, chunk.since) = (before.newest().clone(), Vec::new());
                        }
                    }
                }
                for ((chunk, is_zero), changed) in changes.into_iter().zip(changed) {
                    let bytes = match is_zero {
                        true => vec![0; CHUNK],
                        false => varied(chunk, version),
                    };
                    chunks[chunk].changed(&bytes, changed.is_ok());
                }
                if case.medium.is_crashed() || case.backing.is_crashed() {
                    crashes += 1;
                    break;
                }
                match random.below(6) {
                    0 => case.rig().tick(),
                    1 => case.rig().settle(),
                    _ => {}
                }
            }
            absorbed += case.store().counts().absorbed_contents;
            case.crash(random.below(3) > 0);
            let what = format!("seed {seed}, life {life}");
            let started = case.start(Mode::WriteBack);
            started.unwrap_or_else(|error| panic!("{what}: {error}"));
            dirty += u32::from(case.dirty() > 0);
            for (number, chunk) in chunks.iter_mut().enumerate() {
                let found = case.read(number * CHUNK..(number + 1) * CHUNK);
                let found = found.unwrap_or_else(|error| panic!("{what}, chunk {number}: {error}"));
                chunk.found(&found, &format!("{what}, chunk {number}"));
                case.array[number * CHUNK..(number + 1) * CHUNK].copy_from_slice(&found);
            }
            case.check(0..CHUNKS * CHUNK);
        }
        case.rig().check_books();
    }
    println!(
        "{crashes} crashes among requests, {dirty} starts with dirty chunks, {absorbed} contents absorbed"
    );
    assert!(crashes > SEEDS && u64::from(dirty) > SEEDS, "{crashes} {dirty}");
    assert!(absorbed > 5 * SEEDS, "{absorbed}");
}

/// While blocks are sealed, checkpoints are written and, in the small cache, blocks are reclaimed.
#[test]
fn a_crash_at_any_write_leaves_what_was_flushed_or_something_newer() {
    let (mut crashes, mut written) = (0, 0);
    for (bytes, settings, count) in [(1 << 20, narrow(500), 110), (8 << 20, wide(), 250)] {
        for point in 1..=120 {
            let medium = Arc::new(FaultyMedium::new(bytes, point, calm()));
            let mut case = Case::with(medium, point, settings.clone());
            case.put(0..count, 1);
            case.flush().unwrap();
            if point % 2 == 0 {
                case.drain().unwrap();
            }
            case.rig().settle();
            case.medium.set_plan(FaultPlan {
                crash: Some(CrashPoint::WriteOrAppend(point)),
                slow: [0.0, 0.3][point as usize / 2 % 2],
                ..calm()
            });
            for chunk in 0..count {
                if case.write(chunk * CHUNK, &content(chunk, 2)).is_err() || case.medium.is_crashed() {
                    break;
                }
                written += 1;
            }
            crashes += u32::from(case.medium.is_crashed());
            case.crash(point % 3 > 0);
            let what = format!("{bytes} bytes, point {point}");
            let started = case.start(Mode::WriteBack);
            started.unwrap_or_else(|error| panic!("{what}: {error}"));
            for chunk in 0..count {
                let known = [content(chunk, 1), content(chunk, 2)];
                let found = case.read(bytes_of(chunk..chunk + 1)).unwrap();
                for at in (0..CHUNK).step_by(SECTOR) {
                    let is_known = known
                        .iter()
                        .any(|known| known[at..at + SECTOR] == found[at..at + SECTOR]);
                    assert!(is_known, "{what}, chunk {chunk}, sector {}", at / SECTOR);
                }
            }
        }
    }
    println!("{crashes} crashes, {written} chunks written before");
    assert!(crashes > 60, "{crashes}");
}
