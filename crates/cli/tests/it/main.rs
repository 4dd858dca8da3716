//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod clean_stop;
mod command_line;
mod common;
mod descriptors;
mod documents;
mod failed_starts;
mod familiar;
mod flash_fails;
mod flash_file;
mod flush_interval;
mod frozen;
mod inspect;
mod killed_starts;
mod listen;
mod performance;
mod replay_as_served;
mod replay_lists;
mod smallest;
#[cfg(feature = "throttle")]
mod throttle;
mod trace;
mod volumes;
