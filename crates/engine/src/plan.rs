//! How the DRAM budget is divided, and which index it can hold.

use pumice_admit::Rule;
use pumice_blocks::Geometry;
use pumice_flash::{LayoutNeeds, LayoutOptions, VIRTUAL_KEY_BYTES, mapping_log_bytes, slot_bits};
use pumice_index::cascade::History;
use pumice_index::{IndexKind, IndexShape};

/// Bytes of flash that an object of 300 bytes takes, with key, header and its part of the footer.
pub(crate) const OBJECT_FLASH_BYTES: u64 = 350;

/// A budget, and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// DRAM for the whole process, in bytes.
    pub total: u64,
    /// Size of the flash device, in bytes.
    pub flash: u64,
    /// Size of a block in bytes, or the size that follows from flash and budget.
    pub block_bytes: Option<u64>,
    /// What connections take of the budget, in bytes.
    pub connections: u64,
    /// How objects are laid out on flash: it says how many blocks are filled at a time, and what tables it takes.
    pub layout: LayoutOptions,
    /// Which objects go to flash: to remember keys takes up to two bytes of the pool for each object.
    pub admission: Rule,
}

/// Why a budget gets the index it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexChoice {
    /// The index.
    pub kind: IndexKind,
    /// Objects of 300 bytes that the flash can hold.
    pub objects: u64,
    /// What a full index of them takes, in bytes.
    pub full_bytes: u64,
    /// What there is for it, in bytes: items and index share it, less what the rule of admission remembers. 0 where the budget does not work with a full index at all.
    pub pool: u64,
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
    /// Items in DRAM, the index of both tiers, and what the rule of admission remembers, which share one pool.
    pub pool: u64,
    /// Number of block buffers.
    pub buffers: usize,
    /// Block size.
    pub block_bytes: u64,
    /// What a cascade index may have of objects on flash, slots included; part of `base`.
    pub index_heap: u64,
    /// Keys that layout `sipq` may have in DRAM.
    pub virtual_keys: usize,
}

impl MemoryPlan {
    /// Fixed cost of the program, measured: resident memory of an idle server with the smallest pool.
    pub const BASE: u64 = 14 << 20;
    /// What reorganising a partition takes: its pages, the new ones, and some bytes for each mapping of tier 2.
    const REORGANISATION: u64 = 6 << 20;
    /// What a cascade index may have in DRAM of a mapping on flash, in hundredths of a byte: filters and what names pages.
    pub const FILTER_CENTIBYTES: u64 = 160;
    /// What a partition of a cascade index takes in DRAM with little on flash: its fields, the smallest filters, the beginnings of its lists.
    const PARTITION: u64 = 2 << 10;
    /// The smallest pool: the index needs a page for each shard and tier, the DRAM tier a few segments.
    pub const POOL_MIN: u64 = 8 << 20;
}

impl Budget {
    /// Which index goes with the budget: full where it finds room for as many objects of 300 bytes as the flash holds, or
    /// where the budget does not work with the other, else cascade.
    pub fn choose_index(&self) -> IndexChoice {
        let objects = self.flash / OBJECT_FLASH_BYTES;
        let shard_bits = crate::cache::shard_bits(self.flash, IndexKind::Full);
        let shape = IndexShape::new(self.flash, shard_bits, self.layout.layout.note_bits());
        // A tenth is what tables keep free.
        let full_bytes = objects * shape.entry_bytes() as u64 * 11 / 10;
        let remembered = match self.admission {
            Rule::SecondHit => objects * 2,
            Rule::All | Rule::Random(_) => 0,
        };
        let pool = self.divide(IndexKind::Full).map_or(0, |plan| plan.pool);
        let pool = pool.saturating_sub(remembered);
        IndexChoice {
            // Where the costs of a cascade index that do not depend on objects are too much, flash is not filled.
            kind: if full_bytes <= pool || self.divide(IndexKind::Cascade).is_none() {
                IndexKind::Full
            } else {
                IndexKind::Cascade
            },
            objects,
            full_bytes,
            pool,
        }
    }

