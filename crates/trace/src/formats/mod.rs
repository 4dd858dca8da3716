//! The parsers of the formats made of lines.

mod arc;
mod csv;
mod meta_kv;
mod mooncake;
mod triples;
mod wiki_tsv;

pub(crate) use arc::Arc;
pub(crate) use csv::Csv;
pub(crate) use meta_kv::{MetaKv, is_header as is_meta_kv_header};
pub(crate) use mooncake::Mooncake;
pub(crate) use triples::{Jedi, TimeIdSize};
pub(crate) use wiki_tsv::{WikiTsv, is_header as is_wiki_header};
