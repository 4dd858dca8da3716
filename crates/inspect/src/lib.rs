//! What is on a cache device, in words and as JSON. It is opened for reading only, and nothing is ever written to it.
//!
//! The stores look at their own (`pumice_flash::inspect`, `ChunkStore::survey`); here they are given the device, and what they found is told alike.

mod copies;
mod device;
mod objects;
mod volume;

use anyhow::Context;
use copies::Copies;
use device::{Overlay, ReadOnly};
use pumice_blocks::open::read_superblock;
use pumice_blocks::{OpenError, Superblock};
use pumice_chunk::store::STORE;
use pumice_console::usage;
use serde_json::Value;
use std::path::Path;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The cache: a file or a block device.
    pub path: &'a Path,
    /// Read every byte that counts.
    pub verify: bool,
    /// Of the cache of a volume: the file, device or export that may be the volume.
    pub backing: Option<&'a str>,
}

/// Something that is not as it must be, or that a crash has left.
#[derive(Debug)]
pub struct Finding {
    /// `inconsistency`, or `leftover` of a crash.
    pub kind: &'static str,
    /// Where, in bytes from the start of the device; `None`: nowhere in particular.
    pub offset: Option<u64>,
    /// What it is about.
    pub part: String,
    /// What is wrong.
    pub what: String,
}

/// What there is.
#[derive(Debug)]
pub struct Report {
    /// As a JSON object.
    pub fields: Value,
    /// In lines.
    pub text: String,
    /// How many inconsistencies were found; `None` where the device alone does not tell: a performance tier.
    pub inconsistencies: Option<u64>,
}

/// Looks at a device. Each finding goes to `show` as it comes, so that no number of them takes memory.
///
/// # Errors
/// There is no cache at the path, a server uses it, it cannot be read; or the backing device cannot be opened.
pub fn inspect(question: Question<'_>, show: &mut dyn FnMut(Finding)) -> anyhow::Result<Report> {
    let name = || question.path.display().to_string();
    let device = ReadOnly::open(question.path)?;
    if let Some(copies) = Copies::of(&device).with_context(name)? {
        return Ok(copies.report(question.path));
    }
    let device = Overlay::new(device);
    let is_of_volume = match read_superblock(&device, STORE) {
        Ok(Some(_)) => true,
        Err(OpenError::OtherStore { found, .. }) => found.kind == STORE.kind,
        // What else is there is named below.
        Ok(None) | Err(_) => false,
    };
    if is_of_volume {
        return volume::inspect(question, &device, show).with_context(name);
    }
    if question.backing.is_some() {
        return Err(usage(format!(
            "--backing: {} is no cache of a volume; leave it out",
            name()
        )));
    }
    objects::inspect(question, device.below(), show).with_context(name)
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
