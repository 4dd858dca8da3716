//! Sizes as users write them: `64MiB`, `4g`, `10%`, or a plain number.

use std::fmt;
use std::str::FromStr;

/// A size in bytes, a share of something, or a number without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number without a unit: bytes, if nothing else is counted.
    Plain(u64),
    /// Bytes.
    Bytes(u64),
    /// Billionths of a percent of a whole.
    Share(u64),
}

/// Units by their letter, with their power of two.
const UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

const EXPECTED: &str = "expected a size such as 64MiB, 64M, 4GB (K, M, G, T, powers of two) or 10%";
const EXPECTED_BYTES: &str = "expected a size such as 64MiB, 64M, 4GB (K, M, G, T, powers of two)";
const TOO_LARGE: &str = "the size is too large";

/// Decimals that a size may have, and their scale.
const DECIMALS: usize = 9;
const SCALE: u128 = 1_000_000_000;

impl Size {
    /// The share that is all of a whole.
    pub const WHOLE: u64 = 100_000_000_000;

    /// The bytes, where a share is of `whole` bytes. Rounded down.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Plain(bytes) | Size::Bytes(bytes) => bytes,
            Size::Share(share) => {
                let bytes = u128::from(whole) * u128::from(share) / u128::from(Self::WHOLE);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The bytes of a [`Size`], where no share makes sense.
///
/// # Errors
/// For people.
pub fn bytes<T: TryFrom<u64>>(text: &str) -> Result<T, &'static str> {
    match text.parse() {
        Ok(Size::Plain(bytes) | Size::Bytes(bytes)) => bytes.try_into().map_err(|_| TOO_LARGE),
        Ok(Size::Share(_)) | Err(EXPECTED) => Err(EXPECTED_BYTES),
        Err(what) => Err(what),
    }
}

impl FromStr for Size {
    type Err = &'static str;

    /// Units are K, M, G, T, with B or iB after them or not, in any case: all are powers of two, as memcached takes them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let end = text.find(|byte: char| byte != '.' && !byte.is_ascii_digit());
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let scaled = scaled(number)?;
        let unit = unit.trim_start().to_ascii_uppercase();
        let shift = match unit.as_str() {
            "" if number.contains('.') => return Err(EXPECTED),
            "" | "B" | "%" => 0,
            unit => UNITS
                .iter()
                .find(|(letter, _)| matches!(unit.strip_prefix(letter), Some("" | "B" | "IB")))
                .map(|(_, shift)| *shift)
                .ok_or(EXPECTED)?,
        };
        let whole = |number: u128| u64::try_from(number).map_err(|_| TOO_LARGE);
        match unit.as_str() {
            "" => whole(scaled / SCALE).map(Size::Plain),
            "%" => whole(scaled).map(Size::Share),
            _ => whole(scaled.checked_mul(1 << shift).ok_or(TOO_LARGE)? / SCALE).map(Size::Bytes),
        }
    }
}

/// A decimal number, times [`SCALE`].
fn scaled(text: &str) -> Result<u128, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if whole.is_empty() || decimals.is_empty() || decimals.contains('.') || decimals.len() > DECIMALS {
        return Err(EXPECTED);
    }
    let whole: u64 = whole.parse().map_err(|_| TOO_LARGE)?;
    let decimals: u128 = format!("{decimals:0<DECIMALS$}").parse().map_err(|_| EXPECTED)?;
    Ok(u128::from(whole) * SCALE + decimals)
}

/// Bytes in the largest unit that shows them well, for people; `{:#}` adds the bytes where that is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, shift)| self.0 >> shift > 0);
        match unit {
            None => write!(f, "{} B", self.0),
            Some((name, shift)) if self.0.trailing_zeros() >= *shift => {
                write!(f, "{} {name}iB", self.0 >> shift)
            }
            Some((name, shift)) => {
                #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
                let value = self.0 as f64 / (1u64 << shift) as f64;
                write!(f, "{value:.1} {name}iB")?;
                match f.alternate() {
                    true => write!(f, " ({} bytes)", self.0),
                    false => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_they_say() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64MB", 64 << 20),
            ("64mb", 64 << 20),
            ("64m", 64 << 20),
            ("64M", 64 << 20),
            ("4GiB", 4u64 << 30),
            ("4 g", 4u64 << 30),
            ("4gib", 4u64 << 30),
            ("1.5KiB", 1536),
            ("1.5k", 1536),
            ("1KB", 1024),
            ("2 TiB", 2 << 40),
            ("2T", 2 << 40),
            ("7B", 7),
            ("7b", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("123".parse(), Ok(Size::Plain(123)));
        assert_eq!("18446744073709551615".parse(), Ok(Size::Plain(u64::MAX)));
        assert_eq!("10%".parse::<Size>().unwrap().of(1000), 100);
        assert_eq!("12.5 %".parse::<Size>().unwrap().of(1000), 125);
        assert_eq!("100%".parse(), Ok(Size::Share(Size::WHOLE)));
        assert_eq!((bytes("4k"), bytes("4k")), (Ok(4096u32), Ok(4096u64)));
        assert_eq!(
            (bytes::<u32>("10%"), bytes::<u32>("2048x")),
            (Err(EXPECTED_BYTES), Err(EXPECTED_BYTES))
        );
        assert_eq!(bytes::<u32>("4GiB"), Err(TOO_LARGE));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "1e9",
            "%",
            "MiB",
            "M",
            "64iB",
            "64MBit",
            "64P",
            "5.GiB",
            ".5GiB",
            "1.2.3%",
            "1.0000000001%",
            "16777216TiB",
            "99999999TiB",
            "99999999999999999999",
            "١MiB",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_the_largest_unit() {
        assert_eq!(Human(4 << 30).to_string(), "4 GiB");
        assert_eq!(Human((3 << 20) / 2).to_string(), "1.5 MiB");
        assert_eq!(Human(12).to_string(), "12 B");
        assert_eq!(
            format!("{:#} {:#}", Human(1000 << 20), Human(1025)),
            "1000 MiB 1.0 KiB (1025 bytes)"
        );
    }
}
