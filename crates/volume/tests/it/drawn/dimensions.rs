//! The dimensions of a life, and how often each pair of their values was drawn.

use pumice_world::Random;
use std::fmt::Write;

/// A dimension: its name, and its values with their weights.
type Dimension = (&'static str, &'static [(&'static str, u64)]);

macro_rules! dimensions {
    ($($name:ident $text:literal: $($value:ident $label:literal $weight:literal),+;)+) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u8)]
            pub enum $name { $($value),+ }

            impl $name {
                const ALL: &'static [Self] = &[$(Self::$value),+];
            }
        )+

        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        enum Number { $($name),+ }

        const DIMENSIONS: &[Dimension] = &[$(($text, &[$(($label, $weight)),+])),+];

        $(
            impl Of for $name {
                fn of(life: &Life) -> Self {
                    Self::ALL[usize::from(life.0[Number::$name as usize])]
                }

                fn set(life: &mut Life, value: Self) {
                    life.0[Number::$name as usize] = value as u8;
                }
            }
        )+
    };
}

/// A dimension whose value a life has.
pub trait Of {
    fn of(life: &Life) -> Self;
    fn set(life: &mut Life, value: Self);
}

// Of a seed: the device keeps them.
dimensions! {
    Room "cache": Tiny "1 MiB, of 1 MiB" 1, Small "3 MiB, of 5 MiB" 2, Large "8 MiB, of 1 MiB" 1;
    Index "index": Narrow "a slot for some chunks" 1, Wide "a slot for each" 1;
    Limit "dirty limit": Low "15 %" 1, Half "50 %" 1, All "100 %" 2;
    Share "duplicates": None "none" 1, Half "half" 3, Most "most" 1;
    Pool "pool": Few "4 contents" 1, Some "24" 1, Many "64" 2;
    Kind "contents": Random "random" 1, Compressible "compressible" 1, Mixed "mixed" 1;
    Parts "parts": Whole "whole chunks" 1, Parts "parts, too" 1;
    Zeros "zeros": None "none" 2, Trims "trims" 1, Zeros "trims and zeros" 1;
    Flushes "flushes": Rare "rare" 1, Often "often" 1;
    Fua "FUA": None "none" 1, Some "some" 1;
    Cleaner "cleaner": Idle "when a reclaim needs it" 1, Prompt "each second" 1;
    Clock "seconds": Rare "few" 1, Often "many" 1;
    Depth "requests at once": One "1" 1, Twelve "12" 2;
    Length "length": Short "short" 1, Middle "middle" 1, Long "long" 1;
    Speed "cache device": Even "even" 1, Late "some writes are late" 1;
    Mode "mode": Back "write-back" 4, Through "write-through" 1;
    End "end": Cache "at a write or append of the cache" 6, Backing "at a write of the backing device" 2, Idle "between requests" 2, Stop "a clean stop" 1;
    Power "power": On "on" 2, Cut "cut" 1;
    Begin "start": Whole "whole" 3, Killed "killed once or more" 1;
    Damage "damage": None "none" 11, Bits "bits of the cache" 1;
}

/// A value of each dimension.
#[derive(Clone, Copy, Debug)]
pub struct Life([u8; DIMENSIONS.len()]);

/// Dimensions that a seed keeps, as the device is formatted with them.
const KEPT: usize = 2;

impl Life {
    /// Draws all values; those that the device keeps only if `former` is none.
    pub fn draw(random: &mut Random, former: Option<&Self>) -> Self {
        let mut life = Self([0; DIMENSIONS.len()]);
        for (number, (_, values)) in DIMENSIONS.iter().enumerate() {
            let mut at = random.below(values.iter().map(|(_, weight)| weight).sum());
            let mut chosen = 0;
            while at >= values[chosen].1 {
                at -= values[chosen].1;
                chosen += 1;
            }
            life.0[number] = chosen as u8;
        }
        if let Some(former) = former {
            life.0[..KEPT].copy_from_slice(&former.0[..KEPT]);
        }
        life
    }

    pub fn get<T: Of>(&self) -> T {
        T::of(self)
    }

    pub fn set<T: Of>(&mut self, value: T) {
        T::set(self, value);
    }

    pub fn describe(&self) -> String {
        let parts = DIMENSIONS.iter().zip(self.0);
        let parts = parts.map(|((name, values), value)| format!("{name}: {}", values[usize::from(value)].0));
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// How often each pair of values was drawn.
pub struct Pairs(Vec<u64>);

/// Most values of a dimension.
const VALUES: usize = 4;

impl Default for Pairs {
    fn default() -> Self {
        let side = DIMENSIONS.len() * VALUES;
        Self(vec![0; side * side])
    }
}

impl Pairs {
    fn at(one: (usize, u8), other: (usize, u8)) -> usize {
        let number = |(dimension, value): (usize, u8)| dimension * VALUES + usize::from(value);
        number(one) * DIMENSIONS.len() * VALUES + number(other)
    }

    pub fn count(&mut self, life: &Life) {
        for (one, value) in life.0.into_iter().enumerate() {
            for (other, second) in life.0.into_iter().enumerate().skip(one + 1) {
                self.0[Self::at((one, value), (other, second))] += 1;
            }
        }
    }

    /// A line for each pair of dimensions: how often each pair of values was drawn. The second value is that of the pair that was drawn least often.
    pub fn report(&self) -> (String, u64) {
        let (mut text, mut least) = (String::new(), u64::MAX);
        for (one, (name, values)) in DIMENSIONS.iter().enumerate() {
            for (other, (second_name, second_values)) in DIMENSIONS.iter().enumerate().skip(one + 1) {
                let counts: Vec<String> = (0..values.len() as u8)
                    .map(|value| {
                        let row = (0..second_values.len() as u8).map(|second| {
                            let count = self.0[Self::at((one, value), (other, second))];
                            least = least.min(count);
                            count.to_string()
                        });
                        row.collect::<Vec<_>>().join(" ")
                    })
                    .collect();
                let _ = writeln!(text, "{name} x {second_name}: {}", counts.join(" | "));
            }
        }
        (text, least)
    }
}
