//! Rate limit for log lines that any client can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two lines.
const SILENCE: Duration = Duration::from_secs(60);

/// Lets one line through each minute.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether to log the line now. If true, the minute starts.
    pub fn is_due(&self) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = said.is_none_or(|said| said.elapsed() >= SILENCE);
        if is_due {
            *said = Some(Instant::now());
        }
        is_due
    }
}
