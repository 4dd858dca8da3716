//! Settings, from where they come.

use pumice_door_http::rule_table::RuleTable;
use pumice_door_http::rules::Rules;
use pumice_server::settings::{Given, Layers, Settings};

fn environment(variables: &[(&str, &str)]) -> anyhow::Result<Layers> {
    Layers::of(Settings::default(), owned(variables), "", String::new())
}

fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    variables.iter().map(owned).collect()
}

#[test]
fn an_unknown_variable_is_an_error_that_names_it() {
    let read = |name: &str| environment(&[("HOME", "/"), (name, "1")]);
    for name in ["PUMICE_FLUSH_SIZE", "PUMICE_", "PUMICE_Dram"] {
        let error = read(name).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    for name in [
        "PUMICE_CONFIG",
        "PUMICE_LOG",
        "PUMICE_PORT_11211_TCP",
        "PUMICE_SERVICE_HOST",
        "PATH",
    ] {
        assert!(read(name).unwrap().given().is_empty(), "{name}");
    }
}

fn layers(flags: &[(&str, &str)], environment: &[(&str, &str)], file: &str) -> Layers {
    // The flags are read as a file here: names and texts are the same.
    let flags: String = flags
        .iter()
        .map(|(name, text)| format!("{name} = \"{text}\"\n"))
        .collect();
    let flags = toml::from_str(&flags).unwrap();
    Layers::of(flags, owned(environment), file, "a.toml".to_owned()).unwrap()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = "dram = \"1MiB\"\nthreads = 3\nadmin = \"a\"\n";
    let environment = [("PUMICE_DRAM", "2MiB"), ("PUMICE_THREADS", "4")];
    let layers = layers(&[("dram", "3MiB")], &environment, file);
    assert_eq!(layers.dram().text().unwrap(), Some("3MiB"));
    assert_eq!(layers.threads().text().unwrap(), Some("4"));
    assert_eq!(layers.admin().text().unwrap(), Some("a"));
    assert_eq!(layers.flash().text().unwrap(), None);
}

#[test]
fn an_error_names_the_place() {
    let file = "alpha = \"x\"\n";
    let layers = layers(&[("dram", "q")], &[("PUMICE_FLASH_SIZE", "w")], file);
    let message = |given: Given<'_>| given.parse::<u64>().unwrap_err().to_string();
    assert!(message(layers.dram()).starts_with("--dram `q`: "));
    assert!(message(layers.flash_size()).starts_with("PUMICE_FLASH_SIZE `w`: "));
    assert!(message(layers.alpha()).starts_with("key `alpha` of a.toml `x`: "));
}

#[test]
fn lists_and_numbers_are_texts() {
    let layers = layers(
        &[("admin", "a, b")],
        &[],
        "memcached = [\"127.0.0.1:1\", \"unix:/s\"]\nalpha = 0.5\n",
    );
    assert_eq!(layers.memcached().list(), Some(vec!["127.0.0.1:1", "unix:/s"]));
    assert_eq!(layers.admin().list(), Some(vec!["a", "b"]));
    assert_eq!(layers.alpha().text().unwrap(), Some("0.5"));
    assert!(layers.memcached().text().is_err());
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let error = toml::from_str::<Settings>("drum = \"1MiB\"")
        .unwrap_err()
        .to_string();
    assert!(error.contains("drum") && error.contains("dram"), "{error}");
}

#[test]
fn the_sample_file_shows_every_key_and_is_valid_when_uncommented() {
    let sample = include_str!("../../../../pumice.toml");
    let (settings, rule) = sample.split_once("#[[http-rule]]\n").unwrap();
    let keys = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
        lines.map(|(key, _)| key.to_owned()).collect()
    };
    assert_eq!(keys(settings), Settings::NAMES);
    let all = toml::Table::try_from(RuleTable {
        fresh: Some(0),
        stale_while_revalidate: Some(0),
        stale_if_error: Some(0),
        query_keep: Some(Vec::new()),
        ..RuleTable::default()
    });
    let mut named = keys(rule);
    named.sort();
    assert_eq!(named, all.unwrap().keys().cloned().collect::<Vec<_>>());
    assert_eq!(toml::from_str::<Settings>(sample).unwrap(), Settings::default());
    let uncommented: String = sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let all = toml::from_str::<Settings>(&uncommented).unwrap();
    Rules::of_tables(&all.http_rules).unwrap();
}
