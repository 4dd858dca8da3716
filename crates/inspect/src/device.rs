//! The device under inspection.

use anyhow::{Context, bail};
use pumice_device::{AlignedBuf, AtOnce, Buffer, SECTOR_BYTES, check_range, holder};
use pumice_flash::inspect::Source;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A process that was killed a moment ago may still hold the lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// A file or block device, opened for reading and locked against servers.
pub struct ReadOnly {
    file: File,
    len: u64,
}

impl ReadOnly {
    /// Opens a device.
    ///
    /// # Errors
    /// It cannot be opened, is no file and no block device, or a server uses it.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let kind = std::fs::metadata(path)
            .with_context(|| format!("cannot open {name}"))?
            .file_type();
        if !kind.is_file() && !kind.is_block_device() {
            bail!("{name} is neither a regular file nor a block device");
        }
        let mut file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let deadline = Instant::now() + LOCK_WAIT;
        // Shared with other readers; a server holds it alone.
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    let holder = rustix::fs::fstat(&file).map(|held| holder(&held));
                    let holder = holder.unwrap_or_else(|_| "another process".to_owned());
                    bail!(
                        "{name} is in use by a running server, {holder}; stop it first, what it holds changes while it is read"
                    )
                }
                Err(error) => return Err(error).with_context(|| format!("cannot lock {name}")),
            }
        }
        let len = file
            .seek(SeekFrom::End(0))
            .with_context(|| format!("cannot find the size of {name}"))?;
        Ok(Self { file, len })
    }
}

impl Source for ReadOnly {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
}

/// A device that keeps what is written to itself, in memory: what a start writes changes nothing.
#[derive(Clone)]
pub struct Overlay(Rc<State>);

struct State {
    below: ReadOnly,
    /// Sectors that were written, by number.
    written: RefCell<BTreeMap<u64, Box<[u8]>>>,
}

impl Overlay {
    /// A device over another.
    pub fn new(below: ReadOnly) -> Self {
        let written = RefCell::default();
        Self(Rc::new(State { below, written }))
    }

    /// The device below.
    pub fn below(&self) -> &ReadOnly {
        &self.0.below
    }

    fn get(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.below.read(offset, out)?;
        let written = self.0.written.borrow();
        let sectors = offset / SECTOR_BYTES as u64..(offset + out.len() as u64).div_ceil(SECTOR_BYTES as u64);
        for (sector, bytes) in written.range(sectors) {
            let start = sector * SECTOR_BYTES as u64;
            let first = start.max(offset);
            let end = (start + SECTOR_BYTES as u64).min(offset + out.len() as u64);
            out[(first - offset) as usize..(end - offset) as usize]
                .copy_from_slice(&bytes[(first - start) as usize..(end - start) as usize]);
        }
        Ok(())
    }

    fn put(&self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let at = (offset % SECTOR_BYTES as u64) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(SECTOR_BYTES - at));
            let mut sector = vec![0; SECTOR_BYTES];
            self.get(offset - at as u64, &mut sector)?;
            sector[at..at + part.len()].copy_from_slice(part);
            (self.0.written.borrow_mut()).insert(offset / SECTOR_BYTES as u64, sector.into());
            (offset, bytes) = (offset + part.len() as u64, rest);
        }
        Ok(())
    }
}

impl AtOnce for Overlay {
    type Buf = AlignedBuf;

    fn capacity(&self) -> u64 {
        self.0.below.len / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
    }

    fn read_now(&self, offset: u64, len: usize) -> io::Result<AlignedBuf> {
        check_range(self.capacity(), offset, len)?;
        let mut buffer = AlignedBuf::with_len(len);
        self.get(offset, buffer.as_mut_slice())?;
        Ok(buffer)
    }

    fn write_now(&self, offset: u64, data: &AlignedBuf, range: Range<usize>) -> io::Result<()> {
        check_range(self.capacity(), offset, range.len())?;
        let bytes = data.bytes(range.start, range.len());
        self.put(offset, bytes.ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn append_log(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(offset, bytes)
    }

    fn read_log(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.get(offset, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_file_stays_as_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut expected: Vec<u8> = (0..5 * SECTOR_BYTES).map(|at| (at / 7) as u8).collect();
        let before = expected.clone();
        std::fs::write(file.path(), &before).unwrap();
        let device = Overlay::new(ReadOnly::open(file.path()).unwrap());
        for (offset, len) in [
            (SECTOR_BYTES - 5, SECTOR_BYTES + 9),
            (7, 1),
            (3 * SECTOR_BYTES, SECTOR_BYTES),
        ] {
            let bytes = vec![offset as u8 ^ 0x55; len];
            device.append_log(offset as u64, &bytes).unwrap();
            expected[offset..offset + len].copy_from_slice(&bytes);
        }
        let buffer = device.read_now(0, expected.len()).unwrap();
        assert!(buffer.as_slice() == expected);
        let mut part = vec![0; SECTOR_BYTES];
        device.read_log(SECTOR_BYTES as u64 - 6, &mut part).unwrap();
        assert!(part == expected[SECTOR_BYTES - 6..][..SECTOR_BYTES]);
        device
            .write_now(SECTOR_BYTES as u64, &buffer, 0..SECTOR_BYTES)
            .unwrap();
        expected.copy_within(0..SECTOR_BYTES, SECTOR_BYTES);
        assert!(device.read_now(0, expected.len()).unwrap().as_slice() == expected);
        assert!(std::fs::read(file.path()).unwrap() == before);
    }
}
