//! set, add, replace, append, prepend, cas, ms.

use super::{Executor, Output, marks, output};
use crate::parse::{Mode, Status, Store, StoreReply, TooLarge};
use crate::recording::Event;
use pumice::{Action, Meta, Object, Outcome, RejectReason};
use pumice_device::Device;
use pumice_device::Payload;

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done { version: u64 },
    NotStored,
    Exists,
    NotFound,
    Rejected,
    Busy,
}

impl Verdict {
    pub(super) fn of(result: Result<u64, RejectReason>) -> Self {
        match result {
            Ok(version) => Verdict::Done { version },
            Err(_) => Verdict::Rejected,
        }
    }
}

/// Values from this size on may be stored in slices, and may have to wait for room for them.
const MAY_WAIT_BYTES: usize = 16 << 10;

/// Whether the value is stored whatever the key holds: such a set reads nothing.
pub(super) fn is_plain(store: &Store<'_>) -> bool {
    store.mode == Mode::Set && store.compare.is_none()
}

/// Whether the value can be stored without waiting for anything.
pub(super) fn is_immediate(store: &Store<'_>) -> bool {
    is_plain(store) && store.value.len() < MAY_WAIT_BYTES
}

impl<D: Device + Clone> Executor<D> {
    /// A plain set of a value that is not large: at once.
    pub(super) fn set(&self, store: &Store<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = store.key.bytes(&mut scratch);
        let meta = Meta {
            flags: store.flags,
            expiry: self.expiry(store.exptime),
            marks: 0,
        };
        let result = self.cache.set(&self.cx, key, Payload::Bytes(store.value), meta);
        if result.is_ok() {
            self.tell_set(key, store.value.len(), meta.expiry);
        }
        self.reply(store, Verdict::of(result), output);
    }

    /// Every other way to store: a large value waits for room, and all but a plain set depend on what the key holds.
    pub(super) async fn store(&self, store: Store<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = store.key.bytes(&mut scratch);
        let expiry = self.expiry(store.exptime);
        if is_plain(&store) {
            let meta = Meta {
                flags: store.flags,
                expiry,
                marks: 0,
            };
            let value = Payload::Bytes(store.value);
            let result = self.cache.store(&self.cx, key, value, meta).await;
            if result.is_ok() {
                self.tell_set(key, store.value.len(), expiry);
            }
            self.reply(&store, Verdict::of(result), output);
            return;
        }
        let joins = matches!(store.mode, Mode::Append | Mode::Prepend);
        let (mut refused, mut decided, mut is_long) = (Verdict::NotStored, (0, 0), false);
        let (outcome, share) = self
            .change(key, |object| {
                is_long = joins && object.is_some_and(Object::is_large);
                if is_long {
                    return Action::Keep;
                }
                let action = self.decide(&store, object, expiry).unwrap_or_else(|why| {
                    refused = why;
                    Action::Keep
                });
                if let Action::Store { value, meta } = &action {
                    decided = (value.len(), meta.expiry);
                }
                action
            })
            .await;
        let stored = match outcome {
            _ if is_long => {
                drop(share);
                // Rare, and its future is long: each set would be longer by it.
                Box::pin(self.join(&store)).await
            }
            Outcome::Stored { version } => {
                self.tell_set(key, decided.0, decided.1);
                Verdict::Done { version }
            }
            Outcome::Rejected(_) => Verdict::Rejected,
            Outcome::Busy => Verdict::Busy,
            Outcome::Kept | Outcome::Deleted => refused,
        };
        self.reply(&store, stored, output);
    }

    /// A value that is too large. What a set would have replaced is stale and goes, as in memcached.
    pub(super) async fn too_large(&self, large: TooLarge<'_>, output: &mut Output<D::Buf>) {
        self.counters().store_too_large.add(1);
        tracing::debug!("a value is too large");
        if large.unlink {
            let mut scratch = super::scratch();
            let key = large.key.bytes(&mut scratch);
            let (outcome, _share) = self.change(key, |_| Action::Delete).await;
            if outcome != Outcome::Busy {
                let is_found = outcome == Outcome::Deleted;
                self.tell(key, Event::Delete { is_found });
            }
        }
        match large.frame {
            Some(frame) => output.status(frame, Status::TooLarge),
            None => output.unless(large.noreply, "SERVER_ERROR object too large for cache\r\n"),
        }
    }

    pub(super) fn tell_set(&self, key: &[u8], value_bytes: usize, expiry: u32) {
        self.tell(key, Event::Set { value_bytes, expiry });
    }

