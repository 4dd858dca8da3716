//! Draws operations: what is done next, with which key, of which size.

use crate::error::LoadError;
use crate::keys::{KeySource, KeySpace, Stream};
use crate::mix::{Action, Mix};
use crate::sizes::ValueSizes;
use pumice_trace::{BATCH_REQUESTS, Op, Request, Zipf};
use pumice_world::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What to do.
    pub action: Action,
    /// The key.
    pub key: u64,
    /// Bytes of its value.
    pub size: u32,
}

/// What all threads draw from.
pub struct Workload {
    /// The keys.
    pub source: KeySource,
    /// The mix.
    pub mix: Mix,
    /// The sizes.
    pub sizes: ValueSizes,
    /// Most keys of a scan.
    pub scan_keys_max: u32,
    /// Keys inserted so far, beyond those of the source.
    inserted: AtomicU64,
    /// Those of them that are acknowledged.
    settled: AtomicU64,
}

impl Workload {
    /// Puts source, mix and sizes together.
    ///
    /// # Errors
    /// A mix that needs numbered keys or recorded sizes, where the source has none.
    pub fn new(
        source: KeySource,
        mix: Mix,
        sizes: ValueSizes,
        scan_keys_max: u32,
    ) -> Result<Self, LoadError> {
        if (mix.has(Action::Insert) || mix.is_latest()) && source.space().is_none() {
            return Err(LoadError::Settings(format!(
                "--mix {mix}: inserts need a generator whose keys are numbered, such as zipf:keys=1000000,theta=0.99"
            )));
        }
        if matches!(sizes, ValueSizes::Recorded) && !source.has_sizes() {
            return Err(LoadError::Settings(
                "--value-size trace: the source of keys has no sizes".into(),
            ));
        }
        Ok(Workload {
            source,
            mix,
            sizes,
            scan_keys_max,
            inserted: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        })
    }

    /// An inserted key is there.
    pub fn settle_insert(&self) {
        self.settled.fetch_add(1, Relaxed);
    }
}

/// One thread's draws: keys come in batches, so that the source's lock and its arithmetic are paid for many at once.
pub struct Draws {
    workload: Arc<Workload>,
    batch: Vec<Request>,
    at: usize,
    stream: Stream,
    random: Random,
    space: Option<KeySpace>,
    latest: Option<Zipf>,
}

impl Draws {
    /// Draws of thread number `thread` of `threads`.
    pub fn new(workload: Arc<Workload>, thread: usize, threads: usize) -> Self {
        let space = workload.source.space();
        let latest = space
            .as_ref()
            .filter(|_| workload.mix.is_latest())
            .and_then(|space| Zipf::new(space.count(), workload.source.theta().unwrap_or(0.99)));
        Draws {
            batch: Vec::with_capacity(BATCH_REQUESTS),
            at: 0,
            random: Random(0x10ad_0000 + thread as u64),
            stream: workload.source.stream(thread, threads),
            space,
            latest,
            workload,
        }
    }

    /// The next operation.
    ///
    /// # Errors
    /// Those of reading the trace.
    #[inline]
    pub fn next(&mut self) -> Result<Operation, LoadError> {
        let action = self.workload.mix.draw(&mut self.random);
        if let Some(action) = action
            && (action == Action::Insert || self.latest.is_some())
            && let Some(key) = self.numbered(action)
        {
            return Ok(self.operation(action, key, None));
        }
        let request = self.request()?;
        let action = action.unwrap_or(match request.op {
            Op::Get => Action::Get,
            Op::Set => Action::Set,
            Op::Delete => Action::Delete,
        });
        Ok(self.operation(action, request.key, request.size))
    }

