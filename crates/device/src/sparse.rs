//! A device that keeps headers and forgets values.

use crate::chunks::ChunkMap;
use crate::{
    Buffer, Device, Payload, SECTOR_BYTES, SparseBuf, check_log_range, check_range, check_write_range,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What a simulated device remembers: of every write the parts that were real bytes, not those that only had a
/// length ([`Payload::Void`]); of the log every byte.
///
/// Cost: memory for the real parts only; a write or read of p parts takes O(p log n).
#[derive(Debug)]
pub struct SparseMedium {
    capacity: u64,
    /// Real parts by offset, never overlapping.
    parts: Mutex<BTreeMap<u64, Box<[u8]>>>,
    log: RwLock<ChunkMap>,
}

impl SparseMedium {
    /// A medium of `capacity` bytes, rounded down to whole sectors.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity: capacity - capacity % SECTOR_BYTES as u64,
            parts: Mutex::default(),
            log: RwLock::default(),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
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

    /// The medium behind this handle.
    pub fn medium(&self) -> &Arc<SparseMedium> {
        &self.medium
    }

    fn read_now(&self, offset: u64, len: usize) -> io::Result<SparseBuf> {
        check_range(self.medium.capacity, offset, len)?;
        let buf = SparseBuf::with_len(len);
        let put = |at: usize, bytes: &[u8]| {
            // SAFETY: nobody else knows the buffer yet, and nothing of it is lent out.
            unsafe { buf.put(at, Payload::Bytes(bytes)) }
        };
        let end = offset + len as u64;
        let parts = self.medium.parts.lock();
        let first = first_overlapping(&parts, offset);
        // Parts that touch are put as one, so that a range which several writes filled reads as bytes.
        let mut run: Option<(usize, Vec<u8>)> = None;
        for (start, part) in parts.range(first..end) {
            let from = offset.saturating_sub(*start).min(part.len() as u64) as usize;
            let to = (end - start).min(part.len() as u64) as usize;
            let at = (start + from as u64 - offset) as usize;
            match &mut run {
                Some((run_at, bytes)) if *run_at + bytes.len() == at => {
                    bytes.extend_from_slice(&part[from..to])
                }
                _ => {
                    if let Some((run_at, bytes)) = run.replace((at, part[from..to].to_vec())) {
                        put(run_at, &bytes);
                    }
                }
            }
        }
        if let Some((run_at, bytes)) = run {
            put(run_at, &bytes);
        }
        Ok(buf)
    }

    fn write_now(&self, offset: u64, data: &SparseBuf, range: Range<usize>) -> io::Result<()> {
        check_write_range(self.medium.capacity, offset, data.len(), &range)?;
        let new = data.parts(range.start, range.len());
        let mut parts = self.medium.parts.lock();
        cut_out(&mut parts, offset, offset + range.len() as u64);
        parts.extend(new.into_iter().map(|(at, part)| (offset + at as u64, part)));
        Ok(())
    }
}

/// Where the part starts that holds `offset`, or `offset` if none does.
fn first_overlapping(parts: &BTreeMap<u64, Box<[u8]>>, offset: u64) -> u64 {
    parts
        .range(..offset)
        .next_back()
        .filter(|(start, part)| *start + part.len() as u64 > offset)
        .map_or(offset, |(start, _)| *start)
}

/// Forgets `offset..end`, keeping what parts have outside of it.
fn cut_out(parts: &mut BTreeMap<u64, Box<[u8]>>, offset: u64, end: u64) {
    let first = first_overlapping(parts, offset);
    let inside: Vec<u64> = parts.range(first..end).map(|(start, _)| *start).collect();
    for start in inside {
        let part = parts.remove(&start).expect("just seen under the same lock");
        if start < offset {
            parts.insert(start, Box::from(&part[..(offset - start) as usize]));
        }
        if start + part.len() as u64 > end {
            parts.insert(end, Box::from(&part[(end - start) as usize..]));
        }
    }
}

impl Device for SparseDevice {
    type Buf = SparseBuf;

    fn capacity(&self) -> u64 {
        self.medium.capacity
    }

    fn read(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<SparseBuf>> + 'static {
        ready(self.read_now(offset, len))
    }

    fn write(
        &self,
        offset: u64,
        data: Arc<SparseBuf>,
        range: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        ready(self.write_now(offset, &data, range))
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

    fn sync(&self) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Ok(()))
    }

    fn turn(&self, _block: bool) -> io::Result<usize> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> SparseDevice {
        SparseDevice::new(Arc::new(SparseMedium::new(1 << 20)))
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
    fn real_parts_come_back_and_voids_do_not() {
        let device = device();
        write(&device, 8192, 8192, &[(100, b"header"), (8000, b"footer")]);
        let buf = device.read_now(8192, 8192).unwrap();
        assert_eq!(buf.bytes(100, 6), Some(&b"header"[..]));
        assert_eq!(buf.bytes(8000, 6), Some(&b"footer"[..]));
        assert_eq!(buf.payload(106, 500), Some(Payload::Void(500)));
    }

    #[test]
    fn a_write_replaces_everything_in_its_range_and_nothing_else() {
        let device = device();
        write(&device, 0, 12288, &[(4000, &[7; 4300])]);
        write(&device, 4096, 4096, &[(10, b"new")]);
        let buf = device.read_now(0, 12288).unwrap();
        assert_eq!(buf.bytes(4000, 96), Some(&[7; 96][..]));
        assert_eq!(buf.bytes(4096, 1), None);
        assert_eq!(buf.bytes(4106, 3), Some(&b"new"[..]));
        assert_eq!(buf.bytes(8192, 108), Some(&[7; 108][..]));
        assert_eq!(buf.bytes(8300, 1), None);
    }

    #[test]
    fn a_read_cuts_parts_to_its_range_and_joins_those_that_touch() {
        let device = device();
        write(&device, 0, 4096, &[(0, &[1; 4096])]);
        write(&device, 4096, 4096, &[(0, &[2; 4096])]);
        write(&device, 8192, 4096, &[(0, &[3; 4096])]);
        let buf = device.read_now(4096, 8192).unwrap();
        let bytes = buf.bytes(0, 8192).expect("one run of bytes");
        assert!(bytes[..4096].iter().all(|b| *b == 2) && bytes[4096..].iter().all(|b| *b == 3));
    }
}
