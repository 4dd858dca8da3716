//! What the engine takes for an operation in DRAM, without sockets and devices: nanoseconds for each, best of some rounds.
//!
//!     cargo run --release -p pumice --example engine_speed

use pumice::{Access, CacheOptions, Cx, Lookup, Meta, ObjectCache};
use pumice_device::{MemDevice, MemMedium, Payload};
use pumice_world::{Executor, SystemClock, mix64};
use std::convert::Infallible;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const KEYS: u64 = 100_000;
const OPERATIONS: u64 = 2_000_000;
const ROUNDS: usize = 5;

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"key0000000000000";
    let mut rest = n;
    for digit in key[3..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Nanoseconds for each of the operations, in the best of the rounds.
fn time(name: &str, mut operation: impl FnMut(u64)) {
    let best = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            (0..OPERATIONS).for_each(&mut operation);
            started.elapsed().as_nanos() as f64 / OPERATIONS as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<40} {best:8.1} ns");
}

fn main() {
    let executor = Executor::new();
    let device = MemDevice::new(Arc::new(MemMedium::new(512 << 20)));
    let cx = Cx::new(
        device.clone(),
        Arc::new(SystemClock::new(0)),
        Rc::new(executor.spawner()),
    );
    let options = CacheOptions {
        dram_bytes: 128 << 20,
        ..CacheOptions::default()
    };
    let park = || -> Result<(), Infallible> {
        device.turn(true).expect("memory does not fail");
        Ok(())
    };
    use pumice_device::Device;
    let Ok(opened) = executor.block_on(ObjectCache::open(&cx, options), park);
    let (cache, _) = opened.expect("an empty device opens");
    let value = [7u8; 100];
    for n in 0..KEYS {
        cache
            .set(&cx, &key(n), Payload::Bytes(&value), Meta::default())
            .expect("there is room");
    }
    time("make a key", |n| {
        black_box(key(mix64(n) % KEYS));
    });
    time("get, DRAM hit of 100 bytes", |n| {
        match cache.lookup(&cx, &key(mix64(n) % KEYS), Access::Count) {
            Lookup::Known(Some(object)) => {
                black_box(object.parts().count());
            }
            _ => panic!("every key is in DRAM"),
        }
    });
    time("get, miss", |n| {
        assert!(matches!(
            cache.lookup(&cx, &key(KEYS + mix64(n) % KEYS), Access::Count),
            Lookup::Known(None)
        ));
    });
    time("set of 100 bytes", |n| {
        cache
            .set(
                &cx,
                &key(mix64(n) % KEYS),
                Payload::Bytes(&value),
                Meta::default(),
            )
            .expect("there is room");
        if n % 64 == 0 {
            // Lets blocks be written, as an event loop would.
            executor
                .run_until_idle(park)
                .unwrap_or_else(|never| match never {});
        }
    });
}
