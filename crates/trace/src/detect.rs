//! Finding a format by content.

use crate::columns::Columns;
use crate::fields::{Fields, excerpt, parse_integer, parse_u64};
use crate::format::Format;
use crate::formats::{
    META_BLOCK, META_KV, NASA_TSV, WIKI_TSV, shows_blkreplay, shows_fiu, shows_mqsim, shows_twitter,
};

/// Bytes that are looked at.
pub(crate) const SAMPLE_BYTES: usize = 64 * 1024;

/// The columns of a file whose first line is a header that `convert` or a recorder writes.
pub(crate) fn converted_columns(sample: &[u8]) -> Option<Columns> {
    let header = sample.split(|&byte| byte == b'\n').next()?;
    let columns = match header {
        b"time,id,size,op" | b"time,id,size,op,ttl" => "time=time,id=id,size=size,op=op,header=true",
        b"time,id,op" => "time=time,id=id,op=op,header=true",
        _ => return None,
    };
    columns.parse().ok()
}

/// Whether every whole record could be one of oracle-general: times do not fall, and the next access is none or the number of a later
/// record.
fn shows_oracle_general(sample: &[u8]) -> bool {
    let mut last = 0;
    let (records, rest) = sample.as_chunks::<24>();
    let fits = |(number, record): (i64, &[u8; 24])| {
        let time = u32::from_le_bytes(*record.first_chunk().expect("4 of 24 bytes"));
        let next = i64::from_le_bytes(*record.last_chunk().expect("8 of 24 bytes"));
        let is_later = next > number && next < 1 << 32;
        time >= std::mem::replace(&mut last, time) && (next == -1 || next == i64::MAX || is_later)
    };
    !records.is_empty() && (rest.is_empty() || sample.len() == SAMPLE_BYTES) && (0..).zip(records).all(fits)
}

/// Names the format of a file that starts with `sample`, or says why it does not show.
///
/// Goes by the first line that is not blank, so that damage further on is reported with its place; formats whose files start
/// with something else go by any line of the sample. Of records without a header only those of oracle-general have enough that any other
/// bytes would not have. Format csv is not found here, because its columns have to be described ([`converted_columns`]);
/// comma-separated `time,id,size` without a header is taken for `jedi`.
pub(crate) fn detect(sample: &[u8]) -> Result<Format, String> {
    if sample.is_empty() {
        return Err("the trace is empty".into());
    }
    let mut lines = sample
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let Some(first) = lines.find(|line| !line.iter().all(|byte| matches!(byte, b' ' | b'\t'))) else {
        return Err("the trace holds blank lines only".into());
    };
    let binary = first
        .iter()
        .find(|&&byte| byte < b' ' && byte != b'\t' || byte >= 0x7f);
    if binary.is_none()
        && let Some(format) = of_first_line(first)
    {
        return Ok(format);
    }
    if let Some(format) = std::iter::once(first).chain(lines).find_map(of_any_line) {
        return Ok(format);
    }
    if let Some(byte) = binary {
        if shows_oracle_general(sample) {
            return Ok(Format::OracleGeneral);
        }
        return Err(format!(
            "binary content (byte 0x{byte:02x}) does not show its format"
        ));
    }
    let shown = excerpt(first);
    Err(format!(
        "the first line, `{shown}`, fits no text format (delimited text: --format csv with --columns)"
    ))
}

/// The format that the first line shows.
fn of_first_line(first: &[u8]) -> Option<Format> {
    Some(if WIKI_TSV.is_header(first) {
        Format::WikiTsv
    } else if META_KV.is_header(first) {
        Format::MetaKv
    } else if META_BLOCK.is_header(first) {
        Format::MetaBlock
    } else if NASA_TSV.is_header(first) {
        Format::NasaTsv
    } else if first.starts_with(b"{") && memchr::memmem::find(first, b"\"hash_ids\"").is_some() {
        Format::Mooncake
    } else if is_triple(Fields::blanks(first)) {
        Format::TimeIdSize
    } else if is_triple(Fields::delimited(first, b',')) {
        Format::Jedi
    } else if is_arc(first) {
        Format::Arc
    } else if shows_mqsim(first) {
        Format::Mqsim
    } else if shows_twitter(first) {
        Format::Twitter
    } else {
        return None;
    })
}

