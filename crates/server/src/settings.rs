//! Settings of `serve`, from where they come: flags over the environment over the configuration file over defaults.

use clap::Args;
use pumice_console::usage;
use pumice_door_http::rule_table::RuleTable;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Reads a string or a number, or a list of those, from the configuration file.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string, a number or a list of strings")]
    enum Value {
        Text(String),
        Whole(i64),
        Fraction(f64),
        List(Vec<String>),
    }
    Ok(Some(match Value::deserialize(deserializer)? {
        Value::Text(text) => vec![text],
        Value::Whole(number) => vec![number.to_string()],
        Value::Fraction(number) => vec![number.to_string()],
        Value::List(texts) => texts,
    }))
}

/// Declares each setting once: a flag, an environment variable and a key of the file, all of the same name.
macro_rules! settings {
    ($($(#[$meta:meta])* $field:ident $name:literal $value:literal,)*) => {
        /// The settings that can be given in every place.
        #[derive(Args, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $(
                $(#[$meta])*
                #[arg(long = $name, value_name = $value)]
                #[serde(rename = $name, deserialize_with = "texts")]
                pub $field: Option<Vec<String>>,
            )*
            /// Rules of the HTTP door by path, which a file alone can have.
            #[arg(skip)]
            #[serde(rename = "http-rule", skip_serializing_if = "Vec::is_empty")]
            pub http_rules: Vec<RuleTable>,
        }

        impl Settings {
            /// The settings that environment variables give.
            ///
            /// # Errors
            /// Usage: a variable that is none of a setting.
            fn from_environment(variables: impl IntoIterator<Item = (String, String)>) -> anyhow::Result<Self> {
                let mut settings = Self::default();
                for (name, text) in variables {
                    $(if name == variable($name) {
                        settings.$field = Some(vec![text]);
                        continue;
                    })*
                    if name.starts_with("PUMICE_") && !is_no_setting(&name) {
                        return Err(usage(format!(
                            "environment variable {name}: no such setting (`pumice serve --help` has all)"
                        )));
                    }
                }
                Ok(settings)
            }

            /// Every name.
            pub const NAMES: &[&str] = &[$($name,)*];
        }

        impl Layers {
            /// Every setting that is given, by name.
            pub fn given(&self) -> Vec<(&'static str, Given<'_>)> {
                let all = [$(($name, self.$field()),)*].into_iter();
                let mut given: Vec<_> = all.filter(|(_, given)| given.texts.is_some()).collect();
                let (rules, place) = self.http_rules();
                given.extend((!rules.is_empty()).then_some(("http-rule", place)));
                given
            }

            $(
                /// The setting, from the first place that gives it.
                pub fn $field(&self) -> Given<'_> {
                    let places = [&self.flags.$field, &self.environment.$field, &self.file.$field];
                    let place = places.iter().position(|text| text.is_some());
                    Given {
                        texts: place.and_then(|at| places[at].as_deref()),
                        place: match place {
                            None | Some(0) => concat!("--", $name).to_owned(),
                            Some(1) => variable($name),
                            Some(_) => format!("key `{}` of {}", $name, self.file_name),
                        },
                    }
                }
            )*
        }
    };
}

