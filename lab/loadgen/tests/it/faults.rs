//! Against a server that is right there are no errors; what a server does wrong is found and named.

use crate::fake::{Wrong, start};
use pumice_loadgen::{Options, Report, Target, run};
use std::time::Duration;

fn options(wrong: Wrong, mix: &str) -> Options {
    let mut options = Options::new(Target::Tcp(start(wrong).to_string()));
    options.connections = 6;
    options.pipeline = 3;
    options.warm_up = Duration::ZERO;
    options.requests = Some(4000);
    options.keys = "zipf:keys=40,theta=0.5".into();
    options.mix = mix.parse().unwrap();
    options.value_size = "24-6000".into();
    options
}

/// Runs a mix and checks the report.
fn checked(wrong: Wrong, mix: &str, check: impl Fn(&Report)) {
    let mut options = options(wrong, mix);
    // So that scans, which set nothing, find something.
    options.preload = mix == "ycsb-e";
    check(&run(&options, &mut |_| {}).unwrap());
}

#[track_caller]
fn assert_clean(report: &Report) {
    assert!(
        report.errors.is_empty() && report.unanswered == 0,
        "{:?} {:?}",
        report.errors,
        report.examples
    );
    assert!(report.is_good());
}

#[test]
fn a_server_that_is_right_has_no_errors_in_any_mix() {
    for mix in [
        "look-aside",
        "get",
        "set",
        "ycsb-a",
        "ycsb-b",
        "ycsb-d",
        "ycsb-e",
        "ycsb-f",
        "trace",
        "get:50,set:30,delete:20",
        "look-aside:50,rmw:20,scan:10,delete:10,set:10",
    ] {
        checked(Wrong::Nothing, mix, |report| {
            assert_clean(report);
            assert!(report.requests >= 4000, "{mix}: {}", report.requests);
        });
    }
}

#[test]
fn threads_share_keys_without_false_alarms() {
    let mut options = options(Wrong::Nothing, "get:50,set:40,delete:10");
    (options.threads, options.keys, options.requests) = (3, "uniform:keys=5".into(), Some(20_000));
    assert_clean(&run(&options, &mut |_| {}).unwrap());
}

#[test]
fn replies_in_pieces_are_put_together() {
    for bytes in [1, 7, 1000] {
        checked(Wrong::Pieces(bytes), "ycsb-f", |report| assert_clean(report));
    }
}

#[test]
fn after_a_preload_every_get_hits_and_a_later_run_believes_its_values() {
    let mut options = options(Wrong::Nothing, "get");
    options.preload = true;
    let report = run(&options, &mut |_| {}).unwrap();
    assert_clean(&report);
    assert_eq!((report.hit_ratio, report.preload.unwrap().keys), (Some(1.0), 40));
    options.preload = false;
    let report = run(&options, &mut |_| {}).unwrap();
    assert_clean(&report);
    assert_eq!(
        report.hit_ratio,
        Some(1.0),
        "the values of the first run are there"
    );
    options.preload_only = true;
    let report = run(&options, &mut |_| {}).unwrap();
    assert_clean(&report);
    assert_eq!((report.requests, report.seconds), (0, 0.0));
}

#[test]
fn wrong_values_are_found_and_named() {
    for (wrong, mix, kind) in [
        (Wrong::Foreign(50), "ycsb-a", "foreign_value"),
        (Wrong::Foreign(50), "ycsb-e", "foreign_value"),
        (Wrong::Old(20), "ycsb-a", "stale_value"),
        (Wrong::Old(20), "rmw:50,look-aside:50,delete:1", "stale_value"),
        (Wrong::Corrupt(50), "ycsb-a", "corrupt_value"),
        (Wrong::Short(50), "ycsb-a", "corrupt_value"),
        (Wrong::NoDelete(5), "get:60,set:20,delete:20", "hit_after_delete"),
    ] {
        checked(wrong, mix, |report| {
            let found = report.errors.get(kind).copied().unwrap_or(0);
            assert!(found > 0, "{wrong:?}: {:?}", report.errors);
            assert!(!report.is_good() && report.examples.iter().any(|example| example.kind == kind));
            if !matches!(wrong, Wrong::Old(_) | Wrong::NoDelete(_)) {
                assert_eq!(
                    report.errors.len(),
                    1,
                    "{wrong:?}: {:?} {:?}",
                    report.errors,
                    report.examples
                );
            }
        });
    }
}

