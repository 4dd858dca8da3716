//! Execution of requests on an export, and their replies.

use super::connection::piece_end;
use super::link::{Link, Reply};
use super::{PIECE_BYTES, Worker};
use crate::counters::{ExportStats, Operation};
use crate::export::{Export, ExportError};
use crate::protocol::{Command, Errno, Head, MAX_EXTENTS, Request, Session, status_payload};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Most bytes zeroed at once.
const ZERO_BYTES: u64 = 32 << 20;

/// A request under way, with everything its reply needs.
pub(super) struct Job<E> {
    pub(super) worker: Rc<Worker<E>>,
    pub(super) link: Rc<Link>,
    pub(super) session: Session,
    pub(super) request: Request,
    /// Most bytes of a piece of a simple reply.
    pub(super) piece_bytes: usize,
    /// Its part of the window.
    pub(super) room: OwnedSemaphorePermit,
}

impl<E: Export> Job<E> {
    pub(super) fn export(&self) -> &Rc<E> {
        &self.worker.exports[self.session.export]
    }

    fn stats(&self) -> &ExportStats {
        self.worker.stats.of(self.worker.index, self.session.export)
    }

    fn record(&self, operation: Operation, since: Instant) {
        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats().latency[operation as usize].record(ns, 1);
    }

    /// Answers with an error.
    pub(super) fn refuse(self, errno: Errno, why: &'static str) {
        let cookie = self.request.cookie;
        let (head, data) = match self.session.is_structured && self.request.has_structured_reply() {
            true => (
                Head::error(cookie, errno, why),
                Bytes::from_static(why.as_bytes()),
            ),
            false => (Head::simple(cookie, Some(errno)), Bytes::new()),
        };
        self.reply(head, data);
    }

    fn fail(self, error: ExportError) {
        self.stats().counters.failed_requests.add(1);
        let why = match error {
            ExportError::NotAllowed => "not allowed",
            ExportError::Io => "an I/O error behind the export",
            ExportError::NoMemory => "no memory",
            ExportError::NoSpace => "no space behind the export",
        };
        self.refuse(error.into(), why);
    }

    /// The reply, or the last part of it.
    fn reply(self, head: Head, data: Bytes) {
        self.link.send(Reply {
            head: Some(head),
            data,
            room: Some(self.room),
            sent: None,
        });
    }

    /// Replies success or an error, without data.
    fn done(self, operation: Operation, since: Instant, done: Result<(), ExportError>) {
        self.record(operation, since);
        match done {
            Ok(()) => {
                let head = Head::simple(self.request.cookie, None);
                self.reply(head, Bytes::new());
            }
            Err(error) => self.fail(error),
        }
    }

    /// Executes and answers any command but a write, whose data the connection receives.
    pub(super) async fn execute(self, command: Command) {
        let since = Instant::now();
        let export = Rc::clone(self.export());
        let counters = &self.stats().counters;
        match command {
            Command::Read { offset, length } => {
                counters.reads.add(1);
                self.read(offset, offset + u64::from(length), since).await;
            }
            Command::Zero {
                offset,
                length,
                may_punch,
                is_durable,
            } => {
                counters.zeroes.add(1);
                let done = self.zero(offset, length, may_punch, is_durable).await;
                self.done(Operation::Zero, since, done);
            }
            Command::Trim {
                offset,
                length,
                is_durable,
            } => {
                counters.trims.add(1);
                let done = self.zero(offset, length, true, is_durable).await;
                self.done(Operation::Trim, since, done);
            }
            Command::Flush => {
                counters.flushes.add(1);
                let done = export.flush().await;
                self.done(Operation::Flush, since, done);
            }
            Command::Status {
                offset,
                length,
                is_one,
            } => {
                counters.statuses.add(1);
                let most = if is_one { 1 } else { MAX_EXTENTS };
                let extents = export.status(offset, length.into(), most).await;
                self.record(Operation::Other, since);
                match extents {
                    Ok(extents) => {
                        let data = status_payload(&extents, length, most);
                        let head = Head::status(self.request.cookie, data.len() as u32);
                        self.reply(head, data);
                    }
                    Err(error) => self.fail(error),
                }
            }
            Command::Cache { offset, length } => {
                counters.prefetches.add(1);
                let range = offset..offset + u64::from(length);
                let cache = |at, length| export.cache(at, length);
                let done = self.in_pieces(range, PIECE_BYTES as u64, cache).await;
                self.done(Operation::Other, since, done);
            }
            Command::Write { .. } | Command::Disconnect => unreachable!("the connection does these"),
        }
    }

