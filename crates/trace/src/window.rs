//! A moving window over the bytes of a file: lines and fixed-size records without a copy for each.

use std::io::{self, Read};

/// Bytes the window starts with.
const START_BYTES: usize = 256 * 1024;
/// Longest line that is read, without its end; bounds the window.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;

/// Why no line could be had.
#[derive(Debug)]
pub(crate) enum WindowError {
    /// The file or its compression.
    Io(io::Error),
    /// The line starting at the current offset is longer than [`MAX_LINE_BYTES`].
    LineTooLong,
}

/// Buffered bytes between `start` and `end`, at `offset` in the decompressed file.
pub(crate) struct Window {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
}

impl Window {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Self {
        Window {
            source,
            buffer: vec![0; START_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
        }
    }

    /// Offset of the first byte not consumed, in the decompressed file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset up to which the file has been read.
    pub(crate) fn read_offset(&self) -> u64 {
        self.offset + (self.end - self.start) as u64
    }

    /// Waits for at least `wanted` bytes (at most the starting size of the window) and returns what there is: fewer
    /// only at the end of the file.
    pub(crate) fn at_least(&mut self, wanted: usize) -> io::Result<&[u8]> {
        while self.end - self.start < wanted && self.fill()? {}
        Ok(self.unread())
    }

    /// What there is without waiting.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Marks bytes returned by [`at_least`](Window::at_least) as consumed.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.offset += count as u64;
    }

    /// Consumes the next line and returns it without its end (LF or CR LF), with its offset. The last line need not
    /// have an end. `None` at the end of the file.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, WindowError> {
        let mut scanned = 0;
        let (len, consumed) = loop {
            let unread = self.unread();
            if let Some(at) = memchr::memchr(b'\n', &unread[scanned..]) {
                break (scanned + at, scanned + at + 1);
            }
            scanned = unread.len();
            if scanned > MAX_LINE_BYTES {
                return Err(WindowError::LineTooLong);
            }
            if !self.fill().map_err(WindowError::Io)? {
                if scanned == 0 {
                    return Ok(None);
                }
                break (scanned, scanned);
            }
        };
        if len > MAX_LINE_BYTES {
            return Err(WindowError::LineTooLong);
        }
        let (line_start, line_offset) = (self.start, self.offset);
        self.consume(consumed);
        let line = &self.buffer[line_start..line_start + len];
        Ok(Some((line_offset, line.strip_suffix(b"\r").unwrap_or(line))))
    }

    /// Reads once more from the source; returns whether there was anything.
    fn fill(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if self.end == self.buffer.len() {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            // Growth ends just above the longest line: `next_line` gives up before asking for more.
            if self.end * 2 > self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(false);
                }
                Ok(count) => {
                    self.end += count.min(self.buffer.len() - self.end);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields its bytes a few at a time, as a decompressor may.
    struct Trickle(Vec<u8>, usize, usize);

    impl Read for Trickle {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.2.min(out.len()).min(self.0.len() - self.1);
            out[..count].copy_from_slice(&self.0[self.1..self.1 + count]);
            self.1 += count;
            Ok(count)
        }
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_trickle_in() {
        let text = b"one\r\n\nthree\nlast".to_vec();
        for step in 1..8 {
            let mut window = Window::new(Box::new(Trickle(text.clone(), 0, step)));
            let mut lines = Vec::new();
            while let Some((offset, line)) = window.next_line().unwrap() {
                lines.push((offset, line.to_vec()));
            }
            let expected = [(0, &b"one"[..]), (5, b""), (6, b"three"), (12, b"last")];
            assert_eq!(
                lines,
                expected.map(|(offset, line)| (offset, line.to_vec())),
                "step {step}"
            );
            assert_eq!(window.offset(), text.len() as u64);
        }
    }

    #[test]
    fn a_line_of_the_longest_length_is_read_and_a_longer_one_refused() {
        let mut text = vec![b'x'; MAX_LINE_BYTES];
        text.push(b'\n');
        text.extend(vec![b'y'; MAX_LINE_BYTES + 1]);
        text.extend(b"\nmore\n");
        let mut window = Window::new(Box::new(io::Cursor::new(text)));
        assert_eq!(
            window.next_line().unwrap().map(|(_, line)| line.len()),
            Some(MAX_LINE_BYTES)
        );
        assert!(matches!(window.next_line(), Err(WindowError::LineTooLong)));
        assert_eq!(window.offset(), MAX_LINE_BYTES as u64 + 1);
        assert!(window.buffer.len() <= 4 * MAX_LINE_BYTES);
    }
}
