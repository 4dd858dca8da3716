//! What `serve` is told, checked and complete.

use super::familiar::Familiar;
use super::listen;
use crate::lifetime::Rating;
use crate::settings::{Given, Layers};
use crate::usage::usage;
use pumice::IndexKind;
use pumice::{AdmissionOptions, Durability, FlashWrite};
use pumice_advise::Endurance;
use pumice_door_memcached::Listen;
use pumice_flash::{LayoutError, LayoutName, LayoutOptions};
use pumice_nhc::Objective;
use pumice_trace::{Human, Size};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest value that can be asked for; memcached has the same bound.
const MAX_ITEM_BYTES: u64 = 1 << 30;

/// The longest idle timeout in seconds: a year.
const IDLE_TIMEOUT_SECS_MAX: u32 = 365 * 24 * 3600;

/// The longest time to wait for an answer of the flash device, in seconds, and the usual one.
const FLASH_TIMEOUT_SECS_MAX: u32 = 86_400;
const FLASH_TIMEOUT_SECS: u32 = 30;
/// The longest time to live that can be asked for, in seconds: a year.
const TTL_SECS_MAX: u32 = 365 * 24 * 3600;
/// The longest absence that can be asked for, in seconds: a year.
pub(super) const ABSENCE_SECS_MAX: u32 = 365 * 24 * 3600;
const FLUSH_INTERVAL_SECS_MAX: u32 = 86_400;
const FLUSH_INTERVAL_SECS: u32 = 5;

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// Budget of the whole process in bytes.
    pub dram: u64,
    /// The flash file or device.
    pub flash: PathBuf,
    /// Seconds after which a flash device that does not answer has failed; 0 = never.
    pub flash_timeout_secs: u32,
    /// Seconds after which what is in a block buffer alone is written; 0 = when its block is full.
    pub flush_interval_secs: u32,
    /// Seconds without a server after which a cache begins empty.
    pub max_absence_secs: Option<u32>,
    /// How much of it to use, if that was said.
    pub flash_size: Option<Size>,
    /// The file or device with copies of the flash, if there is to be one.
    pub performance_tier: Option<PathBuf>,
    /// How much of it to use, if that was said.
    pub performance_size: Option<Size>,
    /// What is to be best where reads are split; `None`: they are not.
    pub performance_objective: Option<Objective>,
    /// Block size in bytes, if that was said.
    pub block_size: Option<u64>,
    /// Erase what is there.
    pub reformat: bool,
    /// The layout of a new flash device, and what steers it.
    pub layout: LayoutOptions,
    /// Whether the layout was said.
    pub is_layout_given: bool,
    /// Whether anything was that steers one: policy, alpha or theta.
    pub is_policy_given: bool,
    /// Where mappings are; `None` where that is not said.
    pub index: Option<IndexKind>,
    /// When an object goes to flash.
    pub flash_write: FlashWrite,
    /// Which objects do, and how many bytes may be sent there.
    pub admission: AdmissionOptions,
    /// What a reply promises.
    pub durability: Durability,
    /// The largest value in bytes.
    pub max_item_size: u32,
    /// Where memcached is served, with TLS and without.
    pub memcached: Vec<Listen>,
    /// The files with the certificate and the key of TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The file that says who may use the memcached protocol.
    pub auth_file: Option<PathBuf>,
    /// Where admin is served.
    pub admin: Option<SocketAddr>,
    /// Worker threads.
    pub threads: usize,
    /// The most connections.
    pub max_connections: usize,
    /// How long a connection may be idle.
    pub idle_timeout: Option<Duration>,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// The user to become when started as root.
    pub user: Option<String>,
    /// Where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// Bytes that the flash device is rated to take, if that was said.
    pub endurance: Option<Endurance>,
}

