//! Sequential streams among the reads, or the writes, of a volume; which of them are scans, and how far to read ahead of each.
//!
//! Four reads in a row that each begin where the one before ended are a stream. While fewer than *trigger distance* bytes beyond its last
//! read are fetched, a piece of *degree* bytes is:
//!
//! ```text
//! trigger distance  2 * latency * pace    latency: of a fill, backing device and cache device together; pace: bytes / time of the stream
//! degree            a quarter of the distance, at least a read of the stream, at most SPAN_BYTES
//! bytes ahead       at most what the volume's settings allow, and what the stream has read / 2^throttle
//! ```
//! A stream that waits for the backing device has a pace of what is fetched for it. Twice that makes both rise, until the client sets the
//! pace, or the limit is reached. The bound by the bytes that were read keeps the waste of short streams to what they use.
//!
//! Fetched bytes are *used* when the stream has passed them, *unused* if it ends before. A stream ends when [`STREAMS`] others were read
//! later. After each that had more unused than used bytes `throttle` rises by one, after others that had some it falls.
//!
//! Requests in a row are a *scan* once they have more bytes than a cut-off. Where none has gone further for [`PAUSE_NS`], counting begins
//! anew: others may ask for what lies there later.
//!
//! Source: Zhang, Kim, Ma, Shipman and Zhou, *Multi-level Hybrid Cache*, section 2.2: prefetch degree and trigger distance by the rates of
//! stream and device. Cost of a read that is of no stream: 48 comparisons. Memory: some 100 bytes a stream, and 16 for each piece ahead.

use crate::SPAN_BYTES;
use std::collections::VecDeque;
use std::ops::Range;

/// Streams that are remembered.
const STREAMS: usize = 16;
/// Reads that are remembered because a stream may begin there.
const CANDIDATES: usize = 32;
/// Reads in a row that are a stream.
const READS_MIN: u32 = 4;
/// Reads of a stream that arrive out of order, over several connections: gap before and after the next, in lengths of the read.
pub(crate) const GAP: u64 = 8;
/// Time in nanoseconds after which a scan has ended if it goes no further: that of bcache.
const PAUSE_NS: u64 = 5_000_000_000;
/// Highest throttle.
const THROTTLE_MAX: u32 = 6;

/// The volume's part of the arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a chunk. All pieces are whole chunks.
    pub(crate) chunk_bytes: u64,
    /// Bytes of the volume.
    pub(crate) size: u64,
    /// Most bytes ahead of a stream.
    pub(crate) ahead_max: u64,
    /// Bytes of which a scan has more; 0 = there are no scans.
    pub(crate) cutoff: u64,
}

struct Stream {
    /// End of the reads so far.
    next: u64,
    reads: u32,
    /// Bytes that were read.
    bytes: u64,
    /// The same, since the last pause.
    run: u64,
    /// Time of the last read, in nanoseconds.
    at: u64,
    /// Time of the last read that went further.
    moved_at: u64,
    /// Bytes and nanoseconds of the last reads: sums that lose an eighth at each read.
    pace: (u64, u64),
    /// End of what was looked at to be fetched.
    ahead: u64,
    /// End and bytes of each piece that was fetched and is not passed.
    fetched: VecDeque<(u64, u64)>,
    used: u64,
}

impl Stream {
    fn new(range: &Range<u64>, now: u64) -> Self {
        Self {
            next: range.end,
            reads: 1,
            bytes: range.end - range.start,
            run: range.end - range.start,
            at: now,
            moved_at: now,
            pace: (0, 0),
            ahead: 0,
            fetched: VecDeque::new(),
            used: 0,
        }
    }

    fn is_near(&self, range: &Range<u64>) -> bool {
        let gap = GAP * (range.end - range.start);
        range.start <= self.next.saturating_add(gap) && self.next <= range.start.saturating_add(gap)
    }

    fn read(&mut self, range: &Range<u64>, now: u64) {
        let (len, passed) = (range.end - range.start, now.saturating_sub(self.at));
        self.reads = self.reads.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len);
        if now.saturating_sub(self.moved_at) > PAUSE_NS {
            self.run = 0;
        }
        self.run = self.run.saturating_add(len);
        if range.end > self.next {
            self.moved_at = now;
        }
        self.at = now;
        self.pace = (
            self.pace.0 - self.pace.0 / 8 + len,
            self.pace.1 - self.pace.1 / 8 + passed,
        );
        self.next = self.next.max(range.end);
        while let Some((_, bytes)) = self.fetched.pop_front_if(|(end, _)| *end <= self.next) {
            self.used += bytes;
        }
    }

    /// Whether it is a scan once it has read to `end`.
    fn is_scan(&self, end: u64, limits: Limits) -> bool {
        let run = self.run.saturating_add(end.saturating_sub(self.next));
        limits.cutoff > 0 && run > limits.cutoff
    }
}

