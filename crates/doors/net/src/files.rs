//! Small files that are read at the start.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What is wrong with a file of users or of the TLS listener: which file, where in it, and what. No secret is ever part of it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FileError(pub String);

/// Reads a file of at most `max` bytes; else says what is wrong with it.
///
/// # Errors
/// That text.
pub fn read_bounded(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(max as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    match bytes.len() <= max {
        true => Ok(bytes),
        false => Err(format!("larger than {max} bytes")),
    }
}
