//! Small files, read at the start.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// An error in a file of users or of TLS: names file, line and cause. It contains no secret.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FileError(pub String);

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// A text: the error of the system, or that the file is larger.
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
