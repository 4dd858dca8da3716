//! The slow device behind a volume: a file or a block device of this machine, or an export of an NBD server.

mod file;
mod whole;

pub use file::{DirtyCache, FileBacking};

use super::config::Source;
use crate::usage::usage;
use anyhow::Context;
use bytes::Bytes;
use pumice_remote::Remote;
use pumice_volume::{Backing, Extent};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Time that requests wait for an NBD server that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(60);

/// An open backing device. All threads share it.
#[derive(Clone)]
pub enum Slow {
    /// Of this machine.
    File(FileBacking),
    /// An export of an NBD server.
    Remote(Remote),
}

impl Slow {
    /// Opens a backing device.
    ///
    /// # Errors
    /// See [`FileBacking::open`] and [`Remote::connect`]. An export that takes no changes, unless read-only was asked for.
    pub fn open(source: &Source, is_read_only: bool) -> anyhow::Result<Self> {
        let uri = match source {
            Source::Path(path) => return FileBacking::open(path, is_read_only).map(Self::File),
            Source::Uri(uri) => uri,
        };
        let remote =
            Remote::connect(uri.clone(), PATIENCE).with_context(|| format!("backing device {uri}"))?;
        match remote.device().is_read_only && !is_read_only {
            true => Err(usage(format!(
                "backing device {uri}: it takes no changes: give --mode read-only"
            ))),
            false => Ok(Self::Remote(remote)),
        }
    }

    /// A hash that identifies it: see [`FileBacking::identity`]; of an export, of its address and size.
    ///
    /// # Errors
    /// An error of the system.
    pub fn identity(&self) -> anyhow::Result<(u64, bool)> {
        match self {
            Self::File(file) => file.identity(),
            Self::Remote(remote) => {
                let mut text = remote.uri().to_string().into_bytes();
                text.extend_from_slice(&remote.size().to_le_bytes());
                Ok((twox_hash::XxHash3_64::oneshot(&text), true))
            }
        }
    }

    /// See [`FileBacking::has_left`]; false of an export.
    pub fn has_left(&self, cache: u64) -> bool {
        match self {
            Self::File(file) => file.has_left(cache),
            Self::Remote(_) => false,
        }
    }

    /// See [`FileBacking::note_cache`].
    pub fn note_cache(&self, cache: u64) {
        if let Self::File(file) = self {
            file.note_cache(cache);
        }
    }

    /// See [`FileBacking::dirty_cache`]; `None` of an export.
    ///
    /// # Errors
    /// See there.
    pub fn dirty_cache(&self) -> io::Result<Option<DirtyCache>> {
        match self {
            Self::File(file) => file.dirty_cache(),
            Self::Remote(_) => Ok(None),
        }
    }

    /// See [`FileBacking::note_dirty`].
    ///
    /// # Errors
    /// See there.
    pub fn note_dirty(&self, cache: DirtyCache) -> io::Result<()> {
        match self {
            Self::File(file) => file.note_dirty(cache),
            Self::Remote(_) => Ok(()),
        }
    }

    /// See [`FileBacking::note_clean`].
    ///
    /// # Errors
    /// See there.
    pub fn note_clean(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.note_clean(),
            Self::Remote(_) => Ok(()),
        }
    }

    /// Whether `path` is the same file or device.
    pub fn is_at(&self, path: &Path) -> bool {
        match self {
            Self::File(file) => file.is_at(path),
            Self::Remote(_) => false,
        }
    }

    /// Whether it is what `source` names.
    pub fn is_of(&self, source: &Source) -> bool {
        match (self, source) {
            (_, Source::Path(path)) => self.is_at(path),
            (Self::Remote(remote), Source::Uri(uri)) => remote.uri() == uri,
            (Self::File(_), Source::Uri(_)) => false,
        }
    }

    /// The export of an NBD server, if it is one.
    pub fn remote(&self) -> Option<&Remote> {
        match self {
            Self::File(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }

    /// Whether it may lose changes that were answered and not flushed while this machine runs on.
    pub fn may_lose(&self) -> bool {
        self.remote().is_some()
    }
}

impl Backing for Slow {
    fn size(&self) -> u64 {
        match self {
            Self::File(file) => file.size(),
            Self::Remote(remote) => remote.size(),
        }
    }

    fn modified(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => file.modified(),
            Self::Remote(remote) => remote.modified(),
        }
    }

    fn may_change_later(&self, error: &io::Error) -> bool {
        match self {
            Self::File(file) => file.may_change_later(error),
            Self::Remote(remote) => remote.may_change_later(error),
        }
    }

    fn can_stand_in(&self) -> bool {
        match self {
            Self::File(file) => file.can_stand_in(),
            Self::Remote(remote) => remote.can_stand_in(),
        }
    }

    async fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => file.read_at(offset, len).await,
            Self::Remote(remote) => remote.read_at(offset, len).await,
        }
    }

    async fn write_at(&self, offset: u64, data: Bytes) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_at(offset, data).await,
            Self::Remote(remote) => remote.write_at(offset, data).await,
        }
    }

    async fn zero(&self, offset: u64, len: u64, may_punch: bool) -> io::Result<()> {
        match self {
            Self::File(file) => file.zero(offset, len, may_punch).await,
            Self::Remote(remote) => remote.zero(offset, len, may_punch).await,
        }
    }

    async fn flush(&self) -> io::Result<()> {
        match self {
            // Whatever its kind, this error means that changes may be lost.
            Self::File(file) => file.flush().await.map_err(io::Error::other),
            Self::Remote(remote) => remote.flush().await,
        }
    }

    async fn extents(&self, offset: u64, len: u64, most: usize) -> io::Result<Vec<Extent>> {
        match self {
            Self::File(file) => file.extents(offset, len, most).await,
            Self::Remote(remote) => remote.extents(offset, len, most).await,
        }
    }
}
