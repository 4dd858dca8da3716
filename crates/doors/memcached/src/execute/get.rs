//! Reads: what a run of them asks for, and what hits and misses answer.

use super::{Executor, Output, marks, meta_get};
use crate::budget::Share;
use crate::counters::Operation;
use crate::parse::{Command, Get, KeyScratch, Keys, Limits, MetaRequest, Parsed, parse};
use pumice::{Action, Meta, Object, Outcome, Tier};
use pumice_device::Device;

/// One step of a run of reads.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    /// A key of get or gets.
    Classic { key: &'a [u8], with_cas: bool },
    /// A key of mg.
    Meta(MetaRequest<'a>),
    /// What stands between: the end of a get, the answer to mn.
    Text(&'static str),
}

impl<'a> Ask<'a> {
    /// Whether it is not to count as an access.
    pub(crate) fn is_aside(&self) -> bool {
        matches!(self, Ask::Meta(get) if get.aside)
    }

    /// The key; `scratch` holds it where it has to be decoded.
    pub(crate) fn key<'s>(&self, scratch: &'s mut KeyScratch) -> Option<&'s [u8]>
    where
        'a: 's,
    {
        match self {
            Ask::Classic { key, .. } => Some(key),
            Ask::Meta(get) => Some(get.key.bytes(scratch)),
            Ask::Text(_) => None,
        }
    }
}

/// A run of reads: consecutive get, gets, mg and mn commands as steps, in order. They may be looked up in any order, but
/// for what an mg changes.
pub(crate) struct Asks<'a> {
    keys: Option<(Keys<'a>, bool)>,
    /// Whether the line goes on behind the keys.
    is_part: bool,
    single: Option<Ask<'a>>,
    rest: &'a [u8],
    consumed: usize,
    limits: &'a Limits,
}

impl<'a> Asks<'a> {
    /// The run that starts with `first` and goes on in `rest`; nothing if `first` is no read.
    pub(crate) fn start(first: &Command<'a>, rest: &'a [u8], limits: &'a Limits) -> Option<Self> {
        let mut asks = Self {
            keys: None,
            is_part: false,
            single: None,
            rest,
            consumed: 0,
            limits,
        };
        asks.admit(first).then_some(asks)
    }

    /// The first keys of a line that goes on.
    pub(crate) fn part(get: Get<'a>, limits: &'a Limits) -> Self {
        Self {
            keys: Some((get.keys, get.with_cas)),
            is_part: true,
            single: None,
            rest: b"",
            consumed: 0,
            limits,
        }
    }

    /// Bytes of `rest` that the run took so far.
    pub(crate) fn consumed(&self) -> usize {
        self.consumed
    }

    fn admit(&mut self, command: &Command<'a>) -> bool {
        match command {
            Command::Get(Get {
                keys,
                with_cas,
                touch: None,
            }) => self.keys = Some((*keys, *with_cas)),
            Command::MetaGet(get) if get.touch.is_none() => self.single = Some(Ask::Meta(*get)),
            Command::MetaNoop => self.single = Some(Ask::Text("MN\r\n")),
            _ => return false,
        }
        true
    }
}

impl<'a> Iterator for Asks<'a> {
    type Item = Ask<'a>;

    fn next(&mut self) -> Option<Ask<'a>> {
        loop {
            if let Some((keys, with_cas)) = &mut self.keys {
                let with_cas = *with_cas;
                if let Some(key) = keys.next() {
                    return Some(Ask::Classic { key, with_cas });
                }
                self.keys = None;
                if self.is_part {
                    return None;
                }
                return Some(Ask::Text("END\r\n"));
            }
            if let Some(ask) = self.single.take() {
                return Some(ask);
            }
            if self.rest.is_empty() {
                return None;
            }
            match parse(self.rest, self.limits) {
                Parsed::Command { command, consumed } if self.admit(&command) => {
                    self.consumed += consumed;
                    self.rest = &self.rest[consumed..];
                }
                _ => return None,
            }
        }
    }
}

/// What a reply says about an object besides its value.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) version: u64,
    pub(super) flags: u32,
    pub(super) expiry: u32,
    pub(super) marks: u8,
    pub(super) len: usize,
}

