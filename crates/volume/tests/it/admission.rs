//! What a rule of admission and a write budget let into the cache. What they refuse is served, and void.

use crate::backing::FaultyBacking;
use crate::case::{Case, bytes_of, content, wide};
use crate::rig::{CHUNK, Rig, settings, volatile};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use pumice_admit::{Rule, WriteBudget};
use pumice_testkit::{FaultPlan, FaultyMedium};
use pumice_volume::{Mode, Settings, VolumeCounts};
use std::sync::Arc;

/// Chunks of the volume: nine times what the cache has room for.
const CHUNKS: usize = 8_000;
/// Chunks that are read often.
const HOT: usize = 200;
/// Chunks that are read once, and those of them that come last.
const SWEEP: std::ops::Range<usize> = 2_000..8_000;
const LAST: usize = 100;

/// So seldom that a full cache refuses all.
const NEVER: Rule = Rule::Random(f64::MIN_POSITIVE);
/// With it nothing enters in a test whose clock stands still.
const NOTHING: WriteBudget = WriteBudget {
    bytes: 8 << 20,
    period_secs: 86_400,
};
/// What can be saved is 1 MiB, and 104 kB flow in in a second.
const MIB_SAVED: WriteBudget = WriteBudget {
    bytes: 24 << 20,
    period_secs: 240,
};

/// The number of a read of the sweep, in no order.
fn swept(number: usize) -> usize {
    SWEEP.start + number * 1_009 % SWEEP.len()
}

struct Swept {
    rig: Rig,
    backing: FaultyBacking,
}

impl Swept {
    /// A full cache that has the hot set.
    fn new(rule: Rule, mode: Mode) -> Self {
        Self::with(rule, mode, (0, 0), None)
    }

    /// The same with so many chunks of DRAM, and of read-ahead, and reads that are split so.
    fn with(rule: Rule, mode: Mode, chunks: (usize, usize), split: Option<(f64, bool)>) -> Self {
        let backing = FaultyBacking::new(CHUNKS * CHUNK, 1);
        let bytes: Vec<u8> = (0..CHUNKS).flat_map(|chunk| content(chunk, 0)).collect();
        backing.write_elsewhere(0, &bytes);
        let mut settings = Settings {
            rule,
            dram_bytes: chunks.0 * CHUNK,
            read_ahead_bytes: (chunks.1 * CHUNK) as u64,
            ..settings(mode, 1)
        };
        (settings.cache.mappings, settings.cache.contents) = (2_000, 2_000);
        let medium = Arc::new(FaultyMedium::new(4 << 20, 1, volatile()));
        let rig = Rig::open_with(&settings, &medium, &backing, split).unwrap();
        let swept = Self { rig, backing };
        (0..1_500).for_each(|number| swept.read(number * 7 % 1_500));
        assert!(!swept.rig.volume.shared().store().unwrap().has_free_room(0..1));
        (0..3 * HOT).for_each(|number| swept.read(number * 7 % HOT));
        swept
    }

    fn counts(&self) -> VolumeCounts {
        self.rig.volume.shared().counts()
    }

    fn read(&self, chunk: usize) {
        let read = self.rig.volume.read((chunk * CHUNK) as u64, CHUNK);
        assert!(self.rig.run(read).unwrap() == content(chunk, 0), "chunk {chunk}");
        self.rig.settle();
    }

    fn write(&self, chunk: usize) {
        let data = Bytes::from(content(chunk, 0));
        let write = self.rig.volume.write((chunk * CHUNK) as u64, data, false);
        self.rig.run(write).unwrap();
        self.rig.settle();
    }

    /// Zeroes a chunk, and reads it; whether it has entered.
    fn enters(&self, chunk: usize) -> bool {
        let at = (chunk * CHUNK) as u64;
        self.rig
            .run(self.rig.volume.zero(at, CHUNK as u64, false))
            .unwrap();
        assert!(!self.is_cached(chunk));
        self.rig.run(self.rig.volume.read(at, CHUNK)).unwrap();
        self.is_cached(chunk)
    }

    /// Reads chunks; how many of them the cache device had.
    fn hits(&self, chunks: impl Iterator<Item = usize>) -> u64 {
        let hits = |counts: VolumeCounts| counts.read_hits + counts.read_redirected;
        let before = hits(self.counts());
        chunks.for_each(|chunk| self.read(chunk));
        hits(self.counts()) - before
    }

