//! What is on the cache device of a volume.

use super::device::Overlay;
use super::{Finding, Question, Report, head};
use anyhow::{anyhow, bail};
use pumice_backing::{Slow, Source, boot};
use pumice_blocks::open::read_superblock;
use pumice_blocks::superblock::FORMAT;
use pumice_chunk::store::{Cached, ChunkStore, DamagedChunk, STORE, Survey};
use pumice_device::Device;
use pumice_trace::Human;
use serde_json::{Value, json};

/// Looks at the cache of a volume.
///
/// # Errors
/// It cannot be read, or was cut short; or the backing device that was named cannot be opened.
pub fn inspect(
    question: Question<'_>,
    device: &Overlay,
    show: &mut dyn FnMut(Finding),
) -> anyhow::Result<Report> {
    let superblock = read_superblock(device, STORE)?.ok_or_else(|| anyhow!("it was never formatted"))?;
    let (capacity, len) = (superblock.geometry.capacity, device.capacity());
    if len < capacity {
        bail!(
            "it was truncated: the superblock speaks of {capacity} bytes, and {len} are there; no start can use it"
        );
    }
    let named = question.backing.map(Source::parse).transpose()?;
    let named = named.map(|source| Slow::open(&source, true)?.identity());
    let identity = named.transpose()?.map(|(identity, _)| identity);
    let mut inconsistencies = 0;
    let mut wrong = |offset, part, what| {
        inconsistencies += 1;
        show(Finding {
            kind: "inconsistency",
            offset,
            part,
            what,
        });
    };
    let mut damaged = |chunk: DamagedChunk| {
        let is_dirty = if chunk.is_dirty { ", dirty" } else { "" };
        let part = format!("chunk {}{is_dirty}", chunk.address);
        wrong(Some(chunk.offset), part, chunk.what.to_owned());
    };
    let damaged: Option<&mut dyn FnMut(DamagedChunk)> = match question.verify {
        true => Some(&mut damaged),
        false => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let survey = runtime.block_on(ChunkStore::survey(device, boot(), damaged))?;
    let survey = survey.ok_or_else(|| anyhow!("it was never formatted"))?;
    for problem in &survey.inspection.problems {
        wrong(None, String::new(), problem.clone());
    }
    if let (Err(why), true) = (survey.found, survey.keeps) {
        wrong(None, String::new(), format!("a start refuses it: {why}"));
    }
    let seen = Seen {
        question,
        survey: &survey,
        is_its_volume: identity.map(|identity| identity == survey.volume),
        inconsistencies,
    };
    Ok(Report {
        fields: seen.fields(),
        text: seen.text(),
        inconsistencies: Some(inconsistencies),
    })
}

struct Seen<'a> {
    question: Question<'a>,
    survey: &'a Survey,
    /// Whether the backing device that was named is the volume; `None`: none was named.
    is_its_volume: Option<bool>,
    inconsistencies: u64,
}

impl Seen<'_> {
    fn will_be_emptied(&self) -> bool {
        self.survey.found.is_err() && !self.survey.keeps
    }

    fn fields(&self) -> Value {
        let Survey {
            superblock,
            shape,
            volume,
            keeps,
            found,
            ..
        } = self.survey;
        let geometry = &superblock.geometry;
        json!({
            "path": self.question.path.display().to_string(),
            "verified": self.question.verify,
            "inconsistencies": self.inconsistencies,
            "will_be_emptied": self.will_be_emptied(),
            "why_not_used": found.err(),
            "format": FORMAT,
            "store_format": STORE.format,
            "cache_id": format!("{:016x}", superblock.cache_id),
            "generation": superblock.generation,
            "epoch": superblock.epoch,
            "time": superblock.time,
            "clean": superblock.clean,
            "geometry": {
                "capacity": geometry.capacity,
                "block_bytes": geometry.block_bytes,
                "blocks": geometry.blocks,
                "log_slots": geometry.log_slots,
                "data_offset": geometry.data_offset,
            },
            "volume": {
                "bytes": shape.chunks.saturating_mul(shape.chunk_bytes.into()),
                "chunks": shape.chunks,
                "chunk_bytes": shape.chunk_bytes,
                "identity": format!("{volume:016x}"),
                "is_backing": self.is_its_volume,
            },
            "may_be_dirty": keeps,
            "cached_chunks": found.ok().map(|cached| cached.chunks),
            "dirty_chunks": found.ok().map(|cached| cached.dirty),
        })
    }

    fn text(&self) -> String {
        let Survey {
            superblock,
            shape,
            volume,
            found,
            ..
        } = self.survey;
        let geometry = &superblock.geometry;
        let stop = match (self.will_be_emptied(), superblock.clean) {
            (true, _) => "the next start empties it",
            (false, true) => "the last stop was clean",
            (false, false) => "in use, or stopped by a crash",
        };
        let whose = match (self.question.backing, self.is_its_volume) {
            (Some(backing), Some(true)) => format!("; {backing} is this volume"),
            (Some(backing), _) => format!("; {backing} is another volume, or was moved or resized"),
            (None, _) => String::new(),
        };
        let chunks = match found {
            Ok(Cached { chunks, dirty: 0 }) => format!("{chunks} cached, none of them dirty"),
            Ok(Cached { chunks, dirty }) => {
                format!("{chunks} cached, {dirty} of them dirty: the cache alone has their newest content")
            }
            Err(why) => format!("a start uses none: {why}"),
        };
        let looked = match self.question.verify {
            true => "each content that counts was read",
            false => "contents were not read: --verify does that",
        };
        format!(
            "{}\
             volume         {} in {} chunks of {}, identity {volume:016x}{whose}\n\
             size           {} ({} bytes): {} blocks of {}, from byte {}; log of {} records\n\
             chunks         {chunks}\n\
             verdict        {}; {looked}\n",
            head(
                self.question.path,
                &format!("{FORMAT}, of chunks {}", STORE.format),
                superblock,
                stop
            ),
            Human(shape.chunks.saturating_mul(shape.chunk_bytes.into())),
            shape.chunks,
            Human(shape.chunk_bytes.into()),
            Human(geometry.capacity),
            geometry.capacity,
            geometry.blocks,
            Human(geometry.block_bytes),
            geometry.data_offset,
            geometry.log_slots,
            match self.inconsistencies {
                0 => "whole".to_owned(),
                1 => "1 inconsistency".to_owned(),
                many => format!("{many} inconsistencies"),
            },
        )
    }
}
