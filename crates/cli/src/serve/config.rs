//! What `serve` is told, checked and complete.

use super::familiar::Familiar;
use super::listen;
use crate::settings::{Given, Layers};
use crate::size::Size;
use pumice::IndexKind;
use pumice::{Durability, FlashWrite};
use pumice_door_memcached::Listen;
use pumice_door_memcached::options::IDLE_TIMEOUT_SECS_MAX;
use pumice_flash::{Layout, LayoutError, LayoutOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The largest value that can be asked for; memcached has the same bound.
const MAX_ITEM_BYTES: u64 = 1 << 30;

/// The longest time to wait for an answer of the flash device, in seconds, and the usual one.
const FLASH_TIMEOUT_SECS_MAX: u32 = 86_400;
const FLASH_TIMEOUT_SECS: u32 = 30;

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// Budget of the whole process in bytes.
    pub dram: u64,
    /// The flash file or device.
    pub flash: PathBuf,
    /// Where it is noted that the flash device has failed.
    pub state_dir: PathBuf,
    /// Seconds after which a flash device that does not answer has failed; 0 = never.
    pub flash_timeout_secs: u32,
    /// How much of it to use, if that was said.
    pub flash_size: Option<Size>,
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
}

/// Where failures are noted if nothing else is said: it is mostly there, and outlives a restart of the machine.
const STATE_DIR: &str = "/var/tmp";

fn state_dir(given: &Given<'_>) -> anyhow::Result<PathBuf> {
    match given.text()? {
        None => Ok(STATE_DIR.into()),
        Some(path) if std::path::Path::new(path).is_dir() => Ok(path.into()),
        Some(_) => Err(given.wrong("there is no such directory")),
    }
}

impl ServeConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`crate::usage::Usage`], for the first setting that makes no sense or asks for what is not built.
    pub fn resolve(layers: &Layers, reformat: bool, familiar: &Familiar) -> anyhow::Result<Self> {
        let options = &familiar.options;
        conflict(&layers.dram(), options.memory_bytes.is_some(), "-m")?;
        conflict(&layers.threads(), options.threads.is_some(), "-t")?;
        conflict(&layers.max_connections(), options.max_connections.is_some(), "-c")?;
        conflict(&layers.max_item_size(), options.max_item_bytes.is_some(), "-I")?;
        conflict(&layers.auth_file(), options.auth_file.is_some(), "-Y")?;
        conflict(
            &layers.idle_timeout(),
            options.idle_timeout_secs.is_some(),
            "-o idle_timeout",
        )?;
        let dram = match options.memory_bytes {
            Some(bytes) => bytes,
            None => size(&layers.dram())?
                .unwrap_or(Size::Bytes(256 << 20))
                .of(memory_bytes()),
        };
        let flash = path(&layers.flash())?.unwrap_or_else(|| "pumice.flash".into());
        let memcached = listen::addresses(layers, familiar)?;
        Ok(Self {
            state_dir: state_dir(&layers.state_dir())?,
            flash_timeout_secs: secs(&layers.flash_timeout(), FLASH_TIMEOUT_SECS_MAX)?
                .unwrap_or(FLASH_TIMEOUT_SECS),
            dram,
            flash,
            flash_size: size(&layers.flash_size())?,
            block_size: block_size(&layers.block_size())?,
            reformat,
            layout: layout(layers)?,
            is_layout_given: layers.layout().text()?.is_some(),
            is_policy_given: layers.policy().text()?.is_some()
                || layers.alpha().text()?.is_some()
                || layers.theta().text()?.is_some(),
            index: index(layers)?,
            flash_write: layers
                .flash_write()
                .one_of(&[
                    ("insertion", FlashWrite::Insertion),
                    ("eviction", FlashWrite::Eviction),
                ])?
                .unwrap_or_default(),
            durability: layers
                .durability()
                .one_of(&[
                    ("process", Durability::Process),
                    ("power", Durability::Power),
                    ("off", Durability::Off),
                ])?
                .unwrap_or_default(),
            max_item_size: match options.max_item_bytes {
                Some(bytes) => bytes,
                None => max_item_size(&layers.max_item_size())?,
            },
            tls: listen::tls_files(layers, options, &memcached)?,
            memcached,
            auth_file: match &options.auth_file {
                Some(path) => Some(path.clone()),
                None => path(&layers.auth_file())?,
            },
            admin: admin(&layers.admin())?,
            threads: match options.threads {
                Some(threads) => threads,
                None => number(&layers.threads(), 1024)?.unwrap_or_else(cpus),
            },
            max_connections: match options.max_connections {
                Some(connections) => connections,
                None => number(&layers.max_connections(), 1 << 20)?.unwrap_or(1024),
            },
            idle_timeout: match options.idle_timeout_secs {
                Some(secs) => Some(secs),
                None => secs(&layers.idle_timeout(), IDLE_TIMEOUT_SECS_MAX)?,
            }
            .filter(|secs| *secs > 0)
            .map(|secs| Duration::from_secs(u64::from(secs))),
            backlog: options.backlog.unwrap_or(1024),
            user: options.user.clone(),
            pid_file: options.pid_file.clone(),
        })
    }
}

