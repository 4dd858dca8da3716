//! mg: what it answers, and what it changes: the expiry (T), an empty object on a miss (N), who is to fetch an object anew
//! (N, R, and objects that md or ms marked as stale).
//!
//! Most mg change nothing and are answered with the reads of their run; [`Executor::change_of`] says which are not.

use super::get::{Ask, Found};
use super::{Executor, Output, exptime, marks};
use crate::counters::Operation;
use crate::parse::MetaRequest;
use crate::recording::Event;
use pumice::{Action, Meta, Object, Outcome};
use pumice_device::{Buffer, Device};

/// An mg that has to change the cache.
#[derive(Clone, Copy)]
pub(crate) struct MetaChange<'a> {
    get: MetaRequest<'a>,
    /// Whether the object was hit before, where it was looked up already: that counts as a hit itself.
    was_used: Option<bool>,
}

impl<'a> MetaChange<'a> {
    /// One that nothing was looked up for.
    pub(super) fn new(get: MetaRequest<'a>) -> Self {
        Self { get, was_used: None }
    }
}

/// What an mg does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// What the object carries before the flags are worked through.
    before: Meta,
    /// And after.
    after: Meta,
    /// There was none; an empty one is made.
    vivified: bool,
    /// The client is told to fetch it anew.
    won: bool,
}

impl Turn {
    /// Works through the flags; `None` on a miss that stays one.
    fn of(get: &MetaRequest<'_>, found: Option<Meta>, now: u32) -> Option<Self> {
        let vivified = found.is_none();
        if vivified && get.vivify.is_none() {
            return None;
        }
        let before = found.unwrap_or_default();
        let expiry_of = |exptime| exptime::absolute(exptime, now);
        let (mut after, mut won) = (before, false);
        for (letter, _) in get.flags.iter() {
            match letter {
                b'T' => after.expiry = get.touch.map_or(after.expiry, expiry_of),
                b'N' if vivified => {
                    after.expiry = get.vivify.map_or(after.expiry, expiry_of);
                    won = true;
                }
                b'R' if !vivified => {
                    let least = get.recache.map_or(0, expiry_of);
                    // Times that have passed are all alike.
                    won |= least > now && after.expiry != 0 && after.expiry < least;
                }
                _ => {}
            }
        }
        won |= before.marks & marks::STALE != 0;
        won &= before.marks & marks::WON == 0;
        if won {
            after.marks |= marks::WON;
        }
        Some(Self {
            before,
            after,
            vivified,
            won,
        })
    }

    fn changes(&self) -> bool {
        self.vivified || self.after != self.before
    }
}

