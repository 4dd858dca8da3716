//! A cache that is stopped and started again on a simulated drive: its blocks stay aligned to the drive's erase units.

use pumice::{CacheOptions, Cx, Found, Lookup, Meta, ObjectCache};
use pumice_device::{Device, MemDevice, MemMedium, Payload};
use pumice_flash::{Layout, LayoutOptions};
use pumice_sim::{Ftl, FtlDevice, FtlOptions};
use pumice_world::{Executor, ManualClock};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const CAPACITY: u64 = 48 << 20;
const BLOCK_BYTES: u64 = 64 << 10;
const KEYS: u64 = 100_000;

type Drive = FtlDevice<MemDevice>;

fn park(device: &Drive) -> impl FnMut() -> std::io::Result<()> + '_ {
    move || device.turn(true).map(|_| ())
}

/// One life: so many requests, each a look-up and a set where that misses, and a clean stop or none.
fn live(device: &Drive, blocks_per_unit: u64, requests: usize, random: &mut u64, is_clean: bool) {
    let executor = Executor::new();
    let clock = Arc::new(ManualClock::new(1));
    let cx = Cx::new(device.clone(), clock, Rc::new(executor.spawner()));
    let options = CacheOptions {
        dram_bytes: 1 << 20,
        buffers_max: 160,
        block_bytes: Some(BLOCK_BYTES),
        layout: LayoutOptions::new(Layout::Ripq, Some("gdsf-3"), None, None).unwrap(),
        erase_unit_bytes: blocks_per_unit * BLOCK_BYTES,
        lockstep: true,
        ..CacheOptions::default()
    };
    let (cache, _) = executor
        .block_on(ObjectCache::open(&cx, options), park(device))
        .unwrap()
        .unwrap();
    let value = vec![0x5A; 8 << 10];
    for _ in 0..requests {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Low keys are asked for more often.
        let uniform = (*random >> 11) as f64 / (1u64 << 53) as f64;
        let n = (KEYS as f64 * uniform.powi(4)) as u64;
        let len = 600 + (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51) as usize;
        let key = n.to_le_bytes();
        let is_hit = match cache.lookup(&cx, &key) {
            Lookup::Hit(_) => true,
            Lookup::Miss => false,
            Lookup::Flash(flash) => {
                let found = executor.block_on(cache.finish(&cx, &key, flash), park(device));
                matches!(found.unwrap(), Found::Hit(_))
            }
            Lookup::Large(_) => unreachable!("all are small"),
        };
        if !is_hit {
            let set = cache.store(
                &cx,
                &key,
                Payload::Bytes(&value[..len.min(8 << 10)]),
                Meta::default(),
            );
            executor.block_on(set, park(device)).unwrap().unwrap();
        }
        executor.run_until_idle(park(device)).unwrap();
    }
    if is_clean {
        executor
            .block_on(cache.close(&cx), park(device))
            .unwrap()
            .unwrap();
    }
}

/// Bytes that the drive wrote for each that it was sent, over eight lives once it is full; where `crashes` every other one ends without
/// a clean stop.
fn amplification(blocks_per_unit: u32, crashes: bool) -> f64 {
    let options = FtlOptions {
        separate_copies: true,
        ..FtlOptions::at_utilisation(CAPACITY, 0.9, BLOCK_BYTES, blocks_per_unit)
    };
    let ftl = Arc::new(Mutex::new(Ftl::new(options.with_least_spare()).unwrap()));
    let medium = Arc::new(MemMedium::new(CAPACITY));
    let device = FtlDevice::new(MemDevice::new(medium), Arc::clone(&ftl)).unwrap();
    let mut random = 7;
    let counts = || ftl.lock().unwrap().snapshot();
    live(&device, blocks_per_unit.into(), 30_000, &mut random, true);
    let before = counts();
    for life in 0..8 {
        let is_clean = !crashes || life % 2 == 1;
        live(&device, blocks_per_unit.into(), 20_000, &mut random, is_clean);
    }
    (counts() - before).device_write_amplification().unwrap()
}

#[test]
fn blocks_stay_aligned_when_the_cache_is_started_again() {
    for (blocks_per_unit, crashes, most) in [
        (1, false, 1.005),
        (1, true, 1.005),
        // Which block of a unit is the next, it does not know after a crash.
        (4, false, 1.05),
    ] {
        let found = amplification(blocks_per_unit, crashes);
        println!("{blocks_per_unit} blocks to a unit, crashes {crashes}: {found:.4}");
        assert!(
            found < most,
            "{blocks_per_unit} blocks to a unit, crashes {crashes}: {found}"
        );
    }
}
