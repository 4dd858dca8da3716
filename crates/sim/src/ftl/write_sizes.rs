//! Amplification against write size and utilisation.

use super::model::Ftl;
use super::options::{FtlError, FtlOptions};

/// The experiment of section 3 and figure 2 of the RIPQ paper: a drive is filled once, then aligned writes of one size
/// go to uniformly random places.
///
/// Amplification depends on the ratio of write and superblock, not on their bytes: pages are as large as all sizes
/// allow, and the drive has only as many superblocks as make it large.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteSizeOptions {
    /// Bytes of a superblock.
    pub superblock_bytes: u64,
    /// Superblocks of the drive. One is kept free, which weighs more the fewer there are: 1024 at 95 % behave as endless
    /// ones at 95.1 %.
    pub superblocks: u32,
    /// Sizes of writes in bytes.
    pub write_bytes: Vec<u64>,
    /// Shares of the flash that the host sees.
    pub utilisations: Vec<f64>,
    /// Bytes written at random before measuring, as a multiple of the flash.
    pub warmup: u32,
    /// Bytes written while measuring, as a multiple of the flash.
    pub measured: u32,
    /// What the random places follow from.
    pub seed: u64,
}

impl Default for WriteSizeOptions {
    /// Superblocks of 256 MiB, writes from 1/128 of one to two, 50 to 95 % of the flash; the paper's 4 times the
    /// capacity before measuring, and as much while measuring.
    fn default() -> Self {
        let superblock_bytes = 256 << 20;
        Self {
            superblock_bytes,
            superblocks: 1024,
            write_bytes: (0..9)
                .map(|doublings| (superblock_bytes / 128) << doublings)
                .collect(),
            utilisations: vec![0.5, 0.6, 0.7, 0.8, 0.9, 0.95],
            warmup: 4,
            measured: 4,
            seed: 1,
        }
    }
}

impl WriteSizeOptions {
    /// The largest page of which all writes and the superblock are multiples.
    fn page_bytes(&self) -> u64 {
        let divisor = |a, b| {
            let (mut a, mut b): (u64, u64) = (a, b);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        self.write_bytes
            .iter()
            .copied()
            .fold(self.superblock_bytes, divisor)
    }
}

/// One point of the figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteSizeRow {
    /// Bytes of each write.
    pub write_bytes: u64,
    /// The share of the flash that the host sees, as asked for; it sees whole writes.
    pub utilisation: f64,
    /// Pages written to flash for one of the host, after the warm-up.
    pub device_write_amplification: f64,
}

/// Measures one point. `write_bytes` must be among the options' sizes, or a multiple of one.
///
/// # Errors
/// [`FtlError`] where the utilisation leaves the drive nothing to work with.
pub fn measure_write_size(
    options: &WriteSizeOptions,
    write_bytes: u64,
    utilisation: f64,
) -> Result<WriteSizeRow, FtlError> {
    let physical_bytes = options.superblock_bytes * u64::from(options.superblocks);
    let places = ((physical_bytes as f64 * utilisation) as u64 / write_bytes).max(1);
    let mut ftl = Ftl::new(FtlOptions {
        page_bytes: options.page_bytes(),
        ..FtlOptions::new(places * write_bytes, physical_bytes, options.superblock_bytes)
    })?;
    ftl.write(0, places * write_bytes);
    let mut state = options.seed;
    let mut random_writes = |multiple: u32| {
        for _ in 0..physical_bytes / write_bytes * u64::from(multiple) {
            let place = (u128::from(split_mix(&mut state)) * u128::from(places)) >> 64;
            ftl.write(place as u64 * write_bytes, write_bytes);
        }
        ftl.snapshot()
    };
    let warm = random_writes(options.warmup);
    let measured = random_writes(options.measured) - warm;
    Ok(WriteSizeRow {
        write_bytes,
        utilisation,
        device_write_amplification: measured.device_write_amplification().unwrap_or(1.0),
    })
}

/// Measures all points, sizes within utilisations, and hands out each as it is known.
///
/// # Errors
/// [`FtlError`] where a utilisation leaves the drive nothing to work with.
pub fn measure_write_sizes(
    options: &WriteSizeOptions,
    progress: &mut dyn FnMut(&WriteSizeRow),
) -> Result<Vec<WriteSizeRow>, FtlError> {
    let mut rows = Vec::with_capacity(options.utilisations.len() * options.write_bytes.len());
    for utilisation in &options.utilisations {
        for write_bytes in &options.write_bytes {
            let row = measure_write_size(options, *write_bytes, *utilisation)?;
            progress(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The next number of Steele, Lea and Flood's SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
