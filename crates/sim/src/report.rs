//! What a replay reports: the object that `replay --json` prints.

use pumice::Stats;
use pumice_trace::Trace;
use serde::Serialize;

use crate::accesses::{Accesses, WithoutSize};
use crate::rules::{ReplayRules, Unit};
use crate::size::CacheSize;

/// The figures of a replay. Field names and their order are a contract; a field that does not apply is null.
///
/// Ratios are fractions in [0, 1]. Where the replay counts objects (a trace without sizes under layout `exact`) the fields in bytes
/// are null, and those in objects have their place. Figures are of the requests after the warm-up, but for the two times at the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The trace's name as given.
    pub trace: String,
    /// Requests counted: those the rules let through, after the warm-up.
    pub requests: u64,
    /// The layout: `exact`, or one of flash.
    pub layout: String,
    /// The policy.
    pub policy: String,
    /// The index; null for `exact`, which has none.
    pub index: Option<String>,
    /// What sizes are counted in: `bytes` or `objects`.
    pub unit: &'static str,
    /// Size of the flash tier; for `exact` the capacity.
    pub flash_bytes: Option<u64>,
    /// The capacity of `exact`, where it is counted in objects.
    pub flash_objects: Option<u64>,
    /// DRAM for items and index; 0 where there is no DRAM tier.
    pub dram_bytes: u64,
    /// Hits / lookups; null without lookups.
    pub object_hit_ratio: Option<f64>,
    /// Bytes hit / bytes looked up; null without lookups.
    pub byte_hit_ratio: Option<f64>,
    /// Objects resident at the end.
    pub objects_cached: u64,
    /// Mean over the requests counted of the bytes of objects resident; null without requests.
    pub object_bytes_resident_mean: Option<f64>,
    /// Mean over the requests counted of the number of objects resident, where objects are counted.
    pub objects_resident_mean: Option<f64>,
    /// Insertions refused, because the object is larger than the cache.
    pub objects_rejected: u64,
    /// Bytes of objects inserted.
    pub bytes_inserted: Option<u64>,
    /// Number of objects inserted, where objects are counted.
    pub objects_inserted: Option<u64>,
    /// Bytes written to the device; null for `exact`, which has none.
    pub bytes_written_host: Option<u64>,
    /// Bytes sent to the device / bytes inserted; null for `exact`.
    pub app_write_amplification: Option<f64>,
    /// Bytes the flash writes / bytes sent to the device; null where that is not modelled.
    pub device_write_amplification: Option<f64>,
    /// The product of the two; null where either is.
    pub combined_write_amplification: Option<f64>,
    /// Memory of the index; null for `exact`.
    pub index_dram_bytes: Option<u64>,
    /// Bytes of mappings written to flash; null for `exact`.
    pub index_bytes_written: Option<u64>,
    /// Device reads per hit; null for `exact`.
    pub flash_reads_per_hit: Option<f64>,
    /// Device reads per miss; null for `exact`.
    pub flash_reads_per_miss: Option<f64>,
    /// Wall time of the replay, first pass and warm-up included.
    pub elapsed_seconds: f64,
    /// All requests replayed, warm-up included, over that time.
    pub requests_per_second: f64,
    /// Device reads per hit of which each had to wait for the one before; the slices of a large object, some of which are read at once, count as
    /// one. Null for `exact`.
    pub flash_rounds_per_hit: Option<f64>,
    /// What a cascade index takes and does; null for another.
    pub cascade: Option<CascadeReport>,
    /// Time that a simulated device of the kind that was asked for takes, one request at a time, and with response times also what requests
    /// take elsewhere; null for others.
    pub device_seconds: Option<f64>,
    /// The fewest erases of a superblock of the simulated drive after the warm-up; null where there is no drive.
    pub erases_min: Option<u32>,
    /// Their mean.
    pub erases_mean: Option<f64>,
    /// The most.
    pub erases_max: Option<u32>,
    /// What was read from the device; null for `exact`.
    pub device_reads: Option<u64>,
    /// Their bytes.
    pub device_read_bytes: Option<u64>,
    /// What was written to it, log records left out; null for `exact`.
    pub device_writes: Option<u64>,
    /// Their bytes.
    pub device_written_bytes: Option<u64>,
    /// What was let onto flash and what was not; null where everything is.
    pub admission: Option<AdmissionReport>,
    /// Bytes read from the device per hit, with response times also those that a reclaim reads meanwhile; null for `exact`.
    pub flash_bytes_read_per_hit: Option<f64>,
    /// Hits that read nothing from the device / lookups; null for `exact`, which has none.
    pub dram_hit_ratio: Option<f64>,
    /// Mean time of a get, one after the other on a simulated device of the kind that was asked for; null where that was not asked for.
    pub response_ns: Option<f64>,
    /// For each second in which there was a request, in seconds since the first one, bytes sent to the device and bytes of objects that
    /// admission was asked about until then, warm-up included. Not printed.
    #[serde(skip)]
    pub timeline: Vec<(u64, u64, u64)>,
    /// How the replay was made.
    pub settings: Settings,
}

