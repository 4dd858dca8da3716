//! The operations of one handle: who owns their buffers, which pieces wait, which are under way.
//!
//! An operation is cut into pieces of at most [`PIECE_BYTES`], each of which the engine starts and reports on by
//! itself. The table owns an operation's buffer until its last piece is over, so a dropped future frees nothing that
//! the kernel still uses. Two lanes keep readers and writers from starving each other: large writes may never fill
//! all places of a ring.

use crate::overdue::Silence;
use crate::{AlignedBuf, Overdue, SECTOR_BYTES};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

/// Most bytes in one request to the kernel.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Most pieces of writes under way per handle.
const WRITES_UNDER_WAY: usize = 8;

/// How often one piece may be started without getting on (interrupted, or a read or write of part of a sector).
const MAX_STALLS: u32 = 100;

/// What an operation works on.
pub(super) enum Work {
    /// Fills the whole buffer.
    Read(AlignedBuf),
    /// Writes a part of the buffer, from the given index.
    Write(Arc<AlignedBuf>, usize),
    /// Flushes the medium.
    Sync,
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Read(_) => "read",
            Work::Write(..) => "write",
            Work::Sync => "sync",
        }
    }
}

/// What the engine is to do for one piece.
#[derive(Clone, Copy)]
pub(super) enum Request {
    /// Fill `len` bytes at `to` from `offset`.
    Read { to: *mut u8, len: usize, offset: u64 },
    /// Write `len` bytes at `from` to `offset`.
    Write {
        from: *const u8,
        len: usize,
        offset: u64,
    },
    /// fdatasync.
    Sync,
}

enum Future {
    /// Somebody waits or will.
    Wanted(Option<Waker>),
    /// It was not answered in so many seconds, and the future is to end with that.
    GivenUp(u32),
    /// The future was dropped, or has ended.
    Dropped,
}

struct Operation {
    work: Work,
    offset: u64,
    len: usize,
    pieces_left: usize,
    error: Option<io::Error>,
    future: Future,
    /// Whether it ended before the engine has reported on all of it.
    is_given_up: bool,
}

impl Operation {
    fn overdue(&self, secs: u32) -> Overdue {
        Overdue {
            name: self.work.name(),
            offset: self.offset,
            len: self.len,
            secs,
        }
    }
}

struct Piece {
    operation: usize,
    /// From the operation's start, in bytes.
    at: usize,
    len: usize,
    done: usize,
    stalls: u32,
    /// The second in which the engine got it; `None` while it waits.
    given: Option<u32>,
    /// The second in which the engine handed it on to the system, as far as is known.
    begun: Option<u32>,
}

struct Lane {
    waiting: VecDeque<usize>,
    under_way: usize,
    limit: usize,
}

impl Lane {
    fn new(limit: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            under_way: 0,
            limit,
        }
    }
}

/// So many pieces are started at once. With fewer the calls cost more; with more the device has nothing to do while a thread works
/// off what it has finished.
const START_BATCH: usize = 16;

/// See the module's text.
pub(super) struct Table {
    operations: Slab<Operation>,
    pieces: Slab<Piece>,
    reads: Lane,
    writes: Lane,
    /// Operations finished since the last [`Table::take_finished`], and who waits for them.
    finished: usize,
    wakers: Vec<Waker>,
    silence: Silence,
    /// Whether the engine has reported anything since the last [`Table::take_answered`].
    is_answered: bool,
}

impl Table {
    /// A table that never has more than `entries` (at least 2) pieces under way.
    pub(super) fn new(entries: usize) -> Self {
        let writes = WRITES_UNDER_WAY.min(entries / 2).max(1);
        Self {
            operations: Slab::new(),
            pieces: Slab::new(),
            reads: Lane::new((entries - writes).max(1)),
            writes: Lane::new(writes),
            finished: 0,
            wakers: Vec::new(),
            silence: Silence::default(),
            is_answered: false,
        }
    }

    /// Queues an operation; returns its key, and whether so many pieces wait that they should start now.
    pub(super) fn add(&mut self, work: Work, offset: u64, len: usize) -> (usize, bool) {
        let lane = match work {
            Work::Read(_) => &mut self.reads,
            Work::Write(..) | Work::Sync => &mut self.writes,
        };
        let pieces = len.div_ceil(PIECE_BYTES).max(1);
        let operation = self.operations.insert(Operation {
            work,
            offset,
            len,
            pieces_left: pieces,
            error: None,
            future: Future::Wanted(None),
            is_given_up: false,
        });
        for index in 0..pieces {
            let at = index * PIECE_BYTES;
            lane.waiting.push_back(self.pieces.insert(Piece {
                operation,
                at,
                len: (len - at).min(PIECE_BYTES),
                done: 0,
                stalls: 0,
                given: None,
                begun: None,
            }));
        }
        (
            operation,
            lane.waiting.len() >= lane.limit.min(START_BATCH) && lane.under_way < lane.limit,
        )
    }

