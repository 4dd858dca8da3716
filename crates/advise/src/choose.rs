//! A few sizes to buy, out of a grid.

use crate::curve::Curve;
use crate::latency::Latencies;

/// Bytes of the vendors' gigabyte.
const GIGABYTE: f64 = 1e9;
/// Sizes of the grid go down to this part of the bytes of all objects.
const SMALLEST_PART: u64 = 512;
/// Without a limit an offer may be so many times slower than the fastest.
const NEAR: f64 = 1.25;

/// Money for a gigabyte (10^9 bytes), in any currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Of DRAM.
    pub dram: f64,
    /// Of flash.
    pub flash: f64,
}

impl Prices {
    /// Money for so many bytes of both.
    pub fn of(&self, dram: u64, flash: u64) -> f64 {
        (dram as f64 * self.dram + flash as f64 * self.flash) / GIGABYTE
    }
}

/// What an offer must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Most money: the fastest within it is best.
    Money(f64),
    /// Longest mean response time, in nanoseconds: the cheapest within it is best.
    Response(f64),
    /// The cheapest that is at most a quarter slower than the fastest of all.
    None,
}

/// Sizes, and what the curve says of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Bytes of DRAM to buy.
    pub dram: u64,
    /// Bytes of flash to buy; 0 for DRAM alone.
    pub flash: u64,
    /// Bytes of that DRAM which hold objects.
    pub dram_items: u64,
    /// Share of gets that DRAM answers.
    pub dram_hits: f64,
    /// Share of gets that either answers.
    pub hits: f64,
    /// Mean response time in nanoseconds.
    pub response_ns: f64,
    /// Money.
    pub money: f64,
}

/// Sizes of a grid for objects of `footprint` bytes in all, from `least` on: powers of two, and those between them.
pub fn sizes(footprint: u64, least: u64) -> Vec<u64> {
    let least = least.max(footprint / SMALLEST_PART).max(1);
    let powers = (0..62).flat_map(|power| [1 << power, 3 << power >> 1]);
    let mut sizes: Vec<u64> = powers.filter(|size| *size >= least).collect();
    sizes.dedup();
    let enough = sizes.partition_point(|size| *size < footprint);
    sizes.truncate(enough + 1);
    sizes
}

/// All pairs of sizes of DRAM and of flash, and DRAM alone.
pub fn pairs(drams: &[u64], flashes: &[u64]) -> Vec<(u64, u64)> {
    let of = |dram: &u64| {
        let dram = *dram;
        [0].iter().chain(flashes).map(move |flash| (dram, *flash))
    };
    drams.iter().flat_map(of).collect()
}

/// Offers of a grid that are worth their money.
pub struct Choice {
    /// Best under the limit; none if no offer keeps it.
    pub best: Option<Offer>,
    /// Each is faster than all that are cheaper, in order of money.
    pub frontier: Vec<Offer>,
    /// The cheapest without flash that is at least as fast as the best, or the fastest.
    pub dram_alone: Option<Offer>,
}

