//! Settings of a server of volumes, and its division of DRAM.

use pumice_admit::Rule;
use pumice_nhc::Objective;
use pumice_server::Flags;
use pumice_server::settings::{Layers, Settings};
use pumice_server::volumes::{Source, VolumeConfig, VolumesConfig};
use pumice_trace::Size;
use pumice_volume::{Mode, WriteBack};

fn resolve(file: &str) -> Result<Option<VolumesConfig>, String> {
    let settings: Settings = toml::from_str(file).unwrap();
    let layers = Layers::collect(settings, None).unwrap();
    VolumesConfig::resolve(&layers, &Flags::default()).map_err(|error| error.to_string())
}

#[test]
fn several_volumes_have_one_setting_or_one_each() {
    let config = resolve(
        "nbd = [\"unix:/s\", \"127.0.0.1:5\"]\nbacking = [\"/v/a\", \"b\"]\ncache = \"x,y\"\ncache-size = \"1GiB\"\n\
         mode = [\"read-only\", \"write-around\"]\nchunk-size = \"8KiB\"\nread-ahead = \"1MiB,0\"\n\
         scan-cutoff = \"0,64MiB\"\nflash-admit = [\"second-hit\", \"random:0.5\"]\nflash-write-budget = \"2TB/day\"\n\
         performance-objective = \"mean,classic\"\n",
    );
    let config = config.unwrap().unwrap();
    let volume =
        |name: &str, backing: &str, cache: &str, mode, [read_ahead_bytes, scan_cutoff_bytes]: [u64; 2]| {
            VolumeConfig {
                name: name.to_owned(),
                backing: Source::parse(backing).unwrap(),
                cache: Some(cache.into()),
                cache_size: Some(Size::Bytes(1 << 30)),
                mode,
                chunk_bytes: Some(8 << 10),
                read_ahead_bytes,
                scan_cutoff_bytes,
                rule: match mode {
                    Mode::ReadOnly => Rule::SecondHit,
                    _ => Rule::Random(0.5),
                },
                write_budget: "2TB/day".parse().ok(),
                objective: Some(Objective::Mean).filter(|_| mode == Mode::ReadOnly),
                write_back: WriteBack::default(),
                drains: true,
            }
        };
    assert_eq!(
        config.volumes,
        [
            volume("a", "/v/a", "x", Mode::ReadOnly, [1 << 20, 0]),
            volume("b", "b", "y", Mode::WriteAround, [0, 64 << 20])
        ]
    );
    assert_eq!(config.nbd.len(), 2);
    assert_eq!(config.host.max_connections, None);
}

#[test]
fn write_back_has_an_age_a_limit_a_rate_and_a_stop() {
    let config = resolve(
        "nbd = \"unix:/s\"\nbacking = \"a,b\"\ncache = \"x,y\"\nmode = \"write-back\"\ndirty-age = \"5,60\"\n\
         dirty-limit = \"12.5%\"\nclean-rate = \"0,8MiB\"\non-stop = \"keep,drain\"\n",
    );
    let volumes = config.unwrap().unwrap().volumes;
    let seen = |volume: &VolumeConfig| {
        let WriteBack {
            age_secs,
            dirty_max,
            bytes_per_sec,
        } = volume.write_back;
        (age_secs, dirty_max, bytes_per_sec, volume.drains)
    };
    assert!(volumes.iter().all(|volume| volume.mode == Mode::WriteBack));
    assert_eq!(seen(&volumes[0]), (5, 0.125, 0, false));
    assert_eq!(seen(&volumes[1]), (60, 0.125, 8 << 20, true));
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    assert!(matches!(resolve("dram = \"1GiB\""), Ok(None)));
    for (file, words) in [
        ("backing = \"a\"", "give --nbd"),
        ("nbd = \"unix:/s\"", "--backing"),
        ("nbd = \"unix:/s\"\nbacking = \"a\"", "--cache"),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"write\"",
            "write-through",
        ),
        ("nbd = \"unix:/s\"\nbacking = \"a/x,b/x\"\ncache = \"c,d\"", "`x`"),
        (
            "nbd = \"unix:/s\"\nbacking = \"a,b,c\"\ncache = \"c,d\"",
            "one for each",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nchunk-size = \"5000\"",
            "power of two",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nread-ahead = \"some\"",
            "--read-ahead",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nscan-cutoff = \"-1\"",
            "--scan-cutoff",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit = \"some\"",
            "second-hit",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit = \"all,all\"",
            "one for each",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-write-budget = \"2TB\"",
            "2TB/day",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit-size-max = \"64KiB\"",
            "of the cache of objects",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash-admit-ttl-min = 60",
            "of the cache of objects",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ndirty-age = 0",
            "86400",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ndirty-limit = \"0%\"",
            "--dirty-limit",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nclean-rate = \"x\"",
            "--clean-rate",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\non-stop = \"wait\"",
            "drain or keep",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nperformance-objective = \"best\"",
            "throughput, mean, p99, classic",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"pass-through\"\ntbw = \"600\"",
            "--tbw",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\nmode = \"pass-through\"\ndwpd = \"1\"\ndrive-size = \"960\"",
            "--dwpd",
        ),
        ("dirty-age = 5", "give --nbd"),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ncache-size = \"101%\"",
            "100%",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\nflash = \"f\"",
            "--flash",
        ),
        (
            "nbd = \"unix:/s\"\nbacking = \"a\"\ncache = \"c\"\ntls-key = \"k\"",
            "--tls-key",
        ),
        ("nbd = \"off\"\nbacking = \"a\"\ncache = \"c\"", "nowhere"),
        ("nbd = \"nowhere\"\nbacking = \"a\"\ncache = \"c\"", "--nbd"),
    ] {
        let refused = resolve(file).expect_err(file);
        assert!(refused.contains(words), "{file}: {refused}");
    }
}
