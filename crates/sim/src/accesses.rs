//! The requests of a trace as a replay sees them: numbered, sized and filtered by the rules.

use pumice_policy::MAX_OBJECTS;
use pumice_trace::{BATCH_REQUESTS, Format, OBJECT_BYTES, Op, Progress, Request, RequestReader, Trace};

use crate::error::SimError;
use crate::objects::ObjectNumbers;
use crate::rules::{MissingSizes, OpsMode, ReplayRules, Unit};
use serde::Serialize;
use std::collections::HashSet;

/// One request to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The object's key.
    pub key: u64,
    /// Its size, never 0, in the replay's unit: that of the object, or, under the other modes for a trace with sizes, that of this request if
    /// it has one.
    pub size: u64,
    /// Its number, dense from 0 in order of first use; 0 where objects are not told apart.
    pub object: u32,
    /// What the request does.
    pub op: Op,
    /// Whether the object is inserted if the request is a get and misses.
    pub fills: bool,
    /// Nanoseconds since the first request, of those at one time one after the other; 0 where the trace has no times.
    pub nanos: u64,
}

/// Requests, deletes left out, that record no size in a trace with sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WithoutSize {
    /// All of them.
    pub requests: u64,
    /// Those for which no request of their key soon behind them has one: they count with the size of their object. The others count with that size.
    pub unknown: u64,
    /// Bytes of an object of which no request is known to have a size.
    pub assumed_bytes: u64,
}

/// What a first pass over a trace finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// Requests that the rules let through.
    pub accesses: u64,
    /// Distinct objects.
    pub objects: u64,
    /// The sum over objects of their sizes.
    pub footprint: u64,
}

/// Streams the accesses of a trace.
///
/// An object of a trace with sizes has the size of its first request that has one, the same from the start on if the trace was surveyed.
/// Else it has, until that request comes, a size that is assumed.
///
/// Memory: that of [`ObjectNumbers`], and 8 bytes per object where sizes differ; none where
/// objects are not told apart ([`Accesses::tell_objects_apart`]).
pub struct Accesses<'a> {
    trace: &'a Trace,
    rules: &'a ReplayRules,
    reader: Box<dyn RequestReader>,
    sizing: Sizing,
    batch: Vec<Request>,
    /// `None` where objects are not told apart.
    numbers: Option<ObjectNumbers>,
    /// Size of every object; empty if all have the same.
    object_sizes: Vec<u64>,
    /// The objects of a trace with sizes of which no request so far had one.
    unsized_objects: HashSet<u32>,
    footprint: u64,
    /// Requests whose size is not known, of the current pass.
    unknown: u64,
    times: Times,
}

/// Times of a trace, in seconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    first: Option<u64>,
    /// Nanoseconds of a unit of the trace's times.
    tick_ns: u64,
}

impl Times {
    /// Tells each access when it is, from the request that it was made of.
    fn tell(&mut self, batch: &[Request], accesses: &mut [Access]) {
        let mut at = 0;
        let first = *self
            .first
            .get_or_insert(batch.first().map_or(0, |request| request.time));
        for same in batch.chunk_by(|a, b| a.time == b.time) {
            let begin = same[0].time.saturating_sub(first).saturating_mul(self.tick_ns);
            // They came within the same unit of time.
            let apart = self.tick_ns / same.len() as u64;
            for (number, access) in (0u64..).zip(&mut accesses[at..at + same.len()]) {
                access.nanos = begin.saturating_add(number * apart);
            }
            at += same.len();
        }
    }
}

/// Where sizes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizing {
    Same(u64),
    Recorded,
    Drawn,
}

