//! Sums of suffixes of a growing row of numbers.

/// Numbers below one sum of the level above.
const WIDTH: usize = 32;

/// A row of numbers with the sums of each 32, each 1,024, and so on. Cost of each operation: at most 32 additions a level.
#[derive(Debug)]
pub(crate) struct Sums {
    /// The numbers, then the sums of each [`WIDTH`] of the level before. The last level has at most [`WIDTH`] entries.
    levels: Vec<Vec<u64>>,
}

impl Sums {
    /// A row of `len` zeros.
    pub(crate) fn new(len: usize) -> Self {
        let mut levels = vec![vec![0; len.max(1)]];
        while let Some(last) = levels.last().filter(|last| last.len() > WIDTH) {
            levels.push(vec![0; last.len().div_ceil(WIDTH)]);
        }
        Self { levels }
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> usize {
        self.levels[0].len()
    }

    pub(crate) fn add(&mut self, mut at: usize, value: u64) {
        for level in &mut self.levels {
            level[at] += value;
            at /= WIDTH;
        }
    }

    pub(crate) fn subtract(&mut self, mut at: usize, value: u64) {
        for level in &mut self.levels {
            level[at] -= value;
            at /= WIDTH;
        }
    }

    /// The sum of all numbers behind `at`.
    pub(crate) fn behind(&self, mut at: usize) -> u64 {
        let mut sum = 0;
        for level in &self.levels {
            let end = (at / WIDTH * WIDTH + WIDTH).min(level.len());
            sum += level[at + 1..end].iter().sum::<u64>();
            at /= WIDTH;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Random;

    #[test]
    fn sums_are_those_of_an_array() {
        for len in [1, 63, 64, 65, 4096, 4097, 10_000] {
            let (mut sums, mut array, mut random) = (Sums::new(len), vec![0; len], Random(1));
            for _ in 0..2000 {
                let at = random.below(len as u64) as usize;
                let value = random.below(1000);
                if array[at] >= value {
                    sums.subtract(at, value);
                    array[at] -= value;
                } else {
                    sums.add(at, value);
                    array[at] += value;
                }
                let at = random.below(len as u64) as usize;
                assert_eq!(sums.behind(at), array[at + 1..].iter().sum::<u64>());
            }
        }
    }
}
