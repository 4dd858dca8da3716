//! What a trace holds, in figures: one pass over it.

use std::collections::HashMap;

use serde::Serialize;

use crate::error::TraceError;
use crate::request::{BATCH_REQUESTS, Op, Progress, Request};
use crate::trace::Trace;

/// The figures of a trace. Field names are a contract; a field that does not apply is null.
///
/// An object has the size of its first access that has one, as in replays that read the trace twice; but a size of 0 is 0, which in replays counts as
/// 1, and objects without any are left out, which in replays have one that is assumed. Shares are from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The trace's name as given.
    pub trace: String,
    /// The format, or the kind of generator.
    pub format: &'static str,
    /// Requests. In formats with addresses and lengths disk requests, before they are split into pages; else as accesses.
    pub requests: u64,
    /// Accesses to objects, deletes included.
    pub accesses: u64,
    /// Distinct objects.
    pub objects: u64,
    /// The sum of the sizes of all objects that have one; null without sizes.
    pub footprint_bytes: Option<u64>,
    /// Accesses, deletes left out, that record no size; null without sizes.
    pub accesses_without_size: Option<u64>,
    /// Objects whose size no access records; null where the trace has no sizes at all.
    pub objects_without_size: Option<u64>,
    /// The size of a page, where objects are pages.
    pub page_bytes: Option<u64>,
    /// The sum over accesses of the object's size.
    pub bytes_requested: Option<u64>,
    /// The sum over accesses of the size that the access itself has.
    pub bytes_recorded: Option<u64>,
    /// The share of objects that are accessed once.
    pub one_hit_share: Option<f64>,
    /// The share of accesses that go to the most accessed hundredth of objects, rounded down, but at least one.
    pub top_1_percent_share: Option<f64>,
    /// Sizes of objects.
    pub object_size: Option<ObjectSizes>,
    /// Objects that are accessed with more than one size.
    pub objects_resized: Option<u64>,
    /// The share of requests that write or delete; null where the format has no operations.
    pub write_share: Option<f64>,
    /// The same of accesses.
    pub write_share_accesses: Option<f64>,
    /// The same of the bytes of disk requests.
    pub write_share_bytes: Option<f64>,
    /// Disk requests that do not start and end at the edge of a page.
    pub unaligned_requests: Option<u64>,
}

/// Sizes over all objects, in bytes; percentiles by nearest rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectSizes {
    /// The largest.
    pub largest: u64,
    /// The mean.
    pub mean: f64,
    /// The median; between two objects the mean of both.
    pub median: f64,
    /// A hundredth of objects are at most as large.
    pub p1: u64,
    /// A tenth.
    pub p10: u64,
    /// A quarter.
    pub p25: u64,
    /// Three quarters.
    pub p75: u64,
    /// Nine tenths.
    pub p90: u64,
    /// All but a hundredth.
    pub p99: u64,
}

/// What is kept of an object.
#[derive(Debug, Clone, Copy)]
struct Object {
    /// Size at the first access that has one, or [`UNKNOWN`].
    size: u64,
    /// Twice the accesses, plus 1 if one had another size.
    accesses_resized: u64,
}

/// In place of a size that nobody has told yet.
const UNKNOWN: u64 = u64::MAX;

/// Sums over the accesses read so far.
#[derive(Debug, Default)]
struct Tally {
    objects: HashMap<u64, Object>,
    accesses: u64,
    writes: u64,
    bytes_requested: u128,
    bytes_recorded: u128,
}

impl Tally {
    fn count(&mut self, request: &Request) {
        let size = request.size.map_or(UNKNOWN, |size| size.min(UNKNOWN - 1));
        self.accesses += 1;
        self.writes += u64::from(request.op != Op::Get);
        let object = self.objects.entry(request.key).or_insert(Object {
            size,
            accesses_resized: 0,
        });
        if size != UNKNOWN {
            if object.size == UNKNOWN {
                object.size = size;
                // What came before counts with it, too.
                self.bytes_requested += u128::from(size) * u128::from(object.accesses_resized >> 1);
            }
            object.accesses_resized |= u64::from(object.size != size);
            self.bytes_recorded += u128::from(size);
        }
        object.accesses_resized += 2;
        if object.size != UNKNOWN {
            self.bytes_requested += u128::from(object.size);
        }
    }
}

