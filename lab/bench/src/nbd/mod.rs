//! `pumice-bench nbd`: load on an NBD server, and a check of what it reads, also through stops of the server.
//!
//! Each sector that is written names its content (`content.rs`); a model knows which contents each sector may have (`model.rs`); a file
//! may keep that for the next run (`journal.rs`). All connections run on one thread (`load.rs`).

mod content;
mod journal;
mod load;
mod model;
mod report;
mod requests;

use anyhow::{Context, anyhow};
use clap::Args;
use content::SECTOR_BYTES;
use load::Run;
use model::Model;
use pumice_console::{print, usage};
use pumice_loadgen::seconds;
use pumice_remote::{Export, Uri, wire};
use pumice_trace::bytes;
use pumice_world::mix64;
use report::Report;
use requests::{Mix, Places, READ, Sizes, TRIM, WRITE, ZERO};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};

/// Most bytes of a range: the model of it takes a GiB.
const RANGE_BYTES_MAX: u64 = 64 << 30;

/// Flags of `nbd`.
#[derive(Args, Clone, Debug)]
pub struct NbdArgs {
    /// The export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH
    uri: Uri,

    /// Connections; more than one needs a server that says multi-conn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Requests under way on each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,

    /// How long load is put on it; 0: none, to read the range alone (with --resume) [default: 10, or until --requests are sent]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,

    /// How many requests are sent at most
    #[arg(long, value_name = "N")]
    requests: Option<u64>,

    /// Weights read:write:flush:trim:zero; the last ones may be left out [default: 70:28:2, or 1 where the export is read-only]
    #[arg(long, value_name = "WEIGHTS")]
    mix: Option<Mix>,

    /// Bytes of requests, multiples of 512: 4KiB, or 512..64KiB. One size stands at its multiples
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    size: Sizes,

    /// Share of writes whose content is one of --pool, for a server that deduplicates
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    duplicates: f64,

    /// Contents of the pool, of 64 KiB each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pool: u32,

    /// Where requests go: uniform, sequential, or zipf:THETA
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    places: Places,

    /// Bytes that are used, from the beginning on, at most 64GiB [default: all, up to 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>)]
    range: Option<u64>,

    /// Share of writes, trims and zeros that have FUA
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    fua: f64,

    /// Fixes what is drawn; contents differ all the same [default: by the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// How long an answer may take, and with --resume a new connection
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,

    /// Write to the export, whatever it holds
    #[arg(long)]
    overwrite: bool,

    /// Go on when a connection is lost, which is taken for a stop of the server; go on from --journal, if it is there; read the whole
    /// range at the end
    #[arg(long)]
    resume: bool,

