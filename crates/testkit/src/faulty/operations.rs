//! What an operation does to the content, and the faults done to it on the way.

use super::plan::CrashPoint;
use super::state::{State, Work, crashed};
use pumice_device::{AlignedBuf, Buffer, SECTOR_BYTES};
use std::io;
use std::ops::Range;

impl State {
    pub(super) fn append(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        self.counts.appends += 1;
        self.since_plan.1 += 1;
        if self.passes_away() {
            return Err(self.dead());
        }
        let (writes, appends) = self.since_plan;
        let crash = match self.plan.crash {
            Some(CrashPoint::Append(n)) => n == appends,
            Some(CrashPoint::WriteOrAppend(n)) => n == writes + appends,
            Some(CrashPoint::Write(_)) | None => false,
        };
        if !crash && self.rng.chance(self.plan.no_space) {
            return Err(self.no_space(offset, bytes.len()));
        }
        let is_bad = is_in(&self.plan.bad_appends, offset, bytes.len());
        if !crash && !is_bad && !self.rng.chance(self.plan.append_error) {
            self.put(offset, bytes, true);
            return Ok(());
        }
        let kept = self.rng.below(bytes.len() as u64 + 1) as usize;
        self.put(offset, &bytes[..kept], true);
        if crash {
            self.counts.torn_appends += 1;
            self.crash();
            return Err(crashed());
        }
        self.counts.append_errors += 1;
        Err(io::Error::other(format!(
            "simulated error of a log append at {offset}"
        )))
    }

    pub(super) fn read_log(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        if self.passes_away() {
            return Err(self.dead());
        }
        self.check_bad_ranges(offset, out.len())?;
        self.content.read(offset, out);
        if self.rng.chance(self.plan.log_bit_rot) {
            self.rot(out);
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, work: Work) -> io::Result<Option<AlignedBuf>> {
        if self.crashed {
            return Err(crashed());
        }
        match work {
            Work::Read(offset, len) => self.read(offset, len).map(Some),
            Work::Write(offset, data, range) => self.write(offset, &data.as_slice()[range]).map(|()| None),
            Work::Sync if self.is_dead() => Err(self.dead()),
            Work::Sync => {
                self.counts.syncs += 1;
                self.unflushed.flush();
                Ok(None)
            }
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        self.counts.reads += 1;
        if self.passes_away() {
            return Err(self.dead());
        }
        self.check_bad_ranges(offset, len)?;
        if self.rng.chance(self.plan.read_error) {
            return Err(self.read_error(offset, len));
        }
        let mut buf = AlignedBuf::with_len(len);
        self.content.read(offset, buf.as_mut_slice());
        if self.rng.chance(self.plan.bit_rot) {
            self.rot(buf.as_mut_slice());
        }
        Ok(buf)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counts.writes += 1;
        self.since_plan.0 += 1;
        let (writes, appends) = self.since_plan;
        let crash = match self.plan.crash {
            Some(CrashPoint::Write(n)) => n == writes,
            Some(CrashPoint::WriteOrAppend(n)) => n == writes + appends,
            Some(CrashPoint::Append(_)) | None => false,
        };
        if crash {
            self.tear(offset, bytes);
            self.crash();
            return Err(crashed());
        }
        let was_dead = self.is_dead();
        if self.passes_away() {
            if !was_dead {
                self.tear(offset, bytes);
            }
            return Err(self.dead());
        }
        if self.rng.chance(self.plan.no_space) {
            return Err(self.no_space(offset, bytes.len()));
        }
        let is_bad = is_in(&self.plan.bad_writes, offset, bytes.len());
        if is_bad || self.rng.chance(self.plan.write_error) {
            self.counts.write_errors += 1;
            self.write_some_sectors(offset, bytes);
            let len = bytes.len();
            return Err(io::Error::other(format!(
                "simulated error of a write of {len} bytes at {offset}"
            )));
        }
        if self.rng.chance(self.plan.lost_write) {
            self.counts.lost_writes += 1;
            return Ok(());
        }
        if self.rng.chance(self.plan.misdirected_write) {
            self.counts.misdirected_writes += 1;
            let elsewhere = self.elsewhere(offset, bytes.len() as u64);
            self.put(elsewhere, bytes, false);
            return Ok(());
        }
        self.put(offset, bytes, false);
        Ok(())
    }

    /// A place of the same length where a write may go astray: another of its kind, or any sectors, from where writes begin.
    fn elsewhere(&mut self, offset: u64, len: u64) -> u64 {
        let lowest = self.lowest_write.unwrap_or(offset).min(offset);
        let room = self.capacity - lowest - len;
        let step = if self.rng.below(2) == 0 {
            len
        } else {
            SECTOR_BYTES as u64
        };
        lowest + self.rng.below(room / step + 1) * step
    }

    /// Changes the content.
    fn put(&mut self, offset: u64, bytes: &[u8], is_append: bool) {
        if !is_append {
            self.lowest_write = Some(self.lowest_write.map_or(offset, |lowest| lowest.min(offset)));
        }
        if self.plan.volatile {
            self.unflushed.note(&self.content, offset, bytes, is_append);
        }
        self.content.write(offset, bytes);
    }

    /// Counts an operation; whether the device is dead by then.
    fn passes_away(&mut self) -> bool {
        self.operations += 1;
        self.is_dead()
    }

    fn is_dead(&self) -> bool {
        self.plan.dies_at.is_some_and(|at| self.operations >= at)
    }

    fn dead(&mut self) -> io::Error {
        self.counts.dead_operations += 1;
        io::Error::other("the simulated device has died")
    }

    fn no_space(&mut self, offset: u64, len: usize) -> io::Error {
        self.counts.no_space_errors += 1;
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!("simulated lack of space for {len} bytes at {offset}"),
        )
    }

    fn check_bad_ranges(&mut self, offset: u64, len: usize) -> io::Result<()> {
        if is_in(&self.plan.bad_ranges, offset, len) {
            Err(self.read_error(offset, len))
        } else {
            Ok(())
        }
    }

    fn read_error(&mut self, offset: u64, len: usize) -> io::Error {
        self.counts.read_errors += 1;
        io::Error::other(format!("simulated error of a read of {len} bytes at {offset}"))
    }

    pub(super) fn rot(&mut self, bytes: &mut [u8]) {
        let at = self.rng.below(bytes.len() as u64) as usize;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << self.rng.below(8);
            self.counts.rotten_bits += 1;
        }
    }

    /// Writes a first part, a last part, or a scattered choice of the sectors.
    pub(super) fn tear(&mut self, offset: u64, bytes: &[u8]) {
        self.counts.torn_writes += 1;
        let sectors = bytes.len() / SECTOR_BYTES;
        let cut = self.rng.below(sectors as u64 + 1) as usize * SECTOR_BYTES;
        match self.rng.below(3) {
            0 => self.put(offset, &bytes[..cut], false),
            1 => self.put(offset + cut as u64, &bytes[cut..], false),
            _ => self.write_some_sectors(offset, bytes),
        }
    }

    fn write_some_sectors(&mut self, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
            if self.rng.below(2) == 0 {
                self.put(offset + (index * SECTOR_BYTES) as u64, sector, false);
            }
        }
    }
}

/// Whether `len` bytes at `offset` touch one of the ranges.
fn is_in(ranges: &[Range<u64>], offset: u64, len: usize) -> bool {
    let end = offset + len as u64;
    ranges.iter().any(|range| range.start < end && offset < range.end)
}
