//! Bodies of answers: sent from where the engine has them, without a copy, or passed on from the origin.

use crate::origin::{OriginBody, OriginError};
use bytes::{Buf, Bytes};
use futures_util::Stream;
use hyper::body::{Body, Frame, SizeHint};
use pumice::{Broken, Pieces};
use pumice_memory::{Buffer, Payload};
use pumice_net::Share;
use std::cell::Cell;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;

/// Why a body ends before its end: the connection is cut, so that nobody takes what has come for the whole.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Cut {
    /// What was stored has gone, or the origin's answer that was being stored has ended early.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The origin's answer has ended early.
    #[error(transparent)]
    Origin(#[from] OriginError),
}

/// A part of a body.
pub(crate) enum Chunk<B> {
    /// From the origin, or made here.
    Bytes(Bytes),
    /// From the engine.
    Pieces(Held<B>),
}

/// Pieces of a value that are being sent, and what they hold meanwhile.
pub(crate) struct Held<B> {
    pieces: Pieces<B>,
    /// Which part is sent, and how much of it is.
    part: usize,
    sent: usize,
    left: usize,
    _holds: Holds,
}

/// What is given back when a piece is sent.
pub(crate) struct Holds {
    pub(crate) _pin: Option<Pin>,
    /// Of the budget.
    pub(crate) _share: Option<Share>,
}

/// One of the few pieces at once that are sent from the DRAM tier's memory.
pub(crate) struct Pin(Rc<Cell<usize>>);

/// Most pieces of a worker that pin memory of the DRAM tier at once. They are on their way for as long as a write takes, unless clients are
/// slow; with more of those, pieces are copied.
const PINS_MAX: usize = 16;

impl Pin {
    pub(crate) fn take(pins: &Rc<Cell<usize>>) -> Option<Self> {
        let count = pins.get();
        (count < PINS_MAX).then(|| {
            pins.set(count + 1);
            Self(Rc::clone(pins))
        })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<B: Buffer> Chunk<B> {
    pub(crate) fn pieces(pieces: Pieces<B>, holds: Holds) -> Self {
        let left = pieces.len();
        Self::Pieces(Held {
            pieces,
            part: 0,
            sent: 0,
            left,
            _holds: holds,
        })
    }
}

impl<B: Buffer> Held<B> {
    /// The parts that are still to be sent.
    fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        let mut sent = self.sent;
        self.pieces.parts().skip(self.part).map(move |part| {
            let sent = std::mem::take(&mut sent);
            match part {
                Payload::Bytes(bytes) => &bytes[sent..],
                Payload::Void(_) => unreachable!("a door's buffers hold bytes"),
            }
        })
    }
}

impl<B: Buffer> Buf for Chunk<B> {
    fn remaining(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(held) => held.left,
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pieces(held) => held.unsent().find(|part| !part.is_empty()).unwrap_or_default(),
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let Self::Pieces(held) = self else {
            return match (slices.first_mut(), self.chunk()) {
                (Some(slice), chunk) if !chunk.is_empty() => {
                    *slice = IoSlice::new(chunk);
                    1
                }
                _ => 0,
            };
        };
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(held.unsent()) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        let held = match self {
            Self::Bytes(bytes) => return bytes.advance(count),
            Self::Pieces(held) => held,
        };
        held.left -= count;
        while count > 0 {
            let here = held.unsent().next().map_or(0, <[u8]>::len);
            if count < here {
                held.sent += count;
                return;
            }
            count -= here;
            (held.part, held.sent) = (held.part + 1, 0);
        }
    }
}

/// How an answer gets on: who waits for what is a chunk that was handed to hyper, and which goes as its client lets it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Chunks that are not sent yet.
    chunks: Cell<usize>,
    /// When the client last took some of one, or there was none.
    last: Cell<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            chunks: Cell::new(0),
            last: Cell::new(Instant::now()),
        }
    }
}

impl Progress {
    fn count(&self, chunks: usize) {
        self.chunks.set(chunks);
        self.last.set(Instant::now());
    }