impl Summary {
    /// Reads `trace` to its end. `progress` is called now and then.
    ///
    /// Memory: for each distinct object 29 to 57 bytes, half as much again while the table grows, and 8 bytes at the end;
    /// nothing for each request.
    ///
    /// # Errors
    /// Those of opening and reading the trace.
    pub fn of(trace: &Trace, progress: &mut dyn FnMut(Progress)) -> Result<Self, TraceError> {
        let mut reader = trace.open()?;
        let mut tally = Tally::default();
        let mut batch = Vec::with_capacity(BATCH_REQUESTS);
        while reader.next_batch(&mut batch)? {
            for request in &batch {
                tally.count(request);
            }
            progress(reader.progress());
        }
        let records = reader.records();
        let has_sizes = reader.has_sizes();
        let Tally {
            objects,
            accesses,
            writes,
            bytes_requested,
            bytes_recorded,
        } = tally;
        let one_hit = objects
            .values()
            .filter(|object| object.accesses_resized >> 1 == 1)
            .count() as u64;
        let resized = objects
            .values()
            .filter(|object| object.accesses_resized & 1 == 1)
            .count() as u64;
        let known = objects.values().filter(|object| object.size != UNKNOWN);
        let mut known: Vec<u64> = known.map(|object| object.size).collect();
        let footprint: u128 = known.iter().map(|size| u128::from(*size)).sum();
        let count = objects.len() as u64;
        let in_bytes = |bytes: u128| has_sizes.then(|| u64::try_from(bytes).unwrap_or(u64::MAX));
        let requests = if records.disk.is_some() {
            records.count
        } else {
            accesses
        };
        let of_ops = |share: Option<f64>| share.filter(|_| records.have_ops);
        Ok(Summary {
            trace: trace.name().to_owned(),
            format: reader.format_name(),
            requests,
            accesses,
            objects: count,
            footprint_bytes: in_bytes(footprint),
            accesses_without_size: has_sizes.then_some(records.without_size),
            objects_without_size: has_sizes.then_some(count - known.len() as u64),
            page_bytes: records.disk.map(|disk| disk.page_bytes),
            bytes_requested: in_bytes(bytes_requested),
            bytes_recorded: in_bytes(bytes_recorded),
            one_hit_share: share(one_hit, count),
            top_1_percent_share: share(most_accessed(&objects), accesses),
            object_size: sizes(&mut known, footprint),
            objects_resized: has_sizes.then_some(resized),
            write_share: of_ops(match records.disk {
                Some(disk) => share(disk.writes, records.count),
                None => share(writes, accesses),
            }),
            write_share_accesses: of_ops(share(writes, accesses)),
            write_share_bytes: records
                .disk
                .and_then(|disk| share(disk.bytes_written, disk.bytes)),
            unaligned_requests: records.disk.map(|disk| disk.unaligned),
        })
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Accesses to the most accessed hundredth of objects.
fn most_accessed(objects: &HashMap<u64, Object>) -> u64 {
    let mut accesses: Vec<u64> = objects
        .values()
        .map(|object| object.accesses_resized >> 1)
        .collect();
    let top = (accesses.len() / 100).max(1).min(accesses.len());
    if let Some(last) = top.checked_sub(1) {
        accesses.select_nth_unstable_by(last, |a, b| b.cmp(a));
    }
    accesses.iter().take(top).sum()
}

fn sizes(sizes: &mut [u64], footprint: u128) -> Option<ObjectSizes> {
    sizes.sort_unstable();
    let count = sizes.len();
    let largest = *sizes.last()?;
    let percentile = |percent: usize| {
        let rank = (count * percent).div_ceil(100).max(1);
        sizes.get(rank - 1).copied().unwrap_or(largest)
    };
    let (low, high) = (sizes.get((count - 1) / 2)?, sizes.get(count / 2)?);
    Some(ObjectSizes {
        largest,
        mean: footprint as f64 / count as f64,
        median: (*low as f64 + *high as f64) / 2.0,
        p1: percentile(1),
        p10: percentile(10),
        p25: percentile(25),
        p75: percentile(75),
        p90: percentile(90),
        p99: percentile(99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, TraceOptions};

    fn summary(format: Format, columns: Option<&str>, text: &str) -> Summary {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, text).unwrap();
        let options = TraceOptions {
            format: Some(format),
            columns: columns.map(|columns| columns.parse().unwrap()),
        };
        Summary::of(&Trace::new(&path, options).unwrap(), &mut |_| {}).unwrap()
    }

    #[test]
    fn objects_have_the_size_of_their_first_access() {
        let text = "1,a,10,get\n2,b,0,set\n3,a,30,get\n4,c,7,delete\n5,a,10,get\n6,d,8,get\n";
        let found = summary(Format::Csv, Some("time=1,id=2,size=3,op=4"), text);
        assert_eq!((found.requests, found.accesses, found.objects), (6, 6, 4));
        assert_eq!(found.footprint_bytes, Some(10 + 7 + 8));
        assert_eq!(found.bytes_requested, Some(3 * 10 + 7 + 8));
        assert_eq!(found.bytes_recorded, Some(10 + 30 + 7 + 10 + 8));
        assert_eq!(found.one_hit_share, Some(0.75));
        assert_eq!(found.top_1_percent_share, Some(0.5));
        assert_eq!(found.objects_resized, Some(1));
        assert_eq!(found.write_share, Some(2.0 / 6.0));
        assert_eq!((found.page_bytes, found.unaligned_requests), (None, None));
        let sizes = found.object_size.unwrap();
        assert_eq!((sizes.largest, sizes.mean, sizes.median), (10, 6.25, 7.5));
        assert_eq!((sizes.p1, sizes.p25, sizes.p75, sizes.p99), (0, 0, 8, 10));
    }

    #[test]
    fn a_size_that_is_not_known_is_not_0() {
        let text = "1,a,,get\n2,a,,get\n3,a,10,set\n4,b,,get\n5,a,30,get\n6,c,,delete\n";
        let found = summary(Format::Csv, Some("time=1,id=2,size=3,op=4"), text);
        assert_eq!((found.accesses, found.objects), (6, 3));
        assert_eq!(found.footprint_bytes, Some(10));
        assert_eq!(
            (found.accesses_without_size, found.objects_without_size),
            (Some(3), Some(2))
        );
        assert_eq!(found.bytes_requested, Some(4 * 10));
        assert_eq!(found.bytes_recorded, Some(3 * 10 + 30));
        assert_eq!(found.objects_resized, Some(1));
        let sizes = found.object_size.unwrap();
        assert_eq!((sizes.largest, sizes.mean, sizes.p1), (10, 10.0, 10));
    }

    #[test]
    fn pages_are_counted_beside_disk_requests() {
        let found = summary(Format::Mqsim, None, "1 0 0 16 1\n2 0 8 8 0\n3 0 1 1 0\n");
        assert_eq!((found.requests, found.accesses, found.objects), (3, 4, 2));
        assert_eq!(
            (found.page_bytes, found.footprint_bytes),
            (Some(4096), Some(8192))
        );
        assert_eq!(found.write_share, Some(2.0 / 3.0));
        assert_eq!(found.write_share_accesses, Some(0.5));
        assert_eq!(found.write_share_bytes, Some(9.0 / 25.0));
        assert_eq!(found.unaligned_requests, Some(1));
    }

    #[test]
    fn what_a_format_does_not_have_is_null() {
        let found = summary(Format::Arc, None, "7 3 0 0\n8 1 0 1\n");
        assert_eq!((found.requests, found.accesses, found.objects), (4, 4, 3));
        assert_eq!((found.footprint_bytes, found.write_share), (None, None));
        assert!(found.object_size.is_none() && found.bytes_requested.is_none());
        let empty = summary(Format::Arc, None, "");
        assert_eq!(
            (empty.objects, empty.one_hit_share, empty.top_1_percent_share),
            (0, None, None)
        );
    }

    #[test]
    fn the_top_hundredth_is_rounded_down() {
        // Object n is accessed 399 - n times: the first 3 of 399 objects are the top.
        let text: String = (0..399u64)
            .flat_map(|n| (n..399).map(move |_| format!("{n} 1 0 0\n")))
            .collect();
        let found = summary(Format::Arc, None, &text);
        assert_eq!(
            found.top_1_percent_share,
            Some((399 + 398 + 397) as f64 / (399 * 400 / 2) as f64)
        );
    }
}
