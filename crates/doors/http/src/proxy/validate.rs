//! What a 304 does to a stored response.

use super::Proxy;
use super::fly::Job;
use crate::conditional::freshen;
use crate::freshness::Times;
use crate::head::NewHead;
use crate::store::{Exchange, may_store};
use http::{HeaderMap, Method};
use pumice::Outcome;
use pumice_device::Device;

impl<D: Device + Clone> Proxy<D> {
    /// Renews the fields of the response that was validated; false where the 304 is about another one. One that may not be stored any more
    /// is removed.
    pub(super) async fn freshen(&self, job: &mut Job<D>, answer: &HeaderMap, times: Times) -> bool {
        let Some(stale) = job.stale.take() else {
            return false;
        };
        let renewed = stale.head(&job.target).and_then(|head| {
            let fields = freshen(&head, answer)?;
            let exchange = Exchange {
                method: &Method::GET,
                request: &job.fields,
                status: head.status,
                response: &fields,
                times,
                body_bytes: Some(head.body_bytes),
            };
            let storing = may_store(&exchange, self.rule(&job.target), u64::MAX).ok();
            Some(storing.and_then(|storing| {
                let new = NewHead {
                    status: head.status,
                    storing: &storing,
                    key: job.target.key(),
                    variant: head.variant,
                    fields: &fields,
                    received_secs: times.received_secs,
                };
                new.encode().ok()
            }))
        });
        let Some(renewed) = renewed else { return false };
        let meta = stale.object.meta();
        let key = stale.object.key().to_vec();
        let is_renewed = match renewed {
            None => false,
            Some(head) => {
                let outcome = self.cache.replace_head(&self.cx, stale.object, &head, meta).await;
                // Kept: another has renewed or replaced it.
                matches!(outcome, Outcome::Stored { .. } | Outcome::Kept)
            }
        };
        match is_renewed {
            true => self.stats().counters.freshened.add(1),
            false => drop(self.cache.delete(&self.cx, &key).await),
        }
        true
    }
}
