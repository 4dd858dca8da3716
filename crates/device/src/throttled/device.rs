//! The device, and what its handles share.

use super::lanes::{Kind, Lanes};
use super::profile::Profile;
use super::time::Timeline;
use crate::{Buffer, Device, Overdue, check_range, check_write_range};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What the handles on one device share: how busy it is.
pub struct Throttle {
    lanes: Mutex<Lanes>,
    timeline: Arc<dyn Timeline>,
}

impl Throttle {
    /// An idle device of this kind, in the time of `timeline`.
    pub fn new(profile: &Profile, timeline: Arc<dyn Timeline>) -> Self {
        Self {
            lanes: Mutex::new(Lanes::new(profile)),
            timeline,
        }
    }

    fn begin(&self, kind: Kind, offset: u64, bytes: usize) -> u64 {
        let mut lanes = self.lanes.lock();
        // Under the lock: the lanes know no earlier time than they have seen.
        lanes.begin(self.timeline.now_ns(), kind, offset, bytes as u64)
    }
}

/// A handle that passes everything on to another device, and is done with it when the model is; see the module's text. Clones are
/// the same handle.
///
/// What is to be done later is seen to by [`turn`](Device::turn), so an event loop has to call it when
/// [`next_due_ns`](ThrottledDevice::next_due_ns) has come.
pub struct ThrottledDevice<D> {
    inner: D,
    throttle: Arc<Throttle>,
    waiting: Rc<RefCell<Waiting>>,
}

impl<D: Clone> Clone for ThrottledDevice<D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            throttle: Arc::clone(&self.throttle),
            waiting: Rc::clone(&self.waiting),
        }
    }
}

impl<D: Device> ThrottledDevice<D> {
    /// A handle on `inner` that takes as long as `throttle` says.
    pub fn new(inner: D, throttle: Arc<Throttle>) -> Self {
        Self {
            inner,
            throttle,
            waiting: Rc::default(),
        }
    }

    /// When the next operation of this handle is done by the model, on its timeline; `None` where none is under way.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.waiting.borrow().queue.peek().map(|Reverse((due, _))| *due)
    }

    /// A future that is done at `due`.
    fn until(&self, due: u64) -> Delay {
        let mut waiting = self.waiting.borrow_mut();
        let key = waiting.delays.insert(State::Waiting(None));
        waiting.queue.push(Reverse((due, key)));
        Delay {
            waiting: Rc::clone(&self.waiting),
            key: Some(key),
        }
    }

    /// Ends what is due; returns how much that was.
    fn end_due(&self) -> usize {
        let now = self.throttle.timeline.now_ns();
        let mut ended = 0;
        let mut wakers = Vec::new();
        {
            let mut waiting = self.waiting.borrow_mut();
            while let Some(Reverse((due, key))) = waiting.queue.peek().copied()
                && due <= now
            {
                waiting.queue.pop();
                ended += 1;
                match std::mem::replace(&mut waiting.delays[key], State::Done) {
                    State::Waiting(waker) => wakers.extend(waker),
                    State::Dropped => drop(waiting.delays.remove(key)),
                    State::Done => unreachable!("a delay is queued once"),
                }
            }
        }
        // No borrow is held here: a waker may run anything, this device included.
        wakers.into_iter().for_each(Waker::wake);
        ended
    }
}

impl<D: Device> Device for ThrottledDevice<D> {
    type Buf = D::Buf;

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<Self::Buf>> + 'static {
        // What is refused takes no time.
        let is_good = check_range(self.capacity(), offset, len).is_ok();
        let delay = is_good.then(|| self.until(self.throttle.begin(Kind::Read, offset, len)));
        let operation = self.inner.read(offset, len);
        async move { both(operation, delay).await }
    }

    fn write(
        &self,
        offset: u64,
        data: Arc<Self::Buf>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let is_good = check_write_range(self.capacity(), offset, data.len(), &range).is_ok();
        let delay = is_good.then(|| self.until(self.throttle.begin(Kind::Write, offset, range.len())));
        let operation = self.inner.write(offset, data, range);
        async move { both(operation, delay).await }
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.append_log(offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_log(offset, out)
    }

    fn sync(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let delay = self.until(self.throttle.lanes.lock().writes_done());
        let operation = self.inner.sync();
        async move { both(operation, Some(delay)).await }
    }

    fn tick(&self, patience: u32) -> Vec<Overdue> {
        self.inner.tick(patience)
    }

    fn discard(&self, offset: u64, len: u64) {
        self.inner.discard(offset, len);
    }

    fn turn(&self, block: bool) -> io::Result<usize> {
        loop {
            let completed = self.inner.turn(false)? + self.end_due();
            if completed > 0 || !block {
                return Ok(completed);
            }
            match self.next_due_ns() {
                Some(due) => self.throttle.timeline.wait_until(due),
                // The model is done, and the device is not.
                None => return self.inner.turn(true),
            }
        }
    }
}

/// Waits for the operation, and for the model.
async fn both<T>(operation: impl Future<Output = io::Result<T>>, delay: Option<Delay>) -> io::Result<T> {
    let result = operation.await;
    if let Some(delay) = delay {
        delay.await;
    }
    result
}

/// What a handle waits for.
#[derive(Default)]
struct Waiting {
    /// When each delay is over.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    delays: slab::Slab<State>,
}

enum State {
    Waiting(Option<Waker>),
    Done,
    Dropped,
}

struct Delay {
    waiting: Rc<RefCell<Waiting>>,
    /// `None` when it is over.
    key: Option<usize>,
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(key) = self.key else {
            return Poll::Ready(());
        };
        let old_waker = {
            let mut waiting = self.waiting.borrow_mut();
            match &mut waiting.delays[key] {
                State::Waiting(waker) => waker.replace(context.waker().clone()),
                _ => {
                    waiting.delays.remove(key);
                    drop(waiting);
                    self.key = None;
                    return Poll::Ready(());
                }
            }
        };
        drop(old_waker);
        Poll::Pending
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let old = {
            let mut waiting = self.waiting.borrow_mut();
            match &waiting.delays[key] {
                State::Done => waiting.delays.remove(key),
                _ => std::mem::replace(&mut waiting.delays[key], State::Dropped),
            }
        };
        drop(old);
    }
}
