//! Hit ratios of LRU by cache size, of all sizes in one pass.
//!
//! The *distance* of a request is the bytes of the distinct objects requested since the object's last request, its own included: the smallest
//! LRU cache in which it hits. The builder keeps a row with the size of each object at the place of its last request; the distance is the sum
//! of what is behind that place. Up to [`CurveOptions::keys_exact`] keys the curve is exact, to a thousandth of the size.
//!
//! Beyond that only keys whose hash is below a threshold count, each for `1 / rate` requests, and distances of others are divided by the rate
//! (SHARDS, Waldspurger and others, FAST 2015). The threshold falls so that at most [`CurveOptions::keys_sampled`] keys are held. What the
//! sample has more or fewer requests than its share is taken to be hits, distributed as its others are (their SHARDS-adj takes the smallest
//! distance): frequent keys are in the sample or not by chance. To leave less to chance, the keys requested most when the threshold first falls are
//! always held, and count once for each request.
//!
//! Memory: some 150 bytes a key that is held. Cost: 4 levels of at most 32 additions for each request of a key that is held.

use crate::histogram::Histogram;
use crate::sums::Sums;
use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use pumice_trace::{OBJECT_BYTES, Op, Request};

/// Of the row, at least so many places are kept.
const PLACES_MIN: usize = 1 << 16;
/// The row has so many places for each key that is held.
const ROOM: usize = 4;
/// Longer objects count as so long: sums stay numbers.
const SIZE_MAX: u64 = 1 << 40;
/// Of the keys that a sampled curve holds, one in so many is hot.
const HOT_PART: usize = 4;

/// Size of an object that was deleted: its key is known, and counts once.
const DELETED: u64 = 0;

/// How a curve is made.
#[derive(Clone, Copy, Debug)]
pub struct CurveOptions {
    /// Bytes of an object where requests have no size.
    pub object_bytes: u64,
    /// Whether sizes that requests have count as missing.
    pub ignores_sizes: bool,
    /// Most distinct keys of an exact curve.
    pub keys_exact: usize,
    /// Most keys held once there are more.
    pub keys_sampled: usize,
    /// Of the choice of those keys.
    pub seed: u64,
}

