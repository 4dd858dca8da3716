//! Looking at what is on flash without leaving a trace.

use crate::common::{Rig, cascade, key, value};
use pumice::{Access, CacheOptions, IndexOptions, Lookup, Meta};
use pumice_device::{MemDevice, MemMedium};
use pumice_world::ManualClock;
use std::sync::Arc;

#[test]
fn a_peek_leaves_what_is_on_flash_there() {
    for index in [IndexOptions::Full, cascade()] {
        let options = CacheOptions {
            index,
            ..CacheOptions::default()
        };
        let medium = Arc::new(MemMedium::new(16 << 20));
        let clock = Arc::new(ManualClock::new(1_000));
        let open = || Rig::open(MemDevice::new(Arc::clone(&medium)), Arc::clone(&clock), options);
        let rig = open();
        for n in 0..100 {
            assert!(rig.set(&key(n), &value(n, 0, 300)));
        }
        rig.run(rig.cache.close(&rig.cx)).unwrap();
        drop(rig);
        let rig = open();
        for n in 0..100 {
            for _ in 0..2 {
                let Lookup::Read(fetch) = rig.cache.lookup(&rig.cx, &key(n), Access::Peek) else {
                    panic!("{n} is on flash alone");
                };
                let found = rig.run(rig.cache.fetch(&rig.cx, &key(n), fetch, Access::Peek));
                let Lookup::Known(Some(object)) = found else {
                    panic!("{n} is there")
                };
                assert_eq!((object.to_vec(), object.marks()), (value(n, 0, 300), 0));
            }
        }
        assert_eq!(rig.cache.stats().dram_items, 0);
        for used in [0, Meta::USED] {
            let object = rig.run(rig.cache.get(&rig.cx, &key(7))).expect("it is there");
            assert_eq!(object.marks(), used);
        }
        assert_eq!(rig.cache.stats().dram_items, 1);
        rig.check();
    }
}
