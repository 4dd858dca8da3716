//! `pumice advise`: how much DRAM and flash to buy for a workload.

mod args;
mod page;
mod report;

use crate::replay::{of_config, show};
use crate::times::people;
use anyhow::Context;
pub use args::AdviseArgs;
use args::{Have, SECTOR_BYTES, flash, latencies, read_ns};
use page::PageFile;
use pumice_advise::{
    Choice, Curve, CurveBuilder, CurveOptions, Endurance, Latencies, Limit, Offer, Prices, Rating, choose,
    knees, pairs, sizes,
};
use pumice_console::{Bar, print, usage};
use pumice_server::Flags;
use pumice_server::objects::{ServeConfig, options_of_empty, smallest_dram};
use pumice_server::settings::{Layers, Settings};
use pumice_sim::{
    FlashOptions, IndexOptions, MissingSizes, OpsMode, ReplayRules, Report, Rule, Timed, replay_flash,
};
use pumice_trace::{Format, Human, Trace, bytes};
use report::{Advice, ByRule, Row, Turn, Twice};
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The smallest DRAM and flash on offer.
const LEAST: u64 = 16 << 20;
/// Of DRAM without flash, the share that a cache has for itself: connections, tables.
const DRAM_ALONE_OVERHEAD: u64 = 16;
/// Bytes of DRAM for a mapping of index `full`.
const FULL_ENTRY_BYTES: u64 = 11;
/// Share of gets that are first ones, above which a trace says little of larger caches.
const FIRST_SHARE_MAX: f64 = 0.5;
/// Longest value that `serve` is told to take.
const ITEM_BYTES_MAX: u64 = 128 << 20;
/// Any size that a machine has.
const SMALL_DRAM: &str = "64MiB";
const DAY_SECONDS: f64 = 86_400.0;
/// Points of the curve that are printed.
const POINTS: i32 = 70;
/// Rules that the advice is replayed with as well.
const RULES: [Rule; 2] = [Rule::SecondHit, Rule::Random(0.25)];
/// Points between the engine's hit ratio and the curve's, above which a note says so.
const POINTS_OFF: f64 = 2.0;

/// What all offers stand on.
struct Basis<'a> {
    args: &'a AdviseArgs,
    trace: Trace,
    curve: Curve,
    curve_seconds: f64,
    /// Of the mean object.
    latencies: Latencies,
    prices: Prices,
    limit: Limit,
    endurance: Option<Endurance>,
    /// Seconds that the trace took.
    span: Option<f64>,
    /// Requests that record no size, where the trace has sizes.
    without_size: u64,
}

/// Reads a trace, and prints advice.
///
/// # Errors
/// Usage, or what failed.
pub fn run(args: &AdviseArgs) -> anyhow::Result<()> {
    let rating = Rating {
        tbw: args.tbw,
        dwpd: args.dwpd,
        // They count for each row, by the size of its flash.
        cycles: None,
        drive_size: args.drive_size,
        warranty: args.warranty,
    };
    let endurance = rating.endurance();
    let is_rated = endurance.is_some() || args.cycles.is_some();
    if args.years.is_some() && !is_rated {
        return Err(usage(
            "--years needs --tbw, or --dwpd and --drive-size, or --cycles",
        ));
    }
    // Before a long trace is read.
    latencies(args, SECTOR_BYTES)?;
    let trace = args.source.trace()?;
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let started = Instant::now();
    let (curve, seconds, without_size) = read(args, &trace)?;
    let span = args.span.or(seconds);
    if is_rated && span.is_none() {
        return Err(usage(
            "--tbw, --dwpd and --cycles need --span: the trace has no times",
        ));
    }
    let curve_seconds = started.elapsed().as_secs_f64();
    let first = (1.0 - curve.hit_ratio_max()) * curve.requests as f64;
    args.source.doubt(curve.requests, first as u64);
    let basis = Basis {
        args,
        // An object begins anywhere in a sector.
        latencies: latencies(args, curve.object_bytes() + SECTOR_BYTES)?,
        prices: Prices {
            dram: args.dram_price,
            flash: args.flash_price,
        },
        limit: match (args.budget, args.response) {
            (Some(money), _) => Limit::Money(money),
            (None, Some(ns)) => Limit::Response(ns),
            (None, None) => Limit::None,
        },
        trace,
        curve,
        curve_seconds,
        endurance,
        span,
        without_size,
    };
    let advice = basis.advise()?;
    if let Some(page) = page {
        page.write(&advice.page())?;
    }
    print(args.json, &advice, Advice::text)
}

