//! delete, incr, decr, touch.

use super::{Executor, Output, output};
use crate::parse::{Delete, Delta, Touch, number_in_value};
use pumice::{Action, Meta, Outcome};
use pumice_device::Device;

/// What became of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Is(u64),
    NotNumeric,
    NotFound,
}

impl<D: Device + Clone> Executor<D> {
    pub(super) async fn delete(&self, delete: Delete<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delete.key.bytes(&mut scratch);
        let (outcome, _share) = self.change(key, false, |_| Action::Delete).await;
        let reply = match outcome {
            Outcome::Deleted => {
                self.counters().delete_hits.add(1);
                "DELETED\r\n"
            }
            Outcome::Busy => super::BUSY,
            _ => {
                self.counters().delete_misses.add(1);
                "NOT_FOUND\r\n"
            }
        };
        output.unless(delete.noreply, reply);
    }

    pub(super) async fn delta(&self, delta: Delta<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delta.key.bytes(&mut scratch);
        let mut sum = Sum::NotFound;
        let (outcome, _share) = self
            .change(key, true, |object| {
                sum = Sum::NotFound;
                let Some(object) = object else {
                    return Action::Keep;
                };
                let mut old = Vec::new();
                // Nobody keeps a number in so many bytes: what is longer is none.
                if object.value_len() <= super::SMALL_CHANGE_BYTES as usize {
                    output::copy_value(object, &mut old);
                }
                let Some(number) = number_in_value(&old) else {
                    sum = Sum::NotNumeric;
                    return Action::Keep;
                };
                let number = match delta.up {
                    true => number.wrapping_add(delta.by),
                    false => number.saturating_sub(delta.by),
                };
                sum = Sum::Is(number);
                Action::Store {
                    value: padded(number, old.len()),
                    meta: Meta {
                        flags: object.flags(),
                        expiry: object.expiry(),
                    },
                }
            })
            .await;
        let counters = self.counters();
        let (hits, misses) = match delta.up {
            true => (&counters.incr_hits, &counters.incr_misses),
            false => (&counters.decr_hits, &counters.decr_misses),
        };
        match (outcome, sum) {
            (Outcome::Busy, _) => output.unless(delta.noreply, super::BUSY),
            (Outcome::Stored { .. }, Sum::Is(number)) => {
                hits.add(1);
                if !delta.noreply {
                    output.number(number);
                    output.text("\r\n");
                }
            }
            (_, Sum::NotFound) => {
                misses.add(1);
                output.unless(delta.noreply, "NOT_FOUND\r\n");
            }
            (_, Sum::NotNumeric) => output.unless(
                delta.noreply,
                "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            ),
            (_, Sum::Is(_)) => output.unless(delta.noreply, "SERVER_ERROR out of memory in incr\r\n"),
        }
    }

    pub(super) async fn touch(&self, touch: Touch<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = touch.key.bytes(&mut scratch);
        let expiry = self.expiry(touch.exptime);
        let (outcome, _share) = self
            .change(key, false, |object| match object {
                Some(object) => Action::SetMeta(Meta {
                    flags: object.flags(),
                    expiry,
                }),
                None => Action::Keep,
            })
            .await;
        let counters = self.counters();
        counters.cmd_touch.add(1);
        let reply = match outcome {
            Outcome::Busy => super::BUSY,
            Outcome::Kept | Outcome::NeedsMemory { .. } => {
                counters.touch_misses.add(1);
                "NOT_FOUND\r\n"
            }
            Outcome::Stored { .. } | Outcome::Deleted => {
                counters.touch_hits.add(1);
                "TOUCHED\r\n"
            }
            Outcome::Rejected(_) => super::NO_MEMORY,
        };
        output.unless(touch.noreply, reply);
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
