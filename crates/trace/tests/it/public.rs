//! The public traces, which are not part of this repository: the folder that holds them is named by the variable `PUMICE_TRACES`, or stands at
//! `../shared/traces` beside the workspace. Without them a test says so and checks nothing. The tests of `sim` read this file, too.

use pumice_trace::{Format, TraceOptions};
use std::path::{Path, PathBuf};

/// The folder, if it has the file with the figures that a test compares with.
pub fn traces(figures: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PUMICE_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
        PathBuf::from,
    );
    if folder.join(figures).is_file() {
        return Some(folder);
    }
    eprintln!(
        "skipped: the traces are not there ({} has no {figures})",
        folder.display()
    );
    None
}

/// How to read one of them: the format is named where it does not show. All others are found by content.
pub fn options(file: &str) -> TraceOptions {
    let format = match file {
        "kv/scarab-recs.trace.xz" => Some(Format::KeysBeI64),
        "kv/cache2k-orm-busy.trace.xz" | "kv/cache2k-web07.trace.xz" => Some(Format::KeysBeU32),
        "block/cloudPhysicsIO.vscsi.zst" => Some(Format::Vscsi),
        "object/jedi-v.gen_sequence.txt.zst" => Some(Format::Jedi),
        _ => None,
    };
    TraceOptions {
        format,
        columns: None,
    }
}
