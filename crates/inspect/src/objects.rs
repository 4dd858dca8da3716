//! What is on the flash of an object cache.

use super::{Finding, Question, Report, head};
use pumice_blocks::Geometry;
use pumice_blocks::superblock::FORMAT;
use pumice_flash::inspect::{self, BlockCounts, InspectError, Severity, Sink, Source, Summary};
use pumice_trace::Human;
use serde_json::{Value, json};
use std::path::Path;

/// Looks at the flash of an object cache.
///
/// # Errors
/// It is none, or cannot be read.
pub fn inspect<S: Source>(
    question: Question<'_>,
    device: &S,
    show: &mut dyn FnMut(Finding),
) -> Result<Report, InspectError> {
    let summary = inspect::inspect(device, &mut Shown(show), question.verify)?;
    Ok(Report {
        fields: fields(question.path, &summary),
        text: text(question.path, &summary),
        inconsistencies: Some(summary.inconsistencies),
    })
}

struct Shown<'a>(&'a mut dyn FnMut(Finding));

impl Sink for Shown<'_> {
    fn found(&mut self, finding: inspect::Finding) {
        (self.0)(Finding {
            kind: match finding.severity {
                Severity::Inconsistency => "inconsistency",
                Severity::Leftover => "leftover",
            },
            offset: Some(finding.offset),
            part: finding.part.to_string(),
            what: finding.what,
        });
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
