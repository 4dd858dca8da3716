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
    assert_eq!(generator.ranks(), 100);
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
    assert_eq!(generator.ranks(), 300);
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
    assert_eq!(plain.ranks(), 100);
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
    assert_eq!(more.ranks(), 1000);
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

/// What is wrong with the workload in a folder; the message names a file in it.
fn refusal(folder: &Path) -> String {
    let message = generator(folder, "").unwrap_err().to_string();
    assert!(message.contains(folder.to_str().unwrap()), "{message}");
    message
}

#[test]
fn bad_configurations_are_refused_by_file_and_field() {
    for (config, what) in [
        ("", "config.json: EOF"),
        ("[]", "config.json: test_config: is missing"),
        (r#"{"test_config": 3}"#, "test_config: expected an object"),
    ] {
        let message = refusal(folder(config).path());
        assert!(message.contains(what), "{what}: {message}");
    }
    for (from, to, what) in [
        ("\"numKeys\": 100,", "", "test_config.numKeys: is missing"),
        ("100", "1e30", "numKeys: expected a whole number"),
        ("100", "0", "numKeys: is 0"),
        ("100", "18446744073709551615", "numKeys: is 18446744073709551615"),
        ("0.6", "-1", "getRatio: expected a number from 0 on"),
        ("0.6", "\"x\"", "getRatio: expected a number"),
        ("loneSet", "update", "updateRatio: requests of this kind"),
        ("true", "1", "enableLookaside: expected true or false"),
        ("\"pop.json\"", "7", "popDistFile: expected a text"),
        ("pop.json", "none.json", "none.json"),
        ("popDistFile", "other", "test_config.popDistFile: is missing"),
        ("sizes.json", "pop.json.x", "pop.json.x"),
        ("0.3, 0.7", "0.3", "keySizeRange: has 3 entries for 1 weights"),
        (
            "0.3, 0.7",
            "0, 0",
            "keySizeRangeProbability: the weights sum to 0",
        ),
        ("0.3, 0.7", "1, -1", "keySizeRangeProbability: entry 1 is -1"),
        ("1, 8, 64", "1, 64, 8", "keySizeRange: entries must not fall"),
        ("8, 64", "8, 1e9", "keySizeRange: entries are from 0 to 65535"),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let message = refusal(folder(&CONFIG.replace(from, to)).path());
        assert!(message.contains(what), "{what}: {message}");
    }
    let many = format!("{:?}", vec![1; 65]);
    for (keys, ops, pools, what) in [
        ("[1, 1]", "", "", "opPoolDistribution: is missing"),
        (
            "[1, 1]",
            "[1]",
            "",
            "opPoolDistribution: has 1 entries for 2 pools",
        ),
        ("[1, 0, 1]", "[1, 1, 1]", "", "no key of 100 for pool 1"),
        (
            "[1, 1]",
            "[1, 1]",
            "[{}, {}, {}]",
            "poolDistributions: has 3 entries",
        ),
        ("[1]", "", "[3]", "poolDistributions: expected a list of objects"),
        (
            "[1]",
            "",
            r#"[{"getRatio": true}]"#,
            "test_config.poolDistributions[0].popDistFile: is missing",
        ),
        (&many, &many, "", "65 pools"),
    ] {
        let mut fields = String::new();
        for (name, value) in [("keyPool", keys), ("opPool", ops), ("pool", pools)] {
            if !value.is_empty() {
                let plural = if name == "pool" { "s" } else { "" };
                fields += &format!("\"{name}Distribution{plural}\": {value}, ");
            }
        }
        let config = CONFIG.replace("\"numKeys\"", &format!("{fields}\"numKeys\""));
        let message = refusal(folder(&config).path());
        assert!(message.contains(what), "{what}: {message}");
    }
}

#[test]
fn bad_distribution_files_are_refused_by_file_and_field() {
    let refused = |file: &str, text: &str, what: &str| {
        let folder = folder(CONFIG);
        std::fs::write(folder.path().join(file), text).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains(&format!("{file}: {what}")), "{what}: {message}");
    };
    refused("pop.json", "{", "EOF");
    refused("pop.json", "{}", "popularityBuckets: is missing");
    refused(
        "pop.json",
        r#"{"popularityBuckets": [1]}"#,
        "popularityWeights: is missing",
    );
    refused("pop.json", &" ".repeat((8 << 20) + 1), "is larger than 8 MiB");
    for (buckets, weights, what) in [
        (
            "[1, 2]",
            "[1]",
            "popularityBuckets: has 2 entries and popularityWeights 1",
        ),
        (
            "[1.5]",
            "[1]",
            "popularityBuckets: expected a list of whole numbers",
        ),
        (
            "[-1]",
            "[1]",
            "popularityBuckets: expected a list of whole numbers",
        ),
        ("[1, 1]", "[1, -2]", "popularityWeights: entry 1 is -2"),
        ("[1]", "[0]", "popularityWeights: the weights sum to 0"),
        ("[]", "[]", "popularityWeights: the weights sum to 0"),
        (
            "[1, 1]",
            "[1e308, 1e308]",
            "popularityWeights: the weights sum to inf",
        ),
        (
            "[0, 1]",
            "[1, 1]",
            "popularityBuckets: entry 0 has a weight but no keys",
        ),
        (
            "[18446744073709551615, 5]",
            "[1, 1]",
            "popularityBuckets: has more than 1099511627776 keys",
        ),
    ] {
        let text = format!(r#"{{"popularityBuckets": {buckets}, "popularityWeights": {weights}}}"#);
        refused("pop.json", &text, what);
    }
    refused(
        "sizes.json",
        r#"{"valSizeRange": [1]}"#,
        "valSizeRangeProbability: is missing",
    );
    for (sizes, what) in [
        ("[1, 2, 3]", "valSizeRange: "),
        (r#"["a"]"#, "valSizeRange: expected a list of numbers"),
        ("[-1]", "valSizeRange"),
    ] {
        let text = format!(r#"{{"valSizeRange": {sizes}, "valSizeRangeProbability": [1]}}"#);
        refused("sizes.json", &text, what);
    }
    // A file without sizes: the workload has none.
    let folder = folder(CONFIG);
    std::fs::write(folder.path().join("sizes.json"), "[]").unwrap();
    assert!(!generator(folder.path(), "").unwrap().has_sizes());
}
