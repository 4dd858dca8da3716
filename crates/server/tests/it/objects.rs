//! Settings of a server of objects.

use pumice::Rule;
use pumice::{AdmissionOptions, Durability, FlashWrite};
use pumice_flash::LayoutName;
use pumice_server::Flags;
use pumice_server::objects::{ServeConfig, options_of_empty};
use pumice_server::settings::{Layers, Settings};
use std::net::SocketAddr;
use std::path::PathBuf;

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = ServeConfig::resolve(&Layers::default(), &Flags::default()).unwrap();
    assert_eq!(config.host.dram, 256 << 20);
    assert_eq!(config.flash, PathBuf::from("pumice.flash"));
    assert_eq!(config.flash_size, None);
    assert_eq!(config.door.memcached().unwrap().max_item_size, 1 << 20);
    assert_eq!(config.host.admin, Some(SocketAddr::from(([127, 0, 0, 1], 11250))));
    assert_eq!(
        (config.flash_write, config.durability),
        (FlashWrite::Insertion, Durability::Process)
    );
    assert!(config.host.threads >= 1);
    assert_eq!(
        (config.host.flash_timeout_secs, config.flush_interval_secs),
        (30, 5)
    );
    let layout = &config.layout;
    assert_eq!(
        (layout.layout, layout.policy.name().as_str()),
        (LayoutName::Ripq, "slru-3")
    );
    assert_eq!((layout.alpha, layout.theta), (1.0 / 8.0, 1.0));
}

#[test]
fn what_is_let_onto_flash_arrives_and_what_makes_no_sense_is_refused_by_name() {
    let resolved = |file: &str| {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), file).unwrap();
        let layers = Layers::collect(Settings::default(), Some(path.path())).unwrap();
        ServeConfig::resolve(&layers, &Flags::default()).map(|config| config.admission)
    };
    assert_eq!(resolved("").unwrap(), AdmissionOptions::default());
    let all = resolved("flash-admit = \"random:0.25\"\nflash-write-budget = \"2TB/day\"\n").unwrap();
    let budget = all.budget.map(|budget| (budget.bytes, budget.period_secs));
    assert_eq!(
        (all.rule, budget),
        (Rule::Random(0.25), Some((2_000_000_000_000, 86_400)))
    );
    let limits = resolved(
        "flash-admit = \"second-hit\"\nflash-admit-size-max = \"64KiB\"\nflash-admit-ttl-min = 60\n",
    )
    .unwrap();
    let found = (limits.rule, limits.object_bytes_max, limits.ttl_secs_min);
    assert_eq!(found, (Rule::SecondHit, 64 << 10, 60));
    for (name, text) in [
        ("flash-admit", "some"),
        ("flash-write-budget", "2TB"),
        ("flash-admit-size-max", "0"),
        ("flash-admit-size-max", "10%"),
        ("flash-admit-ttl-min", "soon"),
        ("flash-admit-ttl-min", "31536001"),
    ] {
        let error = resolved(&format!("{name} = \"{text}\"")).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(text), "{error}");
    }
}

#[test]
fn what_steers_the_layout_arrives() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "policy = \"lru\"\nalpha = 0.25\n").unwrap();
    let resolved = |flags| {
        let layers = Layers::collect(flags, Some(file.path())).unwrap();
        let layout = ServeConfig::resolve(&layers, &Flags::default()).unwrap().layout;
        (layout.alpha, layout.theta)
    };
    assert_eq!(resolved(Settings::default()), (0.25, 0.75));
    let flags = Settings {
        theta: Some(vec!["0.9".into()]),
        ..Default::default()
    };
    assert_eq!(resolved(flags), (0.25, 0.9));
}

#[test]
fn http_has_a_policy_of_its_own_for_a_layout_that_has_queues() {
    let resolved = |file: &str| {
        let file = format!("http = \"127.0.0.1:0\"\norigin = \"http://o\"\n{file}");
        let layers = Layers::of(Settings::default(), [], &file, "a.toml".to_owned()).unwrap();
        ServeConfig::resolve(&layers, &Flags::default()).unwrap()
    };
    let policy = |file: &str| resolved(file).layout.policy.name();
    assert_eq!(policy(""), "gdsf-3");
    assert_eq!(policy("policy = \"lru\""), "lru");
    assert_eq!(policy("layout = \"sipq\""), "slru-3");
    assert_eq!(policy("layout = \"fifo\""), "fifo");
    let door = |file: &str| resolved(file).door;
    assert_eq!(door("").object_bytes_max(4 << 30), 1 << 30);
    let large = options_of_empty(&resolved(""), 4 << 30).unwrap();
    assert_eq!(
        (large.item_bytes_max, large.layout.policy.name().as_str()),
        (1 << 30, "gdsf-3")
    );
    let most = door("http-object-max = \"5MiB\"").object_bytes_max(4 << 30);
    assert_eq!(most, 5 << 20);
    // Each connection has its place in the budget, and so has each transfer.
    let few = door("max-connections = 1\nthreads = 1").bytes(256 << 20, 1);
    let many = door("max-connections = 1001\nthreads = 1").bytes(256 << 20, 1);
    assert_eq!(many - few, 1000 * pumice_door_http::CONNECTION_BYTES as u64);
    assert!((32 << 20..64 << 20).contains(&few), "{few}");
}

#[test]
fn a_rule_that_is_none_is_refused_with_its_place() {
    let refused = |file: &str| {
        let file = format!("http = \"127.0.0.1:0\"\norigin = \"http://o\"\n{file}");
        let layers = Layers::of(Settings::default(), [], &file, "a.toml".to_owned());
        let config = layers.and_then(|layers| ServeConfig::resolve(&layers, &Flags::default()));
        config.unwrap_err().to_string()
    };
    let error = refused("[[http-rule]]\npath = \"/a\"\n[[http-rule]]\npath = \"a\"\n");
    assert!(
        error.contains("a.toml") && error.contains("http-rule 2: path"),
        "{error}"
    );
    let error = refused("[[http-rule]]\npath = \"/a\"\nfrehs = 1\n");
    assert!(error.contains("a.toml") && error.contains("frehs"), "{error}");
}
