//! Settings: what is accepted, printed and read again is the same, from a file and from flags, and within its bounds.

use crate::bytes::Bytes;
use pumice_cli::fuzzing::{
    Familiar, Human, ServeConfig, Settings, Size, from_file, from_flags, resolve, split_memcached_options,
    to_file, to_flags,
};
use pumice_door_memcached::Listen;
use std::net::{IpAddr, SocketAddr};

/// The first byte says what the text is: a file, flags by lines, words of a command line, or a size.
pub(crate) fn run(data: &[u8]) {
    let mut from = Bytes(data);
    let what = from.u8();
    let Ok(text) = std::str::from_utf8(from.0) else {
        return;
    };
    match what % 4 {
        0 => {
            if let Ok(settings) = from_file(text) {
                check(&settings, &Familiar::default());
            }
        }
        1 => {
            if let Ok(settings) = from_flags(text.lines().map(str::to_owned)) {
                check(&settings, &Familiar::default());
            }
        }
        2 => words(text),
        _ => size(text),
    }
}

/// A command line with memcached's options in it.
fn words(text: &str) {
    let words = ["pumice", "serve"].into_iter().chain(text.split_whitespace());
    let Ok((ours, familiar)) = split_memcached_options(words.map(Into::into).collect()) else {
        return;
    };
    let flags: Option<Vec<String>> = ours
        .into_iter()
        .skip(2)
        .map(|word| word.into_string().ok())
        .collect();
    if let Ok(settings) = from_flags(flags.expect("they were text")) {
        check(&settings, &familiar);
    }
}

fn size(text: &str) {
    let Ok(size) = text.parse::<Size>() else { return };
    let expected = plainly(text);
    match size {
        Size::Bytes(bytes) => {
            assert!(
                (bytes as f64 - expected).abs() <= 1.0 + expected * 1e-9,
                "{text}: {bytes}"
            );
            assert_eq!(bytes.to_string().parse(), Ok(size));
            assert_eq!(format!(" {bytes} B ").parse(), Ok(size));
            assert_eq!((size.of(7), size.bytes()), (bytes, Some(bytes)));
            let shown = Human(bytes).to_string();
            if !shown.contains('.') {
                assert_eq!(shown.parse(), Ok(size), "{shown}");
            }
        }
        Size::Share(share) => {
            assert!(
                (share as f64 / 1_000.0 - expected).abs() <= 1e-6 + expected * 1e-9,
                "{text}: {share}"
            );
            let percent = format!("{}.{:03}%", share / 1_000, share % 1_000);
            assert_eq!(percent.parse(), Ok(size), "{percent}");
            assert_eq!(size.bytes(), None);
            for whole in [0, 1, 1_000, u64::MAX] {
                assert!(share > 100_000 || size.of(whole) <= whole);
                assert!(size.of(whole / 2) <= size.of(whole));
            }
        }
    }
}

/// What a size says, in bytes or percent, read with the library's numbers.
fn plainly(text: &str) -> f64 {
    let text = text.trim();
    let units = [
        ("KiB", 10),
        ("MiB", 20),
        ("GiB", 30),
        ("TiB", 40),
        ("B", 0),
        ("%", 0),
    ];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, power) = unit.copied().unwrap_or(("", 0));
    let number: f64 = text[..text.len() - unit.len()].trim().parse().expect("a number");
    number * f64::from(2).powi(power)
}

/// Settings that were understood.
fn check(settings: &Settings, familiar: &Familiar) {
    let file = to_file(settings);
    assert_eq!(from_file(&file).as_ref(), Ok(settings), "{file}");
    // An empty list is nothing that a flag could say.
    if let Some(flags) = to_flags(settings) {
        assert_eq!(from_flags(flags.clone()).as_ref(), Ok(settings), "{flags:?}");
    }
    if asks_for_names(settings, familiar) {
        return;
    }
    let Ok(config) = resolve(settings.clone(), familiar) else {
        return;
    };
    check_bounds(&config);
    // memcached's options say some of it in their own way.
    if format!("{:?}", familiar.options) != format!("{:?}", Familiar::default().options) {
        return;
    }
    let plain = plain(settings, &config);
    let again = resolve(plain.clone(), familiar).unwrap_or_else(|error| panic!("{error}: {plain:?}"));
    // Where nothing was said of the layout, this says it.
    let again = ServeConfig {
        is_layout_given: config.is_layout_given,
        ..again
    };
    assert_eq!(format!("{again:?}"), format!("{config:?}"), "{plain:?}");
}

/// Whether a host would be looked up, which is nothing for a test.
fn asks_for_names(settings: &Settings, familiar: &Familiar) -> bool {
    let lists = [&settings.memcached, &settings.memcached_tls, &settings.admin]
        .into_iter()
        .flatten()
        .flatten();
    let ours = lists.flat_map(|text| text.split(',')).map(str::trim);
    let is_name = |text: &str| {
        let is_address = text.parse::<SocketAddr>().is_ok() || text.starts_with("unix:");
        let port = text.rsplit_once(':').map(|(_, port)| port);
        !is_address && port.is_some_and(|port| port.parse::<u16>().is_ok())
    };
    let theirs = &familiar.options.listen;
    let is_their_name =
        |host: &String| host != "*" && host.parse::<IpAddr>().is_err() && host.parse::<SocketAddr>().is_err();
    ours.into_iter().any(is_name) || theirs.iter().any(is_their_name)
}

fn check_bounds(config: &ServeConfig) {
    assert!(!config.flash.as_os_str().is_empty());
    if let Some(bytes) = config.block_size {
        assert!(bytes.is_power_of_two() && (64 << 10..=256 << 20).contains(&bytes));
    }
    assert!((1024..=1 << 30).contains(&config.max_item_size));
    assert!(config.threads >= 1 && config.max_connections >= 1 && !config.memcached.is_empty());
    let layout = &config.layout;
    assert!((0.015_625..=0.5).contains(&layout.alpha), "{layout:?}");
    assert!((0.0..=1.0).contains(&layout.theta), "{layout:?}");
}

/// The plainest settings that say the same.
fn plain(settings: &Settings, config: &ServeConfig) -> Settings {
    let one = |text: String| Some(vec![text]);
    let (mut memcached, mut memcached_tls) = (Vec::new(), Vec::new());
    for listen in &config.memcached {
        match listen {
            Listen::Tcp(address) => memcached.push(address.to_string()),
            Listen::Unix { path, .. } => memcached.push(format!("unix:{}", path.display())),
            Listen::Tls(address) => memcached_tls.push(address.to_string()),
        }
    }
    if memcached.is_empty() {
        memcached.push("off".to_owned());
    }
    Settings {
        dram: one(config.dram.to_string()),
        flash: one(config.flash.display().to_string()),
        flash_size: config.flash_size.and_then(|size| match size {
            Size::Bytes(bytes) => one(bytes.to_string()),
            Size::Share(share) => one(format!("{}.{:03}%", share / 1_000, share % 1_000)),
        }),
        block_size: config.block_size.and_then(|bytes| one(bytes.to_string())),
        layout: one(config.layout.layout.to_string()),
        max_item_size: one(config.max_item_size.to_string()),
        memcached: Some(memcached),
        memcached_tls: (!memcached_tls.is_empty()).then_some(memcached_tls),
        admin: one(config
            .admin
            .map_or("off".to_owned(), |address| address.to_string())),
        threads: one(config.threads.to_string()),
        max_connections: one(config.max_connections.to_string()),
        ..settings.clone()
    }
}
