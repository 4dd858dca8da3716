//! What each sector may hold: while the server lives, and after it has stopped.
//!
//! A sector is a register, written and read in one step somewhere between request and answer. Time is a counter of requests and answers.
//! For two changes of a sector, *before* means that one had ended when the other was sent, or that a read has shown their order.
//!
//! - A read may find each change that is not before another one that had taken effect when the read was sent.
//! - After a stop, a sector has any change that is not before a durable one: one that was answered before a FLUSH was sent that
//!   succeeded, or that had FUA. What was under way may be there. Whatever is found stays, until it is changed.
//! - A change that failed may be there, as one whose answer never came.
//!
//! Where several changes explain a read, nothing is learnt from it. So no legal server is accused, and a few wrong ones pass.
//!
//! Memory: 8 bytes a sector, and some 300 for one to three changes of a sector that are not durable yet, 56 to 112 for each further one.

use super::content::{Content, Seen};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Changes that are expected are named in an explanation.
const NAMED: usize = 4;
/// Changes that may be forgotten after a FLUSH.
const CHANGES_MAX: usize = 1 << 18;

/// A change of a sector that may matter.
#[derive(Clone, Copy, Debug)]
struct Change {
    content: Content,
    /// Time that it was sent, the same for all sectors of a request, or a number that no other change has.
    id: u64,
    sent: u64,
    /// It takes no effect later.
    end: u64,
    /// Time of its answer; 0 for FUA, `u64::MAX` for none.
    answered: u64,
    /// It has taken effect.
    is_certain: bool,
    /// The change that a read has shown to be later; 0 for none.
    before: u64,
}

impl Change {
    /// One that was sent at this time.
    fn new(content: Content, id: u64, sent: u64) -> Self {
        Change {
            content,
            id,
            sent,
            end: u64::MAX,
            answered: u64::MAX,
            is_certain: false,
            before: 0,
        }
    }

    /// The only one, durable.
    fn settled(content: Content) -> Self {
        Change {
            end: 0,
            answered: 0,
            is_certain: true,
            ..Change::new(content, 0, 0)
        }
    }

    fn is_durable(&self, flushed: u64) -> bool {
        self.is_certain && self.answered < flushed
    }

    fn is_under_way(&self) -> bool {
        self.end == u64::MAX
    }

    fn text(&self, flushed: u64) -> String {
        let state = match () {
            () if self.is_durable(flushed) => "flushed",
            () if self.is_under_way() => "under way",
            () if self.is_certain => "answered",
            () if self.answered == u64::MAX => "failed",
            () => "left by the stop",
        };
        format!("{} ({state})", self.content.text())
    }
}

/// Changes that are before none of those which `is_late` names, ascending.
fn latest(changes: &[Change], is_late: impl Fn(&Change) -> bool) -> Vec<usize> {
    let late = changes.iter().filter(|change| is_late(change));
    let begun = late.map(|change| change.sent).max().unwrap_or(0);
    let mut is_gone: Vec<bool> = changes.iter().map(|change| change.end < begun).collect();
    let shown: Vec<usize> = (0..changes.len()).filter(|at| changes[*at].before != 0).collect();
    let places: HashMap<u64, usize> = match shown.is_empty() {
        true => HashMap::new(),
        false => changes
            .iter()
            .enumerate()
            .map(|(at, change)| (change.id, at))
            .collect(),
    };
    let mut has_changed = true;
    while std::mem::take(&mut has_changed) {
        for at in &shown {
            // What is before a change that is gone is gone, too.
            let later = places.get(&changes[*at].before);
            let is_before = later.is_some_and(|later| is_gone[*later] || is_late(&changes[*later]));
            has_changed |= is_before && !is_gone[*at];
            is_gone[*at] |= is_before;
        }
    }
    (0..changes.len()).filter(|at| !is_gone[*at]).collect()
}

/// Sectors with the contents that each may have.
pub type Open = Vec<(u64, Vec<Content>)>;

/// A sector that was not what it must be.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The sector.
    pub sector: u64,
    /// What it must be and what was found.
    pub what: String,
}

