//! The formats, and what stands for an object, by name.

use std::fmt;
use std::str::FromStr;

use crate::error::TraceError;
use crate::formats::{Preset, preset};

/// The enum of formats, and their names.
macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident = $name:literal,)*) => {
        /// A trace format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        /// The names on the command line, in the order of the enum.
        const NAMES: &[&str] = &[$($name,)*];

        impl Format {
            /// Every format, in the order in which messages list them.
            pub const ALL: [Format; NAMES.len()] = [$(Format::$format,)*];
        }
    };
}

formats! {
    /// `oracle-general`: libCacheSim's binary records of 24 bytes, little-endian u32 time, u64 id, u32 size, i64 next.
    OracleGeneral = "oracle-general",
    /// `csv`: delimited text with columns as described by [`Columns`](crate::Columns).
    Csv = "csv",
    /// `time-id-size`: text, `time id size` separated by blanks; sizes in bytes.
    TimeIdSize = "time-id-size",
    /// `wiki-tsv`: Wikimedia's tab-separated text, `relative_unix hashed_host_path_query response_size time_firstbyte`,
    /// with or without the header; a header may name further columns.
    WikiTsv = "wiki-tsv",
    /// `jedi`: text, `time,id,size` separated by commas, sizes in units of 1000 bytes.
    Jedi = "jedi",
    /// `mooncake`: JSON lines with `timestamp` and `hash_ids`; one request for each hash id.
    Mooncake = "mooncake",
    /// `keys-be-u32`: big-endian 32-bit keys, sign-extended.
    KeysBeU32 = "keys-be-u32",
    /// `keys-be-i64`: big-endian 64-bit keys.
    KeysBeI64 = "keys-be-i64",
    /// `keys-le-u32`: little-endian 32-bit keys, sign-extended.
    KeysLeU32 = "keys-le-u32",
    /// `arc`: text, `first_block number_of_blocks ignored sequence`; one request for each block.
    Arc = "arc",
    /// `meta-kv`: Meta's kvcache CSV with a header naming at least `key`, `op` and `size`; one request for each record
    /// whatever its `op_count`.
    MetaKv = "meta-kv",
    /// `meta-block`: Meta's block storage CSV with a header naming at least `block_id`, `op_name` and `io_size`; one request for
    /// each record.
    MetaBlock = "meta-block",
    /// `twitter`: CSV, `time,key,key size,value size,client,operation,ttl`.
    Twitter = "twitter",
    /// `nasa-tsv`: tab-separated HTTP log, `host logname time method url response bytes`, with or without the header.
    NasaTsv = "nasa-tsv",
    /// `vscsi`: binary disk requests of 32 bytes, version 1; one request for each page of 4 KiB, as in all that follow.
    Vscsi = "vscsi",
    /// `blkreplay`: text, `start ; sector ; length ; op ; replay_delay ; replay_duration` among comments.
    Blkreplay = "blkreplay",
    /// `mqsim`: text, `time device sector sectors type`.
    Mqsim = "mqsim",
    /// `fiu`: text, `time pid process sector length op major minor MD5`, among remains of an archive.
    Fiu = "fiu",
    /// `ids`: text, one id a line: a number, or any text. Nothing else is known.
    Ids = "ids",
    /// `msr`: MSR Cambridge, `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, times of 100 ns. One request for each record, as
    /// in the next three, unless pages are asked for ([`TraceKey::Pages`]).
    Msr = "msr",
    /// `alibaba-block`: Alibaba's block storage, `device_id,opcode,offset,length,timestamp`, times in microseconds.
    AlibabaBlock = "alibaba-block",
    /// `tencent-block`: Tencent's block storage, `Timestamp,Offset,Size,IOType,VolumeID`, offset and size in sectors of 512 bytes.
    TencentBlock = "tencent-block",
    /// `systor`: SYSTOR '17, `Timestamp,Response,IOType,LUN,Offset,Size`; records without an IOType are none.
    Systor = "systor",
    /// `tencent-photo`: QQPhoto, `time id format specification size hit terminal duration` separated by blanks. The key is id, format and
    /// specification; records of another format than 0 (jpg) or 5 (webp) are none.
    TencentPhoto = "tencent-photo",
    /// `meta-cdn`: Meta's CDN, CSV with a header naming at least `timestamp`, `cacheKey` and `objectSize`.
    MetaCdn = "meta-cdn",
    /// `wiki-upload`: Wikimedia's images, tab-separated, `relative_unix hashed_path_query image_type response_size time_firstbyte`, with or
    /// without the header.
    WikiUpload = "wiki-upload",
    /// `ibm-cos`: IBM Cloud Object Storage, `time request id [size [from to]]` separated by blanks, times in milliseconds. The size is that of
    /// the object; requests other than REST.GET, PUT and DELETE.OBJECT are none.
    IbmCos = "ibm-cos",
}

impl Format {
    /// Formats that can be written.
    pub(crate) const WRITABLE: [Format; 4] = [
        Format::OracleGeneral,
        Format::Csv,
        Format::TimeIdSize,
        Format::KeysBeI64,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Units of time in a second, where times are not in seconds but in a known part of it.
    pub fn ticks_per_second(self) -> u64 {
        match self {
            Format::Mooncake => 1_000,
            Format::Vscsi => 1_000_000,
            Format::Fiu => 1_000_000_000,
            _ => preset(self).map_or(1, |preset| preset.ticks),
        }
    }

    /// The names of all formats, separated by commas.
    pub fn list() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    /// Whether its records are disk requests, with an address and a length.
    pub(crate) fn has_disk_requests(self) -> bool {
        matches!(self, Format::Vscsi | Format::Fiu) || preset(self).is_some_and(Preset::has_disk_requests)
    }

    /// The names of the formats that have disk requests.
    pub(crate) fn disk_list() -> String {
        let formats = Format::ALL
            .into_iter()
            .filter(|format| format.has_disk_requests());
        formats.map(Format::name).collect::<Vec<_>>().join(", ")
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
    /// Each page of so many bytes, a power of two from 512 to 2^30, that a disk request touches. Formats that are always split into
    /// pages have pages of 4 KiB as objects.
    Pages(u64),
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
