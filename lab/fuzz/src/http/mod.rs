//! The HTTP door: what it takes of clients, origins and flash means what its bytes say.

mod directives;
mod exchanges;
mod plain;
mod stored;
mod wire;

pub(crate) use directives::run as directives;
pub(crate) use exchanges::{answer, request};
pub(crate) use stored::run as stored;