/// All that decides a replay's figures beside the trace, the layout, the policy and the index; null where it does not apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Settings {
    /// Format of the trace, after detection.
    pub format: &'static str,
    /// Seed of a generated trace.
    pub seed: Option<u64>,
    /// How operations are taken.
    pub ops: &'static str,
    /// The part of the requests that fills the cache before figures are counted.
    pub warmup: f64,
    /// Size of the flash tier as given.
    pub flash_size: String,
    /// Bytes of every object, where the trace has no sizes and one size was taken for all.
    pub object_size: Option<u64>,
    /// Whether nobody gave that size.
    pub object_size_is_assumed: bool,
    /// Larger objects are refused.
    pub max_object_bytes: Option<u64>,
    /// RIPQ's alpha.
    pub alpha: Option<f64>,
    /// The logical occupancy of `ripq` and `sipq`.
    pub theta: Option<f64>,
    /// Of a cascade index, mappings in DRAM for each on flash.
    pub tier1: Option<f64>,
    /// When objects go to flash.
    pub flash_write: Option<&'static str>,
    /// Bytes of a block.
    pub block_bytes: Option<u64>,
    /// Number of blocks.
    pub blocks: Option<u32>,
    /// Block buffers.
    pub buffers: Option<usize>,
    /// `sim`, or the path of the device.
    pub device: Option<String>,
    /// Blocks in one erase unit of the simulated drive, 0 for no drive.
    pub superblock: Option<u32>,
    /// Whether that drive is told of free blocks.
    pub trim: Option<bool>,
    /// The kind of device that the replay was as slow as.
    pub throttle: Option<String>,
    /// Time of a hit in DRAM in nanoseconds; null without response times.
    pub dram_ns: Option<u64>,
    /// Time of a miss in nanoseconds; null without response times.
    pub miss_ns: Option<u64>,
    /// Requests that record no size, and what was assumed, warm-up included; null where the trace has no sizes, or all of them.
    pub without_size: Option<WithoutSize>,
}

impl Settings {
    /// Those that every layout has.
    pub(crate) fn of(trace: &Trace, accesses: &Accesses<'_>, rules: &ReplayRules, size: &CacheSize) -> Self {
        Self {
            format: accesses.format_name(),
            seed: trace.seed(),
            ops: rules.ops.name(),
            warmup: rules.warmup.fraction(),
            flash_size: size.to_string(),
            object_size: accesses.object_size().filter(|_| accesses.unit() == Unit::Bytes),
            without_size: accesses.without_size(),
            ..Self::default()
        }
    }
}

/// A cascade index: what it has at the end, and what it did after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CascadeReport {
    /// Mappings in DRAM.
    pub tier1_mappings: u64,
    /// Mappings on flash, with those that are void or superseded and were not dropped yet: those of tier 2.
    pub tier2_mappings: u64,
    /// Those of tier 3.
    pub tier3_mappings: u64,
    /// DRAM of the mappings in DRAM, in bytes.
    pub tier1_bytes: u64,
    /// DRAM of the filters over tier 2.
    pub tier2_bytes: u64,
    /// DRAM of the filters over tier 3.
    pub tier3_bytes: u64,
    /// DRAM of what names their pages.
    pub directory_bytes: u64,
    /// DRAM of pages until they are written.
    pub buffer_bytes: u64,
    /// DRAM of slots: what is kept of each object on flash.
    pub slot_bytes: u64,
    /// DRAM of filters of what was invalidated lately.
    pub invalidated_bytes: u64,
    /// Flash of the blocks that hold mappings, in bytes.
    pub flash_bytes: u64,
    /// Lookups that tier 1 resolved: the key is mapped.
    pub tier1_hits: u64,
    /// Lookups that a page of tier 2 resolved.
    pub tier2_hits: u64,
    /// Lookups that a page of tier 3 resolved.
    pub tier3_hits: u64,
    /// Lookups that read pages of mappings in vain.
    pub false_plans: u64,
    /// Bytes of pages of mappings written.
    pub mapping_bytes_written: u64,
    /// Bytes of them read to reorganise partitions.
    pub reorganisation_bytes_read: u64,
    /// Pages of them that reclaims read, to learn what of a victim is live.
    pub reclaim_page_reads: u64,
    /// Objects that a reclaim was to move and found no room for.
    pub survivors_dropped: u64,
    /// Partitions reorganised.
    pub reorganisations: u64,
    /// Partitions forgotten, for want of memory or because a page could not be read.
    pub forgotten: u64,
}

