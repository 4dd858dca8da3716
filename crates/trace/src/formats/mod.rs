//! The parsers of the formats made of lines.

mod arc;
mod blkreplay;
mod csv;
mod fiu;
mod meta;
mod mooncake;
mod mqsim;
mod nasa_tsv;
mod pages;
mod triples;
mod twitter;
mod vscsi;
mod wiki_tsv;

pub(crate) use arc::Arc;
pub(crate) use blkreplay::{Blkreplay, shows as shows_blkreplay};
pub(crate) use csv::Csv;
pub(crate) use fiu::{Fiu, shows as shows_fiu};
pub(crate) use meta::{META_BLOCK, META_KV, Meta};
pub(crate) use mooncake::Mooncake;
pub(crate) use mqsim::{Mqsim, shows as shows_mqsim};
pub(crate) use nasa_tsv::{NasaTsv, is_header as is_nasa_header};
pub(crate) use pages::PAGE_BYTES;
pub(crate) use triples::{Jedi, TimeIdSize};
pub(crate) use twitter::{Twitter, shows as shows_twitter};
pub(crate) use vscsi::VscsiReader;
pub(crate) use wiki_tsv::{WikiTsv, is_header as is_wiki_header};