impl ServeConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`crate::usage::Usage`], for the first setting that makes no sense or asks for what is not built.
    pub fn resolve(layers: &Layers, reformat: bool, familiar: &Familiar) -> anyhow::Result<Self> {
        let dram = dram(&layers.dram(), familiar.memory)?;
        let flash = device(&layers.flash())?.unwrap_or_else(|| "pumice.flash".into());
        let memcached = listen::addresses(layers)?;
        Ok(Self {
            flash_timeout_secs: secs(&layers.flash_timeout(), FLASH_TIMEOUT_SECS_MAX)?
                .unwrap_or(FLASH_TIMEOUT_SECS),
            flush_interval_secs: secs(&layers.flush_interval(), FLUSH_INTERVAL_SECS_MAX)?
                .unwrap_or(FLUSH_INTERVAL_SECS),
            max_absence_secs: secs(&layers.max_absence(), ABSENCE_SECS_MAX)?,
            dram,
            flash,
            flash_size: size(&layers.flash_size())?,
            performance_tier: performance_tier(layers)?,
            performance_size: size(&layers.performance_size())?,
            performance_objective: {
                let given = layers.performance_objective();
                objective(&given, given.text()?)?
            },
            block_size: block_size(&layers.block_size())?,
            reformat,
            layout: layout(layers)?,
            is_layout_given: layers.layout().text()?.is_some(),
            is_policy_given: layers.policy().text()?.is_some()
                || layers.alpha().text()?.is_some()
                || layers.theta().text()?.is_some(),
            index: index(layers)?,
            flash_write: flash_write(layers)?,
            admission: admission(layers)?,
            durability: layers
                .durability()
                .one_of(&[
                    ("process", Durability::Process),
                    ("power", Durability::Power),
                    ("off", Durability::Off),
                ])?
                .unwrap_or_default(),
            max_item_size: max_item_size(&layers.max_item_size())?,
            tls: listen::tls_files(layers, &memcached)?,
            memcached,
            auth_file: path(&layers.auth_file())?,
            admin: admin(&layers.admin())?,
            threads: number(&layers.threads(), 1024)?.unwrap_or_else(cpus),
            max_connections: number(&layers.max_connections(), 1 << 20)?.unwrap_or(1024),
            idle_timeout: secs(&layers.idle_timeout(), IDLE_TIMEOUT_SECS_MAX)?
                .filter(|secs| *secs > 0)
                .map(|secs| Duration::from_secs(u64::from(secs))),
            backlog: familiar.backlog.unwrap_or(1024),
            user: familiar.user.clone(),
            pid_file: familiar.pid_file.clone(),
            endurance: Rating::of_settings(layers)?.map(|(endurance, _)| endurance),
        })
    }
}

fn layout(layers: &Layers) -> anyhow::Result<LayoutOptions> {
    let setting = layers.layout();
    let layout = match setting.text()? {
        None => LayoutName::Ripq,
        Some(name) => name
            .parse()
            .map_err(|_| setting.wrong(format!("no such layout ({})", LayoutName::names())))?,
    };
    let (alpha, theta) = (layers.alpha().parse::<f64>()?, layers.theta().parse::<f64>()?);
    let options = LayoutOptions::new(layout, layers.policy().text()?, alpha, theta);
    options.map_err(|error| {
        let what = error.to_string();
        match error {
            LayoutError::Alpha(_) => layers.alpha().wrong(&what),
            LayoutError::Theta(_) => layers.theta().wrong(&what),
            _ => layers.policy().wrong(&what),
        }
    })
}

/// When objects go to flash.
///
/// # Errors
/// Usage, for a time that makes no sense.
pub(crate) fn flash_write(layers: &Layers) -> anyhow::Result<FlashWrite> {
    let times = [
        ("insertion", FlashWrite::Insertion),
        ("eviction", FlashWrite::Eviction),
    ];
    Ok(layers.flash_write().one_of(&times)?.unwrap_or_default())
}

/// What is let onto flash.
///
/// # Errors
/// Usage, for a setting that makes no sense.
pub(crate) fn admission(layers: &Layers) -> anyhow::Result<AdmissionOptions> {
    Ok(AdmissionOptions {
        rule: layers.flash_admit().parse()?.unwrap_or_default(),
        budget: layers.flash_write_budget().parse()?,
        object_bytes_max: object_bytes_max(&layers.flash_admit_size_max())?,
        ttl_secs_min: secs(&layers.flash_admit_ttl_min(), TTL_SECS_MAX)?.unwrap_or(0),
        ..AdmissionOptions::default()
    })
}

fn performance_tier(layers: &Layers) -> anyhow::Result<Option<PathBuf>> {
    let tier = device(&layers.performance_tier())?;
    let size = layers.performance_size();
    if tier.is_none() && size.text()?.is_some() {
        return Err(size.wrong("of which device? --performance-tier is not given"));
    }
    Ok(tier)
}

