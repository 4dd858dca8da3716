//! TLS over a socket. While nothing is under way it holds no buffer: ciphertext is read into a pooled one and decrypted from
//! there, and what is sent is encrypted record by record, no sooner than the socket has taken the one before.

use super::input::{BufferPool, Input};
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError};
use socket2::SockRef;
use std::io::{self, IoSlice, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

/// Plaintext of one record that is sent. With what encryption adds it is below 16 KiB.
const RECORD_BYTES: usize = 16_000;

/// More than a record with all that encryption adds.
const SEALED_BYTES: usize = RECORD_BYTES + 256;

/// A record's header: type, version, length.
const HEADER_BYTES: usize = 5;

/// The longest record that a peer may send: 16 KiB, 2 KiB that encryption may add, and the header.
const MAX_RECORD_BYTES: usize = (16 << 10) + (2 << 10) + HEADER_BYTES;

/// Ciphertext that cannot be understood without more of it: a record, or a handshake message in several. No message of a client
/// that shows no certificate is near that.
const MAX_INCOMING_BYTES: usize = 32 << 10;

/// A connection with TLS.
pub(super) struct TlsStream {
    socket: TcpStream,
    session: UnbufferedServerConnection,
    /// What was read and not decrypted.
    incoming: Input,
    /// What was decrypted and found no room yet, from `plain_start` on.
    plain: Vec<u8>,
    plain_start: usize,
    /// What was encrypted and not sent, from `outgoing_start` on.
    outgoing: Vec<u8>,
    outgoing_start: usize,
    /// Whether the peer sends no more.
    is_over: bool,
    /// Whether the session has failed; it must not be asked for anything then.
    has_failed: bool,
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsStream {
    /// A connection whose handshake has not begun.
    pub(super) fn new(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self {
            socket,
            session: UnbufferedServerConnection::new(config).map_err(invalid)?,
            incoming: Input::default(),
            plain: Vec::new(),
            plain_start: 0,
            outgoing: Vec::new(),
            outgoing_start: 0,
            is_over: false,
            has_failed: false,
        })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the handshake is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Bytes received that are not yet plaintext in the reader's hands.
    pub(super) fn received_bytes(&self) -> usize {
        self.incoming.bytes().len() + self.plain.len() - self.plain_start
    }

    /// Bytes of memory that hold them.
    pub(super) fn received_memory(&self) -> usize {
        self.incoming.held_bytes() + self.plain.capacity()
    }

    /// Bytes that the socket has not taken.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing.len() - self.outgoing_start
    }

    /// Reads plaintext; 0 at the end. While it waits, buffers are given back as far as that can be.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut [u8],
        pool: &BufferPool,
    ) -> Poll<io::Result<usize>> {
        loop {
            let count = self.read_received(to)?;
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
            // An answer of the handshake goes out before more is read, so that a peer that does not read is not read from.
            if !self.flush()? {
                match self.socket.poll_write_ready(cx)? {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            if self.is_over {
                return Poll::Ready(Ok(0));
            }
            let mut room = ReadBuf::new(room(&mut self.incoming, pool)?);
            match Pin::new(&mut self.socket).poll_read(cx, &mut room)? {
                Poll::Ready(()) => {
                    let count = room.filled().len();
                    self.received(count);
                }
                Poll::Pending => {
                    self.incoming.release(pool);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads plaintext of what has arrived, whether the event loop knows of it or not; `WouldBlock` where there is none.
    pub(super) fn read_arrived(&mut self, to: &mut [u8], pool: &BufferPool) -> io::Result<usize> {
        loop {
            let count = self.read_received(to)?;
            if count > 0 || self.is_over {
                return Ok(count);
            }
            let room = room(&mut self.incoming, pool)?;
            let count = (&*SockRef::from(&self.socket)).read(room)?;
            self.received(count);
        }
    }

    fn received(&mut self, count: usize) {
        self.incoming.filled(count);
        self.is_over |= count == 0;
    }

    /// Plaintext of what was received.
    fn read_received(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let rest = &self.plain[self.plain_start..];
        if !rest.is_empty() {
            let count = rest.len().min(to.len());
            to[..count].copy_from_slice(&rest[..count]);
            self.plain_start += count;
            if self.plain_start == self.plain.len() {
                (self.plain, self.plain_start) = (Vec::new(), 0);
            }
            return Ok(count);
        }
        if self.incoming.is_empty() {
            return Ok(0);
        }
        self.advance(to, |_, _| Ok(0))
    }

    /// Hands over plaintext: as much of it as fits a record, once everything before it was sent. Returns how much was taken.
    pub(super) fn try_write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let gathered;
        let text = match slices {
            [] => return Ok(0),
            [one] => &one[..one.len().min(RECORD_BYTES)],
            [first, ..] if first.len() >= RECORD_BYTES => &first[..RECORD_BYTES],
            _ => {
                gathered = gather(slices);
                &gathered[..]
            }
        };
        let mut taken = 0;
        self.advance(&mut [], |traffic, outgoing| {
            let count = seal(outgoing, |room| traffic.encrypt(text, room))?;
            taken = text.len();
            Ok(count)
        })?;
        if taken == 0 {
            return Err(invalid("the TLS session cannot send"));
        }
        self.flush()?;
        Ok(taken)
    }

    /// Says that nothing more is sent, if there is still somebody to hear it.
    pub(super) fn close(&mut self) {
        // Whoever does not take it, or has gone, learns it from the socket.
        let _ = self.advance(&mut [], |traffic, outgoing| {
            seal(outgoing, |room| traffic.queue_close_notify(room))
        });
        let _ = self.flush();
    }

    /// Sends what is encrypted; whether all of it is gone.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while self.outgoing_start < self.outgoing.len() {
            match self.socket.try_write(&self.outgoing[self.outgoing_start..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.outgoing_start += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.outgoing, self.outgoing_start) = (Vec::new(), 0);
        Ok(true)
    }

    /// Understands all whole records: plaintext goes to `to`, what finds no room there to `plain`; answers of the session are put
    /// in `outgoing`. Then, if application data may be sent, `say` may add some. Returns how many bytes `to` got.
    fn advance(
        &mut self,
        to: &mut [u8],
        say: impl FnOnce(&mut Traffic<'_>, &mut Vec<u8>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.has_failed {
            return Err(invalid("the TLS session has failed"));
        }
        let mut filled = 0;
        loop {
            let status = self.session.process_tls_records(self.incoming.bytes_mut());
            let discard = status.discard;
            let goes_on = match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let text = record.map_err(invalid)?.payload;
                        let fits = text.len().min(to.len() - filled);
                        to[filled..filled + fits].copy_from_slice(&text[..fits]);
                        filled += fits;
                        self.plain.extend_from_slice(&text[fits..]);
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.outgoing, |room| data.encode(room))?;
                    true
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // It is in `outgoing`, and nothing overtakes it there.
                    data.done();
                    true
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    say(&mut traffic, &mut self.outgoing)?;
                    self.incoming.consume(discard);
                    return Ok(filled);
                }
                Ok(ConnectionState::PeerClosed) => {
                    // It may still be sent to.
                    self.is_over = true;
                    true
                }
                Ok(ConnectionState::Closed) => {
                    self.is_over = true;
                    false
                }
                Ok(ConnectionState::BlockedHandshake) => false,
                // Early data is never offered, and what is new to us is no state to go on in.
                Ok(_) => return Err(invalid("an unexpected state of the TLS session")),
                Err(error) => {
                    self.incoming.consume(discard);
                    self.fail();
                    return Err(invalid(error));
                }
            };
            self.incoming.consume(discard);
            if !goes_on {
                return Ok(filled);
            }
        }
    }

    /// Ends a session that has failed, and tells the peer why, as far as it takes that at once.
    fn fail(&mut self) {
        self.has_failed = true;
        // What it has to say it hands out before it looks at any input; more input would be a mistake now.
        while self.session.wants_write() {
            let Ok(ConnectionState::EncodeTlsData(mut data)) =
                self.session.process_tls_records(&mut []).state
            else {
                return;
            };
            if encode(&mut self.outgoing, |room| data.encode(room)).is_err() {
                return;
            }
        }
        // Whoever does not take it learns that it is over from the socket.
        let _ = self.flush();
    }
}

type Traffic<'c> = rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>;

/// Free space for at least the rest of the record that has begun.
fn room<'i>(incoming: &'i mut Input, pool: &BufferPool) -> io::Result<&'i mut [u8]> {
    let bytes = incoming.bytes();
    if bytes.len() >= MAX_INCOMING_BYTES {
        return Err(invalid("a TLS message is too long"));
    }
    let whole = match bytes {
        [_, _, _, high, low, ..] => HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    };
    Ok(incoming.room(whole.min(MAX_RECORD_BYTES), pool))
}

fn gather(slices: &[IoSlice<'_>]) -> Vec<u8> {
    let mut text = Vec::with_capacity(RECORD_BYTES);
    for slice in slices {
        let fits = slice.len().min(RECORD_BYTES - text.len());
        text.extend_from_slice(&slice[..fits]);
    }
    text
}

/// Appends what `write` writes: at most a sealed record.
fn seal(
    outgoing: &mut Vec<u8>,
    write: impl FnOnce(&mut [u8]) -> Result<usize, EncryptError>,
) -> io::Result<usize> {
    let start = outgoing.len();
    outgoing.resize(start + SEALED_BYTES, 0);
    let count = write(&mut outgoing[start..]).map_err(invalid);
    outgoing.truncate(start + count.as_ref().copied().unwrap_or(0));
    count
}

/// Appends a message of the handshake, of whatever size it is.
fn encode(
    outgoing: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    let start = outgoing.len();
    let mut size = 1 << 10;
    loop {
        outgoing.resize(start + size, 0);
        match write(&mut outgoing[start..]) {
            Ok(count) => {
                outgoing.truncate(start + count);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needed)) if needed.required_size > size => {
                size = needed.required_size
            }
            Err(error) => return Err(invalid(error)),
        }
    }
}
