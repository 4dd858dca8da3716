//! Opening a device: format it, or find out what it holds.
//!
//! After a clean stop the newest checkpoint tells everything. Otherwise:
//! 1. the newest valid checkpoint gives mappings, and which blocks were sealed or open when it was begun;
//! 2. every block's trailer is read. A block that the checkpoint knows as sealed, in the same generation, is *covered*: its
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
mod report;
mod void;

pub use open::{Opened, open_superblock};
pub use report::{Recovered, Tally};
use void::{VOID_RECORD_BYTES, VOID_RECORDS_MAX};

use crate::Mappings;
use crate::layout::{LayoutName, slot_bits};
use crate::log::LogKind;
use crate::mapping_log::MappingLog;
use crate::open_options::OpenOptions;
use crate::settings::Settings;
use crate::store::{FlashStore, Start};
use pumice_blocks::log::SCAN_BYTES;
use pumice_blocks::recovery::StartClock;
use pumice_blocks::{Durability, Geometry, OpenError, add};
use pumice_device::Device;
use pumice_index::IndexShard;
use pumice_memory::Buffer;
use pumice_record::EPOCH_SHIFT;
use replay::{Found, Objects, Recovery};
use std::sync::Arc;

/// DRAM that a start may take beside the index and the store's own tables, in bytes, given back before the first request:
/// - 16 bytes for each record that fits the log, but at most 4 MiB: where the log has more it is read in rounds;
/// - 256 KiB for a stretch of the log, 1 MiB for the stream of a checkpoint and the trailers under way;
/// - 192 bytes for each block: its row in the checkpoint, raw and decoded, its trailer, what was found of it.
///
/// And one footer at a time, raw and decoded. An entry and its record take 34 bytes of a block at least and at most 74 bytes here, so
/// that is less than the buffers of three blocks, none of which is in use yet.
pub fn recovery_bytes(geometry: &Geometry) -> u64 {
    let void = geometry.log_slots.min(VOID_RECORDS_MAX as u64) * VOID_RECORD_BYTES;
    void + SCAN_BYTES + (1 << 20) + 192 * u64::from(geometry.blocks)
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
    let absent_secs = opened.superblock.absent_secs(found.time, options.now);
    let is_absent = !opened.formatted && options.absence_secs_max.is_some_and(|most| absent_secs >= most);
    recovery.out.absent_secs = is_absent.then_some(absent_secs);
    let found = match found {
        Found { usable: true, .. } if !is_absent => found,
        _ => {
            // A new identity: no byte that is there can pass as ours again.
            for shard in 0..mappings.shards() {
                mappings.with_shard(shard, IndexShard::clear);
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
    recovery.out.budget = opened.settings.budget;
    if !was_clean && !opened.formatted {
        let (checkpoint_len, log_records) = (opened.superblock.checkpoints[0].len, recovery.out.log_records);
        let (charged, unpaid) = recovery.out.budget.after_crash(checkpoint_len, log_records);
        recovery.out.unpaid_bytes = Some(unpaid);
        charged.put(&mut superblock.own, Settings::BUDGET);
    }
    let start = Start {
        superblock,
        old: found.old,
        first_version: u64::from(superblock.epoch) << EPOCH_SHIFT | 1,
        flush_at: found.flush_at,
        sealed: found.sealed,
        order: found.order,
        layout: recovery.objects.layout,
    };
    let store = FlashStore::start(start, options);
    add(&store.totals.written_bytes, recovery.base.bytes_written);
    if let Some(log) = mapping_log {
        store.attach_mapping_log(log);
        mappings.with_shard(0, |shard| {
            if let Some(shard) = shard.cascade() {
                shard.begin_history(found.history, store.order.knows_deaths());
            }
        });
        // Which copies are dead nobody knows: all count, until their blocks are reclaimed.
        (recovery.out.objects, recovery.out.bytes) = store.order.count_all_recovered(slots);
    }
    for shard in 0..mappings.shards() {
        mappings.with_shard(shard, |shard| {
            if let IndexShard::Full(shard) = shard {
                shard.rewrite_notes(|mapping| {
                    recovery.out.objects += 1;
                    recovery.out.bytes += u64::from(mapping.location.len);
                    store.order.count_recovered(mapping)
                });
            }
        });
    }
    store.settle_order();
    store.order.prune_ranks(mappings).await;
    // After a clean stop all keys are mapped, as far as there is DRAM for that.
    if !was_clean || recovery.out.no_memory > 0 {
        store.order.prune_keys(mappings);
    }
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
        store.journal.mark_discard(device);
    }
}
