//! The integration tests of this crate, one program.

mod nhc;
mod tiers;
