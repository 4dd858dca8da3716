//! Reads that find each sector whole while it is changed.
//!
//! The page cache copies bytes without a lock between readers and writers (ext4, block devices): a read that overlaps a write in time may
//! find some bytes of a sector old and others new. So a read looks whether a change of its range was under way, and if so is done again
//! while no change is.

use locks::RwLock;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Bytes of a stripe.
const STRIPE_BYTES: u64 = 16 << 10;
/// Stripes; those further on in the file share them.
const STRIPES: u64 = 4096;

#[derive(Default)]
struct Stripe {
    /// Shared by changes; taken alone by a read that is done again.
    changing: RwLock<()>,
    begun: AtomicU32,
    ended: AtomicU32,
}

/// The changes of a file that are under way.
pub struct Changes(Box<[Stripe]>);

impl Default for Changes {
    fn default() -> Self {
        Self((0..STRIPES).map(|_| Stripe::default()).collect())
    }
}

impl Changes {
    /// The stripes of a range, in order, so that no two callers lock them crosswise.
    fn of(&self, range: &Range<u64>) -> impl Iterator<Item = &Stripe> + Clone {
        let (first, end) = (range.start / STRIPE_BYTES, range.end.div_ceil(STRIPE_BYTES));
        let (at, count) = (first % STRIPES, (end - first).min(STRIPES));
        let wrapped = (at + count).saturating_sub(STRIPES);
        let stripes = |range: Range<u64>| &self.0[range.start as usize..range.end as usize];
        // What wraps around has the lowest numbers.
        let (low, high) = (stripes(0..wrapped), stripes(at..at + count - wrapped));
        low.iter().chain(high)
    }

    /// Changes a range.
    pub fn change<T>(&self, range: &Range<u64>, act: impl FnOnce() -> T) -> T {
        let stripes = self.of(range);
        let held: Vec<_> = stripes.clone().map(|stripe| stripe.changing.read()).collect();
        for stripe in stripes.clone() {
            stripe.begun.fetch_add(1, Ordering::SeqCst);
        }
        // The bytes change after this, and before what follows.
        fence(Ordering::SeqCst);
        let done = act();
        for stripe in stripes {
            stripe.ended.fetch_add(1, Ordering::SeqCst);
        }
        drop(held);
        done
    }

    /// Call it before a read of the range, for [`was_whole`](Self::was_whole).
    pub fn ended(&self, range: &Range<u64>) -> u32 {
        self.of(range)
            .map(|stripe| stripe.ended.load(Ordering::SeqCst))
            .fold(0, u32::wrapping_add)
    }

    /// Whether no change of the range was under way since [`ended`](Self::ended).
    pub fn was_whole(&self, range: &Range<u64>, ended: u32) -> bool {
        // The bytes were read before this.
        fence(Ordering::SeqCst);
        let begun = self.of(range).map(|stripe| stripe.begun.load(Ordering::SeqCst));
        begun.fold(0, u32::wrapping_add) == ended
    }

    /// Runs `act` while no change of the range is under way.
    pub fn unchanged<T>(&self, range: &Range<u64>, act: impl FnOnce() -> T) -> T {
        let _held: Vec<_> = self.of(range).map(|stripe| stripe.changing.write()).collect();
        act()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_whole_if_no_change_of_its_range_overlaps_it_in_time() {
        let changes = Changes::default();
        let around = STRIPES * STRIPE_BYTES;
        let range = around - 5..around + STRIPE_BYTES + 1;
        assert_eq!(changes.of(&range).count(), 3);
        assert_eq!(changes.of(&(3..3 + 2 * around)).count(), STRIPES as usize);
        for (other, is_whole) in [
            (0..1, false),
            (around + STRIPE_BYTES..around + STRIPE_BYTES + 1, false),
            (around - 1..around, false),
            (around - STRIPE_BYTES - 1..around - STRIPE_BYTES, true),
            (2 * STRIPE_BYTES..around - STRIPE_BYTES, true),
        ] {
            let ended = changes.ended(&range);
            assert!(changes.was_whole(&range, ended));
            changes.change(&other, || {
                assert_eq!(changes.was_whole(&range, ended), is_whole, "{other:?}");
                let ended = changes.ended(&range);
                assert_eq!(changes.was_whole(&range, ended), is_whole, "{other:?}");
            });
            assert_eq!(changes.was_whole(&range, ended), is_whole, "{other:?}");
        }
    }
}
