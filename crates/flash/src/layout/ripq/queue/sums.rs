//! Prefix sums over a short list (a Fenwick tree).

/// Sums of a list of numbers from its start, in O(log n); rebuilt in O(n) when the list changes its shape.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// `tree[i]` is the sum of the `lowbit(i + 1)` values that end at `i`.
    tree: Vec<u64>,
}

impl Sums {
    /// Starts over with these values in place of those from `first` on.
    pub(super) fn rebuild(&mut self, first: usize, values: impl Iterator<Item = u64>) {
        self.tree.truncate(first);
        for value in values {
            // What stands below it in the tree: its neighbour, and where that one's sum starts, again and again.
            let at = self.tree.len();
            let start = at & (at + 1);
            let (mut sum, mut below) = (value, at);
            while below > start {
                sum += self.tree[below - 1];
                below &= below - 1;
            }
            self.tree.push(sum);
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
        sums.rebuild(0, values.iter().copied());
        for round in 0..200 {
            let at = round * 7 % values.len();
            if round % 11 == 0 {
                values.truncate(30 + round % 5);
                let first = round % 29;
                values[first..].iter_mut().for_each(|value| *value += 3);
                values.extend([round as u64 + 1; 4]);
                sums.rebuild(first, values[first..].iter().copied());
            }
            let at = at % values.len();
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
