//! Flags of `advise`.

use crate::source::Source;
use crate::times::{people, time};
use clap::Args;
use pumice_advise::{Latencies, positive};
use pumice_console::usage;
use pumice_sim::Profile;
use pumice_trace::bytes;
use std::path::PathBuf;
use std::str::FromStr;

/// Flags of `advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    #[command(flatten)]
    pub(super) source: Source,

    /// Bytes of every object, where the trace has no sizes
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = bytes::<u64>)]
    pub(super) object_size: u64,

    /// Ignore the sizes that the trace has: all are those of --object-size
    #[arg(long)]
    pub(super) ignore_sizes: bool,

    /// Money for a gigabyte (10^9 bytes) of DRAM, in any currency
    #[arg(long, value_name = "MONEY", value_parser = positive)]
    pub(super) dram_price: f64,

    /// Money for a gigabyte of flash, in the same currency
    #[arg(long, value_name = "MONEY", value_parser = positive)]
    pub(super) flash_price: f64,

    /// What a miss takes, such as 2.35ms
    #[arg(long, value_name = "TIME", value_parser = time, required_unless_present = "backend")]
    pub(super) miss_latency: Option<f64>,

    /// In place of --miss-latency, the kind of device that misses are read from: dram, nvm, optane, nvme, sata, hdd, or nvme*40 (40 times slower)
    #[arg(long, value_name = "KIND", conflicts_with = "miss_latency")]
    pub(super) backend: Option<Profile>,

    /// What a hit in DRAM takes
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1us")]
    pub(super) dram_latency: f64,

    /// The kind of device that flash is, as of --backend: long reads of it take longer
    #[arg(long, value_name = "KIND", default_value = "nvme")]
    pub(super) flash_kind: Profile,

    /// In place of --flash-kind, what a read of flash takes, however long it is: `pumice-bench device` measures it
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "flash_kind")]
    pub(super) flash_latency: Option<f64>,

    /// Most money: the fastest sizes within it are advised. Without --budget and --response: the cheapest sizes that are at most a quarter slower
    /// than the fastest on offer
    #[arg(long, value_name = "MONEY", value_parser = positive, conflicts_with = "response")]
    pub(super) budget: Option<f64>,

    /// Longest mean response time, such as 500us: the cheapest sizes within it are advised
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) response: Option<f64>,

    /// The sizes that there are today, to compare with
    #[arg(long, value_name = "dram=SIZE,flash=SIZE")]
    pub(super) have: Option<Have>,

    /// Terabytes (10^12 bytes) that the drive is rated to take
    #[arg(long, value_name = "TERABYTES", value_parser = positive, conflicts_with = "dwpd")]
    pub(super) tbw: Option<f64>,

    /// In place of --tbw, drive writes a day that it is rated to take, of --drive-size during --warranty
    #[arg(long, value_name = "WRITES", value_parser = positive, requires = "drive_size")]
    pub(super) dwpd: Option<f64>,

    /// Gigabytes (10^9 bytes) of the drive, for --dwpd
    #[arg(long, value_name = "GIGABYTES", value_parser = positive, requires = "dwpd")]
    pub(super) drive_size: Option<f64>,

    /// Years of the drive's warranty, for --dwpd [default: 5]
    #[arg(long, value_name = "YEARS", value_parser = positive, requires = "dwpd")]
    pub(super) warranty: Option<f64>,

    /// Times that each cell of the flash is rated to be written: years by that, as a simulated drive writes it, come beside those of --tbw
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) cycles: Option<f64>,

    /// Years that the flash has to last: a line says which sizes do not
    #[arg(long, value_name = "YEARS", value_parser = positive)]
    pub(super) years: Option<f64>,

    /// Seconds that the trace was recorded for: how much is written in a day follows from it [default: by the times of its requests]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub(super) span: Option<f64>,

    /// Rows that are replayed at a time, each with the memory of its own sizes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) jobs: u16,

    /// Replay nothing through the engine: all figures are of exact LRU, and there are none of bytes written
    #[arg(long)]
    pub(super) no_replay: bool,

    /// Make the curve of so many keys [default: of all up to 4194304, of 65536 beyond]
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1024..=16_777_216))]
    pub(super) sample: Option<u32>,

    /// Fixes which keys those are
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,

    /// Write the advice as an HTML page as well
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// Sizes that there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Have {
    pub(super) dram: u64,
    pub(super) flash: u64,
}

impl FromStr for Have {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut have = Self { dram: 0, flash: 0 };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match name.trim() {
                "dram" => &mut have.dram,
                "flash" => &mut have.flash,
                _ => return Err("expected sizes such as dram=64GiB,flash=1TiB".into()),
            };
            *place = bytes(value).map_err(|error| format!("{name}: {error}"))?;
        }
        match have.dram {
            0 => Err("dram=SIZE is missing".into()),
            _ => Ok(have),
        }
    }
}

/// What is read at least.
pub(super) const SECTOR_BYTES: f64 = 4096.0;

/// Nanoseconds of so many reads of so many bytes in all, one after the other.
pub(super) fn read_ns(kind: &Profile, reads: f64, bytes: f64) -> f64 {
    reads * kind.read.latency_ns as f64 + bytes * 1e9 / kind.read.bytes_per_second as f64
}

/// The flash that is asked about.
pub(super) fn flash(args: &AdviseArgs) -> Profile {
    let mut kind = args.flash_kind;
    if let Some(latency_ns) = args.flash_latency {
        kind.read.latency_ns = latency_ns as u64;
        kind.read.bytes_per_second = u64::MAX;
    }
    kind
}

/// The latencies that are asked for, of reads of so many bytes.
///
/// # Errors
/// Usage, if one is not faster than the next.
pub(super) fn latencies(args: &AdviseArgs, bytes: f64) -> anyhow::Result<Latencies> {
    let of_backend = |kind: Profile| read_ns(&kind, 1.0, bytes);
    let latencies = Latencies {
        dram_ns: args.dram_latency,
        flash_ns: read_ns(&flash(args), 1.0, bytes),
        miss_ns: (args.miss_latency.or_else(|| args.backend.map(of_backend))).unwrap_or_default(),
    };
    let Latencies {
        dram_ns,
        flash_ns,
        miss_ns,
    } = latencies;
    match dram_ns < flash_ns && flash_ns < miss_ns {
        true => Ok(latencies),
        false => Err(usage(format!(
            "DRAM takes {}, flash {}, a miss {}, for {bytes:.0} bytes: each must be faster than the next (--dram-latency, --flash-latency, --miss-latency)",
            people(dram_ns),
            people(flash_ns),
            people(miss_ns)
        ))),
    }
}
