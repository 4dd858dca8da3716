//! What a replay reports of what it measured.

use super::{FlashOptions, Reads, ReplayDevice, Setup};
use crate::counts::Counts;
use crate::ftl::{EraseSpread, FtlCounts};
use crate::report::{AdmissionReport, CascadeReport, Report, Settings};
use crate::rules::Unit;
use pumice::{CacheOptions, FlashWrite, IndexOptions, Stats};
use pumice_device::DeviceCounts;
use pumice_flash::LayoutName;
use pumice_trace::Trace;
use std::iter::zip;
use std::time::Instant;

/// What was counted up to some moment, beside requests.
pub(super) struct Snapshot {
    pub(super) stats: Stats,
    /// What passed to the device.
    pub(super) device: DeviceCounts,
    /// What the device has taken, where that is not the time that passes.
    pub(super) device_ns: Option<u64>,
    /// What the simulated drive did, and the erases of each of its superblocks.
    pub(super) drive: Option<(FtlCounts, Vec<u32>)>,
}

pub(super) struct Measured {
    pub(super) counts: Counts,
    pub(super) reads: Reads,
    pub(super) response_ns: Option<f64>,
    pub(super) at_warmup: Snapshot,
    pub(super) at_end: Snapshot,
    pub(super) bytes_beside_values: f64,
    /// Sum over the requests counted.
    pub(super) entries_resident: u128,
    pub(super) objects_cached: u64,
    pub(super) capacity: u64,
    pub(super) timeline: Vec<(u64, u64, u64)>,
    pub(super) start: Instant,
}

/// Completes the settings that every layout has.
pub(super) fn settings(options: &FlashOptions, setup: &Setup, common: Settings) -> Settings {
    let Setup { cache, geometry } = setup;
    let layout = &cache.layout;
    let has_drive = options.device == ReplayDevice::Sim && options.superblock_blocks > 0;
    let tier1 = if let IndexOptions::Cascade(cascade) = cache.index {
        Some(cascade.tier1_share)
    } else {
        None
    };
    Settings {
        alpha: (layout.layout == LayoutName::Ripq).then_some(layout.alpha),
        theta: matches!(layout.layout, LayoutName::Sipq | LayoutName::Ripq).then_some(layout.theta),
        tier1,
        max_object_bytes: Some(cache.item_bytes_max as u64),
        flash_write: (cache.dram_bytes > 0).then_some(match cache.flash_write {
            FlashWrite::Insertion => "insertion",
            FlashWrite::Eviction => "eviction",
        }),
        block_bytes: Some(geometry.block_bytes),
        blocks: Some(geometry.blocks),
        buffers: Some(cache.buffers_max),
        device: Some(match &options.device {
            ReplayDevice::Sim => "sim".to_owned(),
            ReplayDevice::Path(path) => path.display().to_string(),
        }),
        superblock: Some(options.superblock_blocks),
        trim: has_drive.then_some(options.trim),
        throttle: options.throttle.map(|profile| profile.to_string()),
        dram_ns: options.timed.map(|timed| timed.dram_ns),
        miss_ns: options.timed.map(|timed| timed.miss_ns),
        ..common
    }
}

pub(super) fn report(trace: &Trace, cache: &CacheOptions, settings: Settings, measured: &Measured) -> Report {
    let Measured {
        counts,
        reads,
        response_ns,
        at_warmup:
            Snapshot {
                stats: at_warmup,
                device: before,
                ..
            },
        at_end: Snapshot {
            stats, device: after, ..
        },
        bytes_beside_values,
        entries_resident,
        objects_cached,
        capacity,
        timeline,
        start,
    } = measured;
    let (earlier, later) = (&measured.at_warmup, &measured.at_end);
    let drive = later.drive.as_ref().zip(earlier.drive.as_ref());
    let drive = drive.map(|((now, erases), (before, erases_before))| {
        let erases: Vec<u32> = zip(erases, erases_before)
            .map(|(now, before)| now - before)
            .collect();
        (*now - *before, EraseSpread::of(&erases))
    });
    let device_ns = later.device_ns.zip(earlier.device_ns);
    let elapsed = start.elapsed().as_secs_f64();
    let inserted = stats.flash.appended_bytes - at_warmup.flash.appended_bytes;
    let written = stats.blocks.written_bytes - at_warmup.blocks.written_bytes;
    let index_bytes = |stats: &Stats| stats.blocks.checkpoint_bytes + stats.flash.mapping_bytes;
    let index_written = index_bytes(stats) - index_bytes(at_warmup);
    let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
    let application_amplification = ratio(written, inserted);
    let device_amplification = drive
        .as_ref()
        .and_then(|(counts, _)| counts.device_write_amplification());
    Report {
        trace: trace.name().to_owned(),
        requests: counts.requests(),
        layout: cache.layout.layout.name().into(),
        policy: cache.layout.policy.name(),
        index: Some(cache.index.kind().name().into()),
        unit: Unit::Bytes.name(),
        flash_bytes: Some(*capacity),
        dram_bytes: cache.dram_bytes as u64,
        object_hit_ratio: counts.object_hit_ratio(),
        byte_hit_ratio: counts.byte_hit_ratio(),
        objects_cached: *objects_cached,
        object_bytes_resident_mean: counts.bytes_resident_mean().map(|bytes| {
            let entries = *entries_resident as f64 / counts.requests() as f64;
            bytes - entries * bytes_beside_values
        }),
        objects_rejected: counts.objects_rejected,
        bytes_inserted: Some(inserted),
        bytes_written_host: Some(written),
        app_write_amplification: application_amplification,
        device_write_amplification: device_amplification,
        combined_write_amplification: application_amplification
            .zip(device_amplification)
            .map(|(application, device)| application * device),
        index_dram_bytes: Some(stats.index_dram_bytes),
        index_bytes_written: Some(index_written),
        flash_reads_per_hit: ratio(reads.hit_reads, counts.hits),
        flash_reads_per_miss: ratio(reads.miss_reads, counts.lookups - counts.hits),
        flash_rounds_per_hit: ratio(reads.hit_rounds, counts.hits),
        cascade: matches!(cache.index, IndexOptions::Cascade(_)).then(|| CascadeReport::of(stats, at_warmup)),
        device_seconds: device_ns.map(|(now, before)| (now - before) as f64 / 1e9),
        erases_min: drive.as_ref().map(|(_, spread)| spread.min),
        erases_mean: drive.as_ref().map(|(_, spread)| spread.mean),
        erases_max: drive.as_ref().map(|(_, spread)| spread.max),
        device_reads: Some(after.reads - before.reads),
        device_read_bytes: Some(after.read_bytes - before.read_bytes),
        device_writes: Some(after.writes - before.writes),
        device_written_bytes: Some(after.written_bytes - before.written_bytes),
        flash_bytes_read_per_hit: ratio(reads.hit_read_bytes, counts.hits),
        dram_hit_ratio: ratio(reads.dram_hits, counts.lookups),
        response_ns: *response_ns,
        admission: (cache.admission.is_any()).then(|| AdmissionReport::of(stats, at_warmup)),
        timeline: timeline.clone(),
        elapsed_seconds: elapsed,
        requests_per_second: counts.requests_replayed as f64 / elapsed.max(1e-9),
        settings,
        ..Report::default()
    }
}
