//! What `serve` is told, checked and complete.

use super::familiar::Familiar;
use crate::settings::{Given, Layers};
use crate::size::Size;
use crate::usage::usage;
use pumice::IndexKind;
use pumice::{Durability, FlashWrite};
use pumice_door_memcached::Listen;
use pumice_flash::{Layout, LayoutError, LayoutOptions};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// The largest value that can be asked for; memcached has the same bound.
const MAX_ITEM_BYTES: u64 = 1 << 30;

/// The settings of a server.
#[derive(Debug)]
pub struct ServeConfig {
    /// Budget of the whole process in bytes.
    pub dram: u64,
    /// The flash file or device.
    pub flash: PathBuf,
    /// Where it is noted that the flash device has failed.
    pub state_dir: PathBuf,
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
    /// Where mappings are; `None` where that is not said.
    pub index: Option<IndexKind>,
    /// When an object goes to flash.
    pub flash_write: FlashWrite,
    /// What a reply promises.
    pub durability: Durability,
    /// The largest value in bytes.
    pub max_item_size: u32,
    /// Where memcached is served.
    pub memcached: Vec<Listen>,
    /// Where admin is served.
    pub admin: Option<SocketAddr>,
    /// Worker threads.
    pub threads: usize,
    /// The most connections.
    pub max_connections: usize,
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
        let dram = match options.memory_bytes {
            Some(bytes) => bytes,
            None => size(&layers.dram())?
                .unwrap_or(Size::Bytes(256 << 20))
                .of(memory_bytes()),
        };
        let flash = layers.flash().text()?.unwrap_or("pumice.flash");
        if flash.is_empty() {
            return Err(layers.flash().wrong("the path is empty"));
        }
        Ok(Self {
            state_dir: state_dir(&layers.state_dir())?,
            dram,
            flash: flash.into(),
            flash_size: size(&layers.flash_size())?,
            block_size: block_size(&layers.block_size())?,
            reformat,
            layout: layout(layers)?,
            is_layout_given: layers.layout().text()?.is_some(),
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
            memcached: listen(&layers.memcached(), familiar)?,
            admin: admin(&layers.admin())?,
            threads: match options.threads {
                Some(threads) => threads,
                None => number(&layers.threads(), 1024)?.unwrap_or_else(cpus),
            },
            max_connections: match options.max_connections {
                Some(connections) => connections,
                None => number(&layers.max_connections(), 1 << 20)?.unwrap_or(1024),
            },
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

fn conflict(given: &Given<'_>, is_given_too: bool, option: &str) -> anyhow::Result<()> {
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

fn admin(given: &Given<'_>) -> anyhow::Result<Option<SocketAddr>> {
    match given.text()? {
        Some("off") => Ok(None),
        Some(text) => address(text, None).map(Some).map_err(|what| given.wrong(what)),
        None => Ok(Some(SocketAddr::from(([127, 0, 0, 1], 9150)))),
    }
}

/// Where memcached is served: what our own setting says, or else memcached's options.
fn listen(given: &Given<'_>, familiar: &Familiar) -> anyhow::Result<Vec<Listen>> {
    let options = &familiar.options;
    let theirs = options.port.is_some() || options.socket.is_some() || !options.listen.is_empty();
    if theirs {
        conflict(given, true, "one of -p, -s and -l")?;
        return familiar_listen(familiar);
    }
    let Some(texts) = given.list() else {
        return Ok(vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 11211)))]);
    };
    if texts.is_empty() {
        return Err(given.wrong("expected at least one address"));
    }
    texts
        .into_iter()
        .map(|text| match text.strip_prefix("unix:") {
            Some("") => Err(given.wrong("expected a path after unix:")),
            Some(path) => Ok(Listen::Unix {
                path: path.into(),
                mode: options.socket_mode,
            }),
            None => address(text, None)
                .map(Listen::Tcp)
                .map_err(|what| given.wrong(what)),
        })
        .collect()
}

fn familiar_listen(familiar: &Familiar) -> anyhow::Result<Vec<Listen>> {
    let options = &familiar.options;
    let mut listen = Vec::new();
    if let Some(path) = &options.socket {
        listen.push(Listen::Unix {
            path: path.clone(),
            // As memcached has it.
            mode: Some(options.socket_mode.unwrap_or(0o700)),
        });
    }
    let tcp = match options.port {
        Some(0) => None,
        Some(port) => Some(port),
        None if options.socket.is_some() => None,
        None => Some(11211),
    };
    if let Some(port) = tcp {
        let hosts = if options.listen.is_empty() {
            vec!["127.0.0.1".to_owned()]
        } else {
            options.listen.clone()
        };
        for host in hosts {
            let address =
                address(&host, Some(port)).map_err(|what| usage(format!("option `-l {host}`: {what}")))?;
            listen.push(Listen::Tcp(address));
        }
    }
    if listen.is_empty() {
        return Err(usage(
            "option `-p 0`: nothing is left to listen on; give -s PATH or another port",
        ));
    }
    Ok(listen)
}

/// A socket address by number or name; the port may be left out where there is a default.
fn address(text: &str, port: Option<u16>) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let expected = "expected an address with a port, such as 127.0.0.1:11211 or [::1]:11211";
    let resolve = |host: &str, port: u16| {
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot resolve {host}: {error}"))?;
        found.next().ok_or_else(|| format!("{host} has no address"))
    };
    if let Some(port) = port
        && (text.parse::<std::net::IpAddr>().is_ok() || !text.contains(':'))
    {
        return resolve(if text == "*" { "0.0.0.0" } else { text }, port);
    }
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    let port = port.parse::<u16>().map_err(|_| expected)?;
    if host.is_empty() || host.contains(':') {
        return Err(expected.to_owned());
    }
    resolve(host, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::split_memcached_options;

    fn listens(options: &str) -> anyhow::Result<Vec<String>> {
        let words = format!("pumice serve {options}");
        let (_, familiar) = split_memcached_options(words.split_whitespace().map(Into::into).collect())?;
        let config = ServeConfig::resolve(&Layers::default(), false, &familiar)?;
        let text = |listen| match listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix { path, mode } => format!("{} {:o}", path.display(), mode.unwrap_or(0)),
        };
        Ok(config.memcached.into_iter().map(text).collect())
    }

    #[test]
    fn memcached_listens_where_its_options_say() {
        assert_eq!(listens("").unwrap(), ["127.0.0.1:11211"]);
        assert_eq!(listens("-p 5").unwrap(), ["127.0.0.1:5"]);
        assert_eq!(listens("-s /s").unwrap(), ["/s 700"]);
        assert_eq!(listens("-s /s -a 666 -p 5").unwrap(), ["/s 666", "127.0.0.1:5"]);
        assert_eq!(
            listens("-l 127.0.0.2,::1 -l 127.0.0.3:7").unwrap(),
            ["127.0.0.2:11211", "[::1]:11211", "127.0.0.3:7"]
        );
        assert_eq!(listens("-l *").unwrap(), ["0.0.0.0:11211"]);
        assert!(listens("-p 0").is_err());
        assert!(listens("-l no.such.host.invalid").is_err());
    }

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
    }

    #[test]
    fn addresses_need_a_port_unless_there_is_a_default() {
        assert_eq!(address("[::1]:5", None).unwrap().to_string(), "[::1]:5");
        assert_eq!(address("127.0.0.1", Some(9)).unwrap().to_string(), "127.0.0.1:9");
        for text in ["127.0.0.1", "::1", ":5", "1.2.3.4:99999", ""] {
            assert!(address(text, None).is_err(), "{text}");
        }
    }
}
