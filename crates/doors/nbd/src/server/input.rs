//! The receive buffer of a connection.

use super::link::Link;
use std::io;

/// Bytes of the buffer: the largest option with its header fits, or a thousand requests.
pub(super) const BUFFER_BYTES: usize = 32 << 10;

/// Bytes that were received and not consumed yet.
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
        }
    }

    /// The bytes not consumed yet.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Drops `bytes` from the front.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Receives more bytes. False if the peer has closed its side.
    pub(super) async fn fill(&mut self, link: &Link) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = &mut self.buffer[self.end..];
        let received = link.receive(room).await?;
        self.end += received;
        Ok(received > 0)
    }

    /// Fills `to`. False if the peer closes its side before.
    pub(super) async fn take(&mut self, link: &Link, to: &mut [u8]) -> io::Result<bool> {
        let here = self.bytes().len().min(to.len());
        let (front, mut rest) = to.split_at_mut(here);
        front.copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        while !rest.is_empty() {
            let received = link.receive(rest).await?;
            if received == 0 {
                return Ok(false);
            }
            rest = &mut rest[received..];
        }
        Ok(true)
    }

    /// Receives and drops `bytes`. False if the peer closes its side before.
    pub(super) async fn skip(&mut self, link: &Link, mut bytes: u64) -> io::Result<bool> {
        loop {
            let here = usize::try_from(bytes)
                .unwrap_or(usize::MAX)
                .min(self.bytes().len());
            self.consume(here);
            bytes -= here as u64;
            if bytes == 0 {
                return Ok(true);
            }
            if !self.fill(link).await? {
                return Ok(false);
            }
        }
    }
}
