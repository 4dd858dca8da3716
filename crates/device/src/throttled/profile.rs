//! What kinds of devices there are.

use std::fmt;
use std::str::FromStr;

/// How fast reads, or writes, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// What one operation takes besides passing its bytes, in nanoseconds.
    pub latency_ns: u64,
    /// What all operations pass together, in bytes a second; at least 1.
    pub bytes_per_second: u64,
    /// How many operations are worked on at the same time; at least 1.
    pub parallelism: u32,
}

/// A kind of device.
///
/// The presets are of one product each, after what its maker or a study says of it. What the table has for SSDs is the time of one
/// operation of 4 KiB alone, the passing of its bytes included, and the most such operations a second; parallelism is the product of
/// the two. For memory it is the latency of a cache line.
///
/// | name | product | read | write | source |
/// | --- | --- | --- | --- | --- |
/// | `dram` | DDR4-2666, one channel | 101 ns, 17 GB/s | 86 ns, 13 GB/s | latency: Yang et al., "An Empirical Guide to the Behavior and Use of Scalable Persistent Memory", FAST 2020, figure 2; bandwidth: 21.3 GB/s a channel, less what that study loses |
/// | `nvm` | Intel Optane DC persistent memory, one module | 305 ns, 6.6 GB/s | 94 ns, 2.3 GB/s | the same study, figures 2 and 4 |
/// | `optane` | Intel Optane SSD 905P | 10 µs, 2.6 GB/s, 575,000 /s | 11 µs, 2.2 GB/s, 550,000 /s | data sheet |
/// | `nvme` | Samsung 970 PRO 1 TB | 67 µs, 3.5 GB/s, 500,000 /s | 18 µs, 2.7 GB/s, 500,000 /s | data sheet: 15,000 and 55,000 /s one at a time |
/// | `sata` | Samsung 860 EVO 1 TB | 100 µs, 550 MB/s, 98,000 /s | 24 µs, 520 MB/s, 90,000 /s | data sheet: 10,000 and 42,000 /s one at a time |
/// | `hdd` | any disk of 7,200 revolutions a minute | 12.7 ms, 250 MB/s | the same | half a revolution and a seek of 8.5 ms |
///
/// A data sheet's writes go to the drive's memory; what its flash takes in the long run is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name among the presets.
    pub name: &'static str,
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
}

/// Of both directions: nanoseconds of latency, megabytes a second, parallelism.
const fn preset(name: &'static str, read: (u64, u64, u32), write: (u64, u64, u32)) -> Profile {
    const fn direction((latency_ns, megabytes_per_second, parallelism): (u64, u64, u32)) -> Direction {
        Direction {
            latency_ns,
            bytes_per_second: megabytes_per_second * 1_000_000,
            parallelism,
        }
    }
    Profile {
        name,
        read: direction(read),
        write: direction(write),
    }
}

impl Profile {
    /// Memory.
    pub const DRAM: Self = preset("dram", (101, 17_000, 16), (86, 13_000, 16));
    /// Persistent memory on the memory bus.
    pub const NVM: Self = preset("nvm", (305, 6_600, 8), (94, 2_300, 4));
    /// An SSD of persistent memory.
    pub const OPTANE: Self = preset("optane", (8_400, 2_600, 6), (9_100, 2_200, 6));
    /// A flash SSD on PCI Express.
    pub const NVME: Self = preset("nvme", (65_500, 3_500, 33), (16_700, 2_700, 9));
    /// A flash SSD on SATA.
    pub const SATA: Self = preset("sata", (92_500, 550, 10), (16_000, 520, 2));
    /// A hard disk.
    pub const HDD: Self = preset("hdd", (12_700_000, 250, 1), (12_700_000, 250, 1));

    /// All presets, the fastest first.
    pub const ALL: [Self; 6] = [
        Self::DRAM,
        Self::NVM,
        Self::OPTANE,
        Self::NVME,
        Self::SATA,
        Self::HDD,
    ];
}

/// There is no preset of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such kind of device: `{0}`; there are dram, nvm, optane, nvme, sata and hdd")]
pub struct ProfileError(String);

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(name: &str) -> Result<Self, ProfileError> {
        let found = Self::ALL.into_iter().find(|profile| profile.name == name);
        found.ok_or_else(|| ProfileError(name.to_owned()))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
