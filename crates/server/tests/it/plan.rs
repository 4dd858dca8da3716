//! The division of DRAM among volumes.

use pumice_admit::Rule;
use pumice_server::Flags;
use pumice_server::host::HostConfig;
use pumice_server::settings::{Layers, Settings};
use pumice_server::volumes::plan::divide;
use pumice_server::volumes::{Source, VolumeConfig, VolumesConfig};
use pumice_volume::Wanted;

fn config(dram: u64) -> VolumesConfig {
    let volume = VolumeConfig {
        name: "disk".to_owned(),
        backing: Source::Path("disk".into()),
        cache: Some("cache".into()),
        cache_size: None,
        mode: pumice_volume::Mode::WriteThrough,
        write_back: pumice_volume::WriteBack::default(),
        drains: true,
        chunk_bytes: None,
        read_ahead_bytes: 4 << 20,
        scan_cutoff_bytes: 0,
        rule: Rule::All,
        write_budget: None,
        objective: None,
    };
    let threads = Settings {
        threads: Some(vec!["2".to_owned()]),
        ..Settings::default()
    };
    let layers = Layers::collect(threads, None).unwrap();
    let host = HostConfig::resolve(&layers, &Flags::default()).unwrap();
    VolumesConfig {
        host: HostConfig { dram, ..host },
        nbd: Vec::new(),
        volumes: vec![volume.clone(), volume],
    }
}

fn wanted(capacity: u64) -> Option<Wanted> {
    Some(Wanted {
        backing_bytes: 1 << 40,
        capacity,
        chunk_bytes: None,
        block_bytes: None,
        rule: Rule::All,
    })
}

#[test]
fn chunks_are_the_smallest_whose_index_fits_a_quarter() {
    let chunk_bytes = |dram, capacity| {
        let plan = divide(&config(dram), &[wanted(capacity), None]).unwrap();
        let cache = plan.caches[0].unwrap();
        assert!(cache.index_bytes <= dram / 4 && plan.caches[1].is_none());
        cache.chunk_bytes
    };
    assert_eq!(chunk_bytes(256 << 20, 1 << 30), 4 << 10);
    assert_eq!(chunk_bytes(256 << 20, 64 << 30), 64 << 10);
    assert_eq!(chunk_bytes(1 << 30, 64 << 30), 16 << 10);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_one_that_works() {
    let error = divide(&config(32 << 20), &[wanted(16 << 30), None]).unwrap_err();
    let text = error.to_string();
    let least = text.split("give it ").nth(1).unwrap().split(',').next().unwrap();
    let least: u64 = pumice_trace::bytes(least).unwrap();
    assert!(
        divide(&config(least), &[wanted(16 << 30), None]).is_ok(),
        "{text}"
    );
}

#[test]
fn blocks_that_are_there_count() {
    let made = wanted(16 << 30).map(|wanted| Wanted {
        block_bytes: Some(16 << 20),
        ..wanted
    });
    assert!(divide(&config(64 << 20), &[made, None]).is_err());
    let plan = divide(&config(512 << 20), &[made, None]).unwrap();
    assert_eq!(plan.caches[0].unwrap().block_bytes, 16 << 20);
}

#[test]
fn read_ahead_takes_a_sixteenth_of_the_rest_at_most() {
    let cache = |dram| divide(&config(dram), &[wanted(1 << 30), None]).unwrap().caches[0].unwrap();
    let (small, large) = (cache(64 << 20), cache(256 << 20));
    assert_eq!(large.read_ahead_bytes, 4 << 20);
    assert!((1 << 19..1 << 20).contains(&small.read_ahead_bytes), "{small:?}");
    assert!(small.dram_bytes > 12 * small.read_ahead_bytes, "{small:?}");
}

#[test]
fn second_hit_takes_two_bytes_for_each_address() {
    let cache = |rule| {
        let wanted = wanted(1 << 30).map(|wanted| Wanted { rule, ..wanted });
        divide(&config(256 << 20), &[wanted, None]).unwrap().caches[0].unwrap()
    };
    let (all, second) = (cache(Rule::All), cache(Rule::SecondHit));
    assert_eq!(second.ghost_bytes, 2 * second.mappings);
    assert_eq!(second.fixed_bytes() - all.fixed_bytes(), second.ghost_bytes);
    assert!(second.dram_bytes < all.dram_bytes - second.ghost_bytes * 3 / 4);
}

#[test]
fn a_budget_that_is_too_small_for_the_blocks_is_refused_with_one_that_works() {
    let mut config = config(256 << 20);
    let plan = |config: &VolumesConfig| divide(config, &[wanted(1 << 30), None]);
    config.volumes[0].write_budget = "50MB/day".parse().ok();
    let error = plan(&config).unwrap_err().to_string();
    assert!(error.contains("volume disk"), "{error}");
    let least = error.rsplit(' ').next().unwrap();
    config.volumes[0].write_budget = least.parse().ok();
    plan(&config).unwrap();
}

#[test]
fn a_cache_that_is_too_small_is_refused() {
    let error = divide(&config(256 << 20), &[wanted(100 << 10), None]).unwrap_err();
    assert!(error.to_string().contains("cache of disk"), "{error}");
}
