//! What `crates/fuzz` needs; nothing else should.

use crate::settings::Layers;
use clap::Parser;

pub use crate::Familiar;
pub use crate::objects::ServeConfig;
pub use crate::settings::Settings;
pub use pumice_trace::{Human, Size};

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    familiar: Familiar,
}

/// Settings from the text of a file.
///
/// # Errors
/// What is wrong with it.
pub fn from_file(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The text of a file with these settings.
///
/// # Panics
/// Never: settings are lists of strings.
pub fn to_file(settings: &Settings) -> String {
    toml::to_string(settings).expect("lists of strings")
}

/// Settings from arguments of `serve`, memcached's options among them.
///
/// # Errors
/// What is wrong with them.
pub fn from_words(words: impl IntoIterator<Item = String>) -> Result<(Settings, Familiar), String> {
    let words = std::iter::once("serve".to_owned()).chain(words);
    let mut words = Words::try_parse_from(words).map_err(|error| error.to_string())?;
    (words.familiar.fold_into(&mut words.settings)).map_err(|error| error.to_string())?;
    Ok((words.settings, words.familiar))
}

/// Flags with these settings; `None` where one of them is an empty list.
///
/// # Panics
/// Never: as for [`to_file`].
pub fn to_flags(settings: &Settings) -> Option<Vec<String>> {
    let table = toml::Table::try_from(settings).expect("lists of strings");
    let mut flags = Vec::new();
    for (name, texts) in &table {
        let texts = texts.as_array().filter(|texts| !texts.is_empty())?;
        let texts = texts.iter().filter_map(toml::Value::as_str);
        flags.extend(texts.map(|text| format!("--{name}={text}")));
    }
    Some(flags)
}

/// What `serve` is told by these settings and memcached's options.
///
/// # Errors
/// The first setting that makes no sense.
pub fn resolve(settings: Settings, familiar: &Familiar) -> Result<ServeConfig, String> {
    let layers = Layers::collect(settings, None).map_err(|error| error.to_string())?;
    ServeConfig::resolve(&layers, false, familiar).map_err(|error| error.to_string())
}
