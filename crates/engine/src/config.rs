//! Options, and how the DRAM budget is divided.

use pumice_flash::{
    Durability, Geometry, Layout, LayoutOptions, RECLAIM_READ_BYTES, VIRTUAL_KEY_BYTES, mapping_log_bytes,
};
use pumice_index::IndexKind;
use pumice_index::cascade::{CascadeOptions, PAGE_ENTRIES};

/// When an object goes to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashWrite {
    /// When it is set: no flash write stands before a reader later.
    #[default]
    Insertion,
    /// When DRAM evicts it.
    Eviction,
}

/// Where the mappings of the flash tier are.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum IndexOptions {
    /// All in DRAM.
    #[default]
    Full,
    /// Hot ones in DRAM, the rest on flash. Under layout `fifo` alone so far.
    Cascade(CascadeOptions),
}

impl IndexOptions {
    /// Which of the indexes this is.
    pub fn kind(&self) -> IndexKind {
        match self {
            Self::Full => IndexKind::Full,
            Self::Cascade(_) => IndexKind::Cascade,
        }
    }

    /// A cascade index with so many mappings in DRAM for each on flash.
    pub fn cascade(tier1_share: f64) -> Self {
        Self::Cascade(CascadeOptions {
            tier1_min: 0,
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
    /// How objects are arranged on flash, and what steers it. Layout `sipq` keeps keys in DRAM beside `dram_bytes`, without a
    /// bound by default: where there is a budget, set `virtual_keys_max` to [`MemoryPlan::virtual_keys`].
    pub layout: LayoutOptions,
    /// Where the mappings are.
    pub index: IndexOptions,
    /// DRAM that a cascade index may have for what is on flash, in bytes, beside `dram_bytes`; 0: no bound. Near it blocks are given up
    /// early.
    pub index_heap_bytes: usize,
    /// The drive's erase unit in bytes where it is known, else 0: the little that is written beside blocks is then made up to
    /// whole units now and then, so that blocks do not straddle them.
    pub erase_unit_bytes: u64,
    /// When an object goes to flash.
    pub flash_write: FlashWrite,
    /// What a reply promises.
    pub durability: Durability,
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
            layout: LayoutOptions::default(),
            index: IndexOptions::Full,
            index_heap_bytes: 0,
            erase_unit_bytes: 0,
            flash_write: FlashWrite::Insertion,
            durability: Durability::Process,
            item_bytes_max: 1 << 20,
            random: [0x5eed, 0xcafe],
            lockstep: false,
            hash_limit: crate::HashLimit::default(),
        }
    }
}

/// A budget cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too little.
    #[error(
        "{given} bytes of DRAM are too few for this flash size and these limits; the smallest budget that works is {min} bytes"
    )]
    TooSmall {
        /// Bytes that were given.
        given: u64,
        /// Bytes that are needed.
        min: u64,
    },
}

/// How the budget of the whole process is divided, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The budget.
    pub total: u64,
    /// Program, runtime, tables of fixed size, and what the allocator keeps.
    pub base: u64,
    /// Connections: their buffers, and room to receive large values.
    pub connections: u64,
    /// Block buffers and the footers under construction in them.
    pub block_buffers: u64,
    /// Items in DRAM and the index of both tiers, which share one pool.
    pub pool: u64,
    /// Number of block buffers.
    pub buffers: usize,
    /// Block size.
    pub block_bytes: u64,
    /// What a cascade index may have of mappings on flash; part of `base`.
    pub index_heap: u64,
    /// Keys that layout `sipq` may have in DRAM.
    pub virtual_keys: usize,
}

impl MemoryPlan {
    /// Fixed cost of the program, measured: resident memory of an idle server with the smallest pool.
    pub const BASE: u64 = 14 << 20;
    /// Bytes of flash for each byte that a cascade index has of mappings on flash: objects of 300 bytes with header and key, at 1.6
    /// bytes.
    const FLASH_PER_INDEX_BYTE: u64 = 220;
    /// What reorganising a partition takes: its pages, and their entries twice.
    const REORGANISATION: u64 = 6 << 20;
    /// The smallest pool: the index needs a page for each shard and tier, the DRAM tier a few segments.
    pub const POOL_MIN: u64 = 8 << 20;

