//! Finding a format by content.

use std::collections::HashMap;

use crate::columns::Columns;
use crate::fields::{Fields, excerpt, is_blank, parse_integer};
use crate::format::Format;
use crate::formats::{PRESETS, Preset, Rows, shows_fiu};
use crate::text::LineParser;

/// Bytes that are looked at.
pub(crate) const SAMPLE_BYTES: usize = 64 * 1024;

/// Columns that a header may name which shows format csv: those that `convert` and a recorder write.
const CSV_COLUMNS: [&str; 5] = ["time", "id", "size", "op", "ttl"];
/// Most devices, and sectors of a request, of a file that is taken for mqsim; where its disks reach to at least (1 GiB); and the lines that it has at
/// least.
const MQSIM_DEVICES: u64 = 256;
const MQSIM_REACH: u64 = 1 << 21;
const MQSIM_SECTORS: u64 = 1 << 16;
const MQSIM_LINES: usize = 16;

/// The columns of a file whose first line is a header of csv.
pub(crate) fn headed_columns(sample: &[u8]) -> Option<Columns> {
    let header = first_line(sample)?;
    let names: Vec<&str> = std::str::from_utf8(header).ok()?.split(',').collect();
    if !names.iter().all(|name| CSV_COLUMNS.contains(name)) {
        return None;
    }
    let has = |name: &&str| *name != "ttl" && names.contains(name);
    let columns = CSV_COLUMNS.iter().filter(|name| has(name));
    let spec: String = columns.map(|name| format!("{name}={name},")).collect();
    // Without an id it is none.
    format!("{spec}header=true").parse().ok()
}

/// The first line that is not blank.
fn first_line(sample: &[u8]) -> Option<&[u8]> {
    lines(sample).find(|line| !line.iter().all(is_blank))
}

fn lines(sample: &[u8]) -> impl Iterator<Item = &[u8]> {
    sample
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
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
/// with something else go by any line of the sample. Lines of nothing but numbers say little: where more than one format could be meant,
/// the file is refused. Of records without a header only those of oracle-general have enough that any other
/// bytes would not have. Format csv is not found here, because its columns have to be described ([`headed_columns`]).
pub(crate) fn detect(sample: &[u8]) -> Result<Format, String> {
    if sample.is_empty() {
        return Err("the trace is empty".into());
    }
    let Some(first) = first_line(sample) else {
        return Err("the trace holds blank lines only".into());
    };
    let binary = first
        .iter()
        .find(|&&byte| byte < b' ' && byte != b'\t' || byte >= 0x7f);
    let mut found = match binary {
        Some(_) => Vec::new(),
        None => of_first_line(first, sample),
    };
    for preset in PRESETS.iter().filter(|preset| preset.is_among_others()) {
        found.extend(
            lines(sample)
                .any(|line| preset.shows(line))
                .then_some(preset.format),
        );
    }
    found.extend(lines(sample).any(shows_fiu).then_some(Format::Fiu));
    let shown = excerpt(first);
    match (&found[..], binary) {
        ([format], _) => Ok(*format),
        ([], Some(_)) if shows_oracle_general(sample) => Ok(Format::OracleGeneral),
        ([], Some(byte)) => Err(format!(
            "binary content (byte 0x{byte:02x}) does not show its format"
        )),
        ([], None) => Err(format!(
            "the first line, `{shown}`, fits no text format (delimited text: --format csv with --columns)"
        )),
        (_, _) => {
            let names = found.iter().map(|format| match format {
                Format::Csv => format!("csv (--columns, such as `{}`)", columns_of(first)),
                format => format.name().to_owned(),
            });
            let names: Vec<String> = names.collect();
            Err(format!(
                "the first line is `{shown}`, and the format could be {}",
                names.join(" or ")
            ))
        }
    }
}

/// What `--columns` could be for a line of a time, an id, a size and others.
fn columns_of(line: &[u8]) -> &'static str {
    if line.contains(&b',') {
        "time=1,id=2,size=3"
    } else if line.contains(&b'\t') {
        "time=1,id=2,size=3,delimiter=tab"
    } else {
        "time=1,id=2,size=3,delimiter=space"
    }
}