    /// Divides the budget of a process with this index; `None` where it is too little.
    pub fn divide(&self, index: IndexKind) -> Option<MemoryPlan> {
        let Self {
            total,
            flash,
            block_bytes,
            connections,
            ref layout,
            ..
        } = *self;
        let active = (2.0 / layout.alpha + 2.0).ceil() as u64;
        let serve_min = 1 << 20;
        let block_bytes =
            block_bytes.unwrap_or_else(|| Geometry::block_bytes_for(flash, serve_min, active, total / 4));
        // A quarter more for footers under construction: 32 bytes in DRAM for each record of 144 bytes or so.
        let buffer_cost = block_bytes + block_bytes / 4;
        let LayoutNeeds {
            open_blocks,
            buffers_max,
            order_bytes,
            order_share,
            moving_bytes,
            ..
        } = layout.needs();
        let slots = slot_bits(layout, index);
        let fit = usize::try_from(total / 4 / buffer_cost).unwrap_or(usize::MAX);
        let buffers = fit.clamp(2 + open_blocks, buffers_max) as u64;
        let block_buffers = buffers * buffer_cost;
        let order = order_bytes + (total as f64 * order_share) as u64;
        let shards = 1u64 << crate::cache::shard_bits(flash, index);
        // What a cascade index has of objects on flash: enough for a device full of objects of 300 bytes, or half.
        let (index_heap, mapping_pages) = match index {
            IndexKind::Full => (0, 0),
            IndexKind::Cascade => {
                let slots = match slots {
                    0 => 0,
                    bits => u64::from(bits) * 100 / 8 + 100 * 4 / 64,
                };
                let of_objects = flash / OBJECT_FLASH_BYTES * (MemoryPlan::FILTER_CENTIBYTES + slots) / 100;
                // Reclaims begin at three quarters.
                let heap = (of_objects * 4 / 3).min(total / 2) + shards * MemoryPlan::PARTITION;
                let pages = mapping_log_bytes(flash, block_bytes) + MemoryPlan::REORGANISATION;
                (heap, pages + History::bytes_max(flash))
            }
        };
        let base = MemoryPlan::BASE + order + moving_bytes + index_heap + mapping_pages;
        // A thirteenth of the rest covers what the allocator and the kernel's accounting round up.
        let pool = total.checked_sub(base + connections + block_buffers)? / 13 * 12;
        // 4 KiB for each shard and tier, some to grow with, and a few segments of at most 1 MiB.
        let pool_min = MemoryPlan::POOL_MIN.max(shards * 2 * 4096 + (12 << 20));
        if pool < pool_min {
            return None;
        }
        Some(MemoryPlan {
            total,
            base: total - connections - block_buffers - pool,
            connections,
            block_buffers,
            pool,
            buffers: usize::try_from(buffers).unwrap_or(usize::MAX),
            block_bytes,
            index_heap,
            virtual_keys: usize::try_from(order / VIRTUAL_KEY_BYTES).unwrap_or(usize::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(dram_mib: u64, flash_gib: u64) -> Budget {
        Budget {
            total: dram_mib << 20,
            flash: flash_gib << 30,
            block_bytes: None,
            connections: 8 << 20,
            layout: LayoutOptions::default(),
            admission: Rule::All,
        }
    }

    #[test]
    fn a_full_index_is_chosen_where_it_fits_or_nothing_else_works() {
        let choose = |dram, flash| {
            let budget = budget(dram, flash);
            let choice = budget.choose_index();
            let plan = budget.divide(choice.kind);
            assert!(plan.is_some(), "{dram} MiB for {flash} GiB: {choice:?}");
            let fits = choice.full_bytes <= choice.pool;
            assert!(
                fits == (choice.kind == IndexKind::Full) || dram == 64,
                "{choice:?}"
            );
            choice.kind
        };
        assert_eq!(choose(256, 4), IndexKind::Full);
        assert_eq!(choose(256, 16), IndexKind::Cascade);
        assert_eq!(choose(1024, 16), IndexKind::Full);
        assert_eq!(choose(64, 4), IndexKind::Full, "too little for the other");
    }

    #[test]
    fn keys_that_are_remembered_share_the_pool_with_the_index() {
        let with = |admission, dram_mib| Budget {
            admission,
            ..budget(dram_mib, 4)
        };
        let choose = |admission, dram_mib| with(admission, dram_mib).choose_index();
        let (all, second) = (choose(Rule::All, 512), choose(Rule::SecondHit, 512));
        assert_eq!(all.pool - second.pool, (4 << 30) / OBJECT_FLASH_BYTES * 2);
        assert_eq!(all, choose(Rule::Random(0.5), 512));
        let pool = |admission| with(admission, 512).divide(IndexKind::Full).unwrap().pool;
        assert_eq!(pool(Rule::All), pool(Rule::SecondHit));
        // Where a full index alone fits, but not with them.
        let least = (1..).find(|mib| choose(Rule::All, *mib).full_bytes <= choose(Rule::All, *mib).pool);
        let least = least.expect("some are enough");
        assert_eq!(choose(Rule::All, least).kind, IndexKind::Full);
        assert_eq!(choose(Rule::SecondHit, least).kind, IndexKind::Cascade);
    }

    #[test]
    fn the_parts_add_up() {
        let divide = |dram_mib| budget(dram_mib, 2).divide(IndexKind::Full);
        let plan = divide(128).unwrap();
        assert_eq!(
            plan.base + plan.connections + plan.block_buffers + plan.pool,
            plan.total
        );
        assert_eq!(plan.block_bytes, 1 << 20);
        assert_eq!(divide(1), None);
    }
}
