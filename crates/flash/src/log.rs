//! The records that a store of objects adds to the log: what was on flash and must not come back.

use pumice_blocks::log::OwnKind;

/// Objects died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Copies of the hash `a` with a version below `b` are void.
    Invalidate,
    /// All copies with a version below `b` are void.
    FlushAll,
    /// From the Unix second `a` on, what was set before is void: a delayed flush. `a` = 0 takes it back.
    FlushAt,
    /// As `Invalidate`, of a copy in a prefix that had died before: what is mapped under `a` meanwhile stays.
    Void,
}

/// Every kind, in order of its number.
const ALL: [LogKind; 4] = [
    LogKind::Invalidate,
    LogKind::FlushAll,
    LogKind::FlushAt,
    LogKind::Void,
];

impl OwnKind for LogKind {
    fn number(self) -> u16 {
        self as u16
    }

    fn from_number(number: u16) -> Option<Self> {
        ALL.get(usize::from(number)).copied()
    }
}

/// A record of the log of a store of objects.
pub type LogRecord = pumice_blocks::log::LogRecord<LogKind>;
