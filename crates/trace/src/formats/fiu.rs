//! `fiu`: disk requests with a hash of their content, as in the I/O deduplication traces of FIU.

use super::pages::{Device, Extent, Pages, SECTOR_BYTES};
use crate::fields::{Fault, Field, Fields, parse_u64};
use crate::format::TraceKey;
use crate::request::{DiskRequests, Op, Request};
use crate::text::LineParser;
use twox_hash::XxHash3_64;

/// Characters of an MD5: hexadecimal digits.
const DIGEST_LEN: usize = 32;

/// `time pid process sector length op major minor hash`, blank separated: nanoseconds, sectors of 512 bytes, R or W, and the
/// MD5 of the content, or, in the traces of homes, one for each sector, without anything between them. Lines that do not have nine fields with R
/// or W as the sixth are no records: files begin and end with remains of an archive.
///
/// By address a record is split into pages, and the device makes addresses distinct. By fingerprint a record is one request,
/// whose key is the first 64 bits of the MD5. Several MD5s are one content: the XXH3-64 of their digits, those of a page or of all.
pub(crate) struct Fiu {
    key: TraceKey,
    page_sectors: u64,
    pages: Pages,
}

impl Fiu {
    pub(crate) fn new(key: TraceKey, page_bytes: u64) -> Self {
        Fiu {
            key,
            page_sectors: page_bytes / SECTOR_BYTES,
            pages: Pages::new(page_bytes),
        }
    }
}

/// The operation of a field that is `R` or `W`.
fn read_or_write(field: Field<'_>) -> Option<Op> {
    match field.bytes {
        b"R" => Some(Op::Get),
        b"W" => Some(Op::Set),
        _ => None,
    }
}

/// Whether a line is a record that has everything in its place.
pub(crate) fn shows(line: &[u8]) -> bool {
    let Some(fields) = fields_of(line) else {
        return false;
    };
    let [time, pid, _, sector, length, _, major, minor, hash] = fields;
    [time, pid, sector, major, minor]
        .iter()
        .all(|field| parse_u64(field.bytes).is_some())
        && parse_u64(length.bytes).is_some_and(|sectors| Digests::of(hash, sectors).is_ok())
}

const NAMES: [&str; 9] = [
    "time", "pid", "process", "sector", "length", "op", "major", "minor", "hash",
];

/// The fields of a line that is a record.
fn fields_of(line: &[u8]) -> Option<[Field<'_>; 9]> {
    let found = Fields::blanks(line).all(NAMES)?;
    read_or_write(found[5]).is_some().then_some(found)
}

/// A number that has room in the key of a page.
fn below(field: Field<'_>, limit: u64, expected: &str) -> Result<u64, Fault> {
    let number = field.unsigned()?;
    if number < limit {
        Ok(number)
    } else {
        Err(field.fault(expected))
    }
}

/// What a record says of its content.
enum Digests<'a> {
    /// The first 64 bits of the MD5 of all of it.
    One(u64),
    /// An MD5 of each sector, in digits.
    Each(&'a [u8]),
}

impl<'a> Digests<'a> {
    /// Those of a request for so many sectors.
    fn of(field: Field<'a>, sectors: u64) -> Result<Self, Fault> {
        let wrong = || field.fault("an MD5 (32 hexadecimal digits), or one for each sector");
        let digits = std::str::from_utf8(field.bytes).map_err(|_| wrong())?;
        if !field.bytes.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong());
        }
        if digits.len() == DIGEST_LEN {
            let bits = u64::from_str_radix(&digits[..16], 16);
            return bits.map(Self::One).map_err(|_| wrong());
        }
        let is_each = sectors > 0 && sectors.checked_mul(DIGEST_LEN as u64) == Some(digits.len() as u64);
        is_each.then_some(Self::Each(field.bytes)).ok_or_else(wrong)
    }

    /// The content of the whole request.
    fn whole(&self) -> u64 {
        match self {
            Self::One(content) => *content,
            Self::Each(digits) => XxHash3_64::oneshot(digits),
        }
    }

    /// The contents of the pages, of so many sectors, of a request that begins at `sector`, as far as they are known.
    fn pages(&self, sector: u64, page_sectors: u64) -> Vec<u64> {
        let Self::Each(digits) = self else {
            return vec![self.whole()];
        };
        let sectors_of_first = (page_sectors - sector % page_sectors) as usize;
        let (first, others) = digits.split_at((sectors_of_first * DIGEST_LEN).min(digits.len()));
        let others = others.chunks(page_sectors as usize * DIGEST_LEN);
        std::iter::once(first)
            .chain(others)
            .map(XxHash3_64::oneshot)
            .collect()
    }
}

impl LineParser for Fiu {
    fn has_ops(&self) -> bool {
        true
    }

