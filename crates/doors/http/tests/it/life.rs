//! A response that comes, is stored, and is asked for later.

use crate::table::{THEN, fields, request, response};
use http::{HeaderMap, Method};
use pumice_door_http::conditional::{freshen, is_not_modified};
use pumice_door_http::decide::{Decision, Failure, Found, decide, serves_after};
use pumice_door_http::freshness::Times;
use pumice_door_http::head::{Head, NewHead};
use pumice_door_http::key::{Query, Scheme, Target};
use pumice_door_http::rules::Rule;
use pumice_door_http::store::{Exchange, NotStored, Storing, may_store};
use pumice_door_http::vary::Variants;

/// The largest object.
pub const OBJECT_BYTES_MAX: u64 = 1000;

pub fn target() -> Target {
    Target::new(Scheme::Http, "example.org", "/x", &Query::default()).unwrap()
}

/// Times of an exchange that took no time, some seconds after [`THEN`].
pub fn at(secs: i64) -> Times {
    Times {
        requested_secs: THEN + secs,
        received_secs: THEN + secs,
    }
}

/// A response that was stored under its URL, or as a variant.
pub struct Stored {
    variants: Variants,
    pub bytes: Vec<u8>,
}

/// Stores the answer to a request.
pub fn store(asked: &str, answer: &str, rule: &Rule, times: Times) -> Result<Stored, NotStored> {
    let (method, request) = request(asked);
    let (status, response) = response(answer);
    let length = response.get("content-length").and_then(|text| text.to_str().ok());
    let exchange = Exchange {
        method: &method,
        request: &request,
        status,
        response: &response,
        times,
        body_bytes: length.and_then(|text| text.parse().ok()),
    };
    let storing = may_store(&exchange, rule, OBJECT_BYTES_MAX)?;
    Ok(keep(&exchange, &storing))
}

fn keep(exchange: &Exchange<'_>, storing: &Storing) -> Stored {
    let mut variants = Variants::new(7);
    let target = target();
    let varies = !storing.vary.is_empty();
    let variant = varies.then(|| variants.insert(&target, &storing.vary, exchange.request).0);
    let head = NewHead {
        status: exchange.status,
        storing,
        key: target.key(),
        variant,
        fields: exchange.response,
        received_secs: exchange.times.received_secs,
    };
    Stored {
        variants,
        bytes: head.encode().unwrap(),
    }
}

impl Stored {
    pub fn head(&self) -> Head<'_> {
        Head::decode(&self.bytes, 10).unwrap()
    }

    /// What a request gets, `secs` after [`THEN`]: the decision in a few words, with the age where it is served.
    pub fn ask(&self, cell: &str, secs: i64) -> String {
        let (method, request) = request(cell);
        let now = THEN + secs;
        let head = self.head();
        let chosen = self.variants.choose(&target(), &request);
        let found = match head.variant.is_none() || chosen.is_some() {
            true => Found::Response(&head),
            false => Found::Variants,
        };
        assert!(matches!(found, Found::Variants) || head.is_for(&target(), chosen));
        match decide(&method, &request, found, now) {
            Decision::Serve { .. } if is_not_modified(&request, &head) => "304".to_owned(),
            Decision::Serve {
                ttl_secs,
                revalidates,
            } => {
                let word = match (ttl_secs > 0, revalidates) {
                    (true, _) => "fresh",
                    (false, true) => "stale and validated",
                    (false, false) => "stale",
                };
                format!("{word} {}", head.freshness.age_secs(now))
            }
            Decision::Validate(reason) => format!("validate {}", reason.name()),
            Decision::Fetch(reason) => format!("fetch {}", reason.name()),
            Decision::Pass(reason) => format!("pass {}", reason.name()),
            Decision::GatewayTimeout => "504".to_owned(),
        }
    }

    /// Whether it is served to a request after a failure of the origin.
    pub fn serves_after(&self, failure: Failure, cell: &str, secs: i64) -> bool {
        serves_after(failure, &request(cell).1, &self.head(), THEN + secs)
    }

    /// What is stored after a 304; `None` where that is about another response.
    pub fn freshen(&self, answer: &str, secs: i64) -> Option<Result<Stored, NotStored>> {
        let head = self.head();
        let exchange = Exchange {
            method: &Method::GET,
            request: &HeaderMap::new(),
            status: head.status,
            response: &freshen(&head, &fields(answer))?,
            times: at(secs),
            body_bytes: Some(head.body_bytes),
        };
        let storing = may_store(&exchange, &Rule::default(), OBJECT_BYTES_MAX);
        Some(storing.map(|storing| keep(&exchange, &storing)))
    }

    /// A field of it.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut fields = self.head().fields();
        let (_, value) = fields.find(|(found, _)| *found == name.as_bytes())?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    }
}
