//! The owner's part of a checkpoint in bytes: shards of the index, each with the log position at its dump; the order; and what a cascade
//! index needs.

pub(crate) mod format;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use format::{KEYS_BATCH, Overview};
pub(crate) use reader::ReadObjects;
