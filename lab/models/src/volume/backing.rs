//! A simulated backing device: generated contents that do not compress, under the bytes that were written.

use bytes::Bytes;
use hashbrown::HashMap;
use pumice_volume::{Backing, Extent};
use pumice_world::{Random, mix64};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Contents of a chunk at a version.
pub(super) fn content(chunk: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = Random(mix64(chunk ^ version << 40));
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The backing device. All handles are of one thread.
#[derive(Clone)]
pub(super) struct Generated {
    size: u64,
    chunk_bytes: u64,
    written: Rc<RefCell<HashMap<u64, Vec<u8>>>>,
}

impl Generated {
    pub(super) fn new(chunks: u64, chunk_bytes: u64) -> Self {
        Self {
            size: chunks * chunk_bytes,
            chunk_bytes,
            written: Rc::default(),
        }
    }

    fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> + use<> {
        let (chunk_bytes, end) = (self.chunk_bytes, offset + len as u64);
        (offset / chunk_bytes..end.div_ceil(chunk_bytes)).map(move |chunk| {
            let first = chunk * chunk_bytes;
            let part = offset.max(first) - first..end.min(first + chunk_bytes) - first;
            (chunk, part.start as usize..part.end as usize)
        })
    }
}

impl Backing for Generated {
    fn size(&self) -> u64 {
        self.size
    }

    fn modified(&self) -> io::Result<u64> {
        Ok(0)
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len);
        for (chunk, part) in self.parts(offset, len) {
            match self.written.borrow().get(&chunk) {
                Some(bytes) => out.extend_from_slice(&bytes[part]),
                None => out.extend_from_slice(&content(chunk, 0, self.chunk_bytes as usize)[part]),
            }
        }
        Ok(out)
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let mut at = 0;
        for (chunk, part) in self.parts(offset, data.len()) {
            let mut written = self.written.borrow_mut();
            let chunk_bytes = self.chunk_bytes as usize;
            let bytes = written
                .entry(chunk)
                .or_insert_with(|| content(chunk, 0, chunk_bytes));
            let len = part.len();
            bytes[part].copy_from_slice(&data[at..at + len]);
            at += len;
        }
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64, _: bool) -> io::Result<()> {
        self.write_at(offset, vec![0; len as usize].into()).await
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn extents(&self, _: u64, length: u64, _: usize) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent {
            length,
            is_hole: false,
        }])
    }
}
