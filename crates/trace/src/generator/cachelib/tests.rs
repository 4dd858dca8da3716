use std::collections::{HashMap, HashSet};
use std::path::Path;

use tempfile::TempDir;

use crate::request::{Op, Request};
use crate::{Generator, TraceError};

const POP: &str = r#"{"oneHits": 0.1, "popularityBuckets": [1, 9, 90], "popularityWeights": [50, 30, 20]}"#;
const SIZES: &str = r#"{"valSizeRange": [31, 63, 1023], "valSizeRangeProbability": [2, 1, 1]}"#;
const CONFIG: &str = r#"{
    "cache_config": {"cacheSizeMB": 1},
    "test_config": {
        "enableLookaside": true, "numKeys": 100, "numOps": 5, "numThreads": 4,
        "getRatio": 0.6, "setRatio": 0.2, "delRatio": 0.1, "loneGetRatio": 0.07, "loneSetRatio": 0.03,
        "keySizeRange": [1, 8, 64], "keySizeRangeProbability": [0.3, 0.7],
        "popDistFile": "pop.json", "valSizeDistFile": "sizes.json"
    }
}"#;

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("config.json", config), ("pop.json", POP), ("sizes.json", SIZES)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn generator(folder: &Path, parts: &str) -> Result<Generator, TraceError> {
    Generator::endless(&format!(
        "cachelib:config={}/config.json{parts}",
        folder.display()
    ))
}

fn requests(generator: &Generator, count: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    generator.stream().fill(&mut requests, count);
    requests
}

fn share(requests: &[Request], is: impl Fn(&Request) -> bool) -> f64 {
    requests.iter().filter(|request| is(request)).count() as f64 / requests.len() as f64
}

#[test]
fn a_configuration_is_drawn_as_it_says() {
    let folder = folder(CONFIG);
    let generator = generator(folder.path(), "").unwrap();
    assert_eq!(generator.lookaside(), Some(true));
    assert_eq!((generator.ranks(), generator.key_space()), (100, None));
    let requests = requests(&generator, 100_000);
    for (op, expected) in [(Op::Get, 0.67), (Op::Set, 0.23), (Op::Delete, 0.1)] {
        let found = share(&requests, |request| request.op == op);
        assert!((found - expected).abs() < 0.01, "{op:?}: {found}");
    }
    let hottest = generator.key_of_rank(1);
    let found = share(&requests, |request| request.key == hottest);
    assert!((found - 0.5 * 0.9).abs() < 0.01, "{found}");

    let ranked: HashSet<u64> = (1..=100).map(|rank| generator.key_of_rank(rank)).collect();
    let lone: Vec<u64> = requests
        .iter()
        .filter(|request| !ranked.contains(&request.key))
        .map(|request| request.key)
        .collect();
    assert!((9_500..10_500).contains(&lone.len()), "{} lone keys", lone.len());
    assert_eq!(
        lone.iter().collect::<HashSet<_>>().len(),
        lone.len(),
        "a lone key comes again"
    );
    assert!(
        requests
            .iter()
            .all(|request| ranked.contains(&request.key) || request.op != Op::Delete)
    );
    // Sizes of lone requests are those of the regular keys: the hottest key's is the most frequent one.
    let hottest_size = generator.size_of(hottest);
    let lone: HashSet<u64> = lone.into_iter().collect();
    let of_lone: Vec<Request> = requests
        .iter()
        .filter(|request| lone.contains(&request.key))
        .copied()
        .collect();
    assert!(share(&of_lone, |request| request.size == hottest_size) > 0.5);
    for request in &requests {
        assert_eq!(request.size, generator.size_of(request.key));
    }
}

#[test]
fn sizes_and_key_lengths_have_the_frequencies_of_the_configuration() {
    let folder = folder(CONFIG);
    let generator = generator(folder.path(), ",keys=1000000").unwrap();
    let (mut sizes, mut short, mut lens) = (HashMap::<u64, u32>::new(), 0, 0u64);
    for rank in 1..=32_768 {
        let key = generator.key_of_rank(rank);
        *sizes.entry(generator.size_of(key).unwrap()).or_default() += 1;
        let len = generator.key_len(key).unwrap();
        assert!((8..=64).contains(&len));
        short += u32::from(len == 8);
        lens += len as u64;
        assert_eq!(
            generator.size_of(key),
            generator.size_of(generator.key_of_rank(rank + 32_768))
        );
    }
    for (size, expected) in [(31, 16_384), (63, 8_192), (1023, 8_192)] {
        assert!(sizes[&size].abs_diff(expected) < 400, "{sizes:?}");
    }
    // 30 % are shorter than 8 and raised to it; of the others, one in 56 is.
    assert!((0.30..0.33).contains(&(f64::from(short) / 32_768.0)), "{short}");
    let mean = lens as f64 / 32_768.0;
    assert!((mean - (0.3 * 8.0 + 0.7 * 35.5)).abs() < 0.5, "{mean}");
}

