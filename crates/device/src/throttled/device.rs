//! The device.

use super::delays::{Delay, Delays, Throttle};
use super::lanes::Kind;
use crate::{Buffer, Device, Operation, check_range, check_write_range, forward};
use futures_util::future::{FutureExt, OptionFuture, join};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A handle that passes everything on to another device, and is done with it when the model is; see the module's text. Clones are
/// the same handle.
///
/// What is to be done later is seen to by [`turn`](Device::turn), so an event loop has to call it when
/// [`next_due_ns`](Delays::next_due_ns) of its [`delays`](ThrottledDevice::delays) has come.
#[derive(Clone)]
pub struct ThrottledDevice<D> {
    inner: D,
    delays: Delays,
}

impl<D: Device> ThrottledDevice<D> {
    /// A handle on `inner`. With a throttle an operation takes as long as the model says, without one as long as `inner` takes.
    pub fn new(inner: D, throttle: impl Into<Option<Arc<Throttle>>>) -> Self {
        Self {
            inner,
            delays: Delays::new(throttle),
        }
    }

    /// What this handle waits for.
    pub fn delays(&self) -> &Delays {
        &self.delays
    }
}

impl<D: Device> Device for ThrottledDevice<D> {
    type Buf = D::Buf;
    forward!(inner: capacity, append_log, read_log, is_hole, discard, tick);

    fn read(&self, offset: u64, len: usize) -> impl Operation<Self::Buf> {
        // What is refused takes no time.
        let is_good = check_range(self.capacity(), offset, len).is_ok();
        let delay = is_good
            .then(|| self.delays.begin(Kind::Read, offset, len))
            .flatten();
        let operation = self.inner.read(offset, len);
        both(operation, delay)
    }

    fn write(&self, offset: u64, data: Arc<Self::Buf>, range: Range<usize>) -> impl Operation<()> {
        let is_good = check_write_range(self.capacity(), offset, data.len(), &range).is_ok();
        let delay = is_good.then(|| self.delays.begin(Kind::Write, offset, range.len()));
        let delay = delay.flatten();
        let operation = self.inner.write(offset, data, range);
        both(operation, delay)
    }

    fn sync(&self) -> impl Operation<()> {
        let delay = self.delays.writes_done();
        let operation = self.inner.sync();
        both(operation, delay)
    }

    fn turn(&self, block: bool) -> io::Result<usize> {
        loop {
            let completed = self.inner.turn(false)? + self.delays.end_due();
            if completed > 0 || !block {
                return Ok(completed);
            }
            if !self.delays.wait_for_next() {
                // The model is done, and the device is not.
                return self.inner.turn(true);
            }
        }
    }
}

/// Waits for the operation, and for the model.
fn both<T>(operation: impl Future<Output = T>, delay: Option<Delay>) -> impl Future<Output = T> {
    join(operation, OptionFuture::from(delay)).map(|(result, _)| result)
}
