//! memcached's familiar short options, so that Pumice drops into places that start memcached.

use std::path::PathBuf;

/// What memcached's options say. `None` where an option was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemcachedOptions {
    /// `-p`: the TCP port; 0 means no TCP.
    pub port: Option<u16>,
    /// `-s`: a unix socket. memcached then listens on no TCP port unless `-p` is given too.
    pub socket: Option<PathBuf>,
    /// `-a`: permissions of the unix socket.
    pub socket_mode: Option<u32>,
    /// `-l`: addresses to listen on, as they were written, split at commas.
    pub listen: Vec<String>,
    /// `-m`: memory in MiB, turned into bytes: the budget of DRAM.
    pub memory_bytes: Option<u64>,
    /// `-c`: the most connections at once.
    pub max_connections: Option<usize>,
    /// `-t`: worker threads.
    pub threads: Option<usize>,
    /// `-I`: the largest item, in bytes.
    pub max_item_bytes: Option<u32>,
    /// `-u`: the user to become when started as root.
    pub user: Option<String>,
    /// `-P`: where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// `-b`: connections that may wait to be accepted.
    pub backlog: Option<u32>,
    /// `-Y`: the file with users and passwords.
    pub auth_file: Option<PathBuf>,
    /// `-Z`: TCP is served with TLS.
    pub tls: bool,
    /// `-o ssl_chain_cert`: the certificate, with its chain.
    pub tls_certificate: Option<PathBuf>,
    /// `-o ssl_key`: its private key.
    pub tls_key: Option<PathBuf>,
    /// `-o idle_timeout`: seconds after which an idle connection is closed; 0 is never.
    pub idle_timeout_secs: Option<u32>,
    /// `-v`, as often as it was given.
    pub verbosity: u32,
    /// `-h`: help is wanted.
    pub help: bool,
    /// `-V`: the version is wanted.
    pub version: bool,
}

/// An option that was accepted and has no effect, or not the effect it has in memcached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(pub String);

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Options that cannot be obeyed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// No such option.
    #[error("unknown option `{0}`")]
    Unknown(String),
    /// An option that needs an argument stands last.
    #[error("option `-{0}` needs an argument")]
    NoArgument(char),
    /// An argument that the option does not take.
    #[error("option `-{option}`: `{argument}` is not {expected}")]
    BadArgument {
        /// The option.
        option: char,
        /// Its argument.
        argument: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// The longest idle timeout in seconds: a year.
pub const IDLE_TIMEOUT_SECS_MAX: u32 = 365 * 24 * 3600;

/// Long names that memcached has for the short options.
const LONG: [(&str, char); 18] = [
    ("port", 'p'),
    ("unix-socket", 's'),
    ("unix-mask", 'a'),
    ("listen", 'l'),
    ("memory-limit", 'm'),
    ("conn-limit", 'c'),
    ("threads", 't'),
    ("max-item-size", 'I'),
    ("udp-port", 'U'),
    ("user", 'u'),
    ("extended", 'o'),
    ("pidfile", 'P'),
    ("listen-backlog", 'b'),
    ("daemon", 'd'),
    ("auth-file", 'Y'),
    ("enable-ssl", 'Z'),
    ("help", 'h'),
    ("version", 'V'),
];

/// Whether an argument looks like one of memcached's short options: a dash and a letter that `parse` knows.
pub fn looks_like_memcached(argument: &str) -> bool {
    let mut chars = argument.chars();
    chars.next() == Some('-') && chars.next().is_some_and(|letter| kind(letter).is_some())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flag,
    Argument,
}

fn kind(letter: char) -> Option<Kind> {
    match letter {
        'v' | 'd' | 'h' | 'V' | 'r' | 'k' | 'M' | 'C' | 'F' | 'X' | 'W' | 'L' | 'A' | 'Z' => Some(Kind::Flag),
        'p' | 's' | 'a' | 'l' | 'm' | 'c' | 't' | 'I' | 'U' | 'u' | 'o' | 'P' | 'b' | 'R' | 'f' | 'n'
        | 'B' | 'D' | 'Y' => Some(Kind::Argument),
        _ => None,
    }
}

/// Reads memcached's options: `-p 11211`, `-p11211`, `-vv`, `-dm 64`, `--port=11211`.
///
/// # Errors
/// Unknown options, missing arguments, and arguments that are not what the option takes.
pub fn parse<I, S>(arguments: I) -> Result<(MemcachedOptions, Vec<Warning>), OptionsError>
where
    I: IntoIterator<Item = S>,
    S: AsRef<str>,
{
    let mut options = MemcachedOptions::default();
    let mut warnings = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(word) = arguments.next() {
        let word = word.as_ref();
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value)));
            let letter = LONG
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, letter)| *letter);
            let letter = letter.ok_or_else(|| OptionsError::Unknown(word.to_owned()))?;
            let value = match (value, kind(letter)) {
                (Some(value), _) => value.to_owned(),
                (None, Some(Kind::Argument)) => argument(&mut arguments, letter)?,
                (None, _) => String::new(),
            };
            apply(letter, &value, &mut options, &mut warnings)?;
            continue;
        }
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            return Err(OptionsError::Unknown(word.to_owned()));
        };
        for (at, letter) in letters.char_indices() {
            match kind(letter) {
                None => return Err(OptionsError::Unknown(format!("-{letter}"))),
                Some(Kind::Flag) => apply(letter, "", &mut options, &mut warnings)?,
                Some(Kind::Argument) => {
                    let rest = &letters[at + letter.len_utf8()..];
                    let value = if rest.is_empty() {
                        argument(&mut arguments, letter)?
                    } else {
                        rest.to_owned()
                    };
                    apply(letter, &value, &mut options, &mut warnings)?;
                    break;
                }
            }
        }
    }
    Ok((options, warnings))
}

