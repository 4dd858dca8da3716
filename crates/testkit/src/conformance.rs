//! What every device must do, as one suite: [`check`].
//!
//! The suite is ordinary code, so that a device in another crate can run it in its tests too.

use pumice_device::{Buffer, Device, Overdue, Payload, SECTOR_BYTES};
use pumice_world::{Executor, Spawner};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// The least capacity that the suite needs, in bytes.
pub const MIN_CAPACITY: u64 = 32 << 20;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Where the suite keeps its log, away from what it writes: from here, [`LOG_BYTES`] long.
const LOG_START: u64 = 16 << 20;
const LOG_BYTES: u64 = 1 << 20;

/// Runs the whole suite. `handle` makes handles on one and the same device of at least [`MIN_CAPACITY`] bytes, whose
/// content is overwritten.
///
/// # Panics
/// Where the device breaks the contract of [`Device`].
pub fn check<D: Device>(handle: impl Fn() -> D) {
    let capacity = handle().capacity();
    assert!(capacity >= MIN_CAPACITY && capacity.is_multiple_of(SECTOR));
    writes_are_read_back_at_many_offsets(&handle());
    parts_of_a_buffer_are_written_and_nothing_around_them(&handle());
    a_later_write_wins_where_writes_overlap(&handle());
    wrong_ranges_are_refused_and_touch_nothing(&handle());
    handles_see_each_others_writes(&handle(), &handle());
    an_operation_starts_without_being_polled(&handle(), &handle());
    many_operations_at_once_keep_apart(handle());
    dropped_futures_do_no_harm(&handle);
    operations_that_are_ended_do_no_harm(&handle());
    the_log_takes_any_offset_and_length(&handle(), &handle());
    sync_succeeds(&handle());
    large_transfers_are_complete(&handle());
}

/// Runs `future` to its end on `device`.
///
/// # Panics
/// Where the device fails to turn, or has nothing under way and the future still waits.
pub fn block_on<D: Device, T>(device: &D, future: impl Future<Output = T>) -> T {
    Executor::new()
        .block_on(future, || park(device))
        .expect("the device completes what was started")
}

fn park<D: Device>(device: &D) -> io::Result<()> {
    match device.turn(true)? {
        0 => Err(io::Error::other(
            "a future waits, but the device has nothing under way",
        )),
        _ => Ok(()),
    }
}

/// Completes everything that is under way.
fn drain<D: Device>(device: &D) {
    while device.turn(true).expect("turn") > 0 {}
}

/// Bytes that depend on `seed` and on their place, so that neither a shift nor another write's bytes pass.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut random = pumice_world::Random(seed);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn buffer<B: Buffer>(bytes: &[u8]) -> Arc<B> {
    let buf = B::with_len(bytes.len());
    // SAFETY: nobody else knows the buffer.
    unsafe { buf.put(0, Payload::Bytes(bytes)) };
    Arc::new(buf)
}

async fn write<D: Device>(device: &D, offset: u64, bytes: &[u8]) {
    let len = bytes.len();
    device.write(offset, buffer(bytes), 0..len).await.expect("write");
}

#[track_caller]
fn same(found: &[u8], expected: &[u8], offset: u64) {
    assert_eq!(found.len(), expected.len(), "length of the read at {offset}");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        panic!(
            "read at {offset}: byte {at} is {:#x}, not {:#x}",
            found[at], expected[at]
        );
    }
}

async fn expect<D: Device>(device: &D, offset: u64, expected: &[u8]) {
    let buf = device.read(offset, expected.len()).await.expect("read");
    assert_eq!(buf.len(), expected.len());
    same(
        buf.bytes(0, expected.len()).expect("real bytes"),
        expected,
        offset,
    );
}

