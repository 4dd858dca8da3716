//! A server of volumes: each a slow device behind a cache of chunks, and the NBD door.

mod config;
mod door;
mod export;
mod figures;
pub mod plan;
mod worker;

pub use config::{VolumeConfig, VolumesConfig};
pub use pumice_backing::Source;

use crate::host::files::{Before, agree, before, is_same, make_file, open_file, size_at, superblock_at};
use crate::host::{ComputeThreads, Host, Jobs, limits, line, random};
use crate::service::{Door, Share};
use crate::throttle::Kinds;
use anyhow::Context;
use door::Nbd;
use plan::Plan;
use pumice_advise::Endurance;
use pumice_backing::{DirtyCache, Slow, boot};
use pumice_blocks::{Durability, Maker, Superblock};
use pumice_chunk::store::{Found, Options, STORE, Shape};
use pumice_console::{VERSION, causes, usage};
use pumice_device::{FileError, SECTOR_BYTES};
use pumice_trace::Human;
use pumice_volume::{CachePlan, Mode, Settings, Wanted};
use pumice_world::{Clock, SystemClock};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use worker::{Opened, Prepared};

/// Volumes that are served.
pub struct Volumes {
    volumes: Vec<Prepared>,
    /// Where fingerprints and compression may go.
    jobs: Arc<Jobs>,
    door: Arc<Nbd>,
    clock: Arc<dyn Clock>,
    /// Seconds without an answer after which a cache device has failed; 0 = never.
    flash_timeout_secs: u32,
    shares: Vec<Share>,
    endurance: Option<Endurance>,
    started: Instant,
}

/// Serves volumes until a signal or a failure.
///
/// # Errors
/// Usage, or what failed.
pub fn run(config: &VolumesConfig, kinds: Kinds) -> anyhow::Result<()> {
    if let Some(other) = kinds.beside(&["cache", "backing"]) {
        return Err(usage(format!(
            "--throttle {other}=: a server of volumes has cache= and backing="
        )));
    }
    let host = Host::new(&config.host, kinds)?;
    // All devices and settings are checked before a file is made or written.
    let backings = (config.volumes.iter())
        .map(open_backing)
        .collect::<anyhow::Result<Vec<_>>>()?;
    check_caches(config, &backings)?;
    let wanted = (config.volumes.iter().zip(&backings))
        .map(|(volume, backing)| look(config, volume, backing))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let plan = plan::divide(config, &wanted)?;
    limits::allow_open_files(plan.max_connections, config.host.threads, config.volumes.len());
    let door = Arc::new(Nbd::bind(config, &plan)?);
    host.run(vec![Arc::clone(&door) as Arc<dyn Door>], |host| {
        Volumes::prepare(config, host, backings, &plan, door)
    })
}

impl Volumes {
    /// Opens the cache devices, making files and reserving their space where that is needed.
    fn prepare(
        config: &VolumesConfig,
        host: &mut Host<'_>,
        backings: Vec<Slow>,
        plan: &Plan,
        door: Arc<Nbd>,
    ) -> anyhow::Result<Self> {
        let clock = SystemClock::new(0);
        line(format_args!("pumice {VERSION}"));
        let mut volumes = Vec::new();
        for ((volume, backing), cache) in config.volumes.iter().zip(backings).zip(&plan.caches) {
            let now = clock.now_secs();
            volumes.push(prepare(config, host.kinds, volume, backing, cache.as_ref(), now)?);
        }
        // As many processors as there are event loops, which may all be busy.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let compute =
            ComputeThreads::start(processors.min(config.host.threads)).context("cannot start a thread")?;
        Ok(Self {
            volumes,
            jobs: host.compute.insert(compute).jobs(),
            door,
            clock: Arc::new(clock),
            flash_timeout_secs: config.host.flash_timeout_secs,
            shares: plan.shares(),
            endurance: config.host.endurance,
            started: Instant::now(),
        })
    }
}

fn open_backing(volume: &VolumeConfig) -> anyhow::Result<Slow> {
    let is_read_only = volume.mode == Mode::ReadOnly;
    let backing = Slow::open(&volume.backing, is_read_only)?;
    match backing.is_read_only() && !is_read_only {
        true => Err(usage(format!(
            "backing device {}: it takes no changes: give --mode read-only",
            volume.backing
        ))),
        false => Ok(backing),
    }
}

