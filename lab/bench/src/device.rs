//! `pumice-bench device`: how fast a device is, by size, depth and mix.

use anyhow::{Context, anyhow};
use clap::Args;
use hdrhistogram::Histogram;
use pumice_console::{print, say, usage};
use pumice_device::{
    AlignedBuf, Buffer, Device, FileDevice, FileOptions, FileShared, Payload, Profile, RealTime, Throttle,
    ThrottledDevice, Timeline,
};
use pumice_loadgen::{Latency, histogram, seconds};
use pumice_trace::bytes;
use pumice_world::{Executor, Random, Spawner};
use serde::Serialize;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Operations that are under way have so many bytes of memory at most.
const MEMORY_MAX: u64 = 4 << 30;

/// Flags of `device`.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// A file or a block device. A file that is not there is made, filled, and removed at the end
    path: PathBuf,

    /// Bytes that are used [default: all that there are; 1GiB of a new file]
    #[arg(long, value_name = "SIZE", value_parser = bytes::<u64>)]
    size: Option<u64>,

    /// Bytes of an operation, multiples of 4KiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,16KiB,64KiB,256KiB", value_parser = bytes::<usize>)]
    sizes: Vec<usize>,

    /// Operations under way at the same time
    #[arg(long, value_name = "DEPTHS", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    depths: Vec<u32>,

    /// How many of 100 operations are reads; the others are writes
    #[arg(long, value_name = "PERCENTS", value_delimiter = ',', default_value = "100", value_parser = clap::value_parser!(u32).range(0..=100))]
    reads: Vec<u32>,

    /// How long each combination takes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,

    /// Write to a file or device that was there, whatever it holds
    #[arg(long)]
    overwrite: bool,

    /// Make it as slow as another kind of device: dram, nvm, optane, nvme, sata or hdd, or N times as slow, for example nvme*40
    #[arg(long, value_name = "KIND")]
    throttle: Option<Profile>,

    /// Fixes where operations go
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of an operation.
    pub size: usize,
    /// Operations under way at the same time.
    pub depth: u32,
    /// Of 100 operations.
    pub reads: u32,
    /// Fixes where they go.
    pub seed: u64,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Row {
    size_bytes: usize,
    depth: u32,
    reads_percent: u32,
    operations: u64,
    /// Operations a second.
    pub operations_per_second: f64,
    bytes_per_second: f64,
    /// `None` where there were none.
    pub read: Option<Latency>,
    write: Option<Latency>,
}

#[derive(Serialize)]
struct Report<'a> {
    path: &'a Path,
    engine: String,
    is_direct: bool,
    used_bytes: u64,
    throttle: Option<String>,
    seconds: f64,
    seed: u64,
    rows: Vec<Row>,
}

struct Progress {
    random: Random,
    /// Of writes and of reads, in nanoseconds.
    times: [Histogram<u64>; 2],
    failed: Option<std::io::Error>,
}

