//! Lines of the log that anybody can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a line is not said again.
const SILENCE: Duration = Duration::from_secs(60);

/// Lets a line through once a minute.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether the line is to be said now.
    pub fn is_due(&self) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = said.is_none_or(|said| said.elapsed() >= SILENCE);
        if is_due {
            *said = Some(Instant::now());
        }
        is_due
    }
}
