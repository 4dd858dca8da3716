//! A volume as an export of the NBD door.

use crate::throttle::{Paced, PacedBacking};
use bytes::Bytes;
use pumice_backing::Slow;
use pumice_device::{CountingDevice, FileDevice};
use pumice_door_nbd::{Export, ExportError, Extent, Shape};
use pumice_net::Seldom;
use pumice_volume::{Mode, Volume, VolumeError};
use std::io::ErrorKind;

// A volume holds no more beside the bytes of a request than the door counts.
const _: () = assert!(pumice_volume::SPAN_BYTES <= pumice_door_nbd::SPAN_BYTES);

/// A worker's handle on a cache device.
pub type CacheDevice = CountingDevice<Paced<FileDevice>>;

/// A worker's handle on a volume, with its own handles on both devices.
pub type ServedVolume = Volume<CacheDevice, PacedBacking<Slow>>;

/// A volume as the door sees it.
pub struct Served {
    /// The handle.
    pub volume: ServedVolume,
    /// Name of the volume, for the log.
    pub name: String,
    /// Limits log lines about failed requests.
    pub failed: Seldom,
}

impl Served {
    fn told<T>(&self, result: Result<T, VolumeError>) -> Result<T, ExportError> {
        result.map_err(|error| self.error(error))
    }

    fn error(&self, error: VolumeError) -> ExportError {
        if matches!(error, VolumeError::ReadOnly) {
            return ExportError::NotAllowed;
        }
        if self.failed.is_due() {
            tracing::error!("volume {}: {error}; said once a minute", self.name);
        }
        let VolumeError::Backing(error) = error else {
            return ExportError::Io;
        };
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                ExportError::NoSpace
            }
            ErrorKind::OutOfMemory => ExportError::NoMemory,
            _ => ExportError::Io,
        }
    }
}

impl Export for Served {
    fn shape(&self) -> Shape {
        let shared = self.volume.shared();
        let chunk_bytes = shared.store().map_or(4096, |store| store.shape().chunk_bytes);
        Shape {
            size_bytes: shared.size(),
            is_read_only: shared.mode() == Mode::ReadOnly,
            preferred_bytes: chunk_bytes,
        }
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes, ExportError> {
        self.told(self.volume.read(offset, length).await).map(Bytes::from)
    }

    async fn write(&self, offset: u64, data: Bytes, is_durable: bool) -> Result<(), ExportError> {
        self.told(self.volume.write(offset, data, is_durable).await)
    }

    async fn zero(&self, offset: u64, length: u64, may_punch: bool) -> Result<(), ExportError> {
        self.told(self.volume.zero(offset, length, may_punch).await)
    }

    async fn flush(&self) -> Result<(), ExportError> {
        self.told(self.volume.flush().await)
    }

    async fn status(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>, ExportError> {
        let extents = self.told(self.volume.extents(offset, length, most).await)?;
        let extents = extents.into_iter().map(|extent| Extent {
            length: extent.length,
            is_hole: extent.is_hole,
        });
        Ok(extents.collect())
    }

    async fn cache(&self, offset: u64, length: u64) -> Result<(), ExportError> {
        // Without a cache there is nothing to fill.
        match self.volume.shared().store() {
            Some(_) => self.told(self.volume.prefetch(offset, length as usize).await),
            None => Ok(()),
        }
    }
}
