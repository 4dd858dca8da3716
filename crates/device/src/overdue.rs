//! What an operation ends with that gets no answer.

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
