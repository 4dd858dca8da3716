//! md. (mg is with the reads, ms with the storage commands.)

use super::{Executor, Output};
use crate::parse::MetaDelete;
use pumice::{Action, Outcome};
use pumice_device::Device;

impl<D: Device + Clone> Executor<D> {
    pub(super) async fn meta_delete(&self, delete: MetaDelete<'_>, output: &mut Output<D::Buf>) {
        let mut scratch = super::scratch();
        let key = delete.key.bytes(&mut scratch);
        let mut other_version = false;
        let (outcome, _share) = self
            .change(key, false, |object| {
                let Some(object) = object else {
                    other_version = false;
                    return Action::Keep;
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
}