impl Default for CurveOptions {
    fn default() -> Self {
        Self {
            object_bytes: OBJECT_BYTES,
            ignores_sizes: false,
            keys_exact: 4 << 20,
            keys_sampled: 64 << 10,
            seed: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Object {
    place: u32,
    requests: u32,
    size: u64,
    is_hot: bool,
}

/// Builds a [`Curve`] of the requests it is shown.
///
/// Gets count, and a miss inserts, but for gets that missed when they were recorded: the trace has the set that followed. Sets insert, and
/// do not count; deletes remove. A key has the size of the get that inserted it, or of its last set.
#[derive(Debug)]
pub struct CurveBuilder {
    options: CurveOptions,
    objects: HashMap<u64, Object>,
    /// Keys by place; the places of older requests of a key have another key's or none.
    keys: Vec<u64>,
    sizes: Sums,
    /// The same of hot keys, which are not in `sizes`.
    hot_sizes: Sums,
    hot: HashSet<u64>,
    /// Other keys with a higher hash are not held.
    hash_max: u64,
    hits: Histogram,
    /// Those of sampled keys.
    sampled_hits: Histogram,
    /// Gets and their bytes, of all keys.
    total: [f64; 2],
    /// The same of keys that are held, each divided by the rate of its time.
    sampled: [f64; 2],
    /// Distinct keys and their bytes, divided by the rate.
    first: [f64; 2],
    sets: u64,
    largest: u64,
    first_time: Option<u64>,
    last_time: u64,
}

impl CurveBuilder {
    /// One without requests.
    pub fn new(options: CurveOptions) -> Self {
        Self {
            options,
            objects: HashMap::new(),
            keys: Vec::with_capacity(PLACES_MIN),
            sizes: Sums::new(PLACES_MIN),
            hot_sizes: Sums::new(0),
            hot: HashSet::new(),
            hash_max: u64::MAX,
            hits: Histogram::default(),
            sampled_hits: Histogram::default(),
            total: [0.0; 2],
            sampled: [0.0; 2],
            first: [0.0; 2],
            sets: 0,
            largest: 0,
            first_time: None,
            last_time: 0,
        }
    }

    /// Counts requests, in the order of the trace.
    pub fn add(&mut self, requests: &[Request]) {
        for request in requests {
            self.request(request);
        }
    }

    fn request(&mut self, request: &Request) {
        let recorded = request.size.filter(|_| !self.options.ignores_sizes);
        let size = recorded.unwrap_or(self.options.object_bytes).clamp(1, SIZE_MAX);
        let inserts = match request.op {
            Op::Get => !request.is_miss,
            Op::Set => true,
            Op::Delete => false,
        };
        self.last_time = request.time.max(self.last_time);
        self.first_time.get_or_insert(request.time);
        if inserts {
            self.largest = self.largest.max(size);
        }
        match request.op {
            Op::Get => self.total = [self.total[0] + 1.0, self.total[1] + size as f64],
            Op::Set => self.sets += 1,
            Op::Delete => {}
        }
        if self.hash_max != u64::MAX && !self.holds(request.key) {
            return;
        }
        if self.keys.len() == self.sizes.len() {
            self.compact();
        }
        let rate = self.rate();
        let place = self.keys.len() as u32;
        let mut entry = match self.objects.entry(request.key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                let (one, bytes) = (1.0 / rate, size as f64 / rate);
                if request.op == Op::Get {
                    self.sampled = [self.sampled[0] + one, self.sampled[1] + bytes];
                }
                if inserts {
                    entry.insert(Object {
                        place,
                        requests: 1,
                        size,
                        is_hot: false,
                    });
                    self.keys.push(request.key);
                    self.sizes.add(place as usize, size);
                    self.first = [self.first[0] + one, self.first[1] + bytes];
                    self.bound();
                }
                return;
            }
        };
        let object = entry.get_mut();
        let before = *object;
        let (sizes, rate_of_key) = match before.is_hot {
            true => (&mut self.hot_sizes, 1.0),
            false => (&mut self.sizes, rate),
        };
        sizes.subtract(before.place as usize, before.size);
        object.requests = before.requests.saturating_add(1);
        match request.op {
            Op::Delete => {
                object.size = DELETED;
                return;
            }
            Op::Set => object.size = size,
            Op::Get if before.size == DELETED => {
                self.sampled = [
                    self.sampled[0] + 1.0 / rate_of_key,
                    self.sampled[1] + size as f64 / rate_of_key,
                ];
                if !inserts {
                    return;
                }
                object.size = size;
            }
            Op::Get => {
                let mut others = self.sizes.behind(before.place as usize) as f64 / rate;
                if !self.hot.is_empty() {
                    others += self.hot_sizes.behind(before.place as usize) as f64;
                }
                let (requests, bytes) = (1.0 / rate_of_key, before.size as f64 / rate_of_key);
                self.sampled = [self.sampled[0] + requests, self.sampled[1] + bytes];
                let hits = match rate_of_key {
                    1.0 => &mut self.hits,
                    _ => &mut self.sampled_hits,
                };
                hits.add(others as u64 + before.size, requests, bytes);
            }
        }
        object.place = place;
        match object.is_hot {
            true => self.hot_sizes.add(place as usize, object.size),
            false => self.sizes.add(place as usize, object.size),
        }
        self.keys.push(request.key);
    }

    fn holds(&self, key: u64) -> bool {
        hash(key ^ self.options.seed) <= self.hash_max || self.hot.contains(&key)
    }

    /// The share of keys that are held.
    fn rate(&self) -> f64 {
        match self.hash_max {
            u64::MAX => 1.0,
            most => most as f64 / u64::MAX as f64,
        }
    }

    /// Holds fewer keys if there are too many.
    fn bound(&mut self) {
        let most = match self.hash_max {
            u64::MAX => self.options.keys_exact,
            _ => self.options.keys_sampled,
        };
        if self.objects.len() <= most {
            return;
        }
        if self.hash_max == u64::MAX {
            self.hot = mark_hot(&mut self.objects, self.options.keys_sampled / HOT_PART);
        }
        let keep = self.options.keys_sampled / 16 * 15 - self.hot.len();
        let others = self.objects.len() - self.hot.len();
        let share = (keep as f64 / others as f64).min(1.0);
        self.hash_max = (self.hash_max as f64 * share) as u64;
        let (hash_max, seed) = (self.hash_max, self.options.seed);
        self.objects
            .retain(|key, object| object.is_hot || hash(*key ^ seed) <= hash_max);
        self.compact();
    }

    /// Closes the gaps in the row, and makes room behind it.
    fn compact(&mut self) {
        let places = (ROOM * self.objects.len()).max(PLACES_MIN);
        let mut keys = Vec::with_capacity(places);
        self.sizes = Sums::new(places);
        self.hot_sizes = Sums::new(if self.hot.is_empty() { 0 } else { places });
        for (place, key) in self.keys.iter().enumerate() {
            let object = self.objects.get_mut(key);
            if let Some(object) = object.filter(|object| object.place as usize == place) {
                object.place = keys.len() as u32;
                match object.is_hot {
                    true => self.hot_sizes.add(keys.len(), object.size),
                    false => self.sizes.add(keys.len(), object.size),
                }
                keys.push(*key);
            }
        }
        self.keys = keys;
    }

    /// The curve of what was shown.
    pub fn finish(mut self) -> Curve {
        let seen = self.sampled_hits.sums();
        let factor = |at: usize| {
            let missing = self.total[at] - self.sampled[at];
            if seen[at] > 0.0 {
                (1.0 + missing / seen[at]).max(0.0)
            } else {
                1.0
            }
        };
        let factors = [factor(0), factor(1)];
        self.hits.add_scaled(&self.sampled_hits, factors);
        let points = self.hits.cumulative();
        Curve {
            points,
            requests: self.total[0] as u64,
            bytes: self.total[1],
            sets: self.sets,
            objects: self.first[0].round() as u64,
            footprint: self.first[1].round() as u64,
            largest: self.largest,
            ticks: self.last_time.saturating_sub(self.first_time.unwrap_or(0)),
            sampling_rate: self.rate(),
        }
    }
}

/// Hit ratios by size; see the module's text.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Size, hits and bytes of hits, in order of size.
    points: Vec<(u64, [f64; 2])>,
    /// Gets.
    pub requests: u64,
    /// Bytes of all gets.
    pub bytes: f64,
    /// Sets.
    pub sets: u64,
    /// Distinct keys.
    pub objects: u64,
    /// Bytes of all of them.
    pub footprint: u64,
    /// Bytes of the largest object.
    pub largest: u64,
    /// From the first request to the last, in the trace's own unit; 0 if it has no times.
    pub ticks: u64,
    /// Share of the keys that the curve is made of.
    pub sampling_rate: f64,
}

impl Curve {
    fn hits(&self, bytes: u64) -> [f64; 2] {
        let at = self.points.partition_point(|(size, _)| *size <= bytes);
        at.checked_sub(1).map_or([0.0; 2], |at| self.points[at].1)
    }

