//! A device that keeps headers and forgets values.

mod parts;

use crate::chunks::{CHUNK_BYTES, ChunkMap, spans};
use crate::{AtOnce, Buffer, SECTOR_BYTES, SparseBuf, check_log_range, check_range, check_write_range};
use locks::{Mutex, RwLock};
use parts::{Parts, PartsMaker};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What a simulated device remembers: of every write the parts that were real bytes, not those that only had a
/// length ([`Payload::Void`](crate::Payload::Void)); of the log every byte.
///
/// Cost: memory for the real parts, about half of their bytes where they are alike, and at most 16 bytes per 64 KiB around
/// them and per 64 MiB before them. A read of p parts takes O(p + log n) in each chunk of 64 KiB that it touches, where the
/// chunk has n parts; a write takes O(p), and O(n) where it covers only a part of a chunk.
#[derive(Debug)]
pub struct SparseMedium {
    capacity: u64,
    /// What is added to an offset, so that chunks begin on the grid.
    shift: u64,
    parts: Mutex<PartMap>,
    log: RwLock<ChunkMap>,
}

impl SparseMedium {
    /// A medium of `capacity` bytes, rounded down to whole sectors.
    pub fn new(capacity: u64) -> Self {
        Self::with_grid(capacity, 0)
    }

    /// As [`new`](Self::new), for writes that mostly begin and end whole times 64 KiB behind `origin`: these are cheapest.
    pub fn with_grid(capacity: u64, origin: u64) -> Self {
        Self {
            capacity: capacity - capacity % SECTOR_BYTES as u64,
            shift: CHUNK_BYTES as u64 - origin % CHUNK_BYTES as u64,
            parts: Mutex::default(),
            log: RwLock::default(),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

const CHUNKS_PER_GROUP: usize = 1 << 10;

/// Real parts of a chunk; `None` where there are none. A chunk is replaced, never changed.
type Chunk = Option<Parts>;

/// Real parts by offset, cut at the borders of chunks. Groups are made when a part is first written to them.
#[derive(Debug, Default)]
struct PartMap {
    groups: Vec<Option<Box<[Chunk]>>>,
    maker: PartsMaker,
}

impl PartMap {
    fn set_chunk(&mut self, number: usize, chunk: Chunk) {
        let group = number / CHUNKS_PER_GROUP;
        if self.groups.get(group).is_none_or(Option::is_none) {
            if chunk.is_none() {
                return;
            }
            if self.groups.len() <= group {
                self.groups.resize_with(group + 1, || None);
            }
            self.groups[group] = Some((0..CHUNKS_PER_GROUP).map(|_| None).collect());
        }
        if let Some(chunks) = &mut self.groups[group] {
            chunks[number % CHUNKS_PER_GROUP] = chunk;
        }
    }

    /// The parts in `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize) -> SparseBuf {
        let mut buf = SparseBuf::with_len(len);
        for span in spans(offset, len) {
            if let Some(chunk) = chunk_of(&self.groups, span.chunk) {
                chunk.each(span.within, span.within + span.len, |at, part| {
                    buf.push_part(span.at + at - span.within, part);
                });
            }
        }
        buf
    }

    /// Makes the parts in `len` bytes of `data` at `from` all the parts in as many bytes at `offset`.
    fn write(&mut self, offset: u64, data: &SparseBuf, from: usize, len: usize) {
        let (Some(first), Some(last)) = (spans(offset, len).next(), spans(offset + len as u64, 1).next())
        else {
            return;
        };
        self.keep(first.chunk, 0, first.within);
        let mut number = first.chunk;
        data.for_each_part(from, len, |at, part| {
            for span in spans(offset + at as u64, part.len()) {
                self.finish(&mut number, span.chunk);
                self.maker.push(span.within, &part[span.at..][..span.len]);
            }
        });
        self.finish(&mut number, last.chunk);
        if last.within > 0 {
            self.keep(last.chunk, last.within, CHUNK_BYTES);
            self.finish(&mut number, last.chunk + 1);
        }
    }

    /// Takes over what a chunk has in `at..end`.
    fn keep(&mut self, number: usize, at: usize, end: usize) {
        let Self { groups, maker } = self;
        if let Some(old) = chunk_of(groups, number) {
            old.each(at, end, |at, part| maker.push(at, part));
        }
    }

    /// Makes what was pushed the chunk `number`, leaves none in those up to `end`, and goes on there.
    fn finish(&mut self, number: &mut usize, end: usize) {
        while *number < end {
            let new = self.maker.finish();
            self.set_chunk(*number, new);
            *number += 1;
        }
    }
}

fn chunk_of(groups: &[Option<Box<[Chunk]>>], number: usize) -> Option<&Parts> {
    let group = groups.get(number / CHUNKS_PER_GROUP)?.as_ref()?;
    group[number % CHUNKS_PER_GROUP].as_ref()
}

/// A handle on a [`SparseMedium`]. Every operation is done when its call returns; its future is ready at once.
///
/// A read holds the real parts of what was written last to each place; parts that touch come back as one. What was
/// never written is void: [`Buffer::bytes`] answers `None` for it where a real device has bytes of some content.
#[derive(Debug, Clone)]
pub struct SparseDevice {
    medium: Arc<SparseMedium>,
}

impl SparseDevice {
    /// A handle on `medium`.
    pub fn new(medium: Arc<SparseMedium>) -> Self {
        Self { medium }
    }
}

impl AtOnce for SparseDevice {
    type Buf = SparseBuf;

    fn capacity(&self) -> u64 {
        self.medium.capacity
    }

    fn read_now(&self, offset: u64, len: usize) -> io::Result<SparseBuf> {
        check_range(self.medium.capacity, offset, len)?;
        Ok(self.medium.parts.lock().read(offset + self.medium.shift, len))
    }

    fn write_now(&self, offset: u64, data: &SparseBuf, range: Range<usize>) -> io::Result<()> {
        check_write_range(self.medium.capacity, offset, data.len(), &range)?;
        let mut parts = self.medium.parts.lock();
        parts.write(offset + self.medium.shift, data, range.start, range.len());
        Ok(())
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_log_range(self.medium.capacity, offset, bytes.len())?;
        self.medium.log.write().write(offset, bytes);
        Ok(())
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_log_range(self.medium.capacity, offset, out.len())?;
        self.medium.log.read().read(offset, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    fn device() -> SparseDevice {
        SparseDevice::new(Arc::new(SparseMedium::with_grid(
            1 << 20,
            5 * SECTOR_BYTES as u64,
        )))
    }

    fn write(device: &SparseDevice, offset: u64, len: usize, parts: &[(usize, &[u8])]) {
        let buf = SparseBuf::with_len(len);
        for (at, bytes) in parts {
            // SAFETY: nobody else knows the buffer.
            unsafe { buf.put(*at, Payload::Bytes(bytes)) }
        }
        device.write_now(offset, &buf, 0..len).unwrap();
    }

    #[test]
    fn memory_is_taken_for_real_parts_only_and_given_back() {
        let medium = Arc::new(SparseMedium::new(670 << 30));
        let device = SparseDevice::new(Arc::clone(&medium));
        let chunks = || {
            let parts = medium.parts.lock();
            let groups = parts.groups.iter().flatten();
            (
                groups.clone().count(),
                groups.flat_map(|group| group.iter().flatten()).count(),
            )
        };
        write(&device, 600 << 30, 256 << 20, &[]);
        assert_eq!(chunks(), (0, 0));
        write(
            &device,
            600 << 30,
            256 << 20,
            &[(0, b"first"), ((256 << 20) - 4, b"last")],
        );
        assert_eq!(chunks(), (2, 2));
        write(&device, 600 << 30, 4096, &[]);
        assert_eq!(chunks(), (2, 1));
    }

    /// Writes of any sectors with any parts against one entry per byte; every run of bytes is read as one.
    #[test]
    fn writes_in_any_order_do_what_a_plain_array_does() {
        const SECTORS: usize = 40;
        let device = device();
        let mut model: Vec<Option<u8>> = vec![None; SECTORS * SECTOR_BYTES];
        let mut numbers = pumice_world::Random(3);
        let mut random = |below: usize| numbers.below(below as u64) as usize;
        for number in 1..1000_usize {
            let first = random(SECTORS);
            let sectors = 1 + random((SECTORS - first).min(if number % 5 == 0 { SECTORS } else { 4 }));
            let len = sectors * SECTOR_BYTES;
            // Written from a part of a buffer whose other parts must not be.
            let buf = SparseBuf::with_len(len + 2 * SECTOR_BYTES);
            let mut new = vec![None; buf.len()];
            for _ in 0..random(6) {
                let at = random(buf.len());
                // Now and then across chunks.
                let longest = if number % 7 == 0 { buf.len() } else { 9000 };
                let part_len = 1 + random((buf.len() - at).min(longest));
                let bytes = vec![number as u8; part_len];
                // SAFETY: nobody else knows the buffer.
                unsafe { buf.put(at, Payload::Bytes(&bytes)) };
                new[at..at + part_len].fill(Some(number as u8));
            }
            let offset = first * SECTOR_BYTES;
            let range = SECTOR_BYTES..SECTOR_BYTES + len;
            device.write_now(offset as u64, &buf, range.clone()).unwrap();
            model[offset..offset + len].copy_from_slice(&new[range]);

            let first = random(SECTORS);
            let len = (1 + random(SECTORS - first)) * SECTOR_BYTES;
            let buf = device.read_now((first * SECTOR_BYTES) as u64, len).unwrap();
            let mut at = 0;
            for run in model[first * SECTOR_BYTES..][..len].chunk_by(|a, b| a.is_some() == b.is_some()) {
                let expected: Option<Vec<u8>> = run.iter().copied().collect();
                assert_eq!(
                    buf.bytes(at, run.len()),
                    expected.as_deref(),
                    "{} at {at}",
                    run.len()
                );
                if expected.is_none() {
                    assert_eq!(buf.parts(at, run.len()), vec![]);
                    assert_eq!(buf.payload(at, run.len()), Some(Payload::Void(run.len())));
                }
                at += run.len();
            }
        }
    }
}
