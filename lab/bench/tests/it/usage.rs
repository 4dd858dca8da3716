//! Settings that cannot be obeyed end with 2 and name the flag.

use crate::bench;

#[test]
fn bad_usage_ends_with_2_and_names_the_flag() {
    for (words, parts) in [
        (
            "model admission zipf:keys=10,requests=10,theta=1 --dram 1 --flash 2 --flash-admit-size-max 0",
            ["--flash-admit-size-max", "nothing would be let onto flash"],
        ),
        (
            "model admission zipf:keys=10,requests=10,theta=1 --dram 1 --flash 0",
            ["a cache of 0", "the smallest is 1"],
        ),
        (
            "model admission zipf:keys=ten --dram 1 --flash 2",
            ["zipf", "keys=ten"],
        ),
        ("model nhc --hits 2", ["--hits", "from 0 to 1"]),
        ("model volume --mode pass-through", ["--mode", "with a cache"]),
        (
            "history --target a:1 --value-size-max 4MB",
            ["--value-size-max 4194304", "24 to"],
        ),
    ] {
        let output = bench(words, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        for part in parts {
            assert!(said.contains(part), "{words}: {part:?} is not in {said:?}");
        }
    }
}

#[test]
fn reports_of_models_name_what_made_them() {
    let words = "model admission zipf:keys=1000,requests=10000,theta=0.9 --dram 1% --flash 10% --json";
    let output = bench(words, &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["whole"]["lookups"], 10_000);
    assert_eq!(report["command"][1], "model");
    assert!(report["version"].is_string());
}
