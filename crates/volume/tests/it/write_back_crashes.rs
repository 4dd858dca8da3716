//! Write-back with many requests at once, in a cache smaller than what is written, and crashes among them.

use crate::backing::Faults;
use crate::case::{Case, bytes_of, content, narrow, wide};
use crate::rig::{CHUNK, volatile};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use pumice_blocks::give_turn;
use pumice_testkit::Disk;
use pumice_testkit::{CrashPoint, FaultPlan, FaultyMedium};
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

/// What a start finds may be there, and is there to stay.
fn take_found(case: &mut Case, disk: &mut Disk, chunks: usize, what: &str) {
    for chunk in 0..chunks {
        let range = bytes_of(chunk..chunk + 1);
        let found = case.read(range.clone());
        let found = found.unwrap_or_else(|error| panic!("{what}, chunk {chunk}: {error}"));
        let is_legal = disk.found(range.start, &found);
        is_legal.unwrap_or_else(|error| panic!("{what}, chunk {chunk}: {error}"));
        case.array[range].copy_from_slice(&found);
    }
}

#[test]
fn crashes_among_many_writes_lose_nothing_that_was_flushed() {
    let (mut crashes, mut dirty, mut absorbed) = (0, 0, 0);
    for seed in 0..SEEDS {
        let medium = Arc::new(FaultyMedium::new(1 << 20, seed, volatile()));
        let mut case = Case::with(medium, seed, narrow([20, 60, 500][seed as usize % 3]));
        let mut random = Random(seed);
        let mut disk = Disk::new(CHUNKS * CHUNK);
        let mut version = 0;
        for life in 0..4 {
            let point = 1 + random.below(150);
            let is_backing = random.below(4) == 0;
            let crash = (!is_backing).then_some(CrashPoint::WriteOrAppend(point));
            case.medium.set_plan(FaultPlan {
                crash,
                // Some writes are overtaken by many others.
                slow: [0.0, 0.2][random.below(2) as usize],
                ..volatile()
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
                let before = disk.clone();
                let (changed, is_flushed) = rig.run(join(all, flush));
                if is_flushed {
                    disk.flushed(&before);
                }
                for ((chunk, is_zero), changed) in changes.into_iter().zip(changed) {
                    let bytes = match is_zero {
                        true => vec![0; CHUNK],
                        false => varied(chunk, version),
                    };
                    disk.change(chunk * CHUNK, &bytes, changed.is_ok(), false);
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
            take_found(&mut case, &mut disk, CHUNKS, &what);
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
            let medium = Arc::new(FaultyMedium::new(bytes, point, volatile()));
            let mut case = Case::with(medium, point, settings.clone());
            let mut disk = Disk::new(count * CHUNK);
            case.put(0..count, 1);
            (0..count).for_each(|chunk| disk.change(chunk * CHUNK, &content(chunk, 1), true, true));
            case.flush().unwrap();
            if point % 2 == 0 {
                case.drain().unwrap();
            }
            case.rig().settle();
            case.medium.set_plan(FaultPlan {
                crash: Some(CrashPoint::WriteOrAppend(point)),
                slow: [0.0, 0.3][point as usize / 2 % 2],
                ..volatile()
            });
            for chunk in 0..count {
                let is_written = case.write(chunk * CHUNK, &content(chunk, 2)).is_ok();
                disk.change(chunk * CHUNK, &content(chunk, 2), is_written, false);
                if !is_written || case.medium.is_crashed() {
                    break;
                }
                written += 1;
            }
            crashes += u32::from(case.medium.is_crashed());
            case.crash(point % 3 > 0);
            let what = format!("{bytes} bytes, point {point}");
            let started = case.start(Mode::WriteBack);
            started.unwrap_or_else(|error| panic!("{what}: {error}"));
            take_found(&mut case, &mut disk, count, &what);
        }
    }
    println!("{crashes} crashes, {written} chunks written before");
    assert!(crashes > 60, "{crashes}");
}
