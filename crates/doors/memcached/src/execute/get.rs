//! Reads: what a step of a run asks for, and what hits and misses answer.

use super::frame::Said;
use super::{Executor, Output, marks, meta_get};
use crate::counters::Operation;
use crate::parse::{Exptime, Frame, Key, KeyScratch, MetaRequest};
use crate::recording::Event;
use pumice::{Access, Action, Lookup, Meta, Object, Outcome, Tier};
use pumice_device::Device;
use pumice_net::Share;
use std::convert::Infallible;

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
    /// Whether it counts as an access.
    pub(crate) fn access(&self) -> Access {
        match self {
            Ask::Meta(get) if get.aside => Access::Peek,
            _ => Access::Count,
        }
    }

    /// Whether the reply has the value.
    pub(crate) fn wants_value(&self) -> bool {
        match self {
            Ask::Meta(get) => get.value,
            _ => true,
        }
    }

    /// The key; `scratch` holds it where it has to be decoded. Empty where nothing is asked for.
    pub(crate) fn key<'s>(&self, scratch: &'s mut KeyScratch) -> &'s [u8]
    where
        'a: 's,
    {
        match self {
            Ask::Classic { key, .. } => key,
            Ask::Meta(get) => get.key.bytes(scratch),
            Ask::Frame { key, .. } => key.token(),
            Ask::Text(_) | Ask::Noop(_) => b"",
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

/// What a gat has made of an object.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    version: u64,
    expiry: u32,
}

impl<D: Device + Clone> Executor<D> {
    /// Answers one step of a run, and counts it. `touch`: what a gat has made of version and expiry.
    pub(crate) fn answer(
        &self,
        ask: &Ask<'_>,
        object: Option<Object<D::Buf>>,
        share: Option<Share>,
        touch: Option<Touch>,
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
        if self.shared.recordings.is_on() {
            let value_bytes = object.as_ref().map(Object::value_len);
            self.tell(ask.key(&mut super::scratch()), Event::Get(value_bytes));
        }
        let counters = self.counters();
        counters.cmd_get.add(1);
        if let Ask::Meta(_) = ask {
            counters.cmd_meta.add(1);
        }
        counters.gets(object.is_some(), touch.is_some());
        let Some(object) = object else {
            match ask {
                Ask::Meta(get) => meta_get::miss(get, output),
                Ask::Frame { key, frame } => output.missed(*frame, key.token()),
                _ => {}
            }
            return Operation::GetMiss;
        };
        let mut found = Found::of(&object);
        let operation = match (touch, object.tier()) {
            (Some(Touch { version, expiry }), _) => {
                (found.version, found.expiry) = (version, expiry);
                Operation::GetTouch
            }
            (None, Tier::Dram) => {
                counters.get_hits_dram.add(1);
                Operation::GetDram
            }
            (None, Tier::Flash) => {
                counters.get_hits_flash.add(1);
                Operation::GetFlash
            }
        };
        match ask {
            Ask::Meta(get) => {
                meta_get::hit(get, &found, || self.now_secs(), output);
                if get.value {
                    output.value(object, share);
                    output.text("\r\n");
                }
            }
            Ask::Classic { key, with_cas } => {
                output.text("VALUE ");
                output.text(key);
                output.text(" ");
                output.number(u64::from(found.flags));
                output.text(" ");
                output.number(found.len as u64);
                if *with_cas {
                    output.text(" ");
                    output.number(found.version);
                }
                output.text("\r\n");
                output.value(object, share);
                output.text("\r\n");
            }
            Ask::Frame { key, frame } => {
                output.found(*frame, key.token(), &found, found.len);
                output.value(object, share);
            }
            Ask::Text(_) | Ask::Noop(_) => {}
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
        let key = ask.key(&mut scratch);
        let frame = match ask {
            Ask::Frame { frame, .. } => Some(*frame),
            _ => None,
        };
        let expiry = self.expiry(exptime);
        match self.touched(key, expiry, had_share).await {
            Ok((object, share, version)) => {
                let touch = Some(Touch { version, expiry });
                self.answer(ask, object, share, touch, output);
                true
            }
            Err(why) => {
                self.counters().cmd_get.add(1);
                // No reply of memcached's fits; what was prepared for the other keys stands before it.
                output.failed(frame, why);
                false
            }
        }
    }

    /// Reads the first slices of a large object, if its value is wanted, under the share of so many bytes that `take` waits for, and returns
    /// both: what is lost by then is a miss.
    pub(crate) async fn begin_large<E>(
        &self,
        key: &[u8],
        object: Object<D::Buf>,
        wants_value: bool,
        take: impl AsyncFnOnce(usize) -> Result<Share, E>,
    ) -> Result<(Option<Object<D::Buf>>, Option<Share>), E> {
        let reader = self.cache.reader(&self.cx, key, &object);
        if !wants_value {
            return Ok((reader.is_whole().then_some(object), None));
        }
        let share = take(reader.next_bytes()).await?;
        let object = Box::pin(self.cache.gather_first(&self.cx, key, object)).await;
        Ok((object, Some(share)))
    }

    /// What to answer of an object that a change has left with this version, and the share that it is then held under: of a large one the
    /// first slices, for a length that is announced has to follow. It is looked up again, since one that has lost a slice is only removed
    /// from where it stands now.
    pub(super) async fn begin_changed(
        &self,
        (key, had_share): (&[u8], bool),
        (object, version): (Object<D::Buf>, u64),
        wants_value: bool,
        share: Share,
    ) -> (Option<Object<D::Buf>>, Option<Share>) {
        if !object.is_large() {
            return (Some(object), Some(share));
        }
        let (cache, cx, budget) = (&self.cache, &self.cx, &self.shared.budgets.output);
        let mut found = cache.lookup(cx, key, Access::Peek);
        if let Lookup::Read(fetch) = found {
            found = cache.fetch(cx, key, fetch, Access::Peek).await;
        }
        // Whoever waits for a share holds none.
        drop(share);
        let object = match found {
            Lookup::Known(Some(found)) if found.version() == version => found,
            // The change has let it expire, or another came between: it is given as it was, if its slices are there.
            _ => object,
        };
        let take = async |bytes| {
            Ok::<_, Infallible>(match had_share {
                true => budget.take_more(bytes).await,
                false => budget.take(bytes).await,
            })
        };
        let Ok(begun) = self.begin_large(key, object, wants_value, take).await;
        begun
    }

    /// Gives the object under `key` a new expiry, and returns it with the value that it has, the share that it is held under and its new
    /// version; or the reply that says why not.
    async fn touched(
        &self,
        key: &[u8],
        expiry: u32,
        had_share: bool,
    ) -> Result<(Option<Object<D::Buf>>, Option<Share>, u64), Said> {
        let mut result = None;
        let (outcome, share) = self
            .change_more(key, had_share, |object| {
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
                let (object, share) =
                    (self.begin_changed((key, had_share), (object, version), true, share)).await;
                Ok((object, share, version))
            }
            (Outcome::Rejected(_), _) => Err(super::NO_MEMORY),
            (Outcome::Busy, _) => Err(super::BUSY),
            _ => Ok((None, None, 0)),
        }
    }
}
