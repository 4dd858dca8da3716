//! The history of one key, and whether there is an order that explains it.
//!
//! Operations are told as they begin and end. The search follows them in this order, one step behind the oldest that has
//! not ended, and keeps every *configuration* that explains what has happened so far: what stands under the key, and which of the
//! operations that have begun and not ended have taken effect. When an operation ends, it has taken effect in every
//! configuration that stays; others under way take effect before it only where that leads to one (just-in-time
//! linearization, after Wing and Gong, and Lowe). What changes nothing takes effect as soon as it fits: earlier is never worse.
//! Where no configuration stays, the answer was wrong.
//!
//! An operation without an answer may take effect until it is known that its server is gone, and need not.
//!
//! A configuration that holds nothing explains less than one that holds something, as no answer says that there was nothing;
//! and one that expires explains less than the same that expires later. Those are dropped.

use super::state::{Effect, Guard, Operation, Outcome, State};
use std::collections::VecDeque;
use std::fmt::Write;

/// Operations of one key under way at most, and how many of them may change it: what bounds the search.
const PENDING_MAX: usize = 40;
const CHANGES_MAX: usize = 6;
/// Operations kept for messages.
const RECENT_MAX: usize = 12;

/// An operation that has begun, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u8);

/// What was wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

#[derive(Clone, Copy, Debug)]
enum Event {
    Begin(Handle),
    End(Handle),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    began: u32,
    is_change: bool,
    /// Its end and outcome, once they are known.
    end: Option<(u32, Outcome)>,
}

/// An operation that the search has begun and not ended.
#[derive(Clone, Copy, Debug)]
struct Active {
    handle: Handle,
    bit: u64,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Configuration {
    state: State,
    /// Bits of the active operations that have taken effect.
    done: u64,
}

/// One key.
#[derive(Debug)]
pub struct Register {
    entries: Vec<Option<Entry>>,
    events: VecDeque<Event>,
    active: Vec<Active>,
    configurations: Vec<Configuration>,
    recent: VecDeque<Operation>,
    pending: u8,
    changes: u8,
    version: u32,
    /// Most configurations at once so far.
    widest: u32,
}

impl Default for Register {
    fn default() -> Self {
        Register {
            entries: Vec::new(),
            events: VecDeque::new(),
            active: Vec::new(),
            configurations: vec![Configuration {
                state: State::ABSENT,
                done: 0,
            }],
            recent: VecDeque::new(),
            pending: 0,
            changes: 0,
            version: 0,
            widest: 1,
        }
    }
}

impl Register {
    /// An operation is about to be sent, at `now`. `None` where too many are under way: it must not be.
    pub fn begin(&mut self, now: u32, is_change: bool) -> Option<Handle> {
        let places = self.entries.iter().filter(|entry| entry.is_some()).count();
        if places >= PENDING_MAX || (is_change && usize::from(self.changes) >= CHANGES_MAX) {
            return None;
        }
        let entry = Some(Entry {
            began: now,
            is_change,
            end: None,
        });
        let place = self.entries.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[place] = entry;
        self.pending += 1;
        self.changes += u8::from(is_change);
        let handle = Handle(place as u8);
        self.events.push_back(Event::Begin(handle));
        Some(handle)
    }

    /// The next version: no two values of the key have the same.
    pub fn next_version(&mut self) -> u32 {
        self.version += 1;
        self.version
    }

    /// Most configurations at once so far.
    pub fn widest(&self) -> u32 {
        self.widest
    }

    /// An answer came, or it is known that none will come and that the operation will not take effect any more.
    ///
    /// # Errors
    /// What cannot be explained, of this or another operation. The search goes on as if it had been right.
    pub fn end(&mut self, handle: Handle, now: u32, outcome: Outcome) -> Result<(), Violation> {
        let entry = self.entries[usize::from(handle.0)]
            .as_mut()
            .expect("an operation ends once, after it began");
        entry.end = Some((now, outcome));
        self.pending -= 1;
        self.changes -= u8::from(entry.is_change);
        self.events.push_back(Event::End(handle));
        self.advance()
    }

    /// Follows events as far as outcomes are known.
    fn advance(&mut self) -> Result<(), Violation> {
        let mut result = Ok(());
        while let Some(event) = self.events.front() {
            match *event {
                Event::Begin(handle) => {
                    let entry = self.entries[usize::from(handle.0)].expect("kept until its end");
                    let Some((ended, outcome)) = entry.end else {
                        break;
                    };
                    self.activate(
                        handle,
                        Operation {
                            outcome,
                            began: entry.began,
                            ended,
                        },
                    );
                }
                Event::End(handle) => {
                    self.entries[usize::from(handle.0)] = None;
                    result = result.and(self.finish(handle));
                }
            }
            self.events.pop_front();
        }
        if self.events.is_empty() {
            self.entries.clear();
        }
        result
    }

    fn activate(&mut self, handle: Handle, operation: Operation) {
        if operation.outcome.is_nothing() {
            return;
        }
        let used = self.active.iter().fold(0, |used, active| used | active.bit);
        let bit = 1 << (!used).trailing_zeros();
        let active = Active {
            handle,
            bit,
            operation,
        };
        for configuration in &mut self.configurations {
            configuration.absorb(&active);
        }
        self.active.push(active);
    }

