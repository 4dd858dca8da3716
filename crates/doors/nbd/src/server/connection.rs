//! One connection: the handshake, and requests as they come.

use super::execute::Job;
use super::input::{BUFFER_BYTES, Input};
use super::link::Link;
use super::{PIECE_BYTES, REQUEST_COST_BYTES, Worker, spawn_request};
use crate::export::{Export, ExportError, SPAN_BYTES, Shape};
use crate::protocol::{Command, Handshake, REQUEST_BYTES, Request, Session, Step, greeting};
use bytes::Bytes;
use futures_util::future::{Either, select};
use pumice_net::Stream;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// One client's connection.
pub(super) struct Connection<E> {
    worker: Rc<Worker<E>>,
    link: Rc<Link>,
    input: Input,
    /// A permit for each byte that requests under way may hold.
    window: Arc<Semaphore>,
    window_bytes: usize,
}

impl<E: Export> Connection<E> {
    pub(super) fn new(stream: Stream, worker: Rc<Worker<E>>) -> Self {
        let window_bytes = worker.config.connection_bytes() - BUFFER_BYTES;
        let window_bytes = window_bytes.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self {
            worker,
            link: Rc::new(Link::new(stream)),
            input: Input::new(),
            window: Arc::new(Semaphore::new(window_bytes)),
            window_bytes,
        }
    }

