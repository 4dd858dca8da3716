//! Opening a device: format it, or find out what it holds.
//!
//! After a clean stop the newest checkpoint tells everything. Otherwise:
//! 1. the newest valid checkpoint gives mappings, and which blocks were sealed or open when it was begun;
//! 2. every block's trailer is read. A block that the checkpoint knows as sealed, in the same life, is *covered*: its
//!    mappings come from the checkpoint. A block that was open then, or opened later, is *new*: its mappings come from
//!    its footer. Every other block counts for nothing: it was reclaimed, or never finished;
//!    Where the log says that what such a block began with was written, and there is no footer, the records' headers tell its
//!    objects, and the footer is written now;
//! 3. the log since the checkpoint says which copies are void, and which blocks were reclaimed;
//! 4. a new checkpoint is written ([`settle`]) before the first request, so that no later start depends on what this one read.
//!
//! Where the log has a hole, or no checkpoint is whole, the cache starts empty: nothing wrong is ever served.

mod blocks;
mod open;
mod replay;
mod void;

pub use open::{Opened, open_superblock};
use void::{VOID_RECORD_BYTES, VOID_RECORDS_MAX};

use crate::Mappings;
use crate::layout::{LayoutName, LayoutOptions, slot_bits};
use crate::log::LogKind;
use crate::mapping_log::MappingLog;
use crate::store::{FlashStore, Start};
use pumice_blocks::log::SCAN_BYTES;
use pumice_blocks::recovery::StartClock;
use pumice_blocks::{Durability, Geometry, Maker, OpenError};
use pumice_device::Device;
use pumice_index::IndexKind;
use pumice_memory::Buffer;
use replay::{Found, Objects, Recovery};
use std::sync::Arc;

/// Bits of a version below the epoch: 2^44 sets per start, and 2^20 starts.
pub(crate) const EPOCH_SHIFT: u32 = 44;

/// DRAM that a start may take beside the index and the store's own tables, in bytes, given back before the first request:
/// - 16 bytes for each record that fits the log, but at most 4 MiB: where the log has more it is read in rounds;
/// - 256 KiB for a stretch of the log, 1 MiB for the stream of a checkpoint and the trailers under way;
/// - 192 bytes for each block: its row in the checkpoint, raw and decoded, its trailer, what was found of it.
///
/// And one footer at a time, raw and decoded. An entry and its record take 76 bytes of a block at least and 60 bytes
/// here, so that is less than a block, and no block buffer is in use yet.
pub fn recovery_bytes(geometry: &Geometry) -> u64 {
    let void = geometry.log_slots.min(VOID_RECORDS_MAX as u64) * VOID_RECORD_BYTES;
    void + SCAN_BYTES + (1 << 20) + 192 * u64::from(geometry.blocks)
}

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
    /// Bytes read from the device.
    pub bytes_read: u64,
    /// Log records applied.
    pub log_records: u64,
    /// Blocks that were being filled, of which what they began with is back.
    pub prefixes: u64,
    /// What became of what was found.
    pub tally: Tally,
    /// Mappings for which there was no DRAM.
    pub no_memory: u64,
    /// The highest Unix time that the device has recorded, in seconds: the clock must not show less.
    pub time: u32,
    /// Whether [`settle`] has to write a checkpoint.
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