impl<'a> Accesses<'a> {
    /// Opens the trace at its start.
    ///
    /// # Errors
    /// What [`Trace::open`] says; [`SimError::SizesRecorded`] if sizes are to be drawn for a trace that has them.
    pub fn open(trace: &'a Trace, rules: &'a ReplayRules) -> Result<Self, SimError> {
        let reader = trace.open()?;
        let format = reader.format_name().parse::<Format>();
        let times = Times {
            first: None,
            tick_ns: 1_000_000_000 / format.map_or(1, Format::ticks_per_second),
        };
        let sizing = match (&rules.missing_sizes, reader.has_sizes() && !rules.ignores_sizes) {
            (MissingSizes::Drawn(_), true) => {
                return Err(SimError::SizesRecorded(trace.name().to_owned()));
            }
            (_, true) => Sizing::Recorded,
            (MissingSizes::Unit, false) => Sizing::Same(1),
            (MissingSizes::Fixed(size), false) => Sizing::Same((*size).max(1)),
            (MissingSizes::Drawn(_), false) => Sizing::Drawn,
        };
        Ok(Accesses {
            trace,
            rules,
            reader,
            sizing,
            batch: Vec::with_capacity(BATCH_REQUESTS),
            numbers: Some(ObjectNumbers::default()),
            object_sizes: Vec::new(),
            unsized_objects: HashSet::new(),
            footprint: 0,
            unknown: 0,
            times,
        })
    }

    /// What sizes are counted in.
    pub fn unit(&self) -> Unit {
        match (self.sizing, &self.rules.missing_sizes) {
            (Sizing::Same(_), MissingSizes::Unit) => Unit::Objects,
            _ => Unit::Bytes,
        }
    }

