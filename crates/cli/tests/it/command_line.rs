//! The program's command line: exit status, and errors that say what was wrong, where, and what to do.

use crate::common::{self, Server, pumice, said, text};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs the program in an empty directory, which must stay empty, and returns its status and what it said on stderr.
fn refused(line: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let output = pumice(directory.path(), line);
    assert!(
        output.stdout.is_empty(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "{line} left something behind");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(not(feature = "throttle"))]
#[test]
fn a_program_without_throttle_says_how_to_get_one() {
    let (status, said) = refused("serve --throttle flash=nvme");
    assert_eq!(status, Some(2));
    assert!(
        said.contains("--throttle") && said.contains("cargo build --release --features throttle"),
        "{said}"
    );
}

#[test]
fn the_version_has_the_commit() {
    let directory = tempfile::tempdir().unwrap();
    // Of a checkout; an archive has none.
    let commit = pumice_console::COMMIT.map_or_else(String::new, |commit| format!(" ({commit})"));
    let version = format!("{}{commit}\n", env!("CARGO_PKG_VERSION"));
    for line in ["--version", "serve -V"] {
        let output = pumice(directory.path(), line);
        assert!(
            String::from_utf8(output.stdout).unwrap().ends_with(&version),
            "{line:?}"
        );
    }
}

#[test]
fn bad_usage_ends_with_2_and_says_what_is_wrong() {
    for (line, parts) in [
        (
            "serve --layout arc",
            &["--layout `arc`", "no such layout", "sipq"][..],
        ),
        ("serve --flash a,b", &["--flash `a,b`", "one such device"]),
        (
            "serve --performance-tier a,b --performance-size 1GiB",
            &["--performance-tier `a,b`", "one such device"],
        ),
        ("serve --layout rpiq", &["--layout `rpiq`", "no such layout"]),
        (
            "serve --policy slru-9",
            &["--policy `slru-9`", "no policy", "slru-8"],
        ),
        (
            "serve --layout fifo --policy slru-3",
            &["--policy `slru-3`", "layout fifo"],
        ),
        ("serve --theta 1.5", &["--theta `1.5`", "0 to 1"]),
        (
            "serve --flash-admit some",
            &["--flash-admit `some`", "second-hit"],
        ),
        (
            "serve --flash-admit random:2",
            &["--flash-admit `random:2`", "at most 1"],
        ),
        ("serve --flash-admit-size-max 0", &["--flash-admit-size-max `0`"]),
        ("serve --flash-admit-ttl-min x", &["--flash-admit-ttl-min `x`"]),
        (
            "serve --flash-write-budget 2TB",
            &["--flash-write-budget `2TB`", "2TB/day"],
        ),
        (
            "serve --nbd unix:s --backing b --cache c --flash-admit-ttl-min 60",
            &["--flash-admit-ttl-min `60`", "cache of objects"],
        ),
        (
            "serve --nbd unix:s --backing b --cache c --flash-write-budget 2TB/day,1TB/day",
            &["--flash-write-budget `2TB/day,1TB/day`", "one for each"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --flash-write-budget 1GB/1s",
            &["--flash-write-budget `1GB/1s`"],
        ),
        (
            "serve --flash f --flash-size 64MiB --block-size 1MiB --flash-write-budget 1B/day --memcached unix:m --admin off",
            &[
                "--flash-write-budget",
                "1B/day",
                "1048576 bytes",
                "50331648B/day\n",
            ],
        ),
        (
            "replay zipf:keys=10000,requests=10,theta=1 --flash-size 8MiB --block-size 64KiB --flash-write-budget 3MB/hour",
            &["--flash-write-budget", "3145728B/hour\n"],
        ),
        (
            "replay zipf:keys=10000,requests=10,theta=1 --dram 128MiB --flash-size 64MiB --flash-write-budget 1B/hour",
            &["--flash-write-budget", "50331648B/hour\n"],
        ),
        (
            "replay zipf:keys=10000,requests=10,theta=1 --flash-size 8MiB --flash-write-budget 1GB/hour",
            &["--flash-write-budget", "zipf:", "no times"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --flash-admit half",
            &["--flash-admit `half`"],
        ),
        (
            "serve --max-item-size 2048x",
            &["--max-item-size `2048x`", "powers of two)\n"],
        ),
        (
            "serve --http 127.0.0.1:0",
            &["--http `127.0.0.1:0`", "--origin URL"],
        ),
        (
            "serve --origin http://example.org",
            &["--origin `http://example.org`", "--http ADDR"],
        ),
        (
            "serve --http off --origin http://example.org",
            &["--http `off`", "--http-tls is not given"],
        ),
        (
            "serve --http unix:h --origin ftp://example.org",
            &["--origin `ftp://example.org`", "http"],
        ),
        (
            "serve --http unix:h --origin http://o --memcached off",
            &["--memcached `off`", "HTTP alone"],
        ),
        (
            "serve --http unix:h --origin http://o -p 11211",
            &["--memcached `127.0.0.1:11211`", "HTTP alone"],
        ),
        (
            "serve --http unix:h --origin http://o --max-item-size 2m",
            &["--max-item-size `2m`", "HTTP alone"],
        ),
        (
            "serve --http unix:h --origin http://o --auth-file users",
            &["--auth-file `users`", "HTTP alone"],
        ),
        (
            "serve --http unix:h --origin http://o --idle-timeout 5",
            &["--idle-timeout `5`", "HTTP alone"],
        ),
        (
            "serve --http unix:h --origin http://o --nbd unix:n --backing b --cache c",
            &["--http `unix:h`", "--nbd"],
        ),
        (
            "serve --http unix:h --http-tls 127.0.0.1:0 --origin http://o",
            &["--tls-certificate"],
        ),
        (
            "serve --http unix:h --origin http://o --tls-certificate c",
            &["nothing listens with TLS", "--http-tls"],
        ),
        (
            "serve --http unix:h --origin http://o --access-log-format json",
            &["--access-log-format `json`", "--access-log is not given"],
        ),
        (
            "serve --http unix:h --origin http://o --access-log a --access-log-format clf",
            &["--access-log-format `clf`", "combined or json"],
        ),
        ("serve --flash-size 2048x", &["--flash-size `2048x`", "or 10%"]),
        (
            "replay zipf:keys=10,requests=10,theta=1 --theta NaN",
            &["theta NaN", "0 to 1"],
        ),
        // Also where they would change nothing.
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout exact --theta 5",
            &["theta 5", "0 to 1"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout fifo --alpha 9",
            &["alpha 9"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout clock --policy lru",
            &["no policy `lru` for layout clock"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --tier1 2",
            &["--tier1 2", "above 0"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --flash-size 1MiB --superblock 4000000000",
            &["--superblock", "pages of flash", "0 is no drive"],
        ),
        ("serve --index half", &["--index `half`", "auto, full, cascade"]),
        (
            "serve --layout clock --policy lru",
            &["no policy `lru` for layout clock"],
        ),
        ("serve --http 127.0.0.1:0", &["--http"]),
        ("serve --nbd 127.0.0.1:0", &["--nbd"]),
        ("serve --dram 64MiBit", &["--dram `64MiBit`", "64MiB"]),
        (
            "serve --dram 1000T",
            &["--dram `1000T`", "1000 TiB is more than", "has, "],
        ),
        ("serve -m 1000T", &["-m", "1000 TiB is more than"]),
        ("serve --dram 100.1%", &["--dram `100.1%`", "at most 100%"]),
        (
            "serve --flash-size 101%",
            &["--flash-size `101%`", "at most 100%"],
        ),
        (
            "serve -Z -o ssl_chain_cert=/c,ssl_verify_mode=2",
            &["-o ssl_verify_mode=2", "not verified"],
        ),
        ("serve -X", &["-X", "metadump"]),
        ("serve --dram 1MiB --dram 2MiB", &["--dram", "once"]),
        ("serve --dram 1GiB -m 64", &["--dram `1GiB`", "-m"]),
        (
            "serve --block-size 3MiB",
            &["--block-size `3MiB`", "power of two"],
        ),
        (
            "serve --durability none",
            &["--durability `none`", "process or power or off"],
        ),
        ("serve --alpha 0", &["--alpha `0`"]),
        ("serve --threads 0", &["--threads `0`"]),
        (
            "serve --memcached 127.0.0.1",
            &["--memcached `127.0.0.1`", "port"],
        ),
        ("serve --memcached unix:", &["--memcached `unix:`", "path"]),
        ("serve --config nowhere.toml", &["nowhere.toml"]),
        ("serve --flash-size 4MiB", &["--flash-size 4 MiB", "at least 8"]),
        ("serve -p 0", &["-p 0"]),
        ("serve -p x", &["-p", "'x'", "port"]),
        ("serve -B udp", &["--protocol", "binary"]),
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout arc",
            &["--layout `arc`", "no such layout"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout fifo --policy lru",
            &["no policy `lru`", "layout fifo"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --flash-size 64KiB",
            &["65536", "at least 548864"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --layout exact --flash-size 1%",
            &["the smallest is 1"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --warmup 1",
            &["warm-up `1`"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --miss-latency 1ms",
            &["--throttle"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --throttle nvme --miss-latency 1",
            &["--miss-latency", "86us"],
        ),
        (
            "replay zipf:keys=10,requests=10,theta=1 --throttle nvme --miss-latency 1ms --device d",
            &["--miss-latency", "--device sim"],
        ),
        ("replay zipf:keys=ten", &["keys=ten"]),
        ("replay x --format nonsense", &["nonsense", "oracle-general"]),
        ("advise x", &["advise"]),
    ] {
        let (status, said) = refused(line);
        assert_eq!(status, Some(2), "{line}: {said}");
        for part in parts {
            assert!(said.contains(part), "{line}: {part:?} is not in {said:?}");
        }
    }
}

#[test]
fn what_fails_ends_with_1_and_names_the_file() {
    for (line, part) in [
        ("replay no/such/trace", "no/such/trace"),
        (
            "serve --flash no/such/directory/f --memcached 127.0.0.1:0 --admin off",
            "no/such/directory/f",
        ),
        (
            "serve --flash /dev/null --memcached 127.0.0.1:0 --admin off",
            "/dev/null",
        ),
    ] {
        let (status, said) = refused(line);
        assert_eq!(status, Some(1), "{line}: {said}");
        assert!(said.contains(part), "{line}: {said}");
    }
}

#[test]
fn a_file_that_is_not_ours_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for content in [b"short".to_vec(), vec![7; 100_000]] {
        let path = directory.path().join("theirs");
        std::fs::write(&path, &content).unwrap();
        let output = pumice(
            directory.path(),
            "serve --flash theirs --memcached 127.0.0.1:0 --admin off",
        );
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("theirs") && said.contains("--reformat"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_budget_that_cannot_work_names_one_that_can() {
    let directory = tempfile::tempdir().unwrap();
    let serve = |flags: &str| {
        let rest = "--flash-size 64MiB --memcached 127.0.0.1:0 --admin off";
        let output = pumice(directory.path(), &format!("serve {flags} {rest}"));
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let said = serve("--dram 1MiB");
    let smallest: u64 = said
        .split("the smallest that works is ")
        .nth(1)
        .and_then(|rest| rest.trim().strip_suffix(" MiB"))
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    // One less is refused as well.
    serve(&format!("--dram {}MiB", smallest - 1));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    // Threads take memory, too.
    let said = serve("--dram 96MiB --threads 200");
    assert!(said.contains("200 threads"), "{said}");
}

/// What a server says on a new flash file until it is ready. It is stopped then.
fn start_lines(flags: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_pumice"))
        .args("serve --memcached 127.0.0.1:0 --admin off --threads 1".split_whitespace())
        .args(flags.split_whitespace())
        .current_dir(directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built with this test");
    let mut said = BufReader::new(server.stderr.take().expect("it is piped")).lines();
    let lines = (said.by_ref().map_while(Result::ok))
        .map(|line| common::message(&line).to_owned())
        .take_while(|line| !line.starts_with("ready: "))
        .collect();
    let pid = rustix::process::Pid::from_child(&server);
    let signalled = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let status = server.wait().unwrap();
    assert!(
        signalled.is_ok() && status.success(),
        "{flags}: {status}, {lines:?}"
    );
    lines
}

/// The number behind these words.
fn number_after(line: &str, words: &str) -> f64 {
    line.split_once(words)
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| panic!("no number behind {words:?} in {line:?}"))
}

#[test]
fn a_server_that_chooses_its_index_says_which_and_why() {
    // Settings with small fixed costs: a cascade index has more of them, and must be possible where a full one does not fit.
    let small = "--dram 64MiB --layout fifo --block-size 256KiB --max-item-size 64KiB --max-connections 16";
    for (flash_mib, index, fits) in [
        (512, "full", "which fit in the "),
        (1536, "cascade", "which do not fit in the "),
    ] {
        let lines = start_lines(&format!("{small} --flash-size {flash_mib}MiB"));
        let line = |start: &str| -> &str {
            let mut found = lines.iter().filter(|line| line.starts_with(start));
            match (found.next(), found.next()) {
                (Some(line), None) => line,
                _ => panic!("{flash_mib} MiB: not one line with {start:?} in {lines:#?}"),
            }
        };
        assert!(
            line("flash: ").contains(&format!(", index {index},")),
            "{lines:#?}"
        );
        let choice = line(&format!("index: {index} by choice: "));
        // With key and header an object of 300 bytes takes 350.
        let millions = f64::from(flash_mib << 20) / 350.0 / 1e6;
        assert!(
            (number_after(choice, "by choice: ") - millions).abs() < 0.06,
            "{choice}"
        );
        let (full, pool) = (number_after(choice, "takes "), number_after(choice, fits));
        let entry_bytes = full * f64::from(1 << 20) / (millions * 1e6);
        assert!((6.0..14.0).contains(&entry_bytes), "{choice}");
        assert_eq!(full <= pool, index == "full", "{choice}");
        let divided = number_after(line("dram: "), " = ");
        if index == "full" {
            assert_eq!(divided, pool, "{lines:#?}");
        } else {
            // What a cascade index takes besides is not for items.
            assert!(divided < pool, "{lines:#?}");
            line("index: cascade keeps ");
        }
    }
}

#[test]
fn an_index_that_was_asked_for_is_no_choice() {
    let lines = start_lines("--dram 64MiB --flash-size 64MiB --index full");
    assert!(
        lines.iter().any(|line| line.contains(", index full,")),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| !line.contains("by choice")), "{lines:#?}");
}

#[test]
fn an_unknown_key_names_itself_and_its_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("own.toml"),
        "dram = \"64MiB\"\nflush-size = \"1GiB\"\n",
    )
    .unwrap();
    let output = pumice(directory.path(), "serve --config own.toml");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("own.toml") && said.contains("flush-size"), "{said}");
}

#[test]
fn replay_prints_the_same_counts_on_a_simulated_and_on_a_real_device() {
    let directory = tempfile::tempdir().unwrap();
    let report = |device: &str| -> serde_json::Value {
        let trace = "zipf:keys=3000,theta=0.8,requests=20000,seed=7";
        let flags = "--flash-size 4MiB --object-size 2KiB --json --device";
        let output = said(directory.path(), &format!("replay {trace} {flags} {device}"));
        let mut report: serde_json::Value = serde_json::from_str(&output).unwrap();
        // Only the simulated drive says what it writes itself.
        for field in [
            "device_write_amplification",
            "combined_write_amplification",
            "erases_min",
            "erases_mean",
            "erases_max",
        ] {
            let value = report.as_object_mut().unwrap().remove(field).unwrap();
            assert_eq!(value.is_null(), device != "sim", "{field}");
        }
        for time in ["elapsed_seconds", "requests_per_second"] {
            report.as_object_mut().unwrap().remove(time).unwrap();
        }
        // What a result can be made again with.
        let settings = report.as_object_mut().unwrap().remove("settings").unwrap();
        for (name, value) in [
            ("format", "zipf".into()),
            ("seed", 7.into()),
            ("ops", "lookup".into()),
            ("warmup", 0.0.into()),
            ("flash_size", "4MiB".into()),
            ("object_size", 2048.into()),
            ("object_size_is_assumed", false.into()),
            ("alpha", 0.125.into()),
            ("theta", 1.0.into()),
            ("block_bytes", 65536.into()),
            ("device", device.into()),
        ] {
            let value: serde_json::Value = value;
            assert_eq!(settings[name], value, "{name}: {settings}");
        }
        assert!(settings["blocks"].as_u64().unwrap() > 50, "{settings}");
        assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
        assert!(report["commit"].is_string() || report["commit"].is_null());
        let command = report.as_object_mut().unwrap().remove("command").unwrap();
        assert!(command.as_array().unwrap().contains(&trace.into()), "{command}");
        report
    };
    let sim = report("sim");
    assert_eq!(sim["requests"], 20_000);
    assert!(sim["object_hit_ratio"].as_f64().unwrap() > 0.5, "{sim}");
    assert_eq!(report("real.flash"), sim);
    // The file is a cache now, and can be used again.
    assert_eq!(report("real.flash"), sim);
}

#[test]
fn a_replay_names_the_size_that_it_assumed_and_counts_objects_in_no_field_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), "1\n2\n1\n3\n").unwrap();
    let run = |line: &str| said(directory.path(), line);
    let report = |line: &str| -> serde_json::Value { serde_json::from_str(&run(line)).unwrap() };
    const FLASH: &str = "replay keys.txt --format csv --columns id=1 --flash-size 1MiB";
    let assumed = report(&format!("{FLASH} --json"));
    assert_eq!(assumed["settings"]["object_size"], 4096);
    assert_eq!(assumed["settings"]["object_size_is_assumed"], true);
    assert_eq!(assumed["unit"], "bytes");
    assert!(run(FLASH).contains("4096 bytes each, assumed"));
    assert!(!run(&format!("{FLASH} --object-size 4096")).contains("assumed"));
    let exact = "replay keys.txt --format csv --columns id=1 --layout exact --flash-size 2";
    let counted = report(&format!("{exact} --json"));
    assert_eq!(counted["unit"], "objects");
    for (name, value) in counted.as_object().unwrap() {
        if name.contains("bytes") && name != "dram_bytes" {
            assert!(value.is_null(), "{name}: {value}");
        }
    }
    assert_eq!(
        (&counted["flash_objects"], &counted["objects_inserted"]),
        (&2.into(), &3.into())
    );
    assert!(run(exact).contains("objects are counted"));
}

#[test]
fn an_object_that_a_trace_says_is_longer_than_memory_is_refused_on_a_file_too() {
    let directory = tempfile::tempdir().unwrap();
    let trace = "1,1000\n2,10000000000000000000\n2,1000000000000000\n1,1000\n";
    std::fs::write(directory.path().join("t.csv"), trace).unwrap();
    for device in ["sim", "c.flash"] {
        let line = format!(
            "replay t.csv --format csv --columns id=1,size=2 --flash-size 1MiB --warmup 0 --json --device {device}"
        );
        let output = pumice(directory.path(), &line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["objects_rejected"], 2, "{report}");
        assert_eq!(report["object_hit_ratio"], 0.25, "{report}");
    }
}

#[test]
fn a_flag_that_changes_nothing_is_noted_and_the_smallest_flash_has_a_drive() {
    let directory = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let output = pumice(directory.path(), line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {said}");
        (said, String::from_utf8(output.stdout).unwrap())
    };
    const TRACE: &str = "replay zipf:keys=3000,requests=9000,theta=1,size=1000 --json";
    let (said, _) = run(&format!(
        "{TRACE} --layout exact --flash-size 10% --theta 0.5 --superblock 1 --block-size 1MiB"
    ));
    for flag in ["--theta", "--superblock", "--block-size"] {
        assert!(said.contains(&format!("{flag} has no effect")), "{said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
    let (said, _) = run(&format!("{TRACE} --flash-size 1MiB --flash-admit-ttl-min 60"));
    assert!(said.contains("--flash-admit-ttl-min has no effect"), "{said}");
    let (said, _) = run(&format!("{TRACE} --flash-size 1MiB --trim --superblock 0"));
    assert!(
        said.contains("--trim has no effect with --superblock 0"),
        "{said}"
    );
    let (said, _) = run(&format!(
        "{TRACE} --flash-size 1MiB --device c.flash --superblock 2"
    ));
    assert!(said.contains("--superblock has no effect"), "{said}");
    let line = format!("{TRACE} --flash-size 1MiB --block-size 3000");
    let output = pumice(directory.path(), &line);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--block-size: block size 3000 bytes"), "{said}");
    let (said, report) = run(&format!("{TRACE} --flash-size 536KiB --theta 0.5 --alpha 0.25"));
    assert_eq!(said, "");
    assert!(
        !report.contains(r#""device_write_amplification": null"#),
        "{report}"
    );
    let (said, _) = run(&format!(
        "{TRACE} --layout exact --flash-size 1MiB --max-object-size 500"
    ));
    assert_eq!(said, "");
}

#[test]
fn every_line_of_the_log_has_a_time_stamp_and_none_an_escape_code() {
    let directory = common::place();
    let server = Server::start_with(directory.path(), &[], "-o modern").unwrap();
    let log = directory.path().join("stderr");
    assert!(server.stop().success());
    let said = std::fs::read_to_string(&log).unwrap();
    for part in [
        " WARN ",
        " INFO ",
        "ready: ",
        "stopping",
        "stopped: cache closed in",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    for line in said.lines() {
        assert!(line.starts_with("20") && line[..28].ends_with("Z "), "{line}");
    }
    assert!(!said.contains('\u{1b}'), "{said:?}");

    let output = pumice(directory.path(), "serve --log-format json -o modern --dram 1MiB");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let said = String::from_utf8(output.stderr).unwrap();
    let levels: Vec<String> = said
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(
                line["timestamp"].is_string() && line["message"].is_string(),
                "{line}"
            );
            line["level"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(levels, ["WARN", "ERROR"], "{said}");
}

#[test]
fn what_clients_do_wrong_is_logged_with_v_alone() {
    for (flags, is_logged) in [("", false), ("-v", true)] {
        let directory = common::place();
        let server = Server::start_with(directory.path(), &[], flags).unwrap();
        let mut client = server.client();
        assert_eq!(client.ask("nonsense"), "ERROR");
        assert_eq!(
            client.ask("set k 0 0 2000000"),
            "SERVER_ERROR object too large for cache"
        );
        assert_eq!(
            server.stderr().contains("a command was refused: ERROR"),
            is_logged,
            "{}",
            server.stderr()
        );
        assert_eq!(
            server.stderr().contains("a value is too large"),
            is_logged,
            "{}",
            server.stderr()
        );
    }
}

#[test]
fn two_signals_within_a_moment_are_one_request() {
    use rustix::process::{Signal, kill_process};
    let directory = common::place();
    let mut server = Server::start(directory.path());
    server.client().set("k", b"v");
    for signal in [Signal::TERM, Signal::INT] {
        kill_process(server.pid(), signal).unwrap();
    }
    assert!(server.wait().success(), "{}", server.stderr());
    let server = Server::start(directory.path());
    assert!(server.recovered("after a clean stop"), "{:?}", server.said);
    assert_eq!(server.client().get("k"), Some(b"v".to_vec()));
}

#[test]
fn an_unknown_variable_of_ours_is_refused() {
    let run = |name: &str, text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_pumice"))
            .args(["serve", "--dram", "1MiB"])
            .env(name, text)
            .current_dir(directory.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (name, text) in [("PUMICE_FLUSH_SIZE", "1GiB"), ("PUMICE_LOG", "loud")] {
        let (status, said) = run(name, text);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn a_start_that_fails_leaves_no_new_file() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    for places in [
        format!("--memcached {taken} --admin off"),
        format!("--memcached 127.0.0.1:0 --admin {taken}"),
        "--memcached 127.0.0.1:0 --admin off -P no/such/directory/pid".to_owned(),
    ] {
        let (status, said) = refused(&format!("serve --dram 96MiB --flash-size 16MiB {places}"));
        assert_eq!(status, Some(1), "{places}: {said}");
    }
}
