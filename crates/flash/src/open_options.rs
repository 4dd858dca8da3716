//! How to open a device.

use crate::layout::LayoutOptions;
use pumice_blocks::{Durability, Maker};
use pumice_index::IndexKind;

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Block size in bytes to format with; an existing cache must agree where `check_block_bytes` is set.
    pub block_bytes: u64,
    /// Whether the user chose the block size.
    pub check_block_bytes: bool,
    /// Erase whatever is there.
    pub reformat: bool,
    /// What opens it; an existing cache must have been made by the same.
    pub maker: Maker,
    /// Believe a clock that is far ahead of what the device saw.
    pub accept_clock: bool,
    /// A cache in which nothing ran for so many seconds begins empty.
    pub absence_secs_max: Option<u32>,
    /// Whether the device is to have a performance tier, for the superblock.
    pub has_tier: bool,
    /// What a reply promises.
    pub durability: Durability,
    /// Seconds after which what is in a buffer alone is written; 0 = when its block is full.
    pub flush_interval_secs: u32,
    /// The most block buffers, at least 2.
    pub buffers_max: usize,
    /// Objects start at multiples of this many bytes.
    pub unit_bytes: u64,
    /// The layout; an existing cache must agree.
    pub layout: LayoutOptions,
    /// Where mappings are; an existing cache must agree.
    pub index: IndexKind,
    /// One piece of background work at a time, so that nothing depends on how long a device takes: for replay.
    pub lockstep: bool,
    /// Unix time in seconds.
    pub now: u32,
    /// Random numbers for a new cache: its id and the seed of its hash.
    pub random: [u64; 2],
}
