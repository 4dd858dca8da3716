//! What a client and the cleaner do with the store: reads, writes, trims, flushes.

use super::{
    CHUNK, Drift, Fills, Kind, Limit, Parts, Pool, Rewrites, Run, Share, Steps, Through, Totals, Trims,
};
use bytes::Bytes;
use pumice_chunk::store::{Filled, Quiet};
use pumice_testkit::SECTOR;
use pumice_world::Spawner;
use std::ops::Range;

impl Run {
    /// A content of a chunk: `shared` is its number among the contents that many chunks have.
    pub(super) fn content(&mut self, shared: Option<u64>) -> Vec<u8> {
        self.version += 1;
        let number = shared.unwrap_or(self.version + 1_000_000);
        let is_random = match self.life.get::<Kind>() {
            Kind::Random => true,
            Kind::Compressible => false,
            Kind::Mixed => number.is_multiple_of(2),
        };
        pumice_testkit::content(number, is_random, CHUNK)
    }

    /// The dirty chunk that was written first: its block is the next to be reclaimed.
    pub(super) fn oldest_dirty(&self) -> u64 {
        let dirty = self.run(self.host().store.addresses().dirty_from(0, 4096));
        let oldest = dirty
            .into_iter()
            .min_by_key(|address| self.written[*address as usize]);
        oldest.unwrap_or(self.hot)
    }

    /// A range of whole sectors.
    pub(super) fn range(&mut self) -> Range<usize> {
        let at = match (self.below(12), self.life.get::<Rewrites>()) {
            (0..4, _) => self.random.below(self.chunks),
            (4..8, Rewrites::Oldest) => self.oldest_dirty(),
            _ => (self.hot + self.random.below(24)) % self.chunks,
        };
        let chunks = [1, 1, 1, 2, 4, 12][self.below(6)].min(self.chunks - at) as usize;
        let at = at as usize;
        let mut range = at * CHUNK..(at + chunks) * CHUNK;
        if self.life.get::<Parts>() == Parts::Parts && self.below(2) == 0 {
            // A part often is the same as another, or stands apart from it.
            range.start += [0, 4, self.below(8)][self.below(3)] * SECTOR;
            range.end -= [0, 4, self.below((range.end - range.start) / SECTOR)][self.below(3)] * SECTOR;
            range.end = range.end.max(range.start + SECTOR);
        }
        range
    }

    /// Bytes for a range: of contents that many chunks have, or of contents of its own.
    pub(super) fn bytes(&mut self, range: &Range<usize>) -> Vec<u8> {
        let shared = match self.life.get::<Share>() {
            Share::None => 0,
            Share::Half => 50,
            Share::Most => 90,
        };
        let pool = match self.life.get::<Pool>() {
            Pool::Few => 3,
            Pool::Some => 24,
            Pool::Many => 64,
        };
        if self.life.get::<Drift>() == Drift::Change && self.below(8) == 0 {
            self.pool += 1;
        }
        let is_shared = self.below(100) < shared;
        let mut bytes = Vec::new();
        for chunk in chunks_of(range) {
            let number = is_shared.then(|| self.pool + self.random.below(pool));
            let content = self.content(number);
            bytes.extend_from_slice(&content[part_of(chunk, range, chunk as usize * CHUNK)]);
        }
        bytes
    }

    /// What a client reads of a chunk, and whether some of it was cached; `None` if it cannot be read.
    pub(super) fn read(&self, address: u64) -> Option<(Vec<u8>, bool)> {
        let host = self.host();
        let cached = self.run(host.store.read(&host.device, address)).ok()?;
        let mut whole = self.volume.borrow().chunk(address);
        if let Some(cached) = &cached {
            cached.lay_over(0, &mut whole);
        }
        Some((whole, cached.is_some()))
    }

    /// A read, and a fill where the cache had not all; the fill may be late.
    pub(super) fn read_and_fill(&mut self) {
        let (host, address) = (self.host(), (self.range().start / CHUNK) as u64);
        let ticket = host.store.begin_fill(address);
        let read = self.read(address);
        if self.medium.is_crashed() {
            return;
        }
        let Some((bytes, _)) = read else {
            self.wrong("a chunk cannot be read");
        };
        self.compare(address, &bytes);
        if self.life.get::<Fills>() == Fills::Enter {
            let bytes = Bytes::from(self.volume.borrow().chunk(address));
            let late = self.fill.replace((ticket, address, bytes));
            let fill = if self.below(2) == 0 {
                late
            } else {
                self.fill.take()
            };
            if let Some((ticket, _, bytes)) = fill {
                self.run(host.store.fill(&host.device, ticket, 0, bytes));
            }
        }
    }

    pub(super) fn compare(&self, address: u64, bytes: &[u8]) {
        let read = self.disk.read(address as usize * CHUNK, bytes);
        read.unwrap_or_else(|what| self.wrong(&format!("chunk {address}, {what}")));
    }

