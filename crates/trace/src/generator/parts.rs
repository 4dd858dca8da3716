//! The parts of a generator's name: `keys=1000,theta=0.9,…`.

use crate::fields::parse_u64;
use crate::zipf::Zipf;

/// Parts that every kind of generator has.
const COMMON: [&str; 4] = ["requests", "seed", "size", "sizes"];

/// The parts of a name as given, each at most once. Errors say what is wrong with the name.
pub(super) struct Parts<'a> {
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    /// Takes `text` apart; its kind of generator has the parts `own` besides those that all have.
    pub(super) fn parse(text: &'a str, own: &[&str]) -> Result<Self, String> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                format!("expected parts such as `keys=1000` separated by commas, found `{part}`")
            })?;
            if !own.contains(&name) && !COMMON.contains(&name) {
                let known = [own, &COMMON].concat().join(", ");
                return Err(format!("unknown part `{name}` (parts: {known})"));
            }
            if given.iter().any(|&(other, _)| other == name) {
                return Err(format!("`{name}` is given twice"));
            }
            given.push((name, value));
        }
        Ok(Parts { given })
    }

    /// The text of a part.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        let part = self.given.iter().find(|&&(given, _)| given == name)?;
        Some(part.1)
    }

    /// A part that is a whole number.
    pub(super) fn whole(&self, name: &str) -> Result<Option<u64>, String> {
        self.text(name).map(|value| whole(name, value)).transpose()
    }

    /// A part that is a number in `[low, high]`.
    pub(super) fn decimal(&self, name: &str, low: f64, high: f64) -> Result<Option<f64>, String> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let number: f64 = value
            .parse()
            .map_err(|_| format!("`{name}={value}` is not a number"))?;
        if !(low..=high).contains(&number) {
            return Err(format!("`{name}={value}`: {name} from {low} to {high}"));
        }
        Ok(Some(number))
    }

    /// The number of keys, if given.
    pub(super) fn keys(&self) -> Result<Option<u64>, String> {
        let keys = self.whole("keys")?;
        match keys {
            Some(keys) if !(1..=Zipf::MAX_RANKS).contains(&keys) => {
                Err(format!("`keys={keys}`: keys are from 1 to {}", Zipf::MAX_RANKS))
            }
            keys => Ok(keys),
        }
    }

    /// The Zipf exponent, if given.
    pub(super) fn theta(&self) -> Result<Option<f64>, String> {
        self.decimal("theta", 0.0, Zipf::MAX_THETA)
    }
}

/// A whole number; `name` is the part it is from.
pub(super) fn whole(name: &str, value: &str) -> Result<u64, String> {
    parse_u64(value.as_bytes()).ok_or_else(|| format!("`{name}={value}` is not a whole number"))
}

/// The value of a part that has no default.
pub(super) fn required<T>(name: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("`{name}` is missing"))
}
