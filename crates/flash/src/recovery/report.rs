//! What a start has found.

use pumice_blocks::BudgetLevel;

/// What became of the objects that a start found, each counted once, and of blocks. With index `cascade` those of the checkpoint are not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Mappings of the checkpoint, and entries of footers of blocks that it does not cover.
    pub found: u64,
    /// Mappings into blocks that were reclaimed or whose footers count instead.
    pub uncovered: u64,
    /// Voided by the log.
    pub void: u64,
    /// Expired.
    pub expired: u64,
    /// Moved from another block, and not whole: the former copy stays.
    pub torn: u64,
    /// Copies in whose places later ones came.
    pub replaced: u64,
    /// Blocks whose trailers could not be read.
    pub unread_blocks: u64,
    /// Blocks whose footers could not be read or are damaged.
    pub damaged_blocks: u64,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Objects that are back.
    pub objects: u64,
    /// Their bytes, padding included.
    pub bytes: u64,
    /// Whether the last stop was clean.
    pub clean: bool,
    /// Whether the device was formatted.
    pub formatted: bool,
    /// Whether what was there had to be forgotten.
    pub discarded: bool,
    /// Seconds for which nothing ran, where that was too long ([`OpenOptions::absence_secs_max`](crate::OpenOptions::absence_secs_max)) and
    /// what was there is forgotten.
    pub absent_secs: Option<u32>,
    /// Bytes read from the device.
    pub bytes_read: u64,
    /// Log records applied.
    pub log_records: u64,
    /// What the write budget had left at the newest checkpoint.
    pub budget: BudgetLevel,
    /// Bytes sent to the device since then that nothing held back, at most; `None` where that tells all, as after a clean stop.
    pub unpaid_bytes: Option<u64>,
    /// Blocks that were being filled, of which what they began with is back.
    pub prefixes: u64,
    /// What became of what was found.
    pub tally: Tally,
    /// Mappings for which there was no DRAM.
    pub no_memory: u64,
    /// The highest Unix time that the device has recorded, in seconds: the clock must not show less.
    pub time: u32,
    /// Whether [`settle`](super::settle) has to write a checkpoint.
    pub needs_checkpoint: bool,
}

impl Recovered {
    /// How many objects a full index has after what [`Tally`] says.
    pub fn accounted(&self) -> u64 {
        let tally = &self.tally;
        let gone = tally.uncovered + tally.void + tally.expired + tally.torn + tally.replaced;
        tally.found.saturating_sub(gone + self.no_memory)
    }
}