#[test]
fn pools_divide_keys_and_requests() {
    let config = r#"{"test_config": {
        "numKeys": 1000, "keyPoolDistribution": [0.2, 0.8], "opPoolDistribution": [3, 1],
        "poolDistributions": [
            {"getRatio": 1, "popDistFile": "pop.json", "valSizeRange": [1], "valSizeRangeProbability": [1]},
            {"setRatio": 1, "popDistFile": "pop.json", "useLegacyKeyGen": true,
             "valSizeRange": [10, 20], "valSizeRangeProbability": [1]}
        ]}}"#;
    let folder = folder(config);
    let generator = generator(folder.path(), "").unwrap();
    // The first pool has all of its 200 keys, the second one for each of the 100 that were sampled.
    assert_eq!((generator.ranks(), generator.key_space()), (300, Some(300)));
    assert_eq!(generator.lookaside(), Some(false));
    assert_eq!(generator.key_len(generator.key_of_rank(1)), None);
    let ranks: HashMap<u64, u64> = (1..=300)
        .map(|rank| (generator.key_of_rank(rank), rank))
        .collect();
    assert_eq!(ranks.len(), 300);
    let requests = requests(&generator, 40_000);
    for request in &requests {
        let rank = ranks[&request.key];
        match request.op {
            Op::Get => assert!(rank <= 200 && request.size == Some(1)),
            _ => assert!(rank > 200 && (10..20).contains(&request.size.unwrap())),
        }
    }
    let second = share(&requests, |request| request.op == Op::Set);
    assert!((second - 0.25).abs() < 0.01, "{second}");
    let hottest = share(&requests, |request| ranks[&request.key] == 201);
    assert!((hottest - 0.125).abs() < 0.01, "{hottest}");
    let hottest = share(&requests, |request| ranks[&request.key] <= 2);
    assert!((hottest - 0.375).abs() < 0.01, "{hottest}");
}

#[test]
fn parts_of_the_name_replace_what_is_configured() {
    let folder = folder(CONFIG);
    let with = |parts: &str| generator(folder.path(), parts).unwrap();
    assert_eq!(with(",keys=5000").ranks(), 5000);
    assert_eq!(with(",loneget=0,keys=7").ranks(), 7);
    let found = share(&requests(&with(",loneget=0"), 20_000), |request| {
        request.op == Op::Get
    });
    assert!((found - 0.6 / 0.93).abs() < 0.01, "{found}");
    assert!(
        requests(&with(",size=77"), 100)
            .iter()
            .all(|request| request.size == Some(77))
    );
    assert_ne!(requests(&with(""), 100), requests(&with(",seed=1"), 100));
    assert_eq!(requests(&with(""), 100), requests(&with(",seed=42"), 100));
    // Sizes are drawn by the seed too, for numbers and not for keys.
    let sizes = |generator: &Generator| -> Vec<_> {
        (1..=50)
            .map(|rank| generator.size_of(generator.key_of_rank(rank)))
            .collect()
    };
    assert_ne!(sizes(&with("")), sizes(&with(",seed=1")));
}

#[test]
fn a_popularity_file_alone_makes_a_workload() {
    let folder = folder(CONFIG);
    let pop = folder.path().join("pop.json");
    let alone = |parts: &str| Generator::endless(&format!("cachelib:pop={}{parts}", pop.display())).unwrap();
    let plain = alone("");
    assert_eq!((plain.ranks(), plain.key_space()), (100, Some(100)));
    assert!(!plain.has_sizes());
    assert_eq!(
        (plain.lookaside(), plain.key_len(plain.key_of_rank(3))),
        (None, None)
    );
    let requests_of_plain = requests(&plain, 20_000);
    assert!(
        requests_of_plain
            .iter()
            .all(|request| request.op == Op::Get && request.size.is_none())
    );
    let hottest = share(&requests_of_plain, |request| request.key == plain.key_of_rank(1));
    assert!((hottest - 0.5).abs() < 0.015, "{hottest}");
    let sizes = folder.path().join("sizes.json");
    let more = alone(&format!(",keys=1000,loneget=0.25,sizes={}", sizes.display()));
    assert_eq!((more.ranks(), more.key_space()), (1000, None));
    let ranked: HashSet<u64> = (1..=1000).map(|rank| more.key_of_rank(rank)).collect();
    let requests = requests(&more, 20_000);
    let lone = share(&requests, |request| !ranked.contains(&request.key));
    assert!((lone - 0.25).abs() < 0.01, "{lone}");
    assert!(
        requests
            .iter()
            .all(|request| request.size == more.size_of(request.key))
    );
}

