//! Making copies, in the background, one at a time.

use super::choose::Choice;
use super::device::{Tiered, Upper};
use super::table::Seen;
use super::{Tier, add};
use pumice_device::{Buffer, Device, SECTOR_BYTES};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are read and written at once, and all the memory that copying takes.
const CHUNK_BYTES: u64 = 256 << 10;

/// Why a copy was not made.
enum Abandoned {
    /// The block is not whole, or was written meanwhile; or its place is still being read.
    Busy,
    /// It cannot be read.
    Lower,
    /// The upper device failed; that is noted.
    Upper,
}

impl<L: Device + Clone, U: Device<Buf = L::Buf> + Clone> Tiered<L, U> {
    /// Copies what is read most, until that is done. Chooses anew when it is time: a long list gets old.
    pub(super) async fn copy_what_is_read_most(&self) {
        let Some(upper) = &self.upper else { return };
        let tier = &upper.tier;
        while tier.is_choice_due() {
            for choice in tier.choose() {
                if !tier.works() {
                    return;
                }
                self.copy(upper, choice).await;
                if tier.is_choice_due() {
                    break;
                }
            }
        }
    }

    async fn copy(&self, upper: &Upper<U>, choice: Choice) {
        let tier = &upper.tier;
        let Some(seen) = tier.table.begin_copy(choice.block) else {
            return;
        };
        match self.copy_block(upper, choice, seen).await {
            Ok(()) => add(&tier.counters.copied_blocks, 1),
            Err(why) => {
                add(&tier.counters.abandoned_copies, 1);
                if matches!(why, Abandoned::Lower) {
                    tier.table.bar(choice.block, seen);
                }
            }
        }
    }

    async fn copy_block(&self, upper: &Upper<U>, choice: Choice, seen: Seen) -> Result<(), Abandoned> {
        let tier = &upper.tier;
        let Choice { block, place, .. } = choice;
        let division = tier.table.division();
        let (from, to) = (division.block_offset(block), upper.place_offset(place));
        let sector = SECTOR_BYTES as u64;
        let last_at = division.block_bytes - sector;
        let read = |at: u64, len: u64| {
            let len = usize::try_from(len).expect("at most a chunk");
            self.lower.read(from + at, len)
        };
        let last = read(last_at, sector).await.map_err(|_| Abandoned::Lower)?;
        if tier.block_of(&last) != Some(block) {
            return Err(Abandoned::Busy);
        }
        if let Some(former) = choice.instead_of
            && tier.table.give_up(former, place, false)
        {
            add(&tier.counters.replaced_copies, 1);
        }
        if tier.table.is_pinned(place) {
            return Err(Abandoned::Busy);
        }
        // From here on a start finds nothing in this place.
        let blank = Arc::new(L::Buf::with_len(SECTOR_BYTES));
        self.put(upper, to + last_at, blank, 0..SECTOR_BYTES).await?;
        let mut at = 0;
        while at < division.block_bytes {
            let len = CHUNK_BYTES.min(division.block_bytes - at);
            let chunk = read(at, len).await.map_err(|_| Abandoned::Lower)?;
            let is_last = at + len == division.block_bytes;
            let body = usize::try_from(if is_last { len - sector } else { len }).expect("at most a chunk");
            let chunk = Arc::new(chunk);
            if body > 0 {
                self.put(upper, to + at, Arc::clone(&chunk), 0..body).await?;
            }
            if !tier.table.is_still(block, seen) {
                return Err(Abandoned::Busy);
            }
            if is_last {
                self.put(upper, to + last_at, chunk, body..body + SECTOR_BYTES)
                    .await?;
            }
            at += len;
        }
        tier.chooser.lock().set_owner(place, block);
        match tier.table.enter(block, seen, place) {
            true => Ok(()),
            false => Err(Abandoned::Busy),
        }
    }

    async fn put(
        &self,
        upper: &Upper<U>,
        offset: u64,
        data: Arc<L::Buf>,
        range: std::ops::Range<usize>,
    ) -> Result<(), Abandoned> {
        let tier = &upper.tier;
        add(&tier.counters.copied_bytes, range.len() as u64);
        match upper.device.write(offset, data, range).await {
            Ok(()) => {
                tier.note_success();
                Ok(())
            }
            Err(error) => {
                tier.note_error(&error);
                Err(Abandoned::Upper)
            }
        }
    }
}

impl Tier {
    /// Ends a round of counting, and says what is to be copied: as much as was written below, and not copied yet.
    fn choose(&self) -> Vec<Choice> {
        self.chosen_at
            .store(self.reads.load(Ordering::Relaxed), Ordering::Relaxed);
        let copied = self.counters.copied_bytes.load(Ordering::Relaxed);
        let earned = self.earned_bytes.load(Ordering::Relaxed);
        let block_bytes = self.table.division().block_bytes + SECTOR_BYTES as u64;
        self.chooser
            .lock()
            .round(&self.table, earned.saturating_sub(copied) / block_bytes)
    }
}
