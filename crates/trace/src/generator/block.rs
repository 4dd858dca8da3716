//! A volume under reads and writes, whose chunks hold contents that recur: what a deduplicating block cache is measured with.
//!
//! Addresses are drawn in groups of 8 neighbours, which are popular together; contents are numbers, equal where chunks are. Memory: 8 bytes
//! for each chunk.

use super::draw::Draw;
use super::parts::{Parts, required};
use crate::request::Op;
use crate::zipf::Zipf;
use pumice_world::{Random, mix64};

/// Chunks of a group.
const GROUP_CHUNKS: u64 = 8;
/// Most chunks: 512 MiB of contents.
const MAX_CHUNKS: u64 = 1 << 26;
/// Shares of the duplicates that repeat the content in place, and that of one of so many latest writes; the others are common contents.
const IN_PLACE: f64 = 0.1;
const RECENT: f64 = 0.4;
const RECENT_WRITES: usize = 1024;
/// Common contents: one for each so many chunks, and their Zipf exponent.
const COMMON_PART: u64 = 16;
const COMMON_THETA: f64 = 0.9;
/// First contents are duplicates so much less often than written ones.
const FIRST_PART: f64 = 0.5;

/// What is drawn; see [`Generator`](super::Generator).
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) chunks: u64,
    groups: Zipf,
    common: Zipf,
    writes: f64,
    duplicates: f64,
    sequential: f64,
    drift: f64,
    /// Neighbours in popularity are so many groups apart; coprime to their number.
    step: u64,
}

impl Block {
    pub(super) const PARTS: [&str; 6] = ["chunks", "writes", "duplicates", "theta", "sequential", "drift"];

    pub(super) fn from_parts(parts: &Parts<'_>) -> Result<Self, String> {
        let chunks = required("chunks", parts.whole("chunks")?)?;
        if !(COMMON_PART..=MAX_CHUNKS).contains(&chunks) {
            return Err(format!(
                "`chunks={chunks}`: chunks are from {COMMON_PART} to {MAX_CHUNKS}"
            ));
        }
        let theta = required("theta", parts.theta()?)?;
        let groups = chunks.div_ceil(GROUP_CHUNKS);
        let mut step = (groups as f64 * 0.618) as u64 | 1;
        while gcd(step, groups) != 1 {
            step += 2;
        }
        let share = |name, default| Ok::<_, String>(parts.decimal(name, 0.0, 1.0)?.unwrap_or(default));
        let out_of_range = "chunks or theta are out of range";
        Ok(Block {
            chunks,
            groups: Zipf::new(groups, theta).ok_or(out_of_range)?,
            common: Zipf::new(chunks / COMMON_PART, COMMON_THETA).ok_or(out_of_range)?,
            writes: required("writes", parts.decimal("writes", 0.0, 1.0)?)?,
            duplicates: required("duplicates", parts.decimal("duplicates", 0.0, 1.0)?)?,
            sequential: share("sequential", 0.5)?,
            drift: share("drift", 0.0)?,
            step,
        })
    }

    /// The group at a place in the order of popularity: a bijection that scatters neighbours.
    fn group(&self, place: u64) -> u64 {
        // Below 2^23 each.
        place * self.step % self.groups.ranks()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A stream of requests.
#[derive(Debug, Clone)]
pub(super) struct BlockStream {
    block: Block,
    seed: u64,
    /// By address.
    contents: Vec<u64>,
    recent: Vec<u64>,
    written: u64,
    requests: u64,
    last: (u64, Op),
    part: u64,
    parts: u64,
}

impl BlockStream {
    /// Stream `part` of `parts`, from 0; each has the whole volume, and contents of its own.
    pub(super) fn new(block: Block, seed: u64, part: u64, parts: u64) -> Self {
        let mut stream = BlockStream {
            contents: Vec::new(),
            recent: Vec::new(),
            written: 0,
            requests: 0,
            last: (0, Op::Get),
            seed: mix64(seed ^ 0x0b10_c000),
            part,
            parts,
            block,
        };
        let first = |address| {
            let mut random = Random(mix64(stream.seed ^ mix64(address)));
            match random.chance(stream.block.duplicates * FIRST_PART) {
                true => stream.common(&mut random),
                false => stream.content(1 << 62 | address),
            }
        };
        stream.contents = (0..stream.block.chunks).map(first).collect();
        stream
    }

    /// The content with a number.
    fn content(&self, number: u64) -> u64 {
        mix64(number ^ self.seed)
    }

    fn common(&self, random: &mut Random) -> u64 {
        self.content(1 << 63 | self.block.common.draw(random))
    }

    #[inline]
    pub(super) fn draw(&mut self, random: &mut Random) -> Draw {
        let (address, op) = match random.chance(self.block.sequential) {
            true => ((self.last.0 + 1) % self.block.chunks, self.last.1),
            false => (self.address(random), self.op(random)),
        };
        self.last = (address, op);
        self.requests += 1;
        if op == Op::Set {
            self.contents[address as usize] = self.written_content(address, random);
        }
        Draw {
            number: address,
            op,
            content: Some(self.contents[address as usize]),
        }
    }

    fn op(&self, random: &mut Random) -> Op {
        match random.chance(self.block.writes) {
            true => Op::Set,
            false => Op::Get,
        }
    }

    /// Any chunk of a group. With drift groups become the most popular one after the other, and then cool down.
    fn address(&self, random: &mut Random) -> u64 {
        let groups = self.block.groups.ranks();
        let drifted = (self.requests as f64 * self.block.drift) as u64 % groups;
        let place = (self.block.groups.draw(random) - 1 + groups - drifted) % groups;
        let start = self.block.group(place) * GROUP_CHUNKS;
        start + random.below(GROUP_CHUNKS.min(self.block.chunks - start))
    }

    fn written_content(&mut self, address: u64, random: &mut Random) -> u64 {
        let number = self.written * self.parts + self.part;
        let content = if random.chance(self.block.duplicates) {
            let kind = random.next_f64();
            if kind < IN_PLACE {
                self.contents[address as usize]
            } else if kind < IN_PLACE + RECENT && !self.recent.is_empty() {
                self.recent[random.below(self.recent.len() as u64) as usize]
            } else {
                self.common(random)
            }
        } else {
            self.content(number)
        };
        match self.recent.len() {
            RECENT_WRITES => self.recent[self.written as usize % RECENT_WRITES] = content,
            _ => self.recent.push(content),
        }
        self.written += 1;
        content
    }
}