    fn is_cached(&self, chunk: usize) -> bool {
        let store = self.rig.volume.shared().store().unwrap();
        store.place(chunk as u64).is_some()
    }
}

#[test]
fn second_hit_keeps_a_sweep_of_reads_out_and_lets_second_misses_in() {
    for rule in [Rule::SecondHit, Rule::All] {
        let swept_by = Swept::new(rule, Mode::WriteThrough);
        assert_eq!(swept_by.hits(0..HOT), HOT as u64, "{rule}");
        let before = swept_by.counts();
        for number in 0..SWEEP.len() {
            swept_by.read(swept(number));
        }
        let counts = swept_by.counts();
        let entered = counts.fills_stored - before.fills_stored;
        let refused = counts.fills_rule - before.fills_rule;
        let hot = swept_by.hits(0..HOT);
        swept_by.rig.check_books();
        if rule == Rule::All {
            assert_eq!((entered, refused), (SWEEP.len() as u64, 0));
            assert!(hot < HOT as u64 / 4, "{hot}");
            continue;
        }
        assert!(entered < SWEEP.len() as u64 / 50, "{entered} entered");
        assert_eq!(entered + refused, SWEEP.len() as u64);
        assert!(hot > HOT as u64 * 95 / 100, "{hot} hits of the hot set");
        // Those that were read last are known still: they enter, and then they hit.
        let last = || (SWEEP.len() - LAST..SWEEP.len()).map(swept);
        swept_by.hits(last());
        let hits = swept_by.hits(last());
        assert!(hits > LAST as u64 * 95 / 100, "{hits} of {LAST}");
        let figures = swept_by.rig.volume.shared().admission().unwrap();
        assert_eq!(figures.refused_by_rule_objects, swept_by.counts().fills_rule);
        assert!(figures.dram_bytes <= 2 * 2_000 + 4_096, "{figures:?}");
    }
}

/// A hit makes a chunk that missed lately the newest of those that are remembered, also a hit that the backing device answers in place of the cache.
/// A chunk that was forgotten stays so.
#[test]
fn a_hit_makes_second_hit_remember_for_longer_what_it_remembers() {
    for split in [None, Some((0.0, true))] {
        let swept_by = Swept::with(Rule::SecondHit, Mode::WriteThrough, (0, 0), split);
        (0..SWEEP.len()).for_each(|number| swept_by.read(swept(number)));
        for chunk in 0..40 {
            assert!(!swept_by.enters(chunk), "{chunk} was forgotten");
            assert!(swept_by.enters(chunk));
            swept_by.write(chunk);
        }
        // Those that were written are remembered for the first part of what comes, and not for both.
        let (part, later) = (650, SWEEP.len() / 2);
        (0..part).for_each(|number| swept_by.read(swept(number)));
        assert!(swept_by.hits(0..20) >= 18);
        assert_eq!(swept_by.counts().read_redirected > 0, split.is_some());
        (later..later + part).for_each(|number| swept_by.read(swept(number)));
        assert!(swept_by.hits(40..60) >= 18);
        let known =
            [0..20, 20..40, 40..60].map(|chunks| chunks.filter(|chunk| swept_by.enters(*chunk)).count());
        assert!(matches!(known, [18..=20, 0..=2, 0..=2]), "{known:?}");
    }
}

/// What no rule is asked about is no access: the rule would take later hits for what chance would have gained.
#[test]
fn second_hit_does_not_remember_what_is_written_back_and_what_a_client_told_the_cache_to_have() {
    let swept_by = Swept::new(Rule::SecondHit, Mode::WriteBack);
    (0..SWEEP.len()).for_each(|number| swept_by.read(swept(number)));
    let known = swept(SWEEP.len() - 1);
    assert!(!swept_by.is_cached(known));
    for chunk in [5, 6] {
        swept_by.write(chunk);
        assert!(swept_by.is_cached(chunk));
    }
    let at = (7 * CHUNK) as u64;
    let zeroed = swept_by.rig.volume.zero(at, CHUNK as u64, false);
    swept_by.rig.run(zeroed).unwrap();
    swept_by.rig.run(swept_by.rig.volume.prefetch(at, CHUNK)).unwrap();
    assert!(swept_by.is_cached(7));
    let entered = [5, 6, 7, known].map(|chunk| swept_by.enters(chunk));
    assert_eq!(entered, [false, false, false, true]);
}

