//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod conformance;
mod file;
mod file_systems;
mod refused;
mod throttled;