    /// Whether the client has taken nothing for so long of what is there.
    pub(super) fn is_stalled(&self, timeout: Duration) -> bool {
        self.chunks.get() > 0 && self.last.get().elapsed() >= timeout
    }
}

/// A chunk on its way, which says how it gets on.
pub(crate) struct Sent<B> {
    chunk: Chunk<B>,
    progress: Option<Rc<Progress>>,
}

impl<B> Sent<B> {
    fn new(chunk: Chunk<B>, progress: Option<Rc<Progress>>) -> Self {
        if let Some(progress) = &progress {
            match progress.chunks.get() {
                0 => progress.count(1),
                // The one before is what the client has to take first.
                chunks => progress.chunks.set(chunks + 1),
            }
        }
        Self { chunk, progress }
    }
}

impl<B> Drop for Sent<B> {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.count(progress.chunks.get() - 1);
        }
    }
}

impl<B: Buffer> Buf for Sent<B> {
    fn remaining(&self) -> usize {
        self.chunk.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.chunk.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.chunk.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.chunk.advance(count);
        if let Some(progress) = &self.progress {
            progress.count(progress.chunks.get());
        }
    }
}

/// Parts of a body, as they come.
pub(crate) type Chunks<B> = std::pin::Pin<Box<dyn Stream<Item = Result<Chunk<B>, Cut>>>>;

/// Where a body comes from.
pub(crate) enum From<B> {
    /// There is none.
    Nothing,
    /// All of it is at hand.
    Once(Chunk<B>),
    /// It comes in parts from the engine.
    Parts(Chunks<B>),
    /// It comes from the origin.
    Origin(Box<OriginBody>),
}

/// The body of an answer.
pub(crate) struct AnswerBody<B, E: End> {
    from: From<B>,
    /// How much is still to come, where that is known.
    left: Option<u64>,
    sent: u64,
    progress: Option<Rc<Progress>>,
    /// Is told at the end how much was sent.
    end: E,
}

/// Who wants to know when an answer is over.
pub(crate) trait End: Unpin {
    /// So many bytes of the body were handed over.
    fn ended(&mut self, sent: u64);
}

impl<B: Buffer, E: End> AnswerBody<B, E> {
    pub(crate) fn new(from: From<B>, left: Option<u64>, progress: Option<Rc<Progress>>, end: E) -> Self {
        Self {
            from,
            left,
            sent: 0,
            progress,
            end,
        }
    }
}

impl<B, E: End> AnswerBody<B, E> {
    fn count(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
    }
}

impl<B: Buffer, E: End> Body for AnswerBody<B, E> {
    type Data = Sent<B>;
    type Error = Cut;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Sent<B>>, Cut>>> {
        let body = self.get_mut();
        let next = match &mut body.from {
            From::Nothing => None,
            From::Once(_) => match std::mem::replace(&mut body.from, From::Nothing) {
                From::Once(chunk) => Some(Ok(chunk)),
                _ => None,
            },
            From::Parts(parts) => match parts.as_mut().poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(next) => next,
            },
            // Trailers end here.
            From::Origin(origin) => loop {
                match std::pin::Pin::new(&mut **origin).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => break None,
                    Poll::Ready(Some(Err(error))) => break Some(Err(error.into())),
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(bytes) = frame.into_data() {
                            break Some(Ok(Chunk::Bytes(bytes)));
                        }
                    }
                }
            },
        };
        if let Some(Ok(chunk)) = &next {
            body.count(chunk.remaining());
        }
        let sent = |chunk| Frame::data(Sent::new(chunk, body.progress.clone()));
        Poll::Ready(next.map(|next| next.map(sent)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.from, From::Nothing) || self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.from, self.left) {
            (From::Nothing, _) => SizeHint::with_exact(0),
            (_, Some(left)) => SizeHint::with_exact(left),
            _ => SizeHint::new(),
        }
    }
}

impl<B, E: End> Drop for AnswerBody<B, E> {
    fn drop(&mut self) {
        self.end.ended(self.sent);
    }
}