fn layout(layers: &Layers) -> anyhow::Result<LayoutOptions> {
    let setting = layers.layout();
    let layout = match setting.text()? {
        None => Layout::Ripq,
        Some(name) => name
            .parse()
            .map_err(|_| setting.wrong("no such layout (ripq, sipq, fifo)"))?,
    };
    let (alpha, theta) = (layers.alpha().parse::<f64>()?, layers.theta().parse::<f64>()?);
    let reclaim = layers.reclaim();
    let keeps_hot = match reclaim.text()? {
        None | Some("two-phase") => true,
        Some("evict") => false,
        Some(_) => return Err(reclaim.wrong("no such reclaim (two-phase, evict)")),
    };
    let options = LayoutOptions::new(layout, layers.policy().text()?, alpha, theta);
    let options = options.map(|options| LayoutOptions { keeps_hot, ..options });
    options.map_err(|error| {
        let what = error.to_string();
        match error {
            LayoutError::Alpha(_) => layers.alpha().wrong(&what),
            LayoutError::Theta(_) => layers.theta().wrong(&what),
            _ => layers.policy().wrong(&what),
        }
    })
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine's memory in bytes.
fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    total.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Where mappings are to be; `None` is left to the budget.
fn index(layers: &Layers) -> anyhow::Result<Option<IndexKind>> {
    let setting = layers.index();
    match setting.text()? {
        None | Some("auto") => Ok(None),
        Some("full") => Ok(Some(IndexKind::Full)),
        Some("cascade") => Ok(Some(IndexKind::Cascade)),
        Some(_) => Err(setting.wrong("no such index (auto, full, cascade)")),
    }
}

pub(super) fn conflict(given: &Given<'_>, is_given_too: bool, option: &str) -> anyhow::Result<()> {
    // The environment and the file give way to a flag; two flags for the same cannot both be meant.
    if is_given_too && given.is_flag() {
        return Err(given.wrong(format!("{option} says the same thing; give only one of them")));
    }
    Ok(())
}

fn size(given: &Given<'_>) -> anyhow::Result<Option<Size>> {
    given.parse()
}

fn bytes(given: &Given<'_>) -> anyhow::Result<Option<u64>> {
    match given.parse::<Size>()? {
        None => Ok(None),
        Some(size) => size
            .bytes()
            .map(Some)
            .ok_or_else(|| given.wrong("a percentage makes no sense here")),
    }
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

fn max_item_size(given: &Given<'_>) -> anyhow::Result<u32> {
    let bytes = bytes(given)?.unwrap_or(1 << 20);
    u32::try_from(bytes)
        .ok()
        .filter(|_| (1024..=MAX_ITEM_BYTES).contains(&bytes))
        .ok_or_else(|| given.wrong("expected 1KiB to 1GiB"))
}

fn number(given: &Given<'_>, most: usize) -> anyhow::Result<Option<usize>> {
    match given.parse::<usize>()? {
        Some(number) if number == 0 || number > most => {
            Err(given.wrong(format!("expected a number from 1 to {most}")))
        }
        number => Ok(number),
    }
}

fn secs(given: &Given<'_>, most: u32) -> anyhow::Result<Option<u32>> {
    match given.parse::<u32>()? {
        Some(secs) if secs > most => Err(given.wrong(format!("expected seconds from 0 to {most}"))),
        secs => Ok(secs),
    }
}

/// A path, if one is given.
pub(super) fn path(given: &Given<'_>) -> anyhow::Result<Option<PathBuf>> {
    match given.text()? {
        Some("") => Err(given.wrong("the path is empty")),
        path => Ok(path.map(PathBuf::from)),
    }
}

fn admin(given: &Given<'_>) -> anyhow::Result<Option<SocketAddr>> {
    match given.text()? {
        Some("off") => Ok(None),
        Some(text) => listen::address(text, None)
            .map(Some)
            .map_err(|what| given.wrong(what)),
        None => Ok(Some(SocketAddr::from(([127, 0, 0, 1], 9150)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let config = ServeConfig::resolve(&Layers::default(), false, &Familiar::default()).unwrap();
        assert_eq!(config.dram, 256 << 20);
        assert_eq!(config.flash, PathBuf::from("pumice.flash"));
        assert_eq!(config.flash_size, None);
        assert_eq!(config.max_item_size, 1 << 20);
        assert_eq!(config.admin, Some(SocketAddr::from(([127, 0, 0, 1], 9150))));
        assert_eq!(
            (config.flash_write, config.durability),
            (FlashWrite::Insertion, Durability::Process)
        );
        assert!(config.threads >= 1);
        assert_eq!(config.flash_timeout_secs, 30);
        let layout = &config.layout;
        assert_eq!(
            (layout.layout, layout.policy.name().as_str()),
            (Layout::Ripq, "slru-3")
        );
        assert_eq!((layout.alpha, layout.theta), (1.0 / 8.0, 1.0));
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
