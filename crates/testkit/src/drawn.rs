//! Dimensions of a model: each life of it has a value of each, drawn with its weight. [`Pairs`] counts how often two values met.

use pumice_world::Random;
use std::fmt::Write;
use std::time::Instant;

/// A dimension: its name, and the names of its values with their weights.
pub type Dimension = (&'static str, &'static [(&'static str, u64)]);

/// The values of a dimension, an enum.
pub trait Drawn: Copy + 'static {
    /// The place of the dimension among all.
    const NUMBER: usize;
    /// All values, in the order of the dimension.
    const ALL: &'static [Self];

    /// The place of this value among them.
    fn value(self) -> u8;
}

/// Makes an enum for each dimension, and the list `DIMENSIONS`.
///
/// ```
/// pumice_testkit::dimensions! {
///     Power "power": On "on" 2, Cut "cut" 1;
///     Parts "parts": Whole "whole chunks" 1, Parts "parts, too" 1;
/// }
///
/// let life = pumice_testkit::Life::draw(DIMENSIONS, &mut pumice_world::Random(1), None);
/// assert!(life.get::<Power>() == Power::On || life.get::<Power>() == Power::Cut);
/// ```
#[macro_export]
macro_rules! dimensions {
    ($($name:ident $text:literal: $($value:ident $label:literal $weight:literal),+;)+) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u8)]
            enum $name { $($value),+ }

            impl $crate::Drawn for $name {
                const NUMBER: usize = DimensionNumber::$name as usize;
                const ALL: &'static [Self] = &[$(Self::$value),+];

                fn value(self) -> u8 {
                    self as u8
                }
            }
        )+

        #[repr(u8)]
        enum DimensionNumber { $($name),+ }

        const DIMENSIONS: &[$crate::Dimension] = &[$(($text, &[$(($label, $weight)),+])),+];
    };
}

/// A value of each dimension.
#[derive(Clone, Debug)]
pub struct Life {
    dimensions: &'static [Dimension],
    values: Vec<u8>,
}

impl Life {
    /// Draws a value of each dimension. `kept`: the first so many are those of a former life.
    pub fn draw(dimensions: &'static [Dimension], random: &mut Random, kept: Option<(&Self, usize)>) -> Self {
        let draw = |(_, values): &Dimension| {
            let mut at = random.below(values.iter().map(|(_, weight)| weight).sum());
            let mut chosen = 0;
            while at >= values[chosen].1 {
                at -= values[chosen].1;
                chosen += 1;
            }
            chosen as u8
        };
        let mut values: Vec<u8> = dimensions.iter().map(draw).collect();
        if let Some((former, count)) = kept {
            values[..count].copy_from_slice(&former.values[..count]);
        }
        Self { dimensions, values }
    }

    /// The value of a dimension.
    pub fn get<T: Drawn>(&self) -> T {
        T::ALL[usize::from(self.values[T::NUMBER])]
    }

    /// Changes the value of a dimension.
    pub fn set<T: Drawn>(&mut self, value: T) {
        self.values[T::NUMBER] = value.value();
    }

    /// All dimensions and their values, in one line.
    pub fn describe(&self) -> String {
        let parts = self.dimensions.iter().zip(&self.values);
        let parts = parts.map(|((name, values), value)| format!("{name}: {}", values[usize::from(*value)].0));
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// How often each pair of values was drawn.
pub struct Pairs {
    dimensions: &'static [Dimension],
    counts: Vec<u64>,
}

/// Most values of a dimension.
const VALUES_MAX: usize = 8;

impl Pairs {
    /// None was drawn yet.
    ///
    /// # Panics
    /// If a dimension has more than 8 values.
    pub fn new(dimensions: &'static [Dimension]) -> Self {
        assert!(dimensions.iter().all(|(_, values)| values.len() <= VALUES_MAX));
        let side = dimensions.len() * VALUES_MAX;
        let counts = vec![0; side * side];
        Self { dimensions, counts }
    }

    fn at(&self, one: (usize, u8), other: (usize, u8)) -> usize {
        let number = |(dimension, value): (usize, u8)| dimension * VALUES_MAX + usize::from(value);
        number(one) * self.dimensions.len() * VALUES_MAX + number(other)
    }

    /// Counts the pairs of a life.
    pub fn count(&mut self, life: &Life) {
        for (one, value) in life.values.iter().enumerate() {
            for (other, second) in life.values.iter().enumerate().skip(one + 1) {
                let at = self.at((one, *value), (other, *second));
                self.counts[at] += 1;
            }
        }
    }

    /// A line for each pair of dimensions: how often each pair of their values was drawn. And the lowest count of all.
    pub fn report(&self) -> (String, u64) {
        let (mut text, mut least) = (String::new(), u64::MAX);
        for (one, (name, values)) in self.dimensions.iter().enumerate() {
            for (other, (second_name, seconds)) in self.dimensions.iter().enumerate().skip(one + 1) {
                let rows = (0..values.len() as u8).map(|value| {
                    let counts = (0..seconds.len() as u8).map(|second| {
                        let count = self.counts[self.at((one, value), (other, second))];
                        least = least.min(count);
                        count.to_string()
                    });
                    counts.collect::<Vec<_>>().join(" ")
                });
                let rows = rows.collect::<Vec<_>>().join(" | ");
                let _ = writeln!(text, "{name} x {second_name}: {rows}");
            }
        }
        (text, least)
    }
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let secs = given("PUMICE_MODEL_SECS");
    let first = given("PUMICE_MODEL_SEED").unwrap_or(if secs.is_some() { count } else { 0 });
    let end = match (given("PUMICE_MODEL_COUNT"), secs) {
        (Some(count), _) => first + count,
        (None, Some(_)) => u64::MAX,
        (None, None) => first + count,
    };
    let began = Instant::now();
    (first..end).take_while(move |_| secs.is_none_or(|secs| began.elapsed().as_secs() < secs))
}

/// Runs the lives of each seed, and prints how many seeds there were and how often values met. Returns how many. The seeds are those below
/// `count`, or as the environment says. `PUMICE_MODEL_SECS`: as many as fit these seconds, after those of each run; `PUMICE_MODEL_SEED`: the
/// first; `PUMICE_MODEL_COUNT`: how many.
pub fn draw_lives(count: u64, dimensions: &'static [Dimension], mut run: impl FnMut(u64, &mut Pairs)) -> u64 {
    let (began, mut pairs, mut done, mut last) = (Instant::now(), Pairs::new(dimensions), 0, 0);
    for seed in seeds(count) {
        run(seed, &mut pairs);
        (done, last) = (done + 1, seed);
    }
    let (table, least) = pairs.report();
    println!("{table}");
    println!(
        "{done} seeds to {last} in {:.0} s, each pair of values was drawn {least} times or more",
        began.elapsed().as_secs_f64(),
    );
    done
}

/// The content of this number, of so many bytes, a multiple of 8: random bytes, or some of them, up to the half, and then a repeated word.
pub fn content(number: u64, is_random: bool, bytes: usize) -> Vec<u8> {
    let mut random = Random(number * 77);
    let mut content = random.next_u64().to_le_bytes().repeat(bytes / 8);
    let random_bytes = if is_random {
        bytes
    } else {
        // Contents of all lengths, compressed.
        (number as usize * 37) % (bytes / 2)
    };
    for word in content[..random_bytes / 8 * 8].chunks_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    content
}
