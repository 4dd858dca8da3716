//! The shape of a simulated drive.

/// The shape of a simulated drive.
///
/// Memory of the model: 16 bytes per superblock and 4 bytes per page of one superblock. Beside that the tables: per 512
/// logical and per 512 physical pages 16 bytes where they are neighbours in both, which is so for large writes, and 2 KiB
/// where they are not. 670 GiB at 90 % of the flash in pages of 4 KiB are 12 MiB at best and 1.39 GiB at worst; in larger
/// pages so much less. Larger pages change the result only where writes are not whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtlOptions {
    /// Bytes that the host sees; rounded up to whole pages.
    pub logical_bytes: u64,
    /// Bytes of flash, the superblocks that garbage collection works with included; rounded down to whole superblocks.
    pub physical_bytes: u64,
    /// Bytes of a page, the unit of mapping. 4096 by default.
    pub page_bytes: u64,
    /// Bytes of an erase block on one channel, whole pages.
    pub erase_block_bytes: u64,
    /// Channels over which writes are striped, page by page. Blocks at the same place of all channels are filled and
    /// erased together: a superblock of `erase_block_bytes` × `channels`. 1 by default.
    pub channels: u32,
    /// Superblocks kept free: garbage collection runs when opening a superblock leaves fewer. 1 by default, the least
    /// that works, as the model needs no head start over the host; with `separate_copies` at least 2.
    pub free_superblocks: u32,
    /// Whether pages copied by garbage collection go to a superblock of their own. Off by default: the published
    /// formulas mix them with what the host writes. Under uniform random writes both give nearly the same; where some
    /// pages live longer than others, apart is better, as pages that survived once meet their like.
    pub separate_copies: bool,
    /// Whether [`Ftl::trim`](super::Ftl::trim) has an effect. Off by default.
    pub trim: bool,
}

impl FtlOptions {
    /// A drive with one channel and the defaults named at the fields.
    pub fn new(logical_bytes: u64, physical_bytes: u64, erase_block_bytes: u64) -> Self {
        Self {
            logical_bytes,
            physical_bytes,
            page_bytes: 4096,
            erase_block_bytes,
            channels: 1,
            free_superblocks: 1,
            separate_copies: false,
            trim: false,
        }
    }

    /// A drive whose flash is `logical_bytes / utilisation`, to the nearest whole superblock, with the defaults named at
    /// the fields; [`Ftl::utilisation`](super::Ftl::utilisation) tells what came of it. For a host of few superblocks that may be
    /// too little: see [`FtlOptions::with_least_spare`].
    pub fn at_utilisation(
        logical_bytes: u64,
        utilisation: f64,
        erase_block_bytes: u64,
        channels: u32,
    ) -> Self {
        let mut options = Self::new(logical_bytes, 0, erase_block_bytes);
        options.channels = channels;
        let superblock_bytes = options.superblock_bytes();
        let superblocks = logical_bytes as f64 / utilisation / superblock_bytes as f64;
        options.physical_bytes = (superblocks.round() as u64).saturating_mul(superblock_bytes);
        options
    }

    /// The same with as many superblocks as collecting needs, where there are fewer: with a tenth to spare that is so below 32
    /// superblocks of host bytes.
    pub fn with_least_spare(mut self) -> Self {
        if let Err(FtlError::NoSpare { needed_bytes, .. }) = self.shape() {
            self.physical_bytes = needed_bytes;
        }
        self
    }

    /// Bytes of a superblock, the unit of erasing.
    pub fn superblock_bytes(&self) -> u64 {
        self.erase_block_bytes.saturating_mul(u64::from(self.channels))
    }

    /// The shape in pages.
    pub(super) fn shape(&self) -> Result<Shape, FtlError> {
        let superblock_bytes = self.superblock_bytes();
        if self.page_bytes == 0
            || self.channels == 0
            || self.erase_block_bytes == 0
            || !self.erase_block_bytes.is_multiple_of(self.page_bytes)
        {
            return Err(FtlError::Pages {
                page_bytes: self.page_bytes,
                erase_block_bytes: self.erase_block_bytes,
                channels: self.channels,
            });
        }
        let superblocks = self.physical_bytes / superblock_bytes;
        let pages_per_superblock = superblock_bytes / self.page_bytes;
        let logical_pages = self.logical_bytes.div_ceil(self.page_bytes);
        let least_free = if self.separate_copies { 2 } else { 1 };
        let free_min = self.free_superblocks.max(least_free);
        // When a victim is chosen, this many superblocks are not closed at most: those free but one, and the open
        // ones. One of the others must have an invalid page, or collecting gains nothing. A shared open superblock
        // is empty then and counts as the one that is missing from the free ones.
        let not_closed = u64::from(free_min) + u64::from(self.separate_copies);
        let pages_closed = superblocks
            .saturating_sub(not_closed)
            .saturating_mul(pages_per_superblock);
        if logical_pages >= pages_closed {
            return Err(FtlError::NoSpare {
                physical_bytes: self.physical_bytes,
                logical_bytes: self.logical_bytes,
                superblock_bytes,
                needed_bytes: (logical_pages / pages_per_superblock + 1 + not_closed)
                    .saturating_mul(superblock_bytes),
            });
        }
        // The last number stands for "none".
        let pages = superblocks.saturating_mul(pages_per_superblock);
        if pages >= u64::from(u32::MAX) {
            return Err(FtlError::TooManyPages { pages });
        }
        Ok(Shape {
            superblocks: superblocks as u32,
            pages_per_superblock: pages_per_superblock as u32,
            logical_pages: logical_pages as u32,
            free_min,
        })
    }
}

/// A drive's shape in pages; all of them fit in 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub superblocks: u32,
    pub pages_per_superblock: u32,
    pub logical_pages: u32,
    pub free_min: u32,
}

/// Why there is no such drive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FtlError {
    /// Pages, erase blocks and channels that make no superblock.
    #[error(
        "{channels} channels with erase blocks of {erase_block_bytes} bytes and pages of {page_bytes}: give at least \
         one channel and erase blocks of whole pages"
    )]
    Pages {
        /// Bytes of a page.
        page_bytes: u64,
        /// Bytes of an erase block.
        erase_block_bytes: u64,
        /// Number of channels.
        channels: u32,
    },
    /// Too little flash beyond what the host sees.
    #[error(
        "{physical_bytes} bytes of flash in superblocks of {superblock_bytes} leave nothing to collect behind \
         {logical_bytes} logical bytes; at least {needed_bytes} are needed"
    )]
    NoSpare {
        /// Bytes of flash.
        physical_bytes: u64,
        /// Bytes that the host sees.
        logical_bytes: u64,
        /// Bytes of a superblock.
        superblock_bytes: u64,
        /// The least that works.
        needed_bytes: u64,
    },
    /// More pages than the model counts.
    #[error("{pages} pages of flash are more than the model counts ({max}): take less flash, or larger pages where they can be chosen", max = u32::MAX - 1)]
    TooManyPages {
        /// Pages of flash.
        pages: u64,
    },
    /// A device that does not fit.
    #[error("a device of {capacity} bytes needs as many logical bytes, not {logical_bytes}")]
    Capacity {
        /// Bytes of the device.
        capacity: u64,
        /// Logical bytes of the model.
        logical_bytes: u64,
    },
}
