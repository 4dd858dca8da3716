//! `pumice serve`: its flags.

use crate::familiar::Familiar;
use clap::Args;
use pumice_server::settings::{Layers, Settings};
use pumice_server::{Flags, Kinds};
use std::path::PathBuf;

/// Flags of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// A file of settings; every flag below but --reformat, --accept-clock and --throttle is a key of it, and an environment variable
    /// (--flash-size is `flash-size` there and PUMICE_FLASH_SIZE)
    #[arg(long, value_name = "FILE", env = "PUMICE_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,

    /// Make an empty cache of the flash device, whatever is on it
    #[arg(long)]
    reformat: bool,

    /// Believe a clock that is more than a day ahead of the last time that the flash device saw, now and not at the second start
    #[arg(long)]
    accept_clock: bool,

    /// Make devices as slow as other kinds would be, to try them out: dram, nvm, optane, nvme, sata or hdd, or N times as slow, for
    /// example flash=nvme*40, or with --nbd cache=optane*40,backing=nvme*40. What the device really takes comes on top where it is
    /// more. Of a program that is built with `--features throttle` alone
    #[arg(long, value_name = "KINDS")]
    throttle: Option<Kinds>,

    #[command(flatten)]
    familiar: Familiar,
}

/// Runs a server to its end.
///
/// # Errors
/// Usage, or what failed.
pub fn run(mut args: ServeArgs) -> anyhow::Result<()> {
    let warnings = args.familiar.fold_into(&mut args.settings)?;
    let layers = Layers::collect(args.settings, args.config.as_deref())?;
    pumice_server::start_log(&layers.log_format(), args.familiar.verbosity)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let flags = Flags {
        reformat: args.reformat,
        accept_clock: args.accept_clock,
        throttle: args.throttle.unwrap_or_default(),
        ..args.familiar.flags()
    };
    pumice_server::run(&layers, &flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_settings_is_what_help_says() {
        let mut page = String::from("| flag | meaning | default |\n| --- | --- | --- |\n");
        let command = ServeArgs::augment_args(clap::Command::new("serve"));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let name = argument.get_long().unwrap();
            let value = argument
                .get_value_names()
                .filter(|_| argument.get_action().takes_values());
            let value = value.map_or_else(String::new, |names| format!(" {}", names[0]));
            let help = argument.get_help().unwrap().to_string().replace('\n', " ");
            let (meaning, default) = help.split_once(" [default: ").unwrap_or((&help, "]"));
            let default = default.strip_suffix(']').expect("the default stands at the end");
            page += &format!("| `--{name}{value}` | {meaning} | {default} |\n");
        }
        crate::documents::check("install.md", "table of settings", &page);
    }
}