/// Has `load.depth` operations under way at random places, until `is_over` says so of the number of those that have ended.
///
/// # Errors
/// What the device said.
pub fn measure<D: Device<Buf = AlignedBuf> + Clone>(
    device: &D,
    time: &Arc<dyn Timeline>,
    load: Load,
    is_over: impl Fn(u64) -> bool + Clone + 'static,
) -> std::io::Result<Row> {
    let executor = Executor::new();
    let data = Arc::new(filled(load.size));
    let progress = Rc::new(RefCell::new(Progress {
        random: Random(load.seed),
        times: [histogram(), histogram()],
        failed: None,
    }));
    let (size, places) = (load.size, device.capacity() / load.size as u64);
    let start = time.now_ns();
    for _ in 0..load.depth {
        let (device, time, data) = (device.clone(), Arc::clone(time), Arc::clone(&data));
        let (progress, is_over) = (Rc::clone(&progress), is_over.clone());
        executor.spawner().spawn(Box::pin(async move {
            loop {
                let (offset, is_read) = {
                    let mut progress = progress.borrow_mut();
                    let ended = progress.times[0].len() + progress.times[1].len();
                    if progress.failed.is_some() || is_over(ended) {
                        return;
                    }
                    let random = &mut progress.random;
                    (
                        random.below(places) * size as u64,
                        random.below(100) < u64::from(load.reads),
                    )
                };
                let begun = time.now_ns();
                let result = match is_read {
                    true => device.read(offset, size).await.map(drop),
                    false => device.write(offset, Arc::clone(&data), 0..size).await,
                };
                let took = time.now_ns() - begun;
                let mut progress = progress.borrow_mut();
                match result {
                    Ok(()) => progress.times[usize::from(is_read)].saturating_record(took),
                    Err(error) => progress.failed = Some(error),
                }
            }
        }));
    }
    executor.run_until_idle(|| device.turn(true).map(drop))?;
    let took = (time.now_ns() - start) as f64 / 1e9;
    drop(executor);
    let progress = Rc::into_inner(progress).expect("all have ended").into_inner();
    if let Some(error) = progress.failed {
        return Err(error);
    }
    let [writes, reads] = &progress.times;
    let operations = writes.len() + reads.len();
    Ok(Row {
        size_bytes: size,
        depth: load.depth,
        reads_percent: load.reads,
        operations,
        operations_per_second: operations as f64 / took,
        bytes_per_second: operations as f64 * size as f64 / took,
        read: Latency::of(reads),
        write: Latency::of(writes),
    })
}

/// Bytes that no drive can compress to nothing.
fn filled(len: usize) -> AlignedBuf {
    let mut random = Random(len as u64);
    let bytes: Vec<u8> = (0..len / 8)
        .flat_map(|_| random.next_u64().to_le_bytes())
        .collect();
    let buf = AlignedBuf::with_len(len);
    // SAFETY: nobody else knows the buffer yet.
    unsafe { buf.put(0, Payload::Bytes(&bytes)) };
    buf
}

/// Removes the file that was made.
struct Made<'a>(&'a Path);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Measures all combinations and prints them.
///
/// # Errors
/// Usage; what the device said.
pub fn run(args: &DeviceArgs) -> anyhow::Result<()> {
    let sector = pumice_device::SECTOR_BYTES;
    if let Some(size) = args.sizes.iter().find(|size| **size == 0 || **size % sector != 0) {
        return Err(usage(format!("--sizes: {size} is no multiple of 4KiB")));
    }
    let largest = *args.sizes.iter().max().expect("clap has a default");
    let entries = *args.depths.iter().max().expect("clap has a default");
    let memory = (largest as u64).saturating_mul(u64::from(entries));
    if memory > MEMORY_MAX {
        return Err(usage(format!(
            "--sizes and --depths: {entries} operations of {largest} bytes take {memory} bytes of memory, more than {MEMORY_MAX}"
        )));
    }
    let is_new = !args.path.exists();
    if !is_new && !args.overwrite && args.reads.iter().any(|reads| *reads < 100) {
        let path = args.path.display();
        return Err(usage(format!(
            "writes would destroy what {path} holds: give --overwrite, or the path of a file that is not there"
        )));
    }
    let options = FileOptions {
        size: args.size.or(is_new.then_some(1 << 30)),
        create: is_new,
        preallocate: is_new,
        ..FileOptions::default()
    };
    let had = std::fs::metadata(&args.path).map_or(0, |meta| meta.len());
    if let Some(size) = args.size.filter(|size| !is_new && had > 0 && *size > had) {
        let path = args.path.display();
        return Err(usage(format!(
            "--size {size} is more than the {had} bytes of {path}"
        )));
    }
    let shared = FileShared::open(&args.path, &options)?;
    let _made = is_new.then(|| Made(&args.path));
    if shared.capacity() < largest as u64 {
        return Err(usage(format!(
            "{} has {} bytes, fewer than one operation of {largest}",
            args.path.display(),
            shared.capacity()
        )));
    }
    let mut report = Report {
        path: &args.path,
        engine: shared.engine().to_string(),
        is_direct: shared.is_direct(),
        used_bytes: shared.capacity(),
        throttle: args.throttle.as_ref().map(ToString::to_string),
        seconds: args.seconds.as_secs_f64(),
        seed: args.seed,
        rows: Vec::new(),
    };
    let device = FileDevice::new(Arc::new(shared), entries).context("cannot make a handle on the device")?;
    let failed = |error: std::io::Error| anyhow!(error).context(args.path.display().to_string());
    if is_new {
        fill(&device).map_err(failed)?;
    }
    if !args.json {
        let (engine, direct) = (
            &report.engine,
            if report.is_direct {
                "O_DIRECT"
            } else {
                "page cache"
            },
        );
        say(&format!(
            "{}: {engine}, {direct}, {} bytes",
            args.path.display(),
            report.used_bytes
        ));
        let head = [
            "size",
            "depth",
            "reads %",
            "per second",
            "MB/s",
            "read us",
            "p50",
            "p99",
            "p99.9",
        ];
        say(&format!(
            "{}{}",
            line(&head),
            line(&["write us", "p50", "p99", "p99.9"])
        ));
    }
    for size in &args.sizes {
        for reads in &args.reads {
            for depth in &args.depths {
                let load = Load {
                    size: *size,
                    depth: *depth,
                    reads: *reads,
                    seed: args.seed,
                };
                let row = timed(&device, args, load).map_err(failed)?;
                if !args.json {
                    say(&row.text());
                }
                report.rows.push(row);
            }
        }
    }
    match args.json {
        true => print(true, &report, |_| String::new()),
        false => Ok(()),
    }
}

