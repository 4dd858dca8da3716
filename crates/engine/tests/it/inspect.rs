//! What `pumice inspect` says of devices that the engine has written: nothing is wrong after a clean stop or a crash, under any
//! layout and index, and every bit that is changed where it counts is named.

use crate::common::dying::{Run, crash_at};
use crate::common::{Random, Rig, Weights, cascade, cascade_layouts, key, ripq, sipq};
use pumice::{CacheOptions, CascadeOptions, Durability, IndexOptions};
use pumice_device::Device;
use pumice_flash::inspect::{Finding, Part, Severity, Sink, Summary, inspect};
use pumice_testkit::{FaultPlan, FaultyDevice};
use std::ops::Range;
use std::sync::Arc;

const FLASH_BYTES: u64 = 3 << 20;
const BLOCK_BYTES: u64 = 64 << 10;

/// A cascade index with pages as they are outside tests.
fn whole_pages() -> IndexOptions {
    IndexOptions::Cascade(CascadeOptions {
        tier1_min: 3,
        tier1_share: 0.05,
        page_entries: 338,
    })
}

fn caches() -> Vec<CacheOptions> {
    let full = CacheOptions {
        dram_bytes: 640 << 10,
        block_bytes: Some(BLOCK_BYTES),
        item_bytes_max: 200 << 10,
        buffers_max: 10,
        ..CacheOptions::default()
    };
    let of_full = [full.layout, ripq(), sipq()].map(|layout| CacheOptions { layout, ..full });
    let of_cascade = [cascade(), whole_pages()].into_iter().flat_map(|index| {
        // A partition fills a whole page in DRAM before it is written: there is to be room for such a page of each.
        let dram_bytes = if index == whole_pages() {
            1 << 20
        } else {
            full.dram_bytes
        };
        cascade_layouts().map(|layout| CacheOptions {
            index,
            layout,
            dram_bytes,
            ..full
        })
    });
    of_full.into_iter().chain(of_cascade).collect()
}

/// A cache on a medium of its own.
struct Made {
    run: Run,
    /// Whether objects are small and many: where pages have room for many mappings there must be many.
    is_small: bool,
}

impl Made {
    fn new(seed: u64, options: CacheOptions) -> Self {
        let mut run = Run::on(FLASH_BYTES, seed, options);
        run.medium.set_plan(FaultPlan::default());
        run.weights = Weights::mixed();
        Self {
            run,
            is_small: options.index == whole_pages(),
        }
    }

    fn open(&mut self) -> Rig<FaultyDevice> {
        let rig = self.run.open();
        if !self.is_small {
            // The step that a crash hit may have happened or not.
            self.run.reconcile(&rig, 400, "inspect");
        }
        rig
    }

    /// Goes on until `steps` are done or the device has crashed.
    fn work(&mut self, rig: &Rig<FaultyDevice>, steps: u64) {
        let run = &mut self.run;
        let first = run.steps + 1;
        run.steps += if self.is_small { 6 * steps } else { steps };
        if !self.is_small {
            return run.live(rig, first..run.steps + 1, 400);
        }
        for n in first..run.steps + 1 {
            let name = key(run.random.below(12_000));
            if run.random.below(12) == 0 {
                rig.run(rig.cache.delete(&rig.cx, &name));
            } else {
                rig.set(&name, b"small");
            }
            if n.is_multiple_of(50) {
                rig.settle();
            }
            if run.medium.is_crashed() {
                break;
            }
        }
    }

    /// The bytes on the medium, whatever has happened to it.
    fn bytes(&self) -> Vec<u8> {
        let medium = &self.run.medium;
        medium.restart();
        medium.set_plan(FaultPlan::default());
        let mut bytes = vec![0; medium.capacity() as usize];
        let device = FaultyDevice::new(Arc::clone(medium));
        device.read_log(0, &mut bytes).unwrap();
        bytes
    }

    fn stop(&self, rig: Rig<FaultyDevice>) {
        rig.settle();
        rig.run(rig.cache.close(&rig.cx)).unwrap();
    }
}

fn clean(seed: u64, options: CacheOptions) -> Vec<u8> {
    let mut made = Made::new(seed, options);
    let rig = made.open();
    made.work(&rig, 3_000);
    made.stop(rig);
    made.bytes()
}

/// The process ends between two operations of the device.
fn killed(seed: u64, options: CacheOptions) -> Vec<u8> {
    let mut made = Made::new(seed, options);
    let rig = made.open();
    made.work(&rig, 3_000);
    drop(rig);
    made.run.medium.crash();
    made.bytes()
}

