//! The settings of `serve --nbd`, checked.

use crate::Flags;
use crate::host::config::{HostConfig, objective};
use crate::host::listen;
use crate::lifetime;
use crate::settings::{Given, Layers, has};
use pumice_admit::{Rule, WriteBudget};
use pumice_backing::Source;
use pumice_console::usage;
use pumice_net::Listen;
use pumice_nhc::Objective;
use pumice_trace::Size;
use pumice_volume::{Mode, WriteBack};
use std::fmt;
use std::path::PathBuf;

/// The longest `--dirty-age`.
const DIRTY_AGE_SECS_MAX: u32 = 86_400;

/// Default of `--read-ahead`.
const READ_AHEAD_BYTES: u64 = 4 << 20;

/// Default of `--scan-cutoff`, as Open CAS's, which counts too when the cache is full.
const SCAN_CUTOFF_BYTES: u64 = 1 << 20;

/// Settings that say something of volumes alone.
const OF_VOLUMES: &str = "backing cache cache-size mode chunk-size read-ahead scan-cutoff dirty-age dirty-limit clean-rate on-stop";
/// Settings of any server, or of both caches. All others are of the object cache.
const OF_BOTH: &str = "nbd flash-admit flash-write-budget performance-objective dram threads max-connections flash-timeout max-absence \
                       tbw dwpd cycles drive-size warranty unix-mode admin log-format";

/// A volume and its cache.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeConfig {
    /// The name under which clients find it.
    pub name: String,
    /// The slow device.
    pub backing: Source,
    /// The fast one; none in pass-through.
    pub cache: Option<PathBuf>,
    /// Size of the cache, if given.
    pub cache_size: Option<Size>,
    /// How the cache is used.
    pub mode: Mode,
    /// Bytes of a chunk, if given.
    pub chunk_bytes: Option<u32>,
    /// Most bytes that are read ahead; 0 = none.
    pub read_ahead_bytes: u64,
    /// Bytes after which a stream is a scan; 0 = never.
    pub scan_cutoff_bytes: u64,
    /// Which chunks enter the cache.
    pub rule: Rule,
    /// Bytes that the cache device may be sent, if there is a bound.
    pub write_budget: Option<WriteBudget>,
    /// What is best where reads are split between cache and backing device; `None`: they are not.
    pub objective: Option<Objective>,
    /// When dirty chunks are cleaned.
    pub write_back: WriteBack,
    /// Whether a stop cleans all dirty chunks.
    pub drains: bool,
}

/// The settings of a server of volumes.
#[derive(Debug)]
pub struct VolumesConfig {
    /// Those of every server.
    pub host: HostConfig,
    /// Where NBD is served.
    pub nbd: Vec<Listen>,
    /// The volumes, at least one.
    pub volumes: Vec<VolumeConfig>,
}

impl VolumesConfig {
    /// Checks every setting; `None` without `--nbd`.
    ///
    /// # Errors
    /// [`pumice_console::Usage`], for the first setting that cannot work.
    pub fn resolve(layers: &Layers, flags: &Flags) -> anyhow::Result<Option<Self>> {
        let nbd = layers.nbd();
        if nbd.list().is_none() {
            if let Some((_, given)) = layers.given().iter().find(|(name, _)| has(OF_VOLUMES, name)) {
                return Err(given.wrong("volumes are served over NBD: give --nbd unix:PATH or ADDR:PORT"));
            }
            return Ok(None);
        }
        for (name, given) in layers.given() {
            if !has(OF_VOLUMES, name) && !has(OF_BOTH, name) {
                return Err(given.wrong(
                    "it is of the cache of objects, and with --nbd volumes alone are served: leave it out, or run a second server",
                ));
            }
        }
        let listens = listen::plain(&nbd, listen::unix_mode(&layers.unix_mode())?)?;
        if listens.is_empty() {
            return Err(nbd.wrong("volumes are served nowhere: give unix:PATH or ADDR:PORT, or leave it out"));
        }
        let volumes = volumes(layers)?;
        if let Some((_, given)) = lifetime::endurance(layers)?
            && volumes.iter().all(|volume| volume.cache.is_none())
        {
            return Err(given.wrong("no volume has a cache, and so no flash that wears out: leave it out"));
        }
        Ok(Some(Self {
            host: HostConfig::resolve(layers, flags)?,
            nbd: listens,
            volumes,
        }))
    }
}