    /// The keys of a scan that starts at `key`, into `keys`.
    ///
    /// # Errors
    /// Those of reading the trace.
    pub fn scan(&mut self, key: u64, keys: &mut Vec<u64>) -> Result<(), LoadError> {
        let count = 1 + self.random.below(u64::from(self.workload.scan_keys_max));
        keys.clear();
        keys.push(key);
        for step in 1..count {
            let next = match &self.space {
                // From a place that the key fixes, so that popular starts stay popular.
                Some(space) => space.key((key % space.count() + step) % space.count()),
                None => self.request()?.key,
            };
            // A key twice in one get would be answered twice.
            if !keys.contains(&next) {
                keys.push(next);
            }
        }
        Ok(())
    }

    fn operation(&self, action: Action, key: u64, recorded: Option<u64>) -> Operation {
        // Keys that are drawn here and not by the source come without the size that it would give them.
        let recorded = recorded.or_else(|| self.workload.source.size_of(key));
        let size = self.workload.sizes.of(key, recorded);
        Operation { action, key, size }
    }

    /// The key of an insert, or one of the latest.
    fn numbered(&mut self, action: Action) -> Option<u64> {
        let space = self.space.as_ref()?;
        if action == Action::Insert {
            return Some(space.key(space.count() + self.workload.inserted.fetch_add(1, Relaxed)));
        }
        let newest = space.count() + self.workload.settled.load(Relaxed);
        let rank = self.latest.as_ref()?.draw(&mut self.random);
        Some(space.key(newest - rank.min(newest)))
    }

    fn request(&mut self) -> Result<Request, LoadError> {
        if self.at >= self.batch.len() {
            self.stream.next_batch(&mut self.batch)?;
            self.at = 0;
        }
        let request = self.batch[self.at];
        self.at += 1;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_trace::TraceOptions;

    fn draws(keys: &str, mix: &str) -> Draws {
        let source = KeySource::open(keys, TraceOptions::default()).unwrap();
        let workload = Workload::new(source, mix.parse().unwrap(), "100".parse().unwrap(), 16).unwrap();
        Draws::new(Arc::new(workload), 0, 1)
    }

    #[test]
    fn the_latest_keys_are_read_most_and_inserts_are_new() {
        let mut draws = draws("zipf:keys=1000,theta=0.99", "ycsb-d");
        let space = draws.space.clone().unwrap();
        let newest: Vec<u64> = (0..1000).rev().map(|number| space.key(number)).collect();
        let (mut hot, mut reads, mut inserted) = (0, 0, Vec::new());
        for _ in 0..20_000 {
            let operation = draws.next().unwrap();
            if operation.action == Action::Insert {
                assert!(!newest.contains(&operation.key));
                inserted.push(operation.key);
            } else {
                reads += 1;
                hot += u32::from(newest[..10].contains(&operation.key));
            }
        }
        assert!(hot > reads / 4, "{hot} of {reads}");
        let count = inserted.len();
        inserted.sort_unstable();
        inserted.dedup();
        assert_eq!(inserted.len(), count);
        for _ in 0..count {
            draws.workload.settle_insert();
        }
        let seen = (0..100).any(|_| inserted.contains(&draws.next().unwrap().key));
        assert!(seen, "acknowledged inserts are the latest");
    }

    #[test]
    fn a_scan_is_of_different_keys_and_fixed_by_its_start() {
        let mut draws = draws("zipf:keys=1000,theta=0.99", "ycsb-e");
        let (mut first, mut second, mut longest) = (Vec::new(), Vec::new(), 0);
        for _ in 0..200 {
            draws.scan(77, &mut first).unwrap();
            draws.scan(77, &mut second).unwrap();
            let common = first.len().min(second.len());
            assert_eq!(first[..common], second[..common]);
            longest = first.len().max(longest);
        }
        assert_eq!((first[0], longest), (77, 16));
    }

    #[test]
    fn mixes_ask_for_what_their_source_has() {
        let source = || KeySource::open("zipf:keys=10,theta=1", TraceOptions::default()).unwrap();
        let made = |mix: &str, size: &str| {
            Workload::new(source(), mix.parse().unwrap(), size.parse().unwrap(), 16).is_ok()
        };
        assert!(made("ycsb-d", "100") && made("trace", "100"));
        assert!(!made("get", "trace"));
    }
}
