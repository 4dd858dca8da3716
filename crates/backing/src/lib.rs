//! The slow devices behind volumes: files and block devices of this machine, and exports of NBD servers.

#![forbid(unsafe_code)]

mod file;
mod whole;

pub use file::{DirtyCache, FileBacking};

use bytes::Bytes;
use pumice_remote::{Place, Remote, Uri, UriError};
use pumice_volume::{Backing, Extent};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that requests wait for an NBD server that cannot be reached.
const PATIENCE: Duration = Duration::from_secs(60);

/// A hash of the id of the machine's run, which no two starts of it share; 0 if there is none.
pub fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id");
    id.map_or(0, |id| twox_hash::XxHash3_64::oneshot(&id))
}

/// What names a backing device.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The path of a file or a block device.
    Path(PathBuf),
    /// The address of an export of an NBD server.
    Uri(Uri),
}

impl Source {
    /// The path or address that a text is.
    ///
    /// # Errors
    /// A text that begins as an address of NBD and is none.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        match Uri::is_meant(text) {
            true => text.parse().map(Self::Uri),
            false => Ok(Self::Path(text.into())),
        }
    }

    /// The name under which clients find the volume: that of the file or of the export; if it has none, that of the server's host or socket.
    pub fn name(&self) -> Option<String> {
        let of_path = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        match self {
            Self::Path(path) => of_path(path),
            Self::Uri(Uri { place, export }) => {
                match (export.rsplit('/').find(|part| !part.is_empty()), place) {
                    (Some(name), _) => Some(name.to_owned()),
                    (None, Place::Tcp(host, _)) => Some(host.clone()),
                    (None, Place::Unix(path)) => of_path(path),
                }
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(out),
            Self::Uri(uri) => uri.fmt(out),
        }
    }
}

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
    /// See [`FileBacking::open`] and [`Remote::connect`].
    pub fn open(source: &Source, is_read_only: bool) -> io::Result<Self> {
        match source {
            Source::Path(path) => FileBacking::open(path, is_read_only).map(Self::File),
            Source::Uri(uri) => {
                let remote = Remote::connect(uri.clone(), PATIENCE);
                let named = |error| io::Error::other(format!("backing device {uri}: {error}"));
                remote.map(Self::Remote).map_err(named)
            }
        }
    }

    /// Whether it is an export that takes no changes.
    pub fn is_read_only(&self) -> bool {
        (self.remote()).is_some_and(|remote| remote.device().is_read_only)
    }

    /// A hash that identifies it: see [`FileBacking::identity`]; of an export, of its address and size.
    ///
    /// # Errors
    /// An error of the system.
    pub fn identity(&self) -> io::Result<(u64, bool)> {
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