    /// A write to the cache alone; through it where it has no room.
    pub(super) fn write(&mut self, range: &Range<usize>, bytes: &[u8], totals: &mut Totals) {
        let (host, chunks) = (self.host(), chunks_of(range));
        let most = (host.store.bytes() / CHUNK as u64).min(host.store.shape().mappings);
        let limit = match self.life.get::<Limit>() {
            Limit::Low => most * 15 / 100,
            Limit::Half => most / 2,
            Limit::All => most,
        };
        let may_dirty = host.store.dirty() < limit;
        if !may_dirty || self.life.get::<Through>() == Through::Some && self.below(8) == 0 {
            return self.change(range, bytes, true);
        }
        let mut guard = host.store.begin_write_back(chunks.clone());
        let mut through = Vec::new();
        for chunk in chunks {
            let part = part_of(chunk, range, range.start);
            let start = (range.start + part.start) % CHUNK;
            let new = Bytes::copy_from_slice(&bytes[part]);
            self.run(host.store.wait_for_room());
            let mut filled = self.run(guard.fill(&host.device, chunk, start as u32, new.clone()));
            if filled == Filled::Gap {
                totals.gaps += 1;
                let Some((mut whole, _)) = self.read(chunk) else {
                    host.failed("a gap", &"it cannot be read");
                    return;
                };
                whole[start..][..new.len()].copy_from_slice(&new);
                self.run(host.store.wait_for_room());
                filled = self.run(guard.fill(&host.device, chunk, 0, whole.into()));
            }
            if !matches!(filled, Filled::Stored | Filled::Duplicate) {
                through.push(chunk);
            }
        }
        drop(guard);
        for chunk in through {
            let part = part_of(chunk, range, range.start);
            let at = range.start + part.start..range.start + part.end;
            self.change(&at, &bytes[part], true);
        }
    }

    /// A change of the volume. Its old content is clean first.
    pub(super) fn change(&mut self, range: &Range<usize>, bytes: &[u8], fills: bool) {
        let (host, chunks) = (self.host(), chunks_of(range));
        while !host.hold(chunks.clone()) {
            host.release();
            self.turn();
        }
        loop {
            let dirty = host.store.dirty_among(chunks.clone());
            if dirty.is_empty() || self.medium.is_crashed() {
                break;
            }
            self.run(async {
                let copied = host.copy_out(&dirty, false).await;
                host.made_clean(copied, true, false).await
            });
        }
        if self.medium.is_crashed() {
            return;
        }
        let records = host.store.records_of(chunks.clone());
        let mut guard = loop {
            let has_room = self.run(host.store.wait_for_log(records));
            match host.store.begin_write(&host.device, chunks.clone()) {
                Some(guard) => break guard,
                None if has_room => {}
                None => return host.failed("a change", &"the log has no room"),
            }
        };
        if let Err(error) = self.run(guard.commit(&host.device)) {
            host.failed("a change", &error);
        }
        if !self.medium.is_crashed() {
            self.volume.borrow_mut().write(range.start, bytes);
            self.is_changed = true;
            for chunk in chunks.clone().filter(|_| fills) {
                let part = part_of(chunk, range, range.start);
                let start = (range.start + part.start) % CHUNK;
                let new = Bytes::copy_from_slice(&bytes[part]);
                self.run(guard.fill(&host.device, chunk, start as u32, new));
            }
        }
        drop(guard);
        let mut held = host.held.borrow_mut();
        held.retain(|chunk| !chunks.contains(chunk));
    }

    pub(super) fn flush(&mut self) {
        let host = self.host();
        let persisted = self.run(host.store.persist(&host.device));
        if let Err(error) = &persisted {
            host.failed("persist", error);
        }
        if persisted.is_ok() && !self.medium.is_crashed() {
            if std::mem::take(&mut self.is_changed) {
                self.volume.borrow_mut().flush();
            }
            self.disk.stopped();
        }
    }

    /// Flushes the volume, and clears the marks of regions that were quiet before.
    pub(super) fn clear(&mut self, quiet: &Quiet) {
        let host = self.host();
        self.volume.borrow_mut().flush();
        if let Err(error) = self.run(host.store.clear(&host.device, quiet)) {
            host.failed("clear", &error);
        }
    }

    /// Cleans some dirty chunks, now or while operations go on.
    pub(super) fn clean_some(&mut self) {
        let (host, from) = (self.host(), self.random.below(self.chunks));
        let (from, most) = ([0, from][self.below(2)], [1, 1, 4, 4, 16, 4096][self.below(6)]);
        let mut dirty = self.run(host.store.addresses().dirty_from(from, most));
        if self.below(2) == 0 {
            dirty.retain(|_| self.random.below(2) == 0);
        }
        match self.life.get::<Steps>() {
            Steps::AtOnce => {
                self.run(host.clean(dirty, true));
            }
            Steps::Apart => {
                let spawner = host.spawner.clone();
                spawner.spawn(Box::pin(async move {
                    host.clean(dirty, true).await;
                }));
            }
        }
    }

    pub(super) fn operate(&mut self, totals: &mut Totals) {
        let trims = if self.life.get::<Trims>() == Trims::Some {
            12
        } else {
            0
        };
        match self.below(100) {
            draw if draw < 15 => self.read_and_fill(),
            draw if draw < 15 + trims => {
                let range = self.range();
                let zeros = vec![0; range.len()];
                self.change(&range, &zeros, false);
                self.disk
                    .change(range.start, &zeros, !self.medium.is_crashed(), false);
            }
            _ => {
                let range = self.range();
                let bytes = self.bytes(&range);
                let version = self.version;
                chunks_of(&range).for_each(|chunk| self.written[chunk as usize] = version);
                self.write(&range, &bytes, totals);
                self.disk
                    .change(range.start, &bytes, !self.medium.is_crashed(), false);
            }
        }
    }

    /// One of so many.
    pub(super) fn is_one_of(&mut self, count: usize) -> bool {
        !self.medium.is_crashed() && self.below(count) == 0
    }
}

/// The chunks of a range of bytes.
pub(super) fn chunks_of(range: &Range<usize>) -> Range<u64> {
    (range.start / CHUNK) as u64..range.end.div_ceil(CHUNK) as u64
}

/// The bytes of a range that are in a chunk, from `origin` on.
pub(super) fn part_of(chunk: u64, range: &Range<usize>, origin: usize) -> Range<usize> {
    let first = chunk as usize * CHUNK;
    range.start.max(first) - origin..range.end.min(first + CHUNK) - origin
}
