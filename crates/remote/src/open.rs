//! Opening a connection to an export.

use crate::uri::{Place, Uri};
use crate::wire::{Export, HandshakeError, shake_hands};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Longest time of a connection attempt, with its handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A connection of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

impl Uri {
    /// Connects, and asks for the export, within ten seconds. A TCP peer that is gone for `patience` is noticed.
    ///
    /// # Errors
    /// Nobody listens, or the handshake fails.
    pub async fn open(&self, patience: Duration) -> Result<(Box<dyn Stream>, Export), HandshakeError> {
        let connecting = async {
            let mut stream: Box<dyn Stream> = match &self.place {
                Place::Tcp(host, port) => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    // Notices a host that is gone.
                    let socket = SockRef::from(&stream);
                    let second = Duration::from_secs(1);
                    let keepalive = TcpKeepalive::new().with_time((patience / 2).max(second));
                    socket.set_tcp_keepalive(&keepalive.with_interval((patience / 4).max(second)))?;
                    socket.set_tcp_user_timeout(Some(patience))?;
                    Box::new(stream)
                }
                Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
            };
            let export = shake_hands(&mut stream, &self.export).await?;
            Ok((stream, export))
        };
        let connected = timeout(CONNECT_WITHIN, connecting).await;
        connected.unwrap_or_else(|late| Err(io::Error::from(late).into()))
    }
}
