//! Counting what happens in a replay, from the end of the warm-up on.

/// The figures of a replay that do not depend on the layout.
///
/// [`next_request`](Counts::next_request) is called before each request, and the others as things happen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests before figures are counted.
    warmup: u64,
    /// Requests, warm-up included.
    pub requests_replayed: u64,
    /// Lookups counted.
    pub lookups: u64,
    /// Lookups that hit.
    pub hits: u64,
    /// Bytes looked up.
    pub bytes_looked_up: u128,
    /// Bytes of lookups that hit.
    pub bytes_hit: u128,
    /// Bytes of objects inserted.
    pub bytes_inserted: u128,
    /// Insertions refused because of the object's size.
    pub objects_rejected: u64,
    /// Sum over counted requests of the object bytes resident after each.
    bytes_resident: u128,
}

impl Counts {
    /// Counts from the request after `warmup` requests on.
    pub fn after(warmup: u64) -> Self {
        Counts {
            warmup,
            ..Counts::default()
        }
    }

    /// A request begins.
    #[inline]
    pub fn next_request(&mut self) {
        if self.requests_replayed == self.warmup {
            // What has been counted so far was warm-up.
            let (warmup, requests_replayed) = (self.warmup, self.requests_replayed);
            *self = Counts {
                warmup,
                requests_replayed,
                ..Counts::default()
            };
        }
        self.requests_replayed += 1;
    }

    /// Requests counted: those after the warm-up.
    pub fn requests(&self) -> u64 {
        self.requests_replayed.saturating_sub(self.warmup)
    }

    /// An object of `size` was looked up.
    #[inline]
    pub fn lookup(&mut self, hit: bool, size: u64) {
        self.lookups += 1;
        self.bytes_looked_up += u128::from(size);
        if hit {
            self.hits += 1;
            self.bytes_hit += u128::from(size);
        }
    }

    /// An object of `size` was inserted.
    #[inline]
    pub fn inserted(&mut self, size: u64) {
        self.bytes_inserted += u128::from(size);
    }

    /// An object was refused.
    #[inline]
    pub fn rejected(&mut self) {
        self.objects_rejected += 1;
    }

    /// The request is over, with so many object bytes resident.
    #[inline]
    pub fn resident(&mut self, bytes: u64) {
        self.bytes_resident += u128::from(bytes);
    }

    /// Hits / lookups; `None` without lookups.
    pub fn object_hit_ratio(&self) -> Option<f64> {
        (self.lookups > 0).then(|| self.hits as f64 / self.lookups as f64)
    }

    /// Bytes hit / bytes looked up; `None` without lookups.
    pub fn byte_hit_ratio(&self) -> Option<f64> {
        (self.bytes_looked_up > 0).then(|| self.bytes_hit as f64 / self.bytes_looked_up as f64)
    }

    /// The mean over requests of the object bytes resident; `None` without requests.
    pub fn bytes_resident_mean(&self) -> Option<f64> {
        let requests = self.requests();
        (requests > 0).then(|| self.bytes_resident as f64 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(warmup: u64) -> Counts {
        let mut counts = Counts::after(warmup);
        for (hit, size) in [(false, 10), (true, 20), (false, 30), (true, 40)] {
            counts.next_request();
            counts.lookup(hit, size);
            counts.inserted(size);
            counts.rejected();
            counts.resident(size);
        }
        counts
    }

    #[test]
    fn everything_counts_without_a_warmup() {
        let counts = counted(0);
        assert_eq!(
            (
                counts.requests(),
                counts.lookups,
                counts.hits,
                counts.objects_rejected
            ),
            (4, 4, 2, 4)
        );
        assert_eq!(
            (counts.object_hit_ratio(), counts.byte_hit_ratio()),
            (Some(0.5), Some(0.6))
        );
        assert_eq!(
            (counts.bytes_inserted, counts.bytes_resident_mean()),
            (100, Some(25.0))
        );
    }

    #[test]
    fn the_warmup_leaves_no_trace_in_the_figures() {
        let counts = counted(3);
        assert_eq!(
            (
                counts.requests_replayed,
                counts.requests(),
                counts.lookups,
                counts.hits
            ),
            (4, 1, 1, 1)
        );
        assert_eq!(
            (counts.object_hit_ratio(), counts.byte_hit_ratio()),
            (Some(1.0), Some(1.0))
        );
        assert_eq!((counts.bytes_inserted, counts.objects_rejected), (40, 1));
        assert_eq!(counts.bytes_resident_mean(), Some(40.0));
    }

    #[test]
    fn nothing_counted_has_no_ratios() {
        let counts = Counts::after(0);
        assert_eq!(
            (
                counts.object_hit_ratio(),
                counts.byte_hit_ratio(),
                counts.bytes_resident_mean()
            ),
            (None, None, None)
        );
    }
}
