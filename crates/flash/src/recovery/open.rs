//! The superblock of a device: found, or made.

use super::{OpenError, OpenOptions, device_error};
use crate::geometry::{Geometry, SUPERBLOCKS_BYTES};
use crate::superblock::{CheckpointRef, SlotContent, Superblock};
use pumice_device::{Device, SECTOR_BYTES};

/// A superblock that is in order, and what it took to get it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub(super) superblock: Superblock,
    pub(super) formatted: bool,
}

impl Opened {
    /// The seed of the key hash.
    pub fn hash_seed(&self) -> u64 {
        self.superblock.hash_seed
    }

    /// The division of the device.
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The highest Unix time the device has recorded, in seconds.
    pub fn time(&self) -> u32 {
        self.superblock.time
    }
}

/// Reads the superblock, or formats an empty device.
///
/// # Errors
/// [`OpenError`]; the device is then as it was.
pub async fn open_superblock<D: Device>(device: &D, options: &OpenOptions) -> Result<Opened, OpenError> {
    let fresh = || -> Result<Opened, OpenError> {
        let superblock = Superblock {
            cache_id: options.random[0],
            hash_seed: options.random[1],
            geometry: Geometry::plan(device.capacity(), options.block_bytes)?,
            layout: options.layout.layout,
            index: options.index,
            generation: 0,
            epoch: 0,
            clean: false,
            discard: false,
            time: options.now,
            checkpoints: [CheckpointRef::default(); 2],
        };
        Ok(Opened {
            superblock,
            formatted: true,
        })
    };
    if options.reformat {
        return fresh();
    }
    if device.capacity() < SUPERBLOCKS_BYTES {
        return fresh();
    }
    let mut slots = Vec::new();
    for slot in 0..2u64 {
        let mut sector = vec![0; SECTOR_BYTES];
        device
            .read_log(slot * SECTOR_BYTES as u64, &mut sector)
            .map_err(device_error("reading the superblock"))?;
        slots.push(Superblock::decode(&sector));
    }
    let newest = slots
        .iter()
        .filter_map(|slot| match slot {
            SlotContent::Valid(superblock) => Some(*superblock),
            _ => None,
        })
        .max_by_key(|superblock| superblock.generation);
    let Some(superblock) = newest else {
        if slots.contains(&SlotContent::Foreign) {
            return Err(OpenError::Foreign);
        }
        if let Some(format) = slots.iter().find_map(|s| match s {
            SlotContent::OtherFormat(format) => Some(*format),
            _ => None,
        }) {
            return Err(OpenError::OtherFormat(format));
        }
        if slots.contains(&SlotContent::Damaged) && !slots.contains(&SlotContent::Empty) {
            return Err(OpenError::Damaged);
        }
        // Empty, or a format that never got past its first superblock.
        if slots.contains(&SlotContent::Damaged) || is_blank(device).await? {
            return fresh();
        }
        return Err(OpenError::Foreign);
    };
    let found = superblock.geometry;
    let usable = device.capacity() / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
    if usable != found.capacity {
        return Err(OpenError::Disagrees {
            what: "the size of the device",
            wanted: usable.to_string(),
            found: found.capacity.to_string(),
        });
    }
    if options.check_block_bytes && options.block_bytes != found.block_bytes {
        return Err(OpenError::Disagrees {
            what: "the block size",
            wanted: options.block_bytes.to_string(),
            found: found.block_bytes.to_string(),
        });
    }
    if options.layout.layout != superblock.layout {
        return Err(OpenError::Disagrees {
            what: "the layout",
            wanted: options.layout.layout.to_string(),
            found: superblock.layout.to_string(),
        });
    }
    if options.index != superblock.index {
        return Err(OpenError::Disagrees {
            what: "the index",
            wanted: options.index.to_string(),
            found: superblock.index.to_string(),
        });
    }
    Ok(Opened {
        superblock,
        formatted: false,
    })
}

/// Whether the device's first MiB is zero, as in a new file: a device without our superblock that holds anything else
/// is somebody's.
async fn is_blank<D: Device>(device: &D) -> Result<bool, OpenError> {
    let len = device.capacity().min(1 << 20) as usize / SECTOR_BYTES * SECTOR_BYTES;
    let mut bytes = vec![0; len];
    device
        .read_log(0, &mut bytes)
        .map_err(device_error("reading the device's start"))?;
    Ok(bytes.iter().all(|b| *b == 0))
}
