//! Which versions of a key a get may still return.
//!
//! Every write (set or delete) of a key takes the next version when it is sent. When it is acknowledged, whatever was
//! written by a write that had been answered *before this one was sent* is gone: its version is below the key's
//! **floor** from then on, and a get that is sent later must not return it. Writes that overlap may take effect in
//! either order, so none of them raises the floor above another; that is why a write remembers the **base**, the
//! lowest version that may have been under way when it was sent, and its acknowledgement raises the floor to that.
//!
//! A write whose reply never came may take effect at any later time. It stays under way for good, and the floor of
//! its key stays below it: no false alarm, at the price of a weaker check of that key.
//!
//! The versions of deletes are odd and of sets even, so a floor says whether a delete or a set made it.
//!
//! # Memory
//!
//! 16 bytes for each written key, in lines of four that fill at most 8/11 of the table, and an entry of a map for each
//! key with a write under way. Where a table is full, an entry is given up: that key's floor is forgotten, which
//! again weakens the check and raises no alarm. Versions of a key still never go back.

use hashbrown::HashMap;
use locks::Mutex;
use pumice_world::mix64;

/// A write that was given a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The version, to be put into the value.
    pub version: u32,
    /// What the floor becomes when the write is acknowledged.
    pub base: u32,
}

/// Whether a version belongs to a delete.
pub fn is_delete(version: u32) -> bool {
    version % 2 == 1
}

const SHARDS: usize = 64;
const WAYS: usize = 4;
/// Lines that a key may be in.
const WINDOW: usize = 4;
const LAST_SET: u32 = u32::MAX - 1;

/// The floors and versions of all keys, shared by all threads.
#[derive(Debug)]
pub struct VersionTable {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    lines: Box<[Line]>,
    writes: HashMap<u64, Writes>,
}

/// One cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Entry; WAYS]);

/// A key that was written; free while `issued` is 0. In one place of the table `issued` never decreases, whatever
/// keys come and go, which keeps versions from going back.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: u64,
    floor: u32,
    issued: u32,
}

/// The writes of one key that are under way, in two generations: when the older one has ended, the younger takes its
/// place. So the base moves on although there is always some write under way.
#[derive(Debug)]
struct Writes {
    base: u32,
    older: u32,
    younger: u32,
    younger_from: u32,
}

impl VersionTable {
    /// A table for about `keys` keys: 22 bytes each.
    pub fn new(keys: usize) -> Self {
        let lines = (keys / SHARDS).saturating_mul(11).div_ceil(8 * WAYS) + WINDOW;
        let shard = || Shard {
            lines: vec![Line::default(); lines].into(),
            writes: HashMap::default(),
        };
        let shards = (0..SHARDS).map(|_| Mutex::new(shard())).collect();
        VersionTable { shards }
    }

    /// The lowest version that a get sent now may return; 0 where any may.
    pub fn floor(&self, key: u64) -> u32 {
        let hash = mix64(key);
        let shard = self.shard(hash).lock();
        shard
            .find(key, hash)
            .map_or(0, |(line, way)| shard.lines[line].0[way].floor)
    }

    /// Gives a version to a write that is about to be sent. Its end is told by [`acknowledged`](Self::acknowledged)
    /// or [`ended`](Self::ended), and never if no reply came.
    pub fn begin(&self, key: u64, is_delete: bool) -> Ticket {
        let hash = mix64(key);
        let mut shard = self.shard(hash).lock();
        let entry = shard.entry(key, hash);
        // At the end of the numbers all later sets are alike, which no check minds.
        let next_set = (entry.issued.min(LAST_SET - 2) | 1) + 1;
        let version = next_set + u32::from(is_delete);
        entry.issued = version;
        let base = match shard.writes.entry(key) {
            hashbrown::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Writes {
                    base: version,
                    older: 1,
                    younger: 0,
                    younger_from: 0,
                });
                version
            }
            hashbrown::hash_map::Entry::Occupied(mut occupied) => {
                let writes = occupied.get_mut();
                if writes.younger == 0 {
                    writes.younger_from = version;
                }
                writes.younger += 1;
                writes.base
            }
        };
        Ticket { version, base }
    }

    /// The write took effect.
    pub fn acknowledged(&self, key: u64, ticket: Ticket) {
        let hash = mix64(key);
        let mut shard = self.shard(hash).lock();
        if let Some((line, way)) = shard.find(key, hash) {
            let floor = &mut shard.lines[line].0[way].floor;
            *floor = ticket.base.max(*floor);
        }
        shard.end(key, ticket.version);
    }

    /// The write was answered, and may have taken effect or not.
    pub fn ended(&self, key: u64, ticket: Ticket) {
        self.shard(mix64(key)).lock().end(key, ticket.version);
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 58) as usize % SHARDS]
    }
}

