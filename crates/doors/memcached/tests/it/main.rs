//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod auth;
mod binary;
mod budgets;
mod classic;
mod common;
mod connections;
mod durable;
mod key_dump;
mod long_lines;
mod meta;
mod pinning;
mod pipelining;
mod recording;
mod shutdown;
mod tls;
mod values;
