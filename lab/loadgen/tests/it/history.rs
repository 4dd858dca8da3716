//! A history check of a server that is right explains everything, through restarts, too; of one that breaks a rule it does not.

use crate::forgetful::{Rule, start};
use pumice_loadgen::{HistoryOptions, HistoryReport, Target, history};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// A check of a server that breaks a rule; few keys, so that clients meet.
fn check(broken: Rule, seconds: u64) -> HistoryReport {
    let (server, address) = start(broken);
    let mut options = HistoryOptions::new(Target::Tcp(address.to_string()));
    options.connections = 6;
    // Few, so that clients meet; of what is to expire so many that most are left alone until then.
    let expires = broken == Rule::Expired;
    options.keys = if expires { 60_000 } else { 600 };
    options.value_size_max = 300;
    options.seconds = Duration::from_secs(seconds);
    options.seed = Some(1);
    options.flush_every = Duration::from_millis(if expires { 0 } else { 400 });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                thread::sleep(Duration::from_millis(150));
                server.restart();
            }
        });
        let report = history(&options).unwrap();
        is_over.store(true, Relaxed);
        report
    })
}

#[test]
fn a_server_that_is_right_is_explained_through_restarts() {
    let report = check(Rule::None, 3);
    assert_eq!(report.examples, Vec::<String>::new());
    assert!(report.is_good(), "{report:?}");
    assert!(report.servers > 5 && report.connections_lost > 20, "{report:?}");
    assert!(report.hits > 1_000 && report.unanswered > 0, "{report:?}");
    let commands = [
        "get",
        "gets",
        "gat",
        "mg",
        "set",
        "add",
        "replace",
        "ms",
        "cas",
        "append/prepend",
        "incr",
        "touch",
        "touch -1",
        "delete",
        "md",
        "md I",
        "flush_all",
    ];
    for name in commands {
        assert!(
            report.commands.get(name).is_some_and(|count| *count > 0),
            "{name}: {report:?}"
        );
    }
}

#[test]
fn a_server_that_breaks_a_rule_is_found_out() {
    let rules = [
        (Rule::Newest, "cannot be right"),
        (Rule::Deleted, "cannot be right"),
        (Rule::Expired, "until"),
        (Rule::Unique, ""),
        (Rule::Once, "cannot be right"),
        (Rule::Counted, "cannot be right"),
        (Rule::OneWinner, ""),
        (Rule::Flags, "flags"),
        (Rule::Own, "FOREIGN"),
        (Rule::Restart, "cannot be right"),
        (Rule::Flush, "cannot be right"),
    ];
    for (rule, named) in rules {
        let report = check(rule, 12);
        assert!(!report.is_good(), "{rule:?}: {report:?}");
        // Another key's value that something was appended to is told as damage; another counter's number has no owner.
        let is_named = report.examples.iter().any(|example| {
            example.contains(named)
                || (rule == Rule::Own
                    && ["DAMAGED", "cannot be right"]
                        .iter()
                        .any(|other| example.contains(other)))
        });
        assert!(is_named, "{rule:?}: {:?}", report.examples);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut options = HistoryOptions::new(Target::Tcp("127.0.0.1:1".into()));
    options.keys = 0;
    assert!(
        history(&options)
            .unwrap_err()
            .to_string()
            .contains("--keys 0: expected 1 to")
    );
    options.keys = 10;
    options.seconds = Duration::from_millis(20);
    assert!(!history(&options).unwrap().is_good(), "nobody is there");
}
