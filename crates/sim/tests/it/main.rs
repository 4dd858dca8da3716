//! The integration tests of this crate, one program: its generic code is compiled once for all of them.

mod chunk;
mod closed_form;
mod flash;
mod ftl;
mod ftl_naive;
#[path = "../../../trace/tests/it/public.rs"]
mod public;
mod reference;
mod replay;
