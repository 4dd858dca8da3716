//! Figures in Prometheus' text format.

use crate::figures::{Figures, whole};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use pumice_world::{Figure, Kind};
use std::collections::HashMap;
use std::fmt::{self, Write};

/// What the answer calls itself.
pub(crate) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes all figures in the format 0.0.4, which all know: as OpenMetrics, but a metric has the name of its samples.
pub(crate) fn plain(figures: Figures) -> Result<String, fmt::Error> {
    let mut out = String::new();
    let mut help = None;
    for line in open_metrics(figures)?.lines() {
        if let Some(named) = line.strip_prefix("# HELP ") {
            // The type comes behind it.
            help = named.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|typed| typed.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                writeln!(out, "# HELP {name}{suffix} {help}")?;
            }
            writeln!(out, "# TYPE {name}{suffix} {kind}")?;
        } else if !line.starts_with('#') {
            writeln!(out, "{line}")?;
        }
    }
    Ok(out)
}

/// Encodes all figures as OpenMetrics.
pub(crate) fn open_metrics(figures: Figures) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(figures)));
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(out)
}

/// Figures that were collected already: the hot paths keep plain counters, and nothing is registered beforehand.
#[derive(Debug)]
struct Collected(Figures);

/// Bounds of the histograms, in nanoseconds: some 1 µs to 17 s. All are in `/stats`, by quantile.
const BOUNDS_NS: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 34;

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = &self.0;
        encoder
            .encode_descriptor("pumice_build", "The program", None, MetricType::Info)?
            .encode_info(&[
                ("version", figures.version),
                ("commit", figures.commit.unwrap_or("unknown")),
            ])?;
        for group in &figures.groups {
            let owner = if group.room == "process" { "" } else { "pumice_" };
            for figure in &group.figures {
                let name = format!("{owner}{}_{}", group.room, figure.name);
                encode_figure(
                    figure,
                    encoder.encode_descriptor(&name, figure.help, None, kind(figure))?,
                )?;
            }
        }
        self.volumes(&mut encoder)?;
        self.books(&mut encoder)?;
        self.rounds(&mut encoder)?;
        self.latency(&mut encoder)
    }
}

fn kind(figure: &Figure) -> MetricType {
    match figure.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    }
}

fn encode_figure(figure: &Figure, mut metric: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match (whole(figure.value), figure.kind) {
        (Some(value), Kind::Counter) => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (None, Kind::Counter) => metric.encode_counter::<NoLabelSet, _, u64>(&figure.value, None),
        (Some(value), Kind::Gauge) => metric.encode_gauge(&value),
        (None, Kind::Gauge) => metric.encode_gauge(&figure.value),
    }
}

impl Collected {
    /// Each metric once, with all volumes that have it.
    fn volumes(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut by_name: Vec<(String, Vec<(&str, &Figure)>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (volume, groups) in &self.0.volumes {
            let figures = groups
                .iter()
                .flat_map(|group| group.figures.iter().map(|figure| (group.room, figure)));
            for (room, figure) in figures {
                let name = format!("pumice_{room}_{}", figure.name);
                let place = *places.entry(name.clone()).or_insert_with(|| {
                    by_name.push((name, Vec::new()));
                    by_name.len() - 1
                });
                by_name[place].1.push((volume, figure));
            }
        }
        for (name, figures) in &by_name {
            let (_, first) = figures[0];
            let mut family = encoder.encode_descriptor(name, first.help, None, kind(first))?;
            for (volume, figure) in figures {
                encode_labelled(&[("volume", *volume)], &mut family, |metric| {
                    encode_figure(figure, metric)
                })?;
            }
        }
        Ok(())
    }

    fn books(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let equation = "Books: recovered + offered = resident + all other lines";
        let help = [format!("{equation}, in entries"), format!("{equation}, in bytes")];
        for (unit, help) in ["entries", "bytes"].into_iter().zip(&help) {
            let name = format!("pumice_engine_books_{unit}");
            // A gauge, because resident falls.
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for line in &self.0.books {
                let value = if unit == "entries" {
                    line.entries
                } else {
                    line.bytes
                };
                encode_labelled(&[("line", line.name)], &mut family, |mut metric| {
                    metric.encode_gauge(&value)
                })?;
            }
        }
        Ok(())
    }

    fn rounds(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let name = "pumice_index_rounds";
        let help = "Lookups that went to flash, by reads that had to wait for each other";
        let rounds = &self.0.index_rounds;
        let Some(last) = rounds.len().checked_sub(1) else {
            return Ok(());
        };
        let buckets = (0u32..).zip(rounds).map(|(at, count)| {
            let bound = if at as usize == last {
                f64::INFINITY
            } else {
                f64::from(at)
            };
            (bound, *count)
        });
        let buckets: Vec<(f64, u64)> = buckets.collect();
        let sum = (0u32..)
            .zip(rounds)
            .map(|(at, count)| f64::from(at) * *count as f64)
            .sum();
        encoder
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, rounds.iter().sum(), &buckets, None)
    }