    /// Divides `total` bytes for `flash` bytes of flash and `connections` bytes of connection buffers. Blocks are of
    /// `block_bytes`, or of the size that follows from flash and budget; the layout says how many are filled at a time.
    ///
    /// # Errors
    /// [`PlanError::TooSmall`], naming the smallest budget (in whole MiB) that works.
    pub fn divide(
        total: u64,
        flash: u64,
        block_bytes: Option<u64>,
        connections: u64,
        layout: &LayoutOptions,
        index: IndexKind,
    ) -> Result<Self, PlanError> {
        let plan = |total| Self::try_divide(total, flash, block_bytes, connections, layout, index);
        plan(total).ok_or_else(|| {
            let min = (1..1 << 20)
                .map(|mib: u64| mib << 20)
                .find(|min| *min > total && plan(*min).is_some());
            PlanError::TooSmall {
                given: total,
                min: min.unwrap_or(u64::MAX),
            }
        })
    }

    fn try_divide(
        total: u64,
        flash: u64,
        block_bytes: Option<u64>,
        connections: u64,
        layout: &LayoutOptions,
        index: IndexKind,
    ) -> Option<Self> {
        let active = (2.0 / layout.alpha + 2.0).ceil() as u64;
        let serve_min = 1 << 20;
        let block_bytes =
            block_bytes.unwrap_or_else(|| Geometry::block_bytes_for(flash, serve_min, active, total / 4));
        // A quarter more for footers under construction: a 28-byte entry for each record of 144 bytes or so.
        let buffer_cost = block_bytes + block_bytes / 4;
        // Sections are of α to 2α, so there are seldom more than 1.25/α; and some are being written.
        let buffers_max = match layout.layout {
            Layout::Fifo | Layout::Sipq => 16,
            Layout::Ripq => ((1.25 / layout.alpha).ceil() as u64 + 4).max(16),
        };
        let buffers = (total / 4 / buffer_cost).clamp(3, buffers_max);
        let block_buffers = buffers * buffer_cost;
        // A thirteenth of the rest covers what the allocator and the kernel's accounting round up.
        // The queue's tables, and the sample of keys whose priorities are kept.
        let order = match layout.layout {
            Layout::Fifo => 0,
            // A fifth of the budget for the keys of the virtual cache.
            Layout::Sipq => total / 5,
            Layout::Ripq if layout.policy.is_absolute() => 8 << 20,
            Layout::Ripq => 1 << 20,
        };
        // What reclaims have read and not yet moved.
        let moving = match layout.layout {
            Layout::Fifo => 0,
            Layout::Sipq | Layout::Ripq => RECLAIM_READ_BYTES,
        };
        // What a cascade index has of mappings on flash: enough for a device full of objects of 300 bytes, or a third.
        let (index_heap, mapping_pages) = match index {
            IndexKind::Full => (0, 0),
            IndexKind::Cascade => (
                (flash / Self::FLASH_PER_INDEX_BYTE).min(total / 3),
                mapping_log_bytes(block_bytes) + Self::REORGANISATION,
            ),
        };
        let base = Self::BASE + order + moving + index_heap + mapping_pages;
        let pool = total.checked_sub(base + connections + block_buffers)? / 13 * 12;
        // A page for each shard and tier, some to grow with, and a few segments of at most 1 MiB.
        let shards = 1u64 << crate::cache::shard_bits(flash, index);
        let pool_min = Self::POOL_MIN.max(shards * 2 * 4096 + (12 << 20));
        if pool < pool_min {
            return None;
        }
        Some(Self {
            total,
            base: total - connections - block_buffers - pool,
            connections,
            block_buffers,
            pool,
            buffers: usize::try_from(buffers).expect("at most 84"),
            block_bytes,
            index_heap,
            virtual_keys: usize::try_from(order / VIRTUAL_KEY_BYTES).unwrap_or(usize::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_and_the_smallest_budget_named_works() {
        let divide = |total| {
            MemoryPlan::divide(
                total,
                2 << 30,
                None,
                8 << 20,
                &LayoutOptions::default(),
                IndexKind::Full,
            )
        };
        let plan = divide(128 << 20).unwrap();
        assert_eq!(
            plan.base + plan.connections + plan.block_buffers + plan.pool,
            plan.total
        );
        assert_eq!(plan.block_bytes, 1 << 20);
        let Err(PlanError::TooSmall { min, .. }) = divide(1 << 20) else {
            panic!("1 MiB cannot work")
        };
        assert!(divide(min).is_ok());
        assert!(divide(min - (1 << 20)).is_err());
    }
}