/// What a request is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    /// Whether it is of a scan.
    pub(crate) is_scan: bool,
    /// Bytes that were read ahead of a stream that has ended, and that it did not reach.
    pub(crate) unused: u64,
}

/// The streams of a volume.
#[derive(Default)]
pub(crate) struct Streams {
    /// The one read longest ago first, as in `candidates`.
    streams: VecDeque<Stream>,
    candidates: VecDeque<Stream>,
    /// Mean of a fill, in nanoseconds.
    latency: u64,
    throttle: u32,
}

impl Streams {
    /// A fill of the cache, from the start of the read of the backing device on, took `ns` nanoseconds.
    pub(crate) fn filled_in(&mut self, ns: u64) {
        self.latency = match self.latency {
            0 => ns,
            mean => mean - mean / 8 + ns / 8,
        };
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.streams.clear();
        self.candidates.clear();
    }

    /// A client reads `range` at time `now`. If it is of a stream, calls `fetch` for each piece to be read ahead, and with whether the stream
    /// is a scan there. It returns how many bytes of the piece it fetches, 0 if they are cached, `None` if it cannot now.
    pub(crate) fn read(
        &mut self,
        range: Range<u64>,
        now: u64,
        limits: Limits,
        fetch: impl FnMut(Range<u64>, bool) -> Option<u64>,
    ) -> Followed {
        let found = self.streams.iter().position(|stream| stream.is_near(&range));
        if let Some(mut stream) = found.and_then(|at| self.streams.remove(at)) {
            stream.read(&range, now);
            return self.follow(stream, range.end - range.start, limits, fetch);
        }
        let follows = |stream: &Stream| stream.next == range.start;
        let found = self.candidates.iter().position(follows);
        let stream = match found.and_then(|at| self.candidates.remove(at)) {
            Some(mut stream) => {
                stream.read(&range, now);
                stream
            }
            None => Stream::new(&range, now),
        };
        if stream.reads < READS_MIN {
            let is_scan = stream.is_scan(stream.next, limits);
            if self.candidates.len() >= CANDIDATES {
                self.candidates.pop_front();
            }
            self.candidates.push_back(stream);
            return Followed { is_scan, unused: 0 };
        }
        let ended = (self.streams.len() >= STREAMS).then(|| self.streams.pop_front());
        let unused = ended.flatten().map_or(0, |ended| self.end(&ended));
        let followed = self.follow(stream, range.end - range.start, limits, fetch);
        Followed { unused, ..followed }
    }

    /// Reads ahead of a stream after a read of `len` bytes, and remembers it.
    fn follow(
        &mut self,
        mut stream: Stream,
        len: u64,
        limits: Limits,
        mut fetch: impl FnMut(Range<u64>, bool) -> Option<u64>,
    ) -> Followed {
        let is_scan = stream.is_scan(stream.next, limits);
        self.fetch(&mut stream, len, limits, |stream, piece| {
            let is_scan = stream.is_scan(piece.end, limits);
            fetch(piece, is_scan)
        });
        self.streams.push_back(stream);
        Followed { is_scan, unused: 0 }
    }

    /// A stream has ended. Returns its unused bytes.
    fn end(&mut self, stream: &Stream) -> u64 {
        let unused = stream.fetched.iter().map(|(_, bytes)| bytes).sum();
        match stream.used {
            used if used < unused => self.throttle = (self.throttle + 1).min(THROTTLE_MAX),
            0 => {}
            _ => self.throttle = self.throttle.saturating_sub(1),
        }
        unused
    }

    /// The bytes that a stream reads in twice the time of a fill, at least 1.
    fn distance(&self, stream: &Stream) -> u64 {
        let (bytes, ns) = stream.pace;
        let distance = (2 * u128::from(self.latency) * u128::from(bytes)).checked_div(ns.into());
        let distance = distance.and_then(|bytes| u64::try_from(bytes).ok());
        distance.unwrap_or(u64::MAX).max(1)
    }

