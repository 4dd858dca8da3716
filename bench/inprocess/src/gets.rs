//! Gets of small items under one or another index: a file that is filled once, and then as many stretches of gets as lines
//! come on stdin. Each line names a workload, how many gets are made at once, and its length in seconds. A miss is counted. Each is answered
//! by a line of JSON.

use crate::GetsArgs;
use crate::measure::{Start, Took, resident_bytes_max};
use crate::pumice_side::{Side, bump, check, no_dram_tier, options, stats_json};
use crate::workload::Workload;
use anyhow::{Context, bail};
use pumice::{CacheOptions, DeviceReads, IndexOptions, LayoutOptions, Stats};
use pumice_trace::{GeneratedRequests, Generator};
use pumice_world::Spawner;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What the DRAM budget would be that block buffers follow from.
const PLAN_MIB: u64 = 256;
/// Requests between two looks at the clock.
const REQUESTS_PER_LOOK: u64 = 64;
/// Stretches whose requests differ.
const STRETCHES_MAX: u64 = 1 << 20;

/// A line of stdin.
struct Stretch {
    requests: GeneratedRequests,
    depth: usize,
    seconds: f64,
}

impl Stretch {
    /// The stretch of that number: each draws requests of its own, which no other repeats.
    fn parse(line: &str, keys: u64, number: u64) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[spec, depth, seconds] = words.as_slice() else {
            bail!("`{line}`: not a workload, gets at once, and seconds");
        };
        let generator = Generator::endless(&format!("{spec},keys={keys}"))?;
        Ok(Self {
            requests: generator.stream_part(number, STRETCHES_MAX),
            depth: depth.parse()?,
            seconds: seconds.parse()?,
        })
    }
}

/// What all tasks of a stretch share.
struct Run {
    side: Side,
    workload: Workload,
    requests: RefCell<GeneratedRequests>,
    until: Cell<Instant>,
    over: Cell<bool>,
    done: Cell<u64>,
    misses: Cell<u64>,
    failed: RefCell<Option<anyhow::Error>>,
}

impl Run {
    async fn get(&self, key: u64) -> anyhow::Result<bool> {
        let Side { cache, cx, .. } = &self.side;
        let name = key.to_le_bytes();
        let Some(object) = cache.get(cx, &name).await else {
            return Ok(false);
        };
        check(&self.workload, key, &object)?;
        Ok(true)
    }

    async fn work(&self) -> anyhow::Result<()> {
        while !self.over.get() {
            if self.done.get().is_multiple_of(REQUESTS_PER_LOOK) && Instant::now() >= self.until.get() {
                self.over.set(true);
            }
            let key = self.requests.borrow_mut().draw().key;
            if !self.get(key).await? {
                bump(&self.misses);
            }
            bump(&self.done);
        }
        Ok(())
    }

    fn stretch(self: &Rc<Self>, stretch: Stretch) -> anyhow::Result<Value> {
        for counter in [&self.done, &self.misses] {
            counter.set(0);
        }
        *self.requests.borrow_mut() = stretch.requests;
        self.over.set(false);
        let before = (self.side.cache.stats(), self.side.cache.device_reads());
        self.until
            .set(Instant::now() + Duration::from_secs_f64(stretch.seconds));
        let start = Start::now()?;
        for _ in 0..stretch.depth {
            let run = Rc::clone(self);
            self.side.executor.spawner().spawn(Box::pin(async move {
                if let Err(error) = run.work().await {
                    run.over.set(true);
                    *run.failed.borrow_mut() = Some(error);
                }
            }));
        }
        self.side.run_until_idle()?;
        let took = start.took()?;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.report(&took, &before)
    }

    fn report(&self, took: &Took, (before, reads_before): &(Stats, DeviceReads)) -> anyhow::Result<Value> {
        let (stats, reads) = (self.side.cache.stats(), self.side.cache.device_reads());
        let requests = self.done.get();
        let each = |count: u64| count as f64 / requests.max(1) as f64;
        Ok(json!({
            "requests": requests,
            "took": took,
            "requests_per_second": requests as f64 / took.seconds,
            "cpu_us_per_request": took.cpu_seconds * 1e6 / requests.max(1) as f64,
            "misses": self.misses.get(),
            "miss_ratio": each(self.misses.get()),
            "device_reads_per_request": each(reads.all() - reads_before.all()),
            "rounds_per_request": each(reads.rounds() - reads_before.rounds()),
            "resident_entries": stats.resident_entries,
            "tier1_mappings": stats.cascade.tier1_mappings,
            "appended_bytes": stats.flash.appended_bytes - before.flash.appended_bytes,
            "written_bytes": stats.blocks.written_bytes - before.blocks.written_bytes,
            "mapping_bytes": stats.flash.mapping_bytes - before.flash.mapping_bytes,
            "survivor_bytes": stats.flash.survivor_bytes - before.flash.survivor_bytes,
            "resident_bytes_max": resident_bytes_max()?,
            "stats": stats_json(before, &stats),
        }))
    }
}

pub fn gets(args: &GetsArgs) -> anyhow::Result<Value> {
    let workload = Workload::new(args.keys, 0.0, (args.size, args.size))?;
    let layout = LayoutOptions::new(args.layout.parse()?, None, None, None)?;
    let index = match args.index.as_str() {
        "full" => IndexOptions::Full,
        "cascade" => IndexOptions::cascade(args.tier1),
        other => bail!("--index {other}: full or cascade"),
    };
    let options = CacheOptions {
        index,
        ..no_dram_tier(options(PLAN_MIB, args.flash_mib, None, layout)?)
    };
    let side = Side::open(&args.path, args.flash_mib, options)?;
    side.fill(&workload, workload.keys_shuffled())?;
    let run = Rc::new(Run {
        side,
        requests: RefCell::new(workload.requests()),
        workload,
        until: Cell::new(Instant::now()),
        over: Cell::default(),
        done: Cell::default(),
        misses: Cell::default(),
        failed: RefCell::default(),
    });
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{}",
        json!({"filled": run.side.cache.stats().resident_entries})
    )?;
    let mut stretches = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("reading what to do")?;
        let stretch = Stretch::parse(&line, args.keys, stretches)?;
        writeln!(out, "{}", run.stretch(stretch)?)?;
        stretches += 1;
    }
    Ok(json!({ "stretches": stretches }))
}
