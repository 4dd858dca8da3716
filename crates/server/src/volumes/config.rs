//! The settings of `serve --nbd`, checked.

use crate::familiar::Familiar;
use crate::host::config::{HostConfig, objective};
use crate::host::listen;
use crate::lifetime::Rating;
use crate::settings::{Given, Layers};
use crate::usage::usage;
use pumice_admit::{BadBudget, BadRule, Rule, WriteBudget};
use pumice_net::Listen;
use pumice_nhc::Objective;
use pumice_remote::{Place, Uri, UriError};
use pumice_trace::Size;
use pumice_volume::{Mode, WriteBack};
use std::fmt;
use std::path::{Path, PathBuf};

/// The longest `--dirty-age`.
const DIRTY_AGE_SECS_MAX: u32 = 86_400;

/// Default of `--read-ahead`.
const READ_AHEAD_BYTES: u64 = 4 << 20;

/// Default of `--scan-cutoff`, as Open CAS's, which counts too when the cache is full.
const SCAN_CUTOFF_BYTES: u64 = 1 << 20;

/// Settings of a server of volumes. All others are of the object cache.
const OF_VOLUMES: [&str; 28] = [
    "nbd",
    "backing",
    "cache",
    "cache-size",
    "mode",
    "chunk-size",
    "read-ahead",
    "scan-cutoff",
    "flash-admit",
    "flash-write-budget",
    "performance-objective",
    "dirty-age",
    "dirty-limit",
    "clean-rate",
    "on-stop",
    "dram",
    "threads",
    "max-connections",
    "flash-timeout",
    "max-absence",
    "tbw",
    "dwpd",
    "cycles",
    "drive-size",
    "warranty",
    "unix-mode",
    "admin",
    "log-format",
];

/// What names a backing device.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The path of a file or a block device.
    Path(PathBuf),
    /// The address of an export of an NBD server.
    Uri(Uri),
}

