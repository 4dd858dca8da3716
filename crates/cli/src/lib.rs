//! The settings of the program apart from it, for what hands any text to them.
#![allow(dead_code, unused_imports, reason = "the program uses the rest")]

mod settings;
mod size;
mod usage;

mod serve {
    pub mod config;
    pub mod familiar;

    pub use familiar::{Familiar, split_memcached_options};
}

/// What `crates/fuzz` needs; nothing else should.
#[doc(hidden)]
pub mod fuzzing {
    use crate::settings::Layers;
    use clap::Parser;
    use std::ffi::OsString;

    pub use crate::serve::config::ServeConfig;
    pub use crate::serve::{Familiar, split_memcached_options};
    pub use crate::settings::Settings;
    pub use crate::size::{Human, Size};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        settings: Settings,
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

    /// Settings from flags of `serve`, without the words before them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_flags(flags: impl IntoIterator<Item = String>) -> Result<Settings, String> {
        let words = std::iter::once("serve".to_owned()).chain(flags);
        let words = Words::try_parse_from(words.map(OsString::from));
        words
            .map(|words| words.settings)
            .map_err(|error| error.to_string())
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
}
