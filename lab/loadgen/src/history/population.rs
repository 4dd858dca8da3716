//! The keys of a history check: what kind of object each has, and which are asked for when.

use super::register::Register;
use super::state::joined;
use crate::keytext::KeyText;
use crate::value::{BadValue, HEADER_BYTES, Values};
use locks::Mutex;
use pumice_world::{Random, mix64};

/// What kind of object a key has. Each kind has changes of its own, so that a value says in full how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// One value after another.
    Plain,
    /// The same, of a size that servers store in slices.
    Large,
    /// A value with pieces appended to it.
    Appended,
    /// A value with pieces before it.
    Prepended,
    /// A number that grows.
    Counter,
}

impl Class {
    /// Whether one value may stand in place of another: not where pieces or numbers are added to what was set.
    pub fn is_replaced_by_cas(self) -> bool {
        matches!(self, Class::Plain | Class::Large)
    }
}

/// Client flags of all counters.
pub const COUNTER_FLAGS: u32 = 77;
/// A counter's number begins with the version that set it, above what is ever added.
const COUNTER_BITS: u32 = 24;
const LARGE_BYTES: (u64, u64) = (100_000, 700_000);
/// One key in so many is of the class.
const LARGE_EVERY: u32 = 512;
const OTHERS_EVERY: u32 = 32;
/// Keys that are asked for again and again.
const HOT_KEYS: u64 = 64;
/// Neighbours that all clients ask for at the same time, and for how long: mostly keys that nobody has asked for lately, and which
/// only flash has.
const SPOT_KEYS: u64 = 12;
const SPOT_MS: u32 = 15;

/// All keys with their histories.
pub struct Population {
    pub registers: Box<[Mutex<Register>]>,
    pub text: KeyText,
    pub values: Values,
    value_bytes_max: u32,
    seed: u64,
}

impl Population {
    /// `keys` keys with nothing under them.
    pub fn new(keys: u32, text: KeyText, stamp: u64, value_bytes_max: u32, seed: u64) -> Self {
        Population {
            registers: (0..keys).map(|_| Mutex::default()).collect(),
            text,
            values: Values::new(stamp),
            value_bytes_max,
            seed,
        }
    }

    /// How many keys there are.
    pub fn count(&self) -> u32 {
        self.registers.len() as u32
    }

    /// What kind of object a key has.
    pub fn class(key: u32) -> Class {
        if key.is_multiple_of(LARGE_EVERY) {
            return Class::Large;
        }
        match key % OTHERS_EVERY {
            1 | 2 => Class::Counter,
            3 => Class::Appended,
            4 => Class::Prepended,
            _ => Class::Plain,
        }
    }

    /// Draws a key that is to be asked for at `now`.
    pub fn draw(&self, random: &mut Random, now: u32) -> u32 {
        let keys = u64::from(self.count());
        let key = match random.below(10) {
            0..4 => random.below(keys),
            4..8 => mix64(self.seed ^ u64::from(now / SPOT_MS)) % keys + random.below(SPOT_KEYS),
            _ => random.below(HOT_KEYS) * 67,
        };
        (key % keys) as u32
    }

    /// The length of a new value.
    pub fn length(&self, random: &mut Random, key: u32) -> usize {
        let (least, most) = match Self::class(key) {
            Class::Large => LARGE_BYTES,
            // Where the first value ends and pieces begin has to be known.
            Class::Appended | Class::Prepended => return self.base_length(key),
            Class::Plain | Class::Counter => (HEADER_BYTES as u64, u64::from(self.value_bytes_max)),
        };
        let length = least as f64 * (most as f64 / least as f64).powf(random.next_f64());
        (length as usize).max(HEADER_BYTES)
    }

    fn base_length(&self, key: u32) -> usize {
        HEADER_BYTES + (mix64(u64::from(key)) % u64::from(self.value_bytes_max)) as usize
    }

    /// Client flags of the value of a version.
    pub fn flags(key: u32, version: u32) -> u32 {
        match Self::class(key) {
            Class::Counter => COUNTER_FLAGS,
            _ => mix64(u64::from(version)) as u32,
        }
    }

    /// What a value that is set is known by.
    pub fn content(key: u32, version: u32) -> u64 {
        match Self::class(key) {
            Class::Counter => u64::from(version) << COUNTER_BITS,
            _ => u64::from(version),
        }
    }

