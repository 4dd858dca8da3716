//! What is asked of a key, and what the answer means.

use super::population::{COUNTER_FLAGS, Class, Population};
use super::state::{Effect, Guard, Outcome, STALE, Ttl, WON};
use crate::value::HEADER_BYTES;
use crate::wire::{Reply, append_number};

/// A request for one key. Those of a `get` of several keys are one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `get` or `gets`; whether it asks for uniques, and whether it is the last key of its command.
    Get { unique: bool, is_last: bool },
    /// `gat`.
    GetAndTouch(Ttl),
    /// `mg` with `v f c`.
    MetaGet,
    /// `set`, `add`, `replace`, `ms`.
    Store(Verb, u32, Ttl),
    /// `cas` in place of what `gets` returned.
    Swap { from: u64, unique: u64, version: u32 },
    /// `append` or `prepend`, as the key has it.
    Join(u32),
    /// `incr`.
    Increment(u64),
    /// `touch`.
    Touch(Ttl),
    /// `touch` with a time that has passed.
    Expire,
    /// `delete`, or `md`.
    Delete { meta: bool },
    /// `md` with `I`, and `T` where there is a time.
    Invalidate(Ttl),
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Set,
    Add,
    Replace,
    MetaSet,
}

/// An answer that no right server gives: the value is not what was ever set, or the reply fits no such request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A value that is foreign or damaged.
    Value(String),
    /// A reply that makes no sense here; the connection is of no more use.
    Reply,
}

impl Ask {
    /// Whether it may change something.
    pub fn is_change(self) -> bool {
        !matches!(self, Ask::Get { .. })
    }

