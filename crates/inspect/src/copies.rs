//! What is on the device of a performance tier.

use super::Report;
use super::device::ReadOnly;
use pumice_blocks::footer::Trailer;
use pumice_device::SECTOR_BYTES;
use pumice_flash::inspect::Source;
use pumice_nhc::format::{UPPER_DATA_OFFSET, UPPER_FORMAT};
use pumice_nhc::{Found, UpperSuperblock};
use pumice_trace::Human;
use serde_json::json;
use std::io;
use std::path::Path;

/// What is there. Which of it counts a start finds out, with the flash at hand.
pub struct Copies {
    superblock: UpperSuperblock,
    places: u64,
    copies: u64,
}

impl Copies {
    /// `None` where there is something else.
    ///
    /// # Errors
    /// What the device said.
    pub fn of(device: &ReadOnly) -> io::Result<Option<Self>> {
        let mut sector = vec![0; SECTOR_BYTES];
        if device.bytes() < SECTOR_BYTES as u64 {
            return Ok(None);
        }
        device.read(0, &mut sector)?;
        let Found::Copies(superblock) = UpperSuperblock::decode(&sector) else {
            return Ok(None);
        };
        let block_bytes = superblock.block_bytes;
        let bytes = superblock.bytes.min(device.bytes());
        let places = bytes.saturating_sub(UPPER_DATA_OFFSET) / block_bytes;
        let mut copies = 0;
        for place in 0..places {
            let end = UPPER_DATA_OFFSET + (place + 1) * block_bytes;
            device.read(end - SECTOR_BYTES as u64, &mut sector)?;
            copies += u64::from(Trailer::decode(superblock.owner, &sector).is_some());
        }
        Ok(Some(Self {
            superblock,
            places,
            copies,
        }))
    }

    /// What that comes to.
    pub fn report(&self, path: &Path) -> Report {
        Report {
            fields: json!({
                "path": path.display().to_string(),
                "format": UPPER_FORMAT,
                "cache_id": format!("{:016x}", self.superblock.owner),
                "bytes": self.superblock.bytes,
                "block_bytes": self.superblock.block_bytes,
                "places": self.places,
                "copies": self.copies,
            }),
            text: format!(
                "performance    {}, format {UPPER_FORMAT}, copies of blocks of cache {:016x}\n\
                 size           {} ({} bytes): {} places of {}\n\
                 copies         {}; which of them count a start finds out, by the flash\n",
                path.display(),
                self.superblock.owner,
                Human(self.superblock.bytes),
                self.superblock.bytes,
                self.places,
                Human(self.superblock.block_bytes),
                self.copies,
            ),
            inconsistencies: None,
        }
    }
}