settings! {
    /// DRAM of the whole process; 10% is of the machine's memory, or of the limit of its control group [default: 256MiB]
    dram "dram" "SIZE",
    /// The flash device: a file, made if it is missing, or a raw block device [default: pumice.flash]
    flash "flash" "PATH",
    /// How much of it to use, from 8 blocks on; 10% is of its file system or device; fixed when the cache is made [default: 4GiB, or all of a
    /// block device]
    flash_size "flash-size" "SIZE",
    /// A faster device that holds copies of the blocks of --flash that are read most: a file, made if it is missing, or a raw block
    /// device. Nothing is lost with it [default: none]
    performance_tier "performance-tier" "PATH",
    /// How much of it to use, from two blocks to as much as of --flash; 10% is of its file system or device [default: all of a file or block
    /// device that is there]
    performance_size "performance-size" "SIZE",
    /// What is to be best where reads are split between --performance-tier and --flash, or --cache and --backing: throughput (most requests a
    /// second), mean (of latencies of reads) or p99 (of latencies); classic: none are split, a copy answers where there is one; one for all
    /// volumes or one for each [default: throughput, of volumes classic]
    performance_objective "performance-objective" "NAME",
    /// Unit of flash writes and reclaim, a power of two from 64KiB to 256MiB; fixed when the cache is made [default: follows from flash and
    /// DRAM size]
    block_size "block-size" "SIZE",
    /// How objects are arranged on flash: ripq, sipq, clock (objects that were asked for are written again) or fifo; fixed when the cache is
    /// made [default: ripq, or what the flash was made with]
    layout "layout" "NAME",
    /// What stays when flash is full: fifo, lru, slru-1 to slru-8, gdsf-1 to gdsf-4, lfu; layouts fifo and clock have
    /// none [default: slru-3; with --http under ripq gdsf-3]
    policy "policy" "NAME",
    /// Ripq: about 1/alpha blocks are filled at a time, from 0.015625 to 0.5; more follow the policy closer and take more DRAM. All layouts:
    /// 2/alpha + 2 blocks of the default size fit a quarter of the DRAM [default: 0.125]
    alpha "alpha" "FRACTION",
    /// Logical occupancy, from 0 to 1; less means fewer writes and fewer hits. Ripq: objects in the last 1 - theta of the queue are not kept
    /// when their block is reclaimed; sipq: the share of what the blocks can hold of objects that the queue of keys may have [default: 1; 0.75
    /// with lru and slru-1, 0.6 with gdsf-1, 0.5 with gdsf-2 and under sipq]
    theta "theta" "FRACTION",
    /// Where mappings are: full (all in DRAM), cascade (hot ones in DRAM, the rest on flash), or auto (full where the budget holds
    /// that for objects of 300 bytes); fixed when the cache is made [default: auto, or what the flash was made with]
    index "index" "NAME",
    /// When an object is written to flash: insertion, or eviction (from DRAM: fewer writes, and a crash loses what DRAM alone holds)
    /// [default: insertion]
    flash_write "flash-write" "WHEN",
    /// Which objects are: all, random:F (each with the probability F) or second-hit (what missed before, lately, or as many by chance where
    /// that does not pay); the others stay in DRAM alone. With --nbd, which chunks enter --cache: one for all volumes or one for each
    /// [default: all]
    flash_admit "flash-admit" "RULE",
    /// The largest object that is: with header and key, or the value alone of one that is stored in slices (above a quarter of a block, at
    /// most 1MiB) [default: any]
    flash_admit_size_max "flash-admit-size-max" "SIZE",
    /// Objects that expire within so many seconds are not, at most 31536000 [default: 0]
    flash_admit_ttl_min "flash-admit-ttl-min" "SECONDS",
    /// Most bytes sent to the flash device in any such time, 2TB/day, 100GB/hour or 20GB/600s (decimal, as vendors count), 48 blocks at least;
    /// what is saved is kept over a clean stop. With a quarter of what can be saved unspent, what --flash-admit refuses is written, too. With
    /// --nbd, of each --cache: one for all volumes or one for each [default: no bound]
    flash_write_budget "flash-write-budget" "SIZE/TIME",
    /// What a reply promises of a delete or overwrite: process (survives kill -9), power (survives a power cut, at a device flush), off (a
    /// crash empties the cache) [default: process]
    durability "durability" "LEVEL",
    /// The largest value, from 1KiB to 4095MiB [default: 1MiB]
    #[arg(short = 'I')]
    max_item_size "max-item-size" "SIZE",
    /// Where the memcached protocol is served: ADDR:PORT or unix:PATH, several with commas, or off; port 0 lets the system choose
    /// [default: 127.0.0.1:11211]
    memcached "memcached" "ADDR",
    /// Where it is served with TLS 1.2 and 1.3: ADDR:PORT, several with commas [default: nowhere]
    memcached_tls "memcached-tls" "ADDR",
    /// The certificate of --memcached-tls or --http-tls with its chain, PEM; at most 16 certificates and 1 MiB [default: none]
    tls_certificate "tls-certificate" "FILE",
    /// Its private key, PEM, not encrypted: RSA of 2048 to 4096 bits, ECDSA with P-256 or P-384, or Ed25519 [default: in the file of the certificate]
    tls_key "tls-key" "FILE",
    /// Permissions of unix sockets, in octal, 0 to 777 [default: 700]
    #[arg(short = 'a', alias = "unix-mask")]
    unix_mode "unix-mode" "MODE",
    /// Who may use the memcached protocol: a file of lines user:password, as memcached's -Y [default: everybody]
    #[arg(short = 'Y')]
    auth_file "auth-file" "FILE",
    /// Where metrics, health and statistics are served: ADDR:PORT, or off [default: 127.0.0.1:11250]
    admin "admin" "ADDR",
    /// Seconds for which the flash device may answer nothing while it is asked, after which it counts as failed for good, and 8 times as many
    /// for a single request while others are answered; 0 for any time, at most 86400 [default: 30]
    flash_timeout "flash-timeout" "SECONDS",
    /// How lines of the log are written to stderr: text or json [default: text]
    log_format "log-format" "FORMAT",
    /// Seconds after which an object that is in a block buffer alone is written to flash, so that a crash loses none that is older; 0 for when
    /// its block is full, at most 86400 [default: 5]
    flush_interval "flush-interval" "SECONDS",
    /// A cache in which nothing ran for as long begins empty, since it may have what was overwritten or deleted meanwhile on other nodes; with --nbd
    /// its clean chunks are forgotten. 0 to 31536000 seconds [default: it is kept]
    max_absence "max-absence" "SECONDS",
    /// Terabytes (10^12 bytes) that the drive of --flash, or of each --cache, is rated to take: figures say how many years that lasts
    /// [default: not known]
    tbw "tbw" "TERABYTES",
    /// In place of --tbw, drive writes a day that it is rated to take, of --drive-size during --warranty [default: not known]
    dwpd "dwpd" "WRITES",
    /// Gigabytes (10^9 bytes) of the drive, for --dwpd or --cycles [default: not known]
    drive_size "drive-size" "GIGABYTES",
    /// Years of the drive's warranty, for --dwpd [default: 5]
    warranty "warranty" "YEARS",
    /// In place of --tbw, how often each cell of a drive of --drive-size can be written. A drive writes more than it is sent: divide the years by
    /// its write amplification [default: not known]
    cycles "cycles" "TIMES",
    /// Where volumes are served over NBD: ADDR:PORT or unix:PATH, several with commas. No objects are served then, and settings that say
    /// something of them are refused [default: nowhere]
    nbd "nbd" "ADDR",
    /// The slow file or block device that is the volume; several with commas, each a volume under the name of its file. It always has the
    /// newest content, except in write-back [default: none]
    backing "backing" "PATH",
    /// The fast file, made if it is missing, or block device that caches it; one for each volume [default: none]
    cache "cache" "PATH",
    /// How much of it to use; 10% is of its file system or device; fixed when the cache is made [default: all of a file or block device that is
    /// there]
    cache_size "cache-size" "SIZE",
    /// What the cache takes part in: write-back (writes enter it, and the volume takes them later), write-through (reads and writes enter it),
    /// write-around (reads enter it), read-only (changes are refused) or pass-through (nothing; what is cached is discarded); one for all
    /// volumes or one for each [default: write-through]
    mode "mode" "NAME",
    /// In write-back: seconds between two passes of the cleaner, which writes to the volume what the cache alone has; 1 to 86400; one for all
    /// volumes or one for each [default: 30]
    dirty_age "dirty-age" "SECONDS",
    /// In write-back: most chunks that the cache alone has, as a share of those that it holds uncompressed; at the limit writes go through; one
    /// for all volumes or one for each [default: 90%]
    dirty_limit "dirty-limit" "SHARE",
    /// In write-back: most bytes that the cleaner writes in a second, while half of the limit is not reached; 0 for no limit; one for all volumes
    /// or one for each [default: 0]
    clean_rate "clean-rate" "SIZE",
    /// In write-back, what a stop does: drain (write to the volume what the cache alone has) or keep (leave it to the next start); one for all
    /// volumes or one for each [default: drain]
    on_stop "on-stop" "WHAT",
    /// The unit of caching, a power of two from 4KiB to 128KiB; fixed when the cache is made [default: the smallest whose index fits a quarter
    /// of the DRAM]
    chunk_size "chunk-size" "SIZE",
    /// Most bytes read ahead of a sequential stream, and of all of a volume at once, up to a sixteenth of what indexes leave of the DRAM; 0 for
    /// none; one for all volumes or one for each [default: 4MiB]
    read_ahead "read-ahead" "SIZE",
    /// Bytes after which reads, or writes, in a row are a scan, which enters the cache only while that has free room; 0 for never; one for all
    /// volumes or one for each [default: 1MiB]
    scan_cutoff "scan-cutoff" "SIZE",
    /// Where HTTP is served, from a cache before --origin: ADDR:PORT or unix:PATH, several with commas, or off. memcached is not served then, and
    /// settings that say something of it are refused [default: nowhere]
    http "http" "ADDR",
    /// Where it is served with TLS 1.2 and 1.3, as HTTP/1.1 or HTTP/2: ADDR:PORT, several with commas [default: nowhere]
    http_tls "http-tls" "ADDR",
    /// The server that is asked for what the cache does not have: http://HOST or https://HOST, with :PORT behind it or not [default: none]
    origin "origin" "URL",
    /// The certificates that vouch for --origin, PEM [default: those of the system]
    origin_ca "origin-ca" "FILE",
    /// The longest body that is stored; longer ones are passed on [default: a quarter of the flash]
    http_object_max "http-object-max" "SIZE",
    /// A file that gets a line for each request; where it is moved away, the next line begins a new one [default: none]
    access_log "access-log" "PATH",
    /// What its lines are: combined (as Apache's, with the result of the cache and the time that it took) or json [default: combined]
    access_log_format "access-log-format" "FORMAT",
    /// Worker threads, 1 to 1024 [default: one per CPU]
    #[arg(short = 't')]
    threads "threads" "N",
    /// The most connections at once, 1 to 1048576; more are turned away [default: 1024; with --nbd a connection for each 2 MiB of a quarter
    /// of the DRAM, at most 32]
    #[arg(short = 'c', alias = "conn-limit")]
    max_connections "max-connections" "N",
    /// Seconds without a command after which a connection is closed; 0 for never, at most 31536000 [default: 0]
    idle_timeout "idle-timeout" "SECONDS",
}

