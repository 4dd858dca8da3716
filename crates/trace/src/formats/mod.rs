//! The parsers of the formats made of lines.

mod arc;
mod blkreplay;
mod csv;
mod fiu;
mod headed;
mod mooncake;
mod mqsim;
mod pages;
mod triples;
mod twitter;
mod vscsi;

pub(crate) use arc::Arc;
pub(crate) use blkreplay::{Blkreplay, shows as shows_blkreplay};
pub(crate) use csv::Csv;
pub(crate) use fiu::{Fiu, shows as shows_fiu};
pub(crate) use headed::{Headed, META_BLOCK, META_KV, NASA_TSV, WIKI_TSV};
pub(crate) use mooncake::Mooncake;
pub(crate) use mqsim::{Mqsim, shows as shows_mqsim};
pub(crate) use pages::PAGE_BYTES;
pub(crate) use triples::{Jedi, TimeIdSize};
pub(crate) use twitter::{Twitter, shows as shows_twitter};
pub(crate) use vscsi::VscsiReader;