    /// Name of the trace's format, after detection.
    pub fn format_name(&self) -> &'static str {
        self.reader.format_name()
    }

    /// How far the current pass has come.
    pub fn progress(&self) -> Progress {
        self.reader.progress()
    }

    /// Distinct objects so far; 0 where they are not told apart.
    pub fn objects(&self) -> u64 {
        self.numbers.as_ref().map_or(0, |numbers| numbers.len().into())
    }

    /// The sum of their sizes.
    pub fn footprint(&self) -> u64 {
        self.footprint
    }

    /// The size of every object, where all have the same.
    pub fn object_size(&self) -> Option<u64> {
        match self.sizing {
            Sizing::Same(size) => Some(size),
            _ => None,
        }
    }

    /// Requests without a size so far, where the trace has sizes and some have none.
    pub fn without_size(&self) -> Option<WithoutSize> {
        let requests = self.reader.records().without_size;
        (self.sizing == Sizing::Recorded && requests > 0).then(|| WithoutSize {
            requests,
            unknown: self.unknown,
            assumed_bytes: self.assumed_bytes(),
        })
    }

    /// Bytes of an object whose size a trace with sizes does not tell.
    fn assumed_bytes(&self) -> u64 {
        match self.rules.missing_sizes {
            MissingSizes::Fixed(bytes) => bytes.max(1),
            MissingSizes::Unit | MissingSizes::Drawn(_) => OBJECT_BYTES,
        }
    }

    /// Whether objects are told apart from now on. If not, accesses have no numbers, a survey counts accesses alone, and no
    /// memory is taken for each object. Where sizes differ they always are, since sizes go by the object.
    pub fn tell_objects_apart(&mut self, apart: bool) {
        if self.object_size().is_none() {
            return;
        }
        if apart {
            self.numbers.get_or_insert_default();
        } else {
            self.numbers = None;
        }
    }

    /// Replaces the content of `out` with the next accesses; returns whether there were any, which is so until the end
    /// of the trace.
    ///
    /// # Errors
    /// Those of the reader; [`SimError::TooManyObjects`].
    pub fn next_batch(&mut self, out: &mut Vec<Access>) -> Result<bool, SimError> {
        out.clear();
        while out.is_empty() {
            if !self.reader.next_batch(&mut self.batch)? {
                return Ok(false);
            }
            if self.rules.ops == OpsMode::Lookup {
                self.batch.retain(|request| request.op != Op::Delete);
            }
            let numbered = match (self.sizing, self.rules.ops) {
                (Sizing::Same(size), _) if self.numbers.is_none() => {
                    out.extend(self.batch.iter().map(|request| Access {
                        key: request.key,
                        size,
                        object: 0,
                        op: request.op,
                        fills: fills(self.rules.ops, request),
                        nanos: 0,
                    }));
                    Some(())
                }
                (Sizing::Same(size), _) => self.number(out, |_, _, _| size),
                (Sizing::Drawn, _) | (Sizing::Recorded, OpsMode::Lookup) => self
                    .number(out, |object_sizes, object, _| {
                        object_sizes.get(object as usize).copied().unwrap_or(1)
                    }),
                (Sizing::Recorded, OpsMode::AsRecorded | OpsMode::LookAside) => {
                    self.number(out, |object_sizes, object, request| {
                        let of_object = || object_sizes.get(object as usize).copied();
                        request.size.or_else(of_object).unwrap_or(1).max(1)
                    })
                }
            };
            if numbered.is_none() {
                return Err(SimError::TooManyObjects {
                    trace: self.trace.name().to_owned(),
                    limit: MAX_OBJECTS,
                });
            }
            self.times.tell(&self.batch, out);
        }
        Ok(true)
    }

    /// Reads the whole trace, then returns to its start; objects keep their numbers and sizes. `progress` is called now and then. Where
    /// objects are not told apart, there are 0 of them with a footprint of 0.
    ///
    /// # Errors
    /// As [`next_batch`](Accesses::next_batch), and those of opening the trace again.
    pub fn survey(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Survey, SimError> {
        let mut accesses = 0;
        let mut batch = Vec::with_capacity(BATCH_REQUESTS);
        while self.next_batch(&mut batch)? {
            accesses += batch.len() as u64;
            progress(self.reader.progress());
        }
        self.reader = self.trace.open()?;
        self.unknown = 0;
        Ok(Survey {
            accesses,
            objects: self.objects(),
            footprint: self.footprint,
        })
    }

    /// Numbers the requests of the batch; `None` if numbers run out.
    #[inline]
    fn number(
        &mut self,
        out: &mut Vec<Access>,
        size_of: impl Fn(&[u64], u32, &Request) -> u64,
    ) -> Option<()> {
        let assumed_bytes = self.assumed_bytes();
        let numbers = self.numbers.get_or_insert_default();
        for request in &self.batch {
            let (object, new) = numbers.number(request.key)?;
            if new {
                let first = match (self.sizing, &self.rules.missing_sizes) {
                    (Sizing::Same(size), _) => size,
                    (Sizing::Drawn, MissingSizes::Drawn(distribution)) => {
                        distribution.size_of(request.key).max(1)
                    }
                    _ => match (request.size, request.op) {
                        (Some(size), _) => size.max(1),
                        (None, Op::Delete) => 1,
                        (None, _) => assumed_bytes,
                    },
                };
                if !matches!(self.sizing, Sizing::Same(_)) {
                    self.object_sizes.push(first);
                }
                if self.sizing == Sizing::Recorded && request.size.is_none() {
                    self.unsized_objects.insert(object);
                }
                self.footprint = self.footprint.saturating_add(first);
            } else if let Some(size) = request.size
                && !self.unsized_objects.is_empty()
                && self.unsized_objects.remove(&object)
            {
                let assumed = std::mem::replace(&mut self.object_sizes[object as usize], size.max(1));
                self.footprint = (self.footprint - assumed).saturating_add(size.max(1));
            }
            self.unknown += u64::from(request.size.is_none() && request.op != Op::Delete);
            let size = size_of(&self.object_sizes, object, request);
            out.push(Access {
                key: request.key,
                size,
                object,
                op: request.op,
                fills: fills(self.rules.ops, request),
                nanos: 0,
            });
        }
        Some(())
    }
}

/// Whether a get that misses inserts its object.
fn fills(ops: OpsMode, request: &Request) -> bool {
    match ops {
        OpsMode::Lookup => true,
        OpsMode::AsRecorded => false,
        OpsMode::LookAside => !request.is_miss,
    }
}
