//! Where and how a report was made.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What stands at the head of a report.
pub struct Environment {
    /// Processor, cores and memory.
    pub machine: String,
    /// The commit that is checked out in the working directory, if any is.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
    /// When it was done, in UTC.
    pub date: String,
    /// Replays at a time.
    pub jobs: usize,
    /// How long it took.
    pub elapsed: Duration,
}

impl Environment {
    /// Asks the system.
    pub fn find(jobs: usize, elapsed: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            machine: machine(),
            commit: commit(),
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" "),
            date: date(now.as_secs()),
            jobs,
            elapsed,
        }
    }
}

fn machine() -> String {
    let field = |file: &str, name: &str| -> Option<String> {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(String::new(), |kib| {
            format!(", {:.1} GiB of memory", kib / 1048576.0)
        });
    format!("{processor}, {cores} cores{memory}")
}

fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// Seconds since 1970 as a date and time of day.
fn date(seconds: u64) -> String {
    let mut days = seconds / 86400;
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |year| if is_leap(year) { 366 } else { 365 };
    while days >= days_of(year) {
        days -= days_of(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_know_leap_years_and_ends_of_months() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_704_067_199, "2023-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