fn writes_are_read_back_at_many_offsets<D: Device>(device: &D) {
    let capacity = device.capacity();
    let mut places: Vec<(u64, usize)> = vec![
        (0, 1),
        (SECTOR, 3),
        (1 << 20, 16),
        ((1 << 20) + 60 * SECTOR, 9),
        (capacity - SECTOR, 1),
        (capacity - 20 * SECTOR, 7),
    ];
    // Beyond what 31, 32 and 41 bits hold, where the device is large enough.
    for border in [1_u64 << 31, 1 << 32, 1 << 41] {
        if border + 64 * SECTOR < capacity {
            places.extend([(border - 4 * SECTOR, 8), (border + 32 * SECTOR, 2)]);
        }
    }
    block_on(device, async {
        for (seed, (offset, sectors)) in places.iter().enumerate() {
            write(device, *offset, &pattern(seed as u64, sectors * SECTOR_BYTES)).await;
        }
        for (seed, (offset, sectors)) in places.iter().enumerate() {
            let bytes = pattern(seed as u64, sectors * SECTOR_BYTES);
            expect(device, *offset, &bytes).await;
            let last = bytes.len() - SECTOR_BYTES;
            expect(device, offset + last as u64, &bytes[last..]).await;
        }
    });
}

fn parts_of_a_buffer_are_written_and_nothing_around_them<D: Device>(device: &D) {
    let old = pattern(100, 6 * SECTOR_BYTES);
    let new = pattern(101, 8 * SECTOR_BYTES);
    block_on(device, async {
        write(device, 2 << 20, &old).await;
        let part = 5 * SECTOR_BYTES..7 * SECTOR_BYTES;
        device
            .write((2 << 20) + 2 * SECTOR, buffer(&new), part.clone())
            .await
            .expect("write of a part");
        let mut expected = old;
        expected[2 * SECTOR_BYTES..4 * SECTOR_BYTES].copy_from_slice(&new[part]);
        expect(device, 2 << 20, &expected).await;
    });
}

fn a_later_write_wins_where_writes_overlap<D: Device>(device: &D) {
    let base = 3 << 20;
    let mut expected = pattern(200, 16 * SECTOR_BYTES);
    block_on(device, async {
        write(device, base, &expected).await;
        for (seed, (from, sectors)) in [(4, 8), (0, 5), (10, 6), (7, 1), (6, 3)].into_iter().enumerate() {
            let bytes = pattern(201 + seed as u64, sectors * SECTOR_BYTES);
            write(device, base + from as u64 * SECTOR, &bytes).await;
            expected[from * SECTOR_BYTES..][..bytes.len()].copy_from_slice(&bytes);
            expect(device, base, &expected).await;
        }
    });
}

fn wrong_ranges_are_refused_and_touch_nothing<D: Device>(device: &D) {
    let capacity = device.capacity();
    let near_end = capacity - 4 * SECTOR;
    let known = pattern(300, 4 * SECTOR_BYTES);
    let data: Arc<D::Buf> = buffer(&pattern(301, 4 * SECTOR_BYTES));
    let wrong: &[(u64, Range<usize>)] = &[
        (near_end, 0..0),
        (near_end, 0..1),
        (near_end, 0..SECTOR_BYTES - 1),
        (near_end, 0..SECTOR_BYTES + 512),
        (near_end + 1, 0..SECTOR_BYTES),
        (near_end + 512, 0..SECTOR_BYTES),
        (capacity - SECTOR, 0..2 * SECTOR_BYTES),
        (capacity, 0..SECTOR_BYTES),
        (u64::MAX - SECTOR + 1, 0..SECTOR_BYTES),
        (u64::MAX - 2 * SECTOR + 1, 0..4 * SECTOR_BYTES),
    ];
    let wrong_parts: &[Range<usize>] = &[
        SECTOR_BYTES..5 * SECTOR_BYTES,
        512..SECTOR_BYTES + 512,
        Range {
            start: 2 * SECTOR_BYTES,
            end: SECTOR_BYTES,
        },
        usize::MAX - SECTOR_BYTES + 1..usize::MAX,
    ];
    let refused = |result: io::Result<()>, what: String| match result {
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{what}: {error}"),
        Ok(()) => panic!("{what} was not refused"),
    };
    block_on(device, async {
        write(device, near_end, &known).await;
        for (offset, range) in wrong {
            let what = format!("{range:?} at {offset}");
            let result = device.write(*offset, Arc::clone(&data), range.clone()).await;
            refused(result, format!("write {what}"));
            let result = device.read(*offset, range.len()).await.map(drop);
            refused(result, format!("read {what}"));
        }
        for range in wrong_parts {
            let result = device.write(near_end, Arc::clone(&data), range.clone()).await;
            refused(result, format!("write of part {range:?}"));
        }
        for (offset, len) in [(capacity - 1, 2), (capacity, 1), (u64::MAX, 1), (u64::MAX - 1, 2)] {
            refused(
                device.append_log(offset, &vec![1; len]),
                format!("append at {offset}"),
            );
            refused(
                device.read_log(offset, &mut vec![0; len]),
                format!("log read at {offset}"),
            );
        }
        expect(device, near_end, &known).await;
    });
}

