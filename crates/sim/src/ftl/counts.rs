//! What a simulated drive counts.

use std::ops::Sub;

/// What a drive did since it was new. Values only rise; the difference of two is what happened between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FtlCounts {
    /// Bytes that the host wrote.
    pub host_bytes: u64,
    /// Pages written for the host. More than `host_bytes` where writes cover pages in part; less by those bytes that
    /// still wait in partly written pages.
    pub host_pages: u64,
    /// Pages copied by garbage collection.
    pub copied_pages: u64,
    /// Pages that the host trimmed, of those that were written.
    pub trimmed_pages: u64,
    /// Superblocks erased; each is one erase block on every channel.
    pub erases: u64,
}

impl FtlCounts {
    /// Pages written to flash, for the host and by garbage collection.
    pub fn flash_pages(&self) -> u64 {
        self.host_pages + self.copied_pages
    }

    /// Pages written to flash for one page of the host; `None` if the host wrote none.
    pub fn device_write_amplification(&self) -> Option<f64> {
        (self.host_pages > 0).then(|| self.flash_pages() as f64 / self.host_pages as f64)
    }
}

impl Sub for FtlCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            host_bytes: self.host_bytes - earlier.host_bytes,
            host_pages: self.host_pages - earlier.host_pages,
            copied_pages: self.copied_pages - earlier.copied_pages,
            trimmed_pages: self.trimmed_pages - earlier.trimmed_pages,
            erases: self.erases - earlier.erases,
        }
    }
}

/// How erases spread over superblocks.
#[derive(Debug, Clone, PartialEq)]
pub struct EraseSpread {
    /// The fewest erases of a superblock.
    pub min: u32,
    /// Erases per superblock.
    pub mean: f64,
    /// The most erases of a superblock.
    pub max: u32,
}

impl EraseSpread {
    /// The spread of `erases`, one number per superblock, at least one.
    pub fn of(erases: &[u32]) -> Self {
        let total: u64 = erases.iter().map(|count| u64::from(*count)).sum();
        Self {
            min: erases.iter().min().copied().unwrap_or(0),
            mean: total as f64 / erases.len().max(1) as f64,
            max: erases.iter().max().copied().unwrap_or(0),
        }
    }
}
