//! Bodies on their way to the origin and back.

use super::OriginError;
use super::pool::{End, Lease};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::cell::Cell;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// The body of a request.
pub enum RequestBody {
    /// None.
    Empty,
    /// A client's, as it comes.
    Incoming(Incoming),
    /// Any other.
    Other(Pin<Box<dyn Body<Data = Bytes, Error = Box<dyn Error + Send + Sync>>>>),
}

/// A request's body while it is sent.
pub(super) struct Sending {
    body: RequestBody,
    upload: Rc<Upload>,
}

/// How far the sending of a request's body is.
pub(super) struct Upload {
    moved: Cell<Instant>,
    is_over: Cell<bool>,
}

impl Upload {
    /// When the last piece of it came.
    pub(super) fn moved(&self) -> Instant {
        self.moved.get()
    }
}

impl Sending {
    pub(super) fn new(body: RequestBody) -> Self {
        let upload = Rc::new(Upload {
            moved: Cell::new(Instant::now()),
            is_over: Cell::new(false),
        });
        Self { body, upload }
    }

    /// To be called when it is handed to a connection.
    pub(super) fn begin(&self) -> Rc<Upload> {
        self.upload.moved.set(Instant::now());
        Rc::clone(&self.upload)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.upload.is_over.set(true);
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match &mut self.body {
            RequestBody::Empty => return Poll::Ready(None),
            RequestBody::Incoming(body) => {
                ready!(Pin::new(body).poll_frame(cx)).map(|frame| frame.map_err(Into::into))
            }
            RequestBody::Other(body) => ready!(body.as_mut().poll_frame(cx)),
        };
        self.upload.moved.set(Instant::now());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            RequestBody::Empty => true,
            RequestBody::Incoming(body) => body.is_end_stream(),
            RequestBody::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Incoming(body) => body.size_hint(),
            RequestBody::Other(body) => body.size_hint(),
        }
    }
}

/// The body of an answer, over the connection that it comes on. The end is told once the connection is found to be free for another
/// request, or closed as it should be: bytes beyond the body's length make it an error.
pub struct OriginBody {
    incoming: Incoming,
    /// `None` once all is told.
    lease: Option<Lease>,
    upload: Rc<Upload>,
    has_come: bool,
    idle_timeout: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl OriginBody {
    pub(super) fn new(incoming: Incoming, lease: Lease, upload: Rc<Upload>, idle_timeout: Duration) -> Self {
        Self {
            incoming,
            lease: Some(lease),
            upload,
            has_come: false,
            idle_timeout,
            idle: None,
            is_waiting: false,
        }
    }

    /// What is next, without the time it may take.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, OriginError>>> {
        if !self.has_come {
            match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                Some(frame) => return Poll::Ready(Some(frame.map_err(|_| OriginError::Broken))),
                None => self.has_come = true,
            }
        }
        let Some(lease) = &mut self.lease else {
            return Poll::Ready(None);
        };
        // An origin may answer before it has read all, and never read the rest: then nobody waits for it.
        if self.upload.is_over.get() {
            match ready!(lease.poll_end(cx)) {
                End::Kept => self.lease.take().expect("it is some").keep(),
                End::Closed => {}
                End::Leftover => {
                    return Poll::Ready(Some(Err(OriginError::Bad("it sends more than it said"))));
                }
            }
        }
        self.lease = None;
        Poll::Ready(None)
    }
}

impl Body for OriginBody {
    type Data = Bytes;
    type Error = OriginError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, OriginError>>> {
        let this = &mut *self;
        let next = match this.poll_next(cx) {
            Poll::Ready(next) => {
                this.is_waiting = false;
                next
            }
            Poll::Pending => {
                let idle = this
                    .idle
                    .get_or_insert_with(|| Box::pin(sleep(this.idle_timeout)));
                if !this.is_waiting {
                    this.is_waiting = true;
                    idle.as_mut().reset(Instant::now() + this.idle_timeout);
                }
                ready!(idle.as_mut().poll(cx));
                Some(Err(OriginError::Timeout))
            }
        };
        if let Some(Err(_)) = &next {
            // Nothing follows; the connection is closed.
            (this.has_come, this.lease) = (true, None);
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.lease.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
