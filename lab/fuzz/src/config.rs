//! Settings: what is accepted, printed and read again is the same, from a file and from flags, and within its bounds.

use crate::bytes::Bytes;
use clap::Parser;
use pumice_cli::Familiar;
use pumice_door_memcached::Listen;
use pumice_server::objects::ServeConfig;
use pumice_server::settings::{Layers, Settings};
use pumice_trace::{Human, Size};
use std::net::SocketAddr;

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
            if let Ok((settings, familiar)) = from_words(text.lines().map(str::to_owned)) {
                check(&settings, &familiar);
            }
        }
        2 => {
            if let Ok((settings, familiar)) = from_words(text.split_whitespace().map(str::to_owned)) {
                check(&settings, &familiar);
            }
        }
        _ => size(text),
    }
}

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    familiar: Familiar,
}

/// Settings from arguments of `serve`, memcached's options among them.
fn from_words(words: impl IntoIterator<Item = String>) -> Result<(Settings, Familiar), String> {
    let words = std::iter::once("serve".to_owned()).chain(words);
    let mut words = Words::try_parse_from(words).map_err(|error| error.to_string())?;
    (words.familiar.fold_into(&mut words.settings)).map_err(|error| error.to_string())?;
    Ok((words.settings, words.familiar))
}

/// What `serve` is told by these settings and memcached's options.
fn resolve(settings: Settings, familiar: &Familiar) -> Result<ServeConfig, String> {
    let layers = Layers::collect(settings, None).map_err(|error| error.to_string())?;
    ServeConfig::resolve(&layers, &familiar.flags()).map_err(|error| error.to_string())
}