/// The objective of a text of `--performance-objective`; `None`: reads are not split.
pub(super) fn objective(given: &Given<'_>, text: Option<&str>) -> anyhow::Result<Option<Objective>> {
    let text = match text {
        None => return Ok(Some(Objective::default())),
        Some("classic") => return Ok(None),
        Some(text) => text,
    };
    let objective = text.parse().map_err(|_| {
        let all = [Objective::Throughput, Objective::Mean, Objective::P99];
        let names = all.map(|objective| objective.to_string());
        given.wrong(format!("no such objective ({}, classic)", names.join(", ")))
    })?;
    Ok(Some(objective))
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The budget of DRAM in bytes; `-m` may say it too.
pub(super) fn dram(given: &Given<'_>, memory: Option<u64>) -> anyhow::Result<u64> {
    // The environment and the file give way to a flag; two flags for the same cannot both be meant.
    if memory.is_some() && given.is_flag() {
        return Err(given.wrong("-m says the same thing; give only one of them"));
    }
    let there = memory_bytes("/proc".as_ref(), "/sys/fs/cgroup".as_ref());
    let bytes = match memory {
        Some(bytes) => bytes,
        None => size(given)?.unwrap_or(Size::Bytes(256 << 20)).of(there),
    };
    if bytes > there {
        let place = memory.map_or_else(|| given.wrong(""), |_| usage("option `-m`: "));
        return Err(usage(format!(
            "{place}{:#} is more than the machine or its control group has, {}",
            Human(bytes),
            Human(there),
        )));
    }
    Ok(bytes)
}

/// Memory that this process can have, in bytes: that of the machine, or less if a control group it is in has a limit.
fn memory_bytes(proc: &Path, cgroups: &Path) -> u64 {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let info = read(proc.join("meminfo"));
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let mut least = total
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib << 10);
    for line in read(proc.join("self/cgroup")).lines() {
        // `0::/path` of version 2, `7:memory:/path` of version 1. A limit holds for all below it.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => (cgroups.to_owned(), "memory.max"),
            "memory" => (cgroups.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = read(root.join(group).join(file)).trim().parse();
            least = least.min(limit.unwrap_or(u64::MAX));
        }
    }
    least
}

/// Where mappings are to be; `None` is left to the budget.
fn index(layers: &Layers) -> anyhow::Result<Option<IndexKind>> {
    let setting = layers.index();
    match setting.text()? {
        None | Some("auto") => Ok(None),
        Some(name) => match IndexKind::from_name(name) {
            None => Err(setting.wrong(format!("no such index (auto, {})", IndexKind::names()))),
            kind => Ok(kind),
        },
    }
}

pub(super) fn size(given: &Given<'_>) -> anyhow::Result<Option<Size>> {
    match given.parse()? {
        Some(Size::Share(share)) if share > Size::WHOLE => Err(given.wrong("expected at most 100%")),
        size => Ok(size),
    }
}

fn bytes(given: &Given<'_>) -> anyhow::Result<Option<u64>> {
    let bytes = given.text()?.map(pumice_trace::bytes).transpose();
    bytes.map_err(|what| given.wrong(what))
}

fn block_size(given: &Given<'_>) -> anyhow::Result<Option<u64>> {
    let bytes = bytes(given)?;
    match bytes {
        Some(bytes) if !bytes.is_power_of_two() || !(64 << 10..=256 << 20).contains(&bytes) => {
            Err(given.wrong("expected a power of two from 64KiB to 256MiB"))
        }
        bytes => Ok(bytes),
    }
}

fn object_bytes_max(given: &Given<'_>) -> anyhow::Result<u64> {
    match bytes(given)? {
        Some(0) => Err(given.wrong("nothing would be let onto flash")),
        bytes => Ok(bytes.unwrap_or(0)),
    }
}

fn max_item_size(given: &Given<'_>) -> anyhow::Result<u32> {
    let bytes = bytes(given)?.unwrap_or(1 << 20);
    u32::try_from(bytes)
        .ok()
        .filter(|_| (1024..=MAX_ITEM_BYTES).contains(&bytes))
        .ok_or_else(|| given.wrong("expected 1KiB to 1GiB"))
}

pub(super) fn number(given: &Given<'_>, most: usize) -> anyhow::Result<Option<usize>> {
    match given.parse::<usize>()? {
        Some(number) if number == 0 || number > most => {
            Err(given.wrong(format!("expected a number from 1 to {most}")))
        }
        number => Ok(number),
    }
}

pub(super) fn secs(given: &Given<'_>, most: u32) -> anyhow::Result<Option<u32>> {
    let Some(text) = given.text()? else {
        return Ok(None);
    };
    let secs = crate::times::secs(text).filter(|secs| *secs <= most);
    secs.map(Some).ok_or_else(|| {
        given.wrong(format!(
            "expected seconds from 0 to {most}, or a time such as 90s, 15m, 2h, 1d"
        ))
    })
}

/// A path, if one is given.
pub(super) fn path(given: &Given<'_>) -> anyhow::Result<Option<PathBuf>> {
    match given.text()? {
        Some("") => Err(given.wrong("the path is empty")),
        path => Ok(path.map(PathBuf::from)),
    }
}

