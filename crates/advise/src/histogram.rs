//! Weights by size, to a thousandth of the size.

/// Bits of a size that are kept below its highest.
const BITS: u32 = 10;

/// Weights of sizes: exact below 2,048, above that each bin is at most a thousandth of its size wide.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Requests and bytes of each bin.
    bins: Vec<[f64; 2]>,
}

fn bin_of(size: u64) -> usize {
    let shift = (u64::BITS - size.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (size >> shift)) as usize
}

/// The largest size of a bin.
fn end_of(bin: usize) -> u64 {
    let shift = (bin >> BITS).saturating_sub(1) as u32;
    let start = (bin as u64 - (u64::from(shift) << BITS)) << shift;
    start + ((1 << shift) - 1)
}

impl Histogram {
    pub(crate) fn add(&mut self, size: u64, requests: f64, bytes: f64) {
        let bin = bin_of(size);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, [0.0; 2]);
        }
        self.bins[bin][0] += requests;
        self.bins[bin][1] += bytes;
    }

    /// All requests and bytes.
    pub(crate) fn sums(&self) -> [f64; 2] {
        let sum = |at: usize| self.bins.iter().map(|weights| weights[at]).sum();
        [sum(0), sum(1)]
    }

    /// Adds the weights of another, times these factors of requests and bytes.
    pub(crate) fn add_scaled(&mut self, other: &Self, factors: [f64; 2]) {
        if other.bins.len() > self.bins.len() {
            self.bins.resize(other.bins.len(), [0.0; 2]);
        }
        for (mine, other) in self.bins.iter_mut().zip(&other.bins) {
            *mine = [mine[0] + other[0] * factors[0], mine[1] + other[1] * factors[1]];
        }
    }

    /// Largest size of each bin that is not empty, in order, with the requests and bytes of this and all smaller ones.
    pub(crate) fn cumulative(&self) -> Vec<(u64, [f64; 2])> {
        let mut sum = [0.0; 2];
        let mut out = Vec::new();
        for (bin, weights) in self.bins.iter().enumerate() {
            if weights[0] != 0.0 {
                sum = [sum[0] + weights[0], sum[1] + weights[1]];
                out.push((end_of(bin), sum));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_without_gaps() {
        let (mut bin, mut start) = (0, 0);
        while start < 1 << 40 {
            assert_eq!(bin_of(start), bin, "{start}");
            let end = end_of(bin);
            assert_eq!(bin_of(end), bin, "{end}");
            assert!(end - start <= start / 1000, "{start}..{end}");
            (bin, start) = (bin + 1, end + 1);
        }
        assert_eq!(end_of(bin_of(u64::MAX)), u64::MAX);
    }
}
