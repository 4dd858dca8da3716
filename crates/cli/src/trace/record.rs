//! `pumice trace record`: the requests of a running server.

use anyhow::Context;
use clap::Args;
use pumice_console::judged;
use pumice_trace::{RecordError, Told};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Flags of `trace record`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("server").args(["memcached", "admin"]).required(true))]
pub struct RecordArgs {
    /// The file to write, which must not be there; compressed with zstd if its name ends in .zst
    #[arg(value_name = "OUT")]
    out: PathBuf,

    /// The memcached to listen to, such as 127.0.0.1:11211 (1.6.10 or newer)
    #[arg(long, value_name = "ADDR")]
    memcached: Option<String>,

    /// In place of --memcached, the admin door of the Pumice to listen to, such as 127.0.0.1:11250
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,

    /// Seconds to listen for; SIGINT and SIGTERM end it before that
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=2_678_400))]
    seconds: u64,

    /// Record one key in R, as 1/R
    #[arg(long, value_name = "1/R", default_value = "1/1", value_parser = share)]
    sample: u64,
}

/// R of `1/R`.
fn share(text: &str) -> Result<u64, String> {
    let one_in = text.strip_prefix("1/").and_then(|rest| rest.parse().ok());
    let one_in = one_in.filter(|one_in| (1..=1_000_000).contains(one_in));
    one_in.ok_or_else(|| "expected 1/R, where R is from 1 to 1000000".to_owned())
}

/// Listens, and writes what it hears. Returns lines for people.
///
/// # Errors
/// Usage, or why nothing can be heard.
pub fn run(args: &RecordArgs) -> anyhow::Result<String> {
    let told = match (&args.memcached, &args.admin) {
        (Some(address), _) => Told::by_memcached("--memcached", address, args.sample),
        (None, address) => {
            let address = address.as_deref().unwrap_or_default();
            Told::by_pumice("--admin", address, args.sample, pumice_server::RECORDING_HEAD)
        }
    };
    let failed = |error| judged(error, RecordError::is_usage);
    let told = told.map_err(failed)?;
    // From here on a signal ends the recording, not the program.
    let stop = until_signal()?;
    told.record(&args.out, args.seconds, &stop).map_err(failed)
}

/// Turns true at the first SIGINT or SIGTERM.
fn until_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an event loop")?;
    let listen = |kind| {
        let _inside = runtime.enter();
        signal(kind).context("cannot listen for signals")
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        told.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}
