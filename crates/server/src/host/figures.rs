//! The figures of a process, and those of its service, for the admin door.

use super::Running;
use crate::service::Service;
use pumice_device::{DeviceCounters, DeviceCounts};
use pumice_door_admin::{BooksFault, Figures, Group, Latency, NotRecorded, Requests, Source, group, process};
use pumice_net::HistogramSnapshot;
use pumice_nhc::{Counts, Reason, State, Status};
use pumice_world::Figure;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the admin door finds everything.
pub(super) struct HostFigures<S: Service>(pub Arc<Running<S>>);

impl<S: Service> HostFigures<S> {
    fn of_service(&self) -> Figures {
        let server = &self.0;
        server.service.figures(server.course.served().as_ref())
    }
}

impl<S: Service> Source for HostFigures<S> {
    fn is_ready(&self) -> bool {
        self.0.course.is_ready()
    }

    fn limitation(&self) -> Option<String> {
        self.of_service().limitation
    }

    fn figures(&self) -> Figures {
        let (server, mut figures) = (&self.0, self.of_service());
        let of_server = server_group(
            server.started.elapsed(),
            self.is_ready(),
            server.dram,
            server.course.workers,
        );
        figures.groups.splice(0..0, [process(), of_server]);
        Figures {
            version: env!("CARGO_PKG_VERSION"),
            commit: pumice_console::COMMIT,
            ready: self.is_ready(),
            ..figures
        }
    }

    fn check_books(&self) -> Result<(), BooksFault> {
        let server = &self.0;
        server.service.check_books(server.course.served().as_ref())
    }

    fn record(&self, one_in: u64) -> Result<Box<dyn Requests>, NotRecorded> {
        let mut begun = self.0.doors.iter().map(|door| door.record(one_in));
        begun
            .find(|begun| !matches!(begun, Err(NotRecorded::Never)))
            .unwrap_or(Err(NotRecorded::Never))
    }
}

/// What a histogram says of an operation at a door, and of the tier that answered.
pub(crate) fn latency(
    door: &'static str,
    (operation, tier): (&'static str, &'static str),
    snapshot: &HistogramSnapshot,
) -> Latency {
    Latency {
        door,
        volume: None,
        operation,
        tier,
        count: snapshot.count(),
        sum_ns: snapshot.sum_ns(),
        p50_ns: snapshot.quantile_ns(0.5),
        p99_ns: snapshot.quantile_ns(0.99),
        p999_ns: snapshot.quantile_ns(0.999),
        cumulative: snapshot.cumulative().collect(),
    }
}

/// What the handles of all workers on a device have counted.
pub(crate) fn sum(counters: &[Arc<DeviceCounters>]) -> DeviceCounts {
    let mut sum = DeviceCounts::default();
    counters.iter().for_each(|counters| sum += counters.snapshot());
    sum
}

pub(crate) fn server_group(uptime: Duration, is_ready: bool, dram_budget: u64, workers: usize) -> Group {
    group! { "server";
        Gauge uptime_seconds "Time since the start" = uptime.as_secs();
        Gauge ready "1 while requests are served" = u64::from(is_ready);
        Gauge dram_budget_bytes "Budget of the whole process" = dram_budget;
        Gauge workers "Worker threads" = workers;
    }
}

/// Connections of a door, open, accepted and turned away, and what else it counts.
pub(crate) fn connections_group(room: &'static str, counts: [u64; 3], others: Vec<Figure>) -> Group {
    let [open, accepted, rejected] = counts;
    group! { room, others;
        Gauge connections "Open connections" = open;
        Counter connections_accepted "Connections accepted" = accepted;
        Counter connections_rejected "Connections turned away because there were too many" = rejected;
    }
}

/// How reads are split between a faster device and a slower one, and why so.
pub(crate) fn split_group(room: &'static str, status: Status, load: &Counts) -> Group {
    let is = |reason| u64::from(status.reason == reason);
    let [upper, lower] = load.read_latency_ns.map(|ns| ns as f64 / 1e9);
    group! { room;
        Gauge data_admit "1 while the faster device may take copies" = u64::from(status.data_admit);
        Gauge state "State of the algorithm: 1 copies what is read, 2 holds the copies and tunes" = match status.state {
            State::Filling => 1,
            State::Tuning => 2,
        };
        Gauge too_few "1 where nothing is redirected because too little was asked for so far" = is(Reason::TooFew);
        Gauge worse "1 where nothing is redirected because that was found worse" = is(Reason::Worse);
        Gauge no_difference "1 where nothing is redirected because that was found to make no difference" = is(Reason::NoDifference);
        Gauge outstanding "Operations under way on both devices" = load.outstanding;
        Gauge load_admit_ratio "Share of reads with a copy on the faster device that go to it" = status.load_admit;
        Gauge settled_seconds "Time from the last jump of the load until the split was held" = status.settled_ns as f64 / 1e9;
        Counter windows "Windows measured" = status.windows;
        Counter trials "Comparisons of two splits" = status.trials;
        Counter moves "Comparisons that changed the split" = status.moves;
        Counter upper_reads "Reads that the faster device answered" = load.reads[0];
        Counter lower_reads "Reads that the slower device answered, of every kind" = load.reads[1];
        Counter upper_read_seconds "Sum of the latencies of reads that the faster device answered" = upper;
        Counter lower_read_seconds "Sum of the latencies of reads that the slower device answered" = lower;
    }
}

/// A table of metrics, as docs/metrics.md has them.
#[cfg(test)]
pub(crate) fn table<'a>(groups: impl IntoIterator<Item = &'a Group>) -> String {
    let rows = groups.into_iter().flat_map(|group| {
        let owner = if group.room == "process" { "" } else { "pumice_" };
        group.figures.iter().map(move |figure| {
            let total = match figure.kind {
                pumice_world::Kind::Counter => "_total",
                pumice_world::Kind::Gauge => "",
            };
            let name = format!("{owner}{}_{}{total}", group.room, figure.name);
            format!("| `{name}` | {} |\n", figure.help)
        })
    });
    "| metric | meaning |\n| --- | --- |\n".to_owned() + &rows.collect::<String>()
}

/// How long nothing is said of a counter after a rise was.
const QUIET: Duration = Duration::from_secs(60);

/// Says when a counter rises that should not, once a minute at most.
pub struct Watch {
    watched: &'static [(&'static str, &'static str)],
    /// What was said last of each, and when.
    said: Vec<(f64, Option<Instant>)>,
}

impl Watch {
    /// Watches counters, by room and name.
    pub fn new(watched: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            watched,
            said: vec![(0.0, None); watched.len()],
        }
    }

    /// What is to be said of these figures.
    pub fn look(&mut self, groups: &[Group], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for ((room, name), (value, said)) in self.watched.iter().zip(&mut self.said) {
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
    use pumice_world::Kind;

    #[test]
    fn a_rise_is_said_at_once_and_then_once_a_minute() {
        let start = Instant::now();
        let mut watch = Watch::new(&[("memcached", "connections_rejected")]);
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
}
