//! Reads: what a step of a run asks for, and what hits and misses answer.

use super::frame::Said;
use super::{Executor, Output, marks, meta_get};
use crate::counters::Operation;
use crate::parse::{Exptime, Frame, Key, KeyScratch, MetaRequest};
use crate::recording::Event;
use pumice::{Action, Meta, Object, Outcome, Tier};
use pumice_device::Device;
use pumice_net::Share;

/// One step of a run of reads.
#[derive(Clone, Copy)]
pub(crate) enum Ask<'a> {
    /// A key of get or gets.
    Classic { key: &'a [u8], with_cas: bool },
    /// A key of mg.
    Meta(MetaRequest<'a>),
    /// A key of a frame.
    Frame { key: Key<'a>, frame: Frame },
    /// What stands between: the end of a get, the answer to mn.
    Text(&'static str),
    /// The same in a frame.
    Noop(Frame),
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
            Ask::Frame { key, .. } => Some(key.token()),
            Ask::Text(_) | Ask::Noop(_) => None,
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
    pub(super) fn of<B: pumice_device::Buffer>(object: &Object<B>) -> Self {
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
        match ask {
            Ask::Text(text) => {
                output.text(text);
                return Operation::Other;
            }
            Ask::Noop(frame) => {
                output.done(*frame, 0);
                return Operation::Other;
            }
            _ => {}
        }
        if self.shared.recordings.is_on()
            && let Some(key) = ask.key(&mut super::scratch())
        {
            self.tell(key, Event::Get(object.as_ref().map(Object::value_len)));
        }
        let counters = self.counters();
        counters.cmd_get.add(1);
        if let Ask::Meta(_) = ask {
            counters.cmd_meta.add(1);
        }
        let Some(object) = object else {
            counters.get_misses.add(1);
            match ask {
                Ask::Meta(get) => meta_get::miss(get, output),
                Ask::Frame { key, frame } => output.missed(*frame, key.token()),
                _ => {}
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
            Ask::Meta(get) => {
                meta_get::hit(get, &found, || self.now_secs(), output);
                if get.value {
                    output.value(object, share);
                    output.text("\r\n");
                }
            }
            _ => hit(ask, &found, object, share, output),
        }
        operation
    }

    /// One key of gat and gats; false where the reply ends with an error.
    /// `had_share`: a share of the budget for replies was held for what was read last.
    pub(crate) async fn get_and_touch(
        &self,
        ask: &Ask<'_>,
        exptime: Exptime,
        had_share: bool,
        output: &mut Output<D::Buf>,
    ) -> bool {
        let mut scratch = super::scratch();
        let key = ask.key(&mut scratch).unwrap_or_default();
        let frame = match ask {
            Ask::Frame { frame, .. } => Some(*frame),
            _ => None,
        };
        match (self.touched(key, self.expiry(exptime), had_share).await, frame) {
            (Touched::Found(found, object, share), _) => hit(ask, &found, object, Some(share), output),
            (Touched::Missing, Some(frame)) => output.missed(frame, key),
            (Touched::Missing, None) => {}
            (Touched::Refused(why), _) => {
                // No reply of memcached's fits; what was prepared for the other keys stands before it.
                output.failed(frame, why);
                return false;
            }
        }
        true
    }

    /// Gives the object under `key` a new expiry, and returns it as it is then.
    async fn touched(&self, key: &[u8], expiry: u32, had_share: bool) -> Touched<D::Buf> {
        self.counters().cmd_get.add(1);
        let mut result = None;
        let (outcome, share) = self
            .change_more(key, true, had_share, |object| {
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
                self.tell(key, Event::Get(Some(object.value_len())));
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
                self.tell(key, Event::Get(None));
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
    Refused(Said),
}

/// The reply to a classic get, or to one in a frame, that finds an object.
fn hit<B: pumice_device::Buffer>(
    ask: &Ask<'_>,
    found: &Found,
    object: Object<B>,
    share: Option<Share>,
    output: &mut Output<B>,
) {
    match ask {
        Ask::Classic { key, with_cas } => {
            classic_head(key, found, *with_cas, output);
            output.value(object, share);
            output.text("\r\n");
        }
        Ask::Frame { key, frame } => {
            output.found(*frame, key.token(), found, found.len);
            output.value(object, share);
        }
        _ => {}
    }
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