/// A chunk that is asked for again and again enters some time.
#[test]
fn chance_is_asked_anew_at_each_access() {
    let swept_by = Swept::new(Rule::Random(0.25), Mode::WriteThrough);
    let reads = (3_000..3_040).map(|chunk| {
        let is_missing = |_: &u32| {
            swept_by.read(chunk);
            !swept_by.is_cached(chunk)
        };
        (0..100).take_while(is_missing).count()
    });
    let reads: Vec<usize> = reads.collect();
    assert!(reads.iter().all(|refused| *refused < 60), "{reads:?}");
    let refused: usize = reads.iter().sum();
    assert!((60..240).contains(&refused), "{reads:?}");
}

/// Where the cache device has failed nothing is judged: what cannot enter is counted for that reason.
#[test]
fn a_rule_refuses_nothing_on_a_device_that_has_failed() {
    let swept_by = Swept::new(NEVER, Mode::WriteThrough);
    swept_by.rig.device.medium().set_plan(FaultPlan {
        write_error: 1.0,
        ..volatile()
    });
    // Until a block of these is written.
    let store = swept_by.rig.volume.shared().store().unwrap();
    for at in (4_000..6_000).map(|chunk| (chunk * CHUNK) as u64) {
        if store.failure().is_none() {
            swept_by.rig.run(swept_by.rig.volume.prefetch(at, CHUNK)).unwrap();
            swept_by.rig.settle();
        }
    }
    assert!(store.failure().is_some());
    let before = swept_by.counts();
    (3_000..3_010).for_each(|chunk| swept_by.read(chunk));
    let counts = swept_by.counts();
    assert_eq!(counts.fills_rule, before.fills_rule);
    assert_eq!(counts.fills_out - before.fills_out, 10);
    swept_by.rig.check_books();
}

/// A sweep of writes. What is written over is void, and what the cache had is admitted as an older version.
#[test]
fn second_hit_keeps_a_sweep_of_writes_out_and_what_is_cached_is_written_over() {
    let swept_by = Swept::new(Rule::SecondHit, Mode::WriteThrough);
    // The ghost has forgotten what is hot.
    (0..SWEEP.len()).for_each(|number| swept_by.read(swept(number)));
    let cached = (0..HOT).filter(|chunk| swept_by.is_cached(*chunk)).count();
    assert!(cached > HOT * 95 / 100, "{cached}");
    let stored = || swept_by.counts().writes_stored + swept_by.counts().writes_duplicate;
    (0..HOT).for_each(|chunk| swept_by.write(chunk));
    assert!(stored() >= cached as u64, "{}", stored());
    let (before, stored_before) = (swept_by.counts(), stored());
    for number in 0..SWEEP.len() {
        swept_by.write(swept(number));
    }
    let counts = swept_by.counts();
    let entered = stored() - stored_before;
    // Of what was read last some is known.
    assert!(entered < SWEEP.len() as u64 / 50, "{entered} entered");
    assert_eq!(
        entered + counts.writes_rule - before.writes_rule,
        SWEEP.len() as u64
    );
    let hot = swept_by.hits(0..HOT);
    assert!(hot > HOT as u64 * 95 / 100, "{hot} hits of the hot set");
    swept_by.rig.check_books();
}

#[test]
fn what_a_rule_refuses_is_in_dram_until_a_client_tells_the_cache_to_have_it() {
    let swept_by = Swept::with(NEVER, Mode::WriteThrough, (3_000, 0), None);
    let chunks = 7_000..7_100;
    chunks.clone().for_each(|chunk| swept_by.read(chunk));
    let (before, reads) = (swept_by.counts(), swept_by.backing.reads());
    assert!(chunks.clone().all(|chunk| !swept_by.is_cached(chunk)));
    chunks.clone().for_each(|chunk| swept_by.read(chunk));
    let counts = swept_by.counts();
    assert_eq!(counts.read_dram_hits - before.read_dram_hits, chunks.len() as u64);
    assert_eq!(swept_by.backing.reads(), reads);
    // A client may ask for it all the same.
    let filled = swept_by.rig.volume.prefetch(7_000 * CHUNK as u64, 100 * CHUNK);
    swept_by.rig.run(filled).unwrap();
    assert!(chunks.clone().all(|chunk| swept_by.is_cached(chunk)));
    swept_by.rig.check_books();
}

