//! CPU time: of a thread, of a server.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::time::Duration;

/// CPU time of the calling thread so far, user and system.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// CPU time of another process so far: the sum over its threads, exact to the nanosecond where the kernel keeps
/// schedstat. Threads that have ended are missed then, so take differences over windows in which none ends.
///
/// # Errors
/// No such process, or it may not be looked at.
pub fn time_of(process: u32) -> io::Result<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = match fs::read_to_string(task?.path().join("schedstat")) {
            Ok(text) => text,
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        sum += text
            .split_whitespace()
            .next()
            .and_then(|time| time.parse::<u64>().ok())
            .unwrap_or(0);
    }
    if sum > 0 {
        return Ok(Duration::from_nanos(sum));
    }
    // Without schedstat: fields 14 and 15 of stat, in ticks of 10 ms, counted after the name in parentheses.
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_used_is_seen_by_all_clocks() {
        let thread = thread_time();
        let seen = time_of(std::process::id()).unwrap();
        let mut number = 1u64;
        while thread_time() - thread < Duration::from_millis(50) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        // The kernel adds up other tasks' times at their ticks.
        assert!(time_of(std::process::id()).unwrap() - seen >= Duration::from_millis(30));
        assert!(time_of(u32::MAX).is_err());
    }
}