/// Variables that are no settings: ours, those of the tests, and those that Kubernetes sets in every pod beside a service named `pumice`.
fn is_no_setting(variable: &str) -> bool {
    const OURS: [&str; 5] = ["CONFIG", "LOG", "BIN", "SEED", "TRACES"];
    OURS.iter()
        .any(|name| variable.strip_prefix("PUMICE_") == Some(*name))
        || variable.starts_with("PUMICE_SERVICE_")
        || variable.starts_with("PUMICE_PORT")
}

fn variable(name: &str) -> String {
    format!("PUMICE_{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// The settings of every place.
#[derive(Debug, Default)]
pub struct Layers {
    flags: Settings,
    environment: Settings,
    file: Settings,
    file_name: String,
}

impl Layers {
    /// Collects flags, the environment, and the file if there is one.
    ///
    /// # Errors
    /// A file that cannot be read or has keys or values that make no sense.
    pub fn collect(flags: Settings, file: Option<&Path>) -> anyhow::Result<Self> {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        let file_name = file.map(|path| path.display().to_string()).unwrap_or_default();
        let read = file.map(std::fs::read_to_string).transpose();
        let read =
            read.map_err(|error| usage(format!("cannot read configuration file {file_name}: {error}")))?;
        Self::of(flags, environment, &read.unwrap_or_default(), file_name)
    }

    /// Collects flags, variables of an environment, and the text of a file.
    ///
    /// # Errors
    /// Usage: keys or values that make no sense.
    pub fn of(
        flags: Settings,
        variables: impl IntoIterator<Item = (String, String)>,
        file: &str,
        file_name: String,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            flags,
            environment: Settings::from_environment(variables)?,
            file: toml::from_str(file)
                .map_err(|error| usage(format!("configuration file {file_name}: {error}")))?,
            file_name,
        })
    }

    /// The rules of the HTTP door, and where they stand.
    pub fn http_rules(&self) -> (&[RuleTable], Given<'_>) {
        let place = format!("`http-rule` of {}", self.file_name);
        (&self.file.http_rules, Given { texts: None, place })
    }
}

