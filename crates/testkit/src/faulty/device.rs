//! The handle on a faulty medium.

use super::medium::FaultyMedium;
use super::state::{SharedOutcome, Work};
use pumice_device::{
    AlignedBuf, Buffer, Device, Operation, Overdue, SECTOR_BYTES, check_log_range, check_range,
    check_write_range,
};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A handle on a [`FaultyMedium`]. Without [`delay`](super::FaultPlan::delay) every operation is done when its call
/// returns; with it, a turn of any handle completes operations of all of them.
#[derive(Debug, Clone)]
pub struct FaultyDevice {
    medium: Arc<FaultyMedium>,
}

impl FaultyDevice {
    /// What this is a handle on.
    pub fn medium(&self) -> &Arc<FaultyMedium> {
        &self.medium
    }

    /// A handle on `medium`.
    pub fn new(medium: Arc<FaultyMedium>) -> Self {
        Self { medium }
    }

    fn start(&self, work: Work) -> UnderWay {
        let outcome = SharedOutcome::default();
        let wakers = self.medium.lock().begin(work, &outcome);
        wakers.into_iter().for_each(Waker::wake);
        UnderWay { outcome }
    }
}

impl Device for FaultyDevice {
    type Buf = AlignedBuf;

    fn capacity(&self) -> u64 {
        self.medium.capacity()
    }

    fn read(&self, offset: u64, len: usize) -> impl Operation<AlignedBuf> {
        let started = check_range(self.capacity(), offset, len).map(|()| self.start(Work::Read(offset, len)));
        async move { Ok(started?.await?.expect("a read gives a buffer")) }
    }

    fn write(&self, offset: u64, data: Arc<AlignedBuf>, range: Range<usize>) -> impl Operation<()> {
        let started = check_write_range(self.capacity(), offset, data.len(), &range)
            .map(|()| self.start(Work::Write(offset, data, range)));
        async move { started?.await.map(drop) }
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_log_range(self.capacity(), offset, bytes.len())?;
        let (result, wakers) = {
            let mut state = self.medium.lock();
            let result = state.append(offset, bytes);
            // Only a crash leaves nothing under way.
            let wakers = if state.is_crashed() {
                state.end_pending()
            } else {
                Vec::new()
            };
            (result, wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_log_range(self.capacity(), offset, out.len())?;
        self.medium.lock().read_log(offset, out)
    }

    /// A sector of zeros counts as one that was never written.
    fn is_hole(&self, offset: u64) -> bool {
        let mut sector = [0; SECTOR_BYTES];
        self.medium.lock().content.read(offset, &mut sector);
        sector == [0; SECTOR_BYTES]
    }

    fn sync(&self) -> impl Operation<()> {
        let started = self.start(Work::Sync);
        async move { started.await.map(drop) }
    }

    fn tick(&self, patience: u32) -> Vec<Overdue> {
        let (ended, wakers) = self.medium.lock().tick(patience);
        wakers.into_iter().for_each(Waker::wake);
        ended
    }

    fn turn(&self, _block: bool) -> io::Result<usize> {
        let (completed, wakers) = self.medium.lock().turn();
        wakers.into_iter().for_each(Waker::wake);
        Ok(completed)
    }
}

struct UnderWay {
    outcome: SharedOutcome,
}

impl Future for UnderWay {
    type Output = io::Result<Option<AlignedBuf>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.outcome.lock();
        if let Some(result) = outcome.result.take() {
            return Poll::Ready(result);
        }
        let old_waker = outcome.waker.replace(context.waker().clone());
        drop(outcome);
        drop(old_waker);
        Poll::Pending
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let old_waker = {
            let mut outcome = self.outcome.lock();
            outcome.dropped = true;
            outcome.waker.take()
        };
        drop(old_waker);
    }
}
