//! What a replay reports: the object that `replay --json` prints.

use pumice::Stats;
use serde::{Deserialize, Serialize};

/// The figures of a replay. Field names and their order are a contract; a field that does not apply is null.
///
/// Ratios are fractions in [0, 1]; sizes are bytes, or objects where the replay counts objects (a trace without sizes
/// under layout `exact`). Figures are of the requests after the warm-up, but for the two times at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Size of the flash tier; for `exact` the capacity.
    pub flash_bytes: u64,
    /// Size of the DRAM tier; 0 for `exact`.
    pub dram_bytes: u64,
    /// Hits / lookups; null without lookups.
    pub object_hit_ratio: Option<f64>,
    /// Bytes hit / bytes looked up; null without lookups, and where objects have no size in bytes.
    pub byte_hit_ratio: Option<f64>,
    /// Objects resident at the end.
    pub objects_cached: u64,
    /// Mean over the requests counted of the bytes of objects resident; null without requests.
    pub object_bytes_resident_mean: Option<f64>,
    /// Insertions refused, because the object is larger than the cache.
    pub objects_rejected: u64,
    /// Bytes of objects inserted.
    pub bytes_inserted: u64,
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
    /// Device reads per hit of which each had to wait for the one before; null for `exact`.
    pub flash_rounds_per_hit: Option<f64>,
    /// What a cascade index takes and does; null for another.
    pub cascade: Option<CascadeReport>,
    /// Time that a simulated device of the kind that was asked for takes, one request at a time; null for others.
    #[serde(default)]
    pub device_seconds: Option<f64>,
    /// The fewest erases of a superblock of the simulated drive after the warm-up; null where there is no drive.
    #[serde(default)]
    pub erases_min: Option<u32>,
    /// Their mean.
    #[serde(default)]
    pub erases_mean: Option<f64>,
    /// The most.
    #[serde(default)]
    pub erases_max: Option<u32>,
    /// What was read from the device; null for `exact`.
    #[serde(default)]
    pub device_reads: Option<u64>,
    /// Their bytes.
    #[serde(default)]
    pub device_read_bytes: Option<u64>,
    /// What was written to it, log records left out; null for `exact`.
    #[serde(default)]
    pub device_writes: Option<u64>,
    /// Their bytes.
    #[serde(default)]
    pub device_written_bytes: Option<u64>,
}

/// A cascade index: what it has at the end, and what it did after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
            buffer_bytes: now.mapping_dram.buffers,
            slot_bytes: now.mapping_dram.slots,
            invalidated_bytes: now.mapping_dram.invalidated,
            tier1_hits: cascade.tier1_hits - before.cascade.tier1_hits,
            tier2_hits: cascade.tier2_hits - before.cascade.tier2_hits,
            tier3_hits: cascade.tier3_hits - before.cascade.tier3_hits,
            false_plans: cascade.false_plans - before.cascade.false_plans,
            mapping_bytes_written: flash.mapping_bytes - before.flash.mapping_bytes,
            reorganisation_bytes_read: flash.reorganisation_read_bytes
                - before.flash.reorganisation_read_bytes,
            reorganisations: flash.reorganisations - before.flash.reorganisations,
            forgotten: cascade.forgotten - before.cascade.forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_contract_in_its_order() {
        let report = Report {
            trace: "t".into(),
            requests: 0,
            layout: "exact".into(),
            policy: "lru".into(),
            index: None,
            flash_bytes: 1,
            dram_bytes: 0,
            object_hit_ratio: None,
            byte_hit_ratio: None,
            objects_cached: 0,
            object_bytes_resident_mean: None,
            objects_rejected: 0,
            bytes_inserted: 0,
            bytes_written_host: None,
            app_write_amplification: None,
            device_write_amplification: None,
            combined_write_amplification: None,
            index_dram_bytes: None,
            index_bytes_written: None,
            flash_reads_per_hit: None,
            flash_reads_per_miss: None,
            flash_rounds_per_hit: None,
            cascade: None,
            device_seconds: None,
            erases_min: None,
            erases_mean: None,
            erases_max: None,
            device_reads: None,
            device_read_bytes: None,
            device_writes: None,
            device_written_bytes: None,
            elapsed_seconds: 0.0,
            requests_per_second: 0.0,
        };
        let text = serde_json::to_string(&report).unwrap();
        let names: Vec<&str> = text
            .split('"')
            .filter(|part| part.len() > 5 && !part.contains(':'))
            .collect();
        let contract = "trace requests layout policy index flash_bytes dram_bytes object_hit_ratio byte_hit_ratio \
            objects_cached object_bytes_resident_mean objects_rejected bytes_inserted bytes_written_host \
            app_write_amplification device_write_amplification combined_write_amplification index_dram_bytes \
            index_bytes_written flash_reads_per_hit flash_reads_per_miss elapsed_seconds requests_per_second \
            flash_rounds_per_hit cascade device_seconds erases_min erases_mean erases_max device_reads device_read_bytes \
            device_writes device_written_bytes";
        let expected: Vec<&str> = contract.split_whitespace().collect();
        let found: Vec<&str> = expected
            .iter()
            .copied()
            .filter(|name| text.contains(&format!("\"{name}\":")))
            .collect();
        assert_eq!(found, expected);
        let positions: Vec<usize> = expected
            .iter()
            .filter_map(|name| text.find(&format!("\"{name}\":")))
            .collect();
        assert!(positions.is_sorted(), "{names:?}");
        assert_eq!(text.matches("\":").count(), expected.len());
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
