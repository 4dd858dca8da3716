//! Sizes of values: fixed by the key.

use crate::value::HEADER_BYTES;
use pumice_trace::{OBJECT_BYTES, SizeDistribution, bytes};
use pumice_world::mix64;
use std::str::FromStr;
use std::sync::Arc;

/// Larger sizes are taken as this: no server of the protocol stores them.
pub const VALUE_BYTES_MAX: u32 = 128 << 20;
/// So that sizes do not go with whatever else is drawn from a key's hash.
const SALT: u64 = 0x5a1e_05ca_1e05_0001;

/// How large a key's value is. Every size is raised to 24 bytes, the header that each value carries.
#[derive(Clone, Debug)]
pub enum ValueSizes {
    /// Bytes, the same for all, or uniform from the first to the last.
    Range(u32, u32),
    /// Drawn by key from a distribution.
    Drawn(Arc<SizeDistribution>),
    /// What the trace says, and [`OBJECT_BYTES`] where it does not.
    Recorded,
}

impl ValueSizes {
    /// The size of a key's value in bytes.
    pub fn of(&self, key: u64, recorded: Option<u64>) -> u32 {
        let size = match self {
            ValueSizes::Range(first, last) if first == last => *first,
            ValueSizes::Range(first, last) => {
                let sizes = u64::from(last - first) + 1;
                first + ((u128::from(mix64(key ^ SALT)) * u128::from(sizes)) >> 64) as u32
            }
            ValueSizes::Drawn(sizes) => clamp(sizes.size_of(key)),
            ValueSizes::Recorded => clamp(recorded.unwrap_or(OBJECT_BYTES)),
        };
        size.max(HEADER_BYTES as u32)
    }
}

fn clamp(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX).min(VALUE_BYTES_MAX)
}

impl FromStr for ValueSizes {
    type Err = String;

    /// `100`, `600-4096`, `1KiB-1MiB` or `trace`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "trace" {
            return Ok(ValueSizes::Recorded);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (bytes(first), bytes(last)) {
            (Ok(first), Ok(last)) if first <= last && last <= VALUE_BYTES_MAX => {
                Ok(ValueSizes::Range(first, last))
            }
            _ => Err(format!(
                "value size `{text}`: expected bytes such as 100, a range such as 600-4096 or 600-4KiB, or trace"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_their_range_and_fixed_by_the_key() {
        let sizes: ValueSizes = "600-4KiB".parse().unwrap();
        let drawn: Vec<u32> = (0..100_000).map(|key| sizes.of(key, None)).collect();
        assert_eq!(
            (drawn.iter().min(), drawn.iter().max()),
            (Some(&600), Some(&4096))
        );
        let mean = drawn.iter().map(|size| f64::from(*size)).sum::<f64>() / 100_000.0;
        assert!((mean - 2348.0).abs() < 10.0, "{mean}");
        assert_eq!(drawn[5], sizes.of(5, Some(9)));
        assert_eq!(
            "1".parse::<ValueSizes>().unwrap().of(1, None),
            24,
            "room for the header"
        );
        assert_eq!("trace".parse::<ValueSizes>().unwrap().of(1, Some(77)), 77);
        assert_eq!(ValueSizes::Recorded.of(1, Some(u64::MAX)), VALUE_BYTES_MAX);
        assert_eq!(ValueSizes::Recorded.of(1, None), 4096);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in [
            "",
            "x",
            "10-",
            "-10",
            "20-10",
            "1GiB",
            "200MiB",
            "4294967295KiB",
            "0.5TiB",
        ] {
            assert!(bad.parse::<ValueSizes>().is_err(), "{bad}");
        }
    }
}
