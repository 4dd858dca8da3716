//! What a connection and its requests share: the socket, and replies on their way to it.

use super::UnderWay;
use crate::protocol::Head;
use bytes::Bytes;
use pumice_net::Stream;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Parts of replies that are sent with one call.
const SLICES: usize = 64;

/// Something to be sent.
pub(super) struct Reply {
    /// What stands before the data; a later piece of a simple reply has none.
    pub(super) head: Option<Head>,
    pub(super) data: Bytes,
    /// Given back when it has been sent.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// Told when it has been sent.
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

/// The connection's end of it.
pub(super) struct Link {
    /// `None` when the connection is over.
    stream: RefCell<Option<Stream>>,
    pub(super) under_way: UnderWay,
    queue: RefCell<VecDeque<Reply>>,
    /// Of the future that sends, while it has nothing to do.
    waker: RefCell<Option<Waker>>,
    /// Whether no more requests come.
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

    /// Sends a reply when its turn comes. It goes nowhere where the connection is lost.
    pub(super) fn send(&self, reply: Reply) {
        if self.stream.borrow().is_some() {
            self.queue.borrow_mut().push_back(reply);
            self.wake();
        }
    }

    /// Ends the connection. Replies are dropped; requests under way are not.
    pub(super) fn close(&self) {
        self.stream.borrow_mut().take();
        self.queue.borrow_mut().clear();
        self.wake();
    }

    /// Whether the connection has ended: nobody hears a reply.
    pub(super) fn is_closed(&self) -> bool {
        self.stream.borrow().is_none()
    }

    /// No more requests come: what sends ends when the last one is answered.
    pub(super) fn no_more_requests(&self) {
        self.has_all.set(true);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Receives what there is, waiting for something; 0 where the peer sends no more.
    pub(super) async fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| match &mut *self.stream.borrow_mut() {
            Some(stream) => stream.poll_read(cx, to),
            None => Poll::Ready(Err(closed())),
        })
        .await
    }

    fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = match &mut *self.stream.borrow_mut() {
            Some(stream) => stream.poll_write(cx, slices),
            None => Poll::Ready(Err(closed())),
        };
        match written {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => written,
        }
    }

    /// Sends some bytes before any reply.
    pub(super) async fn send_now(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            let sent = poll_fn(|cx| self.poll_write(cx, &slices)).await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends replies until the last one is sent.
    pub(super) async fn send_replies(&self) -> io::Result<()> {
        let mut sending = VecDeque::new();
        let mut sent = 0;
        poll_fn(|cx| self.poll_send(cx, &mut sending, &mut sent)).await
    }

    /// `sent` are the bytes of the first reply in `sending` that are sent already.
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
                    // A request that ends the connection is to be heard.
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
                    // Fails where its request is gone with the process.
                    let _ = told.send(());
                }
            }
        }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
