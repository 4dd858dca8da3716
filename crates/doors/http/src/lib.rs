//! The HTTP door: a caching reverse proxy, from its sockets to the engine and the origin.
//!
//! [`Door`] takes connections from the floor, hyper speaks HTTP on them, and `proxy` answers: at once from what DRAM has, else on a task that
//! may wait for flash, for memory of the budget, or for the origin. What is fetched is stored while it comes, and whoever asked reads it
//! there. The judgement is pure: what a shared cache may store, reuse, validate and forward; it has neither sockets nor a clock, and times
//! are arguments, in whole seconds since 1970, cut off.
//!
//! A request goes this way:
//!
//! 1. [`framing::check_request`] refuses what two servers could read differently. [`fields::clean_request`] makes of its fields those that
//!    the origin gets. Everything after looks at these alone, so that nothing that the origin does not see chooses what is stored.
//! 2. [`rules::Rules::find`] names the rule of the path, [`key::Target`] the key. Under it the engine has a stored response, or the
//!    [`vary::Variants`] of the URL, which name one for the request at hand.
//! 3. [`decide::decide`] answers from a [`head::Head`] that was found, without parsing anything of it; [`conditional`] and [`range`] say
//!    how much of it is sent.
//! 4. What the origin answers is checked by [`framing::check_response`]. [`store::may_store`] says whether it is stored, and
//!    [`conditional::freshen`] applies a 304. [`invalidate::targets`] names what an unsafe method makes void.
//!
//! The specifications: RFC 9110 (semantics), 9111 (caching), 9112 (HTTP/1.1), 5861 (stale responses), 8246 (immutable), 9211 (Cache-Status),
//! 9213 (CDN-Cache-Control).
#![forbid(unsafe_code)]

pub mod access_log;
pub mod conditional;
mod config;
mod counters;
pub mod decide;
pub mod directives;
pub mod fields;
pub mod framing;
pub mod freshness;
pub mod head;
pub mod invalidate;
pub mod key;
pub mod origin;
mod proxy;
pub mod range;
pub mod rule_table;
pub mod rules;
mod server;
pub mod status;
pub mod store;
mod syntax;
pub mod vary;

pub use config::{CONNECTION_BYTES, DoorConfig, TLS_BYTES, WORKER_BYTES};
pub use counters::{Counts, DoorStats, Operation};
pub use pumice_net::{Listen, TlsIdentity};
pub use server::Door;
