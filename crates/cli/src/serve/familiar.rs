//! memcached's own options among the arguments of `serve`, so that Pumice drops into places that start memcached.

use crate::usage::usage;
use pumice_door_memcached::options::{self, MemcachedOptions, OptionsError};
use std::ffi::OsString;

/// memcached's long names that `serve` has not. (`--threads`, `--max-item-size` and `--auth-file` are ours.)
const LONG: [&str; 13] = [
    "port",
    "unix-socket",
    "unix-mask",
    "listen",
    "memory-limit",
    "conn-limit",
    "udp-port",
    "user",
    "extended",
    "pidfile",
    "listen-backlog",
    "daemon",
    "enable-ssl",
];

/// What was found of them.
#[derive(Debug, Default)]
pub struct Familiar {
    /// What they say.
    pub options: MemcachedOptions,
    /// What has no effect, to be told.
    pub warnings: Vec<String>,
}

/// Takes memcached's options out of the command line of `serve`; other commands are left alone.
///
/// # Errors
/// Options that memcached has not, or with arguments that it would refuse.
pub fn split_memcached_options(arguments: Vec<OsString>) -> anyhow::Result<(Vec<OsString>, Familiar)> {
    if arguments.get(1).is_none_or(|command| command != "serve") {
        return Ok((arguments, Familiar::default()));
    }
    let mut ours = Vec::new();
    let mut theirs: Vec<String> = Vec::new();
    let mut rest = arguments.into_iter();
    ours.extend(rest.by_ref().take(2));
    while let Some(word) = rest.next() {
        let Some(text) = word.to_str().filter(|text| is_theirs(text)) else {
            ours.push(word);
            continue;
        };
        theirs.push(text.to_owned());
        if let Err(OptionsError::NoArgument(_)) = options::parse([text])
            && let Some(argument) = rest.next()
        {
            let argument = argument.into_string();
            theirs.push(argument.map_err(|word| usage(format!("argument {} is not UTF-8", word.display())))?);
        }
    }
    let (options, warnings) = options::parse(&theirs).map_err(|error| usage(error.to_string()))?;
    if options.help {
        ours.push("--help".into());
    }
    if options.version {
        return Ok((vec!["pumice".into(), "--version".into()], Familiar::default()));
    }
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok((ours, Familiar { options, warnings }))
}

fn is_theirs(word: &str) -> bool {
    match word.strip_prefix("--") {
        Some(long) => LONG.contains(&long.split_once('=').map_or(long, |(name, _)| name)),
        None => word.len() > 1 && word.starts_with('-'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> anyhow::Result<(Vec<String>, Familiar)> {
        let (ours, familiar) =
            split_memcached_options(line.split_whitespace().map(OsString::from).collect())?;
        let ours = ours.into_iter().map(|word| word.into_string().unwrap()).collect();
        Ok((ours, familiar))
    }

    #[test]
    fn both_kinds_of_options_can_be_mixed() {
        let (ours, familiar) =
            split("pumice serve -m 64 --dram 1MiB -p 0 --threads 3 -vv --listen=::1 -o modern --reformat")
                .unwrap();
        assert_eq!(ours.join(" "), "pumice serve --dram 1MiB --threads 3 --reformat");
        assert_eq!(familiar.options.memory_bytes, Some(64 << 20));
        assert_eq!(familiar.options.port, Some(0));
        assert_eq!(familiar.options.verbosity, 2);
        assert_eq!(familiar.options.listen, ["::1"]);
        assert_eq!(familiar.warnings, ["option `-o modern` is ignored"]);
    }

    #[test]
    fn other_commands_keep_their_arguments() {
        let (ours, _) = split("pumice replay -x trace").unwrap();
        assert_eq!(ours.join(" "), "pumice replay -x trace");
    }

    #[test]
    fn what_memcached_refuses_is_refused() {
        for line in ["pumice serve -p x", "pumice serve -y", "pumice serve -p"] {
            let error = split(line).unwrap_err();
            assert!(error.is::<crate::usage::Usage>(), "{line}");
        }
    }

    #[test]
    fn help_and_version_are_ours() {
        assert_eq!(
            split("pumice serve -h").unwrap().0.join(" "),
            "pumice serve --help"
        );
        assert_eq!(split("pumice serve -V").unwrap().0.join(" "), "pumice --version");
    }
}
