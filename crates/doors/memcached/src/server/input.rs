//! The bytes of one connection that were read and not yet understood.

use std::cell::RefCell;

/// Size of a buffer.
pub(super) const BUFFER_BYTES: usize = 16 << 10;

/// The beginning of a command that waits for its rest in memory of its own, so that no buffer waits with it.
pub(super) const SMALL_REST_BYTES: usize = 1 << 10;

/// Likewise, but with a share of the budget.
const PARKED_BYTES: usize = 4 << 10;

/// Spare buffers a worker keeps: 16 × 16 KiB = 256 KiB.
const MAX_SPARE: usize = 16;

/// Buffers that idle connections of one worker have given back.
#[derive(Default)]
pub(super) struct BufferPool {
    spare: RefCell<Vec<Vec<u8>>>,
}

impl BufferPool {
    fn take(&self) -> Vec<u8> {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MAX_SPARE {
            spare.push(buffer);
        }
    }
}

/// A buffer that is given back while nothing is in it.
#[derive(Default)]
pub(super) struct Input {
    /// Initialised in full; empty when the buffer was given back.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// What was read and not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Passes over `count` bytes.
    ///
    /// # Panics
    /// Where there are not as many.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "consumed more than was read");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Passes over what stands between the first `head` bytes and the one at `rest`.
    ///
    /// # Panics
    /// Where there are not as many.
    pub(super) fn cut(&mut self, head: usize, rest: usize) {
        let from = self.start..self.start + head;
        self.buffer.copy_within(from, self.start + rest - head);
        self.consume(rest - head);
    }

    /// Whether nothing waits in the buffer.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory held.
    pub(super) fn held_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The memory that is held while the connection waits for the rest of a command: see [`Input::release`].
    pub(super) fn size_while_waiting(&self) -> usize {
        match self.end - self.start <= PARKED_BYTES {
            true => PARKED_BYTES,
            false => BUFFER_BYTES,
        }
    }

    /// Free space to read into, never empty.
    ///
    /// # Panics
    /// Where a whole buffer was not understood: no command is as long.
    pub(super) fn room(&mut self, pool: &BufferPool) -> &mut [u8] {
        if self.buffer.len() < BUFFER_BYTES {
            let mut buffer = pool.take();
            let unread = self.end - self.start;
            buffer[..unread].copy_from_slice(self.bytes());
            (self.buffer, self.start, self.end) = (buffer, 0, unread);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < BUFFER_BYTES, "a command longer than the buffer");
        &mut self.buffer[self.end..]
    }

    /// Says that `count` bytes were read into the room.
    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// Gives the buffer back, if little is in it that can wait elsewhere; whether it did.
    pub(super) fn release(&mut self, pool: &BufferPool) -> bool {
        let unread = self.end - self.start;
        if unread > PARKED_BYTES {
            return false;
        }
        if self.buffer.len() >= BUFFER_BYTES {
            let parked = self.bytes().to_vec();
            pool.give(std::mem::replace(&mut self.buffer, parked));
            (self.start, self.end) = (0, unread);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &mut Input, pool: &BufferPool, bytes: &[u8]) {
        input.room(pool)[..bytes.len()].copy_from_slice(bytes);
        input.filled(bytes.len());
    }

    #[test]
    fn bytes_stay_in_order_while_the_buffer_moves() {
        let (pool, mut input) = (BufferPool::default(), Input::default());
        let data: Vec<u8> = (0..50_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut seen = Vec::new();
        for chunk in data.chunks(7001) {
            read(&mut input, &pool, chunk);
            let take = input.bytes().len() / 2;
            seen.extend_from_slice(&input.bytes()[..take]);
            input.consume(take);
        }
        seen.extend_from_slice(input.bytes());
        assert!(seen == data);
    }

    #[test]
    fn a_waiting_command_holds_no_buffer() {
        let (pool, mut input) = (BufferPool::default(), Input::default());
        read(&mut input, &pool, b"abc");
        input.release(&pool);
        assert_eq!(input.bytes(), b"abc");
        assert_eq!((input.held_bytes(), pool.spare.borrow().len()), (3, 1));
        read(&mut input, &pool, b"def");
        assert_eq!((input.bytes(), pool.spare.borrow().len()), (&b"abcdef"[..], 0));
        input.consume(6);
        input.release(&pool);
        assert_eq!((input.held_bytes(), pool.spare.borrow().len()), (0, 1));
    }

    #[test]
    fn a_cut_keeps_the_head_before_the_rest() {
        let (pool, mut input) = (BufferPool::default(), Input::default());
        read(&mut input, &pool, b"mn\r\nget a bb ccc");
        input.consume(4);
        input.cut(4, 9);
        assert_eq!(input.bytes(), b"get ccc");
    }
}
