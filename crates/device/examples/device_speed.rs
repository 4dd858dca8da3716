//! Measures a [`FileDevice`]: 4 KiB random reads, large sequential writes, and appends of log records.
//!
//! `cargo run --release -p pumice-device --example device_speed -- PATH [SIZE_MIB]`
//!
//! Overwrites PATH. Prints one line per engine and workload; every read is checked.

use pumice_device::{AlignedBuf, Buffer, Device, FileDevice, FileOptions, FileShared, Payload};
use pumice_testkit::conformance::block_on;
use pumice_world::{Executor, Spawner, mix64};
use std::cell::Cell;
use std::error::Error;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: device_speed PATH [SIZE_MIB]")?;
    let size = arguments
        .next()
        .map_or(Ok(1024), |text| text.parse::<u64>())?
        .max(256)
        * MIB;
    for io_uring in [true, false] {
        let options = FileOptions {
            size: Some(size),
            io_uring,
            ..FileOptions::default()
        };
        let shared = Arc::new(FileShared::open(Path::new(&path), &options)?);
        let name = format!(
            "{}, {}",
            shared.engine(),
            if shared.is_direct() {
                "O_DIRECT"
            } else {
                "buffered"
            }
        );
        let device = FileDevice::new(Arc::clone(&shared), 256)?;
        for _ in 0..3 {
            println!("{name}: {:.0} ns for a log record of 32 bytes", appends(&device)?);
        }
        for (len, depth) in [(MIB, 4), (16 * MIB, 1), (256 * MIB, 1)] {
            let device = FileDevice::new(Arc::clone(&shared), 256)?;
            let seconds = writes(device, size, len as usize, depth)?;
            let rate = size as f64 / 1e9 / seconds;
            println!(
                "{name}: {} MiB writes, {depth} at a time: {rate:.2} GB/s",
                len / MIB
            );
        }
        for depth in [1, 8, 32, 64] {
            let device = FileDevice::new(Arc::clone(&shared), 256)?;
            let (count, seconds, cpu) = reads(device, size, depth)?;
            println!(
                "{name}: 4 KiB random reads, {depth} at a time: {:.1} k/s, {:.1} us CPU each",
                count as f64 / 1e3 / seconds,
                cpu * 1e6 / count as f64
            );
        }
    }
    Ok(())
}

/// A buffer whose sectors each start with their place on the device.
fn numbered(offset: u64, len: usize) -> Arc<AlignedBuf> {
    let buf = AlignedBuf::with_len(len);
    for at in (0..len).step_by(4096) {
        // SAFETY: nobody else knows the buffer yet.
        unsafe { buf.put(at, Payload::Bytes(&(offset + at as u64).to_le_bytes())) };
    }
    Arc::new(buf)
}

fn writes(device: FileDevice, size: u64, len: usize, depth: u64) -> std::io::Result<f64> {
    let executor = Executor::new();
    let next = Rc::new(Cell::new(0));
    let buf = numbered(0, len);
    let start = Instant::now();
    for _ in 0..depth {
        let (device, next, buf) = (device.clone(), Rc::clone(&next), Arc::clone(&buf));
        executor.spawner().spawn(Box::pin(async move {
            while next.get() < size {
                let offset = next.replace(next.get() + len as u64);
                device
                    .write(offset, Arc::clone(&buf), 0..len)
                    .await
                    .expect("write");
            }
        }));
    }
    executor.run_until_idle(|| device.turn(true).map(drop))?;
    let seconds = start.elapsed().as_secs_f64();
    // Not measured: what the reads will check.
    if len as u64 == 256 * MIB {
        for offset in (0..size).step_by(len) {
            block_on(&device, device.write(offset, numbered(offset, len), 0..len))?;
        }
    }
    Ok(seconds)
}

fn reads(device: FileDevice, size: u64, depth: u64) -> std::io::Result<(u64, f64, f64)> {
    let executor = Executor::new();
    let count = 20_000 * depth.min(16);
    let left = Rc::new(Cell::new(count));
    let state = Rc::new(Cell::new(0));
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..depth {
        let (device, left, state) = (device.clone(), Rc::clone(&left), Rc::clone(&state));
        executor.spawner().spawn(Box::pin(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                state.set(state.get() + 1);
                let offset = mix64(state.get()) % (size / 4096) * 4096;
                let buf = device.read(offset, 4096).await.expect("read");
                assert_eq!(buf.bytes(0, 8), Some(&offset.to_le_bytes()[..]));
            }
        }));
    }
    executor.run_until_idle(|| device.turn(true).map(drop))?;
    Ok((count, start.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

/// CPU time of the whole process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Nanoseconds for each append, one after the other over some MiB.
fn appends(device: &FileDevice) -> Result<f64, Box<dyn Error>> {
    const COUNT: u64 = 1_000_000;
    let start = Instant::now();
    for n in 0..COUNT {
        device.append_log(8192 + n * 32 % (8 * MIB), &[7; 32])?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / COUNT as f64)
}