/// The curve of a trace, the seconds that it took, if it has times, and its requests without a size, if it has sizes that count.
fn read(args: &AdviseArgs, trace: &Trace) -> anyhow::Result<(Curve, Option<f64>, u64)> {
    let usual = CurveOptions::default();
    let mut builder = CurveBuilder::new(CurveOptions {
        object_bytes: args.object_size.max(1),
        ignores_sizes: args.ignore_sizes,
        keys_exact: args.sample.map_or(usual.keys_exact, |keys| keys as usize),
        keys_sampled: args.sample.map_or(usual.keys_sampled, |keys| keys as usize),
        seed: args.seed,
    });
    let mut reader = trace.open().map_err(crate::replay::trace_error)?;
    let bar = Bar::new("reading");
    let mut batch = Vec::new();
    while reader
        .next_batch(&mut batch)
        .map_err(crate::replay::trace_error)?
    {
        builder.add(&batch);
        let at = reader.progress();
        bar.show(at.done, at.total);
    }
    bar.clear();
    let curve = builder.finish();
    match curve.requests {
        0 => anyhow::bail!("{}: it has no gets: no cache can be advised", trace.name()),
        _ => {
            // A generator has no times.
            let format = reader.format_name().parse::<Format>().ok();
            let seconds = format.map(|format| curve.ticks as f64 / format.ticks_per_second() as f64);
            let without_size = match args.ignore_sizes {
                true => 0,
                false => reader.records().without_size,
            };
            Ok((curve, seconds.filter(|seconds| *seconds > 0.0), without_size))
        }
    }
}

