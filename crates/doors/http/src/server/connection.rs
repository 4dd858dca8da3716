//! One connection: hyper reads requests and writes answers, HTTP/2 where TLS agreed on it.

use super::{Client, Shared, Worker};
use crate::key::Scheme;
use crate::proxy::{Answering, Proxy, Respond};
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use pumice_device::Device;
use pumice_net::{Arrived, Refused, Stream};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// What hyper reads a head into, and what may wait to be written: a request's head fits, and a little more.
const BUFFER_BYTES: usize = 64 << 10;

/// Streams of an HTTP/2 connection at once.
const STREAMS_MAX: u32 = 128;
/// What its client may send on a stream, and on all, before it is read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Streams that it may reset, or that its faults end, before they are dealt with.
const RESETS_MAX: usize = 32;
/// A connection that does not answer a ping is closed.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the tasks of HTTP/2 on the worker's thread.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move { drop(task.await) });
    }
}

/// Hands a connection's requests to the proxy.
struct Requests<D: Device + Clone> {
    proxy: Rc<Proxy<D>>,
    client: Rc<Client>,
}

impl<D: Device + Clone> Service<Request<Incoming>> for Requests<D> {
    type Response = Respond<D>;
    type Error = Infallible;
    type Future = Answering<D>;

    fn call(&self, request: Request<Incoming>) -> Answering<D> {
        self.proxy.answer(request, &self.client)
    }
}

/// A stream that ends by a reset where an answer is not sent whole, and where its peer takes nothing for too long: for the stall timeout, or, while others wait for memory, for less.
struct Watched<D: Device + Clone> {
    stream: Stream,
    proxy: Rc<Proxy<D>>,
    client: Rc<Client>,
    /// When the peer took the last byte, while it takes none.
    blocked: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// How long a peer may take nothing while others wait for memory that it may hold.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How long a peer may take nothing at the moment.
fn stall_timeout(shared: &Shared) -> Duration {
    let timeout = shared.config.stall_timeout;
    match shared.budgets.patience() {
        None => timeout,
        Some(_) => timeout.min(PATIENCE),
    }
}

impl<D: Device + Clone> Drop for Watched<D> {
    fn drop(&mut self) {
        if self.client.is_cut.get() || self.client.under_way.get() > 0 {
            self.stream.reset_at_end();
        }
    }
}

impl<D: Device + Clone> Watched<D> {
    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let since = *self.blocked.get_or_insert_with(Instant::now);
        let shared = &self.proxy.shared;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(LOOK)));
        while timer.as_mut().poll(cx).is_ready() {
            if since.elapsed() >= stall_timeout(shared) {
                self.proxy.stats().counters.slow_clients_closed.add(1);
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(Instant::now() + LOOK);
        }
        written
    }
}

impl<D: Device + Clone> AsyncRead for Watched<D> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, to)
    }
}

impl<D: Device + Clone> AsyncWrite for Watched<D> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.watch(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        let watched = this.watch(cx, flushed.map_ok(|()| 0));
        watched.map_ok(drop)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Serves one connection; its place is given back at the end, a panic included.
pub(super) async fn serve<D: Device + Clone>(worker: Rc<Worker<D>>, arrived: Arrived) {
    let (stream, _guard) = match arrived.open(&worker.stop).await {
        Ok(opened) => opened,
        Err(refused) => {
            match &refused {
                Refused::Unregistered(_) => worker.floor.say_unserved(&refused),
                Refused::Handshake(_) => {
                    worker.proxy.stats().counters.tls_handshake_errors.add(1);
                    tracing::debug!("{refused}");
                }
            }
            return;
        }
    };
    let is_http2 = stream.alpn() == Some(b"h2");
    let client = Rc::new(Client {
        address: stream.peer_ip(),
        scheme: match stream {
            Stream::Tls(_) => Scheme::Https,
            _ => Scheme::Http,
        },
        requests: Cell::new(0),
        under_way: Cell::new(0),
        is_cut: Cell::new(false),
        is_http2,
        progress: RefCell::default(),
    });
    let requests = Requests {
        proxy: Rc::clone(&worker.proxy),
        client: Rc::clone(&client),
    };
    let io = TokioIo::new(Watched {
        stream,
        proxy: Rc::clone(&worker.proxy),
        client: Rc::clone(&client),
        blocked: None,
        timer: None,
    });
    let limits = worker.proxy.shared.config.limits;
    let ended = match is_http2 {
        true => {
            let mut builder = http2::Builder::new(Local);
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS_MAX)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_pending_accept_reset_streams(RESETS_MAX)
                .max_local_error_reset_streams(RESETS_MAX)
                .max_header_list_size(
                    u32::try_from(limits.fields_bytes + limits.target_bytes).unwrap_or(u32::MAX),
                )
                .max_send_buf_size(BUFFER_BYTES)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let connection = builder.serve_connection(io, requests);
            // Boxed: its state takes some KiB.
            Box::pin(drive(
                &worker,
                &client,
                connection,
                http2::Connection::graceful_shutdown,
            ))
            .await
        }
        false => {
            let mut builder = http1::Builder::new();
            builder
                .header_read_timeout(None)
                .max_headers(limits.fields)
                .max_buf_size(BUFFER_BYTES)
                .keep_alive(!worker.stop.is_stopping());
            let connection = builder.serve_connection(io, requests);
            drive(&worker, &client, connection, http1::Connection::graceful_shutdown).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Runs a connection to its end: told to stop it ends after what is under way, and so it does when no request comes, or when one of the
/// answers that HTTP/2 sends at once does not get on.
async fn drive<D: Device + Clone, C: Future<Output = hyper::Result<()>>>(
    worker: &Worker<D>,
    client: &Client,
    connection: C,
    shut_down: impl Fn(Pin<&mut C>),
) -> hyper::Result<()> {
    let timeout = worker.proxy.shared.config.idle_timeout;
    let look = worker.proxy.shared.config.stall_timeout.min(PATIENCE) / 2;
    let mut connection = pin!(connection);
    let mut idle = pin!(sleep(timeout));
    let mut stalled = pin!(sleep(look));
    let mut stopped = pin!(worker.stop.notified());
    let mut is_ending = worker.stop.is_stopping();
    let mut seen = 0;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                // A body that ends before its end is an error of hyper's user.
                client.is_cut.set(ended.as_ref().is_err_and(hyper::Error::is_user));
                return ended;
            }
            () = &mut stopped, if !is_ending => {
                is_ending = true;
                shut_down(connection.as_mut());
            }
            () = &mut stalled, if client.is_http2 => {
                if client.is_stalled(stall_timeout(&worker.proxy.shared)) {
                    worker.proxy.stats().counters.slow_clients_closed.add(1);
                    return Ok(());
                }
                stalled.as_mut().reset(Instant::now() + look);
            }
            () = &mut idle => {
                let requests = client.requests.get();
                if client.under_way.get() == 0 && requests == seen {
                    worker.proxy.stats().counters.idle_closed.add(1);
                    return Ok(());
                }
                seen = requests;
                idle.as_mut().reset(Instant::now() + timeout);
            }
        }
    }
}
