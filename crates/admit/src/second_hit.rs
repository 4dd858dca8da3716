//! The rule `second-hit`: what misses for the second time within the last flash's worth of keys is written, the rest is not.
//!
//! Most keys are asked for once, and their objects need not be written. But in some workloads each key is asked for exactly twice. There the
//! rule writes an object at the second access, and no third one comes. The ghost finds this out: it counts the accesses of each key, and from
//! these counts follows the number of hits that each rule would have had. `random:F` writes as much as `second-hit`, if F is the share of
//! objects that `second-hit` admits. Of the accesses that came c accesses after the first
//!
//! - `second-hit` has those with c ≥ 2, and G more, of keys that the ghost has forgotten and flash has not;
//! - `random:F` has 1 - (1 - F)^c of them, and F of G, as it writes as much and so keeps objects as long.
//!
//! Where `random:F` would have more, by a hundredth of what is asked, it takes over for some **rounds**, then `second-hit` is tried again. A round
//! is an eighth of the keys that flash holds. Each time that it fails at once the next wait is twice as long, up to 64 turns of flash.
//! What is estimated are hits of LRU; an object that is on flash because of chance counts for both.

use crate::ghost::{COUNTS, Ghost};
use crate::{Candidate, is_drawn};
use parking_lot::Mutex;
use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rounds in which as many new keys come as flash holds objects.
const ROUNDS: u32 = 8;
/// New keys after which it is known first how long objects are.
const FIRST_LOOK: u64 = 64;
/// Rounds of the first fall-back, and of the longest.
const FIRST: u32 = ROUNDS / 2;
const LONGEST: u32 = ROUNDS * 64;
/// The share of all accesses that `random` must gain.
const MARGIN: f64 = 0.01;

/// Where the rule is.
#[derive(Debug)]
struct Course {
    /// Rounds of `random` still to come; 0: second hits count.
    left: u32,
    /// Rounds of the next fall-back.
    next: u32,
    /// Rounds since counting began.
    age: u32,
}

/// The rule, for all threads.
#[derive(Debug)]
pub(crate) struct SecondHit {
    ghost: Ghost,
    flash_bytes: u64,
    /// New keys since the start, and their bytes.
    keys: AtomicU64,
    bytes: AtomicU64,
    /// New keys at the end of the round.
    round_end: AtomicU64,
    /// Accesses by how often the key came before.
    accesses: [AtomicU64; COUNTS],
    /// Hits on flash of keys that the ghost has forgotten.
    forgotten_hits: AtomicU64,
    judged: AtomicU64,
    admitted: AtomicU64,
    /// The bits of F, where it has fallen back; else 0.
    share: AtomicU64,
    fallbacks: AtomicU64,
    course: Mutex<Course>,
}

impl SecondHit {
    /// The rule for a flash of so many bytes and at most so many objects.
    pub(crate) fn new(flash_bytes: u64, objects: usize) -> Self {
        Self {
            ghost: Ghost::new(objects),
            flash_bytes,
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            round_end: AtomicU64::new(FIRST_LOOK),
            accesses: from_fn(|_| AtomicU64::new(0)),
            forgotten_hits: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            share: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            course: Mutex::new(Course {
                left: 0,
                next: FIRST,
                age: 0,
            }),
        }
    }

    /// Whether an object goes to flash.
    pub(crate) fn judge(&self, candidate: &Candidate) -> bool {
        let times = self.note(candidate.hash, candidate.bytes);
        if candidate.is_filling {
            return true;
        }
        let is_admitted = match self.random_share() {
            Some(share) => is_drawn(candidate, share),
            None => times > 0 || candidate.is_on_flash,
        };
        self.judged.fetch_add(1, Relaxed);
        self.admitted.fetch_add(is_admitted.into(), Relaxed);
        is_admitted
    }

    /// An object was found on flash.
    pub(crate) fn hit(&self, hash: u64, bytes: u64) {
        if self.note(hash, bytes) == 0 {
            self.forgotten_hits.fetch_add(1, Relaxed);
        }
    }

    /// The share that chance takes, where the rule has fallen back.
    pub(crate) fn random_share(&self) -> Option<f64> {
        let bits = self.share.load(Relaxed);
        (bits != 0).then(|| f64::from_bits(bits))
    }

