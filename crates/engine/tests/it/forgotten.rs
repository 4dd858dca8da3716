//! A cache that was emptied by `flush_all` stays empty over stops and starts, and takes new objects as any other.

use crate::common::{Rig, cascade, cascade_layouts, key, ripq, sipq};
use pumice::CacheOptions;
use pumice_testkit::calm;
use pumice_testkit::{FaultyDevice, FaultyMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

const KEYS: u64 = 300;

fn kinds() -> Vec<CacheOptions> {
    let plain = CacheOptions {
        dram_bytes: 1 << 20,
        block_bytes: Some(64 << 10),
        buffers_max: 10,
        ..CacheOptions::default()
    };
    let full =
        [pumice::LayoutOptions::default(), ripq(), sipq()].map(|layout| CacheOptions { layout, ..plain });
    let over_cascade = cascade_layouts().map(|layout| CacheOptions {
        layout,
        index: cascade(),
        ..plain
    });
    full.into_iter().chain(over_cascade).collect()
}

/// `clean` says of each of the four stops whether it is one, or a kill.
fn forget_and_restart(options: CacheOptions, clean: [bool; 4], later: Option<u32>) {
    let medium = Arc::new(FaultyMedium::new(4 << 20, 1, calm()));
    let clock = Arc::new(ManualClock::new(1_000));
    let open = || {
        let device = FaultyDevice::new(Arc::clone(&medium));
        let rig = Rig::open(device, Arc::clone(&clock), options);
        assert!(!rig.recovered.discarded, "{:?}", rig.recovered);
        rig
    };
    let stop = |rig: Rig<FaultyDevice>, clean: bool| {
        rig.check();
        if clean {
            rig.run(rig.cache.close(&rig.cx)).unwrap();
        }
    };
    let rig = open();
    for n in 0..KEYS {
        assert!(rig.set(&key(n), &[n as u8; 3_000]));
        if n % 16 == 0 {
            rig.settle();
        }
    }
    stop(rig, clean[0]);
    let rig = open();
    let before = (0..KEYS).filter(|n| rig.get(&key(*n)).is_some()).count();
    assert!(before > 100, "{before} of {KEYS} are there before");
    rig.cache.flush_all(&rig.cx, later.map(|secs| 1_000 + secs));
    stop(rig, clean[1]);
    clock.advance_secs(later.unwrap_or(0));
    let rig = open();
    for n in 0..KEYS {
        assert_eq!(rig.get(&key(n)), None, "key {n} after the first start");
    }
    stop(rig, clean[2]);
    let rig = open();
    for n in 0..KEYS {
        assert_eq!(rig.get(&key(n)), None, "key {n} after the second start");
        assert!(rig.set(&key(n), b"new"));
    }
    stop(rig, clean[3]);
    let rig = open();
    let mut found = 0;
    for n in 0..KEYS {
        let got = rig.get(&key(n));
        assert!(
            got.is_none() || got.as_deref() == Some(&b"new"[..]),
            "key {n}: {got:?}"
        );
        found += u64::from(got.is_some());
    }
    assert!(!clean[3] || found >= KEYS * 9 / 10, "{found} of {KEYS}");
    rig.check();
}

#[test]
fn what_was_flushed_stays_away_over_clean_stops() {
    for options in kinds() {
        forget_and_restart(options, [true; 4], None);
    }
}

#[test]
fn what_was_flushed_stays_away_over_kills() {
    for options in kinds() {
        for stops in 0..16 {
            forget_and_restart(options, [0, 1, 2, 3].map(|bit| stops >> bit & 1 == 1), None);
        }
    }
}

#[test]
fn a_flush_that_was_put_off_comes_after_the_next_start() {
    for options in kinds() {
        for stops in 0..16 {
            forget_and_restart(options, [0, 1, 2, 3].map(|bit| stops >> bit & 1 == 1), Some(60));
        }
    }
}
