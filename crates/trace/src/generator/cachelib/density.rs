//! A piecewise-constant density: an interval by its weight, then any point of it alike.

#[derive(Debug, Clone)]
pub(super) struct Density {
    edges: Vec<f64>,
    cumulative: Vec<f64>,
}

impl Density {
    /// Interval i is from `edges[i]` to `edges[i + 1]` and has `weights[i]`, of which one is positive. The error says what
    /// is wrong with the edges.
    pub(super) fn new(edges: Vec<f64>, weights: &[f64], largest: f64) -> Result<Self, String> {
        if edges.len() != weights.len() + 1 {
            return Err(format!(
                "has {} entries for {} weights; it must have one more than these",
                edges.len(),
                weights.len()
            ));
        }
        if !edges.iter().all(|edge| (0.0..=largest).contains(edge)) {
            return Err(format!("entries are from 0 to {largest}"));
        }
        if !edges.is_sorted() {
            return Err("entries must not fall".into());
        }
        let mut total = 0.0;
        let cumulative = weights.iter().map(|weight| {
            total += weight;
            total
        });
        Ok(Density {
            cumulative: cumulative.collect(),
            edges,
        })
    }

    /// The number that `share` of the weight is below, for shares in [0, 1).
    pub(super) fn at(&self, share: f64) -> f64 {
        let point = share * self.cumulative.last().copied().unwrap_or(0.0);
        let interval = self.cumulative.partition_point(|&cumulative| cumulative <= point);
        // Only rounding can lead past the end.
        let interval = interval.min(self.cumulative.len() - 1);
        let before = if interval == 0 {
            0.0
        } else {
            self.cumulative[interval - 1]
        };
        let within = (point - before) / (self.cumulative[interval] - before);
        let (low, high) = (self.edges[interval], self.edges[interval + 1]);
        low + within.min(1.0) * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_lead_to_the_points_below_which_they_lie() {
        let density = Density::new(vec![1.0, 8.0, 8.0, 64.0], &[0.3, 0.0, 0.9], 255.0).unwrap();
        for (share, point) in [(0.0, 1.0), (0.125, 4.5), (0.25, 8.0), (0.625, 36.0)] {
            assert!(
                (density.at(share) - point).abs() < 1e-9,
                "{share}: {}",
                density.at(share)
            );
        }
        assert!((63.9..=64.0).contains(&density.at(0.999_999)));
    }

    #[test]
    fn edges_that_make_no_intervals_are_refused() {
        for (edges, what) in [
            (vec![1.0], "one more"),
            (vec![], "one more"),
            (vec![2.0, 1.0], "must not fall"),
            (vec![-1.0, 1.0], "from 0 to 255"),
            (vec![1.0, 256.0], "from 0 to 255"),
            (vec![1.0, f64::NAN], "from 0 to 255"),
        ] {
            let found = Density::new(edges, &[1.0], 255.0).unwrap_err();
            assert!(found.contains(what), "{found}");
        }
    }
}