    /// How often it has fallen back.
    pub(crate) fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Relaxed)
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> usize {
        self.ghost.bytes()
    }

    fn note(&self, hash: u64, bytes: u64) -> usize {
        let times = self.ghost.note(hash);
        self.accesses[times].fetch_add(1, Relaxed);
        if times == 0 {
            self.bytes.fetch_add(bytes, Relaxed);
            let keys = self.keys.fetch_add(1, Relaxed) + 1;
            let end = self.round_end.load(Relaxed);
            if keys >= end {
                self.begin_round(keys, end);
            }
        }
        times
    }

    /// A round has come to its end. How many objects flash holds, and so the next one, follows from how long they were so far.
    #[cold]
    fn begin_round(&self, keys: u64, end: u64) {
        let mean = (self.bytes.load(Relaxed) / keys).max(1);
        let objects = usize::try_from(self.flash_bytes / mean).unwrap_or(usize::MAX);
        let round = self.ghost.keys_at(objects) as u64 / u64::from(ROUNDS);
        let is_first = end == FIRST_LOOK;
        let next = if is_first { round.max(end + 1) } else { end + round };
        let ended = self.round_end.compare_exchange(end, next, Relaxed, Relaxed);
        if ended.is_ok() {
            self.ghost.resize(objects);
            if !is_first {
                self.end_round();
            }
        }
    }

    fn end_round(&self) {
        let mut course = self.course.lock();
        if course.left > 0 {
            course.left -= 1;
            if course.left == 0 {
                self.share.store(0, Relaxed);
                self.count_anew(&mut course);
            }
            return;
        }
        course.age += 1;
        let load = |cell: &AtomicU64| cell.load(Relaxed) as f64;
        let accesses = from_fn(|times| load(&self.accesses[times]));
        let share = load(&self.admitted) / load(&self.judged).max(1.0);
        let gain = gain_of_random(share.min(1.0), &accesses, load(&self.forgotten_hits));
        if gain > MARGIN * accesses.iter().sum::<f64>() {
            self.share.store(share.to_bits(), Relaxed);
            self.fallbacks.fetch_add(1, Relaxed);
            course.left = course.next;
            course.next = (course.next * 2).min(LONGEST);
        } else if course.age >= ROUNDS {
            course.next = FIRST;
            self.count_anew(&mut course);
        }
    }

    fn count_anew(&self, course: &mut Course) {
        course.age = 0;
        let cells = self.accesses.iter();
        for cell in cells.chain([&self.forgotten_hits, &self.judged, &self.admitted]) {
            cell.store(0, Relaxed);
        }
    }
}

