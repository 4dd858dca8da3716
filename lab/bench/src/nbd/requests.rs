//! Which requests are made: mix, sizes, places.

use pumice_remote::wire::Command;
use pumice_trace::{Zipf, bytes};
use pumice_world::{Random, mix64};
use std::str::FromStr;

/// The kinds of requests, in the order of a mix.
pub const KINDS: [(Command, &str); 5] = [
    (Command::Read, "read"),
    (Command::Write, "write"),
    (Command::Flush, "flush"),
    (Command::Trim, "trim"),
    (Command::Zero, "zero"),
];

/// Places of kinds among [`KINDS`].
pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const FLUSH: usize = 2;
pub const TRIM: usize = 3;
pub const ZERO: usize = 4;

/// Weights of read, write, flush, trim and zero, such as `70:28:2`; those left out are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix(pub [u32; 5]);

impl Mix {
    /// Whether it has requests of a kind.
    pub fn has(&self, kind: usize) -> bool {
        self.0[kind] > 0
    }

    /// Whether it has requests that change something.
    pub fn has_changes(&self) -> bool {
        self.has(WRITE) || self.has(TRIM) || self.has(ZERO)
    }

    /// Draws a kind.
    pub fn draw(&self, random: &mut Random) -> usize {
        let mut point = random.below(self.0.iter().map(|weight| u64::from(*weight)).sum());
        for (kind, weight) in self.0.iter().enumerate() {
            match point.checked_sub(u64::from(*weight)) {
                Some(rest) => point = rest,
                None => return kind,
            }
        }
        0
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weights: Option<Vec<u32>> = text.split(':').map(|weight| weight.parse().ok()).collect();
        let mut mix = [0; 5];
        match weights {
            Some(weights) if weights.len() <= 5 && weights.iter().any(|weight| *weight > 0) => {
                mix[..weights.len()].copy_from_slice(&weights);
                Ok(Mix(mix))
            }
            _ => Err(
                "expected weights read:write:flush:trim:zero, such as 70:28:2; the last ones may be left out"
                    .to_owned(),
            ),
        }
    }
}

/// Bytes of requests: the least and the most, multiples of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let (least, most) = (bytes::<u64>(least)?, bytes::<u64>(most)?);
        match (512..=32 << 20).contains(&least)
            && (least..=32 << 20).contains(&most)
            && (least | most) % 512 == 0
        {
            true => Ok(Sizes { least, most }),
            false => Err("expected multiples of 512 up to 32MiB, such as 4KiB or 512..64KiB".to_owned()),
        }
    }
}

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Places {
    /// Anywhere.
    Uniform,
    /// One behind the other.
    Sequential,
    /// Some places more often, with this exponent.
    Zipf(f64),
}

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("uniform", _) => Ok(Places::Uniform),
            ("sequential", _) => Ok(Places::Sequential),
            (_, Some(("zipf", theta))) => {
                let theta = theta.parse().ok().filter(|theta| Zipf::new(1, *theta).is_some());
                theta
                    .map(Places::Zipf)
                    .ok_or_else(|| "expected an exponent from 0 to 20 behind zipf:".to_owned())
            }
            _ => Err("expected uniform, sequential or zipf:THETA, such as zipf:0.9".to_owned()),
        }
    }
}

/// Draws offsets and lengths.
pub struct Ranges {
    sizes: Sizes,
    /// Lengths are multiples of it.
    step: u64,
    /// Offsets are multiples of it.
    align: u64,
    places: u64,
    how: Places,
    zipf: Option<Zipf>,
    next: u64,
}

impl Ranges {
    /// Those below `range`, which is as long as a request at least.
    pub fn new(sizes: Sizes, step: u64, how: Places, range: u64) -> Self {
        let align = if sizes.least == sizes.most {
            sizes.least
        } else {
            step
        };
        let places = (range - sizes.most) / align + 1;
        let zipf = match how {
            Places::Zipf(theta) => Zipf::new(places, theta),
            _ => None,
        };
        Ranges {
            sizes,
            step,
            align,
            places,
            how,
            zipf,
            next: 0,
        }
    }

    /// An offset and a length.
    pub fn draw(&mut self, random: &mut Random) -> (u64, u64) {
        let spread = (self.sizes.most - self.sizes.least) / self.step;
        let len = self.sizes.least + random.below(spread + 1) * self.step;
        let place = match (&self.zipf, self.how) {
            // Ranks that share a place make it a little hotter.
            (Some(zipf), _) => mix64(zipf.draw(random)) % self.places,
            (None, Places::Sequential) => {
                let place = self.next % self.places;
                self.next = place + len.div_ceil(self.align);
                place
            }
            _ => random.below(self.places),
        };
        (place * self.align, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_drawn() {
        for (text, seen) in [
            ("1", [1, 0, 0, 0, 0]),
            ("70:28:2", [70, 28, 2, 0, 0]),
            ("0:1:0:3:4", [0, 1, 0, 3, 4]),
        ] {
            let mix: Mix = text.parse().unwrap();
            assert_eq!(mix.0, seen);
            let mut random = Random(3);
            assert!((0..1000).all(|_| mix.has(mix.draw(&mut random))));
        }
        for bad in ["", "0:0", "1:2:3:4:5:6", "a", "1:-1"] {
            assert!(bad.parse::<Mix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_stay_within_and_are_aligned() {
        for sizes in ["4KiB", "512..64KiB"] {
            let sizes: Sizes = sizes.parse().unwrap();
            for how in ["uniform", "sequential", "zipf:0.9"] {
                let mut ranges = Ranges::new(sizes, 512, how.parse().unwrap(), 70_144);
                let mut random = Random(1);
                for _ in 0..2000 {
                    let (offset, len) = ranges.draw(&mut random);
                    assert!(offset + len <= 70_144 && len % 512 == 0 && offset % sizes.least == 0);
                    assert!((sizes.least..=sizes.most).contains(&len));
                }
            }
        }
        for bad in ["100", "0", "4096..512", "1KiB..700", "64MiB"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }
}