    fn latency(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for latencies in self.0.latency.chunk_by(|a, b| a.door == b.door) {
            let name = format!("pumice_{}_latency_seconds", latencies[0].door);
            let help = "From the arrival of a command to its reply being ready to send";
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Histogram)?;
            for latency in latencies {
                let second = match &latency.volume {
                    None => ("tier", latency.tier),
                    Some(volume) => ("volume", volume.as_str()),
                };
                let labels = [("operation", latency.operation), second];
                let buckets = buckets(&latency.cumulative, latency.count);
                encode_labelled(&labels, &mut family, |mut metric| {
                    let sum = seconds(latency.sum_ns);
                    metric.encode_histogram::<NoLabelSet>(sum, latency.count, &buckets, None)
                })?;
            }
        }
        Ok(())
    }
}

fn encode_labelled(
    labels: &impl EncodeLabelSet,
    family: &mut MetricEncoder<'_>,
    encode: impl FnOnce(MetricEncoder<'_>) -> Result<(), fmt::Error>,
) -> Result<(), fmt::Error> {
    encode(family.encode_family(labels)?)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "15 digits are enough for a sum of times"
)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The number of operations in each bucket (not cumulative: the encoder adds them up), the last without a bound.
fn buckets(cumulative: &[(u64, u64)], count: u64) -> Vec<(f64, u64)> {
    let bounded = cumulative.iter().filter(|(upper, _)| BOUNDS_NS.contains(upper));
    let mut before = 0;
    let mut buckets: Vec<(f64, u64)> = bounded
        .map(|(upper, below)| (seconds(*upper), below - std::mem::replace(&mut before, *below)))
        .collect();
    buckets.push((f64::INFINITY, count.saturating_sub(before)));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{BookLine, Group, Latency};

    #[test]
    fn every_figure_is_named_by_room_and_has_a_type() {
        let text = open_metrics(Figures {
            version: "1",
            commit: Some("c0ffee"),
            ready: true,
            limitation: None,
            books: vec![BookLine {
                name: "offered",
                entries: 3,
                bytes: 300,
            }],
            index_rounds: vec![0, 7, 2, 1],
            latency: vec![Latency {
                door: "memcached",
                volume: None,
                operation: "get",
                tier: "flash",
                count: 5,
                sum_ns: 2_000_000_000,
                p50_ns: 0,
                p99_ns: 0,
                p999_ns: 0,
                cumulative: vec![(512, 1), (1024, 2), (2048, 3), (4096, 4), (1 << 36, 5)],
            }],
            groups: vec![
                Group {
                    room: "flash",
                    figures: vec![
                        Figure::documented("written_bytes", "Bytes", Kind::Counter, 7),
                        Figure::documented("blocks_free", "Blocks", Kind::Gauge, 8),
                    ],
                },
                Group {
                    room: "process",
                    figures: vec![Figure {
                        name: "cpu_seconds",
                        help: "Time",
                        kind: Kind::Counter,
                        value: 1.5,
                    }],
                },
            ],
            volumes: ["a", "b"]
                .map(|name| {
                    let reads = Figure::documented("reads", "Reads", Kind::Counter, 9);
                    let group = Group {
                        room: "nbd",
                        figures: vec![reads],
                    };
                    (name.to_owned(), vec![group])
                })
                .to_vec(),
        })
        .unwrap();
        for line in [
            "# TYPE pumice_flash_written_bytes counter",
            "pumice_flash_written_bytes_total 7",
            "# TYPE pumice_flash_blocks_free gauge",
            "pumice_flash_blocks_free 8",
            "process_cpu_seconds_total 1.5",
            "pumice_nbd_reads_total{volume=\"a\"} 9",
            "pumice_nbd_reads_total{volume=\"b\"} 9",
            "pumice_build_info{version=\"1\",commit=\"c0ffee\"} 1",
            "pumice_engine_books_entries{line=\"offered\"} 3",
            "pumice_engine_books_bytes{line=\"offered\"} 300",
            "pumice_memcached_latency_seconds_sum{operation=\"get\",tier=\"flash\"} 2.0",
            "pumice_index_rounds_bucket{le=\"1.0\"} 7",
            "pumice_index_rounds_bucket{le=\"2.0\"} 9",
            "pumice_index_rounds_bucket{le=\"+Inf\"} 10",
            "pumice_memcached_latency_seconds_bucket{le=\"0.000001024\",operation=\"get\",tier=\"flash\"} 2",
            "pumice_memcached_latency_seconds_bucket{le=\"0.000004096\",operation=\"get\",tier=\"flash\"} 4",
            "pumice_memcached_latency_seconds_bucket{le=\"+Inf\",operation=\"get\",tier=\"flash\"} 5",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
