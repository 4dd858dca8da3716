//! The device, and what its handles share.

use super::lanes::{Kind, Lanes};
use super::profile::Profile;
use super::time::Timeline;
use crate::{Buffer, Device, Overdue, check_range, check_write_range};
use futures_util::future::{FutureExt, OptionFuture, join};
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
    /// `None`: as fast as the device beneath.
    throttle: Option<Arc<Throttle>>,
    waiting: Rc<RefCell<Waiting>>,
}

impl<D: Clone> Clone for ThrottledDevice<D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            throttle: self.throttle.clone(),
            waiting: Rc::clone(&self.waiting),
        }
    }
}

impl<D: Device> ThrottledDevice<D> {
    /// A handle on `inner`. With a throttle an operation takes as long as the model says, without one as long as `inner` takes.
    pub fn new(inner: D, throttle: impl Into<Option<Arc<Throttle>>>) -> Self {
        Self {
            inner,
            throttle: throttle.into(),
            waiting: Rc::default(),
        }
    }

    /// Waits until an operation of this handle is under way that is done by the model before `than`, on its timeline; returns when that
    /// is. One waits at a time.
    pub fn due_before(&self, than: u64) -> impl Future<Output = u64> + 'static {
        let waiting = Rc::clone(&self.waiting);
        std::future::poll_fn(move |context| {
            let mut waiting = waiting.borrow_mut();
            let first = waiting.first().filter(|due| *due < than);
            if first.is_none() {
                waiting.pacer = Some(context.waker().clone());
            }
            first.map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Nanoseconds until then.
    pub fn wait_ns(&self, due: u64) -> u64 {
        let now = self.throttle.as_ref().map(|throttle| throttle.timeline.now_ns());
        now.map_or(0, |now| due.saturating_sub(now))
    }

    /// When the next operation of this handle is done by the model, on its timeline; `None` where none is under way.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.waiting.borrow().first()
    }

    /// A future that is done at `due`.
    fn until(&self, due: u64) -> Delay {
        let (key, pacer) = {
            let mut waiting = self.waiting.borrow_mut();
            let is_first = waiting.first().is_none_or(|first| due < first);
            let key = waiting.delays.insert(State::Waiting(None));
            waiting.queue.push(Reverse((due, key)));
            (key, is_first.then(|| waiting.pacer.take()).flatten())
        };
        pacer.into_iter().for_each(Waker::wake);
        Delay {
            waiting: Rc::clone(&self.waiting),
            key: Some(key),
        }
    }

    /// Ends what is due; returns how much that was.
    pub fn end_due(&self) -> usize {
        let Some(throttle) = &self.throttle else { return 0 };
        let now = throttle.timeline.now_ns();
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
        let throttle = (self.throttle.as_ref()).filter(|_| check_range(self.capacity(), offset, len).is_ok());
        let delay = throttle.map(|throttle| self.until(throttle.begin(Kind::Read, offset, len)));
        let operation = self.inner.read(offset, len);
        both(operation, delay)
    }

    fn write(
        &self,
        offset: u64,
        data: Arc<Self::Buf>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let is_good = check_write_range(self.capacity(), offset, data.len(), &range).is_ok();
        let throttle = self.throttle.as_ref().filter(|_| is_good);
        let delay = throttle.map(|throttle| self.until(throttle.begin(Kind::Write, offset, range.len())));
        let operation = self.inner.write(offset, data, range);
        both(operation, delay)
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.append_log(offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read_log(offset, out)
    }

    fn sync(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let throttle = self.throttle.as_ref();
        let delay = throttle.map(|throttle| self.until(throttle.lanes.lock().writes_done()));
        let operation = self.inner.sync();
        both(operation, delay)
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
            match (self.next_due_ns(), &self.throttle) {
                (Some(due), Some(throttle)) => throttle.timeline.wait_until(due),
                // The model is done, and the device is not.
                _ => return self.inner.turn(true),
            }
        }
    }
}

/// Waits for the operation, and for the model.
fn both<T>(operation: impl Future<Output = T>, delay: Option<Delay>) -> impl Future<Output = T> {
    join(operation, OptionFuture::from(delay)).map(|(result, _)| result)
}

/// What a handle waits for.
#[derive(Default)]
struct Waiting {
    /// When each delay is over.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    delays: slab::Slab<State>,
    /// Who waits for an earlier first.
    pacer: Option<Waker>,
}

impl Waiting {
    fn first(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((due, _))| *due)
    }
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
