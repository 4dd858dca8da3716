//! The formats that are a list of columns: a row each. [`Format`] says what their columns mean.

use super::rows::{Column, Header, Ops, Preset, Says, Width};
use crate::detect::{are_mqsim, are_whole_sectors};
use crate::fields::Separator;
use crate::format::Format;
use crate::request::Op;

const fn column(name: &'static str, says: Says) -> Column {
    Column {
        name,
        shown: name,
        says,
        is_optional: false,
        is_same: false,
    }
}

/// A column that messages call otherwise than headers.
const fn shown(name: &'static str, shown: &'static str, says: Says) -> Column {
    Column {
        shown,
        ..column(name, says)
    }
}

/// A column without a name in headers.
const fn unnamed(called: &'static str, says: Says) -> Column {
    shown("", called, says)
}

/// A column that a header may lack.
const fn optional(name: &'static str, says: Says) -> Column {
    Column {
        is_optional: true,
        ..column(name, says)
    }
}

/// A second thing that the column before says.
const fn also(called: &'static str, says: Says) -> Column {
    Column {
        is_same: true,
        ..unnamed(called, says)
    }
}

const ANY: Column = unnamed("last column", Says::Nothing);

const GET: Option<Op> = Some(Op::Get);
const SET: Option<Op> = Some(Op::Set);
const DELETE: Option<Op> = Some(Op::Delete);
/// No request.
const NONE: Option<Op> = None;

const fn ops(names: &'static [(&'static str, Option<Op>)], expected: &'static str) -> Ops {
    Ops {
        names,
        any_case: false,
        expected,
    }
}

const GETS: Ops = ops(&[], "");

/// Operations of csv, whatever their case.
pub(super) const CSV_OPS: Ops = Ops {
    any_case: true,
    ..ops(
        &[
            ("get", GET),
            ("gets", GET),
            ("read", GET),
            ("r", GET),
            ("set", SET),
            ("put", SET),
            ("write", SET),
            ("w", SET),
            ("delete", DELETE),
            ("del", DELETE),
            ("d", DELETE),
        ],
        "get, read, r, set, put, write, w, delete, del or d",
    )
};

/// What rows have where they say nothing else: commas, no header, gets.
pub(super) const ROW: Preset = Preset {
    format: Format::Csv,
    separator: Separator::Byte(b','),
    columns: &[],
    header: Header::None,
    width: Width::Exact,
    ops: &GETS,
    ticks: 1,
    unit: 1,
    unknown: &[],
    always_pages: false,
    among_others: None,
    is_sure: None,
};

/// The row of a format, if it has one.
pub(crate) fn preset(format: Format) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.format == format)
}

