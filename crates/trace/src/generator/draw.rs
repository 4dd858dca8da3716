//! One request, before a key and a size are made for it.

use crate::request::Op;

/// What a workload draws: the number that the key is made from, and what is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) number: u64,
    pub(super) op: Op,
    /// What the object holds, where the workload says so: the number is the key then, as addresses are to stay neighbours.
    pub(super) content: Option<u64>,
}
