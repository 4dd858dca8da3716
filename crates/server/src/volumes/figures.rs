//! The figures of a server of volumes, for the admin door.

use super::Volumes;
use super::worker::{Opened, Prepared};
use crate::host::figures::{connections_group, latency, split_group, sum};
use crate::lifetime::Pace;
use pumice_blocks::BlockCounts;
use pumice_chunk::store::{ChunkCounts, ChunkStore, Found};
use pumice_device::{AlignedBuf, DeviceCounts};
use pumice_door_admin::{BooksFault, Figures, Group, Latency, group};
use pumice_door_nbd::{Counts as DoorCounts, Operation};
use pumice_remote::{Remote, RemoteCounts};
use pumice_volume::VolumeCounts;
use std::cmp::Ordering;

/// The room of how reads are split.
const SPLIT: &str = "volume_split";
/// The room of what enters the cache.
const ADMISSION: &str = "volume_admission";

impl Volumes {
    fn latency(&self) -> Vec<Latency> {
        let volumes = self.volumes.iter().enumerate();
        let measured = volumes.flat_map(|(number, prepared)| {
            Operation::ALL.map(|operation| Latency {
                volume: Some(prepared.name.clone()),
                ..latency(
                    "nbd",
                    (operation.name(), ""),
                    &self.door.inner.stats().latency(number, operation),
                )
            })
        });
        measured.collect()
    }

    fn volume(&self, number: usize, prepared: &Prepared, opened: &Opened) -> (String, Vec<Group>) {
        let device = sum(&prepared.counters);
        let shared = &opened.shared;
        let mut groups = volume_groups(
            self.door.inner.stats().counts(number),
            shared.counts(),
            shared.dram_bytes() as u64,
            shared.dirty(self.clock.now_secs()),
            shared.movable_share(),
            shared.store().map(|store| Cached::of(store, opened.found)),
            device,
            prepared.backing.remote().map(Remote::counts),
        );
        if shared.store().is_some() {
            groups.push(Pace::of(self.started.elapsed(), &device, self.endurance).group());
        }
        if let Some(admission) = shared.admission() {
            groups.push(group! { ADMISSION, admission.figures(); });
        }
        if let Some(split) = shared.split() {
            groups.push(split_group(SPLIT, split.status(), &split.counts()));
        }
        (prepared.name.clone(), groups)
    }

    fn limitation(&self, opened: &[Opened]) -> Option<String> {
        let mut remotes =
            (self.volumes.iter()).filter_map(|prepared| Some((&prepared.name, prepared.backing.remote()?)));
        if let Some((name, remote)) = remotes.find(|(_, remote)| remote.is_away()) {
            return Some(format!(
                "volume {name}: there is no connection to {}",
                remote.uri()
            ));
        }
        let dirty = |opened: &Opened| opened.shared.dirty(self.clock.now_secs()).0;
        let mut volumes = self.volumes.iter().zip(opened);
        let failed = volumes.clone().find_map(|(prepared, opened)| {
            let failure = opened.shared.store()?.failure()?;
            Some((prepared, opened, failure))
        });
        let Some((prepared, opened, failure)) = failed else {
            return volumes.find_map(|(prepared, opened)| {
                let why = opened.shared.cleaner_failure()?;
                Some(format!(
                    "volume {}: the cleaner failed, and the cache alone has the newest content of {} chunks; {why}",
                    prepared.name,
                    dirty(opened)
                ))
            });
        };
        let serves = match dirty(opened) {
            0 => "its backing device serves alone".to_owned(),
            dirty => format!("and has the only copy of {dirty} chunks: changes fail until the next start"),
        };
        Some(format!(
            "the cache device of volume {} was taken out, {serves}; {}",
            prepared.name, failure.reason
        ))
    }

    pub(super) fn all_figures(&self, opened: Option<&[Opened]>) -> Figures {
        let stats = self.door.inner.stats();
        let connections = stats.connections();
        let connections = [connections.current(), connections.total(), connections.rejected()];
        let volumes = self.volumes.iter().zip(opened.unwrap_or_default());
        Figures {
            limitation: opened.and_then(|opened| self.limitation(opened)),
            latency: self.latency(),
            groups: vec![connections_group("nbd", connections, Vec::new())],
            volumes: volumes
                .enumerate()
                .map(|(number, (prepared, opened))| self.volume(number, prepared, opened))
                .collect(),
            ..Figures::default()
        }
    }