fn argument<S: AsRef<str>>(
    arguments: &mut impl Iterator<Item = S>,
    letter: char,
) -> Result<String, OptionsError> {
    let next = arguments.next().ok_or(OptionsError::NoArgument(letter))?;
    Ok(next.as_ref().to_owned())
}

fn number<T: TryFrom<u64>>(
    option: char,
    text: &str,
    least: u64,
    expected: &'static str,
) -> Result<T, OptionsError> {
    text.parse::<u64>()
        .ok()
        .filter(|number| *number >= least)
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| OptionsError::BadArgument {
            option,
            argument: text.to_owned(),
            expected,
        })
}

/// A size with memcached's suffixes k and m (and g), in bytes.
fn size(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.char_indices().last()? {
        (at, 'k') => (&lower[..at], 1 << 10),
        (at, 'm') => (&lower[..at], 1 << 20),
        (at, 'g') => (&lower[..at], 1 << 30),
        _ => (&lower[..], 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn apply(
    letter: char,
    value: &str,
    options: &mut MemcachedOptions,
    warnings: &mut Vec<Warning>,
) -> Result<(), OptionsError> {
    let bad = |expected| OptionsError::BadArgument {
        option: letter,
        argument: value.to_owned(),
        expected,
    };
    let mut warn = |text: String| warnings.push(Warning(text));
    match letter {
        'p' => options.port = Some(number(letter, value, 0, "a port (0 to 65535)")?),
        's' => options.socket = Some(PathBuf::from(value)),
        'a' => {
            let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777);
            options.socket_mode = Some(mode.ok_or_else(|| bad("permissions in octal (0 to 777)"))?);
        }
        'l' => {
            let addresses: Vec<&str> = value.split(',').map(str::trim).collect();
            if addresses.iter().any(|address| address.is_empty()) {
                return Err(bad("a list of addresses, separated by commas"));
            }
            options
                .listen
                .extend(addresses.iter().map(|address| (*address).to_owned()));
        }
        'm' => {
            let mebibytes: u64 = number(letter, value, 1, "a number of MiB, at least 1")?;
            let bytes = mebibytes.checked_mul(1 << 20);
            options.memory_bytes =
                Some(bytes.ok_or_else(|| bad("a number of MiB that fits 64 bits of bytes"))?);
        }
        'c' => {
            options.max_connections = Some(number(letter, value, 1, "a number of connections, at least 1")?)
        }
        't' => options.threads = Some(number(letter, value, 1, "a number of threads, at least 1")?),
        'I' => {
            let bytes = size(value)
                .filter(|bytes| (1024..=1 << 30).contains(bytes))
                .and_then(|bytes| u32::try_from(bytes).ok());
            options.max_item_bytes = Some(bytes.ok_or_else(|| bad("a size of 1k to 1024m"))?);
        }
        'U' => {
            if number::<u16>(letter, value, 0, "a port (0 to 65535)")? != 0 {
                warn(format!("option `-U {value}`: UDP is not served"));
            }
        }
        'u' => options.user = Some(value.to_owned()),
        'P' => options.pid_file = Some(PathBuf::from(value)),
        'b' => options.backlog = Some(number(letter, value, 1, "a number of connections, at least 1")?),
        'Y' => options.auth_file = Some(PathBuf::from(value)),
        'Z' => options.tls = true,
        'v' => options.verbosity += 1,
        'h' => options.help = true,
        'V' => options.version = true,
        'o' => {
            for part in value.split(',').filter(|part| !part.is_empty()) {
                let (key, setting) = part.split_once('=').unwrap_or((part, ""));
                match key {
                    "idle_timeout" => {
                        let secs = setting.parse().ok().filter(|secs| *secs <= IDLE_TIMEOUT_SECS_MAX);
                        options.idle_timeout_secs =
                            Some(secs.ok_or_else(|| bad("idle_timeout with seconds (0 to 31536000)"))?);
                    }
                    "ssl_chain_cert" | "ssl_key" if setting.is_empty() => {
                        return Err(bad("ssl_chain_cert or ssl_key with a file"));
                    }
                    "ssl_chain_cert" => options.tls_certificate = Some(PathBuf::from(setting)),
                    "ssl_key" => options.tls_key = Some(PathBuf::from(setting)),
                    _ => warn(format!("option `-o {key}` is ignored")),
                }
            }
        }
        'd' => warn("option `-d` is ignored: the server stays in the foreground".to_owned()),
        'M' => warn("option `-M` is ignored: a full cache evicts".to_owned()),
        'F' => warn("option `-F` is ignored: flush_all stays enabled".to_owned()),
        'B' if value == "auto" || value == "ascii" => {}
        'B' => return Err(bad("`ascii` or `auto`: the binary protocol is not served")),
        _ => warn(format!("option `-{letter}` is ignored")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ok(line: &str) -> (MemcachedOptions, Vec<Warning>) {
        parse(line.split_whitespace()).unwrap()
    }

    #[test]
    fn the_line_that_distributions_start_memcached_with_is_understood() {
        let (options, warnings) = ok(
            "-m 64 -p 11211 -u memcache -l 127.0.0.1,::1 -P /run/memcached/memcached.pid -c 1024 -t4 -I 2m -U 0 -vv",
        );
        assert_eq!(
            options,
            MemcachedOptions {
                port: Some(11211),
                listen: vec!["127.0.0.1".to_owned(), "::1".to_owned()],
                memory_bytes: Some(64 << 20),
                max_connections: Some(1024),
                threads: Some(4),
                max_item_bytes: Some(2 << 20),
                user: Some("memcache".to_owned()),
                pid_file: Some("/run/memcached/memcached.pid".into()),
                verbosity: 2,
                ..MemcachedOptions::default()
            }
        );
        assert!(warnings.is_empty());
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let (_, warnings) = ok("-o modern,hash_algorithm=murmur3 -d -U 11211 -R 20");
        let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "option `-o modern` is ignored",
                "option `-o hash_algorithm` is ignored",
                "option `-d` is ignored: the server stays in the foreground",
                "option `-U 11211`: UDP is not served",
                "option `-R` is ignored",
            ]
        );
    }

    #[test]
    fn long_names_and_joined_letters_work() {
        let (options, _) = ok("--port=1 --memory-limit 8 -dvs /tmp/s -I512k -a 700");
        assert_eq!(options.port, Some(1));
        assert_eq!(options.memory_bytes, Some(8 << 20));
        assert_eq!(options.socket, Some("/tmp/s".into()));
        assert_eq!(options.max_item_bytes, Some(512 << 10));
        assert_eq!(options.socket_mode, Some(0o700));
        assert_eq!(options.verbosity, 1);
    }

    #[test]
    fn authentication_tls_and_idle_timeout_are_understood() {
        let (options, warnings) = ok("-Y /users -Z -o idle_timeout=30,ssl_chain_cert=/c,ssl_key=/k");
        assert_eq!(options.auth_file, Some("/users".into()));
        assert!(options.tls);
        assert_eq!(options.tls_certificate, Some("/c".into()));
        assert_eq!(options.tls_key, Some("/k".into()));
        assert_eq!(options.idle_timeout_secs, Some(30));
        assert!(warnings.is_empty());
        for line in [
            "-o idle_timeout=-1",
            "-o idle_timeout",
            "-o idle_timeout=31536001",
            "-o ssl_key=",
        ] {
            assert!(parse(line.split_whitespace()).is_err(), "{line}");
        }
    }

    #[test]
    fn errors_name_the_option_and_what_it_takes() {
        let error = |line: &str| parse(line.split_whitespace()).unwrap_err().to_string();
        assert_eq!(error("-y"), "unknown option `-y`");
        assert_eq!(error("serve"), "unknown option `serve`");
        assert_eq!(error("--bogus=1"), "unknown option `--bogus=1`");
        assert_eq!(error("-p"), "option `-p` needs an argument");
        assert_eq!(
            error("-p 65536"),
            "option `-p`: `65536` is not a port (0 to 65535)"
        );
        assert_eq!(
            error("-m 0"),
            "option `-m`: `0` is not a number of MiB, at least 1"
        );
        assert_eq!(error("-I 2t"), "option `-I`: `2t` is not a size of 1k to 1024m");
        assert!(error("-B binary").contains("binary protocol"));
    }

    proptest! {
        #[test]
        fn no_arguments_panic(words in prop::collection::vec("[-]{0,2}[a-zA-Z0-9=,é]{0,6}", 0..8)) {
            let _ = parse(&words);
        }
    }
}
