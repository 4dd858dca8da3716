//! delete, incr, decr, touch.

use super::frame::Said;
use super::get::Found;
use super::{Executor, Output, marks, output};
use crate::parse::{Delete, Delta, Status, Touch, number_in_value};
use crate::recording::Event;
use pumice::{Action, Meta, Object, Outcome};
use pumice_device::{Buffer, Device};

pub(super) const NOT_NUMERIC: Said = Said {
    text: "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    status: Status::NotNumeric,
};

pub(super) const NO_MEMORY: Said = Said {
    text: "SERVER_ERROR out of memory in incr\r\n",
    status: Status::NoMemory,
};

const TOUCHED: Said = Said {
    text: "TOUCHED\r\n",
    status: Status::Done,
};

const NOT_FOUND: Said = Said {
    text: "NOT_FOUND\r\n",
    status: Status::NotFound,
};

/// What became of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    Is(u64),
    NotNumeric,
    NotFound,
    /// Of ma alone: it holds another CAS unique than it was to.
    OtherVersion,
}

impl<D: Device + Clone> Executor<D> {
    pub(super) async fn delete(&self, delete: Delete<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delete.key.bytes(&mut scratch);
        let (outcome, _share) = self.change(key, |_| Action::Delete).await;
        let reply = match outcome {
            Outcome::Deleted => {
                self.tell(key, Event::Delete { is_found: true });
                self.counters().delete_hits.add(1);
                "DELETED\r\n"
            }
            Outcome::Busy => super::BUSY.text,
            _ => {
                self.tell(key, Event::Delete { is_found: false });
                self.counters().delete_misses.add(1);
                "NOT_FOUND\r\n"
            }
        };
        output.unless(delete.noreply, reply);
    }

    pub(super) async fn delta(&self, delta: Delta<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delta.key.bytes(&mut scratch);
        let (mut sum, mut stored) = (Sum::NotFound, (0, 0));
        let (outcome, _share) = self
            .change(key, |object| {
                sum = Sum::NotFound;
                let Some(object) = object else {
                    return Action::Keep;
                };
                let Some(added) = Added::to(object, delta.by, delta.up) else {
                    sum = Sum::NotNumeric;
                    return Action::Keep;
                };
                sum = Sum::Is(added.number);
                stored = (added.value.len(), added.meta.expiry);
                Action::Store {
                    value: added.value,
                    meta: added.meta,
                }
            })
            .await;
        match (outcome, sum) {
            (Outcome::Busy, _) => output.unless(delta.noreply, super::BUSY.text),
            (Outcome::Stored { .. }, Sum::Is(number)) => {
                self.tell_set(key, stored.0, stored.1);
                self.counters().deltas(delta.up, true);
                if !delta.noreply {
                    output.number(number);
                    output.text("\r\n");
                }
            }
            (_, Sum::NotFound | Sum::OtherVersion) => {
                self.counters().deltas(delta.up, false);
                output.unless(delta.noreply, "NOT_FOUND\r\n");
            }
            (_, Sum::NotNumeric) => output.unless(delta.noreply, NOT_NUMERIC.text),
            (_, Sum::Is(_)) => output.unless(delta.noreply, NO_MEMORY.text),
        }
    }

    pub(super) async fn touch(&self, touch: Touch<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = touch.key.bytes(&mut scratch);
        let expiry = self.expiry(touch.exptime);
        let mut found = None;
        let (outcome, _share) = self
            .change(key, |object| {
                found = object.map(Found::of);
                match object {
                    Some(object) => Action::SetMeta(marks::used(Meta {
                        expiry,
                        ..object.meta()
                    })),
                    None => Action::Keep,
                }
            })
            .await;
        let counters = self.counters();
        counters.cmd_touch.add(1);
        let said = match outcome {
            Outcome::Busy => super::BUSY,
            Outcome::Kept => {
                self.tell(key, Event::Touch { found: None, expiry });
                counters.touch_misses.add(1);
                NOT_FOUND
            }
            Outcome::Stored { .. } | Outcome::Deleted => {
                let found = found.map(|found| found.len);
                self.tell(key, Event::Touch { found, expiry });
                counters.touch_hits.add(1);
                TOUCHED
            }
            Outcome::Rejected(_) => super::NO_MEMORY,
        };
        match (touch.frame, outcome, found) {
            (Some(frame), Outcome::Stored { version }, Some(found)) => {
                output.found(frame, key, &Found { version, ..found }, 0);
            }
            (Some(frame), ..) => output.status(frame, said.status),
            (None, ..) => output.unless(touch.noreply, said.text),
        }
    }
}

/// A number that was added to or subtracted from.
pub(super) struct Added {
    pub(super) number: u64,
    /// What is stored.
    pub(super) value: Vec<u8>,
    pub(super) meta: Meta,
}

impl Added {
    /// `None` where the object holds no number.
    pub(super) fn to<B: Buffer>(object: &Object<B>, by: u64, up: bool) -> Option<Self> {
        let mut old = Vec::new();
        // Nobody keeps a number in so many bytes: what is longer is none.
        if object.value_len() <= super::NUMBER_BYTES_MAX {
            output::copy_value(object, &mut old);
        }
        let number = number_in_value(&old)?;
        let number = match up {
            true => number.wrapping_add(by),
            false => number.saturating_sub(by),
        };
        let value = padded(number, old.len());
        let mut meta = object.meta();
        // memcached changes a number that does not grow in its place, and makes a new item of another.
        if value.len() > old.len() {
            meta.marks = 0;
        }
        Some(Self { number, value, meta })
    }
}

/// A number as text, with spaces after it where the old value was longer: memcached never makes a number's value shorter.
fn padded(number: u64, old_len: usize) -> Vec<u8> {
    let mut value = number.to_string().into_bytes();
    if value.len() < old_len {
        value.resize(old_len, b' ');
    }
    value
}