/// All of them; of two that a line shows the first is named first.
pub(crate) static PRESETS: &[Preset] = &[
    Preset {
        format: Format::TimeIdSize,
        separator: Separator::Blanks,
        columns: &[
            column("time", Says::Time),
            column("id", Says::Id),
            column("size", Says::Size),
        ],
        is_sure: Some(|_, _| true),
        ..ROW
    },
    Preset {
        format: Format::Jedi,
        columns: &[
            column("time", Says::Time),
            column("id", Says::Id),
            column("size", Says::Size),
        ],
        unit: 1000,
        // In csv sizes are bytes.
        is_sure: Some(|_, _| false),
        ..ROW
    },
    Preset {
        format: Format::WikiTsv,
        separator: Separator::Byte(b'\t'),
        columns: &[
            shown("relative_unix", "time", Says::Time),
            shown("hashed_host_path_query", "key", Says::Id),
            shown("response_size", "size", Says::Size),
            ANY,
        ],
        header: Header::Optional,
        ..ROW
    },
    Preset {
        format: Format::WikiUpload,
        separator: Separator::Byte(b'\t'),
        columns: &[
            shown("relative_unix", "time", Says::Time),
            shown("hashed_path_query", "key", Says::Id),
            ANY,
            shown("response_size", "size", Says::Size),
            ANY,
        ],
        header: Header::Optional,
        ..ROW
    },
    Preset {
        format: Format::MetaKv,
        columns: &[
            optional("op_time", Says::Time),
            column("key", Says::Text),
            column("key_size", Says::Nothing),
            column("op", Says::Op),
            column("op_count", Says::Nothing),
            column("size", Says::Size),
        ],
        header: Header::Required,
        ops: &ops(
            &[
                ("GET", GET),
                ("GET_LEASE", GET),
                ("SET", SET),
                ("SET_LEASE", SET),
                ("DELETE", DELETE),
            ],
            "GET, GET_LEASE, SET, SET_LEASE or DELETE",
        ),
        ..ROW
    },
    Preset {
        format: Format::MetaBlock,
        columns: &[
            optional("op_time", Says::Time),
            column("block_id", Says::Text),
            column("io_size", Says::Size),
            column("op_name", Says::Op),
        ],
        header: Header::Required,
        ops: &ops(
            &[("getChunkData*", GET), ("putChunk*", SET)],
            "getChunkData... or putChunk...",
        ),
        ..ROW
    },
    Preset {
        format: Format::MetaCdn,
        columns: &[
            column("timestamp", Says::Time),
            column("cacheKey", Says::Text),
            column("objectSize", Says::Size),
        ],
        header: Header::Required,
        ..ROW
    },
    Preset {
        format: Format::NasaTsv,
        separator: Separator::Byte(b'\t'),
        columns: &[
            column("host", Says::Nothing),
            ANY,
            column("time", Says::Time),
            column("method", Says::Op),
            column("url", Says::Text),
            column("response", Says::Op),
            column("bytes", Says::Size),
        ],
        header: Header::Optional,
        width: Width::Least,
        // What a cache could have served.
        ops: &ops(&[("GET", GET), ("200", GET), ("304", GET), ("*", NONE)], ""),
        unknown: &["", "-", "0"],
        ..ROW
    },
    Preset {
        format: Format::Twitter,
        columns: &[
            column("time", Says::Time),
            column("key", Says::WideText),
            column("key size", Says::Number),
            column("value size", Says::Size),
            column("client", Says::Nothing),
            column("operation", Says::Op),
            column("ttl", Says::Number),
        ],
        ops: &ops(
            &[
                ("get", GET),
                ("gets", GET),
                ("set", SET),
                ("add", SET),
                ("replace", SET),
                ("cas", SET),
                ("append", SET),
                ("prepend", SET),
                ("incr", SET),
                ("decr", SET),
                ("delete", DELETE),
            ],
            "get, gets, set, add, replace, cas, append, prepend, incr, decr or delete",
        ),
        is_sure: Some(|_, _| true),
        ..ROW
    },
    Preset {
        format: Format::TencentPhoto,
        separator: Separator::Blanks,
        columns: &[
            column("time", Says::Date),
            column("id", Says::Text),
            column("format", Says::Text),
            also("format", Says::Op),
            column("specification", Says::Text),
            column("size", Says::Size),
            column("hit", Says::Number),
            column("terminal", Says::Nothing),
            column("duration", Says::Number),
        ],
        // Another format is an error.
        ops: &ops(&[("0", GET), ("5", GET), ("*", NONE)], ""),
        is_sure: Some(|_, _| true),
        ..ROW
    },
    Preset {
        format: Format::IbmCos,
        separator: Separator::Blanks,
        columns: &[
            column("time", Says::Time),
            column("request", Says::Op),
            column("id", Says::Text),
            column("size", Says::Size),
        ],
        width: Width::LastMayLack,
        ops: &ops(
            &[
                ("REST.GET.OBJECT", GET),
                ("REST.PUT.OBJECT", SET),
                ("REST.DELETE.OBJECT", DELETE),
                ("REST.*", NONE),
            ],
            "REST.GET.OBJECT or another request",
        ),
        ticks: 1_000,
        is_sure: Some(|_, _| true),
        ..ROW
    },
    Preset {
        format: Format::Ids,
        separator: Separator::Blanks,
        columns: &[column("id", Says::IdOrText)],
        ..ROW
    },
    Preset {
        format: Format::Msr,
        columns: &[
            column("Timestamp", Says::Time),
            column("Hostname", Says::VolumeName),
            column("DiskNumber", Says::VolumeName),
            column("Type", Says::Op),
            column("Offset", Says::Offset),
            column("Size", Says::Length),
            column("ResponseTime", Says::Number),
        ],
        header: Header::Optional,
        ops: &ops(&[("Read", GET), ("Write", SET)], "Read or Write"),
        ticks: 10_000_000,
        is_sure: Some(are_whole_sectors),
        ..ROW
    },
    Preset {
        format: Format::AlibabaBlock,
        columns: &[
            column("device_id", Says::Volume),
            column("opcode", Says::Op),
            column("offset", Says::Offset),
            column("length", Says::Length),
            column("timestamp", Says::Time),
        ],
        header: Header::Optional,
        ops: &ops(&[("R", GET), ("W", SET)], "R or W"),
        ticks: 1_000_000,
        is_sure: Some(are_whole_sectors),
        ..ROW
    },
    Preset {
        format: Format::TencentBlock,
        columns: &[
            column("Timestamp", Says::Time),
            column("Offset", Says::Offset),
            column("Size", Says::Length),
            column("IOType", Says::Op),
            column("VolumeID", Says::Volume),
        ],
        header: Header::Optional,
        ops: &ops(&[("0", GET), ("1", SET)], "0 (read) or 1 (write)"),
        unit: 512,
        // Five numbers may be a time, an id, a size and others.
        is_sure: Some(|_, _| false),
        ..ROW
    },
    Preset {
        format: Format::Systor,
        columns: &[
            column("Timestamp", Says::Time),
            column("Response", Says::Nothing),
            column("IOType", Says::Op),
            column("LUN", Says::Volume),
            column("Offset", Says::Offset),
            column("Size", Says::Length),
        ],
        header: Header::Optional,
        // No type: no response was seen.
        ops: &ops(&[("R", GET), ("W", SET), ("", NONE)], "R, W or nothing"),
        is_sure: Some(are_whole_sectors),
        ..ROW
    },
    Preset {
        format: Format::Mqsim,
        separator: Separator::Blanks,
        columns: &[
            column("time", Says::Time),
            column("device", Says::Volume),
            column("sector", Says::Offset),
            column("sectors", Says::Length),
            column("type", Says::Op),
        ],
        ops: &ops(&[("0", SET), ("1", GET)], "0 (write) or 1 (read)"),
        ticks: 1_000_000_000,
        unit: 512,
        always_pages: true,
        is_sure: Some(|_, sample| are_mqsim(sample)),
        ..ROW
    },
    Preset {
        format: Format::Blkreplay,
        separator: Separator::Quoted(b';'),
        columns: &[
            column("start", Says::Time),
            column("sector", Says::Offset),
            column("length", Says::Length),
            column("op", Says::Op),
            ANY,
            ANY,
        ],
        header: Header::Optional,
        ops: &ops(&[("R", GET), ("W", SET)], "R or W"),
        unit: 512,
        always_pages: true,
        among_others: Some("start ; sector ; length ; R or W ; replay_delay ; replay_duration"),
        is_sure: Some(|_, _| true),
        ..ROW
    },
];
