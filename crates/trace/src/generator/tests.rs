use std::collections::HashMap;
use std::io::Write;

use super::*;
use crate::request::{Op, Request};
use crate::testing::drain;

fn generate(spec: &str) -> Vec<Request> {
    drain(&mut *spec.parse::<Generator>().unwrap().open()).unwrap()
}

#[test]
fn a_seed_fixes_the_sequence_and_another_seed_changes_it() {
    let spec = "zipf:keys=1000,theta=0.9,requests=2000,seed=1";
    assert_eq!(generate(spec), generate(spec));
    assert_eq!(generate(spec).len(), 2000);
    assert_ne!(
        generate(spec),
        generate("zipf:keys=1000,theta=0.9,requests=2000,seed=2")
    );
    assert_eq!(
        generate("uniform:keys=9,requests=5"),
        generate("uniform:keys=9,requests=5,seed=42")
    );
    assert!(generate("uniform:keys=9,requests=0").is_empty());
}

#[test]
fn popularity_follows_theta_and_keys_are_scrambled() {
    let mut counts: HashMap<u64, u32> = HashMap::new();
    for request in generate("zipf:keys=100,theta=1.1,requests=50000,seed=3") {
        *counts.entry(request.key).or_default() += 1;
    }
    assert_eq!(counts.len(), 100);
    let mut popular: Vec<(u32, u64)> = counts.into_iter().map(|(key, count)| (count, key)).collect();
    popular.sort_unstable_by(|a, b| b.cmp(a));
    let ratio = f64::from(popular[0].0) / f64::from(popular[1].0);
    assert!(
        (1.9..2.4).contains(&ratio),
        "2^1.1 = 2.14 expected, {ratio} found"
    );
    assert!(
        popular[0].1.abs_diff(popular[1].1) > 1 << 40,
        "neighbouring ranks have neighbouring keys"
    );
}

#[test]
fn a_share_of_the_requests_are_sets_of_keys_that_are_drawn_alike() {
    let spec = "zipf:keys=100,theta=1.1,requests=20000,sets=0.2";
    let (sets, gets): (Vec<Request>, Vec<Request>) =
        (generate(spec).into_iter()).partition(|request| request.op == Op::Set);
    assert!((3800..4200).contains(&sets.len()), "{}", sets.len());
    let top = |requests: &[Request]| {
        let most = spec.parse::<Generator>().unwrap().key_of_rank(1);
        let found = requests.iter().filter(|request| request.key == most).count();
        found as f64 / requests.len() as f64
    };
    assert!((top(&sets) - top(&gets)).abs() < 0.03);
    assert!(
        generate("uniform:keys=5,requests=50,sets=1")
            .iter()
            .all(|request| request.op == Op::Set)
    );
    let plain = "zipf:keys=100,theta=1.1,requests=2000";
    assert_eq!(generate(&format!("{plain},sets=0")), generate(plain));
}

