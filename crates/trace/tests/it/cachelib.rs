//! The published CacheLib distributions, drawn from and compared with what their files say.
//!
//! They are not part of this repository: the folder that holds `distributions/cachelib` is named by the variable
//! `PUMICE_TRACES`, or stands at `../shared/traces` beside the workspace. Without them the tests say so and check
//! nothing.

use std::io::Read;
use std::path::{Path, PathBuf};

use pumice_trace::{Generator, SizeDistribution};

/// Files of popularity and sizes, by folder.
const FILES: [(&str, &str, &str); 4] = [
    ("cdn", "pop.json", "sizes.json.zst"),
    ("kvcache_reg", "pop.json", "sizes.json.zst"),
    ("graph_cache_leader", "fbobj_pop.json", "fbobj_sizes.json"),
    ("graph_cache_leader", "assoc_pop.json", "assoc_sizes.json"),
];

fn distributions() -> Option<PathBuf> {
    let traces = std::env::var_os("PUMICE_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
        PathBuf::from,
    );
    let folder = traces.join("distributions/cachelib");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!(
        "skipped: the CacheLib distributions are not there ({})",
        folder.display()
    );
    None
}

fn json(path: &Path) -> serde_json::Value {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "zst") {
        zstd::Decoder::new(file).unwrap().read_to_end(&mut text).unwrap();
    } else {
        (&file).read_to_end(&mut text).unwrap();
    }
    serde_json::from_slice(&text).unwrap()
}

fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect()
}

/// The share of the weight that the first `keys` keys have.
fn share_of_first(buckets: &[f64], weights: &[f64], keys: f64) -> f64 {
    let (mut left, mut sum) = (keys, 0.0);
    for (bucket, weight) in buckets.iter().zip(weights) {
        let part = (left / bucket).min(1.0);
        sum += part * weight;
        left -= part * bucket;
    }
    sum / weights.iter().sum::<f64>()
}

#[test]
fn the_most_popular_keys_get_the_share_that_the_file_says() {
    let Some(folder) = distributions() else { return };
    for (name, pop, _) in FILES {
        let path = folder.join(name).join(pop);
        let file = json(&path);
        let (buckets, weights) = (
            numbers(&file["popularityBuckets"]),
            numbers(&file["popularityWeights"]),
        );
        let generator = Generator::endless(&format!("cachelib:pop={}", path.display())).unwrap();
        let keys = generator.ranks();
        assert_eq!(keys as f64, buckets.iter().sum::<f64>());
        // Keys are looked up in a set of the popular ones; how many of the draws are among the first 1 % of the ranks.
        for (part, tolerance) in [(0.001, 0.006), (0.01, 0.006), (0.1, 0.006)] {
            let count = (keys as f64 * part) as u64;
            let popular: std::collections::HashSet<u64> =
                (1..=count).map(|rank| generator.key_of_rank(rank)).collect();
            let mut stream = generator.stream();
            let mut batch = Vec::new();
            let mut hits = 0;
            for _ in 0..100 {
                stream.fill(&mut batch, 2000);
                hits += batch
                    .iter()
                    .filter(|request| popular.contains(&request.key))
                    .count();
            }
            let found = hits as f64 / 200_000.0;
            let expected = share_of_first(&buckets, &weights, count as f64);
            assert!(
                (found - expected).abs() < tolerance,
                "{name}/{pop} {part}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn configurations_are_read_as_published() {
    let Some(folder) = distributions() else { return };
    for (name, keys, lone, lens) in [
        ("cdn", 8_935_378, 0.008_844_707, 8..=64),
        (
            "kvcache_reg",
            14_463_466_000,
            0.134_716_880 / 1.119_245_192,
            16..=255,
        ),
        (
            "graph_cache_leader",
            27_564_687 + 27_855_311,
            0.571 * 0.231_543_654 + 0.429 * 0.115_888_728,
            8..=16,
        ),
    ] {
        let config = folder.join(name).join("config.json");
        let generator = Generator::endless(&format!("cachelib:config={}", config.display())).unwrap();
        assert_eq!(generator.ranks(), keys, "{name}");
        assert_eq!(generator.lookaside(), Some(true));
        let mut batch = Vec::new();
        generator.stream().fill(&mut batch, 100_000);
        assert!(
            batch
                .iter()
                .all(|request| request.size == generator.size_of(request.key))
        );
        assert!(
            batch
                .iter()
                .all(|request| lens.contains(&generator.key_len(request.key).unwrap()))
        );
        // With lone gets switched off, what changes is their share of the requests.
        let without = format!("cachelib:config={},loneget=0", config.display());
        assert_eq!(Generator::endless(&without).unwrap().ranks(), keys);
        let small = format!("cachelib:config={},keys=1000", config.display());
        let small = Generator::endless(&small).unwrap();
        assert_eq!(small.ranks(), 1000);
        let ranked: std::collections::HashSet<u64> = (1..=1000).map(|rank| small.key_of_rank(rank)).collect();
        small.stream().fill(&mut batch, 200_000);
        let found = batch
            .iter()
            .filter(|request| !ranked.contains(&request.key))
            .count() as f64
            / 200_000.0;
        assert!(
            (found - lone).abs() < 0.004,
            "{name}: {found} lone gets, expected {lone}"
        );
    }
}

#[test]
fn sizes_have_the_distribution_of_the_file() {
    let Some(folder) = distributions() else { return };
    for (name, _, sizes) in FILES {
        let path = folder.join(name).join(sizes);
        let file = json(&path);
        let (range, weights) = (
            numbers(&file["valSizeRange"]),
            numbers(&file["valSizeRangeProbability"]),
        );
        let total: f64 = weights.iter().sum();
        let expected = range
            .iter()
            .zip(&weights)
            .map(|(size, weight)| size * weight)
            .sum::<f64>()
            / total;
        let distribution = SizeDistribution::open(&path).unwrap();
        let mean = (0..1_000_000)
            .map(|key| distribution.size_of(key) as f64)
            .sum::<f64>()
            / 1e6;
        assert!(
            (mean / expected - 1.0).abs() < 0.1,
            "{name}/{sizes}: {mean}, expected {expected}"
        );
    }
    // The median of the sizes of cdn, over a table of 32,768 keys.
    let config = folder.join("cdn/config.json");
    let generator = Generator::endless(&format!("cachelib:config={}", config.display())).unwrap();
    let mut sizes: Vec<u64> = (1..=32_768)
        .map(|rank| generator.size_of(generator.key_of_rank(rank)).unwrap())
        .collect();
    sizes.sort_unstable();
    assert!((12_500..14_300).contains(&sizes[16_384]), "{}", sizes[16_384]);
}
