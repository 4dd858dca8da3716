//! The figures of a server, for the admin door.

use super::worker::{Common, ServedCache};
use pumice::Stats;
use pumice_device::DeviceCounts;
use pumice_door_admin::{BookLine, BooksFault, Figure, Figures, Group, Latency, Source};
use pumice_door_memcached::{DoorStats, Operation};
use std::sync::Arc;
use std::time::Instant;

/// Where the admin door finds everything.
pub struct ServerFigures {
    common: Arc<Common>,
    door: Arc<DoorStats>,
    dram_budget: u64,
    started: Instant,
}

impl ServerFigures {
    /// The figures of a server that starts now.
    pub fn new(common: Arc<Common>, dram_budget: u64) -> Self {
        Self {
            door: common.door.stats(),
            common,
            dram_budget,
            started: Instant::now(),
        }
    }

    fn cache(&self) -> Option<Arc<ServedCache>> {
        self.common
            .opened
            .borrow()
            .as_ref()
            .map(|opened| Arc::clone(&opened.cache))
    }

    /// What was found at the start, and what is there now.
    fn engine(&self, stats: &Stats) -> Group {
        let opened = self.common.opened.borrow();
        let (recovered, took) = opened
            .as_ref()
            .map(|opened| (opened.recovered, opened.took))
            .unwrap_or_default();
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Group {
            room: "engine",
            figures: vec![
                Figure::gauge(
                    "resident_entries",
                    "Entries that are there, by the books",
                    stats.resident_entries,
                ),
                Figure::gauge("resident_bytes", "Their bytes", stats.resident_bytes),
                Figure::gauge(
                    "recovery_clean",
                    "1 after a clean stop",
                    u64::from(recovered.clean),
                ),
                Figure::gauge(
                    "recovery_objects",
                    "Entries found at the start",
                    recovered.objects,
                ),
                Figure::gauge("recovery_bytes", "Their bytes", recovered.bytes),
                Figure::gauge(
                    "recovery_read_bytes",
                    "Bytes read from the device to find them",
                    recovered.bytes_read,
                ),
                Figure::gauge("recovery_milliseconds", "How long that took", milliseconds),
                Figure::gauge(
                    "recovery_no_memory",
                    "Entries left out for want of DRAM",
                    recovered.no_memory,
                ),
            ],
        }
    }

    fn server(&self) -> Group {
        Group {
            room: "server",
            figures: vec![
                Figure::gauge(
                    "uptime_seconds",
                    "Time since the start",
                    self.started.elapsed().as_secs(),
                ),
                Figure::gauge("ready", "1 while requests are served", u64::from(self.is_ready())),
                Figure::gauge(
                    "dram_budget_bytes",
                    "Budget of the whole process",
                    self.dram_budget,
                ),
                Figure::gauge(
                    "resident_bytes",
                    "Resident memory of the process",
                    resident_memory(),
                ),
                Figure::gauge("workers", "Worker threads", self.common.workers as u64),
            ],
        }
    }

    fn memcached(&self) -> Group {
        let door = &self.door;
        let mut figures = vec![
            Figure::gauge("connections", "Open connections", door.curr_connections()),
            Figure::counter(
                "connections_accepted",
                "Connections accepted",
                door.total_connections(),
            ),
            Figure::counter(
                "connections_rejected",
                "Connections turned away because there were too many",
                door.rejected_connections(),
            ),
        ];
        let counts = door.counts();
        figures.extend(
            counts
                .iter()
                .map(|(name, value)| Figure::counter(name, "As in memcached's stats", value)),
        );
        Group {
            room: "memcached",
            figures,
        }
    }

    fn latency(&self) -> Vec<Latency> {
        let measured = Operation::ALL.into_iter().map(|which| {
            let (operation, tier) = which.name();
            let snapshot = self.door.latency(which);
            Latency {
                operation,
                tier,
                count: snapshot.count(),
                sum_ns: snapshot.sum_ns(),
                p50_ns: snapshot.quantile_ns(0.5),
                p99_ns: snapshot.quantile_ns(0.99),
                p999_ns: snapshot.quantile_ns(0.999),
                cumulative: snapshot.cumulative().collect(),
            }
        });
        measured.collect()
    }

