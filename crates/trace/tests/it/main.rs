//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod any_bytes;
mod convert;
mod files;
mod manifest;
mod public;
