//! Where keys come from: a generator or a trace, for all threads and without end.

use crate::error::LoadError;
use hashbrown::HashMap;
use locks::Mutex;
use pumice_trace::{GeneratedRequests, Generator, Request, RequestReader, Trace, TraceOptions};
use std::sync::Arc;

/// Distinct keys of a trace that are listed at most: 24 bytes each, twice while they are collected.
const LISTED_KEYS_MAX: usize = 1 << 27;

/// A source of requests that starts again when it ends.
///
/// Each thread draws from a generator on its own. A trace is run through once by all threads together, which take
/// batches of its requests in turn.
pub struct KeySource {
    name: String,
    has_sizes: bool,
    source: Source,
}

enum Source {
    Generator(Arc<Generator>),
    Trace(Arc<SharedTrace>),
}

/// A trace and how far it has been read.
pub struct SharedTrace {
    trace: Trace,
    reader: Mutex<Box<dyn RequestReader>>,
}

/// The keys of a generator by number, from 0: those that it draws from, and from [`count`](KeySpace::count) on new
/// ones.
#[derive(Clone)]
pub struct KeySpace(Arc<Generator>);

impl KeySpace {
    /// How many keys are there before the first request.
    pub fn count(&self) -> u64 {
        self.0.ranks()
    }

    /// A key by its number.
    pub fn key(&self, number: u64) -> u64 {
        self.0.key_of_rank(number + 1)
    }
}

impl KeySource {
    /// Opens a source by its name: a generator, whose `requests` may be left out, or a trace file.
    ///
    /// # Errors
    /// Those of [`Generator::endless`], [`Trace::new`] and [`Trace::open`]; a trace without requests; a pipe, which
    /// cannot start again.
    pub fn open(name: &str, options: TraceOptions) -> Result<Self, LoadError> {
        if Generator::is_generator_name(name) {
            let generator = Generator::endless(name)?;
            if generator.requests() == 0 {
                return Err(nothing(name));
            }
            return Ok(KeySource {
                name: name.to_owned(),
                has_sizes: generator.has_sizes(),
                source: Source::Generator(Arc::new(generator)),
            });
        }
        let trace = Trace::new(name, options)?;
        let mut reader = trace.open()?;
        if !trace.is_rereadable() {
            return Err(LoadError::Settings(format!(
                "--keys {name}: not a file that can be read again"
            )));
        }
        if !reader.next_batch(&mut Vec::new())? {
            return Err(nothing(name));
        }
        Ok(KeySource {
            name: name.to_owned(),
            has_sizes: reader.has_sizes(),
            // Opened again, so that the run starts at the start.
            source: Source::Trace(Arc::new(SharedTrace {
                reader: Mutex::new(trace.open()?),
                trace,
            })),
        })
    }

    /// Whether requests carry sizes.
    pub fn has_sizes(&self) -> bool {
        self.has_sizes
    }

    /// The size that a generator gives the object under one of its keys.
    pub fn size_of(&self, key: u64) -> Option<u64> {
        match &self.source {
            Source::Generator(generator) if self.has_sizes => generator.size_of(key),
            _ => None,
        }
    }

    /// The keys, of a generator that has them in the order of their numbers.
    pub fn space(&self) -> Option<KeySpace> {
        match &self.source {
            Source::Generator(generator) => Some(KeySpace(Arc::clone(generator))),
            Source::Trace(_) => None,
        }
    }

    /// The Zipf exponent, of a generator that has one.
    pub fn theta(&self) -> Option<f64> {
        let (_, parts) = self.name.split_once(':')?;
        let value = parts.split(',').find_map(|part| part.strip_prefix("theta="))?;
        value.parse().ok()
    }

    /// How many keys there are, as far as that is known beforehand.
    pub fn count(&self) -> Option<u64> {
        match &self.source {
            Source::Generator(generator) => Some(generator.ranks()),
            Source::Trace(_) => None,
        }
    }

    /// Thread number `thread`'s part of the requests.
    pub fn stream(&self, thread: usize, threads: usize) -> Stream {
        match &self.source {
            Source::Trace(trace) => Stream::Shared(Arc::clone(trace)),
            Source::Generator(generator) => {
                let part = (thread as u64, threads as u64);
                let stream = Box::new(generator.stream_part(part.0, part.1));
                Stream::Own(Arc::clone(generator), part, stream)
            }
        }
    }

    /// Every key once: by number, or by one pass over the trace.
    ///
    /// # Errors
    /// Those of reading the trace; too many keys.
    pub fn distinct(&self) -> Result<Distinct, LoadError> {
        let trace = match &self.source {
            Source::Generator(generator) => return Ok(Distinct::Numbered(Arc::clone(generator))),
            Source::Trace(trace) => &trace.trace,
        };
        let mut seen = HashMap::new();
        let (mut reader, mut batch) = (trace.open()?, Vec::new());
        while reader.next_batch(&mut batch)? {
            for request in &batch {
                let size = seen.entry(request.key).or_insert(request.size);
                *size = size.or(request.size);
            }
            if seen.len() > LISTED_KEYS_MAX {
                return Err(LoadError::Settings(format!(
                    "--preload: more than {LISTED_KEYS_MAX} keys"
                )));
            }
        }
        Ok(Distinct::Listed(seen.into_iter().collect()))
    }
}

