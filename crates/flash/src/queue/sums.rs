//! Prefix sums over a short list (a Fenwick tree).

/// Sums of a list of numbers from its start, in O(log n); rebuilt in O(n) when the list changes its shape.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// `tree[i]` is the sum of the `lowbit(i + 1)` values that end at `i`.
    tree: Vec<u64>,
}

impl Sums {
    /// Starts over with these values.
    pub(super) fn rebuild(&mut self, values: impl Iterator<Item = u64>) {
        self.tree.clear();
        self.tree.extend(values);
        for at in 0..self.tree.len() {
            let parent = at | (at + 1);
            if parent < self.tree.len() {
                self.tree[parent] += self.tree[at];
            }
        }
    }

    pub(super) fn add(&mut self, mut at: usize, bytes: u64) {
        while at < self.tree.len() {
            self.tree[at] += bytes;
            at |= at + 1;
        }
    }

    pub(super) fn subtract(&mut self, mut at: usize, bytes: u64) {
        while at < self.tree.len() {
            self.tree[at] -= bytes;
            at |= at + 1;
        }
    }

    /// The sum of the values before `at`.
    pub(super) fn before(&self, mut at: usize) -> u64 {
        let mut sum = 0;
        while at > 0 {
            sum += self.tree[at - 1];
            at &= at - 1;
        }
        sum
    }

    /// The value that `offset` falls into, and the sum before it; the last value if `offset` is past the end. The list is not
    /// empty.
    pub(super) fn find(&self, offset: u64) -> (usize, u64) {
        let (mut at, mut before) = (0, 0);
        let mut step = self.tree.len().next_power_of_two();
        while step > 0 {
            let next = at + step;
            if next <= self.tree.len() && before + self.tree[next - 1] <= offset {
                at = next;
                before += self.tree[next - 1];
            }
            step /= 2;
        }
        if at == self.tree.len() {
            let last = at - 1;
            return (last, self.before(last));
        }
        (at, before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_adding_up() {
        let mut values: Vec<u64> = (0..37).map(|n| n * n % 11).collect();
        let mut sums = Sums::default();
        sums.rebuild(values.iter().copied());
        for round in 0..200 {
            let at = round * 7 % values.len();
            if round % 3 == 0 {
                sums.subtract(at, values[at]);
                values[at] = 0;
            } else {
                sums.add(at, round as u64);
                values[at] += round as u64;
            }
            let mut before = 0;
            for (at, value) in values.iter().enumerate() {
                assert_eq!(sums.before(at), before);
                if *value > 0 {
                    assert_eq!(sums.find(before), (at, before));
                    assert_eq!(sums.find(before + value - 1), (at, before));
                }
                before += value;
            }
            assert_eq!(sums.find(before + 5).0, values.len() - 1);
        }
    }
}
