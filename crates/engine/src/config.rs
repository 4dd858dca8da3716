//! Options.

use pumice_admit::AdmissionOptions;
use pumice_blocks::Durability;
use pumice_blocks::Maker;
use pumice_flash::LayoutOptions;
use pumice_index::IndexKind;
use pumice_index::cascade::{CascadeOptions, PAGE_ENTRIES};

/// When an object goes to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashWrite {
    /// When it is set: no flash write stands before a reader later.
    #[default]
    Insertion,
    /// When DRAM evicts it; slices of large objects, and their heads, as they are set.
    Eviction,
}

/// Where the mappings of the flash tier are.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum IndexOptions {
    /// All in DRAM.
    #[default]
    Full,
    /// Hot ones in DRAM, the rest on flash.
    Cascade(CascadeOptions),
}

/// Mappings of a partition that stay in DRAM beside those that wait for a page of their own, however few it has in all: both fit
/// a page of DRAM, and what was just read is not let go at once.
const TIER1_MIN: usize = 32;

impl IndexOptions {
    /// Which of the indexes this is.
    pub fn kind(&self) -> IndexKind {
        match self {
            Self::Full => IndexKind::Full,
            Self::Cascade(_) => IndexKind::Cascade,
        }
    }

    /// An index of this kind; a cascade with so many mappings in DRAM for each on flash.
    pub fn of(kind: IndexKind, tier1_share: f64) -> Self {
        match kind {
            IndexKind::Full => Self::Full,
            IndexKind::Cascade => Self::cascade(tier1_share),
        }
    }

    /// A cascade index with so many mappings in DRAM for each on flash.
    pub fn cascade(tier1_share: f64) -> Self {
        Self::Cascade(CascadeOptions {
            tier1_min: TIER1_MIN,
            tier1_share,
            page_entries: PAGE_ENTRIES,
        })
    }
}

/// How to open a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// DRAM for items and index together, in bytes, beside block buffers. 0: no DRAM tier, and an index without a bound
    /// (for replay).
    pub dram_bytes: usize,
    /// Block buffers.
    pub buffers_max: usize,
    /// Block size in bytes to format with; `None` follows from the device's size.
    pub block_bytes: Option<u64>,
    /// The smallest block that `None` may choose.
    pub block_bytes_min: u64,
    /// Erase whatever is on the device.
    pub reformat: bool,
    /// What opens it: a cache that another made is refused.
    pub maker: Maker,
    /// Believe a clock that is more than a day ahead of what the device saw.
    pub accept_clock: bool,
    /// A cache in which nothing ran for so many seconds begins empty: what was deleted or overwritten elsewhere meanwhile would come back. The last
    /// sign of life is known to some seconds where this was set then, too; otherwise it is the last block that was written. `None`: it is kept.
    pub absence_secs_max: Option<u32>,
    /// Whether the device is to have a performance tier. The superblock tells the next start; nothing else follows from it here.
    pub has_tier: bool,
    /// How objects are arranged on flash, and what steers it. Layout `sipq` keeps keys in DRAM beside `dram_bytes`, without a
    /// bound by default: where there is a budget, set `virtual_keys_max` to [`MemoryPlan::virtual_keys`](crate::MemoryPlan::virtual_keys).
    pub layout: LayoutOptions,
    /// Where the mappings are.
    pub index: IndexOptions,
    /// DRAM that a cascade index may have for what is on flash, in bytes, beside `dram_bytes`; 0: no bound. Near it blocks are given up
    /// early.
    pub index_heap_bytes: usize,
    /// When an object goes to flash.
    pub flash_write: FlashWrite,
    /// Which objects do. `flash_bytes` of it follows from the device.
    pub admission: AdmissionOptions,
    /// What a reply promises.
    pub durability: Durability,
    /// Seconds after which an object that is in a block buffer alone is written, by the next [`tick`](crate::ObjectCache::tick), so that a
    /// crash loses no older ones; 0 = when its block is full. With durability `off` nothing is.
    pub flush_interval_secs: u32,
    /// The longest value, in bytes.
    pub item_bytes_max: usize,
    /// Random numbers for a new cache: its id and the seed of its hash.
    pub random: [u64; 2],
    /// One piece of background work at a time, and none beside a large set: for replay, whose counts must not depend on how
    /// long a device takes.
    pub lockstep: bool,
    /// For tests: keep only that many hash bits, so that keys collide.
    pub hash_limit: crate::HashLimit,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            dram_bytes: 64 << 20,
            buffers_max: 4,
            block_bytes: None,
            block_bytes_min: 64 << 10,
            reformat: false,
            maker: Maker::Serve,
            accept_clock: false,
            absence_secs_max: None,
            has_tier: false,
            layout: LayoutOptions::default(),
            index: IndexOptions::Full,
            index_heap_bytes: 0,
            flash_write: FlashWrite::Insertion,
            admission: AdmissionOptions::default(),
            durability: Durability::Process,
            flush_interval_secs: 0,
            item_bytes_max: 1 << 20,
            random: [0x5eed, 0xcafe],
            lockstep: false,
            hash_limit: crate::HashLimit::default(),
        }
    }
}