    /// Tells what stands under a key from what was returned for it.
    ///
    /// # Errors
    /// What is wrong with the bytes, in words.
    pub fn read(&self, key: u32, flags: u64, value: &[u8]) -> Result<u64, String> {
        let (content, expected) = match Self::class(key) {
            Class::Counter => match number(value) {
                Some(number) => (number, COUNTER_FLAGS),
                None => {
                    self.version(key, value)?;
                    return Err("is DAMAGED: it is no number".into());
                }
            },
            class @ (Class::Appended | Class::Prepended) => {
                let base = self.base_length(key);
                let pieces = value.len().checked_sub(base);
                let pieces = pieces.filter(|pieces| pieces.is_multiple_of(HEADER_BYTES));
                let Some(pieces) = pieces else {
                    self.version(key, value)?;
                    return Err(format!(
                        "of {} bytes is DAMAGED: no value and pieces of this key have that length",
                        value.len()
                    ));
                };
                let (base, pieces) = if class == Class::Appended {
                    value.split_at(base)
                } else {
                    let (pieces, base) = value.split_at(pieces);
                    (base, pieces)
                };
                let version = self.version(key, base)?;
                let mut content = Self::content(key, version);
                let mut join = |piece| -> Result<(), String> {
                    content = joined(content, self.version(key, piece)?);
                    Ok(())
                };
                let pieces = pieces.chunks(HEADER_BYTES);
                if class == Class::Appended {
                    pieces.into_iter().try_for_each(&mut join)?;
                } else {
                    pieces.rev().try_for_each(&mut join)?;
                }
                (content, Self::flags(key, version))
            }
            Class::Plain | Class::Large => {
                let version = self.version(key, value)?;
                (Self::content(key, version), Self::flags(key, version))
            }
        };
        if flags == u64::from(expected) {
            Ok(content)
        } else {
            Err(format!(
                "has flags {flags}, and not {expected} as it was set with"
            ))
        }
    }

    fn version(&self, key: u32, value: &[u8]) -> Result<u32, String> {
        match self.values.verify(u64::from(key), value) {
            Ok(origin) if origin.stamp == self.values.stamp() => Ok(origin.version),
            Ok(origin) => Err(format!("is another run's, with stamp {}", origin.stamp)),
            Err(BadValue::Foreign(owner)) => Err(format!("is FOREIGN: it belongs to key {owner}")),
            Err(BadValue::Header) => Err(format!(
                "of {} bytes is DAMAGED at its beginning, or cut: {}",
                value.len(),
                value[..value.len().min(40)].escape_ascii()
            )),
            Err(BadValue::Filler(at)) => {
                Err(format!("of {} bytes is DAMAGED from byte {at} on", value.len()))
            }
        }
    }
}

/// A counter's number, with the spaces that may stand behind it.
fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value)
        .ok()?
        .trim_end_matches(' ')
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population() -> Population {
        Population::new(2000, KeyText::new("h", None).unwrap(), 5, 500, 1)
    }

    fn value(all: &Population, key: u32, version: u32, length: usize) -> Vec<u8> {
        let mut value = Vec::new();
        all.values.append(&mut value, key.into(), version, length);
        value
    }

    #[test]
    fn every_class_has_keys_and_all_are_drawn() {
        let all = population();
        let mut random = Random(3);
        let mut drawn = vec![false; 2000];
        for now in 0..60_000 {
            drawn[all.draw(&mut random, now) as usize] = true;
        }
        assert!(drawn.iter().all(|drawn| *drawn));
        for class in [
            Class::Plain,
            Class::Large,
            Class::Appended,
            Class::Prepended,
            Class::Counter,
        ] {
            assert!((0..2000).any(|key| Population::class(key) == class), "{class:?}");
        }
    }

    #[test]
    fn values_are_told_apart() {
        let all = population();
        let flags = |version| u64::from(Population::flags(8, version));
        let good = value(&all, 8, 3, 100);
        assert_eq!(all.read(8, flags(3), &good), Ok(3));
        let earlier = Population::new(2000, KeyText::new("h", None).unwrap(), 4, 500, 1);
        for (key, flags, bytes, what) in [
            (8, flags(4), &good[..], "flags"),
            (9, flags(3), &good, "FOREIGN"),
            (8, flags(3), &good[..99], "DAMAGED"),
            (8, flags(3), &value(&earlier, 8, 3, 100), "another run"),
            (1, COUNTER_FLAGS.into(), b"12x", "DAMAGED"),
            // Whatever this key's own values look like, another key's is told by name.
            (1, 0, &good, "FOREIGN"),
            (3, 0, &good, "FOREIGN"),
            (4, 0, &good, "FOREIGN"),
        ] {
            let error = all.read(key, flags, bytes).unwrap_err();
            assert!(error.contains(what), "{key}: {error}");
        }
        assert_eq!(all.read(1, COUNTER_FLAGS.into(), b"123 "), Ok(123));
    }

    #[test]
    fn pieces_are_read_in_the_order_in_which_they_came() {
        let all = population();
        for (key, front) in [(3, false), (4, true)] {
            let base = value(&all, key, 5, all.base_length(key));
            let pieces = [6, 9].map(|version| value(&all, key, version, HEADER_BYTES));
            let whole = if front {
                [&pieces[1][..], &pieces[0], &base].concat()
            } else {
                [&base[..], &pieces[0], &pieces[1]].concat()
            };
            let flags = u64::from(Population::flags(key, 5));
            assert_eq!(all.read(key, flags, &whole), Ok(joined(joined(5, 6), 9)));
            assert!(all.read(key, flags, &whole[1..]).is_err());
        }
    }
}
