//! Cache sizes as users write them.

use std::fmt;
use std::str::FromStr;

use crate::error::SimError;
use crate::rules::Unit;

/// A cache size: `64MiB`, `1.5GiB`, `10%` of the trace's footprint, or a plain number.
///
/// A plain number is bytes, or objects where the replay counts objects. Fractions are rounded down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSize {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain(u64),
    Bytes(u64),
    /// `numerator / denominator` of the footprint.
    Share {
        numerator: u64,
        denominator: u64,
    },
}

/// Units, longest suffix first.
const SUFFIXES: [(&str, u64); 5] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];

impl CacheSize {
    /// Whether the size can be told only from the trace's footprint.
    pub fn needs_footprint(&self) -> bool {
        matches!(self.kind, Kind::Share { .. })
    }

    /// The size in `unit`; `footprint` is in that unit and ignored unless needed.
    ///
    /// # Errors
    /// [`SimError::SizeInBytes`] and [`SimError::TooSmall`]; `trace` is for their messages.
    pub fn resolve(&self, unit: Unit, footprint: u64, trace: &str) -> Result<u64, SimError> {
        let size = match self.kind {
            Kind::Plain(size) => size,
            Kind::Bytes(size) if unit == Unit::Bytes => size,
            Kind::Bytes(_) => {
                return Err(SimError::SizeInBytes {
                    trace: trace.to_owned(),
                    text: self.text.clone(),
                });
            }
            Kind::Share {
                numerator,
                denominator,
            } => {
                let share = u128::from(footprint) * u128::from(numerator) / u128::from(denominator);
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        };
        if size == 0 {
            let (trace, text) = (trace.to_owned(), self.text.clone());
            return Err(SimError::TooSmall {
                trace,
                text,
                footprint,
                unit: unit.name(),
            });
        }
        Ok(size)
    }
}

impl FromStr for CacheSize {
    type Err = SimError;

    /// # Errors
    /// [`SimError::Size`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        match parse(text.trim()) {
            Ok(kind) => Ok(CacheSize {
                text: text.trim().to_owned(),
                kind,
            }),
            Err(what) => Err(SimError::Size {
                text: text.to_owned(),
                what: what.to_owned(),
            }),
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const EXPECTED: &str = "expected a size such as 64MiB, 4GiB (KiB, MiB, GiB, TiB), 10% or a plain number";
const TOO_LARGE: &str = "the number is too large or too long";

fn parse(text: &str) -> Result<Kind, &'static str> {
    if let Some(percent) = text.strip_suffix('%') {
        let (numerator, scale) = decimal(percent.trim_end())?;
        let denominator = scale.checked_mul(100).ok_or(TOO_LARGE)?;
        return Ok(Kind::Share {
            numerator,
            denominator,
        });
    }
    for (suffix, bytes) in SUFFIXES {
        if let Some(number) = text.strip_suffix(suffix) {
            let (numerator, scale) = decimal(number.trim_end())?;
            let size = u128::from(numerator) * u128::from(bytes) / u128::from(scale);
            return u64::try_from(size).map(Kind::Bytes).map_err(|_| TOO_LARGE);
        }
    }
    match decimal(text)? {
        (number, 1) => Ok(Kind::Plain(number)),
        _ => Err(EXPECTED),
    }
}

/// A decimal number as an exact fraction: its digits, and the power of ten they are to be divided by.
fn decimal(text: &str) -> Result<(u64, u64), &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = || whole.bytes().chain(decimals.bytes());
    if whole.is_empty() || !digits().all(|byte| byte.is_ascii_digit()) || text.ends_with('.') {
        return Err(EXPECTED);
    }
    let mut number: u64 = 0;
    for digit in digits() {
        number = number
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(digit - b'0')))
            .ok_or(TOO_LARGE)?;
    }
    let places = u32::try_from(decimals.len()).map_err(|_| TOO_LARGE)?;
    Ok((number, 10u64.checked_pow(places).ok_or(TOO_LARGE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str, unit: Unit, footprint: u64) -> Result<u64, SimError> {
        text.parse::<CacheSize>()?.resolve(unit, footprint, "t")
    }

    #[test]
    fn sizes_are_exact_and_rounded_down() {
        for (text, expected) in [
            ("64MiB", 64 << 20),
            ("4GiB", 4 << 30),
            ("1.5KiB", 1536),
            ("2 TiB", 2 << 40),
            ("7B", 7),
            ("123", 123),
            ("10%", 99),
            ("0.7%", 6),
            ("12.5%", 124),
            ("100%", 999),
            ("250%", 2497),
        ] {
            assert_eq!(size(text, Unit::Bytes, 999).unwrap(), expected, "{text}");
        }
        // Where 64-bit floats would be off by one.
        assert_eq!(size("10%", Unit::Bytes, u64::MAX).unwrap(), u64::MAX / 10);
        assert_eq!(size("29%", Unit::Bytes, 100).unwrap(), 29);
    }

    #[test]
    fn bytes_make_no_sense_for_objects() {
        assert_eq!(size("500", Unit::Objects, 0).unwrap(), 500);
        assert_eq!(size("10%", Unit::Objects, 500).unwrap(), 50);
        assert!(matches!(
            size("64MiB", Unit::Objects, 500),
            Err(SimError::SizeInBytes { .. })
        ));
    }

    #[test]
    fn a_size_of_nothing_is_refused_and_the_smallest_named() {
        for text in ["0", "0%", "1%", "0.1B"] {
            let message = size(text, Unit::Bytes, 99).unwrap_err().to_string();
            assert!(
                message.contains(text) && message.ends_with("the smallest is 1"),
                "{message}"
            );
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "%",
            "MiB",
            "x",
            "-1",
            "1.5",
            "1e9",
            "64MB",
            "5.",
            ".5GiB",
            "1.2.3%",
            "99999999999999999999",
            "16777216TiB",
        ] {
            assert!(
                matches!(text.parse::<CacheSize>(), Err(SimError::Size { .. })),
                "{text}"
            );
        }
    }
}