/// Whether a list of names has a setting.
pub(crate) fn has(list: &str, name: &str) -> bool {
    list.split_whitespace().any(|listed| listed == name)
}

/// One setting and where it was given.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    texts: Option<&'a [String]>,
    place: String,
}

impl<'a> Given<'a> {
    /// Whether it was given on the command line.
    pub fn is_flag(&self) -> bool {
        self.texts.is_some() && self.place.starts_with("--")
    }

    /// Its texts, where it may be given repeatedly or with commas.
    pub fn list(&self) -> Option<Vec<&'a str>> {
        Some(
            self.texts?
                .iter()
                .flat_map(|text| text.split(','))
                .map(str::trim)
                .collect(),
        )
    }

    /// Its text.
    ///
    /// # Errors
    /// Where there is more than one.
    pub fn text(&self) -> anyhow::Result<Option<&'a str>> {
        match self.texts {
            None => Ok(None),
            Some([text]) => Ok(Some(text)),
            Some(_) => Err(usage(format!("{}: give it once", self.place))),
        }
    }

    /// An error about it that names the place, the text and what is wrong.
    pub fn wrong(&self, what: impl fmt::Display) -> anyhow::Error {
        usage(match self.texts {
            Some(texts) => format!("{} `{}`: {what}", self.place, texts.join(",")),
            None => format!("{}: {what}", self.place),
        })
    }

    /// What a function makes of its text.
    ///
    /// # Errors
    /// Where that says what is wrong with the text.
    pub fn read<T, E: fmt::Display>(
        &self,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> anyhow::Result<Option<T>> {
        let read = self.text()?.map(read).transpose();
        read.map_err(|what| self.wrong(what))
    }

    /// Its value.
    ///
    /// # Errors
    /// Where the text is not one.
    pub fn parse<T: FromStr<Err: fmt::Display>>(&self) -> anyhow::Result<Option<T>> {
        self.read(str::parse)
    }

    /// Its value among those that it can have, each with its name; the error lists them.
    ///
    /// # Errors
    /// Where it is none of them.
    pub fn one_of<T: Copy>(&self, values: &[(&str, T)]) -> anyhow::Result<Option<T>> {
        self.read(|text| {
            let found = values.iter().find(|(name, _)| *name == text);
            let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
            found
                .map(|(_, value)| *value)
                .ok_or_else(|| format!("expected {}", names.join(" or ")))
        })
    }
}