#[test]
fn errors_that_the_server_admits_are_counted_and_are_no_wrong_answers() {
    checked(Wrong::ServerError(10), "ycsb-a", |report| {
        assert!(
            report.errors["server_error"] > 100 && report.errors.len() == 1,
            "{:?}",
            report.errors
        );
        assert!(report.is_good());
    });
}

#[test]
fn lost_connections_are_made_again() {
    checked(Wrong::Drop(500), "ycsb-a", |report| {
        assert!(report.errors["closed"] >= 5, "{:?}", report.errors);
        assert!(
            report.is_good() && report.unanswered > 0 && report.errors.len() == 1,
            "{:?}",
            report.errors
        );
        assert!(report.requests > 3000);
    });
}

#[test]
fn nonsense_ends_its_connection_and_is_a_wrong_answer() {
    checked(Wrong::Nonsense(500), "ycsb-b", |report| {
        assert!(
            report.errors["protocol"] > 0 && report.errors.len() == 1,
            "{:?}",
            report.errors
        );
        assert!(!report.is_good());
    });
}

#[test]
fn a_reply_that_does_not_come_is_a_time_out() {
    let mut options = options(Wrong::Silent(700), "ycsb-a");
    options.timeout = Duration::from_millis(300);
    let report = run(&options, &mut |_| {}).unwrap();
    assert_eq!(report.errors.get("timed_out"), Some(&1), "{:?}", report.errors);
    assert!(report.is_good() && report.unanswered > 0);
}

#[test]
fn a_stall_shows_in_open_loop_latencies_and_in_the_closed_loop_hides() {
    const STALL: Duration = Duration::from_millis(300);
    let mut options = options(Wrong::Stall(1000, STALL), "get");
    (options.connections, options.pipeline) = (1, 4);
    (options.requests, options.seconds) = (None, Some(Duration::from_secs(1)));
    options.rate = Some(2000.0);
    let report = run(&options, &mut |_| {}).unwrap();
    assert_clean(&report);
    let latency = report.latency.unwrap();
    // All that arrived in the stall waited for its end, 600 of 2000: evenly from the whole stall to nothing.
    assert!((1990..=2001).contains(&latency.count), "{}", latency.count);
    assert!(
        latency.p90_us > 150_000.0 && latency.p99_us > 250_000.0,
        "{latency:?}"
    );

    options.target = Target::Tcp(start(Wrong::Stall(1000, STALL)).to_string());
    (options.rate, options.seconds, options.requests) = (None, None, Some(4000));
    let latency = run(&options, &mut |_| {}).unwrap().latency.unwrap();
    assert!(
        latency.p99_us < 250_000.0 && latency.max_us > 250_000.0,
        "{latency:?}"
    );
}

