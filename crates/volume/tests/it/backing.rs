//! A backing device in memory that fails as it is told to.

use bytes::Bytes;
use pumice_blocks::give_turn;
use pumice_volume::{Backing, Extent};
use pumice_world::Random;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::rc::Rc;

pub const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Crashes in the n-th change from here, counted from 1.
    pub crash_at: Option<u64>,
    /// Of 1,000 operations.
    pub read_errors: u64,
    pub write_errors: u64,
    /// Reads of this byte fail.
    pub bad_byte: Option<u64>,
    /// The next flush fails, and loses a choice of what was written since the last.
    pub fails_flush: bool,
    /// It is on a machine that cannot be reached: changes and flushes fail, and lose nothing.
    pub is_away: bool,
    /// A change that fails may still happen.
    pub changes_later: bool,
    /// A list of extents is so many turns old when it is given.
    pub extents_turns: u32,
    /// The most bytes of an extent, if not 0.
    pub extent_bytes: u64,
}

struct State {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that were never written, or trimmed.
    written: BTreeSet<usize>,
    modified: u64,
    /// Changes of what is beside its bytes.
    touched: u64,
    faults: Faults,
    is_crashed: bool,
    /// Changes that have begun and not ended.
    under_way: Vec<(u64, Range<u64>)>,
    changes: u64,
    /// Ranges of all changes, in the order in which they began.
    ranges: Vec<Range<u64>>,
    reads: u64,
    /// Bytes of reads under way, and the most of them.
    reading: [u64; 2],
    flushes: u64,
    failed_flushes: u64,
    random: Random,
}

#[derive(Clone)]
pub struct FaultyBacking(Rc<RefCell<State>>);

