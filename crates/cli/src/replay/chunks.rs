//! `pumice replay --chunk-cache`: a volume's chunks through a deduplicating cache.

use super::{ReplayArgs, show, sim_error};
use clap::Args;
use pumice_console::{Bar, lines, print, usage};
use pumice_sim::{Addresses, CacheSize, ChunkCacheName, ChunkOptions, ChunkReport, SimError, replay_chunks};
use pumice_trace::{Human, bytes};

/// Flags of a replay of chunks.
#[derive(Args, Clone, Debug)]
pub struct ChunkArgs {
    /// Replay a volume's chunks, with their contents (format fiu, or block:…), through a write-through cache: pumice is the store that
    /// serves; austere is AustereCache, the others are CacheDedup's with full indexes, C with compression. Of the other flags --block-size,
    /// --superblock and --json hold, and --dram for CacheDedup's: what addresses leave of it is for fingerprints
    #[arg(long, value_name = "pumice|austere|d-lru|d-arc|cd-lru|cd-arc",
        conflicts_with_all = ["config", "layout", "policy", "alpha", "theta", "flash_size", "max_object_size", "flash_write", "flash_admit", "flash_admit_size_max",
            "flash_admit_ttl_min", "flash_write_budget", "timeline", "dram_pool", "max_item_size",
            "index", "tier1", "object_size", "ignore_sizes", "sizes", "ops", "device", "reformat", "trim", "throttle", "warmup"])]
    pub chunk_cache: Option<ChunkCacheName>,

    /// Addresses that it may map: a number, or 4d for four times the chunks that its device has room for without compression
    #[arg(long, value_name = "M", default_value = "4d", requires = "chunk_cache")]
    addresses: Addresses,

    /// Its whole device: 4GiB, or 25% of the trace's distinct addresses
    #[arg(long, value_name = "SIZE|N%", default_value = "25%", requires = "chunk_cache")]
    cache_size: CacheSize,

    /// Bytes of a chunk [default: those of the trace's requests, else 32KiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u32>, requires = "chunk_cache")]
    chunk_size: Option<u32>,
}

/// Replays a trace through `cache` and prints the report.
pub(super) fn run(args: &ReplayArgs, cache: ChunkCacheName) -> anyhow::Result<()> {
    let dram_bytes = match &args.dram {
        Some(_) if !cache.has_full_index() => {
            return Err(usage(format!(
                "--dram with --chunk-cache {}: the index is as large as --addresses and the device make it",
                cache.name()
            )));
        }
        Some(dram) => Some(bytes::<u64>(dram).map_err(|error| usage(format!("--dram `{dram}`: {error}")))?),
        None => None,
    };
    let options = ChunkOptions {
        cache,
        addresses: args.chunks.addresses,
        size: args.chunks.cache_size.clone(),
        chunk_bytes: args.chunks.chunk_size,
        dram_bytes,
        block_bytes: args.block_size,
        superblock_blocks: args.superblock.unwrap_or(1),
    };
    let trace = args.source.trace()?;
    let bar = Bar::new("replaying");
    let result = replay_chunks(&trace, &options, &mut |at| show(&bar, at));
    bar.clear();
    let report = result.map_err(|error| match error {
        SimError::Open(error) => usage(format!("--cache-size: {error}")),
        SimError::Ftl(error) => usage(format!("--superblock: {error}")),
        error => sim_error(error),
    })?;
    print(args.json, &report, summary)
}

/// The report for people.
fn summary(report: &ChunkReport) -> String {
    let percent =
        |ratio: Option<f64>| ratio.map_or("none".to_owned(), |ratio| format!("{:.2} %", ratio * 100.0));
    let times = |times: Option<f64>| times.map_or("not modelled".to_owned(), |times| format!("{times:.3}"));
    let each = |bytes: u64, count: u64| bytes as f64 / count.max(1) as f64;
    let figures = [
        (
            "trace",
            format!(
                "{}, {} requests, {} distinct chunks of {}",
                report.trace,
                report.requests,
                report.distinct_addresses,
                Human(report.chunk_bytes.into())
            ),
        ),
        (
            "cache",
            format!(
                "{}, {}, {} addresses",
                report.cache,
                Human(report.cache_bytes),
                report.addresses
            ),
        ),
        (
            "read hits",
            format!(
                "{} of {}, {}",
                report.hits,
                report.reads,
                percent(report.hit_ratio)
            ),
        ),
        (
            "writes",
            format!(
                "{}, of these {} of a content seen before, {} of the content in place",
                report.writes, report.writes_of_known, report.writes_in_place
            ),
        ),
        (
            "written",
            format!(
                "{} to the device, {} of new contents compressed; write reduction {}",
                Human(report.device_bytes),
                Human(report.compressed_new_bytes),
                percent(report.write_reduction)
            ),
        ),
        (
            "amplification",
            format!(
                "of the drive {}, written for each new byte {}",
                times(report.device_write_amplification),
                times(report.written_per_new_byte)
            ),
        ),
        (
            "index",
            format!(
                "{} of addresses, {:.2} B for each of {}; {} of contents, {:.2} B for each of {}",
                Human(report.address_dram_bytes),
                each(report.address_dram_bytes, report.mapped),
                report.mapped,
                Human(report.content_dram_bytes),
                each(report.content_dram_bytes, report.contents),
                report.contents
            ),
        ),
        ("time", format!("{:.2} s", report.elapsed_seconds)),
    ];
    lines(17, &figures)
}
