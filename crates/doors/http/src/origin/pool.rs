//! The connections to the origin: at most so many at once, kept while they are young and lead to an address that the name still has.

use super::body::Sending;
use super::connect::{Connector, OriginSetupError};
use super::{OriginConfig, OriginError};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

/// How long a connection is kept without a request: less than most servers keep one (nginx 75 s, Apache 5 s, node 5 s; for the latter there
/// is a second try).
const KEPT_FOR: Duration = Duration::from_secs(30);

/// How often names and kept connections are looked after, while there are connections.
const TEND_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Pool {
    pub(super) config: OriginConfig,
    connector: Connector,
    /// A permit is for a connection with a request on it. Kept ones have none: a new one is made only while none is kept, so all together are
    /// no more than there are permits.
    permits: Arc<Semaphore>,
    connections_max: usize,
    /// The youngest last.
    kept: RefCell<Vec<(Connection, Instant)>>,
    is_tended: Cell<bool>,
}

/// A connection that its task drives.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Sending>,
    pub(super) peer: SocketAddr,
    /// True if there were bytes that belong to no answer when it ended.
    pub(super) has_leftover: Rc<Cell<bool>>,
}

/// A connection for one request; dropped, it is closed.
pub(super) struct Lease {
    connection: Connection,
    permit: OwnedSemaphorePermit,
    is_kept: bool,
    pool: Rc<Pool>,
}

/// How a connection fares after an answer.
pub(super) enum End {
    /// It can be used again.
    Kept,
    Closed,
    /// More came than belonged to the answer.
    Leftover,
}

impl Pool {
    pub(super) fn new(config: &OriginConfig) -> Result<Self, OriginSetupError> {
        let connections_max = config.connections_max.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            connector: Connector::new(config)?,
            permits: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            kept: RefCell::default(),
            is_tended: Cell::new(false),
            config: config.clone(),
        })
    }

    /// A kept connection, or a new one.
    pub(super) async fn lease(self: &Rc<Self>) -> Result<Lease, OriginError> {
        let permit = timeout(
            self.config.connect_timeout,
            Arc::clone(&self.permits).acquire_owned(),
        )
        .await
        .map_err(|_| OriginError::Busy)?
        .expect("nobody closes the semaphore");
        while let Some((connection, since)) = self.pop() {
            let is_known = self.connector.knows(connection.peer);
            if connection.sender.is_ready() && is_known && since.elapsed() < KEPT_FOR {
                return Ok(self.let_out(connection, permit, true));
            }
        }
        self.connect(permit).await
    }

    /// A new connection instead of one that has ended.
    pub(super) async fn renew(self: &Rc<Self>, dead: Lease) -> Result<Lease, OriginError> {
        self.connect(dead.permit).await
    }

    async fn connect(self: &Rc<Self>, permit: OwnedSemaphorePermit) -> Result<Lease, OriginError> {
        let connection = self.connector.connect(self.config.connect_timeout).await?;
        if !self.is_tended.replace(true) {
            spawn_local(tend(Rc::downgrade(self)));
        }
        Ok(self.let_out(connection, permit, false))
    }

    fn let_out(
        self: &Rc<Self>,
        connection: Connection,
        permit: OwnedSemaphorePermit,
        is_kept: bool,
    ) -> Lease {
        let pool = Rc::clone(self);
        Lease {
            connection,
            permit,
            is_kept,
            pool,
        }
    }

    fn pop(&self) -> Option<(Connection, Instant)> {
        self.kept.borrow_mut().pop()
    }
}

/// Looks the name up again and closes what was kept for too long, until there is no connection.
async fn tend(pool: Weak<Pool>) {
    loop {
        sleep(TEND_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.kept
            .borrow_mut()
            .retain(|(connection, since)| connection.sender.is_ready() && since.elapsed() < KEPT_FOR);
        let is_used = pool.permits.available_permits() < pool.connections_max;
        if !is_used && pool.kept.borrow().is_empty() {
            pool.is_tended.set(false);
            return;
        }
        pool.connector.refresh().await;
    }
}

impl Lease {
    /// Whether the connection had requests before.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(super) fn has_leftover(&self) -> bool {
        self.connection.has_leftover.get()
    }

    pub(super) fn try_send(
        &mut self,
        request: Request<Sending>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Sending>>>> + use<> {
        self.connection.sender.try_send_request(request)
    }

    /// Waits until the connection is free or closed.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        Poll::Ready(match ready!(self.connection.sender.poll_ready(cx)) {
            Ok(()) => End::Kept,
            // The task that drives it says so before it lets go of it.
            Err(_) if self.has_leftover() => End::Leftover,
            Err(_) => End::Closed,
        })
    }

    /// Gives it back for other requests.
    pub(super) fn keep(self) {
        let Self {
            connection,
            permit,
            pool,
            ..
        } = self;
        pool.kept.borrow_mut().push((connection, Instant::now()));
        drop(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::{Origin, RequestBody};
    use http_body_util::BodyExt;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_kept_connection_is_used_while_it_is_young_and_the_name_has_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    while stream.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
                        stream.write_all(answer.as_bytes()).unwrap();
                    }
                });
            }
        });
        let origin = Origin::new(&OriginConfig::new(url.parse().unwrap())).unwrap();
        let connection = || async {
            let response = origin.send(Request::new(RequestBody::Empty)).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            assert_eq!(connection().await, "0");
            assert_eq!(connection().await, "0");
            // As after a look-up, when the name had moved away and back.
            origin.pool.connector.forget();
            assert_eq!(connection().await, "1");
            origin.pool.kept.borrow_mut()[0].1 -= KEPT_FOR;
            assert_eq!(connection().await, "2");
            assert_eq!(connection().await, "2");
        });
    }
}