/// What is known of all sectors.
#[derive(Clone, Debug)]
pub struct Model {
    settled: Vec<Content>,
    open: HashMap<u64, Vec<Change>>,
    /// Changes of open sectors.
    changes: usize,
    /// Those that the last look at all left.
    swept: usize,
    clock: u64,
    /// What was answered before is durable.
    flushed: u64,
    reads: BTreeSet<u64>,
}

impl Model {
    /// Nothing is known of so many sectors.
    pub fn new(sectors: u64) -> Self {
        Self::load(vec![Content::UNKNOWN; sectors as usize], 0, Vec::new())
    }

    /// What [`Model::save`] gave.
    pub fn load(settled: Vec<Content>, clock: u64, open: Open) -> Self {
        let mut model = Model {
            settled,
            open: HashMap::new(),
            changes: 0,
            swept: 0,
            clock,
            flushed: 1,
            reads: BTreeSet::new(),
        };
        for (sector, contents) in open {
            model.open_group(sector, contents);
        }
        model
    }

    /// Ends as if the server had stopped; gives the known sectors, the time, and the contents that each other one may have.
    pub fn save(&mut self) -> (&[Content], u64, Open) {
        self.stop();
        let contents = |changes: &Vec<Change>| changes.iter().map(|change| change.content).collect();
        let open = self
            .open
            .iter()
            .map(|(sector, changes)| (*sector, contents(changes)));
        let mut open: Open = open.collect();
        open.sort_unstable_by_key(|(sector, _)| *sector);
        (&self.settled, self.clock, open)
    }

    /// Sectors.
    pub fn sectors(&self) -> u64 {
        self.settled.len() as u64
    }

