//! Lives of a store in write-back, before a volume. Every dimension that a volume makes of it is drawn, each with every other: contents and their
//! duplicates, parts, trims, flushes, cleaning, checkpoints, reclaims, the end of a life and the start after it, power cuts, damage. A read finds what
//! was flushed, or something newer. `pumice_testkit::draw_lives` says how to choose seeds.

mod client;
mod host;
mod life;

use crate::store::CHUNK_BYTES;
use bytes::Bytes;
use host::{Host, Volume};
use pumice_chunk::store::{ChunkCounts, Quiet, Ticket};
use pumice_testkit::FaultyMedium;
use pumice_testkit::{Disk, Life, Pairs, dimensions, draw_lives};
use pumice_world::{Executor, Random};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

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
    let mut totals = Totals::default();
    let count = draw_lives(SEEDS, DIMENSIONS, |seed, pairs| run(seed, &mut totals, pairs));
    println!("{totals:?}");
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