fn volumes(layers: &Layers) -> anyhow::Result<Vec<VolumeConfig>> {
    let backing = layers.backing();
    let Some(backings) = backing.list() else {
        return Err(usage(
            "--nbd: of what? Give --backing FILE, and --cache FILE beside it",
        ));
    };
    let count = backings.len();
    let caches = each(&layers.cache(), count, |text| {
        Ok::<_, String>(PathBuf::from(text))
    })?;
    let sizes = each(&layers.cache_size(), count, cache_size)?;
    let modes = each(&layers.mode(), count, mode)?;
    let chunk_sizes = each(&layers.chunk_size(), count, chunk_bytes)?;
    let read_aheads = each(&layers.read_ahead(), count, pumice_trace::bytes)?;
    let scan_cutoffs = each(&layers.scan_cutoff(), count, pumice_trace::bytes)?;
    let objectives = each(&layers.performance_objective(), count, objective)?;
    let rules = each(&layers.flash_admit(), count, str::parse)?;
    let write_budgets = each(&layers.flash_write_budget(), count, str::parse)?;
    let ages = each(&layers.dirty_age(), count, dirty_age)?;
    let limits = each(&layers.dirty_limit(), count, dirty_limit)?;
    let rates = each(&layers.clean_rate(), count, pumice_trace::bytes)?;
    let stops = each(&layers.on_stop(), count, |text| match text {
        "drain" => Ok(true),
        "keep" => Ok(false),
        _ => Err("expected drain or keep"),
    })?;
    let mut volumes: Vec<VolumeConfig> = Vec::new();
    for (number, file) in backings.into_iter().enumerate() {
        let mode = modes[number].unwrap_or(Mode::WriteThrough);
        let source = Source::parse(file).map_err(|error| backing.wrong(error))?;
        let Some(name) = source.name() else {
            return Err(
                backing.wrong("expected the path of a file or a block device, or the address of an export")
            );
        };
        if volumes.iter().any(|other| other.name == name) {
            return Err(backing.wrong(format!(
                "two are named `{name}`, by which clients find them: make a link with another name"
            )));
        }
        let cache = caches[number].clone();
        if cache.is_none() && mode != Mode::PassThrough {
            return Err(usage(
                "--cache: which file or device is the cache to be on? Without one: --mode pass-through",
            ));
        }
        let usual = WriteBack::default();
        volumes.push(VolumeConfig {
            name,
            backing: source,
            cache,
            cache_size: sizes[number],
            mode,
            chunk_bytes: chunk_sizes[number],
            read_ahead_bytes: read_aheads[number].unwrap_or(READ_AHEAD_BYTES),
            scan_cutoff_bytes: scan_cutoffs[number].unwrap_or(SCAN_CUTOFF_BYTES),
            rule: rules[number].unwrap_or(Rule::All),
            write_budget: write_budgets[number],
            // A backing device that hangs would hold reads of what is cached: nobody gets that unasked.
            objective: objectives[number].flatten(),
            write_back: WriteBack {
                age_secs: ages[number].unwrap_or(usual.age_secs),
                dirty_max: limits[number].unwrap_or(usual.dirty_max),
                bytes_per_sec: rates[number].unwrap_or(usual.bytes_per_sec),
            },
            drains: stops[number].unwrap_or(true),
        });
    }
    Ok(volumes)
}

fn mode(text: &str) -> Result<Mode, String> {
    let named = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    named.ok_or_else(|| format!("expected one of {}", Mode::ALL.map(Mode::name).join(", ")))
}

fn cache_size(text: &str) -> Result<Size, String> {
    match text.parse::<Size>() {
        Ok(Size::Share(share)) if share > Size::WHOLE => Err("expected at most 100%".to_owned()),
        size => size.map_err(|error| error.to_string()),
    }
}

fn chunk_bytes(text: &str) -> Result<u32, &'static str> {
    match pumice_trace::bytes::<u32>(text)? {
        bytes if bytes.is_power_of_two() && (4 << 10..=128 << 10).contains(&bytes) => Ok(bytes),
        _ => Err("expected a power of two from 4KiB to 128KiB"),
    }
}

fn dirty_age(text: &str) -> Result<u32, &'static str> {
    let secs = text
        .parse()
        .ok()
        .filter(|secs| (1..=DIRTY_AGE_SECS_MAX).contains(secs));
    secs.ok_or("expected seconds, 1 to 86400")
}

/// A share from a percentage.
fn dirty_limit(text: &str) -> Result<f64, &'static str> {
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    Ok(percent.ok_or("expected a share above 0% and at most 100%")? / 100.0)
}

/// The values of a setting, one for each volume. It was given once for all, or for each.
fn each<T: Clone, E: fmt::Display>(
    given: &Given<'_>,
    count: usize,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Vec<Option<T>>> {
    let Some(texts) = given.list() else {
        return Ok(vec![None; count]);
    };
    if texts.len() != count && texts.len() != 1 {
        return Err(given.wrong(format!(
            "{} are given for {count} of --backing: give one for all, or one for each",
            texts.len()
        )));
    }
    let values = texts.into_iter().map(|text| parse(text).map(Some));
    let values = values
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| given.wrong(error))?;
    Ok(values.into_iter().cycle().take(count).collect())
}