fn nothing(name: &str) -> LoadError {
    LoadError::Settings(format!("--keys {name}: there are no requests in it"))
}

/// One thread's requests.
pub enum Stream {
    /// Drawn by the thread itself.
    Own(Arc<Generator>, (u64, u64), Box<GeneratedRequests>),
    /// Taken from what all threads share.
    Shared(Arc<SharedTrace>),
}

impl Stream {
    /// Replaces the content of `batch` with the next requests, at least one.
    ///
    /// # Errors
    /// Those of reading the trace.
    pub fn next_batch(&mut self, batch: &mut Vec<Request>) -> Result<(), LoadError> {
        match self {
            Stream::Own(generator, (part, parts), stream) => {
                if !stream.next_batch(batch)? {
                    **stream = generator.stream_part(*part, *parts);
                    if !stream.next_batch(batch)? {
                        // Fewer requests than threads: this one has the same as the first.
                        **stream = generator.stream_part(0, 1);
                        stream.next_batch(batch)?;
                    }
                }
            }
            Stream::Shared(shared) => {
                let mut reader = shared.reader.lock();
                if !reader.next_batch(batch)? {
                    *reader = shared.trace.open()?;
                    if !reader.next_batch(batch)? {
                        return Err(nothing(shared.trace.name()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// All keys, each once.
pub enum Distinct {
    /// By number.
    Numbered(Arc<Generator>),
    /// One by one, with sizes.
    Listed(Vec<(u64, Option<u64>)>),
}

impl Distinct {
    /// How many there are.
    pub fn count(&self) -> u64 {
        match self {
            Distinct::Numbered(generator) => generator.ranks(),
            Distinct::Listed(keys) => keys.len() as u64,
        }
    }

    /// One of them with its size, for `at` below the count.
    pub fn get(&self, at: u64) -> (u64, Option<u64>) {
        match self {
            Distinct::Numbered(generator) => {
                let key = generator.key_of_rank(at + 1);
                (key, generator.size_of(key))
            }
            Distinct::Listed(keys) => keys[at as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_generator_needs_no_count_and_its_keys_are_numbered() {
        for name in [
            "zipf:keys=50,theta=0.5",
            "uniform:keys=50,seed=7",
            "uniform:keys=50,requests=2000",
        ] {
            let source = KeySource::open(name, TraceOptions::default()).unwrap();
            let all = source.distinct().unwrap();
            assert_eq!(all.count(), 50);
            let keys: std::collections::HashSet<u64> = (0..50).map(|at| all.get(at).0).collect();
            assert_eq!(keys.len(), 50);
            let (mut batch, mut seen) = (Vec::new(), std::collections::HashSet::new());
            let mut streams = [source.stream(0, 2), source.stream(1, 2)];
            for turn in 0..40 {
                streams[turn % 2].next_batch(&mut batch).unwrap();
                seen.extend(batch.iter().map(|request| request.key));
            }
            assert_eq!(seen, keys, "{name}");
        }
    }

    #[test]
    fn a_trace_starts_again_and_lists_its_keys() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"1 10 100\n2 11 200\n3 10 300\n").unwrap();
        let name = file.path().to_str().unwrap();
        let options = TraceOptions {
            format: Some("time-id-size".parse().unwrap()),
            columns: None,
        };
        let source = KeySource::open(name, options).unwrap();
        let all = source.distinct().unwrap();
        let mut keys: Vec<_> = (0..all.count()).map(|at| all.get(at)).collect();
        keys.sort_unstable();
        assert_eq!(keys, [(10, Some(100)), (11, Some(200))]);
        let mut batch = Vec::new();
        let mut streams = [source.stream(0, 2), source.stream(1, 2)];
        let drawn: Vec<u64> = (0..3)
            .flat_map(|turn| {
                streams[turn % 2].next_batch(&mut batch).unwrap();
                batch.iter().map(|request| request.key).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(drawn, [10, 11, 10, 10, 11, 10, 10, 11, 10]);
    }

    #[test]
    fn what_cannot_be_a_source_is_refused() {
        let empty = tempfile::NamedTempFile::new().unwrap();
        for name in [
            "zipf:keys=10",
            "zipf:keys=0,theta=1",
            "nowhere.trace",
            empty.path().to_str().unwrap(),
        ] {
            assert!(KeySource::open(name, TraceOptions::default()).is_err(), "{name}");
        }
    }
}
