//! The rule `second-hit`: what misses for the second time within the last flash's worth of distinct misses is written, the rest is not.
//!
//! Most keys are asked for once, and their objects need not be written. But in some workloads each key is asked for exactly twice. There the
//! rule writes an object at the second access, and no third one comes. The ghost finds this out: it counts the accesses of each key, and from
//! these counts follows the number of hits that each rule would have had. `random:F` writes as much as `second-hit`, if F is the share of
//! objects that `second-hit` admits. Of the accesses that came c accesses after the first
//!
//! - `second-hit` has those with c ≥ 2;
//! - `random:F` has 1 - (1 - F)^c of them, as it writes as much and so keeps objects as long.
//!
//! A hit of a key that the ghost has forgotten is taken for one that both have, since most such keys are asked for often. Where a key comes a third
//! time late, that favours `random`.
//!
//! Where `random:F` would have more, by a hundredth of what is asked, it takes over for some **rounds**, then `second-hit` is tried again. In a round
//! as many new keys come as their objects fill an eighth of flash. Each time that it fails at once the next wait is twice as long, up to 64 turns of flash.
//! What is estimated are hits of LRU; an object that is on flash because of chance counts for both.
//!
//! The ghost also says how many hits fewer than without any rule `second-hit` has: each second access of a key, less the hits of keys that the ghost
//! has forgotten, which flash would not have if all were written. Where that is more than a fiftieth of what was asked in two turns of flash in a row, or after a
//! fall-back in a round, as where DRAM answers what comes again soon and little else comes often, `random` takes over likewise. Where as much is lost, F is
//! at least the share by which half of that is lost.

use crate::ghost::{COUNTS, Ghost, WAYS};
use crate::{Candidate, is_drawn};
use locks::Mutex;
use pumice_memory::PagePool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rounds of a turn of flash, in which as many new keys come as flash holds objects.
const ROUNDS: u32 = 8;
/// In the first round it is known after so many new keys how long objects are, and again after eight times as many: each may take a page.
const FIRST_LOOK: u64 = 64;
const LOOKS_APART: u64 = 8;
/// The weight of a round in the mean length.
const ROUND_WEIGHT: f64 = 0.25;
/// Rounds of the first fall-back, and of the longest.
const FIRST: u32 = ROUNDS / 2;
const LONGEST: u32 = ROUNDS * 64;
/// The share of all accesses that `random` must gain.
const MARGIN: f64 = 0.01;
/// The share of all accesses that the rule may lose against none.
const LOSS_MAX: f64 = 0.02;

/// Where the rule is.
#[derive(Debug)]
struct Course {
    /// Rounds of `random` still to come; 0: second hits count.
    left: u32,
    /// Rounds of the next fall-back.
    next: u32,
    /// Rounds since counting began.
    age: u32,
    /// Whether too much was lost in the turn before.
    has_lost: bool,
    /// The mean length of objects, of late; 0 in the first round.
    mean_bytes: f64,
}

/// The rule, for all threads.
pub(crate) struct SecondHit {
    ghost: Ghost,
    flash_bytes: u64,
    /// Objects of flash, at most.
    objects_max: usize,
    /// New keys of this round, and their bytes.
    keys: AtomicU64,
    bytes: AtomicU64,
    /// New keys at which it is looked how long objects are.
    look_at: AtomicU64,
    judged: AtomicU64,
    admitted: AtomicU64,
    /// Hits of keys that the ghost has forgotten.
    forgotten: AtomicU64,
    /// The bits of F, where it has fallen back; else 0.
    share: AtomicU64,
    fallbacks: AtomicU64,
    course: Mutex<Course>,
}

impl SecondHit {
    /// The rule for a flash of so many bytes and at most so many objects. It takes pages of a pool while that has more than `spare_pages`.
    pub(crate) fn new(flash_bytes: u64, objects: usize, pool: Arc<PagePool>, spare_pages: usize) -> Self {
        Self {
            ghost: Ghost::new(pool, spare_pages),
            flash_bytes,
            objects_max: objects.max(WAYS),
            keys: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            look_at: AtomicU64::new(FIRST_LOOK),
            judged: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            share: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            course: Mutex::new(Course {
                left: 0,
                next: FIRST,
                age: 0,
                has_lost: false,
                mean_bytes: 0.0,
            }),
        }
    }