/// How many more hits `random` of a share has than `second-hit`.
fn gain_of_random(share: f64, accesses: &[f64; COUNTS], forgotten_hits: f64) -> f64 {
    let mut missed = 1.0 - share;
    let mut gain = share * accesses[1] - missed * forgotten_hits;
    for count in &accesses[2..] {
        missed *= 1.0 - share;
        gain -= missed * count;
    }
    gain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, AdmissionOptions, Refusal, Rule};
    use pumice_world::mix64;
    use std::collections::{HashSet, VecDeque};

    const OBJECTS: u64 = 4096;

    /// A flash that evicts first what came first, and what the rule said.
    struct Flash {
        admission: Admission,
        queue: VecDeque<u64>,
        there: HashSet<u64>,
        was_full: bool,
        time: u64,
    }

    impl Flash {
        fn new() -> Self {
            Self {
                admission: Admission::new(AdmissionOptions {
                    rule: Rule::SecondHit,
                    flash_bytes: OBJECTS * 4096,
                    objects: OBJECTS,
                    ..AdmissionOptions::default()
                }),
                queue: VecDeque::new(),
                there: HashSet::new(),
                was_full: false,
                time: 0,
            }
        }

        /// Asks for a key; a miss is judged. Whether it was admitted, if it missed.
        fn ask(&mut self, key: u64) -> Option<bool> {
            self.time += 1;
            let hash = mix64(key);
            if self.there.contains(&key) {
                self.admission.hit(hash, 4096);
                return None;
            }
            let candidate = Candidate {
                hash,
                bytes: 4096,
                version: self.time,
                ttl_secs: None,
                is_on_flash: false,
                was_hit: false,
                is_filling: !self.was_full,
            };
            let is_admitted = self.admission.judge(&candidate).is_ok();
            if is_admitted {
                self.queue.push_back(key);
                self.there.insert(key);
                if self.queue.len() as u64 > OBJECTS {
                    let gone = self.queue.pop_front().expect("not empty");
                    self.there.remove(&gone);
                    self.was_full = true;
                }
            }
            Some(is_admitted)
        }

        fn fill(&mut self) {
            (0..=OBJECTS).for_each(|key| assert_eq!(self.ask(1 << 40 | key), Some(true)));
        }

        /// So many new keys, each of which comes again after `apart` more; hits.
        fn twice(&mut self, from: u64, keys: u64, apart: u64) -> u64 {
            let mut hits = 0;
            for key in from..from + keys {
                self.ask(key);
                if key - from >= apart {
                    hits += u64::from(self.ask(key - apart).is_none());
                }
            }
            hits
        }

        fn is_fallen_back(&self) -> bool {
            self.admission.figures().random_ppm > 0
        }
    }

    #[test]
    fn a_key_is_admitted_at_its_second_miss_and_not_at_its_first() {
        let mut flash = Flash::new();
        flash.fill();
        let scan = (0..2 * OBJECTS)
            .filter(|key| flash.ask(*key) == Some(true))
            .count();
        // But for those that the ghost mistakes.
        assert!(scan < OBJECTS as usize / 50, "{scan} of a scan");
        let recent = 2 * OBJECTS - 100..2 * OBJECTS;
        let again = recent.filter(|key| flash.ask(*key) != Some(false)).count();
        assert_eq!(again, 100);
        // Forgotten long ago.
        let old = (0..500).filter(|key| flash.ask(*key) == Some(true)).count();
        assert!(old < 20, "{old}");
        assert!(!flash.is_fallen_back());
        let figures = flash.admission.figures();
        assert!(figures.refused_by_rule_objects > 2 * OBJECTS - 100);
        assert!(figures.admitted_objects > OBJECTS + 50);
    }

    #[test]
    fn all_is_admitted_while_flash_fills_and_what_is_there_stays() {
        let admission = Admission::new(AdmissionOptions {
            rule: Rule::SecondHit,
            flash_bytes: OBJECTS * 4096,
            objects: OBJECTS,
            ..AdmissionOptions::default()
        });
        let candidate = Candidate {
            hash: mix64(1),
            bytes: 1,
            version: 1,
            ttl_secs: None,
            is_on_flash: false,
            was_hit: false,
            is_filling: true,
        };
        assert_eq!(admission.judge(&candidate), Ok(()));
        let new = |hash, is_on_flash| Candidate {
            hash,
            is_on_flash,
            is_filling: false,
            ..candidate
        };
        assert_eq!(admission.judge(&new(mix64(2), false)), Err(Refusal::Rule));
        assert_eq!(admission.judge(&new(mix64(3), true)), Ok(()));
        // Those that were noted while flash filled, or hit, are known.
        admission.hit(mix64(4), 1);
        assert_eq!(admission.judge(&new(mix64(1), false)), Ok(()));
        assert_eq!(admission.judge(&new(mix64(4), false)), Ok(()));
    }

    #[test]
    fn keys_that_come_just_twice_make_it_fall_back_and_others_end_that() {
        let mut flash = Flash::new();
        flash.fill();
        let (from, keys, apart) = (1 << 20, 40 * OBJECTS, OBJECTS / 4);
        let hits = flash.twice(from, keys, apart);
        assert!(flash.is_fallen_back());
        let figures = flash.admission.figures();
        // Chance admits about a third, so it hits about as much of the second accesses.
        assert!(hits > keys / 4, "{hits} of {keys}");
        assert!((3..=12).contains(&figures.fallbacks), "{}", figures.fallbacks);
        // Nothing of a scan comes again: second hits count again, at the latest after the longest fall-back.
        let scan = (0..(u64::from(LONGEST / ROUNDS) + 2) * OBJECTS).map(|key| 1 << 30 | key);
        scan.for_each(|key| _ = flash.ask(key));
        assert!(!flash.is_fallen_back());
        let scan = (0..OBJECTS)
            .filter(|key| flash.ask(1 << 31 | key) == Some(true))
            .count();
        assert!(scan < OBJECTS as usize / 50, "{scan} of a scan");
        assert_eq!(flash.admission.figures().fallbacks, figures.fallbacks);
    }

    #[test]
    fn keys_that_come_often_do_not_make_it_fall_back() {
        let mut flash = Flash::new();
        flash.fill();
        // Each key comes eight times, a sixteenth of flash apart, among as many that never come again.
        let apart = OBJECTS / 16;
        let mut run = |steps: std::ops::Range<u64>| {
            for step in steps {
                flash.ask(1 << 33 | step);
                let due = (0..8).filter(|back| step >= back * apart);
                due.for_each(|back| _ = flash.ask(1 << 32 | (step - back * apart)));
            }
            flash.admission.figures()
        };
        // While they are new each has come twice at most.
        let begun = run(0..2 * OBJECTS);
        let done = run(2 * OBJECTS..20 * OBJECTS);
        assert_eq!((done.fallbacks, done.random_ppm), (begun.fallbacks, 0));
        let admitted = done.since(&begun).admitted_objects;
        assert!((17 * OBJECTS..19 * OBJECTS).contains(&admitted), "{admitted}");
    }

    #[test]
    fn the_gain_is_what_is_written_above() {
        let mut accesses = [0.0; COUNTS];
        (accesses[0], accesses[1]) = (100.0, 100.0);
        assert!((gain_of_random(0.5, &accesses, 0.0) - 50.0).abs() < 1e-9);
        (accesses[2], accesses[3]) = (40.0, 16.0);
        assert!((gain_of_random(0.5, &accesses, 20.0) - (50.0 - 10.0 - 2.0 - 10.0)).abs() < 1e-9);
        assert_eq!(gain_of_random(0.0, &[100.0; COUNTS], 5.0), -605.0);
        assert_eq!(gain_of_random(1.0, &[100.0; COUNTS], 5.0), 100.0);
    }

    /// A new object of 4 KiB, on a flash that is full.
    fn new(hash: u64, version: u64) -> Candidate {
        Candidate {
            hash,
            bytes: 4096,
            version,
            ttl_secs: None,
            is_on_flash: false,
            was_hit: false,
            is_filling: false,
        }
    }

    #[test]
    fn it_remembers_as_many_keys_as_flash_holds_of_the_objects_that_come() {
        let rule = SecondHit::new(OBJECTS * 4096, 16 * OBJECTS as usize);
        let judge = |key: u64| rule.judge(&new(mix64(key), key));
        (0..4 * OBJECTS).for_each(|key| _ = judge(key));
        assert_eq!(rule.ghost.keys() as u64, OBJECTS);
        let known = (4 * OBJECTS - OBJECTS / 2..4 * OBJECTS)
            .filter(|key| judge(*key))
            .count() as u64;
        assert!(known > OBJECTS / 2 * 95 / 100, "{known}");
        let old = (0..OBJECTS / 4).filter(|key| judge(*key)).count() as u64;
        assert!(old < OBJECTS / 40, "{old}");
    }

    #[test]
    fn threads_end_each_round_once() {
        let rule = SecondHit::new(OBJECTS * 4096, OBJECTS as usize);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let rule = &rule;
                scope.spawn(move || {
                    for key in 0..10 * OBJECTS {
                        let hash = mix64(thread << 32 | key);
                        rule.judge(&new(hash, key));
                        rule.hit(hash, 4096);
                    }
                });
            }
        });
        let keys = rule.keys.load(Relaxed);
        assert!((39 * OBJECTS..=41 * OBJECTS).contains(&keys), "{keys}");
        assert_eq!(rule.random_share(), None);
        let age = u64::from(rule.course.lock().age);
        let round = OBJECTS / u64::from(ROUNDS);
        assert_eq!(keys / round % u64::from(ROUNDS), age);
    }
}