impl CascadeReport {
    pub(crate) fn of(now: &Stats, before: &Stats) -> Self {
        let (cascade, flash) = (&now.cascade, &now.flash);
        Self {
            tier1_mappings: cascade.tier1_mappings,
            tier2_mappings: cascade.tier2_mappings,
            tier3_mappings: cascade.tier3_mappings,
            tier1_bytes: cascade.tier1_bytes,
            tier2_bytes: cascade.tier2_bytes,
            tier3_bytes: cascade.tier3_bytes,
            directory_bytes: cascade.directory_bytes,
            flash_bytes: now.mapping_flash_bytes,
            buffer_bytes: now.mapping_dram.buffer_bytes,
            slot_bytes: now.mapping_dram.slot_bytes,
            invalidated_bytes: now.mapping_dram.invalidated_bytes,
            tier1_hits: cascade.tier1_hits - before.cascade.tier1_hits,
            tier2_hits: cascade.tier2_hits - before.cascade.tier2_hits,
            tier3_hits: cascade.tier3_hits - before.cascade.tier3_hits,
            false_plans: cascade.false_plans - before.cascade.false_plans,
            mapping_bytes_written: flash.mapping_bytes - before.flash.mapping_bytes,
            reorganisation_bytes_read: flash.reorganisation_read_bytes
                - before.flash.reorganisation_read_bytes,
            reclaim_page_reads: flash.reclaim_mapping_reads - before.flash.reclaim_mapping_reads,
            survivors_dropped: flash.survivors_dropped - before.flash.survivors_dropped,
            reorganisations: flash.reorganisations - before.flash.reorganisations,
            forgotten: cascade.forgotten - before.cascade.forgotten,
        }
    }
}

/// What was let onto flash after the warm-up, and how second-hit stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AdmissionReport {
    /// Objects let onto flash.
    pub admitted_objects: u64,
    /// Objects that the rule refused.
    pub refused_by_rule_objects: u64,
    /// Objects that the budget had nothing left for.
    pub refused_by_budget_objects: u64,
    /// Objects that were too large.
    pub refused_size_objects: u64,
    /// Objects that would have expired too soon.
    pub refused_expiry_objects: u64,
    /// How often second-hit fell back to random.
    pub fallbacks: u64,
    /// DRAM of what second-hit remembers of keys, in bytes.
    pub dram_bytes: u64,
}

impl AdmissionReport {
    pub(crate) fn of(now: &Stats, before: &Stats) -> Self {
        let since = now.admission.since(&before.admission);
        Self {
            admitted_objects: since.admitted_objects,
            refused_by_rule_objects: since.refused_by_rule_objects,
            refused_by_budget_objects: since.refused_by_budget_objects,
            refused_size_objects: since.refused_size_objects,
            refused_expiry_objects: since.refused_expiry_objects,
            fallbacks: since.fallbacks,
            dram_bytes: now.admission.dram_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_contract_in_its_order() {
        let text = serde_json::to_string(&Report::default()).unwrap();
        let (text, settings) = text.split_once("\"settings\":").unwrap();
        let names = |text: &str| -> Vec<String> {
            let before = text
                .split("\":")
                .map(|part| part.rsplit('"').next().unwrap().to_owned());
            let mut names: Vec<String> = before.collect();
            names.pop();
            names
        };
        let contract = "trace requests layout policy index unit flash_bytes flash_objects dram_bytes object_hit_ratio \
            byte_hit_ratio objects_cached object_bytes_resident_mean objects_resident_mean objects_rejected bytes_inserted \
            objects_inserted bytes_written_host app_write_amplification device_write_amplification \
            combined_write_amplification index_dram_bytes index_bytes_written flash_reads_per_hit flash_reads_per_miss \
            elapsed_seconds requests_per_second flash_rounds_per_hit cascade device_seconds erases_min erases_mean erases_max \
            device_reads device_read_bytes device_writes device_written_bytes admission flash_bytes_read_per_hit dram_hit_ratio response_ns";
        assert_eq!(names(text), contract.split_whitespace().collect::<Vec<_>>());
        let contract = "format seed ops warmup flash_size object_size object_size_is_assumed max_object_bytes alpha theta \
            tier1 flash_write block_bytes blocks buffers device superblock trim throttle dram_ns miss_ns without_size";
        assert_eq!(names(settings), contract.split_whitespace().collect::<Vec<_>>());
    }
}
