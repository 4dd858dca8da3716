//! The parsers of the formats made of lines.

mod arc;
mod fiu;
mod mooncake;
mod pages;
mod presets;
mod rows;
mod vscsi;

pub(crate) use arc::Arc;
pub(crate) use fiu::{Fiu, shows as shows_fiu};
pub(crate) use mooncake::Mooncake;
pub(crate) use pages::PAGE_BYTES;
pub(crate) use presets::{PRESETS, preset};
pub(crate) use rows::{Preset, Rows};
pub(crate) use vscsi::VscsiReader;

#[cfg(test)]
mod tests;
