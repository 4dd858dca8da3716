//! memcached's own options among those of `serve`, so that Pumice drops into places that start memcached. Options that mean the same as a
//! setting are short names of it; the rest is here.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use pumice_console::usage;
use pumice_server::Flags;
use pumice_server::settings::Settings;
use pumice_trace::Size;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// memcached's options (those of 1.6.39) beside the short names of settings. Help does not list them, docs/install.md does.
#[derive(Args, Clone, Debug, Default)]
pub struct Familiar {
    /// The TCP port; 0 is none.
    #[arg(short, long, hide = true)]
    port: Option<u16>,
    /// A unix socket. memcached then listens on no TCP port unless one is given too.
    #[arg(short = 's', long = "unix-socket", hide = true)]
    socket: Option<String>,
    /// Addresses to listen on.
    #[arg(short, long, hide = true, value_delimiter = ',')]
    listen: Vec<String>,
    /// TCP is served with TLS.
    #[arg(short = 'Z', long = "enable-ssl", hide = true)]
    tls: bool,
    /// The budget of DRAM in bytes; a plain number is of MiB.
    #[arg(short, long = "memory-limit", hide = true, value_parser = memory)]
    pub memory: Option<u64>,
    /// The user to become when started as root.
    #[arg(short, long, hide = true)]
    pub user: Option<String>,
    /// Where to write the process id.
    #[arg(short = 'P', long = "pidfile", hide = true)]
    pub pid_file: Option<PathBuf>,
    /// Connections that may wait to be accepted.
    #[arg(short, long = "listen-backlog", hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub backlog: Option<u32>,
    /// Log debug messages too; -vv: trace messages too
    #[arg(short, long = "verbose", action = ArgAction::Count)]
    pub verbosity: u8,
    #[arg(short = 'U', long = "udp-port", hide = true)]
    udp_port: Option<u16>,
    #[arg(short = 'B', long, hide = true, value_parser = protocol)]
    protocol: Option<String>,
    #[arg(short = 'o', long, hide = true, value_delimiter = ',')]
    extended: Vec<String>,
    #[command(flatten)]
    others: Others,
}

