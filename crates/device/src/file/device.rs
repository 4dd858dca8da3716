//! One thread's handle on a file.

use super::pool::{PoolClient, signal};
use super::ring::Ring;
use super::shared::FileShared;
use super::table::{Table, Work};
use crate::{
    AlignedBuf, Buffer, Device, Operation, Overdue, check_log_range, check_range, check_write_range,
};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// One thread's handle on a [`FileShared`]; clones are the same handle.
///
/// Operations are queued when they are called and started together by [`turn`](Device::turn), or sixteen at a time. In an event
/// loop:
///
/// - register [`event_fd`](FileDevice::event_fd) and call `turn(false)` when it is readable;
/// - let the [submit hook](FileDevice::set_submit_hook) schedule a `turn(false)` for the end of the loop's turn.
///
/// An idle handle costs nothing: no thread of it runs and nothing polls. Dropping the last clone waits up to 10 s for what the
/// medium still works on, because that is the memory of buffers; what was queued and not started does not happen. Where the medium does
/// not answer in that time, of which little is left where something was given up before ([`tick`](Device::tick)), these buffers are leaked.
#[derive(Clone)]
pub struct FileDevice {
    inner: Rc<Inner>,
}

/// How long the last clone of a handle waits for what is under way, and how often it looks.
const DROP_WAIT: Duration = Duration::from_secs(10);
const DROP_WAIT_GIVEN_UP: Duration = Duration::from_millis(100);
const DROP_LOOK: Duration = Duration::from_millis(1);

enum Carrier {
    Ring(Box<Ring>),
    Pool(PoolClient),
}

struct Inner {
    /// Freed only after the medium is done with its buffers; see `drop`.
    table: ManuallyDrop<RefCell<Table>>,
    carrier: RefCell<Carrier>,
    hook: RefCell<Option<Rc<dyn Fn()>>>,
    /// Whether the hook was called since the last turn.
    hooked: Cell<bool>,
    /// What the last tick found of the gate.
    gate_seen: Cell<(u64, u32)>,
    event: OnceCell<Arc<OwnedFd>>,
    /// Last, so that the lock is held until all else is gone.
    shared: Arc<FileShared>,
}

impl FileDevice {
    /// A handle with at most `entries` requests under way (2 to 4096, rounded up to a power of two). What is asked
    /// for beyond that waits in memory.
    ///
    /// # Errors
    /// Where the kernel gives no ring: too many open files, or too little lockable memory.
    pub fn new(shared: Arc<FileShared>, entries: u32) -> io::Result<Self> {
        let entries = entries.clamp(2, 4096).next_power_of_two();
        let carrier = match shared.connect_pool() {
            Some(client) => Carrier::Pool(client),
            None => Carrier::Ring(Box::new(Ring::new(Arc::clone(shared.io()), entries)?)),
        };
        Ok(Self::with_carrier(shared, carrier, entries as usize))
    }

    fn with_carrier(shared: Arc<FileShared>, carrier: Carrier, entries: usize) -> Self {
        Self {
            inner: Rc::new(Inner {
                table: ManuallyDrop::new(RefCell::new(Table::new(entries))),
                carrier: RefCell::new(carrier),
                hook: RefCell::default(),
                hooked: Cell::new(false),
                gate_seen: Cell::new((u64::MAX, 0)),
                event: OnceCell::new(),
                shared,
            }),
        }
    }

    /// The file behind.
    pub fn shared(&self) -> &Arc<FileShared> {
        &self.inner.shared
    }

    /// A nonblocking eventfd that becomes readable when results wait for a `turn(false)`.
    ///
    /// It is signalled anew for later results even where nobody read it, so an edge-triggered loop need not; a
    /// level-triggered one reads its 8 bytes before each turn. It is signalled once at the start, for what was
    /// finished before anyone listened. It lives as long as the handle.
    ///
    /// # Errors
    /// Where the kernel gives no eventfd, or does not connect it with the ring.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if self.inner.event.get().is_none() {
            let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            let event = Arc::new(event);
            match &*self.inner.carrier.borrow() {
                Carrier::Ring(ring) => ring.set_event(&event)?,
                Carrier::Pool(client) => client.set_event(&event),
            }
            signal(&event);
            let _ = self.inner.event.set(event);
        }
        Ok(self.inner.event.get().expect("just set").as_fd())
    }

    /// What to wait for so that a log append that follows does not block; `None` where it does not. A file system that is frozen for a
    /// snapshot blocks them. It also ends where the device is given up ([`tick`](Device::tick)).
    pub fn log_wait(&self) -> Option<impl Future<Output = ()> + 'static> {
        self.inner.shared.gate()?.wait()
    }

    /// Calls `hook` when the first operation since the last turn is queued: the event loop should then call
    /// `turn(false)` soon, at the end of its own turn, so that operations are started together. The hook must not
    /// call the device itself.
    pub fn set_submit_hook(&self, hook: Rc<dyn Fn()>) {
        let old = self.inner.hook.replace(Some(hook));
        drop(old);
    }
}