/// The formats that the first line could be of.
fn of_first_line(first: &[u8], sample: &[u8]) -> Vec<Format> {
    let presets = PRESETS.iter().filter(|preset| !preset.is_among_others());
    let shown: Vec<_> = presets.filter(|preset| preset.shows(first)).collect();
    let mut found: Vec<Format> = shown.iter().map(|preset| preset.format).collect();
    let mut may_be_csv = shown.iter().any(|preset| preset.may_be_csv(first, sample));
    if first.starts_with(b"{") && memchr::memmem::find(first, b"\"hash_ids\"").is_some() {
        found.push(Format::Mooncake);
    }
    if numbers::<4>(first).is_some() {
        found.push(Format::Arc);
        may_be_csv |= !shows_arc(sample);
    }
    found.extend(may_be_csv.then_some(Format::Csv));
    found
}

/// The numbers of a line that has so many and nothing else.
fn numbers<const COUNT: usize>(line: &[u8]) -> Option<[u64; COUNT]> {
    let fields = Fields::blanks(line).all(["number"; COUNT])?;
    let numbers = fields.map(|field| parse_integer(field.bytes));
    let all = numbers.iter().all(Option::is_some);
    all.then(|| numbers.map(|number| number.unwrap_or(0)))
}

/// The lines of a sample, but for one that is cut short at its end.
fn whole_lines(sample: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines(match memchr::memrchr(b'\n', sample) {
        Some(end) if sample.len() == SAMPLE_BYTES => &sample[..end],
        _ => sample,
    })
}

/// The lines of so many numbers.
fn rows<const COUNT: usize>(sample: &[u8]) -> Vec<[u64; COUNT]> {
    whole_lines(sample).filter_map(numbers).collect()
}

/// Whether all lines are disk requests of whole sectors: sizes of objects seldom are.
pub(crate) fn are_whole_sectors(preset: &Preset, sample: &[u8]) -> bool {
    let mut rows = Rows::of(preset, Some(512));
    let mut lines = whole_lines(sample).filter(|line| !line.iter().all(is_blank));
    lines.all(|line| rows.line(line, &mut Vec::new()).is_ok())
        && rows.disk_requests().is_some_and(|disk| disk.unaligned == 0)
}

/// Whether lines of four numbers are those of arc, not of `time id size` with something else: the third is no size, as it is 0, or the first no
/// time, as it falls somewhere, where the fourth counts lines.
fn shows_arc(sample: &[u8]) -> bool {
    let rows = rows::<4>(sample);
    let pairs = || rows.windows(2).map(|pair| (pair[0], pair[1]));
    let is_no_size = rows.iter().all(|row| row[2] == 0);
    let is_no_time = pairs().any(|(row, next)| next[0] < row[0]);
    let counts = pairs().all(|(row, next)| row[3].checked_add(1) == Some(next[3]));
    rows.iter().all(|row| row[1] > 0) && (is_no_size || is_no_time && counts)
}