#[test]
fn sizes_are_constant_or_drawn_for_each_key() {
    assert!(
        generate("uniform:keys=5,requests=50")
            .iter()
            .all(|request| request.size.is_none())
    );
    assert!(
        generate("uniform:keys=5,requests=50,size=7")
            .iter()
            .all(|request| request.size == Some(7))
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(br#"{"valSizeRange": [1, 2], "valSizeRangeProbability": [1, 1]}"#)
        .unwrap();
    let drawn = generate(&format!(
        "uniform:keys=64,requests=5000,sizes={}",
        file.path().display()
    ));
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for request in drawn {
        let size = request.size.unwrap();
        assert_eq!(
            *sizes.entry(request.key).or_insert(size),
            size,
            "a key changed its size"
        );
    }
    assert!(sizes.values().any(|&size| size == 1) && sizes.values().any(|&size| size == 2));
}

/// Names of every kind that reads no file, without `requests`.
const NAMES: [&str; 6] = [
    "zipf:keys=1000,theta=0.9",
    "uniform:keys=1000",
    "hotspot:keys=1000,hot=0.1,share=0.7",
    "normal:keys=1000,mean=0.3,sd=0.2",
    "latest:keys=1000",
    "latest:keys=1000,theta=0.5,insert=0.3,size=600-4096",
];

#[test]
fn sequences_of_known_names_stay_as_they_are() {
    for (spec, expected) in [
        (
            "zipf:keys=1000000,theta=0.9,requests=20000",
            0xb3b5_f38b_9f9c_eb7f_u64,
        ),
        (
            "zipf:keys=1000000,theta=1.2,requests=20000,seed=9",
            0x90ae_4891_1404_da67,
        ),
        ("uniform:keys=1000000,requests=20000", 0x2ae4_9670_cc9a_d657),
    ] {
        let digest = generate(spec).iter().fold(0u64, |digest, request| {
            digest.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ request.key
        });
        assert_eq!(digest, expected, "{spec}: {digest:#x}");
    }
}

#[test]
fn a_sequence_does_not_depend_on_how_it_is_cut() {
    for name in NAMES {
        let whole = generate(&format!("{name},requests=3000"));
        assert_eq!(whole.len(), 3000);
        let mut stream = Generator::endless(name).unwrap().stream();
        let (mut pieces, mut batch) = (Vec::new(), Vec::new());
        while pieces.len() < 2900 {
            pieces.push(stream.draw());
            stream.fill(&mut batch, 300);
            assert_eq!(batch.len(), 300);
            pieces.extend_from_slice(&batch);
            assert!(stream.next_batch(&mut batch).unwrap());
            pieces.extend_from_slice(&batch);
        }
        let common = pieces.len().min(3000);
        assert_eq!(pieces[..common], whole[..common], "{name}");
        assert_ne!(
            whole,
            generate(&format!("{name},requests=3000,seed=43")),
            "{name}"
        );
    }
}

#[test]
fn a_name_without_requests_goes_on_without_end() {
    for name in NAMES {
        let generator = Generator::endless(name).unwrap();
        assert_eq!(generator.requests(), u64::MAX);
        let mut reader = generator.open();
        let mut batch = Vec::new();
        for _ in 0..10 {
            assert!(reader.next_batch(&mut batch).unwrap());
        }
        assert_eq!(reader.progress().total, 0);
        assert!(reader.progress().done > 1000);
        let message = name.parse::<Generator>().unwrap_err().to_string();
        assert!(message.contains("`requests` is missing"), "{message}");
        let ending = Generator::endless(&format!("{name},requests=7")).unwrap();
        assert_eq!(ending.requests(), 7);
        assert_eq!(drain(&mut *ending.open()).unwrap().len(), 7);
    }
}

#[test]
fn keys_of_requests_are_the_keys_of_ranks() {
    for name in NAMES {
        let generator = Generator::endless(name).unwrap();
        assert_eq!(generator.ranks(), 1000);
        let ranked: std::collections::HashSet<u64> =
            (1..=1000).map(|rank| generator.key_of_rank(rank)).collect();
        assert_eq!(ranked.len(), 1000);
        let mut stream = generator.stream();
        let mut inserted = std::collections::HashSet::new();
        for _ in 0..20_000 {
            let request = stream.draw();
            if request.op == Op::Set {
                assert!(!ranked.contains(&request.key));
                assert!(inserted.insert(request.key), "a key is inserted twice");
            }
            assert!(
                ranked.contains(&request.key) || inserted.contains(&request.key),
                "{name}"
            );
            assert_eq!(request.size, generator.size_of(request.key));
        }
    }
    // Rank 1 is the most popular one.
    let generator = Generator::endless("zipf:keys=100,theta=2").unwrap();
    let mut stream = generator.stream();
    let first = generator.key_of_rank(1);
    let hits = (0..1000).filter(|_| stream.draw().key == first).count();
    assert!((560..680).contains(&hits), "6 / π² = 0.61 expected, {hits} found");
}

#[test]
fn parts_share_the_requests_and_the_keys() {
    for name in NAMES {
        let generator: Generator = format!("{name},requests=1001").parse().unwrap();
        let mut parts: Vec<Vec<Request>> = (0..4)
            .map(|part| drain(&mut generator.stream_part(part, 4)).unwrap())
            .collect();
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 1001);
        assert_eq!(parts[0].len(), 251);
        let sets = |part: &[Request]| -> Vec<u64> {
            let sets = part.iter().filter(|request| request.op == Op::Set);
            sets.map(|request| request.key).collect()
        };
        let mut inserted: Vec<u64> = parts.iter().flat_map(|part| sets(part)).collect();
        let count = inserted.len();
        inserted.sort_unstable();
        inserted.dedup();
        assert_eq!(inserted.len(), count, "{name}: two parts insert a key");
        parts.dedup();
        assert_eq!(parts.len(), 4, "{name}: two parts draw alike");
        let only = drain(&mut generator.stream_part(0, 1)).unwrap();
        assert_eq!(only, drain(&mut *generator.open()).unwrap());
    }
}

#[test]
fn ranges_of_sizes_are_drawn_for_each_key() {
    let requests = generate("uniform:keys=5000,requests=50000,size=600-603");
    let mut counts = [0u32; 4];
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for request in requests {
        let size = request.size.unwrap();
        counts[(size - 600) as usize] += 1;
        assert_eq!(*sizes.entry(request.key).or_insert(size), size);
    }
    assert!(
        counts.iter().all(|count| (11_500..13_500).contains(count)),
        "{counts:?}"
    );
    for (size, expected) in [("7-7", 7..=7), ("0-18446744073709551615", 0..=u64::MAX)] {
        let requests = generate(&format!("uniform:keys=5,requests=50,size={size}"));
        assert!(
            requests
                .iter()
                .all(|request| expected.contains(&request.size.unwrap()))
        );
    }
}

#[test]
fn what_is_wrong_with_a_name_is_named() {
    for (spec, what) in [
        ("zipf:", "found ``"),
        ("zipf:keys=10,requests=10", "`theta` is missing"),
        ("zipf:theta=1,requests=10", "`keys` is missing"),
        ("zipf:keys=10,theta=1", "`requests` is missing"),
        ("zipf:keys=0,theta=1,requests=1", "from 1 to"),
        ("zipf:keys=1,theta=-1,requests=1", "theta from 0 to 20"),
        ("zipf:keys=1,theta=nan,requests=1", "theta from 0 to 20"),
        ("zipf:keys=1,theta=x,requests=1", "`theta=x`"),
        ("zipf:keys=1e6,theta=1,requests=1", "`keys=1e6`"),
        ("zipf:keys=1,theta=1,requests=1,sets=2", "sets from 0 to 1"),
        ("hotspot:keys=1,requests=1,sets=0.2", "unknown part `sets`"),
        ("zipf:keys=1,alpha=1,requests=1", "unknown part `alpha`"),
        ("uniform:keys=1,theta=1,requests=1", "unknown part `theta`"),
        ("uniform:keys=1,keys=2,requests=1", "given twice"),
        ("uniform:keys=1,requests=1,size=1,sizes=x", "not both"),
        ("uniform:keys=1,requests=1,sizes=/no/such/file", "/no/such/file"),
        ("uniform:keys=1,requests=1,size=9-", "such as `600-4096`"),
        ("uniform:keys=1,requests=1,size=9-8", "ends before it starts"),
        ("uniform:keys=1,requests=1,size=x", "`size=x`"),
        ("zipfian:keys=1", "expected one of `zipf:`, `uniform:`"),
        (
            "hotspot:keys=9,requests=1,theta=1",
            "(parts: keys, hot, share, requests",
        ),
        ("normal:keys=9,requests=1,sd=0", "sd from"),
        ("latest:keys=9,requests=1,insert=2", "insert from 0 to 1"),
    ] {
        let message = spec.parse::<Generator>().unwrap_err().to_string();
        assert!(message.contains(what), "{spec}: {message}");
    }
}

#[test]
fn a_volume_has_duplicates_runs_and_drift_as_asked_for() {
    let spec = "block:chunks=4096,requests=100000,writes=0.7,duplicates=0.5,theta=0.9,seed=3";
    let requests = generate(spec);
    assert_eq!(requests, generate(spec));
    let mut held: HashMap<u64, u64> = HashMap::new();
    let (mut seen, mut counts) = (HashMap::new(), [0u32; 4]);
    let [writes, duplicates, in_place, runs] = &mut counts;
    let mut last = (u64::MAX, Op::Get);
    for request in &requests {
        let content = request.content.expect("each has one");
        assert!(request.key < 4096);
        *runs += u32::from(last.0 == request.key.wrapping_sub(1) && last.1 == request.op);
        last = (request.key, request.op);
        let known = seen.insert(content, ()).is_some();
        match request.op {
            Op::Set => {
                *writes += 1;
                *duplicates += u32::from(known);
                *in_place += u32::from(held.get(&request.key) == Some(&content));
            }
            _ => assert!(
                held.get(&request.key).is_none_or(|held| *held == content),
                "a read finds what was written"
            ),
        }
        held.insert(request.key, content);
    }
    let near = |count: u32, share: f64| (f64::from(count) / 100_000.0 - share).abs() < 0.02;
    assert!(near(*writes, 0.7) && near(*runs, 0.5), "{counts:?}");
    // A twentieth of the writes repeat in place; a few of those write there for the first time.
    assert!(near(counts[1], 0.35) && near(counts[2], 0.035), "{counts:?}");

    let popular = |requests: &[Request]| {
        let mut groups: HashMap<u64, u32> = HashMap::new();
        for request in requests {
            *groups.entry(request.key / 8).or_default() += 1;
        }
        groups.into_iter().max_by_key(|(_, count)| *count).unwrap().0
    };
    assert_eq!(popular(&requests[..20_000]), popular(&requests[80_000..]));
    let drifting = generate(&format!("{spec},drift=0.002,sequential=0"));
    assert_ne!(popular(&drifting[..20_000]), popular(&drifting[80_000..]));
    let first = |requests: &[Request]| requests.iter().take(50).map(|r| r.key).collect::<Vec<_>>();
    assert_ne!(
        first(&requests),
        first(&generate(&spec.replace("seed=3", "seed=4")))
    );
}