impl Device for FileDevice {
    type Buf = AlignedBuf;

    fn capacity(&self) -> u64 {
        self.inner.shared.capacity()
    }

    fn read(&self, offset: u64, len: usize) -> impl Operation<AlignedBuf> {
        let started = check_range(self.capacity(), offset, len)
            .map(|()| self.start(Work::Read(AlignedBuf::with_len(len)), offset, len));
        async move {
            match started?.await? {
                Work::Read(buf) => Ok(buf),
                _ => unreachable!("a read stays a read"),
            }
        }
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>, range: Range<usize>) -> impl Operation<()> {
        let started = check_write_range(self.capacity(), offset, data.len(), &range)
            .map(|()| self.start(Work::Write(data, range.start), offset, range.len()));
        async move { started?.await.map(drop) }
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_log_range(self.capacity(), offset, bytes.len())?;
        self.inner.shared.append_log(offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_log_range(self.capacity(), offset, out.len())?;
        self.inner.shared.read_log(offset, out)
    }

    fn is_hole(&self, offset: u64) -> bool {
        self.inner.shared.is_hole(offset)
    }

    fn sync(&self) -> impl Operation<()> {
        let started = self.start(Work::Sync, 0, 0);
        async move { started.await.map(drop) }
    }

    fn tick(&self, patience: u32) -> Vec<Overdue> {
        // What is answered by now is not late. A failure here is met by the next turn again, and reported there.
        let _ = self.inner.turn(false);
        let answers = self.inner.shared.answers();
        let mut ended = self.inner.table.borrow_mut().tick(patience, answers);
        if let Some(gate) = self.inner.shared.gate() {
            let (seen, late) = gate.tick(patience, self.inner.gate_seen.get());
            self.inner.gate_seen.set(seen);
            ended.extend(late);
        }
        let (_, wakers) = self.inner.table.borrow_mut().take_finished();
        wakers.into_iter().for_each(Waker::wake);
        ended
    }

    fn turn(&self, block: bool) -> io::Result<usize> {
        self.inner.turn(block)
    }
}

impl FileDevice {
    fn start(&self, work: Work, offset: u64, len: usize) -> FileOperation {
        let inner = &self.inner;
        let (key, is_batch) = inner.table.borrow_mut().add(work, offset, len);
        if is_batch {
            // A failure here leaves everything queued; the next turn meets it again and reports it.
            let _ = inner.start_queued();
        }
        if !inner.hooked.replace(true) {
            let hook = inner.hook.borrow().clone();
            if let Some(hook) = hook {
                hook();
            }
        }
        FileOperation {
            inner: Rc::clone(inner),
            key: Some(key),
        }
    }
}

impl Inner {
    /// Gives the medium what may start, without looking at results.
    fn start_queued(&self) -> io::Result<()> {
        let mut table = self.table.borrow_mut();
        match &mut *self.carrier.borrow_mut() {
            Carrier::Ring(ring) => {
                ring.queue(&mut table);
                ring.submit()
            }
            Carrier::Pool(client) => {
                client.start(&mut table);
                Ok(())
            }
        }
    }

    /// One round: starts what may start, takes results, with `wait` at least one. Says whether another round would
    /// start more.
    fn round(&self, wait: bool) -> io::Result<bool> {
        let mut table = self.table.borrow_mut();
        let is_unsubmitted = match &mut *self.carrier.borrow_mut() {
            Carrier::Ring(ring) => {
                ring.queue(&mut table);
                let wait = wait && table.under_way() > 0;
                ring.collect(&mut table, wait, self.shared.path())?;
                ring.has_unsubmitted()
            }
            Carrier::Pool(client) => {
                client.start(&mut table);
                let wait = wait && table.under_way() > 0;
                client.collect(&mut table, wait, self.shared.path());
                false
            }
        };
        if table.take_answered() {
            self.shared.note_answer();
        }
        Ok(table.can_start() || is_unsubmitted)
    }

