//! The figures of a server of objects, for the admin door.

use super::worker::Opened;
use super::{Objects, ServedCache};
use crate::host::figures::{split_group, sum};
use crate::lifetime::Pace;
use pumice::{Recovered, Stats};
use pumice_device::DeviceCounts;
use pumice_door_admin::{BookLine, Figures, Group, group};
use pumice_nhc::TierCounts;
use pumice_trace::Human;
use pumice_world::Figure;
use std::time::Duration;

/// Counters of which a rise is logged: what is lost, or refused for want of something.
pub const WATCHED: &[(&str, &str)] = &[
    ("memcached", "connections_rejected"),
    ("memcached", "slow_peers_closed"),
    ("memcached", "store_no_memory"),
    ("http", "connections_rejected"),
    ("http", "slow_clients_closed"),
    ("flash", "dropped_no_block"),
    ("flash", "log_failures"),
    ("flash", "corrupt_records"),
    ("flash", "read_errors"),
    ("index_cascade", "forgotten"),
    ("performance", "made_good"),
];

impl Objects {
    /// What is sent to the flash device, and how long that lasts.
    pub(super) fn pace(&self) -> Pace {
        Pace::of(self.started.elapsed(), &sum(&self.counters), self.endurance)
    }

    fn limitation(&self, cache: Option<&ServedCache>) -> Option<String> {
        let Some(cache) = cache else {
            return Some(starting(sum(&self.counters).read_bytes, self.checkpoint_bytes));
        };
        let Some(failure) = cache.flash_failure() else {
            let Some(performance) = &self.performance else {
                return self.tier_left_out.clone();
            };
            let reason = performance.tier.failure()?;
            return Some(format!(
                "the performance tier is left alone until the next start, the flash serves everything: {reason}"
            ));
        };
        let next = if failure.remembered {
            "the next start makes an empty cache of it"
        } else {
            "its superblocks cannot say so: start the next with --reformat"
        };
        let reason = failure.reason;
        Some(format!(
            "the flash device was taken out, DRAM serves alone; {next}; {reason}"
        ))
    }

    pub(super) fn all_figures(&self, opened: Option<&Opened>) -> Figures {
        let device = sum(&self.counters);
        let mut groups = vec![
            self.door.counts(),
            group! { "device", device.figures(); },
            self.pace().group(),
        ];
        if let Some(performance) = &self.performance {
            let tier = &performance.tier;
            groups.push(split_group("performance_split", tier.status(), &tier.load()));
            groups.extend(performance_groups(
                tier.works(),
                tier.places().into(),
                tier.copies(),
                tier.counts(),
                sum(&performance.counters),
            ));
        }
        if self.tier_left_out.is_some() {
            groups.push(works_group(false, Vec::new()));
        }
        let mut figures = Figures {
            limitation: self.limitation(opened.map(|opened| &*opened.cache)),
            latency: self.door.latency(),
            groups,
            ..Figures::default()
        };
        if let Some(opened) = opened {
            let stats = opened.cache.stats();
            let book = |(name, (entries, bytes))| BookLine { name, entries, bytes };
            figures.books.extend(stats.books.lines().into_iter().map(book));
            figures
                .books
                .push(book(("resident", (stats.resident_entries, stats.resident_bytes))));
            figures.index_rounds.extend(stats.rounds);
            let found = (opened.recovered, opened.took);
            figures.groups.push(engine_group(found, &stats));
            figures.groups.extend(cache_groups(&stats));
        }
        figures
    }
}

/// How far a start is, by bytes.
fn starting(read: u64, checkpoint: u64) -> String {
    let of = match checkpoint {
        0 => "without a checkpoint".to_owned(),
        bytes => format!("where the last checkpoint has {}", Human(bytes)),
    };
    format!("starting: {} read from the flash device, {of}", Human(read))
}

fn engine_group((found, took): (Recovered, Duration), stats: &Stats) -> Group {
    group! { "engine";
        Gauge resident_entries "Entries that are there, by the books" = stats.resident_entries;
        Gauge resident_bytes "Bytes of entries that are there, by the books" = stats.resident_bytes;
        Gauge recovery_clean "1 after a clean stop" = u64::from(found.clean);
        Gauge recovery_absences "1 where nothing had run for --max-absence or longer, and the cache began empty" = u64::from(found.absent_secs.is_some());
        Gauge recovery_objects "Entries found at the start" = found.objects;
        Gauge recovery_bytes "Bytes of entries found at the start" = found.bytes;
        Gauge recovery_read_bytes "Bytes read from the device at the start" = found.bytes_read;
        Gauge recovery_no_memory "Entries left out at the start for want of DRAM" = found.no_memory;
        Counter expired_unasked "Entries that had expired when their place was wanted, with nobody asking for them since" = stats.expired_unasked;
        Gauge recovery_seconds "Time to find what was there at the start" = took.as_secs_f64();
    }
}

/// All that there is to say of a tier that a start has left out.
fn works_group(works: bool, others: Vec<Figure>) -> Group {
    group! { "performance", others;
        Gauge works "1 while copies are read, 0 when the performance tier is left alone or left out" = u64::from(works);
    }
}