    pub(super) fn reply(&self, store: &Store<'_>, stored: Verdict, output: &mut Output<D::Buf>) {
        let counters = self.counters();
        counters.cmd_set.add(1);
        if store.compare.is_some() {
            match stored {
                Verdict::Done { .. } => counters.cas_hits.add(1),
                Verdict::NotFound => counters.cas_misses.add(1),
                Verdict::Exists => counters.cas_badval.add(1),
                Verdict::NotStored | Verdict::Rejected | Verdict::Busy => {}
            }
        }
        match stored {
            Verdict::Done { .. } => counters.total_items.add(1),
            Verdict::Rejected => counters.store_no_memory.add(1),
            _ => {}
        }
        match store.reply {
            StoreReply::Classic { noreply } => {
                let reply = match stored {
                    Verdict::Done { .. } => "STORED\r\n",
                    Verdict::NotStored => "NOT_STORED\r\n",
                    Verdict::Exists => "EXISTS\r\n",
                    Verdict::NotFound => "NOT_FOUND\r\n",
                    Verdict::Rejected => super::NO_MEMORY.text,
                    Verdict::Busy => super::BUSY.text,
                };
                output.unless(noreply, reply);
            }
            StoreReply::Frame(frame) => {
                let status = match (stored, store.mode) {
                    (Verdict::Done { version }, _) => return output.done(frame, version),
                    (Verdict::NotStored, Mode::Add) | (Verdict::Exists, _) => Status::Exists,
                    (Verdict::NotStored, Mode::Replace) | (Verdict::NotFound, _) => Status::NotFound,
                    (Verdict::NotStored, _) => Status::NotStored,
                    (Verdict::Rejected, _) => Status::NoMemory,
                    (Verdict::Busy, _) => Status::Busy,
                };
                output.status(frame, status);
            }
            StoreReply::Meta { flags, quiet } => {
                counters.cmd_meta.add(1);
                let (reply, version) = match stored {
                    Verdict::Done { .. } if quiet => return,
                    Verdict::Done { version } => ("HD", version),
                    Verdict::NotStored => ("NS", 0),
                    Verdict::Exists => ("EX", 0),
                    Verdict::NotFound => ("NF", 0),
                    Verdict::Rejected => return output.text(super::NO_MEMORY.text),
                    Verdict::Busy => return output.text(super::BUSY.text),
                };
                output.text(reply);
                for (letter, argument) in flags.iter() {
                    if letter == b'c' {
                        output.text(" c");
                        output.number(version);
                    } else {
                        super::echo(output, letter, argument, &store.key);
                    }
                }
                output.text("\r\n");
            }
        }
    }
}

impl<D: Device + Clone> Executor<D> {
    /// What to do with the value, given what the key holds; or why nothing.
    fn decide(
        &self,
        store: &Store<'_>,
        object: Option<&Object<D::Buf>>,
        expiry: u32,
    ) -> Result<Action, Verdict> {
        let meta = self.decide_meta(store, store.value.len(), object, expiry)?;
        let (before, after): (&[u8], &[u8]) = match store.mode {
            Mode::Prepend => (store.value, b""),
            Mode::Append => (b"", store.value),
            _ => {
                let value = store.value.to_vec();
                return Ok(Action::Store { value, meta });
            }
        };
        let len = object.map_or(0, Object::value_len) + store.value.len();
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(before);
        if let Some(object) = object {
            output::copy_value(object, &mut value);
        }
        value.extend_from_slice(after);
        Ok(Action::Store { value, meta })
    }

    /// What a value of this length is stored with, given what the key holds; or why it is not.
    pub(super) fn decide_meta(
        &self,
        store: &Store<'_>,
        value_len: usize,
        object: Option<&Object<D::Buf>>,
        expiry: u32,
    ) -> Result<Meta, Verdict> {
        let mut meta = Meta {
            flags: store.flags,
            expiry,
            marks: 0,
        };
        // What the mode asks for comes first: add with C fails as add does.
        match (store.mode, store.compare, object) {
            (Mode::Set | Mode::Replace, Some(_), None) => return Err(Verdict::NotFound),
            (Mode::Add, _, Some(_)) => return Err(Verdict::NotStored),
            // As memcached has it, 0 compares nothing here.
            (Mode::Append | Mode::Prepend, Some(0), _) => {}
            (mode, Some(unique), Some(object)) if unique != object.version() => {
                let older =
                    matches!(mode, Mode::Set | Mode::Replace) && (1..object.version()).contains(&unique);
                if !(older && store.invalidate) {
                    return Err(Verdict::Exists);
                }
                // It takes the value, but does not count as fetched anew.
                meta.expiry = object.expiry();
                meta.marks = marks::STALE | object.marks() & marks::WON;
            }
            _ => {}
        }
        match (store.mode, object) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => Ok(meta),
            (Mode::Add, Some(_)) | (Mode::Replace | Mode::Append | Mode::Prepend, None) => {
                Err(Verdict::NotStored)
            }
            (Mode::Append | Mode::Prepend, Some(object)) => {
                let len = object.value_len() + value_len;
                if len as u64 > u64::from(self.shared.config.limits.max_value_bytes) {
                    return Err(Verdict::NotStored);
                }
                Ok(Meta {
                    marks: 0,
                    ..object.meta()
                })
            }
        }
    }
}