#[derive(Default)]
struct Heard {
    findings: Vec<Finding>,
    used: Vec<Range<u64>>,
}

impl Sink for Heard {
    fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    fn used(&mut self, range: Range<u64>) {
        self.used.push(range);
    }
}

impl Heard {
    fn wrong(&self) -> Vec<String> {
        let wrong = self
            .findings
            .iter()
            .filter(|f| f.severity == Severity::Inconsistency);
        wrong.map(ToString::to_string).collect()
    }
}

fn look(bytes: &[u8]) -> (Summary, Heard) {
    let mut heard = Heard::default();
    let summary = inspect(bytes, &mut heard, true).expect("it is a cache");
    assert_eq!(summary.inconsistencies as usize, heard.wrong().len());
    (summary, heard)
}

#[test]
fn nothing_is_wrong_after_a_clean_stop() {
    for (n, options) in (0..).zip(caches()) {
        let (summary, heard) = look(&clean(n, options));
        assert_eq!(heard.findings, [], "{options:?}");
        assert!(summary.superblock.clean && summary.checkpoint.is_some_and(|found| found.is_newest));
        assert!(summary.objects > 100 && summary.blocks.sealed > 5, "{summary:?}");
        let is_cascade = !options.index.kind().is_authoritative();
        assert_eq!(is_cascade, summary.page_mappings > 50, "{options:?}: {summary:?}");
        let without_records = inspect(&clean(n, options)[..], &mut Heard::default(), false).unwrap();
        assert_eq!(without_records.blocks, summary.blocks);
        assert_eq!(without_records.objects, summary.objects);
        let policy = Some(options.layout.policy.name()).filter(|name| name != "fifo");
        assert_eq!(summary.policy, policy.as_deref(), "{options:?}");
    }
}

/// Without a log the slot of its first record stays as it was: zeros, or a record of the cache that was there before.
#[test]
fn nothing_is_wrong_with_a_cache_without_a_log_or_in_the_place_of_another() {
    for durability in [Durability::Process, Durability::Off] {
        let options = CacheOptions {
            durability,
            ..caches()[0]
        };
        let mut made = Made::new(1, options);
        for (life, reformat) in [(1, false), (2, true), (3, true)] {
            made.run.options.random = [life, life];
            made.run.options.reformat = reformat;
            made.run.model = Default::default();
            let rig = made.open();
            // The log of the first gets longer than that of those after it.
            made.work(&rig, if reformat { 1 } else { 3_000 });
            made.stop(rig);
            let (summary, heard) = look(&made.bytes());
            assert_eq!(heard.findings, [], "{durability:?}, reformat {reformat}");
            let has_log = durability != Durability::Off;
            assert_eq!(
                summary.log.next > 0,
                has_log,
                "{durability:?}, reformat {reformat}"
            );
        }
    }
}

fn nothing_is_wrong(made: &Made, what: &str) -> Summary {
    let (summary, heard) = look(&made.bytes());
    let options = made.run.options;
    assert_eq!(
        heard.wrong(),
        Vec::<String>::new(),
        "{options:?}, {what}: {summary:?}"
    );
    summary
}

#[test]
fn nothing_is_wrong_after_a_crash_at_any_point_and_after_starts_that_follow() {
    let (mut leftovers, mut leftovers_later, mut crashes) = (0, 0, 0);
    for (n, options) in (0..).zip(caches()) {
        for point in 0..12 {
            let mut made = Made::new(n * 1_000 + point, options);
            let rig = made.open();
            made.work(&rig, 200);
            made.run
                .medium
                .set_plan(crash_at(1 + made.run.random.below(1_500)));
            made.work(&rig, 3_000);
            drop(rig);
            crashes += u64::from(made.run.medium.is_crashed());
            made.run.medium.crash();
            let summary = nothing_is_wrong(&made, &format!("point {point}"));
            leftovers += summary.leftovers;
            // What was torn stands there until its block goes, and later starts find no more wrong with it.
            for life in 0..2 {
                let rig = made.open();
                made.work(&rig, 60);
                drop(rig);
                made.run.medium.crash();
                let summary = nothing_is_wrong(&made, &format!("point {point}, start {life} after it"));
                leftovers_later += summary.leftovers;
            }
        }
        // Starts after crashes that tear nothing.
        let mut made = Made::new(n, options);
        for life in 0..3 {
            let rig = made.open();
            made.work(&rig, 500);
            if life == 2 {
                made.stop(rig);
            } else {
                drop(rig);
                made.run.medium.crash();
            }
            nothing_is_wrong(&made, &format!("life {life}"));
        }
    }
    assert!(
        leftovers > 20 && crashes > 50,
        "{leftovers} leftovers of {crashes} crashes"
    );
    println!("{crashes} crashes, {leftovers} leftovers, {leftovers_later} after later starts");
    assert!(leftovers_later > 5, "{leftovers_later}");
}

