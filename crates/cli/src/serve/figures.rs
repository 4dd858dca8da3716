//! The figures of a server, for the admin door.

use super::worker::{Common, ServedCache};
use crate::lifetime::Pace;
use pumice::{Recovered, Stats};
use pumice_advise::Endurance;
use pumice_device::DeviceCounts;
use pumice_door_admin::{BookLine, BooksFault, Figures, Group, Latency, NotRecorded, Requests, Source};
use pumice_door_memcached::{Counts as DoorCounts, DoorStats, Operation, Recording};
use pumice_net::HistogramSnapshot;
use pumice_nhc::{Counts, Reason, State, Status, TierCounts};
use pumice_trace::Human;
use pumice_world::{Figure, Kind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The gauges of a room: name, meaning and value of each.
macro_rules! gauges {
    ($room:expr; $($name:ident $help:literal = $value:expr;)*) => {
        Group {
            room: $room,
            figures: vec![$(Figure::documented(stringify!($name), $help, Kind::Gauge, $value)),*],
        }
    };
}

/// Where the admin door finds everything.
pub struct ServerFigures {
    common: Arc<Common>,
    door: Arc<DoorStats>,
    dram_budget: u64,
    endurance: Option<Endurance>,
    started: Instant,
}

impl ServerFigures {
    /// The figures of a server that starts now.
    pub fn new(common: Arc<Common>, dram_budget: u64, endurance: Option<Endurance>) -> Self {
        Self {
            door: common.door.stats(),
            common,
            dram_budget,
            endurance,
            started: Instant::now(),
        }
    }

    fn cache(&self) -> Option<Arc<ServedCache>> {
        self.common.course.served().map(|opened| opened.cache)
    }

    /// What was found at the start, and what is there now.
    fn engine(&self, stats: &Stats) -> Group {
        let opened = self.common.course.served();
        let found = opened.as_ref().map(|opened| (opened.recovered, opened.took));
        engine_group(found.unwrap_or_default(), stats)
    }

    fn server(&self) -> Group {
        let uptime = self.started.elapsed();
        server_group(
            uptime,
            self.is_ready(),
            self.dram_budget,
            self.common.course.workers,
        )
    }

    /// Open, accepted and turned away.
    fn connections(&self) -> [u64; 3] {
        let door = &self.door;
        [
            door.curr_connections(),
            door.total_connections(),
            door.rejected_connections(),
        ]
    }

    fn latency(&self) -> Vec<Latency> {
        let measured = Operation::ALL.into_iter().map(|which| {
            let (operation, tier) = which.name();
            Latency {
                tier,
                ..latency(operation, &self.door.latency(which))
            }
        });
        measured.collect()
    }

    fn device(&self) -> DeviceCounts {
        let mut sum = DeviceCounts::default();
        for counters in &self.common.counters {
            sum += counters.snapshot();
        }
        sum
    }

    /// What is sent to the flash device, and how long that lasts.
    pub fn pace(&self) -> Pace {
        Pace::of(self.started.elapsed(), &self.device(), self.endurance)
    }
}

impl Source for ServerFigures {
    fn is_ready(&self) -> bool {
        self.common.course.is_ready()
    }

    fn limitation(&self) -> Option<String> {
        let Some(cache) = self.cache() else {
            let counters = self.common.counters.iter();
            let read = counters.map(|counters| counters.snapshot().read_bytes).sum();
            return Some(starting(read, self.common.checkpoint_bytes));
        };
        let Some(failure) = cache.flash_failure() else {
            let Some(performance) = &self.common.performance else {
                return self.common.tier_left_out.clone();
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

    fn figures(&self) -> Figures {
        let mut groups = vec![
            process(),
            self.server(),
            memcached_group(self.door.counts(), self.connections()),
            Group {
                room: "device",
                figures: self.device().figures(),
            },
            self.pace().group(),
        ];
        if let Some(performance) = &self.common.performance {
            let tier = &performance.tier;
            groups.push(split_group("performance_split", tier.status(), &tier.load()));
            let (places, copies) = (tier.places().into(), tier.copies());
            let counters = performance.counters.iter();
            let counts = counters.map(|counters| counters.snapshot());
            let mut sum = DeviceCounts::default();
            counts.for_each(|counts| sum += counts);
            groups.extend(performance_groups(
                tier.works(),
                places,
                copies,
                tier.counts(),
                sum,
            ));
        }
        if self.common.tier_left_out.is_some() {
            groups.push(works_group(false));
        }
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
            commit: option_env!("COMMIT_OF_PUMICE"),
            ready: self.is_ready(),
            limitation: self.limitation(),
            books,
            latency: self.latency(),
            index_rounds,
            groups,
            volumes: Vec::new(),
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

    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        let recording = self.common.door.record(one_in).ok_or(NotRecorded::Busy)?;
        tracing::info!("a recording of requests begins, of one key in {one_in}");
        Ok(Box::new(Recorded(recording)))
    }
}

/// A recording, for the admin door.
struct Recorded(Recording);

impl Requests for Recorded {
    fn take(&mut self, lines: &mut Vec<u8>) {
        self.0.take(lines);
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        tracing::info!("the recording of requests ends");
    }
}

/// What a histogram says of an operation.
pub(super) fn latency(operation: &'static str, snapshot: &HistogramSnapshot) -> Latency {
    Latency {
        volume: None,
        operation,
        tier: "",
        count: snapshot.count(),
        sum_ns: snapshot.sum_ns(),
        p50_ns: snapshot.quantile_ns(0.5),
        p99_ns: snapshot.quantile_ns(0.99),
        p999_ns: snapshot.quantile_ns(0.999),
        cumulative: snapshot.cumulative().collect(),
    }
}

fn seconds(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Figure {
    Figure {
        name,
        help,
        kind,
        value,
    }
}

/// How far a start is, by bytes.
fn starting(read: u64, checkpoint: u64) -> String {
    match checkpoint {
        0 => format!(
            "starting: {} read from the flash device, without a checkpoint",
            Human(read)
        ),
        bytes => format!(
            "starting: {} read from the flash device, where the last checkpoint has {}",
            Human(read),
            Human(bytes)
        ),
    }
}

fn engine_group((found, took): (Recovered, Duration), stats: &Stats) -> Group {
    let mut group = gauges! { "engine";
        resident_entries "Entries that are there, by the books" = stats.resident_entries;
        resident_bytes "Bytes of entries that are there, by the books" = stats.resident_bytes;
        recovery_clean "1 after a clean stop" = u64::from(found.clean);
        recovery_absences "1 where nothing had run for --max-absence or longer, and the cache began empty" = u64::from(found.absent_secs.is_some());
        recovery_objects "Entries found at the start" = found.objects;
        recovery_bytes "Bytes of entries found at the start" = found.bytes;
        recovery_read_bytes "Bytes read from the device at the start" = found.bytes_read;
        recovery_no_memory "Entries left out at the start for want of DRAM" = found.no_memory;
    };
    group.figures.push(Figure::documented(
        "expired_unasked",
        "Entries that had expired when their place was wanted, with nobody asking for them since",
        Kind::Counter,
        stats.expired_unasked,
    ));
    group.figures.push(seconds(
        "recovery_seconds",
        "Time to find what was there at the start",
        Kind::Gauge,
        took.as_secs_f64(),
    ));
    group
}

pub(super) fn server_group(uptime: Duration, is_ready: bool, dram_budget: u64, workers: usize) -> Group {
    gauges! { "server";
        uptime_seconds "Time since the start" = uptime.as_secs();
        ready "1 while requests are served" = u64::from(is_ready);
        dram_budget_bytes "Budget of the whole process" = dram_budget;
        workers "Worker threads" = workers as u64;
    }
}

/// Connections of a door: open, accepted and turned away.
pub(super) fn connections_group(room: &'static str, [open, accepted, rejected]: [u64; 3]) -> Group {
    let mut group = Group {
        room,
        figures: vec![Figure::documented(
            "connections",
            "Open connections",
            Kind::Gauge,
            open,
        )],
    };
    let counter = |name, help, value| Figure::documented(name, help, Kind::Counter, value);
    group.figures.extend([
        counter("connections_accepted", "Connections accepted", accepted),
        counter(
            "connections_rejected",
            "Connections turned away because there were too many",
            rejected,
        ),
    ]);
    group
}

fn memcached_group(counts: DoorCounts, connections: [u64; 3]) -> Group {
    let mut group = connections_group("memcached", connections);
    group.figures.extend(counts.figures());
    group
}

/// How reads are split between a faster device and a slower one, and why so.
pub(super) fn split_group(room: &'static str, status: Status, load: &Counts) -> Group {
    let is = |reason| u64::from(status.reason == reason);
    let mut split = gauges! { room;
        data_admit "1 while the faster device may take copies" = u64::from(status.data_admit);
        state "State of the algorithm: 1 copies what is read, 2 holds the copies and tunes" = match status.state {
            State::Filling => 1,
            State::Tuning => 2,
        };
        too_few "1 where nothing is redirected because too little was asked for so far" = is(Reason::TooFew);
        worse "1 where nothing is redirected because that was found worse" = is(Reason::Worse);
        no_difference "1 where nothing is redirected because that was found to make no difference" = is(Reason::NoDifference);
        outstanding "Operations under way on both devices" = load.outstanding;
    };
    let figure = |name, help, kind, value| Figure {
        name,
        help,
        kind,
        value,
    };
    let counter = |name, help, value| Figure::documented(name, help, Kind::Counter, value);
    let [upper, lower] = load.read_latency_ns.map(|ns| ns as f64 / 1e9);
    split.figures.extend([
        figure(
            "load_admit_ratio",
            "Share of reads with a copy on the faster device that go to it",
            Kind::Gauge,
            status.load_admit,
        ),
        figure(
            "settled_seconds",
            "Time from the last jump of the load until the split was held",
            Kind::Gauge,
            status.settled_ns as f64 / 1e9,
        ),
        counter("windows", "Windows measured", status.windows),
        counter("trials", "Comparisons of two splits", status.trials),
        counter("moves", "Comparisons that changed the split", status.moves),
        counter(
            "upper_reads",
            "Reads that the faster device answered",
            load.reads[0],
        ),
        counter(
            "lower_reads",
            "Reads that the slower device answered, of every kind",
            load.reads[1],
        ),
        figure(
            "upper_read_seconds",
            "Sum of the latencies of reads that the faster device answered",
            Kind::Counter,
            upper,
        ),
        figure(
            "lower_read_seconds",
            "Sum of the latencies of reads that the slower device answered",
            Kind::Counter,
            lower,
        ),
    ]);
    split
}

/// All that there is to say of a tier that a start has left out.
fn works_group(works: bool) -> Group {
    gauges! { "performance";
        works "1 while copies are read, 0 when the performance tier is left alone or left out" = u64::from(works);
    }
}

fn performance_groups(
    works: bool,
    places: u64,
    copies: u64,
    counts: TierCounts,
    device: DeviceCounts,
) -> [Group; 2] {
    let mut tier = works_group(works);
    let copied = gauges! { "performance";
        places "Blocks that the performance tier has room for" = places;
        copies "Blocks of which the performance tier has a copy that counts" = copies;
    };
    tier.figures.extend(copied.figures);
    tier.figures.extend(counts.figures());
    let device = Group {
        room: "performance_device",
        figures: device.figures(),
    };
    [tier, device]
}

fn cache_groups(stats: &Stats) -> [Group; 5] {
    let mut flash = gauges! { "flash";
        capacity_bytes "Bytes of the device" = stats.flash_capacity_bytes;
        out "1 if the device failed for good and was taken out: DRAM serves alone" = u64::from(stats.flash_out);
        out_remembered "1 if it was taken out and the next start will know" = u64::from(stats.flash_out_remembered);
        unwritten_seconds "For how long the oldest object in a block buffer has been there unwritten (durability power: unflushed)" = u64::from(stats.unwritten_secs);
        blocks_free "Blocks that are free" = stats.blocks_free;
        blocks_sealed "Blocks that are on flash" = stats.blocks_sealed;
        blocks_kept "Blocks that are on flash and hold what layout clock has kept" = stats.blocks_kept;
        blocks_open "Blocks that are buffers" = stats.blocks_open;
        blocks_checkpoint "Blocks that hold checkpoints" = stats.blocks_checkpoint;
        block_size_bytes "Bytes of a block" = stats.block_bytes;
        log_used_records "Records of the invalidation log in use" = stats.log_used;
        log_capacity_records "Records that fit the invalidation log" = stats.log_slots;
        buffer_bytes "DRAM of block buffers" = stats.block_buffer_bytes;
    };
    flash.figures.extend(stats.flash.figures());
    flash.figures.extend(stats.blocks.figures());
    let index = gauges! { "index";
        mappings "Entries that the index maps" = stats.flash_items;
        dram_bytes "DRAM of the index, slack included" = stats.index_dram_bytes;
    };
    let mut cascade = gauges! { "index_cascade";
        flash_bytes "Flash of blocks that hold mappings" = stats.mapping_flash_bytes;
    };
    cascade.figures.extend(stats.cascade.figures());
    cascade.figures.extend(stats.mapping_dram.figures());
    let admission = Group {
        room: "admission",
        figures: stats.admission.figures(),
    };
    let tier = gauges! { "tier";
        dram_items "Entries in the DRAM tier" = stats.dram_items;
        dram_segment_bytes "DRAM that items may take" = stats.dram_segment_bytes;
        dram_used_bytes "DRAM of segments that hold items" = stats.dram_used_bytes;
        dram_table_bytes "DRAM of the tier's table" = stats.dram_table_bytes;
        ghost_bytes "DRAM of the ghost queue" = stats.ghost_bytes;
    };
    [flash, admission, index, cascade, tier]
}

/// What Prometheus' clients say of every process; what the system does not say is 0.
#[expect(clippy::cast_precision_loss, reason = "times and ticks")]
pub(super) fn process() -> Group {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may have blanks; the state is field 0 after it.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let field = |at: usize| {
        fields
            .get(at)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let system = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok());
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let mut group = gauges! { "process";
        threads "Threads" = field(17);
        virtual_memory_bytes "Virtual memory" = field(20);
        resident_memory_bytes "Resident memory" = field(21) * rustix::param::page_size() as u64;
        open_fds "Open file descriptors" = files as u64;
        max_fds "Descriptors that may be open" = limit.unwrap_or(u64::MAX);
    };
    group.figures.extend([
        seconds(
            "cpu_seconds",
            "Time on CPUs",
            Kind::Counter,
            (field(11) + field(12)) as f64 / ticks,
        ),
        seconds(
            "start_time_seconds",
            "Start, in Unix time",
            Kind::Gauge,
            boot.unwrap_or(0.0) + field(19) as f64 / ticks,
        ),
    ]);
    group
}

/// Counters of which a rise is logged: what is lost, or refused for want of something.
const WATCHED: [(&str, &str); 9] = [
    ("memcached", "connections_rejected"),
    ("memcached", "slow_peers_closed"),
    ("memcached", "store_no_memory"),
    ("flash", "dropped_no_block"),
    ("flash", "log_failures"),
    ("flash", "corrupt_records"),
    ("flash", "read_errors"),
    ("index_cascade", "forgotten"),
    ("performance", "made_good"),
];

/// How long nothing is said of a counter after a rise was.
const QUIET: Duration = Duration::from_secs(60);

/// Says when a counter rises that should not, once a minute at most.
#[derive(Default)]
pub struct Watch {
    /// What was said last of each, and when.
    said: [(f64, Option<Instant>); WATCHED.len()],
}

impl Watch {
    /// What is to be said of these figures.
    pub fn look(&mut self, groups: &[Group], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for ((room, name), (value, said)) in WATCHED.iter().zip(&mut self.said) {
            let mut figures = groups
                .iter()
                .filter(|group| group.room == *room)
                .flat_map(|group| &group.figures);
            let Some(figure) = figures.find(|figure| figure.name == *name) else {
                continue;
            };
            let is_quiet = said.is_some_and(|said| now - said < QUIET);
            if figure.value > *value && !is_quiet {
                let more = figure.value - *value;
                lines.push(format!(
                    "{more} more: {} (pumice_{room}_{name}_total)",
                    figure.help
                ));
                (*value, *said) = (figure.value, Some(now));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_rise_is_said_at_once_and_then_once_a_minute() {
        let start = Instant::now();
        let mut watch = Watch::default();
        let mut look = |seconds, rejected| {
            let figures = vec![Figure::documented(
                "connections_rejected",
                "Refused",
                Kind::Counter,
                rejected,
            )];
            let groups = [Group {
                room: "memcached",
                figures,
            }];
            watch.look(&groups, start + Duration::from_secs(seconds))
        };
        assert!(look(0, 0).is_empty());
        assert_eq!(
            look(10, 2),
            ["2 more: Refused (pumice_memcached_connections_rejected_total)"]
        );
        assert!(look(20, 2).is_empty());
        assert!(look(69, 500).is_empty());
        assert_eq!(
            look(70, 502),
            ["500 more: Refused (pumice_memcached_connections_rejected_total)"]
        );
        assert!(look(200, 502).is_empty());
    }

    #[test]
    fn the_table_of_metrics_is_what_the_code_has_and_help_stands_alone() {
        let (stats, none) = (Stats::default(), DeviceCounts::default());
        let mut groups = vec![process(), server_group(Duration::ZERO, false, 0, 0)];
        groups.push(engine_group(<(Recovered, Duration)>::default(), &stats));
        groups.extend(cache_groups(&stats));
        groups.push(Group {
            room: "device",
            figures: none.figures(),
        });
        let endurance = Endurance::of_tbw(1.0).ok();
        let written = DeviceCounts {
            written_bytes: 1,
            ..none
        };
        groups.push(Pace::of(Duration::from_secs(3600), &written, endurance).group());
        let [performance, its_device] = performance_groups(false, 0, 0, TierCounts::default(), none);
        let idle = pumice_nhc::Scheduler::new(pumice_nhc::Objective::default()).status();
        groups.extend([
            performance,
            split_group("performance_split", idle, &Counts::new()),
        ]);
        groups.push(memcached_group(DoorCounts::default(), [0; 3]));
        let mut page = String::from("| metric | meaning |\n| --- | --- |\n");
        for group in &groups {
            let owner = if group.room == "process" { "" } else { "pumice_" };
            for figure in &group.figures {
                let total = if figure.kind == Kind::Counter {
                    "_total"
                } else {
                    ""
                };
                let words = [" of those", "Their ", "those ", "The same"];
                assert!(
                    !words.iter().any(|word| figure.help.contains(word)),
                    "{}: {}",
                    figure.name,
                    figure.help
                );
                page += &format!(
                    "| `{owner}{}_{}{total}` | {} |\n",
                    group.room, figure.name, figure.help
                );
            }
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