impl Basis<'_> {
    /// The longest value of the server, if its default is too short.
    fn item_bytes_max(&self) -> Option<u64> {
        let largest = self.curve.largest.checked_next_power_of_two();
        let largest = largest.map_or(ITEM_BYTES_MAX, |largest| largest.min(ITEM_BYTES_MAX));
        (largest > 1 << 20).then_some(largest)
    }

    /// The settings of a server with so much DRAM, whatever this machine has.
    fn config(&self, dram: u64) -> anyhow::Result<ServeConfig> {
        let settings = Settings {
            dram: Some(vec![SMALL_DRAM.to_owned()]),
            max_item_size: self.item_bytes_max().map(|most| vec![format!("{most}B")]),
            ..Settings::default()
        };
        let layers = Layers::collect(settings, None)?;
        let flags = Flags {
            reformat: true,
            ..Flags::default()
        };
        let mut config = ServeConfig::resolve(&layers, &flags)?;
        config.host.dram = dram;
        Ok(config)
    }

    /// The same with a rule of what goes to flash.
    fn config_with(&self, dram: u64, rule: Rule) -> anyhow::Result<ServeConfig> {
        let mut config = self.config(dram)?;
        config.admission.rule = rule;
        Ok(config)
    }

    /// The bytes of DRAM that hold objects.
    fn items(&self, dram: u64, flash: u64) -> anyhow::Result<u64> {
        if flash == 0 {
            return Ok(dram - dram / DRAM_ALONE_OVERHEAD);
        }
        let options = options_of_empty(&self.config(dram)?, flash)?;
        let objects = (flash as f64 / self.curve.object_bytes()) as u64;
        let index = match options.index {
            IndexOptions::Full => objects.min(self.curve.objects) * FULL_ENTRY_BYTES,
            IndexOptions::Cascade(_) => 0,
        };
        (options.dram_bytes as u64)
            .checked_sub(index)
            .with_context(|| format!("the index of {objects} objects does not fit"))
    }

    /// Pairs of sizes on offer, each with the bytes of the DRAM that hold objects. Beside each flash the smallest DRAM that a server takes.
    fn grid(&self) -> anyhow::Result<HashMap<(u64, u64), u64>> {
        let footprint = self.curve.footprint.min(u64::MAX / 2);
        let sizes = sizes(footprint + footprint / 8, LEAST);
        let config = self.config(LEAST)?;
        let smallest = |flash: &u64| Some((*flash, smallest_dram(&config, *flash)?));
        let least: HashMap<u64, u64> = sizes.iter().filter_map(smallest).collect();
        let mut all = pairs(&sizes, &sizes);
        all.retain(|(dram, flash)| *flash == 0 || least.get(flash).is_some_and(|least| dram > least));
        all.extend(least.iter().map(|(flash, dram)| (*dram, *flash)));
        let items = all
            .iter()
            .filter_map(|(dram, flash)| Some(((*dram, *flash), self.items(*dram, *flash).ok()?)));
        Ok(items.collect())
    }

    fn advise(&self) -> anyhow::Result<Advice> {
        let grid = self.grid()?;
        let mut pairs: Vec<(u64, u64)> = grid.keys().copied().collect();
        pairs.sort_unstable();
        let choose = |latencies: &Latencies, prices: &Prices| {
            let items = |dram, flash| grid.get(&(dram, flash)).copied();
            choose(&self.curve, latencies, prices, self.limit, &pairs, items)
        };
        let choice = choose(&self.latencies, &self.prices);
        let offers = self.offers(&choice)?;
        let rows = self.worth_it(self.rows(&offers)?, &offers)?;
        let turned = |what, latencies: &Latencies, prices: &Prices| {
            let best = choose(latencies, prices).best?;
            let is_other = choice
                .best
                .is_none_or(|now| (now.dram, now.flash) != (best.dram, best.flash));
            Some(Turn {
                what,
                dram_bytes: best.dram,
                flash_bytes: best.flash,
                is_other,
            })
        };
        let (latencies, prices) = (&self.latencies, &self.prices);
        let with = |dram, flash| Prices {
            dram: prices.dram * dram,
            flash: prices.flash * flash,
        };
        let slow = Latencies {
            miss_ns: latencies.miss_ns * 2.0,
            ..*latencies
        };
        let turns = [
            turned("misses took twice as long", &slow, prices),
            turned("DRAM cost 30 % more", latencies, &with(1.3, 1.0)),
            turned("DRAM cost 30 % less", latencies, &with(0.7, 1.0)),
            turned("flash cost 30 % more", latencies, &with(1.0, 1.3)),
            turned("flash cost 30 % less", latencies, &with(1.0, 0.7)),
        ];
        let notes = self.notes(&rows);
        let twice = rows.first().and_then(|row| Twice::of(row, self.args.years));
        Ok(Advice {
            trace: self.trace.name().to_owned(),
            requests: self.curve.requests,
            sets: self.curve.sets,
            objects: self.curve.objects,
            footprint_bytes: self.curve.footprint,
            sampling_rate: self.curve.sampling_rate,
            hit_ratio_max: self.curve.hit_ratio_max(),
            dram_ns: latencies.dram_ns,
            flash_ns: latencies.flash_ns,
            miss_ns: latencies.miss_ns,
            limit: match self.limit {
                Limit::Money(_) => "money",
                Limit::Response(_) => "response",
                Limit::None => "neither",
            },
            rows,
            notes,
            turns: turns.into_iter().flatten().collect(),
            twice,
            span_seconds: self.span,
            curve_seconds: self.curve_seconds,
            curve: points(&self.curve),
            knees: knees(&self.curve),
        })
    }

    /// At most five: the advice, some cheaper and faster sizes, DRAM alone, and today's.
    fn offers(&self, choice: &Choice) -> anyhow::Result<Vec<(&'static str, Offer)>> {
        let mut offers: Vec<(&'static str, Offer)> = Vec::new();
        let frontier = &choice.frontier;
        match choice.best {
            Some(best) => {
                let cheaper = frontier
                    .iter()
                    .rev()
                    .find(|offer| offer.money <= best.money * 0.6);
                let faster = frontier
                    .iter()
                    .find(|offer| offer.response_ns <= best.response_ns * 0.7);
                let faster = faster.or_else(|| {
                    frontier
                        .last()
                        .filter(|offer| offer.response_ns < best.response_ns)
                });
                offers.push(("advice", best));
                offers.extend(cheaper.map(|offer| ("cheaper", *offer)));
                offers.extend(faster.map(|offer| ("faster", *offer)));
            }
            None => {
                let nearest = match self.limit {
                    Limit::Money(_) => frontier.first(),
                    _ => frontier.last(),
                };
                offers.extend(nearest.map(|offer| ("nearest", *offer)));
            }
        }
        let first = offers.first().map(|(_, offer)| *offer);
        let alone = choice.dram_alone.filter(|alone| first != Some(*alone));
        offers.retain(|(_, offer)| Some(*offer) != alone);
        offers.extend(alone.map(|offer| ("dram alone", offer)));
        if let Some(Have { dram, flash }) = self.args.have {
            let dram_items = self
                .items(dram, flash)
                .map_err(|error| usage(format!("--have: {error}")))?;
            offers.push((
                "today",
                Offer {
                    dram,
                    flash,
                    dram_items,
                    dram_hits: self.curve.hit_ratio(dram_items),
                    hits: self.curve.hit_ratio(dram_items.max(flash)),
                    response_ns: self.latencies.of(&self.curve, dram_items, flash),
                    money: self.prices.of(dram, flash),
                },
            ));
        }
        Ok(offers)
    }

    /// Without rows that cost no less than another and are no faster, by figures of the engine: sizes were chosen by the curve. Where that is so of
    /// the advice, the other row becomes it. Today's sizes are there whatever they cost.
    fn worth_it(&self, mut rows: Vec<Row>, offers: &[(&'static str, Offer)]) -> anyhow::Result<Vec<Row>> {
        while let Some((at, other)) = Row::no_bargain(&rows) {
            let worse = rows[at].what;
            if at == 0 {
                let offer = offers.iter().find(|(what, _)| *what == rows[other].what);
                let (_, offer) = offer.context("a row is of an offer")?;
                rows[0] = self.row(worse, offer)?;
                rows.remove(other);
            } else {
                rows.remove(at);
            }
        }
        Ok(rows)
    }

    /// The figures of offers, in their order, some made at a time.
    fn rows(&self, offers: &[(&'static str, Offer)]) -> anyhow::Result<Vec<Row>> {
        let next = AtomicUsize::new(0);
        let done: Vec<_> = offers.iter().map(|_| OnceLock::new()).collect();
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(row), Some((what, offer))) = (done.get(at), offers.get(at)) else {
                    return;
                };
                // Nobody else has this one.
                let _ = row.set(self.row(what, offer));
            }
        };
        std::thread::scope(|scope| {
            let jobs = usize::from(self.args.jobs).min(offers.len());
            (0..jobs).for_each(|_| drop(scope.spawn(work)));
        });
        done.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    /// The figures of an offer.
    fn row(&self, what: &'static str, offer: &Offer) -> anyhow::Result<Row> {
        let mut row = Row::of_curve(what, offer);
        if offer.flash == 0 {
            row.command = Some(self.without_flash(offer.dram));
            return Ok(row);
        }
        self.weigh(&mut row, offer);
        if self.args.no_replay {
            return Ok(row);
        }
        let mut row = self.replayed(row, offer, Rule::All)?;
        let timed = Timed {
            dram_ns: self.latencies.dram_ns as u64,
            miss_ns: self.latencies.miss_ns as u64,
        };
        let in_virtual_time = self.replay(offer, Rule::All, Some(timed))?.response_ns;
        row.response_error_ns = in_virtual_time.map(|ns| (ns - row.response_ns).abs());
        if what == "advice" {
            // The filter of a rule may not fit beside the rest.
            let fits = |rule: &Rule| {
                self.config_with(offer.dram, *rule)
                    .is_ok_and(|config| options_of_empty(&config, offer.flash).is_ok())
            };
            for rule in RULES.into_iter().filter(fits) {
                let replayed = self.replayed(row.clone(), offer, rule)?;
                row.by_rule.push(ByRule::of(rule, &replayed));
            }
        }
        Ok(row)
    }

    /// How to run a cache that has no flash: memcached is as fast as Pumice then, and needs less.
    fn without_flash(&self, dram: u64) -> String {
        let item = self
            .item_bytes_max()
            .map_or_else(String::new, |most| format!(" -I {}m", most >> 20));
        format!("memcached -m {}{item}", dram >> 20)
    }

    /// What the flash is worth, and how to run it.
    fn weigh(&self, row: &mut Row, offer: &Offer) {
        let equal = self.latencies.equivalents(&self.curve, offer.dram, offer.flash);
        let ratio = self.prices.dram / self.prices.flash;
        row.equal_dram_by_response = equal.by_response;
        row.equal_dram_by_hits = Some(equal.by_hits);
        row.saved_of_replaced = equal.saved_of_replaced(offer.flash, ratio);
        row.saved_of_whole = equal.saved_of_whole(offer.dram, offer.flash, ratio);
        let item = self
            .item_bytes_max()
            .map_or_else(String::new, |most| format!(" --max-item-size {}", flag(most)));
        let (dram, flash) = (flag(offer.dram), flag(offer.flash));
        row.command = Some(format!(
            "pumice serve --dram {dram} --flash PATH --flash-size {flash}{item}"
        ));
    }

    /// The report of a replay of an offer through the engine, with a rule of what goes to flash.
    fn replay(&self, offer: &Offer, rule: Rule, timed: Option<Timed>) -> anyhow::Result<Report> {
        let config = self.config_with(offer.dram, rule)?;
        let bar = (self.args.jobs == 1).then(|| Bar::new("replaying"));
        let replayed = replay_flash(
            &self.trace,
            &FlashOptions {
                served: Some(of_config(config, None)),
                superblock_blocks: u32::from(self.args.cycles.is_some()),
                throttle: timed.map(|_| flash(self.args)),
                timed,
                rules: ReplayRules {
                    missing_sizes: MissingSizes::Fixed(self.args.object_size.max(1)),
                    ignores_sizes: self.args.ignore_sizes,
                    ops: OpsMode::LookAside,
                    ..ReplayRules::default()
                },
                ..FlashOptions::of(format!("{}B", offer.flash).parse()?)
            },
            &mut |at| bar.iter().for_each(|bar| show(bar, at)),
        );
        bar.iter().for_each(Bar::clear);
        replayed.map_err(crate::replay::sim_error)
    }

    /// A row with the figures of a replay.
    fn replayed(&self, mut row: Row, offer: &Offer, rule: Rule) -> anyhow::Result<Row> {
        let report = self.replay(offer, rule, None)?;
        let hits = report.object_hit_ratio.unwrap_or(0.0);
        // Of each get.
        let rounds = hits * report.flash_rounds_per_hit.unwrap_or(0.0);
        let bytes = hits * report.flash_bytes_read_per_hit.unwrap_or(0.0);
        let in_vain = (1.0 - hits) * report.flash_reads_per_miss.unwrap_or(0.0);
        row.figures_of = "engine";
        row.hit_ratio = hits;
        row.dram_hit_ratio = report.dram_hit_ratio.unwrap_or(0.0);
        row.response_ns = row.dram_hit_ratio * self.latencies.dram_ns
            + (1.0 - hits) * self.latencies.miss_ns
            + read_ns(
                &flash(self.args),
                rounds + in_vain,
                bytes + in_vain * SECTOR_BYTES,
            );
        row.index = report.index;
        row.index_dram_bytes = report.index_dram_bytes;
        row.bytes_written_host = report.bytes_written_host;
        // A trace that writes nothing says nothing of a day.
        let written = report
            .bytes_written_host
            .filter(|bytes| *bytes > 0)
            .map(|bytes| bytes as f64);
        row.host_bytes_a_day = written
            .zip(self.span)
            .map(|(bytes, span)| bytes / span * DAY_SECONDS);
        row.flash_years = self
            .endurance
            .zip(row.host_bytes_a_day)
            .map(|(endurance, day)| endurance.years(day));
        row.device_write_amplification = report.device_write_amplification;
        let of_cells = Rating {
            cycles: self.args.cycles,
            drive_size: Some(offer.flash as f64 / 1e9),
            ..Rating::default()
        };
        row.flash_years_by_cycles = (of_cells.endurance())
            .zip(row.host_bytes_a_day.zip(report.device_write_amplification))
            .map(|(endurance, (day, amplification))| endurance.years(day * amplification));
        let reads = hits * report.flash_reads_per_hit.unwrap_or(0.0) + in_vain;
        row.flash_reads_a_second = self.span.map(|span| reads * self.curve.requests as f64 / span);
        Ok(row)
    }

    fn notes(&self, rows: &[Row]) -> Vec<String> {
        let mut notes = Vec::new();
        let curve = &self.curve;
        let first = 1.0 - curve.hit_ratio_max();
        if first > FIRST_SHARE_MAX {
            notes.push(format!(
                "{:.0} % of the gets are of objects that were not asked for before: a longer recording may show hits of larger caches",
                first * 100.0
            ));
        }
        if self.without_size > 0 {
            notes.push(format!(
                "{} requests record no size: each counts with the next of its key, or, where none comes soon, with {} bytes (--object-size)",
                self.without_size, self.args.object_size
            ));
        }
        for row in rows.iter().filter(|row| row.flash_bytes > 0) {
            let off = (row.hit_ratio - row.curve_hit_ratio) * 100.0;
            if off.abs() > POINTS_OFF {
                notes.push(format!(
                    "{}: the engine hits {:.1} % where LRU's curve, by which sizes were chosen, has {:.1} %",
                    row.what,
                    row.hit_ratio * 100.0,
                    row.curve_hit_ratio * 100.0
                ));
            }
            if let Limit::Response(most) = self.limit
                && row.what == "advice"
                && row.response_ns > most
            {
                notes.push(format!(
                    "advice: {} is longer than --response",
                    people(row.response_ns)
                ));
            }
            if let Some(written) = row
                .bytes_written_host
                .filter(|written| (1..row.flash_bytes).contains(written))
            {
                let times = row.flash_bytes as f64 / (written as f64).max(1.0);
                notes.push(format!(
                    "{}: the trace fills this flash but {:.0} %: what it evicts is not seen; record {:.1} times as long",
                    row.what,
                    100.0 / times,
                    times.max(1.1)
                ));
            }
            let too_few = row.years().zip(self.args.years);
            let too_few = too_few.filter(|(years, wanted)| years < wanted);
            if let Some((years, wanted)) = too_few {
                notes.push(format!(
                    "{}: the flash lasts {years:.1} years, less than {wanted}",
                    row.what
                ));
            }
        }
        if (self.endurance.is_some() || self.args.cycles.is_some())
            && self.span.is_some_and(|span| span < DAY_SECONDS)
        {
            notes.push("the trace is shorter than a day: bytes written in a day are scaled from it".into());
        }
        if curve.sampling_rate < 1.0 {
            notes.push(format!(
                "the curve is of {:.2} % of the keys",
                curve.sampling_rate * 100.0
            ));
        }
        notes
    }
}

/// The curve at 70 sizes, each the same number of times the one before.
fn points(curve: &Curve) -> Vec<(u64, f64, f64)> {
    let step = |number: i32| 1000f64.powf(f64::from(number - (POINTS - 1)) / f64::from(POINTS - 1));
    let sizes = (0..POINTS).map(|number| (curve.footprint as f64 * step(number)).ceil() as u64);
    let point = |size| (size, curve.hit_ratio(size), curve.byte_hit_ratio(size));
    sizes.map(point).collect()
}

/// A size as a flag takes it, exactly.
fn flag(size: u64) -> String {
    let text = Human(size).to_string().replace(' ', "");
    match bytes::<u64>(&text) {
        Ok(same) if same == size => text,
        _ => format!("{size}B"),
    }
}