    /// Whether an object goes to flash.
    pub(crate) fn judge(&self, candidate: &Candidate) -> bool {
        let times = self.ghost.note(candidate.hash);
        if times == 0 {
            self.count_new(candidate.bytes);
        }
        if candidate.is_filling {
            return true;
        }
        let is_admitted = match self.random_share() {
            Some(share) => is_drawn(candidate, share),
            None => times > 0 || candidate.is_on_flash,
        };
        self.judged.fetch_add(1, Relaxed);
        if is_admitted {
            self.admitted.fetch_add(1, Relaxed);
        }
        is_admitted
    }

    /// An object was found on flash. It takes no place of the ghost from keys that miss.
    pub(crate) fn hit(&self, hash: u64) {
        if self.ghost.renew(hash) == 0 {
            self.forgotten.fetch_add(1, Relaxed);
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

    /// A new key has come, with an object of so many bytes.
    fn count_new(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        let keys = self.keys.fetch_add(1, Relaxed) + 1;
        if self.is_round_over(keys, bytes) || keys >= self.look_at.load(Relaxed) {
            self.look();
        }
    }

    fn is_round_over(&self, keys: u64, bytes: u64) -> bool {
        let rounds = u64::from(ROUNDS);
        bytes >= self.flash_bytes / rounds || keys >= self.objects_max as u64 / rounds
    }

    /// How many objects flash holds follows from how long they are. Ends the round where that is over.
    #[cold]
    fn look(&self) {
        let Some(mut course) = self.course.try_lock() else {
            return;
        };
        // Of two threads that come one after the other, the second may find the next round.
        let (keys, bytes) = (self.keys.load(Relaxed), self.bytes.load(Relaxed));
        let is_over = self.is_round_over(keys, bytes);
        if keys == 0 || !is_over && keys < self.look_at.load(Relaxed) {
            return;
        }
        let seen = bytes as f64 / keys as f64;
        let mean = match course.mean_bytes {
            0.0 => seen,
            before => before + ROUND_WEIGHT * (seen - before),
        };
        let objects = self.flash_bytes as f64 / mean.max(1.0);
        self.ghost
            .resize((objects as usize).clamp(WAYS, self.objects_max));
        if is_over {
            self.keys.fetch_sub(keys, Relaxed);
            self.bytes.fetch_sub(bytes, Relaxed);
            self.look_at.store(u64::MAX, Relaxed);
            course.mean_bytes = mean;
            self.end_round(&mut course);
        } else {
            self.look_at.store(keys * LOOKS_APART, Relaxed);
        }
    }

    fn end_round(&self, course: &mut Course) {
        if course.left > 0 {
            course.left -= 1;
            if course.left == 0 {
                self.share.store(0, Relaxed);
                self.count_anew(course);
            }
            return;
        }
        course.age += 1;
        let is_turn_over = course.age >= ROUNDS;
        let load = |cell: &AtomicU64| cell.load(Relaxed) as f64;
        let accesses = self.ghost.answers().map(|count| count as f64);
        let share = load(&self.admitted) / load(&self.judged).max(1.0);
        let gain = gain_of_random(share.min(1.0), &accesses);
        let asked = accesses.iter().sum::<f64>();
        let loses = accesses[1] - load(&self.forgotten) > LOSS_MAX * asked;
        // Where it has fallen back lately, a round is enough.
        let is_known = course.has_lost && (is_turn_over || course.next > FIRST);
        let share = (gain > MARGIN * asked || is_known && loses).then(|| match loses {
            true => share_that_loses(LOSS_MAX / 2.0 * asked, &accesses).max(share),
            false => share,
        });
        if is_turn_over {
            course.has_lost = loses;
        }
        if let Some(share) = share {
            self.share.store(share.to_bits(), Relaxed);
            self.fallbacks.fetch_add(1, Relaxed);
            course.left = course.next;
            course.next = (course.next * 2).min(LONGEST);
        } else if is_turn_over {
            course.next = FIRST;
            self.count_anew(course);
        }
    }

    fn count_anew(&self, course: &mut Course) {
        course.age = 0;
        self.ghost.count_anew();
        for cell in [&self.judged, &self.admitted, &self.forgotten] {
            cell.store(0, Relaxed);
        }
    }
}

/// How many more hits `random` of a share has than `second-hit`.
fn gain_of_random(share: f64, accesses: &[f64; COUNTS]) -> f64 {
    let mut missed = 1.0 - share;
    let mut gain = share * accesses[1];
    for count in &accesses[2..] {
        missed *= 1.0 - share;
        gain -= missed * count;
    }
    gain
}

/// The least share by which `random` loses at most so many hits against all being written.
fn share_that_loses(most: f64, accesses: &[f64; COUNTS]) -> f64 {
    let lost = |share: f64| -> f64 {
        let mut missed = 1.0;
        let lost = accesses[1..].iter().map(|count| {
            missed *= 1.0 - share;
            missed * count
        });
        lost.sum()
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..20 {
        let middle = f64::midpoint(low, high);
        if lost(middle) <= most {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{candidate, standalone};
    use crate::{Admission, AdmissionOptions, Refusal, Rule};
    use pumice_world::mix64;
    use std::collections::{HashSet, VecDeque};

    const OBJECTS: u64 = 4096;

    /// A new object of 4 KiB, on a flash that is full.
    fn new(hash: u64, version: u64) -> Candidate {
        Candidate {
            version,
            ..candidate(hash)
        }
    }

    /// The rule behind its seam, for a flash of [`OBJECTS`] of 4 KiB.
    fn admission() -> Admission {
        standalone(AdmissionOptions {
            rule: Rule::SecondHit,
            flash_bytes: OBJECTS * 4096,
            objects: OBJECTS,
            ..AdmissionOptions::default()
        })
    }

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
                admission: admission(),
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
                self.admission.hit(hash);
                return None;
            }
            let candidate = Candidate {
                is_filling: !self.was_full,
                ..new(hash, self.time)
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
        // Fewer than make it fall back.
        let recent = 2 * OBJECTS - 50..2 * OBJECTS;
        let again = recent.filter(|key| flash.ask(*key) != Some(false)).count();
        assert_eq!(again, 50);
        // Forgotten long ago.
        let old = (0..500).filter(|key| flash.ask(*key) == Some(true)).count();
        assert!(old < 20, "{old}");
        assert!(!flash.is_fallen_back());
        let figures = flash.admission.figures();
        assert!(figures.refused_by_rule_objects > 2 * OBJECTS - 100);
        assert!(figures.admitted_objects > OBJECTS + 25);
    }

    #[test]
    fn all_is_admitted_while_flash_fills_and_what_is_there_stays() {
        let admission = admission();
        let judge = |key, is_on_flash, is_filling| {
            admission.judge(&Candidate {
                is_on_flash,
                is_filling,
                ..new(mix64(key), 1)
            })
        };
        assert_eq!(judge(1, false, true), Ok(()));
        assert_eq!(judge(2, false, false), Err(Refusal::Rule));
        assert_eq!(judge(3, true, false), Ok(()));
        // What was judged while flash filled is known. A hit alone makes nothing known.
        admission.hit(mix64(4));
        assert_eq!(judge(1, false, false), Ok(()));
        assert_eq!(judge(4, false, false), Err(Refusal::Rule));
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
        // Each key comes 64 times, a 64th of flash apart, among as many that never come again.
        const TIMES: u64 = 64;
        let apart = OBJECTS / TIMES;
        let mut run = |steps: std::ops::Range<u64>| {
            for step in steps {
                flash.ask(1 << 33 | step);
                let due = (0..TIMES).filter(|back| step >= back * apart);
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

    /// Keys come twice, a fourth of them, or eight times: with all of it written each second access is a hit.
    #[test]
    fn where_it_loses_much_against_all_it_falls_back_to_what_loses_little() {
        let (mut flash, mut asked, mut lost) = (Flash::new(), 0, 0);
        flash.fill();
        let apart = OBJECTS / 32;
        for step in 0..40 * OBJECTS {
            let times = if step % 4 == 0 { 2 } else { 8 };
            for back in 0..8u64 {
                let Some(key) = step.checked_sub(back * apart) else {
                    continue;
                };
                if back < if key % 4 == 0 { 2 } else { 8 }
                    && flash.ask(1 << 32 | key).is_some()
                    && back > 0
                    && step > 20 * OBJECTS
                {
                    lost += 1;
                }
            }
            asked += times;
        }
        let share = flash.admission.figures().random_ppm as f64 / 1e6;
        println!("{lost} of {asked} lost, F {share}");
        assert!(flash.is_fallen_back() && share < 1.0, "{share}");
        assert!(lost * 40 < asked, "{lost} of {asked}");
    }

    #[test]
    fn the_least_share_that_loses_little_is_found() {
        let mut accesses = [0.0; COUNTS];
        (accesses[0], accesses[1]) = (100.0, 100.0);
        assert!((share_that_loses(10.0, &accesses) - 0.9).abs() < 1e-4);
        accesses[2] = 100.0;
        let missed = 1.0 - share_that_loses(10.0, &accesses);
        assert!((missed * 100.0 + missed * missed * 100.0 - 10.0).abs() < 1e-2);
        assert!(share_that_loses(1_000.0, &accesses) < 1e-4);
    }

    #[test]
    fn the_gain_is_what_is_written_above() {
        let mut accesses = [0.0; COUNTS];
        (accesses[0], accesses[1]) = (100.0, 100.0);
        assert!((gain_of_random(0.5, &accesses) - 50.0).abs() < 1e-9);
        (accesses[2], accesses[3]) = (40.0, 16.0);
        assert!((gain_of_random(0.5, &accesses) - (50.0 - 10.0 - 2.0)).abs() < 1e-9);
        assert_eq!(gain_of_random(0.0, &[100.0; COUNTS]), -600.0);
        assert_eq!(gain_of_random(1.0, &[100.0; COUNTS]), 100.0);
    }

    /// The rule for a flash of [`OBJECTS`] of 4 KiB.
    fn rule(objects: u64) -> SecondHit {
        let pool = PagePool::standalone(1 << 20).unwrap();
        SecondHit::new(OBJECTS * 4096, objects as usize, pool, 0)
    }

    #[test]
    fn it_remembers_nearly_as_many_keys_as_flash_holds_of_the_objects_that_come() {
        let rule = rule(16 * OBJECTS);
        let judge = |key: u64| {
            // Not the share that it falls back to.
            let is_known = rule.ghost.renew(mix64(key)) > 0;
            rule.judge(&new(mix64(key), key));
            is_known
        };
        (0..4 * OBJECTS).for_each(|key| _ = judge(key));
        let keys = rule.ghost.keys() as u64;
        assert!((OBJECTS * 85 / 100..OBJECTS).contains(&keys), "{keys}");
        let known = (4 * OBJECTS - OBJECTS / 2..4 * OBJECTS)
            .filter(|key| judge(*key))
            .count() as u64;
        assert!(known > OBJECTS / 2 * 95 / 100, "{known}");
        let old = (0..OBJECTS / 4).filter(|key| judge(*key)).count() as u64;
        assert!(old < OBJECTS / 40, "{old}");
    }

    #[test]
    fn its_dram_follows_objects_that_become_longer_and_shorter() {
        let rule = rule(32 * OBJECTS);
        let mut key = 0;
        for (len, turns) in [(256, 2), (65_536, 2), (4096, 2), (256, 3)] {
            let objects = OBJECTS * 4096 / len;
            for _ in 0..turns * objects {
                let candidate = Candidate {
                    bytes: len,
                    ..new(mix64(key), key)
                };
                rule.judge(&candidate);
                key += 1;
            }
            let (most, bytes) = (2 * objects as usize, rule.bytes());
            assert!(bytes <= most + 4096, "{bytes} for {objects} objects");
            assert!(bytes * 5 > most * 3, "{bytes} for {objects} objects");
        }
    }

    /// As after a restart: flash has objects of which the ghost knows nothing.
    #[test]
    fn hits_of_forgotten_keys_do_not_hide_that_keys_come_just_twice() {
        let rule = rule(OBJECTS);
        let (mut there, mut time) = (HashSet::new(), 0);
        let apart = OBJECTS / 4;
        for step in 0..30 * OBJECTS {
            (3 * step..3 * step + 3).for_each(|hot| rule.hit(mix64((1 << 50) + hot % (OBJECTS / 2))));
            let due = step.checked_sub(apart).into_iter();
            for key in [step].into_iter().chain(due) {
                time += 1;
                match there.remove(&key) {
                    true => rule.hit(mix64(key)),
                    false if rule.judge(&new(mix64(key), time)) => drop(there.insert(key)),
                    false => {}
                }
            }
        }
        assert!(rule.fallbacks() > 0);
    }

    #[test]
    fn threads_end_each_round_once() {
        let rule = rule(OBJECTS);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let rule = &rule;
                scope.spawn(move || {
                    for key in 0..10 * OBJECTS {
                        let hash = mix64(thread << 32 | key);
                        if rule.judge(&new(hash, key)) {
                            rule.hit(hash);
                        }
                    }
                });
            }
        });
        // Each has taken its own keys out of the sums, and those that are left are no round.
        let (keys, bytes) = (rule.keys.load(Relaxed), rule.bytes.load(Relaxed));
        assert!(keys <= OBJECTS / u64::from(ROUNDS), "{keys}");
        assert!(bytes.abs_diff(keys * 4096) <= 64 * 4096, "{bytes} of {keys} keys");
        assert_eq!(rule.random_share(), None);
    }
}
