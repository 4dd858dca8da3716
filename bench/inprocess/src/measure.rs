//! What a stretch of work took: time, CPU, bytes on the device, memory. Both sides are counted by the kernel.

use anyhow::{Context, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Instant;

/// The start of a stretch.
pub struct Start {
    at: Instant,
    cpu: f64,
    io: Io,
}

#[derive(Clone, Copy)]
struct Io {
    read: u64,
    written: u64,
}

/// What a stretch took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Took {
    pub seconds: f64,
    /// Of all threads of the process, those of the kernel that work for its ring included.
    pub cpu_seconds: f64,
    /// Bytes that the process caused to be fetched from the device.
    pub device_read_bytes: u64,
    /// Bytes that the process caused to be sent to the device.
    pub device_written_bytes: u64,
}

impl Start {
    pub fn now() -> anyhow::Result<Self> {
        Ok(Self {
            io: Io::now()?,
            cpu: cpu_seconds(),
            at: Instant::now(),
        })
    }

    pub fn took(&self) -> anyhow::Result<Took> {
        let seconds = self.at.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds() - self.cpu;
        let io = Io::now()?;
        Ok(Took {
            seconds,
            cpu_seconds,
            device_read_bytes: io.read - self.io.read,
            device_written_bytes: io.written - self.io.written,
        })
    }
}

impl Io {
    fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/self/io").context("counting bytes on the device")?;
        Ok(Self {
            read: field(&text, "read_bytes:")?,
            written: field(&text, "write_bytes:")?,
        })
    }
}

fn field(text: &str, name: &str) -> anyhow::Result<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| anyhow!("/proc has no {name}"))
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most resident memory that the process ever had, in bytes.
pub fn resident_bytes_max() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    Ok(field(&text, "VmHWM:")? * 1024)
}
