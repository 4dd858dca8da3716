//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod chunk;
mod closed_form;
mod direct;
mod flash;
mod ftl;
mod nhc;
mod reference;
mod replay;
mod tiers;