    /// Its command, for messages and counts.
    pub fn name(self) -> &'static str {
        match self {
            Ask::Get { unique: false, .. } => "get",
            Ask::Get { unique: true, .. } => "gets",
            Ask::GetAndTouch(_) => "gat",
            Ask::MetaGet => "mg",
            Ask::Store(Verb::Set, ..) => "set",
            Ask::Store(Verb::Add, ..) => "add",
            Ask::Store(Verb::Replace, ..) => "replace",
            Ask::Store(Verb::MetaSet, ..) => "ms",
            Ask::Swap { .. } => "cas",
            Ask::Join(_) => "append/prepend",
            Ask::Increment(_) => "incr",
            Ask::Touch(_) => "touch",
            Ask::Expire => "touch -1",
            Ask::Delete { meta: false } => "delete",
            Ask::Delete { meta: true } => "md",
            Ask::Invalidate(_) => "md I",
        }
    }

    /// Appends the command. `is_first`: whether a `get` begins here. `length`: of a new value.
    pub fn append(self, out: &mut Vec<u8>, all: &Population, key: u32, length: usize, is_first: bool) {
        let (verb, name) = (self.name(), all.text.show(key.into()));
        let new = |version| (value(all, key, version, length), Population::flags(key, version));
        let time = |ttl: Ttl| ttl.unwrap_or(0);
        let (line, value) = match self {
            Ask::Get { is_last, .. } => {
                let line = format!("{} {name}", if is_first { verb } else { "" });
                out.extend_from_slice(line.as_bytes());
                if is_last {
                    out.extend_from_slice(b"\r\n");
                }
                return;
            }
            Ask::GetAndTouch(ttl) => (format!("gat {} {name}", time(ttl)), None),
            Ask::MetaGet => (format!("mg {name} v f c"), None),
            Ask::Store(Verb::MetaSet, version, ttl) => {
                let (value, flags) = new(version);
                (
                    format!("ms {name} {} F{flags} T{}", value.len(), time(ttl)),
                    Some(value),
                )
            }
            Ask::Store(_, version, ttl) => {
                let (value, flags) = new(version);
                (
                    format!("{verb} {name} {flags} {} {}", time(ttl), value.len()),
                    Some(value),
                )
            }
            Ask::Swap { unique, version, .. } => {
                let (value, flags) = new(version);
                (
                    format!("cas {name} {flags} 0 {} {unique}", value.len()),
                    Some(value),
                )
            }
            Ask::Join(version) => {
                let is_front = Population::class(key) == Class::Prepended;
                let verb = if is_front { "prepend" } else { "append" };
                let mut piece = Vec::new();
                all.values.append(&mut piece, key.into(), version, HEADER_BYTES);
                (format!("{verb} {name} 0 0 {}", piece.len()), Some(piece))
            }
            Ask::Increment(delta) => (format!("incr {name} {delta}"), None),
            Ask::Touch(ttl) => (format!("touch {name} {}", time(ttl)), None),
            Ask::Expire => (format!("touch {name} -1"), None),
            Ask::Delete { .. } => (format!("{verb} {name}"), None),
            Ask::Invalidate(None) => (format!("md {name} I"), None),
            Ask::Invalidate(Some(ttl)) => (format!("md {name} I T{ttl}"), None),
        };
        for part in [Some(line.into_bytes()), value].into_iter().flatten() {
            out.extend_from_slice(&part);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// What an answer means that is no value; `None` where the reply does not fit.
    pub fn answered(self, key: u32, reply: Reply<'_>) -> Option<Outcome> {
        let name = self.name();
        let found = |effect| Some(Outcome::certain(name, Guard::Exists, effect));
        let always = |effect| Some(Outcome::certain(name, Guard::None, effect));
        let nothing = Some(Outcome::nothing(name));
        let code = match reply {
            Reply::Meta { code, data: None, .. } => Some(code),
            _ => None,
        };
        match (self, reply) {
            // What a set was to replace is gone, too. Others have changed nothing, or lost the object.
            (Ask::Store(Verb::Set | Verb::MetaSet, ..), Reply::ServerError(_)) => always(Effect::Clear),
            (_, Reply::ServerError(_)) => nothing,
            (Ask::GetAndTouch(_), Reply::End) => nothing,
            (Ask::MetaGet, _) if code == Some(*b"EN") => nothing,
            (Ask::Store(Verb::MetaSet, version, ttl), _) if code == Some(*b"HD") => {
                always(Effect::Put(Population::content(key, version), ttl))
            }
            (Ask::Store(verb, version, ttl), Reply::Stored) => {
                let put = Effect::Put(Population::content(key, version), ttl);
                if verb == Verb::Replace {
                    found(put)
                } else {
                    always(put)
                }
            }
            (Ask::Store(Verb::Add, ..), Reply::NotStored) => found(Effect::None),
            (Ask::Store(Verb::Replace, ..) | Ask::Join(_), Reply::NotStored) => nothing,
            (Ask::Swap { from, version, .. }, Reply::Stored) => {
                let put = Effect::Put(Population::content(key, version), None);
                Some(Outcome::certain(name, Guard::Is(from), put))
            }
            (Ask::Swap { .. }, Reply::Exists) => found(Effect::None),
            (Ask::Swap { .. } | Ask::Increment(_) | Ask::Touch(_) | Ask::Expire, Reply::NotFound) => nothing,
            (Ask::Join(version), Reply::Stored) => found(Effect::Join(version)),
            (Ask::Increment(delta), Reply::Number(number)) => {
                let before = Guard::Is(number.wrapping_sub(delta));
                Some(Outcome::certain(name, before, Effect::Add(delta)))
            }
            (Ask::Touch(ttl), Reply::Touched) => found(Effect::Touch(ttl)),
            (Ask::Expire, Reply::Touched) => found(Effect::Clear),
            (Ask::Delete { meta: false }, Reply::Deleted) => found(Effect::Clear),
            (Ask::Delete { meta: false }, Reply::NotFound) => always(Effect::Clear),
            (Ask::Delete { meta: true }, _) if code == Some(*b"HD") => found(Effect::Clear),
            (Ask::Delete { meta: true }, _) if code == Some(*b"NF") => always(Effect::Clear),
            (Ask::Invalidate(ttl), _) if code == Some(*b"HD") => {
                found(Effect::Invalidate(ttl.is_some().then_some(ttl)))
            }
            (Ask::Invalidate(_), _) if code == Some(*b"NF") => nothing,
            _ => None,
        }
    }

    /// What a value means that was returned for the key, and its unique.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn returned(self, all: &Population, key: u32, reply: Reply<'_>) -> Result<(Outcome, u64), Wrong> {
        let name = self.name();
        let read = |flags, value| all.read(key, flags, value).map_err(Wrong::Value);
        match (self, reply) {
            (Ask::Get { .. } | Ask::GetAndTouch(_), Reply::Value { flags, data, cas, .. }) => {
                let effect = match self {
                    Ask::GetAndTouch(ttl) => Effect::Touch(ttl),
                    _ => Effect::None,
                };
                let outcome = Outcome::certain(name, Guard::Is(read(flags, data)?), effect);
                Ok((outcome, cas.unwrap_or(0)))
            }
            (
                Ask::MetaGet,
                Reply::Meta {
                    code: [b'V', b'A'],
                    flags,
                    data: Some(value),
                },
            ) => {
                let told = MetaFlags::read(flags).ok_or(Wrong::Reply)?;
                let content = read(told.client, value)?;
                let effect = if told.won { Effect::Win } else { Effect::None };
                let guard = Guard::Marked(content, told.marks);
                Ok((Outcome::certain(name, guard, effect), told.unique))
            }
            _ => Err(Wrong::Reply),
        }
    }

    /// What it may have done if no answer came.
    pub fn unanswered(self, key: u32) -> Outcome {
        let name = self.name();
        let (guard, effect) = match self {
            // To have removed something explains no answer that is not explained without it.
            Ask::Get { .. } | Ask::Expire | Ask::Delete { .. } => return Outcome::nothing(name),
            Ask::GetAndTouch(ttl) | Ask::Touch(ttl) => (Guard::Exists, Effect::Touch(ttl)),
            Ask::MetaGet => (Guard::Exists, Effect::Win),
            Ask::Store(verb, version, ttl) => {
                let guard = if verb == Verb::Replace {
                    Guard::Exists
                } else {
                    Guard::None
                };
                (guard, Effect::Put(Population::content(key, version), ttl))
            }
            Ask::Swap { from, version, .. } => {
                let put = Effect::Put(Population::content(key, version), None);
                (Guard::Is(from), put)
            }
            Ask::Join(version) => (Guard::Exists, Effect::Join(version)),
            Ask::Increment(delta) => (Guard::Exists, Effect::Add(delta)),
            Ask::Invalidate(ttl) => (Guard::Exists, Effect::Invalidate(ttl.is_some().then_some(ttl))),
        };
        Outcome::possible(name, guard, effect)
    }
}

