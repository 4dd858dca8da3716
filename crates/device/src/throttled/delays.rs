//! Operations of one handle that wait until the model is done with them.

use super::lanes::{Kind, Lanes};
use super::profile::Profile;
use super::time::Timeline;
use locks::Mutex;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
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

/// What one handle on a throttled device waits for. Clones are the same handle. Somebody has to call [`end_due`](Delays::end_due) when
/// [`next_due_ns`](Delays::next_due_ns) has come.
#[derive(Clone)]
pub struct Delays {
    /// `None`: nothing waits.
    throttle: Option<Arc<Throttle>>,
    waiting: Rc<RefCell<Waiting>>,
}

impl Delays {
    /// Delays of a handle on the device that `throttle` is of; without one there are none.
    pub fn new(throttle: impl Into<Option<Arc<Throttle>>>) -> Self {
        Self {
            throttle: throttle.into(),
            waiting: Rc::default(),
        }
    }

    /// An operation of `bytes` at `offset` begins; the future is ready when it is done by the model.
    pub fn begin(&self, kind: Kind, offset: u64, bytes: usize) -> Option<Delay> {
        let throttle = self.throttle.as_ref()?;
        Some(self.until(throttle.begin(kind, offset, bytes)))
    }

    /// The future is ready when all writes are done that have begun.
    pub fn writes_done(&self) -> Option<Delay> {
        let throttle = self.throttle.as_ref()?;
        Some(self.until(throttle.lanes.lock().writes_done()))
    }

    /// The future is ready when so many nanoseconds have passed on the timeline.
    pub fn after(&self, ns: u64) -> Option<Delay> {
        let throttle = self.throttle.as_ref()?;
        Some(self.until(throttle.timeline.now_ns().saturating_add(ns)))
    }

    /// Blocks until the next operation is due; false if none is under way.
    pub fn wait_for_next(&self) -> bool {
        match (self.next_due_ns(), &self.throttle) {
            (Some(due), Some(throttle)) => {
                throttle.timeline.wait_until(due);
                true
            }
            _ => false,
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

/// The wait of one operation.
pub struct Delay {
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