    /// Serves the connection; returns when the last of its requests has ended.
    ///
    /// # Errors
    /// An error of the socket or a request without its magic number. The client is gone: log it at most.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        let worker = Rc::clone(&self.worker);
        let until_stop = |future| until_stop(&worker, future);
        let Some(session) = until_stop(Box::pin(self.shake_hands()))
            .await
            .unwrap_or(Ok(None))?
        else {
            return Ok(());
        };
        let link = Rc::clone(&self.link);
        let served = {
            let reading = pin!(async {
                tokio::select! {
                    biased;
                    () = stopped(&worker) => Ok(()),
                    read = self.read_requests(session) => read,
                }
            });
            let sending = pin!(link.send_replies());
            match select(reading, sending).await {
                // The connection is lost: replies cannot be sent.
                Either::Left((Err(lost), _)) => Err(lost),
                Either::Left((Ok(()), sending)) => {
                    link.no_more_requests();
                    // The last request may end without a reply.
                    match select(sending, pin!(link.under_way.ended())).await {
                        Either::Left((sent, _)) => sent,
                        Either::Right(((), sending)) => sending.await,
                    }
                }
                Either::Right((sent, _)) => sent,
            }
        };
        link.close();
        link.under_way.ended().await;
        served
    }

    /// Performs the handshake; `None` if it ends without a session.
    async fn shake_hands(&mut self) -> io::Result<Option<Session>> {
        self.link.send_now(&greeting()).await?;
        let mut handshake = Handshake::default();
        loop {
            let within = self.worker.config.handshake_timeout;
            match timeout(within, self.step(&mut handshake)).await?? {
                Some(Step::Serve { session, .. }) => return Ok(Some(session)),
                None | Some(Step::Close) => return Ok(None),
                Some(Step::Next { .. } | Step::Skip { .. } | Step::Incomplete { .. }) => {}
            }
        }
    }

    /// Answers one message of the handshake; `None` if the client has closed the connection.
    async fn step(&mut self, handshake: &mut Handshake) -> io::Result<Option<Step>> {
        let mut out = Vec::new();
        loop {
            let step = handshake.step(self.input.bytes(), &self.worker.infos, &mut out);
            self.link.send_now(&out).await?;
            let is_going_on = match step {
                Step::Incomplete { .. } => {
                    if self.input.fill(&self.link).await? {
                        continue;
                    }
                    false
                }
                Step::Next { consumed } | Step::Serve { consumed, .. } => {
                    self.input.consume(consumed);
                    true
                }
                Step::Skip { consumed, skip } => {
                    self.input.consume(consumed);
                    self.input.skip(&self.link, skip.into()).await?
                }
                Step::Close => true,
            };
            return Ok(is_going_on.then_some(step));
        }
    }

    /// Reads requests until the client disconnects with DISC, or the server stops.
    ///
    /// # Errors
    /// An error of the socket, an end of the connection without DISC, or a request without its magic number.
    async fn read_requests(&mut self, session: Session) -> io::Result<()> {
        let worker = Rc::clone(&self.worker);
        let stats = worker.stats.of(worker.index, session.export);
        stats.counters.sessions.add(1);
        let shape = worker.infos[session.export].shape;
        loop {
            let Some(bytes) = self.input.bytes().first_chunk::<REQUEST_BYTES>() else {
                if !self.input.fill(&self.link).await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            };
            let Some(request) = Request::parse(bytes) else {
                stats.counters.lost_connections.add(1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no NBD request"));
            };
            self.input.consume(REQUEST_BYTES);
            let checked = request.command(&session, &shape);
            let held = match &checked {
                Ok(Command::Disconnect) => return Ok(()),
                Ok(Command::Read { offset, length }) if !session.is_structured => {
                    held_bytes(&shape, *offset, *length as usize)
                }
                Ok(
                    Command::Read { offset, length }
                    | Command::Write { offset, length, .. }
                    | Command::Zero { offset, length, .. }
                    | Command::Trim { offset, length, .. }
                    | Command::Cache { offset, length },
                ) => held_bytes(&shape, *offset, (*length as usize).min(PIECE_BYTES)),
                // Three copies of each extent: of the export, of the door, in the reply.
                Ok(Command::Status { .. }) => 48 * crate::protocol::MAX_EXTENTS,
                Ok(Command::Flush) | Err(_) => 0,
            };
            let job = Job {
                worker: Rc::clone(&worker),
                link: Rc::clone(&self.link),
                session,
                request,
                piece_bytes: self.window_bytes - REQUEST_COST_BYTES - 2 * SPAN_BYTES as usize,
                room: self.room(held).await,
            };
            match checked {
                Err(refusal) => {
                    stats.counters.refused_requests.add(1);
                    tracing::debug!("an NBD request was refused: {}", refusal.why);
                    let payload = refusal.payload.into();
                    if !self.input.skip(&self.link, payload).await? {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    job.refuse(refusal.errno, refusal.why);
                }
                Ok(Command::Write {
                    offset,
                    length,
                    is_durable,
                }) => {
                    if !self.write(job, offset, length as usize, is_durable).await? {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(command) => self.spawn(job.execute(command)),
            }
        }
    }

    /// Receives the data of a write and starts the write. One above [`PIECE_BYTES`] is written piece by piece, each before the next is
    /// received. False if the client closes the connection before the data is complete.
    async fn write(&mut self, job: Job<E>, offset: u64, length: usize, is_durable: bool) -> io::Result<bool> {
        if length <= PIECE_BYTES {
            let Some(data) = self.receive(length).await? else {
                return Ok(false);
            };
            self.spawn(job.write(offset, data, is_durable));
            return Ok(true);
        }
        let since = Instant::now();
        let end = offset + length as u64;
        let mut at = offset;
        let mut written = Ok(());
        while at < end {
            let length = piece_end(at, end, PIECE_BYTES as u64) - at;
            if written.is_err() {
                // The data of the pieces after a failed one is dropped.
                if !self.input.skip(&self.link, end - at).await? {
                    return Ok(false);
                }
                break;
            }
            let Some(data) = self.receive(length as usize).await? else {
                return Ok(false);
            };
            let (told, hears) = oneshot::channel();
            let export = Rc::clone(job.export());
            self.spawn(async move {
                // Fails if the connection was lost meanwhile.
                let _ = told.send(export.write(at, data, false).await);
            });
            written = hears.await.unwrap_or(Err(ExportError::Io));
            at += length;
        }
        self.spawn(job.finish_write(since, written, length, is_durable));
        Ok(true)
    }

    async fn receive(&mut self, length: usize) -> io::Result<Option<Bytes>> {
        let mut data = vec![0; length];
        let is_whole = self.input.take(&self.link, &mut data).await?;
        Ok(is_whole.then(|| data.into()))
    }

    /// Waits for a request's part of the window: `held` bytes of data and [`REQUEST_COST_BYTES`], at most the whole window.
    async fn room(&self, held: usize) -> OwnedSemaphorePermit {
        let bytes = (held + REQUEST_COST_BYTES).min(self.window_bytes);
        let window = Arc::clone(&self.window);
        let room = window.acquire_many_owned(bytes as u32).await;
        room.expect("the window is never closed")
    }

    fn spawn(&self, request: impl Future<Output = ()> + 'static) {
        spawn_request(&self.worker.under_way, &self.link.under_way, request);
    }
}

impl<E> Drop for Connection<E> {
    fn drop(&mut self) {
        // Requests under way keep the link alive, but not the socket.
        self.link.close();
    }
}

/// Bytes that a request and its export hold: see [`Export`], *Memory*.
fn held_bytes(shape: &Shape, offset: u64, length: usize) -> usize {
    let unit = u64::from(shape.preferred_bytes);
    let units = (offset + length as u64).div_ceil(unit) - offset / unit;
    length + 2 * (units * unit).min(SPAN_BYTES) as usize
}

/// The end of the piece that begins at `at`: the next multiple of `piece_bytes`, at most `end`.
pub(super) fn piece_end(at: u64, end: u64, piece_bytes: u64) -> u64 {
    (at / piece_bytes + 1).saturating_mul(piece_bytes).min(end)
}

/// Ready when the server shuts down.
async fn stopped<E>(worker: &Worker<E>) {
    if !worker.stop.is_stopping() {
        worker.stop.notified().await;
    }
}

/// The output of a future; `None` if the server shuts down first.
async fn until_stop<E, T>(worker: &Worker<E>, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stopped(worker) => None,
        done = future => Some(done),
    }
}
