//! Settings of every server, and the threads that compute for it.

use pumice_server::Flags;
use pumice_server::host::{ComputeThreads, HostConfig, Jobs, memory_bytes};
use pumice_server::settings::{Layers, Settings};
use pumice_world::Offload;
use std::sync::mpsc;

#[test]
fn memory_is_that_of_the_machine_or_of_the_tightest_group_around() {
    let files = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = files.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let found = || memory_bytes(files.path(), &files.path().join("cgroup"));
    put("meminfo", "MemTotal:       8192 kB\nMemFree: 1 kB\n");
    assert_eq!(found(), 8 << 20);
    put("self/cgroup", "0::/a/b\n");
    put("cgroup/a/b/memory.max", "max\n");
    assert_eq!(found(), 8 << 20);
    put("cgroup/a/memory.max", "5000000\n");
    assert_eq!(found(), 5_000_000);
    put("self/cgroup", "3:cpu:/x\n4:memory:/c\n");
    put("cgroup/memory/c/memory.limit_in_bytes", "4000000\n");
    assert_eq!(found(), 4_000_000);
}

#[test]
fn seconds_may_have_a_unit() {
    let secs = |text: &str| {
        let settings = Settings {
            flash_timeout: Some(vec![text.to_owned()]),
            ..Settings::default()
        };
        let layers = Layers::collect(settings, None).unwrap();
        let config = HostConfig::resolve(&layers, &Flags::default());
        config.map(|config| config.flash_timeout_secs)
    };
    for (text, expected) in [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7_200),
        ("1d", 86_400),
    ] {
        assert_eq!(secs(text).unwrap(), expected, "{text}");
    }
    for bad in ["", "s", "-1", "1.5h", "1w", "1 m", "5000000000", "60000d"] {
        assert!(secs(bad).is_err(), "{bad}");
    }
}

#[test]
fn jobs_run_elsewhere_and_end_before_the_threads_do() {
    let (sender, ended) = mpsc::channel();
    let threads = ComputeThreads::start(4).unwrap();
    for _ in 0..50 {
        let sender = sender.clone();
        let job = move || sender.send(std::thread::current().id()).unwrap();
        threads.jobs().run(Box::new(job));
    }
    drop((threads, sender));
    let ended: Vec<_> = ended.try_iter().collect();
    assert_eq!(ended.len(), 50);
    assert!(!ended.contains(&std::thread::current().id()));
}

#[test]
fn no_job_is_taken_while_all_processors_are_busy() {
    let jobs = Jobs::new(4);
    jobs.wake();
    assert!(jobs.pays(16 << 10, 1) && !jobs.pays((16 << 10) - 1, 1) && !jobs.pays(16 << 10, 0));
    // Two for each of two threads.
    (0..4).for_each(|_| {
        assert!(jobs.pays(16 << 10, 1));
        jobs.run(Box::new(|| ()));
    });
    assert!(!jobs.pays(16 << 10, 1));
    let jobs = Jobs::new(4);
    (0..4).for_each(|_| jobs.wake());
    assert!(!jobs.pays(16 << 10, 1));
    jobs.park();
    assert!(jobs.pays(16 << 10, 1));
    assert!(!Jobs::new(1).pays(16 << 10, 1));
}