impl Shard {
    /// The first line of a key's window.
    fn home(&self, hash: u64) -> usize {
        let starts = (self.lines.len() - WINDOW + 1) as u128;
        ((u128::from(hash << 6) * starts) >> 64) as usize
    }

    fn find(&self, key: u64, hash: u64) -> Option<(usize, usize)> {
        let home = self.home(hash);
        for (at, line) in self.lines[home..home + WINDOW].iter().enumerate() {
            for (way, entry) in line.0.iter().enumerate() {
                if entry.issued == 0 {
                    return None;
                }
                if entry.key == key {
                    return Some((home + at, way));
                }
            }
        }
        None
    }

    /// The entry of a key, made if there is none.
    fn entry(&mut self, key: u64, hash: u64) -> &mut Entry {
        let home = self.home(hash);
        let mut issued = 0;
        let mut place = None;
        'window: for (at, line) in self.lines[home..home + WINDOW].iter().enumerate() {
            for (way, entry) in line.0.iter().enumerate() {
                if entry.issued == 0 || entry.key == key {
                    place = Some((home + at, way));
                    break 'window;
                }
                issued = entry.issued.max(issued);
            }
        }
        let (line, way) = place.unwrap_or((home, issued as usize / 2 % WAYS));
        let entry = &mut self.lines[line].0[way];
        if entry.issued == 0 || entry.key != key {
            // The key may have been here before, in any of the places that were looked at.
            *entry = Entry {
                key,
                floor: 0,
                issued: issued.max(entry.issued),
            };
        }
        entry
    }

    fn end(&mut self, key: u64, version: u32) {
        let Some(writes) = self.writes.get_mut(&key) else {
            return;
        };
        if writes.younger > 0 && version >= writes.younger_from {
            writes.younger -= 1;
        } else {
            writes.older = writes.older.saturating_sub(1);
        }
        if writes.older == 0 {
            if writes.younger == 0 {
                self.writes.remove(&key);
            } else {
                writes.older = std::mem::take(&mut writes.younger);
                writes.base = writes.younger_from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_world::Random;

    #[test]
    fn an_acknowledged_write_makes_older_versions_stale() {
        let table = VersionTable::new(100);
        assert_eq!(table.floor(7), 0);
        let first = table.begin(7, false);
        assert_eq!(table.floor(7), 0, "not yet acknowledged");
        table.acknowledged(7, first);
        assert_eq!(table.floor(7), first.version);
        let delete = table.begin(7, true);
        assert!(delete.version > first.version && is_delete(delete.version) && !is_delete(first.version));
        table.acknowledged(7, delete);
        assert_eq!(table.floor(7), delete.version);
        assert_eq!(table.floor(8), 0, "other keys have floors of their own");
    }

    #[test]
    fn writes_that_overlap_leave_each_other_legal() {
        let table = VersionTable::new(100);
        let before = table.begin(7, false);
        table.acknowledged(7, before);
        let (first, second) = (table.begin(7, false), table.begin(7, false));
        table.acknowledged(7, second);
        assert_eq!(
            table.floor(7),
            first.version,
            "the first may come after the second"
        );
        table.acknowledged(7, first);
        assert_eq!(table.floor(7), first.version, "either may have come last");
        let third = table.begin(7, false);
        table.acknowledged(7, third);
        assert_eq!(table.floor(7), third.version);
    }

    #[test]
    fn a_write_without_a_reply_stays_possible() {
        let table = VersionTable::new(100);
        let lost = table.begin(7, false);
        for _ in 0..10 {
            let next = table.begin(7, false);
            table.acknowledged(7, next);
            assert!(table.floor(7) <= lost.version);
        }
        let refused = table.begin(8, false);
        table.ended(8, refused);
        assert_eq!(table.floor(8), 0);
        let next = table.begin(8, false);
        table.acknowledged(8, next);
        assert_eq!(table.floor(8), next.version, "a write that was answered is over");
    }

    #[test]
    fn floors_move_on_although_there_is_always_a_write_under_way() {
        let table = VersionTable::new(100);
        let mut under_way = std::collections::VecDeque::new();
        for round in 0..100u32 {
            under_way.push_back(table.begin(7, false));
            if round >= 3 {
                let oldest = under_way.pop_front().unwrap();
                table.acknowledged(7, oldest);
            }
        }
        assert!(
            table.floor(7) + 2 * 12 > under_way[0].version,
            "{}",
            table.floor(7)
        );
        assert!(table.floor(7) <= under_way[0].version);
    }

    /// A register that applies each write at some moment between its sending and its reply, against the table: what it
    /// holds is never below the floor.
    #[test]
    fn no_order_of_overlapping_writes_raises_an_alarm() {
        let mut random = Random(11);
        for keys in [1, 3, 400] {
            // A table of 64 x 5 lines of which few are in use, and one that gives up entries all the time.
            let table = VersionTable::new(if keys == 400 { 1 } else { 1000 });
            let mut held = vec![0u32; keys];
            let mut sent: Vec<(u64, Ticket, bool)> = Vec::new();
            for _ in 0..60_000 {
                let key = random.below(keys as u64);
                match random.below(4) {
                    0 if sent.len() < 6 => sent.push((key, table.begin(key, random.below(4) == 0), false)),
                    1 if !sent.is_empty() => {
                        let at = random.below(sent.len() as u64) as usize;
                        let (key, ticket, applied) = &mut sent[at];
                        if !*applied {
                            held[*key as usize] = ticket.version;
                            *applied = true;
                        }
                    }
                    2 if !sent.is_empty() => {
                        let at = random.below(sent.len() as u64) as usize;
                        if sent[at].2 {
                            let (key, ticket, _) = sent.swap_remove(at);
                            table.acknowledged(key, ticket);
                        }
                    }
                    _ => {
                        let floor = table.floor(key);
                        assert!(held[key as usize] >= floor, "{} < {floor}", held[key as usize]);
                    }
                }
            }
        }
    }

    #[test]
    fn versions_of_a_key_never_go_back_in_a_full_table() {
        let table = VersionTable::new(1);
        let mut last = vec![0; 5000];
        for round in 0..20_000u64 {
            let key = mix64(round) % 5000;
            let ticket = table.begin(key, false);
            assert!(ticket.version > last[key as usize]);
            last[key as usize] = ticket.version;
            table.acknowledged(key, ticket);
        }
    }

    #[test]
    fn at_the_end_of_the_numbers_nothing_is_stale() {
        let table = VersionTable::new(1);
        let first = table.begin(1, false);
        table.acknowledged(1, first);
        {
            let hash = mix64(1);
            let mut shard = table.shard(hash).lock();
            let (line, way) = shard.find(1, hash).unwrap();
            shard.lines[line].0[way].issued = u32::MAX;
        }
        for _ in 0..3 {
            let ticket = table.begin(1, false);
            assert_eq!(ticket.version, LAST_SET);
            table.acknowledged(1, ticket);
            assert!(table.floor(1) <= LAST_SET);
        }
    }
}