    pub(super) fn check_chunks(&self, opened: Option<&[Opened]>) -> Result<(), BooksFault> {
        let not_open = || BooksFault::NotNow("the volumes are not open yet".to_owned());
        for (prepared, opened) in self.volumes.iter().zip(opened.ok_or_else(not_open)?) {
            if opened.shared.store().is_none() {
                continue;
            }
            // A chunk is counted when its request begins, and again by its outcome. Outcomes are read first, so they cannot exceed.
            let became = opened.shared.counts();
            let begun = opened.shared.counts();
            for (what, begun, became) in begun.balance(&became) {
                let unequal = format!(
                    "volume {}: {begun} {what} were begun, {became} ended",
                    prepared.name
                );
                match became.cmp(&begun) {
                    Ordering::Equal => {}
                    Ordering::Less => return Err(BooksFault::NotNow(unequal)),
                    Ordering::Greater => return Err(BooksFault::Unbalanced(unequal)),
                }
            }
        }
        Ok(())
    }
}

/// Figures of a cache.
#[derive(Default)]
struct Cached {
    counts: ChunkCounts,
    blocks: BlockCounts,
    mappings: u64,
    contents: u64,
    index_bytes: u64,
    has_failed: bool,
    is_forgotten: bool,
}

impl Cached {
    fn of(store: &ChunkStore<AlignedBuf>, found: Option<Found>) -> Self {
        let (mappings, contents) = store.in_use();
        Self {
            counts: store.counts(),
            blocks: store.block_counts(),
            mappings,
            contents,
            index_bytes: store.index_bytes().iter().sum(),
            has_failed: store.failure().is_some(),
            is_forgotten: found == Some(Found::Forgotten),
        }
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "one for each part of a volume, so that a test can make the table without one"
)]
fn volume_groups(
    door: DoorCounts,
    volume: VolumeCounts,
    dram_bytes: u64,
    (dirty, dirty_secs): (u64, u32),
    movable_share: f64,
    cached: Option<Cached>,
    device: DeviceCounts,
    remote: Option<RemoteCounts>,
) -> Vec<Group> {
    let own = group! { "volume";
        Gauge dram_bytes "Bytes of chunks in DRAM" = dram_bytes;
        Gauge dirty_chunks "Chunks whose newest content the cache alone has" = dirty;
        Gauge dirty_age_seconds "Most seconds since the oldest of these was written" = dirty_secs;
        Gauge movable_hits_ratio "Share of hits of the cache device that the backing device could answer, as they are of clean chunks; in the last second" = movable_share;
    };
    let mut groups = vec![
        group! { "nbd", door.figures(); },
        group! { "volume", volume.figures(), own.figures; },
    ];
    groups.extend(remote.map(|remote| group! { "remote", remote.figures(); }));
    if let Some(cached) = cached {
        let own = group! { "chunk";
            Gauge mappings "Addresses that the index has" = cached.mappings;
            Gauge contents "Contents that duplicates are found of" = cached.contents;
            Gauge index_bytes "DRAM of the indexes" = cached.index_bytes;
            Gauge failed "1 where the cache device was taken out" = u64::from(cached.has_failed);
            Gauge forgotten "1 where the start forgot the cache that was there: it was of another volume, the volume had changed without it, or --max-absence was over" = u64::from(cached.is_forgotten);
        };
        groups.extend([
            group! { "chunk", cached.counts.figures(), own.figures; },
            group! { "blocks", cached.blocks.figures(); },
            group! { "device", device.figures(); },
        ]);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::figures::table;

    #[test]
    fn the_table_of_volumes_metrics_is_what_the_code_has() {
        let groups = volume_groups(
            DoorCounts::default(),
            VolumeCounts::default(),
            0,
            (0, 0),
            1.0,
            Some(Cached::default()),
            DeviceCounts::default(),
            Some(RemoteCounts::default()),
        );
        let connections = connections_group("nbd", [0; 3], Vec::new());
        let mut page = table(std::iter::once(&connections).chain(&groups));
        let as_of = "As `pumice_performance_split_…`, of cache and backing device; where reads are split";
        page += &format!("| `pumice_{SPLIT}_…` | {as_of} |\n");
        let as_of = "As `pumice_admission_…`, of chunks; where there is a rule or a write budget";
        page += &format!("| `pumice_{ADMISSION}_…` | {as_of} |\n");
        page += "| `pumice_lifetime_…` | As above, of the cache device |\n";
        crate::documents::check("metrics.md", "table of volumes", &page);
    }
}