/// A server that does 1,000 requests a second at most, asked for 5,000, also in a warm-up that leaves a backlog.
#[test]
fn a_rate_above_the_servers_is_said_and_every_arrival_counts_once() {
    for (mix, kinds) in [("get", 1), ("get:50,set:50", 2)] {
        let mut options = options(Wrong::Slow(Duration::from_millis(1)), mix);
        (options.connections, options.pipeline) = (1, 1);
        (options.warm_up, options.rate) = (Duration::from_millis(300), Some(5000.0));
        (options.requests, options.seconds) = (None, Some(Duration::from_millis(500)));
        let report = run(&options, &mut |_| {}).unwrap();
        assert_clean(&report);
        let arrivals = report.arrivals.as_ref().unwrap();
        assert!((2499..=2501).contains(&arrivals.due), "{arrivals:?}");
        assert_eq!(arrivals.due, arrivals.sent + arrivals.not_sent);
        assert!(
            arrivals.fell_behind && arrivals.behind_seconds > 0.1,
            "{arrivals:?}"
        );
        assert!(
            (50.0..=1100.0).contains(&arrivals.sent_per_second),
            "{arrivals:?}"
        );
        // Each kind has its row, and the rows add up to the total.
        let of_kind: Vec<u64> = (report.kinds.values())
            .map(|kind| kind.latency.as_ref().unwrap().count)
            .collect();
        assert_eq!(of_kind.len(), kinds, "{:?}", report.kinds);
        assert_eq!(of_kind.iter().sum::<u64>(), arrivals.sent);
        assert_eq!(
            (report.requests, report.series.iter().sum()),
            (arrivals.sent, arrivals.sent)
        );
        assert_eq!(report.latency.as_ref().unwrap().count, arrivals.due);
        let text = pumice_loadgen::text(&report);
        let counts: Vec<u64> = (text.lines())
            .skip_while(|line| !line.starts_with("latency"))
            .skip(1)
            .take_while(|line| !line.is_empty())
            .map(|line| line[11..].split_whitespace().next().unwrap().parse().unwrap())
            .collect();
        let (all, rows) = counts.split_last().unwrap();
        assert_eq!((rows.len(), *all), (kinds + 1, rows.iter().sum()), "{text}");
        let said = format!("{} of {} arrivals were not sent", arrivals.not_sent, arrivals.due);
        assert!(text.contains("FELL BEHIND") && text.contains(&said), "{text}");
    }
    // One that keeps up is not blamed.
    let mut options = options(Wrong::Nothing, "get");
    (options.rate, options.requests) = (Some(500.0), None);
    options.seconds = Some(Duration::from_millis(500));
    let report = run(&options, &mut |_| {}).unwrap();
    assert_eq!(report.arrivals.as_ref().unwrap().due, 250);
    assert_eq!(report.latency.unwrap().count, 250);
}

#[test]
fn what_the_warm_up_left_under_way_is_in_no_row_and_no_total() {
    let mut options = options(
        Wrong::Slow(Duration::from_millis(1)),
        "look-aside:50,scan:20,delete:30",
    );
    (options.connections, options.pipeline) = (8, 4);
    (options.warm_up, options.rate) = (Duration::from_millis(200), Some(50_000.0));
    (options.requests, options.poisson) = (Some(500), true);
    let report = run(&options, &mut |_| {}).unwrap();
    assert_clean(&report);
    let of_kind = |name: &str| report.kinds[name].requests;
    assert_eq!(report.arrivals.as_ref().unwrap().sent, 500);
    assert_eq!(of_kind("get") + of_kind("scan") + of_kind("delete"), 500);
    assert_eq!(report.requests, report.latency.as_ref().unwrap().count);
    assert_eq!(report.requests, report.series.iter().sum::<u64>());
    for kind in report.kinds.values() {
        assert_eq!(kind.requests, kind.latency.as_ref().unwrap().count);
    }
    options.mix = "get".parse().unwrap();
    let report = run(&options, &mut |_| {}).unwrap();
    assert_eq!((report.requests, report.lookups), (500, 500));
}

#[test]
fn a_number_of_requests_is_kept_over_threads() {
    let mut options = options(Wrong::Nothing, "get");
    (options.threads, options.requests) = (2, Some(1001));
    let report = run(&options, &mut |_| {}).unwrap();
    assert_eq!(report.requests, 1001);
    assert!(pumice_loadgen::text(&report).contains("1001 in"));
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = run(&Options::new(Target::Tcp(address.to_string())), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let change: [fn(&mut Options); 9] = [
        |options| options.threads = 0,
        |options| options.connections = 0,
        |options| options.pipeline = 0,
        |options| options.rate = Some(0.0),
        |options| options.poisson = true,
        |options| options.requests = Some(0),
        |options| options.key_size = Some(3),
        |options| options.keys = "zipf:keys=0,theta=1".into(),
        |options| options.mix = "insert".parse().unwrap(),
    ];
    for (at, change) in change.iter().enumerate() {
        let mut options = options(Wrong::Nothing, "get");
        options.keys = "uniform:keys=9,sizes=nowhere".into();
        if at < 8 {
            options.keys = "zipf:keys=10,theta=1".into();
        }
        change(&mut options);
        assert!(run(&options, &mut |_| {}).is_err(), "change {at}");
    }
}
