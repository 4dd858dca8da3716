//! A ghost of the keys that missed on flash, or were set, last: nearly as many as flash holds objects, two bytes each, and how often they came.
//!
//! Source: the ghost entries of ARC (Megiddo and Modha, FAST 2003), kept as short fingerprints in buckets as a cuckoo filter does. A bucket is
//! one cache line of 32 slots, the newest first; a new key pushes the oldest out. A key so is forgotten after about as many others as there are
//! slots, give or take a sixth. Two ageing Bloom filters of the same size forget all of a generation at once, and do not count.
//!
//! Buckets are in pages of the pool that the index grows from. A page is taken when a key falls into it for the first time; while the pool is short
//! of them, such a key is not noted, which costs a miss. Pages are divided among stripes, each with a lock, so that they can be given back.

use locks::Mutex;
use pumice_memory::{PAGE_BYTES, Page, PagePool};
use std::array::from_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Slots of a bucket.
pub(crate) const WAYS: usize = 32;
const BUCKETS_PER_PAGE: usize = PAGE_BYTES / (WAYS * 2);
/// What a page takes: itself, and its place in a table.
const PAGE_COST: usize = PAGE_BYTES + size_of::<Option<Page>>();
/// Of two bytes for each object so many sixteenths are used: the rest leaves room for objects that become longer.
const USED_SIXTEENTHS: usize = 15;
/// Threads that note keys at once seldom meet in one of so many.
const STRIPES: usize = 16;

/// The bits of a slot that count accesses; 0 in them: the slot is empty. The others are a part of the key's hash.
const TIMES: u16 = 7;
/// How many answers [`Ghost::note`] and [`Ghost::renew`] have.
pub(crate) const COUNTS: usize = TIMES as usize + 1;
/// New keys of a million that are taken for known ones, about, once the ghost is full.
pub(crate) const MISTAKEN_PPM: u64 = 1_000_000 * WAYS as u64 * COUNTS as u64 / (1 << 16);

/// Each [`STRIPES`]th page, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    table: Vec<Option<Page>>,
    /// How many of them are there.
    taken: usize,
    /// How often each answer was given.
    answers: [u64; COUNTS],
}

/// Which keys missed lately.
pub(crate) struct Ghost {
    pool: Arc<PagePool>,
    /// Free pages that are left to others.
    spare_pages: usize,
    stripes: [Stripe; STRIPES],
    /// Buckets in use. It is changed before pages are given back.
    used: AtomicUsize,
}

/// The most buckets that take at most two bytes for each of so many objects.
fn buckets_for(objects: usize) -> usize {
    (objects.saturating_mul(2 * BUCKETS_PER_PAGE) / PAGE_COST).max(1)
}

impl Ghost {
    /// An empty one, which takes pages of `pool` while that has more than `spare_pages`. Until [`Ghost::resize`] it takes one at most.
    pub(crate) fn new(pool: Arc<PagePool>, spare_pages: usize) -> Self {
        Self {
            pool,
            spare_pages,
            stripes: from_fn(|_| Stripe::default()),
            used: AtomicUsize::new(BUCKETS_PER_PAGE),
        }
    }

    /// Bytes of a pool that has enough for a ghost of so many objects.
    pub(crate) fn pool_bytes(objects: usize) -> usize {
        buckets_for(objects).div_ceil(BUCKETS_PER_PAGE) * PAGE_BYTES
    }

    /// It is to take at most two bytes for each of so many objects from now on. Where it takes more, or far less, it is made anew, and has
    /// forgotten all.
    pub(crate) fn resize(&self, objects: usize) {
        let most = buckets_for(objects);
        let used = self.used.load(Relaxed);
        if used <= most && used * 4 >= most * 3 {
            return;
        }
        let wanted = most * USED_SIXTEENTHS / 16;
        self.used.store(wanted.max(1), Relaxed);
        for stripe in &self.stripes {
            let mut pages = stripe.0.lock();
            (pages.table, pages.taken) = (Vec::new(), 0);
        }
    }

