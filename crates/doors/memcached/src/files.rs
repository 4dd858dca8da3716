//! Small files that are read at the start.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file of at most `max` bytes; `None` where it is larger.
pub(crate) fn read_bounded(path: &Path, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= max).then_some(bytes))
}