    fn fetch(
        &self,
        stream: &mut Stream,
        len: u64,
        limits: Limits,
        mut fetch: impl FnMut(&Stream, Range<u64>) -> Option<u64>,
    ) {
        let ahead_max = limits.ahead_max.min(stream.bytes >> self.throttle);
        let distance = self.distance(stream).min(ahead_max);
        let degree = (distance / 4).max(len).min(SPAN_BYTES);
        let degree = degree.next_multiple_of(limits.chunk_bytes);
        // The chunk of the last byte read is filled whole.
        let filled = stream.next.next_multiple_of(limits.chunk_bytes);
        stream.ahead = stream.ahead.max(filled);
        while stream.ahead < limits.size
            && stream.ahead - stream.next < distance
            && stream.ahead + degree - stream.next <= ahead_max
        {
            let end = (stream.ahead + degree).min(limits.size);
            let Some(bytes) = fetch(stream, stream.ahead..end) else {
                return;
            };
            if bytes > 0 {
                stream.fetched.push_back((end, bytes));
            }
            stream.ahead = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Random;

    const KIB: u64 = 1 << 10;
    const MS: u64 = 1_000_000;
    const LIMITS: Limits = Limits {
        chunk_bytes: 4 * KIB,
        size: 1 << 30,
        ahead_max: 4096 * KIB,
        cutoff: 0,
    };

    /// Reads at a time; the pieces that are to be read ahead, and unused bytes of a stream that has ended.
    fn read(streams: &mut Streams, range: Range<u64>, now: u64) -> (Vec<Range<u64>>, u64) {
        let mut pieces = Vec::new();
        let followed = streams.read(range, now, LIMITS, |piece, _| {
            let bytes = piece.end - piece.start;
            pieces.push(piece);
            Some(bytes)
        });
        (pieces, followed.unused)
    }

    /// A client that reads one after the other, each in `service` nanoseconds if nothing is missing, of a device with a latency. The time
    /// for each read in nanoseconds, and the most bytes ahead.
    fn pace(latency: u64, service: u64, len: u64) -> (u64, u64) {
        let (mut streams, mut now, mut most) = (Streams::default(), 0, 0);
        let mut fetched: VecDeque<(u64, u64)> = VecDeque::new();
        let mut end = 0;
        for at in (0..2000).map(|number| number * len) {
            for piece in read(&mut streams, at..at + len, now).0 {
                assert!(piece.start == end.max(at + len) && piece.end % LIMITS.chunk_bytes == 0);
                assert!(piece.end - piece.start <= SPAN_BYTES);
                end = piece.end;
                fetched.push_back((end, now + latency));
                streams.filled_in(latency);
            }
            most = most.max(end.saturating_sub(at + len));
            let covering = fetched.iter().find(|(end, _)| at + len <= *end);
            let is_ahead = fetched.front().is_some_and(|_| covering.is_some());
            let ready = match covering.filter(|_| is_ahead) {
                Some((_, ready)) => *ready,
                None => {
                    streams.filled_in(latency);
                    now + latency
                }
            };
            now = now.max(ready) + service;
            fetched.retain(|(end, _)| *end > at + len);
        }
        (now / 2000, most)
    }

    #[test]
    fn the_distance_covers_the_latency_and_no_more() {
        // Slow device: reads take little more than the client needs for itself.
        let (each, most) = pace(4 * MS, MS / 5, 64 * KIB);
        assert!(each < MS / 4, "{each} ns a read");
        assert!(
            (20 * 64 * KIB..=60 * 64 * KIB).contains(&most),
            "{most} bytes ahead"
        );
        // A client that thinks for longer than the device takes.
        let (each, most) = pace(4 * MS, 10 * MS, 64 * KIB);
        assert!(each < 10 * MS + MS / 10, "{each} ns a read");
        assert!(most <= 3 * 64 * KIB, "{most} bytes ahead");
        // Latency that no memory covers.
        let (_, most) = pace(1000 * MS, MS / 5, 64 * KIB);
        assert!(most > LIMITS.ahead_max / 2 && most <= LIMITS.ahead_max, "{most}");
        let (each, _) = pace(4 * MS, MS / 20, 4 * KIB);
        assert!(each < MS / 10, "{each} ns a small read");
    }

    #[test]
    fn requests_in_a_row_are_a_scan_beyond_the_cutoff_until_they_pause() {
        const SECOND: u64 = 1_000 * MS;
        let limits = Limits {
            ahead_max: 0,
            cutoff: 256 * KIB,
            ..LIMITS
        };
        let mut streams = Streams::default();
        let mut is_scan = |at: u64, len: u64, now: u64| {
            let followed = streams.read(at..at + len, now, limits, |_, _| {
                unreachable!("nothing is read ahead")
            });
            followed.is_scan
        };
        // Two beside each other.
        for number in 0..100 {
            for start in [0, LIMITS.size / 2] {
                let found = is_scan(start + number * 16 * KIB, 16 * KIB, number * SECOND);
                assert_eq!(found, number >= 16, "{number}");
            }
        }
        let end = 1_600 * KIB;
        // Late ones are of it, too. What is read again and again is not, and does not keep it alive.
        assert!(is_scan(end - 64 * KIB, 16 * KIB, 100 * SECOND));
        for second in 101..104 {
            assert!(is_scan(end - 16 * KIB, 16 * KIB, second * SECOND));
        }
        assert!(!is_scan(end - 16 * KIB, 16 * KIB, 105 * SECOND));
        for number in 0..17 {
            assert_eq!(
                is_scan(end + number * 16 * KIB, 16 * KIB, 120 * SECOND),
                number >= 16,
                "{number}"
            );
        }
        // Few large ones; those that are no neighbours are none.
        let far = 100 << 20;
        assert!(!is_scan(far, 256 * KIB, 0) && is_scan(far + 256 * KIB, 512, 0));
        assert!(is_scan(far + (10 << 20), 257 * KIB, 0));
        let mut random = Random(1);
        for _ in 0..100_000 {
            let at = (LIMITS.size * 3 / 4) + random.below(1 << 15) * 4096;
            assert!(!is_scan(at, 4096, 0));
        }
        let off = Limits { cutoff: 0, ..limits };
        assert!(!streams.read(far..far + (32 << 20), 0, off, |_, _| None).is_scan);
    }

    #[test]
    fn what_is_ahead_of_a_scan_is_of_it_from_the_cutoff_on() {
        let limits = Limits {
            cutoff: 1024 * KIB,
            ..LIMITS
        };
        let (mut streams, mut end) = (Streams::default(), 0);
        streams.filled_in(1000 * MS);
        for number in 0..64 {
            let at = number * 64 * KIB;
            streams.read(at..at + 64 * KIB, number * MS, limits, |piece, is_scan| {
                assert_eq!(is_scan, piece.end > limits.cutoff, "{piece:?}");
                end = piece.end;
                Some(piece.end - piece.start)
            });
        }
        assert!(end > 6 << 20, "{end}");
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let (mut streams, mut random) = (Streams::default(), Random(1));
        for now in 0..1_000_000 {
            let at = random.below(LIMITS.size / 4096) * 4096;
            let (pieces, unused) = read(&mut streams, at..at + 4096, now);
            assert!(pieces.is_empty() && unused == 0);
        }
    }

    #[test]
    fn streams_are_found_among_other_reads_and_out_of_order() {
        let (mut streams, mut random) = (Streams::default(), Random(1));
        let (mut fetched, len) = (0, 64 * KIB);
        streams.filled_in(MS);
        for number in 0..200u64 {
            // Neighbours change places.
            let number = if number > 16 { number ^ 1 } else { number };
            for start in [0, LIMITS.size / 2] {
                let at = start + number * len;
                let pieces = read(&mut streams, at..at + len, number).0;
                fetched += pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>();
                for _ in 0..5 {
                    let at = random.below(LIMITS.size / 4096) * 4096;
                    read(&mut streams, at..at + 4096, number);
                }
            }
        }
        assert!(fetched > 2 * 190 * len, "{fetched}");
        assert_eq!(streams.streams.len(), 2);
    }

    #[test]
    fn nothing_is_fetched_beyond_the_end_nor_without_memory() {
        let mut streams = Streams::default();
        let (mut last, mut asked) = (0, 0);
        for at in (LIMITS.size - 640 * KIB..LIMITS.size).step_by(64 << 10) {
            streams.read(at..at + 64 * KIB, 0, LIMITS, |_, _| {
                asked += 1;
                None
            });
        }
        assert_eq!(asked, 6, "it asks again with each read, and once");
        for at in (LIMITS.size - 640 * KIB..LIMITS.size).step_by(64 << 10) {
            for piece in read(&mut streams, at..at + 64 * KIB, 0).0 {
                last = piece.end;
            }
        }
        assert!(last <= LIMITS.size);
    }

    #[test]
    fn streams_that_waste_are_throttled_and_what_they_waste_is_counted() {
        let (mut streams, mut random) = (Streams::default(), Random(1));
        let (mut fetched, mut unused) = ([0, 0], 0);
        // Four reads each: what the fourth fetches is never used.
        for run in 0..400 {
            let start = random.below(1 << 14) << 16;
            for at in (start..start + 64 * KIB).step_by(16 << 10) {
                let (pieces, ended) = read(&mut streams, at..at + 16 * KIB, run);
                fetched[run as usize / 200] +=
                    pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>();
                unused += ended;
            }
        }
        assert!(fetched[0] > 0 && fetched[1] == 0, "{fetched:?}");
        assert_eq!(unused, fetched[0]);
        // A long one is worth it all the same, and the throttle falls after such ones.
        let throttle = streams.throttle;
        for start in (0..40).map(|number| number * (24 << 20)) {
            let all: u64 = (0..256u64)
                .flat_map(|number| {
                    read(
                        &mut streams,
                        start + (number << 16)..start + ((number + 1) << 16),
                        500,
                    )
                    .0
                })
                .map(|piece| piece.end - piece.start)
                .sum();
            assert!(all > (8 << 20), "{all}");
        }
        assert!(
            throttle > 0 && streams.throttle == 0,
            "{throttle}, {}",
            streams.throttle
        );
    }
}