/// A read-ahead under way, which the rule refuses, leaves in DRAM what a client has told the cache to have.
#[test]
fn what_the_cache_is_told_to_have_enters_also_while_it_is_read_ahead() {
    let mut under_way = 0;
    for first in (3_000..6_000).step_by(100) {
        let swept_by = Swept::with(NEVER, Mode::WriteThrough, (3_000, 32), None);
        // A stream, and what is ahead of it is on the way.
        for chunk in first..first + 8 {
            let read = swept_by.rig.volume.read((chunk * CHUNK) as u64, CHUNK);
            swept_by.rig.run(read).unwrap();
        }
        let ahead = first + 8..first + 24;
        let at = (ahead.start * CHUNK) as u64;
        let before = swept_by.counts();
        swept_by
            .rig
            .run(swept_by.rig.volume.prefetch(at, ahead.len() * CHUNK))
            .unwrap();
        let is_missing = |chunk: &usize| !swept_by.is_cached(*chunk);
        assert_eq!(ahead.filter(is_missing).count(), 0, "from {first}");
        under_way += u64::from(swept_by.counts().fills_rule > before.fills_rule);
    }
    assert!(under_way > 5, "{under_way}");
}

/// Without a DRAM tier nothing would keep what is ahead: it is not fetched.
#[test]
fn a_stream_that_is_refused_reads_each_byte_once() {
    for (dram_chunks, ahead_chunks) in [(1_000, 16), (0, 16), (0, 0)] {
        let mut settings = wide();
        settings.mode = Mode::WriteThrough;
        settings.write_budget = Some(NOTHING);
        settings.dram_bytes = dram_chunks * CHUNK;
        settings.read_ahead_bytes = (ahead_chunks * CHUNK) as u64;
        // Full, so that nothing enters.
        let medium = Arc::new(FaultyMedium::new(1 << 20, 1, volatile()));
        let backing = FaultyBacking::new(CHUNKS * CHUNK, 1);
        let full = Settings {
            write_budget: None,
            ..settings.clone()
        };
        let rig = Rig::open(&full, &medium, &backing).unwrap();
        for chunk in 1_000..1_500 {
            let data = Bytes::from(content(chunk, 0));
            rig.run(rig.volume.write((chunk * CHUNK) as u64, data, false))
                .unwrap();
            rig.settle();
        }
        rig.run(rig.volume.close()).unwrap();
        drop(rig);
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        for at in (0..200 * CHUNK).step_by(CHUNK) {
            rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
            rig.settle();
        }
        let counts = rig.volume.shared().counts();
        assert_eq!(counts.fills_stored, 0);
        let is_ahead = dram_chunks > 0 && ahead_chunks > 0;
        assert_eq!(counts.read_ahead_bytes > 0, is_ahead, "{counts:?}");
        let read = counts.backing_read_bytes;
        let most = (200 + ahead_chunks) * CHUNK;
        assert!(read <= most as u64, "{read} of {most}: {counts:?}");
        if dram_chunks > 0 {
            // DRAM has it: a second stream fetches nothing ahead, but behind the end of the first.
            for at in (0..180 * CHUNK).step_by(CHUNK) {
                rig.run(rig.volume.read(at as u64, CHUNK)).unwrap();
                rig.settle();
            }
            assert_eq!(rig.volume.shared().counts().backing_read_bytes, read);
        }
        rig.check_books();
    }
}