    /// The next piece that may start, and what to do for it; it counts as under way from now on.
    ///
    /// Its pointers stay valid until [`Table::report`] for the piece, whatever else happens.
    pub(super) fn start_next(&mut self) -> Option<(usize, Request)> {
        loop {
            let lane = if self.reads.under_way < self.reads.limit && !self.reads.waiting.is_empty() {
                &mut self.reads
            } else if self.writes.under_way < self.writes.limit {
                &mut self.writes
            } else {
                return None;
            };
            let key = lane.waiting.pop_front()?;
            let piece = &mut self.pieces[key];
            piece.given = Some(self.silence.now());
            let operation = &self.operations[piece.operation];
            let unwanted_read = matches!(
                (&operation.future, &operation.work),
                (Future::Dropped, Work::Read(_))
            );
            if unwanted_read || operation.error.is_some() {
                self.retire(key);
                continue;
            }
            lane.under_way += 1;
            let at = piece.at + piece.done;
            let len = piece.len - piece.done;
            let offset = operation.offset + at as u64;
            let request = match &operation.work {
                Work::Read(buf) => Request::Read {
                    to: buf.as_mut_ptr().wrapping_add(at),
                    len,
                    offset,
                },
                Work::Write(data, start) => Request::Write {
                    from: data.as_mut_ptr().wrapping_add(start + at).cast_const(),
                    len,
                    offset,
                },
                Work::Sync => Request::Sync,
            };
            return Some((key, request));
        }
    }

    /// A piece that was started has not to wait for others in the engine any more.
    pub(super) fn begin(&mut self, key: usize) {
        self.pieces[key].begun = Some(self.silence.now());
    }

