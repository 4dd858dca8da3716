//! What a 304 does to a stored response.

use super::Proxy;
use super::fly::Job;
use crate::conditional::freshen;
use crate::directives::Directives;
use crate::freshness::Times;
use crate::head::NewHead;
use crate::store::{Exchange, NotStored, may_store};
use crate::vary::selecting_names;
use http::{HeaderMap, Method};
use pumice::{Action, Outcome};
use pumice_device::Device;

impl<D: Device + Clone> Proxy<D> {
    /// Renews the fields of the response that was validated, where this request's 304 may change what is stored for all; false where the
    /// whole is to be fetched anew: the 304 is about another response, or makes of this one what does not stand under its key.
    pub(super) async fn freshen(&self, job: &mut Job<D>, answer: &HeaderMap, times: Times) -> bool {
        let Some(stale) = job.stale.take() else {
            return false;
        };
        let Some(head) = stale.head(&job.target) else {
            return false;
        };
        let Some(fields) = freshen(&head, answer) else {
            return false;
        };
        let exchange = Exchange {
            method: &Method::GET,
            request: &job.fields,
            status: head.status,
            response: &fields,
            times,
            body_bytes: Some(head.body_bytes),
        };
        let rule = self.rule(&job.target);
        let renewed = match may_store(&exchange, rule, u64::MAX) {
            Ok(storing) => {
                let before = selecting_names(&head.to_map(), &rule.key_fields);
                if before.as_ref() != Some(&storing.vary) || storing.vary.is_empty() != head.variant.is_none()
                {
                    return false;
                }
                let new = NewHead {
                    status: head.status,
                    storing: &storing,
                    key: job.target.key(),
                    variant: head.variant,
                    fields: &fields,
                    received_secs: times.received_secs,
                };
                new.encode().ok()
            }
            // One client's request, or an answer that is for it alone, takes nothing from the others.
            Err(NotStored::Authorization | NotStored::SetCookie) => return true,
            Err(_) if Directives::of_request(&job.fields).no_store => return true,
            Err(_) => None,
        };
        let key = stale.object.key().to_vec();
        let Some(renewed) = renewed else {
            let old = stale.object.head().to_vec();
            drop(stale);
            let remove = |object: Option<&pumice::Object<D::Buf>>| match object {
                Some(object) if object.head() == old => Action::Delete,
                _ => Action::Keep,
            };
            self.cache.update(&self.cx, &key, remove).await;
            return false;
        };
        let meta = stale.object.meta();
        let outcome = self
            .cache
            .replace_head(&self.cx, stale.object, &renewed, meta)
            .await;
        if matches!(outcome, Outcome::Stored { .. }) {
            self.stats().counters.freshened.add(1);
        }
        true
    }
}