    /// How often each answer was given since [`Ghost::count_anew`].
    pub(crate) fn answers(&self) -> [u64; COUNTS] {
        let mut sums = [0; COUNTS];
        for stripe in &self.stripes {
            let answers = stripe.0.lock().answers;
            sums.iter_mut().zip(answers).for_each(|(sum, more)| *sum += more);
        }
        sums
    }

    /// Counts answers from 0 again.
    pub(crate) fn count_anew(&self) {
        (self.stripes.iter()).for_each(|stripe| stripe.0.lock().answers = [0; COUNTS]);
    }

    /// How many keys it has when it is full.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.used.load(Relaxed) * WAYS
    }

    /// DRAM held: pages of the pool, and what names them.
    pub(crate) fn bytes(&self) -> usize {
        let pages = |stripe: &Stripe| {
            let pages = stripe.0.lock();
            pages.taken * PAGE_BYTES + pages.table.capacity() * size_of::<Option<Page>>()
        };
        size_of_val(&self.stripes) + self.stripes.iter().map(pages).sum::<usize>()
    }

    /// Makes a key the newest. Returns how often it was noted or renewed before, as far as is known: 0 to 7, which stands for more, too.
    #[inline]
    pub(crate) fn note(&self, hash: u64) -> usize {
        self.access(hash, true)
    }

    /// The same, but a key that is not known stays so: it pushes no other out.
    #[inline]
    pub(crate) fn renew(&self, hash: u64) -> usize {
        self.access(hash, false)
    }

    #[inline]
    fn access(&self, hash: u64, inserts: bool) -> usize {
        // The upper bits choose the bucket, the lower ones are the fingerprint.
        let bucket = (u128::from(hash) * self.used.load(Relaxed) as u128) >> 64;
        let (page, at) = (
            bucket as usize / BUCKETS_PER_PAGE,
            bucket as usize % BUCKETS_PER_PAGE,
        );
        let mut pages = self.stripes[page % STRIPES].0.lock();
        if inserts && !matches!(pages.table.get(page / STRIPES), Some(Some(_))) {
            self.take(&mut pages, page);
        }
        let times = match pages.table.get_mut(page / STRIPES) {
            Some(Some(page)) => {
                let (slots, _) = page.bytes_mut().as_chunks_mut::<2>();
                let (buckets, _) = slots.as_chunks_mut::<WAYS>();
                access_in(&mut buckets[at], hash as u16 & !TIMES, inserts)
            }
            _ => 0,
        };
        pages.answers[times] += 1;
        times
    }

    /// Takes a page, if the ghost has not shrunk since its bucket was chosen, and there are enough.
    #[cold]
    fn take(&self, pages: &mut Pages, page: usize) {
        let used = self.used.load(Relaxed).div_ceil(BUCKETS_PER_PAGE);
        if page >= used || self.pool.free_pages() <= self.spare_pages {
            return;
        }
        let Some(taken) = self.pool.take() else { return };
        let places = used.div_ceil(STRIPES).max(pages.table.len());
        pages.table.reserve_exact(places - pages.table.len());
        pages.table.resize_with(places, || None);
        pages.table[page / STRIPES] = Some(taken);
        pages.taken += 1;
    }
}

