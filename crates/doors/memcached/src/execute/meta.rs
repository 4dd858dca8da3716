//! md, ma and me; delete, incr and decr in frames. (ms is with the storage commands.)

use super::modify::{Added, Sum};
use super::{Code, Executor, Output, exptime, marks};
use crate::parse::{Frame, MetaDebug, MetaRequest};
use crate::recording::Event;
use pumice::{Action, Located, Meta, Outcome};
use pumice_device::{Buffer, Device};

impl<D: Device + Clone> Executor<D> {
    pub(super) async fn meta_delete(&self, delete: MetaRequest<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delete.key.bytes(&mut scratch);
        let (mut other_version, mut marked) = (false, None);
        let (outcome, _share) = self
            .change(key, |object| {
                let Some(object) = object else {
                    other_version = false;
                    return Action::Delete;
                };
                other_version = delete.compare.is_some_and(|unique| unique != object.version());
                if other_version {
                    return Action::Keep;
                }
                if !delete.invalidate {
                    return Action::Delete;
                }
                let meta = object.meta();
                let expiry = delete.touch.map_or(meta.expiry, |exptime| self.expiry(exptime));
                marked = Some((object.value_len(), expiry));
                Action::SetMeta(Meta {
                    expiry,
                    // The next client wins.
                    marks: meta.marks & !marks::WON | marks::STALE,
                    ..meta
                })
            })
            .await;
        let counters = self.counters();
        counters.cmd_meta.add(u64::from(delete.frame.is_none()));
        let reply = match outcome {
            Outcome::Deleted => {
                self.tell(key, Event::Delete { is_found: true });
                counters.delete_hits.add(1);
                Code::Done
            }
            Outcome::Stored { .. } => {
                let (found, expiry) = marked.unzip();
                let expiry = expiry.unwrap_or(0);
                self.tell(key, Event::Touch { found, expiry });
                Code::Done
            }
            Outcome::Busy => return output.failed(delete.frame, super::BUSY),
            Outcome::Rejected(_) => return output.failed(delete.frame, super::NO_MEMORY),
            _ if other_version => Code::Exists,
            _ => {
                self.tell(key, Event::Delete { is_found: false });
                counters.delete_misses.add(1);
                Code::NotFound
            }
        };
        // memcached 1.6.18 hides only success.
        if delete.quiet && reply == Code::Done {
            return;
        }
        super::bare(reply, &delete, output);
    }

    pub(super) async fn meta_delta(&self, delta: MetaRequest<'_>, output: &mut Output<D::Buf>) {
        let now = self.now_secs();
        let mut scratch = super::scratch();
        let key = delta.key.bytes(&mut scratch);
        let (mut sum, mut value_bytes) = (Sum::NotFound, 0);
        let mut turn = Expiries::default();
        let (outcome, _share) = self
            .change(key, |object| {
                turn = Expiries::of(&delta, object.map(|object| object.expiry()), now);
                let added = match object {
                    None if delta.vivify.is_some() => Added {
                        number: delta.initial,
                        value: delta.initial.to_string().into_bytes(),
                        meta: Meta::default(),
                    },
                    None => {
                        sum = Sum::NotFound;
                        return Action::Keep;
                    }
                    // As memcached has it, this comes before the comparison.
                    Some(object) if object.value_len() == 0 => {
                        sum = Sum::NotNumeric;
                        return Action::Keep;
                    }
                    Some(object) if delta.compare.is_some_and(|unique| unique != object.version()) => {
                        sum = Sum::OtherVersion;
                        return Action::Keep;
                    }
                    Some(object) => match Added::to(object, delta.by, delta.up) {
                        Some(added) => added,
                        None => {
                            sum = Sum::NotNumeric;
                            return Action::Keep;
                        }
                    },
                };
                sum = Sum::Is(added.number);
                value_bytes = added.value.len();
                Action::Store {
                    value: added.value,
                    meta: Meta {
                        expiry: turn.after,
                        ..added.meta
                    },
                }
            })
            .await;
        let counters = self.counters();
        counters.cmd_meta.add(u64::from(delta.frame.is_none()));
        let reply = match (outcome, sum) {
            (Outcome::Stored { version }, Sum::Is(number)) => {
                self.tell_set(key, value_bytes, turn.after);
                counters.deltas(delta.up, !turn.vivified);
                match delta.frame {
                    Some(Frame { quiet: true, .. }) => {}
                    Some(frame) => output.told(frame, version, "", &number.to_be_bytes()),
                    // memcached hides success, but not that of making the number.
                    None if delta.quiet && !turn.vivified => {}
                    None => meta_sum(&delta, number, version, &turn, || now, output),
                }
                return;
            }
            (Outcome::Busy, _) => return output.failed(delta.frame, super::BUSY),
            (_, Sum::NotNumeric) => return output.failed(delta.frame, super::modify::NOT_NUMERIC),
            (_, Sum::Is(_)) => return output.failed(delta.frame, super::modify::NO_MEMORY),
            (_, Sum::NotFound) => {
                counters.deltas(delta.up, false);
                Code::NotFound
            }
            (_, Sum::OtherVersion) => Code::Exists,
        };
        super::bare(reply, &delta, output);
    }