/// Refuses volumes that are named twice, and caches on a backing device or on another volume's cache.
fn check_caches(config: &VolumesConfig, backings: &[Slow]) -> anyhow::Result<()> {
    for (number, volume) in config.volumes.iter().enumerate() {
        if let Some(other) = (config.volumes.iter().zip(backings).take(number))
            .find_map(|(other, backing)| backing.is_of(&volume.backing).then_some(other))
        {
            return Err(usage(format!(
                "--backing {} is the same as {}: name each volume once",
                volume.backing, other.backing
            )));
        }
        let Some(cache) = &volume.cache else { continue };
        if backings.iter().any(|backing| backing.is_at(cache)) {
            return Err(usage(format!(
                "--cache {} is a backing device, and a cache would overwrite it: name another file or device",
                cache.display()
            )));
        }
        let same = |other: &VolumeConfig| other.cache.as_ref().is_some_and(|other| is_same(other, cache));
        if config.volumes[..number].iter().any(same) {
            return Err(usage(format!(
                "--cache {} is that of another volume: each has a cache of its own",
                cache.display()
            )));
        }
    }
    Ok(())
}

/// Reads size and chunk size of a volume's cache, without writing; `None` in pass-through. Refuses a start without the cache that may have
/// writes of the volume.
fn look(config: &VolumesConfig, volume: &VolumeConfig, backing: &Slow) -> anyhow::Result<Option<Wanted>> {
    let dirty = (backing.dirty_cache())
        .with_context(|| format!("backing device {}: reading its attributes", volume.backing))?;
    let is_pass_through = volume.mode == Mode::PassThrough;
    let before = volume.cache.as_deref().map_or(Before::Missing, before);
    let is_used = matches!(before, Before::BlockDevice | Before::File { len: 1.. });
    let found = match &volume.cache {
        Some(cache) if is_used && !config.host.reformat && !(is_pass_through && dirty.is_none()) => {
            peek(cache, &before)
        }
        _ => Ok(None),
    };
    let found = match &dirty {
        Some(_) if config.host.reformat && config.volumes.len() > 1 => {
            return Err(usage(format!(
                "--reformat would discard the writes of several volumes: volume {} may lack some that its cache has. Start the volume that is \
                 meant alone",
                volume.name
            )));
        }
        Some(dirty) if !config.host.reformat => check_is_there(volume, dirty, found)?,
        _ => found?,
    };
    let (Some(cache), false) = (&volume.cache, is_pass_through) else {
        return Ok(None);
    };
    let asked = size_at(cache, &before, volume.cache_size)
        .with_context(|| format!("cache device {}", cache.display()))?;
    let Some(asked) = asked else {
        return Err(usage(format!(
            "--cache {}: there is no such file; how large is it to be? Give --cache-size",
            cache.display()
        )));
    };
    let found = found.and_then(|found| Some((found.geometry, Shape::decode(&found.own)?.chunk_bytes)));
    if let Some((geometry, chunk_bytes)) = &found {
        let sizes = (volume.cache_size.map(|_| Human(asked)), Human(geometry.capacity));
        agree("--cache-size", sizes, cache, "empty")?;
        let human = |bytes: u32| Human(bytes.into());
        let chunks = (volume.chunk_bytes.map(human), human(*chunk_bytes));
        agree("--chunk-size", chunks, cache, "empty")?;
    }
    Ok(Some(Wanted {
        backing_bytes: pumice_volume::Backing::size(backing),
        capacity: found.map_or(asked, |(geometry, _)| geometry.capacity),
        chunk_bytes: volume.chunk_bytes.or(found.map(|(_, chunk_bytes)| chunk_bytes)),
        block_bytes: found.map(|(geometry, _)| geometry.block_bytes),
        rule: volume.rule,
    }))
}

/// Refuses a start whose cache is not the one that may have writes of the volume. Its device may not be mounted.
fn check_is_there(
    volume: &VolumeConfig,
    dirty: &DirtyCache,
    found: anyhow::Result<Option<Superblock>>,
) -> anyhow::Result<Option<Superblock>> {
    let DirtyCache { id, path } = dirty;
    let given = match (&volume.cache, found) {
        (_, Ok(Some(found))) if found.cache_id == *id => return Ok(Some(found)),
        // Another process may be ending.
        (_, Err(error)) if error.is::<FileError>() => return Err(error),
        (Some(cache), Ok(Some(found))) => {
            format!("--cache {} is cache {:016x}", cache.display(), found.cache_id)
        }
        (Some(cache), Ok(None)) => format!("--cache {} is empty or missing", cache.display()),
        (None, _) => "there is no --cache".to_owned(),
        (Some(_), Err(error)) => causes(&error),
    };
    let place = match path.as_os_str().is_empty() {
        true => String::new(),
        false => format!(" at {}", path.display()),
    };
    Err(usage(format!(
        "volume {}: cache {id:016x}{place} may have writes that its volume lacks, and this start is without it: {given}. Start with that cache \
         (is its file system mounted?); or discard its writes with --reformat, the volume started alone, and check the file system of the volume",
        volume.name
    )))
}

/// The superblock of the cache on a device; `None` if the device is empty.
fn peek(cache: &Path, before: &Before) -> anyhow::Result<Option<Superblock>> {
    superblock_at(cache, before, STORE).with_context(|| format!("cache device {}", cache.display()))
}

