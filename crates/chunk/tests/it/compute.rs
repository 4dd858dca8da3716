//! Fingerprints and compression that leave the thread of a fill.

use crate::store::{Rig, content, options};
use pumice_chunk::store::Filled;
use pumice_testkit::Store;
use pumice_testkit::{FaultPlan, FaultyDevice, FaultyMedium};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

fn rig(computes_later: bool) -> Rig {
    let medium = Arc::new(FaultyMedium::new(1 << 20, 1, FaultPlan::default()));
    let mut rig = Rig::try_open(FaultyDevice::new(medium), &options()).unwrap();
    if computes_later {
        rig.compute_later();
    }
    rig
}

/// Polls a fill until it waits for its computation.
fn begin(mut fill: Pin<&mut (impl Future + ?Sized)>) {
    for _ in 0..2 {
        let polled = fill.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it is computed on its thread");
    }
}

#[test]
fn contents_computed_elsewhere_are_stored_alike() {
    let counts = [false, true].map(|computes_later| {
        let mut rig = rig(computes_later);
        for n in 0..150 {
            // Two of three are duplicates, and each fourth merges with what is cached.
            rig.write(n, 0, &content(n - n % 3));
            if n % 4 == 0 {
                rig.write(n, 1_000, &content(n)[..500]);
            }
            rig.settle();
        }
        for n in 0..150 {
            let expected = (n % 4 != 0).then_some(n - n % 3);
            if expected.is_some() && rig.store.place(n).is_some() {
                assert_eq!(rig.get(n), expected);
            }
        }
        rig.check();
        rig.store.counts()
    });
    assert_eq!(counts[0], counts[1]);
    let counts = &counts[0];
    assert!(
        counts.duplicates > 30 && counts.stored_contents > 60,
        "{counts:?}"
    );
    assert!(
        counts.stored_flash_bytes < counts.stored_bytes * 9 / 10,
        "{counts:?}"
    );
}

#[test]
fn a_write_overtakes_a_fill_that_is_computed() {
    let rig = rig(true);
    let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
    let mut fill = pin!(store.fill(&device, store.begin_fill(1), 0, content(1).into()));
    begin(fill.as_mut());
    drop(store.begin_write(&device, 1..2).unwrap());
    assert_eq!(rig.run(fill), Filled::Late);
    assert_eq!(store.place(1), None);
}

#[test]
fn a_fill_dropped_while_it_is_computed_leaves_nothing() {
    let mut rig = rig(true);
    let (store, device) = (Arc::clone(&rig.store), rig.device.clone());
    let mut guard = store.begin_write(&device, 1..2).unwrap();
    let mut fills = [
        Box::pin(store.fill(&device, store.begin_fill(2), 0, content(2).into()))
            as Pin<Box<dyn Future<Output = Filled>>>,
        Box::pin(guard.fill(&device, 1, 0, content(1).into())),
    ];
    for fill in &mut fills {
        begin(fill.as_mut());
    }
    drop(fills);
    drop(guard);
    // The computations end all the same.
    assert!(rig.later.run_one() && rig.later.run_one() && !rig.later.run_one());
    assert_eq!(
        (store.place(1), store.place(2), store.in_use()),
        (None, None, (0, 0))
    );
    drop(store);
    for n in [1, 2] {
        assert_eq!(rig.write(n, 0, &content(n)), Filled::Stored);
    }
    rig.check();
}