/// What becomes of an option that has no effect here.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// It is so without it.
    Holds,
    /// A warning; the text says what is so instead.
    Ignored(&'static str),
    /// It promises protection that there is not: a start fails.
    Refused(&'static str),
}
use Verdict::{Holds, Ignored, Refused};

/// A table of options: letter, long name, whether it has an argument, and the verdict.
macro_rules! options {
    ($($letter:literal $long:literal $has_argument:literal $verdict:expr;)*) => {
        [$(($letter, $long, $has_argument, $verdict)),*]
    };
}

const OTHERS: [(char, &str, bool, Verdict); 17] = options! {
    'A' "enable-shutdown" false Ignored(": there is no shutdown command");
    'C' "disable-cas" false Ignored("");
    'D' "stats-prefix" true Ignored("");
    'L' "enable-largepages" false Ignored("");
    'N' "napi-ids" true Ignored("");
    'R' "max-reqs-per-event" true Ignored("");
    'W' "disable-watch" false Holds;
    'd' "daemon" false Ignored(": the server stays in the foreground");
    'f' "slab-growth-factor" true Ignored("");
    'n' "slab-min-size" true Ignored("");
    'r' "enable-coredumps" false Ignored(": the limit is that of the process");
    'F' "disable-flush-all" false Refused("flush_all cannot be disabled; give --auth-file");
    'M' "disable-evictions" false Refused("a full cache evicts; use a store where nothing may be lost");
    'S' "enable-sasl" false Refused("Cyrus SASL is not asked; give --auth-file, whose users SASL PLAIN lets in");
    'X' "disable-dumping" false Refused("lru_crawler metadump cannot be disabled; give --auth-file");
    'e' "memory-file" true Refused("objects outlive a restart on flash; give --flash");
    'k' "lock-memory" false Refused("memory is not locked; turn swap off, or MemorySwapMax=0 in the unit");
};

/// Keys of `-o` that tune memcached's own structures, with `no_` before them or not. A warning says that they have no effect.
const TUNING: &str = "chunked_items ext_compact_under ext_drop_under ext_drop_unread ext_io_depth ext_item_age \
    ext_item_size ext_low_ttl ext_max_frag ext_max_sleep ext_page_size ext_recache_rate ext_threads ext_wbuf_size \
    hash_algorithm hashexpand hashpower hot_lru_pct hot_max_factor inline_ascii_resp lru_crawler lru_crawler_sleep \
    lru_crawler_tocrawl lru_maintainer maxconns_fast modern read_buf_mem_limit resp_obj_mem_limit slab_automove \
    slab_automove_freeratio slab_automove_ratio slab_automove_window slab_chunk_max slab_reassign slab_sizes \
    ssl_kernel_tls ssl_session_cache ssl_wbuf_size tail_repair_time temporary_ttl track_sizes warm_lru_pct \
    warm_max_factor watcher_logbuf_size worker_logbuf_size";

/// The verdict on a key of `-o` that is no setting.
fn verdict(key: &str, value: &str) -> Verdict {
    match (key, value.to_ascii_lowercase().as_str()) {
        ("ssl_verify_mode", "0")
        | ("ssl_keyformat", "pem")
        | ("ssl_min_version", "0" | "1" | "2" | "tlsv1.0" | "tlsv1.1" | "tlsv1.2")
        | ("no_drop_privileges" | "relaxed_privileges", _) => Holds,
        ("ssl_verify_mode" | "ssl_ca_cert", _) => {
            Refused("certificates of clients are not verified; give --auth-file, or put a proxy before it")
        }
        ("ssl_min_version", _) => Refused("TLS 1.2 and 1.3 are served, one alone cannot be chosen"),
        ("ssl_ciphers", _) => {
            Refused("ciphers cannot be chosen; all are those of TLS 1.3, or have forward secrecy")
        }
        ("ssl_keyformat", _) => Refused("keys are PEM"),
        ("drop_privileges", _) => {
            Refused("system calls are not restricted; give SystemCallFilter= in the unit")
        }
        ("sock_cookie_id", _) => Refused("sockets get no cookie; filter by address or user"),
        ("ext_path", _) => Refused("objects go to --flash PATH, of --flash-size SIZE"),
        _ if TUNING
            .split(' ')
            .any(|known| known == key.strip_prefix("no_").unwrap_or(key)) =>
        {
            Ignored("")
        }
        _ => Refused("no such key is known"),
    }
}

/// Those of [`OTHERS`] that were given.
#[derive(Clone, Debug, Default)]
struct Others(Vec<usize>);

impl Args for Others {
    fn augment_args(command: Command) -> Command {
        OTHERS
            .iter()
            .fold(command, |command, (letter, long, has_argument, _)| {
                let action = match has_argument {
                    true => ArgAction::Append,
                    false => ArgAction::Count,
                };
                command.arg(
                    Arg::new(*long)
                        .short(*letter)
                        .long(*long)
                        .hide(true)
                        .action(action),
                )
            })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Others {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |at: &usize| matches.value_source(OTHERS[*at].1) == Some(ValueSource::CommandLine);
        Ok(Self((0..OTHERS.len()).filter(is_given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `-m`: as memcached, a plain number is of MiB.
fn memory(text: &str) -> Result<u64, &'static str> {
    let bytes = match text.parse() {
        Ok(Size::Plain(mebibytes)) => mebibytes.checked_mul(1 << 20),
        Ok(Size::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or("expected a number of MiB, at least 1, or a size such as 1GiB")
}

fn protocol(text: &str) -> Result<String, &'static str> {
    match text {
        "ascii" | "binary" | "auto" => Ok(text.to_owned()),
        _ => Err("expected `auto`, `ascii` or `binary`"),
    }
}

fn judge(option: &str, verdict: Verdict, warnings: &mut Vec<String>) -> anyhow::Result<()> {
    match verdict {
        Holds => Ok(()),
        Ignored(instead) => {
            warnings.push(format!("option `{option}` is ignored{instead}"));
            Ok(())
        }
        Refused(why) => Err(usage(format!("option `{option}` is refused: {why}"))),
    }
}

impl Familiar {
    /// What is no setting.
    pub fn flags(&self) -> Flags {
        Flags {
            memory: self.memory,
            user: self.user.clone(),
            pid_file: self.pid_file.clone(),
            backlog: self.backlog,
            ..Flags::default()
        }
    }

    /// Says as settings what can be said so; returns warnings.
    ///
    /// # Errors
    /// Usage: options that promise what there is not, and two that say the same.
    pub fn fold_into(&self, settings: &mut Settings) -> anyhow::Result<Vec<String>> {
        let mut warnings = Vec::new();
        for (letter, _, _, verdict) in self.others.0.iter().map(|at| OTHERS[*at]) {
            judge(&format!("-{letter}"), verdict, &mut warnings)?;
        }
        if let Some(port @ 1..) = self.udp_port {
            warnings.push(format!("option `-U {port}` is ignored: UDP is not served"));
        }
        if let Some(one @ ("ascii" | "binary")) = self.protocol.as_deref() {
            warnings.push(format!("option `-B {one}` is ignored: both protocols are served"));
        }
        for part in self.extended.iter().filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let setting = match key {
                "idle_timeout" => &mut settings.idle_timeout,
                "ssl_chain_cert" => &mut settings.tls_certificate,
                "ssl_key" => &mut settings.tls_key,
                _ => {
                    let verdict = verdict(key, value);
                    let shown = if matches!(verdict, Ignored(_)) { key } else { part };
                    judge(&format!("-o {shown}"), verdict, &mut warnings)?;
                    continue;
                }
            };
            setting.get_or_insert_default().push(value.to_owned());
        }
        self.fold_places(settings)?;
        Ok(warnings)
    }

    fn fold_places(&self, settings: &mut Settings) -> anyhow::Result<()> {
        if self.port.is_none() && self.socket.is_none() && self.listen.is_empty() && !self.tls {
            return Ok(());
        }
        if settings.memcached.is_some() {
            return Err(usage(
                "--memcached: -p, -s, -l and -Z say the same thing; give only one of them",
            ));
        }
        let mut plain: Vec<String> = self.socket.iter().map(|path| format!("unix:{path}")).collect();
        let mut tls = Vec::new();
        let port = match (self.port, &self.socket) {
            (Some(0), _) | (None, Some(_)) => None,
            (port, _) => Some(port.unwrap_or(11211)),
        };
        if let Some(port) = port {
            let usual = vec!["127.0.0.1".to_owned()];
            for host in if self.listen.is_empty() {
                &usual
            } else {
                &self.listen
            } {
                match host.strip_prefix("notls:") {
                    Some(host) if self.tls => plain.push(with_port(host, port)),
                    _ if self.tls => tls.push(with_port(host, port)),
                    _ => plain.push(with_port(host, port)),
                }
            }
        }
        if plain.is_empty() && tls.is_empty() {
            return Err(usage(
                "option `-p 0`: nothing is left to listen on; give -s PATH or another port",
            ));
        }
        if plain.is_empty() {
            plain.push("off".to_owned());
        }
        settings.memcached = Some(plain);
        if !tls.is_empty() {
            settings.memcached_tls.get_or_insert_default().extend(tls);
        }
        Ok(())
    }
}

/// An address of `-l`, which may have a port of its own.
fn with_port(host: &str, port: u16) -> String {
    let host = host.trim();
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) if host == "*" => format!("0.0.0.0:{port}"),
        Err(_) if host.contains(':') => host.to_owned(),
        Err(_) => format!("{host}:{port}"),
    }
}