fn timed(device: &FileDevice, args: &DeviceArgs, load: Load) -> std::io::Result<Row> {
    let time: Arc<dyn Timeline> = Arc::new(RealTime::new());
    let until = time.now_ns() + u64::try_from(args.seconds.as_nanos()).unwrap_or(u64::MAX / 2);
    let clock = Arc::clone(&time);
    let is_over = move |_| clock.now_ns() >= until;
    match &args.throttle {
        None => measure(device, &time, load, is_over),
        Some(profile) => {
            let throttle = Arc::new(Throttle::new(profile, Arc::clone(&time)));
            measure(
                &ThrottledDevice::new(device.clone(), throttle),
                &time,
                load,
                is_over,
            )
        }
    }
}

/// Writes every byte of a new file once: what was never written is read faster.
fn fill(device: &FileDevice) -> std::io::Result<()> {
    let piece = 1 << 20;
    let (executor, data) = (Executor::new(), Arc::new(filled(piece)));
    let capacity = device.capacity();
    let mut offset = 0;
    while offset < capacity {
        let len = piece.min(usize::try_from(capacity - offset).unwrap_or(piece));
        let write = device.write(offset, Arc::clone(&data), 0..len);
        executor.block_on(write, || device.turn(true).map(drop))??;
        offset += len as u64;
    }
    Ok(())
}

fn line(cells: &[&str]) -> String {
    cells.iter().map(|cell| format!("{cell:>11}")).collect()
}

impl Row {
    fn text(&self) -> String {
        let times = |latency: &Option<Latency>| match latency {
            None => line(&["-"; 4]),
            Some(l) => line(
                &[l.mean_us, l.p50_us, l.p99_us, l.p99_9_us]
                    .map(|us| format!("{us:.1}"))
                    .each_ref()
                    .map(|s| s.as_str()),
            ),
        };
        let head = [
            self.size_bytes.to_string(),
            self.depth.to_string(),
            self.reads_percent.to_string(),
            format!("{:.0}", self.operations_per_second),
            format!("{:.1}", self.bytes_per_second / 1e6),
        ];
        format!(
            "{}{}{}",
            line(&head.each_ref().map(|s| s.as_str())),
            times(&self.read),
            times(&self.write)
        )
    }
}