impl<D: Device + Clone> Executor<D> {
    /// Says whether a step of a run, with what was found for it, is an mg that changes the cache: then
    /// [`Executor::meta_get_changing`] answers it.
    pub(crate) fn change_of<'a>(
        &self,
        ask: &Ask<'a>,
        object: Option<&Object<D::Buf>>,
    ) -> Option<MetaChange<'a>> {
        let Ask::Meta(get) = ask else {
            return None;
        };
        let marked =
            object.is_some_and(|object| object.marks() & (marks::STALE | marks::WON) == marks::STALE);
        if !marked && get.vivify.is_none() && get.recache.is_none() {
            return None;
        }
        let turn = Turn::of(get, object.map(Object::meta), self.now_secs())?;
        turn.changes().then_some(MetaChange {
            get: *get,
            was_used: object.map(|object| object.marks() & Meta::USED != 0),
        })
    }

    /// Answers an mg that changes the cache, unless others have made that needless.
    pub(crate) async fn meta_get_changing(
        &self,
        MetaChange { get, was_used }: MetaChange<'_>,
        output: &mut Output<D::Buf>,
    ) -> Operation {
        let counters = self.counters();
        counters.cmd_meta.add(1);
        counters.cmd_get.add(1);
        let now = self.now_secs();
        let mut scratch = super::scratch();
        let key = get.key.bytes(&mut scratch);
        let mut seen = None;
        let (outcome, share) = self
            .change(key, |object| {
                let turn = Turn::of(&get, object.map(Object::meta), now);
                seen = turn.map(|turn| (turn, object.cloned()));
                // What is to leave no trace is written anew in any case: that undoes the hit that looking was.
                let Some(turn) = turn.filter(|turn| turn.changes() || get.aside) else {
                    return Action::Keep;
                };
                let meta = match get.aside {
                    true => turn.after,
                    false => marks::used(turn.after),
                };
                match turn.vivified {
                    true => Action::Store {
                        value: Vec::new(),
                        meta,
                    },
                    false => Action::SetMeta(meta),
                }
            })
            .await;
        let found = match (outcome, seen) {
            (Outcome::Stored { version }, Some((turn, object))) => Some((turn, object, version)),
            (Outcome::Kept, Some((turn, Some(object)))) => {
                let version = object.version();
                Some((turn, Some(object), version))
            }
            (Outcome::Rejected(_), _) => {
                output.text(super::NO_MEMORY.text);
                return Operation::GetTouch;
            }
            (Outcome::Busy, _) => {
                output.text(super::BUSY.text);
                return Operation::GetTouch;
            }
            _ => None,
        };
        let (found, share) = match found {
            Some((turn, Some(object), version)) => {
                let (object, share) =
                    (self.begin_changed((key, false), (object, version), get.value, share)).await;
                (object.map(|object| (turn, Some(object), version)), share)
            }
            found => (found, None),
        };
        let is_hit = found.as_ref().is_some_and(|(turn, ..)| !turn.vivified);
        let value_bytes = (found.as_ref()).and_then(|(_, object, _)| object.as_ref().map(Object::value_len));
        self.tell(key, Event::Get(value_bytes.filter(|_| is_hit)));
        counters.gets(is_hit, get.touch.is_some());
        let Some((turn, object, version)) = found else {
            miss(&get, output);
            return Operation::GetTouch;
        };
        let found = Found {
            version,
            flags: turn.before.flags,
            expiry: turn.before.expiry,
            marks: match was_used {
                Some(false) => turn.before.marks & !Meta::USED,
                _ => turn.before.marks,
            },
            len: object.as_ref().map_or(0, Object::value_len),
        };
        head(&get, &found, Some(&turn), || now, output);
        if get.value {
            if let Some(object) = object {
                output.value(object, share);
            }
            output.text("\r\n");
        }
        Operation::GetTouch
    }
}

/// The line of a hit that changes nothing.
pub(super) fn hit<B: Buffer>(
    get: &MetaRequest<'_>,
    found: &Found,
    now: impl Fn() -> u32,
    output: &mut Output<B>,
) {
    head(get, found, None, now, output);
}

/// The line of a hit. `turn` is what the command did to the object, if anything.
fn head<B: Buffer>(
    get: &MetaRequest<'_>,
    found: &Found,
    turn: Option<&Turn>,
    now: impl Fn() -> u32,
    output: &mut Output<B>,
) {
    if get.value {
        output.text("VA ");
        output.number(found.len as u64);
    } else {
        output.text("HD");
    }
    let vivified = turn.is_some_and(|turn| turn.vivified);
    let mut expiry = found.expiry;
    for (letter, argument) in get.flags.iter() {
        match letter {
            b's' => {
                output.text(" s");
                output.number(found.len as u64);
            }
            // As memcached has it, what T and N set counts from where they stand.
            b'T' => {
                expiry = get
                    .touch
                    .map_or(expiry, |exptime| exptime::absolute(exptime, now()))
            }
            b'N' if vivified => {
                expiry = get
                    .vivify
                    .map_or(expiry, |exptime| exptime::absolute(exptime, now()));
            }
            b't' => super::ttl(expiry, &now, output),
            b'c' => {
                output.text(" c");
                output.number(found.version);
            }
            b'f' => {
                output.text(" f");
                output.number(u64::from(found.flags));
            }
            b'h' => output.text(if found.marks & Meta::USED != 0 {
                " h1"
            } else {
                " h0"
            }),
            _ => super::echo(output, letter, argument, &get.key),
        }
    }
    if found.marks & marks::WON != 0 {
        output.text(" Z");
    }
    if found.marks & marks::STALE != 0 {
        output.text(" X");
    }
    if turn.is_some_and(|turn| turn.won) {
        output.text(" W");
    }
    output.text("\r\n");
}

pub(super) fn miss<B: Buffer>(get: &MetaRequest<'_>, output: &mut Output<B>) {
    if !get.quiet {
        super::bare(super::Code::Missed, get, output);
    }
}
