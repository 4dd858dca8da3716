//! md and me. (mg is with the reads, ms with the storage commands.)

use super::{Executor, Output};
use crate::parse::{MetaDebug, MetaDelete};
use pumice::{Action, Located, Outcome};
use pumice_device::{Buffer, Device};

impl<D: Device + Clone> Executor<D> {
    pub(super) async fn meta_delete(&self, delete: MetaDelete<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delete.key.bytes(&mut scratch);
        let mut other_version = false;
        let (outcome, _share) = self
            .change(key, false, |object| {
                let Some(object) = object else {
                    other_version = false;
                    return Action::Delete;
                };
                other_version = delete.compare.is_some_and(|unique| unique != object.version());
                match other_version {
                    true => Action::Keep,
                    false => Action::Delete,
                }
            })
            .await;
        let counters = self.counters();
        counters.cmd_meta.add(1);
        let reply = match outcome {
            Outcome::Deleted => {
                counters.delete_hits.add(1);
                "HD"
            }
            Outcome::Busy => {
                output.text(super::BUSY);
                return;
            }
            _ if other_version => "EX",
            _ => {
                counters.delete_misses.add(1);
                "NF"
            }
        };
        // memcached 1.6.18 hides only success.
        if delete.quiet && reply == "HD" {
            return;
        }
        output.text(reply);
        for (letter, argument) in delete.flags.iter() {
            super::echo(output, letter, argument, &delete.key);
        }
        output.text("\r\n");
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