    /// Takes the result of a started piece: bytes, or a negated error number. A piece that is not complete waits
    /// again, before the others.
    pub(super) fn report(&mut self, key: usize, result: i32, path: &Path) {
        let piece = &mut self.pieces[key];
        (piece.given, piece.begun) = (None, None);
        self.is_answered = true;
        let operation = &mut self.operations[piece.operation];
        let lane = match operation.work {
            Work::Read(_) => &mut self.reads,
            Work::Write(..) | Work::Sync => &mut self.writes,
        };
        lane.under_way -= 1;
        let error = match usize::try_from(result) {
            Err(_) => {
                let error = io::Error::from_raw_os_error(result.wrapping_neg());
                let again = matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                );
                piece.stalls += 1;
                (!again || piece.stalls > MAX_STALLS).then_some(error)
            }
            Ok(_) if piece.len == 0 => None,
            Ok(got) => {
                let before = piece.done;
                piece.done = (piece.done + got).min(piece.len);
                // O_DIRECT goes on at whole sectors only.
                if piece.done < piece.len {
                    piece.done -= piece.done % SECTOR_BYTES;
                    piece.stalls += u32::from(piece.done == before);
                }
                (got == 0 || piece.stalls > MAX_STALLS).then(|| match operation.work {
                    Work::Read(_) => io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"),
                    _ => io::Error::new(io::ErrorKind::WriteZero, "the medium takes no more bytes"),
                })
            }
        };
        let complete = result >= 0 && piece.done == piece.len;
        if let Some(error) = error {
            let (name, len, offset) = (operation.work.name(), operation.len, operation.offset);
            operation.error.get_or_insert_with(|| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "{name} of {len} bytes at {offset} of {} failed: {error}",
                        path.display()
                    ),
                )
            });
            self.retire(key);
        } else if complete {
            self.retire(key);
        } else {
            lane.waiting.push_front(key);
        }
    }

    fn retire(&mut self, key: usize) {
        let piece = self.pieces.remove(key);
        let operation = &mut self.operations[piece.operation];
        operation.pieces_left -= 1;
        if operation.pieces_left > 0 {
            return;
        }
        self.finished += 1;
        match &mut operation.future {
            Future::Wanted(waker) => self.wakers.extend(waker.take()),
            Future::GivenUp(_) => {}
            Future::Dropped => drop(self.operations.remove(piece.operation)),
        }
    }

    /// Whether the device has answered anything since the last call.
    pub(super) fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.is_answered)
    }

    /// How many operations finished since the last call, and whom to wake. Wake them after letting go of the
    /// table: a waker may run anything.
    pub(super) fn take_finished(&mut self) -> (usize, Vec<Waker>) {
        (
            std::mem::take(&mut self.finished),
            std::mem::take(&mut self.wakers),
        )
    }

    /// The outcome of a finished operation; else remembers the waker. The returned waker is one that is no longer
    /// needed, to be dropped after letting go of the table.
    pub(super) fn poll(&mut self, key: usize, waker: &Waker) -> Result<io::Result<Work>, Option<Waker>> {
        let operation = &mut self.operations[key];
        if operation.pieces_left == 0 {
            let operation = self.operations.remove(key);
            return Ok(operation.error.map_or(Ok(operation.work), Err));
        }
        match &mut operation.future {
            Future::Wanted(Some(known)) if known.will_wake(waker) => Err(None),
            Future::Wanted(known) => Err(known.replace(waker.clone())),
            Future::GivenUp(secs) => {
                let secs = *secs;
                operation.future = Future::Dropped;
                Ok(Err(operation.overdue(secs).into()))
            }
            Future::Dropped => Err(None),
        }
    }

    /// Passes a second, and ends operations as [`Device::tick`](crate::Device::tick) says; returns which. What they hold stays
    /// here until the engine has reported on their pieces. `answers` grows where the device has answered anyone.
    pub(super) fn tick(&mut self, patience: u32, answers: u64) -> Vec<Overdue> {
        self.silence.tick(answers);
        let overdue: Vec<(usize, u32)> = if patience == 0 {
            let all = self.operations.iter();
            all.filter(|(_, operation)| operation.pieces_left > 0)
                .map(|(key, _)| (key, 0))
                .collect()
        } else {
            let late = |piece: &Piece| self.silence.overdue(piece.given?, piece.begun, patience);
            let pieces = self.pieces.iter();
            pieces
                .filter_map(|(_, piece)| late(piece).map(|secs| (piece.operation, secs)))
                .collect()
        };
        if overdue.is_empty() {
            return Vec::new();
        }
        let ended = overdue.into_iter();
        let ended = ended.filter_map(|(key, secs)| self.give_up(key, secs)).collect();
        self.retire_waiting();
        ended
    }

    /// Lets go of pieces that wait in vain: their turn, in which that would be noticed, may never come.
    fn retire_waiting(&mut self) {
        let mut vain = Vec::new();
        for lane in [&mut self.reads, &mut self.writes] {
            lane.waiting.retain(|key| {
                let is_wanted = self.operations[self.pieces[*key].operation].error.is_none();
                if !is_wanted {
                    vain.push(*key);
                }
                is_wanted
            });
        }
        vain.into_iter().for_each(|key| self.retire(key));
    }

    /// Gives up an operation that is not over, once.
    fn give_up(&mut self, key: usize, secs: u32) -> Option<Overdue> {
        let operation = &mut self.operations[key];
        if std::mem::replace(&mut operation.is_given_up, true) {
            return None;
        }
        let overdue = operation.overdue(secs);
        operation.error.get_or_insert_with(|| overdue.into());
        if let Future::Wanted(waker) = &mut operation.future {
            self.wakers.extend(waker.take());
            operation.future = Future::GivenUp(secs);
        }
        Some(overdue)
    }

    /// Whether something is under way that was given up: it may never be over.
    pub(super) fn has_given_up(&self) -> bool {
        let mut all = self.operations.iter();
        all.any(|(_, operation)| operation.is_given_up && operation.pieces_left > 0)
    }

    /// Notes that nobody waits for an operation any more. What is returned is to be dropped after letting go of the
    /// table.
    pub(super) fn abandon(&mut self, key: usize) -> Option<Waker> {
        let operation = &mut self.operations[key];
        if operation.pieces_left == 0 {
            self.operations.remove(key);
            return None;
        }
        match std::mem::replace(&mut operation.future, Future::Dropped) {
            Future::Wanted(waker) => waker,
            Future::GivenUp(_) | Future::Dropped => None,
        }
    }

    /// Pieces that the engine has and has not reported on.
    pub(super) fn under_way(&self) -> usize {
        self.reads.under_way + self.writes.under_way
    }

    /// Whether a piece waits that could start now.
    pub(super) fn can_start(&self) -> bool {
        [&self.reads, &self.writes]
            .iter()
            .any(|lane| !lane.waiting.is_empty() && lane.under_way < lane.limit)
    }

    /// Forgets what has not started, for a table whose handle goes away.
    pub(super) fn cancel_waiting(&mut self) {
        self.reads.waiting.clear();
        self.writes.waiting.clear();
    }
}

#[cfg(test)]
mod tests;
