//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod fake;
mod faults;
mod forgetful;
mod history;