    /// Share of gets that hit in a cache of `bytes`: h(x) of the paper.
    pub fn hit_ratio(&self, bytes: u64) -> f64 {
        self.hits(bytes)[0] / (self.requests as f64).max(1.0)
    }

    /// The same of their bytes.
    pub fn byte_hit_ratio(&self, bytes: u64) -> f64 {
        self.hits(bytes)[1] / self.bytes.max(1.0)
    }

    /// The smallest size that has a hit ratio; `None` if none has.
    pub fn size_of(&self, hit_ratio: f64) -> Option<u64> {
        let wanted = hit_ratio * self.requests as f64;
        // A ratio that came from a division must find its own point again.
        let wanted = wanted - wanted * 1e-12;
        match wanted <= 0.0 {
            true => Some(0),
            false => {
                let at = self.points.partition_point(|(_, hits)| hits[0] < wanted);
                self.points.get(at).map(|(size, _)| *size)
            }
        }
    }

    /// The largest hit ratio: that of a cache which holds everything.
    pub fn hit_ratio_max(&self) -> f64 {
        self.hit_ratio(u64::MAX)
    }

    /// Mean bytes of an object.
    pub fn object_bytes(&self) -> f64 {
        self.footprint as f64 / (self.objects as f64).max(1.0)
    }
}

/// Marks the keys that were requested most.
fn mark_hot(objects: &mut HashMap<u64, Object>, most: usize) -> HashSet<u64> {
    let mut counts: Vec<(u32, u64)> = objects
        .iter()
        .map(|(key, object)| (object.requests, *key))
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let hot: HashSet<u64> = counts.iter().take(most).map(|(_, key)| *key).collect();
    for key in &hot {
        if let Some(object) = objects.get_mut(key) {
            object.is_hot = true;
        }
    }
    hot
}

/// Spreads keys evenly (the finaliser of SplitMix64).
fn hash(key: u64) -> u64 {
    let mixed = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_policy::{ExactPolicy, Lists};
    use pumice_trace::Zipf;
    use pumice_world::Random;

    fn get(key: u64, size: u64) -> Request {
        Request {
            key,
            size: Some(size),
            ..Request::BLANK
        }
    }

    fn curve(requests: &[Request], options: CurveOptions) -> Curve {
        let mut builder = CurveBuilder::new(options);
        requests.chunks(512).for_each(|requests| builder.add(requests));
        builder.finish()
    }

    /// Gets by Zipf; a key has always the same size, at most `size_max`.
    fn zipf(keys: u64, theta: f64, count: usize, size_max: u64) -> Vec<Request> {
        let (zipf, mut random) = (Zipf::new(keys, theta).unwrap(), Random(1));
        let one = |_| {
            let key = zipf.draw(&mut random);
            get(key, 1 + hash(key) % size_max)
        };
        (0..count).map(one).collect()
    }

    fn lru(requests: &[Request], capacity: u64) -> u64 {
        let (mut lru, mut hits) = (Lists::lru(capacity), 0);
        for request in requests {
            let (key, size) = (request.key as u32, request.size.unwrap());
            match lru.lookup(key) {
                true => hits += 1,
                false => {
                    lru.insert(key, size);
                }
            }
        }
        hits
    }

    #[test]
    fn an_exact_curve_has_the_hits_of_an_lru_list() {
        let requests = zipf(20_000, 0.8, 200_000, 1);
        let found = curve(&requests, CurveOptions::default());
        for capacity in [1, 2, 10, 100, 1000, 2000] {
            assert_eq!(
                found.hits(capacity)[0] as u64,
                lru(&requests, capacity),
                "{capacity}"
            );
        }
        assert_eq!(found.requests, 200_000);
        // With sizes a list evicts more than it needs for the last object: a little less than the curve.
        let requests = zipf(20_000, 0.8, 200_000, 1000);
        let found = curve(&requests, CurveOptions::default());
        for capacity in [100_000, 1_000_000, 5_000_000] {
            let (hits, list) = (found.hits(capacity)[0], lru(&requests, capacity) as f64);
            assert!(
                (hits - list).abs() < 0.003 * 200_000.0,
                "{capacity}: {hits} {list}"
            );
        }
    }

    #[test]
    fn a_sampled_curve_is_near_the_exact_one() {
        let requests = zipf(1 << 18, 0.9, 1 << 20, 1000);
        let exact = curve(&requests, CurveOptions::default());
        let options = CurveOptions {
            keys_exact: 30_000,
            keys_sampled: 16_384,
            ..CurveOptions::default()
        };
        let sampled = curve(&requests, options);
        assert!(sampled.sampling_rate < 0.2 && exact.sampling_rate == 1.0);
        let near = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.05;
        assert!(
            near(sampled.objects, exact.objects),
            "{} {}",
            sampled.objects,
            exact.objects
        );
        assert!(
            near(sampled.footprint, exact.footprint),
            "{} {}",
            sampled.footprint,
            exact.footprint
        );
        for part in 1..=20 {
            let size = exact.footprint / 20 * part;
            let (a, b) = (sampled.hit_ratio(size), exact.hit_ratio(size));
            assert!((a - b).abs() < 0.02, "{part}: {a} {b}");
            let (a, b) = (sampled.byte_hit_ratio(size), exact.byte_hit_ratio(size));
            assert!((a - b).abs() < 0.02, "{part}: {a} {b}");
        }
    }

    #[test]
    fn gets_that_missed_when_recorded_do_not_insert() {
        let missed = Request {
            is_miss: true,
            ..get(1, 10)
        };
        let found = curve(
            &[
                missed,
                missed,
                Request {
                    op: Op::Set,
                    ..get(1, 10)
                },
                missed,
                get(1, 10),
            ],
            CurveOptions::default(),
        );
        assert_eq!((found.requests, found.objects, found.hits(10)[0]), (4, 1, 2.0));
    }

    #[test]
    fn sets_insert_and_deletes_remove() {
        let request = |op, key, size| Request { op, ..get(key, size) };
        let found = curve(
            &[
                request(Op::Set, 1, 10),
                get(1, 10),
                request(Op::Set, 1, 50),
                request(Op::Set, 2, 5),
                get(1, 10),
                request(Op::Delete, 1, 10),
                get(1, 10),
            ],
            CurveOptions::default(),
        );
        assert_eq!((found.requests, found.sets), (3, 3));
        // A key that was deleted and came again is one.
        assert_eq!((found.objects, found.footprint), (2, 15));
        let hits = |size| found.hits(size)[0];
        assert_eq!([hits(9), hits(10), hits(54), hits(55)], [0.0, 1.0, 1.0, 2.0]);
        assert_eq!(
            [found.size_of(0.0), found.size_of(2.0 / 3.0), found.size_of(0.9)],
            [Some(0), Some(55), None]
        );
    }
}