/// In each mode that caches writes: reads find the new bytes now, after a crash, and after a power cut.
#[test]
fn a_refused_write_voids_what_is_cached_and_no_crash_brings_it_back() {
    for (seed, mode) in [
        (1, Mode::WriteThrough),
        (2, Mode::WriteBack),
        (3, Mode::WriteThrough),
        (4, Mode::WriteBack),
    ] {
        let mut case = Case::new(seed, wide());
        // Clean, dirty, and of neither the cache has anything.
        case.put(0..40, 1);
        case.drain().unwrap();
        case.close();
        case.start(Mode::WriteBack).unwrap();
        if mode == Mode::WriteBack {
            case.put(20..40, 2);
        }
        case.close();
        case.settings.write_budget = Some(NOTHING);
        case.start(mode).unwrap();
        assert_eq!(case.dirty(), if mode == Mode::WriteBack { 20 } else { 0 });
        let written = case.store().counts().stored_contents;
        let before = case.backing.changes();
        // Whole chunks, a part of one, and many at once.
        case.put([3, 25, 60], 3);
        case.write(7 * CHUNK + 700, &[9; 900]).unwrap();
        case.write(30 * CHUNK + 700, &[9; 900]).unwrap();
        let many: Vec<u8> = (10..20).flat_map(|chunk| content(chunk, 4)).collect();
        case.write(10 * CHUNK, &many).unwrap();
        let chunks = [3, 7, 25, 30, 60].into_iter().chain(10..20);
        for chunk in chunks.clone() {
            assert!(case.store().place(chunk as u64).is_none(), "{mode:?}: {chunk}");
            let bytes = bytes_of(chunk..chunk + 1);
            assert!(
                case.backing.bytes()[bytes.clone()] == case.array[bytes],
                "{mode:?}: {chunk}"
            );
        }
        let many = 10 * CHUNK as u64..20 * CHUNK as u64;
        assert!(
            case.backing.ranges_since(before).contains(&many),
            "neighbours go through in one write"
        );
        let counts = case.rig().volume.shared().counts();
        assert_eq!(
            (counts.writes_budget, counts.writes_stored),
            (chunks.count() as u64, 0),
            "{mode:?}"
        );
        case.check_all();
        let stored = case.store().counts().stored_contents;
        assert_eq!(stored, written, "nothing has entered");
        case.flush().unwrap();
        case.crash(seed > 2);
        case.start(mode).unwrap();
        case.check_all();
        case.drain().unwrap();
        case.check_backing();
    }
}

/// What is sent without a request that is judged counts at once, and time passes without requests.
#[test]
fn a_quiet_time_is_saved_and_zeroes_take_only_what_they_send() {
    let mut settings = wide();
    settings.write_budget = Some(MIB_SAVED);
    let mut case = Case::new(1, settings);
    let left = |case: &Case| case.rig().volume.shared().admission().unwrap().budget_left_bytes;
    assert_eq!(left(&case), 0);
    (0..10).for_each(|_| case.rig().tick());
    assert!(left(&case) > 900_000, "{}", left(&case));
    // For longer than what can be saved takes to flow in.
    for second in 0..40 {
        for number in 0..64 {
            let chunk = (second * 64 + number) % 290;
            case.zero(bytes_of(chunk..chunk + 1), false).unwrap();
        }
        case.rig().tick();
        case.rig().settle();
    }
    assert!(left(&case) > 900_000, "{}", left(&case));
    let before = case.rig().volume.shared().counts();
    case.put([1], 1);
    let counts = case.rig().volume.shared().counts();
    assert_eq!(counts.writes_stored - before.writes_stored, 1);
}

/// What a client waits for, and what the mode is there for, go in longest.
#[test]
fn short_of_budget_writes_in_write_back_and_cache_commands_enter_when_reads_do_not() {
    let mut settings = wide();
    // In three seconds about a seventh of 1 MiB: between an eighth and three sixteenths.
    settings.write_budget = Some(WriteBudget {
        period_secs: 460,
        ..MIB_SAVED
    });
    let mut case = Case::new(1, settings);
    let counts = |case: &Case| case.rig().volume.shared().counts();
    (0..3).for_each(|_| case.rig().tick());
    let left = case.rig().volume.shared().admission().unwrap().budget_left_bytes;
    assert!(((1 << 17) + 12_000..3 << 16).contains(&left), "{left}");
    case.read(bytes_of(20..21)).unwrap();
    assert_eq!((counts(&case).fills_budget, counts(&case).fills_stored), (1, 0));
    case.put([21], 1);
    assert_eq!((counts(&case).writes_budget, counts(&case).writes_stored), (0, 1));
    let filled = case.rig().volume.prefetch(20 * CHUNK as u64, CHUNK);
    case.rig().run(filled).unwrap();
    assert!(case.store().place(20).is_some());
    case.rig().check_books();
}