    /// Whether a FLUSH is needed to forget changes, which take memory.
    pub fn needs_flush(&self) -> bool {
        self.changes > 2 * self.swept + CHANGES_MAX
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A read is sent; gives its number.
    pub fn send_read(&mut self) -> u64 {
        let sent = self.tick();
        self.reads.insert(sent);
        sent
    }

    /// A read is answered. Its sectors are checked before.
    pub fn end_read(&mut self, number: u64) {
        self.reads.remove(&number);
    }

    /// A FLUSH is sent; gives its number.
    pub fn send_flush(&mut self) -> u64 {
        self.tick()
    }

    /// A FLUSH has succeeded.
    pub fn end_flush(&mut self, number: u64) {
        self.flushed = self.flushed.max(number);
        if self.changes > 2 * self.swept + 1024 {
            let sectors: Vec<u64> = self.open.keys().copied().collect();
            sectors.into_iter().for_each(|sector| self.prune(sector));
            self.swept = self.changes;
        }
    }

    /// A change is sent; gives its number, of which its content is made.
    pub fn send_change(&mut self, sectors: Range<u64>, content: impl Fn(u64) -> Content) -> u64 {
        let sent = self.tick();
        let content = content(sent);
        for sector in sectors {
            let settled = &self.settled;
            let changes = self.open.entry(sector).or_insert_with(|| {
                self.changes += 1;
                vec![Change::settled(settled[sector as usize])]
            });
            changes.push(Change::new(content, sent, sent));
            self.changes += 1;
        }
        sent
    }

    /// A change is answered.
    pub fn end_change(&mut self, number: u64, sectors: Range<u64>, has_succeeded: bool, is_durable: bool) {
        let now = self.tick();
        for sector in sectors {
            let changes = self.open.get_mut(&sector).into_iter().flatten();
            for change in changes.filter(|change| change.id == number) {
                change.end = change.end.min(now);
                if has_succeeded {
                    change.is_certain = true;
                    change.answered = if is_durable { 0 } else { now };
                }
            }
            self.prune(sector);
        }
    }

    /// Forgets changes of a sector that nothing can bring back.
    fn prune(&mut self, sector: u64) {
        let Some(changes) = self.open.get_mut(&sector) else {
            return;
        };
        let horizon = self.reads.first().copied().unwrap_or(u64::MAX);
        let flushed = self.flushed;
        let is_final = |change: &Change| change.is_durable(flushed) && change.end < horizon;
        let had = changes.len();
        *changes = latest(changes, is_final)
            .into_iter()
            .map(|at| changes[at])
            .collect();
        self.changes -= had - changes.len();
        if let [only] = changes.as_slice()
            && is_final(only)
        {
            self.settled[sector as usize] = only.content;
            self.open.remove(&sector);
            self.changes -= 1;
        }
    }

    /// Checks a sector of the read `number`, which is answered now.
    pub fn check(&mut self, number: u64, sector: u64, seen: &Seen) -> Result<(), Wrong> {
        let now = self.tick();
        let settled = &mut self.settled[sector as usize];
        let Some(changes) = self.open.get_mut(&sector) else {
            let expected = *settled;
            let is_right = expected.matches(seen);
            if expected != Content::TRIMMED || !is_right {
                *settled = seen.content;
            }
            let only = [Change::settled(expected)];
            return if is_right {
                Ok(())
            } else {
                Err(wrong(sector, seen, &only, self.flushed))
            };
        };
        let had_taken_effect = |change: &Change| change.is_certain && change.end < number;
        let legal = latest(changes, had_taken_effect);
        let mut matching = legal.iter().filter(|at| changes[**at].content.matches(seen));
        match (matching.next(), matching.next()) {
            (Some(at), None) => {
                let found = &mut changes[*at];
                let is_news = !found.is_certain;
                found.is_certain = true;
                found.end = found.end.min(now);
                if found.content == Content::UNKNOWN {
                    found.content = seen.content;
                }
                let (id, sent) = (found.id, found.sent);
                // Of those that were ended, it is the last.
                for change in changes.iter_mut() {
                    let is_open = (sent..number).contains(&change.end) && change.before == 0;
                    if is_open && change.id != id {
                        change.before = id;
                    }
                }
                if is_news {
                    self.prune(sector);
                }
                Ok(())
            }
            (Some(_), Some(_)) => Ok(()),
            (None, _) => {
                let legal: Vec<Change> = legal.into_iter().map(|at| changes[at]).collect();
                // What was found is taken for good, so that it is reported once.
                let had = changes.len();
                changes.retain(Change::is_under_way);
                changes.push(Change::settled(seen.content));
                self.changes -= had - changes.len();
                Err(wrong(sector, seen, &legal, self.flushed))
            }
        }
    }

    /// The server has stopped: whatever was under way has ended, and only what is durable is certain.
    pub fn stop(&mut self) {
        self.reads.clear();
        let flushed = self.flushed;
        self.changes = 0;
        for (sector, changes) in std::mem::take(&mut self.open) {
            let left = latest(&changes, |change| change.is_durable(flushed));
            let left = left.into_iter().map(|at| changes[at].content).collect();
            self.open_group(sector, left);
        }
        self.swept = self.changes;
    }

    /// A sector has one of these contents.
    fn open_group(&mut self, sector: u64, mut contents: Vec<Content>) {
        contents.sort_unstable_by_key(|content| content.0);
        contents.dedup();
        if let [only] = contents[..] {
            self.settled[sector as usize] = only;
            return;
        }
        let now = self.tick();
        let mut change = |content| Change {
            end: now,
            answered: now,
            ..Change::new(content, self.tick(), now)
        };
        let changes: Vec<Change> = contents.into_iter().map(&mut change).collect();
        self.changes += changes.len();
        self.open.insert(sector, changes);
    }
}

fn wrong(sector: u64, seen: &Seen, expected: &[Change], flushed: u64) -> Wrong {
    let newest = expected
        .iter()
        .map(|change| change.content)
        .max_by_key(|content| content.0);
    let age = match newest {
        Some(newest) if seen.content.is_older(newest) => "an older content, ",
        _ => "",
    };
    let mut names: Vec<String> = expected
        .iter()
        .rev()
        .take(NAMED)
        .map(|change| change.text(flushed))
        .collect();
    if expected.len() > NAMED {
        names.push(format!("{} others", expected.len() - NAMED));
    }
    let what = format!("found {age}{}; expected {}", seen.text(), names.join(" or "));
    Wrong { sector, what }
}

#[cfg(test)]
mod tests;
