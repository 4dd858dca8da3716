//! Mean response time of a hierarchy of two caches, and the DRAM that equals some flash.

use crate::curve::Curve;

/// What a request takes by where it is answered, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// From DRAM: r_d.
    pub dram_ns: f64,
    /// From flash: r_f.
    pub flash_ns: f64,
    /// A miss of both: r_h.
    pub miss_ns: f64,
}

impl Latencies {
    /// Equation 2: the mean, where DRAM has `dram_hits` of the requests and both caches together `hits`.
    pub fn response_ns(&self, dram_hits: f64, hits: f64) -> f64 {
        let flash_hits = (hits - dram_hits).max(0.0);
        dram_hits * self.dram_ns + flash_hits * self.flash_ns + (1.0 - dram_hits - flash_hits) * self.miss_ns
    }

    /// The mean of a hierarchy of these sizes. What DRAM has is on flash too, so both together hit as the larger one.
    pub fn of(&self, curve: &Curve, dram: u64, flash: u64) -> f64 {
        self.response_ns(curve.hit_ratio(dram), curve.hit_ratio(dram.max(flash)))
    }

    /// The DRAM that `flash` saves beside `dram`.
    pub fn equivalents(&self, curve: &Curve, dram: u64, flash: u64) -> Equivalents {
        let response = self.of(curve, dram, flash);
        // Of DRAM alone: response = h * dram_ns + (1 - h) * miss_ns.
        let hits = (self.miss_ns - response) / (self.miss_ns - self.dram_ns);
        let whole = curve.size_of(hits.min(curve.hit_ratio_max()));
        let is_reached = hits <= curve.hit_ratio_max();
        Equivalents {
            by_response: whole
                .filter(|_| is_reached)
                .map(|whole| whole.saturating_sub(dram)),
            by_hits: flash.saturating_sub(dram),
        }
    }
}

/// DRAM that can be left out where there is flash, in bytes: D of Flash(F) = DRAM(D), equation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Equivalents {
    /// DRAM alone, so much larger, has the response time of both (equation 2). `None` if no DRAM has it.
    pub by_response: Option<u64>,
    /// DRAM alone, so much larger, has the hits of both (equation 3). It reduces to F - x_d, whatever the latencies.
    pub by_hits: u64,
}

impl Equivalents {
    /// Share that is saved of the money for the DRAM that flash replaces, where a byte of DRAM costs `price_ratio` times as much.
    pub fn saved_of_replaced(&self, flash: u64, price_ratio: f64) -> Option<f64> {
        let replaced = self.by_response? as f64 * price_ratio;
        (replaced > 0.0).then(|| 1.0 - flash as f64 / replaced)
    }

    /// The same of the money for all that DRAM alone would take.
    pub fn saved_of_whole(&self, dram: u64, flash: u64, price_ratio: f64) -> Option<f64> {
        let replaced = self.by_response? as f64 * price_ratio;
        let whole = dram as f64 * price_ratio + replaced;
        (whole > 0.0).then(|| (replaced - flash as f64) / whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{CurveBuilder, CurveOptions};
    use pumice_trace::Request;

    /// Requests in a circle, so that h(x) is a step; and one over 100 keys by turns of all sizes, so that it is a line.
    fn line() -> Curve {
        let mut builder = CurveBuilder::new(CurveOptions {
            object_bytes: 1,
            ..CurveOptions::default()
        });
        let get = |key| Request {
            key,
            ..Request::BLANK
        };
        // Distances 1 to 100, each as often: key k again after k - 1 others.
        for round in 0..50u64 {
            for distance in 1..=100u64 {
                let base = (round * 100 + distance) * 1000;
                let keys: Vec<_> = (base..base + distance).chain([base]).map(get).collect();
                builder.add(&keys);
            }
        }
        builder.finish()
    }

    #[test]
    fn flash_equals_the_dram_of_equal_response_time() {
        let curve = line();
        let hits = |size: u64| curve.hit_ratio(size);
        assert!((hits(50) * 2.0 - hits(100)).abs() < 1e-9);
        let latencies = Latencies {
            dram_ns: 0.0,
            flash_ns: 0.0,
            miss_ns: 1000.0,
        };
        // Flash as fast as DRAM: both measures agree.
        let found = latencies.equivalents(&curve, 20, 60);
        assert_eq!(
            found,
            Equivalents {
                by_response: Some(40),
                by_hits: 40
            }
        );
        // As slow as a miss it is worth nothing, half as slow it is worth half.
        let worth = |flash_ns| {
            Latencies {
                flash_ns,
                ..latencies
            }
            .equivalents(&curve, 20, 60)
            .by_response
        };
        assert_eq!([worth(1000.0), worth(500.0)], [Some(0), Some(20)]);
        assert_eq!(found.saved_of_replaced(60, 3.0), Some(0.5));
        assert_eq!(found.saved_of_whole(20, 60, 3.0), Some(1.0 / 3.0));
    }

    #[test]
    fn a_response_time_is_the_mean_over_where_requests_are_answered() {
        let latencies = Latencies {
            dram_ns: 1.0,
            flash_ns: 10.0,
            miss_ns: 100.0,
        };
        assert!((latencies.response_ns(0.5, 0.8) - (0.5 + 3.0 + 20.0)).abs() < 1e-9);
        assert!(
            (latencies.response_ns(0.5, 0.3) - 50.5).abs() < 1e-9,
            "flash smaller than DRAM"
        );
    }
}