#[test]
fn streams_in_parallel_have_lone_keys_of_their_own() {
    let folder = folder(CONFIG);
    let generator = generator(folder.path(), ",loneget=1").unwrap();
    let ranked: HashSet<u64> = (1..=100).map(|rank| generator.key_of_rank(rank)).collect();
    let mut lone = HashSet::new();
    let mut batch = Vec::new();
    for part in 0..3 {
        generator.stream_part(part, 3).fill(&mut batch, 2000);
        for request in batch.iter().filter(|request| !ranked.contains(&request.key)) {
            assert!(lone.insert(request.key), "a lone key is in two streams");
        }
    }
    assert!(lone.len() > 2000);
}

#[test]
fn compressed_files_are_found() {
    let folder = folder(CONFIG);
    let plain = requests(&generator(folder.path(), "").unwrap(), 50);
    for name in ["pop.json", "sizes.json"] {
        let path = folder.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(
            path.with_extension("json.zst"),
            zstd::encode_all(&*bytes, 1).unwrap(),
        )
        .unwrap();
    }
    assert_eq!(requests(&generator(folder.path(), "").unwrap(), 50), plain);
}

#[test]
fn bad_configurations_are_refused_by_file_and_field() {
    let replaced = |from: &str, to: &str| {
        assert!(CONFIG.contains(from), "{from}");
        CONFIG.replace(from, to)
    };
    let pools = |shares: &str, ops: &str, list: &str| {
        replaced(
            "\"numKeys\": 100,",
            &format!(r#""numKeys": 100, "keyPoolDistribution": {shares}, {ops} {list}"#),
        )
    };
    for (config, what) in [
        (String::new(), "config.json: EOF"),
        ("[]".into(), "config.json: test_config: is missing"),
        (r#"{"test_config": 3}"#.into(), "test_config: expected an object"),
        (
            replaced("\"numKeys\": 100,", ""),
            "test_config.numKeys: is missing",
        ),
        (replaced("100", "1e30"), "numKeys: expected a whole number"),
        (replaced("100", "0"), "numKeys: is 0"),
        (
            replaced("100", "18446744073709551615"),
            "numKeys: is 18446744073709551615",
        ),
        (
            replaced("\"getRatio\": 0.6", "\"getRatio\": -1"),
            "getRatio: expected a number from 0 on",
        ),
        (
            replaced("\"getRatio\": 0.6", "\"getRatio\": \"x\""),
            "getRatio: expected a number",
        ),
        (
            replaced("0.6", "0.6, \"updateRatio\": 0.1"),
            "updateRatio: requests of this kind",
        ),
        (replaced("true", "1"), "enableLookaside: expected true or false"),
        (replaced("\"pop.json\"", "7"), "popDistFile: expected a text"),
        (replaced("pop.json", "none.json"), "none.json"),
        (
            replaced("popDistFile", "other"),
            "test_config.popDistFile: is missing",
        ),
        (replaced("sizes.json", "pop.json.x"), "pop.json.x"),
        (
            replaced("[0.3, 0.7]", "[0.3]"),
            "keySizeRange: has 3 entries for 1 weights",
        ),
        (
            replaced("[0.3, 0.7]", "[0, 0]"),
            "keySizeRangeProbability: the weights sum to 0",
        ),
        (
            replaced("[0.3, 0.7]", "[1, -1]"),
            "keySizeRangeProbability: entry 1 is -1",
        ),
        (
            replaced("[1, 8, 64]", "[1, 64, 8]"),
            "keySizeRange: entries must not fall",
        ),
        (
            replaced("[1, 8, 64]", "[1, 8, 1e9]"),
            "keySizeRange: entries are from 0 to 65535",
        ),
        (pools("[1, 1]", "", ""), "opPoolDistribution: is missing"),
        (
            pools("[1, 1]", "\"opPoolDistribution\": [1],", ""),
            "opPoolDistribution: has 1 entries for 2 pools",
        ),
        (
            pools("[1, 0, 1]", "\"opPoolDistribution\": [1, 1, 1],", ""),
            "no key of 100 for pool 1",
        ),
        (
            pools(
                "[1, 1]",
                "\"opPoolDistribution\": [1, 1],",
                "\"poolDistributions\": [{}, {}, {}],",
            ),
            "poolDistributions: has 3 entries",
        ),
        (
            pools("[1]", "", "\"poolDistributions\": [3],"),
            "poolDistributions: expected a list of objects",
        ),
        (
            pools("[1]", "", "\"poolDistributions\": [{\"getRatio\": true}],"),
            "test_config.poolDistributions[0].popDistFile: is missing",
        ),
    ] {
        let folder = folder(&config);
        let message = generator(folder.path(), "").unwrap_err().to_string();
        assert!(message.contains(what), "{what}: {message}");
        assert!(message.contains(folder.path().to_str().unwrap()), "{message}");
    }
    let many = format!("{:?}", vec![1; 65]);
    let folder = folder(&pools(&many, &format!("\"opPoolDistribution\": {many},"), ""));
    let message = generator(folder.path(), "").unwrap_err().to_string();
    assert!(message.contains("65 pools"), "{message}");
}

#[test]
fn bad_distribution_files_are_refused_by_file_and_field() {
    for (file, text, what) in [
        ("pop.json", "{", "pop.json: EOF"),
        ("pop.json", "{}", "pop.json: popularityBuckets: is missing"),
        (
            "pop.json",
            r#"{"popularityBuckets": [1]}"#,
            "popularityWeights: is missing",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [1, 2], "popularityWeights": [1]}"#,
            "popularityBuckets: has 2 entries and popularityWeights 1",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [1.5], "popularityWeights": [1]}"#,
            "popularityBuckets: expected a list of whole numbers",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [-1], "popularityWeights": [1]}"#,
            "popularityBuckets: expected a list of whole numbers",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [1, 1], "popularityWeights": [1, -2]}"#,
            "popularityWeights: entry 1 is -2",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [1], "popularityWeights": [0]}"#,
            "popularityWeights: the weights sum to 0",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [], "popularityWeights": []}"#,
            "popularityWeights: the weights sum to 0",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [1, 1], "popularityWeights": [1e308, 1e308]}"#,
            "popularityWeights: the weights sum to inf",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [0, 1], "popularityWeights": [1, 1]}"#,
            "popularityBuckets: entry 0 has a weight but no keys",
        ),
        (
            "pop.json",
            r#"{"popularityBuckets": [18446744073709551615, 5], "popularityWeights": [1, 1]}"#,
            "popularityBuckets: has more than 1099511627776 keys",
        ),
        ("sizes.json", "[]", ""),
        (
            "sizes.json",
            r#"{"valSizeRange": [1, 2, 3], "valSizeRangeProbability": [1]}"#,
            "sizes.json: valSizeRange: ",
        ),
        (
            "sizes.json",
            r#"{"valSizeRange": ["a"], "valSizeRangeProbability": [1]}"#,
            "valSizeRange: expected a list of numbers",
        ),
        (
            "sizes.json",
            r#"{"valSizeRange": [-1], "valSizeRangeProbability": [1]}"#,
            "valSizeRange",
        ),
        (
            "sizes.json",
            r#"{"valSizeRange": [1]}"#,
            "valSizeRangeProbability: is missing",
        ),
    ] {
        let folder = folder(CONFIG);
        std::fs::write(folder.path().join(file), text).unwrap();
        let result = generator(folder.path(), "");
        if what.is_empty() {
            // A file without sizes: the workload has none.
            assert!(!result.unwrap().has_sizes());
            continue;
        }
        let message = result.unwrap_err().to_string();
        assert!(message.contains(what), "{what}: {message}");
        assert!(message.contains(&format!("/{file}")), "{message}");
    }
    let folder = folder(CONFIG);
    std::fs::write(folder.path().join("pop.json"), vec![b' '; (8 << 20) + 1]).unwrap();
    let message = generator(folder.path(), "").unwrap_err().to_string();
    assert!(message.contains("larger than 8 MiB"), "{message}");
}