    fn record_form(&self) -> Option<&'static str> {
        Some("time pid process sector length R-or-W major minor MD5s")
    }

    fn is_record(&self, line: &[u8]) -> bool {
        fields_of(line).is_some()
    }

    fn disk_requests(&self) -> Option<DiskRequests> {
        (self.key != TraceKey::Fingerprint).then(|| self.pages.counts())
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<Request>) -> Result<(), Fault> {
        let Some([time, _, _, sector, sectors, op, major, minor, hash]) = fields_of(line) else {
            return Ok(());
        };
        let time = time.unsigned()?;
        let op = read_or_write(op).unwrap_or(Op::Get);
        let extent = Extent {
            device: Some(major),
            sector,
            sectors,
            unit: SECTOR_BYTES,
        };
        let digests = Digests::of(hash, sectors.unsigned()?)?;
        if self.key == TraceKey::Fingerprint {
            let content = digests.whole();
            out.push(Request {
                key: content,
                size: Some(extent.bytes()?),
                time,
                op,
                content: Some(content),
                ..Request::BLANK
            });
            return Ok(());
        }
        let device =
            below(major, 1 << 12, "a number below 4096")? << 8 | below(minor, 1 << 8, "a number below 256")?;
        let contents = digests.pages(sector.unsigned()?, self.page_sectors);
        extent.split(&mut self.pages, time, op, Device::Number(device), &contents)
    }

    fn resume(&mut self, out: &mut Vec<Request>) {
        self.pages.resume(out);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use crate::testing::{damage, drain, request, requests};
    use crate::{Format, Op, Request, Trace, TraceKey, TraceOptions};
    use pumice_world::mix64;
    use twox_hash::XxHash3_64;

    const ROWS: &str = "7 42 nfsd 8 8 W 6 0 00000000000000ff0000000000000000\n\
                        9 42 imapd 8 16 R 6 1 88b93b628d84082186026d9da044f173\n";

    #[test]
    fn records_are_pages_of_their_device() {
        let page = |key, time, op, content| Request {
            content: Some(content),
            ..request(key, Some(4096), time, op)
        };
        let content = 0x88b9_3b62_8d84_0821;
        let (first, second) = ((6 << 8) << 44, (6 << 8 | 1) << 44);
        let expected = [
            page(first | 1, 7, Op::Set, 0xff),
            page(second | 1, 9, Op::Get, content),
            page(second | 2, 9, Op::Get, mix64(content ^ 1)),
        ];
        assert_eq!(requests(Format::Fiu, ROWS.as_bytes()), expected);
        let remains = format!("\0\0./Pax\0\n28 ctime=1\n{ROWS}1 2 x 3 4 W 6 0\n\0\0");
        assert_eq!(requests(Format::Fiu, remains.as_bytes()), expected);
    }

    /// Eight sectors of a page, then its last and the first two of the next page.
    #[test]
    fn each_sector_may_have_a_digest() {
        let digest = |number: u64| format!("{number:032x}");
        let digests = |numbers: std::ops::Range<u64>| numbers.map(digest).collect::<String>();
        let rows = format!(
            "1 7 smbd 16 8 W 6 0 {}\n2 7 smbd 23 3 R 6 0 {}\n3 7 smbd 16 8 R 6 0 {}\n",
            digests(0..8),
            digests(7..10),
            digests(0..8)
        );
        let found = Trace::read_from("sample", Cursor::new(rows.clone()), 0, &TraceOptions::default());
        let found = drain(&mut *found.unwrap()).unwrap();
        let key = |page: u64| (6 << 8) << 44 | page;
        let content = |numbers| Some(XxHash3_64::oneshot(digests(numbers).as_bytes()));
        let seen: Vec<_> = found.iter().map(|page| (page.key, page.content)).collect();
        assert_eq!(
            seen,
            [
                (key(2), content(0..8)),
                (key(2), content(7..8)),
                (key(3), content(8..10)),
                (key(2), content(0..8)),
            ]
        );
        let bytes = Cursor::new(rows);
        let options = TraceOptions::default();
        let mut reader = Trace::read_keyed("sample", bytes, 0, &options, TraceKey::Fingerprint).unwrap();
        let found = drain(&mut *reader).unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|request| (Some(request.key), request.size))
            .collect();
        let all = (content(0..8), Some(4096));
        assert_eq!(seen, [all, (content(7..10), Some(1536)), all]);
    }

    #[test]
    fn by_fingerprint_a_record_is_one_request() {
        let options = TraceOptions {
            format: Some(Format::Fiu),
            columns: None,
        };
        let bytes = Cursor::new(ROWS.as_bytes());
        let mut reader = Trace::read_keyed("sample", bytes, 0, &options, TraceKey::Fingerprint).unwrap();
        let by_content = |size, time, op, content| Request {
            content: Some(content),
            ..request(content, Some(size), time, op)
        };
        let expected = [
            by_content(4096, 7, Op::Set, 0xff),
            by_content(8192, 9, Op::Get, 0x88b9_3b62_8d84_0821),
        ];
        assert_eq!(drain(&mut *reader).unwrap(), expected);
        assert_eq!((reader.records().count, reader.records().disk), (2, None));
    }

    #[test]
    fn damaged_records_are_named_and_files_without_any_refused() {
        let damaged = |text: &str| damage(Format::Fiu, format!("{ROWS}{text}").as_bytes());
        let start = ROWS.len() as u64;
        let md5 = "88b93b628d84082186026d9da044f173";
        assert_eq!(damaged(&format!("x 1 p 1 8 R 6 0 {md5}\n")).1, start);
        assert_eq!(damaged(&format!("1 1 p 1 8 R 4096 0 {md5}\n")).1, start + 12);
        assert_eq!(damaged(&format!("1 1 p 1 8 R 6 256 {md5}\n")).1, start + 14);
        assert_eq!(
            damaged(&format!("1 1 p 140737488355328 8 R 6 0 {md5}\n")).1,
            start + 6
        );
        let (record, offset, what) = damaged("1 1 p 1 8 R 6 0 88b9\n");
        assert_eq!((record, offset), (3, start + 16));
        assert!(what.contains("MD5") && what.contains("`88b9`"), "{what}");
        // Seven digests of eight sectors.
        assert_eq!(
            damaged(&format!("1 1 p 1 8 R 6 0 {}\n", md5.repeat(7))).1,
            start + 16
        );
        assert_eq!(
            damaged(&format!("1 1 p 1 0 R 6 0 {}x\n", &md5[1..])).1,
            start + 16
        );
        assert!(
            damage(Format::Fiu, b"1 2 3\n")
                .2
                .starts_with("no line is a record")
        );
    }
}
