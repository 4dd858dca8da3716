//! Requests are told while somebody records them: with salted hashes in place of keys, as lines of text.
//!
//! ```text
//! pumice requests 1
//! 1795838081 get 5577006791947779410 0 miss
//! 1795838081 set 5577006791947779410 106 ttl=100
//! 1795838082 get 5577006791947779410 106
//! 1795838083 touch 5577006791947779410 106 ttl=5
//! 1795838084 delete 5577006791947779410 0
//! skipped=12
//! others=7300
//! ```
//! Time in Unix seconds, what was done, the hash, bytes of key and value, seconds to live (0: for ever), `miss` where there was no such key. Whatever
//! stores a value is a set; one that stores nothing is not told. `gat`, and `mg` with a time to live, are told as gets, without that time. `skipped` counts requests for which there was no room, `others` those of keys that are
//! not in the sample, both since they were told last.
//!
//! Each worker has a buffer of [`EVENTS_MAX`] requests and never waits. While nobody records, a request costs one relaxed load.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The first line of a recording: what it is, and the version of its lines.
pub const RECORDING_HEAD: &str = "pumice requests 1";

/// Requests that a worker keeps until they are taken.
const EVENTS_MAX: usize = 4096;

/// A request and its outcome. Expiry is in Unix seconds, 0 for never.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// `None` here and below: a miss.
    Get(Option<usize>),
    Set {
        value_bytes: usize,
        expiry: u32,
    },
    Touch {
        found: Option<usize>,
        expiry: u32,
    },
    Delete {
        is_found: bool,
    },
}

/// A request in a worker's buffer.
#[derive(Debug)]
struct Told {
    /// Nanoseconds since the door was made.
    at_ns: u64,
    key: u64,
    bytes: u32,
    ttl: Option<u32>,
    kind: Kind,
    is_miss: bool,
}

const _: () = assert!(
    size_of::<Told>() == 32,
    "docs/advise.md says what a worker's buffer takes"
);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    Set,
    Touch,
    Delete,
}

/// What a worker keeps while somebody records.
struct Buffer {
    salt: RandomState,
    one_in: u64,
    told: Vec<Told>,
    skipped: u64,
    others: u64,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Set => "set",
            Kind::Touch => "touch",
            Kind::Delete => "delete",
        }
    }
}

/// A worker's buffer, away from the cache lines of others.
#[repr(align(128))]
#[derive(Default)]
struct Place(Mutex<Option<Buffer>>);

impl Place {
    fn lock(&self) -> MutexGuard<'_, Option<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody records, read by each request and hardly ever written.
#[repr(align(128))]
#[derive(Default)]
struct Switch(AtomicBool);

/// What workers tell, and to whom.
pub(crate) struct Recordings {
    switch: Switch,
    is_taken: AtomicBool,
    workers: Box<[Place]>,
    started: Instant,
}

impl Recordings {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            switch: Switch::default(),
            is_taken: AtomicBool::new(false),
            workers: (0..workers).map(|_| Place::default()).collect(),
            started: Instant::now(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether somebody records.
    pub(crate) fn is_on(&self) -> bool {
        self.switch.0.load(Ordering::Relaxed)
    }

    /// Tells of a request of worker `index` at the time `now_secs` of the cache.
    pub(crate) fn tell(&self, index: usize, key: &[u8], event: Event, now_secs: u32) {
        let mut place = self.workers[index].lock();
        let Some(buffer) = place.as_mut() else { return };
        let hash = buffer.salt.hash_one(key);
        if !hash.is_multiple_of(buffer.one_in) {
            buffer.others += 1;
            return;
        }
        if buffer.told.len() == EVENTS_MAX {
            buffer.skipped += 1;
            return;
        }
        let ttl = |expiry: u32| match expiry {
            0 => Some(0),
            expiry => Some(expiry.saturating_sub(now_secs).max(1)),
        };
        let (kind, value_bytes, ttl, is_miss) = match event {
            Event::Get(found) => (Kind::Get, found, None, found.is_none()),
            Event::Set { value_bytes, expiry } => (Kind::Set, Some(value_bytes), ttl(expiry), false),
            Event::Touch { found, expiry } => (Kind::Touch, found, ttl(expiry), found.is_none()),
            Event::Delete { is_found } => (Kind::Delete, None, None, !is_found),
        };
        buffer.told.push(Told {
            // Under the lock: what is taken later is not of an earlier time.
            at_ns: self.now_ns(),
            key: hash,
            bytes: value_bytes.map_or(0, |bytes| u32::try_from(bytes + key.len()).unwrap_or(u32::MAX)),
            ttl,
            kind,
            is_miss,
        });
    }
}

/// A recording of what the door is asked for, of one key in some; it ends when it is dropped.
pub struct Recording {
    recordings: Arc<Recordings>,
    /// When the door was made, since 1970.
    epoch: Duration,
    /// What later takes have to put in order: at most what workers told while the last take went on.
    told: Vec<Told>,
    spare: Vec<Told>,
    has_head: bool,
}

impl Recording {
    /// `None` while another records.
    pub(crate) fn begin(recordings: &Arc<Recordings>, one_in: u64) -> Option<Self> {
        if recordings.is_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let salt = RandomState::new();
        for place in &recordings.workers {
            *place.lock() = Some(Buffer {
                salt: salt.clone(),
                one_in: one_in.max(1),
                told: Vec::with_capacity(EVENTS_MAX),
                skipped: 0,
                others: 0,
            });
        }
        recordings.switch.0.store(true, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Self {
            epoch: now.saturating_sub(recordings.started.elapsed()),
            recordings: Arc::clone(recordings),
            told: Vec::new(),
            spare: Vec::with_capacity(EVENTS_MAX),
            has_head: false,
        })
    }

