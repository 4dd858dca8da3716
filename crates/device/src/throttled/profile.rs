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
    /// How many operations of this direction are worked on at the same time where there is no other; at least 1.
    pub parallelism: u32,
}

/// Pauses in which a device does nothing: one in each period, at a place that the seed says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalls {
    /// The length of a period in nanoseconds; more than `for_ns`.
    pub every_ns: u64,
    /// The length of a pause in nanoseconds.
    pub for_ns: u64,
}

/// A kind of device.
///
/// The presets are of one product each, after what its maker or a study says of it. What the table has for SSDs is the time of one
/// operation of 4 KiB alone, the passing of its bytes included, and the most such operations a second; parallelism is the product of
/// the two. For memory it is the latency of a cache line. No source says how reads and writes of a product share its parts: that they
/// share all of them is the model's. No preset varies or stalls.
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
///
/// As text a kind is the name of a preset, with values of one's own where they are to be others:
///
/// ```text
/// NAME[*N][:read=LATENCY/BYTES/PARALLELISM][:write=…][:vary=PERCENT][:stall=LENGTH/PERIOD][:seed=N]
///
/// nvme*40                                 40 times slower: latency times 40, bandwidth over 40
/// nvme:vary=30:stall=5ms/200ms:seed=7     service times ± 30 %, and 5 ms of each 200 ms nothing
/// optane:read=9us/2.5GB/6                 reads of one's own
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The preset that it began as.
    pub name: &'static str,
    /// How many times slower than that.
    pub slower: u32,
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// An operation that begins where the last one ended has no latency.
    pub seeks: bool,
    /// Service times are uniform within so many percent of their mean, at most 100.
    pub vary_percent: u32,
    /// Pauses.
    pub stalls: Option<Stalls>,
    /// Of what varies, and where pauses fall.
    pub seed: u64,
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
        slower: 1,
        read: direction(read),
        write: direction(write),
        seeks: false,
        vary_percent: 0,
        stalls: None,
        seed: 0,
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
    pub const HDD: Self = Self {
        seeks: true,
        ..preset("hdd", (12_700_000, 250, 1), (12_700_000, 250, 1))
    };

    /// All presets, the fastest first.
    pub const ALL: [Self; 6] = [
        Self::DRAM,
        Self::NVM,
        Self::OPTANE,
        Self::NVME,
        Self::SATA,
        Self::HDD,
    ];

    /// This kind, `times` as slow.
    ///
    /// ```
    /// use pumice_device::Profile;
    /// assert_eq!("nvme*40".parse(), Ok(Profile::NVME.slower(40)));
    /// ```
    #[must_use]
    pub fn slower(self, times: u32) -> Self {
        let slowed = |direction: Direction| Direction {
            latency_ns: direction.latency_ns.saturating_mul(u64::from(times)),
            bytes_per_second: (direction.bytes_per_second / u64::from(times.max(1))).max(1),
            parallelism: direction.parallelism,
        };
        Self {
            slower: self.slower.saturating_mul(times.max(1)),
            read: slowed(self.read),
            write: slowed(self.write),
            ..self
        }
    }
}

/// A text names no kind of device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// There is no preset of this name.
    #[error("no such kind of device: `{0}`; there are dram, nvm, optane, nvme, sata and hdd")]
    Kind(String),
    /// What stands after the name is not as it must be.
    #[error("`{0}` of a kind of device: {1}")]
    Value(String, &'static str),
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default();
        let (name, times) = kind.split_once('*').unwrap_or((kind, "1"));
        let found = Self::ALL.into_iter().find(|profile| profile.name == name);
        let preset = found.ok_or_else(|| ProfileError::Kind(name.to_owned()))?;
        let times: u32 = times
            .parse()
            .ok()
            .filter(|times| (1..=1_000_000).contains(times))
            .ok_or_else(|| {
                ProfileError::Value(
                    kind.to_owned(),
                    "after * stands how many times slower, a whole number from 1 to 1000000",
                )
            })?;
        let mut profile = preset.slower(times);
        for part in parts {
            profile.set(part)?;
        }
        Ok(profile)
    }
}

impl Profile {
    /// Takes a value of one's own.
    fn set(&mut self, part: &str) -> Result<(), ProfileError> {
        let wrong = |how| ProfileError::Value(part.to_owned(), how);
        let direction = "it is LATENCY/BYTES/PARALLELISM, for example read=9us/2.5GB/6";
        let stall = "it is LENGTH/PERIOD, for example stall=5ms/200ms, and the period is longer";
        match part.split_once('=') {
            Some(("read", value)) => self.read = parse_direction(value).ok_or_else(|| wrong(direction))?,
            Some(("write", value)) => self.write = parse_direction(value).ok_or_else(|| wrong(direction))?,
            Some(("vary", value)) => {
                let percent = value.parse().ok().filter(|&percent| percent <= 100);
                self.vary_percent =
                    percent.ok_or_else(|| wrong("it is a whole number of percent, at most 100"))?;
            }
            Some(("stall", value)) => self.stalls = Some(parse_stalls(value).ok_or_else(|| wrong(stall))?),
            Some(("seed", value)) => self.seed = value.parse().map_err(|_| wrong("it is a whole number"))?,
            _ => return Err(wrong("there are read=, write=, vary=, stall= and seed=")),
        }
        Ok(())
    }
}

/// A number with one of these units, times what the unit stands for.
fn measure(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = number.parse::<f64>().ok()? * factor;
    (0.0..1e18).contains(&value).then_some(value.round() as u64)
}

/// Nanoseconds of a time such as `9us` or `2.35ms`; `None` for other text.
pub fn duration(text: &str) -> Option<u64> {
    measure(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)])
}

fn parse_direction(text: &str) -> Option<Direction> {
    let mut parts = text.split('/');
    let direction = Direction {
        latency_ns: duration(parts.next()?)?,
        bytes_per_second: measure(
            parts.next()?,
            &[("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9)],
        )?,
        parallelism: parts.next()?.parse().ok()?,
    };
    let is_good = parts.next().is_none()
        && direction.bytes_per_second > 0
        // A lane is some bytes.
        && (1..=65_536).contains(&direction.parallelism);
    is_good.then_some(direction)
}

fn parse_stalls(text: &str) -> Option<Stalls> {
    let (length, period) = text.split_once('/')?;
    let stalls = Stalls {
        every_ns: duration(period)?,
        for_ns: duration(length)?,
    };
    (stalls.every_ns > stalls.for_ns).then_some(stalls)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.slower != 1 {
            write!(f, "*{}", self.slower)?;
        }
        let preset = Self::ALL.into_iter().find(|preset| preset.name == self.name);
        let preset = preset.map_or(*self, |preset| preset.slower(self.slower));
        for (name, own, usual) in [
            ("read", self.read, preset.read),
            ("write", self.write, preset.write),
        ] {
            if own != usual {
                let Direction {
                    latency_ns,
                    bytes_per_second,
                    parallelism,
                } = own;
                write!(f, ":{name}={latency_ns}ns/{bytes_per_second}B/{parallelism}")?;
            }
        }
        if self.vary_percent != 0 {
            write!(f, ":vary={}", self.vary_percent)?;
        }
        if let Some(Stalls { every_ns, for_ns }) = self.stalls {
            write!(f, ":stall={for_ns}ns/{every_ns}ns")?;
        }
        if self.seed != 0 {
            write!(f, ":seed={}", self.seed)?;
        }
        Ok(())
    }
}
