//! Settings that every service has, checked.

use super::listen;
use crate::Flags;
use crate::lifetime;
use crate::settings::{Given, Layers};
use pumice_advise::Endurance;
use pumice_console::usage;
use pumice_nhc::Objective;
use pumice_trace::{Human, Size};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The longest time to wait for an answer of a device, in seconds, and the usual one.
const FLASH_TIMEOUT_SECS_MAX: u32 = 86_400;
const FLASH_TIMEOUT_SECS: u32 = 30;
/// The longest absence that can be asked for, in seconds: a year.
const ABSENCE_SECS_MAX: u32 = 365 * 24 * 3600;

/// The settings of a host.
#[derive(Debug)]
pub struct HostConfig {
    /// Budget of the whole process in bytes.
    pub dram: u64,
    /// Worker threads.
    pub threads: usize,
    /// The most connections, if that was said.
    pub max_connections: Option<usize>,
    /// Where admin is served.
    pub admin: Option<SocketAddr>,
    /// Seconds after which a flash device that does not answer has failed; 0 = never.
    pub flash_timeout_secs: u32,
    /// Seconds without a server after which a cache begins empty.
    pub max_absence_secs: Option<u32>,
    /// Erase what is there.
    pub reformat: bool,
    /// The user to become when started as root.
    pub user: Option<String>,
    /// Where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// Bytes that a drive of flash is rated to take, if that was said.
    pub endurance: Option<Endurance>,
}

impl HostConfig {
    /// Checks these settings.
    ///
    /// # Errors
    /// [`Usage`](pumice_console::Usage), for the first that makes no sense.
    pub fn resolve(layers: &Layers, flags: &Flags) -> anyhow::Result<Self> {
        Ok(Self {
            dram: dram(&layers.dram(), flags.memory)?,
            threads: number(&layers.threads(), 1024)?.unwrap_or_else(cpus),
            max_connections: number(&layers.max_connections(), 1 << 20)?,
            admin: admin(&layers.admin())?,
            flash_timeout_secs: secs(&layers.flash_timeout(), FLASH_TIMEOUT_SECS_MAX)?
                .unwrap_or(FLASH_TIMEOUT_SECS),
            max_absence_secs: secs(&layers.max_absence(), ABSENCE_SECS_MAX)?,
            reformat: flags.reformat,
            user: flags.user.clone(),
            pid_file: flags.pid_file.clone(),
            endurance: lifetime::endurance(layers)?.map(|(endurance, _)| endurance),
        })
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The budget of DRAM in bytes; `-m` may say it too.
fn dram(given: &Given<'_>, memory: Option<u64>) -> anyhow::Result<u64> {
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
pub fn memory_bytes(proc: &Path, cgroups: &Path) -> u64 {
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

pub(crate) fn size(given: &Given<'_>) -> anyhow::Result<Option<Size>> {
    match given.parse()? {
        Some(Size::Share(share)) if share > Size::WHOLE => Err(given.wrong("expected at most 100%")),
        size => Ok(size),
    }
}

pub(crate) fn bytes(given: &Given<'_>) -> anyhow::Result<Option<u64>> {
    given.read(pumice_trace::bytes)
}

fn number(given: &Given<'_>, most: usize) -> anyhow::Result<Option<usize>> {
    match given.parse::<usize>()? {
        Some(number) if number == 0 || number > most => {
            Err(given.wrong(format!("expected a number from 1 to {most}")))
        }
        number => Ok(number),
    }
}

pub(crate) fn secs(given: &Given<'_>, most: u32) -> anyhow::Result<Option<u32>> {
    given.read(|text| {
        let secs = seconds(text).filter(|secs| *secs <= most);
        secs.ok_or_else(|| format!("expected seconds from 0 to {most}, or a time such as 90s, 15m, 2h, 1d"))
    })
}

/// Seconds of a text such as `90`, `90s`, `15m`, `2h` or `1d`; `None` for other text.
fn seconds(text: &str) -> Option<u32> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let unit = units
        .iter()
        .find_map(|(unit, secs)| Some((text.strip_suffix(unit)?, *secs)));
    let (number, secs) = unit.unwrap_or((text, 1));
    number.parse::<u32>().ok()?.checked_mul(secs)
}

/// A path, if one is given.
pub(crate) fn path(given: &Given<'_>) -> anyhow::Result<Option<PathBuf>> {
    match given.text()? {
        Some("") => Err(given.wrong("the path is empty")),
        path => Ok(path.map(PathBuf::from)),
    }
}

/// The path of a device, if one is given. A list is meant for several, which settings of volumes take.
pub(crate) fn device(given: &Given<'_>) -> anyhow::Result<Option<PathBuf>> {
    match path(given)? {
        Some(path) if path.to_string_lossy().contains(',') => {
            Err(given.wrong("there is one such device, and a comma stands between several; make one of them, such as a RAID 0"))
        }
        path => Ok(path),
    }
}

fn admin(given: &Given<'_>) -> anyhow::Result<Option<SocketAddr>> {
    match given.text()? {
        Some("off") => Ok(None),
        Some(text) => listen::address(text).map(Some).map_err(|what| given.wrong(what)),
        None => Ok(Some(SocketAddr::from(([127, 0, 0, 1], 11250)))),
    }
}

/// The objective of a text of `--performance-objective`; `None`: reads are not split.
pub(crate) fn objective(text: &str) -> Result<Option<Objective>, String> {
    if text == "classic" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        let all = [Objective::Throughput, Objective::Mean, Objective::P99];
        let names = all.map(|objective| objective.to_string());
        format!("no such objective ({}, classic)", names.join(", "))
    })
}