    /// Keep what is known in FILE for the next run: written at the end, removed while a run writes
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl NbdArgs {
    /// How long load is put on the export.
    fn duration(&self) -> Option<Duration> {
        match (self.seconds, self.requests) {
            (None, Some(_)) => None,
            (seconds, _) => Some(seconds.unwrap_or(Duration::from_secs(10))),
        }
    }

    /// The mix and the range, where the export can do what is asked.
    fn plan(&self, export: &Export) -> Result<(Mix, u64), String> {
        let has = |flag| export.flags & flag != 0;
        let is_read_only = has(wire::FLAG_READ_ONLY);
        let reads = Mix([1, 0, 0, 0, 0]);
        let mix = match self.mix {
            _ if self.seconds == Some(Duration::ZERO) => reads,
            Some(mix) => mix,
            None if is_read_only => reads,
            None => Mix([70, 28, 2, 0, 0]),
        };
        let has_data = mix.has(READ) || mix.has(WRITE);
        let Sizes { least, most } = self.size;
        let (step, longest) = (step(export), u64::from(export.maximum));
        let all = export.size / step * step;
        let range = self.range.unwrap_or(all.min(1 << 30));
        let says = |what: &str| Err(what.to_owned());
        match () {
            () if mix.has_changes() && is_read_only => says("the export is read-only: give --mix 1"),
            () if mix.has_changes() && !has(wire::FLAG_FLUSH) => {
                says("the export has no FLUSH, so nothing would be known as durable: give --mix 1")
            }
            () if mix.has(TRIM) && !has(wire::FLAG_TRIM) => {
                says("the export has no TRIM: leave it out of --mix")
            }
            () if mix.has(ZERO) && !has(wire::FLAG_ZEROES) => {
                says("the export has no WRITE_ZEROES: leave it out of --mix")
            }
            () if self.fua > 0.0 && !has(wire::FLAG_FUA) => says("the export has no FUA: leave --fua out"),
            () if self.connections > 1 && !has(wire::FLAG_MULTI_CONN) => says(
                "the export does not say multi-conn, so a connection need not see what another one wrote: give --connections 1",
            ),
            () if mix.has_changes() && !self.overwrite => {
                says("writes would destroy what the export holds: give --overwrite")
            }
            () if least % step != 0 || most % step != 0 => Err(format!(
                "the export wants multiples of {step} bytes: give another --size"
            )),
            () if has_data && most > longest => Err(format!(
                "the export takes requests of {longest} bytes at most: give another --size"
            )),
            () if range > RANGE_BYTES_MAX => Err(format!(
                "--range {range}: 8 bytes of memory are taken for each 512, so 64GiB is the most"
            )),
            () if range > all || !range.is_multiple_of(step) || range < most => Err(format!(
                "--range {range}: expected a multiple of {step}, from the {most} bytes of a request to the export's {all}"
            )),
            () => Ok((mix, range)),
        }
    }
}

/// Bytes that offsets and lengths are multiples of.
fn step(export: &Export) -> u64 {
    u64::from(export.minimum).max(SECTOR_BYTES as u64)
}

/// Makes the run and prints the report.
///
/// # Errors
/// Usage; no connection; sectors that were not what they must be, errors, a lost connection.
pub fn run(args: &NbdArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("event loop")?;
    let report = LocalSet::new().block_on(&runtime, run_local(args.clone()))?;
    print(args.json, &report, Report::text)?;
    let uri = &args.uri;
    match &report.lost {
        _ if report.is_good() => Ok(()),
        _ if report.wrong_sectors > 0 => {
            let (wrong, checked) = (report.wrong_sectors, report.checked_sectors);
            Err(anyhow!("{uri}: {wrong} of {checked} sectors were wrong"))
        }
        Some(lost) => Err(anyhow!("{uri}: the connection is lost: {lost}")),
        None if report.errors.is_empty() => Err(anyhow!("{uri}: nothing was asked")),
        None => Err(anyhow!("{uri}: requests failed")),
    }
}

async fn run_local(mut args: NbdArgs) -> anyhow::Result<Report> {
    let uri = args.uri.clone();
    let (streams, export) = load::connect(&args)
        .await
        .with_context(|| format!("cannot connect to {uri}"))?;
    let path = args.journal.clone();
    let of_journal = || {
        path.as_ref()
            .map_or(String::new(), |path| path.display().to_string())
    };
    let found = path.as_ref().filter(|path| path.exists());
    let known = match found {
        Some(_) if !args.resume => {
            let what = "it is there: give --resume to go on from it, or remove it";
            return Err(usage(format!("--journal {}: {what}", of_journal())));
        }
        Some(path) => {
            let known = journal::load(path, export.size / SECTOR_BYTES as u64).with_context(of_journal)?;
            let range = known.1.sectors() * SECTOR_BYTES as u64;
            if args.range.is_some_and(|given| given != range) {
                return Err(usage(format!("--range: {} is of {range} bytes", of_journal())));
            }
            args.range = Some(range);
            Some(known)
        }
        None => None,
    };
    let (mix, range) = args
        .plan(&export)
        .map_err(|what| usage(format!("{uri}: {what}")))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let report = Report::new(
        args.seed.unwrap_or(since.subsec_nanos().into()),
        range,
        known.is_some(),
    );
    let (id, model) = known.unwrap_or_else(|| {
        let id = mix64(since.as_nanos() as u64 ^ mix64(std::process::id().into()));
        (id, Model::new(range / SECTOR_BYTES as u64))
    });
    if let Some(path) = found.filter(|_| mix.has_changes()) {
        // It is not true any more once something is written.
        std::fs::remove_file(path).with_context(of_journal)?;
    }
    let run = Rc::new(RefCell::new(Run::new(args, id, mix, export, model, report)));
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (run, mut signals) = (Rc::clone(&run), signal(kind)?);
        spawn_local(async move {
            while signals.recv().await.is_some() {
                run.borrow_mut().signals += 1;
            }
        });
    }
    let lost = load::drive(&run, streams).await.err();
    let run = &mut *run.borrow_mut();
    run.report.lost = lost.map(|lost| lost.to_string());
    run.report.is_interrupted = run.signals > 0;
    if let Some(path) = &path {
        journal::save(path, run.id, &mut run.model).with_context(of_journal)?;
    }
    Ok(std::mem::take(&mut run.report))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share: &f64| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1, such as 0.5".to_owned())
}
