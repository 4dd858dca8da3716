//! The size of a simulated cache.

use std::fmt;
use std::str::FromStr;

use pumice_trace::Size;

use crate::error::SimError;
use crate::rules::Unit;

/// A cache size: `64MiB`, `1.5G`, `10%` of the trace's footprint, or a plain number.
///
/// A plain number is bytes, or objects where the replay counts objects. Fractions are rounded down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSize {
    text: String,
    size: Size,
}

impl CacheSize {
    /// Whether the size can be told only from the trace's footprint.
    pub fn needs_footprint(&self) -> bool {
        matches!(self.size, Size::Share(_))
    }

    /// The size in `unit`; `footprint` is in that unit and ignored unless needed.
    ///
    /// # Errors
    /// [`SimError::SizeInBytes`] and [`SimError::TooSmall`]; `trace` is for their messages.
    pub fn resolve(&self, unit: Unit, footprint: u64, trace: &str) -> Result<u64, SimError> {
        let (trace, text) = (trace.to_owned(), self.text.clone());
        match self.size.of(footprint) {
            _ if matches!(self.size, Size::Bytes(_)) && unit != Unit::Bytes => {
                Err(SimError::SizeInBytes { trace, text })
            }
            0 => Err(SimError::TooSmall {
                trace,
                text,
                footprint,
                unit: unit.name(),
            }),
            size => Ok(size),
        }
    }
}

impl FromStr for CacheSize {
    type Err = SimError;

    /// # Errors
    /// [`SimError::Size`].
    fn from_str(text: &str) -> Result<Self, SimError> {
        let text = text.trim().to_owned();
        match text.parse() {
            Ok(size) => Ok(CacheSize { text, size }),
            Err(what) => Err(SimError::Size { text, what }),
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
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
        for text in ["", "x", "1.5", "5.", "16777216TiB"] {
            assert!(
                matches!(text.parse::<CacheSize>(), Err(SimError::Size { .. })),
                "{text}"
            );
        }
    }
}