    fn device(&self) -> DeviceCounts {
        let mut sum = DeviceCounts::default();
        for counters in &self.common.counters {
            let counts = counters.snapshot();
            sum.reads += counts.reads;
            sum.read_bytes += counts.read_bytes;
            sum.writes += counts.writes;
            sum.written_bytes += counts.written_bytes;
            sum.log_appends += counts.log_appends;
            sum.log_bytes += counts.log_bytes;
            sum.syncs += counts.syncs;
            sum.errors += counts.errors;
        }
        sum
    }
}

impl Source for ServerFigures {
    fn is_ready(&self) -> bool {
        self.common.opened.borrow().is_some() && !*self.common.stop.borrow()
    }

    fn limitation(&self) -> Option<String> {
        let failure = self.cache()?.flash_failure()?;
        let next = if failure.remembered {
            "the next start makes an empty cache of it"
        } else {
            "this could be stored nowhere: start the next with --reformat"
        };
        let reason = failure.reason;
        Some(format!(
            "the flash device was taken out, DRAM serves alone; {next}; {reason}"
        ))
    }

    fn figures(&self) -> Figures {
        let mut groups = vec![self.server(), self.memcached(), device_group(&self.device())];
        let mut books = Vec::new();
        let mut index_rounds = Vec::new();
        if let Some(cache) = self.cache() {
            let stats = cache.stats();
            books.extend(
                stats
                    .books
                    .lines()
                    .into_iter()
                    .map(|(name, (entries, bytes))| BookLine { name, entries, bytes }),
            );
            books.push(BookLine {
                name: "resident",
                entries: stats.resident_entries,
                bytes: stats.resident_bytes,
            });
            index_rounds.extend(stats.rounds);
            groups.push(self.engine(&stats));
            groups.extend(cache_groups(&stats));
        }
        Figures {
            version: env!("CARGO_PKG_VERSION"),
            ready: self.is_ready(),
            books,
            latency: self.latency(),
            index_rounds,
            groups,
        }
    }

    fn check_books(&self) -> Result<(), BooksFault> {
        let not_now = |why: &dyn std::fmt::Display| BooksFault::NotNow(why.to_string());
        let cache = self
            .cache()
            .ok_or_else(|| not_now(&"the cache is not open yet"))?;
        cache.check_books().map_err(|fault| match fault {
            pumice::BooksFault::Unbalanced(what) => BooksFault::Unbalanced(what),
            moved => not_now(&moved),
        })
    }
}

fn device_group(counts: &DeviceCounts) -> Group {
    Group {
        room: "device",
        figures: vec![
            Figure::counter("reads", "Reads", counts.reads),
            Figure::counter("read_bytes", "Bytes read", counts.read_bytes),
            Figure::counter("writes", "Writes of blocks and checkpoints", counts.writes),
            Figure::counter("written_bytes", "Bytes of those", counts.written_bytes),
            Figure::counter(
                "log_appends",
                "Appends of log records and superblocks",
                counts.log_appends,
            ),
            Figure::counter("log_bytes", "Bytes of those", counts.log_bytes),
            Figure::counter("syncs", "Flushes", counts.syncs),
            Figure::counter("errors", "Operations that failed", counts.errors),
        ],
    }
}