/// Opens the cache device, and makes its file if needed. Prints mode, sizes, and the division of DRAM.
fn prepare(
    config: &VolumesConfig,
    kinds: Kinds,
    volume: &VolumeConfig,
    backing: Slow,
    plan: Option<&CachePlan>,
    now: u32,
) -> anyhow::Result<Prepared> {
    let size = pumice_volume::Backing::size(&backing);
    let opened = match (&volume.cache, plan) {
        (Some(path), Some(plan)) => {
            Some(make_file(path, plan.capacity).map(|(cache, new)| (cache, Some(new))))
        }
        // Pass-through opens the cache device to discard the cache.
        (Some(path), None) if path.exists() => {
            Some(open_file(path, None, false).map(|cache| (Arc::new(cache), None)))
        }
        (_, _) => None,
    };
    let (cache, new_file) = opened.transpose().context("cache device")?.unzip();
    line(format_args!(
        "volume {}: {}, {} of {}",
        volume.name,
        volume.mode.name(),
        Human(size),
        volume.backing
    ));
    if let (Some(plan), Some(cache)) = (plan, &cache) {
        line(format_args!(
            "cache {}: {} in blocks of {}, chunks of {}; DRAM: {} for an index of {} addresses and {} contents, {} for {} block buffers, \
             {} for chunks, {} for read-ahead",
            cache.path().display(),
            Human(plan.capacity),
            Human(plan.block_bytes),
            Human(plan.chunk_bytes.into()),
            Human(plan.index_bytes),
            plan.mappings,
            plan.contents,
            Human(plan.buffers as u64 * plan.block_bytes),
            plan.buffers,
            Human(plan.dram_bytes),
            Human(plan.read_ahead_bytes),
        ));
        if plan.ghost_bytes > 0 {
            line(format_args!(
                "cache {}: DRAM: {} for what second-hit remembers of chunks",
                cache.path().display(),
                Human(plan.ghost_bytes),
            ));
        }
    }
    let (identity, is_permanent) = backing.identity()?;
    if volume.mode == Mode::WriteBack && !is_permanent {
        return Err(usage(format!(
            "--mode write-back: {} has no serial number, WWID or UUID, so no start after a restart of the machine would know the writes in its \
             cache: choose write-through, or a device of dm or loop above it",
            volume.backing
        )));
    }
    let [random, this_start] = random()?;
    // A start after a crash counts as one after a power cut if the server may have lost changes meanwhile.
    let boot = if backing.may_lose() { this_start } else { boot() };
    let settings = Settings {
        mode: volume.mode,
        dram_bytes: plan.map_or(0, |plan| usize::try_from(plan.dram_bytes).unwrap_or(usize::MAX)),
        read_ahead_bytes: plan.map_or(0, |plan| plan.read_ahead_bytes),
        scan_cutoff_bytes: volume.scan_cutoff_bytes,
        rule: volume.rule,
        write_budget: volume.write_budget,
        cache: Options {
            chunk_bytes: plan.map_or(4096, |plan| plan.chunk_bytes),
            chunks: 0,
            volume: identity,
            modified: 0,
            boot,
            mappings: plan.map_or(0, |plan| plan.mappings),
            contents: plan.map_or(0, |plan| plan.contents),
            block_bytes: plan.map_or(SECTOR_BYTES as u64, |plan| plan.block_bytes),
            buffers_max: plan.map_or(0, |plan| plan.buffers),
            durability: Durability::Power,
            reformat: config.host.reformat,
            maker: Maker::Serve,
            random,
            now,
            write_back: false,
            absence_secs_max: config.host.max_absence_secs,
        },
        write_back: volume.write_back,
    };
    Ok(Prepared {
        name: volume.name.clone(),
        backing,
        cache,
        new_file: new_file.flatten(),
        settings,
        objective: volume.objective,
        cache_throttling: kinds.of("cache"),
        backing_throttling: kinds.of("backing"),
        drains: volume.drains,
        counters: (0..config.host.threads).map(|_| Arc::default()).collect(),
    })
}

/// Logs what was found of each cache.
fn say_found(volumes: &[Prepared], opened: &[Opened], now: u32) {
    for (prepared, opened) in volumes.iter().zip(opened) {
        let found = match opened.found {
            None => "no cache",
            Some(Found::Nothing) => "a new cache",
            Some(Found::Cache) => "the cache that was there",
            Some(Found::Forgotten) => {
                "a cache that was there and is forgotten: it was of another volume, the volume has changed without it, or --max-absence is over"
            }
        };
        line(format_args!("volume {}: {found}", prepared.name));
        let (dirty, _) = opened.shared.dirty(now);
        if dirty > 0 {
            line(format_args!(
                "volume {}: the cache alone has the newest content of {dirty} chunks{}",
                prepared.name,
                match prepared.settings.mode {
                    Mode::ReadOnly => ", and keeps it, as the volume is read-only",
                    _ => "",
                }
            ));
        }
    }
}
