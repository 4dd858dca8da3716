//! When an operation has waited too long for its answer, and what it ends with then.

use std::io;

/// The device did not answer an operation in time: the error of an operation that [`Device::tick`](crate::Device::tick) has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} of {len} bytes at {offset}: {}", why(*secs))]
pub struct Overdue {
    /// Read, write or sync.
    pub name: &'static str,
    /// Where, in bytes from the start of the device.
    pub offset: u64,
    /// How many bytes.
    pub len: usize,
    /// How long it was waited for, in seconds; 0 where it was ended because nothing is expected of the device any more.
    pub secs: u32,
}

fn why(secs: u32) -> String {
    match secs {
        0 => "given up, as nothing is expected of the device any more".to_owned(),
        secs => format!("no answer for {secs} s"),
    }
}

impl Overdue {
    /// Whether that is what an operation ended with.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<Overdue> for io::Error {
    fn from(overdue: Overdue) -> Self {
        io::Error::new(io::ErrorKind::TimedOut, overdue)
    }
}

/// An operation that is not answered for so many times the patience is lost, although the device answers others.
const LOST_PATIENCES: u32 = 8;

/// The seconds of one handle, and since when its device answers nobody.
///
/// What counts is the device's silence and not how old an operation is: a slow device with a long queue answers all the time, and the
/// last of the queue waits for the others.
#[derive(Debug, Default)]
pub struct Silence {
    now: u32,
    /// Answers heard of, and the second of the last one.
    answers: u64,
    since: u32,
}

impl Silence {
    /// Seconds that have passed.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Passes a second. `answers` grows where the device has answered anyone, on any handle.
    pub fn tick(&mut self, answers: u64) {
        if self.answers != answers {
            (self.answers, self.since) = (answers, self.now);
        }
        self.now = self.now.wrapping_add(1);
    }

    /// The seconds without an answer for which an operation is given up, if it is: `given` is when it was handed on, to wait for its
    /// turn, `begun` when that turn came. With a patience of 0 everything is.
    pub fn overdue(&self, given: u32, begun: Option<u32>, patience: u32) -> Option<u32> {
        let age = |at: u32| self.now.wrapping_sub(at);
        if patience == 0 || age(given).min(age(self.since)) > patience {
            return Some(patience);
        }
        let lost = patience.saturating_mul(LOST_PATIENCES);
        begun.filter(|begun| age(*begun) > lost).map(|_| lost)
    }
}
