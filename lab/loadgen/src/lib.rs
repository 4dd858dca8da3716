//! A load generator for servers of the memcached text protocol, which verifies every value that it gets back.
//!
//! [`run`] makes a run of given [`Options`] and returns a [`Report`]; [`text`] shows it.
//!
//! # What is measured
//!
//! *Closed loop*: each connection has `pipeline` operations under way and starts the next when one has ended. Latency
//! counts from when the request is handed to the kernel.
//!
//! *Open loop* (`rate`): operations arrive by a schedule that is fixed beforehand, evenly spaced or as a Poisson process.
//! One that finds all connections busy waits, and its latency counts from its arrival: there is no coordinated
//! omission. Arrivals of the window that were sent are waited for at the end; the rest count as not sent, each once, with what they had
//! waited ([`Report::arrivals`]). What the warm-up left behind is dropped when the window begins.
//!
//! Requests, lookups, hits and latencies are of what began in the measured window, whenever it was answered. A miss of
//! `look-aside` and the set that answers it are two requests; `rmw` is two requests with one latency. Replies of one
//! turn of the event loop have one time stamp, taken when it wakes.
//!
//! The idle share of the client is the part of the window that its threads were not on a CPU, or polled the clock for
//! the next arrival (below 60 us no thread goes to sleep). Below 5 % the client is what is measured.
//!
//! # What is verified
//!
//! Each value carries its key, the run that wrote it, its version and a check over these and its length; the rest of
//! it follows from them and is compared byte by byte (`value.rs`). For each key, the table of versions has the lowest
//! version that a get may still return, which an acknowledged write raises (`versions.rs`); overlapping writes and writes
//! whose reply never came raise no false alarm. Found are: values of other keys, damaged and cut values, values that
//! an acknowledged set had replaced before the get was sent, hits after an acknowledged delete, and replies that fit no
//! request. Values of earlier runs are good until this run replaces them. Versions take 22 bytes per key, and no
//! more keys than the settings say: what is forgotten is not checked for age.
//!
//! Runs that write the same keys of one server at the same time see each other's values: those of the run that started
//! later are taken for good, those of the one that started earlier for stale. Give such runs different key prefixes.
//!
//! # Cost
//!
//! A thread has one event loop over its connections, on epoll. No request allocates. Keys are drawn in batches. Unpipelined, nine tenths
//! of the CPU time are the kernel's TCP.
#![forbid(unsafe_code)]

mod barrier;
mod cpu;
mod engine;
mod error;
mod history;
mod keys;
mod keytext;
mod mix;
mod options;
mod report;
mod run;
mod schedule;
mod sizes;
mod stats;
mod target;
mod text;
mod value;
mod versions;
mod wire;
mod workload;

pub use cpu::thread_time;
pub use error::LoadError;
pub use history::{HistoryOptions, HistoryReport, history};
pub use mix::{Action, Mix};
pub use options::{Options, seconds};
pub use report::*;
pub use run::{Stage, Status, run};
pub use stats::histogram;
pub use target::Target;
pub use text::text;