/// Voids, and the checkpoints that they bring, are not held back.
#[test]
fn voids_overdraw_the_budget_and_then_a_reclaim_may_keep_nothing() {
    let mut settings = wide();
    settings.write_budget = Some(MIB_SAVED);
    let mut case = Case::new(1, settings);
    case.put([1], 1);
    assert!(!case.store().may_keep(), "a start has nothing saved");
    (0..4).for_each(|_| case.second(false));
    assert!(case.store().may_keep());
    for number in 0..10_000 {
        case.zero(bytes_of(number % 290..number % 290 + 1), false)
            .unwrap();
        case.rig().settle();
    }
    assert!(!case.store().may_keep());
    assert_eq!(
        case.rig().volume.shared().admission().unwrap().budget_left_bytes,
        0
    );
}

/// All wait for the same reclaim, and each is judged by what the others are about to send.
#[test]
fn requests_at_once_do_not_overdraw_the_budget() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let backing = FaultyBacking::new(CHUNKS * CHUNK, 1);
        let bytes: Vec<u8> = (0..CHUNKS).flat_map(|chunk| content(chunk, 0)).collect();
        backing.write_elsewhere(0, &bytes);
        let medium = Arc::new(FaultyMedium::new(2 << 20, 1, volatile()));
        let mut settings = settings(mode, 1);
        (settings.cache.mappings, settings.cache.contents) = (1_000, 1_000);
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        for chunk in 0..1_000 {
            rig.run(rig.volume.read((chunk * CHUNK) as u64, CHUNK)).unwrap();
            rig.settle();
        }
        rig.run(rig.volume.close()).unwrap();
        drop(rig);
        settings.write_budget = Some(MIB_SAVED);
        let rig = Rig::open(&settings, &medium, &backing).unwrap();
        let figures = || rig.volume.shared().admission().unwrap();
        (0..4).for_each(|_| rig.tick());
        // Duplicates take 48 bytes each, and so does the mean.
        for chunk in 5_000..5_300 {
            let data = Bytes::from(content(5_000, 1));
            rig.run(rig.volume.write((chunk * CHUNK) as u64, data, false))
                .unwrap();
        }
        rig.settle();
        let left = figures().budget_left_bytes;
        assert!((250_000..420_000).contains(&left), "{left}");
        let sent = || rig.volume.shared().store().unwrap().sent_bytes();
        let before = sent();
        let reads = (3_000..3_300).map(|chunk: usize| {
            let volume = rig.volume.clone();
            async move { volume.read((chunk * CHUNK) as u64, CHUNK).await.map(drop) }
        });
        let writes = (4_000..4_300).map(|chunk: usize| {
            let (volume, data) = (rig.volume.clone(), Bytes::from(content(chunk, 1)));
            async move { volume.write((chunk * CHUNK) as u64, data, false).await }
        });
        let (read, written) = rig.run(join(join_all(reads), join_all(writes)));
        assert!(read.into_iter().chain(written).all(|result| result.is_ok()));
        rig.settle();
        let counts = rig.volume.shared().counts();
        assert!(counts.writes_duplicate > 250, "{counts:?}");
        let entered = counts.fills_stored + counts.writes_stored;
        println!("{mode:?}: {entered} entered, {} of {left} sent", sent() - before);
        assert!(entered > 20, "{counts:?}");
        // Beside it the footers of the blocks that were filled, and what voids write.
        assert!(sent() - before < left + (128 << 10), "{counts:?}");
        assert!(entered * CHUNK as u64 <= left, "{entered} entered");
        rig.check_books();
    }
}

/// A rule refuses nothing that is written back, also where the cache is full.
#[test]
fn in_write_back_a_rule_lets_writes_in() {
    for rule in [Rule::SecondHit, NEVER] {
        let mut settings = wide();
        settings.rule = rule;
        let medium = Arc::new(FaultyMedium::new(1 << 20, 1, volatile()));
        let mut case = Case::with(medium, 1, settings);
        for version in 1..4 {
            for chunk in 0..300 {
                case.put([chunk], version);
                case.rig().settle();
            }
            case.drain().unwrap();
        }
        assert!(!case.store().has_free_room(0..1));
        let counts = case.rig().volume.shared().counts();
        assert_eq!((counts.writes_rule, counts.writes_budget), (0, 0));
        assert!(counts.writes_stored > 800, "{counts:?}");
        // Reads are judged.
        case.check_all();
        let counts = case.rig().volume.shared().counts();
        assert!(counts.fills_rule > 50, "{counts:?}");
    }
}
