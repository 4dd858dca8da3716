//! The socket of a connection and its queue of replies, shared with the requests under way.

use super::UnderWay;
use crate::protocol::Head;
use bytes::Bytes;
use pumice_net::Stream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Most slices sent with one system call.
const SLICES: usize = 64;

/// A reply, or a piece of one.
pub(super) struct Reply {
    /// The header; a later piece of a simple reply has none.
    pub(super) head: Option<Head>,
    pub(super) data: Bytes,
    /// Part of the window, given back when the reply has been sent.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// Notified when the reply has been sent.
    pub(super) sent: Option<oneshot::Sender<()>>,
}

impl Reply {
    fn parts(&self) -> [&[u8]; 2] {
        let head = self.head.as_ref().map_or(&[][..], Head::as_bytes);
        [head, &self.data]
    }

    fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// The socket and the queue of one connection.
pub(super) struct Link {
    /// `None` after [`Link::close`].
    stream: RefCell<Option<Stream>>,
    pub(super) under_way: UnderWay,
    queue: RefCell<VecDeque<Reply>>,
    /// Of [`Link::send_replies`], while that waits.
    waker: RefCell<Option<Waker>>,
    /// Whether the last request has been received.
    has_all: Cell<bool>,
}

impl Link {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream: RefCell::new(Some(stream)),
            under_way: UnderWay::default(),
            queue: RefCell::default(),
            waker: RefCell::default(),
            has_all: Cell::new(false),
        }
    }

    /// Queues a reply; drops it if the connection is closed.
    pub(super) fn send(&self, reply: Reply) {
        if self.stream.borrow().is_some() {
            self.queue.borrow_mut().push_back(reply);
            self.wake();
        }
    }

    /// Closes the socket and drops queued replies. Requests under way go on.
    pub(super) fn close(&self) {
        self.stream.borrow_mut().take();
        self.queue.borrow_mut().clear();
        self.wake();
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.stream.borrow().is_none()
    }

    /// Notes that the last request has been received: [`Link::send_replies`] ends after its reply.
    pub(super) fn no_more_requests(&self) {
        self.has_all.set(true);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for bytes and receives them; 0 if the peer has closed its side.
    pub(super) async fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| match &mut *self.stream.borrow_mut() {
            Some(stream) => stream.poll_read(cx, to),
            None => Poll::Ready(Err(closed())),
        })
        .await
    }

    fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = match &mut *self.stream.borrow_mut() {
            Some(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            None => Poll::Ready(Err(closed())),
        };
        match written {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => written,
        }
    }

    /// Sends bytes of the handshake, past the queue.
    pub(super) async fn send_now(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            let sent = poll_fn(|cx| self.poll_write(cx, &slices)).await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends queued replies; ready when all requests have ended after [`Link::no_more_requests`].
    pub(super) async fn send_replies(&self) -> io::Result<()> {
        let mut sending = VecDeque::new();
        let mut sent = 0;
        poll_fn(|cx| self.poll_send(cx, &mut sending, &mut sent)).await
    }

    /// `sent` counts the bytes of the first reply in `sending` that are sent already.
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        sending: &mut VecDeque<Reply>,
        sent: &mut usize,
    ) -> Poll<io::Result<()>> {
        loop {
            sending.append(&mut self.queue.borrow_mut());
            if sending.is_empty() {
                if self.stream.borrow().is_none() {
                    return Poll::Ready(Err(closed()));
                }
                if self.has_all.get() && self.under_way.is_none() {
                    return Poll::Ready(Ok(()));
                }
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            let mut before = *sent;
            for part in sending.iter().flat_map(Reply::parts).take(SLICES) {
                let passed = before.min(part.len());
                before -= passed;
                if passed < part.len() {
                    slices[count] = IoSlice::new(&part[passed..]);
                    count += 1;
                }
            }
            match self.poll_write(cx, &slices[..count]) {
                Poll::Pending => {
                    // `close` must wake this future.
                    *self.waker.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(written) => *sent += written?,
            }
            while let Some(first) = sending.front()
                && *sent >= first.len()
            {
                *sent -= first.len();
                if let Some(Reply {
                    sent: Some(told),
                    room,
                    ..
                }) = sending.pop_front()
                {
                    drop(room);
                    // Fails only if the request was dropped with the event loop.
                    let _ = told.send(());
                }
            }
        }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