    async fn zero(
        &self,
        offset: u64,
        length: u32,
        may_punch: bool,
        is_durable: bool,
    ) -> Result<(), ExportError> {
        let range = offset..offset + u64::from(length);
        let zero = |at, length| self.export().zero(at, length, may_punch);
        self.in_pieces(range, ZERO_BYTES, zero).await?;
        match is_durable {
            true => self.export().flush().await,
            false => Ok(()),
        }
    }

    /// Calls `act` for each piece of a range, one after the other. Stops before the next piece if the connection is lost.
    async fn in_pieces<F: Future<Output = Result<(), ExportError>>>(
        &self,
        range: Range<u64>,
        piece_bytes: u64,
        act: impl Fn(u64, u64) -> F,
    ) -> Result<(), ExportError> {
        let mut at = range.start;
        while at < range.end {
            if self.link.is_closed() {
                return Err(ExportError::Io);
            }
            let end = piece_end(at, range.end, piece_bytes);
            act(at, end - at).await?;
            at = end;
        }
        Ok(())
    }

    /// Writes what was received, and answers.
    pub(super) async fn write(self, offset: u64, data: Bytes, is_durable: bool) {
        let since = Instant::now();
        self.count_write(data.len());
        let done = self.export().write(offset, data, is_durable).await;
        self.done(Operation::Write, since, done);
    }

    /// Answers a write in pieces, which began at `since`: `written` is their outcome.
    pub(super) async fn finish_write(
        self,
        since: Instant,
        mut written: Result<(), ExportError>,
        length: usize,
        is_durable: bool,
    ) {
        self.count_write(length);
        if is_durable && written.is_ok() {
            // One flush for all pieces.
            written = self.export().flush().await;
        }
        self.done(Operation::Write, since, written);
    }

    fn count_write(&self, bytes: usize) {
        let counters = &self.stats().counters;
        counters.writes.add(1);
        counters.written_bytes.add(bytes as u64);
    }

    /// Reads from `offset` to `end` and answers. A structured reply has a chunk for each piece. A simple reply above the window is sent in
    /// pieces without headers.
    async fn read(self, offset: u64, end: u64, since: Instant) {
        let cookie = self.request.cookie;
        let mut at = offset;
        loop {
            let next = match self.session.is_structured {
                true => piece_end(at, end, PIECE_BYTES as u64),
                false => end.min(at.saturating_add(self.piece_bytes as u64)),
            };
            let length = (next - at) as usize;
            let is_last = next == end;
            let read = self.export().read(at, length).await;
            let data = match read {
                Ok(data) if data.len() == length => data,
                wrong => {
                    debug_assert!(wrong.is_err(), "an export reads all that it was asked for");
                    if !self.session.is_structured && at > offset {
                        // A simple reply that has begun cannot carry an error: close the connection instead.
                        self.stats().counters.failed_requests.add(1);
                        return self.link.close();
                    }
                    return self.fail(wrong.err().unwrap_or(ExportError::Io));
                }
            };
            self.stats().counters.read_bytes.add(length as u64);
            let head = match self.session.is_structured {
                true => Some(Head::data(cookie, at, length as u32, is_last)),
                false => (at == offset).then(|| Head::simple(cookie, None)),
            };
            if is_last {
                self.record(Operation::Read, since);
                return self.link.send(Reply {
                    head,
                    data,
                    room: Some(self.room),
                    sent: None,
                });
            }
            let (sent, is_sent) = oneshot::channel();
            self.link.send(Reply {
                head,
                data,
                room: None,
                sent: Some(sent),
            });
            if is_sent.await.is_err() {
                // The connection is lost.
                return;
            }
            at = next;
        }
    }
}