impl Found {
    fn of<B: pumice_device::Buffer>(object: &Object<B>) -> Self {
        Self {
            version: object.version(),
            flags: object.flags(),
            expiry: object.expiry(),
            marks: object.marks(),
            len: object.value_len(),
        }
    }
}

impl<D: Device + Clone> Executor<D> {
    /// Answers one step of a run, and counts it.
    pub(crate) fn answer(
        &self,
        ask: &Ask<'_>,
        object: Option<Object<D::Buf>>,
        share: Option<Share>,
        output: &mut Output<D::Buf>,
    ) -> Operation {
        if let Ask::Text(text) = ask {
            output.text(text);
            return Operation::Other;
        }
        let counters = self.counters();
        counters.cmd_get.add(1);
        if let Ask::Meta(_) = ask {
            counters.cmd_meta.add(1);
        }
        let Some(object) = object else {
            counters.get_misses.add(1);
            if let Ask::Meta(get) = ask {
                meta_get::miss(get, output);
            }
            return Operation::GetMiss;
        };
        counters.get_hits.add(1);
        let operation = match object.tier() {
            Tier::Dram => {
                counters.get_hits_dram.add(1);
                Operation::GetDram
            }
            Tier::Flash => {
                counters.get_hits_flash.add(1);
                Operation::GetFlash
            }
        };
        let found = Found::of(&object);
        match ask {
            Ask::Classic { key, with_cas } => {
                classic_head(key, &found, *with_cas, output);
                output.value(object, share);
                output.text("\r\n");
            }
            Ask::Meta(get) => {
                meta_get::hit(get, &found, || self.now_secs(), output);
                if get.value {
                    output.value(object, share);
                    output.text("\r\n");
                }
            }
            Ask::Text(_) => {}
        }
        operation
    }

    /// One key of gat and gats; false where the reply ends with an error.
    pub(crate) async fn get_and_touch(&self, key: &[u8], get: &Get<'_>, output: &mut Output<D::Buf>) -> bool {
        let expiry = self.expiry(get.touch.unwrap_or(crate::parse::Exptime(0)));
        match self.touched(key, expiry, true).await {
            Touched::Found(found, object, share) => {
                classic_head(key, &found, get.with_cas, output);
                output.value(object, Some(share));
                output.text("\r\n");
            }
            Touched::Missing => {}
            Touched::Refused(reply) => {
                // No reply of memcached's fits; what was prepared for the other keys stands before it.
                output.text(reply);
                return false;
            }
        }
        true
    }

    /// Gives the object under `key` a new expiry, and returns it as it is then.
    async fn touched(&self, key: &[u8], expiry: u32, with_value: bool) -> Touched<D::Buf> {
        self.counters().cmd_get.add(1);
        let mut result = None;
        let (outcome, share) = self
            .change(key, with_value, |object| {
                result = object.cloned();
                match object {
                    Some(object) => Action::SetMeta(marks::used(Meta {
                        expiry,
                        ..object.meta()
                    })),
                    None => Action::Keep,
                }
            })
            .await;
        match (outcome, result) {
            (Outcome::Stored { version }, Some(object)) => {
                self.counters().gets(true, true);
                let found = Found {
                    version,
                    expiry,
                    ..Found::of(&object)
                };
                Touched::Found(found, object, share)
            }
            (Outcome::Rejected(_), _) => Touched::Refused(super::NO_MEMORY),
            (Outcome::Busy, _) => Touched::Refused(super::BUSY),
            _ => {
                self.counters().gets(false, true);
                Touched::Missing
            }
        }
    }
}

enum Touched<B> {
    /// With the share that the object is held under.
    Found(Found, Object<B>, Share),
    Missing,
    /// With the reply that says why.
    Refused(&'static str),
}

fn classic_head<B: pumice_device::Buffer>(key: &[u8], found: &Found, with_cas: bool, output: &mut Output<B>) {
    output.text("VALUE ");
    output.text(key);
    output.text(" ");
    output.number(u64::from(found.flags));
    output.text(" ");
    output.number(found.len as u64);
    if with_cas {
        output.text(" ");
        output.number(found.version);
    }
    output.text("\r\n");
}