    /// Appends the lines of what happened since the last call, in order of time; at first [`RECORDING_HEAD`].
    pub fn take(&mut self, lines: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_head, true) {
            lines.extend_from_slice(RECORDING_HEAD.as_bytes());
            lines.push(b'\n');
        }
        // What comes later may come before what another worker, which was looked at already, has still to tell.
        let until = self.recordings.now_ns();
        let (mut skipped, mut others) = (0, 0);
        for place in &self.recordings.workers {
            if let Some(buffer) = place.lock().as_mut() {
                std::mem::swap(&mut buffer.told, &mut self.spare);
                skipped += std::mem::take(&mut buffer.skipped);
                others += std::mem::take(&mut buffer.others);
            }
            self.told.append(&mut self.spare);
        }
        self.told.sort_by_key(|told| told.at_ns);
        let ready = self.told.partition_point(|told| told.at_ns <= until);
        for told in self.told.drain(..ready) {
            let secs = (self.epoch + Duration::from_nanos(told.at_ns)).as_secs();
            let Told {
                key,
                bytes,
                kind,
                is_miss,
                ..
            } = told;
            let name = kind.name();
            // Writing to memory does not fail.
            let _ = write!(lines, "{secs} {name} {key} {bytes}");
            if let Some(ttl) = told.ttl {
                let _ = write!(lines, " ttl={ttl}");
            }
            lines.extend_from_slice(if is_miss { b" miss\n" } else { b"\n" });
        }
        for (name, count) in [("skipped", skipped), ("others", others)] {
            if count > 0 {
                let _ = writeln!(lines, "{name}={count}");
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recordings.switch.0.store(false, Ordering::Relaxed);
        for place in &self.recordings.workers {
            *place.lock() = None;
        }
        self.recordings.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1_800_000_000;

    fn taken(recording: &mut Recording) -> Vec<String> {
        let mut lines = Vec::new();
        recording.take(&mut lines);
        String::from_utf8(lines)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_line_says_all_but_the_key() {
        let recordings = Arc::new(Recordings::new(2));
        assert!(!recordings.is_on());
        let mut recording = Recording::begin(&recordings, 1).unwrap();
        assert!(recordings.is_on());
        let value_bytes = 100;
        for (worker, event) in [
            (0, Event::Get(None)),
            (
                1,
                Event::Set {
                    value_bytes,
                    expiry: NOW + 60,
                },
            ),
            (0, Event::Get(Some(100))),
            (
                1,
                Event::Set {
                    value_bytes,
                    expiry: 0,
                },
            ),
            // It is past already.
            (
                1,
                Event::Set {
                    value_bytes,
                    expiry: 1,
                },
            ),
            (
                0,
                Event::Touch {
                    found: Some(100),
                    expiry: NOW + 5,
                },
            ),
            (1, Event::Delete { is_found: true }),
            (1, Event::Delete { is_found: false }),
        ] {
            recordings.tell(worker, b"secret", event, NOW);
        }
        let lines = taken(&mut recording);
        assert_eq!(lines[0], RECORDING_HEAD);
        let key = lines[1].split(' ').nth(2).unwrap();
        assert!(key.parse::<u64>().is_ok() && !lines.concat().contains("secret"));
        // Those of two workers are in the order of their times.
        let rest: Vec<&str> = lines[1..]
            .iter()
            .map(|line| line.split_once(' ').unwrap().1)
            .collect();
        assert_eq!(
            rest,
            [
                format!("get {key} 0 miss"),
                format!("set {key} 106 ttl=60"),
                format!("get {key} 106"),
                format!("set {key} 106 ttl=0"),
                format!("set {key} 106 ttl=1"),
                format!("touch {key} 106 ttl=5"),
                format!("delete {key} 0"),
                format!("delete {key} 0 miss"),
            ]
        );
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let at: f64 = lines[8].split(' ').next().unwrap().parse().unwrap();
        assert!((since - at).abs() < 60.0, "{since} {at}");
    }

    #[test]
    fn each_recording_has_a_salt_and_there_is_one_at_a_time() {
        let recordings = Arc::new(Recordings::new(1));
        let mut keys = Vec::new();
        for _ in 0..2 {
            let mut recording = Recording::begin(&recordings, 1).unwrap();
            assert!(Recording::begin(&recordings, 1).is_none());
            recordings.tell(0, b"k", Event::Get(None), NOW);
            keys.push(taken(&mut recording)[1].split(' ').nth(2).unwrap().to_owned());
            drop(recording);
            assert!(!recordings.is_on());
            // A request that saw the switch a moment ago.
            recordings.tell(0, b"k", Event::Get(None), NOW);
        }
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn what_does_not_fit_and_what_is_not_sampled_is_counted() {
        let recordings = Arc::new(Recordings::new(1));
        let mut recording = Recording::begin(&recordings, 1).unwrap();
        for _ in 0..EVENTS_MAX + 3 {
            recordings.tell(0, b"k", Event::Get(None), NOW);
        }
        let lines = taken(&mut recording);
        assert_eq!(
            (lines.len(), lines.last().unwrap().as_str()),
            (EVENTS_MAX + 2, "skipped=3")
        );
        assert_eq!(taken(&mut recording), [""; 0]);
        drop(recording);
        let mut recording = Recording::begin(&recordings, 10).unwrap();
        for number in 0..20_000u32 {
            recordings.tell(0, &(number % 1000).to_le_bytes(), Event::Get(None), NOW);
        }
        let lines = taken(&mut recording);
        let told = lines.len() - 2;
        assert!(told.is_multiple_of(20) && (1000..3000).contains(&told), "{told}");
        assert_eq!(lines.last().unwrap(), &format!("others={}", 20_000 - told));
    }
}