/// Settings from the text of a file.
fn from_file(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The text of a file with these settings.
fn to_file(settings: &Settings) -> String {
    toml::to_string(settings).expect("lists of strings")
}

/// Flags with these settings; `None` where one of them is an empty list, or a rule.
fn to_flags(settings: &Settings) -> Option<Vec<String>> {
    // No flag says a rule.
    if !settings.http_rules.is_empty() {
        return None;
    }
    let table = toml::Table::try_from(settings).expect("lists of strings");
    let mut flags = Vec::new();
    for (name, texts) in &table {
        let texts = texts.as_array().filter(|texts| !texts.is_empty())?;
        let texts = texts.iter().filter_map(toml::Value::as_str);
        flags.extend(texts.map(|text| format!("--{name}={text}")));
    }
    Some(flags)
}

fn size(text: &str) {
    let Ok(size) = text.parse::<Size>() else { return };
    let expected = plainly(text);
    match size {
        Size::Plain(bytes) | Size::Bytes(bytes) => {
            assert!(
                (bytes as f64 - expected).abs() <= 1.0 + expected * 1e-9,
                "{text}: {bytes}"
            );
            assert_eq!(bytes.to_string().parse(), Ok(Size::Plain(bytes)));
            assert_eq!(format!(" {bytes} B ").parse(), Ok(Size::Bytes(bytes)));
            assert_eq!((size.of(7), pumice_trace::bytes(text)), (bytes, Ok(bytes)));
            let shown = Human(bytes).to_string();
            if !shown.contains('.') {
                assert_eq!(shown.parse(), Ok(Size::Bytes(bytes)), "{shown}");
            }
        }
        Size::Share(share) => {
            assert!(
                (share as f64 / 1e9 - expected).abs() <= 1e-6 + expected * 1e-9,
                "{text}: {share}"
            );
            let percent = percent(share);
            assert_eq!(percent.parse(), Ok(size), "{percent}");
            assert!(pumice_trace::bytes::<u64>(text).is_err());
            for whole in [0, 1, 1_000, u64::MAX] {
                assert!(share > Size::WHOLE || size.of(whole) <= whole);
                assert!(size.of(whole / 2) <= size.of(whole));
            }
        }
    }
}

/// A share as text.
fn percent(share: u64) -> String {
    format!("{}.{:09}%", share / 1_000_000_000, share % 1_000_000_000)
}

/// What a size says, in bytes or percent, read with the library's numbers.
fn plainly(text: &str) -> f64 {
    let text = text.trim().to_ascii_lowercase();
    let end = text
        .trim_end_matches(|letter: char| !letter.is_ascii_digit())
        .len();
    let power = match text[end..].trim().chars().next() {
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        _ => 0,
    };
    let number: f64 = text[..end].parse().expect("a number");
    number * f64::from(2).powi(power)
}

/// Settings that were understood.
fn check(settings: &Settings, familiar: &Familiar) {
    let file = to_file(settings);
    assert_eq!(from_file(&file).as_ref(), Ok(settings), "{file}");
    // An empty list is nothing that a flag could say.
    if let Some(flags) = to_flags(settings) {
        let again = from_words(flags.clone()).map(|(settings, _)| settings);
        assert_eq!(again.as_ref(), Ok(settings), "{flags:?}");
    }
    if asks_for_names(settings) {
        return;
    }
    let Ok(config) = resolve(settings.clone(), familiar) else {
        return;
    };
    check_bounds(&config);
    // `-m` is of what the settings below say in their own way.
    if familiar.memory.is_some() {
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
fn asks_for_names(settings: &Settings) -> bool {
    let doors = [
        &settings.memcached,
        &settings.memcached_tls,
        &settings.http,
        &settings.http_tls,
        &settings.admin,
    ];
    let lists = doors.into_iter().flatten().flatten();
    let ours = lists.flat_map(|text| text.split(',')).map(str::trim);
    let is_name = |text: &str| {
        let is_address = text.parse::<SocketAddr>().is_ok() || text.starts_with("unix:");
        let port = text.rsplit_once(':').map(|(_, port)| port);
        !is_address && port.is_some_and(|port| port.parse::<u16>().is_ok())
    };
    ours.into_iter().any(is_name)
}

fn check_bounds(config: &ServeConfig) {
    assert!(!config.flash.as_os_str().is_empty());
    if let Some(bytes) = config.block_size {
        assert!(bytes.is_power_of_two() && (64 << 10..=256 << 20).contains(&bytes));
    }
    if let Some(door) = config.door.memcached() {
        assert!((1024..=4095 << 20).contains(&door.max_item_size));
    }
    let door = &config.door;
    assert!(config.host.threads >= 1 && door.connections_max >= 1 && !door.listen.is_empty());
    let layout = &config.layout;
    assert!((0.015_625..=0.5).contains(&layout.alpha), "{layout:?}");
    assert!((0.0..=1.0).contains(&layout.theta), "{layout:?}");
}

/// The plainest settings that say the same.
fn plain(settings: &Settings, config: &ServeConfig) -> Settings {
    let one = |text: String| Some(vec![text]);
    let (mut plain, mut tls) = (Vec::new(), Vec::new());
    for listen in &config.door.listen {
        match listen {
            Listen::Tcp(address) => plain.push(address.to_string()),
            Listen::Unix { path, .. } => plain.push(format!("unix:{}", path.display())),
            Listen::Tls(address) => tls.push(address.to_string()),
        }
    }
    if plain.is_empty() {
        plain.push("off".to_owned());
    }
    let (plain, tls) = (Some(plain), (!tls.is_empty()).then_some(tls));
    let max_item_size = (config.door.memcached()).and_then(|door| one(door.max_item_size.to_string()));
    let (memcached, memcached_tls, http, http_tls) = match max_item_size {
        Some(_) => (plain, tls, None, None),
        None => (None, None, plain, tls),
    };
    Settings {
        dram: one(config.host.dram.to_string()),
        flash: one(config.flash.display().to_string()),
        flash_size: config.flash_size.and_then(|size| match size {
            Size::Plain(bytes) => one(bytes.to_string()),
            Size::Bytes(bytes) => one(format!("{bytes}B")),
            Size::Share(share) => one(percent(share)),
        }),
        block_size: config.block_size.and_then(|bytes| one(bytes.to_string())),
        layout: one(config.layout.layout.to_string()),
        max_item_size,
        memcached,
        memcached_tls,
        http,
        http_tls,
        admin: one(config
            .host
            .admin
            .map_or("off".to_owned(), |address| address.to_string())),
        threads: one(config.host.threads.to_string()),
        max_connections: (config.host.max_connections).and_then(|most| one(most.to_string())),
        ..settings.clone()
    }
}