#[test]
fn every_bit_that_counts_is_named_when_it_is_wrong_and_no_other() {
    let (mut counted, mut others, mut called_leftovers) = (0, 0, 0);
    for (n, options) in (0..).zip(caches()) {
        for (is_clean, bytes) in [(true, clean(n, options)), (false, killed(n, options))] {
            let (_, pristine) = look(&bytes);
            assert_eq!(pristine.wrong(), Vec::<String>::new(), "{options:?}");
            let mut random = Random(n + 77);
            let mut damaged = bytes.clone();
            for flip in 0..50 {
                let at = match flip % 5 {
                    // Anywhere.
                    0 => random.below(bytes.len() as u64),
                    // Anywhere that counts, the small parts as often as the large.
                    _ => {
                        let range = &pristine.used[random.below(pristine.used.len() as u64) as usize];
                        range.start + random.below((range.end - range.start).max(1))
                    }
                };
                let counts = pristine.used.iter().any(|range| range.contains(&at));
                let bit = random.below(8);
                damaged[at as usize] ^= 1 << bit;
                let mut heard = Heard::default();
                let found = inspect(&damaged[..], &mut heard, true);
                damaged[at as usize] ^= 1 << bit;
                let wrong = heard.wrong();
                let what = format!("{options:?}: bit {bit} of byte {at}: {found:?}, {wrong:#?}");
                if counts {
                    counted += 1;
                    // From where the damaged part begins on.
                    let names_it = |finding: &&Finding| {
                        (finding.offset..finding.offset + BLOCK_BYTES).contains(&at)
                            && !pristine.findings.contains(finding)
                    };
                    let named: Vec<_> = heard.findings.iter().filter(names_it).collect();
                    let is_wrong = |finding: &&Finding| finding.severity == Severity::Inconsistency;
                    // After a crash, the last log record, and one whose key has another length, look as if they were cut short.
                    if !is_clean && !named.iter().any(is_wrong) {
                        called_leftovers += 1;
                    }
                    assert!(named.iter().any(|named| is_wrong(named) || !is_clean), "{what}");
                } else {
                    others += 1;
                    assert!(found.is_ok() && wrong.is_empty(), "{what}");
                }
            }
        }
    }
    println!("{counted} bits that count, {called_leftovers} of them called leftovers, {others} others");
    assert!(
        called_leftovers * 100 < counted,
        "{called_leftovers} of {counted}"
    );
    assert!(counted > 800 && others > 30, "{counted}, {others}");
}

/// However many of its bits are wrong, and nothing else is.
#[test]
fn a_damaged_record_at_the_end_of_the_log_is_named_after_a_clean_stop() {
    let mut tried = 0;
    for (n, options) in (0..).zip(caches()) {
        let mut bytes = clean(n, options);
        let (summary, _) = look(&bytes);
        let last = summary.log.next - 1;
        // Of a record that came while the checkpoint was written, nothing else tells that it was there.
        if last >= summary.superblock.checkpoints[0].log_start {
            continue;
        }
        tried += 1;
        let offset = summary.superblock.geometry.record_offset(last) as usize;
        for (len, bits) in [(1, 1), (1, 5), (32, 0xff)] {
            let damage = |bytes: &mut Vec<u8>| {
                bytes[offset..offset + len]
                    .iter_mut()
                    .for_each(|byte| *byte ^= bits)
            };
            damage(&mut bytes);
            let (damaged, heard) = look(&bytes);
            damage(&mut bytes);
            let named: Vec<_> = heard
                .findings
                .iter()
                .map(|found| (found.part, found.severity))
                .collect();
            assert_eq!(
                named,
                [(Part::Log(last), Severity::Inconsistency)],
                "{options:?}, {len} bytes"
            );
            assert_eq!(damaged.objects, summary.objects);
        }
    }
    assert!(tried > 9, "{tried}");
}