/// Weighs pairs of sizes, of DRAM and of flash. `items` says how many bytes of a DRAM size hold objects beside a flash size; `None` if they do not go together.
pub fn choose(
    curve: &Curve,
    latencies: &Latencies,
    prices: &Prices,
    limit: Limit,
    pairs: &[(u64, u64)],
    items: impl Fn(u64, u64) -> Option<u64>,
) -> Choice {
    let offer = |dram: u64, flash: u64| {
        let dram_items = items(dram, flash)?;
        Some(Offer {
            dram,
            flash,
            dram_items,
            dram_hits: curve.hit_ratio(dram_items),
            hits: curve.hit_ratio(dram_items.max(flash)),
            response_ns: latencies.of(curve, dram_items, flash),
            money: prices.of(dram, flash),
        })
    };
    let offered = pairs.iter().filter_map(|(dram, flash)| offer(*dram, *flash));
    let mut offers: Vec<Offer> = offered.collect();
    offers.sort_by(|a, b| {
        a.money
            .total_cmp(&b.money)
            .then(a.response_ns.total_cmp(&b.response_ns))
    });
    let mut frontier: Vec<Offer> = Vec::new();
    for offer in &offers {
        if frontier
            .last()
            .is_none_or(|last| offer.response_ns < last.response_ns)
        {
            frontier.push(*offer);
        }
    }
    let best = match limit {
        Limit::Money(most) => frontier.iter().rev().find(|offer| offer.money <= most),
        Limit::Response(most) => frontier.iter().find(|offer| offer.response_ns <= most),
        Limit::None => {
            let fastest = frontier.last().map_or(0.0, |fastest| fastest.response_ns);
            frontier.iter().find(|offer| offer.response_ns <= NEAR * fastest)
        }
    }
    .copied();
    let goal = best.map_or(0.0, |best| best.response_ns);
    let alone = || offers.iter().filter(|offer| offer.flash == 0);
    let fastest = || alone().min_by(|a, b| a.response_ns.total_cmp(&b.response_ns));
    let dram_alone = alone()
        .find(|offer| offer.response_ns <= goal)
        .or_else(fastest)
        .copied();
    Choice {
        best,
        frontier,
        dram_alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{CurveBuilder, CurveOptions};
    use pumice_trace::{Request, Zipf};
    use pumice_world::Random;

    const MIB: u64 = 1 << 20;

    fn curve() -> Curve {
        let (zipf, mut random) = (Zipf::new(100_000, 0.9).unwrap(), Random(1));
        let mut builder = CurveBuilder::new(CurveOptions::default());
        let get = |key| Request {
            key,
            ..Request::BLANK
        };
        (0..400_000).for_each(|_| builder.add(&[get(zipf.draw(&mut random))]));
        builder.finish()
    }

    #[test]
    fn offers_keep_their_limit_and_none_is_better_for_less() {
        let curve = curve();
        let latencies = Latencies {
            dram_ns: 1e3,
            flash_ns: 1e5,
            miss_ns: 1e7,
        };
        let prices = Prices {
            dram: 5.0,
            flash: 0.1,
        };
        let (drams, flashes) = (sizes(curve.footprint, 8 * MIB), sizes(curve.footprint, 16 * MIB));
        let items = |dram: u64, flash: u64| dram.checked_sub(flash / 100);
        let pairs = pairs(&drams, &flashes);
        let choose = |limit| choose(&curve, &latencies, &prices, limit, &pairs, items);
        let free = choose(Limit::None);
        let best = free.best.unwrap();
        assert!(best.flash > best.dram, "{best:?}");
        for pair in free.frontier.windows(2) {
            assert!(pair[0].money <= pair[1].money && pair[0].response_ns > pair[1].response_ns);
        }
        let within = choose(Limit::Response(best.response_ns)).best.unwrap();
        assert_eq!(within, best);
        let within = choose(Limit::Money(best.money)).best.unwrap();
        assert_eq!(within, best);
        assert!(choose(Limit::Money(1e-9)).best.is_none() && choose(Limit::Response(1.0)).best.is_none());
        // DRAM alone is as fast for more money.
        let alone = free.dram_alone.unwrap();
        assert!(alone.flash == 0 && alone.response_ns <= best.response_ns && alone.money > 2.0 * best.money);
        // Flash that costs as much as DRAM is not bought, but where it is as fast.
        let dear = Prices {
            dram: 5.0,
            flash: 5.0,
        };
        let dear = super::choose(
            &curve,
            &latencies,
            &dear,
            Limit::Response(best.response_ns),
            &pairs,
            items,
        );
        assert!(dear.best.unwrap().flash < best.flash, "{:?}", dear.best);
    }

    #[test]
    fn a_grid_reaches_from_a_small_part_to_the_whole() {
        let found = sizes(1000 * MIB, 4 * MIB);
        assert_eq!((found[0], *found.last().unwrap()), (4 * MIB, 1024 * MIB));
        assert_eq!(found[1], 6 * MIB);
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(sizes(10, 64 * MIB), [64 * MIB]);
    }
}