impl Source {
    /// The path or address that a text is.
    ///
    /// # Errors
    /// A text that begins as an address of NBD and is none.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        match Uri::is_meant(text) {
            true => text.parse().map(Self::Uri),
            false => Ok(Self::Path(text.into())),
        }
    }

    /// The name under which clients find the volume: that of the file or of the export; if it has none, that of the server's host or socket.
    fn name(&self) -> Option<String> {
        let of_path = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        match self {
            Self::Path(path) => of_path(path),
            Self::Uri(Uri { place, export }) => {
                match (export.rsplit('/').find(|part| !part.is_empty()), place) {
                    (Some(name), _) => Some(name.to_owned()),
                    (None, Place::Tcp(host, _)) => Some(host.clone()),
                    (None, Place::Unix(path)) => of_path(path),
                }
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(out),
            Self::Uri(uri) => uri.fmt(out),
        }
    }
}

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
    /// [`crate::usage::Usage`], for the first setting that cannot work.
    pub fn resolve(layers: &Layers, reformat: bool, familiar: &Familiar) -> anyhow::Result<Option<Self>> {
        let nbd = layers.nbd();
        if nbd.list().is_none() {
            for given in [
                layers.backing(),
                layers.cache(),
                layers.cache_size(),
                layers.mode(),
                layers.chunk_size(),
                layers.read_ahead(),
                layers.scan_cutoff(),
                layers.dirty_age(),
                layers.dirty_limit(),
                layers.clean_rate(),
                layers.on_stop(),
            ] {
                if given.list().is_some() {
                    return Err(given.wrong("volumes are served over NBD: give --nbd unix:PATH or ADDR:PORT"));
                }
            }
            return Ok(None);
        }
        for (name, given) in layers.given() {
            if !OF_VOLUMES.contains(&name) {
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
        if let Some((_, given)) = Rating::of_settings(layers)?
            && volumes.iter().all(|volume| volume.cache.is_none())
        {
            return Err(given.wrong("no volume has a cache, and so no flash that wears out: leave it out"));
        }
        Ok(Some(Self {
            host: HostConfig::resolve(layers, reformat, familiar)?,
            nbd: listens,
            volumes,
        }))
    }
}

fn volumes(layers: &Layers) -> anyhow::Result<Vec<VolumeConfig>> {
    let (backing, cache) = (layers.backing(), layers.cache());
    let Some(backings) = backing.list() else {
        return Err(usage(
            "--nbd: of what? Give --backing FILE, and --cache FILE beside it",
        ));
    };
    let count = backings.len();
    let caches = each(&cache, count)?;
    let sizes = each(&layers.cache_size(), count)?;
    let modes = each(&layers.mode(), count)?;
    let chunk_sizes = each(&layers.chunk_size(), count)?;
    let read_aheads = each(&layers.read_ahead(), count)?;
    let scan_cutoffs = each(&layers.scan_cutoff(), count)?;
    let objectives = layers.performance_objective();
    let objectives_of = each(&objectives, count)?;
    let (rules, write_budgets) = admission(layers, count)?;
    let write_backs = write_backs(layers, count)?;
    let stops = each(&layers.on_stop(), count)?;
    let mut volumes: Vec<VolumeConfig> = Vec::new();
    for (number, file) in backings.into_iter().enumerate() {
        let named = |name: &str| Mode::ALL.into_iter().find(|mode| mode.name() == name);
        let Some(mode) = modes[number].map_or(Some(Mode::WriteThrough), named) else {
            let names = Mode::ALL.map(Mode::name).join(", ");
            return Err(layers.mode().wrong(format!("expected one of {names}")));
        };
        let source = Source::parse(file).map_err(|error| backing.wrong(error.to_string()))?;
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
        let cache_file = caches[number].map(PathBuf::from);
        if cache_file.is_none() && mode != Mode::PassThrough {
            return Err(usage(
                "--cache: which file or device is the cache to be on? Without one: --mode pass-through",
            ));
        }
        let cache_size = sizes[number]
            .map(|text| match text.parse::<Size>() {
                Ok(Size::Share(share)) if share > Size::WHOLE => Err("expected at most 100%".to_owned()),
                size => size.map_err(|error| error.to_string()),
            })
            .transpose()
            .map_err(|what| layers.cache_size().wrong(what))?;
        let chunk_bytes = chunk_sizes[number]
            .map(|text| match pumice_trace::bytes::<u32>(text)? {
                bytes if bytes.is_power_of_two() && (4 << 10..=128 << 10).contains(&bytes) => Ok(bytes),
                _ => Err("expected a power of two from 4KiB to 128KiB"),
            })
            .transpose()
            .map_err(|what| layers.chunk_size().wrong(what))?;
        let read_ahead_bytes = read_aheads[number].map_or(Ok(READ_AHEAD_BYTES), pumice_trace::bytes);
        let read_ahead_bytes = read_ahead_bytes.map_err(|what| layers.read_ahead().wrong(what))?;
        let scan_cutoff_bytes = scan_cutoffs[number].map_or(Ok(SCAN_CUTOFF_BYTES), pumice_trace::bytes);
        let scan_cutoff_bytes = scan_cutoff_bytes.map_err(|what| layers.scan_cutoff().wrong(what))?;
        volumes.push(VolumeConfig {
            name,
            backing: source,
            cache: cache_file,
            cache_size,
            mode,
            chunk_bytes,
            read_ahead_bytes,
            scan_cutoff_bytes,
            rule: rules[number],
            write_budget: write_budgets[number],
            // A backing device that hangs would hold reads of what is cached: nobody gets that unasked.
            objective: objective(&objectives, Some(objectives_of[number].unwrap_or("classic")))?,
            write_back: write_backs[number],
            drains: match stops[number] {
                None | Some("drain") => true,
                Some("keep") => false,
                Some(_) => return Err(layers.on_stop().wrong("expected drain or keep")),
            },
        });
    }
    Ok(volumes)
}

/// Which chunks enter the caches, and what these may be sent.
fn admission(layers: &Layers, count: usize) -> anyhow::Result<(Vec<Rule>, Vec<Option<WriteBudget>>)> {
    let (rules, budgets) = (layers.flash_admit(), layers.flash_write_budget());
    let rule = |text: Option<&str>| text.map_or(Ok(Rule::All), str::parse);
    let budget = |text: Option<&str>| text.map(str::parse).transpose();
    let rules_of: Result<_, _> = each(&rules, count)?.into_iter().map(rule).collect();
    let budgets_of: Result<_, _> = each(&budgets, count)?.into_iter().map(budget).collect();
    Ok((
        rules_of.map_err(|error: BadRule| rules.wrong(error))?,
        budgets_of.map_err(|error: BadBudget| budgets.wrong(error))?,
    ))
}

/// When the cleaners of the volumes clean.
fn write_backs(layers: &Layers, count: usize) -> anyhow::Result<Vec<WriteBack>> {
    let (ages, limits, rates) = (layers.dirty_age(), layers.dirty_limit(), layers.clean_rate());
    let mut all = vec![WriteBack::default(); count];
    for (of, text) in all.iter_mut().zip(each(&ages, count)?) {
        let age = text.map(|text| {
            text.parse()
                .ok()
                .filter(|secs| (1..=DIRTY_AGE_SECS_MAX).contains(secs))
        });
        match age {
            Some(None) => return Err(ages.wrong("expected seconds, 1 to 86400")),
            Some(Some(secs)) => of.age_secs = secs,
            None => {}
        }
    }
    for (of, text) in all.iter_mut().zip(each(&limits, count)?) {
        let share = text.map(|text| {
            let percent = text
                .strip_suffix('%')
                .and_then(|number| number.parse::<f64>().ok());
            percent.filter(|percent| *percent > 0.0 && *percent <= 100.0)
        });
        match share {
            Some(None) => return Err(limits.wrong("expected a share above 0% and at most 100%")),
            Some(Some(percent)) => of.dirty_max = percent / 100.0,
            None => {}
        }
    }
    for (of, text) in all.iter_mut().zip(each(&rates, count)?) {
        if let Some(text) = text {
            of.bytes_per_sec = pumice_trace::bytes(text).map_err(|what| rates.wrong(what))?;
        }
    }
    Ok(all)
}

/// The values of a setting, one for each volume. It was given once for all, or for each.
fn each<'a>(given: &Given<'a>, count: usize) -> anyhow::Result<Vec<Option<&'a str>>> {
    match given.list() {
        None => Ok(vec![None; count]),
        Some(texts) if texts.len() == count => Ok(texts.into_iter().map(Some).collect()),
        Some(texts) if texts.len() == 1 => Ok(vec![Some(texts[0]); count]),
        Some(texts) => Err(given.wrong(format!(
            "{} are given for {count} of --backing: give one for all, or one for each",
            texts.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn resolve(file: &str) -> Result<Option<VolumesConfig>, String> {
        let settings: Settings = toml::from_str(file).unwrap();
        let layers = Layers::collect(settings, None).unwrap();
        VolumesConfig::resolve(&layers, false, &Familiar::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn several_volumes_have_one_setting_or_one_each() {
        let config = resolve(
            "nbd = [\"unix:/s\", \"127.0.0.1:5\"]\nbacking = [\"/v/a\", \"b\"]\ncache = \"x,y\"\ncache-size = \"1GiB\"\n\
             mode = [\"read-only\", \"write-around\"]\nchunk-size = \"8KiB\"\nread-ahead = \"1MiB,0\"\n\
             scan-cutoff = \"0,64MiB\"\nflash-admit = [\"second-hit\", \"random:0.5\"]\nflash-write-budget = \"2TB/day\"\n\
             performance-objective = \"mean,classic\"\n",
        );
        let config = config.unwrap().unwrap();
        let volume = |name: &str,
                      backing: &str,
                      cache: &str,
                      mode,
                      [read_ahead_bytes, scan_cutoff_bytes]: [u64; 2]| VolumeConfig {
            name: name.to_owned(),
            backing: Source::parse(backing).unwrap(),
            cache: Some(cache.into()),
            cache_size: Some(Size::Bytes(1 << 30)),
            mode,
            chunk_bytes: Some(8 << 10),
            read_ahead_bytes,
            scan_cutoff_bytes,
            rule: match mode {
                Mode::ReadOnly => Rule::SecondHit,
                _ => Rule::Random(0.5),
            },
            write_budget: "2TB/day".parse().ok(),
            objective: Some(Objective::Mean).filter(|_| mode == Mode::ReadOnly),
            write_back: WriteBack::default(),
            drains: true,
        };
        assert_eq!(
            config.volumes,
            [
                volume("a", "/v/a", "x", Mode::ReadOnly, [1 << 20, 0]),
                volume("b", "b", "y", Mode::WriteAround, [0, 64 << 20])
            ]
        );
        assert_eq!(config.nbd.len(), 2);
        assert_eq!(config.host.max_connections, None);
    }

    #[test]
    fn write_back_has_an_age_a_limit_a_rate_and_a_stop() {
        let config = resolve(
            "nbd = \"unix:/s\"\nbacking = \"a,b\"\ncache = \"x,y\"\nmode = \"write-back\"\ndirty-age = \"5,60\"\n\
             dirty-limit = \"12.5%\"\nclean-rate = \"0,8MiB\"\non-stop = \"keep,drain\"\n",
        );
        let volumes = config.unwrap().unwrap().volumes;
        let seen = |volume: &VolumeConfig| {
            let WriteBack {
                age_secs,
                dirty_max,
                bytes_per_sec,
            } = volume.write_back;
            (age_secs, dirty_max, bytes_per_sec, volume.drains)
        };
        assert!(volumes.iter().all(|volume| volume.mode == Mode::WriteBack));
        assert_eq!(seen(&volumes[0]), (5, 0.125, 0, false));
        assert_eq!(seen(&volumes[1]), (60, 0.125, 8 << 20, true));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        assert!(matches!(resolve("dram = \"1GiB\""), Ok(None)));
        for (file, words) in [
            ("backing = \"a\"", "give --nbd"),
            ("nbd = \"unix:/s\"", "--backing"),
            ("nbd = \"unix:/s\"\nbacking = \"a\"", "--cache"),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"write\"",
                "write-through",
            ),
            ("nbd = \"unix:/s\"\nbacking = \"a/x,b/x\"\ncache = \"c,d\"", "`x`"),
            (
                "nbd = \"unix:/s\"\nbacking = \"a,b,c\"\ncache = \"c,d\"",
                "one for each",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nchunk-size = \"5000\"",
                "power of two",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nread-ahead = \"some\"",
                "--read-ahead",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nscan-cutoff = \"-1\"",
                "--scan-cutoff",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit = \"some\"",
                "second-hit",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit = \"all,all\"",
                "one for each",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-write-budget = \"2TB\"",
                "2TB/day",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit-size-max = \"64KiB\"",
                "of the cache of objects",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit-ttl-min = 60",
                "of the cache of objects",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ndirty-age = 0",
                "86400",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ndirty-limit = \"0%\"",
                "--dirty-limit",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nclean-rate = \"x\"",
                "--clean-rate",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\non-stop = \"wait\"",
                "drain or keep",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nperformance-objective = \"best\"",
                "throughput, mean, p99, classic",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"pass-through\"\ntbw = \"600\"",
                "--tbw",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"pass-through\"\ndwpd = \"1\"\ndrive-size = \"960\"",
                "--dwpd",
            ),
            ("dirty-age = 5", "give --nbd"),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ncache-size = \"101%\"",
                "100%",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash = \"f\"",
                "--flash",
            ),
            (
                "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ntls-key = \"k\"",
                "--tls-key",
            ),
            ("nbd = \"off\"\nbacking = \"a\"\ncache = \"c\"", "nowhere"),
            ("nbd = \"nowhere\"\nbacking = \"a\"\ncache = \"c\"", "--nbd"),
        ] {
            let refused = resolve(file).expect_err(file);
            assert!(refused.contains(words), "{file}: {refused}");
        }
    }
}
