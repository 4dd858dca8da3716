//! Single histories of a sector, and servers that do right or wrong by chance.

use super::super::content::Origin;
use super::*;
use pumice_world::Random;

fn seen(content: Content) -> Seen {
    let origin = match content {
        Content::ZERO => Origin::Zero,
        _ if content.0 >> 62 == 3 => Origin::Strange { first: [0; 8] },
        _ => Origin::Here,
    };
    Seen { content, origin }
}

/// Sector 0 of a model, as requests of one sector.
struct One(Model);

impl One {
    fn send(&mut self) -> u64 {
        self.0.send_change(0..1, Content::version)
    }

    fn end(&mut self, number: u64) {
        self.0.end_change(number, 0..1, true, false);
    }

    fn write(&mut self) -> u64 {
        let number = self.send();
        self.end(number);
        number
    }

    fn flush(&mut self) {
        let number = self.0.send_flush();
        self.0.end_flush(number);
    }

    fn read(&mut self, version: u64) -> Result<(), String> {
        let number = self.0.send_read();
        let result = self.0.check(number, 0, &seen(Content::version(version)));
        self.0.end_read(number);
        result.map_err(|wrong| wrong.what)
    }

    /// Which of these versions a read may find, without learning from it.
    fn legal(&self, versions: &[u64]) -> Vec<u64> {
        let may = |version: &&u64| One(self.0.clone()).read(**version).is_ok();
        versions.iter().filter(may).copied().collect()
    }
}

fn one() -> One {
    One(Model::new(1))
}

#[test]
fn a_read_finds_the_last_answered_write_or_one_under_way() {
    let mut one = one();
    let first = one.write();
    let second = one.write();
    let third = one.send();
    assert_eq!(one.legal(&[first, second, third]), [second, third]);
    one.end(third);
    assert_eq!(one.legal(&[first, second, third]), [third]);
    let said = one.read(first).unwrap_err();
    assert_eq!(
        said,
        format!("found an older content, version {first}; expected version {third} (answered)")
    );
}

#[test]
fn a_read_that_was_sent_before_may_find_what_was_there_then() {
    let mut one = one();
    let first = one.write();
    let read = one.0.send_read();
    let second = one.write();
    one.flush();
    let third = one.write();
    for version in [first, second, third] {
        assert!(one.0.check(read, 0, &seen(Content::version(version))).is_ok());
    }
    one.0.end_read(read);
    assert_eq!(one.legal(&[first, second, third]), [third]);
}

#[test]
fn of_two_writes_at_once_a_read_shows_the_last() {
    let mut one = one();
    let (first, second) = (one.send(), one.send());
    one.end(second);
    one.end(first);
    assert_eq!(one.legal(&[first, second]), [first, second]);
    one.read(first).unwrap();
    assert_eq!(one.legal(&[first, second]), [first]);
    // It is also the last after a FLUSH and a stop, and without a FLUSH either may be there.
    one.0.stop();
    assert_eq!(one.legal(&[first, second]), [first, second]);
    one.read(second).unwrap();
    one.flush();
    one.0.stop();
    assert_eq!(one.legal(&[first, second]), [second]);
}

#[test]
fn what_a_read_has_shown_is_there_though_its_write_is_under_way() {
    let mut one = one();
    let first = one.write();
    let second = one.send();
    one.read(second).unwrap();
    assert_eq!(one.legal(&[first, second]), [second]);
    // It was not answered, so the FLUSH says nothing of it.
    one.flush();
    one.0.stop();
    assert_eq!(one.legal(&[first, second]), [first, second]);
}

#[test]
fn a_stop_leaves_what_was_flushed_or_anything_later() {
    let mut one = one();
    let first = one.write();
    let second = one.write();
    one.flush();
    let third = one.write();
    let early = one.0.send_flush();
    let fourth = one.write();
    let fifth = one.send();
    one.0.stop();
    assert_eq!(
        one.legal(&[first, second, third, fourth, fifth]),
        [second, third, fourth, fifth]
    );
    one.read(fourth).unwrap();
    assert_eq!(one.legal(&[second, third, fourth, fifth]), [fourth]);
    // Nobody has flushed: the next stop may take it back.
    one.0.stop();
    assert_eq!(
        one.legal(&[second, third, fourth, fifth]),
        [second, third, fourth, fifth]
    );
    one.0.end_flush(early);
    one.read(third).unwrap();
    one.flush();
    one.0.stop();
    assert_eq!(one.legal(&[second, third, fourth, fifth]), [third]);
    let said = one.read(second).unwrap_err();
    assert_eq!(
        said,
        format!("found an older content, version {second}; expected version {third} (flushed)")
    );
    // It is said once.
    one.read(second).unwrap();
}

#[test]
fn a_flush_covers_what_was_answered_before_it_was_sent() {
    let mut one = one();
    let first = one.write();
    one.flush();
    let second = one.send();
    let flush = one.0.send_flush();
    one.end(second);
    one.0.end_flush(flush);
    one.0.stop();
    assert_eq!(one.legal(&[first, second]), [first, second]);
    // FUA needs no FLUSH.
    let third = one.send();
    one.0.end_change(third, 0..1, true, true);
    one.0.stop();
    assert_eq!(one.legal(&[first, second, third]), [third]);
}

#[test]
fn a_failed_write_may_be_there() {
    let mut one = one();
    let first = one.write();
    let second = one.send();
    one.0.end_change(second, 0..1, false, false);
    one.flush();
    assert_eq!(one.legal(&[first, second]), [first, second]);
    let third = one.write();
    assert_eq!(one.legal(&[first, second, third]), [third]);
}