/// The format that a line shows wherever it stands.
fn of_any_line(line: &[u8]) -> Option<Format> {
    if shows_blkreplay(line) {
        Some(Format::Blkreplay)
    } else if shows_fiu(line) {
        Some(Format::Fiu)
    } else {
        None
    }
}

fn is_triple(mut fields: Fields<'_>) -> bool {
    let time = fields.next("time").is_some_and(|field| field.time().is_ok());
    let id = fields
        .next("id")
        .is_some_and(|field| parse_integer(field.bytes).is_some());
    let size = fields
        .next("size")
        .is_some_and(|field| parse_u64(field.bytes).is_some());
    time && id && size && fields.next("rest").is_none()
}

fn is_arc(line: &[u8]) -> bool {
    let mut fields = Fields::blanks(line);
    (0..4).all(|_| {
        fields
            .next("number")
            .is_some_and(|field| parse_integer(field.bytes).is_some())
    }) && fields.next("rest").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_formats_are_told_apart() {
        for (text, format) in [
            ("1 2 3\n4 5 6\n", Format::TimeIdSize),
            ("1\t2\t3", Format::TimeIdSize),
            ("1,2,3\n", Format::Jedi),
            ("1 2 3 4\n\n5 6 7 8\n", Format::Arc),
            (
                "relative_unix\thashed_host_path_query\tresponse_size\ttime_firstbyte\r\n",
                Format::WikiTsv,
            ),
            ("{\"timestamp\": 0, \"hash_ids\": [1]}\n", Format::Mooncake),
            ("op_time,key,key_size,op,op_count,size\n", Format::MetaKv),
            ("op_time,block_id,io_size,op_name\n", Format::MetaBlock),
            (
                "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\n",
                Format::NasaTsv,
            ),
            ("0,a,1,5,2,get,0\n", Format::Twitter),
            ("7 0 8 16 1\n", Format::Mqsim),
            (
                "#\nstart ; sector; length ; op ;  replay_delay=0 ; replay_duration=0\n",
                Format::Blkreplay,
            ),
            ("note\n0.5 ; 3 ; 4 ; W ; 0.0 ; 0.0\n", Format::Blkreplay),
            (
                "\0\0ustar\0\n7 1 nfsd 8 8 W 6 0 88b93b628d84082186026d9da044f173\n",
                Format::Fiu,
            ),
        ] {
            assert_eq!(detect(text.as_bytes()), Ok(format), "{text}");
        }
    }

    #[test]
    fn damage_after_the_first_line_is_left_to_the_reader() {
        assert_eq!(detect(b"1 2 3\n1 2 3 4\n\x00"), Ok(Format::TimeIdSize));
        assert_eq!(detect(b"1 2 3 4\n1 2"), Ok(Format::Arc));
    }

    #[test]
    fn what_does_not_show_its_format_is_refused_with_the_reason() {
        for (sample, reason) in [
            (&b""[..], "empty"),
            (b"\n \n", "blank"),
            (b"\x00\x01\x02\x03", "binary"),
            (b"1 2 3\x00", "binary"),
            (b"time,id,size\n1,2,3\n", "--columns"),
            (b"\xff\xfe\n", "binary"),
            (b"hello", "`hello`"),
            (b"7 0 8 16 2\n", "fits no text format"),
            (b"0,a,1,5,2,fetch,0\n", "fits no text format"),
        ] {
            let found = detect(sample).unwrap_err();
            assert!(found.contains(reason), "{}: {found}", sample.escape_ascii());
        }
    }
}