/// As [`Ghost::note`] or [`Ghost::renew`], in the key's bucket. All slots are looked at, and written: where the key is cannot be predicted.
/// Where the key is not known and is only renewed, nothing is written.
#[inline]
fn access_in(bucket: &mut [[u8; 2]; WAYS], fingerprint: u16, inserts: bool) -> usize {
    let held = bucket.map(u16::from_le_bytes);
    let mut places = 0u32;
    for (at, slot) in held.into_iter().enumerate() {
        places |= u32::from(slot & TIMES == 0 || slot & !TIMES == fingerprint) << at;
    }
    let place = places.trailing_zeros() as usize;
    let times = held.get(place).map_or(0, |slot| slot & TIMES);
    if times == 0 && !inserts {
        return 0;
    }
    for at in 1..WAYS {
        let slot = if at <= place { held[at - 1] } else { held[at] };
        bucket[at] = slot.to_le_bytes();
    }
    bucket[0] = (fingerprint | (times + 1).min(TIMES)).to_le_bytes();
    times.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::mix64;

    /// A ghost of about so many keys, of a pool for twice as many.
    fn ghost(keys: usize) -> Ghost {
        let objects = keys * 16 / USED_SIXTEENTHS * PAGE_COST / PAGE_BYTES;
        let ghost = Ghost::new(PagePool::standalone(Ghost::pool_bytes(2 * objects)).unwrap(), 0);
        ghost.resize(objects);
        let has = ghost.keys();
        assert!((keys * 95 / 100..=keys * 105 / 100).contains(&has), "{has}");
        ghost
    }

    fn known(ghost: &Ghost, mut keys: std::ops::Range<u64>) -> usize {
        keys.by_ref().filter(|key| ghost.note(mix64(*key)) > 0).count()
    }

    #[test]
    fn keys_are_counted_up_to_seven() {
        let ghost = ghost(1 << 12);
        for times in [0, 1, 2, 3, 4, 5, 6, 7, 7] {
            assert_eq!(ghost.note(mix64(1)), times);
        }
        // The others are not.
        assert_eq!(ghost.note(mix64(2)), 0);
    }

    #[test]
    fn a_bucket_has_the_newest_first_and_pushes_the_oldest_out() {
        let mut bucket = [[0; 2]; WAYS];
        let mut note = |key: u16| access_in(&mut bucket, key << 3, true);
        (1..=32).for_each(|key| assert_eq!(note(key), 0));
        // The oldest but one becomes the newest.
        assert_eq!(note(2), 1);
        assert_eq!(note(33), 0);
        assert_eq!(note(2), 2);
        assert_eq!(note(1), 0, "pushed out by 33");
        assert_eq!(note(3), 0, "pushed out by 1");
        assert_eq!(note(5), 1);
    }

    #[test]
    fn a_key_that_is_renewed_becomes_the_newest_if_it_is_known_and_else_changes_nothing() {
        let mut bucket = [[0; 2]; WAYS];
        (1..=32).for_each(|key: u16| _ = access_in(&mut bucket, key << 3, true));
        let before = bucket;
        assert_eq!(access_in(&mut bucket, 40 << 3, false), 0);
        assert_eq!(bucket, before);
        assert_eq!(access_in(&mut bucket, 1 << 3, false), 1);
        assert_eq!(access_in(&mut bucket, 40 << 3, true), 0, "pushes 2 out");
        assert_eq!(access_in(&mut bucket, 1 << 3, false), 2);
        assert_eq!(access_in(&mut bucket, 2 << 3, false), 0);
        // Of an empty one, too, which takes no page.
        let ghost = ghost(1 << 12);
        let empty = ghost.bytes();
        assert_eq!((ghost.renew(mix64(1)), ghost.bytes()), (0, empty));
        assert_eq!((ghost.note(mix64(1)), ghost.renew(mix64(1))), (0, 1));
        assert_eq!(ghost.answers()[..2], [2, 1]);
    }

    #[test]
    fn a_key_is_known_for_as_many_others_as_there_are_slots() {
        let ghost = ghost(1 << 14);
        let known_after = |others: u64, from: u64| {
            let keys = from..from + 2000;
            keys.clone().for_each(|key| _ = ghost.note(mix64(key)));
            let others = from + 1_000_000..from + 1_000_000 + others - 1000;
            others.for_each(|key| _ = ghost.note(mix64(key)));
            known(&ghost, keys)
        };
        assert!(known_after(1 << 13, 0) > 1980);
        let half = known_after(1 << 14, 10_000_000);
        assert!((600..1400).contains(&half), "{half}");
        // But for those that are mistaken.
        assert!(known_after(1 << 15, 20_000_000) < 40);
    }

    #[test]
    fn new_keys_are_taken_for_known_ones_seldom() {
        let mistaken = known(&ghost(1 << 14), 0..1_000_000) as u64;
        assert!(
            (MISTAKEN_PPM * 9 / 10..MISTAKEN_PPM * 11 / 10).contains(&mistaken),
            "{mistaken}"
        );
    }

    #[test]
    fn threads_lose_no_key() {
        let ghost = ghost(1 << 17);
        let noted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|thread| {
                    let ghost = &ghost;
                    scope.spawn(move || {
                        let keys = thread << 32..(thread << 32) + 10_000;
                        known(ghost, keys.clone());
                        known(ghost, keys)
                    })
                })
                .collect();
            let threads = threads.into_iter();
            threads.map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(noted, 40_000);
    }

    #[test]
    fn it_takes_pages_as_keys_come_and_two_bytes_for_an_object_at_most() {
        for objects in [40_000, 1_000_000] {
            let pool = PagePool::standalone(Ghost::pool_bytes(objects)).unwrap();
            let ghost = Ghost::new(Arc::clone(&pool), 0);
            (0..1000).for_each(|key| _ = ghost.note(mix64(key)));
            assert_eq!(
                pool.total_pages() - pool.free_pages(),
                1,
                "it knows of no objects"
            );
            ghost.resize(objects);
            let empty = ghost.bytes();
            assert!(empty < 4096);
            (0..10).for_each(|key| _ = ghost.note(mix64(key)));
            assert!((1..=10).contains(&(pool.total_pages() - pool.free_pages())));
            (0..2 * objects as u64).for_each(|key| _ = ghost.note(mix64(key)));
            let pages = ghost.used.load(Relaxed).div_ceil(BUCKETS_PER_PAGE);
            assert_eq!(pool.total_pages() - pool.free_pages(), pages);
            assert!(ghost.bytes() >= pages * PAGE_BYTES);
            assert!(ghost.bytes() <= 2 * objects, "{}", ghost.bytes());
            // A little more or less changes nothing.
            ghost.resize(objects * 19 / 20);
            assert!(ghost.bytes() >= pages * PAGE_BYTES);
            ghost.resize(objects / 2);
            assert_eq!((ghost.bytes(), pool.free_pages()), (empty, pool.total_pages()));
        }
    }

    #[test]
    fn it_leaves_pages_to_others_and_forgets_keys_rather() {
        let pool = PagePool::standalone(40 * PAGE_BYTES).unwrap();
        let ghost = Ghost::new(Arc::clone(&pool), 30);
        ghost.resize(100_000);
        (0..100_000).for_each(|key| _ = ghost.note(mix64(key)));
        assert_eq!(pool.free_pages(), 30);
        // A twentieth of the keys falls into ten pages.
        let pages = ghost.used.load(Relaxed).div_ceil(BUCKETS_PER_PAGE);
        let known = known(&ghost, 98_000..100_000);
        let expected = 2_000 * 10 / pages;
        assert!(
            (expected * 8 / 10..expected * 12 / 10).contains(&known),
            "{known}"
        );
        drop(ghost);
        assert_eq!(pool.free_pages(), pool.total_pages());
    }

    #[test]
    fn threads_may_note_while_it_is_resized() {
        let pool = PagePool::standalone(1 << 20).unwrap();
        let ghost = Ghost::new(Arc::clone(&pool), 0);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let ghost = &ghost;
                scope.spawn(move || {
                    (0..100_000).for_each(|key| _ = ghost.note(mix64(thread << 32 | key)));
                });
            }
            (0..1000).for_each(|turn| ghost.resize(if turn % 2 == 0 { 100_000 } else { 1000 }));
        });
        ghost.resize(1000);
        // No page is left of when it was larger.
        let taken = pool.total_pages() - pool.free_pages();
        assert!(
            taken <= ghost.used.load(Relaxed).div_ceil(BUCKETS_PER_PAGE),
            "{taken}"
        );
    }
}