    /// Says where an object is. It reads nothing, and is no access to the object.
    pub(super) fn meta_debug(&self, debug: MetaDebug<'_>, output: &mut Output<D::Buf>) {
        self.counters().cmd_meta.add(1);
        let mut scratch = super::scratch();
        match self.cache.locate(&self.cx, debug.key.bytes(&mut scratch)) {
            Some(located) => {
                output.text("ME ");
                output.text(debug.key.token());
                describe(&located, || self.now_secs(), output);
                output.text("\r\n");
            }
            None => output.text("EN\r\n"),
        }
    }
}

/// The expiry of a number before and after the flags of an ma are worked through.
#[derive(Clone, Copy, Default)]
struct Expiries {
    before: u32,
    after: u32,
    vivified: bool,
    now: u32,
}

impl Expiries {
    /// `before` is none where there is no object.
    fn of(delta: &MetaRequest<'_>, before: Option<u32>, now: u32) -> Self {
        let mut expiries = Self {
            before: before.unwrap_or(0),
            after: 0,
            vivified: before.is_none(),
            now,
        };
        expiries.after = delta.flags.iter().fold(expiries.before, |expiry, (letter, _)| {
            expiries.at(delta, letter, expiry)
        });
        expiries
    }

    /// What the expiry is after one flag.
    fn at(&self, delta: &MetaRequest<'_>, letter: u8, expiry: u32) -> u32 {
        let exptime = match letter {
            b'T' => delta.touch,
            b'N' if self.vivified => delta.vivify,
            _ => None,
        };
        exptime.map_or(expiry, |exptime| exptime::absolute(exptime, self.now))
    }
}

/// The reply to an ma that has changed or made a number.
fn meta_sum<B: Buffer>(
    delta: &MetaRequest<'_>,
    number: u64,
    version: u64,
    expiries: &Expiries,
    now: impl Fn() -> u32,
    output: &mut Output<B>,
) {
    let digits = number.to_string();
    if delta.value {
        output.text("VA ");
        output.number(digits.len() as u64);
    } else {
        output.text("HD");
    }
    let mut expiry = expiries.before;
    for (letter, argument) in delta.flags.iter() {
        expiry = expiries.at(delta, letter, expiry);
        match letter {
            b't' => super::ttl(expiry, &now, output),
            b'c' => {
                output.text(" c");
                output.number(version);
            }
            _ => super::echo(output, letter, argument, &delta.key),
        }
    }
    output.text("\r\n");
    if delta.value {
        output.text(digits);
        output.text("\r\n");
    }
}

/// What is known of an object, as fields.
fn describe<B: Buffer>(located: &Located, now: impl Fn() -> u32, output: &mut Output<B>) {
    if let Some(known) = located.known {
        match known.expiry {
            0 => output.text(" exp=-1"),
            expiry => {
                output.text(" exp=");
                output.number(u64::from(expiry.saturating_sub(now())));
            }
        }
        output.text(" cas=");
        output.number(known.version);
        output.text(" size=");
        output.number(known.value_len);
    }
    output.text(match (located.in_dram_tier, located.flash.is_some()) {
        (true, true) => " tier=both",
        (true, false) => " tier=dram",
        (false, _) => " tier=flash",
    });
    if let Some(copy) = located.flash {
        output.text(if copy.written {
            " written=yes"
        } else {
            " written=no"
        });
        if let Some(position) = copy.position {
            output.text(format!(" position={position:.3}"));
        }
    }
}