/// Whether lines of five numbers are those of mqsim, not of `time id size` with two others: many lines, few devices, a length that is not 0, and
/// sectors that cannot be sizes. Some of them are large, and in nine of ten lines another than the device's last: objects change their sizes seldom.
pub(crate) fn are_mqsim(sample: &[u8]) -> bool {
    let rows = rows::<5>(sample);
    let fits = |[_, device, _, sectors, op]: &[u64; 5]| {
        *device < MQSIM_DEVICES && (1..=MQSIM_SECTORS).contains(sectors) && *op <= 1
    };
    let mut last = HashMap::new();
    let moves = |[_, device, sector, ..]: &&[u64; 5]| {
        let before = last.insert(*device, *sector);
        before.is_some_and(|before| before != *sector)
    };
    rows.len() >= MQSIM_LINES
        && rows.iter().all(fits)
        && rows.iter().any(|row| row[2] >= MQSIM_REACH)
        && 10 * rows.iter().filter(moves).count() >= 9 * rows.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_formats_are_told_apart() {
        for (text, format) in [
            ("1 2 3\n4 5 6\n", Format::TimeIdSize),
            ("1\t2\t3", Format::TimeIdSize),
            ("1 2 0 4\n\n5 6 0 8\n", Format::Arc),
            ("9 2 5 4\n5 6 7 5\n6 1 0 6\n", Format::Arc),
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
            (&"7 0 8 16 1\n7 0 4000000 16 0\n".repeat(8), Format::Mqsim),
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
        assert_eq!(detect(b"1 2 0 4\n1 2"), Ok(Format::Arc));
    }

    #[test]
    fn what_could_be_of_two_formats_is_refused_with_both() {
        let kv_and_block = "op_time,key,key_size,op,op_count,size,block_id,io_size,op_name\n";
        let fiu = "7 1 nfsd 8 8 W 6 0 88b93b628d84082186026d9da044f173\n";
        let objects_once: String = (0..99).map(|id| format!("{id} {id} {id}00000 8 1\n")).collect();
        for (text, names, columns) in [
            (
                "1 5 120 0\n2 6 100 0\n3 5 120 0\n",
                ["arc", "csv"],
                "delimiter=space",
            ),
            ("1 5 0 0\n2 6 100 0\n", ["arc", "csv"], "delimiter=space"),
            (
                "1 5 120 0\n2 6 100 1\n3 5 120 2\n",
                ["arc", "csv"],
                "delimiter=space",
            ),
            ("3 5 120 0\n2 6 100 2\n", ["arc", "csv"], "delimiter=space"),
            ("1 0 0 0\n", ["arc", "csv"], "delimiter=space"),
            ("1\t5\t120\t0\n", ["arc", "csv"], "delimiter=tab"),
            ("1,5,120\n", ["jedi", "csv"], "time=1,id=2,size=3`"),
            (&"1 5 120 0 1\n".repeat(20), ["mqsim", "csv"], "delimiter=space"),
            (
                &"1 5000 120 8 1\n".repeat(20),
                ["mqsim", "csv"],
                "delimiter=space",
            ),
            ("1 5 120 8 1\n", ["mqsim", "csv"], "delimiter=space"),
            // The sizes of objects: of one that does not change, of many, and of one that does.
            (
                &"1 5 4000000 8 1\n".repeat(16),
                ["mqsim", "csv"],
                "delimiter=space",
            ),
            (&objects_once, ["mqsim", "csv"], "delimiter=space"),
            (
                &"1 5 120 8 1\n2 5 130 8 1\n".repeat(8),
                ["mqsim", "csv"],
                "delimiter=space",
            ),
            (kv_and_block, ["meta-kv", "meta-block"], ""),
            // Five numbers, and sizes that no disk has.
            ("1,2,3,1,4\n", ["tencent-block", "csv"], "time=1,id=2,size=3`"),
            (
                "7,R,100,4096,9\n",
                ["alibaba-block", "csv"],
                "time=1,id=2,size=3`",
            ),
            ("7,h,0,Read,512,700,9\n", ["msr", "csv"], "time=1,id=2,size=3`"),
            ("7.5,0.1,W,0,512,700\n", ["systor", "csv"], "time=1,id=2,size=3`"),
            (
                &format!("0.5 ; 3 ; 4 ; W ; 0 ; 0\n{fiu}"),
                ["blkreplay", "fiu"],
                "",
            ),
            (&format!("1 5 120\n{fiu}"), ["time-id-size", "fiu"], ""),
        ] {
            let found = detect(text.as_bytes()).unwrap_err();
            let named = format!("could be {}", names.join(" or "));
            assert!(
                found.contains(&named) && found.contains(columns),
                "{text}: {found}"
            );
        }
    }

    #[test]
    fn a_header_of_csv_names_its_columns() {
        for (header, expected) in [
            (
                "time,id,size,op,ttl",
                Some("time=time,id=id,size=size,op=op,header=true"),
            ),
            ("time,id,size", Some("time=time,id=id,size=size,header=true")),
            ("id,op", Some("id=id,op=op,header=true")),
            ("time,size", None),
            ("time,key,size", None),
            ("1,2,3", None),
        ] {
            let found = headed_columns(format!("\n{header}\r\n1,2,3\n").as_bytes());
            assert_eq!(found, expected.map(|spec| spec.parse().unwrap()), "{header}");
        }
    }

    #[test]
    fn what_does_not_show_its_format_is_refused_with_the_reason() {
        for (sample, reason) in [
            (&b""[..], "empty"),
            (b"\n \n", "blank"),
            (b"\x00\x01\x02\x03", "binary"),
            (b"1 2 3\x00", "binary"),
            (b"when,what,bytes\n1,2,3\n", "--columns"),
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
