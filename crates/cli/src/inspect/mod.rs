//! `pumice inspect`: what is on a cache device. It is opened for reading only, and nothing is ever written to it.

mod device;
mod volume;

use anyhow::Context;
use clap::Args;
use device::{Overlay, ReadOnly};
use pumice_blocks::footer::Trailer;
use pumice_blocks::open::read_superblock;
use pumice_blocks::superblock::FORMAT;
use pumice_blocks::{Geometry, OpenError, Superblock};
use pumice_chunk::store::STORE;
use pumice_console::usage;
use pumice_device::SECTOR_BYTES;
use pumice_flash::inspect::{self, BlockCounts, Finding, Severity, Sink, Source, Summary};
use pumice_nhc::format::{UPPER_DATA_OFFSET, UPPER_FORMAT};
use pumice_nhc::{Found, UpperSuperblock};
use pumice_trace::Human;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Flags of `inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// The cache: a file or a block device that `pumice serve` has used as --flash, --performance-tier or --cache
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// Read every byte that counts, and name each inconsistency with its place
    #[arg(long)]
    verify: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Of the cache of a volume: say whether this file, device or export is the volume
    #[arg(long, value_name = "PATH")]
    backing: Option<String>,
}

/// Looks at a device and prints what is there. True where no inconsistency was found.
///
/// # Errors
/// Where there is no cache at the path, or a server uses it.
pub fn run(args: &InspectArgs) -> anyhow::Result<bool> {
    let name = || args.path.display();
    let device = ReadOnly::open(&args.path)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if let Some(copies) = Copies::of(&device).with_context(|| name().to_string())? {
        let _ = match args.json {
            true => writeln!(out, "{}", copies.fields(&args.path)),
            false => write!(out, "{}", copies.text(&args.path)),
        };
        let _ = out.flush();
        return Ok(true);
    }
    let device = Overlay::new(device);
    let is_of_volume = match read_superblock(&device, STORE) {
        Ok(Some(_)) => true,
        Err(OpenError::OtherStore { found, .. }) => found.kind == STORE.kind,
        // What else is there is named below.
        Ok(None) | Err(_) => false,
    };
    if is_of_volume {
        return volume::run(args, &device, &mut out).with_context(|| name().to_string());
    }
    if args.backing.is_some() {
        return Err(usage(format!(
            "--backing: {} is no cache of a volume; leave it out",
            name()
        )));
    }
    let mut findings = Findings::new(args.json, &mut out);
    let summary =
        inspect::inspect(device.below(), &mut findings, args.verify).with_context(|| name().to_string())?;
    match args.json {
        true => findings.end(&fields(&args.path, &summary)),
        false => findings.say(&text(&args.path, &summary)),
    }
    Ok(summary.inconsistencies == 0)
}

/// Prints each finding as it comes, so that no number of them takes memory.
struct Findings<'a, W> {
    json: bool,
    count: u64,
    out: &'a mut W,
}

impl<'a, W: Write> Findings<'a, W> {
    fn new(json: bool, out: &'a mut W) -> Self {
        let count = 0;
        Self { json, count, out }
    }

    fn show(&mut self, kind: &str, offset: Option<u64>, part: &str, what: &str) {
        let _ = if self.json {
            let separator = if self.count == 0 { "{\"findings\":[" } else { "," };
            let value = json!({
                "kind": kind,
                "offset": offset,
                "part": part,
                "what": what,
            });
            write!(self.out, "{separator}{value}")
        } else {
            match offset {
                Some(offset) => writeln!(self.out, "{kind}: byte {offset}, {part}: {what}"),
                None => writeln!(self.out, "{kind}: {what}"),
            }
        };
        self.count += 1;
    }

    /// Ends the JSON object with the fields of another.
    fn end(self, fields: &Value) {
        // The list was opened by the first finding.
        let open = if self.count == 0 { "{\"findings\":[" } else { "" };
        self.say(&format!(
            "{open}],{}\n",
            fields.to_string().trim_start_matches('{')
        ));
    }

    /// Ends with a text. A reader that is gone does not want it.
    fn say(self, text: &str) {
        let _ = write!(self.out, "{text}");
        let _ = self.out.flush();
    }
}

impl<W: Write> Sink for Findings<'_, W> {
    fn found(&mut self, finding: Finding) {
        let kind = match finding.severity {
            Severity::Inconsistency => "inconsistency",
            Severity::Leftover => "leftover",
        };
        self.show(
            kind,
            Some(finding.offset),
            &finding.part.to_string(),
            &finding.what,
        );
    }
}

/// What is on the device of a performance tier. Which of it counts a start finds out, with the flash at hand.
struct Copies {
    superblock: UpperSuperblock,
    places: u64,
    copies: u64,
}

impl Copies {
    fn of(device: &ReadOnly) -> io::Result<Option<Self>> {
        let mut sector = vec![0; SECTOR_BYTES];
        if device.bytes() < SECTOR_BYTES as u64 {
            return Ok(None);
        }
        device.read(0, &mut sector)?;
        let Found::Copies(superblock) = UpperSuperblock::decode(&sector) else {
            return Ok(None);
        };
        let block_bytes = superblock.block_bytes;
        let bytes = superblock.bytes.min(device.bytes());
        let places = bytes.saturating_sub(UPPER_DATA_OFFSET) / block_bytes;
        let mut copies = 0;
        for place in 0..places {
            let end = UPPER_DATA_OFFSET + (place + 1) * block_bytes;
            device.read(end - SECTOR_BYTES as u64, &mut sector)?;
            copies += u64::from(Trailer::decode(superblock.owner, &sector).is_some());
        }
        Ok(Some(Self {
            superblock,
            places,
            copies,
        }))
    }

    fn fields(&self, path: &Path) -> Value {
        json!({
            "path": path.display().to_string(),
            "format": UPPER_FORMAT,
            "cache_id": format!("{:016x}", self.superblock.owner),
            "bytes": self.superblock.bytes,
            "block_bytes": self.superblock.block_bytes,
            "places": self.places,
            "copies": self.copies,
        })
    }

    fn text(&self, path: &Path) -> String {
        format!(
            "performance    {}, format {UPPER_FORMAT}, copies of blocks of cache {:016x}\n\
             size           {} ({} bytes): {} places of {}\n\
             copies         {}; which of them count a start finds out, by the flash\n",
            path.display(),
            self.superblock.owner,
            Human(self.superblock.bytes),
            self.superblock.bytes,
            self.places,
            Human(self.superblock.block_bytes),
            self.copies,
        )
    }
}

fn fields(path: &Path, summary: &Summary) -> Value {
    let superblock = &summary.superblock;
    let geometry = &superblock.geometry;
    let blocks = &summary.blocks;
    json!({
        "path": path.display().to_string(),
        "device_bytes": summary.device_bytes,
        "verified": summary.verified,
        "inconsistencies": summary.inconsistencies,
        "leftovers": summary.leftovers,
        "will_be_emptied": summary.will_be_emptied,
        "bytes_used": summary.bytes_used,
        "format": FORMAT,
        "cache_id": format!("{:016x}", superblock.cache_id),
        "hash_seed": format!("{:016x}", summary.settings.hash_seed),
        "layout": summary.settings.layout.name(),
        "policy": summary.policy,
        "index": summary.settings.index.to_string(),
        "generation": superblock.generation,
        "epoch": superblock.epoch,
        "time": superblock.time,
        "ahead": superblock.ahead,
        "made_by": superblock.maker.to_string(),
        "clean": superblock.clean,
        "discard": superblock.discard,
        "has_tier": superblock.has_tier,
        "geometry": {
            "capacity": geometry.capacity,
            "block_bytes": geometry.block_bytes,
            "blocks": geometry.blocks,
            "reserved": geometry.reserved,
            "log_offset": geometry.log_offset,
            "log_slots": geometry.log_slots,
            "data_offset": geometry.data_offset,
        },
        "blocks": {
            "sealed": blocks.sealed,
            "free": blocks.free,
            "checkpoint": blocks.checkpoint,
            "mappings": blocks.mappings,
            "prefixes": blocks.prefixes,
            "open": blocks.open,
            "unknown": blocks.unknown,
        },
        "objects": summary.objects,
        "object_bytes": summary.object_bytes,
        "checkpoint": summary.checkpoint.map(|checkpoint| json!({
            "id": checkpoint.id,
            "first_block": checkpoint.first_block,
            "bytes": checkpoint.bytes,
            "blocks": checkpoint.blocks,
            "mappings": checkpoint.mappings,
            "is_newest": checkpoint.is_newest,
        })),
        "log": {
            "start": summary.log.start,
            "next": summary.log.next,
            "records": summary.log.records,
        },
        "mapping_pages": summary.mapping_pages,
        "page_mappings": summary.verified.then_some(summary.page_mappings),
    })
}

fn text(path: &Path, summary: &Summary) -> String {
    let superblock = &summary.superblock;
    let Geometry {
        capacity,
        blocks,
        reserved,
        ..
    } = superblock.geometry;
    let BlockCounts {
        sealed,
        free,
        checkpoint: of_checkpoints,
        mappings,
        prefixes,
        open,
        unknown,
    } = summary.blocks;
    let stop = match (superblock.clean, summary.will_be_emptied) {
        (true, false) => "the last stop was clean",
        (false, false) => "in use, or stopped by a crash",
        (_, true) => "the next start empties it",
    };
    let policy = summary.policy.map(|policy| format!(", policy {policy}"));
    let beyond = match summary.device_bytes - capacity {
        0 => String::new(),
        beyond => format!("; {beyond} bytes of the device lie beyond it"),
    };
    let checkpoint = summary.checkpoint.map_or("none".to_owned(), |checkpoint| {
        let is_older = if checkpoint.is_newest {
            ""
        } else {
            ", not the newest"
        };
        format!(
            "number {}{is_older}: {} in {} from block {}, {}",
            checkpoint.id,
            Human(checkpoint.bytes),
            count(checkpoint.blocks.into(), "block"),
            checkpoint.first_block,
            count(checkpoint.mappings, "mapping")
        )
    });
    format!(
        "{}\
         arrangement    layout {}{}, index {}{}\n\
         size           {} ({capacity} bytes): {blocks} blocks of {}, {reserved} of them reserved, from byte {}; log of {} records{beyond}\n\
         blocks         {sealed} sealed, {free} free, {of_checkpoints} of checkpoints, {mappings} of mappings, {prefixes} with a prefix, {open} left open, {unknown} that cannot be told\n\
         objects        {} in footers, {}\n\
         checkpoint     {checkpoint}\n\
         log            {}, positions {} to below {}\n\
         mapping pages  {}\n\
         verdict        {}\n",
        head(path, &FORMAT.to_string(), superblock, stop),
        summary.settings.layout,
        policy.unwrap_or_default(),
        summary.settings.index,
        if superblock.has_tier {
            ", with a performance tier"
        } else {
            ""
        },
        Human(capacity),
        Human(superblock.geometry.block_bytes),
        superblock.geometry.data_offset,
        superblock.geometry.log_slots,
        summary.objects,
        Human(summary.object_bytes),
        count(summary.log.records, "record"),
        summary.log.start,
        summary.log.next,
        summary.mapping_pages,
        verdict(summary)
    )
}

/// What a report of any cache begins with.
fn head(path: &Path, format: &str, superblock: &Superblock, stop: &str) -> String {
    format!(
        "cache          {}, format {format}, id {:016x}\n\
         superblock     generation {} in slot {}, start {}, highest Unix time {}; {stop}\n",
        path.display(),
        superblock.cache_id,
        superblock.generation,
        superblock.generation % 2,
        superblock.epoch,
        superblock.time,
    )
}

fn verdict(summary: &Summary) -> String {
    let looked = if summary.verified {
        format!(
            "every one of the {} bytes that count was looked at",
            summary.bytes_used
        )
    } else {
        "objects were not looked at: --verify does that".to_owned()
    };
    let leftovers = count(summary.leftovers, "leftover");
    match summary.inconsistencies {
        0 => format!("clean, with {leftovers} of a crash; {looked}"),
        1 => format!("1 inconsistency, and {leftovers} of a crash; {looked}"),
        many => format!("{many} inconsistencies, and {leftovers} of a crash; {looked}"),
    }
}

/// So many of something.
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
