//! A socket of bytes: what the other side sends comes in pieces, what it gets is dropped.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

pub(super) struct Wire<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) piece: usize,
    /// What comes waits until something was sent: an answer does.
    pub(super) is_held: bool,
}

impl Read for Wire<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_held {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let count = self.bytes.len().min(self.piece).min(to.remaining());
        let (piece, rest) = self.bytes.split_at(count);
        to.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_held = false;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a future that waits for nothing but itself; `None` where it waits for ever.
pub(super) fn run<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&flag));
    // Each turn moves a piece; there are less than so many.
    for _ in 0..1 << 17 {
        if !flag.0.swap(false, Ordering::Relaxed) {
            return None;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
    }
    panic!("it goes on for ever");
}
