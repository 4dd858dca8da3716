//! A start on the device: the clock, the identity, and the superblocks that say so.

use crate::blocks::{Blocks, Durability, add};
use crate::geometry::LOG_RECORD_BYTES;
use crate::log::Kind;
use crate::open::{OpenError, device_error};
use crate::owner::Owner;
use crate::superblock::{CheckpointRef, Superblock};
use pumice_device::{Device, SECTOR_BYTES};

/// A start's clock may be ahead of what the device saw by so many seconds, a day, and is believed.
const JUMP_SECS_MAX: u32 = 86_400;

/// What the clock says, and whether it is believed.
#[derive(Clone, Copy, Debug)]
pub struct StartClock {
    /// Unix time in seconds.
    pub now: u32,
    /// Believe a clock that is far ahead of what the device saw.
    pub accept_clock: bool,
}

impl Superblock {
    /// Whether the clock of the last start was far ahead of this one's: the expiry times that it stored mean nothing then.
    pub fn is_clock_back(&self, now: u32) -> bool {
        self.ahead != 0 && now < self.ahead.saturating_sub(JUMP_SECS_MAX)
    }

    /// Gives the device a new identity: no byte that is there can pass as ours again. `random` need not differ from that of another
    /// time.
    pub fn begin_anew(&mut self, random: u64) {
        let former = self.cache_id.wrapping_add(u64::from(self.epoch));
        self.cache_id = (former ^ random.rotate_left(32))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(1);
        self.checkpoints = [CheckpointRef::default(); 2];
    }

    /// Makes it that of a start. `epoch` and `time` are the highest that anything on the device shows.
    pub fn begin_start(&mut self, epoch: u32, time: u32, clock: StartClock, formatted: bool) {
        let StartClock { now, accept_clock } = clock;
        self.epoch = self.epoch.max(epoch).saturating_add(1);
        let is_back = self.is_clock_back(now);
        let seen = self.time.max(time);
        let is_jump = now > seen.saturating_add(JUMP_SECS_MAX) && !formatted;
        if is_back {
            tracing::warn!(
                "the clock of the last start was {} days ahead of this one's: nobody knows when what was stored then expires",
                (self.ahead - now) / JUMP_SECS_MAX
            );
        }
        if is_jump && self.ahead == 0 && !accept_clock {
            tracing::warn!(
                "the clock is {} days ahead of the last time that the device saw: what was to expire until then has expired, but the time \
                 is not recorded before a second start confirms it. --accept-clock does it at once; if the clock is wrong, stop and set it",
                (now - seen) / JUMP_SECS_MAX
            );
            (self.time, self.ahead) = (seen, now);
        } else {
            let confirmed = if is_back { 0 } else { self.ahead };
            (self.time, self.ahead) = (seen.max(now).max(confirmed), 0);
        }
        self.clean = false;
    }
}

impl<O: Owner> Blocks<O> {
    /// Records this start on the device, before anything is answered. `first` is the first record of the log of a cache that begins
    /// anew: it need not say anything, but where it is missing at a later start, so is what came after it.
    ///
    /// # Errors
    /// [`OpenError::Device`] where the device does not take it.
    pub async fn record_start<D: Device<Buf = O::Buf>>(
        &self,
        device: &D,
        first: Option<O::Kind>,
    ) -> Result<(), OpenError> {
        // Both slots, so that no superblock of a former identity or of a clean stop can ever win.
        for _ in 0..2 {
            let mut superblock = self.journal.superblock.lock();
            superblock.generation += 1;
            device
                .append_log(superblock.slot_offset(), &superblock.encode())
                .map_err(device_error("writing the superblock"))?;
            add(&self.totals.written_bytes, SECTOR_BYTES as u64);
        }
        if let Some(first) = first
            && self.durability != Durability::Off
        {
            // A power cut must not leave a log without a superblock: that is a cache whose superblocks are lost.
            device
                .sync()
                .await
                .map_err(device_error("flushing the superblock"))?;
            let stored = self.journal.log.append(device, Kind::Own(first), 0, 0);
            stored.map_err(device_error("writing the log"))?;
            add(&self.totals.written_bytes, LOG_RECORD_BYTES);
            add(&self.totals.log_records, 1);
        }
        // With any durability: a power cut must not bring the superblock of a clean stop back, nor one that forbids to discard.
        device
            .sync()
            .await
            .map_err(device_error("flushing the superblock"))
    }
}
