//! The HTTP door's judgement: what a shared cache may store, reuse, validate and forward. It has neither sockets nor a clock; times are
//! arguments, in whole seconds since 1970, cut off.
#![forbid(unsafe_code)]

pub mod directives;
pub mod fields;
pub mod framing;
pub mod invalidate;
pub mod key;
mod syntax;
