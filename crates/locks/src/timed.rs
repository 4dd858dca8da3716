//! A mutex and a lock of readers and writers that note how long they were waited for.

use std::any::type_name;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{AddAssign, Deref};
use std::time::{Duration, Instant};

/// What a thread waited for locks of one type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// How many times.
    pub count: u64,
    /// All together: from a lock that was found taken to the lock held.
    pub time: Duration,
    /// The part of waits below [`SHORT`].
    pub short: Duration,
}

impl AddAssign for Waits {
    fn add_assign(&mut self, more: Self) {
        self.count += more.count;
        self.time += more.time;
        self.short += more.short;
    }
}

/// Longer waits are mostly of the scheduler's making: the holder had lost its core, or the thread itself while it spun or was woken.
pub const SHORT: Duration = Duration::from_micros(100);

thread_local! {
    /// A name may stand here more than once, at several addresses.
    static WAITS: RefCell<Vec<(&'static str, Waits)>> = const { RefCell::new(Vec::new()) };
}

/// What this thread has waited for since it last asked, by the type that the lock guards.
pub fn take_waits() -> BTreeMap<&'static str, Waits> {
    let mut all: BTreeMap<_, Waits> = BTreeMap::new();
    for (guarded, waits) in WAITS.take() {
        *all.entry(guarded).or_default() += waits;
    }
    all
}

/// Called with the lock held, so it is quick: names are told apart by their addresses.
fn note(guarded: &'static str, time: Duration) {
    WAITS.with_borrow_mut(|all| {
        let waits = Waits {
            count: 1,
            time,
            short: if time < SHORT { time } else { Duration::ZERO },
        };
        match all.iter_mut().find(|(known, _)| std::ptr::eq(*known, guarded)) {
            Some((_, sum)) => *sum += waits,
            None => all.push((guarded, waits)),
        }
    });
}

/// The guard that `tried` has, or that `wait` brings.
fn timed<T: ?Sized, G>(tried: Option<G>, wait: impl FnOnce() -> G) -> G {
    tried.unwrap_or_else(|| {
        let began = Instant::now();
        let guard = wait();
        note(type_name::<T>(), began.elapsed());
        guard
    })
}

/// [`parking_lot::Mutex`]; time waited in [`Mutex::lock`] is noted.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// What it guards.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> parking_lot::MutexGuard<'_, T> {
        timed::<T, _>(self.0.try_lock(), || self.0.lock())
    }

    /// What it guards, without the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// All that needs no time.
impl<T: ?Sized> Deref for Mutex<T> {
    type Target = parking_lot::Mutex<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// [`parking_lot::RwLock`]; time waited in [`RwLock::read`] and [`RwLock::write`] is noted.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// What it guards.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for the lock of a reader.
    pub fn read(&self) -> parking_lot::RwLockReadGuard<'_, T> {
        timed::<T, _>(self.0.try_read(), || self.0.read())
    }

    /// Waits for the lock of the writer.
    pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, T> {
        timed::<T, _>(self.0.try_write(), || self.0.write())
    }

    /// What it guards, without the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// All that needs no time.
impl<T: ?Sized> Deref for RwLock<T> {
    type Target = parking_lot::RwLock<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn only_a_taken_lock_counts_and_its_time_is_that_of_the_wait() {
        const HELD: Duration = Duration::from_millis(50);
        let (lock, barrier) = (Mutex::new(7_u16), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = lock.lock();
                barrier.wait();
                std::thread::sleep(HELD);
                assert!(take_waits().is_empty(), "it was free");
            });
            barrier.wait();
            assert_eq!(*lock.lock(), 7);
            let waits = take_waits();
            let of_type = waits[type_name::<u16>()];
            assert_eq!((waits.len(), of_type.count), (1, 1));
            assert!(of_type.time > HELD / 2 && of_type.time < HELD * 20, "{of_type:?}");
            assert_eq!(of_type.short, Duration::ZERO);
        });
        assert!(take_waits().is_empty(), "they were taken");
    }
}