/// The path of a device, if one is given. A list is meant for several, which settings of volumes take.
fn device(given: &Given<'_>) -> anyhow::Result<Option<PathBuf>> {
    match path(given)? {
        Some(path) if path.to_string_lossy().contains(',') => {
            Err(given.wrong("there is one such device, and a comma stands between several; make one of them, such as a RAID 0"))
        }
        path => Ok(path),
    }
}

pub(super) fn admin(given: &Given<'_>) -> anyhow::Result<Option<SocketAddr>> {
    match given.text()? {
        Some("off") => Ok(None),
        Some(text) => listen::address(text).map(Some).map_err(|what| given.wrong(what)),
        None => Ok(Some(SocketAddr::from(([127, 0, 0, 1], 11250)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice::Rule;

    #[test]
    fn memory_is_that_of_the_machine_or_of_the_tightest_group_around() {
        let files = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = files.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let found = || memory_bytes(files.path(), &files.path().join("cgroup"));
        put("meminfo", "MemTotal:       8192 kB\nMemFree: 1 kB\n");
        assert_eq!(found(), 8 << 20);
        put("self/cgroup", "0::/a/b\n");
        put("cgroup/a/b/memory.max", "max\n");
        assert_eq!(found(), 8 << 20);
        put("cgroup/a/memory.max", "5000000\n");
        assert_eq!(found(), 5_000_000);
        put("self/cgroup", "3:cpu:/x\n4:memory:/c\n");
        put("cgroup/memory/c/memory.limit_in_bytes", "4000000\n");
        assert_eq!(found(), 4_000_000);
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let config = ServeConfig::resolve(&Layers::default(), false, &Familiar::default()).unwrap();
        assert_eq!(config.dram, 256 << 20);
        assert_eq!(config.flash, PathBuf::from("pumice.flash"));
        assert_eq!(config.flash_size, None);
        assert_eq!(config.max_item_size, 1 << 20);
        assert_eq!(config.admin, Some(SocketAddr::from(([127, 0, 0, 1], 11250))));
        assert_eq!(
            (config.flash_write, config.durability),
            (FlashWrite::Insertion, Durability::Process)
        );
        assert!(config.threads >= 1);
        assert_eq!((config.flash_timeout_secs, config.flush_interval_secs), (30, 5));
        let layout = &config.layout;
        assert_eq!(
            (layout.layout, layout.policy.name().as_str()),
            (LayoutName::Ripq, "slru-3")
        );
        assert_eq!((layout.alpha, layout.theta), (1.0 / 8.0, 1.0));
    }

    #[test]
    fn what_is_let_onto_flash_arrives_and_what_makes_no_sense_is_refused_by_name() {
        let resolved = |file: &str| {
            let path = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(path.path(), file).unwrap();
            let layers = Layers::collect(crate::settings::Settings::default(), Some(path.path())).unwrap();
            ServeConfig::resolve(&layers, false, &Familiar::default()).map(|config| config.admission)
        };
        assert_eq!(resolved("").unwrap(), AdmissionOptions::default());
        let all = resolved("flash-admit = \"random:0.25\"\nflash-write-budget = \"2TB/day\"\n").unwrap();
        let budget = all.budget.map(|budget| (budget.bytes, budget.period_secs));
        assert_eq!(
            (all.rule, budget),
            (Rule::Random(0.25), Some((2_000_000_000_000, 86_400)))
        );
        let limits = resolved(
            "flash-admit = \"second-hit\"\nflash-admit-size-max = \"64KiB\"\nflash-admit-ttl-min = 60\n",
        )
        .unwrap();
        let found = (limits.rule, limits.object_bytes_max, limits.ttl_secs_min);
        assert_eq!(found, (Rule::SecondHit, 64 << 10, 60));
        for (name, text) in [
            ("flash-admit", "some"),
            ("flash-write-budget", "2TB"),
            ("flash-admit-size-max", "0"),
            ("flash-admit-size-max", "10%"),
            ("flash-admit-ttl-min", "soon"),
            ("flash-admit-ttl-min", "31536001"),
        ] {
            let error = resolved(&format!("{name} = \"{text}\"")).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_steers_the_layout_arrives() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "policy = \"lru\"\nalpha = 0.25\n").unwrap();
        let resolved = |flags| {
            let layers = Layers::collect(flags, Some(file.path())).unwrap();
            let layout = ServeConfig::resolve(&layers, false, &Familiar::default())
                .unwrap()
                .layout;
            (layout.alpha, layout.theta)
        };
        assert_eq!(resolved(crate::settings::Settings::default()), (0.25, 0.75));
        let flags = crate::settings::Settings {
            theta: Some(vec!["0.9".into()]),
            ..Default::default()
        };
        assert_eq!(resolved(flags), (0.25, 0.9));
    }
}
