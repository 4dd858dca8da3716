//! Sizes as users write them: `64MiB`, `4GiB`, `10%`, or a plain number of bytes.

use std::fmt;
use std::str::FromStr;

/// A size in bytes, or a share of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many thousandths of a percent of a whole.
    Share(u64),
}

const UNITS: [(&str, u64); 5] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];

const EXPECTED: &str = "expected a size such as 64MiB, 4GiB (KiB, MiB, GiB, TiB) or 10%";

impl Size {
    /// The bytes, where a share is of `whole` bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Share(thousandths) => {
                let bytes = u128::from(whole) * u128::from(thousandths) / 100_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }

    /// The bytes, where no share makes sense.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Size::Bytes(bytes) => Some(bytes),
            Size::Share(_) => None,
        }
    }
}

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(percent) = text.strip_suffix('%') {
            return thousandths(percent.trim_end(), 1000).map(Size::Share);
        }
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)))
            .unwrap_or((text, 1));
        // Plain bytes have no fraction; of larger units three decimals are exact enough.
        let bytes = match number.parse::<u64>() {
            Ok(number) => number.checked_mul(unit).ok_or("the size is too large")?,
            Err(_) if unit > 1 => {
                let thousandths = u128::from(thousandths(number, 1000)?) * u128::from(unit) / 1000;
                u64::try_from(thousandths).map_err(|_| "the size is too large")?
            }
            Err(_) => return Err(EXPECTED),
        };
        Ok(Size::Bytes(bytes))
    }
}

/// A decimal number with at most three decimals, times `scale` = 1000.
fn thousandths(text: &str, scale: u64) -> Result<u64, &'static str> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(decimals) || decimals.len() > 3 {
        return Err(EXPECTED);
    }
    let whole: u64 = whole.parse().map_err(|_| "the size is too large")?;
    let decimals: u64 = format!("{decimals:0<3}").parse().map_err(|_| EXPECTED)?;
    whole
        .checked_mul(scale)
        .and_then(|whole| whole.checked_add(decimals))
        .ok_or("the size is too large")
}

/// Bytes in the largest unit that shows them well, for people.
#[derive(Clone, Copy, Debug)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..4].iter().rev().find(|(_, unit)| self.0 >= *unit);
        match unit {
            None => write!(f, "{} B", self.0),
            Some((name, unit)) if self.0.is_multiple_of(*unit) => write!(f, "{} {name}", self.0 / unit),
            Some((name, unit)) => {
                #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
                let value = self.0 as f64 / *unit as f64;
                write!(f, "{value:.1} {name}")
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
            ("4GiB", 4u64 << 30),
            ("1.5KiB", 1536),
            ("2 TiB", 2 << 40),
            ("123", 123),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("10%".parse::<Size>().unwrap().of(1000), 100);
        assert_eq!("12.5%".parse::<Size>().unwrap().of(1000), 125);
        assert_eq!("10%".parse::<Size>().unwrap().bytes(), None);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "64MB",
            "1e9",
            "%",
            "MiB",
            "5.GiB",
            "1.2.3%",
            "99999999TiB",
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
    }
}
