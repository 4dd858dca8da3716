//! Work done aside: on threads of its own, for what may not answer for minutes, and nobody is to wait for all of it.

use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// A place at which one thread works at a time. Where one hangs, others would only hang as well.
#[derive(Clone, Default)]
pub(super) struct Place(Arc<AtomicBool>);

/// What a thread does.
pub(super) type Job = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Does each job on a thread of its own, which ends with it. Done when one has succeeded, or all have failed; then the error is the
/// last one. A job whose place is still taken by the one before fails.
pub(super) fn any_of(name: &str, jobs: impl ExactSizeIterator<Item = (Place, Job)>) -> Tried {
    let tries = Arc::new(Mutex::new(Tries {
        left: jobs.len(),
        result: Err(io::ErrorKind::Unsupported.into()),
        waker: None,
    }));
    for (place, job) in jobs {
        if place.0.swap(true, Ordering::AcqRel) {
            let error = io::Error::new(io::ErrorKind::TimedOut, "the try before has not ended");
            finish(&tries, Err(error));
            continue;
        }
        let (mine, taken) = (Arc::clone(&tries), place.clone());
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || {
            let result = job();
            taken.0.store(false, Ordering::Release);
            finish(&mine, result);
        });
        if let Err(error) = started {
            place.0.store(false, Ordering::Release);
            finish(&tries, Err(error));
        }
    }
    Tried(tries)
}

/// How far the threads are.
struct Tries {
    left: usize,
    result: io::Result<()>,
    waker: Option<Waker>,
}

fn finish(tries: &Mutex<Tries>, result: io::Result<()>) {
    let waker = {
        let mut tries = tries.lock();
        tries.left -= 1;
        if tries.result.is_err() {
            tries.result = result;
        }
        tries.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// What [`any_of`] returns.
pub(super) struct Tried(Arc<Mutex<Tries>>);

impl Future for Tried {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut tries = self.0.lock();
        if tries.result.is_ok() {
            return Poll::Ready(Ok(()));
        }
        if tries.left == 0 {
            return Poll::Ready(std::mem::replace(&mut tries.result, Ok(())));
        }
        let old_waker = tries.waker.replace(context.waker().clone());
        drop(tries);
        drop(old_waker);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Executor;
    use std::convert::Infallible;
    use std::sync::mpsc;

    fn run(tried: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let wait = || -> Result<(), Infallible> {
            std::thread::yield_now();
            Ok(())
        };
        let Ok(result) = Executor::new().block_on(tried, wait);
        result
    }

    #[test]
    fn one_that_hangs_holds_nobody_up_and_is_not_joined_by_others() {
        let (slow, quick) = (Place::default(), Place::default());
        let (release, wait) = mpsc::channel::<()>();
        let hanging: Job = Box::new(move || wait.recv().map_err(io::Error::other));
        let done: Job = Box::new(|| Ok(()));
        run(any_of(
            "test",
            [(slow.clone(), hanging), (quick, done)].into_iter(),
        ))
        .unwrap();
        let again = || -> io::Result<()> {
            let job: Job = Box::new(|| Ok(()));
            run(any_of("test", [(slow.clone(), job)].into_iter()))
        };
        assert_eq!(again().unwrap_err().kind(), io::ErrorKind::TimedOut);
        release.send(()).unwrap();
        while again().is_err() {
            std::thread::yield_now();
        }
    }
}
