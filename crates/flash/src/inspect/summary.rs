//! What an inspection found, as plain figures and as a list of places.

use crate::settings::Settings;
use pumice_blocks::Superblock;
use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It must not be: damage, or a mistake of the program.
    Inconsistency,
    /// A crash may leave it, and the next start deals with it.
    Leftover,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Device,
    /// A superblock, by slot.
    Superblock(u32),
    /// A log record, by position.
    Log(u64),
    /// A checkpoint, by number.
    Checkpoint(u64),
    /// A page of mappings, by number.
    Page(u32),
    /// A block, by number.
    Block(u32),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Device => f.write_str("device"),
            Part::Superblock(slot) => write!(f, "superblock {slot}"),
            Part::Log(position) => write!(f, "log record {position}"),
            Part::Checkpoint(id) => write!(f, "checkpoint {id}"),
            Part::Page(number) => write!(f, "mapping page {number}"),
            Part::Block(number) => write!(f, "block {number}"),
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What it is about.
    pub part: Part,
    /// Where, in bytes from the start of the device.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}, {}: {}", self.offset, self.part, self.what)
    }
}

/// Blocks by what stands on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Objects that count.
    pub sealed: u64,
    /// Nothing that counts.
    pub free: u64,
    /// Parts of the checkpoints that the superblock names.
    pub checkpoint: u64,
    /// Pages of mappings that the checkpoint names.
    pub mappings: u64,
    /// Never sealed, with a prefix whose objects count; no object of it is looked at.
    pub prefixes: u64,
    /// Open when the checkpoint was begun, and never sealed, without one.
    pub open: u64,
    /// What stands there cannot be told: damaged or unreadable.
    pub unknown: u64,
}

/// The checkpoint that a start would read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Its number.
    pub id: u64,
    /// Where its chain begins.
    pub first_block: u32,
    /// Bytes of its stream.
    pub bytes: u64,
    /// Blocks of its chain.
    pub blocks: u32,
    /// Mappings in it; with a cascade index those of tier 1.
    pub mappings: u64,
    /// False where the newest is damaged, and this is the one before.
    pub is_newest: bool,
}

/// The log as far as a start would read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Position of the first record that is needed.
    pub start: u64,
    /// Position of the next record.
    pub next: u64,
    /// Records that are there from `start` on.
    pub records: u64,
}

/// What is on a device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The superblock that counts.
    pub superblock: Superblock,
    /// The settings in it that objects were written with.
    pub settings: Settings,
    /// Bytes that are there; more than the capacity where the file is longer.
    pub device_bytes: u64,
    /// Whether every byte that counts was looked at.
    pub verified: bool,
    /// The next start will forget everything: no log was kept, or no checkpoint is whole.
    pub will_be_emptied: bool,
    /// Blocks.
    pub blocks: BlockCounts,
    /// Objects that footers of sealed blocks list, dead ones included.
    pub objects: u64,
    /// Their bytes, padding included.
    pub object_bytes: u64,
    /// The checkpoint that a start would read.
    pub checkpoint: Option<CheckpointSummary>,
    /// The policy that its priorities are of; `None` without priorities, or where this program knows no such policy.
    pub policy: Option<&'static str>,
    /// The log.
    pub log: LogSummary,
    /// Pages of mappings that it names.
    pub mapping_pages: u64,
    /// Mappings in them; only counted when verifying.
    pub page_mappings: u64,
    /// Bytes that count. The rest is unused space.
    pub bytes_used: u64,
    /// How many inconsistencies were found.
    pub inconsistencies: u64,
    /// How many leftovers of a crash were named.
    pub leftovers: u64,
}
