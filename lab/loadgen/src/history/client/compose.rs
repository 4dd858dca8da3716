//! What a client asks for next.

use super::{Client, Sent};
use crate::history::population::{Class, Population};
use crate::history::request::{Ask, Verb};
use crate::history::state::Ttl;

/// Commands sent together at most, and the keys of one `get`.
const BATCH_MAX: u64 = 12;
const KEYS_OF_GET_MAX: u64 = 8;

impl Client<'_> {
    /// Chooses the next batch, and writes it down.
    pub(super) fn compose(&mut self) {
        self.out.clear();
        for _ in 0..=self.random.below(BATCH_MAX) {
            let keys = match self.random.below(10) {
                0..4 => self.get(),
                _ => self.change(),
            };
            // Large values alone, or both sides may wait for each other to read.
            if keys.is_none() || self.out.len() > 30_000 {
                break;
            }
        }
    }

    /// A get of some keys; `None` where nothing should follow it.
    fn get(&mut self) -> Option<()> {
        let unique = self.random.below(3) == 0;
        let from = self.batch.len();
        let mut result = Some(());
        for _ in 0..=self.random.below(KEYS_OF_GET_MAX) {
            let key = match self.sweep.next() {
                Some(key) if self.random.below(4) != 0 => key,
                _ => self.draw(),
            };
            let is_large = Population::class(key) == Class::Large;
            if is_large && !self.batch.is_empty() {
                continue;
            }
            let ask = Ask::Get {
                unique,
                is_last: false,
            };
            self.begin(key, ask);
            if is_large {
                result = None;
                break;
            }
        }
        if let Some(Sent { ask, .. }) = self.batch[from..].last_mut() {
            *ask = Ask::Get {
                unique,
                is_last: true,
            };
        }
        let mut out = std::mem::take(&mut self.out);
        for at in from..self.batch.len() {
            let Sent { key, ask, .. } = self.batch[at];
            ask.append(&mut out, &self.shared.all, key, 0, at == from);
        }
        self.out = out;
        result
    }

    fn draw(&mut self) -> u32 {
        self.shared.all.draw(&mut self.random, self.shared.now())
    }

    /// A change of one key; `None` where nothing should follow it.
    fn change(&mut self) -> Option<()> {
        if !self.uniques.is_empty() && self.random.below(6) == 0 {
            let at = self.random.below(self.uniques.len() as u64) as usize;
            let (key, from, unique) = self.uniques.swap_remove(at);
            let version = self.version(key);
            return self.send(
                key,
                Ask::Swap {
                    from,
                    unique,
                    version,
                },
            );
        }
        let key = self.draw();
        let ask = match (Population::class(key), self.random.below(20)) {
            (_, 0) => Ask::Delete { meta: false },
            (Class::Counter, 1..14) => Ask::Increment(1 + self.random.below(5)),
            (Class::Appended | Class::Prepended, 1..10) => Ask::Join(self.version(key)),
            (_, 1) => Ask::Delete { meta: true },
            (_, 2) => Ask::Touch(self.ttl()),
            (_, 3) => Ask::GetAndTouch(self.ttl()),
            (_, 4) if self.random.below(2) == 0 => Ask::Expire,
            // A counter's marks would go with its next number.
            (Class::Plain | Class::Large, 4 | 5) => Ask::MetaGet,
            (Class::Plain | Class::Large, 6) => Ask::Invalidate(self.ttl()),
            (_, number) => {
                let verb = match number {
                    7 => Verb::Add,
                    8 => Verb::Replace,
                    9 | 10 => Verb::MetaSet,
                    _ => Verb::Set,
                };
                Ask::Store(verb, self.version(key), self.ttl())
            }
        };
        self.send(key, ask)
    }

    fn version(&self, key: u32) -> u32 {
        self.shared.all.registers[key as usize].lock().next_version()
    }

    /// Mostly for ever; some so short that they expire while the run goes on.
    fn ttl(&mut self) -> Ttl {
        match self.random.below(16) {
            0 => Some(1 + self.random.below(4) as u32),
            1 => Some(100_000),
            _ => None,
        }
    }

    fn send(&mut self, key: u32, ask: Ask) -> Option<()> {
        let is_large = Population::class(key) == Class::Large;
        if is_large && !self.batch.is_empty() {
            return Some(());
        }
        if self.begin(key, ask) {
            let length = self.shared.all.length(&mut self.random, key);
            ask.append(&mut self.out, &self.shared.all, key, length, true);
        }
        (!is_large).then_some(())
    }

    /// Writes down that a request is about to be sent; whether it may be.
    fn begin(&mut self, key: u32, ask: Ask) -> bool {
        // Two requests of one batch are answered in their order; as one history knows no clients, it would be lost.
        if self.batch.iter().any(|sent| sent.key == key) {
            return false;
        }
        let register = &self.shared.all.registers[key as usize];
        let handle = register.lock().begin(self.shared.now(), ask.is_change());
        if let Some(handle) = handle {
            self.batch.push(Sent {
                key,
                handle,
                ask,
                found: None,
            });
        }
        handle.is_some()
    }
}
