//! The superblock of a device: found, or none there; and why a device cannot be opened.

use crate::geometry::{GeometryError, SUPERBLOCKS_BYTES};
use crate::superblock::{FORMAT, Maker, SlotContent, StoreId, Superblock};
use pumice_device::{Device, SECTOR_BYTES};
use std::borrow::Cow;
use std::io;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device failed.
    #[error("{what}: {source}")]
    Device {
        /// What was being done.
        what: &'static str,
        /// What the device said.
        source: io::Error,
    },
    /// The size does not work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is something else on it.
    #[error("the device is not empty and holds no Pumice cache; give another, or --reformat to erase it")]
    Foreign,
    /// A newer or older format.
    #[error("the device has format version {0}, this program knows version {known}; use the program that made it, or --reformat to erase it", known = FORMAT)]
    OtherFormat(u32),
    /// It is a cache of another program's.
    #[error(
        "the cache on the device was made by `pumice {found}`, and `pumice {wanted}` does not touch it; give another device, or --reformat to erase it"
    )]
    OtherMaker {
        /// What made it.
        found: Maker,
        /// What opens it.
        wanted: Maker,
    },
    /// Another kind of store, or another version of its formats.
    #[error(
        "the device has a store of kind {}, format {}, and this one is of kind {}, format {}; use the program that made it, or \
         --reformat to erase it", found.kind, found.format, wanted.kind, wanted.format
    )]
    OtherStore {
        /// The store that made it.
        found: StoreId,
        /// The store that opens it.
        wanted: StoreId,
    },
    /// Both superblocks are damaged.
    #[error("both superblocks of the device are damaged; --reformat makes an empty cache of it")]
    Damaged,
    /// The superblock is whole, and the owner's part of it means nothing to this program.
    #[error(
        "the superblocks of the device are whole, but the settings of the store in them are none that this program knows; use the program \
         that made it, or --reformat to erase it"
    )]
    UnknownSettings,
    /// Flags and superblock disagree.
    #[error(
        "{what} is {wanted} by the settings but {found} on the device; change the setting, or --reformat to erase the device"
    )]
    Disagrees {
        /// Which setting.
        what: &'static str,
        /// What was asked for.
        wanted: String,
        /// What the superblock says.
        found: String,
    },
    /// No store can have these settings.
    #[error("{0}")]
    Settings(String),
    /// A checkpoint is not whole; recovery goes on without it.
    #[error("checkpoint unusable: byte {offset}: {what}")]
    Checkpoint {
        /// Where on the device it is damaged.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The store has the only copy of something, and this start cannot use it.
    #[error(
        "the cache has writes that its volume lacks, and this start cannot use it: {0}. Start it with its own volume and settings; or discard \
         these writes with --reformat"
    )]
    OnlyCopy(Cow<'static, str>),
    /// The start cannot be recorded.
    #[error("the device cannot record this start; it failed {0} times")]
    Unwritable(u32),
}

/// Reads, and once more where that fails: of what a start cannot read no later one hears.
///
/// # Errors
/// What the device said the second time.
pub async fn read_twice<D: Device>(device: &D, offset: u64, len: usize) -> io::Result<D::Buf> {
    match device.read(offset, len).await {
        Err(_) => device.read(offset, len).await,
        read => read,
    }
}

/// An error of the device, with what was being done.
pub fn device_error(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Device { what, source }
}

/// Whether a cache is one of `wanted`'s.
///
/// # Errors
/// [`OpenError::OtherMaker`], where it is not.
pub fn check_maker(superblock: &Superblock, wanted: Maker) -> Result<(), OpenError> {
    match superblock.maker {
        found if found == wanted => Ok(()),
        found => Err(OpenError::OtherMaker { found, wanted }),
    }
}

/// Reads the superblock that counts, writing nothing; `None` where the device is empty.
///
/// # Errors
/// [`OpenError`], where there is something else, another format, or another store than `wanted`.
pub fn read_superblock<D: Device>(device: &D, wanted: StoreId) -> Result<Option<Superblock>, OpenError> {
    if device.capacity() < SUPERBLOCKS_BYTES {
        return Err(OpenError::Foreign);
    }
    let mut slots = [SlotContent::Empty; 2];
    for (at, slot) in (0u64..).zip(&mut slots) {
        let mut sector = vec![0; SECTOR_BYTES];
        device
            .read_log(at * SECTOR_BYTES as u64, &mut sector)
            .map_err(device_error("reading the superblock"))?;
        *slot = Superblock::decode(&sector);
    }
    // Also where the other copy is of this format: a program of another version has begun to write here, and only it knows
    // what it did.
    if let Some(format) = slots.iter().find_map(|slot| match slot {
        SlotContent::OtherFormat(format) => Some(*format),
        _ => None,
    }) {
        return Err(OpenError::OtherFormat(format));
    }
    let valid = slots.iter().filter_map(|slot| match slot {
        SlotContent::Valid(superblock) => Some(*superblock),
        _ => None,
    });
    if let Some(newest) = valid.max_by_key(|superblock| superblock.generation) {
        let found = newest.store;
        if found != wanted {
            return Err(OpenError::OtherStore { found, wanted });
        }
        if slots.iter().any(|slot| !matches!(slot, SlotContent::Valid(_))) && newest.generation > 1 {
            tracing::warn!(
                "one of the two superblocks is damaged: the other one counts, and both are written anew"
            );
        }
        return Ok(Some(newest));
    }
    if slots.contains(&SlotContent::Foreign) {
        return Err(OpenError::Foreign);
    }
    let is_empty = |slot: &SlotContent| *slot == SlotContent::Empty;
    // A new file, or a format that never got past its superblocks.
    if slots.iter().any(is_empty) && is_blank(device)? {
        return Ok(None);
    }
    match slots.iter().all(is_empty) {
        true => Err(OpenError::Foreign),
        false => Err(OpenError::Damaged),
    }
}

/// Whether the device's first MiB is zero behind the superblocks, as in a new file: a device without our superblock that holds anything
/// else is somebody's.
fn is_blank<D: Device>(device: &D) -> Result<bool, OpenError> {
    let len = device.capacity().min(1 << 20) / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    let mut bytes = vec![0; (len - SUPERBLOCKS_BYTES) as usize];
    device
        .read_log(SUPERBLOCKS_BYTES, &mut bytes)
        .map_err(device_error("reading the device's start"))?;
    Ok(bytes.iter().all(|b| *b == 0))
}