fn handles_see_each_others_writes<D: Device>(one: &D, other: &D) {
    for round in 0..4 {
        let bytes = pattern(400 + round, 2 * SECTOR_BYTES);
        let (writer, reader) = if round % 2 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        block_on(writer, write(writer, 4 << 20, &bytes));
        block_on(reader, expect(reader, 4 << 20, &bytes));
        block_on(writer, expect(writer, 4 << 20, &bytes));
    }
}

fn an_operation_starts_without_being_polled<D: Device>(device: &D, other: &D) {
    let bytes = pattern(500, SECTOR_BYTES);
    let operation = device.write(5 << 20, buffer(&bytes), 0..SECTOR_BYTES);
    drain(device);
    block_on(other, expect(other, 5 << 20, &bytes));
    let mut operation = pin!(operation);
    let done = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(done, std::task::Poll::Ready(Ok(()))), "{done:?}");
}

/// 300 tasks at once, each with a place of its own that it writes and reads several times.
fn many_operations_at_once_keep_apart<D: Device>(device: D) {
    let executor = Executor::new();
    let device = Rc::new(device);
    let finished = Rc::new(Cell::new(0));
    for task in 0..300_u64 {
        let device = Rc::clone(&device);
        let finished = Rc::clone(&finished);
        executor.spawner().spawn(Box::pin(async move {
            let sectors = 1 + task as usize % 4;
            let offset = (6 << 20) + task * 4 * SECTOR;
            for round in 0..4 {
                let bytes = pattern(1000 + task * 10 + round, sectors * SECTOR_BYTES);
                write(&*device, offset, &bytes).await;
                expect(&*device, offset, &bytes).await;
            }
            finished.set(finished.get() + 1);
        }));
    }
    executor
        .run_until_idle(|| park(&*device))
        .expect("the device completes what was started");
    assert_eq!(finished.get(), 300);
}

fn dropped_futures_do_no_harm<D: Device>(handle: &impl Fn() -> D) {
    let device = handle();
    let base = 12 << 20;
    let known = pattern(600, 64 * SECTOR_BYTES);
    block_on(&device, write(&device, base, &known));
    let poll_once = |operation: std::pin::Pin<&mut dyn Future<Output = ()>>| {
        let _ = operation.poll(&mut Context::from_waker(Waker::noop()));
    };
    for round in 0..32_u64 {
        let place = base + 256 * SECTOR + round % 8 * SECTOR;
        let data: Arc<D::Buf> = buffer(&pattern(700 + round, SECTOR_BYTES));
        drop(device.read(base, 16 * SECTOR_BYTES));
        drop(device.write(place, Arc::clone(&data), 0..SECTOR_BYTES));
        {
            let read = device.read(base, SECTOR_BYTES);
            poll_once(pin!(async { drop(read.await) }));
            let write = device.write(place, data, 0..SECTOR_BYTES);
            poll_once(pin!(async { drop(write.await) }));
            let sync = device.sync();
            poll_once(pin!(async { drop(sync.await) }));
        }
        if round % 3 == 0 {
            device.turn(false).expect("turn");
        }
        let from = round as usize * 2 * SECTOR_BYTES;
        block_on(
            &device,
            expect(&device, base + from as u64, &known[from..from + 2 * SECTOR_BYTES]),
        );
    }
    drain(&device);
    // A write after those that were dropped and are over by now is what stays.
    let bytes = pattern(800, 8 * SECTOR_BYTES);
    block_on(&device, write(&device, base + 256 * SECTOR, &bytes));
    drop(device.read(base, 64 * SECTOR_BYTES));
    device.turn(false).expect("turn");
    drop(device.read(base, 64 * SECTOR_BYTES));
    // The handle goes while the device still works for it.
    drop(device);
    let device = handle();
    block_on(&device, expect(&device, base + 256 * SECTOR, &bytes));
    block_on(&device, expect(&device, base, &known));
}

