//! That a device was taken out is remembered, also while another one has the superblock.

use crate::common::{Rig, options};
use pumice_device::{AlignedBuf, Device, FaultPlan, FaultyMedium, SECTOR_BYTES};
use pumice_flash::Durability;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const SUPERBLOCKS_BYTES: u64 = 2 * SECTOR_BYTES as u64;

fn poll(future: &mut Pin<Box<dyn Future<Output = bool>>>) -> Poll<bool> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Refuses all appends, and polls `tried` at each of a superblock until it is ready: as a worker would that runs at the same time.
struct Refusing {
    capacity: u64,
    tried: RefCell<Pin<Box<dyn Future<Output = bool>>>>,
    outcome: RefCell<Poll<bool>>,
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::other("refused"))
}

impl Device for Refusing {
    type Buf = AlignedBuf;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read(&self, _: u64, _: usize) -> impl Future<Output = io::Result<AlignedBuf>> + 'static {
        std::future::ready(refused())
    }

    fn write(
        &self,
        _: u64,
        _: Arc<AlignedBuf>,
        _: Range<usize>,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(refused())
    }

    fn append_log(&self, offset: u64, _: &[u8]) -> io::Result<()> {
        let mut outcome = self.outcome.borrow_mut();
        if offset < SUPERBLOCKS_BYTES && outcome.is_pending() {
            *outcome = poll(&mut self.tried.borrow_mut());
        }
        refused()
    }

    fn read_log(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(refused())
    }

    fn turn(&self, _: bool) -> io::Result<usize> {
        Ok(0)
    }
}

/// Whoever marks the device comes while another one still has the superblock: that is not a try that has failed.
#[test]
fn a_superblock_that_another_one_has_is_waited_for() {
    let plan = FaultPlan {
        note_error: 1.0,
        ..FaultPlan::default()
    };
    let medium = Arc::new(FaultyMedium::new(4 << 20, 1, plan));
    let rig = Rc::new(Rig::open(&medium, 10, &options(Durability::Process)));
    let marking = Rc::clone(&rig);
    let refusing = Refusing {
        capacity: medium.capacity(),
        tried: RefCell::new(Box::pin(async move {
            marking.store().remember(&marking.device, 1_000).await
        })),
        outcome: RefCell::new(Poll::Pending),
    };
    // The record is refused, and then the superblock, under its lock.
    rig.store().set_flush_at(&refusing, 2_000);
    assert!(rig.store().is_out());
    assert_eq!(*refusing.outcome.borrow(), Poll::Pending, "it waits");
    assert_eq!(poll(&mut refusing.tried.borrow_mut()), Poll::Ready(true));
    assert!(rig.store().is_remembered());
}