/// Rebuilds the mappings into `mappings` (empty shards, made for the superblock's geometry), and opens the store. With a cascade
/// index `mapping_log` is where its pages are.
///
/// # Errors
/// [`OpenError::Device`] where this start cannot be recorded on the device. Damage is no error: what is damaged is gone.
pub async fn recover<B: Buffer, D: Device<Buf = B>, M: Mappings>(
    device: &D,
    opened: Opened,
    options: &OpenOptions,
    mappings: &M,
    mapping_log: Option<&Arc<MappingLog<B>>>,
) -> Result<(FlashStore<B>, Recovered), OpenError> {
    let geometry = opened.superblock.geometry;
    let new_layout = || LayoutName::new_layout(&options.layout, options.index, &geometry);
    let mut recovery = Recovery {
        base: pumice_blocks::recovery::Recovery::new(device, opened.superblock),
        objects: Objects {
            mappings,
            policy: options.layout.policy_checksum(),
            layout: new_layout(),
            mapping_log,
            slot_bits: slot_bits(&options.layout, options.index),
            unit_bytes: options.unit_bytes,
            cache_id: opened.superblock.cache_id,
            found: 0,
            no_memory: 0,
        },
        out: Recovered::default(),
        now: options.now,
    };
    recovery.out.formatted = opened.formatted;
    let is_clock_back = opened.superblock.is_clock_back(options.now);
    if is_clock_back {
        tracing::warn!("expiry times cannot be trusted: starting empty");
    }
    let found = if opened.formatted || is_clock_back {
        Found {
            epoch: opened.superblock.epoch,
            time: opened.superblock.time,
            ..Found::default()
        }
    } else {
        recovery.find().await
    };
    let found = match found {
        Found { usable: true, .. } => found,
        _ => {
            // A new identity: no byte that is there can pass as ours again.
            for shard in 0..mappings.shards() {
                mappings.with_shard(shard, pumice_index::IndexShard::clear);
            }
            if let Some(log) = mapping_log {
                log.reset();
            }
            let out = &mut recovery.out;
            out.discarded = !opened.formatted;
            (out.objects, out.bytes) = (0, 0);
            recovery.base.superblock.begin_anew(options.random[0]);
            recovery.objects.layout = new_layout();
            Found {
                epoch: found.epoch,
                time: found.time,
                ..Found::default()
            }
        }
    };
    let slots = found.slots;
    let mut superblock = recovery.base.superblock;
    let was_clean = recovery.base.clean;
    recovery.out.clean = was_clean;
    recovery.out.bytes_read = recovery.base.bytes_read;
    recovery.out.tally.unread_blocks = recovery.base.unread_blocks.len() as u64;
    let clock = StartClock {
        now: options.now,
        accept_clock: options.accept_clock,
    };
    superblock.begin_start(found.epoch, found.time, clock, opened.formatted);
    recovery.out.time = superblock.time;
    superblock.discard = options.durability == Durability::Off;
    superblock.has_tier = options.has_tier;
    let start = Start {
        superblock,
        log_next: found.log_next,
        log_tail: superblock.checkpoints[0].log_start,
        next_sequence: found.next_sequence.max(1),
        first_version: u64::from(superblock.epoch) << EPOCH_SHIFT | 1,
        flush_at: found.flush_at,
        checkpoint_blocks: [found.checkpoint_blocks, Vec::new()],
        sealed: found.sealed,
        order: found.order,
        layout: recovery.objects.layout,
    };
    let store = FlashStore::start(start, options);
    if let Some(log) = mapping_log {
        store.attach_mapping_log(log);
        mappings.with_shard(0, |shard| {
            shard.begin_history(found.history, store.knows_deaths());
        });
        // Which copies are dead nobody knows: all count, until their blocks are reclaimed.
        (recovery.out.objects, recovery.out.bytes) = store.count_all_recovered(slots);
    }
    for shard in 0..mappings.shards() {
        mappings.with_shard(shard, |shard| {
            shard.rewrite_notes(|mapping| {
                recovery.out.objects += 1;
                recovery.out.bytes += u64::from(mapping.location.len);
                store.count_recovered(mapping)
            });
        });
    }
    store.settle_order();
    store.prune_ranks(mappings).await;
    store.prune_keys(mappings);
    let is_new = recovery.out.formatted || recovery.out.discarded;
    store
        .record_start(device, is_new.then_some(LogKind::FlushAt))
        .await?;
    if recovery.out.no_memory > 0 {
        tracing::warn!(
            "{} mappings found no room in DRAM: their objects are lost",
            recovery.out.no_memory
        );
    }
    if !was_clean && !is_new {
        let Recovered {
            tally, log_records, ..
        } = &recovery.out;
        tracing::info!("recovery: {tally:?}, {log_records} log records");
    }
    recovery.out.needs_checkpoint = !is_new && (!was_clean || recovery.out.no_memory > 0);
    Ok((store, recovery.out))
}

/// The last step of a start, before the first request. What this start could not read or hold must not come back at a
/// later one: a new checkpoint makes this start's view the only one. (A new identity has nothing that could come back.)
pub async fn settle<B: Buffer, D: Device<Buf = B>, M: Mappings>(
    store: &FlashStore<B>,
    device: &D,
    mappings: &M,
    now: u32,
    recovered: &Recovered,
) {
    if !recovered.needs_checkpoint {
        return;
    }
    let is_only = match store.checkpoint(device, mappings, now, false).await {
        Ok(()) => store.forget_previous_checkpoint(device),
        Err(error) => {
            tracing::warn!("checkpoint after recovery: {error}");
            false
        }
    };
    if !is_only {
        store.mark_discard(device);
    }
}