impl FaultyBacking {
    pub fn new(size: usize, seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State {
            now: vec![0; size],
            durable: vec![0; size],
            written: BTreeSet::new(),
            modified: 1,
            touched: 0,
            faults: Faults::default(),
            is_crashed: false,
            under_way: Vec::new(),
            changes: 0,
            ranges: Vec::new(),
            reads: 0,
            reading: [0; 2],
            flushes: 0,
            failed_flushes: 0,
            random: Random(seed ^ 0xBAC),
        })))
    }

    pub fn set(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    pub fn is_crashed(&self) -> bool {
        self.0.borrow().is_crashed
    }

    pub fn crash(&self) {
        self.0.borrow_mut().is_crashed = true;
    }

    pub fn restart(&self) {
        let mut state = self.0.borrow_mut();
        state.is_crashed = false;
        state.faults = Faults::default();
        state.under_way.clear();
    }

    /// Some of the sectors that were not flushed are lost.
    pub fn cut_power(&self) {
        let mut state = self.0.borrow_mut();
        state.is_crashed = true;
        state.lose();
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.borrow().now.clone()
    }

    pub fn reads(&self) -> u64 {
        self.0.borrow().reads
    }

    /// The most bytes of reads that were under way at once.
    pub fn reading_max(&self) -> u64 {
        self.0.borrow().reading[1]
    }

    pub fn changes(&self) -> u64 {
        self.0.borrow().changes
    }

    /// Ranges of the changes that began after the first `before`.
    pub fn ranges_since(&self, before: u64) -> Vec<Range<u64>> {
        self.0.borrow().ranges[before as usize..].to_vec()
    }

    pub fn failed_flushes(&self) -> u64 {
        self.0.borrow().failed_flushes
    }

    pub fn flushes(&self) -> u64 {
        self.0.borrow().flushes
    }

    /// Somebody else writes to it.
    pub fn write_elsewhere(&self, offset: usize, bytes: &[u8]) {
        let mut state = self.0.borrow_mut();
        state.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.durable[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.modified += 1;
    }

    /// Somebody changes its owner, or the like.
    pub fn touch(&self) {
        self.0.borrow_mut().touched += 1;
    }

    fn reach(&self) -> io::Result<()> {
        match self.0.borrow().faults.is_away {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => Ok(()),
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.0.borrow().is_crashed {
            true => Err(io::Error::other("crashed")),
            false => Ok(()),
        }
    }

    async fn delay(&self) {
        let turns = self.0.borrow_mut().random.below(5);
        for _ in 0..turns {
            give_turn().await;
        }
    }

    async fn change(&self, offset: u64, bytes: &[u8], is_hole: bool) -> io::Result<()> {
        self.check()?;
        let range = offset..offset + bytes.len() as u64;
        let id = {
            let mut state = self.0.borrow_mut();
            let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
            assert!(
                !state.under_way.iter().any(|(_, other)| overlaps(other)),
                "overlapping changes are under way: their order is not known"
            );
            state.changes += 1;
            let id = state.changes;
            state.under_way.push((id, range.clone()));
            state.ranges.push(range.clone());
            id
        };
        self.delay().await;
        self.check()?;
        let mut state = self.0.borrow_mut();
        state.under_way.retain(|(other, _)| *other != id);
        state.modified += 1;
        let crashes = match &mut state.faults.crash_at {
            Some(left) => {
                *left -= 1;
                *left == 0
            }
            None => false,
        };
        let fails = crashes || {
            let errors = state.faults.write_errors;
            state.random.below(1000) < errors
        };
        let (first, last) = (offset as usize / SECTOR, (range.end as usize - 1) / SECTOR);
        for sector in first..=last {
            if fails && state.random.below(2) == 0 {
                continue;
            }
            let part =
                (sector * SECTOR).max(offset as usize)..((sector + 1) * SECTOR).min(range.end as usize);
            let source = &bytes[part.start - offset as usize..part.end - offset as usize];
            let is_whole = part.len() == SECTOR;
            state.now[part].copy_from_slice(source);
            match is_hole && is_whole {
                true => state.written.remove(&sector),
                false => state.written.insert(sector),
            };
        }
        if crashes {
            state.is_crashed = true;
        }
        match fails {
            true => Err(io::Error::other("the backing device fails")),
            false => Ok(()),
        }
    }
}

impl State {
    fn extents(&self, offset: usize, most: usize) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < self.now.len() {
            let end = (at / SECTOR + 1) * SECTOR;
            let is_hole = !self.written.contains(&(at / SECTOR));
            let length = (end - at) as u64;
            let is_full = extents.len() == most;
            match extents.last_mut() {
                Some(last) if last.is_hole == is_hole => last.length += length,
                _ if is_full => break,
                _ => extents.push(Extent { length, is_hole }),
            }
            at = end;
        }
        extents
    }

    fn lose(&mut self) {
        for sector in 0..self.now.len() / SECTOR {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if self.now[range.clone()] == self.durable[range.clone()] {
                continue;
            }
            match self.random.below(2) {
                0 => {
                    self.now[range.clone()].copy_from_slice(&self.durable[range]);
                    self.written.insert(sector);
                }
                _ => self.durable[range.clone()].copy_from_slice(&self.now[range]),
            }
        }
    }
}

impl Backing for FaultyBacking {
    fn size(&self) -> u64 {
        self.0.borrow().now.len() as u64
    }

    fn can_stand_in(&self) -> bool {
        !self.0.borrow().faults.is_away
    }

    fn modified(&self) -> io::Result<u64> {
        self.check()?;
        let state = self.0.borrow();
        Ok(state.modified << 32 | (state.modified + state.touched))
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.check()?;
        {
            let [now, most] = &mut self.0.borrow_mut().reading;
            *now += len as u64;
            *most = (*most).max(*now);
        }
        self.delay().await;
        let bytes = {
            let mut state = self.0.borrow_mut();
            state.reading[0] -= len as u64;
            state.reads += 1;
            let errors = state.faults.read_errors;
            let is_bad = |byte| (offset..offset + len as u64).contains(&byte);
            if state.random.below(1000) < errors || state.faults.bad_byte.is_some_and(is_bad) {
                return Err(io::Error::other("the backing device cannot read"));
            }
            state.now[offset as usize..][..len].to_vec()
        };
        self.delay().await;
        self.check()?;
        Ok(bytes)
    }

    fn may_change_later(&self, _: &io::Error) -> bool {
        self.0.borrow().faults.changes_later
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.reach()?;
        self.change(offset, &data, false).await
    }

    async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        self.change(offset, &vec![0; len as usize], may_punch).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.check()?;
        self.reach()?;
        // What is done before it begins is durable afterwards, and nothing else.
        let (now, fails) = {
            let mut state = self.0.borrow_mut();
            state.flushes += 1;
            (state.now.clone(), std::mem::take(&mut state.faults.fails_flush))
        };
        self.delay().await;
        self.check()?;
        let mut state = self.0.borrow_mut();
        if fails {
            state.failed_flushes += 1;
            state.lose();
            return Err(io::Error::other("the backing device cannot flush"));
        }
        state.durable = now;
        Ok(())
    }

    async fn extents(&self, offset: u64, _: u64, most: usize) -> io::Result<Vec<Extent>> {
        self.check()?;
        let (extents, turns) = {
            let state = self.0.borrow();
            let mut extents = state.extents(offset as usize, most);
            if state.faults.extent_bytes > 0 {
                extents.truncate(1);
                extents[0].length = extents[0].length.min(state.faults.extent_bytes);
            }
            (extents, state.faults.extents_turns)
        };
        for _ in 0..turns {
            give_turn().await;
        }
        Ok(extents)
    }
}