    fn turn(&self, block: bool) -> io::Result<usize> {
        self.hooked.set(false);
        let mut completed = 0;
        loop {
            let outcome = self.round(block && completed == 0);
            let (finished, wakers) = self.table.borrow_mut().take_finished();
            completed += finished;
            // No borrow is held here: a waker may run anything, this device included.
            wakers.into_iter().for_each(Waker::wake);
            let more_to_start = outcome?;
            let must_wait = block && completed == 0 && self.table.borrow().under_way() > 0;
            if !more_to_start && !must_wait {
                return Ok(completed);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.table.borrow_mut().cancel_waiting();
        let wait = match self.table.borrow().has_given_up() {
            true => DROP_WAIT_GIVEN_UP,
            false => DROP_WAIT,
        };
        let mut looks = wait.as_millis() / DROP_LOOK.as_millis();
        loop {
            let result = self.round(false);
            // A piece that was cut short waits again: it has nobody to wait for it.
            self.table.borrow_mut().cancel_waiting();
            if self.table.borrow().under_way() == 0 {
                break;
            }
            let why = match result {
                Err(error) => error.to_string(),
                Ok(_) if looks == 0 => "it does not end".to_owned(),
                Ok(_) => {
                    looks -= 1;
                    std::thread::sleep(DROP_LOOK);
                    continue;
                }
            };
            if let Carrier::Pool(client) = &*self.carrier.borrow() {
                client.leave();
            }
            tracing::error!("I/O is still under way, its buffers are leaked: {why}");
            return;
        }
        // SAFETY: dropped here only, and not used afterwards: this is the end of `self`. Nothing is under way, so nobody reaches into
        // its buffers any more.
        unsafe { ManuallyDrop::drop(&mut self.table) }
    }
}

/// The future of one operation.
struct FileOperation {
    inner: Rc<Inner>,
    /// `None` when the outcome was handed out.
    key: Option<usize>,
}

impl Future for FileOperation {
    type Output = io::Result<Work>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.key.expect("not polled after it was ready");
        let outcome = self.inner.table.borrow_mut().poll(key, context.waker());
        match outcome {
            Ok(outcome) => {
                self.key = None;
                Poll::Ready(outcome)
            }
            Err(old_waker) => {
                // Outside the borrow: dropping the last reference to a task may drop other operations.
                drop(old_waker);
                Poll::Pending
            }
        }
    }
}

impl Drop for FileOperation {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let old_waker = self.inner.table.borrow_mut().abandon(key);
            drop(old_waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FileOptions;
    use super::*;
    use std::pin::pin;
    use std::time::Instant;

    #[test]
    fn a_medium_that_does_not_answer_holds_nobody_up_and_keeps_its_buffers() {
        let place = tempfile::tempdir().unwrap();
        let options = FileOptions {
            size: Some(1 << 20),
            io_uring: false,
            ..FileOptions::default()
        };
        let mut shared = FileShared::open(&place.path().join("flash"), &options).unwrap();
        shared.hang();
        let device = FileDevice::new(Arc::new(shared), 4).unwrap();
        let data = Arc::new(AlignedBuf::with_len(8192));
        let buffer = Arc::downgrade(&data);
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut write = pin!(device.write(4096, data, 0..8192));
            let mut read = pin!(device.read(4096, 4096));
            device.turn(false).unwrap();
            assert!(write.as_mut().poll(&mut context).is_pending());
            assert!(read.as_mut().poll(&mut context).is_pending());
            assert_eq!((device.tick(1).len(), device.tick(1).len()), (0, 2));
            let Poll::Ready(Err(error)) = write.as_mut().poll(&mut context) else {
                panic!("it still waits");
            };
            assert!(Overdue::is(&error), "{error}");
            assert!(matches!(read.as_mut().poll(&mut context), Poll::Ready(Err(_))));
        }
        let start = Instant::now();
        drop(device);
        assert!(start.elapsed() < DROP_WAIT / 2, "{:?}", start.elapsed());
        assert!(buffer.upgrade().is_some(), "the medium may still read it");
    }

    /// Two handles on one medium: what one is answered counts for what the other waits for.
    #[test]
    fn an_answer_on_another_handle_is_an_answer() {
        for io_uring in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let options = FileOptions {
                size: Some(1 << 20),
                io_uring,
                ..FileOptions::default()
            };
            let shared = FileShared::open(&place.path().join("flash"), &options).unwrap();
            let answered = FileDevice::new(Arc::new(shared), 4).unwrap();
            // A handle whose own requests wait for ever, on the same medium.
            let carrier = Carrier::Pool(super::super::pool::Pool::without_threads().connect());
            let waiting = FileDevice::with_carrier(Arc::clone(answered.shared()), carrier, 4);
            let mut context = Context::from_waker(Waker::noop());
            let mut read = pin!(waiting.read(0, 4096));
            waiting.turn(false).unwrap();
            for _ in 0..6 {
                let mut other = pin!(answered.read(0, 4096));
                while other.as_mut().poll(&mut context).is_pending() {
                    answered.turn(true).unwrap();
                }
                assert!(waiting.tick(2).is_empty());
            }
            assert!(read.as_mut().poll(&mut context).is_pending());
            let ended = [(); 3].map(|()| waiting.tick(2).len());
            assert_eq!(ended, [0, 1, 0]);
        }
    }
}
