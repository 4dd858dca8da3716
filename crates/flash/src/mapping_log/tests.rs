//! Pages on a device in memory, before there is a store.

use super::pages::PageSource;
use super::*;
use pumice_device::{AlignedBuf, Device, MemDevice, MemMedium};
use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const CACHE_ID: u64 = 7;

/// A log with one block, which it borrows with sequence `next`.
fn log(geometry: Geometry, next: u64) -> Arc<MappingLog<AlignedBuf>> {
    let log = Arc::new(MappingLog::default());
    let blocks = geometry.blocks as usize;
    let lent = Borrowed {
        free: VecDeque::from([3]),
        generations: vec![0; blocks],
        next,
    };
    log.recover(
        geometry,
        CACHE_ID,
        vec![0; blocks].into(),
        std::iter::empty(),
        lent,
    );
    log
}

fn run<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a device in memory is done at once"),
    }
}

/// Puts pages of `byte` until the block is full.
fn fill(log: &MappingLog<AlignedBuf>, byte: u8) -> Vec<PageNumber> {
    std::iter::from_fn(|| log.put(&[byte; PAGE_PAYLOAD_BYTES])).collect()
}

fn read(log: &MappingLog<AlignedBuf>, device: &MemDevice, page: PageNumber) -> Option<u8> {
    let bytes = match log.source(page)? {
        PageSource::Memory(bytes) => bytes,
        PageSource::Device(offset) => {
            let buffer = run(device.read(offset, SECTOR_BYTES)).unwrap();
            log.checked(page, &Arc::new(buffer), 0)?
        }
    };
    let payload = bytes.payload()?;
    assert!(payload.iter().all(|byte| *byte == payload[0]));
    Some(payload[0])
}

#[test]
fn a_page_is_read_from_memory_and_from_the_device_and_an_older_generation_of_its_block_is_no_page() {
    let geometry = Geometry::plan(4 << 20, 64 << 10).unwrap();
    let device = MemDevice::new(Arc::new(MemMedium::new(4 << 20)));
    let first = log(geometry, 40);
    let pages = fill(&first, 1);
    assert_eq!(pages.len(), 16, "one block of 64 KiB");
    assert_eq!(read(&first, &device, pages[5]), Some(1), "not written yet");
    assert!(!first.has_room());
    run(first.write_full(&device, &mut 0)).unwrap();
    for page in &pages {
        assert_eq!(read(&first, &device, *page), Some(1));
    }
    assert_eq!(read(&first, &device, pages[15] + 1), None, "nobody put that");
    assert_eq!(read(&first, &device, PageNumber::MAX), None, "beyond the device");

    // The block is borrowed again, and what is put there is not written: what stands there is whole, and has the same numbers.
    let second = log(geometry, 41);
    assert_eq!(fill(&second, 2), pages);
    let mut lost = 0;
    while let Some(chunk) = second.take_full() {
        chunk.note_done();
        lost += 1;
    }
    assert_eq!(lost, 4, "chunks of 16 KiB");
    for page in &pages {
        assert_eq!(read(&second, &device, *page), None);
    }
}

#[test]
fn any_changed_byte_of_a_page_makes_it_none() {
    let geometry = Geometry::plan(4 << 20, 64 << 10).unwrap();
    let shape = Shape {
        geometry,
        cache_id: CACHE_ID,
    };
    let mut sector = [0xA5; SECTOR_BYTES];
    let header = shape.header(17, 5, &sector[HEADER_BYTES..]);
    sector[..HEADER_BYTES].copy_from_slice(&header);
    assert!(shape.is_page(17, 5, &sector));
    assert!(!shape.is_page(18, 5, &sector) && !shape.is_page(17, 6, &sector));
    for at in 0..SECTOR_BYTES {
        sector[at] ^= 1;
        assert!(!shape.is_page(17, 5, &sector), "byte {at}");
        sector[at] ^= 1;
    }
    assert!(!shape.is_page(17, 5, &sector[..20]), "cut short");
}

#[test]
fn a_dropped_write_is_due_again_and_an_empty_block_waits_for_the_checkpoints_that_may_name_it() {
    let geometry = Geometry::plan(4 << 20, 64 << 10).unwrap();
    let device = MemDevice::new(Arc::new(MemMedium::new(4 << 20)));
    let log = log(geometry, 1);
    let pages = fill(&log, 1);
    drop(log.take_full().unwrap());
    assert!(log.is_pending(), "given up, not forgotten");
    run(log.write_full(&device, &mut 0)).unwrap();
    log.note_checkpoint(0, true);
    let number = log.begin_checkpoint();
    for page in pages {
        log.release(page);
    }
    // The block that is filled is not given up before another takes its place, of which there is none.
    assert!(!log.has_room());
    assert!(
        log.state.lock().take_unnamed().is_empty(),
        "checkpoint 0 is read by a start"
    );
    log.note_checkpoint(number, false);
    assert!(
        log.state.lock().take_unnamed().is_empty(),
        "it was begun before the block was empty"
    );
    for _ in 0..2 {
        let number = log.begin_checkpoint();
        log.note_checkpoint(number, false);
    }
    assert_eq!(log.state.lock().take_unnamed(), [3]);
}
