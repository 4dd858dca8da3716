//! What the fuzzer hands bytes to, as ordinary functions.
//!
//! A [`Target`] takes any bytes and panics where something is wrong: not only where the code under test panics, but where what it
//! accepted does not mean what it should. libFuzzer calls the targets from `libfuzzer/`; the tests of this crate call them with every
//! file of `corpus/`, which holds what the fuzzer found worth keeping. docs/fuzzing.md says how to run it.
//!
//! All of it is deterministic: the same bytes do the same.
#![forbid(unsafe_code)]

mod bytes;
mod chunks;
mod commands;
mod config;
mod connection;
mod edits;
mod frames;
mod http;
mod image;
mod nbd;
mod records;
mod recovery;
mod replies;
mod traces;
mod volumes;

/// Something to hand bytes to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its corpus, its dictionary and its libFuzzer program.
    pub name: &'static str,
    /// Does its work with some bytes.
    ///
    /// # Panics
    /// Where something is wrong.
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    target("classic", commands::classic),
    target("meta", commands::meta),
    target("binary", frames::run),
    target("connection", connection::run),
    target("records", records::run),
    target("recovery_full", recovery::full),
    target("recovery_cascade", recovery::cascade),
    target("chunks", chunks::run),
    target("traces", traces::run),
    target("config", config::run),
    target("nbd", nbd::run),
    target("http_request", http::request),
    target("http_answer", http::answer),
    target("http_stored", http::stored),
    target("http_directives", http::directives),
];

/// Hands bytes to the target of this name.
///
/// # Panics
/// Where there is none, and where something is wrong.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target `{name}`")).run)(data);
}