fn performance_groups(
    works: bool,
    places: u64,
    copies: u64,
    counts: TierCounts,
    device: DeviceCounts,
) -> [Group; 2] {
    let copied = group! { "performance", counts.figures();
        Gauge places "Blocks that the performance tier has room for" = places;
        Gauge copies "Blocks of which the performance tier has a copy that counts" = copies;
    };
    [
        works_group(works, copied.figures),
        group! { "performance_device", device.figures(); },
    ]
}

fn cache_groups(stats: &Stats) -> [Group; 5] {
    let flash = group! { "flash", stats.flash.figures(), stats.blocks.figures();
        Gauge capacity_bytes "Bytes of the device" = stats.flash_capacity_bytes;
        Gauge out "1 if the device failed for good and was taken out: DRAM serves alone" = u64::from(stats.flash_out);
        Gauge out_remembered "1 if it was taken out and the next start will know" = u64::from(stats.flash_out_remembered);
        Gauge unwritten_seconds "For how long the oldest object in a block buffer has been there unwritten (durability power: unflushed)" = stats.unwritten_secs;
        Gauge blocks_free "Blocks that are free" = stats.blocks_free;
        Gauge blocks_sealed "Blocks that are on flash" = stats.blocks_sealed;
        Gauge blocks_kept "Blocks that are on flash and hold what layout clock has kept" = stats.blocks_kept;
        Gauge blocks_open "Blocks that are buffers" = stats.blocks_open;
        Gauge blocks_checkpoint "Blocks that hold checkpoints" = stats.blocks_checkpoint;
        Gauge block_size_bytes "Bytes of a block" = stats.block_bytes;
        Gauge log_used_records "Records of the invalidation log in use" = stats.log_used;
        Gauge log_capacity_records "Records that fit the invalidation log" = stats.log_slots;
        Gauge buffer_bytes "DRAM of block buffers" = stats.block_buffer_bytes;
    };
    let index = group! { "index";
        Gauge mappings "Entries that the index maps" = stats.flash_items;
        Gauge dram_bytes "DRAM of the index, slack included" = stats.index_dram_bytes;
    };
    let cascade = group! { "index_cascade", stats.cascade.figures(), stats.mapping_dram.figures();
        Gauge flash_bytes "Flash of blocks that hold mappings" = stats.mapping_flash_bytes;
    };
    let tier = group! { "tier";
        Gauge dram_items "Entries in the DRAM tier" = stats.dram_items;
        Gauge dram_segment_bytes "DRAM that items may take" = stats.dram_segment_bytes;
        Gauge dram_used_bytes "DRAM of segments that hold items" = stats.dram_used_bytes;
        Gauge dram_table_bytes "DRAM of the tier's table" = stats.dram_table_bytes;
        Gauge ghost_bytes "DRAM of the ghost queue" = stats.ghost_bytes;
    };
    let admission = group! { "admission", stats.admission.figures(); };
    [flash, admission, index, cascade, tier]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::figures::{connections_group, server_group, table};
    use pumice_advise::Rating;
    use pumice_door_admin::process;
    use pumice_nhc::Counts;

    #[test]
    fn a_start_without_a_checkpoint_is_compared_with_none() {
        let said = "starting: 4 KiB read from the flash device, ";
        assert_eq!(starting(4096, 0), format!("{said}without a checkpoint"));
        assert_eq!(
            starting(4096, 8192),
            format!("{said}where the last checkpoint has 8 KiB")
        );
    }

    #[test]
    fn the_table_of_metrics_is_what_the_code_has_and_help_stands_alone() {
        let (stats, none) = (Stats::default(), DeviceCounts::default());
        let mut groups = vec![process(), server_group(Duration::ZERO, false, 0, 0)];
        groups.push(engine_group(<(Recovered, Duration)>::default(), &stats));
        groups.extend(cache_groups(&stats));
        groups.push(group! { "device", none.figures(); });
        let rating = Rating {
            tbw: Some(1.0),
            ..Rating::default()
        };
        let written = DeviceCounts {
            written_bytes: 1,
            ..none
        };
        groups.push(Pace::of(Duration::from_secs(3600), &written, rating.endurance()).group());
        let [performance, its_device] = performance_groups(false, 0, 0, TierCounts::default(), none);
        let idle = pumice_nhc::Scheduler::new(pumice_nhc::Objective::default()).status();
        groups.extend([
            performance,
            split_group("performance_split", idle, &Counts::new()),
        ]);
        let memcached = pumice_door_memcached::Counts::default().figures();
        groups.push(connections_group("memcached", [0; 3], memcached));
        let http = pumice_door_http::Counts::default().figures();
        groups.push(connections_group("http", [0; 3], http));
        let mut page = table(&groups);
        for figure in groups.iter().flat_map(|group| &group.figures) {
            let words = [" of those", "Their ", "those ", "The same"];
            let stands_alone = !words.iter().any(|word| figure.help.contains(word));
            assert!(stands_alone, "{}: {}", figure.name, figure.help);
        }
        let room = its_device.room;
        page += &format!("| `pumice_{room}_…` | As `pumice_device_…`, of the performance tier |\n");
        for (room, name) in WATCHED {
            assert!(
                page.contains(&format!("`pumice_{room}_{name}_total`")),
                "{room} {name}"
            );
        }
        crate::documents::check("metrics.md", "table of metrics", &page);
    }
}