/// What the flags of `VA` say.
struct MetaFlags {
    client: u64,
    unique: u64,
    /// The marks before this request.
    marks: u8,
    won: bool,
}

impl MetaFlags {
    fn read(flags: &[u8]) -> Option<Self> {
        let mut told = MetaFlags {
            client: 0,
            unique: 0,
            marks: 0,
            won: false,
        };
        for flag in flags.split(|byte| *byte == b' ').filter(|flag| !flag.is_empty()) {
            let number = || std::str::from_utf8(&flag[1..]).ok()?.parse().ok();
            match flag {
                b"W" => told.won = true,
                b"X" => told.marks |= STALE,
                b"Z" => told.marks |= WON,
                [b'f', ..] => told.client = number()?,
                [b'c', ..] => told.unique = number()?,
                _ => return None,
            }
        }
        // Only what is stale can be won, and once.
        (!told.won || told.marks == STALE).then_some(told)
    }
}

/// A new value.
fn value(all: &Population, key: u32, version: u32, length: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(length);
    if Population::class(key) == Class::Counter {
        debug_assert_eq!(Population::flags(key, version), COUNTER_FLAGS);
        append_number(&mut value, Population::content(key, version));
    } else {
        all.values.append(&mut value, key.into(), version, length);
    }
    value
}
