//! Figures of the process.

use crate::Group;

/// What Prometheus' clients say of every process; what the system does not say is 0.
#[expect(clippy::cast_precision_loss, reason = "times and ticks")]
pub fn process() -> Group {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may have blanks; the state is field 0 after it.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let field = |at: usize| {
        fields
            .get(at)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let system = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok());
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    crate::group! { "process";
        Gauge threads "Threads" = field(17);
        Gauge virtual_memory_bytes "Virtual memory" = field(20);
        Gauge resident_memory_bytes "Resident memory" = field(21) * rustix::param::page_size() as u64;
        Gauge open_fds "Open file descriptors" = files;
        Gauge max_fds "Descriptors that may be open" = limit.unwrap_or(u64::MAX);
        Counter cpu_seconds "Time on CPUs" = (field(11) + field(12)) as f64 / ticks;
        Gauge start_time_seconds "Start, in Unix time" = boot.unwrap_or(0.0) + field(19) as f64 / ticks;
    }
}
