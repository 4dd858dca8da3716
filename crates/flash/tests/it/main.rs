//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod common;
mod crash;
mod golden;
mod kept;
mod logging;
mod order;
mod reclaim;
mod work;
