//! The formats, and what stands for an object, by name.

use std::fmt;
use std::str::FromStr;

use crate::error::TraceError;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `oracle-general`: libCacheSim's binary records of 24 bytes, little-endian u32 time, u64 id, u32 size, i64 next.
    OracleGeneral,
    /// `csv`: delimited text with columns as described by [`Columns`](crate::Columns).
    Csv,
    /// `time-id-size`: text, `time id size` separated by blanks; sizes in bytes.
    TimeIdSize,
    /// `wiki-tsv`: Wikimedia's tab-separated text, `relative_unix hashed_host_path_query response_size time_firstbyte`,
    /// with or without the header; a header may name further columns.
    WikiTsv,
    /// `jedi`: text, `time,id,size` separated by commas, sizes in units of 1000 bytes.
    Jedi,
    /// `mooncake`: JSON lines with `timestamp` and `hash_ids`; one request for each hash id.
    Mooncake,
    /// `keys-be-u32`: big-endian 32-bit keys, sign-extended.
    KeysBeU32,
    /// `keys-be-i64`: big-endian 64-bit keys.
    KeysBeI64,
    /// `keys-le-u32`: little-endian 32-bit keys, sign-extended.
    KeysLeU32,
    /// `arc`: text, `first_block number_of_blocks ignored sequence`; one request for each block.
    Arc,
    /// `meta-kv`: Meta's kvcache CSV with a header naming at least `key`, `op` and `size`; one request for each record
    /// whatever its `op_count`.
    MetaKv,
    /// `meta-block`: Meta's block storage CSV with a header naming at least `block_id`, `op_name` and `io_size`; one request for
    /// each record.
    MetaBlock,
    /// `twitter`: CSV, `time,key,key size,value size,client,operation,ttl`.
    Twitter,
    /// `nasa-tsv`: tab-separated HTTP log, `host logname time method url response bytes`, with or without the header.
    NasaTsv,
    /// `vscsi`: binary disk requests of 32 bytes, version 1; one request for each page of 4 KiB, as in all that follow.
    Vscsi,
    /// `blkreplay`: text, `start ; sector ; length ; op ; replay_delay ; replay_duration` among comments.
    Blkreplay,
    /// `mqsim`: text, `time device sector sectors type`.
    Mqsim,
    /// `fiu`: text, `time pid process sector length op major minor MD5`, among remains of an archive.
    Fiu,
}

/// Every format with its name on the command line, in the order of the enum.
const NAMES: [(Format, &str); 18] = [
    (Format::OracleGeneral, "oracle-general"),
    (Format::Csv, "csv"),
    (Format::TimeIdSize, "time-id-size"),
    (Format::WikiTsv, "wiki-tsv"),
    (Format::Jedi, "jedi"),
    (Format::Mooncake, "mooncake"),
    (Format::KeysBeU32, "keys-be-u32"),
    (Format::KeysBeI64, "keys-be-i64"),
    (Format::KeysLeU32, "keys-le-u32"),
    (Format::Arc, "arc"),
    (Format::MetaKv, "meta-kv"),
    (Format::MetaBlock, "meta-block"),
    (Format::Twitter, "twitter"),
    (Format::NasaTsv, "nasa-tsv"),
    (Format::Vscsi, "vscsi"),
    (Format::Blkreplay, "blkreplay"),
    (Format::Mqsim, "mqsim"),
    (Format::Fiu, "fiu"),
];

impl Format {
    /// Every format, in the order in which messages list them.
    pub const ALL: [Format; NAMES.len()] = {
        let mut all = [Format::OracleGeneral; NAMES.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = NAMES[at].0;
            at += 1;
        }
        all
    };

    /// Formats that can be written.
    pub(crate) const WRITABLE: [Format; 4] = [
        Format::OracleGeneral,
        Format::Csv,
        Format::TimeIdSize,
        Format::KeysBeI64,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Units of time in a second, where times are not in seconds but in a known part of it.
    pub fn ticks_per_second(self) -> u64 {
        match self {
            Format::Mooncake => 1_000,
            Format::Vscsi => 1_000_000,
            Format::Mqsim | Format::Fiu => 1_000_000_000,
            _ => 1,
        }
    }

    /// The names of all formats, separated by commas.
    pub fn list() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    /// The names of the formats that can be written.
    pub(crate) fn writable_list() -> String {
        Format::WRITABLE.map(Format::name).join(", ")
    }

    /// Parses a name as on the command line; `auto` is `None`.
    ///
    /// # Errors
    /// [`TraceError::UnknownFormat`], listing the names.
    pub fn parse_or_auto(name: &str) -> Result<Option<Format>, TraceError> {
        if name == "auto" {
            Ok(None)
        } else {
            name.parse().map(Some)
        }
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| TraceError::UnknownFormat(name.to_owned()))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What stands for the object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TraceKey {
    /// `object`: the key or the address that the trace records.
    #[default]
    Object,
    /// `fingerprint`: the hash of the content, in format fiu.
    Fingerprint,
}

impl FromStr for TraceKey {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        match name {
            "object" => Ok(TraceKey::Object),
            "fingerprint" => Ok(TraceKey::Fingerprint),
            _ => Err(TraceError::UnknownKey(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_an_unknown_one_lists_them() {
        for (number, format) in Format::ALL.into_iter().enumerate() {
            assert_eq!(format as usize, number);
            assert_eq!(format.name().parse::<Format>().unwrap(), format);
        }
        assert_eq!(Format::parse_or_auto("auto").unwrap(), None);
        let message = Format::parse_or_auto("arcc").unwrap_err().to_string();
        assert!(
            message.contains("`arcc`") && message.contains("oracle-general, csv"),
            "{message}"
        );
    }
}