#[test]
fn what_is_flushed_takes_no_memory() {
    let mut model = Model::new(5000);
    let number = model.send_change(0..5000, Content::version);
    model.end_change(number, 0..5000, true, false);
    assert_eq!(model.changes, 10_000);
    let flush = model.send_flush();
    model.end_flush(flush);
    assert_eq!((model.changes, model.open.len()), (0, 0));
    assert_eq!(model.settled, [Content::version(number); 5000]);
}

/// What a server does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// FLUSH does nothing.
    Flush,
    /// A read finds an older content now and then.
    Old,
    /// A write that was answered is dropped now and then.
    Dropped,
}

/// A server of one sector, with requests under way; each takes effect at some time before its answer.
struct Server {
    random: Random,
    fault: Fault,
    /// Contents since the durable one, which is the first.
    contents: Vec<Content>,
    old: Vec<Content>,
    sent: Vec<Sent>,
}

#[derive(Clone, Copy)]
enum Kind {
    Read(Option<Content>),
    Change {
        content: Content,
        has_failed: bool,
        is_durable: bool,
    },
    Flush,
}

#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    kind: Kind,
    is_done: bool,
}

impl Server {
    fn now(&self) -> Content {
        *self.contents.last().unwrap()
    }

    /// A request takes effect.
    fn act(&mut self, at: usize) {
        let mut sent = self.sent[at];
        match &mut sent.kind {
            _ if sent.is_done => return,
            Kind::Read(found) => {
                let is_old = self.fault == Fault::Old && self.random.chance(0.2);
                let old = self.random.below(self.old.len() as u64) as usize;
                *found = Some(if is_old { self.old[old] } else { self.now() });
            }
            Kind::Change {
                content,
                has_failed,
                is_durable,
            } => {
                let is_dropped = self.fault == Fault::Dropped && self.random.chance(0.1);
                if !(is_dropped || *has_failed && self.random.chance(0.5)) {
                    self.old.push(self.now());
                    self.contents.push(*content);
                }
                if *is_durable && !*has_failed {
                    self.contents.drain(..self.contents.len() - 1);
                }
            }
            Kind::Flush if self.fault == Fault::Flush => {}
            Kind::Flush => drop(self.contents.drain(..self.contents.len() - 1)),
        }
        sent.is_done = true;
        self.sent[at] = sent;
    }

    /// Makes a random step; whether a wrong sector was found.
    fn step(&mut self, model: &mut Model) -> bool {
        let some = self.random.below(self.sent.len().max(1) as u64) as usize;
        match self.random.below(100) {
            0..40 if self.sent.len() < 5 => {
                let (number, kind) = match self.random.below(10) {
                    0..4 => (model.send_read(), Kind::Read(None)),
                    4 => (model.send_flush(), Kind::Flush),
                    which => {
                        let content = match which {
                            5 => Content::ZERO,
                            6 => Content::pool(self.random.below(2) as u32),
                            _ => Content::version(1 << 40 | self.random.below(1 << 30)),
                        };
                        let kind = Kind::Change {
                            content,
                            has_failed: self.random.chance(0.1),
                            is_durable: self.random.chance(0.1),
                        };
                        (model.send_change(0..1, |_| content), kind)
                    }
                };
                self.sent.push(Sent {
                    number,
                    kind,
                    is_done: false,
                });
            }
            40..65 if some < self.sent.len() => self.act(some),
            65..97 if some < self.sent.len() => {
                self.act(some);
                let Sent { number, kind, .. } = self.sent.swap_remove(some);
                match kind {
                    Kind::Read(found) => {
                        let found = model.check(number, 0, &seen(found.unwrap()));
                        model.end_read(number);
                        return found.is_err();
                    }
                    Kind::Change {
                        has_failed,
                        is_durable,
                        ..
                    } => {
                        model.end_change(number, 0..1, !has_failed, is_durable);
                    }
                    Kind::Flush => model.end_flush(number),
                }
            }
            97 => {
                for at in 0..self.sent.len() {
                    if self.random.chance(0.5) {
                        self.act(at);
                    }
                }
                self.sent.clear();
                // Any content since the durable one may be there, and what is not durable may be lost again.
                let left = self.random.below(self.contents.len() as u64) as usize;
                let left = self.contents[left];
                self.contents.push(left);
                model.stop();
            }
            98 => drop(self.contents.drain(..self.contents.len() - 1)),
            _ => {}
        }
        false
    }
}

/// In how many of so many lives a wrong sector is found.
fn found(fault: Fault, lives: u64) -> u64 {
    let is_found = |seed: &u64| {
        let first = Content(3 << 62 | 5);
        let mut server = Server {
            random: Random(*seed),
            fault,
            contents: vec![first],
            old: vec![first],
            sent: Vec::new(),
        };
        let mut model = Model::new(1);
        let found = (0..2000).any(|_| server.step(&mut model));
        assert!(fault != Fault::None || !found, "seed {seed}");
        found
    };
    (0..lives).filter(is_found).count() as u64
}

#[test]
fn a_right_server_is_never_accused_and_wrong_ones_are_found() {
    assert_eq!(found(Fault::None, 2000), 0);
    for fault in [Fault::Flush, Fault::Old, Fault::Dropped] {
        let found = found(fault, 100);
        assert!(found >= 60, "{found}");
    }
}