    fn finish(&mut self, handle: Handle) -> Result<(), Violation> {
        let Some(at) = self.active.iter().position(|active| active.handle == handle) else {
            return Ok(());
        };
        let ending = self.active[at];
        self.remember(ending.operation);
        let mut after = self.followed_by(&ending);
        let mut result = Ok(());
        if !ending.operation.outcome.is_certain {
            after.extend(&self.configurations);
        } else if after.is_empty() {
            result = Err(Violation(self.explain(&ending.operation)));
            after = self.forced(&ending.operation);
        }
        self.active.swap_remove(at);
        for configuration in &mut after {
            configuration.done &= !ending.bit;
        }
        self.configurations = reduced(after);
        self.widest = self.widest.max(self.configurations.len() as u32);
        result
    }

    /// All configurations in which an operation has taken effect, now or before, and no other after it that need not yet.
    fn followed_by(&self, ending: &Active) -> Vec<Configuration> {
        let mut found = Vec::new();
        let mut seen = self.configurations.clone();
        let mut at = 0;
        while let Some(&from) = seen.get(at) {
            at += 1;
            if from.done & ending.bit != 0 {
                found.push(from);
                continue;
            }
            for active in &self.active {
                if from.done & active.bit != 0 || active.operation.outcome.effect == Effect::None {
                    continue;
                }
                let Some(state) = active.operation.apply(from.state) else {
                    continue;
                };
                let mut next = Configuration {
                    state,
                    done: from.done | active.bit,
                };
                for other in &self.active {
                    next.absorb(other);
                }
                if !seen.contains(&next) {
                    seen.push(next);
                }
            }
        }
        found
    }

    /// What is taken to stand there after an answer that cannot be right.
    fn forced(&self, wrong: &Operation) -> Vec<Configuration> {
        let mut all = self.configurations.clone();
        for configuration in &mut all {
            if let Guard::Is(content) | Guard::Marked(content, _) = wrong.outcome.guard {
                configuration.state = State {
                    content,
                    ..State::ABSENT
                };
            }
            configuration.state = wrong.changed(configuration.state);
        }
        all
    }

    fn remember(&mut self, operation: Operation) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(operation);
    }

    fn explain(&self, wrong: &Operation) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{} cannot be right. Before it the key held ", told(wrong));
        let mut states: Vec<State> = self.configurations.iter().map(|all| all.state).collect();
        states.sort_unstable_by_key(|state| (state.content, state.deadline));
        states.dedup();
        for (at, state) in states.iter().take(6).enumerate() {
            let or = if at > 0 { " or " } else { "" };
            let _ = match state.content {
                0 => write!(text, "{or}nothing"),
                content => write!(text, "{or}{content:#x}"),
            };
            if state.deadline != super::state::NEVER {
                let _ = write!(text, " until {}", seconds(state.deadline));
            }
            if state.marks != 0 {
                let _ = write!(text, " with marks {}", state.marks);
            }
        }
        let _ = write!(
            text,
            "; of the last versions {} was given last. Ended before it:",
            self.version
        );
        for operation in self.recent.iter().rev().skip(1) {
            let _ = write!(text, "\n    {}", told(operation));
        }
        let others = self
            .active
            .iter()
            .filter(|active| active.operation.began < wrong.ended);
        for active in others.filter(|active| active.operation.ended > wrong.ended) {
            let _ = write!(text, "\n    under way: {}", told(&active.operation));
        }
        text
    }
}

impl Configuration {
    /// What changes nothing takes effect where it fits.
    fn absorb(&mut self, active: &Active) {
        if active.operation.outcome.effect == Effect::None
            && self.done & active.bit == 0
            && active.operation.apply(self.state).is_some()
        {
            self.done |= active.bit;
        }
    }

    /// Whether this explains whatever `other` does.
    fn covers(&self, other: &Self) -> bool {
        if self.done != other.done {
            return false;
        }
        let (mine, its) = (&self.state, &other.state);
        its.content == 0
            || (mine.content == its.content && mine.marks == its.marks && mine.deadline >= its.deadline)
    }
}

/// Without those that others cover.
fn reduced(all: Vec<Configuration>) -> Vec<Configuration> {
    let mut kept: Vec<Configuration> = Vec::with_capacity(all.len().min(4));
    for next in all {
        if kept.iter().any(|kept| kept.covers(&next)) {
            continue;
        }
        kept.retain(|kept| !next.covers(kept));
        kept.push(next);
    }
    kept
}

fn seconds(ms: u32) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

/// An operation in words.
fn told(operation: &Operation) -> String {
    let Outcome {
        name,
        guard,
        effect,
        is_certain,
    } = operation.outcome;
    let mut text = format!(
        "{} to {}: {name}",
        seconds(operation.began),
        seconds(operation.ended)
    );
    let _ = match guard {
        Guard::None => Ok(()),
        Guard::Exists => write!(text, " found something"),
        Guard::Is(content) => write!(text, " found {content:#x}"),
        Guard::Marked(content, marks) => write!(text, " found {content:#x} with marks {marks}"),
    };
    let ttl = |ttl: super::state::Ttl| ttl.map_or(String::new(), |ttl| format!(" for {ttl} s"));
    let _ = match effect {
        Effect::None => Ok(()),
        Effect::Put(content, time) => write!(text, ", stored {content:#x}{}", ttl(time)),
        Effect::Clear => write!(text, ", removed"),
        Effect::Touch(time) => write!(text, ", touched{}", ttl(time)),
        Effect::Join(piece) => write!(text, ", joined piece {piece:#x}"),
        Effect::Add(delta) => write!(text, ", added {delta}"),
        Effect::Invalidate(_) => write!(text, ", marked as stale"),
        Effect::Win => write!(text, ", won if it was stale"),
    };
    if !is_certain {
        text.push_str(" (no answer)");
    }
    text
}

#[cfg(test)]
mod tests;
