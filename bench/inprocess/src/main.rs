//! The engine in process against foyer and against the bare device: one measurement for each call, as JSON on stdout.
//!
//! `bench/bench.py` calls it in turns, pinned to one core. Each subcommand makes its own file or directory anew.

mod chunks;
#[cfg(feature = "foyer")]
mod foyer_side;
mod gets;
mod measure;
mod pumice_side;
mod replay;
mod workload;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Both sides allocate from what Pumice ships with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// Without foyer all names begin alike.
#[derive(Subcommand)]
#[allow(clippy::enum_variant_names)]
enum Command {
    /// Look-aside through the engine: a miss is followed by a set
    PumiceHits(HitsArgs),
    /// The same through foyer's hybrid cache
    #[cfg(feature = "foyer")]
    FoyerHits(FoyerArgs),
    /// Random gets of items that are on flash only
    PumiceReads(ReadsArgs),
    /// Sets of new keys until the device was written twice; the second lap counts
    PumiceFill(FillArgs),
    /// A trace through a flash layout, look-aside
    PumiceReplay(ReplayArgs),
    /// Gets of small items under layout fifo and one index, as lines on stdin say
    PumiceGets(GetsArgs),
    /// Chunks written to the chunk store on a memory device: CPU time of a unique one and of a duplicate
    PumiceChunks(ChunksArgs),
}

/// A workload and its budget.
#[derive(Args)]
struct HitsArgs {
    /// Where the flash tier lives: a file for Pumice, a directory for foyer. Removed first
    #[arg(long)]
    path: PathBuf,
    /// MiB of DRAM for everything in the process
    #[arg(long)]
    dram_mib: u64,
    /// MiB of flash
    #[arg(long)]
    flash_mib: u64,
    /// Number of keys
    #[arg(long)]
    keys: u64,
    /// Zipf exponent
    #[arg(long, default_value_t = 0.9)]
    theta: f64,
    /// Shortest value in bytes
    #[arg(long, default_value_t = 600)]
    size_min: u64,
    /// Longest value in bytes
    #[arg(long, default_value_t = 4096)]
    size_max: u64,
    /// Requests before those that count
    #[arg(long)]
    warm_up: u64,
    /// Requests that count
    #[arg(long)]
    requests: u64,
    /// Requests at once
    #[arg(long, default_value_t = 32)]
    depth: usize,
}

#[cfg(feature = "foyer")]
#[derive(Args)]
struct FoyerArgs {
    #[command(flatten)]
    hits: HitsArgs,
    /// What does foyer's I/O
    #[arg(long, value_enum, default_value_t = FoyerIo::Psync)]
    io: FoyerIo,
    /// When foyer writes to flash
    #[arg(long, value_enum, default_value_t = FoyerWrite::Eviction)]
    write: FoyerWrite,
    /// foyer's policy in DRAM
    #[arg(long, value_enum, default_value_t = FoyerPolicy::Lru)]
    policy: FoyerPolicy,
    /// MiB for values in DRAM; without it what the budget leaves beside buffers, index and overhead
    #[arg(long)]
    memory_mib: Option<u64>,
    /// MiB of foyer's block
    #[arg(long, default_value_t = 16)]
    block_mib: usize,
    /// Threads of foyer's runtime; 0: the one that also makes the requests
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

#[cfg(feature = "foyer")]
#[derive(Clone, Copy, clap::ValueEnum, PartialEq, Eq)]
enum FoyerIo {
    Psync,
    IoUring,
}

#[cfg(feature = "foyer")]
#[derive(Clone, Copy, clap::ValueEnum, PartialEq, Eq)]
enum FoyerWrite {
    Eviction,
    Insertion,
}

#[cfg(feature = "foyer")]
#[derive(Clone, Copy, clap::ValueEnum, PartialEq, Eq)]
enum FoyerPolicy {
    Lru,
    Lfu,
    S3fifo,
}

#[derive(Args)]
struct ReadsArgs {
    /// The file of the flash tier; removed first
    #[arg(long)]
    path: PathBuf,
    /// MiB of flash
    #[arg(long)]
    flash_mib: u64,
    /// Number of items
    #[arg(long)]
    items: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Seconds that count
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Gets at once
    #[arg(long, default_value_t = 32)]
    depth: usize,
}

#[derive(Args)]
struct FillArgs {
    /// The file of the flash tier; removed first
    #[arg(long)]
    path: PathBuf,
    /// MiB of flash
    #[arg(long)]
    flash_mib: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 4096)]
    size: u64,
    /// KiB of a block; without it what `serve` would choose
    #[arg(long)]
    block_kib: Option<u64>,
    /// MiB of DRAM that the process would have, of which block buffers are a part
    #[arg(long, default_value_t = 256)]
    dram_mib: u64,
}

#[derive(Args)]
struct ReplayArgs {
    /// The file of the flash tier; removed first
    #[arg(long)]
    path: PathBuf,
    /// A generator or a trace file; all requests are taken as gets, and an object has the size of its first, or 4 KiB
    #[arg(long)]
    trace: String,
    /// fifo, clock, sipq or ripq
    #[arg(long)]
    layout: String,
    /// The policy; without it the layout's own
    #[arg(long)]
    policy: Option<String>,
    /// Flash, as a share of the bytes of all objects
    #[arg(long, default_value_t = 0.1)]
    flash_share: f64,
    /// The share of the requests before those that count
    #[arg(long, default_value_t = 0.25)]
    warm_up: f64,
    /// MiB of DRAM for everything in the process; 0: no DRAM tier, and block buffers as for 256 MiB
    #[arg(long, default_value_t = 0)]
    dram_mib: u64,
    /// KiB of a block; without it what `serve` would choose
    #[arg(long)]
    block_kib: Option<u64>,
    /// Block buffers; without it as many as `serve` would have
    #[arg(long)]
    buffers: Option<usize>,
    /// Requests at once
    #[arg(long, default_value_t = 32)]
    depth: usize,
}

#[derive(Args)]
struct GetsArgs {
    /// The file of the flash tier; removed first
    #[arg(long)]
    path: PathBuf,
    /// MiB of flash
    #[arg(long)]
    flash_mib: u64,
    /// Number of keys; each is set once at first
    #[arg(long)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 300)]
    size: u64,
    /// full or cascade
    #[arg(long)]
    index: String,
    /// Of a cascade index: mappings in DRAM for each on flash
    #[arg(long, default_value_t = 0.04)]
    tier1: f64,
    /// fifo, or clock, which writes hot items again
    #[arg(long, default_value = "clock")]
    layout: String,
}

#[derive(Args)]
struct ChunksArgs {
    /// Writes of each kind that count
    #[arg(long, default_value_t = 40_000)]
    writes: u64,
    /// Fingerprint and compression alone, without the store
    #[arg(long)]
    alone: bool,
}

fn main() -> anyhow::Result<()> {
    let result = match Cli::parse().command {
        Command::PumiceHits(args) => pumice_side::hits(&args)?,
        #[cfg(feature = "foyer")]
        Command::FoyerHits(args) => foyer_side::hits(&args)?,
        Command::PumiceReads(args) => pumice_side::reads(&args)?,
        Command::PumiceFill(args) => pumice_side::fill(&args)?,
        Command::PumiceReplay(args) => replay::replay(&args)?,
        Command::PumiceGets(args) => gets::gets(&args)?,
        Command::PumiceChunks(args) => chunks::chunks(&args)?,
    };
    println!("{result}");
    Ok(())
}
