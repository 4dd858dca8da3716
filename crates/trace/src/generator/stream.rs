//! The requests of a generator, one after the other.

use super::block::{Block, BlockStream};
use super::draw::Draw;
use super::hotspot::Hotspot;
use super::latest::{Latest, LatestStream};
use super::normal::Normal;
use super::value_sizes::ValueSizes;
use super::{Generator, Workload};
use crate::error::TraceError;
use crate::request::{BATCH_REQUESTS, Op, Progress, Records, Request, RequestReader};
use crate::zipf::Zipf;
use pumice_world::{Random, mix64};

/// The requests of a [`Generator`]: by the batch as a [`RequestReader`], one by one with
/// [`draw`](GeneratedRequests::draw), or as many as wanted with [`fill`](GeneratedRequests::fill).
///
/// All three go on in one sequence, which does not depend on how it is cut.
#[derive(Debug, Clone)]
pub struct GeneratedRequests {
    source: Source,
    random: Random,
    sets: f64,
    maker: RequestMaker,
    kind: &'static str,
    requests: u64,
}

#[derive(Debug, Clone)]
enum Source {
    Zipf(Zipf),
    Hotspot(Hotspot),
    Normal(Normal),
    Latest(LatestStream),
    Block(Box<BlockStream>),
}

impl Source {
    fn new(generator: &Generator, part: u64, parts: u64) -> Self {
        match &generator.workload {
            Workload::Zipf(zipf) => Source::Zipf(zipf.clone()),
            Workload::Hotspot(hotspot) => Source::Hotspot(hotspot.clone()),
            Workload::Normal(normal) => Source::Normal(normal.clone()),
            Workload::Latest(latest) => Source::Latest(LatestStream::new(Latest::clone(latest), part, parts)),
            Workload::Block(block) => {
                let stream = BlockStream::new(Block::clone(block), generator.seed, part, parts);
                Source::Block(Box::new(stream))
            }
        }
    }
}

/// Makes requests of draws.
#[derive(Debug, Clone)]
struct RequestMaker {
    key_base: u64,
    sizes: ValueSizes,
    /// Requests made, which is the time of the next.
    done: u64,
}

impl RequestMaker {
    #[inline]
    fn make(&mut self, draw: Draw) -> Request {
        let key = match draw.content {
            Some(_) => draw.number,
            None => mix64(draw.number.wrapping_add(self.key_base)),
        };
        let time = self.done;
        self.done += 1;
        Request {
            key,
            size: self.sizes.of(key),
            time,
            op: draw.op,
            content: draw.content,
            ..Request::BLANK
        }
    }
}

/// A read of the key with a rank.
#[inline]
fn get(rank: u64) -> Draw {
    Draw {
        number: rank - 1,
        op: Op::Get,
        content: None,
    }
}

impl GeneratedRequests {
    /// Stream `part` of `parts`, which yields `requests`.
    pub(super) fn new(generator: &Generator, part: u64, parts: u64, requests: u64) -> Self {
        // The first number of the seed's sequence places the keys. The only stream goes on in that sequence, the others
        // start at points that are far apart.
        let mut random = Random(generator.seed);
        let key_base = random.next_u64();
        if part > 0 {
            random = Random(mix64(mix64(generator.seed) ^ mix64(part)));
        }
        GeneratedRequests {
            source: Source::new(generator, part, parts),
            random,
            sets: generator.sets,
            maker: RequestMaker {
                key_base,
                sizes: generator.sizes.clone(),
                done: 0,
            },
            kind: generator.kind,
            requests,
        }
    }

    /// The next request, also after as many as the generator's name says. Cost: some tens of nanoseconds, without
    /// dynamic dispatch; [`fill`](GeneratedRequests::fill) is cheaper for `zipf`.
    #[inline]
    pub fn draw(&mut self) -> Request {
        let random = &mut self.random;
        let mut draw = match &mut self.source {
            Source::Zipf(zipf) => get(zipf.draw(random)),
            Source::Hotspot(hotspot) => get(hotspot.draw(random)),
            Source::Normal(normal) => get(normal.draw(random)),
            Source::Latest(latest) => latest.draw(random),
            Source::Block(block) => block.draw(random),
        };
        if random.chance(self.sets) {
            draw.op = Op::Set;
        }
        self.maker.make(draw)
    }

    /// Replaces the content of `out` with the next `count` requests, also after as many as the generator's name says.
    pub fn fill(&mut self, out: &mut Vec<Request>, count: usize) {
        out.clear();
        out.reserve(count);
        let zipf = match &self.source {
            Source::Zipf(zipf) if self.sets == 0.0 => zipf,
            _ => {
                out.extend(std::iter::repeat_with(|| self.draw()).take(count));
                return;
            }
        };
        let mut ranks = [0; 256];
        let mut left = count;
        while left > 0 {
            let ranks = &mut ranks[..left.min(256)];
            zipf.draw_many(&mut self.random, ranks);
            out.extend(ranks.iter().map(|&rank| self.maker.make(get(rank))));
            left -= ranks.len();
        }
    }
}

impl RequestReader for GeneratedRequests {
    fn next_batch(&mut self, out: &mut Vec<Request>) -> Result<bool, TraceError> {
        let left = self.requests.saturating_sub(self.maker.done);
        let count = left.min(BATCH_REQUESTS as u64) as usize;
        self.fill(out, count);
        Ok(count > 0)
    }

    fn has_sizes(&self) -> bool {
        !self.maker.sizes.is_none()
    }

    fn format_name(&self) -> &'static str {
        self.kind
    }

    fn records(&self) -> Records {
        Records {
            count: self.maker.done,
            have_ops: self.sets > 0.0 || matches!(self.source, Source::Latest(_) | Source::Block(_)),
            ..Records::default()
        }
    }

    fn progress(&self) -> Progress {
        let endless = self.requests == u64::MAX;
        Progress {
            done: self.maker.done,
            total: if endless { 0 } else { self.requests },
        }
    }
}