fn cache_groups(stats: &Stats) -> [Group; 3] {
    let flash = &stats.flash;
    [
        Group {
            room: "flash",
            figures: vec![
                Figure::gauge(
                    "capacity_bytes",
                    "Bytes of the device",
                    stats.flash_capacity_bytes,
                ),
                Figure::gauge(
                    "out",
                    "1 if the device failed for good and was taken out: DRAM serves alone",
                    u64::from(stats.flash_out),
                ),
                Figure::gauge(
                    "out_remembered",
                    "1 if it was taken out and the next start will know",
                    u64::from(stats.flash_out_remembered),
                ),
                Figure::gauge("block_bytes", "Bytes of a block", stats.block_bytes),
                Figure::gauge("blocks_free", "Blocks that are free", stats.blocks_free),
                Figure::gauge("blocks_sealed", "Blocks that are on flash", stats.blocks_sealed),
                Figure::gauge(
                    "blocks_kept",
                    "Blocks that are on flash and hold what two-phase reclaim has kept",
                    stats.blocks_kept,
                ),
                Figure::gauge("blocks_open", "Blocks that are buffers", stats.blocks_open),
                Figure::gauge(
                    "blocks_checkpoint",
                    "Blocks that hold checkpoints",
                    stats.blocks_checkpoint,
                ),
                Figure::gauge(
                    "log_used_records",
                    "Records of the invalidation log in use",
                    stats.log_used,
                ),
                Figure::gauge(
                    "log_capacity_records",
                    "Records that fit the log",
                    stats.log_slots,
                ),
                Figure::gauge("buffer_bytes", "DRAM of block buffers", stats.block_buffer_bytes),
                Figure::counter(
                    "appended_objects",
                    "Objects appended for the first time",
                    flash.appended_objects,
                ),
                Figure::counter("appended_bytes", "Encoded bytes of those", flash.appended_bytes),
                Figure::counter(
                    "survivors",
                    "Objects moved out of reclaimed blocks",
                    flash.survivors,
                ),
                Figure::counter(
                    "survivors_dropped",
                    "Objects that a reclaim was to keep and that found no room",
                    flash.survivors_dropped,
                ),
                Figure::counter(
                    "written_bytes",
                    "Bytes sent to the device, of every kind",
                    flash.written_bytes,
                ),
                Figure::counter(
                    "checkpoint_bytes",
                    "Bytes of those in checkpoints",
                    flash.checkpoint_bytes,
                ),
                Figure::counter("checkpoints", "Checkpoints written", flash.checkpoints),
                Figure::counter("log_records", "Log records appended", flash.log_records),
                Figure::counter(
                    "log_failures",
                    "Log records that could not be stored",
                    flash.log_failures,
                ),
                Figure::counter("sealed_blocks", "Blocks written", flash.sealed_blocks),
                Figure::counter(
                    "merged_blocks",
                    "Blocks closed before they were full because sections of the queue merged",
                    flash.merged_blocks,
                ),
                Figure::counter("reclaimed_blocks", "Blocks made free", flash.reclaimed_blocks),
                Figure::counter(
                    "write_errors",
                    "Blocks that could not be written",
                    flash.write_errors,
                ),
                Figure::gauge(
                    "bad_blocks",
                    "Blocks that failed to be written twice and are not used until the next start",
                    flash.bad_blocks,
                ),
                Figure::counter(
                    "survivor_bytes",
                    "Bytes of objects moved out of reclaimed blocks",
                    flash.survivor_bytes,
                ),
                Figure::counter(
                    "reclaim_read_bytes",
                    "Bytes read to move objects out of reclaimed blocks",
                    flash.reclaim_read_bytes,
                ),
                Figure::counter(
                    "dropped_no_block",
                    "Flash copies dropped for want of a block or a buffer for it",
                    flash.dropped_no_block,
                ),
                Figure::counter("record_reads", "Objects read from the device", flash.record_reads),
                Figure::counter(
                    "buffer_reads",
                    "Objects read from block buffers",
                    flash.buffer_reads,
                ),
                Figure::counter(
                    "corrupt_records",
                    "Objects that were not what was written",
                    flash.corrupt_records,
                ),
                Figure::counter(
                    "read_errors",
                    "Object reads that the device failed",
                    flash.read_errors,
                ),
                Figure::counter(
                    "key_mismatches",
                    "Objects read that were another key's",
                    flash.key_mismatches,
                ),
            ],
        },
        Group {
            room: "index",
            figures: vec![
                Figure::gauge("mappings", "Entries that the index maps", stats.flash_items),
                Figure::gauge(
                    "dram_bytes",
                    "DRAM of the index, slack included",
                    stats.index_dram_bytes,
                ),
                Figure::gauge(
                    "cascade_tier1_mappings",
                    "Mappings in DRAM of a cascade index",
                    stats.cascade.tier1_mappings,
                ),
                Figure::gauge(
                    "cascade_tier2_mappings",
                    "Mappings in tier 2 of a cascade index, those not dropped yet included",
                    stats.cascade.tier2_mappings,
                ),
                Figure::gauge(
                    "cascade_tier3_mappings",
                    "Mappings in tier 3 of a cascade index, those not dropped yet included",
                    stats.cascade.tier3_mappings,
                ),
                Figure::gauge(
                    "cascade_tier1_bytes",
                    "DRAM of the mappings in DRAM",
                    stats.cascade.tier1_bytes,
                ),
                Figure::gauge(
                    "cascade_tier2_bytes",
                    "DRAM of filters over mappings in tier 2",
                    stats.cascade.tier2_bytes,
                ),
                Figure::gauge(
                    "cascade_tier3_bytes",
                    "DRAM of filters over mappings in tier 3",
                    stats.cascade.tier3_bytes,
                ),
                Figure::gauge(
                    "cascade_directory_bytes",
                    "DRAM of what names pages of mappings",
                    stats.cascade.directory_bytes,
                ),
                Figure::gauge(
                    "cascade_buffer_bytes",
                    "DRAM of pages of mappings until they are written",
                    stats.mapping_dram.buffers,
                ),
                Figure::gauge(
                    "cascade_slot_bytes",
                    "DRAM of what is kept of each object on flash",
                    stats.mapping_dram.slots,
                ),
                Figure::gauge(
                    "cascade_invalidated_bytes",
                    "DRAM of filters of what was invalidated lately",
                    stats.mapping_dram.invalidated,
                ),
                Figure::gauge(
                    "cascade_flash_bytes",
                    "Flash of blocks that hold mappings",
                    stats.mapping_flash_bytes,
                ),
                Figure::counter(
                    "cascade_tier1_hits",
                    "Lookups of mapped keys that tier 1 resolved",
                    stats.cascade.tier1_hits,
                ),
                Figure::counter(
                    "cascade_tier2_hits",
                    "Lookups that a page of tier 2 resolved",
                    stats.cascade.tier2_hits,
                ),
                Figure::counter(
                    "cascade_tier3_hits",
                    "Lookups that a page of tier 3 resolved",
                    stats.cascade.tier3_hits,
                ),
                Figure::counter(
                    "cascade_false_plans",
                    "Lookups that read pages of mappings in vain",
                    stats.cascade.false_plans,
                ),
                Figure::counter(
                    "cascade_forgotten",
                    "Partitions forgotten, for want of memory or because a page could not be read",
                    stats.cascade.forgotten,
                ),
                Figure::counter(
                    "cascade_page_reads",
                    "Pages of mappings read for lookups",
                    flash.mapping_reads,
                ),
                Figure::counter(
                    "cascade_written_bytes",
                    "Bytes of pages of mappings written",
                    flash.mapping_bytes,
                ),
                Figure::counter(
                    "cascade_reorganisations",
                    "Partitions of mappings reorganised",
                    flash.reorganisations,
                ),
                Figure::counter(
                    "cascade_reorganisation_read_bytes",
                    "Bytes read to reorganise them",
                    flash.reorganisation_read_bytes,
                ),
            ],
        },
        Group {
            room: "tier",
            figures: vec![
                Figure::gauge("dram_items", "Entries in the DRAM tier", stats.dram_items),
                Figure::gauge("dram_segment_bytes", "DRAM of items", stats.dram_segment_bytes),
                Figure::gauge(
                    "dram_table_bytes",
                    "DRAM of the tier's table",
                    stats.dram_table_bytes,
                ),
                Figure::gauge("ghost_bytes", "DRAM of the ghost queue", stats.ghost_bytes),
            ],
        },
    ]
}

/// Resident memory of the process in bytes; 0 where the system does not say.
pub fn resident_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}