/// What a tick finds under way ends with that, or had ended before; the device goes on.
fn operations_that_are_ended_do_no_harm<D: Device>(device: &D) {
    let (base, place) = (12 << 20, (12 << 20) + 256 * SECTOR);
    let known = pattern(900, 16 * SECTOR_BYTES);
    block_on(device, write(device, base, &known));
    let is_overdue = |error: &io::Error| assert!(Overdue::is(error), "{error}");
    for round in 0..32_u64 {
        let data: Arc<D::Buf> = buffer(&pattern(901 + round, 64 * SECTOR_BYTES));
        let written = device.write(place, data, 0..64 * SECTOR_BYTES);
        let reads = [(); 8].map(|()| device.read(base, 16 * SECTOR_BYTES));
        let synced = device.sync();
        if round % 2 == 0 {
            device.turn(false).expect("turn");
        }
        device.tick(0);
        block_on(device, async {
            for read in reads {
                match read.await {
                    Ok(found) => same(found.bytes(0, known.len()).expect("real bytes"), &known, base),
                    Err(error) => is_overdue(&error),
                }
            }
            written.await.unwrap_or_else(|error| is_overdue(&error));
            synced.await.unwrap_or_else(|error| is_overdue(&error));
        });
        block_on(device, expect(device, base, &known));
    }
    drain(device);
    let bytes = pattern(990, 64 * SECTOR_BYTES);
    block_on(device, write(device, place, &bytes));
    block_on(device, expect(device, place, &bytes));
}

fn the_log_takes_any_offset_and_length<D: Device>(device: &D, other: &D) {
    let mut expected = vec![0; LOG_BYTES as usize];
    device.append_log(LOG_START, &expected).expect("append");
    let records = [
        (0, 1),
        (1, 7),
        (8, 24),
        (4090, 12),
        (5000, 1),
        (65_530, 5000),
        (70_000, 100),
        (1_048_000, 576),
    ];
    for (seed, (at, len)) in records.into_iter().enumerate() {
        let bytes = pattern(900 + seed as u64, len);
        device.append_log(LOG_START + at as u64, &bytes).expect("append");
        expected[at..at + len].copy_from_slice(&bytes);
    }
    for reader in [device, other] {
        let mut found = vec![0xff; expected.len()];
        reader.read_log(LOG_START, &mut found).expect("log read");
        same(&found, &expected, LOG_START);
        let mut part = vec![0xff; 4321];
        reader.read_log(LOG_START + 65_001, &mut part).expect("log read");
        same(&part, &expected[65_001..65_001 + 4321], LOG_START + 65_001);
    }
    device.append_log(LOG_START, &[]).expect("append of nothing");
    device.read_log(LOG_START, &mut []).expect("log read of nothing");
}

fn sync_succeeds<D: Device>(device: &D) {
    device.append_log(LOG_START, b"synced").expect("append");
    block_on(device, async {
        write(device, 0, &pattern(1, SECTOR_BYTES)).await;
        device.sync().await.expect("sync");
        expect(device, 0, &pattern(1, SECTOR_BYTES)).await;
    });
}

/// Larger than any single request to an operating system is likely to be.
fn large_transfers_are_complete<D: Device>(device: &D) {
    let offset = (20 << 20) + SECTOR;
    let bytes = pattern(1100, (9 << 20) + SECTOR_BYTES);
    block_on(device, async {
        write(device, offset, &bytes).await;
        expect(device, offset, &bytes).await;
        expect(
            device,
            offset + (5 << 20),
            &bytes[5 << 20..(5 << 20) + 3 * SECTOR_BYTES],
        )
        .await;
    });
}
